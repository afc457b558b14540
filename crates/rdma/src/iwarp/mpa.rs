//! MPA (RFC 5044, RFC 6581): the startup frames of a connection, and the FPDUs after them.
//!
//! ```text
//! startup frame:  Key (16) | M C R S flags | Rev | PD_Length (2) | private data
//! FPDU:           ULPDU_Length (2) | ULPDU | PAD (0..3) | CRC (4)
//! ```
//!
//! All fields except the CRC are big-endian. Markers are not supported: a Request that asks for
//! them is refused.

use bytes::{BufMut, Bytes};
use crc_fast::{CrcAlgorithm, Digest};
use thiserror::Error;

/// The kind of a startup frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// The frame of the initiator, which is the start of a connection.
    Request,
    /// The answer of the responder.
    Reply,
}

impl FrameKind {
    const fn key(self) -> &'static [u8; 16] {
        match self {
            Self::Request => b"MPA ID Req Frame",
            Self::Reply => b"MPA ID Rep Frame",
        }
    }
}

/// An MPA Request or Reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartupFrame {
    /// The kind of the frame.
    pub kind: FrameKind,
    /// M: the sender asks for markers in the stream that it receives.
    pub markers: bool,
    /// C: the sender asks for CRCs in both directions.
    pub crc: bool,
    /// R: the connection is refused.
    pub rejected: bool,
    /// Rev: 1 for RFC 5044, 2 for RFC 6581.
    pub revision: u8,
    /// The first four bytes of private data, if S is set in a frame of revision 2.
    pub enhanced: Option<Enhanced>,
    /// The private data of the upper layer.
    pub private_data: Bytes,
}

/// The enhanced connection data of RFC 6581.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Enhanced {
    /// A: the initiator's first FPDU is a ready-to-receive frame (RTR).
    pub peer_to_peer: bool,
    /// B: the RTR may be a zero-length Send.
    pub rtr_send: bool,
    /// C: the RTR may be a zero-length RDMA Write.
    pub rtr_write: bool,
    /// D: the RTR may be a zero-length RDMA Read.
    pub rtr_read: bool,
    /// Inbound RDMA Read queue depth, 14 bits.
    pub ird: u16,
    /// Outbound RDMA Read queue depth, 14 bits.
    pub ord: u16,
}

/// The reason why bytes are not the expected startup frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum StartupError {
    /// The frame is longer than the bytes that were given.
    #[error("the MPA frame is at least {needed} bytes long")]
    Incomplete {
        /// The least length of the frame, in bytes.
        needed: usize,
    },
    /// The peer uses another protocol, or has the other role.
    #[error("not the expected MPA frame")]
    Key,
    /// The revision is unknown.
    #[error("MPA revision {0} is not known")]
    Revision(u8),
    /// The private data is too long.
    #[error("{0} bytes of MPA private data, at most 512 are allowed")]
    PrivateDataLength(u16),
    /// S is set, but the private data is too short for the enhanced connection data.
    #[error("the MPA frame lacks the enhanced connection data that it announces")]
    EnhancedMissing,
}

const FLAG_MARKERS: u8 = 0x80;
const FLAG_CRC: u8 = 0x40;
const FLAG_REJECT: u8 = 0x20;
const FLAG_ENHANCED: u8 = 0x10;
/// The bit of A in the IRD word, and of C in the ORD word.
const HIGH_BIT: u16 = 0x8000;
/// The bit of B in the IRD word, and of D in the ORD word.
const SECOND_BIT: u16 = 0x4000;

impl StartupFrame {
    /// The bytes before the private data.
    pub const HEADER_LENGTH: usize = 20;
    /// The most bytes of private data in a frame.
    pub const MAX_PRIVATE_DATA: u16 = 512;

    /// Creates a frame of `kind` with no flag set.
    pub const fn new(kind: FrameKind, revision: u8) -> Self {
        Self {
            kind,
            markers: false,
            crc: false,
            rejected: false,
            revision,
            enhanced: None,
            private_data: Bytes::new(),
        }
    }

    /// Decodes the frame of `kind` at the front of `bytes`, which is
    /// [`encoded_length`](Self::encoded_length) bytes long.
    ///
    /// # Errors
    /// Returns [`StartupError::Incomplete`] if the frame has not arrived in full, and another error
    /// if the bytes are not a frame of `kind`. A wrong key is reported at its first wrong byte, so a
    /// peer of another protocol is recognised before a whole frame has arrived.
    pub fn decode(kind: FrameKind, bytes: &[u8]) -> Result<Self, StartupError> {
        //= MPA-01
        //= MPA-09
        let known = bytes.len().min(16);
        if bytes[..known] != kind.key()[..known] {
            return Err(StartupError::Key);
        }
        let needed = Self::HEADER_LENGTH;
        let Some((header, rest)) = bytes.split_first_chunk::<{ Self::HEADER_LENGTH }>() else {
            return Err(StartupError::Incomplete { needed });
        };
        //= MPA-02
        let [flags, revision] = [header[16], header[17]];
        let length = u16::from_be_bytes([header[18], header[19]]);
        //= MPA-03
        if length > Self::MAX_PRIVATE_DATA {
            return Err(StartupError::PrivateDataLength(length));
        }
        //= MPA-10
        if !(1..=2).contains(&revision) {
            return Err(StartupError::Revision(revision));
        }
        let needed = needed + usize::from(length);
        let Some(mut private_data) = rest.get(..usize::from(length)) else {
            return Err(StartupError::Incomplete { needed });
        };
        let mut enhanced = None;
        //= MPA-12
        if revision == 2 && flags & FLAG_ENHANCED != 0 {
            //= MPA-13
            let (block, rest) = private_data
                .split_first_chunk::<{ Enhanced::LENGTH }>()
                .ok_or(StartupError::EnhancedMissing)?;
            enhanced = Some(Enhanced::decode(*block));
            //= MPA-14
            private_data = rest;
        }
        //= MPA-33
        Ok(Self {
            kind,
            markers: flags & FLAG_MARKERS != 0,
            crc: flags & FLAG_CRC != 0,
            rejected: flags & FLAG_REJECT != 0,
            revision,
            enhanced,
            private_data: Bytes::copy_from_slice(private_data),
        })
    }

    /// Returns how many bytes [`encode`](Self::encode) writes.
    pub fn encoded_length(&self) -> usize {
        let block = self.enhanced.map_or(0, |_| Enhanced::LENGTH);
        Self::HEADER_LENGTH + block + self.private_data.len()
    }

    /// Appends the frame to `out`.
    ///
    /// # Panics
    /// Panics if the private data is too long, or if a frame of another revision than 2 has
    /// enhanced data.
    pub fn encode(&self, out: &mut impl BufMut) {
        let private_length = self.encoded_length() - Self::HEADER_LENGTH;
        assert!(private_length <= usize::from(Self::MAX_PRIVATE_DATA));
        assert!(self.enhanced.is_none() || self.revision == 2);
        out.put_slice(self.kind.key());
        let flag = |set, bit| if set { bit } else { 0 };
        //= MPA-33
        out.put_u8(
            flag(self.markers, FLAG_MARKERS)
                | flag(self.crc, FLAG_CRC)
                | flag(self.rejected, FLAG_REJECT)
                | flag(self.enhanced.is_some(), FLAG_ENHANCED),
        );
        out.put_u8(self.revision);
        out.put_u16(private_length as u16);
        if let Some(enhanced) = self.enhanced {
            out.put_slice(&enhanced.encode());
        }
        out.put_slice(&self.private_data);
    }
}

impl Enhanced {
    /// The length on the wire, in bytes.
    pub const LENGTH: usize = 4;
    /// The depth that means "not negotiated", which is also the greatest value of 14 bits.
    pub const NOT_NEGOTIATED: u16 = 0x3fff;

    const fn decode([a, b, c, d]: [u8; 4]) -> Self {
        //= EST-01
        let (ird, ord) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        Self {
            peer_to_peer: ird & HIGH_BIT != 0,
            rtr_send: ird & SECOND_BIT != 0,
            rtr_write: ord & HIGH_BIT != 0,
            rtr_read: ord & SECOND_BIT != 0,
            ird: ird & Self::NOT_NEGOTIATED,
            ord: ord & Self::NOT_NEGOTIATED,
        }
    }

    fn encode(self) -> [u8; 4] {
        assert!(self.ird <= Self::NOT_NEGOTIATED && self.ord <= Self::NOT_NEGOTIATED);
        let flag = |set, bit| if set { bit } else { 0 };
        let ird = flag(self.peer_to_peer, HIGH_BIT) | flag(self.rtr_send, SECOND_BIT) | self.ird;
        let ord = flag(self.rtr_write, HIGH_BIT) | flag(self.rtr_read, SECOND_BIT) | self.ord;
        let ([a, b], [c, d]) = (ird.to_be_bytes(), ord.to_be_bytes());
        [a, b, c, d]
    }
}

/// An FPDU in the bytes that it was decoded from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fpdu<'a> {
    /// The ULPDU, which is one DDP segment.
    pub ulpdu: &'a [u8],
    /// The length of the whole FPDU, in bytes.
    pub length: usize,
}

/// The error of an FPDU whose CRC does not match its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the CRC of an FPDU is wrong")]
pub struct CrcMismatch;

impl<'a> Fpdu<'a> {
    /// The length of the ULPDU_Length field, in bytes.
    pub const HEADER_LENGTH: usize = 2;
    /// The length of the CRC field, in bytes.
    pub const CRC_LENGTH: usize = 4;

    /// Decodes the FPDU at the front of `bytes`. Returns `None` if it is incomplete.
    ///
    /// # Errors
    /// Returns an error if `crc` is set, the FPDU is complete and its CRC is wrong.
    pub fn decode(bytes: &'a [u8], crc: bool) -> Result<Option<Self>, CrcMismatch> {
        let Some((ulpdu_length, rest)) = bytes.split_first_chunk::<2>() else {
            return Ok(None);
        };
        //= MPA-26
        let ulpdu_length = u16::from_be_bytes(*ulpdu_length);
        let length = fpdu_length(ulpdu_length);
        //= MPA-24
        let Some((covered, found)) = bytes
            .get(..length)
            .and_then(|fpdu| fpdu.split_last_chunk::<4>())
        else {
            return Ok(None);
        };
        //= MPA-20
        //= MPA-22
        if crc && *found != crc32c(covered).to_le_bytes() {
            return Err(CrcMismatch);
        }
        let ulpdu = &rest[..usize::from(ulpdu_length)];
        Ok(Some(Self { ulpdu, length }))
    }

    /// Appends an FPDU with the ULPDU that consists of the `parts`.
    ///
    /// # Panics
    /// Panics if the parts have more than 65535 bytes.
    pub fn encode(parts: &[&[u8]], crc: bool, out: &mut Vec<u8>) {
        let start = out.len();
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let length = u16::try_from(length).expect("a ULPDU has at most 65535 bytes");
        out.extend_from_slice(&length.to_be_bytes());
        for part in parts {
            out.extend_from_slice(part);
        }
        //= MPA-23
        out.extend_from_slice(&[0; 3][..pad_length(length)]);
        let checksum = if crc { crc32c(&out[start..]) } else { 0 };
        //= MPA-21
        out.extend_from_slice(&checksum.to_le_bytes());
    }
}

/// Returns the number of padding bytes after a ULPDU of this length.
pub const fn pad_length(ulpdu_length: u16) -> usize {
    (4 - (ulpdu_length as usize + 2) % 4) % 4
}

/// Returns the length of the FPDU with a ULPDU of this length, in bytes.
pub const fn fpdu_length(ulpdu_length: u16) -> usize {
    Fpdu::HEADER_LENGTH + ulpdu_length as usize + pad_length(ulpdu_length) + Fpdu::CRC_LENGTH
}

/// Returns the longest FPDU to send, in bytes, if TCP segments carry `mss` bytes.
///
/// The result is a multiple of eight, so that all segments of a message except the last keep its
/// alignment and need no padding. It is large enough for every header, and within the 16 bits of
/// ULPDU_Length.
pub const fn max_fpdu(mss: u32) -> usize {
    //= MPA-27
    //= DDP-18
    match mss & !7 {
        0..136 => 136,
        fitting @ 136..65536 => fitting as usize,
        _ => 65536,
    }
}

/// Returns the CRC32C of contiguous bytes.
#[inline(always)]
pub fn crc32c(bytes: &[u8]) -> u32 {
    //= PERF-01
    crc_fast::crc32_iscsi(bytes)
}

/// The CRC32C of bytes that are given in pieces.
#[derive(Clone, Debug)]
pub struct Crc32c(Digest);

impl Default for Crc32c {
    fn default() -> Self {
        Self(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }
}

impl Crc32c {
    /// Removes all pieces.
    pub fn reset(&mut self) {
        self.0.reset();
    }

    /// Adds the next piece.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the CRC of all pieces in the byte order of the wire.
    pub fn wire(&self) -> [u8; 4] {
        (self.0.finalize() as u32).to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use crc::{CRC_32_ISCSI, Crc};
    use proptest::prelude::*;

    use super::*;
    use crate::iwarp::test_vectors::{self, hex};

    fn frame(kind: FrameKind, revision: u8) -> StartupFrame {
        StartupFrame {
            crc: true,
            ..StartupFrame::new(kind, revision)
        }
    }

    fn startup_frames() -> Vec<(&'static str, StartupFrame)> {
        use FrameKind::{Reply, Request};
        let b1 = Enhanced {
            peer_to_peer: true,
            rtr_write: true,
            rtr_read: true,
            ird: 32,
            ord: 16,
            ..Enhanced::default()
        };
        let b2 = Enhanced {
            peer_to_peer: true,
            rtr_write: true,
            ird: 16,
            ord: 32,
            ..Enhanced::default()
        };
        let plain = |ird, ord| {
            Some(Enhanced {
                ird,
                ord,
                ..Enhanced::default()
            })
        };
        vec![
            (test_vectors::A1, frame(Request, 1)),
            (test_vectors::A2, frame(Reply, 1)),
            (
                test_vectors::A3,
                StartupFrame {
                    private_data: Bytes::from_static(&[0, 0, 0, 16, 0, 0, 0, 16]),
                    ..frame(Request, 1)
                },
            ),
            (
                test_vectors::A4,
                StartupFrame {
                    rejected: true,
                    ..frame(Reply, 1)
                },
            ),
            (
                test_vectors::B1,
                StartupFrame {
                    enhanced: Some(b1),
                    ..frame(Request, 2)
                },
            ),
            (
                test_vectors::B2,
                StartupFrame {
                    enhanced: Some(b2),
                    ..frame(Reply, 2)
                },
            ),
            (
                test_vectors::B3,
                StartupFrame {
                    crc: false,
                    enhanced: plain(32, 8),
                    ..frame(Request, 2)
                },
            ),
            (
                test_vectors::B4,
                StartupFrame {
                    crc: false,
                    enhanced: plain(8, 32),
                    ..frame(Reply, 2)
                },
            ),
        ]
    }

    //= MPA-01 test
    //= MPA-02 test
    //= MPA-14 test
    //= EST-01 test
    #[test]
    fn example_frames_round_trip_and_truncations_are_incomplete() {
        for (text, value) in startup_frames() {
            let mut bytes = hex(text);
            assert_eq!(StartupFrame::decode(value.kind, &bytes), Ok(value.clone()));
            let mut out = Vec::new();
            value.encode(&mut out);
            assert_eq!(out, bytes);
            assert_eq!(value.encoded_length(), bytes.len());
            for length in 0..bytes.len() {
                let needed = if length < 20 { 20 } else { bytes.len() };
                assert_eq!(
                    StartupFrame::decode(value.kind, &bytes[..length]),
                    Err(StartupError::Incomplete { needed })
                );
            }
            bytes.extend_from_slice(b"the first FPDU");
            assert_eq!(StartupFrame::decode(value.kind, &bytes), Ok(value));
        }
    }

    //= MPA-03 test
    //= MPA-09 test
    //= MPA-10 test
    //= MPA-12 test
    //= MPA-13 test
    //= MPA-33 test
    #[test]
    fn invalid_frames_are_errors() {
        use FrameKind::{Reply, Request};
        let request = hex(test_vectors::A1);
        let patched = |at: usize, with: &[u8]| {
            let mut bytes = request.clone();
            bytes[at..at + with.len()].copy_from_slice(with);
            StartupFrame::decode(Request, &bytes)
        };
        assert_eq!(
            StartupFrame::decode(Reply, &request),
            Err(StartupError::Key)
        );
        assert_eq!(StartupFrame::decode(Request, b"G"), Err(StartupError::Key));
        assert_eq!(patched(17, &[0]), Err(StartupError::Revision(0)));
        assert_eq!(patched(17, &[3]), Err(StartupError::Revision(3)));
        assert_eq!(
            patched(18, &[2, 1]),
            Err(StartupError::PrivateDataLength(513))
        );
        assert_eq!(
            patched(18, &[2, 0]),
            Err(StartupError::Incomplete { needed: 532 })
        );
        assert_eq!(patched(16, &[0x10, 2]), Err(StartupError::EnhancedMissing));
        let unenhanced = patched(16, &[0x4f, 2]).unwrap();
        assert_eq!((unenhanced.revision, unenhanced.enhanced), (2, None));
        assert_eq!(patched(16, &[0x40, 2]).unwrap(), unenhanced);
    }

    //= MPA-21 test
    #[test]
    fn checksums_match_rfc_3720() {
        let ascending: Vec<u8> = (0..32).collect();
        let descending: Vec<u8> = (0..32).rev().collect();
        let read_pdu = hex(
            "01c00000 00000000 00000000 00000000 14000000 00000400 00000014 00000018 \
             28000000 00000000 02000000 00000000",
        );
        for (bytes, wire) in [
            (vec![0; 32], "aa36918a"),
            (vec![0xff; 32], "43aba862"),
            (ascending, "4e79dd46"),
            (descending, "5cdb3f11"),
            (read_pdu, "563a96d9"),
        ] {
            assert_eq!(crc32c(&bytes).to_le_bytes()[..], hex(wire));
        }
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    //= MPA-20 test
    //= MPA-21 test
    //= MPA-22 test
    //= MPA-23 test
    #[test]
    fn a_flipped_bit_is_found_if_crcs_are_on() {
        let fpdu = hex(test_vectors::C2);
        let ulpdu = Fpdu::decode(&fpdu, true).unwrap().unwrap().ulpdu;
        let mut made = Vec::new();
        Fpdu::encode(&[ulpdu], true, &mut made);
        assert_eq!(made, fpdu);
        for bit in 16..fpdu.len() * 8 {
            let mut flipped = fpdu.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Fpdu::decode(&flipped, true), Err(CrcMismatch));
            assert!(Fpdu::decode(&flipped, false).unwrap().is_some());
        }
        for length in 0..fpdu.len() {
            assert_eq!(Fpdu::decode(&fpdu[..length], true), Ok(None));
        }
    }

    //= MPA-26 test
    #[test]
    fn the_longest_ulpdu_round_trips() {
        let ulpdu = vec![7; 65_535];
        let mut bytes = Vec::new();
        Fpdu::encode(&[&ulpdu], true, &mut bytes);
        let fpdu = Fpdu::decode(&bytes, true).unwrap().unwrap();
        assert_eq!((fpdu.ulpdu, fpdu.length), (&ulpdu[..], 65_544));
    }

    //= MPA-27 test
    //= DDP-18 test
    #[test]
    fn fpdus_fit_their_segments_and_are_padded() {
        for (mss, expected) in [(0, 136), (1448, 1448), (1460, 1456), (65483, 65480)] {
            assert_eq!(max_fpdu(mss), expected);
        }
        assert_eq!(max_fpdu(u32::MAX), 65536);
        assert_eq!(fpdu_length(14), 20);
        assert_eq!(fpdu_length(18), 24);
        assert_eq!(fpdu_length(46), 52);
        assert_eq!(fpdu_length(u16::MAX), 65544);
        for length in 0..=u16::MAX {
            assert_eq!(fpdu_length(length) % 4, 0);
            assert!(pad_length(length) < 4);
        }
    }

    proptest! {
        //= MPA-21 test
        #[test]
        fn checksums_match_another_implementation(
            bytes in proptest::collection::vec(any::<u8>(), 0..3000), cut: u16,
        ) {
            let oracle = Crc::<u32>::new(&CRC_32_ISCSI).checksum(&bytes);
            prop_assert_eq!(crc32c(&bytes), oracle);
            let (head, tail) = bytes.split_at(usize::from(cut) % (bytes.len() + 1));
            let mut pieces = Crc32c::default();
            pieces.update(b"before");
            pieces.reset();
            pieces.update(head);
            pieces.update(tail);
            prop_assert_eq!(pieces.wire(), oracle.to_le_bytes());
        }

        //= MPA-23 test
        #[test]
        fn any_ulpdu_round_trips(
            ulpdu in proptest::collection::vec(any::<u8>(), 0..300), crc: bool,
        ) {
            let mut bytes = Vec::new();
            Fpdu::encode(&[&ulpdu], crc, &mut bytes);
            let length = bytes.len();
            let pad = 2 + ulpdu.len()..length - Fpdu::CRC_LENGTH;
            prop_assert!(bytes[pad.clone()].iter().all(|&byte| byte == 0));
            bytes.push(0xee);
            prop_assert_eq!(Fpdu::decode(&bytes, crc), Ok(Some(Fpdu { ulpdu: &ulpdu, length })));
            // Padding of other values changes the CRC, and nothing else.
            bytes[pad.clone()].fill(0xff);
            let decoded = Fpdu::decode(&bytes, crc);
            if crc && !pad.is_empty() {
                prop_assert_eq!(decoded, Err(CrcMismatch));
            } else {
                prop_assert_eq!(decoded, Ok(Some(Fpdu { ulpdu: &ulpdu, length })));
            }
        }

        //= SEC-08 test
        #[test]
        fn decoding_arbitrary_startup_bytes_does_not_panic(
            tail in proptest::collection::vec(any::<u8>(), 0..64), reply: bool,
        ) {
            let kind = if reply { FrameKind::Reply } else { FrameKind::Request };
            let _ = StartupFrame::decode(kind, &tail);
            let frame = [&kind.key()[..], &tail].concat();
            if let Ok(frame) = StartupFrame::decode(kind, &frame) {
                prop_assert!(frame.encoded_length() <= 16 + tail.len());
            }
        }
    }
}
