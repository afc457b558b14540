//! The state machine of one communication, from the REQ to the end of time wait (12.9).
//!
//! ```text
//!  active                                   passive
//!  RequestSent ──REP──> ReplyReceived       RequestReceived ──accept──> ReplySent
//!                           │ confirm: RTU                                 │ RTU or data
//!                           └──────────────> Established <─────────────────┘
//!                                              │      │
//!                         disconnect: DREQ     │      │  DREQ of the peer: DREP
//!                                              v      v
//!                    DisconnectSent ──DREP, DREQ──> TimeWait ──time──> Closed
//! ```
//!
//! Every other end, such as a REJ or an unanswered message, leads to `TimeWait` too. In `TimeWait`
//! the communication answers repeated messages of the peer and has no other effect.
//!
//! Each call returns its effects: at most one message to send and at most one event. A message without an answer
//! is sent again after the response timeout, as often as [`CmTiming::max_retries`]. The time between two REQs
//! doubles after every third REQ, so that a peer that starts late is also reached.

use std::time::{Duration, Instant};

use super::{
    fields::{CmTimeout, MessageKind, RejectReason},
    mad::{Mad, Message},
    messages::{
        ConnectReply, DisconnectReply, DisconnectRequest, MessageReceiptAcknowledgment, ReadyToUse,
        Reject,
    },
    private_data::PrivateData,
    request::ConnectRequest,
};

/// The times of a communication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmTiming {
    /// The time after which an unanswered message is sent again.
    pub response_timeout: CmTimeout,
    /// How often an unanswered message is sent again; at most 15.
    pub max_retries: u8,
    /// How long the passive end takes to answer a REQ at most, as its MRA announces.
    pub service_timeout: CmTimeout,
    /// How long an ended communication answers repeated messages.
    pub time_wait: Duration,
}

impl Default for CmTiming {
    fn default() -> Self {
        Self {
            // 268 ms. With 15 retries: 33.5 s for a REQ, 4.3 s for other messages.
            response_timeout: CmTimeout::from_exponent(16),
            max_retries: 15,
            // 8.6 s.
            service_timeout: CmTimeout::from_exponent(21),
            time_wait: Duration::from_secs(2),
        }
    }
}

/// The number of REQs after which the time between two of them doubles.
const REQUESTS_PER_INTERVAL: u8 = 3;
/// The most doublings of the time between two REQs. With 15 retries, the time doubles five times.
const MAX_DOUBLINGS: u8 = 5;

/// The longest time for which an MRA of the peer suspends the retries. Without a limit a peer could
/// keep a communication for hours.
const MAX_SERVICE_TIMEOUT: Duration = Duration::from_secs(60);

/// The effects of a call.
#[derive(Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Output {
    /// The message to send.
    pub message: Option<Mad>,
    /// The event for the owner.
    pub event: Option<CommunicationEvent>,
}

/// A change that the owner of a communication has to know about.
#[derive(Debug, PartialEq, Eq)]
pub enum CommunicationEvent {
    /// Active end: the peer accepted. The owner prepares its queue pair and calls
    /// [`Communication::confirm`], or [`Communication::reject`].
    Accepted(Box<ConnectReply>),
    /// Passive end: the peer has received the REP.
    Established,
    /// The communication ended before it was established.
    Failed(Failure),
    /// The peer disconnected an established communication.
    Disconnected(Box<DisconnectRequest>),
    /// The DREQ of this end was answered, or the retries are used up.
    DisconnectFinished,
}

/// The reason why a communication was not established.
#[derive(Debug, PartialEq, Eq)]
pub enum Failure {
    /// The peer sent a REJ.
    Rejected(Box<Reject>),
    /// The peer did not answer.
    TimedOut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    RequestSent,
    ReplyReceived,
    RequestReceived,
    ReplySent,
    Established,
    DisconnectSent,
    TimeWait,
    Closed,
}

/// One communication.
#[derive(Debug)]
pub struct Communication {
    state: State,
    timing: CmTiming,
    transaction_id: u64,
    local_id: u32,
    /// The communication ID of the peer; 0 until its first message.
    remote_id: u32,
    /// The queue pair of this end, which a DREQ of the peer must name.
    local_queue_pair: u32,
    /// The queue pair of the peer; 0 until its first message.
    remote_queue_pair: u32,
    /// The last REQ, REP, RTU, DREQ or REJ, for repetition.
    last: Option<Message>,
    retries_left: u8,
    deadline: Option<Instant>,
    /// Whether this end sent the REQ.
    is_active: bool,
    /// Whether the communication was established before it ended.
    was_established: bool,
}

impl Communication {
    /// Creates the active end, which sends `request`.
    pub fn connect(
        now: Instant,
        timing: CmTiming,
        transaction_id: u64,
        request: ConnectRequest,
    ) -> (Self, Output) {
        let mut communication = Self {
            state: State::RequestSent,
            timing,
            transaction_id,
            local_id: request.local_communication_id,
            remote_id: 0,
            local_queue_pair: request.queue_pair,
            remote_queue_pair: 0,
            last: None,
            retries_left: 0,
            deadline: None,
            is_active: true,
            was_established: false,
        };
        let message = Message::ConnectRequest(Box::new(request));
        let output = communication.send_and_wait(now, message);
        (communication, output)
    }

    /// Creates the passive end for a received `request`. `local_id` and `local_queue_pair` are the
    /// identifiers of this end.
    pub const fn requested(
        timing: CmTiming,
        transaction_id: u64,
        request: &ConnectRequest,
        local_id: u32,
        local_queue_pair: u32,
    ) -> Self {
        Self {
            state: State::RequestReceived,
            timing,
            transaction_id,
            local_id,
            remote_id: request.local_communication_id,
            local_queue_pair,
            remote_queue_pair: request.queue_pair,
            last: None,
            retries_left: 0,
            deadline: None,
            is_active: false,
            was_established: false,
        }
    }

    /// Returns the communication ID of this end.
    pub const fn local_id(&self) -> u32 {
        self.local_id
    }

    /// Returns the communication ID of the peer, or 0 if it is not known yet.
    pub const fn remote_id(&self) -> u32 {
        self.remote_id
    }

    /// Returns the queue pair of this end.
    pub const fn local_queue_pair(&self) -> u32 {
        self.local_queue_pair
    }

    /// Returns the queue pair of the peer, or 0 if it is not known yet.
    pub const fn remote_queue_pair(&self) -> u32 {
        self.remote_queue_pair
    }

    /// Returns whether a received REQ repeats the one that created this communication.
    pub const fn is_repeated(&self, request: &ConnectRequest) -> bool {
        self.remote_id == request.local_communication_id
            && self.remote_queue_pair == request.queue_pair
    }

    /// Returns whether data may be sent and received.
    pub const fn is_established(&self) -> bool {
        matches!(self.state, State::Established)
    }

    /// Returns whether the passive end has received a REQ and not answered it.
    pub const fn awaits_answer(&self) -> bool {
        matches!(self.state, State::RequestReceived)
    }

    /// Returns whether the communication has ended and no message of the peer can have an effect.
    pub const fn has_ended(&self) -> bool {
        matches!(self.state, State::TimeWait | State::Closed)
    }

    /// Returns whether time wait is over, so that the owner can forget the communication.
    pub const fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    /// Returns the time at which [`handle_timeout`](Self::handle_timeout) has to be called next.
    pub const fn poll_timeout(&self) -> Option<Instant> {
        self.deadline
    }

    /// Passive end: accepts the request by sending `reply`, whose communication IDs and queue pair
    /// are filled in.
    ///
    /// # Panics
    /// Panics if no request waits for an answer.
    pub fn accept(&mut self, now: Instant, mut reply: ConnectReply) -> Output {
        assert!(self.awaits_answer(), "a request is answered once");
        reply.local_communication_id = self.local_id;
        reply.remote_communication_id = self.remote_id;
        reply.queue_pair = self.local_queue_pair;
        self.state = State::ReplySent;
        self.send_and_wait(now, Message::ConnectReply(Box::new(reply)))
    }

    /// Active end: establishes the communication after the peer accepted, and sends the RTU.
    ///
    /// # Panics
    /// Panics if the peer has not accepted.
    pub fn confirm(&mut self) -> Output {
        assert_eq!(self.state, State::ReplyReceived, "the peer has accepted");
        self.state = State::Established;
        self.was_established = true;
        self.deadline = None;
        let message = Message::ReadyToUse(Box::new(ReadyToUse {
            local_communication_id: self.local_id,
            remote_communication_id: self.remote_id,
            private_data: PrivateData::default(),
        }));
        self.last = Some(message.clone());
        self.send(message)
    }

    /// Sends a REJ, which ends a communication that is not established. Has no effect on an established one.
    pub fn reject(
        &mut self,
        now: Instant,
        reason: RejectReason,
        information: &[u8],
        private_data: PrivateData<148>,
    ) -> Output {
        let rejected = match self.state {
            State::RequestReceived => MessageKind::Request,
            State::ReplyReceived => MessageKind::Reply,
            State::RequestSent | State::ReplySent => MessageKind::Other,
            _ => return Output::default(),
        };
        let information = &information[..information.len().min(72)];
        let message = Message::Reject(Box::new(Reject {
            local_communication_id: self.local_id,
            remote_communication_id: self.remote_id,
            rejected,
            information_length: information.len() as u8,
            reason,
            information: PrivateData::new(information).expect("at most 72 bytes"),
            private_data,
        }));
        self.last = Some(message.clone());
        self.wait_for_duplicates(now);
        self.send(message)
    }

    /// Ends the communication: sends a DREQ with `private_data` if it is established or if this end has sent its REP,
    /// and a REJ before that. Has no effect if the communication has ended or is ending.
    pub fn disconnect(&mut self, now: Instant, private_data: PrivateData<220>) -> Output {
        match self.state {
            State::Established => {}
            // The peer may have sent its RTU already.
            State::ReplySent => {}
            State::RequestReceived => {
                return self.reject(now, RejectReason::CONSUMER, &[], PrivateData::default());
            }
            State::RequestSent | State::ReplyReceived => {
                return self.reject(now, RejectReason::TIMEOUT, &[], PrivateData::default());
            }
            _ => return Output::default(),
        }
        self.state = State::DisconnectSent;
        self.was_established = true;
        let message = Message::DisconnectRequest(Box::new(DisconnectRequest {
            local_communication_id: self.local_id,
            remote_communication_id: self.remote_id,
            remote_queue_pair: self.remote_queue_pair,
            private_data,
        }));
        self.send_and_wait(now, message)
    }

    /// Records that a packet of the peer's queue pair arrived, which counts as RTU.
    pub fn handle_data(&mut self) -> Output {
        if self.state != State::ReplySent {
            return Output::default();
        }
        //= ROCE-12.9-05
        self.establish()
    }

    /// Processes a message that the peer sent to this communication.
    pub fn handle_message(&mut self, now: Instant, message: Message) -> Output {
        if !self.is_from_peer(&message) {
            return Output::default();
        }
        match message {
            Message::ConnectRequest(_) => self.repeated_request(),
            Message::ConnectReply(reply) => self.handle_reply(*reply),
            Message::ReadyToUse(_) if self.state == State::ReplySent => self.establish(),
            Message::Reject(reject) => self.handle_reject(now, reject),
            Message::MessageReceiptAcknowledgment(receipt) => self.handle_receipt(now, &receipt),
            Message::DisconnectRequest(request) => self.handle_disconnect(now, request),
            Message::DisconnectReply(_) if self.state == State::DisconnectSent => {
                self.wait_for_duplicates(now);
                Output::event(CommunicationEvent::DisconnectFinished)
            }
            Message::ReadyToUse(_) | Message::DisconnectReply(_) => Output::default(),
        }
    }

    /// Processes the time `now`: sends a message again, gives up, or ends time wait.
    pub fn handle_timeout(&mut self, now: Instant) -> Output {
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return Output::default();
        }
        if self.state == State::TimeWait {
            self.state = State::Closed;
            self.deadline = None;
            self.last = None;
            return Output::default();
        }
        //= ROCE-12.9-01
        if let Some(left) = self.retries_left.checked_sub(1) {
            self.retries_left = left;
            self.deadline = Some(now + self.repetition_interval());
            return self.repeat();
        }
        self.give_up(now)
    }

    /// Returns the time until the last message is sent again, if there is no answer.
    fn repetition_interval(&self) -> Duration {
        let response_timeout = self.timing.response_timeout.duration();
        if self.state != State::RequestSent {
            return response_timeout;
        }
        let repetitions = self.timing.max_retries - self.retries_left;
        let doublings = (repetitions / REQUESTS_PER_INTERVAL).min(MAX_DOUBLINGS);
        response_timeout * (1 << doublings)
    }

    /// Returns whether the identifiers of a message are those of this communication. So an attacker
    /// who does not see the traffic has to guess both communication IDs.
    fn is_from_peer(&self, message: &Message) -> bool {
        //= ROCE-12.9-02
        let names_this = message
            .remote_communication_id()
            .is_none_or(|id| id == self.local_id);
        let local = message.local_communication_id();
        let is_first_answer = self.state == State::RequestSent;
        // A peer that has no communication sends a REJ with the ID 0.
        let is_unnamed = matches!(message, Message::Reject(_)) && local == 0;
        names_this && (local == self.remote_id || is_first_answer || is_unnamed)
    }

    fn handle_reply(&mut self, reply: ConnectReply) -> Output {
        match self.state {
            State::RequestSent => {
                self.state = State::ReplyReceived;
                self.remote_id = reply.local_communication_id;
                self.remote_queue_pair = reply.queue_pair;
                self.deadline = None;
                Output::event(CommunicationEvent::Accepted(Box::new(reply)))
            }
            // The peer sends its REP again, because it has not received the RTU or the REJ.
            //= ROCE-12.9-04
            State::Established if self.is_active => self.repeat(),
            State::TimeWait if self.is_active && !self.was_established => self.repeat(),
            _ => Output::default(),
        }
    }

    /// Answers a repeated REQ of this communication.
    fn repeated_request(&mut self) -> Output {
        //= ROCE-12.9-03
        match self.state {
            State::RequestReceived => self.send(Message::MessageReceiptAcknowledgment(Box::new(
                MessageReceiptAcknowledgment {
                    local_communication_id: self.local_id,
                    remote_communication_id: self.remote_id,
                    acknowledged: MessageKind::Request,
                    service_timeout: self.timing.service_timeout,
                    private_data: PrivateData::default(),
                },
            ))),
            State::ReplySent => self.repeat(),
            State::TimeWait if !self.was_established => self.repeat(),
            _ => Output::default(),
        }
    }

    fn handle_reject(&mut self, now: Instant, reject: Box<Reject>) -> Output {
        match self.state {
            State::RequestSent | State::ReplySent => {
                self.last = None;
                self.wait_for_duplicates(now);
                Output::event(CommunicationEvent::Failed(Failure::Rejected(reject)))
            }
            // The peer no longer knows the communication.
            State::DisconnectSent => {
                self.wait_for_duplicates(now);
                Output::event(CommunicationEvent::DisconnectFinished)
            }
            _ => Output::default(),
        }
    }

    fn handle_receipt(&mut self, now: Instant, receipt: &MessageReceiptAcknowledgment) -> Output {
        let expected = match self.state {
            State::RequestSent => MessageKind::Request,
            State::ReplySent => MessageKind::Reply,
            _ => return Output::default(),
        };
        if receipt.acknowledged == expected {
            //= ROCE-12.9-06
            let time = receipt.service_timeout.duration().min(MAX_SERVICE_TIMEOUT);
            self.deadline = Some(now + time.max(self.timing.response_timeout.duration()));
        }
        Output::default()
    }

    fn handle_disconnect(&mut self, now: Instant, request: Box<DisconnectRequest>) -> Output {
        //= ROCE-12.9-07
        if request.remote_queue_pair != self.local_queue_pair {
            return Output::default();
        }
        let event = match self.state {
            State::Established | State::ReplySent => {
                Some(CommunicationEvent::Disconnected(request))
            }
            // Both ends disconnect at the same time.
            //= ROCE-12.9-08
            State::DisconnectSent => Some(CommunicationEvent::DisconnectFinished),
            State::TimeWait if self.was_established => None,
            _ => return Output::default(),
        };
        if event.is_some() {
            self.was_established = true;
            self.wait_for_duplicates(now);
        }
        let reply = Message::DisconnectReply(Box::new(DisconnectReply {
            local_communication_id: self.local_id,
            remote_communication_id: self.remote_id,
            private_data: PrivateData::default(),
        }));
        Output {
            event,
            ..self.send(reply)
        }
    }

    fn establish(&mut self) -> Output {
        self.state = State::Established;
        self.was_established = true;
        self.deadline = None;
        self.last = None;
        Output::event(CommunicationEvent::Established)
    }

    /// Ends the communication because the retries are used up.
    fn give_up(&mut self, now: Instant) -> Output {
        match self.state {
            State::RequestSent | State::ReplySent => Output {
                event: Some(CommunicationEvent::Failed(Failure::TimedOut)),
                ..self.reject(now, RejectReason::TIMEOUT, &[], PrivateData::default())
            },
            State::DisconnectSent => {
                self.wait_for_duplicates(now);
                Output::event(CommunicationEvent::DisconnectFinished)
            }
            _ => {
                self.deadline = None;
                Output::default()
            }
        }
    }

    fn wait_for_duplicates(&mut self, now: Instant) {
        self.state = State::TimeWait;
        self.deadline = Some(now + self.timing.time_wait);
    }

    /// Sends a message that expects an answer.
    fn send_and_wait(&mut self, now: Instant, message: Message) -> Output {
        self.last = Some(message.clone());
        self.retries_left = self.timing.max_retries;
        self.deadline = Some(now + self.timing.response_timeout.duration());
        self.send(message)
    }

    fn send(&self, message: Message) -> Output {
        Output {
            message: Some(Mad {
                transaction_id: self.transaction_id,
                message,
            }),
            event: None,
        }
    }

    /// Sends the last message again, if there is one.
    fn repeat(&self) -> Output {
        match &self.last {
            Some(message) => self.send(message.clone()),
            None => Output::default(),
        }
    }
}

impl Output {
    /// Returns whether there is nothing to do.
    pub const fn is_empty(&self) -> bool {
        self.message.is_none() && self.event.is_none()
    }

    const fn event(event: CommunicationEvent) -> Self {
        Self {
            message: None,
            event: Some(event),
        }
    }
}
