//! [`Connection`]: the specification's Connection object, for both roles (3.1).
//!
//! # The interface in one place
//! * **A, getters:** [`negotiated`](Connection::negotiated), [`credits`](Connection::credits),
//!   [`statistics`](Connection::statistics), [`is_ready`](Connection::is_ready),
//!   [`error`](Connection::error).
//! * **B, inputs:** [`handle_connected`](Connection::handle_connected) once, then
//!   [`handle_completion`](Connection::handle_completion),
//!   [`postpone_deadlines`](Connection::postpone_deadlines) and
//!   [`handle_timeout`](Connection::handle_timeout). An owner that keeps received messages for its application calls
//!   [`set_unread`](Connection::set_unread).
//! * **C, commands of the owner:** [`send`](Connection::send), [`read`](Connection::read),
//!   [`write`](Connection::write), [`prompt`](Connection::prompt),
//!   [`prompt_keepalive`](Connection::prompt_keepalive),
//!   [`prompt_answer`](Connection::prompt_answer), [`close`](Connection::close),
//!   [`abort`](Connection::abort).
//! * **D, outputs:** after each call of B or C, drain [`poll_event`](Connection::poll_event) and
//!   [`poll_work`](Connection::poll_work), and post each returned request; then wait for the next
//!   input, at most until [`poll_timeout`](Connection::poll_timeout).
//!
//! The methods of B and C only record; `poll_work` alone decides what is sent. It builds the header
//! of a message and chooses its grant at that moment, which satisfies both published wordings of
//! 3.1.5.1.
//!
//! # The files
//! This file has the state, the getters and the dispatch. `negotiation`, `send`, `receive`,
//! `keepalive`, `transfer` and `close` have the rules, each with its commands of group C.
//!
//! A connection logs in the tracing span that is current when the connection is created.

use std::{collections::VecDeque, fmt, time::Instant};

#[cfg(feature = "tokio")]
use tracing::Span;

use self::log::Log;
use super::{
    config::Config,
    credits::{Credits, ReceiveCredits},
    error::{ConnectionError, Expired},
    event::Event,
    in_flight::InFlight,
    keepalive_requested::KeepaliveRequested,
    negotiate_messages::{Negotiated, Outcome},
    reassembly::Reassembly,
    send_queue::SendQueue,
    stalls::Stalls,
    statistics::Statistics,
    timer::{Timer, TimerTable},
    transfer_queue::TransferQueue,
};
use crate::{
    rdma::{
        software::cold_path,
        work::{Completion, Inline, Limits, Room, WorkId, WorkRequest},
    },
    wire::Status,
};

/// One SMB Direct connection, without I/O.
pub struct Connection {
    config: Config,
    role: Role,
    limits: Limits,
    send_credits: u16,
    receive_credits: ReceiveCredits,
    send_queue: SendQueue,
    send_immediate: bool,
    /// The first bytes of the message received next, if the provider delivers them separately.
    head: Inline,
    reassembly: Reassembly,
    /// Bytes of received messages that the owner holds and that count against the receive buffer.
    unread: usize,
    keepalive_requested: KeepaliveRequested,
    timers: TimerTable,
    transfers: TransferQueue,
    in_flight: InFlight,
    events: VecDeque<Event>,
    /// Events of transfers that failed; they are reported after the reason of the end is known.
    abandoned: Vec<Event>,
    next_work: u64,
    next_sequence: u64,
    /// The owner has closed the connection; it ends when all outstanding work is done.
    closing: bool,
    /// A work request was flushed: the RDMA connection has ended, and `Disconnected` will follow.
    flushing: bool,
    /// The initiator's first grant waits for a message to carry it.
    holds_first_grant: bool,
    /// The last queued segment shall ask the peer for an answer.
    ask_after_queue: bool,
    /// `poll_work` had room and nothing to return, and no later input can have changed that.
    idle: bool,
    statistics: Statistics,
    stalls: Stalls,
    log: Log,
}

/// Shows the state of the connection, and not the bytes of messages.
impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("role", &self.role)
            .field("credits", &self.credits())
            .field("statistics", &self.statistics)
            .finish_non_exhaustive()
    }
}

/// Connection.Role, each with the data it needs (3.1.1.1).
#[derive(Clone, Debug)]
enum Role {
    /// ACTIVE, before the RDMA connection exists.
    Connecting,
    /// ACTIVE: the Negotiate Request will be sent next, or has been sent.
    Active { request_sent: bool },
    /// PASSIVE.
    Passive,
    /// The peer's negotiate message was valid; receives are posted before the next message is sent.
    Posting { outcome: Outcome, passive: bool },
    /// PASSIVE: a refusal will be sent next, or has been sent; the connection ends after it.
    Refusing { status: Status, sent: bool },
    /// ESTABLISHED.
    Established(Negotiated),
    /// The connection has ended.
    Closed(ConnectionError),
}

/// The kind of a work request, held in the low two bits of its identifier. The upper bits are a
/// number: Sends have a counter of their own, and the other kinds share one.
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

    const fn number(id: WorkId) -> u64 {
        id.0 >> 2
    }
}

impl Connection {
    /// Creates the connecting side, before the RDMA connection is requested (3.1.4.1).
    pub fn active(config: Config, now: Instant) -> Self {
        //= SMBD-3.1.4.1-01
        //= SMBD-3.1.4.1-06
        let timeout = config.active_negotiation_timeout;
        Self::new(config, Role::Connecting, now + timeout)
    }

    /// Creates the accepting side, when an RDMA connection has arrived (3.1.7.2).
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
                packet_bytes: None,
            },
            send_credits: 0,
            receive_credits: ReceiveCredits::new(config.receive_credit_max),
            send_queue: SendQueue::default(),
            send_immediate: false,
            head: Inline::new(),
            reassembly: Reassembly::default(),
            unread: 0,
            keepalive_requested: KeepaliveRequested::None,
            timers,
            transfers: TransferQueue::default(),
            in_flight: InFlight::default(),
            events: VecDeque::new(),
            abandoned: Vec::new(),
            next_work: 0,
            next_sequence: 0,
            closing: false,
            flushing: false,
            holds_first_grant: false,
            ask_after_queue: false,
            idle: false,
            statistics: Statistics::default(),
            stalls: Stalls::default(),
            log: Log::new(),
            config,
        }
    }

    // A: getters

    /// Returns the negotiated limits while the connection is established (3.1.4.7).
    pub const fn negotiated(&self) -> Option<&Negotiated> {
        //= SMBD-3.1.4.7-01
        match &self.role {
            Role::Established(negotiated) => Some(negotiated),
            _ => None,
        }
    }

    /// Returns the current credits of both directions.
    pub fn credits(&self) -> Credits {
        self.receive_credits
            .report(self.send_credits, self.config.send_credit_target)
    }

    /// Returns the traffic counters and the amount of outstanding work. They do not include the time of a [credit
    /// stall](Self::credit_stall) that has not ended.
    pub const fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// Returns the time at which the current wait of a message for a send credit began, if a message waits.
    pub const fn credit_stall(&self) -> Option<Instant> {
        self.stalls.credit()
    }

    /// Returns whether a message that is sent now begins immediately: the connection is open, no message is queued, and
    /// this end has a send credit that it may spend. The last send credit can be spent if this end can grant a credit
    /// with it. The credits for the rest of a message need not be there: the peer grants them when the message has begun.
    pub fn is_ready(&self) -> bool {
        //= SMBD-3.1.5.1-15
        !self.closing && self.send_queue.is_empty() && self.may_begin()
    }

    /// Returns whether a call of [`poll_work`](Self::poll_work) is certain to return nothing and to change
    /// nothing: it had room and nothing to return at its last call, and all inputs after that were completions of
    /// Sends.
    pub const fn is_idle(&self) -> bool {
        self.idle
    }

    /// Returns the number of messages that wait to be sent or are partly sent.
    pub fn queued_messages(&self) -> usize {
        self.send_queue.len()
    }

    /// Returns why the connection ended, if it has ended.
    pub const fn error(&self) -> Option<&ConnectionError> {
        match &self.role {
            Role::Closed(error) => Some(error),
            _ => None,
        }
    }

    /// Returns whether the owner has closed the connection, and it waits for outstanding work.
    #[cfg(feature = "tokio")]
    pub(crate) const fn is_closing(&self) -> bool {
        self.closing
    }

    /// Returns whether this end is the connecting side. The result is valid until the connection is established.
    #[cfg(feature = "metrics")]
    pub(crate) const fn is_active(&self) -> bool {
        matches!(self.role, Role::Connecting | Role::Active { .. })
    }

    /// Returns the span of every log line.
    #[cfg(feature = "tokio")]
    pub(crate) const fn span(&self) -> &Span {
        self.log.span()
    }

    // B: inputs

    /// Handles the establishment of the RDMA connection, with the limits of its provider.
    pub fn handle_connected(&mut self, limits: Limits) {
        self.touch();
        self.limits = limits;
        self.receive_credits.fit_into(limits.max_receive_queue);
        //= SMBD-3.1.4.1-09
        if matches!(self.role, Role::Connecting) {
            self.role = Role::Active {
                request_sent: false,
            };
        }
    }

    /// Handles a completion of the queue pair.
    // Inlined, because this and `poll_work` each have one caller on the hot path.
    #[inline(always)]
    pub fn handle_completion(&mut self, now: Instant, completion: Completion) {
        // A completed Send only frees room, and there was room before. During a close it also stops
        // the Close timer, and the next call of `poll_work` has to start it again.
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
            Completion::Disconnected(how) => self.connection_loss(now, how),
        }
        self.end_if_drained();
    }

    /// Postpones the timers that are due at `now` and would end the connection, if this call is late: after a
    /// stall of this process the peer has a second to answer. The caller has passed on all completions;
    /// `all_read` is false if there may be more completions. These timers are then postponed even if this call is
    /// not late. A timer is postponed three times at most. Call [`handle_timeout`](Self::handle_timeout) next.
    #[cold]
    pub fn postpone_deadlines(&mut self, now: Instant, all_read: bool) {
        for timer in Timer::ALL {
            let ends_connection = match timer {
                Timer::IdleConnection => self.keepalive_requested != KeepaliveRequested::None,
                Timer::FirstGrant => false,
                Timer::Negotiation | Timer::SendCreditGrant | Timer::Close => true,
            };
            if ends_connection {
                self.timers.postpone(timer, now, all_read);
            }
        }
    }

    /// Handles every timer that is due at `now`.
    #[cold]
    pub fn handle_timeout(&mut self, now: Instant) {
        self.touch();
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
                    self.stalls.end_credit_stall(now, &mut self.statistics);
                    self.end(ConnectionError::TimedOut(Expired::SendCreditGrant));
                }
                Timer::FirstGrant => self.holds_first_grant = false,
                Timer::Close => self.end(ConnectionError::TimedOut(Expired::Close)),
            }
        }
    }

    // D: outputs

    /// Returns the next work request to post, if `room` has space for its kind.
    // Inlined, so that a request is built in its final place and not moved.
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
            self.count_full_send_queue();
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
            _ => self.mark_idle(),
        }
    }

    /// Returns the oldest event that has not been taken.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns when to call [`handle_timeout`](Self::handle_timeout).
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Records that `poll_work` had room for a request and none to return.
    fn mark_idle(&mut self) -> Option<WorkRequest> {
        self.idle = !self.wants_receives();
        None
    }

    /// Records that something happened after which `poll_work` may have work again.
    #[inline]
    const fn touch(&mut self) {
        self.idle = false;
    }

    /// Returns the next number in the common sequence of messages and RDMA Writes.
    fn sequence(&mut self) -> u64 {
        self.next_sequence += 1;
        self.next_sequence
    }

    fn work_id(&mut self, kind: Kind) -> WorkId {
        self.next_work += 1;
        kind.id(self.next_work)
    }
}

mod close;
mod keepalive;
mod log;
#[cfg(test)]
mod model;
mod negotiation;
#[cfg(any(test, smbdirect_proved))]
pub(super) mod proved;
mod receive;
mod send;
#[cfg(test)]
mod tests;
mod transfer;
