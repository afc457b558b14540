//! The reports of a connection to [`metrics`]: its counters, the round trips of its keepalives, and its end.

use std::sync::Arc;

use super::{shared::Shared, state::State};
use crate::metrics::{self, Identity, Reading, Source};

impl Shared {
    /// Begins to report this connection, which has just been established.
    pub(crate) fn meter(self: &Arc<Self>, identity: Identity) {
        metrics::established(self, identity);
        self.with(|state| {
            state.metered.id = Some(identity.id);
            // The connection may have ended in the meantime.
            if let Some(error) = &state.closed {
                metrics::ended(error);
            }
        });
    }
}

impl Source for Shared {
    fn read(&self) -> Reading {
        self.with(|state| Reading {
            credits: state.credits(),
            statistics: state.statistics(),
            received_bytes: state.inbox.cost() as u64,
            error: state.closed.clone(),
        })
    }
}

impl Drop for State {
    fn drop(&mut self) {
        if let Some(id) = self.metered.id {
            metrics::gone(id, self.statistics());
        }
    }
}
