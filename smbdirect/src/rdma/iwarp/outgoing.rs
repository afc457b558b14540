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

use bytes::{Bytes, BytesMut};

use super::mpa::{Crc32c, Fpdu, crc32c, pad_length};
use crate::pool::Pool;

/// FPDUs whose bytes the socket has not taken yet.
#[derive(Debug)]
pub(super) struct Outgoing {
    crc: bool,
    /// Whether each write is to be one FPDU.
    one_fpdu_a_write: bool,
    /// Bytes that were copied; those before `staged_start` are gone. It has memory only while
    /// some wait.
    staged: BytesMut,
    staged_start: usize,
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece that are gone.
    first_gone: usize,
    /// Where FPDUs end, in bytes since the beginning; kept if writes depend on it.
    ends: VecDeque<u64>,
    /// Bytes ever put in.
    queued: u64,
    /// Bytes ever taken by the socket.
    transmitted: u64,
    digest: Crc32c,
}

#[derive(Debug)]
enum Piece {
    Staged(usize),
    Shared(Bytes),
}

impl Piece {
    fn len(&self) -> usize {
        match self {
            Self::Staged(length) => *length,
            Self::Shared(bytes) => bytes.len(),
        }
    }
}

/// Gone bytes that are worth moving the rest of the staged ones to the front.
const COMPACT_AT: usize = 128 * 1024;
/// Bytes that are staged without growing: what waits at most, what is gone at most, and more.
const STAGE: usize = 1280 * 1024;
/// The memory of all streams for them.
static STAGES: Pool = Pool::new(STAGE, 8);

impl Outgoing {
    pub(super) fn new(crc: bool, one_fpdu_a_write: bool) -> Self {
        Self {
            crc,
            one_fpdu_a_write,
            staged: BytesMut::new(),
            staged_start: 0,
            pieces: VecDeque::new(),
            first_gone: 0,
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
    pub(super) fn push_copied<const N: usize>(&mut self, header: &[u8; N], parts: [&[u8]; 2]) {
        let start = self.begin(header, parts[0].len() + parts[1].len());
        self.staged.extend_from_slice(parts[0]);
        self.staged.extend_from_slice(parts[1]);
        let length = self.staged.len() - start - 2;
        self.staged
            .extend_from_slice(&[0; 3][..pad_length(length as u16)]);
        let crc = if self.crc {
            crc32c(&self.staged[start..]).to_le_bytes()
        } else {
            [0; 4]
        };
        self.staged.extend_from_slice(&crc);
        self.extend_staged(self.staged.len() - start);
        self.end();
    }

    /// Adds an FPDU whose last part is not copied.
    pub(super) fn push_shared<const N: usize>(
        &mut self,
        header: &[u8; N],
        first: &[u8],
        shared: Bytes,
    ) {
        let start = self.begin(header, first.len() + shared.len());
        self.staged.extend_from_slice(first);
        let length = self.staged.len() - start - 2 + shared.len();
        let pad = &[0; 3][..pad_length(length as u16)];
        let mut crc = [0; 4];
        if self.crc {
            self.digest.reset();
            self.digest.update(&self.staged[start..]);
            self.digest.update(&shared);
            self.digest.update(pad);
            crc = self.digest.wire();
        }
        self.extend_staged(self.staged.len() - start);
        self.queued += shared.len() as u64;
        self.pieces.push_back(Piece::Shared(shared));
        self.staged.extend_from_slice(pad);
        self.staged.extend_from_slice(&crc);
        self.extend_staged(pad.len() + crc.len());
        self.end();
    }

    /// Makes room for an FPDU and stages ULPDU_Length and the header; gives the place they begin.
    fn begin<const N: usize>(&mut self, header: &[u8; N], payload: usize) -> usize {
        if self.staged.capacity() == 0 {
            self.staged = STAGES.take();
            self.staged.clear();
        } else if self.staged_start >= COMPACT_AT {
            self.staged.copy_within(self.staged_start.., 0);
            self.staged.truncate(self.staged.len() - self.staged_start);
            self.staged_start = 0;
        }
        let length = N + payload;
        self.staged
            .reserve(Fpdu::HEADER_LENGTH + length + 3 + Fpdu::CRC_LENGTH);
        let start = self.staged.len();
        let length = u16::try_from(length).expect("segments are cut to fit");
        self.staged.extend_from_slice(&length.to_be_bytes());
        self.staged.extend_from_slice(header);
        start
    }

    fn extend_staged(&mut self, added: usize) {
        self.queued += added as u64;
        if let Some(Piece::Staged(length)) = self.pieces.back_mut() {
            *length += added;
        } else {
            self.pieces.push_back(Piece::Staged(added));
        }
    }

    fn end(&mut self) {
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
        let (mut staged, mut gone, mut count) = (self.staged_start, self.first_gone, 0);
        for (slice, piece) in slices.iter_mut().zip(&self.pieces) {
            let bytes = match piece {
                Piece::Staged(length) => {
                    let begin = staged;
                    staged += length - gone;
                    &self.staged[begin..staged]
                }
                Piece::Shared(bytes) => &bytes[gone..],
            };
            gone = 0;
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

    /// The socket took `count` bytes.
    pub(super) fn advance(&mut self, mut count: usize) {
        self.transmitted += count as u64;
        assert!(self.transmitted <= self.queued, "more was taken than given");
        while let Some(piece) = self.pieces.front() {
            let rest = piece.len() - self.first_gone;
            let taken = rest.min(count);
            if matches!(piece, Piece::Staged(_)) {
                self.staged_start += taken;
            }
            count -= taken;
            if taken < rest {
                self.first_gone += taken;
                break;
            }
            self.first_gone = 0;
            self.pieces.pop_front();
        }
        if self.staged_start == self.staged.len() {
            self.release();
        }
        while self
            .ends
            .front()
            .is_some_and(|&end| end <= self.transmitted)
        {
            self.ends.pop_front();
        }
    }

    /// Gives the memory of staged bytes back, all of which are gone.
    fn release(&mut self) {
        self.staged_start = 0;
        if self.staged.capacity() > 0 {
            STAGES.lend(mem::take(&mut self.staged).freeze());
        }
    }

    /// Forgets everything: no byte of it goes to the socket any more.
    pub(super) fn clear(&mut self) {
        self.release();
        self.pieces.clear();
        self.first_gone = 0;
        self.ends.clear();
        self.transmitted = self.queued;
    }
}
