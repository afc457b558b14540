//! The three traits of a provider: [`Provider`], [`Listener`] and [`QueuePair`].
//!
//! They are object-safe and small: a method is here because [MS-SMBD] 3.1.4 or the life of a
//! connection needs it. A queue pair is a machine without a task of its own: whoever holds it
//! posts, flushes and polls, and is woken through the context it polled with.
//!
//! The library polls [`Provider::connect`] and [`Incoming::answer`] in the tracing span of the
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
    work::{Access, Completion, Limits, ProviderError, Room, Token, WorkRequest},
};

/// A future on the heap, so that the traits stay object-safe.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A kind of RDMA: makes connections and listeners.
pub trait Provider: Send + Sync + fmt::Debug {
    /// A word for logs and reports: `iwarp`, `loopback`, `verbs`.
    fn name(&self) -> &'static str;

    /// The port of SMB Direct on this kind of RDMA: 5445 for iWARP, 445 elsewhere (1.9).
    fn default_port(&self) -> u16;

    /// What a connection can do at best; the peer may have it lowered.
    fn limits(&self) -> Limits;

    /// Whether this is iWARP, where SMB Direct tells the read depths in the private data
    /// (section 6) because the provider below may not.
    fn is_iwarp(&self) -> bool {
        false
    }

    /// Connects. Dropping the future gives up and leaves nothing behind.
    ///
    /// The receive of the request is posted before the peer can send.
    fn connect(&self, request: ConnectRequest) -> BoxFuture<'_, Result<Connected, ProviderError>>;

    /// Listens. Port 0 picks a free one, to be read from [`Listener::local_address`].
    fn listen(
        &self,
        address: SocketAddr,
    ) -> BoxFuture<'_, Result<Box<dyn Listener>, ProviderError>>;
}

/// What [`Provider::connect`] needs to know.
#[derive(Debug)]
pub struct ConnectRequest {
    /// Where the peer listens.
    pub address: SocketAddr,
    /// For the peer's eyes, with the connection request; at most 200 bytes.
    pub private_data: Bytes,
    /// The receive to post before connecting.
    pub receive: WorkRequest,
}

/// A new connection.
#[derive(Debug)]
pub struct Connected {
    /// The machine that carries it.
    pub queue_pair: Box<dyn QueuePair>,
    /// The peer.
    pub remote_address: SocketAddr,
    /// This end.
    pub local_address: SocketAddr,
    /// What the peer said with its answer; empty on the accepting side.
    pub private_data: Bytes,
}

/// Waits for connection requests.
pub trait Listener: Send + fmt::Debug {
    /// The address listened on, with the port that was picked.
    fn local_address(&self) -> SocketAddr;

    /// The next request. Dropping the future loses none.
    fn accept(&mut self) -> BoxFuture<'_, Result<Incoming, ProviderError>>;
}

/// A peer that wants to connect and has not been answered; dropping it turns the peer away.
pub struct Incoming {
    /// The peer.
    pub remote_address: SocketAddr,
    /// What the peer said with its request.
    pub private_data: Bytes,
    /// Whether the handshake itself told the read depths. Where it did not (MPA revision 1),
    /// the private data may, and the answer has to.
    pub knows_read_depths: bool,
    /// Answers the peer.
    pub answer:
        Box<dyn FnOnce(Answer) -> BoxFuture<'static, Result<Connected, ProviderError>> + Send>,
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming")
            .field("remote_address", &self.remote_address)
            .field("private_data", &self.private_data)
            .finish_non_exhaustive()
    }
}

/// What the accepting side says to a connection request.
#[derive(Debug)]
pub struct Answer {
    /// For the peer's eyes, with the answer.
    pub private_data: Bytes,
    /// The receive to post before answering.
    pub receive: WorkRequest,
    /// Most RDMA Reads the peer is known to serve at once, from its private data.
    pub peer_serves_reads: Option<u32>,
}

/// One end of a connection: work goes in, completions come out.
pub trait QueuePair: Send + fmt::Debug {
    /// What this connection can do, after both ends had their say.
    fn limits(&self) -> Limits;

    /// How much may be posted now.
    fn room(&self) -> Room;

    /// Queues `work`; nothing leaves before [`flush`](Self::flush), nor is a receive sure to be
    /// there for the peer.
    ///
    /// On a connection that has ended the request completes as flushed; once
    /// [`Completion::Disconnected`] has been taken it is dropped.
    ///
    /// # Panics
    /// May panic if there was no [`room`](Self::room) for it.
    fn post(&mut self, work: WorkRequest);

    /// Hands queued work to the wire as far as it takes any. What it does not take goes later:
    /// the context is woken when there is more to do. Completions that this call brought about
    /// wake nobody: poll for them, while [`has_completion`](Self::has_completion).
    fn flush(&mut self, context: &mut Context<'_>);

    /// The next completion. `Pending` wakes the context when there is one; after
    /// [`Completion::Disconnected`] it stays pending.
    fn poll_completion(&mut self, context: &mut Context<'_>) -> Poll<Completion>;

    /// Whether there may be a completion that is not going to wake the context: what was posted,
    /// flushed or disconnected since [`poll_completion`](Self::poll_completion) was last `Pending` may
    /// have brought one about, or polling has taken more in than it gave yet. Whoever is told that
    /// there is none need not poll. The answer may be yes without cause, as this one is.
    fn has_completion(&self) -> bool {
        true
    }

    /// Looks whether something has come, where [`poll_completion`](Self::poll_completion) would else
    /// wait to be told: for whoever looks again and again, because being woken takes longer. True if
    /// that is to be polled next, which may find nothing all the same; false if there is nothing to
    /// poll for. Where polling looks anyway, the answer is yes, as this one is.
    fn busy_poll(&mut self) -> bool {
        true
    }

    /// Whether messages come in the sender's own memory. Then one that is kept for long takes no
    /// memory of this end's, which others could lie in.
    fn is_zero_copy(&self) -> bool {
        false
    }

    /// Ends the connection: in good order behind the work already posted, or at once.
    /// Completions follow either way, [`Completion::Disconnected`] as the last.
    fn disconnect(&mut self, how: Teardown);

    /// Makes `buffer` reachable for the peer on this connection, as far as `access` goes.
    ///
    /// # Errors
    /// The error holds the buffer.
    fn register(&mut self, buffer: BytesMut, access: Access)
    -> Result<Registration, RegisterError>;

    /// Ends a registration: from this call on the peer can neither read nor write it. Gives the
    /// buffer back, or [`DeregisterError::InUse`] while queued work still reads from it; call
    /// again after the next flush or completion. Works on ended connections too.
    fn deregister(&mut self, token: Token) -> Result<BytesMut, DeregisterError>;
}

/// How to end a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Teardown {
    /// Behind the work already posted.
    Graceful,
    /// Now.
    Abort,
}

/// Creates the span of all log lines about one connection. `local` is recorded once it is known.
///
/// Its level is that of errors, so that a filter which passes a line passes the line's span too.
/// Hence most subscribers enable it, and entering it takes time: enter it to log, not for each
/// message.
#[cfg(feature = "tokio")]
pub(crate) fn connection_span(peer: SocketAddr) -> Span {
    error_span!("connection", %peer, local = field::Empty)
}
