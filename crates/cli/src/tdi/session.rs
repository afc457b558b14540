//! [`Session`]: one endpoint as its user sees it: requests by number, events, and how indications
//! are answered.
//!
//! All of it happens on one thread, so the answer of a call is always shown before its completion.
//! Completions are shown in the order in which they came, and before events that came after them.

use std::{
    collections::BTreeMap,
    future::poll_fn,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard},
    task::{Poll, Waker},
};

use bytes::{Buf, BytesMut};
use smbdirect::{
    Message, Token,
    tdi::{
        Answer, Cause, ChainedTsdu, DisconnectFlags, Endpoint, Indication, IndicationFlags,
        ReceiveCompletion, ReceiveFlags, ReceiveRequest, RequestId, SendFlags, Status,
    },
};
use tokio::sync::watch;

use super::{
    lines::{Data, Event, Lines, Name, Outcome},
    pending::{Completion, Pending, RequestWaker, Submitted, WokenRequests},
    queries::names,
};

/// An endpoint whose client context is its session.
pub(super) type SessionEndpoint = Endpoint<Arc<Session>>;

/// What handlers and the commands of one endpoint share.
pub(super) struct Session {
    pub(super) lines: Lines,
    /// The number of the peer, counted by the listener.
    pub(super) number: u64,
    /// A failure fails the command, because no user at a terminal judges it.
    pub(super) is_scripted: bool,
    state: Mutex<State>,
    /// Counts completions and events; [`Session::until`] checks its condition at each.
    changes: watch::Sender<u64>,
}

struct State {
    handling: Handling,
    last_number: u64,
    /// Pending requests, by their numbers.
    pending: BTreeMap<u64, Pending>,
    woken: Arc<WokenRequests>,
    /// Number of pending receive requests that a handler returned.
    supplied: u64,
    /// What was indicated so far of a TSDU that is to be sent back.
    gathered: BytesMut,
    /// A TSDU was not accepted because MAX_ECHOES are being sent back.
    echo_stalled: bool,
    /// Requests and commands that failed, or did not end with the status that was expected.
    failures: Vec<String>,
    /// The session ends, so receives may end without data.
    is_closing: bool,
    /// The peer may end the connection.
    end_expected: bool,
    /// Why the connection ended, if this end did not end it.
    lost: Option<Cause>,
}

/// How indications are answered.
#[derive(Clone, Copy, Debug)]
pub(super) enum Handling {
    /// Take this many bytes of each, or all.
    Take(Option<usize>),
    /// Accept nothing.
    Hold,
    /// Return a receive request of this many bytes.
    Request(usize),
    /// Send each TSDU back.
    Echo,
}

/// Most TSDUs that are being sent back before the next one is not accepted.
const MAX_ECHOES: usize = 16;

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
                woken: WokenRequests::new(),
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

    /// Shows a request, and polls it until it is complete.
    pub(super) fn submit(
        &self,
        request: &'static str,
        flags: String,
        bytes: Option<usize>,
        mut pending: Pending,
    ) {
        let mut state = self.lock();
        let id = state.next_number();
        pending.waker = Waker::from(RequestWaker::new(id, &state.woken));
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

    /// Shows the requests that have completed since the last call.
    pub(super) fn sweep(&self) {
        loop {
            let mut state = self.lock();
            let Some(id) = state.woken.next() else {
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

    /// Returns the outcome of a request, and records a failure.
    fn judge(
        &self,
        state: &mut State,
        completion: Completion,
        expected: Option<Status>,
        id: u64,
    ) -> Outcome {
        // Receives that end because the session does are no failures.
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

    /// Shows a request that has no completion.
    pub(super) fn done(
        &self,
        request: &'static str,
        result: Result<(), Status>,
        expected: Option<Status>,
    ) {
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

    /// Shows completions as they come. Never returns; drop the future to stop.
    pub(super) async fn drive(&self, endpoint: &SessionEndpoint) {
        poll_fn(|context| {
            self.lock().woken.watch(context.waker());
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
            // The connection has just ended, and the disconnect event says so.
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

    /// Handles a TSDU that is lent, and returns it if it is not accepted.
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
        let beginning = tsdu.clone().copy_to_bytes(tsdu.len().min(Data::MAX_BYTES));
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

    /// Shows an event, after the completions before it.
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

    /// Answers indications by `handling` from now on.
    pub(super) fn handle(&self, handling: Handling) {
        self.lock().handling = handling;
    }

    /// Waits until no request is pending.
    pub(super) async fn until_idle(&self) {
        let is_idle = |state: &State| state.pending.is_empty() && state.supplied == 0;
        self.until(is_idle).await;
    }

    /// Waits until all requests but receives have completed.
    pub(super) async fn until_sent(&self) {
        let is_sent = |state: &State| {
            let mut pending = state.pending.values();
            pending.all(|pending| matches!(pending.request, Submitted::Receive(_)))
        };
        self.until(is_sent).await;
    }

    /// Cancels a request.
    ///
    /// # Errors
    /// INVALID_DEVICE_STATE if it has completed, or cannot be cancelled any more.
    pub(super) fn cancel(&self, id: u64) -> Result<(), Status> {
        let state = self.lock();
        let cancelled = state
            .pending
            .get(&id)
            .map(|pending| pending.request.cancel());
        match cancelled {
            Some(true) => Ok(()),
            Some(false) | None => Err(Status::INVALID_DEVICE_STATE),
        }
    }

    // The end

    /// Allows the peer to end the connection, from now on and before.
    pub(super) fn expect_end(&self) {
        let mut state = self.lock();
        state.end_expected = true;
        state
            .lost
            .take_if(|cause| matches!(cause, Cause::RemoteDisconnect));
    }

    /// Allows receives to end without data.
    pub(super) fn close(&self) {
        self.lock().is_closing = true;
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lock().lost.is_some()
    }

    /// Returns whether the session went as asked.
    ///
    /// # Errors
    /// What did not.
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

    /// Appends indicated bytes to the TSDU that is to be sent back.
    fn gather(&mut self, indication: &Indication) {
        if indication.tsdu_offset == 0 {
            self.gathered.clear();
        }
        // A TSDU that began before `echo` was run is not sent back.
        if indication.tsdu_offset == self.gathered.len() {
            self.gathered.extend_from_slice(&indication.data);
        }
    }
}
