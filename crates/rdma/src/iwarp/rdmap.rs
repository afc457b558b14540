//! RDMAP (RFC 5040): the messages, and the effect of each.
//!
//! | opcode | message                 | T | QN | the word RsvdULP   |
//! |--------|-------------------------|---|----|--------------------|
//! | 0      | RDMA Write              | 1 |    |                    |
//! | 1      | RDMA Read Request       | 0 | 1  | 0                  |
//! | 2      | RDMA Read Response      | 1 |    |                    |
//! | 3, 5   | Send, solicited         | 0 | 0  | 0                  |
//! | 4, 6   | Send with Invalidate    | 0 | 0  | STag to invalidate |
//! | 7      | Terminate               | 0 | 2  | 0                  |

use std::fmt;

use thiserror::Error;

use super::ddp::{Header, Tagged, Untagged, word};

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Opcode {
    /// Writes data to the memory of the receiver.
    RdmaWrite = 0,
    /// Asks for data from the memory of the receiver.
    RdmaReadRequest = 1,
    /// Carries the data that a Read Request asked for.
    RdmaReadResponse = 2,
    /// Carries a message for the upper layer.
    Send = 3,
    /// Carries a message for the upper layer, and invalidates an STag of the receiver.
    SendInvalidate = 4,
    /// Carries a message for the upper layer, and raises a solicited event.
    SendSolicited = 5,
    /// Carries a message, invalidates an STag, and raises a solicited event.
    SendSolicitedInvalidate = 6,
    /// Ends the connection because of an error.
    Terminate = 7,
}

/// The queue of Sends.
pub const QUEUE_SEND: u32 = 0;
/// The queue of Read Requests.
pub const QUEUE_READ_REQUEST: u32 = 1;
/// The queue of the Terminate.
pub const QUEUE_TERMINATE: u32 = 2;

/// The reason why a segment is not an RDMAP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RdmapError {
    /// The version is not 1.
    #[error("RDMAP version {0}")]
    Version(u8),
    /// The opcode is unknown, or does not match the kind of segment.
    #[error("RDMAP opcode {0} is unexpected here")]
    Opcode(u8),
    /// The message does not have the fixed length of its kind.
    #[error("an RDMAP message of {length} bytes of payload has a fixed length of another size")]
    Length {
        /// The bytes after the DDP header.
        length: usize,
    },
}

const VERSION: u8 = 1;
/// The opcodes, indexed by their numbers.
const OPCODES: [Opcode; 8] = [
    Opcode::RdmaWrite,
    Opcode::RdmaReadRequest,
    Opcode::RdmaReadResponse,
    Opcode::Send,
    Opcode::SendInvalidate,
    Opcode::SendSolicited,
    Opcode::SendSolicitedInvalidate,
    Opcode::Terminate,
];

impl Opcode {
    /// Returns the opcode of a segment with this header.
    ///
    /// # Errors
    /// Returns an error if the version is not 1, if the opcode is unknown, or if it does not match
    /// a tagged or untagged segment.
    pub const fn of(header: &Header) -> Result<Self, RdmapError> {
        let (tagged, control) = match header {
            Header::Tagged(header) => (true, header.rdmap_control),
            Header::Untagged(header) => (false, header.rdmap_control),
        };
        //= RDMAP-01
        if control >> 6 != VERSION {
            return Err(RdmapError::Version(control >> 6));
        }
        //= RDMAP-02
        let number = control & 0x0f;
        if number as usize >= OPCODES.len() {
            return Err(RdmapError::Opcode(number));
        }
        let opcode = OPCODES[number as usize];
        //= DDP-03
        if tagged != matches!(opcode, Self::RdmaWrite | Self::RdmaReadResponse) {
            return Err(RdmapError::Opcode(opcode as u8));
        }
        Ok(opcode)
    }

    /// Returns the control byte of a segment with this opcode.
    pub const fn control(self) -> u8 {
        VERSION << 6 | self as u8
    }

    /// Returns the number of the queue that receives untagged segments with this opcode.
    pub const fn queue_number(self) -> u32 {
        match self {
            Self::RdmaReadRequest => QUEUE_READ_REQUEST,
            Self::Terminate => QUEUE_TERMINATE,
            _ => QUEUE_SEND,
        }
    }

    /// Returns whether the word RsvdULP of a segment with this opcode is an STag to invalidate.
    pub const fn invalidates(self) -> bool {
        matches!(self, Self::SendInvalidate | Self::SendSolicitedInvalidate)
    }
}

/// The payload of a Read Request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// The Data Sink STag, which the response repeats.
    pub sink_stag: u32,
    /// The Data Sink Tagged Offset, from which the response counts.
    pub sink_tagged_offset: u64,
    /// The RDMA Read Message Size, in bytes.
    pub read_message_size: u32,
    /// The Data Source STag, which names memory of the receiver.
    pub source_stag: u32,
    /// The Data Source Tagged Offset in that memory.
    pub source_tagged_offset: u64,
}

impl ReadRequest {
    /// The length on the wire, in bytes.
    pub const LENGTH: usize = 28;

    /// Decodes the payload of a Read Request.
    ///
    /// # Errors
    /// Returns an error if the length is not [`LENGTH`](Self::LENGTH).
    pub fn decode(payload: &[u8]) -> Result<Self, RdmapError> {
        //= MPA-25
        //= RDMAP-03
        if payload.len() != Self::LENGTH {
            let length = payload.len();
            return Err(RdmapError::Length { length });
        }
        let long = |at| u64::from(word(payload, at)) << 32 | u64::from(word(payload, at + 4));
        Ok(Self {
            sink_stag: word(payload, 0),
            sink_tagged_offset: long(4),
            read_message_size: word(payload, 12),
            source_stag: word(payload, 16),
            source_tagged_offset: long(20),
        })
    }

    /// Encodes the payload.
    pub fn encode(&self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[..4].copy_from_slice(&self.sink_stag.to_be_bytes());
        bytes[4..12].copy_from_slice(&self.sink_tagged_offset.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.read_message_size.to_be_bytes());
        bytes[16..20].copy_from_slice(&self.source_stag.to_be_bytes());
        bytes[20..].copy_from_slice(&self.source_tagged_offset.to_be_bytes());
        bytes
    }
}

/// The error that a Terminate reports: layer, error type and error code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TerminateCode {
    /// The layer: 0 for RDMAP, 1 for DDP, 2 for the layer below.
    pub layer: u8,
    /// The error type, whose meaning depends on the layer.
    pub error_type: u8,
    /// The error code, whose meaning depends on layer and type.
    pub error_code: u8,
}

impl TerminateCode {
    /// The sender has failed, and found no error in what it received.
    pub(super) const LOCAL_CATASTROPHIC: Self = Self::new(0, 0, 0);

    /// Creates a code of these three numbers.
    pub const fn new(layer: u8, error_type: u8, error_code: u8) -> Self {
        Self {
            layer,
            error_type,
            error_code,
        }
    }

    /// Returns the meaning of the numbers, or `None` if the RFCs give them none.
    pub const fn meaning(self) -> Option<&'static str> {
        Some(match (self.layer, self.error_type, self.error_code) {
            (0, 0, _) => "RDMAP: local catastrophic error",
            (0, 1, 0x00) => "remote protection: invalid STag",
            (0, 1, 0x01) => "remote protection: base or bounds",
            (0, 1, 0x02) => "remote protection: access rights",
            (0, 1, 0x03) => "remote protection: STag not associated with the stream",
            (0, 1, 0x04) => "remote protection: tagged offset wraps",
            (0, 1 | 2, 0x09) => "STag cannot be invalidated",
            (0, 1, 0xff) => "remote protection: unspecified",
            (0, 2, 0x05) => "remote operation: invalid RDMAP version",
            (0, 2, 0x06) => "remote operation: unexpected opcode",
            (0, 2, 0x07) => "remote operation: catastrophic, this stream",
            (0, 2, 0x08) => "remote operation: catastrophic, global",
            (0, 2, 0xff) => "remote operation: unspecified",
            (1, 0, _) => "DDP: local catastrophic error",
            (1, 1, 0x00) => "tagged buffer: invalid STag",
            (1, 1, 0x01) => "tagged buffer: base or bounds",
            (1, 1, 0x02) => "tagged buffer: STag not associated with the stream",
            (1, 1, 0x03) => "tagged buffer: tagged offset wraps",
            (1, 1, 0x04) => "tagged buffer: invalid DDP version",
            (1, 2, 0x01) => "untagged buffer: invalid queue number",
            (1, 2, 0x02) => "untagged buffer: none posted",
            (1, 2, 0x03) => "untagged buffer: message sequence number out of range",
            (1, 2, 0x04) => "untagged buffer: invalid message offset",
            (1, 2, 0x05) => "untagged buffer: message too long",
            (1, 2, 0x06) => "untagged buffer: invalid DDP version",
            (2, 0, 0x01) => "MPA: connection lost",
            (2, 0, 0x02) => "MPA: CRC error",
            (2, 0, 0x03) => "MPA: markers and length do not agree",
            (2, 0, 0x04) => "MPA: invalid Request or Reply",
            (2, 0, 0x05) => "MPA: local catastrophic error",
            (2, 0, 0x06) => "MPA: insufficient IRD",
            (2, 0, 0x07) => "MPA: no matching RTR option",
            _ => return None,
        })
    }
}

impl fmt::Display for TerminateCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (layer, kind, code) = (self.layer, self.error_type, self.error_code);
        let meaning = self.meaning().unwrap_or("unknown");
        write!(f, "{layer}/{kind}/{code} ({meaning})")
    }
}

/// The payload of a Terminate, as it is on the wire.
///
/// Linux siw writes the control word with its nibbles and bits swapped. A code can therefore be read
/// in two ways, and neither is reliable: this library reports a Terminate and ends the stream. Only one
/// code decides something, 0/0/0, which reads the same in both ways: it is no fault of this end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terminate {
    /// The layer and error type, the error code, and flags for the copied headers.
    pub control: [u8; 4],
    /// The DDP Segment Length and the headers of the offending segment, if they are copied.
    pub copied: Vec<u8>,
}

impl Terminate {
    const SEGMENT_LENGTH_VALID: u8 = 0x80;
    const DDP_HEADER_COPIED: u8 = 0x40;
    const RDMAP_HEADER_COPIED: u8 = 0x20;

    /// Creates a Terminate with `code`. `offending` is the length of the offending ULPDU and at
    /// least its headers, if the error was found in a segment.
    pub fn new(code: TerminateCode, offending: Option<(u16, &[u8])>) -> Self {
        //= RDMAP-19
        let mut control = [code.layer << 4 | code.error_type, code.error_code, 0, 0];
        let mut copied = Vec::new();
        if let Some((length, ulpdu)) = offending
            && let Some(headers) = headers_of(ulpdu)
        {
            control[2] = Self::SEGMENT_LENGTH_VALID | Self::DDP_HEADER_COPIED;
            if headers.len() > Untagged::LENGTH {
                control[2] |= Self::RDMAP_HEADER_COPIED;
            }
            copied.extend_from_slice(&length.to_be_bytes());
            copied.extend_from_slice(headers);
        }
        Self { control, copied }
    }

    /// Decodes the payload of a Terminate, even if it is truncated.
    pub fn decode(payload: &[u8]) -> Self {
        let mut control = [0; 4];
        let length = payload.len().min(4);
        control[..length].copy_from_slice(&payload[..length]);
        // No known Terminate copies more than a length and two headers.
        let longest = 4 + 2 + Untagged::LENGTH + ReadRequest::LENGTH;
        let copied = payload[length..payload.len().min(longest)].to_vec();
        Self { control, copied }
    }

    /// Appends the payload to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.control);
        out.extend_from_slice(&self.copied);
    }

    /// Returns the code in the bit order of the RFC.
    pub const fn code(&self) -> TerminateCode {
        TerminateCode::new(self.control[0] >> 4, self.control[0] & 0xf, self.control[1])
    }

    /// Returns the code in the bit order of Linux siw.
    pub const fn code_of_siw(&self) -> TerminateCode {
        TerminateCode::new(self.control[0] & 0xf, self.control[0] >> 4, self.control[1])
    }

    /// Returns the ULPDU of the Terminate, including its headers.
    pub fn ulpdu(&self) -> Vec<u8> {
        //= RDMAP-18
        let header = Untagged {
            last: true,
            rdmap_control: Opcode::Terminate.control(),
            rsvd_ulp: 0,
            queue_number: QUEUE_TERMINATE,
            message_sequence_number: 1,
            message_offset: 0,
        };
        let mut ulpdu = header.encode().to_vec();
        self.encode(&mut ulpdu);
        ulpdu
    }
}

impl fmt::Display for Terminate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        //= RDMAP-20
        let (code, swapped) = (self.code(), self.code_of_siw());
        write!(f, "Terminate {code}")?;
        if code != swapped {
            write!(f, ", or in the bit order of siw {swapped}")?;
        }
        Ok(())
    }
}

/// Returns the DDP header at the front of a ULPDU, with the Read Request after it if there is one.
fn headers_of(ulpdu: &[u8]) -> Option<&[u8]> {
    let (header, payload) = Header::decode(ulpdu).ok()?;
    match header {
        Header::Tagged(_) => Some(&ulpdu[..Tagged::LENGTH]),
        Header::Untagged(_) => {
            let is_read = matches!(Opcode::of(&header), Ok(Opcode::RdmaReadRequest));
            if is_read && payload.len() == ReadRequest::LENGTH {
                return Some(ulpdu);
            }
            Some(&ulpdu[..Untagged::LENGTH])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iwarp::{
        mpa::Fpdu,
        test_vectors::{self, hex},
    };

    /// Decodes an FPDU, checks that encoding it restores its bytes, and returns its parts.
    fn decode_and_check(text: &str, crc: bool) -> (Header, Opcode, Vec<u8>) {
        let bytes = hex(text);
        let fpdu = Fpdu::decode(&bytes, crc).unwrap().unwrap();
        assert_eq!(fpdu.length, bytes.len());
        let (header, payload) = Header::decode(fpdu.ulpdu).unwrap();
        let mut ulpdu = Vec::new();
        header.encode(&mut ulpdu);
        let mut again = Vec::new();
        Fpdu::encode(&[&ulpdu, payload], crc, &mut again);
        assert_eq!(again, bytes);
        (header, Opcode::of(&header).unwrap(), payload.to_vec())
    }

    fn tagged(opcode: Opcode, last: bool, stag: u32, tagged_offset: u64) -> Header {
        Header::Tagged(Tagged {
            last,
            rdmap_control: opcode.control(),
            stag,
            tagged_offset,
        })
    }

    fn untagged(opcode: Opcode, message_sequence_number: u32, rsvd_ulp: u32) -> Header {
        Header::Untagged(Untagged {
            last: true,
            rdmap_control: opcode.control(),
            rsvd_ulp,
            queue_number: opcode.queue_number(),
            message_sequence_number,
            message_offset: 0,
        })
    }

    const STAG: u32 = 0x0001_2345;
    const OFFSET: u64 = 0x7f00_1234_5678;

    //= RDMAP-01 test
    #[test]
    fn example_segments_round_trip() {
        use Opcode::*;
        let bytes: Vec<u8> = (0..16).collect();
        let smbd = hex("00010001 0000ff00 54050000 00200000 00001000");
        for (text, header, opcode, payload) in [
            (
                test_vectors::C1,
                tagged(RdmaWrite, true, 1, 0),
                RdmaWrite,
                &[][..],
            ),
            (test_vectors::C2, untagged(Send, 1, 0), Send, b"hello"),
            (test_vectors::C3, untagged(Send, 2, 0), Send, &smbd),
            (
                test_vectors::C4,
                tagged(RdmaWrite, true, STAG, OFFSET),
                RdmaWrite,
                &bytes,
            ),
            (
                test_vectors::C6,
                tagged(RdmaReadResponse, true, 0xab00, 0x1000),
                RdmaReadResponse,
                &bytes,
            ),
            (
                test_vectors::C7,
                untagged(SendInvalidate, 3, STAG),
                SendInvalidate,
                b"done",
            ),
            (
                test_vectors::C8,
                untagged(SendSolicitedInvalidate, 4, STAG),
                SendSolicitedInvalidate,
                b"done",
            ),
            (test_vectors::C9, untagged(Send, 5, 0), Send, b""),
            (
                test_vectors::C10,
                tagged(RdmaWrite, false, STAG, OFFSET),
                RdmaWrite,
                &bytes[..8],
            ),
            (
                test_vectors::C11,
                tagged(RdmaWrite, true, STAG, OFFSET + 8),
                RdmaWrite,
                &bytes[8..],
            ),
        ] {
            assert_eq!(
                decode_and_check(text, true),
                (header, opcode, payload.to_vec())
            );
        }
        assert_eq!(decode_and_check(test_vectors::C13, false).2, b"hello");
    }

    //= RDMAP-03 test
    //= MPA-25 test
    #[test]
    fn example_read_requests_round_trip() {
        let of_c5 = ReadRequest {
            sink_stag: 0xab00,
            sink_tagged_offset: 0x1000,
            read_message_size: 16,
            source_stag: STAG,
            source_tagged_offset: OFFSET,
        };
        let of_c12 = ReadRequest {
            sink_stag: 0,
            sink_tagged_offset: 0,
            read_message_size: 0,
            source_stag: 1,
            source_tagged_offset: 0,
        };
        for (text, number, request) in
            [(test_vectors::C5, 1, of_c5), (test_vectors::C12, 2, of_c12)]
        {
            let (header, opcode, payload) = decode_and_check(text, true);
            assert_eq!(header, untagged(Opcode::RdmaReadRequest, number, 0));
            assert_eq!(opcode, Opcode::RdmaReadRequest);
            assert_eq!(ReadRequest::decode(&payload), Ok(request));
            assert_eq!(request.encode()[..], payload);
            for length in 0..28 {
                let error = RdmapError::Length { length };
                assert_eq!(ReadRequest::decode(&payload[..length]), Err(error));
            }
            assert!(ReadRequest::decode(&[0; 29]).is_err());
        }
    }

    //= RDMAP-18 test
    //= RDMAP-19 test
    #[test]
    fn example_terminates_round_trip() {
        let (crc, bounds, rights) = (
            TerminateCode::new(2, 0, 2),
            TerminateCode::new(1, 1, 1),
            TerminateCode::new(0, 1, 2),
        );
        let (c4, c5) = (hex(test_vectors::C4), hex(test_vectors::C5));
        for (text, code, offending) in [
            (test_vectors::D1, crc, None),
            (test_vectors::D2, bounds, Some((30, &c4[2..]))),
            (test_vectors::D3, rights, Some((46, &c5[2..48]))),
        ] {
            let (_, _, payload) = decode_and_check(text, true);
            let terminate = Terminate::new(code, offending);
            assert_eq!(Terminate::decode(&payload), terminate);
            assert_eq!(terminate.code(), code);
            let mut fpdu = Vec::new();
            Fpdu::encode(&[&terminate.ulpdu()], true, &mut fpdu);
            assert_eq!(fpdu, hex(text));
        }
    }

    //= RDMAP-20 test
    #[test]
    fn a_terminate_of_siw_is_displayed_in_both_bit_orders() {
        for (text, code) in [
            (test_vectors::D4, TerminateCode::new(2, 0, 2)),
            (test_vectors::D5, TerminateCode::new(1, 1, 1)),
        ] {
            let (_, opcode, payload) = decode_and_check(text, true);
            assert_eq!(opcode, Opcode::Terminate);
            let terminate = Terminate::decode(&payload);
            assert_eq!(terminate.code_of_siw(), code);
            let mut again = Vec::new();
            terminate.encode(&mut again);
            assert_eq!(again, payload);
        }
        let told = Terminate::decode(&[2, 2]).to_string();
        assert_eq!(
            told,
            "Terminate 0/2/2 (unknown), or in the bit order of siw 2/0/2 (MPA: CRC error)"
        );
        assert!(Terminate::decode(&[]).copied.is_empty());
        assert_eq!(Terminate::decode(&[0; 500]).copied.len(), 48);
    }

    //= RDMAP-02 test
    //= DDP-03 test
    #[test]
    fn opcodes_must_match_their_kind_of_segment() {
        for control in 0..=u8::MAX {
            let (version, opcode) = (control >> 6, control & 0xf);
            let mut headers = [
                tagged(Opcode::Send, true, 0, 0),
                untagged(Opcode::Send, 1, 0),
            ];
            if let [Header::Tagged(tagged), Header::Untagged(untagged)] = &mut headers {
                tagged.rdmap_control = control;
                untagged.rdmap_control = control;
            }
            let [tagged, untagged] = headers.map(|header| Opcode::of(&header));
            if version != 1 {
                assert_eq!(tagged, Err(RdmapError::Version(version)));
                assert_eq!(untagged, Err(RdmapError::Version(version)));
                continue;
            }
            assert_eq!(tagged.is_ok(), [0, 2].contains(&opcode));
            assert_eq!(untagged.is_ok(), [1, 3, 4, 5, 6, 7].contains(&opcode));
            let refused = Err(RdmapError::Opcode(opcode));
            assert!(tagged == refused || untagged == refused);
        }
    }
}
