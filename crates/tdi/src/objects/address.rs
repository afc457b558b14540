//! [`Address`]: a local address with its client, its pending listens and its endpoints.

use std::{
    collections::VecDeque,
    fmt,
    net::SocketAddr,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use smbdirect::Incoming;
use tracing::warn;

use super::{
    device::Device,
    port::{OfferTarget, Port},
    types::{
        Address, AddressLocked, AddressShared, Client, ConnectAnswer, Endpoint, EndpointContext,
        EndpointShared, Handle, Offer, PendingListen,
    },
};
use crate::protocol::Status;

impl<C: EndpointContext> PendingListen<C> {
    fn accepts(&self, peer: SocketAddr) -> bool {
        let peer = peer.ip().to_canonical();
        //= TDI-CONN-04
        self.remote
            .is_none_or(|remote| remote.to_canonical() == peer)
    }
}

impl<C: EndpointContext> Address<C> {
    /// Opens an address on `port`. Without a port, its endpoints can connect to peers but cannot accept them.
    pub(crate) fn open(
        device: Arc<Device>,
        local_addr: SocketAddr,
        port: Option<Arc<Port>>,
    ) -> Self {
        let shared = Arc::new(AddressShared {
            device,
            local_addr,
            closed: AtomicBool::new(false),
            state: Mutex::new(AddressLocked {
                handle: Weak::new(),
                port: port.clone(),
                client: None,
                listens: VecDeque::new(),
                endpoints: Vec::new(),
            }),
        });
        if let Some(port) = port {
            let target: Weak<dyn OfferTarget> = Arc::downgrade(&shared) as Weak<dyn OfferTarget>;
            port.add_target(target);
        }
        let handle = Arc::new(Handle { shared });
        handle.shared.lock().handle = Arc::downgrade(&handle);
        Self { handle }
    }

    /// Opens a connection endpoint that is associated with this address. The client identifies the
    /// endpoint by `context`.
    pub fn open_endpoint(&self, context: C) -> Endpoint<C> {
        let shared = &self.handle.shared;
        let endpoint = Endpoint::open(shared.device.clone(), context);
        endpoint
            .associate(self)
            .expect("a new endpoint is idle, and of this transport");
        endpoint
    }

    /// Returns the local address, with the port that was picked.
    pub fn local_addr(&self) -> SocketAddr {
        self.handle.shared.local_addr
    }

    /// Sets the handlers of all events, as TDI_SET_EVENT_HANDLER does for one event; `None` removes them.
    ///
    /// Without handlers, peers are refused unless a listen is pending, and received data is held
    /// for receives. Data that is held is indicated to new handlers. This method does not wait for
    /// a handler of the previous client that is running on another thread.
    pub fn set_client(&self, client: Option<Arc<dyn Client<C>>>) {
        let shared = &self.handle.shared;
        let mut state = shared.lock();
        let has_client = client.is_some();
        let before = std::mem::replace(&mut state.client, client);
        let endpoints: Vec<_> = state.endpoints.iter().filter_map(Weak::upgrade).collect();
        drop(state);
        // The client's destructor may call into this address, so it must not run under the lock.
        drop(before);
        if has_client {
            for endpoint in endpoints.into_iter().map(Endpoint::from_shared) {
                // An endpoint without a connection has no indications to resume.
                let _ = endpoint.resume();
            }
        }
    }

    pub(crate) fn shared(&self) -> &Arc<AddressShared<C>> {
        &self.handle.shared
    }
}

impl<C: EndpointContext> AddressShared<C> {
    fn lock(&self) -> MutexGuard<'_, AddressLocked<C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) const fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(crate) fn client(&self) -> Option<Arc<dyn Client<C>>> {
        self.lock().client.clone()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Returns whether peers can connect to this address.
    pub(crate) fn accepts_peers(&self) -> bool {
        self.lock().port.is_some()
    }

    pub(crate) fn add_endpoint(&self, endpoint: Weak<EndpointShared<C>>) {
        self.lock().endpoints.push(endpoint);
    }

    /// Removes an endpoint and its listens.
    pub(crate) fn remove_endpoint(&self, endpoint: &EndpointShared<C>) {
        let is_other = |known: &Weak<_>| !std::ptr::eq(known.as_ptr(), endpoint);
        let mut state = self.lock();
        state.endpoints.retain(is_other);
        state.listens.retain(|listen| is_other(&listen.endpoint));
    }

    /// Adds a listen after those that are pending, or `again` before them, where it was before its peer failed to negotiate.
    pub(crate) fn listen(&self, listen: PendingListen<C>, again: bool) {
        let endpoint = listen.endpoint.clone();
        let mut state = self.lock();
        if again {
            state.listens.push_front(listen);
        } else {
            //= TDI-CONN-05
            state.listens.push_back(listen);
        }
        drop(state);
        let Some(endpoint) = endpoint.upgrade().map(Endpoint::from_shared) else {
            return;
        };
        // The address may have been closed, or its port may have failed, before the listen was added.
        if self.is_closed() {
            endpoint.end_listen(Status::CANCELLED, true);
        } else if !self.accepts_peers() {
            endpoint.end_listen(Status::INSUFFICIENT_RESOURCES, false);
        }
    }

    /// Removes the listen of this endpoint with this attempt number. The endpoint may have submitted another
    /// listen after it.
    pub(crate) fn cancel_listen(&self, endpoint: &Weak<EndpointShared<C>>, attempt: u64) {
        let is_other = |listen: &PendingListen<C>| {
            listen.attempt != attempt || !Weak::ptr_eq(&listen.endpoint, endpoint)
        };
        self.lock().listens.retain(is_other);
    }

    /// Removes and returns the first pending listen that accepts this peer.
    fn take_listen(&self, peer: SocketAddr) -> Option<PendingListen<C>> {
        let listens = &mut self.lock().listens;
        let index = listens.iter().position(|listen| listen.accepts(peer))?;
        listens.remove(index)
    }

    /// Calls the connect handler. Returns the offer if the client refused it.
    fn ask_client(
        self: &Arc<Self>,
        client: Arc<dyn Client<C>>,
        incoming: Incoming,
        refused: &mut bool,
    ) -> Option<Incoming> {
        let Some(handle) = self.lock().handle.upgrade() else {
            return Some(incoming);
        };
        let address = Address { handle };
        let offer = Offer {
            peer_addr: incoming.peer_addr(),
        };
        let asked = catch_unwind(AssertUnwindSafe(|| client.connect(&address, &offer)));
        match asked {
            Ok(ConnectAnswer::Accept(endpoint)) => {
                if let Err(client) = endpoint.accept_offer(self, incoming, client) {
                    let failed = Err(Status::INVALID_CONNECTION);
                    let report =
                        |client: &dyn Client<C>| client.accept_completed(&endpoint, failed);
                    if endpoint.call_client(&*client, report).is_err() {
                        warn!("the handler of the acceptance panicked");
                    }
                }
                None
            }
            Ok(ConnectAnswer::Refuse) => {
                *refused = true;
                Some(incoming)
            }
            Ok(ConnectAnswer::NoResources) => {
                self.device
                    .count(|counters| counters.local_resource_failures += 1);
                None
            }
            Err(_) => {
                warn!("the connect handler panicked");
                None
            }
        }
    }
}

impl<C: EndpointContext> Drop for Handle<C> {
    fn drop(&mut self) {
        let shared = &self.shared;
        //= TDI-CLOSE-02
        shared.closed.store(true, Ordering::Release);
        let mut state = shared.lock();
        let port = state.port.take();
        let client = state.client.take();
        let listens = std::mem::take(&mut state.listens);
        let endpoints: Vec<_> = state.endpoints.iter().filter_map(Weak::upgrade).collect();
        drop(state);
        drop((port, client, listens));
        for endpoint in endpoints {
            Endpoint::from_shared(endpoint).end_listen(Status::CANCELLED, true);
        }
    }
}

impl<C: EndpointContext> OfferTarget for AddressShared<C> {
    fn offer(self: Arc<Self>, mut incoming: Incoming, refused: &mut bool) -> Option<Incoming> {
        if self.is_closed() {
            return Some(incoming);
        }
        //= TDI-CONN-06
        while let Some(listen) = self.take_listen(incoming.peer_addr()) {
            let Some(endpoint) = listen.endpoint.upgrade().map(Endpoint::from_shared) else {
                continue;
            };
            match endpoint.offer(&listen, incoming) {
                None => return None,
                // The listen was cancelled.
                Some(back) => incoming = back,
            }
        }
        match self.client() {
            Some(client) => self.ask_client(client, incoming, refused),
            None => Some(incoming),
        }
    }

    fn failed(&self, status: Status) {
        let mut state = self.lock();
        let port = state.port.take();
        let listens = std::mem::take(&mut state.listens);
        drop(state);
        drop(port);
        for listen in listens {
            if let Some(endpoint) = listen.endpoint.upgrade() {
                Endpoint::from_shared(endpoint).end_listen(status, false);
            }
        }
        if let Some(client) = self.client()
            && catch_unwind(AssertUnwindSafe(|| client.error(status))).is_err()
        {
            warn!("the error handler panicked");
        }
    }
}

impl<C: EndpointContext> Clone for Address<C> {
    fn clone(&self) -> Self {
        Self {
            handle: self.handle.clone(),
        }
    }
}

impl<C: EndpointContext> fmt::Debug for Address<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Address")
            .field("local_addr", &self.local_addr())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{objects::pair::Pair, protocol::DisconnectFlags};

    /// Returns the numbers of endpoints and of pending listens of an address.
    fn known(address: &Address) -> (usize, usize) {
        let state = address.shared().lock();
        (state.endpoints.len(), state.listens.len())
    }

    #[tokio::test]
    async fn closed_endpoints_and_cancelled_listens_are_forgotten() {
        let Pair { there, remote, .. } = Pair::apart().await;
        let (second, third) = (remote.open_endpoint(()), remote.open_endpoint(()));
        let endpoints = [&there, &second, &third];
        let _listens = endpoints.map(|endpoint| endpoint.listen(None));
        assert_eq!(known(&remote), (3, 3));
        drop(third);
        assert_eq!(known(&remote), (2, 2));
        there
            .disconnect(DisconnectFlags::ABORT, None)
            .await
            .unwrap();
        assert_eq!(known(&remote), (2, 1));
        there.disassociate().unwrap();
        assert_eq!(known(&remote), (1, 1));
        // The remaining listen belongs to the other endpoint. Cancelling it again does not affect a later listen.
        let weak = second.downgrade();
        let attempt = {
            let state = remote.shared().lock();
            assert!(state.endpoints[0].ptr_eq(&weak));
            assert!(state.listens[0].endpoint.ptr_eq(&weak));
            state.listens[0].attempt
        };
        second
            .disconnect(DisconnectFlags::ABORT, None)
            .await
            .unwrap();
        assert_eq!(known(&remote), (1, 0));
        let _listen = second.listen(None);
        remote.shared().cancel_listen(&weak, attempt);
        assert_eq!(known(&remote), (1, 1));
    }
}
