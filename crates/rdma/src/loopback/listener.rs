//! The addresses that listeners occupy, and the requests that wait at them.

use std::{
    collections::{HashMap, VecDeque},
    future::Future,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
};

use super::{handshake::Request, lock::lock};
use crate::{
    provider::{BoxFuture, IncomingRequest, ProviderListener},
    work::{Limits, ProviderError, ProviderErrorKind},
};

/// The listeners of one address space.
#[derive(Debug, Default)]
pub(super) struct AddressSpace {
    listeners: HashMap<SocketAddr, Backlog>,
    last_port: u16,
}

/// The connection requests that wait at one listener.
#[derive(Debug)]
pub(super) struct Backlog {
    pub(super) capacity: usize,
    pub(super) requests: VecDeque<Request>,
    pub(super) waker: Option<Waker>,
}

/// The lowest port that is picked when the caller names none, as in operating systems.
const FIRST_FREE_PORT: u16 = 49152;

impl AddressSpace {
    /// Adds a listener and returns its address, with a free port if `address` has port 0.
    pub(super) fn open(
        &mut self,
        mut address: SocketAddr,
        backlog: usize,
    ) -> Result<SocketAddr, ProviderError> {
        if address.port() == 0 {
            address.set_port(self.pick_port()?);
        }
        if self.listeners.contains_key(&address) {
            let what = format!("another listener is on {address}");
            return Err(ProviderError::new(ProviderErrorKind::InUse, what));
        }
        let backlog = Backlog {
            capacity: backlog,
            requests: VecDeque::new(),
            waker: None,
        };
        self.listeners.insert(address, backlog);
        Ok(address)
    }

    /// Returns the backlog of the listener on `address`, or else of the listener on its port at the
    /// unspecified address.
    pub(super) fn find(&mut self, address: SocketAddr) -> Option<&mut Backlog> {
        let any_address = match address.ip() {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let any_address = SocketAddr::new(any_address, address.port());
        let exact = self.listeners.contains_key(&address);
        self.listeners
            .get_mut(if exact { &address } else { &any_address })
    }

    /// Returns the next port that no listener occupies.
    pub(super) fn pick_port(&mut self) -> Result<u16, ProviderError> {
        for _ in FIRST_FREE_PORT..=u16::MAX {
            self.last_port = self.last_port.wrapping_add(1).max(FIRST_FREE_PORT);
            let port = self.last_port;
            if !self.listeners.keys().any(|taken| taken.port() == port) {
                return Ok(port);
            }
        }
        let what = "every port is in use";
        Err(ProviderError::new(ProviderErrorKind::Address, what))
    }
}

/// A listener on one address.
#[derive(Debug)]
pub(super) struct LoopbackListener {
    pub(super) address: SocketAddr,
    pub(super) limits: Limits,
    pub(super) addresses: Arc<Mutex<AddressSpace>>,
}

impl ProviderListener for LoopbackListener {
    fn local_addr(&self) -> SocketAddr {
        self.address
    }

    fn accept(&mut self) -> BoxFuture<'_, Result<IncomingRequest, ProviderError>> {
        Box::pin(Accepting(self))
    }
}

/// The future of [`LoopbackListener::accept`].
struct Accepting<'a>(&'a LoopbackListener);

impl Future for Accepting<'_> {
    type Output = Result<IncomingRequest, ProviderError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self(listener) = *self;
        let mut addresses = lock(&listener.addresses);
        let Some(backlog) = addresses.listeners.get_mut(&listener.address) else {
            unreachable!("only dropping the listener closes it");
        };
        while let Some(request) = backlog.requests.pop_front() {
            if request.answer.is_awaited() {
                return Poll::Ready(Ok(request.into_incoming(listener.limits)));
            }
        }
        let old = backlog.waker.replace(context.waker().clone());
        drop(addresses);
        drop(old);
        Poll::Pending
    }
}

impl Drop for Accepting<'_> {
    fn drop(&mut self) {
        let mut addresses = lock(&self.0.addresses);
        let backlog = addresses.listeners.get_mut(&self.0.address);
        let waker = backlog.and_then(|backlog| backlog.waker.take());
        drop(addresses);
        drop(waker);
    }
}

impl Drop for LoopbackListener {
    fn drop(&mut self) {
        let closed = lock(&self.addresses).listeners.remove(&self.address);
        // Dropping the requests refuses them and wakes their senders, so the lock is not held here.
        drop(closed);
    }
}
