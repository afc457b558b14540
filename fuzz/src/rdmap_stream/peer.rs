//! An arbitrary peer, and the rules that make its segments valid or invalid.

use std::collections::VecDeque;

use bytes::Bytes;
use smbdirect::rdma::{
    iwarp::{
        StreamConfig,
        ddp::{Header, Tagged, Untagged},
        mpa::Fpdu,
        rdmap::{Opcode, ReadRequest},
    },
    work::{Access, Token, WorkId},
};

use super::{Posted, Region, pattern};
use crate::input::Input;

/// Maximum number of bytes sent by the peer and not delivered. More would only be slower.
const MAX_WAITING: usize = 400_000;

pub(super) struct Peer {
    crc: bool,
    max_inbound_reads: usize,
    /// Memory of the machine for which the peer has a token.
    pub(super) regions: Vec<Region>,
    /// Bytes sent and not delivered.
    waiting: Vec<u8>,
    /// Bytes delivered and not checked: an incomplete FPDU, or the bytes that ended the stream.
    unjudged: Vec<u8>,
    /// Whether the stream has ended.
    silent: bool,
    /// Whether the expected state of the machine is unknown, because a request or response of its
    /// own was made and had not reached the peer when it mattered.
    lost: bool,

    // The numbers of the next valid segment.
    speaking_send: u32,
    speaking_offset: u32,
    speaking_read_request: u32,

    // The segments that the machine has accepted.
    next_send: u32,
    next_read_request: u32,
    /// The payload so far of the Send that is arriving.
    assembled: Option<Vec<u8>>,
    write_open: bool,
    /// Messages that took a receive and have not completed yet.
    messages: VecDeque<(Vec<u8>, Option<Token>)>,
    /// Read Requests of the machine without a complete response.
    asked: VecDeque<Asked>,
    /// Reads whose last byte has arrived and that have not completed.
    answered: VecDeque<Asked>,
    /// Read Requests of the peer without a complete response.
    asking: VecDeque<ReadRequest>,
    /// Bytes received of the response to the oldest request in `asking`.
    heard: usize,
}

/// An RDMA Read by the machine.
struct Asked {
    id: Option<WorkId>,
    sink_stag: u32,
    content: Vec<u8>,
    length: usize,
}

#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    Right,
    Wrong,
    Unknown,
}

impl Peer {
    pub(super) fn new(config: &StreamConfig) -> Self {
        Self {
            crc: config.crc,
            max_inbound_reads: config.max_inbound_reads as usize,
            regions: Vec::new(),
            waiting: Vec::new(),
            unjudged: Vec::new(),
            silent: false,
            lost: false,
            speaking_send: 1,
            speaking_offset: 0,
            speaking_read_request: 1,
            next_send: 1,
            next_read_request: 1,
            assembled: None,
            write_open: false,
            messages: VecDeque::new(),
            asked: VecDeque::new(),
            answered: VecDeque::new(),
            asking: VecDeque::new(),
            heard: 0,
        }
    }
}

// Sending.
impl Peer {
    /// Sends a segment that is most likely valid.
    pub(super) fn speak(&mut self, input: &mut Input<'_>) {
        if self.waiting.len() > MAX_WAITING {
            return;
        }
        let mut ulpdu = match input.up_to(7) {
            0..=2 => self.a_write(input),
            3 => self.a_read_response(input),
            4 => self.a_read_request(input),
            5 => self.a_send(input),
            6 => {
                let length = input.byte().into();
                input.bytes(length).to_vec()
            }
            _ if input.up_to(3) == 3 => {
                // Not an FPDU.
                let length = input.byte().into();
                return self.waiting.extend_from_slice(input.bytes(length));
            }
            _ => self.a_send(input),
        };
        let fault = input.byte();
        if fault >= 240 && !ulpdu.is_empty() {
            let at = usize::from(input.byte()) % ulpdu.len().min(50);
            ulpdu[at] ^= 1 << (fault % 8);
        }
        if fault == 239 {
            ulpdu.truncate(input.byte().into());
        }
        let start = self.waiting.len();
        Fpdu::encode(&[&ulpdu], self.crc, &mut self.waiting);
        if fault == 238 {
            let length = self.waiting.len() - start;
            self.waiting[start + length - 1 - usize::from(input.byte()) % length] ^= 1;
        }
    }

    fn a_write(&self, input: &mut Input<'_>) -> Vec<u8> {
        let region = self.regions.get(input.up_to(3));
        let (base, size) = region.map_or((0, 0), |region| (region.at.offset, region.content.len()));
        let start = input.length(size);
        let length = input.length((size - start).min(65_000));
        let length = length
            + if input.up_to(15) == 15 {
                input.up_to(2)
            } else {
                0
            };
        let header = Tagged {
            last: !input.is_odd(),
            rdmap_control: Opcode::RdmaWrite.control(),
            stag: region.map_or(0x77, |region| region.at.token.0),
            tagged_offset: base + start as u64,
        };
        [&header.encode()[..], &pattern(input.byte(), length)].concat()
    }

    fn a_read_response(&self, input: &mut Input<'_>) -> Vec<u8> {
        let asked = self.asked.front();
        let (filled, length) = asked.map_or((0, 0), |read| (read.content.len(), read.length));
        let missing = (length - filled).min(65_000);
        let length = if input.is_odd() {
            missing
        } else {
            input.length(missing)
        };
        let header = Tagged {
            last: length == missing && missing < 65_000,
            rdmap_control: Opcode::RdmaReadResponse.control(),
            stag: asked.map_or(0x100, |read| read.sink_stag),
            tagged_offset: filled as u64,
        };
        [&header.encode()[..], &pattern(input.byte(), length)].concat()
    }

    fn a_read_request(&mut self, input: &mut Input<'_>) -> Vec<u8> {
        let region = self.regions.get(input.up_to(3));
        let (base, size) = region.map_or((0, 0), |region| (region.at.offset, region.content.len()));
        let start = input.length(size);
        let request = ReadRequest {
            sink_stag: input.byte().into(),
            sink_tagged_offset: if input.is_odd() { u64::MAX - 100 } else { 0 },
            read_message_size: input.length(size - start) as u32 + u32::from(input.up_to(15) == 15),
            source_stag: region.map_or(0x77, |region| region.at.token.0),
            source_tagged_offset: base + start as u64,
        };
        let header = Untagged {
            last: true,
            rdmap_control: Opcode::RdmaReadRequest.control(),
            rsvd_ulp: 0,
            queue_number: 1,
            message_sequence_number: self.speaking_read_request,
            message_offset: 0,
        };
        self.speaking_read_request = self.speaking_read_request.wrapping_add(1);
        [&header.encode()[..], &request.encode()].concat()
    }

    fn a_send(&mut self, input: &mut Input<'_>) -> Vec<u8> {
        let opcode = input.pick(&[
            Opcode::Send,
            Opcode::SendInvalidate,
            Opcode::SendSolicited,
            Opcode::SendSolicitedInvalidate,
            Opcode::Send,
            Opcode::Send,
            Opcode::Terminate,
        ]);
        let token = self
            .regions
            .get(input.up_to(3))
            .map_or(0x77, |region| region.at.token.0);
        let payload = pattern(input.byte(), input.length(20_000));
        let place = input.byte();
        let header = Untagged {
            last: place % 4 != 3,
            rdmap_control: opcode.control(),
            rsvd_ulp: if opcode.invalidates() { token } else { 0 },
            queue_number: opcode.queue_number(),
            message_sequence_number: self.speaking_send,
            // Sometimes repeats a part of the message.
            message_offset: self.speaking_offset / if place >= 0xf8 { 2 } else { 1 },
        };
        if header.last {
            self.speaking_send = self.speaking_send.wrapping_add(1);
            self.speaking_offset = 0;
        } else {
            self.speaking_offset += payload.len() as u32;
        }
        [&header.encode()[..], &payload].concat()
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Takes the next bytes for the machine.
    pub(super) fn next_bytes(&mut self, count: usize) -> Vec<u8> {
        let bytes: Vec<u8> = self.waiting.drain(..count).collect();
        self.unjudged.extend_from_slice(&bytes);
        bytes
    }
}

// Checking.
impl Peer {
    /// Checks the delivered bytes as far as they are complete FPDUs.
    pub(super) fn judge(&mut self, posted: &Posted, backlog: bool) -> Verdict {
        if self.silent || self.lost {
            return Verdict::Unknown;
        }
        loop {
            let unjudged = std::mem::take(&mut self.unjudged);
            let decoded = Fpdu::decode(&unjudged, self.crc);
            let (verdict, length) = match decoded {
                Ok(Some(fpdu)) => (self.segment(fpdu.ulpdu, posted, backlog), fpdu.length),
                Ok(None) => {
                    self.unjudged = unjudged;
                    return Verdict::Right;
                }
                Err(_) => (Verdict::Wrong, 0),
            };
            if verdict != Verdict::Right {
                self.unjudged = unjudged;
                self.lost = verdict == Verdict::Unknown;
                return verdict;
            }
            self.unjudged = unjudged[length..].to_vec();
        }
    }

    /// Returns whether the machine may end the stream because of an incomplete FPDU: when the
    /// header of a long tagged segment is already invalid.
    pub(super) fn fails_early(&self) -> bool {
        let Some((length, ulpdu)) = self.unjudged.split_first_chunk::<2>() else {
            return false;
        };
        let length = usize::from(u16::from_be_bytes(*length));
        let Ok((header @ Header::Tagged(tagged), _)) = Header::decode(ulpdu) else {
            return false;
        };
        let Ok(opcode) = Opcode::of(&header) else {
            return true;
        };
        length >= 16 * 1024 && !self.is_right_tagged(&tagged, opcode, length - Tagged::LENGTH)
    }

    /// Checks a segment, and applies it as the machine has to.
    fn segment(&mut self, ulpdu: &[u8], posted: &Posted, backlog: bool) -> Verdict {
        let Ok((header, payload)) = Header::decode(ulpdu) else {
            return Verdict::Wrong;
        };
        let Ok(opcode) = Opcode::of(&header) else {
            return Verdict::Wrong;
        };
        match header {
            Header::Tagged(header) => {
                let is_response = opcode == Opcode::RdmaReadResponse;
                if is_response && backlog && self.asked.is_empty() {
                    return Verdict::Unknown;
                }
                if !self.is_right_tagged(&header, opcode, payload.len()) {
                    return Verdict::Wrong;
                }
                self.place(&header, is_response, payload);
                Verdict::Right
            }
            Header::Untagged(header) if header.queue_number != opcode.queue_number() => {
                Verdict::Wrong
            }
            Header::Untagged(header) => match opcode {
                Opcode::Terminate => Verdict::Wrong,
                Opcode::RdmaReadRequest => self.read_request(&header, payload, backlog),
                _ => self.send(&header, opcode, payload, posted),
            },
        }
    }

    fn is_right_tagged(&self, header: &Tagged, opcode: Opcode, length: usize) -> bool {
        if opcode == Opcode::RdmaWrite {
            let named = self.region(header.stag);
            let place =
                |region: &Region| region.range(header.tagged_offset, length, Access::REMOTE_WRITE);
            return length == 0 || named.and_then(place).is_some();
        }
        let Some(read) = self.asked.front() else {
            return false;
        };
        let (filled, missing) = (read.content.len(), read.length - read.content.len());
        let fits = header.stag == read.sink_stag && header.tagged_offset == filled as u64;
        length <= missing && (length == 0 || fits) && (!header.last || length == missing)
    }

    fn region(&self, stag: u32) -> Option<&Region> {
        self.regions.iter().find(|region| region.at.token.0 == stag)
    }

    fn place(&mut self, header: &Tagged, is_response: bool, payload: &[u8]) {
        if !is_response {
            self.write_open = !header.last;
            if !payload.is_empty() {
                let token = Token(header.stag);
                let mut regions = self.regions.iter_mut();
                let region = regions.find(|region| region.at.token == token);
                let region = region.expect("the segment was checked before");
                let start = (header.tagged_offset - region.at.offset) as usize;
                region.content[start..start + payload.len()].copy_from_slice(payload);
            }
            return;
        }
        let read = self
            .asked
            .front_mut()
            .expect("the segment was checked before");
        read.content.extend_from_slice(payload);
        if header.last {
            let read = self
                .asked
                .pop_front()
                .expect("the segment was checked before");
            if read.id.is_some() {
                self.answered.push_back(read);
            }
        }
    }

    fn read_request(&mut self, header: &Untagged, payload: &[u8], backlog: bool) -> Verdict {
        let Ok(request) = ReadRequest::decode(payload) else {
            return Verdict::Wrong;
        };
        let in_order = header.message_sequence_number == self.next_read_request;
        if !in_order || header.message_offset != 0 || !header.last {
            return Verdict::Wrong;
        }
        if self.asking.len() >= self.max_inbound_reads {
            // For the machine, responses that it has made and not sent are no longer outstanding.
            let unheard = backlog && self.max_inbound_reads > 0;
            return if unheard {
                Verdict::Unknown
            } else {
                Verdict::Wrong
            };
        }
        if request.read_message_size > 0 && self.source(&request).is_none() {
            return Verdict::Wrong;
        }
        self.next_read_request = self.next_read_request.wrapping_add(1);
        self.asking.push_back(request);
        Verdict::Right
    }

    fn source(&self, request: &ReadRequest) -> Option<&[u8]> {
        let region = self.region(request.source_stag)?;
        let length = request.read_message_size as usize;
        let range = region.range(request.source_tagged_offset, length, Access::REMOTE_READ)?;
        Some(&region.content[range])
    }

    fn send(
        &mut self,
        header: &Untagged,
        opcode: Opcode,
        payload: &[u8],
        posted: &Posted,
    ) -> Verdict {
        let in_time = posted.receives.len() - posted.late_receives;
        let mut receives = posted.receives.range(..in_time);
        let Some(&(_, limit)) = receives.nth(self.messages.len()) else {
            return Verdict::Wrong;
        };
        let before = self.assembled.as_ref().map_or(0, Vec::len);
        let in_order = header.message_sequence_number == self.next_send
            && header.message_offset as usize == before;
        if !in_order || before + payload.len() > limit as usize {
            return Verdict::Wrong;
        }
        let mut message = self.assembled.take().unwrap_or_default();
        message.extend_from_slice(payload);
        if !header.last {
            self.assembled = Some(message);
            return Verdict::Right;
        }
        let mut invalidated = None;
        if opcode.invalidates() {
            let token = Token(header.rsvd_ulp);
            let mut regions = self.regions.iter_mut();
            match regions.find(|region| region.at.token == token) {
                Some(region) if region.access.contains(Access::REMOTE_INVALIDATE) => {
                    region.valid = false;
                    invalidated = Some(token);
                }
                _ => return Verdict::Wrong,
            }
        }
        self.next_send = self.next_send.wrapping_add(1);
        self.messages.push_back((message, invalidated));
        Verdict::Right
    }

    /// Returns whether the stream may end here, or `None` if that is unknown.
    pub(super) fn is_at_boundary(&self) -> Option<bool> {
        let between_reads = self
            .asked
            .front()
            .is_none_or(|read| read.content.is_empty());
        let between = self.unjudged.is_empty()
            && self.assembled.is_none()
            && !self.write_open
            && between_reads;
        (!self.silent && !self.lost).then_some(between)
    }
}

// Receiving, and the final comparison.
impl Peer {
    pub(super) fn fall_silent(&mut self) {
        self.silent = true;
    }

    pub(super) fn is_asked(&mut self, id: Option<WorkId>, sink_stag: u32, length: usize) {
        let content = Vec::new();
        self.asked.push_back(Asked {
            id,
            sink_stag,
            content,
            length,
        });
    }

    /// Checks a segment of the response to the peer's oldest request.
    pub(super) fn is_answered(&mut self, stag: u32, offset: u64, payload: &[u8], last: bool) {
        let Some(&request) = self.asking.front() else {
            return assert!(self.lost, "a response that nobody asked for");
        };
        assert_eq!(stag, request.sink_stag);
        let sink = request.sink_tagged_offset;
        assert_eq!(offset, sink.wrapping_add(self.heard as u64));
        let length = request.read_message_size as usize;
        let end = self.heard + payload.len();
        assert!(end <= length && last == (end == length));
        // Memory that the peer may also write can have changed since.
        let region = self.region(request.source_stag);
        if let Some(region) = region.filter(|it| !it.access.contains(Access::REMOTE_WRITE))
            && !payload.is_empty()
        {
            let start = (request.source_tagged_offset - region.at.offset) as usize + self.heard;
            assert_eq!(region.content[start..start + payload.len()], *payload);
        }
        self.heard = end;
        if last {
            self.asking.pop_front();
            self.heard = 0;
        }
    }

    /// Returns whether the peer has a request for memory that is no longer registered, or that is
    /// unknown.
    pub(super) fn asks_for_what_is_gone(&self) -> bool {
        let is_gone =
            |request: &ReadRequest| request.read_message_size > 0 && self.source(request).is_none();
        self.lost || self.asking.iter().any(is_gone)
    }

    pub(super) fn is_received(&mut self, message: &Bytes, invalidated: Option<Token>) {
        if let Some(expected) = self.messages.pop_front() {
            assert_eq!((&message[..], invalidated), (&expected.0[..], expected.1));
        } else {
            assert!(self.lost, "a message that nobody sent");
        }
    }

    pub(super) fn is_read(&mut self, id: WorkId, buffer: &[u8]) {
        if let Some(read) = self.answered.pop_front() {
            assert_eq!(read.id, Some(id));
            assert_eq!(read.content, buffer);
        } else {
            assert!(self.lost, "a Read that nobody answered");
        }
    }

    /// Checks that a buffer holds its old content and what the peer was allowed to write, nothing
    /// else.
    pub(super) fn compare(&self, region: &Region, buffer: &[u8]) {
        assert_eq!(buffer.len(), region.content.len());
        if *buffer == region.content[..] || self.lost {
            return;
        }
        // The payload of an incomplete segment, or of one with a wrong CRC, may already be placed.
        let pending = self.unjudged.split_first_chunk::<2>();
        let Some((Ok((Header::Tagged(header), _)), length)) = pending.map(|(length, ulpdu)| {
            let length = usize::from(u16::from_be_bytes(*length));
            (Header::decode(ulpdu), length)
        }) else {
            panic!("memory changed that nobody wrote");
        };
        let start = header.tagged_offset.wrapping_sub(region.at.offset) as usize;
        let place = start..start.saturating_add(length - Tagged::LENGTH);
        let writable = region.access.contains(Access::REMOTE_WRITE);
        assert!(writable && header.stag == region.at.token.0);
        for (at, (byte, expected)) in buffer.iter().zip(&region.content).enumerate() {
            assert!(byte == expected || place.contains(&at), "byte {at} changed");
        }
    }
}
