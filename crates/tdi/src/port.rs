//! [`Port`]: a local port that accepts peers and offers them to the addresses that share it.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
};

use tracing::{info, warn};

use super::{statistics::Counters, status::Status};
use crate::{
    incoming::{Incoming, IncomingListener},
    rdma::work::{ProviderError, ProviderErrorKind},
    runtime::OwnedTask,
};

/// Whether an address can be opened more than once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Share {
    /// The address can be opened only once.
    #[default]
    Exclusive,
    /// The address can be opened again by others that share it. A peer is offered to them in the
    /// order in which they opened it, until one accepts.
    Shared,
}

/// An address to which a port offers its peers.
pub(crate) trait OfferTarget: Send + Sync {
    /// Accepts the offer, or returns it. Sets `refused` if a client has refused it.
    fn offer(self: Arc<Self>, incoming: Incoming, refused: &mut bool) -> Option<Incoming>;
    /// Handles the failure of the port, which accepts no more peers.
    fn failed(&self, status: Status);
}

/// A local port that peers can connect to, used by one address or by several that share it.
pub(crate) struct Port {
    pub(crate) local_address: SocketAddr,
    pub(crate) share: Share,
    targets: Mutex<Vec<Weak<dyn OfferTarget>>>,
    /// The accept loop.
    task: OnceLock<OwnedTask>,
}

impl Port {
    /// Starts the accept loop. Must be called within a tokio runtime.
    pub(crate) fn open(
        counters: Arc<Counters>,
        listener: IncomingListener,
        share: Share,
    ) -> Arc<Self> {
        let port = Arc::new(Self {
            local_address: listener.local_address(),
            share,
            targets: Mutex::default(),
            task: OnceLock::new(),
        });
        let task = accept_loop(Arc::downgrade(&port), counters, listener);
        port.task.get_or_init(|| OwnedTask::spawn(task));
        port
    }

    /// Adds an address to which peers are offered.
    pub(crate) fn add_target(&self, target: Weak<dyn OfferTarget>) {
        self.lock_targets().push(target);
    }

    fn lock_targets(&self) -> MutexGuard<'_, Vec<Weak<dyn OfferTarget>>> {
        self.targets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the open addresses, in the order in which they were opened.
    fn open_targets(&self) -> Vec<Arc<dyn OfferTarget>> {
        let mut targets = self.lock_targets();
        targets.retain(|target| target.strong_count() > 0);
        targets.iter().filter_map(Weak::upgrade).collect()
    }

    /// Offers a peer to the addresses, one after another, until one accepts it.
    fn offer(&self, incoming: Incoming, counters: &Counters) {
        let mut targets = self.open_targets().into_iter();
        let mut refused = false;
        let left = targets.try_fold(incoming, |incoming, target| {
            target.offer(incoming, &mut refused)
        });
        if left.is_some() {
            info!(refused, "no address accepts a peer");
            //= TDI-QUERY-02
            counters.count(|counters| match refused {
                true => counters.cancelled_connections += 1,
                false => counters.no_listen_failures += 1,
            });
        }
    }
}

/// Accepts peers until the port is dropped or the listener fails.
async fn accept_loop(port: Weak<Port>, counters: Arc<Counters>, mut listener: IncomingListener) {
    loop {
        let accepted = listener.accept().await;
        let Some(port) = port.upgrade() else {
            return;
        };
        match accepted {
            Ok(incoming) => {
                let span = incoming.span().clone();
                span.in_scope(|| port.offer(incoming, &counters));
            }
            Err(error) => {
                warn!(%error, "listening ends");
                for target in port.open_targets() {
                    target.failed(Status::INSUFFICIENT_RESOURCES);
                }
                return;
            }
        }
    }
}

/// Returns the status for a provider's error when an address is opened.
pub(crate) fn open_status(error: &ProviderError) -> Status {
    match error.kind {
        ProviderErrorKind::InUse => Status::ADDRESS_ALREADY_EXISTS,
        ProviderErrorKind::Address => Status::INVALID_ADDRESS_COMPONENT,
        _ => Status::INSUFFICIENT_RESOURCES,
    }
}
