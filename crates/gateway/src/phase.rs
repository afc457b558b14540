//! The phases of a gateway: it serves, may be succeeded by another process, then it drains, then it ends.

use tokio::sync::watch;

/// The state of the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Serving,
    /// Another process accepts new clients, and the sessions of this one continue.
    Succeeded,
    /// No further request is taken from a client, and a session ends when its requests are answered.
    Draining,
    /// Every session ends immediately.
    Ending,
}

/// The current phase, as sessions see it.
#[derive(Clone, Debug)]
pub(crate) struct Phases(pub(crate) watch::Receiver<Phase>);

impl Phases {
    /// Returns whether the gateway has reached this phase.
    pub(crate) fn has_reached(&self, phase: Phase) -> bool {
        *self.0.borrow() >= phase
    }

    /// Waits until the gateway has reached this phase.
    pub(crate) async fn reached(&self, phase: Phase) {
        let mut phases = self.0.clone();
        // The result holds a lock, so it is dropped immediately.
        let _ = phases.wait_for(|&now| now >= phase).await;
    }
}
