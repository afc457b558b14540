//! Data Transfer (2.2.3): a header of 20 bytes, and optionally 4 bytes of padding and a payload.

use std::ops::Range;

use bitflags::bitflags;
use bytes::BufMut;

use super::reader::{DecodeError, Reader};

bitflags! {
    /// The Flags field. Undefined bits are kept and ignored.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Flags: u16 {
        /// SMB_DIRECT_RESPONSE_REQUESTED: the receiver shall send a message promptly.
        const RESPONSE_REQUESTED = 0x0001;
        const _ = !0;
    }
}

/// The header of a Data Transfer message, which says where the payload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataTransfer {
    /// Total number of send credits that the sender wants to hold.
    pub credits_requested: u16,
    /// Number of additional send credits for the receiver.
    pub credits_granted: u16,
    /// Whether the sender requests a response.
    pub flags: Flags,
    /// Bytes of the upper-layer message that follow in later messages; 0 in the last.
    pub remaining_data_length: u32,
    /// Start of the payload in bytes from the start of the header; 0 without a payload.
    pub data_offset: u32,
    /// Length of the payload in bytes.
    pub data_length: u32,
}

impl DataTransfer {
    /// Length of the header in bytes, which is the length of a message without payload.
    pub const HEADER_LENGTH: usize = 20;
    /// DataOffset of a sent payload: the length of the header, rounded up to eight bytes (3.1.5.4).
    pub const PAYLOAD_OFFSET: u32 = 24;

    /// Decodes a header and checks that the payload it describes is inside `bytes`.
    ///
    /// Bytes after the payload, the Reserved field and the padding are ignored. A payload may
    /// overlap the header (offsets 0, 8 and 16), as the specification allows.
    ///
    /// # Errors
    /// Returns which of the three checks of 3.1.5.8 on a single message failed first.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        Self::decode_head(bytes, bytes.len())
    }

    /// Decodes the header of a message of `length` bytes that begins with `bytes`. `bytes` contains
    /// at least the whole header, unless the message is shorter.
    pub(crate) fn decode_head(bytes: &[u8], length: usize) -> Result<Self, DecodeError> {
        //= SMBD-3.1.5.8-01
        let mut reader = Reader::new("Data Transfer", bytes, Self::HEADER_LENGTH)?;
        let credits_requested = reader.u16();
        let credits_granted = reader.u16();
        //= SMBD-2.2.3-06
        let flags = Flags::from_bits_retain(reader.u16());
        let _reserved = reader.u16();
        let message = Self {
            credits_requested,
            credits_granted,
            flags,
            remaining_data_length: reader.u32(),
            data_offset: reader.u32(),
            data_length: reader.u32(),
        };
        let Self {
            data_offset,
            data_length,
            ..
        } = message;
        //= SMBD-3.1.5.8-03
        if !data_offset.is_multiple_of(8) {
            return Err(DecodeError::DataOffsetAlignment { data_offset });
        }
        //= SMBD-3.1.5.8-04
        if u64::from(data_offset) + u64::from(data_length) > length as u64 {
            return Err(DecodeError::DataBeyondMessage {
                data_offset,
                data_length,
                length,
            });
        }
        Ok(message)
    }

    /// Creates a message without payload, which grants credits or serves as a keepalive.
    pub const fn empty(credits_requested: u16, credits_granted: u16, flags: Flags) -> Self {
        //= SMBD-2.2.3-02
        //= SMBD-2.2.3-03
        //= SMBD-3.1.5.4-03
        Self {
            credits_requested,
            credits_granted,
            flags,
            remaining_data_length: 0,
            data_offset: 0,
            data_length: 0,
        }
    }

    /// Returns the range of the payload in the message.
    pub const fn payload(&self) -> Range<usize> {
        let start = self.data_offset as usize;
        start..start + self.data_length as usize
    }

    /// Returns the number of bytes that [`encode`](Self::encode) writes: 20 without a payload, and
    /// `data_offset` with one.
    pub const fn encoded_length(&self) -> usize {
        match self.data_offset {
            0 => Self::HEADER_LENGTH,
            data_offset => data_offset as usize,
        }
    }

    /// Appends the header and, if it has a payload, the padding up to `data_offset`.
    ///
    /// # Panics
    /// Panics if `out` has no room for [`encoded_length`](Self::encoded_length) bytes, or if `data_offset`
    /// is inside the header or not a multiple of eight.
    pub fn encode(&self, out: &mut impl BufMut) {
        let (head, length) = self.head();
        out.put_slice(&head[..length]);
        out.put_bytes(0, self.encoded_length() - length);
    }

    /// Returns the header with its padding up to [`PAYLOAD_OFFSET`](Self::PAYLOAD_OFFSET), and the
    /// number of bytes in use.
    ///
    /// # Panics
    /// Panics if `data_offset` is inside the header or not a multiple of eight.
    pub(crate) fn head(&self) -> ([u8; Self::PAYLOAD_OFFSET as usize], usize) {
        //= SMBD-2.2-05
        //= SMBD-2.2.3-05
        //= SMBD-3.1.5.4-08
        let mut head = [0; Self::PAYLOAD_OFFSET as usize];
        head[0..2].copy_from_slice(&self.credits_requested.to_le_bytes());
        head[2..4].copy_from_slice(&self.credits_granted.to_le_bytes());
        head[4..6].copy_from_slice(&self.flags.bits().to_le_bytes());
        head[8..12].copy_from_slice(&self.remaining_data_length.to_le_bytes());
        head[12..16].copy_from_slice(&self.data_offset.to_le_bytes());
        head[16..20].copy_from_slice(&self.data_length.to_le_bytes());
        if self.data_offset == 0 {
            assert_eq!(self.data_length, 0, "a payload needs a DataOffset");
            return (head, Self::HEADER_LENGTH);
        }
        //= SMBD-2.2.3-04
        assert!(
            self.data_offset >= Self::PAYLOAD_OFFSET && self.data_offset.is_multiple_of(8),
            "DataOffset {} is not legal to send",
            self.data_offset
        );
        (head, Self::PAYLOAD_OFFSET as usize)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn segment(remaining_data_length: u32, data_length: u32) -> DataTransfer {
        DataTransfer {
            credits_requested: 10,
            credits_granted: 1,
            flags: Flags::empty(),
            remaining_data_length,
            data_offset: 24,
            data_length,
        }
    }

    fn encoded(message: &DataTransfer) -> Vec<u8> {
        let mut out = Vec::new();
        message.encode(&mut out);
        assert_eq!(out.len(), message.encoded_length());
        out
    }

    /// Returns the example messages of sections 4.2 and 4.3, an empty grant and a keepalive.
    fn worked() -> Vec<(DataTransfer, Vec<u8>)> {
        let head = |remaining: [u8; 4], length: [u8; 4]| {
            let mut bytes = vec![0x0a, 0, 1, 0, 0, 0, 0, 0];
            bytes.extend(remaining);
            bytes.extend([0x18, 0, 0, 0]);
            bytes.extend(length);
            bytes.extend([0; 4]);
            bytes
        };
        vec![
            (segment(0, 500), head([0; 4], [0xf4, 1, 0, 0])),
            (
                segment(64_536, 1000),
                head([0x18, 0xfc, 0, 0], [0xe8, 3, 0, 0]),
            ),
            (
                segment(63_536, 1000),
                head([0x30, 0xf8, 0, 0], [0xe8, 3, 0, 0]),
            ),
            (segment(536, 1000), head([0x18, 2, 0, 0], [0xe8, 3, 0, 0])),
            (segment(0, 536), head([0; 4], [0x18, 2, 0, 0])),
            (
                DataTransfer::empty(10, 1, Flags::empty()),
                vec![
                    0x0a, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                ],
            ),
            (
                DataTransfer::empty(255, 0, Flags::RESPONSE_REQUESTED),
                vec![
                    0xff, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                ],
            ),
        ]
    }

    //= SMBD-2.2.3-02 test
    //= SMBD-2.2.3-03 test
    //= SMBD-2.2.3-05 test
    //= SMBD-3.1.5.4-03 test
    //= SMBD-3.1.5.4-08 test
    #[test]
    fn messages_of_the_specification_decode_and_encode() {
        for (message, header) in worked() {
            assert_eq!(encoded(&message), header);
            let mut bytes = header;
            bytes.resize(bytes.len() + message.data_length as usize, 0x55);
            assert_eq!(DataTransfer::decode(&bytes), Ok(message));
            assert_eq!(message.payload().len(), message.data_length as usize);
        }
    }

    //= SMBD-3.1.5.8-01 test
    //= SMBD-3.1.5.8-04 test
    #[test]
    fn every_truncation_is_an_error() {
        for (message, header) in worked() {
            let mut bytes = header;
            bytes.resize(bytes.len() + message.data_length as usize, 0x55);
            for length in 0..bytes.len() {
                let error = DataTransfer::decode(&bytes[..length]).unwrap_err();
                match error {
                    DecodeError::TooShort { .. } => assert!(length < 20),
                    DecodeError::DataBeyondMessage { .. } => assert!(length >= 20),
                    DecodeError::DataOffsetAlignment { .. } => panic!("nothing was misaligned"),
                }
            }
        }
    }

    //= SMBD-3.1.5.8-03 test
    //= SMBD-2.2.3-04 test
    #[test]
    fn data_offset_must_be_a_multiple_of_eight() {
        for data_offset in 0..40_u32 {
            let mut bytes = encoded(&segment(0, 0));
            bytes[12..16].copy_from_slice(&data_offset.to_le_bytes());
            bytes.resize(64, 0);
            let decoded = DataTransfer::decode(&bytes);
            if data_offset % 8 == 0 {
                assert_eq!(decoded.unwrap().data_offset, data_offset);
            } else {
                assert_eq!(
                    decoded,
                    Err(DecodeError::DataOffsetAlignment { data_offset })
                );
            }
        }
    }

    //= SMBD-3.1.5.8-04 test
    #[test]
    fn offset_and_length_are_added_without_wrapping() {
        let mut bytes = encoded(&segment(0, 0));
        bytes[12..16].copy_from_slice(&0xffff_fff8_u32.to_le_bytes());
        bytes[16..20].copy_from_slice(&16_u32.to_le_bytes());
        assert!(matches!(
            DataTransfer::decode(&bytes),
            Err(DecodeError::DataBeyondMessage { .. })
        ));
        // DataOffset 24 with DataLength 0 still requires the padding.
        let empty_with_offset = encoded(&segment(0, 0));
        assert!(DataTransfer::decode(&empty_with_offset).is_ok());
        assert!(DataTransfer::decode(&empty_with_offset[..20]).is_err());
    }

    //= SMBD-2.2-03 test
    //= SMBD-2.2.3-06 test
    //= SMBD-2.2-05 test
    //= SMBD-2.2.3-05 test
    #[test]
    fn reserved_field_padding_and_undefined_flags_are_ignored() {
        let mut bytes = encoded(&segment(0, 0));
        bytes[4..6].copy_from_slice(&0xfffe_u16.to_le_bytes());
        bytes[6..8].fill(0xff);
        bytes[20..24].fill(0xff);
        let decoded = DataTransfer::decode(&bytes).unwrap();
        assert!(!decoded.flags.contains(Flags::RESPONSE_REQUESTED));
        assert_eq!(
            DataTransfer {
                flags: Flags::empty(),
                ..decoded
            },
            segment(0, 0)
        );
    }

    proptest! {
        #[test]
        fn any_legal_message_is_unchanged_by_encoding_and_decoding(
            credits_requested: u16, credits_granted: u16, asks: bool,
            remaining_data_length: u32, payload in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let flags = if asks { Flags::RESPONSE_REQUESTED } else { Flags::empty() };
            let message = DataTransfer {
                credits_requested, credits_granted, flags, remaining_data_length,
                data_offset: 24, data_length: payload.len() as u32,
            };
            let mut bytes = encoded(&message);
            prop_assert_eq!(bytes.len(), message.encoded_length());
            bytes.extend_from_slice(&payload);
            let decoded = DataTransfer::decode(&bytes).unwrap();
            prop_assert_eq!(decoded, message);
            prop_assert_eq!(&bytes[decoded.payload()], &payload[..]);
        }

        #[test]
        fn decoding_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(message) = DataTransfer::decode(&bytes) {
                prop_assert!(message.payload().end <= bytes.len());
            }
        }
    }
}
