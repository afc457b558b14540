//! [`Session`]: one endpoint as a person sees it: its requests by number, what handlers are told,
//! and what they answer.
//!
//! All of it happens on one thread, so what a call answers at once stands before what comes of it
//! later, in every run. Completions are shown in the order in which they came, and before events
//! that came after them.

use std::{
    collections::{BTreeMap, VecDeque},
    future::{Future, poll_fn},
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Poll, Wake, Waker},
    time::{Duration, Instant},
};

use bytes::{Buf, Bytes, BytesMut};
use smbdirect::{
    Message, Token,
    tdi::{
        Answer, Cause, ChainedTsdu, DisconnectFlags, Endpoint, EndpointState, Indication,
        IndicationFlags, ReceiveCompletion, ReceiveFlags, ReceiveRequest, Receiving, RequestId,
        Requested, SendCompletion, SendFlags, SendOptions, Sending, Status,
    },
};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use super::{
    Handlers,
    command::{Command, SendCommand, Step, Switch},
    lines::{Data, Event, Lines, Name, Outcome, names},
};

/// An endpoint that its client knows by the session.
pub(super) type SessionEndpoint = Endpoint<Arc<Session>>;

/// What handlers and the commands of one endpoint share.
pub(super) struct Session {
    pub(super) lines: Lines,
    /// Its number among the peers of a listener.
    pub(super) number: u64,
    /// What goes wrong counts, since nobody sits there to judge it.
    pub(super) is_scripted: bool,
    state: Mutex<State>,
    /// Counts what has happened, for those who wait for something.
    changes: watch::Sender<u64>,
}

struct State {
    handling: Handling,
    last_number: u64,
    /// Under way, by their numbers.
    pending: BTreeMap<u64, Pending>,
    bells: Arc<Bells>,
    /// Requests that a handler has returned, and which are under way.
    supplied: u64,
    /// Of a TSDU that is to be sent back, what was indicated.
    gathered: BytesMut,
    /// A TSDU was not accepted because too many are on their way back.
    echo_stalled: bool,
    /// Requests and commands that ended as they should not.
    failures: Vec<String>,
    /// The session ends, and receives with it.
    is_closing: bool,
    /// The peer may end the connection.
    end_expected: bool,
    /// The connection is over, and not by this end.
    lost: Option<Cause>,
}

/// What to do with what is indicated.
#[derive(Clone, Copy, Debug)]
enum Handling {
    /// So many bytes at a time, or all.
    Take(Option<usize>),
    Hold,
    Request(usize),
    Echo,
}

/// TSDUs that may be on their way back before more are taken in.
const MAX_ECHOES: usize = 16;

struct Pending {
    request: Submitted,
    expected: Option<Status>,
    /// It sends back what came.
    is_echo: bool,
    waker: Waker,
}

/// A request under way.
pub(super) enum Submitted {
    Send(Sending),
    Receive(Receiving),
    Other(Requested),
}

/// A request that is over.
enum Completion {
    Send(SendCompletion),
    Receive(ReceiveCompletion),
    Other(Status),
}

impl Submitted {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Completion> {
        match self {
            Self::Send(sending) => Pin::new(sending).poll(context).map(Completion::Send),
            Self::Receive(receiving) => Pin::new(receiving).poll(context).map(Completion::Receive),
            Self::Other(requested) => Pin::new(requested).poll(context).map(|result| {
                let status = result.err().unwrap_or(Status::SUCCESS);
                Completion::Other(status)
            }),
        }
    }
}

impl Completion {
    const fn status(&self) -> Status {
        match self {
            Self::Send(completion) => completion.status,
            Self::Receive(completion) => completion.status,
            Self::Other(status) => *status,
        }
    }

    fn outcome(self) -> Outcome {
        let outcome = Outcome::new(self.status());
        if outcome.status.0.is_error() {
            return outcome;
        }
        match self {
            Self::Send(completion) => Outcome {
                information: Some(completion.information),
                ..outcome
            },
            Self::Receive(completion) => Outcome {
                information: Some(completion.information),
                data: Some(Data::new(&completion.buffer[..completion.information])),
                invalidated_token: completion.invalidated_token.map(|token| token.0),
                ..outcome
            },
            Self::Other(_) => outcome,
        }
    }
}

/// Where requests say that they have something to say.
struct Bells {
    /// Those that did, in that order.
    rung: Mutex<VecDeque<u64>>,
    /// The task that looks after the session.
    task: Mutex<Waker>,
}

/// That of one request.
struct Bell {
    number: u64,
    bells: Arc<Bells>,
}

impl Bells {
    fn next(&self) -> Option<u64> {
        self.rung.lock().expect("no panic under it").pop_front()
    }

    fn watch(&self, task: &Waker) {
        self.task
            .lock()
            .expect("no panic under it")
            .clone_from(task);
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        let mut rung = self.bells.rung.lock().expect("no panic under it");
        rung.push_back(self.number);
        drop(rung);
        let task = self.bells.task.lock().expect("no panic under it").clone();
        task.wake();
    }
}

impl Session {
    pub(super) fn new(lines: Lines, number: u64, is_scripted: bool) -> Arc<Self> {
        Arc::new(Self {
            lines,
            number,
            is_scripted,
            state: Mutex::new(State {
                handling: Handling::Take(None),
                last_number: 0,
                pending: BTreeMap::new(),
                bells: Arc::new(Bells {
                    rung: Mutex::default(),
                    task: Mutex::new(Waker::noop().clone()),
                }),
                supplied: 0,
                gathered: BytesMut::new(),
                echo_stalled: false,
                failures: Vec::new(),
                is_closing: false,
                end_expected: false,
                lost: None,
            }),
            changes: watch::Sender::new(0),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under it")
    }

    fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    // Requests

    /// Shows a request, and looks after it until it is over.
    fn submit(
        &self,
        request: &'static str,
        flags: String,
        bytes: Option<usize>,
        mut pending: Pending,
    ) {
        let mut state = self.lock();
        let id = state.next_number();
        pending.waker = Waker::from(Arc::new(Bell {
            number: id,
            bells: state.bells.clone(),
        }));
        let result = match pending.poll() {
            Poll::Pending => {
                state.pending.insert(id, pending);
                Outcome::new(Status::PENDING)
            }
            Poll::Ready(completion) => self.judge(&mut state, completion, pending.expected, id),
        };
        drop(state);
        self.lines.show(&Event::Request {
            id,
            request,
            flags,
            bytes,
            result,
        });
    }

    /// Shows what has been completed.
    pub(super) fn sweep(&self) {
        loop {
            let mut state = self.lock();
            let Some(id) = state.bells.next() else {
                return;
            };
            let polled = state.pending.get_mut(&id).map(Pending::poll);
            let Some(Poll::Ready(completion)) = polled else {
                continue;
            };
            let pending = state.pending.remove(&id).expect("it was just there");
            let result = self.judge(&mut state, completion, pending.expected, id);
            drop(state);
            self.lines.show(&Event::Completed { id, result });
            self.changed();
        }
    }

    /// What became of a request, which is remembered if it is not what should.
    fn judge(
        &self,
        state: &mut State,
        completion: Completion,
        expected: Option<Status>,
        id: u64,
    ) -> Outcome {
        // Receives that wait for nothing are no failures.
        let ends_by_itself = state.is_closing && matches!(completion, Completion::Receive(_));
        let mut result = completion.outcome();
        if !ends_by_itself {
            self.check(state, &mut result, expected, || format!("#{id}"));
        }
        result
    }

    fn check(
        &self,
        state: &mut State,
        result: &mut Outcome,
        expected: Option<Status>,
        what: impl Fn() -> String,
    ) {
        let status = result.status.0;
        result.expected = expected.map(|expected| status == expected);
        let is_failure = match expected {
            Some(expected) => status != expected,
            None => status.is_error(),
        };
        if is_failure && self.is_scripted {
            state.failures.push(what());
        }
    }

    /// Shows a request that is done by the call.
    fn done(&self, request: &'static str, result: Result<(), Status>, expected: Option<Status>) {
        let mut result = Outcome::new(result.err().unwrap_or(Status::SUCCESS));
        let what = || format!("`{request}`");
        self.check(&mut self.lock(), &mut result, expected, what);
        self.lines.show(&Event::Done { request, result });
    }

    /// Waits until `condition` holds.
    async fn until(&self, condition: impl Fn(&State) -> bool) {
        let mut changes = self.changes.subscribe();
        // The sender is ours, so this cannot fail.
        let _ = changes.wait_for(|_| condition(&self.lock())).await;
    }

    /// Shows completions as they come, until it is dropped.
    pub(super) async fn drive(&self, endpoint: &SessionEndpoint) {
        poll_fn(|context| {
            self.lock().bells.watch(context.waker());
            self.sweep();
            let resumes = {
                let mut state = self.lock();
                let has_room = state.echoes() < MAX_ECHOES;
                has_room && std::mem::take(&mut state.echo_stalled)
            };
            if resumes {
                // If the connection is over, there is nothing to resume.
                let _ = endpoint.resume();
            }
            Poll::<()>::Pending
        })
        .await;
    }

    // What happens

    pub(super) fn connected(&self, endpoint: &SessionEndpoint, transport: &'static str) {
        let (Ok(address), Ok(max_tsdu), Ok(connection)) = (
            endpoint.remote_address(),
            endpoint.max_tsdu(),
            endpoint.connection(),
        ) else {
            // It has just ended, which is told by itself.
            return;
        };
        self.lock().lost = None;
        self.lines.show(&Event::Connected {
            address: crate::report::peer(address),
            transport,
            max_tsdu,
            negotiated: connection.negotiated().into(),
        });
    }

    pub(super) fn not_connected(&self, address: SocketAddr, status: Status) {
        let status = Name(status);
        let address = crate::report::peer(address);
        self.lines.show(&Event::NotConnected { address, status });
    }

    pub(super) fn indicated(&self, endpoint: &SessionEndpoint, indication: Indication) -> Answer {
        self.sweep();
        let mut state = self.lock();
        let count = indication.data.len();
        let (answer, text) = match state.handling {
            Handling::Take(None) => (Answer::Taken(count), "taken".into()),
            Handling::Take(Some(most)) => {
                let taken = most.min(count);
                (Answer::Taken(taken), format!("{taken} B taken"))
            }
            Handling::Hold => (Answer::NotAccepted(0), "not accepted".into()),
            Handling::Request(bytes) => {
                let id = state.next_number();
                state.supplied += 1;
                let request = ReceiveRequest {
                    id: RequestId(id),
                    buffer: BytesMut::zeroed(bytes),
                    flags: ReceiveFlags::empty(),
                };
                let answer = Answer::TakenThenReceive(0, request);
                (answer, format!("#{id} receive {bytes} B"))
            }
            Handling::Echo if indication.tsdu_offset == 0 && state.is_full() => {
                state.echo_stalled = true;
                (
                    Answer::NotAccepted(0),
                    "not accepted, too many are to be sent back".into(),
                )
            }
            Handling::Echo => {
                state.gather(&indication);
                (Answer::Taken(count), "taken, to be sent back".into())
            }
        };
        let ends = indication.flags.contains(IndicationFlags::ENTIRE_MESSAGE);
        let is_echo =
            matches!(state.handling, Handling::Echo) && matches!(answer, Answer::Taken(_));
        let echo = (is_echo && ends)
            .then(|| std::mem::take(&mut state.gathered))
            .filter(|gathered| gathered.len() == indication.tsdu_length);
        drop(state);
        self.lines.show(&Event::Indicated {
            flags: names(indication.flags),
            indicated: count,
            available: indication.available,
            tsdu_offset: indication.tsdu_offset,
            tsdu_length: indication.tsdu_length,
            data: Data::new(&indication.data),
            answer: text,
        });
        if let Some(echo) = echo {
            self.send_back(endpoint, echo.freeze().into());
        }
        answer
    }

    /// A TSDU that is lent, which comes back if it is not accepted.
    pub(super) fn lent(
        &self,
        endpoint: &SessionEndpoint,
        tsdu: ChainedTsdu,
    ) -> Option<ChainedTsdu> {
        self.sweep();
        let (handling, is_full) = {
            let state = self.lock();
            (state.handling, state.is_full())
        };
        let answer = match handling {
            Handling::Echo if is_full => {
                self.lock().echo_stalled = true;
                "not accepted, too many are to be sent back"
            }
            Handling::Echo => "taken, to be sent back",
            Handling::Hold | Handling::Request(_) => "not accepted",
            Handling::Take(_) => "taken",
        };
        let beginning = tsdu.clone().copy_to_bytes(tsdu.len().min(Data::ENOUGH));
        self.lines.show(&Event::Chained {
            tsdu_length: tsdu.len(),
            data: Data::new(&beginning),
            answer: answer.into(),
        });
        match handling {
            Handling::Echo if !is_full => self.send_back(endpoint, tsdu.into_message()),
            Handling::Take(_) => drop(tsdu),
            _ => return Some(tsdu),
        }
        None
    }

    fn send_back(&self, endpoint: &SessionEndpoint, tsdu: Message) {
        let bytes = tsdu.len();
        let sending = endpoint.send(tsdu, SendFlags::empty());
        let pending = Pending {
            is_echo: true,
            ..Pending::new(Submitted::Send(sending), None)
        };
        self.submit("send", names(SendFlags::empty()), Some(bytes), pending);
    }

    pub(super) fn supplied_completed(&self, completion: ReceiveCompletion) {
        self.sweep();
        let id = completion.id.0;
        let mut state = self.lock();
        state.supplied -= 1;
        let result = self.judge(&mut state, Completion::Receive(completion), None, id);
        drop(state);
        self.lines.show(&Event::Completed { id, result });
        self.changed();
    }

    /// Something that handlers are told.
    pub(super) fn event(&self, event: &Event) {
        self.sweep();
        self.lines.show(event);
    }

    pub(super) fn invalidated(&self, token: Token) {
        self.event(&Event::Invalidated { token: token.0 });
    }

    pub(super) fn disconnected(&self, flags: DisconnectFlags, cause: &Cause) {
        self.event(&Event::Disconnected {
            flags: names(flags),
            status: Name(cause.status()),
            cause: cause.to_string(),
        });
        let mut state = self.lock();
        let is_expected = state.end_expected && matches!(cause, Cause::RemoteDisconnect);
        if !is_expected {
            state.lost = Some(cause.clone());
        }
        drop(state);
        self.changed();
    }

    // The end

    /// The peer may end the connection, or have ended it.
    pub(super) fn expect_end(&self) {
        let mut state = self.lock();
        state.end_expected = true;
        state
            .lost
            .take_if(|cause| matches!(cause, Cause::RemoteDisconnect));
    }

    /// Receives may end without having got anything.
    fn close(&self) {
        self.lock().is_closing = true;
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lock().lost.is_some()
    }

    /// What did not go as it should.
    pub(super) fn verdict(&self) -> Result<(), String> {
        let state = self.lock();
        if let Some(cause) = &state.lost {
            return Err(format!("the connection was lost: {cause}"));
        }
        match &state.failures[..] {
            [] => Ok(()),
            [one] => Err(format!(
                "{one} failed; `expect STATUS` before it says that it may"
            )),
            several => Err(format!(
                "{} failed; `expect STATUS` before a command says that it may",
                several.join(", ")
            )),
        }
    }
}

impl State {
    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    fn echoes(&self) -> usize {
        let pending = self.pending.values();
        pending.filter(|pending| pending.is_echo).count()
    }

    fn is_full(&self) -> bool {
        self.echoes() >= MAX_ECHOES
    }

    /// Keeps what is to be sent back.
    fn gather(&mut self, indication: &Indication) {
        if indication.tsdu_offset == 0 {
            self.gathered.clear();
        }
        // One that began before echoes were asked for is not sent back.
        if indication.tsdu_offset == self.gathered.len() {
            self.gathered.extend_from_slice(&indication.data);
        }
    }
}

impl Pending {
    fn poll(&mut self) -> Poll<Completion> {
        self.request.poll(&mut Context::from_waker(&self.waker))
    }

    fn new(request: Submitted, expected: Option<Status>) -> Self {
        Self {
            request,
            expected,
            is_echo: false,
            waker: Waker::noop().clone(),
        }
    }
}

/// Runs the commands of a session.
pub(super) struct Runner {
    pub(super) handlers: Arc<Handlers>,
    pub(super) session: Arc<Session>,
    pub(super) endpoint: SessionEndpoint,
    /// Where `connect` connects to.
    pub(super) remote: Option<SocketAddr>,
}

/// How often credits are looked at by those who wait for some.
const GLANCE: Duration = Duration::from_millis(5);

impl Runner {
    /// Runs one command. False if it was the last.
    pub(super) async fn run(&self, step: Step) -> bool {
        let goes_on = self.execute(step).await;
        self.session.sweep();
        goes_on
    }

    async fn execute(&self, step: Step) -> bool {
        let Step {
            command, expected, ..
        } = step;
        let (session, endpoint) = (&self.session, &self.endpoint);
        match command {
            _ if command.is_answer() => self.answer(&command),
            Command::Send(command) => self.send(command, expected),
            Command::Write { text } => {
                let text = text.join(" ");
                let sending = endpoint.write(text.as_bytes());
                self.submit("write", "0".into(), Some(text.len()), sending, expected);
            }
            Command::Receive { bytes, peek } => {
                let mut flags = ReceiveFlags::empty();
                flags.set(ReceiveFlags::PEEK, peek);
                let receiving = endpoint.receive(BytesMut::zeroed(bytes), flags);
                self.submit("receive", names(flags), Some(bytes), receiving, expected);
            }
            Command::Resume => session.done("resume", endpoint.resume(), expected),
            Command::Discard { expedited } => {
                let mut flags = SendFlags::empty();
                flags.set(SendFlags::EXPEDITED, expedited);
                let result = match endpoint.discard_partial(flags) {
                    true => Ok(()),
                    false => Err(Status::INVALID_DEVICE_STATE),
                };
                session.done("discard", result, expected);
            }
            Command::Cancel { id } => {
                let result = self.cancel(id);
                session.done("cancel", result, expected);
            }
            Command::Poke => session.done("poke", endpoint.force_send(), expected),
            Command::Info => session
                .lines
                .show(&Event::info(&self.handlers.transport.info())),
            Command::Statistics => {
                let statistics = self.handlers.transport.statistics();
                session.lines.show(&Event::statistics(&statistics));
            }
            Command::Connection => self.query_connection(expected),
            Command::Sleep { time } => sleep(time).await,
            Command::Wait {
                credits,
                disconnected,
                timeout,
            } => {
                let result = self.wait(credits, disconnected, timeout).await;
                // That it is done is to be seen above.
                if result.is_err() || expected.is_some() {
                    session.done("wait", result, expected);
                }
            }
            Command::Disconnect {
                release, timeout, ..
            } => {
                let flags = match release {
                    true => DisconnectFlags::RELEASE,
                    false => DisconnectFlags::ABORT,
                };
                self.disconnect(flags, timeout, expected);
            }
            Command::Connect { timeout } => self.connect(timeout, expected),
            Command::Associate => {
                let result = self.handlers.associate(endpoint);
                session.done("associate", result, expected);
            }
            Command::Disassociate => {
                session.done("disassociate", endpoint.disassociate(), expected);
            }
            Command::Take { .. }
            | Command::Hold
            | Command::Request { .. }
            | Command::Echo
            | Command::Chained { .. }
            | Command::Expect { .. } => unreachable!("told apart above, or when it was parsed"),
            Command::Quit => return false,
        }
        true
    }

    /// Has indications answered as one of the commands for that says.
    pub(super) fn answer(&self, command: &Command) {
        let handling = match *command {
            Command::Take { bytes } => Handling::Take(bytes),
            Command::Hold => Handling::Hold,
            Command::Request { bytes } => Handling::Request(bytes),
            Command::Echo => Handling::Echo,
            Command::Chained { switch } => {
                return self.handlers.take_chained(switch == Switch::On);
            }
            _ => return,
        };
        self.session.lock().handling = handling;
    }

    /// Does `work` while completions are shown as they come.
    pub(super) async fn driven<T>(&self, work: impl Future<Output = T>) -> T {
        tokio::select! {
            biased;
            () = self.session.drive(&self.endpoint) => unreachable!("it goes on until it is dropped"),
            done = work => done,
        }
    }

    fn submit(
        &self,
        request: &'static str,
        flags: String,
        bytes: Option<usize>,
        submitted: impl Into<Submitted>,
        expected: Option<Status>,
    ) {
        let pending = Pending::new(submitted.into(), expected);
        self.session.submit(request, flags, bytes, pending);
    }

    fn send(&self, command: SendCommand, expected: Option<Status>) {
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::EXPEDITED, command.expedited);
        flags.set(SendFlags::PARTIAL, command.partial);
        flags.set(SendFlags::NON_BLOCKING, command.non_blocking);
        flags.set(
            SendFlags::NO_RESPONSE_EXPECTED,
            command.no_response_expected,
        );
        flags.set(SendFlags::AND_DISCONNECT, command.and_disconnect);
        let data: Bytes = match command.size {
            Some(size) => (b'a'..=b'z').cycle().take(size).collect::<Vec<_>>().into(),
            None => command.text.join(" ").into(),
        };
        let options = SendOptions {
            deadline: command
                .timeout
                .and_then(|timeout| Instant::now().checked_add(timeout)),
            invalidate: command.invalidate.map(Token),
        };
        let bytes = data.len();
        let sending = self.endpoint.send_with(data, flags, options);
        self.submit("send", names(flags), Some(bytes), sending, expected);
    }

    /// Cancels a request. One that is over, or cannot be cancelled any more, is in the wrong state.
    fn cancel(&self, id: u64) -> Result<(), Status> {
        let state = self.session.lock();
        let cancelled = match state.pending.get(&id).map(|pending| &pending.request) {
            Some(Submitted::Send(sending)) => sending.cancel(),
            Some(Submitted::Receive(receiving)) => receiving.cancel(),
            // TDI has no such thing: a disconnect ends them.
            Some(Submitted::Other(_)) | None => false,
        };
        match cancelled {
            true => Ok(()),
            false => Err(Status::INVALID_DEVICE_STATE),
        }
    }

    fn query_connection(&self, expected: Option<Status>) {
        let connection = self.endpoint.connection().ok();
        match self.endpoint.query_connection() {
            Ok(info) => {
                let event = Event::connection(&info, connection.as_ref());
                self.session.lines.show(&event);
            }
            Err(status) => self.session.done("connection", Err(status), expected),
        }
    }

    async fn wait(
        &self,
        credits: Option<u16>,
        disconnected: bool,
        limit: Option<Duration>,
    ) -> Result<(), Status> {
        let waiting = async {
            if let Some(credits) = credits {
                self.wait_for_credits(credits).await
            } else if disconnected {
                self.session.expect_end();
                self.endpoint.disconnected().await;
                Ok(())
            } else {
                let is_idle = |state: &State| state.pending.is_empty() && state.supplied == 0;
                self.session.until(is_idle).await;
                Ok(())
            }
        };
        match limit {
            Some(limit) => match timeout(limit, waiting).await {
                Ok(result) => result,
                Err(_) => Err(Status::IO_TIMEOUT),
            },
            None => waiting.await,
        }
    }

    async fn wait_for_credits(&self, credits: u16) -> Result<(), Status> {
        while self.endpoint.connection()?.credits().send_credits < credits {
            sleep(GLANCE).await;
        }
        Ok(())
    }

    fn connect(&self, limit: Option<Duration>, expected: Option<Status>) {
        let Some(remote) = self.remote else {
            // The passive end knows nobody to connect to.
            return self
                .session
                .done("connect", Err(Status::INVALID_ADDRESS), expected);
        };
        let requested = self.endpoint.connect(remote, limit);
        self.submit("connect", "0".into(), None, requested, expected);
    }

    pub(super) fn disconnect(
        &self,
        flags: DisconnectFlags,
        limit: Option<Duration>,
        expected: Option<Status>,
    ) {
        let requested = self.endpoint.disconnect(flags, limit);
        self.submit("disconnect", names(flags), None, requested, expected);
    }

    /// Ends the connection in good order, if there is one: what was sent is to leave first.
    pub(super) async fn release(&self, limit: Option<Duration>) {
        if self.endpoint.state() == EndpointState::Connected {
            self.disconnect(DisconnectFlags::RELEASE, limit, None);
        }
        self.session.close();
        let is_sending = |state: &State| {
            let mut pending = state.pending.values();
            pending.any(|pending| !matches!(pending.request, Submitted::Receive(_)))
        };
        self.session.until(|state| !is_sending(state)).await;
    }
}

impl From<Sending> for Submitted {
    fn from(sending: Sending) -> Self {
        Self::Send(sending)
    }
}

impl From<Receiving> for Submitted {
    fn from(receiving: Receiving) -> Self {
        Self::Receive(receiving)
    }
}

impl From<Requested> for Submitted {
    fn from(requested: Requested) -> Self {
        Self::Other(requested)
    }
}
