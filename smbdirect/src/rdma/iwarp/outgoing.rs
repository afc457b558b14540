//! Bytes on their way to the socket: copied where they are few, shared where they are many.
//!
//! ```text
//! staged:  [hdr payload crc][hdr payload crc][hdr]            [crc hdr]            [crc]
//! shared:                                         [payload...]         [payload...]
//! ```
//!
//! Neighbours that were copied are one slice, so a batch of small FPDUs is one slice, and a
//! large FPDU adds two.

use std::{collections::VecDeque, io::IoSlice, mem};

use bytes::{Buf, Bytes, BytesMut};

use super::mpa::{Crc32c, Fpdu, crc32c, fpdu_length, pad_length};
use crate::pool::Pool;

/// FPDUs whose bytes the socket has not taken yet.
#[derive(Debug)]
pub(super) struct Outgoing {
    crc: bool,
    /// Whether each write is to be one FPDU.
    one_fpdu_a_write: bool,
    /// Bytes that were copied are `staged[start..end]`; those before are gone, and what follows is
    /// room. It has much memory only while some wait.
    staged: BytesMut,
    start: usize,
    end: usize,
    /// The little memory that a stream keeps, while it needs more.
    cup: BytesMut,
    /// What was not copied, and where among the staged bytes it belongs. A CRC is staged behind
    /// each.
    shared: VecDeque<(usize, Bytes)>,
    /// Where FPDUs end, in bytes since the beginning; kept if writes depend on it.
    ends: VecDeque<u64>,
    /// Bytes ever put in.
    queued: u64,
    /// Bytes ever taken by the socket.
    transmitted: u64,
    digest: Crc32c,
}

/// Gone bytes that are worth moving the rest of the staged ones to the front.
const COMPACT_AT: usize = 128 * 1024;
/// Bytes that a stream has room for without asking for memory. It keeps that, from the first short
/// FPDU on.
const CUP: usize = 1024;
/// Bytes that are staged without growing: what waits at most, what is gone at most, and more.
const STAGE: usize = 1280 * 1024;
/// Bytes by which the room grows.
const GROW: usize = 64 * 1024;
/// The memory of all streams for them.
static STAGES: Pool = Pool::new(STAGE, 8);

impl Outgoing {
    pub(super) fn new(crc: bool, one_fpdu_a_write: bool) -> Self {
        Self {
            crc,
            one_fpdu_a_write,
            staged: BytesMut::new(),
            start: 0,
            end: 0,
            cup: BytesMut::new(),
            shared: VecDeque::new(),
            ends: VecDeque::new(),
            queued: 0,
            transmitted: 0,
            digest: Crc32c::default(),
        }
    }

    /// Bytes that wait for the socket.
    pub(super) const fn backlog(&self) -> usize {
        (self.queued - self.transmitted) as usize
    }

    /// Bytes ever put in: what [`transmitted`](Self::transmitted) reaches when all of them, and
    /// so the work they came from, are handed to the socket.
    pub(super) const fn queued(&self) -> u64 {
        self.queued
    }

    pub(super) const fn transmitted(&self) -> u64 {
        self.transmitted
    }

    /// Adds an FPDU whose parts are copied.
    // Part of its callers, for the sake of small FPDUs.
    #[inline(always)]
    pub(super) fn push_copied<const N: usize>(&mut self, header: &[u8; N], parts: [&[u8]; 2]) {
        let crc = self.crc;
        let length = ulpdu_length(N + parts[0].len() + parts[1].len());
        let fpdu = self.stage(fpdu_length(length));
        // The pad, and no CRC. No FPDU is shorter.
        let tail = fpdu.len() - 8;
        fpdu[tail..].copy_from_slice(&[0; 8]);
        let split = begin(fpdu, length, header, parts[0]);
        fpdu[split..split + parts[1].len()].copy_from_slice(parts[1]);
        if crc && let Some((covered, crc)) = fpdu.split_last_chunk_mut() {
            *crc = crc32c(covered).to_le_bytes();
        }
        self.finish();
    }

    /// Adds an FPDU around the ULPDU that the `parts` make up.
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

    /// The next `length` staged bytes, to be written.
    fn stage(&mut self, length: usize) -> &mut [u8] {
        if self.staged.len() - self.end < length {
            self.make_room(length);
        }
        let start = self.end;
        self.end += length;
        self.queued += length as u64;
        &mut self.staged[start..self.end]
    }

    /// Makes room for so many bytes behind the staged ones.
    #[cold]
    fn make_room(&mut self, length: usize) {
        let needed = self.end + length;
        if needed <= CUP {
            self.staged.resize(CUP, 0);
            return;
        }
        if self.staged.len() <= CUP {
            self.cup = mem::replace(&mut self.staged, STAGES.take());
            if self.staged.len() < self.end {
                self.staged.resize(GROW, 0);
            }
            self.staged[..self.end].copy_from_slice(&self.cup[..self.end]);
        }
        if self.staged.len() < needed {
            self.staged.resize(needed.next_multiple_of(GROW), 0);
        }
    }

    /// An FPDU ends here.
    fn finish(&mut self) {
        if self.one_fpdu_a_write {
            self.ends.push_back(self.queued);
        }
    }

    /// Fills `slices` with what to write next and tells how many there are.
    pub(super) fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut room = match self.ends.front() {
            Some(end) => (end - self.transmitted) as usize,
            None => usize::MAX,
        };
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

    /// All that waits, in order.
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

    /// The socket took `count` bytes.
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
        } else if self.start >= COMPACT_AT {
            self.compact();
        }
        while self
            .ends
            .front()
            .is_some_and(|&end| end <= self.transmitted)
        {
            self.ends.pop_front();
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

    /// Gives the memory of staged bytes back, all of which are gone.
    fn release(&mut self) {
        (self.start, self.end) = (0, 0);
        if self.staged.len() > CUP {
            let cup = mem::take(&mut self.cup);
            STAGES.lend(mem::replace(&mut self.staged, cup).freeze());
        }
    }

    /// Forgets everything: no byte of it goes to the socket any more.
    pub(super) fn clear(&mut self) {
        self.release();
        self.shared.clear();
        self.ends.clear();
        self.transmitted = self.queued;
    }
}

fn ulpdu_length(length: usize) -> u16 {
    u16::try_from(length).expect("segments are cut to fit")
}

/// Writes ULPDU_Length, the header and what follows it; tells where that ends.
fn begin<const N: usize>(fpdu: &mut [u8], length: u16, header: &[u8; N], first: &[u8]) -> usize {
    let (behind, end) = (
        Fpdu::HEADER_LENGTH + N,
        Fpdu::HEADER_LENGTH + N + first.len(),
    );
    fpdu[..Fpdu::HEADER_LENGTH].copy_from_slice(&length.to_be_bytes());
    fpdu[Fpdu::HEADER_LENGTH..behind].copy_from_slice(header);
    fpdu[behind..end].copy_from_slice(first);
    end
}
