//! [`Port`]: a local port that accepts peers and offers them to the addresses that share it.

use std::{
    future::poll_fn,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
    task::{Poll, ready},
};

use smbdirect::{
    Incoming, IncomingListener,
    rdma::{
        provider::BoxFuture,
        work::{ProviderError, ProviderErrorKind},
    },
};
use tokio::task::AbortHandle;
use tracing::{info, warn};

use crate::protocol::{Counters, Status};

/// Whether an address can be opened more than once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Share {
    /// The address can be opened only once.
    #[default]
    Exclusive,
    /// The address can be opened several times if each opener shares it. A peer is offered to the openers in the
    /// order in which they opened the address, until one accepts.
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
    pub(crate) local_addr: SocketAddr,
    pub(crate) share: Share,
    targets: Mutex<Vec<Weak<dyn OfferTarget>>>,
    accepting: SharedAccepting,
    /// The accept loop.
    task: OnceLock<AbortHandle>,
}

/// The wait for the next peer, which owns the listener; `None` after the port was dropped. The port
/// and its accept loop share it, so that the address is free when the drop of the port returns. A
/// task that is aborted keeps what it owns until the runtime runs.
type SharedAccepting = Arc<Mutex<Option<Accepting>>>;
type Accepting = BoxFuture<'static, (IncomingListener, Result<Incoming, ProviderError>)>;

fn accept_next(mut listener: IncomingListener) -> Accepting {
    Box::pin(async move {
        let accepted = listener.accept().await;
        (listener, accepted)
    })
}

impl Port {
    /// Starts the accept loop. Must be called within a tokio runtime.
    pub(crate) fn open(
        counters: Arc<Counters>,
        listener: IncomingListener,
        share: Share,
    ) -> Arc<Self> {
        let local_addr = listener.local_addr();
        let accepting = Arc::new(Mutex::new(Some(accept_next(listener))));
        let port = Arc::new(Self {
            local_addr,
            share,
            targets: Mutex::default(),
            accepting: accepting.clone(),
            task: OnceLock::new(),
        });
        let task = accept_loop(Arc::downgrade(&port), counters, accepting);
        port.task.get_or_init(|| tokio::spawn(task).abort_handle());
        port
    }

    /// Adds an address to which peers are offered.
    pub(crate) fn add_target(&self, target: Weak<dyn OfferTarget>) {
        lock(&self.targets).push(target);
    }

    /// Returns the open addresses, in the order in which they were opened.
    fn open_targets(&self) -> Vec<Arc<dyn OfferTarget>> {
        let mut open = Vec::new();
        lock(&self.targets).retain(|target| {
            let target = target.upgrade();
            let is_open = target.is_some();
            open.extend(target);
            is_open
        });
        open
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
            counters.count(|counters| {
                if refused {
                    counters.cancelled_connections += 1;
                } else {
                    counters.no_listen_failures += 1;
                }
            });
        }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        let accepting = lock(&self.accepting).take();
        drop(accepting);
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }
}

/// Accepts peers until the port is dropped or the listener fails.
async fn accept_loop(port: Weak<Port>, counters: Arc<Counters>, accepting: SharedAccepting) {
    loop {
        let accepted = poll_fn(|context| {
            let mut accepting = lock(&accepting);
            let Some(next) = &mut *accepting else {
                return Poll::Ready(None);
            };
            let (listener, accepted) = ready!(next.as_mut().poll(context));
            *next = accept_next(listener);
            Poll::Ready(Some(accepted))
        });
        let accepted = accepted.await;
        let (Some(port), Some(accepted)) = (port.upgrade(), accepted) else {
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the status for a provider's error when an address is opened.
pub(crate) fn open_status(error: &ProviderError) -> Status {
    match error.kind {
        ProviderErrorKind::InUse => Status::ADDRESS_ALREADY_EXISTS,
        ProviderErrorKind::Address => Status::INVALID_ADDRESS_COMPONENT,
        _ => Status::INSUFFICIENT_RESOURCES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_of_an_open_has_a_status() {
        use ProviderErrorKind as Kind;
        for (kind, status) in [
            (Kind::InUse, Status::ADDRESS_ALREADY_EXISTS),
            (Kind::Address, Status::INVALID_ADDRESS_COMPONENT),
            (Kind::Local, Status::INSUFFICIENT_RESOURCES),
        ] {
            let error = ProviderError::new(kind, "a reason");
            assert_eq!(open_status(&error), status, "{kind:?}");
        }
    }
}
