//! RoCEv2 packets: bytes to values and back (IBTA volume 1, chapter 9).
//!
//! ```text
//! UDP payload:  BTH (12) | extended headers (0..28) | payload | pad (0..3) | ICRC (4)
//! ```
//!
//! The opcode in the Base Transport Header (BTH) determines which extended headers follow. All
//! fields are big-endian, except the invariant CRC, which [`icrc`](super::icrc) computes and checks.

mod bth;
mod datagram;
mod error;
mod extended;
mod opcode;

pub use bth::Bth;
pub(in crate::roce) use datagram::pad_count;
pub use datagram::{ICRC_LENGTH, Packet, UDP_PORT};
pub use error::DecodeError;
pub use extended::{
    Aeth, AtomicAckEth, AtomicEth, Deth, Extended, Ieth, ImmDt, NakCode, Reth, Syndrome,
};
pub use opcode::{Layout, Opcode};
