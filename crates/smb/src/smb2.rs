//! Decodes and encodes SMB2 messages ([MS-SMB2] 2.2). All fields are little-endian.
//!
//! A message is one element, or a compound of several. Each element has a [`Header`], whose NextCommand
//! is the distance to the next element. Offsets within an element count from its header.

mod channel;
mod element;
mod header;
mod negotiate;
mod read;
mod reader;
mod session_setup;
mod write;

pub use channel::Channel;
pub use element::{Element, Elements, pad_to_element};
pub use header::{Command, Flags, Header, Protocol, STATUS_BUFFER_OVERFLOW, STATUS_PENDING};
pub use negotiate::{
    DIALECT_3_0, DIALECT_3_0_2, DIALECT_3_1_1, NegotiateContext, NegotiateRequest,
    NegotiateResponse, SIGNING_ENABLED, SIGNING_REQUIRED, negotiated_dialect,
};
pub use read::{ReadRequest, ReadResponse};
pub use reader::Malformed;
pub use session_setup::SessionSetupResponse;
pub use write::{WriteRequest, WriteResponse};

/// The body of an ECHO request and of its response (2.2.28, 2.2.29).
pub const ECHO_BODY: [u8; 4] = [4, 0, 0, 0];
/// The body of an ERROR response without error data (2.2.2).
pub const ERROR_BODY: [u8; 9] = [9, 0, 0, 0, 0, 0, 0, 0, 0];
