//! Answers that the gateway cannot read, because they are encrypted or compressed.
//!
//! One of them could be the answer to a request whose channel the gateway changed. The client would
//! then look for the data of a READ where it is not, and find an empty file. Such an answer passes
//! only if the client has done something on this connection that can have led to it.

use crate::{
    fault::ServerFault,
    smb2::{Protocol, ReadRequest},
};

/// Which answers the client can have asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Opaque {
    encrypted: bool,
    compressed: bool,
}

impl Opaque {
    /// Notes whether a request is encrypted, compressed or asks for compression.
    pub(crate) const fn request(&mut self, protocol: Protocol) {
        match protocol {
            Protocol::Encrypted => self.encrypted = true,
            Protocol::Compressed => self.compressed = true,
            Protocol::Smb2 | Protocol::Smb1 | Protocol::Unknown => {}
        }
    }

    /// Notes the Flags of a READ that goes to the server unchanged.
    pub(crate) const fn read(&mut self, flags: u8) {
        self.compressed |= flags & ReadRequest::REQUEST_COMPRESSED != 0;
    }

    /// Checks an answer that arrives while requests with a channel wait for theirs.
    pub(crate) const fn answer(self, protocol: Protocol) -> Result<(), ServerFault> {
        match protocol {
            Protocol::Encrypted if !self.encrypted => Err(ServerFault::Encrypted),
            Protocol::Compressed if !self.compressed => Err(ServerFault::Compressed),
            _ => Ok(()),
        }
    }
}
