//! Bytes that wait for the socket. Short payloads are copied, and long ones are shared.
//!
//! ```text
//! staged:  [hdr payload crc][hdr payload crc][hdr]            [crc hdr]            [crc]
//! shared:                                         [payload...]         [payload...]
//! ```
//!
//! Adjacent copied bytes form one slice. So a batch of small FPDUs is one slice, and a large FPDU
//! adds two.

use std::{collections::VecDeque, io::IoSlice, mem};

use bytes::{Buf, Bytes, BytesMut};

use super::{
    alignment::FpduEnds,
    mpa::{Crc32c, Fpdu, crc32c, fpdu_length, pad_length},
};
use crate::software::pool::Pool;

/// The FPDUs whose bytes the socket has not taken yet.
#[derive(Debug)]
pub(super) struct Outgoing {
    crc: bool,
    /// The copied bytes are `staged[start..end]`. The bytes before them are sent, and the bytes
    /// after them are free. The buffer is large only while bytes wait.
    staged: BytesMut,
    /// The start of the copied bytes.
    start: usize,
    /// The end of the copied bytes.
    end: usize,
    /// The small buffer that a stream keeps, while `staged` is a larger one.
    small_buffer: BytesMut,
    /// The payloads that are not copied, each with its position among the staged bytes. The CRC of
    /// each is staged after it.
    shared: VecDeque<(usize, Bytes)>,
    /// Where FPDUs end, if the caller writes whole FPDUs.
    ends: Option<FpduEnds>,
    /// The number of bytes added since the start of the stream.
    queued: u64,
    /// The number of bytes that the socket has taken since the start of the stream.
    transmitted: u64,
    digest: Crc32c,
}

/// The number of sent bytes before the staged bytes at which the staged bytes are moved to the front
/// of their memory.
const COMPACTION_THRESHOLD_BYTES: usize = 128 * 1024;
/// The size of the small buffer that a stream keeps from its first short FPDU on.
const SMALL_BUFFER_BYTES: usize = 1024;
/// The size of a staging buffer: the longest backlog, the sent bytes before compaction, and a
/// reserve.
const STAGING_CAPACITY: usize = 1280 * 1024;
/// The step by which a staging buffer grows, in bytes.
const GROWTH_BYTES: usize = 64 * 1024;
/// The staging buffers of all streams.
static STAGING_BUFFERS: Pool = Pool::new(STAGING_CAPACITY, 8);

impl Outgoing {
    /// Creates a queue without FPDUs. With `keep_ends` it records where FPDUs end.
    pub(super) fn new(crc: bool, keep_ends: bool) -> Self {
        Self {
            crc,
            staged: BytesMut::new(),
            start: 0,
            end: 0,
            small_buffer: BytesMut::new(),
            shared: VecDeque::new(),
            ends: keep_ends.then(FpduEnds::default),
            queued: 0,
            transmitted: 0,
            digest: Crc32c::default(),
        }
    }

    /// Returns how many bytes wait for the socket.
    pub(super) const fn backlog(&self) -> usize {
        (self.queued - self.transmitted) as usize
    }

    /// Returns how many bytes were added so far. When [`transmitted`](Self::transmitted) reaches this value, the
    /// socket has taken all of them, and the work that they belong to is done.
    pub(super) const fn queued(&self) -> u64 {
        self.queued
    }

    /// Returns how many bytes the socket has taken so far.
    pub(super) const fn transmitted(&self) -> u64 {
        self.transmitted
    }

    /// Adds an FPDU whose parts are copied.
    // It is inlined into its callers to make small FPDUs cheap.
    #[inline(always)]
    pub(super) fn push_copied<const N: usize>(&mut self, header: &[u8; N], parts: [&[u8]; 2]) {
        let crc = self.crc;
        let length = ulpdu_length(N + parts[0].len() + parts[1].len());
        let fpdu = self.stage(fpdu_length(length));
        // This clears the padding and the CRC. No FPDU is shorter than these 8 bytes.
        let tail = fpdu.len() - 8;
        fpdu[tail..].copy_from_slice(&[0; 8]);
        let split = begin(fpdu, length, header, parts[0]);
        fpdu[split..split + parts[1].len()].copy_from_slice(parts[1]);
        if crc && let Some((covered, crc)) = fpdu.split_last_chunk_mut() {
            *crc = crc32c(covered).to_le_bytes();
        }
        self.finish();
    }

    /// Adds an FPDU with the ULPDU that consists of the `parts`.
    pub(super) fn push_ulpdu(&mut self, parts: [&[u8]; 2]) {
        self.push_copied(&[], parts);
    }

    /// Adds an FPDU whose last part is not copied.
    pub(super) fn push_shared<const N: usize>(
        &mut self,
        header: &[u8; N],
        first: &[u8],
        shared: Bytes,
    ) {
        let length = ulpdu_length(N + first.len() + shared.len());
        let staged = Fpdu::HEADER_LENGTH + N + first.len();
        begin(self.stage(staged), length, header, first);
        let pad = &[0; 3][..pad_length(length)];
        let mut crc = [0; 4];
        if self.crc {
            self.digest.reset();
            self.digest
                .update(&self.staged[self.end - staged..self.end]);
            self.digest.update(&shared);
            if !pad.is_empty() {
                self.digest.update(pad);
            }
            crc = self.digest.wire();
        }
        self.queued += shared.len() as u64;
        self.shared.push_back((self.end, shared));
        let trailer = self.stage(pad.len() + crc.len());
        trailer[..pad.len()].copy_from_slice(pad);
        trailer[pad.len()..].copy_from_slice(&crc);
        self.finish();
    }

    /// Returns the next `length` staged bytes, for the caller to fill in.
    fn stage(&mut self, length: usize) -> &mut [u8] {
        if self.staged.len() - self.end < length {
            self.make_room(length);
        }
        let start = self.end;
        self.end += length;
        self.queued += length as u64;
        &mut self.staged[start..self.end]
    }

    /// Makes room for `length` bytes after the staged ones.
    #[cold]
    fn make_room(&mut self, length: usize) {
        let needed = self.end + length;
        if needed <= SMALL_BUFFER_BYTES {
            self.staged.resize(SMALL_BUFFER_BYTES, 0);
            return;
        }
        if self.staged.len() <= SMALL_BUFFER_BYTES {
            self.small_buffer = mem::replace(&mut self.staged, STAGING_BUFFERS.take());
            if self.staged.len() < self.end {
                self.staged.resize(GROWTH_BYTES, 0);
            }
            self.staged[..self.end].copy_from_slice(&self.small_buffer[..self.end]);
        }
        if self.staged.len() < needed {
            self.staged.resize(needed.next_multiple_of(GROWTH_BYTES), 0);
        }
    }

    fn finish(&mut self) {
        if let Some(ends) = &mut self.ends {
            ends.push(self.queued);
        }
    }

    /// Returns where FPDUs end, if that is recorded.
    pub(super) const fn ends(&self) -> Option<&FpduEnds> {
        self.ends.as_ref()
    }

    /// Fills `slices` with the next bytes to write, at most `room`, and returns how many slices there
    /// are.
    pub(super) fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>], mut room: usize) -> usize {
        let mut count = 0;
        for (slice, bytes) in slices.iter_mut().zip(self.pieces()) {
            let bytes = &bytes[..bytes.len().min(room)];
            room -= bytes.len();
            *slice = IoSlice::new(bytes);
            count += 1;
            if room == 0 {
                break;
            }
        }
        count
    }

    /// Returns all bytes that wait, in order.
    fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let mut start = self.start;
        let last = self.shared.back().map_or(start, |&(at, _)| at);
        let with_shared = self.shared.iter().flat_map(move |(at, shared)| {
            let before = mem::replace(&mut start, *at);
            [&self.staged[before..*at], shared]
        });
        with_shared
            .chain([&self.staged[last..self.end]])
            .filter(|piece| !piece.is_empty())
    }

    /// Removes `count` bytes, which the socket took.
    pub(super) fn advance(&mut self, mut count: usize) {
        self.transmitted += count as u64;
        assert!(self.transmitted <= self.queued, "more was taken than given");
        while count > 0 {
            let staged = self.shared.front().map_or(self.end, |&(at, _)| at);
            let taken = count.min(staged - self.start);
            self.start += taken;
            count -= taken;
            let Some((_, shared)) = self.shared.front_mut() else {
                break;
            };
            let taken = count.min(shared.len());
            shared.advance(taken);
            count -= taken;
            if shared.is_empty() {
                self.shared.pop_front();
            }
        }
        if self.start == self.end {
            self.release();
        } else if self.start >= COMPACTION_THRESHOLD_BYTES {
            self.compact();
        }
        if let Some(ends) = &mut self.ends {
            ends.advance(self.transmitted);
        }
    }

    /// Moves the staged bytes to the front of their memory.
    fn compact(&mut self) {
        let gone = mem::take(&mut self.start);
        self.staged.copy_within(gone..self.end, 0);
        self.end -= gone;
        for (at, _) in &mut self.shared {
            *at -= gone;
        }
    }

    /// Returns the staging buffer to the pool, because no staged bytes are left.
    fn release(&mut self) {
        (self.start, self.end) = (0, 0);
        if self.staged.len() > SMALL_BUFFER_BYTES {
            let small_buffer = mem::take(&mut self.small_buffer);
            STAGING_BUFFERS.lend(mem::replace(&mut self.staged, small_buffer).freeze());
        }
    }

    /// Drops all bytes that wait.
    pub(super) fn clear(&mut self) {
        self.release();
        self.shared.clear();
        self.transmitted = self.queued;
        if let Some(ends) = &mut self.ends {
            ends.clear(self.transmitted);
        }
    }
}

fn ulpdu_length(length: usize) -> u16 {
    u16::try_from(length).expect("segments are cut to fit")
}

/// Writes ULPDU_Length, `header` and `first`, and returns where they end.
fn begin<const N: usize>(fpdu: &mut [u8], length: u16, header: &[u8; N], first: &[u8]) -> usize {
    let (header_end, end) = (
        Fpdu::HEADER_LENGTH + N,
        Fpdu::HEADER_LENGTH + N + first.len(),
    );
    fpdu[..Fpdu::HEADER_LENGTH].copy_from_slice(&length.to_be_bytes());
    fpdu[Fpdu::HEADER_LENGTH..header_end].copy_from_slice(header);
    fpdu[header_end..end].copy_from_slice(first);
    end
}
