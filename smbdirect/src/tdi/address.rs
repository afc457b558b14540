//! [`Address`]: a local address, the handlers of its client, and the offers of peers.

use std::{
    collections::VecDeque,
    fmt,
    net::{IpAddr, SocketAddr},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::task::JoinSet;
use tracing::{info, warn};

use super::{
    client::{Client, ConnectAnswer, Offer},
    endpoint::{Endpoint, EndpointContext, Shared},
    status::Status,
    transport::TransportShared,
};
use crate::rdma::{
    provider::{Incoming, Listener, connection_span},
    work::{ProviderError, ProviderErrorKind},
};

/// An address of this end: its client is called for all endpoints associated with it, and peers
/// can connect to it.
///
/// Handles are cheap to clone. When the last one is dropped, listens are cancelled, handlers are
/// called no more, and offers are turned away; connections go on, without events.
pub struct Address<C: EndpointContext = ()> {
    handle: Arc<Handle<C>>,
}

/// Whether others may open the same address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Share {
    /// Nobody else.
    #[default]
    Exclusive,
    /// Whoever shares it too. Offers go to the first of them that wants them.
    Shared,
}

struct Handle<C: EndpointContext> {
    shared: Arc<AddressShared<C>>,
}

/// What the handles of an address, its endpoints and its port share.
pub(crate) struct AddressShared<C: EndpointContext> {
    transport: Arc<TransportShared>,
    local_address: SocketAddr,
    closed: AtomicBool,
    state: Mutex<State<C>>,
}

struct State<C: EndpointContext> {
    /// Gone with the last handle.
    handle: Weak<Handle<C>>,
    /// Taken away with the last handle.
    port: Option<Arc<Port>>,
    client: Option<Arc<dyn Client<C>>>,
    listens: VecDeque<Filter<C>>,
    endpoints: Vec<Weak<Shared<C>>>,
}

/// A pending listen, and the peers it is for.
pub(crate) struct Filter<C: EndpointContext> {
    pub(crate) endpoint: Weak<Shared<C>>,
    pub(crate) attempt: u64,
    pub(crate) remote: Option<IpAddr>,
    pub(crate) query_accept: bool,
}

impl<C: EndpointContext> Filter<C> {
    fn fits(&self, peer: SocketAddr) -> bool {
        let peer = peer.ip().to_canonical();
        //= TDI-CONN-04
        self.remote
            .is_none_or(|remote| remote.to_canonical() == peer)
    }
}

impl<C: EndpointContext> Address<C> {
    /// On a port that is open, or on none: then it can only be connected from.
    pub(crate) fn open(
        transport: Arc<TransportShared>,
        local_address: SocketAddr,
        port: Option<Arc<Port>>,
    ) -> Self {
        let shared = Arc::new(AddressShared {
            transport,
            local_address,
            closed: AtomicBool::new(false),
            state: Mutex::new(State {
                handle: Weak::new(),
                port: port.clone(),
                client: None,
                listens: VecDeque::new(),
                endpoints: Vec::new(),
            }),
        });
        if let Some(port) = port {
            let taker: Weak<dyn Taker> = Arc::downgrade(&shared) as Weak<dyn Taker>;
            port.takers().push(taker);
        }
        let handle = Arc::new(Handle { shared });
        handle.shared.lock().handle = Arc::downgrade(&handle);
        Self { handle }
    }

    /// Opens a connection endpoint that is associated with this address; `context` is what its
    /// client knows it by.
    pub fn open_endpoint(&self, context: C) -> Endpoint<C> {
        let shared = &self.handle.shared;
        let endpoint = Endpoint::open(shared.transport.clone(), context);
        endpoint
            .associate(self)
            .expect("a new endpoint is idle, and of this transport");
        endpoint
    }

    /// The address, with the port that was picked.
    pub fn local_address(&self) -> SocketAddr {
        self.handle.shared.local_address
    }

    /// TDI_SET_EVENT_HANDLER, for all events at once; `None` takes the handlers away. Without any,
    /// offers are refused unless a listen is pending, and what arrives is held for receives. New
    /// handlers are shown what was held. A handler of the client before that is at work on another
    /// thread is not waited for.
    pub fn set_client(&self, client: Option<Arc<dyn Client<C>>>) {
        let shared = &self.handle.shared;
        let mut state = shared.lock();
        let has_client = client.is_some();
        let before = std::mem::replace(&mut state.client, client);
        let endpoints: Vec<_> = state.endpoints.iter().filter_map(Weak::upgrade).collect();
        drop(state);
        // The client's destructor may do anything, and is not to do it under the lock.
        drop(before);
        if has_client {
            for endpoint in endpoints.into_iter().map(Endpoint::from_shared) {
                // Those without a connection have nothing to resume.
                let _ = endpoint.resume();
            }
        }
    }

    pub(crate) fn shared(&self) -> &Arc<AddressShared<C>> {
        &self.handle.shared
    }
}

impl<C: EndpointContext> AddressShared<C> {
    fn lock(&self) -> MutexGuard<'_, State<C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) const fn transport(&self) -> &Arc<TransportShared> {
        &self.transport
    }

    pub(crate) fn client(&self) -> Option<Arc<dyn Client<C>>> {
        self.lock().client.clone()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(crate) fn can_be_offered_to(&self) -> bool {
        self.lock().port.is_some()
    }

    pub(crate) fn associated(&self, endpoint: Weak<Shared<C>>) {
        self.lock().endpoints.push(endpoint);
    }

    pub(crate) fn disassociated(&self, endpoint: &Weak<Shared<C>>) {
        let is_other = |known: &Weak<_>| !Weak::ptr_eq(known, endpoint);
        self.lock().endpoints.retain(is_other);
    }

    /// An endpoint is gone.
    pub(crate) fn forget_the_gone(&self) {
        let mut state = self.lock();
        state.endpoints.retain(|known| known.strong_count() > 0);
        state
            .listens
            .retain(|listen| listen.endpoint.strong_count() > 0);
    }

    /// A listen is pending.
    pub(crate) fn listen(&self, listen: Filter<C>) {
        self.post(listen, VecDeque::push_back);
    }

    /// A listen whose peer did not make it is pending again, in its old place.
    pub(crate) fn listen_again(&self, listen: Filter<C>) {
        self.post(listen, VecDeque::push_front);
    }

    /// This listen of this endpoint is over. It may have another by now.
    pub(crate) fn cancel_listen(&self, endpoint: &Weak<Shared<C>>, attempt: u64) {
        let is_other = |listen: &Filter<C>| {
            listen.attempt != attempt || !Weak::ptr_eq(&listen.endpoint, endpoint)
        };
        self.lock().listens.retain(is_other);
    }

    fn post(&self, listen: Filter<C>, push: fn(&mut VecDeque<Filter<C>>, Filter<C>)) {
        let endpoint = listen.endpoint.clone();
        //= TDI-CONN-05
        push(&mut self.lock().listens, listen);
        let Some(endpoint) = endpoint.upgrade().map(Endpoint::from_shared) else {
            return;
        };
        // It may have been closed just before, or its listener have failed.
        if self.is_closed() {
            endpoint.address_closed();
        } else if !self.can_be_offered_to() {
            endpoint.listen_failed(Status::INSUFFICIENT_RESOURCES);
        }
    }

    /// The first pending listen that fits.
    fn take_listen(&self, peer: SocketAddr) -> Option<Filter<C>> {
        let listens = &mut self.lock().listens;
        let place = listens.iter().position(|listen| listen.fits(peer))?;
        listens.remove(place)
    }

    fn ask_client(
        self: &Arc<Self>,
        client: &dyn Client<C>,
        incoming: Incoming,
        refused: &mut bool,
    ) -> Option<Incoming> {
        let Some(handle) = self.lock().handle.upgrade() else {
            return Some(incoming);
        };
        let address = Address { handle };
        let offer = Offer {
            remote_address: incoming.remote_address,
        };
        match catch_unwind(AssertUnwindSafe(|| client.connect(&address, &offer))) {
            Ok(ConnectAnswer::Accept(endpoint)) => {
                endpoint.accept_offer(self, incoming);
                None
            }
            Ok(ConnectAnswer::Refuse) => {
                *refused = true;
                Some(incoming)
            }
            Ok(ConnectAnswer::NoResources) => {
                self.transport
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
            Endpoint::from_shared(endpoint).address_closed();
        }
    }
}

/// Who may want the offers that come to a port.
pub(crate) trait Taker: Send + Sync {
    /// Takes the offer, or gives it back, and says then whether a client has refused it.
    fn offer(self: Arc<Self>, incoming: Incoming, refused: &mut bool) -> Option<Incoming>;
    /// No offers will come any more.
    fn failed(&self, status: Status);
}

impl<C: EndpointContext> Taker for AddressShared<C> {
    fn offer(self: Arc<Self>, mut incoming: Incoming, refused: &mut bool) -> Option<Incoming> {
        if self.is_closed() {
            return Some(incoming);
        }
        //= TDI-CONN-06
        while let Some(listen) = self.take_listen(incoming.remote_address) {
            let Some(endpoint) = listen.endpoint.upgrade().map(Endpoint::from_shared) else {
                continue;
            };
            match endpoint.offer(&listen, incoming) {
                Ok(()) => return None,
                // The listen was cancelled.
                Err(back) => incoming = back,
            }
        }
        match self.client() {
            Some(client) => self.ask_client(&*client, incoming, refused),
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
                Endpoint::from_shared(endpoint).listen_failed(status);
            }
        }
        if let Some(client) = self.client()
            && catch_unwind(AssertUnwindSafe(|| client.error(status))).is_err()
        {
            warn!("the error handler panicked");
        }
    }
}

/// A local port that peers can connect to, of one address or of several that share it.
pub(crate) struct Port {
    pub(crate) local_address: SocketAddr,
    pub(crate) share: Share,
    takers: Mutex<Vec<Weak<dyn Taker>>>,
    /// Aborts the task when the port is closed.
    task: Mutex<JoinSet<()>>,
}

impl Port {
    /// Must be called within a tokio runtime.
    pub(crate) fn open(
        transport: &Arc<TransportShared>,
        listener: Box<dyn Listener>,
        share: Share,
    ) -> Arc<Self> {
        let port = Arc::new(Self {
            local_address: listener.local_address(),
            share,
            takers: Mutex::default(),
            task: Mutex::default(),
        });
        let task = accept(Arc::downgrade(&port), Arc::downgrade(transport), listener);
        let mut tasks = port.task.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.spawn(task);
        drop(tasks);
        port
    }

    fn takers(&self) -> MutexGuard<'_, Vec<Weak<dyn Taker>>> {
        self.takers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those who are there, in the order in which they came.
    fn present(&self) -> Vec<Arc<dyn Taker>> {
        let mut takers = self.takers();
        takers.retain(|taker| taker.strong_count() > 0);
        takers.iter().filter_map(Weak::upgrade).collect()
    }

    /// Offers a peer to the clients, one after the other, until one takes it.
    fn offer(&self, incoming: Incoming, transport: &Weak<TransportShared>) {
        let mut takers = self.present().into_iter();
        let mut refused = false;
        let left = takers.try_fold(incoming, |incoming, taker| {
            taker.offer(incoming, &mut refused)
        });
        if left.is_some()
            && let Some(transport) = transport.upgrade()
        {
            info!(refused, "nobody wants a peer");
            //= TDI-QUERY-02
            transport.count(|counters| match refused {
                true => counters.cancelled_connections += 1,
                false => counters.no_listen_failures += 1,
            });
        }
    }
}

async fn accept(
    port: Weak<Port>,
    transport: Weak<TransportShared>,
    mut listener: Box<dyn Listener>,
) {
    loop {
        let accepted = listener.accept().await;
        let Some(port) = port.upgrade() else {
            return;
        };
        match accepted {
            Ok(incoming) => {
                let span = connection_span(incoming.remote_address);
                span.in_scope(|| port.offer(incoming, &transport));
            }
            Err(error) => {
                warn!(%error, "listening ends");
                for taker in port.present() {
                    taker.failed(Status::INSUFFICIENT_RESOURCES);
                }
                return;
            }
        }
    }
}

/// Why an address cannot be opened, in TDI's words.
pub(crate) fn open_status(error: &ProviderError) -> Status {
    match error.kind {
        ProviderErrorKind::InUse => Status::ADDRESS_ALREADY_EXISTS,
        ProviderErrorKind::Address => Status::INVALID_ADDRESS_COMPONENT,
        _ => Status::INSUFFICIENT_RESOURCES,
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
            .field("local_address", &self.local_address())
            .finish_non_exhaustive()
    }
}
