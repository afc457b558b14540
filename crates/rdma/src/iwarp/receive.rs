//! The receiving direction of a stream: bytes from the socket become messages and placed data.
//!
//! Bytes are read in bulk into a block, and the complete FPDUs in it are checked. If a read
//! returned many bytes, the messages are slices of the block. If it returned few, the bytes are
//! copied to an arena first, so that a message which is kept for long keeps little other memory
//! alive. If much of a tagged payload is still to be read, the next read goes directly to its
//! destination, so that the kernel makes the only copy of those bytes.
//!
//! A stream holds a block only while more unprocessed bytes are in it than fit an arena. A few blocks, which stay
//! in the cache of a processor, therefore serve many streams.

use std::mem;

use bytes::Bytes;

use super::{
    config::StreamConfig,
    ddp::{Header, Tagged},
    error::StreamError,
    inbound_messages::{Messages, check_tagged, place},
    mpa::{Crc32c, CrcMismatch, Fpdu, pad_length},
    rdmap::Opcode,
    receive_buffer::Block,
    shared::{Fault, Shared},
};
use crate::software::{
    arena::{ARENA_BYTES, Arena},
    pool::{Account, LARGEST_COPY_BYTES},
};

/// The rest of a tagged payload is read directly to its destination if at least this many bytes of
/// it are unread, or if more than [`ARENA_BYTES`] of it are read. For fewer bytes, the bookkeeping costs
/// more than the copy.
const DIRECT_PLACEMENT_BYTES: usize = 16 * 1024;
/// The size in bytes of the small read buffer, which each stream keeps. After a read that returned fewer bytes
/// than this, the next read goes to the small buffer.
const SMALL_READ_BUFFER: usize = 2 * 1024;

/// After a tagged segment of more bytes than this, another one is expected, until an untagged segment arrives.
const MIN_EXPECTED_BYTES: usize = 32 * 1024;
/// The most bytes that a read takes after those that go directly to their destination. They contain the header of
/// the next segment, so that most of the payload of that segment can also be read directly.
const LOOKAHEAD_BYTES: usize = 4 * 1024;

/// The receiving direction.
#[derive(Debug)]
pub(super) struct Receive {
    crc: bool,
    /// The buffer for small reads; empty until the first.
    small_read_buffer: Vec<u8>,
    /// Whether the next read goes to `small_read_buffer`.
    reads_small: bool,
    block: Block,
    /// The unprocessed bytes are `block[start..end]`.
    start: usize,
    /// The end of the unprocessed bytes.
    end: usize,
    /// The memory to which the bytes of small reads are copied.
    arena: Arena,
    /// Counts the memory of messages that have readers.
    account: Account,
    /// The tagged FPDU whose payload is still arriving.
    placing: Option<Placing>,
    /// Whether the next segment probably has a long tagged payload.
    expects_tagged: bool,
    messages: Messages,
    /// Whether a valid FPDU has arrived.
    any_fpdu: bool,
}

/// A tagged segment whose payload is read directly to its destination.
#[derive(Debug)]
struct Placing {
    header: Tagged,
    opcode: Opcode,
    ulpdu_length: u16,
    /// The payload bytes that are in place.
    placed: u32,
    /// The payload bytes in total.
    length: u32,
    digest: Crc32c,
}

impl Receive {
    /// Creates the receiving direction of a new stream.
    pub(super) fn new(config: &StreamConfig) -> Self {
        Self {
            crc: config.crc,
            small_read_buffer: Vec::new(),
            reads_small: true,
            block: Block::None,
            start: 0,
            end: 0,
            arena: Arena::default(),
            account: Account::default(),
            placing: None,
            expects_tagged: false,
            messages: Messages::new(config.max_inbound_reads),
            any_fpdu: false,
        }
    }

    /// Returns how many bytes of incomplete FPDUs were read.
    #[cfg(feature = "tokio")]
    pub(super) fn unfinished(&self) -> usize {
        let placed = self.placing.as_ref().map_or(0, |placing| placing.placed);
        self.end - self.start + placed as usize
    }

    /// Returns how many bytes of memory the readers of messages keep in use.
    #[cfg(feature = "tokio")]
    pub(super) fn lent_bytes(&self) -> usize {
        use crate::software::arena::ARENAS;

        self.account
            .in_use(&[&super::receive_buffer::BLOCKS, &ARENAS])
    }

    /// Returns whether a valid FPDU has arrived.
    pub(super) const fn any_fpdu(&self) -> bool {
        self.any_fpdu
    }

    /// Returns whether the stream may end now, that is, between FPDUs and between messages.
    pub(super) fn at_boundary(&self, shared: &Shared) -> bool {
        //= MPA-34
        //= DDP-09
        self.start == self.end
            && self.placing.is_none()
            && self.messages.at_boundary()
            && shared.reads.front().is_none_or(|read| read.filled == 0)
    }

    /// Checks that the destination of an arriving payload, if there is one, is still writable.
    pub(super) fn check_placement(&self, shared: &mut Shared) -> Result<(), StreamError> {
        match &self.placing {
            Some(placing) => placing.rest(shared).map(drop),
            None => Ok(()),
        }
    }

    /// Returns where the next bytes go: the destination of an arriving payload, if there is one,
    /// and then the small read buffer or the block. The caller has
    /// [checked](Self::check_placement) the destination.
    pub(super) fn slices<'a>(&'a mut self, shared: &'a mut Shared) -> [&'a mut [u8]; 2] {
        // The first bytes of an incomplete segment are in the block, and the next bytes follow
        // them.
        self.reads_small &= self.placing.is_none() && self.start == self.end;
        if self.reads_small {
            self.small_read_buffer.resize(SMALL_READ_BUFFER, 0);
            return [&mut [], &mut self.small_read_buffer];
        }
        let direct = match &self.placing {
            Some(placing) => placing.rest(shared).unwrap_or_default(),
            None => &mut [],
        };
        let end = self.end - self.start;
        let block = self.block.make_room(self.start..self.end, &self.account);
        (self.start, self.end) = (0, end);
        let looks_ahead =
            !direct.is_empty() || self.expects_tagged && end < Fpdu::HEADER_LENGTH + Tagged::LENGTH;
        let most = if looks_ahead {
            LOOKAHEAD_BYTES
        } else {
            block.len()
        };
        [direct, &mut block[end..most]]
    }

    /// Processes `count` bytes that were read into the [`slices`](Self::slices).
    pub(super) fn received(&mut self, count: usize, shared: &mut Shared) -> Result<(), Fault> {
        if self.reads_small {
            return self.received_small(count, shared);
        }
        self.reads_small = count < SMALL_READ_BUFFER;
        let placed = match &mut self.placing {
            Some(placing) => placing.received(count, self.crc, shared)?,
            None => 0,
        };
        self.end += count - placed;
        if count > 0 {
            let block = self.block.share();
            assert!(self.end <= block.len(), "more was read than asked for");
            let read = self.start..self.end;
            if read.len() >= LARGEST_COPY_BYTES || self.placing.is_some() {
                self.take_fpdus(&block, 0, shared)?;
            } else {
                let copy = self
                    .arena
                    .copy_of(&block[read.clone()], Some(&self.account));
                self.take_fpdus(&copy, read.start, shared)?;
            }
        }
        self.release_block();
        Ok(())
    }

    /// Returns the block to the pool, unless many bytes wait in it. Another stream can then use the block while
    /// it is in the cache.
    fn release_block(&mut self) {
        let waiting = mem::take(&mut self.start)..mem::take(&mut self.end);
        if waiting.is_empty() {
            self.block.release(&self.account);
        } else if waiting.len() <= ARENA_BYTES {
            self.end = waiting.len();
            self.block.copy_remainder(waiting, &self.account);
        } else {
            (self.start, self.end) = (waiting.start, waiting.end);
        }
    }

    /// Processes `count` bytes in the small read buffer. If it is full, more may be waiting.
    fn received_small(&mut self, count: usize, shared: &mut Shared) -> Result<(), Fault> {
        assert!(
            count <= self.small_read_buffer.len(),
            "more was read than asked for"
        );
        if count == 0 {
            return Ok(());
        }
        self.reads_small = count < self.small_read_buffer.len();
        let copy = self
            .arena
            .copy_of(&self.small_read_buffer[..count], Some(&self.account));
        (self.start, self.end) = (0, count);
        self.take_fpdus(&copy, 0, shared)?;
        let rest = &copy[self.start..self.end];
        (self.start, self.end) = (0, rest.len());
        if !rest.is_empty() {
            self.block = Block::remainder(rest);
        }
        Ok(())
    }

    /// Processes all complete FPDUs. `block` holds the bytes of the block from `origin` on.
    fn take_fpdus(
        &mut self,
        block: &Bytes,
        origin: usize,
        shared: &mut Shared,
    ) -> Result<(), Fault> {
        let bytes = &block[..self.end - origin];
        if self.placing.is_some()
            && !self.finish_placement(&bytes[self.start - origin..], shared)?
        {
            return Ok(());
        }
        loop {
            let at = self.start - origin;
            let rest = &bytes[at..];
            let Some(fpdu) = Fpdu::decode(rest, self.crc).map_err(StreamError::from)? else {
                return self.start_placement(rest, shared);
            };
            self.messages
                .receive_segment(fpdu.ulpdu, block, at + Fpdu::HEADER_LENGTH, shared)
                .map_err(|error| Fault::within(error, fpdu.ulpdu))?;
            self.start += fpdu.length;
            self.any_fpdu = true;
            if self.expects_tagged || fpdu.length > MIN_EXPECTED_BYTES {
                // A short tagged segment between long ones does not end the expectation.
                self.expects_tagged =
                    matches!(Header::decode(fpdu.ulpdu), Ok((Header::Tagged(_), _)));
            }
        }
    }

    /// Starts to read the rest of a long tagged payload directly to its destination.
    //= PERF-03
    // It runs once after each read and not for each FPDU, and would keep the code for FPDUs from being inlined.
    #[inline(never)]
    fn start_placement(&mut self, bytes: &[u8], shared: &mut Shared) -> Result<(), Fault> {
        let Some((ulpdu_length, ulpdu)) = bytes.split_first_chunk::<2>() else {
            return Ok(());
        };
        let ulpdu_length = u16::from_be_bytes(*ulpdu_length);
        // If much of the payload was read, those bytes are placed now, which frees the block. If they were left,
        // they would keep the block in use and be moved to its front.
        let is_short = usize::from(ulpdu_length) < ulpdu.len() + DIRECT_PLACEMENT_BYTES
            && ulpdu.len() <= ARENA_BYTES;
        if is_short || usize::from(ulpdu_length) <= ulpdu.len() || ulpdu.len() < Tagged::LENGTH {
            return Ok(());
        }
        let within = |error: StreamError| Fault {
            error,
            segment: Some((ulpdu_length, ulpdu[..Tagged::LENGTH].to_vec())),
        };
        // An untagged header is longer than a tagged one, so it may be incomplete here.
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

    /// Checks a placed FPDU once its trailer has arrived. Returns whether the trailer has arrived.
    fn finish_placement(&mut self, trailer: &[u8], shared: &mut Shared) -> Result<bool, Fault> {
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
        self.expects_tagged = length as usize > MIN_EXPECTED_BYTES;
        self.messages
            .finish_segment(&header, opcode, length, shared);
        Ok(true)
    }
}

impl Placing {
    /// Returns the destination of the payload bytes that have not arrived.
    fn rest<'a>(&self, shared: &'a mut Shared) -> Result<&'a mut [u8], StreamError> {
        place(
            &self.header,
            self.opcode,
            self.placed,
            self.length - self.placed,
            shared,
        )
    }

    /// Records how many of `count` bytes went to the destination, and returns that number.
    fn received(
        &mut self,
        count: usize,
        crc: bool,
        shared: &mut Shared,
    ) -> Result<usize, StreamError> {
        let rest = self.rest(shared)?;
        let placed = count.min(rest.len());
        if crc {
            // The bytes are still in the cache.
            self.digest.update(&rest[..placed]);
        }
        self.placed += placed as u32;
        Ok(placed)
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;

    use super::*;
    use crate::{
        iwarp::{ddp::Untagged, rdmap::QUEUE_SEND},
        software::receive_queue::Receives,
        work::{Access, Completion, WorkId},
    };

    /// Returns an FPDU with a whole Send.
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

    /// Reads at most `most` bytes once.
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

    fn config() -> StreamConfig {
        StreamConfig {
            initiator: true,
            crc: true,
            max_fpdu: 65536,
            one_fpdu_a_write: false,
            max_backlog: 512 * 1024,
            max_outbound_reads: 0,
            max_inbound_reads: 0,
            ready_to_receive: None,
        }
    }

    /// A stream that waits for the rest of an FPDU copies the bytes it has, so that few blocks
    /// serve many connections.
    #[test]
    fn an_incomplete_fpdu_holds_no_block() {
        let (mut receive, mut shared) = (Receive::new(&config()), Shared::new());
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
        // The first read fills the small read buffer, and the others go to a block.
        for most in [SMALL_READ_BUFFER, 70_000, 3, 100_000, 1] {
            read(&mut receive, &mut rest, most, &mut shared);
            let waits = receive.end - receive.start;
            assert!((1..=ARENA_BYTES).contains(&waits), "{waits} bytes");
            assert!(matches!(receive.block, Block::Remainder(_)));
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

    /// A stream that waits for the rest of a long tagged payload, however short the rest is, places the
    /// bytes it has.
    #[test]
    fn a_tagged_payload_holds_no_block() {
        const LENGTH: usize = 60_000;
        let payload: Vec<_> = (0..LENGTH).map(|at| at as u8).collect();
        for missing in [DIRECT_PLACEMENT_BYTES, 1000, 1, 0] {
            let (mut receive, mut shared) = (Receive::new(&config()), Shared::new());
            let memory = BytesMut::zeroed(LENGTH);
            let registered = shared.memory.register(memory, Access::REMOTE_WRITE);
            let address = registered.unwrap().address;
            let header = Tagged {
                last: true,
                rdmap_control: Opcode::RdmaWrite.control(),
                stag: address.token.0,
                tagged_offset: address.offset,
            };
            let mut fpdu = Vec::new();
            Fpdu::encode(&[&header.encode(), &payload], true, &mut fpdu);
            let mut rest = &fpdu[..];
            // The first read goes to a block.
            receive.reads_small = false;
            let trailer = fpdu.len() - Fpdu::HEADER_LENGTH - Tagged::LENGTH - LENGTH;
            let now = rest.len() - trailer - missing;
            read(&mut receive, &mut rest, now, &mut shared);
            // Only the trailer is missing in the last case.
            assert_eq!(receive.placing.is_some(), missing > 0);
            assert_eq!(matches!(receive.block, Block::None), missing > 0);
            while !rest.is_empty() {
                read(&mut receive, &mut rest, usize::MAX, &mut shared);
            }
            assert!(matches!(receive.block, Block::None));
            let memory = shared.memory.deregister(address.token).unwrap();
            assert!(memory == payload);
        }
    }
}
