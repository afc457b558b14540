//! Connection: the specification's object of that name, for both roles (3.1).
//!
//! # The whole interface in one place
//! * **A, getters:** [`negotiated`](Connection::negotiated), [`credits`](Connection::credits),
//!   [`statistics`](Connection::statistics), [`is_ready`](Connection::is_ready),
//!   [`error`](Connection::error).
//! * **B, what happened:** [`handle_connected`](Connection::handle_connected) once, then
//!   [`handle_completion`](Connection::handle_completion) and
//!   [`handle_timeout`](Connection::handle_timeout).
//! * **C, what the owner wants:** [`send`](Connection::send), [`read`](Connection::read),
//!   [`write`](Connection::write), [`prompt`](Connection::prompt),
//!   [`prompt_keepalive`](Connection::prompt_keepalive),
//!   [`prompt_answer`](Connection::prompt_answer), [`close`](Connection::close),
//!   [`abort`](Connection::abort).
//! * **D, what is to be done:** after any of B and C drain [`poll_event`](Connection::poll_event)
//!   and [`poll_work`](Connection::poll_work), posting each request that comes out; then wait
//!   until [`poll_timeout`](Connection::poll_timeout) at the latest.
//!
//! Methods of B and C record; only `poll_work` decides what leaves. Header and grant of a message
//! are made at that moment, which satisfies both published wordings of 3.1.5.1 at once.
//!
//! A connection logs in the tracing span that is current when the connection is created.

use std::{
    collections::VecDeque,
    hint::cold_path,
    iter::once_with,
    ops::Range,
    time::{Duration, Instant},
};

use bytes::{Buf, Bytes, BytesMut};
#[cfg(feature = "tokio")]
use tracing::Span;

use super::{
    config::{Config, Revision},
    credits::{Credits, ReceiveCredits},
    error::{ConnectionError, Expired, Initiator, SendError, TransferFault, Violation},
    event::{Event, MessageId, Statistics, TransferId},
    in_flight::{InFlight, Sent},
    keepalive::{KeepaliveRequested, OnIdle},
    message::Message,
    negotiation::{
        Negotiated, Outcome, negotiate_request, negotiate_response, receive_negotiate_request,
        receive_negotiate_response,
    },
    reassembly::{Part, Reassembly},
    send_queue::{Segment, SendQueue},
    timer::{Timer, TimerTable},
    transfers::{Done, Transfers},
};
use crate::{
    rdma::work::{
        Completion, Disconnect, Inline, Limits, ProviderError, ProviderErrorKind, Room, Token,
        WorkId, WorkRequest,
    },
    wire::{BufferDescriptorV1, DataTransfer, Flags, NegotiateResponse, Status},
};
use log::Log;

/// Least size of the receive for a negotiate message (3.1.4.1, 3.1.7.2).
const NEGOTIATE_RECEIVE_SIZE: u32 = 512;
/// How long the initiator's first credits wait for a first message to ride on. The acceptor
/// cannot say anything before it has them.
const FIRST_GRANT_DELAY: Duration = Duration::from_millis(20);

/// One SMB Direct connection, without I/O.
#[derive(Debug)]
pub struct Connection {
    config: Config,
    role: Role,
    limits: Limits,
    send_credits: u16,
    receive_credits: ReceiveCredits,
    send_queue: SendQueue,
    send_immediate: bool,
    /// The first bytes of the message that is received next, where they come apart; mostly none.
    head: Inline,
    reassembly: Reassembly,
    keepalive_requested: KeepaliveRequested,
    timers: TimerTable,
    transfers: Transfers,
    in_flight: InFlight,
    events: VecDeque<Event>,
    /// Transfers that came to nothing, told once the reason is known.
    abandoned: Vec<Event>,
    next_work: u64,
    next_order: u64,
    /// The owner closes the connection; it ends when nothing is left to do.
    closing: bool,
    /// Work came back undone: the connection has ended, and why is about to be told.
    flushing: bool,
    /// The initiator's first credits wait for a message.
    holds_first_grant: bool,
    /// The last segment that waits is to ask for an answer.
    asks_behind_queue: bool,
    /// `poll_work` had nothing though there was room, and nothing has happened since to change that.
    idle: bool,
    statistics: Statistics,
    log: Log,
}

/// Connection.Role, with what belongs to each (3.1.1.1).
#[derive(Clone, Debug)]
enum Role {
    /// ACTIVE, and the RDMA connection is not there yet.
    Connecting,
    /// ACTIVE: the Negotiate Request is to be sent, or was.
    Active { request_sent: bool },
    /// PASSIVE.
    Passive,
    /// The peer's negotiate message was in order; receives are posted before anything is said.
    Posting { outcome: Outcome, passive: bool },
    /// PASSIVE: a refusal is to be sent, or was; the connection ends behind it.
    Refusing { status: Status, sent: bool },
    /// ESTABLISHED.
    Established(Negotiated),
    /// Over.
    Closed(ConnectionError),
}

/// What a work request is, in the low bits of its identifier. The others count: Sends by
/// themselves, and the other kinds together.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Receive,
    Send,
    Read,
    Write,
}

impl Kind {
    const fn of(id: WorkId) -> Self {
        match id.0 & 3 {
            0 => Self::Receive,
            1 => Self::Send,
            2 => Self::Read,
            _ => Self::Write,
        }
    }

    const fn id(self, number: u64) -> WorkId {
        WorkId((number << 2) + self as u64)
    }

    /// What was counted.
    const fn number(id: WorkId) -> u64 {
        id.0 >> 2
    }
}

impl Connection {
    /// The connecting side, before the RDMA connection is asked for (3.1.4.1).
    pub fn active(config: Config, now: Instant) -> Self {
        //= SMBD-3.1.4.1-01
        //= SMBD-3.1.4.1-06
        let timeout = config.active_negotiation_timeout;
        Self::new(config, Role::Connecting, now + timeout)
    }

    /// The accepting side, when a connection has arrived (3.1.7.2).
    pub fn passive(config: Config, now: Instant) -> Self {
        //= SMBD-3.1.7.2-01
        //= SMBD-3.1.7.2-02
        let timeout = config.passive_negotiation_timeout;
        Self::new(config, Role::Passive, now + timeout)
    }

    fn new(config: Config, role: Role, negotiation_deadline: Instant) -> Self {
        let mut timers = TimerTable::default();
        timers.set(Timer::Negotiation, negotiation_deadline);
        //= SMBD-3.1.4.1-02
        //= SMBD-3.1.4.1-03
        //= SMBD-3.1.4.1-04
        //= SMBD-3.1.4.1-05
        //= SMBD-3.1.7.2-05
        //= SMBD-3.1.7.2-06
        Self {
            role,
            limits: Limits {
                max_send_queue: 0,
                max_receive_queue: 0,
                max_outbound_reads: 0,
                max_inbound_reads: 0,
                max_transfer: 0,
                send_with_invalidate: false,
            },
            send_credits: 0,
            receive_credits: ReceiveCredits::new(config.receive_credit_max),
            send_queue: SendQueue::default(),
            send_immediate: false,
            head: Inline::new(),
            reassembly: Reassembly::default(),
            keepalive_requested: KeepaliveRequested::None,
            timers,
            transfers: Transfers::default(),
            in_flight: InFlight::default(),
            events: VecDeque::new(),
            abandoned: Vec::new(),
            next_work: 0,
            next_order: 0,
            closing: false,
            flushing: false,
            holds_first_grant: false,
            asks_behind_queue: false,
            idle: false,
            statistics: Statistics::default(),
            log: Log::new(),
            config,
        }
    }

    // A: getters

    /// What was agreed, once it was (3.1.4.7).
    pub const fn negotiated(&self) -> Option<&Negotiated> {
        //= SMBD-3.1.4.7-01
        match &self.role {
            Role::Established(negotiated) => Some(negotiated),
            _ => None,
        }
    }

    /// Credits as they stand.
    pub fn credits(&self) -> Credits {
        self.receive_credits
            .report(self.send_credits, self.config.send_credit_target)
    }

    /// What went over the connection.
    pub const fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// Whether a message handed over now would start at once.
    pub fn is_ready(&self) -> bool {
        self.negotiated().is_some()
            && !self.closing
            && self.send_queue.is_empty()
            && self.send_credits > 0
    }

    /// Whether [`poll_work`](Self::poll_work) has nothing for sure, and would change nothing: it had
    /// nothing though there was room, and since then nothing has happened but that Sends were handed
    /// to the wire.
    pub const fn is_idle(&self) -> bool {
        self.idle
    }

    /// Messages that wait or are partly sent.
    pub fn queued_messages(&self) -> usize {
        self.send_queue.len()
    }

    /// Why the connection is over, if it is.
    pub const fn error(&self) -> Option<&ConnectionError> {
        match &self.role {
            Role::Closed(error) => Some(error),
            _ => None,
        }
    }

    /// Returns the span of every log line.
    #[cfg(feature = "tokio")]
    pub(crate) const fn span(&self) -> &Span {
        self.log.span()
    }

    // B: what happened

    /// The receive for the peer's negotiate message, to be posted before connecting or accepting.
    /// To be called once.
    pub fn negotiate_receive(&mut self) -> WorkRequest {
        //= SMBD-3.1.4.1-07
        //= SMBD-3.1.7.2-04
        self.statistics.receives_outstanding += 1;
        WorkRequest::Receive {
            id: self.work_id(Kind::Receive),
            length: NEGOTIATE_RECEIVE_SIZE,
            count: 1,
        }
    }

    /// The RDMA connection is there and can do this much.
    pub fn handle_connected(&mut self, limits: Limits) {
        self.idle = false;
        self.limits = limits;
        self.receive_credits.fit_into(limits.max_receive_queue);
        //= SMBD-3.1.4.1-09
        if matches!(self.role, Role::Connecting) {
            self.role = Role::Active {
                request_sent: false,
            };
        }
    }

    /// The queue pair did something.
    // This and `poll_work` are each called in one place where it matters.
    #[inline(always)]
    pub fn handle_completion(&mut self, now: Instant, completion: Completion) {
        // A Send that is done leaves room, which was there. In a close it also stops a timer, and the
        // next request for work is to start it again.
        self.idle &= matches!(completion, Completion::Sent { .. }) && !self.closing;
        match completion {
            Completion::Head(head) => self.head = head,
            Completion::Received {
                message,
                invalidated,
                ..
            } => {
                self.statistics.receives_outstanding -= 1;
                self.receive(now, message, invalidated);
            }
            Completion::Sent { id } => {
                let done = self.in_flight.complete(Kind::number(id));
                self.statistics.work_outstanding -= done;
                while let Some(sent) = self.in_flight.pop_done() {
                    self.sent(sent);
                }
            }
            Completion::Read { buffer, .. } => self.read_done(buffer),
            Completion::Written { .. } => self.write_done(),
            Completion::Flushed { id, buffer } => self.flushed(id, buffer),
            Completion::Disconnected(how) => self.connection_loss(how),
        }
        self.end_if_drained();
    }

    /// Time passed.
    #[cold]
    pub fn handle_timeout(&mut self, now: Instant) {
        self.idle = false;
        for timer in Timer::ALL {
            if !self.timers.expire(timer, now) {
                continue;
            }
            match timer {
                //= SMBD-3.1.6.1-01
                Timer::Negotiation => self.end(ConnectionError::TimedOut(Expired::Negotiation)),
                Timer::IdleConnection => self.idle_connection(now),
                //= SMBD-WIN-CGT-01
                Timer::SendCreditGrant => {
                    self.end(ConnectionError::TimedOut(Expired::SendCreditGrant));
                }
                Timer::FirstGrant => self.holds_first_grant = false,
                Timer::Close => self.end(ConnectionError::TimedOut(Expired::Close)),
            }
        }
    }

    // C: what the owner wants

    /// Queues a message; `invalidate` is a token of the peer's that it invalidates on arrival
    /// (3.1.4.2). An empty message goes out as an empty Data Transfer, of which the peer's upper
    /// layer sees nothing.
    ///
    /// # Errors
    /// [`SendError`]; the connection stays as it is.
    #[inline(always)]
    pub fn send(
        &mut self,
        id: MessageId,
        message: Message,
        invalidate: Option<Token>,
    ) -> Result<(), SendError> {
        self.check(&message)?;
        self.idle = false;
        let order = self.order();
        //= SMBD-3.1.4.2-01
        self.send_queue.push(id, message, invalidate, order);
        Ok(())
    }

    /// Whether [`send`](Self::send) would take this message now.
    ///
    /// # Errors
    /// Those of `send`.
    pub fn check(&self, message: &Message) -> Result<(), SendError> {
        let max = match &self.role {
            Role::Established(negotiated) if !self.closing => negotiated.max_fragmented_send_size,
            _ => return Err(self.unusable().into()),
        };
        //= SMBD-3.1.4.2-02
        //= SMBD-3.1.5.4-02
        if message.len() as u64 > u64::from(max) {
            return Err(SendError::TooLarge {
                length: message.len(),
                max,
            });
        }
        Ok(())
    }

    /// Fills `into` from the peer's memory, `offset` bytes into what `descriptors` describe
    /// (3.1.4.6). Reads finish in the order they were started.
    ///
    /// # Errors
    /// The fault and the buffer; nothing was posted.
    pub fn read(
        &mut self,
        id: TransferId,
        descriptors: &[BufferDescriptorV1],
        offset: u64,
        into: BytesMut,
    ) -> Result<(), (TransferFault, BytesMut)> {
        self.idle = false;
        let max_piece = match self.max_piece() {
            Ok(_) if self.limits.max_outbound_reads == 0 && !into.is_empty() => {
                return Err((TransferFault::Unsupported, into));
            }
            Ok(max_piece) => max_piece,
            Err(fault) => return Err((fault, into)),
        };
        self.transfers
            .read(id, descriptors, offset, into, max_piece)?;
        self.finish_transfers();
        Ok(())
    }

    /// Puts `data` into the peer's memory, `offset` bytes into what `descriptors` describe
    /// (3.1.4.5). It is in place before any message sent after this call is received.
    ///
    /// # Errors
    /// The fault; nothing was posted.
    pub fn write(
        &mut self,
        id: TransferId,
        descriptors: &[BufferDescriptorV1],
        offset: u64,
        data: Bytes,
    ) -> Result<(), TransferFault> {
        self.idle = false;
        let max_piece = self.max_piece()?;
        let (length, order) = (data.len() as u64, self.order());
        self.transfers
            .write(id, descriptors, offset, data, max_piece, order)?;
        self.statistics.bytes_written += length;
        self.finish_transfers();
        Ok(())
    }

    /// Says something to the peer now: an empty message, unless one is about to leave anyway.
    pub fn prompt(&mut self) {
        self.idle = false;
        self.send_immediate = true;
    }

    /// Asks the peer for a sign of life now. [`Event::KeepaliveAnswered`] follows, or the end of
    /// the connection after `keepalive_response_timeout`. Does nothing unless established.
    pub fn prompt_keepalive(&mut self, now: Instant) {
        if self.negotiated().is_none() {
            return;
        }
        if self.keepalive_requested == KeepaliveRequested::None {
            self.keepalive_requested = KeepaliveRequested::Pending;
            self.timers.set(
                Timer::IdleConnection,
                now + self.config.keepalive_response_timeout,
            );
        }
        self.prompt();
    }

    /// Has the last segment of what is queued ask the peer for an answer, which brings credits
    /// without waiting for a message to ride on. Else as
    /// [`prompt_keepalive`](Self::prompt_keepalive); but nothing leaves on its account, so that
    /// with nothing queued the next message asks.
    pub fn prompt_answer(&mut self) {
        self.asks_behind_queue = true;
    }

    /// Whether the peer was asked for a sign of life, or is about to be, and gave none since.
    pub fn awaits_answer(&self) -> bool {
        self.asks_behind_queue || self.keepalive_requested != KeepaliveRequested::None
    }

    /// Ends the connection at once, with [`ConnectionError::Aborted`]. What was asked for and has
    /// not left does not leave.
    pub fn abort(&mut self) {
        self.end(ConnectionError::Aborted);
    }

    /// Ends the connection in good order when all that was asked for is done. Nothing new is
    /// taken from now on. It ends as well when nothing of that gets done for
    /// [`keepalive_interval`](super::Settings::keepalive_interval): a peer can leave a read
    /// unanswered and show for ever that it is there.
    pub fn close(&mut self) {
        self.idle = false;
        match self.role {
            Role::Established(_) => self.closing = true,
            _ => self.end(ConnectionError::Closed(Initiator::Local)),
        }
        self.end_if_drained();
    }

    // D: what is to be done

    /// The next request to post, of which there is `room` for.
    // A request is made in the place where the caller has it, and is not moved on the way.
    #[inline(always)]
    pub fn poll_work(&mut self, now: Instant, room: Room) -> Option<WorkRequest> {
        if self.closing && self.error().is_none() && !self.timers.is_running(Timer::Close) {
            cold_path();
            self.timers
                .set(Timer::Close, now + self.config.keepalive_interval);
        }
        if room.receives > 0
            && let Some(receive) = self.post_receives(room.receives)
        {
            return Some(receive);
        }
        if let Role::Posting {
            outcome,
            passive: false,
        } = self.role
        {
            self.conclude(now, outcome);
        }
        if room.sends == 0 {
            return None;
        }
        match self.role {
            //= SMBD-3.1.5.1-01
            //= SMBD-3.1.5.4-01
            Role::Established(ref negotiated) => {
                let max_payload = negotiated.max_payload();
                self.next_work(now, max_payload)
            }
            Role::Active {
                request_sent: false,
            } => Some(self.send_negotiate_request()),
            Role::Posting {
                outcome,
                passive: true,
            } => Some(self.answer(now, outcome)),
            Role::Refusing {
                status,
                sent: false,
            } => Some(self.send_refusal(status)),
            _ => self.rest(),
        }
    }

    /// There is room, and nothing to do.
    fn rest(&mut self) -> Option<WorkRequest> {
        self.idle = !self.wants_receives();
        None
    }

    /// What happened, oldest first.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When to call [`handle_timeout`](Self::handle_timeout).
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Whether receives are wanted that there was no room for.
    pub fn wants_receives(&self) -> bool {
        matches!(self.role, Role::Posting { .. } | Role::Established(_))
            && self.missing_receives() > 0
    }

    // Posting receives, and the end of the negotiation

    fn post_receives(&mut self, room: usize) -> Option<WorkRequest> {
        let count = self.missing_receives();
        if count == 0 {
            return None;
        }
        //= SMBD-3.1.5.9-07
        let length = match &self.role {
            Role::Posting { outcome, .. } => outcome.negotiated.max_receive_size,
            Role::Established(negotiated) => negotiated.max_receive_size,
            _ => return None,
        };
        let count = count.min(u16::try_from(room).unwrap_or(u16::MAX));
        self.receive_credits.post(count);
        self.statistics.receives_outstanding += u64::from(count);
        Some(WorkRequest::Receive {
            id: self.work_id(Kind::Receive),
            length,
            count: count.into(),
        })
    }

    /// Receives that the peer is to have beyond those that are posted.
    fn missing_receives(&self) -> u16 {
        self.receive_credits.missing(self.spends_last_credit())
    }

    /// A message waits to spend our last send credit, which needs a credit to give.
    fn spends_last_credit(&self) -> bool {
        self.send_credits == 1 && (self.send_immediate || !self.send_queue.is_empty())
    }

    /// The connecting side has posted its receives as far as there is room (3.1.5.7).
    #[cold]
    fn conclude(&mut self, now: Instant, outcome: Outcome) {
        //= SMBD-3.1.5.7-15
        if self.receive_credits.posted() == 0 {
            let what = "no receive could be posted";
            return self.end(ProviderError::new(ProviderErrorKind::Local, what).into());
        }
        //= SMBD-3.1.5.7-16
        self.establish(now, outcome);
        self.holds_first_grant = true;
        self.timers.set(Timer::FirstGrant, now + FIRST_GRANT_DELAY);
    }

    /// The accepting side has posted its receives as far as there is room (3.1.5.6).
    #[cold]
    fn answer(&mut self, now: Instant, outcome: Outcome) -> WorkRequest {
        //= SMBD-3.1.5.6-10
        let grant = self.receive_credits.grantable(false);
        if grant == 0 {
            return self.send_refusal(Status::INSUFFICIENT_RESOURCES);
        }
        //= SMBD-3.1.5.9-08
        //= SMBD-3.1.5.6-13
        self.receive_credits.grant(grant);
        self.statistics.credits_granted += u64::from(grant);
        let response = negotiate_response(&self.config, &outcome.negotiated, grant);
        self.log.accepting(&response);
        //= SMBD-3.1.5.6-11
        //= SMBD-3.1.5.6-12
        self.establish(now, outcome);
        //= SMBD-3.1.5.3-06
        let header = Inline::build(|out| response.encode(out));
        self.post_send(header, Bytes::new(), None, Some(Sent::Negotiate))
    }

    #[cold]
    fn establish(&mut self, now: Instant, outcome: Outcome) {
        self.role = Role::Established(outcome.negotiated);
        self.send_credits = outcome.send_credits;
        self.statistics.credits_received += u64::from(outcome.send_credits);
        self.timers.stop(Timer::Negotiation);
        self.timers
            .set(Timer::IdleConnection, now + self.config.keepalive_interval);
        self.log.established(&outcome.negotiated);
        self.events.push_back(Event::Negotiated(outcome.negotiated));
    }

    #[cold]
    fn send_negotiate_request(&mut self) -> WorkRequest {
        self.role = Role::Active { request_sent: true };
        let request = negotiate_request(&self.config);
        self.log.proposing(&request);
        //= SMBD-3.1.5.2-04
        let header = Inline::build(|out| request.encode(out));
        self.post_send(header, Bytes::new(), None, Some(Sent::Negotiate))
    }

    #[cold]
    fn send_refusal(&mut self, status: Status) -> WorkRequest {
        self.role = Role::Refusing { status, sent: true };
        self.log.refusing(status);
        let refusal = NegotiateResponse::refusal(status);
        let header = Inline::build(|out| refusal.encode(out));
        self.post_send(header, Bytes::new(), None, Some(Sent::Refusal))
    }

    // Sending

    /// What an established connection does next: an empty message that is due, or the next message.
    /// Where there are reads and writes too, [`next_of_all`](Self::next_of_all) decides.
    fn next_work(&mut self, now: Instant, max_payload: usize) -> Option<WorkRequest> {
        if !self.transfers.is_idle() {
            return self.next_of_all(now, max_payload);
        }
        let waiting = !self.send_queue.is_empty();
        if (waiting || self.empty_message_is_due())
            && let Some(grant) = self.next_grant(now, waiting)
        {
            return Some(self.send_upper_layer_message(now, max_payload, waiting, grant));
        }
        self.rest()
    }

    /// An empty message that is due, then messages and writes in the order they were asked for, then
    /// reads.
    #[inline(never)]
    fn next_of_all(&mut self, now: Instant, max_payload: usize) -> Option<WorkRequest> {
        let write_first = match (self.transfers.write_order(), self.send_queue.head_order()) {
            (Some(write), Some(message)) => write < message,
            _ => false,
        };
        if write_first && let Some(write) = self.post_write() {
            return Some(write);
        }
        // Writes may wait for long. The peer is to have its credits and signs of life.
        let waiting = !write_first && !self.send_queue.is_empty();
        if (waiting || self.empty_message_is_due())
            && let Some(grant) = self.next_grant(now, waiting)
        {
            return Some(self.send_upper_layer_message(now, max_payload, waiting, grant));
        }
        if !write_first && let Some(write) = self.post_write() {
            return Some(write);
        }
        match self.post_read() {
            None => self.rest(),
            read => read,
        }
    }

    /// CreditsGranted of the next message, if it may leave (3.1.5.1): the head of the queue if it
    /// is `waiting`, else an empty one, which is due.
    fn next_grant(&mut self, now: Instant, waiting: bool) -> Option<u16> {
        //= SMBD-3.1.5.1-04
        //= SMBD-3.1.5.9-10
        if self.send_credits == 0 {
            if waiting {
                self.start_credit_grant_timer(now);
            }
            return None;
        }
        //= SMBD-3.1.5.1-05
        //= SMBD-3.1.5.1-05b
        let last_credit = self.send_credits == 1;
        let grant = self.receive_credits.grantable(last_credit);
        //= SMBD-3.1.5.1-06
        //= SMBD-3.1.5.1-06b
        let peer_can_answer =
            !self.config.policy.strict_last_credit && self.receive_credits.granted() > 0;
        if last_credit && grant == 0 && !peer_can_answer {
            return None;
        }
        Some(grant)
    }

    /// Sending Upper Layer Messages (3.1.5.1): one message, which may leave.
    fn send_upper_layer_message(
        &mut self,
        now: Instant,
        max_payload: usize,
        waiting: bool,
        grant: u16,
    ) -> WorkRequest {
        //= SMBD-3.1.5.1-03
        let segment = match waiting {
            true => self.send_queue.cut(max_payload),
            false => None,
        };
        if self.asks_behind_queue && self.send_queue.is_empty() {
            cold_path();
            self.asks_behind_queue = false;
            self.keepalive_requested.ask();
        }
        //= SMBD-3.1.5.1-07
        self.send_credits -= 1;
        self.receive_credits.grant(grant);
        //= SMBD-3.1.5.1-14
        //= SMBD-3.1.5.1-14b
        self.send_immediate = false;
        self.holds_first_grant = false;
        self.timers.stop(Timer::FirstGrant);
        self.send_data_transfer(now, grant, segment)
    }

    /// Sending a Data Transfer Message (3.1.5.4): the header, made as the message leaves.
    fn send_data_transfer(
        &mut self,
        now: Instant,
        grant: u16,
        segment: Option<Segment>,
    ) -> WorkRequest {
        //= SMBD-2.2.3-01
        let mut flags = Flags::empty();
        if self.keepalive_requested.take_flag() {
            cold_path();
            flags = Flags::RESPONSE_REQUESTED;
            self.statistics.keepalives_sent += 1;
            //= SMBD-3.1.5.1-10
            let due = now + self.config.keepalive_response_timeout;
            self.timers.set(Timer::IdleConnection, due);
        }
        //= SMBD-3.1.5.1-08
        let mut header = DataTransfer::empty(self.config.send_credit_target, grant, flags);
        let (payload, invalidate, completes) = match segment {
            Some(Segment {
                payload,
                remaining,
                invalidate,
                completes,
            }) => {
                //= SMBD-3.1.5.4-12
                if !payload.is_empty() {
                    header.data_offset = DataTransfer::PAYLOAD_OFFSET;
                    header.data_length = payload.len() as u32;
                }
                header.remaining_data_length = remaining;
                (payload, invalidate, completes)
            }
            None => (Bytes::new(), None, None),
        };
        self.count_sent(&header, grant, completes.is_some());
        if Log::traces() {
            self.log.sending(header, invalidate, self.send_credits);
        }
        //= SMBD-3.1.5.1-11
        //= SMBD-3.1.5.1-12
        let invalidate = invalidate.filter(|_| self.limits.send_with_invalidate);
        //= SMBD-3.1.5.1-13
        //= SMBD-3.1.5.4-10
        //= SMBD-3.1.5.4-13
        let (head, length) = header.head();
        let header = Inline::first_of(head, length);
        self.post_send(header, payload, invalidate, completes.map(Sent::Message))
    }

    fn count_sent(&mut self, header: &DataTransfer, grant: u16, completes: bool) {
        let statistics = &mut self.statistics;
        if header.data_length > 0 {
            statistics.segments_sent += 1;
        } else {
            statistics.empty_sent += 1;
        }
        statistics.bytes_sent += u64::from(header.data_length);
        statistics.credits_granted += u64::from(grant);
        statistics.messages_sent += u64::from(completes);
    }

    /// Whether an end with nothing to send is to say something.
    fn empty_message_is_due(&self) -> bool {
        //= SMBD-3.1.5.8-07
        //= SMBD-3.1.5.9-09
        self.send_immediate
            || (!self.holds_first_grant
                && self
                    .receive_credits
                    .should_grant(self.config.policy.grant_policy))
    }

    fn start_credit_grant_timer(&mut self, now: Instant) {
        if let Some(timeout) = self.config.credit_grant_timeout
            && !self.timers.is_running(Timer::SendCreditGrant)
        {
            self.timers.set(Timer::SendCreditGrant, now + timeout);
        }
    }

    fn post_send(
        &mut self,
        header: Inline,
        payload: Bytes,
        invalidate: Option<Token>,
        purpose: Option<Sent>,
    ) -> WorkRequest {
        self.statistics.work_outstanding += 1;
        WorkRequest::Send {
            id: Kind::Send.id(self.in_flight.post(purpose)),
            header,
            payload,
            invalidate,
        }
    }

    fn post_write(&mut self) -> Option<WorkRequest> {
        let (to, data) = self.transfers.next_write()?;
        self.statistics.work_outstanding += 1;
        Some(WorkRequest::Write {
            id: self.work_id(Kind::Write),
            data,
            to,
        })
    }

    fn post_read(&mut self) -> Option<WorkRequest> {
        let (from, into) = self.transfers.next_read(self.limits.max_outbound_reads)?;
        self.statistics.work_outstanding += 1;
        Some(WorkRequest::Read {
            id: self.work_id(Kind::Read),
            from,
            into,
        })
    }

    #[inline(never)]
    fn read_done(&mut self, buffer: BytesMut) {
        self.timers.stop(Timer::Close);
        self.statistics.work_outstanding -= 1;
        self.statistics.reads += 1;
        self.statistics.bytes_read += buffer.len() as u64;
        self.transfers.read_returned(buffer);
        self.finish_transfers();
    }

    #[inline(never)]
    fn write_done(&mut self) {
        self.timers.stop(Timer::Close);
        self.statistics.work_outstanding -= 1;
        self.statistics.writes += 1;
        self.transfers.write_returned();
        self.finish_transfers();
    }

    /// A Send that was for something is done.
    fn sent(&mut self, sent: Sent) {
        match sent {
            Sent::Message(id) if self.error().is_none() => {
                // An answer to a keepalive is no progress.
                self.timers.stop(Timer::Close);
                //= SMBD-3.1.4.2-04
                if id != MessageId::UNWATCHED {
                    self.events.push_back(Event::MessageSent(id));
                }
            }
            //= SMBD-3.1.5.3-03
            Sent::Refusal => {
                if let Role::Refusing { status, .. } = self.role {
                    self.end(ConnectionError::RefusedPeer(status));
                }
            }
            Sent::Message(_) | Sent::Negotiate => {}
        }
    }

    // Receiving

    fn receive(&mut self, now: Instant, message: Bytes, invalidated: Option<Token>) {
        //= SMBD-3.1.5.5-01
        let result = match self.role {
            Role::Passive => self.receive_negotiate(receive_negotiate_request, true, message),
            Role::Active { request_sent: true } => {
                self.receive_negotiate(receive_negotiate_response, false, message)
            }
            Role::Established(ref negotiated) => {
                let max_fragmented_size = negotiated.max_fragmented_receive_size;
                self.message_arrived(now);
                self.receive_data_transfer(now, max_fragmented_size, message, invalidated)
                    .map_err(ConnectionError::from)
            }
            Role::Closed(_) | Role::Refusing { .. } => Ok(()),
            // Nobody may speak before the negotiation is over.
            //= SMBD-2.2-06
            Role::Connecting | Role::Active { .. } | Role::Posting { .. } => {
                Err(Violation::WithoutCredit.into())
            }
        };
        if let Err(error) = result {
            self.end(error);
        }
    }

    #[cold]
    fn receive_negotiate(
        &mut self,
        receive: impl FnOnce(&Config, &[u8]) -> Result<Outcome, ConnectionError>,
        passive: bool,
        message: Bytes,
    ) -> Result<(), ConnectionError> {
        let message = joined(self.head.take(), message);
        match receive(&self.config, &message) {
            Ok(outcome) => {
                self.receive_credits
                    .set_target(outcome.receive_credit_target);
                self.role = Role::Posting { outcome, passive };
                Ok(())
            }
            Err(ConnectionError::RefusedPeer(status)) => {
                self.role = Role::Refusing {
                    status,
                    sent: false,
                };
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Any message shows that the peer is there, whatever else is wrong with it.
    fn message_arrived(&mut self, now: Instant) {
        //= SMBD-3.1.5.5-02
        self.timers
            .set(Timer::IdleConnection, now + self.config.keepalive_interval);
        if self.keepalive_requested.received() {
            cold_path();
            self.events.push_back(Event::KeepaliveAnswered);
        }
    }

    /// Receiving a Data Transfer Message (3.1.5.8).
    fn receive_data_transfer(
        &mut self,
        now: Instant,
        max_fragmented_size: u32,
        mut message: Bytes,
        invalidated: Option<Token>,
    ) -> Result<(), Violation> {
        if (1..DataTransfer::HEADER_LENGTH).contains(&self.head.len()) {
            cold_path();
            message = joined(self.head.take(), message);
        }
        let head = match self.head.is_empty() {
            true => &message[..],
            false => self.head.as_slice(),
        };
        let length = self.head.len() + message.len();
        let header =
            DataTransfer::decode_head(head, length).map_err(Violation::of_data_transfer)?;
        // What follows needs only this. It is cut out here, long before it is moved: processors
        // wait for what is moved right after a part of it was written.
        let payload = self.cut_payload(&header, message);
        if Log::traces() {
            self.log.received(header, invalidated);
        }
        //= SMBD-3.1.5.8-02
        if header.credits_requested == 0 {
            return Err(Violation::WithoutCreditsRequested);
        }
        let part = self.reassembly.receive(
            &header,
            invalidated,
            max_fragmented_size,
            self.config.policy.tolerate_empty_in_sequence,
        )?;
        let asks = header.flags.contains(Flags::RESPONSE_REQUESTED);
        let quiet = header.data_length == 0 && header.remaining_data_length == 0 && !asks;
        if !self.receive_credits.received(quiet) {
            return Err(Violation::WithoutCredit);
        }
        self.receive_credits.set_target(header.credits_requested);
        self.add_send_credits(header.credits_granted)?;
        self.count_received(&header, asks);
        //= SMBD-3.1.5.8-09
        //= SMBD-3.1.5.8-09b
        if asks {
            cold_path();
            self.send_immediate = true;
            if self.config.policy.literal_keepalive_echo {
                self.keepalive_requested = KeepaliveRequested::Pending;
                let due = now + self.config.keepalive_response_timeout;
                self.timers.set(Timer::IdleConnection, due);
            }
        }
        //= SMBD-3.1.5.8-07b
        if self.config.policy.revision == Revision::V2014 && !quiet && self.send_queue.is_empty() {
            self.send_immediate = true;
        }
        self.deliver(part, &header, payload, invalidated.is_some());
        Ok(())
    }

    /// The payload of a message, whose first bytes may be in `head`.
    #[inline]
    fn cut_payload(&mut self, header: &DataTransfer, mut message: Bytes) -> Bytes {
        let Range { mut start, mut end } = header.payload();
        if !self.head.is_empty() {
            let head = self.head.take();
            let split = head.len();
            if start >= split {
                (start, end) = (start - split, end - split);
            } else {
                cold_path();
                if start == end {
                    return Bytes::new();
                }
                message = joined(head, message);
            }
        }
        // Nothing lies behind a payload, mostly.
        if end < message.len() {
            cold_path();
            message.truncate(end);
        }
        message.advance(start);
        message
    }

    fn add_send_credits(&mut self, granted: u16) -> Result<(), Violation> {
        if granted == 0 {
            return Ok(());
        }
        //= SMBD-3.1.5.8-10
        //= SMBD-3.1.5.8-11
        //= SMBD-3.1.5.8-12
        let held = self.send_credits;
        self.send_credits = held
            .checked_add(granted)
            .ok_or(Violation::TooManyCredits { held, granted })?;
        self.timers.stop(Timer::SendCreditGrant);
        Ok(())
    }

    fn count_received(&mut self, header: &DataTransfer, asks: bool) {
        let statistics = &mut self.statistics;
        if header.data_length > 0 {
            statistics.segments_received += 1;
        } else {
            statistics.empty_received += 1;
        }
        // Any aligned offset before the usual one lies in the header.
        let overlaps = header.data_length > 0 && header.data_offset < DataTransfer::PAYLOAD_OFFSET;
        statistics.payloads_in_header += u64::from(overlaps);
        statistics.bytes_received += u64::from(header.data_length);
        statistics.credits_received += u64::from(header.credits_granted);
        statistics.keepalives_received += u64::from(asks);
    }

    fn deliver(&mut self, part: Part, header: &DataTransfer, payload: Bytes, invalidated: bool) {
        self.statistics.tokens_invalidated += u64::from(invalidated);
        let invalidated = match part {
            Part::Nothing => return,
            Part::Middle => None,
            Part::Last(token) => {
                self.statistics.messages_received += 1;
                token
            }
        };
        //= SMBD-3.1.5.8-13
        //= SMBD-3.1.5.8-17
        let remaining = header.remaining_data_length;
        // Made when there is room for it, in its place.
        self.events.extend(once_with(|| Event::Segment {
            payload,
            remaining,
            invalidated,
        }));
    }

    // Timers and the end

    /// Idle Connection Timer (3.1.6.2).
    #[cold]
    fn idle_connection(&mut self, now: Instant) {
        match self.keepalive_requested.idle() {
            OnIdle::Terminate => self.end(ConnectionError::TimedOut(Expired::IdleConnection)),
            OnIdle::Ask => {
                self.send_immediate = true;
                //= SMBD-3.1.6.2-03
                let due = now + self.config.keepalive_response_timeout;
                self.timers.set(Timer::IdleConnection, due);
            }
        }
    }

    /// RDMA connection loss (3.1.7.1).
    #[cold]
    fn connection_loss(&mut self, how: Disconnect) {
        // A peer may accept and hang up in one breath, before there was time to post receives.
        if let Role::Posting {
            outcome,
            passive: false,
        } = self.role
        {
            self.events.push_back(Event::Negotiated(outcome.negotiated));
        }
        //= SMBD-3.1.7.1-01
        self.end(match how {
            Disconnect::Local => ConnectionError::Closed(Initiator::Local),
            Disconnect::Remote => ConnectionError::Closed(Initiator::Remote),
            Disconnect::Broken(error) => ConnectionError::Provider(error),
        });
    }

    #[cold]
    fn flushed(&mut self, id: WorkId, buffer: Option<BytesMut>) {
        self.flushing = true;
        match Kind::of(id) {
            Kind::Receive => {
                self.statistics.receives_outstanding -= 1;
                return;
            }
            // What it was for does not come to be.
            Kind::Send => {
                self.in_flight.complete(Kind::number(id));
                while self.in_flight.pop_done().is_some() {}
            }
            Kind::Read => self.transfers.read_returned(buffer.unwrap_or_default()),
            Kind::Write => self.transfers.write_returned(),
        }
        self.statistics.work_outstanding -= 1;
        self.abandon_transfers();
    }

    fn end_if_drained(&mut self) {
        if self.closing
            && !self.flushing
            && self.send_queue.is_empty()
            && self.in_flight.is_empty()
            && self.transfers.is_idle()
        {
            self.end(ConnectionError::Closed(Initiator::Local));
        }
    }

    /// The first reason counts; later ones are consequences.
    #[cold]
    fn end(&mut self, error: ConnectionError) {
        if matches!(self.role, Role::Closed(_)) {
            return;
        }
        self.log.ended(&error);
        self.timers.stop_all();
        self.send_queue.clear();
        self.role = Role::Closed(error.clone());
        self.events.push_back(Event::Closed(error));
        self.events.extend(self.abandoned.drain(..));
        self.abandon_transfers();
    }

    /// Gives back what finished.
    fn finish_transfers(&mut self) {
        while let Some(done) = self.transfers.poll_done() {
            self.transfer_done(done, true);
        }
        if matches!(self.role, Role::Closed(_)) {
            self.abandon_transfers();
        }
    }

    /// Gives back what will never finish and is not named by posted work any more. A Read that
    /// came back flushed leaves its transfer unfinished, whatever is left of it.
    fn abandon_transfers(&mut self) {
        while let Some(done) = self.transfers.poll_abandoned() {
            self.transfer_done(done, false);
        }
    }

    fn transfer_done(&mut self, Done { id, buffer }: Done, completed: bool) {
        let event = Event::TransferDone {
            id,
            buffer,
            completed,
        };
        if completed || matches!(self.role, Role::Closed(_)) {
            self.events.push_back(event);
        } else {
            self.abandoned.push(event);
        }
    }

    // Small things

    fn max_piece(&self) -> Result<u32, TransferFault> {
        match &self.role {
            Role::Established(negotiated) if !self.closing => {
                Ok(negotiated.max_read_write_size.min(self.limits.max_transfer))
            }
            _ => Err(self.unusable().into()),
        }
    }

    /// Why nothing new is taken.
    fn unusable(&self) -> ConnectionError {
        self.error()
            .cloned()
            .unwrap_or(ConnectionError::Closed(Initiator::Local))
    }

    fn order(&mut self) -> u64 {
        self.next_order += 1;
        self.next_order
    }

    fn work_id(&mut self, kind: Kind) -> WorkId {
        self.next_work += 1;
        kind.id(self.next_work)
    }
}

#[cold]
fn joined(head: Inline, rest: Bytes) -> Bytes {
    match head.is_empty() {
        true => rest,
        false => [head.as_slice(), &rest].concat().into(),
    }
}

mod log;
#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
