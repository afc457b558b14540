//! [`Connection`]: the handle to an established SMB Direct connection.

use std::{
    fmt,
    future::{Future, poll_fn},
    mem,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use thiserror::Error;
use tracing::{Instrument, field};

use crate::{
    driver::{Driver, Shared, State, TransferResult, now},
    engine::{
        self, Config, ConnectionError, Credits, Message, MessageId, Negotiated, SendError,
        Statistics, TransferFault, TransferId,
    },
    inbox::Segment,
    rdma::{
        memory::{DeregisterError, RegisterFault, Registration},
        provider::{ConnectRequest, Connected, Provider, connection_span},
        work::{Access, Limits, ProviderError, ProviderErrorKind, Token},
    },
    wire::{BufferDescriptorV1, IrdOrd},
};

/// An established SMB Direct connection.
///
/// Handles are cheap to clone and all methods take `&self`. The connection ends when
/// [`close`](Self::close) is called or the last handle is dropped; either way what was sent
/// before is sent first. Every method must be called within a tokio runtime; they may be
/// dropped anywhere.
///
/// Every log line about a connection is in a [`tracing`] span that names the connection:
/// `connection{peer=10.0.0.3:5445 local=10.0.0.1:33019}`. On the connecting side the span is a
/// child of the span in which [`connect`](Self::connect) is polled first, and keeps that span open
/// as long as a handle or the connection's task exists. To trace one connection of many, give
/// `tracing_subscriber::EnvFilter` the filter `smbdirect[connection{peer=10.0.0.3:5445}]=trace`.
///
/// ```
/// use std::sync::Arc;
///
/// use smbdirect::{Config, Connection, Listener, rdma::loopback::Loopback};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let provider = Arc::new(Loopback::new());
/// let address = "127.0.0.1:445".parse()?;
/// let mut listener = Listener::bind(provider.clone(), address, Config::default()).await?;
///
/// let client = Connection::connect(&*provider, address, Config::default()).await?;
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

/// What all clones of a connection have in common; the last one closes it.
struct Handle {
    shared: Arc<Shared>,
    local_address: SocketAddr,
    remote_address: SocketAddr,
    negotiated: Negotiated,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.with(|state| {
            // Else a full inbox would withhold the credits that the last messages need.
            state.inbox.desert();
            state.close();
        });
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("local_address", &self.handle.local_address)
            .field("remote_address", &self.handle.remote_address)
            .finish_non_exhaustive()
    }
}

/// Why no connection came about.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConnectError {
    /// There is no RDMA connection to the peer.
    #[error("no RDMA connection: {0}")]
    Provider(#[from] ProviderError),
    /// There was one, and the negotiation of SMB Direct on it failed.
    #[error("SMB Direct was not negotiated: {0}")]
    Negotiation(#[from] ConnectionError),
}

/// Why [`Connection::try_send`] did not take a message.
#[derive(Debug, Error)]
pub enum TrySendError {
    /// It would have to wait for credits or for messages before it. Here it is again.
    #[error("the message would have to wait")]
    NotReady(Message),
    /// It can never be sent.
    #[error(transparent)]
    Send(#[from] SendError),
}

/// A read that was not done, with its buffer.
#[derive(Debug, Error)]
#[error("{fault}")]
pub struct ReadError {
    /// Why.
    #[source]
    pub fault: TransferFault,
    /// The buffer, in an unknown state; `None` if the runtime stopped with it.
    pub buffer: Option<BytesMut>,
}

/// A buffer that was not registered.
#[derive(Debug, Error)]
#[error("{reason}")]
pub struct RegisterError {
    /// The buffer, unchanged.
    pub buffer: BytesMut,
    /// Why it was not registered.
    #[source]
    pub reason: RegisterFault,
}

/// Buffers of which one was not registered, and hence none.
#[derive(Debug, Error)]
#[error("buffer {index} of those to register: {reason}")]
pub struct RegisterAllError {
    /// The buffers, unchanged and in order, but for one whose registration the provider would not
    /// end at once: that one is lost.
    pub buffers: Vec<BytesMut>,
    /// Which of them was not registered, counted from 0.
    pub index: usize,
    /// Why it was not.
    #[source]
    pub reason: RegisterFault,
}

impl Connection {
    /// Connects to a peer that listens, and negotiates (3.1.4.1).
    ///
    /// Dropping the future gives up. It ends by itself after
    /// [`active_negotiation_timeout`](engine::Settings::active_negotiation_timeout).
    ///
    /// # Errors
    /// Whether RDMA or SMB Direct failed, and why.
    pub async fn connect(
        provider: &dyn Provider,
        address: SocketAddr,
        config: Config,
    ) -> Result<Self, ConnectError> {
        let span = connection_span(address);
        let connecting = async {
            let mut engine = engine::Connection::active(config.clone(), now());
            let receive = engine.negotiate_receive();
            let private_data = read_depths(provider).map_or_else(Bytes::new, encoded);
            let request = ConnectRequest {
                address,
                private_data,
                receive,
            };
            //= SMBD-3.1.4.1-06
            let connecting = provider.connect(request);
            let connected = tokio::time::timeout(config.active_negotiation_timeout, connecting)
                .await
                .unwrap_or_else(|_| Err(no_rdma_connection()))
                //= SMBD-3.1.4.1-08
                .map_err(ConnectError::Provider)?;
            span.record("local", field::display(connected.local_address));
            engine.handle_connected(limits(provider, &connected)?);
            //= SMBD-3.1.4.1-10
            Ok(Self::negotiate(engine, connected, &config).await?)
        };
        connecting.instrument(span.clone()).await
    }

    /// Runs the negotiation on an RDMA connection that is there and that the engine knows of, in
    /// either role.
    pub(crate) async fn negotiate(
        engine: engine::Connection,
        connected: Connected,
        config: &Config,
    ) -> Result<Self, ConnectionError> {
        let Connected {
            queue_pair,
            remote_address,
            local_address,
            ..
        } = connected;
        let shared = Shared::new(engine, queue_pair, config);
        let guard = CloseOnDrop(Some(shared.clone()));
        Driver::spawn(shared.clone());
        let negotiated = shared
            .wait(|state| match (state.negotiated, &state.closed) {
                (Some(negotiated), _) => Some(Ok(negotiated)),
                (None, Some(error)) => Some(Err(error.clone())),
                (None, None) => None,
            })
            .await?;
        guard.disarm();
        let handle = Handle {
            shared,
            local_address,
            remote_address,
            negotiated,
        };
        Ok(Self {
            handle: Arc::new(handle),
        })
    }

    /// Sends a message (3.1.4.2). It is submitted by this call, in the order of calls; the
    /// future tells when its last segment was handed to the wire, and dropping it changes
    /// nothing. An empty message goes out, and the peer's upper layer sees nothing of it.
    ///
    /// Messages wait, in memory, for the peer's credits. Use [`ready`](Self::ready) and
    /// [`try_send`](Self::try_send), or await the future, where that must be bounded.
    ///
    /// The message is dropped while the connection is at work: a destructor of what it is made
    /// from ([`Bytes::from_owner`]) must not call the connection.
    ///
    /// # Errors
    /// The message is longer than the peer takes, or the connection is over.
    pub fn send(&self, message: impl Into<Message>) -> Result<Sending, SendError> {
        let message = message.into();
        self.shared()
            .with(|state| self.submit(state, message, None, false))
    }

    /// Sends a message that also ends a registration of the peer's on arrival (3.1.4.2).
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_and_invalidate(
        &self,
        message: impl Into<Message>,
        token: Token,
    ) -> Result<Sending, SendError> {
        let message = message.into();
        self.shared()
            .with(|state| self.submit(state, message, Some(token), false))
    }

    /// Sends messages, as [`send`](Self::send) does one after the other, at less cost for each. The
    /// list is empty then, and keeps its capacity; the future tells when the last segment of the
    /// last message was handed to the wire.
    ///
    /// # Errors
    /// One of them cannot be sent: it is the first that is left in the list, and those before it
    /// are sent.
    pub fn send_many(&self, messages: &mut Vec<Message>) -> Result<Sending, SendError> {
        self.shared().with(|state| {
            let index = state.sends.insert();
            let (mut sent, mut length) = (0, 0);
            let all = messages.len();
            let result = messages.iter_mut().try_for_each(|place| {
                let id = match sent + 1 == all {
                    true => MessageId(index as u64),
                    // Whoever waits for the last waits for it too.
                    false => MessageId::UNWATCHED,
                };
                state.engine.check(place)?;
                let message = mem::take(place);
                (sent, length) = (sent + 1, length + message.len());
                state.engine.send(id, message, None)
            });
            messages.drain(..sent);
            if sent > 0 {
                state.kick(sent, length);
            }
            if let Err(error) = result {
                state.sends.remove(index);
                return Err(error);
            }
            if all == 0 {
                let done = state.sends.complete(index, Ok(()));
                done.expect("the place was just made");
            }
            Ok(Sending {
                shared: self.shared().clone(),
                index: Some(index),
            })
        })
    }

    /// Sends a message and, if `prompt`, asks the peer for an answer with its last segment.
    pub(crate) fn send_and_prompt(
        &self,
        message: Message,
        invalidate: Option<Token>,
        prompt: bool,
    ) -> Result<Sending, SendError> {
        self.shared()
            .with(|state| self.submit(state, message, invalidate, prompt))
    }

    /// Sends a message if it can start at once.
    ///
    /// # Errors
    /// [`TrySendError::NotReady`] gives the message back.
    pub fn try_send(&self, message: impl Into<Message>) -> Result<Sending, TrySendError> {
        let message = message.into();
        self.shared().with(|state| {
            // On a connection that is over, `submit` has the reason.
            if state.closed.is_none() && !state.engine.is_ready() {
                return Err(TrySendError::NotReady(message));
            }
            Ok(self.submit(state, message, None, false)?)
        })
    }

    /// Waits until a message handed over would start at once.
    ///
    /// # Errors
    /// The connection is over.
    pub async fn ready(&self) -> Result<(), ConnectionError> {
        poll_fn(|context| self.poll_ready(context)).await
    }

    /// [`ready`](Self::ready) as something to poll.
    pub(crate) fn poll_ready(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), ConnectionError>> {
        self.shared().poll(context, |state| match &state.closed {
            Some(error) => Some(Err(error.clone())),
            None if state.engine.is_ready() => Some(Ok(())),
            None => {
                state.watch_ready();
                None
            }
        })
    }

    #[inline(always)]
    fn submit(
        &self,
        state: &mut State,
        message: Message,
        invalidate: Option<Token>,
        prompt: bool,
    ) -> Result<Sending, SendError> {
        let (index, length) = (state.sends.insert(), message.len());
        if let Err(error) = state
            .engine
            .send(MessageId(index as u64), message, invalidate)
        {
            state.sends.remove(index);
            return Err(error);
        }
        if prompt {
            state.engine.prompt_answer();
        }
        state.kick(1, length);
        let shared = self.shared().clone();
        Ok(Sending {
            shared,
            index: Some(index),
        })
    }

    /// The next message (3.1.5.8), with the token that it invalidated. Messages that arrived
    /// before the connection ended come first. Dropping the future loses none.
    ///
    /// # Errors
    /// Why the connection is over.
    pub async fn recv(&self) -> Result<Message, ConnectionError> {
        poll_fn(|context| self.poll_take(context, |state| state.inbox.take())).await
    }

    /// The next message as far as it has arrived, for those who do not wait for the whole.
    /// Dropping the future loses nothing. Of a message taken in part, [`recv`](Self::recv) would
    /// give the rest.
    ///
    /// # Errors
    /// Why the connection is over.
    pub async fn recv_segment(&self) -> Result<Segment, ConnectionError> {
        poll_fn(|context| self.poll_segment(context)).await
    }

    /// [`recv_segment`](Self::recv_segment) as something to poll.
    pub(crate) fn poll_segment(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Segment, ConnectionError>> {
        self.poll_take(context, |state| {
            let segment = state.inbox.take_segment();
            state.wants_segments |= segment.is_none();
            segment
        })
    }

    /// The next messages, as many as have arrived and no more than `limit`: waits for the first and
    /// for no other. Appends them to `messages` and tells how many they are; 0 only for a limit
    /// of 0. Dropping the future loses none.
    ///
    /// # Errors
    /// Why the connection is over, once all messages are taken that arrived before.
    pub async fn recv_many(
        &self,
        messages: &mut Vec<Message>,
        limit: usize,
    ) -> Result<usize, ConnectionError> {
        if limit == 0 {
            return Ok(0);
        }
        let before = messages.len();
        poll_fn(|context| {
            self.poll_take(context, |state| {
                let arrived = std::iter::from_fn(|| state.inbox.take());
                messages.extend(arrived.take(limit));
                (messages.len() > before).then(|| messages.len() - before)
            })
        })
        .await
    }

    fn poll_take<R>(
        &self,
        context: &mut Context<'_>,
        mut take: impl FnMut(&mut State) -> Option<R>,
    ) -> Poll<Result<R, ConnectionError>> {
        self.shared().poll_busily(context, |state| {
            if let Some(taken) = take(state) {
                state.taken();
                return Some(Ok(taken));
            }
            state.closed.clone().map(Err)
        })
    }

    /// Registers `buffer` for the peer to use as far as `access` goes (3.1.4.3).
    ///
    /// # Errors
    /// The error has the buffer.
    pub fn register(
        &self,
        buffer: BytesMut,
        access: Access,
    ) -> Result<MemoryRegion, RegisterError> {
        self.shared().with(|state| {
            //= SMBD-3.1.4.3-03
            let registration =
                state
                    .queue_pair
                    .register(buffer, access)
                    .map_err(|error| RegisterError {
                        buffer: error.buffer,
                        reason: error.reason,
                    })?;
            state.regions += 1;
            Ok(self.region(registration))
        })
    }

    /// Registers buffers that are to be one range for the peer, all of them or none (3.1.4.3).
    /// Each becomes a region of its own, in order; the list of their descriptors is the range.
    /// What is too long for one registration, 4 GiB and more, can be split and registered so.
    ///
    /// # Errors
    /// The error has the buffers. Those that were registered already are out of the peer's reach.
    pub fn register_all(
        &self,
        buffers: impl IntoIterator<Item = BytesMut>,
        access: Access,
    ) -> Result<Vec<MemoryRegion>, RegisterAllError> {
        // The caller's iterator may do anything, and is not to do it under the lock.
        let buffers: Vec<_> = buffers.into_iter().collect();
        self.shared().with(|state| {
            let mut rest = buffers.into_iter();
            let mut registered = Vec::new();
            //= SMBD-3.1.4.3-02
            while let Some(buffer) = rest.next() {
                match state.queue_pair.register(buffer, access) {
                    Ok(registration) => {
                        state.regions += 1;
                        registered.push(registration);
                    }
                    Err(error) => {
                        let index = registered.len();
                        //= SMBD-3.1.4.3-04
                        let mut buffers: Vec<_> = registered
                            .iter()
                            .filter_map(|registration| take_back(state, registration))
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
        MemoryRegion {
            shared: self.shared().clone(),
            registration,
            owned: true,
        }
    }

    /// Fills `into` by RDMA Read (3.1.4.6), from `offset` bytes into what the peer's descriptors
    /// describe. Started by this call; reads finish in the order they were started. Dropping the
    /// future gives the buffer up, not the read. Awaiting it gives the filled buffer.
    ///
    /// Any length goes: more than MaxReadWriteSize is read in several operations. A place that the
    /// peer has not registered, or no longer, ends the connection, as RDMA has it; what lies
    /// outside the descriptors is refused here.
    ///
    /// # Errors
    /// The fault, with the buffer.
    pub fn read(&self, from: &[BufferDescriptorV1], offset: u64, into: BytesMut) -> Reading {
        self.shared().with(|state| {
            let (index, length) = (state.transfers.insert(), into.len());
            let id = TransferId(index as u64);
            if let Err((fault, buffer)) = state.engine.read(id, from, offset, into) {
                let result = (Some(buffer), Err(fault));
                state
                    .transfers
                    .complete(index, result)
                    .expect("the place was just made");
            }
            state.kick(1, length);
            Reading {
                shared: self.shared().clone(),
                index: Some(index),
            }
        })
    }

    /// Puts `data` into the peer's memory by RDMA Write (3.1.4.5), from `offset` bytes into what
    /// its descriptors describe. Started by this call. When the future is done, `data` was handed
    /// to the wire; it is in place before any message sent after this call is received.
    ///
    /// Any length goes: more than MaxReadWriteSize is written in several operations. A place that
    /// the peer has not registered, or no longer, ends the connection, as RDMA has it; since the
    /// future knows of the wire only, [`recv`](Self::recv) and [`closed`](Self::closed) tell.
    ///
    /// # Errors
    /// The fault.
    pub fn write(&self, data: Bytes, to: &[BufferDescriptorV1], offset: u64) -> Writing {
        self.shared().with(|state| {
            let (index, length) = (state.transfers.insert(), data.len());
            let id = TransferId(index as u64);
            if let Err(fault) = state.engine.write(id, to, offset, data) {
                let result = (None, Err(fault));
                state
                    .transfers
                    .complete(index, result)
                    .expect("the place was just made");
            }
            state.kick(1, length);
            Writing {
                shared: self.shared().clone(),
                index: Some(index),
            }
        })
    }

    /// Asks the peer for a sign of life and waits for it: the time of one round trip, if no
    /// other message comes first.
    ///
    /// # Errors
    /// The connection is over, if only because the peer did not answer in
    /// [`keepalive_response_timeout`](engine::Settings::keepalive_response_timeout).
    pub async fn keepalive(&self) -> Result<Duration, ConnectionError> {
        let started = now();
        let before = self.shared().with(|state| {
            let before = state.keepalives_answered;
            state.engine.prompt_keepalive(started);
            state.drive(started);
            before
        });
        self.shared()
            .wait(|state| match &state.closed {
                _ if state.keepalives_answered != before => Some(Ok(now() - started)),
                Some(error) => Some(Err(error.clone())),
                None => None,
            })
            .await
    }

    /// Has [`recv`](Self::recv) and [`recv_segment`](Self::recv_segment) look for what has come,
    /// again and again, for so long before they sleep, and at most some microseconds longer. Zero, the
    /// beginning, is not at all.
    ///
    /// Being woken takes longer than many a round trip. Looking costs a core, though: while they
    /// look, nothing else runs on their thread, the connection's own task included where the
    /// runtime has one thread. Some tens of microseconds is what a busy peer answers in.
    pub fn set_busy_poll(&self, duration: Duration) {
        self.shared().with(|state| state.busy_poll = duration);
    }

    /// What was agreed with the peer (3.1.4.7).
    pub fn negotiated(&self) -> Negotiated {
        self.handle.negotiated
    }

    /// Credits as they stand.
    pub fn credits(&self) -> Credits {
        self.shared().with(|state| state.engine.credits())
    }

    /// What went over the connection, and what is outstanding.
    pub fn stats(&self) -> Statistics {
        self.shared().with(|state| {
            let mut statistics = state.engine.statistics();
            statistics.regions = state.regions;
            statistics
        })
    }

    /// The peer.
    pub fn remote_address(&self) -> SocketAddr {
        self.handle.remote_address
    }

    /// This end.
    pub fn local_address(&self) -> SocketAddr {
        self.handle.local_address
    }

    /// Sends what was submitted, finishes reads and writes, and ends the connection in good
    /// order. Returns when it is over. Dropping the future, once it was polled, does not take the
    /// close back. A peer that lets none of that work get done for
    /// [`keepalive_interval`](engine::Settings::keepalive_interval) is waited for no longer.
    ///
    /// What was submitted needs the peer's credits, and the last of ours is spent only with one in
    /// return: where messages that nobody takes have filled the receive buffer, take them, or drop
    /// all handles, or the wait ends with a timer.
    ///
    /// # Errors
    /// The connection broke, before or on the way.
    pub async fn close(&self) -> Result<(), ConnectionError> {
        self.shared().with(State::close);
        let shared = self.shared();
        match shared
            .wait(|state| state.finished.then(|| state.reason()))
            .await
        {
            ConnectionError::Closed(_) => Ok(()),
            error => Err(error),
        }
    }

    /// Ends the connection at once. What was submitted and has not left does not leave; whoever
    /// waits gets [`ConnectionError::Aborted`]. Does nothing on a connection that is over.
    pub fn abort(&self) {
        self.shared().with(State::abort);
    }

    /// Says something to the peer: an empty message, unless one leaves anyway, which brings it
    /// the credits that there are to give.
    pub(crate) fn prompt(&self) {
        self.shared().with(|state| {
            state.engine.prompt();
            state.kick(1, 0);
        });
    }

    /// [`close`](Self::close) without the wait.
    pub(crate) fn start_close(&self) {
        self.shared().with(State::close);
    }

    /// [`closed`](Self::closed) as something to poll.
    pub(crate) fn poll_closed(&self, context: &mut Context<'_>) -> Poll<ConnectionError> {
        self.shared()
            .poll(context, |state| state.finished.then(|| state.reason()))
    }

    /// Whether the peer was asked for an answer that has not come.
    pub(crate) fn awaits_answer(&self) -> bool {
        self.shared().with(|state| state.engine.awaits_answer())
    }

    /// Waits for the end of the connection and tells its reason.
    pub async fn closed(&self) -> ConnectionError {
        poll_fn(|context| self.poll_closed(context)).await
    }

    /// Why the connection is over, if it is.
    pub fn error(&self) -> Option<ConnectionError> {
        self.shared().with(|state| state.closed.clone())
    }

    /// Runs `log` in the span of the connection.
    pub(crate) fn in_span(&self, log: impl FnOnce()) {
        let span = self.shared().with(|state| state.engine.span().clone());
        span.in_scope(log);
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.handle.shared
    }
}

/// Ends a registration that nobody was told of. A peer that guessed its token and reads from it
/// at this moment loses its access too, but the buffer is then gone with the read.
fn take_back(state: &mut State, registration: &Registration) -> Option<BytesMut> {
    let token = registration.address.token;
    match state.queue_pair.deregister(token) {
        Ok(buffer) => {
            state.regions -= 1;
            Some(buffer)
        }
        Err(_) => {
            state.orphan(token);
            None
        }
    }
}

/// The read depths of this end for the private data of iWARP (section 6); elsewhere nothing.
pub(crate) fn read_depths(provider: &dyn Provider) -> Option<IrdOrd> {
    let limits = provider.limits();
    provider.is_iwarp().then(|| IrdOrd {
        ird: limits.max_inbound_reads.max(1),
        ord: limits.max_outbound_reads.max(1),
    })
}

/// Read depths as private data.
pub(crate) fn encoded(depths: IrdOrd) -> Bytes {
    let mut private_data = BytesMut::with_capacity(IrdOrd::LENGTH);
    depths.encode(&mut private_data);
    private_data.freeze()
}

/// The Negotiation Timer ran out before there was anybody to negotiate with.
fn no_rdma_connection() -> ProviderError {
    let what = "no RDMA connection before the Negotiation Timer ran out";
    ProviderError::new(ProviderErrorKind::TimedOut, what)
}

/// What a new connection can do, as far as the acceptor's answer lets it (section 6).
fn limits(provider: &dyn Provider, connected: &Connected) -> Result<Limits, ProviderError> {
    let mut limits = connected.queue_pair.limits();
    if !provider.is_iwarp() {
        return Ok(limits);
    }
    let answer = IrdOrd::decode(&connected.private_data)
        .map_err(|error| ProviderError::new(ProviderErrorKind::Protocol, error.to_string()))?;
    // Which of the two is ours depends on who answers; see `IrdOrd::answer`.
    if let Some(IrdOrd { ird, ord }) = answer {
        limits.max_outbound_reads = limits.max_outbound_reads.min(ird).min(ord);
    }
    Ok(limits)
}

/// Ends a connection whose negotiation is given up.
struct CloseOnDrop(Option<Arc<Shared>>);

impl CloseOnDrop {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        if let Some(shared) = &self.0 {
            shared.with(State::close);
        }
    }
}

/// A message on its way; see [`Connection::send`].
#[derive(Debug)]
#[must_use = "await it to learn when the message was handed to the wire, or drop it"]
pub struct Sending {
    shared: Arc<Shared>,
    index: Option<usize>,
}

impl Future for Sending {
    type Output = Result<(), ConnectionError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let index = self
            .index
            .expect("a future is not polled after it was done");
        let result = self.shared.with(|state| state.sends.poll(index, context));
        if result.is_ready() {
            self.index = None;
        }
        result
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        if let Some(index) = self.index {
            drop(self.shared.with(|state| state.sends.abandon(index)));
        }
    }
}

/// An RDMA Read on its way; see [`Connection::read`].
#[derive(Debug)]
#[must_use = "the buffer comes back from this future"]
pub struct Reading {
    shared: Arc<Shared>,
    index: Option<usize>,
}

impl Future for Reading {
    type Output = Result<BytesMut, ReadError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { shared, index } = &mut *self;
        poll_transfer(shared, index, context).map(|(buffer, result)| match (result, buffer) {
            (Ok(()), Some(buffer)) => Ok(buffer),
            (Err(fault), buffer) => Err(ReadError { fault, buffer }),
            (Ok(()), None) => unreachable!("a read that is done has its buffer"),
        })
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        abandon_transfer(&self.shared, self.index);
    }
}

/// An RDMA Write on its way; see [`Connection::write`].
#[derive(Debug)]
#[must_use = "await it to learn when the data was handed to the wire, or drop it"]
pub struct Writing {
    shared: Arc<Shared>,
    index: Option<usize>,
}

impl Future for Writing {
    type Output = Result<(), TransferFault>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { shared, index } = &mut *self;
        poll_transfer(shared, index, context).map(|(_, result)| result)
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        abandon_transfer(&self.shared, self.index);
    }
}

fn poll_transfer(
    shared: &Shared,
    place: &mut Option<usize>,
    context: &mut Context<'_>,
) -> Poll<TransferResult> {
    let index = place.expect("a future is not polled after it was done");
    let result = shared.with(|state| state.transfers.poll(index, context));
    if result.is_ready() {
        *place = None;
    }
    result
}

fn abandon_transfer(shared: &Shared, place: Option<usize>) {
    if let Some(index) = place {
        drop(shared.with(|state| state.transfers.abandon(index)));
    }
}

/// A buffer that the peer can reach (3.1.4.3). Dropping it ends the registration.
#[derive(Debug)]
pub struct MemoryRegion {
    shared: Arc<Shared>,
    registration: Registration,
    owned: bool,
}

impl MemoryRegion {
    /// What the peer needs to know: to be sent to it in a message of the upper layer.
    pub const fn descriptor(&self) -> BufferDescriptorV1 {
        let Registration { address, length } = self.registration;
        //= SMBD-3.1.4.3-05
        BufferDescriptorV1 {
            offset: address.offset,
            token: address.token.0,
            length,
        }
    }

    /// The token that the peer can invalidate.
    pub const fn token(&self) -> Token {
        self.registration.address.token
    }

    /// Ends the registration (3.1.4.4). The peer's access ends with the first poll of the
    /// future; the buffer comes back when no queued work reads from it any more. A registration
    /// that the peer has invalidated is ended the same way. Dropping the future drops the buffer.
    ///
    /// # Errors
    /// The buffer was lost with the runtime.
    pub async fn deregister(mut self) -> Result<BytesMut, DeregisterError> {
        let token = self.token();
        let shared = self.shared.clone();
        let result = shared
            .wait(|state| match state.queue_pair.deregister(token) {
                //= SMBD-3.1.4.4-01
                //= SMBD-3.1.4.4-02
                Err(DeregisterError::InUse) if !state.finished => {
                    state.watch_flushes();
                    None
                }
                result => {
                    state.regions -= 1;
                    Some(result)
                }
            })
            .await;
        self.owned = false;
        result
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        if self.owned {
            let token = self.token();
            self.shared.with(|state| state.orphan(token));
        }
    }
}
