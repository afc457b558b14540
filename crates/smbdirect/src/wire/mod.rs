//! The messages of [MS-SMBD] 2.2, decoded from bytes and encoded to bytes.
//!
//! `decode` is the only way from a peer's bytes to a message, and it returns well-formed messages
//! only. Rules that depend on the connection (limits, credits, sequences) are checked in
//! [`engine`](crate::engine). All integers are little-endian and unsigned (2.2).
//!
//! Encoders write legal messages only: reserved fields and padding are zero, and `DataOffset` is 24
//! with a payload and 0 without one.

mod buffer_descriptor;
mod data_transfer;
mod ird_ord;
mod negotiate;
mod reader;

#[doc(no_inline)]
pub use buffer_descriptor::BufferDescriptorV1;
pub use data_transfer::{DataTransfer, Flags};
pub use ird_ord::{IrdOrd, ZeroDepth};
pub use negotiate::{NegotiateRequest, NegotiateResponse, Status, VERSION_1_0};
pub use reader::DecodeError;
