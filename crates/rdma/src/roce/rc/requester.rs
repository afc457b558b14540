//! The requester: sends requests, and sends them again until they are acknowledged (IBTA 9.7).
//!
//! ```text
//!  sequence:  0 ... unacknowledged ........... next ........... sent ........ posted
//!               done            in flight           to be sent      never sent
//!                                                      again
//! ```
//!
//! Packets are retransmitted go-back-N: after a loss, `next` returns to `unacknowledged`. A Read is
//! cut into requests whose responses fit the window, so that a responder without flow control does
//! not flood this end.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use super::{
    error::QueuePairError,
    retransmission::{Expired, RetransmissionTimer},
    rnr::{RNR_RETRY_ENDLESS, rnr_delay},
    send_queue::{Request, reth},
    settings::QueuePairSettings,
    shared::{PacketSink, Shared},
    window::Window,
};
use crate::{
    roce::{
        packet::{Aeth, Bth, Extended, ICRC_LENGTH, NakCode, Opcode, Reth, Syndrome},
        psn::Psn,
    },
    software::pop_front_if,
    work::{Completion, WorkRequest},
};

/// The sending half of a queue pair.
#[derive(Debug)]
pub(super) struct Requester {
    remote_qpn: u32,
    path_mtu: usize,
    /// The PSN of sequence number 0.
    start: Psn,
    initiator_depth: usize,
    rnr_retry_count: u8,
    /// The requests that are not completed, oldest first. The first contains `unacknowledged`.
    queue: VecDeque<Request>,
    /// The position in the queue of the request that contains `next`.
    current: usize,
    /// The sequence number of the oldest packet that is not acknowledged.
    unacknowledged: u64,
    /// The sequence number of the next packet to send.
    next: u64,
    /// The sequence number after the last packet that was ever sent.
    sent: u64,
    /// The sequence number after the last packet of the queue.
    posted: u64,
    /// The longest payload in bytes that the peer has acknowledged or sent as a response.
    longest_acknowledged: usize,
    /// The Read requests whose responses are incomplete, oldest first.
    reads: VecDeque<ReadRange>,
    /// The value of `unacknowledged` at which a gap last caused a retransmission. The packets that were in flight
    /// at that time can cause further reports of the same gap.
    resent_at: Option<u64>,
    /// The number of packets sent since the last one that asked for an acknowledgement.
    unrequested: u64,
    window: Window,
    /// The sequence number whose acknowledgement ends the round trip in which congestion last shrank the window.
    notified_until: u64,
    timer: RetransmissionTimer,
    /// The value of `next` at the last timeout, until that is acknowledged.
    timed_out_at: Option<u64>,
    /// The end of the pause that the peer asked for, because it had no receive.
    paused_until: Option<Instant>,
    /// The number of pauses since the last progress. Pauses are not counted if the retry count is endless.
    pauses: u8,
    statistics: RetransmissionStatistics,
}

/// The retransmissions of a queue pair, counted since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetransmissionStatistics {
    /// How often everything in flight was sent again because the peer reported a gap, or because a response was
    /// missing.
    pub gaps: u64,
    /// How often the peer acknowledged nothing in time, so that packets were sent again.
    pub timeouts: u64,
    /// The number of needless timeouts: the peer turned out to have received the packets.
    pub needless: u64,
    /// How often the peer asked for a pause, because it had no receive.
    pub pauses: u64,
    /// The number of packets, including those of responses to Reads, that were in flight when retransmissions
    /// began.
    pub packets: u64,
}

/// The packets of the response to one Read request.
#[derive(Clone, Copy, Debug)]
struct ReadRange {
    first: u64,
    end: u64,
}

impl Requester {
    /// Creates the requester of a new queue pair.
    pub(super) fn new(settings: &QueuePairSettings) -> Self {
        Self {
            remote_qpn: settings.remote_qpn,
            path_mtu: settings.path_mtu,
            start: settings.send_psn,
            initiator_depth: settings.initiator_depth as usize,
            rnr_retry_count: settings.rnr_retry_count,
            queue: VecDeque::new(),
            current: 0,
            unacknowledged: 0,
            next: 0,
            sent: 0,
            posted: 0,
            longest_acknowledged: 0,
            reads: VecDeque::new(),
            resent_at: None,
            unrequested: 0,
            window: Window::new(settings.max_in_flight / settings.path_mtu),
            notified_until: 0,
            timer: RetransmissionTimer::new(
                settings.ack_timeout,
                settings.target_ack_delay,
                settings.retry_count,
            ),
            timed_out_at: None,
            paused_until: None,
            pauses: 0,
            statistics: RetransmissionStatistics::default(),
        }
    }

    /// Returns the retransmissions so far.
    pub(super) const fn statistics(&self) -> RetransmissionStatistics {
        self.statistics
    }

    /// Returns the measured time of a round trip, or `None` if none is measured.
    pub(super) const fn round_trip(&self) -> Option<Duration> {
        self.timer.round_trip()
    }

    /// Shrinks the window because the network reports congestion: by a CNP of the peer, or by a mark on the response
    /// to a Read. The reports of one round trip count once, because they are about the same packets.
    pub(super) fn notify(&mut self) {
        //= ROCE-SW-09
        let is_in_flight = self.next > self.unacknowledged;
        if is_in_flight && self.unacknowledged >= self.notified_until {
            self.notified_until = self.sent;
            self.window.notify();
        }
    }

    /// Queues a Send, Write or Read.
    pub(super) fn post(&mut self, work: WorkRequest) {
        let request = Request::new(work, self.posted, self.path_mtu);
        self.posted = request.end();
        self.queue.push_back(request);
    }

    /// Returns the number of requests that are not completed.
    pub(super) fn outstanding(&self) -> usize {
        self.queue.len()
    }

    /// Returns when [`handle_timeout`](Self::handle_timeout) has to be called.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.paused_until.or_else(|| self.timer.deadline())
    }

    /// If a timer has expired, sends packets again, continues after a pause, or gives up.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> Result<(), QueuePairError> {
        if let Some(end) = self.paused_until {
            if now >= end {
                self.paused_until = None;
            }
            return Ok(());
        }
        //= ROCE-9.7.6-01
        match self.timer.expire(now) {
            Expired::No => {}
            Expired::Retransmit => {
                self.statistics.timeouts += 1;
                self.timed_out_at.get_or_insert(self.next);
                self.window.close();
                self.go_back();
            }
            Expired::GiveUp => return Err(self.unacknowledged_error()),
        }
        Ok(())
    }

    /// Returns the error of packets that were sent again and again without an acknowledgement.
    fn unacknowledged_error(&self) -> QueuePairError {
        let (acknowledged, lost) = (self.longest_acknowledged, self.next_acknowledged_length());
        if self.unacknowledged > 0 && lost > acknowledged {
            QueuePairError::LongPacketsLost { lost, acknowledged }
        } else {
            QueuePairError::Unacknowledged
        }
    }

    /// Returns the length in bytes of the payload of the packet that is acknowledged next. The packet can belong
    /// to a request or to a response.
    fn next_acknowledged_length(&self) -> usize {
        let oldest = self.queue.front();
        oldest.map_or(0, |request| request.payload_of(self.unacknowledged).1)
    }

    /// Returns whether [`next_packet`](Self::next_packet) has a packet, if it is short enough.
    pub(super) fn can_send(&self) -> bool {
        if self.paused_until.is_some() {
            return false;
        }
        match self.queue.get(self.current) {
            None => false,
            Some(request) if request.is_read() => self.next_read_end(request).is_some(),
            Some(_) => self.room() > 0,
        }
    }

    /// Returns how many more packets may be in flight.
    const fn room(&self) -> u64 {
        let in_flight = self.next - self.unacknowledged;
        self.window.packets().saturating_sub(in_flight)
    }

    /// Adds the next packet to `sink`, if there is one and its UDP payload is at most `max_length`
    /// bytes. Returns whether it did.
    pub(super) fn next_packet(
        &mut self,
        now: Instant,
        max_length: usize,
        sink: &mut impl PacketSink,
    ) -> bool {
        if !self.can_send() {
            return false;
        }
        let request = &self.queue[self.current];
        let sequence = self.next;
        if request.is_read() {
            return self.next_read(now, max_length, sink);
        }
        let opcode = request.opcode_of(sequence);
        let payload = request.payload_of(sequence);
        let headers = Bth::LENGTH + opcode.layout().length();
        if headers + payload.1.next_multiple_of(4) + ICRC_LENGTH > max_length {
            return false;
        }
        let window = self.window.packets();
        let mut bth = Bth::new(opcode, self.remote_qpn, self.psn(sequence));
        self.unrequested += 1;
        let ends_request = sequence + 1 == request.end();
        let ends_queue = ends_request && self.current + 1 == self.queue.len();
        // The last packet that is posted or that the window permits has to be acknowledged. Earlier packets are
        // acknowledged four times in each window, so that the window moves before it is empty.
        //= ROCE-9.7.3-01
        bth.ack_request = ends_queue || self.room() == 1 || self.unrequested >= window / 4;
        if bth.ack_request {
            self.unrequested = 0;
        }
        request.push(&bth, payload, sink);
        if ends_request {
            self.current += 1;
        }
        self.sent_to(now, sequence + 1, bth.ack_request);
        true
    }

    /// Returns the end of the next Read request, or `None` if none may be sent.
    fn next_read_end(&self, request: &Request) -> Option<u64> {
        let again = self.reads.iter().find(|range| range.end > self.next);
        if let Some(range) = again {
            // After a timeout, a request is sent again only when the one before it is answered. If a late
            // response arrives meanwhile, nothing was lost, and no further request has to be sent again.
            let waits = self.timed_out_at.is_some() || self.room() == 0;
            // The request keeps its end, because a responder repeats a response only within the bounds of the
            // original request.
            return (!waits || self.next == self.unacknowledged).then_some(range.end);
        }
        //= ROCE-9.7.4-03
        if self.reads.len() >= self.initiator_depth {
            return None;
        }
        let left = request.end() - self.next;
        let (room, window) = (self.room(), self.window.packets());
        // Requests of less than half a window would cost more than they gain.
        if room < left.min(window.div_ceil(2)) {
            return None;
        }
        Some(self.next + left.min(room))
    }

    /// Adds the next Read request to `sink`.
    fn next_read(&mut self, now: Instant, max_length: usize, sink: &mut impl PacketSink) -> bool {
        if Bth::LENGTH + Reth::LENGTH + ICRC_LENGTH > max_length {
            return false;
        }
        let request = &self.queue[self.current];
        let Some(end) = self.next_read_end(request) else {
            return false;
        };
        let WorkRequest::Read { from, into, .. } = &request.work else {
            unreachable!("the request is a Read");
        };
        let sequence = self.next;
        let (start, _) = request.payload_of(sequence);
        let (last, length) = request.payload_of(end - 1);
        let extended = Extended::Reth(reth(*from, start, last + length - start));
        debug_assert!(last + length <= into.len(), "the range is in the request");
        let mut bth = Bth::new(Opcode::ReadRequest, self.remote_qpn, self.psn(sequence));
        bth.ack_request = true;
        sink.push(&bth, &extended, [&[], &[]]);
        if end == request.end() {
            self.current += 1;
        }
        if self.reads.back().is_none_or(|range| range.end <= sequence) {
            let first = sequence;
            self.reads.push_back(ReadRange { first, end });
        }
        self.unrequested = 0;
        self.sent_to(now, end, true);
        true
    }

    /// Records that everything before `end` is sent.
    fn sent_to(&mut self, now: Instant, end: u64, is_answered: bool) {
        let is_new = self.next >= self.sent;
        self.next = end;
        self.sent = self.sent.max(end);
        self.timer.sent(now, (is_answered && is_new).then_some(end));
    }

    /// Processes an acknowledgement.
    pub(super) fn handle_acknowledge(
        &mut self,
        now: Instant,
        psn: Psn,
        aeth: Aeth,
        shared: &mut Shared,
    ) -> Result<(), QueuePairError> {
        //= ROCE-9.7.5-02
        let Some(sequence) = self.in_flight(psn) else {
            return Ok(());
        };
        match aeth.syndrome {
            Syndrome::Ack { .. } => {
                self.acknowledge(now, sequence + 1, shared);
            }
            //= ROCE-9.7.5-03
            Syndrome::Nak(NakCode::PsnSequenceError) => {
                if self.acknowledge(now, sequence, shared) {
                    self.go_back_once();
                }
            }
            Syndrome::RnrNak { timer } => {
                if self.acknowledge(now, sequence, shared) {
                    self.pause(now, timer)?;
                }
            }
            //= ROCE-9.7.5-05
            Syndrome::Nak(code) => {
                self.acknowledge(now, sequence, shared);
                return Err(QueuePairError::Refused(code));
            }
        }
        Ok(())
    }

    /// Processes a packet of the response to a Read.
    pub(super) fn handle_read_response(
        &mut self,
        now: Instant,
        bth: &Bth,
        extended: &Extended,
        payload: &[u8],
        shared: &mut Shared,
    ) -> Result<(), QueuePairError> {
        let bad = Err(QueuePairError::BadResponse(bth.opcode));
        let Some(sequence) = self.in_flight(bth.psn) else {
            return Ok(());
        };
        if extended
            .aeth()
            .is_some_and(|aeth| !matches!(aeth.syndrome, Syndrome::Ack { .. }))
        {
            return bad;
        }
        // A response acknowledges all requests before it.
        //= ROCE-9.7.5-04
        if !self.acknowledge(now, sequence, shared) {
            return Ok(());
        }
        let range = self.reads.front().filter(|range| range.first <= sequence);
        let Some((range, request)) = range.zip(self.queue.front_mut()) else {
            return bad;
        };
        let is_last = sequence + 1 == range.end;
        let (offset, length) = request.payload_of(sequence);
        //= ROCE-9.7.4-04
        if is_last != bth.opcode.ends_message() || payload.len() != length {
            return bad;
        }
        let WorkRequest::Read { into, .. } = &mut request.work else {
            return bad;
        };
        into[offset..offset + length].copy_from_slice(payload);
        self.advance(now, sequence + 1, shared);
        Ok(())
    }

    /// Acknowledges the packets before `end`. Returns false if the response to a Read before `end` is missing.
    /// The request of that Read is then sent again.
    fn acknowledge(&mut self, now: Instant, end: u64, shared: &mut Shared) -> bool {
        let missing = self
            .reads
            .front()
            .map_or(end, |range| range.first.max(self.unacknowledged));
        self.advance(now, end.min(missing), shared);
        if missing < end {
            //= ROCE-9.7.5-04
            self.go_back_once();
        }
        missing >= end
    }

    /// Completes the work whose packets are all before `end`.
    fn advance(&mut self, now: Instant, end: u64, shared: &mut Shared) {
        if end <= self.unacknowledged {
            return;
        }
        // Packets that were sent before the window shrank say nothing about its new size.
        if self.unacknowledged >= self.notified_until {
            self.window.grow(end - self.unacknowledged);
        }
        self.longest_acknowledged = self
            .longest_acknowledged
            .max(self.next_acknowledged_length());
        self.unacknowledged = end;
        self.resent_at = None;
        self.pauses = 0;
        pop_front_if(&mut self.reads, |range| range.end <= end);
        let before = self.queue.len();
        while let Some(request) = pop_front_if(&mut self.queue, |request| request.end() <= end) {
            match request.work {
                WorkRequest::Send { id, .. } => shared.sent(id),
                WorkRequest::Write { id, .. } => {
                    shared.completions.push_back(Completion::Written { id });
                }
                WorkRequest::Read { id, into, .. } => {
                    let buffer = into;
                    shared
                        .completions
                        .push_back(Completion::Read { id, buffer });
                }
                WorkRequest::Receive { .. } => unreachable!("receives are not sent"),
            }
        }
        self.current = self.current.saturating_sub(before - self.queue.len());
        if self.next < end {
            self.skip_received(end);
        }
        if self.timed_out_at.is_some_and(|next| next <= end) {
            self.forget_timeout();
        }
        self.timer.progress(now, end, end < self.next);
    }

    /// Skips the packets before `end`, which the peer had received before this end sent them again.
    #[cold]
    fn skip_received(&mut self, end: u64) {
        self.next = end;
        self.current = 0;
        if self.timed_out_at.take().is_some() {
            //= ROCE-SW-05
            self.statistics.needless += 1;
            self.window.reopen();
        }
    }

    /// Pauses because the peer had no receive for the packet `unacknowledged`.
    fn pause(&mut self, now: Instant, timer: u8) -> Result<(), QueuePairError> {
        if self.paused_until.is_some() {
            return Ok(());
        }
        //= ROCE-9.7.5-08
        if self.rnr_retry_count != RNR_RETRY_ENDLESS {
            if self.pauses >= self.rnr_retry_count {
                return Err(QueuePairError::ReceiverNotReady);
            }
            self.pauses += 1;
        }
        self.statistics.pauses += 1;
        self.forget_timeout();
        self.return_to_unacknowledged();
        self.timer.pause();
        //= ROCE-9.7.5-07
        self.paused_until = Some(now + rnr_delay(timer));
        Ok(())
    }

    /// Sends everything again from the oldest packet that is not acknowledged, unless the same gap
    /// has already caused that.
    fn go_back_once(&mut self) {
        if self.resent_at != Some(self.unacknowledged) && self.paused_until.is_none() {
            self.statistics.gaps += 1;
            self.forget_timeout();
            self.window.shrink();
            self.go_back();
        }
    }

    /// Sends everything again from the oldest packet that is not acknowledged.
    fn go_back(&mut self) {
        self.resent_at = Some(self.unacknowledged);
        self.return_to_unacknowledged();
        self.timer.restart();
    }

    /// Forgets the last timeout, because packets were lost or everything is acknowledged.
    const fn forget_timeout(&mut self) {
        self.timed_out_at = None;
        self.window.forget_closing();
    }

    const fn return_to_unacknowledged(&mut self) {
        self.statistics.packets += self.next - self.unacknowledged;
        self.next = self.unacknowledged;
        self.current = 0;
    }

    /// Returns the PSN of a sequence number.
    const fn psn(&self, sequence: u64) -> Psn {
        self.start.add(sequence as u32)
    }

    /// Returns the sequence number of `psn`, or `None` if no packet with this PSN is in flight.
    fn in_flight(&self, psn: Psn) -> Option<u64> {
        let distance = psn.distance(self.psn(self.unacknowledged));
        let sequence = self
            .unacknowledged
            .checked_add_signed(i64::from(distance))?;
        (self.unacknowledged..self.sent)
            .contains(&sequence)
            .then_some(sequence)
    }

    /// Completes all work as flushed, oldest first.
    pub(super) fn flush(&mut self, shared: &mut Shared) {
        for request in std::mem::take(&mut self.queue) {
            shared.flush_work(request.work);
        }
        self.reads.clear();
        self.paused_until = None;
        self.timer.restart();
    }
}
