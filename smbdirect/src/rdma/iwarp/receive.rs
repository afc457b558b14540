//! The receiving direction of a stream: bytes from the socket become messages and placed data.
//!
//! Bytes are read in bulk into a block; FPDUs that are whole there are checked. The messages in
//! it are slices of the block where a read brought many bytes. Where it brought few, they are
//! copied to an arena first: a message that is kept for long then keeps little else. When much of a tagged payload has
//! yet to be read, its place is offered to the next read instead, so those bytes are copied once,
//! by the kernel.
//!
//! A stream has a block only while more bytes wait in it than an arena holds: a few blocks, which
//! stay in a cache, serve many streams.

use std::{mem, ops::Range};

use bytes::{Bytes, BytesMut};

use super::{
    config::StreamConfig,
    ddp::{Header, Tagged, Untagged},
    error::StreamError,
    mpa::{Crc32c, CrcMismatch, Fpdu, pad_length},
    rdmap::{Opcode, ReadRequest, Terminate},
    shared::{Fault, InboundRead, Shared},
};
use crate::{
    pool::{self, Pool},
    rdma::work::{Access, Completion, RemoteAddress, Token},
};

/// Bytes read at once at best.
const BLOCK: usize = pool::LARGEST_BLOCK;
/// The blocks of all streams.
static BLOCKS: Pool = Pool::new(BLOCK, 128);
/// Bytes in a block that make it worth lending to the messages in it.
const LEND_FROM: usize = BLOCK / 4;
/// Unread bytes of a tagged payload that make direct placement worth its bookkeeping.
const PLACE_FROM: usize = 16 * 1024;
/// Where the last read was small, the next one goes here first. A stream keeps it.
const CUP: usize = 2 * 1024;
/// Bytes of an arena, which a stream keeps.
const ARENA: usize = 16 * 1024;
/// The arenas of all streams.
static ARENAS: Pool = Pool::new(ARENA, 64);
/// Reads of more than half an arena that are still too few for a block get memory of their own.
static SMALL_BLOCKS: Pool = Pool::new(LEND_FROM, 64);

/// The receiving direction.
#[derive(Debug)]
pub(super) struct Receive {
    crc: bool,
    /// What small reads fill. Empty until the first.
    cup: Vec<u8>,
    /// Whether the next read is to fill the cup.
    into_cup: bool,
    block: Block,
    /// What was read and not looked at is `block[start..end]`.
    start: usize,
    end: usize,
    /// What was read and is little is copied to the front of this.
    arena: Arena,
    /// A tagged FPDU whose payload is still coming in.
    placing: Option<Placing>,
    messages: Messages,
    any_fpdu: bool,
}

/// Where bytes from the socket go.
#[derive(Debug)]
enum Block {
    /// Nowhere yet.
    None,
    /// To be read into.
    Owned(BytesMut),
    /// Was read into; messages may be slices of it.
    Shared(Bytes),
    /// The little that waited in one, which is given back.
    Rest(BytesMut),
}

/// A tagged segment that goes straight to its place.
#[derive(Debug)]
struct Placing {
    header: Tagged,
    opcode: Opcode,
    ulpdu_length: u16,
    /// Payload bytes in place.
    placed: u32,
    /// Payload bytes in all.
    length: u32,
    digest: Crc32c,
}

/// What is known of the messages of the stream.
#[derive(Debug)]
struct Messages {
    max_inbound_reads: u32,
    next_send: u32,
    next_read_request: u32,
    /// Payload of the Send that is coming in; `None` between two Sends.
    assembled: Option<u32>,
    /// Whether the last segment of an RDMA Write is yet to come.
    write_open: bool,
    /// The first segments of a Send whose last has not come.
    begun: BytesMut,
}

impl Receive {
    pub(super) fn new(config: &StreamConfig) -> Self {
        Self {
            crc: config.crc,
            cup: Vec::new(),
            into_cup: true,
            block: Block::None,
            start: 0,
            end: 0,
            arena: Arena::default(),
            placing: None,
            messages: Messages {
                max_inbound_reads: config.max_inbound_reads,
                next_send: 1,
                next_read_request: 1,
                assembled: None,
                write_open: false,
                begun: BytesMut::new(),
            },
            any_fpdu: false,
        }
    }

    /// Bytes that were read, of FPDUs that are not there whole.
    #[cfg(feature = "tokio")]
    pub(super) fn unfinished(&self) -> usize {
        let placed = self.placing.as_ref().map_or(0, |placing| placing.placed);
        self.end - self.start + placed as usize
    }

    /// Whether a valid FPDU has come.
    pub(super) const fn any_fpdu(&self) -> bool {
        self.any_fpdu
    }

    /// Whether the stream may end here: between FPDUs and between messages.
    pub(super) fn at_boundary(&self, shared: &Shared) -> bool {
        //= MPA-34
        //= DDP-09
        self.start == self.end
            && self.placing.is_none()
            && self.messages.assembled.is_none()
            && !self.messages.write_open
            && shared.reads.front().is_none_or(|read| read.filled == 0)
    }

    /// Whether the place of a payload under way, if there is one, is still to be written to.
    pub(super) fn check_place(&self, shared: &mut Shared) -> Result<(), StreamError> {
        match &self.placing {
            Some(placing) => placing.rest(shared).map(drop),
            None => Ok(()),
        }
    }

    /// Where the next bytes go: first the place of a payload under way, if there is one, then
    /// the cup or the block. The place was [checked](Self::check_place).
    pub(super) fn slices<'a>(&'a mut self, shared: &'a mut Shared) -> [&'a mut [u8]; 2] {
        // What is left of a segment is in the block, and what follows belongs behind it.
        self.into_cup &= self.placing.is_none() && self.start == self.end;
        if self.into_cup {
            self.cup.resize(CUP, 0);
            return [&mut [], &mut self.cup];
        }
        let direct = match &self.placing {
            Some(placing) => placing.rest(shared).unwrap_or_default(),
            None => &mut [],
        };
        let end = self.end - self.start;
        let block = self.block.make_room(self.start..self.end);
        (self.start, self.end) = (0, end);
        [direct, &mut block[end..]]
    }

    /// `count` bytes have gone to where [`slices`](Self::slices) pointed.
    pub(super) fn received(&mut self, count: usize, shared: &mut Shared) -> Result<(), Fault> {
        if self.into_cup {
            return self.received_in_cup(count, shared);
        }
        self.into_cup = count < CUP;
        let placed = match &mut self.placing {
            Some(placing) => placing.received(count, self.crc, shared)?,
            None => 0,
        };
        self.end += count - placed;
        if count > 0 {
            let block = self.block.share();
            assert!(self.end <= block.len(), "more was read than asked for");
            let read = self.start..self.end;
            if read.len() >= LEND_FROM || self.placing.is_some() {
                self.take(&block, 0, shared)?;
            } else {
                let copy = self.arena.copy_of(&block[read.clone()]);
                self.take(&copy, read.start, shared)?;
            }
        }
        self.part();
        Ok(())
    }

    /// Parts with the block, unless much waits in it: others can use it, and it is then in a cache.
    fn part(&mut self) {
        let waiting = mem::take(&mut self.start)..mem::take(&mut self.end);
        if waiting.is_empty() {
            self.block.release();
        } else if waiting.len() <= ARENA {
            self.end = waiting.len();
            self.block.put_aside(waiting);
        } else {
            (self.start, self.end) = (waiting.start, waiting.end);
        }
    }

    /// `count` bytes are in the cup. If it is full, there may be more.
    fn received_in_cup(&mut self, count: usize, shared: &mut Shared) -> Result<(), Fault> {
        assert!(count <= self.cup.len(), "more was read than asked for");
        if count == 0 {
            return Ok(());
        }
        self.into_cup = count < self.cup.len();
        let copy = self.arena.copy_of(&self.cup[..count]);
        (self.start, self.end) = (0, count);
        self.take(&copy, 0, shared)?;
        let rest = &copy[self.start..self.end];
        (self.start, self.end) = (0, rest.len());
        if !rest.is_empty() {
            self.block = Block::of_rest(rest);
        }
        Ok(())
    }

    /// Handles all FPDUs that are whole. `block` has the bytes of the block from `origin` on.
    fn take(&mut self, block: &Bytes, origin: usize, shared: &mut Shared) -> Result<(), Fault> {
        let bytes = &block[..self.end - origin];
        if self.placing.is_some() && !self.finish_placing(&bytes[self.start - origin..], shared)? {
            return Ok(());
        }
        loop {
            let at = self.start - origin;
            let rest = &bytes[at..];
            let Some(fpdu) = Fpdu::decode(rest, self.crc).map_err(StreamError::from)? else {
                return self.begin_placing(rest, shared);
            };
            self.messages
                .segment(fpdu.ulpdu, block, at + Fpdu::HEADER_LENGTH, shared)
                .map_err(|error| Fault::within(error, fpdu.ulpdu))?;
            self.start += fpdu.length;
            self.any_fpdu = true;
        }
    }

    /// Lets the rest of a long tagged payload go straight to its place.
    //= PERF-03
    fn begin_placing(&mut self, bytes: &[u8], shared: &mut Shared) -> Result<(), Fault> {
        let Some((ulpdu_length, ulpdu)) = bytes.split_first_chunk::<2>() else {
            return Ok(());
        };
        let ulpdu_length = u16::from_be_bytes(*ulpdu_length);
        if usize::from(ulpdu_length) < ulpdu.len() + PLACE_FROM || ulpdu.len() < Tagged::LENGTH {
            return Ok(());
        }
        let within = |error: StreamError| Fault {
            error,
            segment: Some((ulpdu_length, ulpdu[..Tagged::LENGTH].to_vec())),
        };
        // An untagged header may not be whole yet, and is not wanted.
        let Ok((Header::Tagged(header), payload)) = Header::decode(ulpdu) else {
            return Ok(());
        };
        let opcode = Opcode::of(&Header::Tagged(header)).map_err(|error| within(error.into()))?;
        let length = u32::from(ulpdu_length) - Tagged::LENGTH as u32;
        check_tagged(&header, opcode, length, shared).map_err(within)?;
        let mut placing = Placing {
            header,
            opcode,
            ulpdu_length,
            placed: 0,
            length,
            digest: Crc32c::default(),
        };
        let here = payload.len();
        if self.crc {
            placing.digest.update(bytes);
        }
        placing.rest(shared).map_err(within)?[..here].copy_from_slice(payload);
        placing.placed = here as u32;
        self.placing = Some(placing);
        self.start = self.end;
        Ok(())
    }

    /// Checks a placed FPDU when its end has come; tells whether it has.
    fn finish_placing(&mut self, trailer: &[u8], shared: &mut Shared) -> Result<bool, Fault> {
        let Some(placing) = &mut self.placing else {
            return Ok(false);
        };
        let pad = pad_length(placing.ulpdu_length);
        if placing.placed < placing.length || trailer.len() < pad + Fpdu::CRC_LENGTH {
            return Ok(false);
        }
        let (pad, rest) = trailer.split_at(pad);
        placing.digest.update(pad);
        if self.crc && rest[..Fpdu::CRC_LENGTH] != placing.digest.wire() {
            return Err(StreamError::from(CrcMismatch).into());
        }
        self.start += pad.len() + Fpdu::CRC_LENGTH;
        self.any_fpdu = true;
        let (header, opcode, length) = (placing.header, placing.opcode, placing.length);
        self.placing = None;
        self.messages.placed(&header, opcode, length, shared);
        Ok(true)
    }
}

impl Block {
    /// Gives back what nothing waits in.
    fn release(&mut self) {
        match mem::replace(self, Self::None) {
            Self::None => {}
            Self::Owned(block) => BLOCKS.lend(block.freeze()),
            Self::Shared(block) => BLOCKS.lend(block),
            Self::Rest(rest) => ARENAS.lend(rest.freeze()),
        }
    }

    /// Gives the block back, but for the bytes `waiting` of it, an arena's or less. They are what
    /// there is then.
    fn put_aside(&mut self, waiting: Range<usize>) {
        let rest = match self {
            Self::None | Self::Rest(_) => return,
            Self::Owned(block) => Self::of_rest(&block[waiting]),
            Self::Shared(block) => Self::of_rest(&block[waiting]),
        };
        self.release();
        *self = rest;
    }

    fn of_rest(bytes: &[u8]) -> Self {
        let mut rest = ARENAS.take();
        rest.clear();
        rest.extend_from_slice(bytes);
        Self::Rest(rest)
    }

    /// Makes the block memory to read into, with the bytes `rest` of it at its front.
    fn make_room(&mut self, rest: Range<usize>) -> &mut BytesMut {
        let owned = match mem::replace(self, Self::None) {
            Self::None => BLOCKS.take(),
            Self::Owned(block) => block,
            Self::Rest(waiting) => {
                let mut block = whole(BLOCKS.take());
                block[..rest.len()].copy_from_slice(&waiting[rest]);
                ARENAS.lend(waiting.freeze());
                block
            }
            Self::Shared(block) => match block.try_into_mut() {
                Ok(mut block) => {
                    block.copy_within(rest, 0);
                    block
                }
                Err(block) => {
                    let mut next = whole(BLOCKS.take());
                    next[..rest.len()].copy_from_slice(&block[rest]);
                    BLOCKS.lend(block);
                    next
                }
            },
        };
        *self = Self::Owned(whole(owned));
        match self {
            Self::Owned(block) => block,
            _ => unreachable!("it was just put there"),
        }
    }

    /// The block as memory that messages may be slices of.
    fn share(&mut self) -> Bytes {
        let block = match mem::replace(self, Self::None) {
            Self::None => Bytes::new(),
            Self::Owned(block) => block.freeze(),
            Self::Shared(block) => block,
            Self::Rest(rest) => rest.freeze(),
        };
        *self = Self::Shared(block.clone());
        block
    }
}

/// Memory that small reads are copied to, one behind the other.
#[derive(Debug, Default)]
struct Arena(BytesMut);

impl Arena {
    fn copy_of(&mut self, bytes: &[u8]) -> Bytes {
        if bytes.len() > ARENA / 2 {
            let mut block = SMALL_BLOCKS.take_to_cut();
            block.extend_from_slice(bytes);
            return block.freeze();
        }
        if self.0.capacity() < bytes.len() {
            self.0 = ARENAS.take_to_cut();
        }
        self.0.extend_from_slice(bytes);
        self.0.split().freeze()
    }
}

/// A block in its full length.
fn whole(mut block: BytesMut) -> BytesMut {
    if block.len() < BLOCK {
        block.resize(BLOCK, 0);
    }
    block
}

impl Placing {
    /// The place of the payload that has not come.
    fn rest<'a>(&self, shared: &'a mut Shared) -> Result<&'a mut [u8], StreamError> {
        place(
            &self.header,
            self.opcode,
            self.placed,
            self.length - self.placed,
            shared,
        )
    }

    /// Takes as much of `count` bytes as went to the payload's place; tells how much that was.
    fn received(
        &mut self,
        count: usize,
        crc: bool,
        shared: &mut Shared,
    ) -> Result<usize, StreamError> {
        let rest = self.rest(shared)?;
        let placed = count.min(rest.len());
        if crc {
            // Now, while the bytes are in the cache.
            self.digest.update(&rest[..placed]);
        }
        self.placed += placed as u32;
        Ok(placed)
    }
}

impl Messages {
    /// Takes one segment, which is `block` from `at` on.
    //= SEC-08
    fn segment(
        &mut self,
        ulpdu: &[u8],
        block: &Bytes,
        at: usize,
        shared: &mut Shared,
    ) -> Result<(), StreamError> {
        match Header::decode(ulpdu)? {
            (Header::Tagged(header), payload) => self.tagged(&header, payload, shared),
            (Header::Untagged(header), payload) => {
                let whole = || block.slice(at + Untagged::LENGTH..at + ulpdu.len());
                self.untagged(&header, payload, whole, shared)
            }
        }
    }

    fn tagged(
        &mut self,
        header: &Tagged,
        payload: &[u8],
        shared: &mut Shared,
    ) -> Result<(), StreamError> {
        let opcode = Opcode::of(&Header::Tagged(*header))?;
        let length = payload.len() as u32;
        //= DDP-16
        check_tagged(header, opcode, length, shared)?;
        if length > 0 {
            place(header, opcode, 0, length, shared)?.copy_from_slice(payload);
        }
        self.placed(header, opcode, length, shared);
        Ok(())
    }

    /// The payload of a tagged segment is in place and its CRC was right.
    fn placed(&mut self, header: &Tagged, opcode: Opcode, length: u32, shared: &mut Shared) {
        if opcode == Opcode::RdmaWrite {
            //= RDMAP-11
            self.write_open = !header.last;
            return;
        }
        let read = shared.reads.front_mut().expect("the header was checked");
        read.filled += length as usize;
        //= RDMAP-16
        if header.last
            && let Some(read) = shared.reads.pop_front()
            && let Some(id) = read.id
        {
            let buffer = read.buffer;
            shared
                .completions
                .push_back(Completion::Read { id, buffer });
        }
    }

    /// `whole` makes the payload a message of its own.
    fn untagged(
        &mut self,
        header: &Untagged,
        payload: &[u8],
        whole: impl FnOnce() -> Bytes,
        shared: &mut Shared,
    ) -> Result<(), StreamError> {
        let opcode = Opcode::of(&Header::Untagged(*header))?;
        //= DDP-06
        if header.queue_number != opcode.queue_number() {
            return Err(StreamError::QueueNumber {
                opcode,
                queue_number: header.queue_number,
            });
        }
        match opcode {
            Opcode::RdmaReadRequest => self.read_request(header, payload, shared),
            Opcode::Terminate => Err(StreamError::Terminated(Terminate::decode(payload))),
            // Whoever waits here waits for all Sends, solicited or not.
            //= RDMAP-14
            _ => self.send(header, opcode, payload, whole, shared),
        }
    }

    fn send(
        &mut self,
        header: &Untagged,
        opcode: Opcode,
        payload: &[u8],
        whole: impl FnOnce() -> Bytes,
        shared: &mut Shared,
    ) -> Result<(), StreamError> {
        check_number(header, self.next_send)?;
        //= DDP-07
        let receive = shared.receives.front().ok_or(StreamError::NoReceive)?;
        let before = self.assembled.unwrap_or(0);
        //= DDP-05
        //= DDP-12
        if header.message_offset != before {
            return Err(StreamError::MessageOffset {
                expected: before.into(),
                received: header.message_offset,
            });
        }
        //= DDP-08
        let length = u64::from(before) + payload.len() as u64;
        if length > u64::from(receive.length) {
            return Err(StreamError::MessageTooLong {
                length,
                limit: receive.length,
            });
        }
        if !header.last {
            if before == 0 {
                let length = receive.length as usize;
                match pool::for_message(length) {
                    Some(buffer) => self.begun = buffer,
                    None => self.begun.reserve(length),
                }
            }
            self.begun.extend_from_slice(payload);
            self.assembled = Some(length as u32);
            return Ok(());
        }
        let mut invalidated = None;
        //= RDMAP-12
        if opcode.invalidates() {
            let token = Token(header.rsvd_ulp);
            shared
                .memory
                .invalidate(token)
                .map_err(|fault| StreamError::Invalidate { token, fault })?;
            invalidated = Some(token);
        }
        //= DDP-17
        //= RDMAP-25
        let id = shared.receives.pop().expect("it was just looked at");
        let message = match self.assembled.take() {
            None => whole(),
            Some(_) => {
                self.begun.extend_from_slice(payload);
                mem::take(&mut self.begun).freeze()
            }
        };
        self.next_send = self.next_send.wrapping_add(1);
        shared.completions.push_back(Completion::Received {
            id,
            message,
            invalidated,
        });
        Ok(())
    }

    fn read_request(
        &mut self,
        header: &Untagged,
        payload: &[u8],
        shared: &mut Shared,
    ) -> Result<(), StreamError> {
        check_number(header, self.next_read_request)?;
        let request = ReadRequest::decode(payload)?;
        //= RDMAP-03
        if header.message_offset != 0 {
            return Err(StreamError::MessageOffset {
                expected: 0,
                received: header.message_offset,
            });
        }
        if !header.last {
            return Err(StreamError::NotOneSegment(Opcode::RdmaReadRequest));
        }
        //= RDMAP-04
        //= SEC-06
        if shared.inbound_reads.len() >= self.max_inbound_reads as usize {
            let granted = self.max_inbound_reads;
            return Err(StreamError::TooManyReads { granted });
        }
        //= RDMAP-10
        if request.read_message_size > 0 {
            let from = RemoteAddress {
                token: Token(request.source_stag),
                offset: request.source_tagged_offset,
            };
            //= RDMAP-07
            shared
                .memory
                .check(from, request.read_message_size, Access::REMOTE_READ)
                .map_err(StreamError::ReadSource)?;
        }
        self.next_read_request = self.next_read_request.wrapping_add(1);
        shared.inbound_reads.push_back(InboundRead {
            message_sequence_number: header.message_sequence_number,
            request,
        });
        Ok(())
    }
}

const fn check_number(header: &Untagged, expected: u32) -> Result<(), StreamError> {
    //= DDP-04
    let received = header.message_sequence_number;
    if received != expected {
        return Err(StreamError::MessageSequenceNumber { expected, received });
    }
    Ok(())
}

/// Whether a tagged segment may be placed: all of it, before its first byte is.
fn check_tagged(
    header: &Tagged,
    opcode: Opcode,
    length: u32,
    shared: &Shared,
) -> Result<(), StreamError> {
    if opcode == Opcode::RdmaWrite {
        //= DDP-13
        //= EST-06
        if length == 0 {
            return Ok(());
        }
        return shared
            .memory
            .check(address(header, 0), length, Access::REMOTE_WRITE)
            .map_err(StreamError::Write);
    }
    //= RDMAP-09
    let read = shared
        .reads
        .front()
        .ok_or(StreamError::UnexpectedReadResponse)?;
    //= RDMAP-08
    if length > 0 && header.stag != read.sink_stag {
        return Err(StreamError::ReadResponseStag {
            expected: read.sink_stag,
            received: header.stag,
        });
    }
    // The sinks that we name begin at 0, so an offset into the sink is one into the buffer.
    let in_order = length == 0 || header.tagged_offset == read.filled as u64;
    let missing = (read.buffer.len() - read.filled) as u64;
    let ends = u64::from(length) == missing;
    if !in_order || u64::from(length) > missing || (header.last && !ends) {
        return Err(StreamError::ReadResponseBounds);
    }
    Ok(())
}

/// The place of `length` payload bytes of a tagged segment, `after` its first.
fn place<'a>(
    header: &Tagged,
    opcode: Opcode,
    after: u32,
    length: u32,
    shared: &'a mut Shared,
) -> Result<&'a mut [u8], StreamError> {
    if opcode == Opcode::RdmaWrite {
        return shared
            .memory
            .write(address(header, after), length)
            .map_err(StreamError::Write);
    }
    let oldest = shared.reads.front_mut();
    let read = oldest.ok_or(StreamError::UnexpectedReadResponse)?;
    let start = read.filled + after as usize;
    Ok(&mut read.buffer[start..start + length as usize])
}

/// A wrapped offset stays on this side of the check: it was checked for all of the segment.
const fn address(header: &Tagged, after: u32) -> RemoteAddress {
    RemoteAddress {
        token: Token(header.stag),
        offset: header.tagged_offset.wrapping_add(after as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rdma::{iwarp::rdmap::QUEUE_SEND, receive_queue::Receives, work::WorkId};

    /// A Send in one FPDU.
    fn send(message_sequence_number: u32, payload: &[u8]) -> Vec<u8> {
        let header = Untagged {
            last: true,
            rdmap_control: Opcode::Send.control(),
            rsvd_ulp: 0,
            queue_number: QUEUE_SEND,
            message_sequence_number,
            message_offset: 0,
        };
        let mut fpdu = Vec::new();
        Fpdu::encode(&[&header.encode(), payload], true, &mut fpdu);
        fpdu
    }

    /// One read of so many bytes.
    fn read(receive: &mut Receive, bytes: &mut &[u8], most: usize, shared: &mut Shared) {
        let mut count = 0;
        for slice in receive.slices(shared) {
            let (now, later) = bytes.split_at(slice.len().min(bytes.len()).min(most - count));
            slice[..now.len()].copy_from_slice(now);
            count += now.len();
            *bytes = later;
        }
        receive.received(count, shared).unwrap();
    }

    /// Many connections share few blocks: who waits for the rest of an FPDU keeps what has come of it.
    #[test]
    fn little_that_waits_keeps_no_block() {
        let config = StreamConfig {
            initiator: true,
            crc: true,
            max_fpdu: 65536,
            one_fpdu_a_write: false,
            max_outbound_reads: 0,
            max_inbound_reads: 0,
            ready_to_receive: None,
        };
        let (mut receive, mut shared) = (Receive::new(&config), Shared::new());
        let row = Receives {
            id: WorkId(1),
            length: 60_000,
            count: 100,
        };
        shared.receives.post(row);
        let payloads: Vec<_> = (1..=30)
            .map(|at| vec![at; 9_000 + usize::from(at)])
            .collect();
        let numbered = (1..).zip(&payloads);
        let bytes: Vec<u8> = numbered
            .flat_map(|(msn, payload)| send(msn, payload))
            .collect();
        let mut rest = &bytes[..];
        // The first read is small, and another shows that there is more.
        for most in [CUP, 70_000, 3, 100_000, 1] {
            read(&mut receive, &mut rest, most, &mut shared);
            let waits = receive.end - receive.start;
            assert!((1..=ARENA).contains(&waits), "{waits} bytes");
            assert!(matches!(receive.block, Block::Rest(_)));
        }
        while !rest.is_empty() {
            read(&mut receive, &mut rest, usize::MAX, &mut shared);
        }
        assert!(matches!(receive.block, Block::None));
        for payload in payloads {
            let Some(Completion::Received { message, .. }) = shared.completions.pop_front() else {
                panic!("a message is missing");
            };
            assert!(message == payload);
        }
    }
}
