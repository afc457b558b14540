//! The messages of the file protocol: bytes and values.
//!
//! All numbers are little-endian. Each message begins with VERSION (1 byte), KIND (1 byte) and
//! two bytes of zeros; what follows depends on the kind:
//!
//! ```text
//!   1 OFFER    length u64, method u8 (1 messages, 2 RDMA Read, 3 RDMA Write), name to the end
//!   2 ACCEPT   nothing
//!   3 DATA     offset u64, bytes to the end (1 to MAX_PIECE)
//!   4 MEMORY   offset u64, Buffer Descriptor V1 (16 bytes, Length 1 to MAX_PIECE)
//!   5 DONE     offset u64
//!   6 FINISH   sha-256 (32 bytes)
//!   7 STORED   nothing
//!   8 FAILED   reason to the end (at most 512 bytes)
//!   9 CANCEL   reason to the end (at most 512 bytes)
//! ```
//!
//! Names and reasons are UTF-8.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use smbdirect::{BufferDescriptorV1, Message};

use super::{Checksum, MAX_PIECE, Method, TransferError, broken};

const VERSION: u8 = 1;
const HEADER_LENGTH: usize = 4;
/// Bytes before the payload of a DATA message.
pub(super) const DATA_OVERHEAD: usize = HEADER_LENGTH + 8;
const MAX_REASON_BYTES: usize = 512;

/// A message of the file protocol. Each field is checked on its own, except the name: a bad name is
/// answered and does not end the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    Offer {
        length: u64,
        method: Method,
        name: String,
    },
    Accept,
    Data {
        offset: u64,
        payload: Bytes,
    },
    Memory {
        offset: u64,
        descriptor: BufferDescriptorV1,
    },
    Done {
        offset: u64,
    },
    Finish(Checksum),
    Stored,
    Failed(String),
    Cancel(String),
}

impl Frame {
    pub(super) const fn kind(&self) -> &'static str {
        match self {
            Self::Offer { .. } => "OFFER",
            Self::Accept => "ACCEPT",
            Self::Data { .. } => "DATA",
            Self::Memory { .. } => "MEMORY",
            Self::Done { .. } => "DONE",
            Self::Finish(_) => "FINISH",
            Self::Stored => "STORED",
            Self::Failed(_) => "FAILED",
            Self::Cancel(_) => "CANCEL",
        }
    }

    /// Encodes the message without copying the payload of DATA.
    pub(super) fn into_message(self) -> Message {
        let kind = match &self {
            Self::Offer { .. } => 1,
            Self::Accept => 2,
            Self::Data { .. } => 3,
            Self::Memory { .. } => 4,
            Self::Done { .. } => 5,
            Self::Finish(_) => 6,
            Self::Stored => 7,
            Self::Failed(_) => 8,
            Self::Cancel(_) => 9,
        };
        let mut out = BytesMut::from(&[VERSION, kind, 0, 0][..]);
        match self {
            Self::Offer {
                length,
                method,
                name,
            } => {
                out.put_u64_le(length);
                out.put_u8(match method {
                    Method::Messages => 1,
                    Method::RdmaRead => 2,
                    Method::RdmaWrite => 3,
                });
                out.put_slice(name.as_bytes());
            }
            Self::Data { offset, payload } => {
                out.put_u64_le(offset);
                return [out.freeze(), payload].into_iter().collect();
            }
            Self::Memory { offset, descriptor } => {
                out.put_u64_le(offset);
                descriptor.encode(&mut out);
            }
            Self::Done { offset } => out.put_u64_le(offset),
            Self::Finish(Checksum(checksum)) => out.put_slice(&checksum),
            Self::Failed(reason) | Self::Cancel(reason) => {
                let end = reason.floor_char_boundary(MAX_REASON_BYTES);
                out.put_slice(&reason.as_bytes()[..end]);
            }
            Self::Accept | Self::Stored => {}
        }
        out.into()
    }

    pub(super) fn decode(mut bytes: Bytes) -> Result<Self, TransferError> {
        let length = bytes.len();
        if length < HEADER_LENGTH {
            return broken(format!("a message of {length} bytes has no header"));
        }
        let (version, kind, zero) = (bytes.get_u8(), bytes.get_u8(), bytes.get_u16_le());
        if version != VERSION {
            return broken(format!(
                "unknown version {version}; this end knows {VERSION}"
            ));
        }
        if zero != 0 {
            return broken(format!("the reserved bytes are 0x{zero:04x}"));
        }
        let (fixed, open) = match kind {
            1 => (9, true),
            2 | 7 => (0, false),
            3 => (8, true),
            4 => (24, false),
            5 => (8, false),
            6 => (32, false),
            8 | 9 => (0, true),
            kind => return broken(format!("a message of kind {kind}")),
        };
        if bytes.len() < fixed || (bytes.len() > fixed && !open) {
            return broken(format!("{length} bytes in a message of kind {kind}"));
        }
        Ok(match kind {
            1 => Self::offer(bytes)?,
            2 => Self::Accept,
            3 => Self::data(bytes)?,
            4 => Self::memory(&mut bytes)?,
            5 => Self::Done {
                offset: bytes.get_u64_le(),
            },
            6 => {
                let mut checksum = [0; 32];
                bytes.copy_to_slice(&mut checksum);
                Self::Finish(Checksum(checksum))
            }
            7 => Self::Stored,
            8 => Self::Failed(reason(&bytes)?),
            _ => Self::Cancel(reason(&bytes)?),
        })
    }

    fn offer(mut bytes: Bytes) -> Result<Self, TransferError> {
        let length = bytes.get_u64_le();
        if length > i64::MAX as u64 {
            return broken(format!("a file of {length} bytes"));
        }
        let method = match bytes.get_u8() {
            1 => Method::Messages,
            2 => Method::RdmaRead,
            3 => Method::RdmaWrite,
            method => return broken(format!("method {method}")),
        };
        let Ok(name) = std::str::from_utf8(&bytes) else {
            return broken("a name that is not UTF-8");
        };
        Ok(Self::Offer {
            length,
            method,
            name: name.into(),
        })
    }

    fn data(mut bytes: Bytes) -> Result<Self, TransferError> {
        let offset = bytes.get_u64_le();
        if bytes.is_empty() || bytes.len() > MAX_PIECE as usize {
            return broken(format!("a piece of {} bytes", bytes.len()));
        }
        let payload = bytes;
        Ok(Self::Data { offset, payload })
    }

    fn memory(bytes: &mut Bytes) -> Result<Self, TransferError> {
        let offset = bytes.get_u64_le();
        let Ok(descriptor) = BufferDescriptorV1::from_bytes(bytes) else {
            return broken("half a buffer descriptor");
        };
        if !(1..=MAX_PIECE).contains(&descriptor.length) {
            return broken(format!("a piece of {} bytes", descriptor.length));
        }
        Ok(Self::Memory { offset, descriptor })
    }
}

fn reason(bytes: &[u8]) -> Result<String, TransferError> {
    if bytes.len() > MAX_REASON_BYTES {
        return broken(format!("a reason of {} bytes", bytes.len()));
    }
    Ok(String::from_utf8_lossy(bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn examples() -> Vec<Frame> {
        let descriptor = BufferDescriptorV1 {
            offset: 0x1122_3344_5566_7788,
            token: 0x99aa_bbcc,
            length: MAX_PIECE,
        };
        vec![
            Frame::Offer {
                length: 5,
                method: Method::RdmaRead,
                name: "naïve".into(),
            },
            Frame::Accept,
            Frame::Data {
                offset: 7,
                payload: Bytes::from("x"),
            },
            Frame::Memory {
                offset: 9,
                descriptor,
            },
            Frame::Done { offset: 11 },
            Frame::Finish(Checksum([0xab; 32])),
            Frame::Stored,
            Frame::Failed("disk full".into()),
            Frame::Cancel(String::new()),
        ]
    }

    fn encoded(frame: Frame) -> Bytes {
        frame.into_message().into_bytes()
    }

    #[test]
    fn every_message_is_encoded_and_decoded() {
        for frame in examples() {
            assert_eq!(Frame::decode(encoded(frame.clone())).unwrap(), frame);
        }
        let bytes = encoded(Frame::Offer {
            length: 0x0102,
            method: Method::RdmaWrite,
            name: "a".into(),
        });
        assert_eq!(&bytes[..], [1, 1, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 3, b'a']);
    }

    #[test]
    fn truncated_messages_are_refused() {
        for frame in examples() {
            let bytes = encoded(frame.clone());
            for length in 0..bytes.len() {
                match Frame::decode(bytes.slice(..length)) {
                    Err(TransferError::Protocol(_)) => {}
                    Err(error) => panic!("{frame:?} at {length}: {error:?}"),
                    // A text that extends to the end of the message stays valid when it is cut, and is then
                    // shorter.
                    Ok(cut) => assert!(
                        cut != frame && matches!(cut, Frame::Offer { .. } | Frame::Failed(_)),
                        "{cut:?}"
                    ),
                }
            }
        }
    }

    #[test]
    fn bytes_after_a_fixed_message_are_refused() {
        for frame in examples() {
            let open = matches!(
                frame,
                Frame::Offer { .. } | Frame::Data { .. } | Frame::Failed(_) | Frame::Cancel(_)
            );
            let mut bytes = BytesMut::from(encoded(frame));
            bytes.put_u8(b'z');
            assert_eq!(Frame::decode(bytes.freeze()).is_ok(), open);
        }
    }

    #[test]
    fn each_field_is_checked() {
        let refused = |frame: Frame, says: &str| {
            let error = Frame::decode(encoded(frame)).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        };
        let descriptor = |length| Frame::Memory {
            offset: 0,
            descriptor: BufferDescriptorV1 {
                offset: 0,
                token: 0,
                length,
            },
        };
        refused(descriptor(0), "0 bytes");
        refused(descriptor(MAX_PIECE + 1), "1048577 bytes");
        let data = |length| Frame::Data {
            offset: 0,
            payload: Bytes::from(vec![0; length]),
        };
        refused(data(0), "0 bytes");
        refused(data(MAX_PIECE as usize + 1), "1048577 bytes");
        assert!(Frame::decode(encoded(data(MAX_PIECE as usize))).is_ok());
        let refused = |bytes: &[u8]| {
            assert!(Frame::decode(Bytes::copy_from_slice(bytes)).is_err());
        };
        refused(&[2, 2, 0, 0]);
        refused(&[1, 0, 0, 0]);
        refused(&[1, 10, 0, 0]);
        refused(&[1, 2, 1, 0]);
        refused(&[1, 2, 0, 1]);
        refused(&[1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, b'a']);
        refused(&[1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x80, 1, b'a']);
        refused(&[1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff]);
        refused(&[&[1, 8, 0, 0][..], &[b'a'; 513]].concat());
    }

    #[test]
    fn long_reasons_are_cut_between_characters() {
        let bytes = encoded(Frame::Failed("ä".repeat(300).replacen('ä', "a", 1)));
        let Frame::Failed(reason) = Frame::decode(bytes).unwrap() else {
            panic!("it failed")
        };
        assert_eq!(reason.len(), 511);
    }
}
