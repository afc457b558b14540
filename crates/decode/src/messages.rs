//! An iWARP connection: startup, and the messages that DDP segments form.

mod startup;
mod tagged;

use std::collections::VecDeque;

use smbdirect::rdma::iwarp::{
    ddp::{DdpError, Header, Untagged},
    mpa::{Enhanced, StartupFrame},
    rdmap::{
        Opcode, QUEUE_READ_REQUEST, QUEUE_SEND, QUEUE_TERMINATE, RdmapError, ReadRequest, Terminate,
    },
};

use super::{
    event::{Broken, Detail, EventKind, Extra, Tagged, Told, broken},
    framing::{Crc, Fpdu, Frame, Framer},
    per_end::{PerEnd, Side},
    smb::{Context, Send, SmbDirect},
    tcp::{Piece, Position},
};

/// Receives an event and its direction.
pub(super) type EventSink<'a> = &'a mut dyn FnMut(Side, Told, &ConnectionState);

/// The state of the connection as a whole.
#[derive(Debug, Default)]
pub(super) struct ConnectionState {
    /// The direction of the end that connected.
    pub(super) initiator: Option<Side>,
    /// Whether its first packets are in the capture.
    pub(super) from_start: bool,
    pub(super) smb: SmbDirect,
}

/// An iWARP connection.
#[derive(Debug, Default)]
pub(super) struct Iwarp {
    framers: PerEnd<Framer>,
    state: State,
}

#[derive(Debug, Default)]
struct State {
    connection: ConnectionState,
    directions: PerEnd<DirectionState>,
    /// Whether CRCs are in use.
    crc: Option<bool>,
    refused: bool,
    /// Whether the port or the content shows that the connection is iWARP.
    expected: bool,
    /// Whether the connection is certainly iWARP, and is reported.
    confirmed: bool,
    /// The content that events carry.
    detail: Detail,
}

/// The state of a direction.
#[derive(Debug, Default)]
struct DirectionState {
    /// Whether its first packet is in the capture.
    from_start: bool,
    /// Whether all of it so far is in the capture, from the startup frame on.
    whole: bool,
    /// Whether the current FPDU is all in the capture, and is one, because the direction is whole or its CRC is right.
    is_certain: bool,
    startup: Option<StartupFrame>,
    has_fpdus: bool,
    /// The next message number of each queue, if it is known.
    next: [Option<u32>; 3],
    sending: Option<Sending>,
    placing: Option<Placing>,
    /// The packet with the first byte of the current FPDU.
    fpdu_began: Position,
    /// Unanswered Reads; `None` if some were not captured.
    reads: Option<VecDeque<ReadRequest>>,
    terminated: bool,
}

/// A Send without its last segment so far.
#[derive(Debug, Default)]
struct Sending {
    send: Send,
    /// The packet with its first byte.
    began: Position,
}

/// A Write or Read Response without its last segment so far.
#[derive(Clone, Copy, Debug)]
struct Placing {
    opcode: Opcode,
    tagged: Tagged,
    /// Whether its first segment is in the capture.
    whole: bool,
    /// The packet with its first byte.
    began: Position,
}

/// Maximum number of Reads outstanding in one direction, the largest depth of 14 bits.
const MAX_READS: usize = 1 << 14;
const DDP_RESERVED: u8 = 0x3c;

impl Iwarp {
    /// Creates a connection whose events carry this much content.
    pub(super) fn new(detail: Detail) -> Self {
        let mut iwarp = Self::default();
        iwarp.state.detail = detail;
        iwarp
    }

    /// Handles the beginning of a direction.
    fn begins(&mut self, side: Side, is_initiator: bool) {
        let state = &mut self.state;
        state.directions[side].from_start = true;
        state.connection.from_start = true;
        state.connection.initiator = Some(if is_initiator { side } else { !side });
    }

    /// Treats the connection as iWARP that `initiator` opened, even if its beginning is not in the
    /// capture.
    pub(super) fn expect(&mut self, initiator: Side) {
        self.state.expected = true;
        self.state.connection.initiator.get_or_insert(initiator);
    }

    /// Returns the direction of the end that connected, if it is known.
    pub(super) const fn initiator(&self) -> Option<Side> {
        self.state.connection.initiator
    }

    /// Handles the next piece of a direction. Returns false if it is not iWARP.
    pub(super) fn piece(
        &mut self,
        side: Side,
        piece: &Piece<'_>,
        position: Position,
        sink: EventSink<'_>,
    ) -> bool {
        if let Piece::Begins { connects } = *piece {
            self.begins(side, connects);
            return true;
        }
        // What the headers of an FPDU say is known, also if the next one is cut with it.
        if let Piece::Cut(bytes) = *piece
            && let Some(known) = self.framers[side].ends_within_cut(bytes)
        {
            return self.piece(side, &Piece::Cut(known), position, sink)
                && self.piece(side, &Piece::Cut(bytes - known), position, sink);
        }
        let Self { framers, state } = self;
        if framers[side].is_between_frames() {
            state.directions[side].fpdu_began = position;
        }
        // The headers of a packet that is cut say how long the rest is.
        let gap = match *piece {
            Piece::Gap(bytes) => Some(bytes),
            Piece::Cut(bytes) => (!framers[side].survives_cut(bytes)).then_some(bytes),
            _ => None,
        };
        framers[side].take(piece);
        if let Some(bytes) = gap {
            if !state.expected {
                return false;
            }
            state.finish_placing(side, Vec::new(), sink);
            let is_cut = matches!(piece, Piece::Cut(_));
            let extra = Extra {
                hidden: is_cut.then(|| bytes + framers[side].take_passed()),
                ..Extra::default()
            };
            state.emit(side, (EventKind::Gap { bytes }, Vec::new(), extra), sink);
            state.lost(side, sink);
        }
        while let Some(frame) = framers[side].next(state.crc) {
            match frame {
                Frame::Foreign if !state.expected => return false,
                Frame::Foreign if state.directions[side].from_start => {
                    state.foreign(side, sink);
                    framers[side].stop();
                }
                Frame::Foreign => framers[side].search(),
                Frame::Startup {
                    kind,
                    flags,
                    result,
                } => {
                    if let Some(stopped) = state.startup(side, kind, flags, result, sink) {
                        let stopped_directions =
                            Side::BOTH.into_iter().filter(|&side| stopped[side]);
                        stopped_directions.for_each(|side| framers[side].stop());
                    }
                }
                Frame::Fpdu(fpdu) => {
                    state.fpdu(side, &fpdu, sink);
                    state.directions[side].fpdu_began = position;
                }
                Frame::InStep { skipped } => {
                    // Bytes before the gap give no information about the bytes after it.
                    state.lost(side, sink);
                    state.confirmed = true;
                    if skipped > 0 {
                        state.emit(
                            side,
                            EventKind::InStep {
                                passed_over: skipped,
                            },
                            sink,
                        );
                    }
                }
            }
        }
        if let Piece::End { reset } = *piece {
            let between = framers[side].is_between_frames();
            state.end(side, reset, between, sink);
        }
        true
    }
}

impl State {
    /// Reports an event. A connection that is not known to be iWARP is not reported.
    fn emit(&self, side: Side, told: impl Into<Told>, sink: EventSink<'_>) {
        if self.confirmed {
            let told = told.into().certain(self.directions[side].is_certain);
            sink(side, told, &self.connection);
        }
    }

    /// Handles a loss, or bytes that were not understood, in this direction.
    fn lost(&mut self, side: Side, sink: EventSink<'_>) {
        self.finish_placing(side, Vec::new(), sink);
        let this = &mut self.directions[side];
        this.from_start = false;
        this.whole = false;
        this.next = [None; 3];
        this.sending = None;
        this.reads = None;
        self.directions[!side].reads = None;
        self.connection.smb.lost(side);
    }

    fn fpdu(&mut self, side: Side, fpdu: &Fpdu<'_>, sink: EventSink<'_>) {
        let mut faults = Vec::new();
        let this = &mut self.directions[side];
        this.is_certain = match fpdu.crc {
            Crc::Right => true,
            Crc::Unseen => false,
            Crc::Zero | Crc::Wrong => this.whole,
        };
        self.check_moment(side, &mut faults);
        let is_first = !std::mem::replace(&mut self.directions[side].has_fpdus, true);
        if !fpdu.padding_is_zero {
            let how = "padding of other bytes than 0";
            faults.push(broken("MPA-23", how));
        }
        if !self.check_crc(fpdu, &mut faults) {
            // Nothing in it can be trusted.
            self.undecoded(side, fpdu, faults, sink);
            return;
        }
        match Header::decode(fpdu.ulpdu) {
            Ok((header, payload)) => {
                let Some(opcode) = check_control(&header, fpdu.ulpdu, &mut faults) else {
                    self.undecoded(side, fpdu, faults, sink);
                    return;
                };
                let headers = fpdu.ulpdu.len() - payload.len();
                let segment = Segment {
                    opcode,
                    payload,
                    length: u32::from(fpdu.ulpdu_length).saturating_sub(headers as u32),
                };
                if is_first && self.ready_to_receive(side, &header, &segment, &mut faults, sink) {
                    return;
                }
                match header {
                    Header::Tagged(header) => self.tagged(side, header, segment, faults, sink),
                    Header::Untagged(header) => {
                        self.untagged(side, header, segment, faults, sink);
                    }
                }
            }
            Err(error) => {
                let rule = match error {
                    DdpError::TooShort { .. } => "MPA-25",
                    DdpError::TaggedVersion(_) | DdpError::UntaggedVersion(_) => "DDP-01",
                };
                faults.push(broken(rule, error.to_string()));
                self.undecoded(side, fpdu, faults, sink);
            }
        }
    }

    fn undecoded(&mut self, side: Side, fpdu: &Fpdu<'_>, faults: Vec<Broken>, sink: EventSink<'_>) {
        let ulpdu_length = fpdu.ulpdu_length;
        self.emit(side, (EventKind::BadFpdu { ulpdu_length }, faults), sink);
        self.lost(side, sink);
    }

    /// Checks that an FPDU may be sent in this direction at this point.
    fn check_moment(&self, side: Side, faults: &mut Vec<Broken>) {
        let mut fault = |rule, how: &str| faults.push(broken(rule, how));
        let (this, other) = (&self.directions[side], &self.directions[!side]);
        if this.terminated {
            fault("RDMAP-18", "an FPDU after the Terminate");
        }
        if self.refused {
            fault("MPA-29", "an FPDU after a Reply that refuses");
        }
        if this.has_fpdus {
            return;
        }
        if self.connection.initiator == Some(side) {
            // If the other direction was captured from its start and is still empty, the Reply has not been sent.
            if other.from_start && other.startup.is_none() && !other.has_fpdus && this.whole {
                fault("MPA-06", "an FPDU before the Reply");
            }
        } else if this.whole && other.whole && !other.has_fpdus {
            fault("MPA-07", "an FPDU before the first of the initiator");
        }
    }

    /// Checks the CRC, or learns whether CRCs are in use. Returns false if it is wrong.
    fn check_crc(&mut self, fpdu: &Fpdu<'_>, faults: &mut Vec<Broken>) -> bool {
        let mut fault = |rule, how: &str| faults.push(broken(rule, how));
        match (self.crc, fpdu.crc) {
            (_, Crc::Unseen) => {}
            (Some(true), Crc::Zero) => fault("MPA-19", "a CRC of zeros where CRCs are on"),
            (Some(true), Crc::Wrong) => fault("MPA-21", "a wrong CRC"),
            (Some(false), Crc::Right | Crc::Wrong) => {
                fault("MPA-20", "a CRC that is not zeros where CRCs are off");
            }
            (None, Crc::Right) => self.crc = Some(true),
            (None, Crc::Zero) => self.crc = Some(false),
            _ => {}
        }
        self.crc != Some(true) || !matches!(fpdu.crc, Crc::Zero | Crc::Wrong)
    }

    /// The first FPDU of the initiator may be a Ready to Receive frame.
    fn ready_to_receive(
        &mut self,
        side: Side,
        header: &Header,
        segment: &Segment<'_>,
        faults: &mut Vec<Broken>,
        sink: EventSink<'_>,
    ) -> bool {
        let reply = self.directions[!side].startup.as_ref();
        let Some(enhanced) = reply.and_then(|reply| reply.enhanced) else {
            return false;
        };
        let is_initiator = self.connection.initiator == Some(side) && self.directions[side].whole;
        if !is_initiator || !enhanced.peer_to_peer {
            return false;
        }
        let is_empty = match segment.opcode {
            Opcode::RdmaReadRequest => ReadRequest::decode(segment.payload)
                .is_ok_and(|request| request.read_message_size == 0),
            _ => segment.length == 0,
        };
        let name = match segment.opcode {
            Opcode::RdmaWrite if is_empty && enhanced.rtr_write => "RDMA Write",
            Opcode::RdmaReadRequest if is_empty && enhanced.rtr_read => "RDMA Read Request",
            Opcode::Send if is_empty && enhanced.rtr_send => "Send",
            _ => {
                let how = "the first FPDU is not a ready-to-receive frame that the Reply chose";
                faults.push(broken("EST-03", how));
                return false;
            }
        };
        // It counts as a message of its queue.
        if let Header::Untagged(header) = header {
            self.check_number(side, header, faults);
        }
        if let Ok(request) = ReadRequest::decode(segment.payload)
            && let Some(reads) = &mut self.directions[side].reads
        {
            reads.push_back(request);
        }
        let faults = std::mem::take(faults);
        self.emit(side, (EventKind::ReadyToReceive { by: name }, faults), sink);
        true
    }

    fn untagged(
        &mut self,
        side: Side,
        header: Untagged,
        segment: Segment<'_>,
        mut faults: Vec<Broken>,
        sink: EventSink<'_>,
    ) {
        if self.directions[side].placing.is_some() {
            let how = "an untagged segment within a Write or a Read Response";
            faults.push(broken("DDP-10", how));
            self.finish_placing(side, Vec::new(), sink);
        }
        let queue = segment.opcode.queue_number();
        if header.queue_number != queue {
            let how = format!("{} in queue {}", name(segment.opcode), header.queue_number);
            faults.push(broken("DDP-06", how));
        }
        match segment.opcode {
            Opcode::RdmaReadRequest => {
                self.read_request(side, &header, &segment, faults, sink);
            }
            Opcode::Terminate => {
                self.check_number(side, &header, &mut faults);
                let terminate = Terminate::decode(segment.payload);
                check_terminate(&terminate, &mut faults);
                self.directions[side].terminated = true;
                self.emit(side, (EventKind::Terminate(terminate), faults), sink);
            }
            _ => self.send(side, &header, &segment, faults, sink),
        }
    }

    fn read_request(
        &mut self,
        side: Side,
        header: &Untagged,
        segment: &Segment<'_>,
        mut faults: Vec<Broken>,
        sink: EventSink<'_>,
    ) {
        if self.directions[side].sending.is_some() {
            let how = "a Read Request within a Send";
            faults.push(broken("DDP-10", how));
        }
        self.check_number(side, header, &mut faults);
        if header.message_offset != 0 || !header.last {
            let how = "a Read Request of more than one segment";
            faults.push(broken("RDMAP-03", how));
        }
        let Ok(request) = ReadRequest::decode(segment.payload) else {
            let length = segment.length;
            if length != ReadRequest::LENGTH as u32 {
                let how = format!("a Read Request with {length} bytes of payload");
                faults.push(broken("MPA-25", how));
            }
            let kind = EventKind::Headless {
                name: "RDMA Read Request",
                length: length.into(),
            };
            self.directions[side].reads = None;
            self.emit(side, (kind, faults), sink);
            return;
        };
        let granted = self.directions[!side]
            .startup
            .as_ref()
            .and_then(granted_reads);
        if let Some(reads) = &mut self.directions[side].reads {
            reads.push_back(request);
            if let Some(granted) = granted
                && reads.len() > granted.into()
            {
                let how = format!("{} Reads outstanding, IRD {granted}", reads.len());
                faults.push(broken("RDMAP-05", how));
            }
            if reads.len() > MAX_READS {
                self.directions[side].reads = None;
            }
        }
        self.emit(side, (EventKind::ReadRequest(request), faults), sink);
    }

    fn send(
        &mut self,
        side: Side,
        header: &Untagged,
        segment: &Segment<'_>,
        mut faults: Vec<Broken>,
        sink: EventSink<'_>,
    ) {
        let number = header.message_sequence_number;
        let before = self.directions[side].sending.take();
        let mut sending = match before {
            Some(before) if before.send.message_sequence_number == number => before,
            before => {
                if before.is_some() {
                    let how = format!("message {number} begins before the last one has ended");
                    faults.push(broken("DDP-10", how));
                }
                let expected = self.directions[side].next[QUEUE_SEND as usize];
                self.check_number(side, header, &mut faults);
                // The capture begins within the message, so its earlier part is unknown.
                let whole = header.message_offset == 0 || expected.is_some();
                let mut sending = Sending {
                    began: self.directions[side].fpdu_began,
                    ..Sending::default()
                };
                sending.send.message_sequence_number = number;
                sending.send.whole = whole;
                if !whole {
                    sending.send.length = header.message_offset.into();
                }
                sending
            }
        };
        let send = &mut sending.send;
        let offset = u64::from(header.message_offset);
        if offset != send.length {
            let how = format!("message offset {offset} where {} is next", send.length);
            faults.push(broken("DDP-05", how));
        }
        let room = self.detail.max_send_bytes().saturating_sub(send.head.len());
        if send.whole && send.head.len() as u64 == send.length {
            let kept = segment.payload.len().min(room);
            send.head.extend_from_slice(&segment.payload[..kept]);
        }
        send.length += u64::from(segment.length);
        if segment.opcode.invalidates() {
            send.invalidated = Some(header.rsvd_ulp);
        }
        if !header.last {
            self.directions[side].sending = Some(sending);
            if !faults.is_empty() {
                let note = "a segment of a message that continues";
                self.emit(side, (EventKind::Note { note }, faults), sink);
            }
            return;
        }
        let mut context = Context {
            side,
            initiator: self.connection.initiator,
            whole: PerEnd(self.directions.each_ref().map(|state| state.whole)),
            is_ordered: true,
        };
        let kind = self
            .connection
            .smb
            .message(&sending.send, &mut context, &mut faults);
        self.connection.initiator = context.initiator;
        let extra = Extra {
            began: Some(sending.began),
            content: sending.send.head,
            ..Extra::default()
        };
        self.emit(side, (kind, faults, extra), sink);
    }

    /// Checks the message number of a queue.
    fn check_number(&mut self, side: Side, header: &Untagged, faults: &mut Vec<Broken>) {
        let number = header.message_sequence_number;
        let queue = header.queue_number;
        if ![QUEUE_SEND, QUEUE_READ_REQUEST, QUEUE_TERMINATE].contains(&queue) {
            return;
        }
        let next = &mut self.directions[side].next[queue as usize];
        if let Some(expected) = next.replace(number.wrapping_add(1))
            && expected != number
        {
            let how = format!("message {number} of queue {queue} where {expected} is next");
            faults.push(broken("DDP-04", how));
        }
    }

    /// Handles the end of TCP in this direction.
    fn end(&mut self, side: Side, reset: bool, between: bool, sink: EventSink<'_>) {
        let mut faults = Vec::new();
        let this = &self.directions[side];
        let in_progress = this.sending.is_some() || this.placing.is_some();
        if !reset && this.whole && !this.terminated {
            if !between {
                let how = "TCP ends within an FPDU";
                faults.push(broken("MPA-34", how));
            } else if in_progress {
                let how = "TCP ends before the last segment of a message";
                faults.push(broken("DDP-09", how));
            }
        }
        self.finish_placing(side, Vec::new(), sink);
        self.emit(side, (EventKind::Closed { reset }, faults), sink);
    }
}

/// A segment after its DDP header.
#[derive(Clone, Copy, Debug)]
struct Segment<'a> {
    opcode: Opcode,
    /// The part in the capture.
    payload: &'a [u8],
    length: u32,
}

/// Returns the kind of a segment by its control bytes, if they make sense.
fn check_control(header: &Header, ulpdu: &[u8], faults: &mut Vec<Broken>) -> Option<Opcode> {
    let control = ulpdu.first().copied().unwrap_or_default();
    if control & DDP_RESERVED != 0 {
        faults.push(broken("DDP-02", format!("control byte 0x{control:02x}")));
    }
    match Opcode::of(header) {
        Ok(opcode) => Some(opcode),
        Err(error) => {
            let rule = match error {
                RdmapError::Version(_) => "RDMAP-01",
                RdmapError::Opcode(8..) => "RDMAP-02",
                RdmapError::Opcode(_) | RdmapError::Length { .. } => "DDP-03",
            };
            faults.push(broken(rule, error.to_string()));
            None
        }
    }
}

/// Returns how many Reads the other end may have outstanding, if a startup frame says so.
fn granted_reads(frame: &StartupFrame) -> Option<u16> {
    let ird = frame.enhanced?.ird;
    (ird != Enhanced::NOT_NEGOTIATED && ird != 0).then_some(ird)
}

/// Checks for a code that was written with its halves swapped: it has a meaning only in that order.
fn check_terminate(terminate: &Terminate, faults: &mut Vec<Broken>) {
    let (code, swapped) = (terminate.code(), terminate.code_of_siw());
    if code.meaning().is_none() && swapped.meaning().is_some() {
        let how = format!(
            "layer and error type are swapped, for {}/{}/{}",
            swapped.layer, swapped.error_type, swapped.error_code
        );
        faults.push(broken("RDMAP-19", how));
    }
}

const fn name(opcode: Opcode) -> &'static str {
    match opcode {
        Opcode::RdmaWrite => "an RDMA Write",
        Opcode::RdmaReadRequest => "a Read Request",
        Opcode::RdmaReadResponse => "a Read Response",
        Opcode::Send | Opcode::SendSolicited => "a Send",
        Opcode::SendInvalidate | Opcode::SendSolicitedInvalidate => "a Send with Invalidate",
        Opcode::Terminate => "a Terminate",
    }
}
