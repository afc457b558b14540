//! [`Connection`]: the handle to an established SMB Direct connection.

use std::{
    fmt,
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Bytes, BytesMut};

use super::{MemoryRegion, Reading, RegisterAllError, Sending, TrySendError, Writing};
use crate::{
    driver::{Condition, Shared, State, delay_end_of_thread, now},
    engine::{ConnectionError, Credits, Message, Negotiated, SendError, Statistics},
    inbox::Segment,
    rdma::{
        memory::{RegisterError, Registration},
        work::{Access, Token},
    },
    wire::BufferDescriptorV1,
};

/// Options of [`Connection::send_with`].
///
/// ```
/// let mut options = smbdirect::MessageOptions::default();
/// options.response_requested = true;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MessageOptions {
    /// A registration of the peer that the arrival of the message invalidates. The default is `None`.
    pub invalidate: Option<Token>,
    /// Whether the segment that empties the send queue has the flag SMB_DIRECT_RESPONSE_REQUESTED (2.2.3). The
    /// peer then answers with any message, which also grants credits. The connection ends if nothing arrives
    /// within `keepalive_response_timeout`. The default is `false`.
    pub response_requested: bool,
}

/// An established SMB Direct connection.
///
/// Handles are cheap to clone, and all methods take `&self`. The connection ends when
/// [`close`](Self::close) is called or the last handle is dropped. In both cases it sends the submitted
/// messages first. Call every method within a tokio runtime. Handles may be dropped anywhere.
///
/// # Delivery
/// A message whose future [`Sending`] has resolved with `Ok` reaches the peer unless the peer or the network
/// fails, or the program calls [`abort`](Self::abort). A message that was only submitted can also be lost if the
/// peer withholds credits until a timer ends the connection.
///
/// - **A runtime that ends**: its connections continue on a thread of the library, until their handles are dropped and
///   they are closed as above. Handles on other runtimes remain usable.
/// - **A process that ends**: a thread that ends a runtime with connections, or that drops the last handle of a
///   connection after its runtime has ended, waits at its own end until these connections are closed, for 5
///   seconds at most. So `main` may return immediately. Dropping a `multi_thread` runtime waits for its threads,
///   and therefore for these connections.
///
/// Delivery cannot be promised if the process is killed or calls [`std::process::exit`], if its runtime is never
/// dropped or ends by `shutdown_background` or `shutdown_timeout` right before the process, if the peer takes
/// nothing for those 5 seconds, or on Windows for a process that ends right after its runtime. A connection of an
/// RDMA adapter ends with its runtime. Await [`close`](Self::close) in these cases: it returns after the peer has
/// taken everything.
///
/// Every log line about a connection is in a [`tracing`] span that names the connection:
/// `connection{peer=10.0.0.3:5445 local=10.0.0.1:33019}`. On the connecting side the span is a
/// child of the span in which [`connect`](Self::connect) is first polled, and keeps that span open
/// as long as a handle or the connection's task exists. To trace one connection of many, give
/// `tracing_subscriber::EnvFilter` the filter `smbdirect[connection{peer=10.0.0.3:5445}]=trace`.
///
/// ```
/// use smbdirect::{Config, Connection, Listener, Loopback};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let provider = Loopback::new();
/// let mut listener = Listener::bind(&provider, "127.0.0.1:445", Config::default()).await?;
///
/// let client = Connection::connect(&provider, "127.0.0.1:445", Config::default()).await?;
/// let server = listener.accept().await?;
///
/// client.send("hello")?.await?;
/// assert_eq!(server.recv().await?.into_bytes(), "hello");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Connection {
    handle: Arc<Handle>,
}

/// The state that all clones of a connection share. Dropping it closes the connection.
struct Handle {
    shared: Arc<Shared>,
    id: u64,
    local_addr: SocketAddr,
    peer_addr: SocketAddr,
    negotiated: Negotiated,
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.shared.with(State::close_unread) {
            delay_end_of_thread(&self.shared);
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("id", &self.handle.id)
            .field("local_addr", &self.handle.local_addr)
            .field("peer_addr", &self.handle.peer_addr)
            .finish_non_exhaustive()
    }
}

impl Connection {
    pub(super) fn new(
        shared: Arc<Shared>,
        id: u64,
        local_addr: SocketAddr,
        peer_addr: SocketAddr,
        negotiated: Negotiated,
    ) -> Self {
        let handle = Handle {
            shared,
            id,
            local_addr,
            peer_addr,
            negotiated,
        };
        Self {
            handle: Arc::new(handle),
        }
    }

    // Sending

    /// Sends a message (3.1.4.2). This call submits it, and messages are sent in the order of the calls.
    /// The future resolves when the message is reported as sent: over iWARP when TCP of this machine has taken its last
    /// segment, over RoCE when the peer has acknowledged it, over an RDMA adapter when the adapter has completed it, and
    /// over loopback when it has reached the peer. [`Connection`] describes what is promised from then on. An empty
    /// message is sent, but the peer's upper layer does not see it.
    ///
    /// Messages wait in memory for the peer's credits. To bound that memory, await the future, or use
    /// [`ready`](Self::ready) and [`try_send`](Self::try_send). If a message waits for
    /// [`credit_grant_timeout`](crate::Settings::credit_grant_timeout) and the peer grants none, the connection
    /// ends, as Windows does. A caller of `ready` or `try_send` queues no message, so it can wait longer.
    ///
    /// The payload is dropped under the lock of the connection: a destructor of its memory
    /// ([`Bytes::from_owner`]) that calls the connection deadlocks, and one that panics ends the connection.
    ///
    /// ```
    /// # use smbdirect::{Config, Connection, Listener, Loopback};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let provider = Loopback::new();
    /// # let mut listener = Listener::bind(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let client = Connection::connect(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let server = listener.accept().await?;
    /// let sending = client.send("submitted by the call")?;
    /// sending.await?; // Sent. Dropping the future in place of awaiting it recalls nothing.
    /// client.send(vec![1, 2, 3])?.await?;
    /// # assert_eq!(server.recv().await?.into_bytes(), "submitted by the call");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future does not recall the message.
    ///
    /// # Errors
    /// Fails if the message is longer than the peer accepts, or the connection is over.
    pub fn send(&self, message: impl Into<Message>) -> Result<Sending, SendError> {
        let message = message.into();
        self.shared()
            .with(|state| self.submit(state, message, None, false))
    }

    /// Sends a message that also invalidates a registration of the peer on arrival (3.1.4.2).
    ///
    /// ```
    /// # use smbdirect::{Config, Connection, Listener, Loopback};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let provider = Loopback::new();
    /// # let mut listener = Listener::bind(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let client = Connection::connect(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let server = listener.accept().await?;
    /// # use bytes::BytesMut;
    /// # use smbdirect::Access;
    /// let access = Access::REMOTE_WRITE | Access::REMOTE_INVALIDATE;
    /// let region = client.register(BytesMut::zeroed(4), access)?;
    /// let descriptor = region.descriptor();
    /// server.write(&[descriptor], 0, "data").await?;
    /// server.send_and_invalidate("done", descriptor.token.into())?.await?;
    ///
    /// let done = client.recv().await?;
    /// assert_eq!(done.invalidated_token(), Some(region.token()));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future does not recall the message.
    ///
    /// # Errors
    /// Fails as [`send`](Self::send) does.
    pub fn send_and_invalidate(
        &self,
        message: impl Into<Message>,
        token: Token,
    ) -> Result<Sending, SendError> {
        let message = message.into();
        self.shared()
            .with(|state| self.submit(state, message, Some(token), false))
    }

    /// Sends messages in order, as calls of [`send`](Self::send) would, at a lower cost per message. Empties
    /// the list and keeps its capacity. The future resolves when the last message is reported as sent.
    ///
    /// # Cancel safety
    /// Dropping the future recalls no message.
    ///
    /// # Errors
    /// Fails if one of the messages cannot be sent. The messages before it are sent. That message and all
    /// after it stay in the list.
    pub fn send_many(&self, messages: &mut Vec<Message>) -> Result<Sending, SendError> {
        self.shared().with(|state| {
            let index = state.submit_many(messages)?;
            Ok(Sending::new(self.shared().clone(), index))
        })
    }

    /// Sends a message as [`send`](Self::send) does, with options (3.1.4.2).
    ///
    /// # Cancel safety
    /// Dropping the future does not recall the message.
    ///
    /// # Errors
    /// Fails as [`send`](Self::send) does.
    pub fn send_with(
        &self,
        message: impl Into<Message>,
        options: MessageOptions,
    ) -> Result<Sending, SendError> {
        let message = message.into();
        let MessageOptions {
            invalidate,
            response_requested,
        } = options;
        self.shared()
            .with(|state| self.submit(state, message, invalidate, response_requested))
    }

    /// Sends a message if it can start immediately.
    ///
    /// # Cancel safety
    /// Dropping the future does not recall the message.
    ///
    /// # Errors
    /// Returns the message in [`TrySendError::NotReady`] if it would have to wait. Otherwise fails as
    /// [`send`](Self::send) does.
    pub fn try_send(&self, message: impl Into<Message>) -> Result<Sending, TrySendError> {
        let message = message.into();
        self.shared().with(|state| {
            if state.would_wait() {
                return Err(TrySendError::NotReady(message));
            }
            Ok(self.submit(state, message, None, false)?)
        })
    }

    /// Waits until a message can start immediately.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect.
    ///
    /// # Errors
    /// Returns why the connection is over, or [`ConnectionError::ClosedHere`] from the moment at which this end begins
    /// to close it.
    pub async fn ready(&self) -> Result<(), ConnectionError> {
        self.shared()
            .wait(Condition::Ready, |state| state.check_ready())
            .await
    }

    /// The poll function of [`ready`](Self::ready), for futures that are written by hand. The connection keeps
    /// the waker until the condition is true or the connection ends.
    ///
    /// # Errors
    /// Fails as [`ready`](Self::ready) does.
    pub fn poll_ready(&self, context: &mut Context<'_>) -> Poll<Result<(), ConnectionError>> {
        self.shared()
            .poll(context, Condition::Ready, |state| state.check_ready())
    }

    #[inline(always)]
    fn submit(
        &self,
        state: &mut State,
        message: Message,
        invalidate: Option<Token>,
        prompt: bool,
    ) -> Result<Sending, SendError> {
        let index = state.submit_send(message, invalidate, prompt)?;
        Ok(Sending::new(self.shared().clone(), index))
    }

    /// Sends the peer an empty message with the credits that it can be granted, unless another message is about
    /// to be sent. The connection grants credits by itself; this method grants them earlier.
    pub fn send_credits(&self) {
        self.shared().with(State::submit_prompt);
    }

    // Receiving

    /// Receives the next message (3.1.5.8), with the token that it invalidated. Messages that arrived
    /// before the connection ended are returned before its error.
    ///
    /// ```
    /// # use smbdirect::{Config, Connection, Listener, Loopback};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let provider = Loopback::new();
    /// # let mut listener = Listener::bind(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let client = Connection::connect(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let server = listener.accept().await?;
    /// # use smbdirect::ConnectionError;
    /// client.send("hello")?;
    /// client.close().await?;
    ///
    /// assert_eq!(server.recv().await?.into_bytes(), "hello");
    /// assert_eq!(server.recv().await.unwrap_err(), ConnectionError::Closed);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future loses no message.
    ///
    /// # Errors
    /// Returns why the connection is over.
    pub async fn recv(&self) -> Result<Message, ConnectionError> {
        self.shared()
            .busy_wait(Condition::Message, take(State::take_message))
            .await
    }

    /// Receives the part of the next message that has arrived, and waits only if no part of it has
    /// arrived. Afterwards, [`recv`](Self::recv) returns the rest of that message.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// Returns why the connection is over.
    pub async fn recv_segment(&self) -> Result<Segment, ConnectionError> {
        self.shared()
            .busy_wait(Condition::Segment, take(State::take_segment))
            .await
    }

    /// The poll function of [`recv_segment`](Self::recv_segment), for futures that are written by hand. The
    /// connection keeps the waker until a segment arrives or the connection ends.
    ///
    /// # Errors
    /// Returns why the connection is over.
    pub fn poll_recv_segment(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Segment, ConnectionError>> {
        let take = take(State::take_segment);
        self.shared().busy_poll(context, Condition::Segment, take)
    }

    /// Receives up to `limit` messages that have arrived, and waits only if there is none. Appends them to
    /// `messages` and returns their number, which is 0 only if `limit` is 0.
    ///
    /// # Cancel safety
    /// Dropping the future loses no message, and leaves `messages` unchanged.
    ///
    /// # Errors
    /// Returns why the connection is over, after all messages that arrived before its end were taken.
    pub async fn recv_many(
        &self,
        messages: &mut Vec<Message>,
        limit: usize,
    ) -> Result<usize, ConnectionError> {
        if limit == 0 {
            return Ok(0);
        }
        let before = messages.len();
        let take = take(|state| {
            let arrived = std::iter::from_fn(|| state.take_message());
            messages.extend(arrived.take(limit));
            (messages.len() > before).then(|| messages.len() - before)
        });
        self.shared().busy_wait(Condition::Message, take).await
    }

    /// Sets how long [`recv`](Self::recv), [`recv_segment`](Self::recv_segment) and
    /// [`recv_many`](Self::recv_many) poll for a message before they sleep. They may poll some
    /// microseconds longer. The default is zero: they sleep immediately.
    ///
    /// A wake-up takes longer than many round trips, so polling shortens latency. It costs a core,
    /// though: while a future polls, nothing else runs on its thread, and on a runtime with one thread
    /// not even the connection's own task. A busy peer answers within some tens of microseconds.
    pub fn set_busy_poll(&self, duration: Duration) {
        self.shared().with(|state| state.set_busy_poll(duration));
    }

    // Registered buffers

    /// Registers `buffer` for the peer, with the rights in `access` (3.1.4.3).
    ///
    /// ```
    /// # use smbdirect::{Config, Connection, Listener, Loopback};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let provider = Loopback::new();
    /// # let mut listener = Listener::bind(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let client = Connection::connect(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let server = listener.accept().await?;
    /// # use bytes::BytesMut;
    /// # use smbdirect::Access;
    /// let region = client.register(BytesMut::zeroed(1 << 20), Access::REMOTE_WRITE)?;
    /// client.send(region.descriptor().to_bytes())?.await?; // The peer may write from now on.
    /// let buffer = region.deregister().await?; // It no longer may.
    /// assert_eq!(buffer.len(), 1 << 20);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the provider refuses the registration. The error returns the buffer.
    pub fn register(
        &self,
        buffer: BytesMut,
        access: Access,
    ) -> Result<MemoryRegion, RegisterError> {
        self.shared().with(|state| {
            //= SMBD-3.1.4.3-03
            let registration = state.register(buffer, access)?;
            Ok(self.region(registration))
        })
    }

    /// Registers buffers that form one range for the peer, either all or none of them (3.1.4.3). Each
    /// becomes a region of its own, in order, and the list of their descriptors is the range. To register
    /// a buffer of 4 GiB or more, split it and pass the parts to this method.
    ///
    /// # Errors
    /// Fails if one of the buffers cannot be registered. The registrations made by this call are then
    /// ended, and the error returns the buffers.
    pub fn register_all(
        &self,
        buffers: impl IntoIterator<Item = BytesMut>,
        access: Access,
    ) -> Result<Vec<MemoryRegion>, RegisterAllError> {
        // The iterator is the caller's code and may call the connection: run it without the lock.
        let buffers: Vec<_> = buffers.into_iter().collect();
        self.shared().with(|state| {
            let mut rest = buffers.into_iter();
            let mut registered: Vec<Registration> = Vec::new();
            //= SMBD-3.1.4.3-02
            while let Some(buffer) = rest.next() {
                match state.register(buffer, access) {
                    Ok(registration) => registered.push(registration),
                    Err(error) => {
                        let index = registered.len();
                        //= SMBD-3.1.4.3-04
                        let mut buffers: Vec<_> = registered
                            .iter()
                            .filter_map(|registration| state.withdraw(registration.address.token))
                            .collect();
                        buffers.push(error.buffer);
                        buffers.extend(rest);
                        return Err(RegisterAllError {
                            buffers,
                            index,
                            reason: error.reason,
                        });
                    }
                }
            }
            Ok(registered
                .into_iter()
                .map(|registration| self.region(registration))
                .collect())
        })
    }

    fn region(&self, registration: Registration) -> MemoryRegion {
        MemoryRegion::new(self.shared().clone(), registration)
    }

    // Reads and writes of the peer's memory

    /// Fills `into` by RDMA Read (3.1.4.6), from `offset` bytes into the range of the peer's descriptors.
    /// This call submits the read, and reads finish in the order of the calls. The future resolves to the
    /// filled buffer.
    ///
    /// A read that is longer than MaxReadWriteSize is done in several operations. A descriptor of memory
    /// that the peer has not registered, or has deregistered, ends the connection, as RDMA requires. A
    /// range outside the descriptors is refused here.
    ///
    /// ```
    /// # use smbdirect::{Config, Connection, Listener, Loopback};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let provider = Loopback::new();
    /// # let mut listener = Listener::bind(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let client = Connection::connect(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let server = listener.accept().await?;
    /// # use bytes::BytesMut;
    /// # use smbdirect::Access;
    /// let region = client.register(BytesMut::from("some data"), Access::REMOTE_READ)?;
    /// let descriptors = [region.descriptor()]; // The client sends them in a message.
    /// let data = server.read(&descriptors, 5, BytesMut::zeroed(4)).await?;
    /// assert_eq!(data, "data");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future drops the buffer once the read is over. It does not recall the read.
    ///
    /// # Errors
    /// The future resolves to the fault, with the buffer.
    pub fn read(&self, from: &[BufferDescriptorV1], offset: u64, into: BytesMut) -> Reading {
        self.shared().with(|state| {
            let index = state.submit_read(from, offset, into);
            Reading::new(self.shared().clone(), index)
        })
    }

    /// Writes `data` by RDMA Write (3.1.4.5) into the peer's memory, from `offset` bytes into the range of
    /// its descriptors `to`. This call submits the write. The future resolves when `data` was sent, in the sense of
    /// [`send`](Self::send). It is in place before the peer receives any message that is sent after this call.
    ///
    /// A write that is longer than MaxReadWriteSize is done in several operations. A descriptor of memory
    /// that the peer has not registered, or has deregistered, ends the connection, as RDMA requires. The
    /// future may have resolved by then: [`recv`](Self::recv) and [`closed`](Self::closed) return the
    /// error.
    ///
    /// ```
    /// # use smbdirect::{Config, Connection, Listener, Loopback};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let provider = Loopback::new();
    /// # let mut listener = Listener::bind(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let client = Connection::connect(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let server = listener.accept().await?;
    /// # use bytes::BytesMut;
    /// # use smbdirect::Access;
    /// let region = client.register(BytesMut::zeroed(9), Access::REMOTE_WRITE)?;
    /// let descriptors = [region.descriptor()]; // The client sends them in a message.
    /// server.write(&descriptors, 0, "some ").await?;
    /// server.write(&descriptors, 5, "data").await?;
    /// server.send("written")?.await?;
    ///
    /// client.recv().await?;
    /// assert_eq!(region.deregister().await?, "some data");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future does not recall the write.
    ///
    /// # Errors
    /// The future resolves to the fault.
    pub fn write(&self, to: &[BufferDescriptorV1], offset: u64, data: impl Into<Bytes>) -> Writing {
        let data = data.into();
        self.shared().with(|state| {
            let index = state.submit_write(to, offset, data);
            Writing::new(self.shared().clone(), index)
        })
    }

    // The state of the connection

    /// Asks the peer for a keepalive, and waits until it answers. Returns the time that this took: one
    /// round trip, or less if another message of the peer arrives first.
    ///
    /// # Cancel safety
    /// A future that was never polled asks for nothing. After its first poll, dropping it does not recall
    /// the keepalive.
    ///
    /// # Errors
    /// Returns why the connection is over. The connection also ends if the peer does not answer within
    /// [`keepalive_response_timeout`](crate::Settings::keepalive_response_timeout).
    pub async fn keepalive(&self) -> Result<Duration, ConnectionError> {
        let started = now();
        let before = self.shared().with(|state| state.start_keepalive(started));
        self.shared()
            .wait(Condition::Keepalive, |state| state.keepalive_result(before))
            .await?;
        Ok(now() - started)
    }

    /// Returns the limits negotiated with the peer (3.1.4.7).
    pub fn negotiated(&self) -> Negotiated {
        self.handle.negotiated
    }

    /// Returns the credits of both directions.
    pub fn credits(&self) -> Credits {
        self.shared().with(|state| state.credits())
    }

    /// Returns the counters of completed and outstanding work.
    ///
    /// ```
    /// # use smbdirect::{Config, Connection, Listener, Loopback};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let provider = Loopback::new();
    /// # let mut listener = Listener::bind(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let client = Connection::connect(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let server = listener.accept().await?;
    /// client.send("hello")?.await?;
    /// assert_eq!(client.stats().messages_sent, 1);
    /// assert_eq!(client.stats().bytes_sent, 5);
    /// # Ok(())
    /// # }
    /// ```
    pub fn stats(&self) -> Statistics {
        self.shared().with(|state| state.statistics())
    }

    /// Returns the number of the connection; the first connection of the process has number 1. All clones of a
    /// handle have the same number, no other connection has it, and `metrics::ConnectionSnapshot::id` is the
    /// same.
    pub fn id(&self) -> u64 {
        self.handle.id
    }

    /// Returns the address of the peer.
    pub fn peer_addr(&self) -> SocketAddr {
        self.handle.peer_addr
    }

    /// Returns the address of this end.
    pub fn local_addr(&self) -> SocketAddr {
        self.handle.local_addr
    }

    /// Returns whether a message with SMB_DIRECT_RESPONSE_REQUESTED (2.2.3) was sent or is about to be sent, and
    /// nothing has arrived since.
    pub fn is_response_due(&self) -> bool {
        self.shared().with(|state| state.awaits_answer())
    }

    /// Runs `log` in the tracing span of the connection, so that its lines name the connection.
    pub fn in_span(&self, log: impl FnOnce()) {
        let span = self.shared().with(|state| state.span());
        span.in_scope(log);
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.handle.shared
    }
}

/// Returns a function that takes a value from the inbox, or the reason if the connection is over.
fn take<R>(
    mut take: impl FnMut(&mut State) -> Option<R>,
) -> impl FnMut(&mut State) -> Option<Result<R, ConnectionError>> {
    move |state| {
        if let Some(taken) = take(state) {
            state.taken();
            return Some(Ok(taken));
        }
        state.error().map(Err)
    }
}
