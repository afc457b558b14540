//! [`Endpoint`]: the connection endpoint of TDI, its states and its requests.
//!
//! What is allowed in which state is the table at [`EndpointState`].
//!
//! Requests are submitted by the call, in the order of calls, and complete once. The futures only
//! wait: dropping one changes nothing, as a request without a completion routine.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    thread::Result as Caught,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use tokio::{
    sync::watch,
    task::AbortHandle,
    time::{sleep, timeout},
};
use tracing::{Instrument, warn};

use super::{
    address::{Address, AddressShared, Filter},
    client::{Cause, Client},
    flags::{DisconnectFlags, ReceiveFlags, SendFlags},
    pending::{Completer, Receiving, Requested, Sending, complete, done, requested},
    request::RequestId,
    send::SendRequest,
    session::{Session, Task},
    state::{EndpointState, Request},
    status::Status,
    transport::{ConnectionInfo, TransportSettings, TransportShared},
};
use crate::{
    connection::{ConnectError, Connection},
    driver::now,
    engine::{ConnectionError, Message},
    listener::{AcceptError, accept_incoming},
    rdma::{
        provider::{Incoming, connection_span},
        work::{ProviderError, ProviderErrorKind, Token},
    },
};

/// The local end of a connection: one at a time, and then another.
///
/// Handles are cheap to clone. When the last one is dropped, the connection is aborted, and what
/// is pending is cancelled: [`disconnect`](Self::disconnect) with
/// [`RELEASE`](DisconnectFlags::RELEASE) first where everything is to arrive. The table of what is
/// allowed in which state is at [`EndpointState`].
///
/// Requests that start something need a tokio runtime around them.
pub struct Endpoint<C: EndpointContext = ()> {
    shared: Arc<Shared<C>>,
}

/// What the client knows an endpoint by, TDI's ConnectionContext: anything that threads can share.
pub trait EndpointContext: Send + Sync + 'static {}

impl<T: Send + Sync + 'static> EndpointContext for T {}

/// What the handles of an endpoint and its tasks share.
pub(crate) struct Shared<C: EndpointContext> {
    transport: Arc<TransportShared>,
    context: C,
    state: Mutex<State<C>>,
    /// Held while a handler of this endpoint is at work.
    turn: Mutex<()>,
    /// Counts connections that are over, and says how the last one ended.
    ended: watch::Sender<(u64, Option<Cause>)>,
}

struct State<C: EndpointContext> {
    phase: Phase,
    address: Option<Arc<AddressShared<C>>>,
    /// The connection; while there is none, the last one, with what is left to be received.
    session: Option<Arc<Session>>,
    /// Counts connects, listens and acceptances, so that a late one is told from the present one.
    attempt: u64,
    /// Counts connections that were made.
    made: u64,
}

enum Phase {
    Idle,
    Associated,
    Connecting(Attempt),
    Listening(Completer),
    Offered(Incoming, Timer),
    Accepting(Attempt),
    Connected,
    Releasing,
}

/// A task that waits, and ends with this.
struct Timer(AbortHandle);

impl Drop for Timer {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A connection that is being made.
struct Attempt {
    /// Whom to tell; nobody if a handler has accepted an offer.
    completer: Option<Completer>,
    task: AbortHandle,
    /// It is that of a listen for peers from there, which goes on if this peer does not make it.
    listen: Option<Option<IpAddr>>,
}

impl Attempt {
    const fn new(completer: Option<Completer>, task: AbortHandle) -> Self {
        Self {
            completer,
            task,
            listen: None,
        }
    }
}

impl Phase {
    const fn state(&self) -> EndpointState {
        match self {
            Self::Idle => EndpointState::Idle,
            Self::Associated => EndpointState::Associated,
            Self::Connecting(_) => EndpointState::Connecting,
            Self::Listening(_) => EndpointState::Listening,
            Self::Offered(..) => EndpointState::Offered,
            Self::Accepting(_) => EndpointState::Accepting,
            Self::Connected => EndpointState::Connected,
            Self::Releasing => EndpointState::Releasing,
        }
    }

    /// Ends what is pending here, with `status`.
    fn give_up(self, status: Status) {
        match self {
            Self::Connecting(attempt) | Self::Accepting(attempt) => {
                attempt.task.abort();
                complete(attempt.completer, Err(status));
            }
            Self::Listening(completer) => complete(Some(completer), Err(status)),
            // An offer that is dropped is turned away.
            _ => {}
        }
    }
}

/// How a send is to be done besides its flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendOptions {
    /// When to give up, if not after [`SendSettings::send_timeout`](super::SendSettings).
    pub deadline: Option<Instant>,
    /// A registration of the peer's that ends as the TSDU arrives. Only with the end of a TSDU.
    pub invalidate: Option<Token>,
}

impl<C: EndpointContext> Endpoint<C> {
    pub(crate) fn open(transport: Arc<TransportShared>, context: C) -> Self {
        transport.opened_endpoint();
        Self::from_shared(Arc::new(Shared {
            transport,
            context,
            state: Mutex::new(State {
                phase: Phase::Idle,
                address: None,
                session: None,
                attempt: 0,
                made: 0,
            }),
            turn: Mutex::new(()),
            ended: watch::Sender::new((0, None)),
        }))
    }

    pub(crate) const fn from_shared(shared: Arc<Shared<C>>) -> Self {
        Self { shared }
    }

    pub(crate) fn downgrade(&self) -> Weak<Shared<C>> {
        Arc::downgrade(&self.shared)
    }

    fn lock(&self) -> MutexGuard<'_, State<C>> {
        self.shared.lock()
    }

    /// What the endpoint was opened with.
    pub fn context(&self) -> &C {
        &self.shared.context
    }

    /// Where it stands.
    pub fn state(&self) -> EndpointState {
        self.lock().phase.state()
    }

    // Association

    /// TDI_ASSOCIATE_ADDRESS: from here on the address' client is called for this endpoint.
    ///
    /// # Errors
    /// [`ADDRESS_ALREADY_ASSOCIATED`](Status::ADDRESS_ALREADY_ASSOCIATED);
    /// [`INVALID_PARAMETER`](Status::INVALID_PARAMETER) for an address of another transport.
    pub fn associate(&self, address: &Address<C>) -> Result<(), Status> {
        let address = address.shared();
        let mut state = self.lock();
        state.phase.state().check(Request::Associate)?;
        if !Arc::ptr_eq(address.transport(), &self.shared.transport) {
            return Err(Status::INVALID_PARAMETER);
        }
        address.associated(self.downgrade());
        state.address = Some(address.clone());
        state.phase = Phase::Associated;
        Ok(())
    }

    /// TDI_DISASSOCIATE_ADDRESS. What was left to be received is gone.
    ///
    /// # Errors
    /// [`ADDRESS_NOT_ASSOCIATED`](Status::ADDRESS_NOT_ASSOCIATED);
    /// [`CONNECTION_ACTIVE`](Status::CONNECTION_ACTIVE).
    pub fn disassociate(&self) -> Result<(), Status> {
        let mut state = self.lock();
        state.phase.state().check(Request::Disassociate)?;
        let address = state.address.take();
        let session = state.session.take();
        state.phase = Phase::Idle;
        drop(state);
        if let Some(address) = address {
            address.disassociated(&self.downgrade());
        }
        if let Some(session) = session {
            session.receives.close(Status::CANCELLED);
        }
        Ok(())
    }

    // Making a connection

    /// TDI_CONNECT: connects to `remote` and negotiates SMB Direct. Gives up after `timeout`,
    /// `None` is the transport's own.
    ///
    /// # Errors
    /// The future's: [`BAD_NETWORK_PATH`](Status::BAD_NETWORK_PATH),
    /// [`REMOTE_NOT_LISTENING`](Status::REMOTE_NOT_LISTENING) (also for a peer that turned the
    /// offer away: the wire does not tell), [`CONNECTION_REFUSED`](Status::CONNECTION_REFUSED) (SMB
    /// Direct was not negotiated), [`IO_TIMEOUT`](Status::IO_TIMEOUT),
    /// [`INSUFFICIENT_RESOURCES`](Status::INSUFFICIENT_RESOURCES),
    /// [`CONNECTION_RESET`](Status::CONNECTION_RESET) or
    /// [`CONNECTION_ABORTED`](Status::CONNECTION_ABORTED) (the peer went away, or broke a rule),
    /// [`CANCELLED`](Status::CANCELLED) (by a disconnect),
    /// [`ADDRESS_CLOSED`](Status::ADDRESS_CLOSED) (no handle of the address is left), or the
    /// misuse.
    pub fn connect(&self, remote: SocketAddr, timeout: Option<Duration>) -> Requested {
        let mut state = self.lock();
        if let Err(status) = self.shared.may_begin(&state, Request::Connect) {
            return done(Err(status));
        }
        let (completer, requested) = requested();
        let attempt = state.begin();
        let limit = timeout.unwrap_or(self.shared.transport.settings.connect_timeout);
        let work = connect(self.downgrade(), attempt, remote, limit);
        let task = tokio::spawn(work).abort_handle();
        state.phase = Phase::Connecting(Attempt::new(Some(completer), task));
        requested
    }

    /// TDI_LISTEN: waits for a peer, and accepts it. Done when the connection is there.
    ///
    /// With `remote`, only for peers from there. Listens of an address are served in the order of
    /// submission; while one is pending that a peer fits, the connect handler is not asked. A peer
    /// that connects and does not negotiate holds a listen for
    /// [`passive_negotiation_timeout`](crate::Settings::passive_negotiation_timeout), so have
    /// several pending where others are to get in meanwhile.
    ///
    /// # Errors
    /// The future's: the misuse; [`CANCELLED`](Status::CANCELLED) by a disconnect, or because the
    /// address was closed; [`INSUFFICIENT_RESOURCES`](Status::INSUFFICIENT_RESOURCES) if its
    /// listener failed; [`INVALID_ADDRESS`](Status::INVALID_ADDRESS) for an address that peers
    /// cannot connect to; [`ADDRESS_CLOSED`](Status::ADDRESS_CLOSED).
    pub fn listen(&self, remote: Option<IpAddr>) -> Requested {
        //= TDI-CONN-01
        self.submit_listen(remote, false)
    }

    /// TDI_LISTEN with TDI_QUERY_ACCEPT: waits for a peer's offer. Then [`accept`](Self::accept)
    /// it, or reject it by [`disconnect`](Self::disconnect), and soon: the transport gives the
    /// peer up after a while, and the peer the transport.
    ///
    /// # Errors
    /// As [`listen`](Self::listen).
    pub fn listen_and_query(&self, remote: Option<IpAddr>) -> Requested {
        //= TDI-CONN-02
        self.submit_listen(remote, true)
    }

    fn submit_listen(&self, remote: Option<IpAddr>, query_accept: bool) -> Requested {
        let (completer, requested) = requested();
        let mut state = self.lock();
        if let Err(status) = self.shared.may_begin(&state, Request::Listen) {
            return done(Err(status));
        }
        let attempt = state.begin();
        state.phase = Phase::Listening(completer);
        let address = state.address.clone().expect("it is associated");
        drop(state);
        address.listen(Filter {
            endpoint: self.downgrade(),
            attempt,
            remote,
            query_accept,
        });
        requested
    }

    /// TDI_ACCEPT: takes the offer that [`listen_and_query`](Self::listen_and_query) has brought.
    /// Done when the connection is there.
    ///
    /// # Errors
    /// The future's: the misuse, [`IO_TIMEOUT`](Status::IO_TIMEOUT), or
    /// [`CONNECTION_ABORTED`](Status::CONNECTION_ABORTED) if the peer went away or did not
    /// negotiate.
    pub fn accept(&self) -> Requested {
        let mut state = self.lock();
        if let Err(status) = state.phase.state().check(Request::Accept) {
            return done(Err(status));
        }
        let (completer, requested) = requested();
        let attempt = state.begin();
        let Phase::Offered(incoming, _timer) =
            std::mem::replace(&mut state.phase, Phase::Associated)
        else {
            unreachable!("it was just seen to be offered")
        };
        let task = tokio::spawn(accept(self.downgrade(), attempt, incoming)).abort_handle();
        state.phase = Phase::Accepting(Attempt::new(Some(completer), task));
        requested
    }

    /// TDI_DISCONNECT.
    ///
    /// Without a flag, or with [`ABORT`](DisconnectFlags::ABORT): at once. What is pending is
    /// cancelled, a peer that waits to be accepted is turned away, and nothing is indicated any
    /// more. With [`RELEASE`](DisconnectFlags::RELEASE): when all sends have left; meanwhile data
    /// is received as before. SMB Direct has no half of a connection to leave open, so the peer is
    /// disconnected then, whatever it had to say. After `timeout`, `None` is without end, it
    /// becomes an abort.
    ///
    /// # Errors
    /// The future's: [`INVALID_PARAMETER`](Status::INVALID_PARAMETER) for several flags, or for a
    /// release while a TSDU is not complete; [`NOT_SUPPORTED`](Status::NOT_SUPPORTED) for
    /// [`WAIT`](DisconnectFlags::WAIT), see [`disconnected`](Self::disconnected);
    /// [`IO_TIMEOUT`](Status::IO_TIMEOUT); what ended the connection before the release was done;
    /// or the misuse.
    pub fn disconnect(&self, flags: DisconnectFlags, timeout: Option<Duration>) -> Requested {
        //= TDI-DISC-01
        if !flags.is_one_choice() || !DisconnectFlags::all().contains(flags) {
            return done(Err(Status::INVALID_PARAMETER));
        }
        if flags.contains(DisconnectFlags::WAIT) {
            return done(Err(Status::NOT_SUPPORTED));
        }
        match flags.contains(DisconnectFlags::RELEASE) {
            true => self.release(timeout),
            false => done(self.abort()),
        }
    }

    fn abort(&self) -> Result<(), Status> {
        let mut state = self.lock();
        state.phase.state().check(Request::Abort)?;
        //= TDI-DISC-07
        let phase = std::mem::replace(&mut state.phase, Phase::Associated);
        let (session, address) = (state.session.clone(), state.address.clone());
        let attempt = state.attempt;
        drop(state);
        if matches!(phase, Phase::Listening(_))
            && let Some(address) = address
        {
            address.cancel_listen(&self.downgrade(), attempt);
        }
        if matches!(phase, Phase::Connected | Phase::Releasing)
            && let Some(session) = session
        {
            session.abort(Status::LOCAL_DISCONNECT);
            self.shared.ended(&session, &Cause::LocalDisconnect);
        }
        if matches!(phase, Phase::Offered(..)) {
            self.shared
                .transport
                .count(|counters| counters.cancelled_connections += 1);
        }
        phase.give_up(Status::CANCELLED);
        Ok(())
    }

    fn release(&self, timeout: Option<Duration>) -> Requested {
        let state = self.lock();
        if let Err(status) = state.phase.state().check(Request::Release) {
            return done(Err(status));
        }
        let session = match (&state.phase, &state.session) {
            (Phase::Connected, Some(session)) => session.clone(),
            _ => {
                drop(state);
                return done(self.abort());
            }
        };
        drop(state);
        let (completer, requested) = requested();
        let deadline = timeout.and_then(|timeout| now().checked_add(timeout));
        //= TDI-DISC-03
        if let Err((status, completer)) = session.release(deadline, completer) {
            complete(Some(completer), Err(status));
            return requested;
        }
        let mut state = self.lock();
        // It may be over by now.
        if state.is_on(&session) && matches!(state.phase, Phase::Connected) {
            state.phase = Phase::Releasing;
        }
        requested
    }

    /// Waits until the connection is over, whoever ends it, and says why: what a disconnect with
    /// [`WAIT`](DisconnectFlags::WAIT) would be. At once if there is none; then with how the last
    /// one ended, if there was one.
    pub async fn disconnected(&self) -> Option<Cause> {
        let mut ended = self.shared.ended.subscribe();
        // Whoever ends a connection says how a moment after it can be seen to be over.
        let made = self.lock().made;
        let seen = ended.wait_for(|(count, _)| *count >= made).await;
        seen.ok().and_then(|seen| seen.1.clone())
    }

    // Sending

    /// TDI_SEND, what `TdiBuildSend` sets up. `buffer` belongs to the transport from this call to
    /// the completion, which gives it back.
    ///
    /// The completion's status is [`SUCCESS`](Status::SUCCESS) when the TSDU was handed to the
    /// wire, or what was to be buffered is in the send buffer; `information` says how many bytes
    /// of the buffer were taken. Else [`INVALID_CONNECTION`](Status::INVALID_CONNECTION),
    /// [`INVALID_PARAMETER`](Status::INVALID_PARAMETER) (too long, of no bytes, strange flags, or a
    /// token with a part), [`NOT_SUPPORTED`](Status::NOT_SUPPORTED)
    /// ([`AND_DISCONNECT`](SendFlags::AND_DISCONNECT)),
    /// [`DEVICE_NOT_READY`](Status::DEVICE_NOT_READY), [`IO_TIMEOUT`](Status::IO_TIMEOUT),
    /// [`CANCELLED`](Status::CANCELLED),
    /// [`REQUEST_ABORTED`](Status::REQUEST_ABORTED) (another part of its TSDU was cancelled or
    /// timed out), or what ended the connection.
    pub fn send(&self, buffer: impl Into<Message>, flags: SendFlags) -> Sending {
        self.send_with(buffer, flags, SendOptions::default())
    }

    /// [`send`](Self::send) with a deadline, or with a token to invalidate.
    pub fn send_with(
        &self,
        buffer: impl Into<Message>,
        flags: SendFlags,
        options: SendOptions,
    ) -> Sending {
        let request = request(buffer.into(), flags, options);
        match self.sending_session() {
            Ok(session) => {
                let place = session.sends.submit(now(), request);
                Sending::waiting(session, place)
            }
            Err(status) => Sending::refused(status, request.buffer),
        }
    }

    /// A plain write: `data`, copied, as a normal TSDU or the end of one.
    pub fn write(&self, data: &[u8]) -> Sending {
        //= TDI-SEND-32
        self.send(Bytes::copy_from_slice(data), SendFlags::empty())
    }

    /// A send that is a TSDU by itself.
    pub(crate) fn send_whole(&self, buffer: Message, flags: SendFlags) -> Sending {
        let request = request(buffer, flags, SendOptions::default());
        let buffer = request.buffer.clone();
        let submitted = self.sending_session().and_then(|session| {
            let place = session.sends.submit_whole(now(), request)?;
            Ok(Sending::waiting(session, place))
        });
        match submitted {
            Ok(sending) => sending,
            Err(status) => Sending::refused(status, buffer),
        }
    }

    /// A send with [`NON_BLOCKING`](SendFlags::NON_BLOCKING), whose outcome is known at once:
    /// bytes taken, which may be fewer than there are. The TSDU then stays open for the rest.
    ///
    /// # Errors
    /// [`DEVICE_NOT_READY`](Status::DEVICE_NOT_READY): no room;
    /// [`send_possible`](Self::send_possible) waits for some. Else as [`send`](Self::send).
    pub fn try_send(&self, buffer: impl Into<Message>, flags: SendFlags) -> Result<usize, Status> {
        let flags = flags | SendFlags::NON_BLOCKING;
        let request = request(buffer.into(), flags, SendOptions::default());
        self.sending_session()?.sends.try_send(now(), request)
    }

    /// Waits until a non-blocking send is not refused: at once if none was since there was room
    /// last. Gives the bytes it would take now, of which none is set aside.
    ///
    /// # Errors
    /// Why the connection is over.
    pub async fn send_possible(&self) -> Result<usize, Status> {
        let session = self.sending_session()?;
        std::future::poll_fn(|context| session.sends.poll_possible(context)).await
    }

    /// Throws away what there is of the TSDU that is being put together in the class that `flags`
    /// name; sends in it that are pending are cancelled. False if there is none.
    pub fn discard_partial(&self, flags: SendFlags) -> bool {
        let session = self.sending_session();
        session.is_ok_and(|session| session.sends.discard_partial(flags))
    }

    /// Most bytes of a TSDU on this connection: MaxFragmentedSendSize, or MaxSendSize of the
    /// transport if that is less.
    ///
    /// # Errors
    /// [`INVALID_CONNECTION`](Status::INVALID_CONNECTION).
    pub fn max_tsdu(&self) -> Result<usize, Status> {
        //= TDI-SEND-23
        let negotiated = self.sending_session()?.connection.negotiated();
        let ours = self.shared.transport.settings.send.max_tsdu;
        Ok(ours.min(negotiated.max_fragmented_send_size as usize))
    }

    /// How many bytes it makes sense to have outstanding: what fits the credits held.
    pub fn ideal_backlog(&self) -> usize {
        let Ok(session) = self.sending_session() else {
            return 0;
        };
        let credits = usize::from(session.connection.credits().send_credits);
        credits * session.connection.negotiated().max_payload()
    }

    /// Forces protocol flow without data, what a send of no bytes does elsewhere: one empty
    /// message, which brings the peer the credits there are to give. The peer's upper layer sees
    /// nothing.
    ///
    /// # Errors
    /// [`INVALID_CONNECTION`](Status::INVALID_CONNECTION).
    pub fn poke(&self) -> Result<(), Status> {
        self.sending_session()?.connection.prompt();
        Ok(())
    }

    // Receiving

    /// TDI_RECEIVE: fills `buffer`, over its whole length or up to the end of a TSDU. While it is
    /// pending nothing is indicated. With a buffer of no bytes it is done at once, and indications
    /// that a refusal had stopped go on.
    ///
    /// Completes with [`SUCCESS`](Status::SUCCESS) at the end of a TSDU,
    /// [`BUFFER_OVERFLOW`](Status::BUFFER_OVERFLOW) before it: the rest is for the next receive.
    /// When the connection is over, what was held before can still be received; then it is what
    /// ended the connection, and [`INVALID_CONNECTION`](Status::INVALID_CONNECTION).
    pub fn receive(&self, buffer: BytesMut, flags: ReceiveFlags) -> Receiving {
        match self.receiving_session() {
            Some(session) => {
                let place = session.receives.receive(buffer, flags);
                Receiving::waiting(session, place)
            }
            //= TDI-RECV-03
            None => Receiving::refused(Status::INVALID_CONNECTION, buffer),
        }
    }

    /// A plain read: a receive of normal data.
    pub fn read(&self, buffer: BytesMut) -> Receiving {
        //= TDI-RECV-09
        self.receive(buffer, ReceiveFlags::NORMAL)
    }

    /// Has indications go on that a refusal has stopped.
    ///
    /// # Errors
    /// [`INVALID_CONNECTION`](Status::INVALID_CONNECTION).
    pub fn resume(&self) -> Result<(), Status> {
        let session = self.receiving_session();
        session.ok_or(Status::INVALID_CONNECTION)?.receives.resume();
        Ok(())
    }

    // Queries

    /// TDI_QUERY_CONNECTION_INFO.
    ///
    /// # Errors
    /// [`INVALID_CONNECTION`](Status::INVALID_CONNECTION): there is none, nor was there.
    pub fn query_connection(&self) -> Result<ConnectionInfo, Status> {
        let state = self.lock();
        let session = state.session.clone().ok_or(Status::INVALID_CONNECTION)?;
        let endpoint_state = state.phase.state();
        drop(state);
        let settings = &self.shared.transport.settings;
        //= TDI-QUERY-02
        Ok(ConnectionInfo::new(endpoint_state, &session, settings))
    }

    /// The peer of the connection, or of the offer.
    ///
    /// # Errors
    /// [`INVALID_CONNECTION`](Status::INVALID_CONNECTION).
    pub fn remote_address(&self) -> Result<SocketAddr, Status> {
        let state = self.lock();
        match (&state.phase, &state.session) {
            (Phase::Offered(incoming, _), _) => Ok(incoming.remote_address),
            (Phase::Connected | Phase::Releasing, Some(session)) => {
                Ok(session.connection.remote_address())
            }
            _ => Err(Status::INVALID_CONNECTION),
        }
    }

    /// The SMB Direct connection, for what TDI has no requests for: to register memory, and to
    /// read and write the peer's. Its messages are the endpoint's: one that is taken from it is
    /// missed here.
    ///
    /// # Errors
    /// [`INVALID_CONNECTION`](Status::INVALID_CONNECTION).
    pub fn connection(&self) -> Result<Connection, Status> {
        Ok(self.sending_session()?.connection.clone())
    }

    // For the sessions and the adapters

    pub(crate) fn sending_session(&self) -> Result<Arc<Session>, Status> {
        let state = self.lock();
        state.phase.state().check(Request::Send)?;
        state.session.clone().ok_or(Status::INVALID_CONNECTION)
    }

    /// The session to receive from: one that is over has what is left.
    pub(crate) fn receiving_session(&self) -> Option<Arc<Session>> {
        let state = self.lock();
        match state.phase {
            Phase::Connected | Phase::Releasing | Phase::Associated => state.session.clone(),
            _ => None,
        }
    }

    pub(crate) fn client(&self) -> Option<Arc<dyn Client<C>>> {
        let address = self.lock().address.clone();
        address.and_then(|address| address.client())
    }

    pub(crate) fn lendable(&self) -> usize {
        self.shared.transport.settings.receive.lendable
    }

    /// The session is over, unless the endpoint has another by now.
    pub(crate) fn session_ended(&self, session: &Arc<Session>, cause: &Cause) {
        let mut state = self.lock();
        if !state.is_on(session) || !matches!(state.phase, Phase::Connected | Phase::Releasing) {
            return;
        }
        //= TDI-CONN-10
        state.phase = Phase::Associated;
        drop(state);
        self.shared.ended(session, cause);
    }

    // For offers

    /// A peer that fits the listen. Gives it back if the listen is over.
    pub(crate) fn offer(&self, listen: &Filter<C>, incoming: Incoming) -> Result<(), Incoming> {
        let &Filter {
            attempt,
            remote,
            query_accept,
            ..
        } = listen;
        let mut state = self.lock();
        if state.attempt != attempt {
            return Err(incoming);
        }
        let completer = match std::mem::replace(&mut state.phase, Phase::Associated) {
            Phase::Listening(completer) => completer,
            phase => {
                state.phase = phase;
                return Err(incoming);
            }
        };
        if query_accept {
            //= TDI-CONN-03
            let limit = self.shared.transport.settings.offer_timeout;
            let forgetting = forget_offer(self.downgrade(), attempt, limit);
            let timer = tokio::spawn(forgetting.in_current_span());
            state.phase = Phase::Offered(incoming, Timer(timer.abort_handle()));
            drop(state);
            complete(Some(completer), Ok(()));
            return Ok(());
        }
        let task = tokio::spawn(accept(self.downgrade(), attempt, incoming)).abort_handle();
        state.phase = Phase::Accepting(Attempt {
            listen: Some(remote),
            ..Attempt::new(Some(completer), task)
        });
        Ok(())
    }

    /// A peer that the connect handler has accepted for this endpoint.
    pub(crate) fn accept_offer(&self, address: &Arc<AddressShared<C>>, incoming: Incoming) {
        let mut state = self.lock();
        let is_here = state
            .address
            .as_ref()
            .is_some_and(|own| Arc::ptr_eq(own, address));
        if !is_here || state.phase.state() != EndpointState::Associated {
            warn!("the connect handler gave an endpoint that is not idle on this address");
            return;
        }
        let attempt = state.begin();
        let (weak, endpoint) = (self.downgrade(), self.clone());
        let accepting = async move {
            accept(weak, attempt, incoming).await;
            // It is kept until the client has been told, and may have kept it.
            drop(endpoint);
        };
        let task = tokio::spawn(accepting).abort_handle();
        state.phase = Phase::Accepting(Attempt::new(None, task));
    }

    /// The address is closed: a pending listen is cancelled.
    pub(crate) fn address_closed(&self) {
        let mut state = self.lock();
        if matches!(state.phase, Phase::Listening(_) | Phase::Offered(..)) {
            let phase = std::mem::replace(&mut state.phase, Phase::Associated);
            drop(state);
            phase.give_up(Status::CANCELLED);
        }
    }

    /// No peer will come any more: a pending listen is over.
    pub(crate) fn listen_failed(&self, status: Status) {
        let mut state = self.lock();
        if matches!(state.phase, Phase::Listening(_)) {
            let phase = std::mem::replace(&mut state.phase, Phase::Associated);
            drop(state);
            phase.give_up(status);
        }
    }

    /// What became of `attempt`.
    fn established(&self, attempt: u64, result: Result<Connection, Status>) {
        let mut state = self.lock();
        if state.attempt != attempt {
            return;
        }
        let Attempt {
            mut completer,
            listen,
            ..
        } = match std::mem::replace(&mut state.phase, Phase::Associated) {
            Phase::Connecting(attempt) | Phase::Accepting(attempt) => attempt,
            phase => {
                state.phase = phase;
                return;
            }
        };
        let transport = &self.shared.transport;
        let result = match result {
            Ok(connection) => {
                let TransportSettings { send, receive, .. } = &transport.settings;
                let session = Session::new(connection, send, receive);
                transport.session_began(&session);
                let last = state.session.replace(session.clone());
                state.phase = Phase::Connected;
                state.made += 1;
                drop(state);
                drop(last);
                Ok(session)
            }
            Err(status) => {
                //= TDI-CONN-08
                if let Some(remote) = listen
                    && let Some(listening) = completer.take()
                {
                    state.phase = Phase::Listening(listening);
                    let address = state.address.clone().expect("it is associated");
                    drop(state);
                    address.listen_again(Filter {
                        endpoint: self.downgrade(),
                        attempt,
                        remote,
                        query_accept: false,
                    });
                    return;
                }
                drop(state);
                Err(status)
            }
        };
        let (session, result) = match result {
            Ok(session) => (Some(session), Ok(())),
            Err(status) => (None, Err(status)),
        };
        transport.count(|counters| counters.connected(result));
        match completer {
            Some(completer) => complete(Some(completer), result),
            None => self.tell(|client| client.accept_completed(self, result)),
        }
        // Its events come after that of its beginning.
        if let Some(session) = session {
            Task::spawn(session, self.downgrade());
        }
    }

    /// Calls a handler of the client's, if there is one, in turn. An error is a panic.
    pub(crate) fn call<R>(&self, handler: impl FnOnce(&dyn Client<C>) -> R) -> Option<Caught<R>> {
        let client = self.client()?;
        let turn = self.shared.turn.lock();
        let _turn = turn.unwrap_or_else(PoisonError::into_inner);
        //= TDI-EVENT-01
        Some(catch_unwind(AssertUnwindSafe(|| handler(&*client))))
    }

    /// Calls a handler where there is no connection that a panic could end.
    fn tell(&self, handler: impl FnOnce(&dyn Client<C>)) {
        if let Some(Err(_)) = self.call(handler) {
            warn!("a handler panicked");
            // It may be there by now.
            let _ = self.abort();
        }
    }
}

fn request(buffer: Message, flags: SendFlags, options: SendOptions) -> SendRequest {
    SendRequest {
        deadline: options.deadline,
        invalidate: options.invalidate,
        ..SendRequest::new(RequestId(0), buffer, flags)
    }
}

/// Makes the connection of a connect.
async fn connect<C: EndpointContext>(
    endpoint: Weak<Shared<C>>,
    attempt: u64,
    remote: SocketAddr,
    limit: Duration,
) {
    let Some(transport) = endpoint.upgrade().map(|shared| shared.transport.clone()) else {
        return;
    };
    let config = transport.settings.config.clone();
    let connecting = Connection::connect(&*transport.provider, remote, config);
    let result = match timeout(limit, connecting).await {
        Ok(result) => result.map_err(|error| connect_status(&error)),
        Err(_) => Err(Status::IO_TIMEOUT),
    };
    if let Some(shared) = endpoint.upgrade() {
        Endpoint::from_shared(shared).established(attempt, result);
    }
}

/// Makes the connection of an offer, in the span of the connection.
async fn accept<C: EndpointContext>(endpoint: Weak<Shared<C>>, attempt: u64, incoming: Incoming) {
    let span = connection_span(incoming.remote_address);
    accept_in_span(endpoint, attempt, incoming)
        .instrument(span)
        .await;
}

async fn accept_in_span<C: EndpointContext>(
    endpoint: Weak<Shared<C>>,
    attempt: u64,
    incoming: Incoming,
) {
    let Some(transport) = endpoint.upgrade().map(|shared| shared.transport.clone()) else {
        return;
    };
    let config = transport.settings.config.clone();
    let result = accept_incoming(&*transport.provider, incoming, config).await;
    let result = result.map_err(|error| match error {
        AcceptError::TooLate | AcceptError::Negotiation(ConnectionError::TimedOut(_)) => {
            Status::IO_TIMEOUT
        }
        _ => Status::CONNECTION_ABORTED,
    });
    if let Some(shared) = endpoint.upgrade() {
        Endpoint::from_shared(shared).established(attempt, result);
    }
}

/// Turns a peer away that nobody decides on.
async fn forget_offer<C: EndpointContext>(
    endpoint: Weak<Shared<C>>,
    attempt: u64,
    limit: Duration,
) {
    sleep(limit).await;
    let Some(endpoint) = endpoint.upgrade().map(Endpoint::from_shared) else {
        return;
    };
    let mut state = endpoint.lock();
    if state.attempt == attempt && matches!(state.phase, Phase::Offered(..)) {
        state.phase = Phase::Associated;
        drop(state);
        let transport = &endpoint.shared.transport;
        transport.count(|counters| counters.session_timeouts += 1);
        endpoint.tell(|client| {
            client.disconnect(&endpoint, DisconnectFlags::ABORT, &Cause::OfferTimeout);
        });
    }
}

/// Why a connect failed, in TDI's words.
fn connect_status(error: &ConnectError) -> Status {
    //= TDI-CONN-00
    match error {
        ConnectError::Provider(ProviderError { kind, .. }) => match kind {
            ProviderErrorKind::Address => Status::BAD_NETWORK_PATH,
            ProviderErrorKind::Refused => Status::REMOTE_NOT_LISTENING,
            ProviderErrorKind::TimedOut => Status::IO_TIMEOUT,
            ProviderErrorKind::Reset => Status::CONNECTION_RESET,
            ProviderErrorKind::Local => Status::INSUFFICIENT_RESOURCES,
            _ => Status::CONNECTION_ABORTED,
        },
        ConnectError::Negotiation(error) => match error {
            ConnectionError::TimedOut(_) => Status::IO_TIMEOUT,
            ConnectionError::Violation(_) => Status::CONNECTION_ABORTED,
            ConnectionError::Provider(error) if error.kind == ProviderErrorKind::Reset => {
                Status::CONNECTION_RESET
            }
            _ => Status::CONNECTION_REFUSED,
        },
    }
}

impl<C: EndpointContext> State<C> {
    fn is_on(&self, session: &Arc<Session>) -> bool {
        let current = self.session.as_ref();
        current.is_some_and(|current| Arc::ptr_eq(current, session))
    }

    /// A new attempt at a connection.
    fn begin(&mut self) -> u64 {
        self.attempt += 1;
        self.attempt
    }
}

impl<C: EndpointContext> Shared<C> {
    fn lock(&self) -> MutexGuard<'_, State<C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a connection can be made.
    fn may_begin(&self, state: &State<C>, request: Request) -> Result<(), Status> {
        state.phase.state().check(request)?;
        match &state.address {
            Some(address) if address.is_closed() => Err(Status::ADDRESS_CLOSED),
            Some(address) if request == Request::Listen && !address.can_be_offered_to() => {
                Err(Status::INVALID_ADDRESS)
            }
            _ => Ok(()),
        }
    }

    /// A connection is over.
    fn ended(&self, session: &Session, cause: &Cause) {
        self.transport.session_ended(session, cause);
        self.ended.send_modify(|(count, last)| {
            *count += 1;
            *last = Some(cause.clone());
        });
    }
}

/// The last handle is gone: whatever is pending is cancelled.
impl<C: EndpointContext> Drop for Shared<C> {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let phase = std::mem::replace(&mut state.phase, Phase::Idle);
        let (session, address) = (state.session.take(), state.address.take());
        if let Some(session) = session {
            let was_connected = matches!(phase, Phase::Connected | Phase::Releasing);
            //= TDI-CLOSE-01
            session.abort(Status::CANCELLED);
            if was_connected {
                self.ended(&session, &Cause::LocalDisconnect);
            }
        }
        phase.give_up(Status::CANCELLED);
        if let Some(address) = address {
            address.forget_the_gone();
        }
        self.transport.closed_endpoint();
    }
}

impl<C: EndpointContext> Clone for Endpoint<C> {
    fn clone(&self) -> Self {
        Self::from_shared(self.shared.clone())
    }
}

impl<C: EndpointContext> fmt::Debug for Endpoint<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

impl<C: EndpointContext> fmt::Debug for Shared<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}
