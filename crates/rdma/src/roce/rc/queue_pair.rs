//! [`QueuePair`], one end of a reliable connection. It has no socket and no clock.
//!
//! ```text
//!   post(work) ──> requester ──> poll_packet, poll_datagrams ──> network
//!                  responder ──>
//!   completions <── requester: acknowledgements, responses
//!               <── responder: requests <── handle_packet <───── network
//! ```
//!
//! The caller passes received packets to [`handle_packet`](QueuePair::handle_packet), takes
//! completions and packets to send until there are none, and calls
//! [`handle_timeout`](QueuePair::handle_timeout) at the time of
//! [`poll_timeout`](QueuePair::poll_timeout). Each of these calls can cause the others. A caller
//! that passes several packets before it takes packets to send coalesces their acknowledgements.
//!
//! The first error ends the queue pair: all work completes as flushed, and a NAK tells the peer.
//!
//! # Attackers
//!
//! A queue pair processes every packet with its number. An attacker who cannot see the traffic has
//! to guess the number (24 bits, if it is chosen at random) and a PSN. A forged request is processed
//! only with the next PSN, one of 2^24. An RDMA Read or Write also needs a token of 32 random bits
//! and an address with 32 random bits; a wrong guess with the right PSN ends the connection. A
//! forged acknowledgement has an effect only if its PSN is in flight, which holds for as many PSNs as
//! there are packets in flight; it can end the connection or complete a Send that is lost. A forged
//! congestion notification has an effect without a PSN: it slows the connection down. The ICRC
//! and the P_Key contain no secret. An attacker who sees the traffic can do what the peer can.
//! RoCEv2 has no protection against that: use it in networks that are trusted, or under IPsec.

use std::{mem, num::NonZeroU32, time::Instant};

use bytes::BytesMut;

use super::{
    congestion::{self, CNP_PAYLOAD, CongestionStatistics, NotificationPoint},
    error::QueuePairError,
    outgoing::Run,
    pace::Congestion,
    payload::Payload,
    requester::{Requester, RetransmissionStatistics},
    responder::{ACKNOWLEDGE_LENGTH, Responder},
    send_queue::MAX_MESSAGE_BYTES,
    settings::QueuePairSettings,
    shared::{PacketSink, Shared},
};
use crate::{
    memory::MemoryTable,
    roce::{
        icrc::FlowIcrc,
        packet::{Bth, Extended, NakCode, Opcode, Packet},
        psn::Psn,
    },
    software::receive_queue::Receives,
    work::{Completion, Disconnect, Limits, ProviderError, Room, WorkRequest},
};

/// One end of a reliable connection, which does no I/O and has no clock.
#[derive(Debug)]
pub struct QueuePair {
    requester: Requester,
    responder: Responder,
    shared: Shared,
    limits: Limits,
    notification_point: NotificationPoint,
    /// Whether the next run of packets begins with responses to Reads.
    responses_first: bool,
    /// Whether an acknowledgement had to wait while a run of packets was sent.
    is_reply_late: bool,
    /// Whether the queue pair takes no more work and finishes what was posted.
    closing: bool,
    /// The work posted while closing, which completes as flushed after earlier work.
    late: Vec<WorkRequest>,
    /// How the connection ended, which is reported after all other completions.
    ended: Option<Disconnect>,
    /// Whether the end was reported.
    reported: bool,
    /// The NAK that tells the peer why this end broke, with its PSN.
    last_nak: Option<(Psn, NakCode)>,
    /// Whether the last NAK is to be sent.
    is_nak_due: bool,
}

/// The most work requests that may be outstanding in each direction. It bounds the memory of a
/// caller that posts and never polls.
const MAX_QUEUE_ENTRIES: usize = 8192;
/// The low 15 bits of a P_Key, which name the partition.
const PARTITION: u16 = 0x7fff;

impl QueuePair {
    /// Creates a queue pair that is ready to send and to receive.
    ///
    /// # Panics
    /// Panics if the path MTU is not one of the five that are defined, or if a queue pair number
    /// has more than 24 bits.
    pub fn new(settings: &QueuePairSettings) -> Self {
        let is_defined = matches!(settings.path_mtu, 256 | 512 | 1024 | 2048 | 4096);
        assert!(is_defined, "a path MTU of {}", settings.path_mtu);
        assert!(
            settings.local_qpn >> 24 == 0 && settings.remote_qpn >> 24 == 0,
            "a queue pair number has 24 bits"
        );
        Self {
            requester: Requester::new(settings),
            responder: Responder::new(settings),
            shared: Shared::default(),
            limits: Limits {
                packet_bytes: NonZeroU32::new(settings.path_mtu as u32),
                ..Self::limits_of(settings.initiator_depth, settings.responder_resources)
            },
            notification_point: NotificationPoint::default(),
            responses_first: true,
            is_reply_late: false,
            closing: false,
            late: Vec::new(),
            ended: None,
            reported: false,
            last_nak: None,
            is_nak_due: false,
        }
    }

    /// Returns the limits of a queue pair with these read depths and an unknown path MTU.
    pub const fn limits_of(initiator_depth: u32, responder_resources: u32) -> Limits {
        Limits {
            max_send_queue: MAX_QUEUE_ENTRIES,
            max_receive_queue: MAX_QUEUE_ENTRIES,
            max_outbound_reads: initiator_depth,
            max_inbound_reads: responder_resources,
            max_transfer: MAX_MESSAGE_BYTES,
            send_with_invalidate: true,
            packet_bytes: None,
        }
    }

    /// Returns the limits of this queue pair.
    pub const fn limits(&self) -> Limits {
        self.limits
    }

    /// Returns the retransmissions so far.
    pub const fn retransmissions(&self) -> RetransmissionStatistics {
        self.requester.statistics()
    }

    /// Returns the signs of congestion so far.
    pub const fn congestion(&self) -> CongestionStatistics {
        self.notification_point.statistics()
    }

    /// Returns how much work may be posted now.
    pub fn room(&self) -> Room {
        Room {
            sends: MAX_QUEUE_ENTRIES.saturating_sub(self.requester.outstanding()),
            receives: MAX_QUEUE_ENTRIES.saturating_sub(self.shared.receives.len()),
        }
    }

    /// Queues `work`. Nothing is sent before packets are polled.
    ///
    /// Work that is posted after [`close`](Self::close) or after the end completes as flushed.
    ///
    /// # Panics
    /// Panics on a message of more than 2^31 bytes, and on a Read if `initiator_depth` is 0.
    pub fn post(&mut self, work: WorkRequest) {
        if self.ended.is_some() || self.closing {
            return self.post_late(work);
        }
        match work {
            WorkRequest::Receive { id, length, count } => {
                self.shared.receives.post(Receives { id, length, count });
            }
            work => {
                let is_read = matches!(work, WorkRequest::Read { .. });
                let permitted = !is_read || self.limits.max_outbound_reads > 0;
                assert!(permitted, "no Read may be posted");
                self.requester.post(work);
            }
        }
    }

    /// Takes work that is posted after the queue pair was closed or has ended.
    #[cold]
    fn post_late(&mut self, work: WorkRequest) {
        if self.ended.is_none() {
            self.late.push(work);
        } else if !self.reported {
            self.shared.flush_work(work);
        }
    }

    /// Returns the next completion. [`Completion::Disconnected`] is the last.
    pub fn poll_completion(&mut self) -> Option<Completion> {
        if let Some(completion) = self.shared.completions.pop_front() {
            return Some(completion);
        }
        let ended = self.ended.clone().filter(|_| !self.reported)?;
        self.reported = true;
        Some(Completion::Disconnected(ended))
    }

    /// Moves all completions except the disconnect to `into`, which has to be empty.
    #[cfg(feature = "tokio")]
    pub(in crate::roce) fn take_completions(
        &mut self,
        into: &mut std::collections::VecDeque<Completion>,
    ) {
        debug_assert!(into.is_empty(), "the completions stay in order");
        mem::swap(&mut self.shared.completions, into);
    }

    /// Returns whether [`poll_completion`](Self::poll_completion) has a completion.
    pub fn has_completion(&self) -> bool {
        !self.shared.completions.is_empty() || (self.ended.is_some() && !self.reported)
    }

    /// Returns the registered memory of this queue pair.
    pub const fn memory(&mut self) -> &mut MemoryTable {
        &mut self.shared.memory
    }

    /// Processes a packet whose ICRC is right and whose destination is this queue pair.
    pub fn handle_packet(&mut self, now: Instant, packet: &Packet) {
        self.handle(now, &packet.bth, &packet.extended, &packet.payload);
    }

    /// Processes a packet whose ICRC is right and whose destination is this queue pair. The payload may be in any
    /// memory, because the parts of it that are kept are copied.
    pub fn handle(&mut self, now: Instant, bth: &Bth, extended: &Extended, payload: &[u8]) {
        let payload = Payload {
            bytes: payload,
            block: None,
            account: None,
        };
        self.handle_payload(now, bth, extended, payload);
    }

    /// Does the same as [`handle`](Self::handle), but messages may be slices of the memory of the payload.
    pub(in crate::roce) fn handle_payload(
        &mut self,
        now: Instant,
        bth: &Bth,
        extended: &Extended,
        payload: Payload<'_>,
    ) {
        //= ROCE-9.6.1-01
        if bth.p_key & PARTITION != Bth::DEFAULT_P_KEY & PARTITION {
            return;
        }
        if self.ended.is_some() {
            //= ROCE-9.7.5-15
            self.is_nak_due |= self.last_nak.is_some() && is_request(bth.opcode);
            return;
        }
        self.responder.resume(now);
        let shared = &mut self.shared;
        let handled = match bth.opcode {
            Opcode::Acknowledge => match extended.aeth() {
                Some(aeth) => self
                    .requester
                    .handle_acknowledge(now, bth.psn, aeth, shared),
                None => Ok(()),
            },
            Opcode::ReadResponseFirst
            | Opcode::ReadResponseMiddle
            | Opcode::ReadResponseLast
            | Opcode::ReadResponseOnly => {
                self.requester
                    .handle_read_response(now, bth, extended, payload.bytes, shared)
            }
            // No atomic operation was sent, and a datagram is for another queue pair.
            Opcode::AtomicAcknowledge | Opcode::UdSendOnly | Opcode::UdSendOnlyImmediate => Ok(()),
            Opcode::CongestionNotification => {
                self.notification_point.count_received();
                self.slow_down(now, Congestion::Notified);
                Ok(())
            }
            _ => self
                .responder
                .handle_request(bth, extended, payload, shared),
        };
        if let Err(error) = handled {
            self.fail(error);
        }
    }

    /// Processes that a packet arrived with the mark CE in the ECN field of its IP header, after
    /// [`handle`](Self::handle) has processed the packet. A CNP tells the peer.
    pub fn handle_mark(&mut self, now: Instant, opcode: Opcode) {
        if self.ended.is_some() || opcode == Opcode::CongestionNotification {
            return;
        }
        //= ROCE-A17.9-02
        self.notification_point.mark(now);
        // The window of this end decides how many responses of the peer are on their way.
        //= ROCE-SW-09
        if opcode.is_response() && opcode != Opcode::Acknowledge {
            self.requester.notify();
        }
    }

    /// Sends less because of congestion on the way to the peer.
    #[cold]
    fn slow_down(&mut self, now: Instant, reason: Congestion) {
        if reason == Congestion::Notified {
            self.requester.notify();
        }
        let round_trip = self.requester.round_trip();
        self.responder.slow_down(now, round_trip, reason);
    }

    /// Returns when [`handle_timeout`](Self::handle_timeout) has to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.ended.is_some() {
            return None;
        }
        match (self.requester.poll_timeout(), self.responder.poll_timeout()) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }

    /// Retransmits packets that were not acknowledged in time, and continues to send responses that had to wait. An
    /// early call has no effect.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.ended.is_some() {
            return;
        }
        self.responder.resume(now);
        if let Err(error) = self.requester.handle_timeout(now) {
            self.fail(error);
        }
    }

    /// Returns whether there is a packet to send.
    pub fn has_packet(&self) -> bool {
        match self.ended {
            Some(_) => self.is_nak_due,
            None => {
                self.responder.can_send()
                    || self.requester.can_send()
                    || self.notification_point.is_due()
            }
        }
    }

    /// Returns the next packet to send, with a copy of its payload.
    pub fn poll_packet(&mut self, now: Instant) -> Option<Packet> {
        let mut packet = None;
        if self.next_notification(&mut packet) {
            return packet;
        }
        // Taking a packet can break the queue pair, and then a NAK is due.
        let _ = self.next_reply(usize::MAX, &mut packet)
            || self.next_packet(now, usize::MAX, &mut packet)
            || self.next_reply(usize::MAX, &mut packet);
        self.responses_first = !self.responses_first;
        packet
    }

    /// Appends the CNP that is due to `out`, with its ICRC. Returns its length, or `None` if none is due. A CNP leaves
    /// before other packets, and alone, because its IP header differs.
    pub fn poll_notification(&mut self, flow: &mut FlowIcrc, out: &mut BytesMut) -> Option<usize> {
        if !self.notification_point.is_due() {
            return None;
        }
        let mut run = Run::new(flow, 1, out);
        self.next_notification(&mut run);
        run.segment_length()
    }

    /// Adds the CNP that is due to `sink`.
    fn next_notification(&mut self, sink: &mut impl PacketSink) -> bool {
        let is_due = self.ended.is_none() && self.notification_point.take();
        if is_due {
            let bth = congestion::cnp(self.responder.remote_qpn());
            sink.push(&bth, &Extended::Plain, [&CNP_PAYLOAD, &[]]);
        }
        is_due
    }

    /// Appends the next datagrams to `out`, each with its ICRC: at most `max_datagrams`, all of the same length
    /// except the last, which may be shorter, as `UDP_SEGMENT` requires. Returns the length of each datagram
    /// except the last, or `None` if there is nothing to send.
    ///
    /// The Identification that the ICRCs cover counts from 0, as the kernel numbers the datagrams of
    /// one call.
    pub fn poll_datagrams(
        &mut self,
        now: Instant,
        flow: &mut FlowIcrc,
        max_datagrams: usize,
        out: &mut BytesMut,
    ) -> Option<usize> {
        let mut run = Run::new(flow, max_datagrams, out);
        // An acknowledgement is shorter than most packets, so it is the last of a run. It waits for
        // at most one run.
        if self.is_reply_late || self.ended.is_some() {
            self.next_reply(run.max_length(), &mut run);
        }
        while self.next_packet(now, run.max_length(), &mut run) {}
        self.next_reply(run.max_length(), &mut run);
        self.is_reply_late = self.responder.has_reply();
        //= ROCE-SW-06
        self.responses_first = !self.responses_first;
        run.segment_length()
    }

    /// Adds the acknowledgement that is due to `sink`.
    fn next_reply(&mut self, max_length: usize, sink: &mut impl PacketSink) -> bool {
        if self.ended.is_none() {
            return self.responder.next_reply(max_length, sink);
        }
        match self.last_nak {
            Some((psn, code)) if self.is_nak_due && max_length >= ACKNOWLEDGE_LENGTH => {
                self.is_nak_due = false;
                self.responder.push_nak(psn, code, sink);
                true
            }
            _ => false,
        }
    }

    /// Adds the next request or response to a Read to `sink`.
    fn next_packet(&mut self, now: Instant, max_length: usize, sink: &mut impl PacketSink) -> bool {
        if self.ended.is_some() {
            return false;
        }
        if self.responder.is_response_lost() {
            self.slow_down(now, Congestion::Lost);
        }
        if !self.responses_first && self.requester.next_packet(now, max_length, sink) {
            return true;
        }
        let memory = &self.shared.memory;
        match self.responder.next_read_response(max_length, memory, sink) {
            Ok(true) => true,
            Ok(false) => self.responses_first && self.requester.next_packet(now, max_length, sink),
            Err(error) => {
                self.fail(error);
                false
            }
        }
    }

    /// Closes the queue pair for new work. Posted work continues.
    pub const fn close(&mut self) {
        self.closing = true;
    }

    /// Returns whether all work is finished in both directions, so that the connection can be
    /// released.
    pub fn is_drained(&self) -> bool {
        self.requester.outstanding() == 0 && self.responder.is_idle()
    }

    /// Ends the connection, unless it has ended already. All outstanding work completes as flushed.
    pub fn end(&mut self, how: Disconnect) {
        if self.ended.is_none() {
            self.flush();
            self.ended = Some(how);
        }
    }

    /// Returns whether the connection has ended.
    pub const fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// Returns whether the connection has ended because of an error.
    pub const fn is_broken(&self) -> bool {
        matches!(self.ended, Some(Disconnect::Broken(_)))
    }

    /// Breaks the connection, with a NAK if the error has one.
    #[cold]
    fn fail(&mut self, error: QueuePairError) {
        let psn = self.responder.nak_psn();
        self.last_nak = error.nak_code().map(|code| (psn, code));
        self.is_nak_due = self.last_nak.is_some();
        self.end(Disconnect::Broken(ProviderError::from(error)));
    }

    /// Completes all outstanding work as flushed.
    fn flush(&mut self) {
        //= ROCE-9.7.7-03
        self.requester.flush(&mut self.shared);
        while let Some(id) = self.shared.receives.pop() {
            self.shared.flush(id, None);
        }
        self.responder.clear();
        for work in mem::take(&mut self.late) {
            self.shared.flush_work(work);
        }
    }
}

/// Returns whether a packet is a request of a reliable connection.
const fn is_request(opcode: Opcode) -> bool {
    !opcode.is_response()
        && !matches!(
            opcode,
            Opcode::UdSendOnly | Opcode::UdSendOnlyImmediate | Opcode::CongestionNotification
        )
}
