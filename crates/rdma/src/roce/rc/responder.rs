//! The responder: executes the requests of the peer in order, and answers them (IBTA 9.7).
//!
//! Acknowledgements are cumulative. The responder keeps at most one, and sends it when the packets
//! that have arrived together are all processed. Responses to Reads precede it, because each
//! response acknowledges everything before it.
//!
//! A Read is acknowledged only by its response. A requester that repeats a request may lack the
//! responses to all later Reads, so the acknowledgement of a duplicate ends before the next Read.

use std::{
    collections::VecDeque,
    mem,
    time::{Duration, Instant},
};

use super::{
    error::QueuePairError,
    inbound_message::{Arrival, InboundMessage, address_of, out_of_sequence},
    pace::{Congestion, Pace},
    payload::Payload,
    rnr::{MAX_RNR_NAKS, RNR_TIMER},
    send_queue::{MAX_MESSAGE_BYTES, packets_of},
    settings::QueuePairSettings,
    shared::{PacketSink, Shared},
};
use crate::{
    memory::MemoryTable,
    roce::{
        packet::{Aeth, Bth, Extended, ICRC_LENGTH, NakCode, Opcode, Reth, Syndrome},
        psn::Psn,
    },
    software::pop_front_if,
    work::{Access, RemoteAddress},
};

/// The receiving half of a queue pair.
#[derive(Debug)]
pub(super) struct Responder {
    remote_qpn: u32,
    path_mtu: usize,
    responder_resources: usize,
    /// ePSN: the PSN of the next request packet.
    expected: Psn,
    /// MSN: the number of completed messages, 24 bits.
    message_sequence_number: u32,
    message: InboundMessage,
    /// The last Reads, oldest first: as many as the peer may have outstanding, so each Read that it
    /// can still repeat is one of them.
    reads: VecDeque<InboundRead>,
    /// The number of Reads with a response that is to be sent.
    unanswered: usize,
    /// The acknowledgement to send after the responses to Reads.
    reply: Option<Reply>,
    /// Whether packets after the expected one are dropped without another NAK.
    nak_sent: bool,
    /// The number of RNR NAKs since the last message.
    rnr_naks: u32,
    /// The maximum of the window of responses, in packets.
    max_responses: usize,
    /// The limit of responses after congestion.
    pace: Option<Pace>,
    /// The time at which the next response may be sent, if it is not now.
    paused_until: Option<Instant>,
    /// Whether a response was sent since congestion was last reported.
    has_responded: bool,
    /// Whether the peer has requested a Read again, so that a response may be lost.
    is_response_lost: bool,
}

/// A Read of the peer, with the response packets from `psn` to before `end`.
#[derive(Clone, Copy, Debug)]
struct InboundRead {
    psn: Psn,
    end: Psn,
    from: RemoteAddress,
    length: u32,
    /// The PSN after the last response packet that was sent at least once.
    sent: Psn,
    /// The rest of the response that is to be sent, if there is one.
    response: Option<Response>,
}

/// The rest of the response to a Read.
#[derive(Clone, Copy, Debug)]
struct Response {
    /// The PSN of the next response packet.
    psn: Psn,
    /// Where the next response packet begins.
    next: RemoteAddress,
    /// The bytes that are still to be sent.
    left: u32,
    /// Whether a response packet was sent.
    has_begun: bool,
}

impl InboundRead {
    /// Returns whether `read` asks for a part of this Read again. A requester that has received the
    /// beginning of the response asks for the rest.
    fn includes(&self, read: &Self, path_mtu: usize) -> bool {
        let packets = read.psn.distance(self.psn);
        let start = read.from.offset.wrapping_sub(self.from.offset);
        read.from.token == self.from.token
            && u64::try_from(packets).is_ok_and(|packets| packets * path_mtu as u64 == start)
            && start.saturating_add(read.length.into()) <= self.length.into()
            && read.end.distance(self.end) <= 0
    }

    /// Returns the whole response.
    const fn whole(&self) -> Response {
        Response {
            psn: self.psn,
            next: self.from,
            left: self.length,
            has_begun: false,
        }
    }

    /// Returns whether the response was sent in full at least once.
    fn was_answered(&self) -> bool {
        self.sent == self.end
    }
}

/// An acknowledgement that waits to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reply {
    /// An acknowledgement of everything up to this PSN.
    Ack(Psn),
    SequenceError,
    ReceiverNotReady,
}

impl Responder {
    /// Creates the responder of a new queue pair.
    pub(super) fn new(settings: &QueuePairSettings) -> Self {
        Self {
            remote_qpn: settings.remote_qpn,
            path_mtu: settings.path_mtu,
            responder_resources: settings.responder_resources as usize,
            expected: settings.expected_psn,
            message_sequence_number: 0,
            message: InboundMessage::default(),
            reads: VecDeque::new(),
            unanswered: 0,
            reply: None,
            nak_sent: false,
            rnr_naks: 0,
            max_responses: settings.max_in_flight / settings.path_mtu,
            pace: None,
            paused_until: None,
            has_responded: false,
            is_response_lost: false,
        }
    }

    /// Returns the number of the peer's queue pair.
    pub(super) const fn remote_qpn(&self) -> u32 {
        self.remote_qpn
    }

    /// Returns whether neither a response nor an acknowledgement waits to be sent.
    pub(super) fn is_idle(&self) -> bool {
        self.unanswered == 0 && self.reply.is_none()
    }

    /// Returns whether a response or an acknowledgement may be sent.
    pub(super) fn can_send(&self) -> bool {
        self.paused_until.is_none() && !self.is_idle()
    }

    /// Returns when [`resume`](Self::resume) has to be called.
    pub(super) const fn poll_timeout(&self) -> Option<Instant> {
        self.paused_until
    }

    /// Continues to send responses if it is time.
    #[inline]
    pub(super) fn resume(&mut self, now: Instant) {
        if self.pace.is_some() {
            self.resume_limited(now);
        }
    }

    #[cold]
    fn resume_limited(&mut self, now: Instant) {
        let Some(pace) = &mut self.pace else {
            return;
        };
        self.paused_until.take_if(|end| *end <= now);
        if !pace.advance(now) {
            self.pace = None;
            self.paused_until = None;
        }
    }

    /// Returns whether the peer has requested a Read again since the window of responses last shrank.
    pub(super) const fn is_response_lost(&self) -> bool {
        self.is_response_lost
    }

    /// Sends fewer responses because of congestion, unless none was sent since the last report.
    pub(super) fn slow_down(
        &mut self,
        now: Instant,
        round_trip: Option<Duration>,
        reason: Congestion,
    ) {
        //= ROCE-SW-08
        self.is_response_lost = false;
        if !mem::take(&mut self.has_responded) {
            return;
        }
        let max = self.max_responses;
        let pace = self
            .pace
            .get_or_insert_with(|| Pace::new(now, max, round_trip));
        pace.shrink(now, reason);
    }

    /// Returns whether the next packet is an acknowledgement.
    pub(super) fn has_reply(&self) -> bool {
        self.unanswered == 0 && self.reply.is_some()
    }

    /// Processes a request packet.
    pub(super) fn handle_request(
        &mut self,
        bth: &Bth,
        extended: &Extended,
        payload: Payload<'_>,
        shared: &mut Shared,
    ) -> Result<(), QueuePairError> {
        let distance = bth.psn.distance(self.expected);
        if distance > 0 {
            //= ROCE-9.7.5-09
            if !self.nak_sent {
                self.nak_sent = true;
                self.reply = Some(Reply::SequenceError);
            }
            return Ok(());
        }
        if distance < 0 {
            self.repeat(bth, extended, &shared.memory);
            return Ok(());
        }
        self.nak_sent = false;
        self.reply.take_if(|reply| !matches!(reply, Reply::Ack(_)));
        self.execute(bth, extended, payload, shared)
    }

    /// Answers a duplicate request. A request that was never executed has no effect.
    fn repeat(&mut self, bth: &Bth, extended: &Extended, memory: &MemoryTable) {
        use Opcode as Op;
        match (bth.opcode, extended) {
            (Op::ReadRequest, Extended::Reth(reth)) => self.repeat_read(bth.psn, reth, memory),
            (
                Op::SendFirst
                | Op::SendMiddle
                | Op::SendLast
                | Op::SendOnly
                | Op::SendLastInvalidate
                | Op::SendOnlyInvalidate
                | Op::WriteFirst
                | Op::WriteMiddle
                | Op::WriteLast
                | Op::WriteOnly,
                _,
            ) => self.acknowledge_again(bth.psn),
            _ => {}
        }
    }

    /// Acknowledges a duplicate of the Send or Write packet `psn`, and what was executed after it up
    /// to the next Read.
    fn acknowledge_again(&mut self, psn: Psn) {
        //= ROCE-9.7.5-10
        let next_read = self.reads.iter().find(|read| read.end.distance(psn) > 0);
        let end = next_read.map_or(self.expected, |read| read.psn);
        let last = end.add(u32::MAX);
        match &mut self.reply {
            None => self.reply = Some(Reply::Ack(last)),
            Some(Reply::Ack(known)) if last.distance(*known) > 0 => *known = last,
            Some(_) => {}
        }
    }

    /// Sends the response to a duplicate of a Read again.
    fn repeat_read(&mut self, psn: Psn, reth: &Reth, memory: &MemoryTable) {
        let again = self.read(psn, reth);
        // Half of all PSNs count as duplicates, so an attacker easily forges one. A request that does not
        // repeat a Read is therefore dropped without a NAK.
        //= ROCE-SW-04
        let path_mtu = self.path_mtu;
        let known = self
            .reads
            .iter()
            .position(|known| known.includes(&again, path_mtu));
        let Some(place) = known.filter(|_| check_read(reth, memory).is_ok()) else {
            return;
        };
        self.is_response_lost = true;
        //= ROCE-9.7.5-11
        let known = &mut self.reads[place];
        let start = again.from.offset.wrapping_sub(known.from.offset);
        known.response = Some(match known.response {
            // The part that is still to be sent includes the repeated part.
            Some(response) if response.psn.distance(psn) < 0 => response,
            Some(_) => Response {
                left: known.length - start as u32,
                ..again.whole()
            },
            None => {
                self.unanswered += 1;
                again.whole()
            }
        });
        // The peer accepts responses only in order, so it has dropped what was already sent of later responses.
        for later in self.reads.iter_mut().skip(place + 1) {
            later.response = later.response.map(|_| later.whole());
        }
        // The response acknowledges everything before it.
        self.reply
            .take_if(|reply| matches!(reply, Reply::Ack(last) if last.distance(psn) < 0));
    }

    /// Executes the expected request packet.
    fn execute(
        &mut self,
        bth: &Bth,
        extended: &Extended,
        payload: Payload<'_>,
        shared: &mut Shared,
    ) -> Result<(), QueuePairError> {
        use Opcode as Op;
        let arrival = match bth.opcode {
            Op::SendFirst
            | Op::SendMiddle
            | Op::SendLast
            | Op::SendOnly
            | Op::SendLastInvalidate
            | Op::SendOnlyInvalidate => {
                self.check_length(bth.opcode, payload.bytes.len())?;
                self.message.receive_send(bth, extended, payload, shared)?
            }
            Op::WriteFirst | Op::WriteMiddle | Op::WriteLast | Op::WriteOnly => {
                self.check_length(bth.opcode, payload.bytes.len())?;
                self.message
                    .receive_write(bth, extended, payload.bytes, shared)?
            }
            Op::ReadRequest => return self.begin_read(bth, extended, payload.bytes, shared),
            //= ROCE-9.7.4-09
            other => return Err(QueuePairError::Unsupported(other)),
        };
        if arrival == Arrival::NoReceive {
            return self.refuse_send();
        }
        self.advance_to(bth.psn.add(1));
        if arrival == Arrival::Message {
            self.complete_message();
        }
        //= ROCE-9.7.5-12
        if bth.ack_request || self.reply == Some(Reply::Ack(bth.psn.add(u32::MAX))) {
            self.reply = Some(Reply::Ack(bth.psn));
        }
        Ok(())
    }

    /// Expects the packet `next`, and forgets each Read that is then at least half of the PSN space behind. The
    /// peer can no longer repeat such a Read, and its PSN would count as a later one.
    fn advance_to(&mut self, next: Psn) {
        self.expected = next;
        while let Some(oldest) = self.reads.front()
            && oldest.psn.distance(next) >= 0
        {
            self.unanswered -= usize::from(oldest.response.is_some());
            self.reads.pop_front();
        }
    }

    /// Answers a Send that finds no receive.
    fn refuse_send(&mut self) -> Result<(), QueuePairError> {
        self.rnr_naks += 1;
        //= ROCE-SW-02
        if self.rnr_naks > MAX_RNR_NAKS {
            return Err(QueuePairError::NoReceive);
        }
        //= ROCE-9.7.5-13
        self.reply = Some(Reply::ReceiverNotReady);
        self.nak_sent = true;
        Ok(())
    }

    /// Counts a message that is completed.
    const fn complete_message(&mut self) {
        //= ROCE-9.7.7-02
        self.message_sequence_number = (self.message_sequence_number + 1) & 0xff_ffff;
        self.rnr_naks = 0;
    }

    /// Checks the length of a payload against the place of its packet in the message.
    fn check_length(&self, opcode: Opcode, length: usize) -> Result<(), QueuePairError> {
        let path_mtu = self.path_mtu;
        //= ROCE-9.7.4-02
        let is_valid = match opcode {
            Opcode::SendFirst | Opcode::SendMiddle | Opcode::WriteFirst | Opcode::WriteMiddle => {
                length == path_mtu
            }
            Opcode::SendLast | Opcode::SendLastInvalidate | Opcode::WriteLast => {
                (1..=path_mtu).contains(&length)
            }
            _ => length <= path_mtu,
        };
        if is_valid {
            Ok(())
        } else {
            Err(QueuePairError::PayloadLength {
                opcode,
                length,
                path_mtu,
            })
        }
    }

    /// Queues the response to a Read.
    fn begin_read(
        &mut self,
        bth: &Bth,
        extended: &Extended,
        payload: &[u8],
        shared: &Shared,
    ) -> Result<(), QueuePairError> {
        let (Extended::Reth(reth), true) = (extended, self.message.is_between()) else {
            return Err(out_of_sequence(bth.opcode, true));
        };
        if !payload.is_empty() {
            return Err(QueuePairError::PayloadLength {
                opcode: bth.opcode,
                length: payload.len(),
                path_mtu: self.path_mtu,
            });
        }
        //= ROCE-9.7.7-01
        if reth.length > MAX_MESSAGE_BYTES {
            return Err(QueuePairError::TooLong(reth.length));
        }
        check_read(reth, &shared.memory)?;
        self.make_room_for_read()?;
        let mut read = self.read(bth.psn, reth);
        read.response = Some(read.whole());
        self.advance_to(read.end);
        self.reads.push_back(read);
        self.unanswered += 1;
        self.complete_message();
        // The response acknowledges everything before it.
        self.reply = None;
        Ok(())
    }

    /// Forgets the oldest Read if the peer has as many outstanding as it may have. By sending another Read, the
    /// peer shows that it has received the whole response to the oldest one.
    fn make_room_for_read(&mut self) -> Result<(), QueuePairError> {
        if self.reads.len() < self.responder_resources {
            return Ok(());
        }
        //= ROCE-9.7.4-10
        let Some(oldest) = pop_front_if(&mut self.reads, |oldest| oldest.was_answered()) else {
            let granted = self.responder_resources as u32;
            return Err(QueuePairError::TooManyReads { granted });
        };
        self.unanswered -= usize::from(oldest.response.is_some());
        Ok(())
    }

    /// Returns the Read that a request asks for.
    const fn read(&self, psn: Psn, reth: &Reth) -> InboundRead {
        let packets = packets_of(reth.length as usize, self.path_mtu);
        InboundRead {
            psn,
            //= ROCE-9.7.2-02
            end: psn.add(packets as u32),
            from: address_of(reth),
            length: reth.length,
            sent: psn,
            response: None,
        }
    }

    /// Adds the next packet of the oldest response to `sink`, if there is one and its UDP payload is
    /// at most `max_length` bytes. Returns whether it did.
    pub(super) fn next_read_response(
        &mut self,
        max_length: usize,
        memory: &MemoryTable,
        sink: &mut impl PacketSink,
    ) -> Result<bool, QueuePairError> {
        if self.unanswered == 0 || self.paused_until.is_some() {
            return Ok(false);
        }
        let next = self.reads.iter_mut().find(|read| read.response.is_some());
        let Some(known) = next else {
            return Ok(false);
        };
        let was_answered = known.was_answered();
        let Some(read) = &mut known.response else {
            return Ok(false);
        };
        let length = read.left.min(self.path_mtu as u32);
        //= ROCE-9.7.4-04
        let opcode = match (read.has_begun, length == read.left) {
            (false, true) => Opcode::ReadResponseOnly,
            (false, false) => Opcode::ReadResponseFirst,
            (true, false) => Opcode::ReadResponseMiddle,
            (true, true) => Opcode::ReadResponseLast,
        };
        let headers = Bth::LENGTH + opcode.layout().length();
        if headers + (length as usize).next_multiple_of(4) + ICRC_LENGTH > max_length {
            return Ok(false);
        }
        let bth = Bth::new(opcode, self.remote_qpn, read.psn);
        let extended = match opcode {
            Opcode::ReadResponseMiddle => Extended::Plain,
            _ => Extended::Aeth(Aeth {
                syndrome: ACKNOWLEDGED,
                message_sequence_number: self.message_sequence_number,
            }),
        };
        if length == 0 {
            sink.push(&bth, &extended, [&[], &[]]);
        } else {
            // The right to read may have ended since the request arrived.
            match memory.read(read.next, length) {
                Ok(data) => sink.push(&bth, &extended, [data.as_ref(), &[]]),
                // A late copy of a request whose response has arrived is no fault of the peer.
                Err(_) if was_answered => {
                    known.response = None;
                    self.unanswered -= 1;
                    return self.next_read_response(max_length, memory, sink);
                }
                Err(fault) => return Err(QueuePairError::ReadSource(fault)),
            }
        }
        self.has_responded = true;
        if let Some(pace) = &mut self.pace {
            self.paused_until = pace.count();
        }
        read.has_begun = true;
        read.psn = read.psn.add(1);
        read.left -= length;
        read.next.offset = read.next.offset.wrapping_add(u64::from(length));
        let (psn, is_complete) = (read.psn, read.left == 0);
        if psn.distance(known.sent) > 0 {
            known.sent = psn;
        }
        if is_complete {
            known.response = None;
            self.unanswered -= 1;
        }
        Ok(true)
    }

    /// Adds the acknowledgement that waits to `sink`, if there is one and `max_length` has room for
    /// it. Returns whether it did.
    pub(super) fn next_reply(&mut self, max_length: usize, sink: &mut impl PacketSink) -> bool {
        if !self.has_reply() || max_length < ACKNOWLEDGE_LENGTH {
            return false;
        }
        let Some(reply) = self.reply.take() else {
            return false;
        };
        //= ROCE-9.7.5-14
        let (psn, syndrome) = match reply {
            Reply::Ack(last) => (last, ACKNOWLEDGED),
            Reply::SequenceError => (self.expected, Syndrome::Nak(NakCode::PsnSequenceError)),
            Reply::ReceiverNotReady => (self.expected, Syndrome::RnrNak { timer: RNR_TIMER }),
        };
        self.push_acknowledge(psn, syndrome, sink);
        true
    }

    /// Returns the PSN of a NAK that ends the connection: that of the first packet which is not
    /// executed, or whose response is not sent.
    pub(super) fn nak_psn(&self) -> Psn {
        //= ROCE-9.7.5-16
        let unanswered = self.reads.iter().find(|read| !read.was_answered());
        unanswered.map_or(self.expected, |read| read.sent)
    }

    /// Adds a NAK that ends the connection to `sink`.
    pub(super) fn push_nak(&self, psn: Psn, code: NakCode, sink: &mut impl PacketSink) {
        self.push_acknowledge(psn, Syndrome::Nak(code), sink);
    }

    fn push_acknowledge(&self, psn: Psn, syndrome: Syndrome, sink: &mut impl PacketSink) {
        let bth = Bth::new(Opcode::Acknowledge, self.remote_qpn, psn);
        let message_sequence_number = self.message_sequence_number;
        let extended = Extended::Aeth(Aeth {
            syndrome,
            message_sequence_number,
        });
        sink.push(&bth, &extended, [&[], &[]]);
    }

    /// Drops all responses.
    pub(super) fn clear(&mut self) {
        self.reads.clear();
        self.unanswered = 0;
        self.reply = None;
        self.paused_until = None;
    }
}

/// Checks the right to read. A Read of no bytes needs none.
fn check_read(reth: &Reth, memory: &MemoryTable) -> Result<(), QueuePairError> {
    //= ROCE-9.7.4-08
    if reth.length == 0 {
        return Ok(());
    }
    //= ROCE-9.7.4-07
    memory
        .check(address_of(reth), reth.length, Access::REMOTE_READ)
        .map_err(QueuePairError::ReadSource)
}

/// The syndrome of positive acknowledgements. Receives are not reported as credits, because SMB
/// Direct has credits of its own.
const ACKNOWLEDGED: Syndrome = Syndrome::Ack {
    credit: Syndrome::NO_CREDIT,
};
/// The UDP payload length of an acknowledgement, in bytes.
pub(super) const ACKNOWLEDGE_LENGTH: usize = Bth::LENGTH + Aeth::LENGTH + ICRC_LENGTH;
