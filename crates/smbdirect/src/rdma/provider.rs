//! The three traits of a provider: [`Provider`], [`ProviderListener`] and [`QueuePair`].
//!
//! The traits are object-safe and small: each method is required by [MS-SMBD] 3.1.4 or by the
//! lifecycle of a connection. A queue pair has no task of its own. Its owner posts, flushes and
//! polls, and is woken through the context of its last poll.
//!
//! This interface and the types of [`work`](super::work) and [`memory`](super::memory) may change in any release:
//! they are exempt from the promise of stability of the rest of the crate.
//!
//! The library polls [`Provider::connect`] and [`IncomingRequest::accept`] in the tracing span of the
//! connection. It calls a queue pair in any span: a queue pair that logs keeps `Span::current()`
//! when it is created, and enters that span to log.

use std::{
    fmt,
    future::Future,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Bytes, BytesMut};
#[cfg(feature = "tokio")]
use tracing::{Span, error_span, field};

use super::{
    memory::{DeregisterError, RegisterError, Registration},
    work::{Access, Completion, Limits, ProviderError, Room, Teardown, Token, WorkRequest},
};

/// A boxed future, which keeps the traits object-safe.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// An implementation of RDMA, which creates connections and listeners.
pub trait Provider: Send + Sync + fmt::Debug {
    /// Returns the name for logs and reports: `iwarp`, `roce`, `loopback` or `verbs`.
    fn name(&self) -> &'static str;

    /// Returns the port of SMB Direct on this kind of RDMA: 5445 for iWARP, 445 otherwise (1.9).
    fn default_port(&self) -> u16;

    /// Returns the highest limits of a connection. The peer may lower them.
    fn limits(&self) -> Limits;

    /// Returns whether each connection negotiates the read depths (IRD and ORD) in the handshake of
    /// the provider, as the connection manager of InfiniBand and RoCE does.
    ///
    /// If the result is false, SMB Direct announces them in the private data (section 6): over
    /// iWARP, MPA revision 1 does not negotiate them.
    fn negotiates_read_depths(&self) -> bool {
        true
    }

    /// Connects to a peer. The receive of the request is posted before the peer can send.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the attempt and releases its resources.
    fn connect(&self, request: ConnectRequest) -> BoxFuture<'_, Result<Connected, ProviderError>>;

    /// Listens on `address`. Port 0 selects a free port, which [`ProviderListener::local_address`]
    /// returns.
    fn listen(
        &self,
        address: SocketAddr,
    ) -> BoxFuture<'_, Result<Box<dyn ProviderListener>, ProviderError>>;
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
    /// The address of the peer.
    pub remote_address: SocketAddr,
    /// The address of this end.
    pub local_address: SocketAddr,
    /// The private data of the peer's answer; empty on the accepting side.
    pub private_data: Bytes,
}

/// A listener, which waits for connection requests.
pub trait ProviderListener: Send + fmt::Debug {
    /// Returns the address of the listener, with its actual port.
    fn local_address(&self) -> SocketAddr;

    /// Waits for the next connection request.
    ///
    /// # Cancel safety
    /// Dropping the future loses no request.
    fn accept(&mut self) -> BoxFuture<'_, Result<IncomingRequest, ProviderError>>;
}

/// A connection request that is not answered yet. Dropping it refuses the connection.
pub struct IncomingRequest {
    /// The address of the peer.
    pub remote_address: SocketAddr,
    /// The private data of the peer's request.
    pub private_data: Bytes,
    /// Whether the handshake itself negotiated the read depths. If it did not (MPA revision 1), the
    /// private data of the request may contain them, and the private data of the answer must then
    /// contain them too.
    pub knows_read_depths: bool,
    /// Accepts the connection.
    pub accept: Box<
        dyn FnOnce(AcceptRequest) -> BoxFuture<'static, Result<Connected, ProviderError>> + Send,
    >,
}

impl fmt::Debug for IncomingRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IncomingRequest")
            .field("remote_address", &self.remote_address)
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
pub trait QueuePair: Send + fmt::Debug {
    /// Returns the limits of this connection, as both ends negotiated them.
    fn limits(&self) -> Limits;

    /// Returns how much work may be posted now.
    fn room(&self) -> Room;

    /// Queues `work`. Nothing is sent before [`flush`](Self::flush), and a receive may not be
    /// available to the peer before then.
    ///
    /// On a connection that has ended, the request completes as flushed. After
    /// [`Completion::Disconnected`] was returned, it is dropped.
    ///
    /// # Panics
    /// May panic if there is no [`room`](Self::room) for the work.
    fn post(&mut self, work: WorkRequest);

    /// Hands queued work to the wire, as much as the wire takes. The context is woken when more of
    /// it can be sent. Completions that this call causes do not wake the context: the caller polls
    /// for them while [`has_completion`](Self::has_completion) is true.
    fn flush(&mut self, context: &mut Context<'_>);

    /// Returns the next completion. If there is none, the context is woken when there is one. After
    /// [`Completion::Disconnected`] the result is always `Pending`.
    fn poll_completion(&mut self, context: &mut Context<'_>) -> Poll<Completion>;

    /// Returns whether there may be a completion that does not wake the context. Posting, flushing
    /// or disconnecting since [`poll_completion`](Self::poll_completion) was last `Pending` may
    /// have caused one, or a poll may have received more than it has returned so far.
    ///
    /// If the result is false, the caller need not poll. The result may be true without a cause, as
    /// it is in this default implementation.
    fn has_completion(&self) -> bool {
        true
    }

    /// Checks for new bytes or completions without registering a waker, for a caller that
    /// busy-polls because a wake-up takes longer.
    ///
    /// If the result is true, the caller polls next, which may still find nothing. If it is false,
    /// there is nothing to poll for. A provider whose polls check anyway returns true, as this
    /// default implementation does.
    fn busy_poll(&mut self) -> bool {
        true
    }

    /// Returns whether received payloads alias the sender's buffers (zero-copy), so that holding
    /// one costs this end no memory.
    fn is_zero_copy(&self) -> bool {
        false
    }

    /// Returns about how many bytes of memory are in use because received messages have readers: the whole buffers
    /// of which the messages are a part, whether the owner has them or somebody to whom it gave them. The owner then
    /// copies short messages, so that a reader of few bytes does not keep many. A provider whose messages each have
    /// memory of their own returns 0, as this default implementation does.
    fn lent_bytes(&self) -> usize {
        0
    }

    /// Begins a turn of the owner: until the next call, the queue pair sends and receives about as many bytes as
    /// `limit` says, and then wakes the context that it was last polled or flushed with. Without a call there is no
    /// limit, and this default implementation sets none.
    fn begin_turn(&mut self, limit: WireBytes) {
        let _ = limit;
    }

    /// Returns the bytes that this connection has sent and received on the network so far, or `None`
    /// if the provider does not count them, as in this default implementation.
    fn wire_bytes(&self) -> Option<WireBytes> {
        None
    }

    /// Moves the queue pair to the current runtime, because the one that it was created in ends. Its owner polls it
    /// there next. Returns false if it cannot move, as this default implementation does: the owner then ends the
    /// connection.
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

/// Bytes of a connection on the network: payloads with the headers and checksums of RDMA, without
/// those of TCP, UDP and IP. The totals of a connection never fall.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireBytes {
    /// Bytes sent, including those sent again.
    pub sent: u64,
    /// Bytes received.
    pub received: u64,
}

/// Creates the span of all log lines about one connection. Its field `local` is recorded once the
/// local address is known.
///
/// The span has the level `ERROR`, so that a filter by level that passes a line also passes its
/// span. Most subscribers therefore enable the span, and entering it takes time: enter it only to
/// log, not for each message.
#[cfg(feature = "tokio")]
pub(crate) fn connection_span(peer: SocketAddr) -> Span {
    error_span!("connection", %peer, local = field::Empty)
}
