//! The three traits of a provider: [`Provider`], [`ProviderListener`] and [`QueuePair`].
//!
//! The traits are object-safe and small: each method is required by [MS-SMBD] 3.1.4 or by the
//! lifecycle of a connection. A queue pair has no task of its own. Its owner posts, flushes and
//! polls, and is woken through the context of its last poll.
//!
//! The traits of this module and the structures that their methods take and return may change in any minor release of
//! `smbdirect`. The types of [`work`](super::work) are promised as those of the root are.
//!
//! The library polls [`Provider::connect`] and [`IncomingRequest::accept`] in the tracing span of the
//! connection. It calls a queue pair in any span: a queue pair that logs keeps `Span::current()`
//! when it is created, and enters that span to log.

use std::{
    any::Any,
    fmt,
    future::Future,
    net::SocketAddr,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
#[cfg(feature = "tokio")]
use tracing::{Span, error_span, field};

use crate::{
    memory::{DeregisterError, RegisterError, Registration},
    work::{Access, Completion, Limits, ProviderError, Room, Teardown, Token, WorkRequest},
};

/// A boxed future, which keeps the traits object-safe.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// An implementation of RDMA, which creates connections and listeners.
pub trait Provider: Send + Sync + fmt::Debug {
    /// Returns the attributes that all connections of this provider share.
    fn attributes(&self) -> ProviderAttributes;

    /// Connects to a peer. The receive of the request is posted before the peer can send.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the attempt and releases its resources.
    fn connect(&self, request: ConnectRequest) -> BoxFuture<'_, Result<Connected, ProviderError>>;

    /// Listens on `address`. Port 0 selects a free port, which [`ProviderListener::local_addr`]
    /// returns.
    fn listen(
        &self,
        address: SocketAddr,
    ) -> BoxFuture<'_, Result<Box<dyn ProviderListener>, ProviderError>>;
}

/// The attributes that all connections of a provider share.
#[derive(Clone, Copy, Debug)]
pub struct ProviderAttributes {
    /// The name for logs and reports: `iwarp`, `roce`, `loopback` or `verbs`.
    pub name: &'static str,
    /// The port of SMB Direct on this kind of RDMA: 5445 for iWARP, 445 otherwise (section 1.9).
    pub default_port: u16,
    /// The highest limits of a connection. The peer may lower them.
    pub limits: Limits,
    /// Whether each connection negotiates the read depths (IRD and ORD) in the handshake of the
    /// provider, as the connection manager of InfiniBand and RoCE does.
    ///
    /// If not, SMB Direct announces them in the private data (section 6): over iWARP, MPA revision 1
    /// does not negotiate them.
    pub negotiates_read_depths: bool,
}

/// The arguments of [`Provider::connect`].
#[derive(Debug)]
pub struct ConnectRequest {
    /// The address on which the peer listens.
    pub address: SocketAddr,
    /// The private data of the connection request; at most 200 bytes.
    pub private_data: Bytes,
    /// The receive to post before connecting.
    pub receive: WorkRequest,
}

/// A new connection.
#[derive(Debug)]
pub struct Connected {
    /// The queue pair of this end.
    pub queue_pair: Box<dyn QueuePair>,
    /// The limits of this connection, as both ends negotiated them.
    pub limits: Limits,
    /// Whether received payloads alias the sender's buffers (zero-copy), so that holding one costs
    /// this end no memory.
    pub is_zero_copy: bool,
    /// How long the owner of the queue pair polls rather than sleeps after it has moved bulk data. Zero if
    /// that gains nothing.
    pub poll_window: Duration,
    /// The address of the peer.
    pub peer_addr: SocketAddr,
    /// The address of this end.
    pub local_addr: SocketAddr,
    /// The private data of the peer's answer; empty on the accepting side.
    pub private_data: Bytes,
}

/// A listener, which waits for connection requests.
pub trait ProviderListener: Send + Sync + fmt::Debug {
    /// Returns the address of the listener, with its actual port.
    fn local_addr(&self) -> SocketAddr;

    /// Waits for the next connection request.
    ///
    /// # Cancel safety
    /// Dropping the future loses no request.
    fn accept(&mut self) -> BoxFuture<'_, Result<IncomingRequest, ProviderError>>;

    /// Asks `admission` about each peer that connects from now on, before anything is read from it or sent to it.
    /// A provider whose requests arrive whole does nothing, as this default implementation does: the caller of
    /// [`accept`](Self::accept) asks about requests without a [`place`](IncomingRequest::place).
    fn set_admission(&mut self, admission: Admission) {
        drop(admission);
    }

    /// Stops listening, and returns whether this listener can: [`accept`](Self::accept) then returns the peers that
    /// have connected before, and fails when there are no more. This default implementation does nothing and returns
    /// false, and the drop of the listener ends it.
    fn stop(&mut self) -> bool {
        false
    }
}

/// Decides whether a peer may connect, by its address. Returns its place, or `None` to refuse the peer. Must not block.
#[derive(Clone)]
pub struct Admission(Arc<dyn Fn(SocketAddr) -> Option<Place> + Send + Sync>);

/// What the owner of a listener keeps for a peer until the peer has a connection or is refused. A drop ends it.
pub type Place = Box<dyn Any + Send + Sync>;

impl Admission {
    /// Creates an admission that asks `admit`.
    pub fn new(admit: impl Fn(SocketAddr) -> Option<Place> + Send + Sync + 'static) -> Self {
        Self(Arc::new(admit))
    }

    /// Asks about the peer with this address. A panic of the function refuses the peer, and ends nothing else.
    pub fn admit(&self, peer: SocketAddr) -> Option<Place> {
        catch_unwind(AssertUnwindSafe(|| (self.0)(peer))).unwrap_or_default()
    }
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admission").finish_non_exhaustive()
    }
}

/// The function that accepts a connection request.
type Accept =
    dyn FnOnce(AcceptRequest) -> BoxFuture<'static, Result<Connected, ProviderError>> + Send;

/// A connection request that is not answered yet. Dropping it refuses the connection.
#[non_exhaustive]
pub struct IncomingRequest {
    /// The address of the peer.
    pub peer_addr: SocketAddr,
    /// The private data of the peer's request.
    pub private_data: Bytes,
    /// Whether the handshake itself negotiated the read depths. If it did not (MPA revision 1), the
    /// private data of the request may contain them, and the private data of the answer must then
    /// contain them too.
    pub knows_read_depths: bool,
    /// The place of the peer, if the provider has asked an [`Admission`].
    pub place: Option<Place>,
    /// The function of the provider. It need not be `Sync`, and the mutex makes the request `Sync`.
    accept: Mutex<Box<Accept>>,
}

impl IncomingRequest {
    /// Creates a request without a place. `accept` accepts the connection.
    pub fn new<F>(
        peer_addr: SocketAddr,
        private_data: Bytes,
        knows_read_depths: bool,
        accept: impl FnOnce(AcceptRequest) -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = Result<Connected, ProviderError>> + Send + 'static,
    {
        Self {
            peer_addr,
            private_data,
            knows_read_depths,
            place: None,
            accept: Mutex::new(Box::new(move |answer| Box::pin(accept(answer)))),
        }
    }

    /// Accepts the connection.
    pub fn accept(
        self,
        answer: AcceptRequest,
    ) -> BoxFuture<'static, Result<Connected, ProviderError>> {
        let accept = self.accept.into_inner();
        accept.unwrap_or_else(PoisonError::into_inner)(answer)
    }
}

impl fmt::Debug for IncomingRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IncomingRequest")
            .field("peer_addr", &self.peer_addr)
            .field("private_data", &self.private_data)
            .finish_non_exhaustive()
    }
}

/// The arguments of [`IncomingRequest::accept`].
#[derive(Debug)]
pub struct AcceptRequest {
    /// The private data of the answer.
    pub private_data: Bytes,
    /// The receive to post before answering.
    pub receive: WorkRequest,
    /// The most RDMA Reads that the peer serves concurrently, if its private data contains it.
    pub peer_serves_reads: Option<u32>,
}

/// One end of a connection, which takes work requests and returns completions.
///
/// A queue pair in front of another one passes on all methods, also those with a default implementation: the defaults
/// are for a queue pair that counts no bytes and cannot move.
pub trait QueuePair: Send + fmt::Debug {
    /// Returns how much work may be posted now.
    fn room(&self) -> Room;

    /// Queues `work`. Nothing is sent before [`flush`](Self::flush), and the peer may be unable to use a receive
    /// before then.
    ///
    /// On a connection that has ended, the request completes as flushed. After
    /// [`Completion::Disconnected`] was returned, it is dropped.
    ///
    /// # Panics
    /// May panic if there is no [`room`](Self::room) for the work.
    fn post(&mut self, work: WorkRequest);

    /// Sends as much of the queued work as possible. The context is woken when more can be sent. Until the next
    /// flush, neither this call nor a poll sends more once the total number of bytes sent ([`Usage::sent`]) has
    /// reached `until`, so that the connections of a thread take turns. A provider may ignore `until`: its other
    /// connections then wait longer. One that heeds it returns the bytes sent from [`usage`](Self::usage).
    fn flush(&mut self, context: &mut Context<'_>, until: u64);

    /// Returns the next completion. If there is none, and [`needs_poll`](Self::needs_poll) is false,
    /// the context is woken when there is one. After [`Completion::Disconnected`] the result is always
    /// `Pending`.
    fn poll_completion(&mut self, context: &mut Context<'_>) -> Poll<Completion>;

    /// Returns whether [`poll_completion`](Self::poll_completion) has to be called although nothing
    /// wakes the context: posting, flushing or disconnecting has caused a completion, or the last call
    /// has moved as many bytes as one call may.
    fn needs_poll(&self) -> bool;

    /// Checks for new bytes or completions without registering a waker, for a caller that
    /// busy-polls because a wake-up takes longer.
    ///
    /// If the result is true, the caller polls next, which may still find nothing. If it is false,
    /// there is nothing to poll for. A provider whose polls check anyway returns true, as this
    /// default implementation does.
    fn busy_poll(&mut self) -> bool {
        true
    }

    /// Returns the bytes that this connection has moved and keeps in use. A provider that does not count them
    /// returns zeros, as this default implementation does.
    fn usage(&self) -> Usage {
        Usage::default()
    }

    /// Moves the queue pair to the current runtime, because the runtime that it was created in ends. Its owner
    /// polls it there next. Returns false if it cannot move, as this default implementation does: the owner then
    /// ends the connection.
    fn change_runtime(&mut self) -> bool {
        false
    }

    /// Ends the connection, gracefully after the work that is already posted, or immediately. In
    /// both cases completions follow, and [`Completion::Disconnected`] is the last.
    fn disconnect(&mut self, how: Teardown);

    /// Registers `buffer`, so that the peer of this connection can access it as `access` permits.
    ///
    /// # Errors
    /// Returns an error that holds the buffer.
    fn register(&mut self, buffer: BytesMut, access: Access)
    -> Result<Registration, RegisterError>;

    /// Ends a registration and returns the buffer. From this call on, the peer can neither read nor
    /// write it. This works on connections that have ended, too.
    ///
    /// # Errors
    /// Returns [`DeregisterError::InUse`] while queued work still reads from the buffer. Call again
    /// after the next flush or completion.
    fn deregister(&mut self, token: Token) -> Result<BytesMut, DeregisterError>;
}

/// Bytes that a connection has moved and keeps in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes sent so far: payloads with the headers and checksums of RDMA, without the headers of TCP, UDP and
    /// IP, and including retransmitted bytes. For two ends in one process, the headers of SMB Direct and the
    /// payloads.
    pub sent: u64,
    /// Bytes received so far, counted in the same way.
    pub received: u64,
    /// About how many bytes of memory are in use because received messages have readers: the whole buffers of
    /// which the messages are a part, whether the owner or a later receiver of the bytes holds them. The owner
    /// then copies short messages, so that a reader of few bytes does not keep many bytes in use. Zero if each
    /// message has memory of its own.
    pub lent: usize,
}

/// Creates the span of all log lines about one connection. Its field `local` is recorded once the
/// local address is known.
///
/// The span has the level `ERROR`, so that a filter by level that passes a line also passes its
/// span. Most subscribers therefore enable the span, and entering it takes time: enter it only to
/// log, not for each message.
#[cfg(feature = "tokio")]
pub fn connection_span(peer: SocketAddr) -> Span {
    error_span!("connection", %peer, local = field::Empty)
}
