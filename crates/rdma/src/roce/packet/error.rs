//! The reasons why bytes are not a packet.

use thiserror::Error;

/// The reason why a UDP payload is not a RoCEv2 packet that this library understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The packet has fewer bytes than its headers, its pad and its ICRC need.
    #[error("a RoCEv2 packet of {length} bytes, at least {minimum} are needed")]
    TooShort {
        /// The length of the UDP payload, in bytes.
        length: usize,
        /// The least length of a packet with these headers, in bytes.
        minimum: usize,
    },
    /// The length is not a multiple of four, so the pad is wrong.
    #[error("a RoCEv2 packet of {length} bytes, which is not a multiple of 4")]
    Unaligned {
        /// The length of the UDP payload, in bytes.
        length: usize,
    },
    /// TVer, the version of the transport headers, is not 0.
    #[error("transport header version {0}")]
    Version(u8),
    /// The opcode is unknown, or belongs to a transport service that is not supported.
    #[error("opcode 0x{0:02x}")]
    Opcode(u8),
    /// The syndrome of an acknowledgement is reserved.
    #[error("AETH syndrome 0x{0:02x}")]
    Syndrome(u8),
}
