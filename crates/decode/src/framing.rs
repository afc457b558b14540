//! One direction of an iWARP connection: makes startup frame and FPDUs from bytes that may have
//! gaps.
//!
//! A gap within an FPDU costs only its tail: the length at its front says where the next one
//! begins. Anywhere else the boundaries are lost, until a DDP and RDMAP header is plausible and the
//! CRC after it is right, or zero in a stream without CRCs.

use smbdirect::rdma::iwarp::{
    ddp::{Header, Tagged, Untagged},
    mpa::{self, FrameKind, StartupError, StartupFrame},
    rdmap::{Opcode, ReadRequest},
};

use super::tcp::Piece;

/// The next item of a direction.
#[derive(Debug)]
pub(crate) enum Frame<'a> {
    /// The direction does not begin with a startup frame.
    Foreign,
    Startup {
        kind: FrameKind,
        /// The flags as on the wire, including undefined ones.
        flags: u8,
        result: Result<StartupFrame, StartupError>,
    },
    Fpdu(Fpdu<'a>),
    /// The boundaries were lost, and were found again after this many bytes.
    InStep {
        skipped: u64,
    },
}

/// An FPDU, as far as it is in the capture.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fpdu<'a> {
    pub(crate) ulpdu: &'a [u8],
    /// ULPDU_Length; if it is not all in the capture, `ulpdu` is shorter.
    pub(crate) ulpdu_length: u16,
    pub(crate) padding_is_zero: bool,
    pub(crate) crc: Crc,
}

/// The CRC field of an FPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crc {
    Right,
    Zero,
    Wrong,
    /// The CRC is not in the capture.
    Unseen,
}

/// The state of a direction.
#[derive(Debug, Default)]
pub(crate) struct Framer {
    /// Bytes that have not been decoded, from `start` on.
    buffer: Vec<u8>,
    start: usize,
    /// Bytes of the stream before `start`.
    position: u64,
    phase: Phase,
    /// The head of an FPDU whose later part is not in the capture.
    cut: Option<Vec<u8>>,
    /// The bytes that were passed over before the FPDU in `cut`, if the boundaries were unknown.
    found: Option<u64>,
    /// Number of bytes after the gap that still belong to it.
    skip: u64,
    /// The offset of FPDUs modulo 4, if it is known.
    alignment: Option<u64>,
    /// Bytes that were passed over in search of a boundary, since [`Self::take_passed`].
    passed: u64,
    /// Bytes whose CRC may still be computed in search of a boundary. The budget keeps the search
    /// linear in bytes that look like headers everywhere.
    budget: usize,
}

#[derive(Clone, Copy, Debug, Default)]
enum Phase {
    #[default]
    Start,
    Frames,
    /// The boundaries are unknown.
    Lost {
        skipped: u64,
    },
    Stopped,
}

/// Budget of the search for a boundary: bytes of CRC for each byte searched.
const BUDGET_PER_BYTE: usize = 16;
const BUDGET: usize = 1 << 20;

/// Bytes of an untagged message that a decoder needs: those of an RDMA Read Request, and the header of a Data Transfer.
const MIN_PAYLOAD_BYTES: usize = ReadRequest::LENGTH;
const CRC_LENGTH: usize = mpa::Fpdu::CRC_LENGTH;
const LENGTH_LENGTH: usize = mpa::Fpdu::HEADER_LENGTH;

impl Framer {
    /// Takes the next piece of the direction.
    pub(crate) fn take(&mut self, piece: &Piece<'_>) {
        if matches!(self.phase, Phase::Stopped) {
            return;
        }
        self.buffer.drain(..self.start);
        self.start = 0;
        match *piece {
            Piece::Bytes(bytes) => {
                let skipped = self.skip.min(bytes.len() as u64);
                self.skip -= skipped;
                self.position += skipped;
                self.buffer.extend_from_slice(&bytes[skipped as usize..]);
            }
            Piece::Gap(gap) | Piece::Cut(gap) => self.gap(gap),
            Piece::Begins { .. } | Piece::End { .. } => {}
        }
    }

    /// Gives up: the rest of the direction cannot be read.
    pub(crate) fn stop(&mut self) {
        *self = Self {
            phase: Phase::Stopped,
            ..Self::default()
        };
    }

    /// Searches for boundaries in a direction whose beginning is not in the capture.
    pub(crate) fn search(&mut self) {
        self.phase = Phase::Lost { skipped: 0 };
        self.budget = BUDGET;
    }

    /// Returns whether all bytes have been decoded.
    pub(crate) fn is_between_frames(&self) -> bool {
        self.start == self.buffer.len() && self.cut.is_none()
    }

    /// Returns the bytes that were passed over since the last call.
    pub(crate) fn take_passed(&mut self) -> u64 {
        std::mem::take(&mut self.passed)
    }

    /// Returns whether a cut of this many bytes leaves the boundaries known, and the headers of the FPDU in the capture.
    pub(crate) fn survives_cut(&self, gap: u64) -> bool {
        self.rest_of_cut().is_some_and(|rest| rest >= gap)
    }

    /// Returns how many of the bytes that are cut belong to the FPDU whose headers are in the capture, if that ends within
    /// them.
    pub(crate) fn ends_within_cut(&mut self, gap: u64) -> Option<u64> {
        self.find_cut(gap);
        self.rest_of_cut().filter(|rest| (1..gap).contains(rest))
    }

    /// Returns how many bytes the FPDU at the front lacks, if its headers are in the capture.
    fn rest_of_cut(&self) -> Option<u64> {
        if self.cut.is_some() {
            return Some(self.skip);
        }
        let have = self.buffer.len() - self.start;
        let is_tagged = self.buffer.get(self.start + LENGTH_LENGTH);
        let is_tagged = is_tagged.is_some_and(|control| control & 0x80 != 0);
        let least = if is_tagged {
            LENGTH_LENGTH + Tagged::LENGTH
        } else {
            LENGTH_LENGTH + Untagged::LENGTH + MIN_PAYLOAD_BYTES
        };
        if !matches!(self.phase, Phase::Frames) || have < least {
            return None;
        }
        (self.fpdu_length()? as u64).checked_sub(have as u64)
    }

    /// Accepts an FPDU at the beginning of a packet that is cut. Its CRC cannot be checked, but senders begin packets with
    /// FPDUs.
    fn find_cut(&mut self, gap: u64) {
        let Phase::Lost { skipped } = self.phase else {
            return;
        };
        let bytes = &self.buffer[self.start..];
        let is_aligned = self.alignment.is_none_or(|at| self.position % 4 == at);
        let length = self.fpdu_length().unwrap_or(0);
        let rest = bytes.len() as u64 + gap;
        let is_likely = length as u64 == rest || (length as u64 > rest && self.start == 0);
        let is_fpdu = plausible(bytes).flatten();
        if is_aligned && is_fpdu.is_some_and(|is_strong| is_strong || is_likely) {
            self.phase = Phase::Frames;
            self.alignment = Some(self.position % 4);
            self.found = Some(skipped);
        }
    }

    fn gap(&mut self, gap: u64) {
        let have = self.buffer.len() as u64;
        if self.cut.is_some() && self.skip >= gap {
            self.skip -= gap;
            self.position += gap;
            return;
        }
        if let (Phase::Frames, None, Some(length)) = (self.phase, &self.cut, self.fpdu_length())
            && have + gap <= length as u64
        {
            self.cut = Some(std::mem::take(&mut self.buffer));
            self.skip = length as u64 - have - gap;
            self.position += have + gap;
            return;
        }
        let skipped = match self.phase {
            Phase::Lost { skipped } => skipped,
            _ => 0,
        };
        self.position += have + gap;
        self.skip = 0;
        // The head of an FPDU is reported even if only its length is known.
        if matches!(self.phase, Phase::Frames) && self.cut.is_none() && have > 0 {
            self.cut = Some(std::mem::take(&mut self.buffer));
        }
        self.buffer.clear();
        self.search();
        self.phase = Phase::Lost {
            skipped: skipped + if self.cut.is_some() { 0 } else { have },
        };
    }

    /// Returns the length of the FPDU at the front, if it is there.
    fn fpdu_length(&self) -> Option<usize> {
        let bytes = self.buffer.get(self.start..)?.first_chunk::<2>()?;
        Some(mpa::fpdu_length(u16::from_be_bytes(*bytes)))
    }

    /// Returns the next frame; `crc` says whether CRCs are in use, if that is known.
    pub(crate) fn next(&mut self, crc: Option<bool>) -> Option<Frame<'_>> {
        if let Some(skipped) = self.found.take() {
            return Some(Frame::InStep { skipped });
        }
        if self.skip == 0
            && let Some(cut) = self.cut.take()
        {
            // The frame stays in the buffer while it is examined.
            self.start = cut.len();
            let rest = std::mem::replace(&mut self.buffer, cut);
            self.buffer.extend_from_slice(&rest);
            if self.start >= LENGTH_LENGTH {
                return Some(Frame::Fpdu(cut_fpdu(&self.buffer[..self.start])));
            }
        }
        match self.phase {
            Phase::Start => self.startup(),
            Phase::Frames => self.fpdu(crc),
            Phase::Lost { skipped } => self.find(skipped, crc),
            Phase::Stopped => None,
        }
    }

    fn startup(&mut self) -> Option<Frame<'_>> {
        let bytes = &self.buffer[self.start..];
        if bytes.is_empty() {
            return None;
        }
        let kinds = [FrameKind::Request, FrameKind::Reply];
        let mut kinds = kinds.into_iter();
        let kind = kinds.find(|&kind| {
            !matches!(
                StartupFrame::decode(kind, &bytes[..bytes.len().min(16)]),
                Err(StartupError::Key)
            )
        });
        let Some(kind) = kind else {
            // The caller decides what the bytes are.
            self.phase = Phase::Stopped;
            return Some(Frame::Foreign);
        };
        let header = bytes.first_chunk::<{ StartupFrame::HEADER_LENGTH }>()?;
        let [flags, high, low] = [header[16], header[18], header[19]];
        let length = header.len() + usize::from(u16::from_be_bytes([high, low]));
        let frame = bytes.get(..length)?;
        let result = StartupFrame::decode(kind, frame);
        self.advance(length);
        self.alignment = Some(self.position % 4);
        self.phase = Phase::Frames;
        Some(Frame::Startup {
            kind,
            flags,
            result,
        })
    }

    fn fpdu(&mut self, crc: Option<bool>) -> Option<Frame<'_>> {
        let length = self.fpdu_length()?;
        let start = self.start;
        self.buffer.get(start..start + length)?;
        self.advance(length);
        Some(Frame::Fpdu(whole_fpdu(
            &self.buffer[start..start + length],
            crc,
        )))
    }

    /// Searches for the next boundary.
    fn find(&mut self, mut skipped: u64, crc: Option<bool>) -> Option<Frame<'_>> {
        loop {
            let bytes = &self.buffer[self.start..];
            let aligned = self.alignment.is_none_or(|at| self.position % 4 == at);
            let verdict = if aligned {
                boundary(bytes, crc, &mut self.budget)
            } else if bytes.is_empty() {
                Verdict::Unknown
            } else {
                Verdict::No
            };
            match verdict {
                Verdict::Yes => {
                    self.phase = Phase::Frames;
                    self.alignment = Some(self.position % 4);
                    return Some(Frame::InStep { skipped });
                }
                Verdict::Unknown => {
                    self.phase = Phase::Lost { skipped };
                    return None;
                }
                Verdict::No => {
                    self.advance(1);
                    skipped += 1;
                    self.passed += 1;
                    self.budget = self.budget.saturating_add(BUDGET_PER_BYTE);
                }
            }
        }
    }

    fn advance(&mut self, length: usize) {
        self.start += length;
        self.position += length as u64;
    }
}

fn whole_fpdu(bytes: &[u8], crc: Option<bool>) -> Fpdu<'_> {
    let (covered, field) = bytes.split_at(bytes.len() - CRC_LENGTH);
    let ulpdu_length = u16::from_be_bytes([bytes[0], bytes[1]]);
    let (ulpdu, padding) = covered[LENGTH_LENGTH..].split_at(ulpdu_length.into());
    let crc = match field {
        [0, 0, 0, 0] if crc != Some(true) => Crc::Zero,
        _ if *field == mpa::crc32c(covered).to_le_bytes() => Crc::Right,
        [0, 0, 0, 0] => Crc::Zero,
        _ => Crc::Wrong,
    };
    Fpdu {
        ulpdu,
        ulpdu_length,
        padding_is_zero: padding.iter().all(|&byte| byte == 0),
        crc,
    }
}

fn cut_fpdu(bytes: &[u8]) -> Fpdu<'_> {
    let (length, rest) = bytes.split_at(LENGTH_LENGTH);
    let ulpdu_length = u16::from_be_bytes([length[0], length[1]]);
    Fpdu {
        ulpdu: &rest[..rest.len().min(ulpdu_length.into())],
        ulpdu_length,
        padding_is_zero: true,
        crc: Crc::Unseen,
    }
}

enum Verdict {
    Yes,
    No,
    /// There are too few bytes to decide.
    Unknown,
}

/// Returns whether an FPDU begins here.
fn boundary(bytes: &[u8], crc: Option<bool>, budget: &mut usize) -> Verdict {
    let strong = match plausible(bytes) {
        Some(Some(strong)) => strong,
        Some(None) => return Verdict::No,
        None => return Verdict::Unknown,
    };
    let length = mpa::fpdu_length(u16::from_be_bytes([bytes[0], bytes[1]]));
    let Some((fpdu, behind)) = bytes.split_at_checked(length) else {
        return Verdict::Unknown;
    };
    let (covered, field) = fpdu.split_at(length - CRC_LENGTH);
    if *field == [0; CRC_LENGTH] && crc != Some(true) {
        // Without a CRC, only this header and that of the next FPDU can be checked.
        let followed = match plausible(behind) {
            Some(verdict) => verdict.is_some(),
            None => strong || behind.is_empty(),
        };
        return if followed { Verdict::Yes } else { Verdict::No };
    }
    if length > *budget {
        return Verdict::No;
    }
    *budget -= length;
    if mpa::crc32c(covered).to_le_bytes() == *field {
        Verdict::Yes
    } else {
        Verdict::No
    }
}

/// Checks whether bytes can be the head of an FPDU. Returns `None` if there are too few of them, and `Some(None)`
/// if they cannot be one. Otherwise returns whether other bytes are unlikely to look like this.
fn plausible(bytes: &[u8]) -> Option<Option<bool>> {
    let (length, ulpdu) = bytes.split_first_chunk::<LENGTH_LENGTH>()?;
    let length = usize::from(u16::from_be_bytes(*length));
    let [control, rdmap] = *ulpdu.first_chunk::<2>()?;
    const DDP_RESERVED: u8 = 0x3c;
    const RDMAP_RESERVED: u8 = 0x30;
    if control & DDP_RESERVED != 0 || rdmap & RDMAP_RESERVED != 0 {
        return Some(None);
    }
    let is_tagged = control & 0x80 != 0;
    let header_length = if is_tagged {
        Tagged::LENGTH
    } else {
        Untagged::LENGTH
    };
    if length < header_length {
        return Some(None);
    }
    let ulpdu = ulpdu.get(..header_length)?;
    let Ok((header, _)) = Header::decode(ulpdu) else {
        return Some(None);
    };
    let Ok(opcode) = Opcode::of(&header) else {
        return Some(None);
    };
    let is_read = opcode == Opcode::RdmaReadRequest;
    Some(match header {
        Header::Tagged(_) => Some(false),
        Header::Untagged(header) => {
            let right = header.queue_number == opcode.queue_number()
                && header.message_sequence_number != 0
                && (!is_read || length == Untagged::LENGTH + ReadRequest::LENGTH);
            right.then_some(true)
        }
    })
}
