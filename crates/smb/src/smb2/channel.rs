//! The Channel field of READ and WRITE, which says how the data moves, and the buffer descriptors.

use std::fmt;

use bytes::BufMut;
use smbdirect::BufferDescriptorV1;

use super::{
    header::{Command, Header},
    reader::{Malformed, buffer},
};

/// The Channel field of a READ or WRITE request ([MS-SMB2] 2.2.19, 2.2.21).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// SMB2_CHANNEL_NONE: the data is in the message.
    None,
    /// SMB2_CHANNEL_RDMA_V1: the server moves the data by RDMA.
    RdmaV1,
    /// SMB2_CHANNEL_RDMA_V1_INVALIDATE: as RDMA_V1, and the answer invalidates the token of the first
    /// descriptor.
    RdmaV1Invalidate,
    /// SMB2_CHANNEL_RDMA_TRANSFORM, or an undefined number.
    Other(u32),
}

impl Channel {
    /// Returns the channel with this number.
    pub const fn from_number(number: u32) -> Self {
        match number {
            0 => Self::None,
            1 => Self::RdmaV1,
            2 => Self::RdmaV1Invalidate,
            other => Self::Other(other),
        }
    }

    /// Reads the Channel field of a READ or WRITE request. `head` has at least the fixed part of the
    /// request, or all of a shorter one.
    ///
    /// # Errors
    /// The request is shorter than its fixed part.
    pub fn of_request(command: Command, head: &[u8]) -> Result<Self, Malformed> {
        let at = match command {
            Command::READ => 100,
            _ => 96,
        };
        field(head, at).map(Self::from_number)
    }

    /// Reads the number of bytes that a READ or WRITE request with a channel moves: Length of a READ, or
    /// RemainingBytes of a WRITE. `head` has at least the fixed part of the request, or all of a shorter
    /// one.
    ///
    /// # Errors
    /// The request is shorter than its fixed part.
    pub fn length_of_request(command: Command, head: &[u8]) -> Result<u32, Malformed> {
        let at = match command {
            Command::READ => 68,
            _ => 100,
        };
        field(head, at)
    }

    /// Returns the name in the specification, without the prefix SMB2_CHANNEL_, if there is one.
    pub const fn name(self) -> Option<&'static str> {
        match self {
            Self::None => Some("NONE"),
            Self::RdmaV1 => Some("RDMA_V1"),
            Self::RdmaV1Invalidate => Some("RDMA_V1_INVALIDATE"),
            Self::Other(3) => Some("RDMA_TRANSFORM"),
            Self::Other(_) => None,
        }
    }

    /// Returns the number on the wire.
    pub const fn number(self) -> u32 {
        match self {
            Self::None => 0,
            Self::RdmaV1 => 1,
            Self::RdmaV1Invalidate => 2,
            Self::Other(other) => other,
        }
    }
}

impl fmt::Display for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, self.name()) {
            (Self::None, _) => f.write_str("no channel"),
            (_, Some(name)) => write!(f, "channel {name}"),
            (other, None) => write!(f, "channel {}", other.number()),
        }
    }
}

/// Reads the 32-bit field at offset `at` of a READ or WRITE request, whose fixed part must be complete.
fn field(head: &[u8], at: usize) -> Result<u32, Malformed> {
    let field = head.get(at..).and_then(|rest| rest.first_chunk());
    match field {
        Some(&field) if head.len() >= REQUEST_FIXED => Ok(u32::from_le_bytes(field)),
        _ => Err(Malformed::TooShort {
            structure: "request",
            minimum: REQUEST_FIXED,
            length: head.len(),
        }),
    }
}

/// Number of bytes before the Buffer in READ and WRITE requests, including the header.
pub(super) const REQUEST_FIXED: usize = Header::LENGTH + 48;

/// Reads the descriptors of a READ or WRITE with a channel.
pub(super) fn descriptors(
    field: &'static str,
    element: &[u8],
    offset: u16,
    length: u16,
) -> Result<Vec<BufferDescriptorV1>, Malformed> {
    // Without descriptors the offset has no meaning.
    if length == 0 {
        return Ok(Vec::new());
    }
    if usize::from(offset) < REQUEST_FIXED {
        return Err(Malformed::OutOfBounds {
            field,
            offset: offset.into(),
            length: length.into(),
        });
    }
    let bytes = buffer(field, element, offset.into(), length.into())?;
    BufferDescriptorV1::decode_array(bytes).map_err(|_| Malformed::Descriptors {
        length: length.into(),
    })
}

/// Appends the Buffer of a request: the descriptors, or one zero byte if there are none, because the
/// Buffer must not be empty.
pub(super) fn encode_buffer(descriptors: &[BufferDescriptorV1], out: &mut impl BufMut) {
    if descriptors.is_empty() {
        out.put_u8(0);
    }
    for descriptor in descriptors {
        descriptor.encode(out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::*;

    #[test]
    fn channels_have_numbers_and_names() {
        for (number, channel, name) in [
            (0, Channel::None, "no channel"),
            (1, Channel::RdmaV1, "channel RDMA_V1"),
            (2, Channel::RdmaV1Invalidate, "channel RDMA_V1_INVALIDATE"),
            (3, Channel::Other(3), "channel RDMA_TRANSFORM"),
            (4, Channel::Other(4), "channel 4"),
            (u32::MAX, Channel::Other(u32::MAX), "channel 4294967295"),
        ] {
            assert_eq!(Channel::from_number(number), channel);
            assert_eq!(channel.number(), number);
            assert_eq!(channel.to_string(), name);
        }
    }

    #[test]
    fn channel_is_found_without_the_descriptors() {
        let descriptors = [descriptor(1, 2, 3)];
        let read = read(1, 0, 3, V1_INVALIDATE, &descriptors);
        let write = write_by_rdma(1, 0, 3, V1_INVALIDATE, &descriptors);
        for (command, bytes) in [(Command::READ, read), (Command::WRITE, write)] {
            for length in 0..bytes.len() {
                let found = Channel::of_request(command, &bytes[..length]);
                let moved = Channel::length_of_request(command, &bytes[..length]);
                assert_eq!(moved.ok(), (length >= 112).then_some(3));
                if length < 112 {
                    let fault = Malformed::TooShort {
                        structure: "request",
                        minimum: 112,
                        length,
                    };
                    assert_eq!(found, Err(fault));
                } else {
                    assert_eq!(found, Ok(Channel::RdmaV1Invalidate));
                }
            }
        }
    }
}
