//! Answers that the gateway cannot read, because they are encrypted or compressed.
//!
//! Such an answer could belong to a request whose channel the gateway changed. If it were forwarded, the
//! client would look for the data of a READ in the wrong place and find an empty file. An opaque answer
//! is therefore forwarded only if the client encrypts, compresses or asked for compression on this
//! connection.

use crate::{
    fault::ServerFault,
    smb2::{Protocol, ReadRequest},
};

/// The kinds of opaque answers that the client's requests on this connection allow.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Opaque {
    encrypted: bool,
    compressed: bool,
}

impl Opaque {
    /// Records whether a request is encrypted or compressed.
    pub(crate) const fn request(&mut self, protocol: Protocol) {
        match protocol {
            Protocol::Encrypted => self.encrypted = true,
            Protocol::Compressed => self.compressed = true,
            Protocol::Smb2 | Protocol::Smb1 | Protocol::Unknown => {}
        }
    }

    /// Records whether a READ that is forwarded unchanged asks for a compressed answer.
    pub(crate) const fn read(&mut self, flags: u8) {
        self.compressed |= flags & ReadRequest::REQUEST_COMPRESSED != 0;
    }

    /// Checks an answer that arrives while requests with a channel are unanswered.
    pub(crate) const fn answer(self, protocol: Protocol) -> Result<(), ServerFault> {
        match protocol {
            Protocol::Encrypted if !self.encrypted => Err(ServerFault::Encrypted),
            Protocol::Compressed if !self.compressed => Err(ServerFault::Compressed),
            _ => Ok(()),
        }
    }
}
