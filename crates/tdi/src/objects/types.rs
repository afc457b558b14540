//! The types of the objects: [`Address`], [`Endpoint`], and [`Client`], the event handlers of the
//! transport's user.
//!
//! An address has the client and the endpoints that are associated with it, an endpoint has its
//! address, and the handlers of the client take both. The types name each other, so they share this
//! file; their methods are in files of their own.
//!
//! The handlers are the only callbacks of the package. The return value of a handler tells the
//! transport what to do next. The default methods do what TDI does for an event without a handler.

use std::{
    collections::VecDeque,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, Weak, atomic::AtomicBool},
};

use smbdirect::Token;
use tokio::sync::watch;

use super::{device::Device, phase::Phase, port::Port};
use crate::{
    protocol::{
        Answer, Cause, ChainedTsdu, DisconnectFlags, Indication, ReceiveCompletion, Status,
    },
    session::Session,
};

/// A local address. Its client receives the events of all endpoints that are associated with it,
/// and peers can connect to it.
///
/// Handles are cheap to clone. When the last one is dropped, pending listens are cancelled, and peers are
/// refused. Connections stay open without events; only the completions of requests that handlers have returned
/// are still reported.
pub struct Address<C: EndpointContext = ()> {
    pub(super) handle: Arc<Handle<C>>,
}

/// Closes the address when the last [`Address`] drops it.
pub(super) struct Handle<C: EndpointContext> {
    pub(super) shared: Arc<AddressShared<C>>,
}

/// The state that the handles of an address, its endpoints and its port share.
pub(crate) struct AddressShared<C: EndpointContext> {
    pub(super) device: Arc<Device>,
    pub(super) local_addr: SocketAddr,
    pub(super) closed: AtomicBool,
    pub(super) state: Mutex<AddressLocked<C>>,
}

pub(super) struct AddressLocked<C: EndpointContext> {
    /// A weak reference that can be upgraded until the last handle is dropped.
    pub(super) handle: Weak<Handle<C>>,
    /// `None` if peers cannot connect to the address, and after it was closed.
    pub(super) port: Option<Arc<Port>>,
    pub(super) client: Option<Arc<dyn Client<C>>>,
    pub(super) listens: VecDeque<PendingListen<C>>,
    pub(super) endpoints: Vec<Weak<EndpointShared<C>>>,
}

/// A pending listen and the peers that it accepts.
pub(crate) struct PendingListen<C: EndpointContext> {
    pub(crate) endpoint: Weak<EndpointShared<C>>,
    pub(crate) attempt: u64,
    /// The address of the only host whose peers are accepted; `None` accepts all.
    pub(crate) remote: Option<IpAddr>,
    pub(crate) query_accept: bool,
}

/// The local end of a connection, which can be connected again after each connection has ended.
///
/// Handles are cheap to clone. When the last one is dropped, the connection is aborted and pending
/// requests are cancelled. To send everything first, call [`disconnect`](Self::disconnect) with
/// [`RELEASE`](DisconnectFlags::RELEASE) and await it before you drop the last handle. The table at
/// [`EndpointState`](crate::EndpointState) lists the requests that each state allows.
///
/// A request is submitted by the call, in the order of calls, and completes once. Its future only
/// waits for the completion, and dropping the future does not cancel the request.
///
/// [`connect`](Self::connect), [`listen`](Self::listen), [`accept`](Self::accept) and their
/// variants must be called within a tokio runtime.
pub struct Endpoint<C: EndpointContext = ()> {
    pub(super) shared: Arc<EndpointShared<C>>,
}

/// The value by which the client identifies an endpoint, TDI's ConnectionContext: any type that
/// threads can share.
pub trait EndpointContext: Send + Sync + 'static {}

impl<T: Send + Sync + 'static> EndpointContext for T {}

/// The state that the handles of an endpoint and its tasks share.
pub(crate) struct EndpointShared<C: EndpointContext> {
    pub(super) device: Arc<Device>,
    pub(super) context: C,
    pub(super) state: Mutex<EndpointLocked<C>>,
    /// Held while a handler of this endpoint runs, so that its handlers run one at a time.
    pub(super) handler_lock: Mutex<()>,
    /// The number of connections that have ended, and why the last one did.
    pub(super) ended: watch::Sender<(u64, Option<Cause>)>,
}

pub(super) struct EndpointLocked<C: EndpointContext> {
    pub(super) phase: Phase,
    pub(super) address: Option<Arc<AddressShared<C>>>,
    /// The session of the connection. After the connection has ended, it holds the data that the
    /// client has not received yet.
    pub(super) session: Option<Arc<Session>>,
    /// The number of connects, listens and acceptances so far. A task compares it with the number
    /// it was started with to see whether its attempt is still the current one.
    pub(super) attempt: u64,
    /// The number of connections that were established.
    pub(super) established: u64,
}

/// Handlers for the events of an address and its endpoints; see
/// [`Address::set_client`](super::Address::set_client).
///
/// The handlers of one endpoint are called one at a time, on the task of its connection. They must
/// not block, because they keep other tasks from running. They may submit requests, but must not
/// wait for their completion. A handler that panics ends its connection and nothing else.
///
/// `C` is the context of the endpoints, which TDI calls ConnectionContext.
#[expect(
    unused_variables,
    reason = "the default handlers do nothing with what they are given"
)]
pub trait Client<C: EndpointContext = ()>: Send + Sync + 'static {
    /// Handles TDI_EVENT_CONNECT: a peer wants to connect to `address`, and no pending listen
    /// accepts it.
    fn connect(&self, address: &Address<C>, offer: &Offer) -> ConnectAnswer<C> {
        ConnectAnswer::Refuse
    }

    /// Handles the result of an acceptance: whether the connection of an offer that
    /// [`connect`](Self::connect) accepted was established. After this call the endpoint is closed
    /// unless the client has kept a handle. The result is
    /// [`INVALID_CONNECTION`](Status::INVALID_CONNECTION) if the endpoint could not accept the offer, and
    /// [`CANCELLED`](Status::CANCELLED) if the acceptance was cancelled. This client is told even if the address
    /// has been closed or has another client.
    fn accept_completed(&self, endpoint: &Endpoint<C>, result: Result<(), Status>) {}

    /// Handles TDI_EVENT_RECEIVE: bytes of a TSDU have arrived.
    fn receive(&self, endpoint: &Endpoint<C>, indication: Indication) -> Answer {
        Answer::NotAccepted(0)
    }

    /// Returns whether [`chained_receive`](Self::chained_receive) is called for whole TSDUs. Otherwise
    /// [`receive`](Self::receive) is called for them. This method is called before each indication and must be
    /// fast.
    fn takes_chained(&self) -> bool {
        false
    }

    /// Handles TDI_EVENT_CHAINED_RECEIVE: a whole TSDU has arrived and is lent to the client.
    ///
    /// The client returns the memory by dropping the TSDU, in the handler or later. A TSDU that the
    /// handler returns as an error is held for a receive.
    ///
    /// # Errors
    /// Returns the TSDU if it is not accepted.
    fn chained_receive(
        &self,
        endpoint: &Endpoint<C>,
        tsdu: ChainedTsdu,
    ) -> Result<(), ChainedTsdu> {
        Err(tsdu)
    }

    /// Handles the completion of the request that [`receive`](Self::receive) of this client returned, even if the
    /// address has been closed or has another client.
    fn receive_completed(&self, endpoint: &Endpoint<C>, completion: ReceiveCompletion) {}

    /// Handles TDI_EVENT_SEND_POSSIBLE: after a refused non-blocking send, the send buffer has
    /// `available` free bytes again. They are not reserved for this client.
    fn send_possible(&self, endpoint: &Endpoint<C>, available: usize) {}

    /// Handles the invalidation of a registration of this end by a message of the peer without
    /// payload. The token of a message with payload is reported with the end of its TSDU.
    fn invalidated(&self, endpoint: &Endpoint<C>, token: Token) {}

    /// Handles TDI_EVENT_DISCONNECT: the connection has ended without a request of this client, or an
    /// offer was not accepted in time ([`OfferTimeout`](crate::Cause::OfferTimeout)).
    ///
    /// This is the last event of the connection, and the endpoint can be connected again. Discard a
    /// TSDU whose end was not indicated. Data that is held for receives can still be received.
    ///
    /// The flags are always [`ABORT`](DisconnectFlags::ABORT), because SMB Direct has no orderly
    /// release.
    fn disconnect(&self, endpoint: &Endpoint<C>, flags: DisconnectFlags, cause: &Cause) {}

    /// Handles TDI_EVENT_ERROR: peers cannot connect to this address any more. The listens that
    /// were pending have completed with `status`.
    fn error(&self, status: Status) {}
}

/// A peer that wants to connect.
#[derive(Clone, Debug)]
pub struct Offer {
    /// The address of the peer.
    pub peer_addr: SocketAddr,
}

/// The answer of [`Client::connect`] to an [`Offer`].
#[derive(Debug)]
pub enum ConnectAnswer<C: EndpointContext = ()> {
    /// MORE_PROCESSING_REQUIRED: this endpoint accepts the connection. It must be associated with
    /// the address and have no connection; otherwise the peer is refused.
    Accept(Endpoint<C>),
    /// CONNECTION_REFUSED: the peer is refused, unless another client that shares the address
    /// accepts it.
    Refuse,
    /// INSUFFICIENT_RESOURCES: the peer is refused.
    NoResources,
}
