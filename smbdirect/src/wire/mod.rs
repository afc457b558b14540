//! The messages of [MS-SMBD] 2.2: bytes to values and back.
//!
//! Every message has one door for bytes from a peer, `decode`, and a value that
//! came through it is well formed in itself. What the values mean on a
//! connection (limits, credits, sequences) is decided in [`engine`](crate::engine).
//! All integers are little-endian and unsigned (2.2).
//!
//! Encoders write legal messages only: reserved fields and padding are zero,
//! `DataOffset` is 24 with a payload and 0 without one.

mod buffer_descriptor;
mod data_transfer;
mod ird_ord;
mod negotiate;
mod reader;

pub use buffer_descriptor::BufferDescriptorV1;
pub use data_transfer::{DataTransfer, Flags};
pub use ird_ord::{IrdOrd, ZeroDepth};
pub use negotiate::{NegotiateRequest, NegotiateResponse, Status, VERSION_1_0};
pub use reader::DecodeError;
