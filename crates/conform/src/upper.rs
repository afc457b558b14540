//! The upper layer of a connection: what the messages contain, and how to tell that the peer has
//! received one.

mod detect;
mod echo;
mod smb2;

pub use detect::Detect;
pub use echo::Echo;
pub use smb2::Smb2;

/// An upper layer.
pub trait UpperLayer: Send + Sync {
    /// Returns the name for reports.
    fn name(&self) -> &'static str;

    /// Begins a conversation with a server.
    fn ask(&self) -> Box<dyn Asking>;

    /// Begins a conversation with a client.
    fn answer(&self) -> Box<dyn Answering>;
}

/// A conversation in which the peer answers.
pub trait Asking {
    /// Returns the next request. The first one on a connection has `length` bytes, or a few more;
    /// later ones may have another length.
    fn request(&mut self, length: usize) -> Vec<u8>;

    /// Returns the longest request in bytes that a peer can be expected to take.
    fn longest(&self) -> usize;

    /// Checks the answer to `request`.
    ///
    /// # Errors
    /// The fault of the message.
    fn check(&self, request: &[u8], answer: &[u8]) -> Result<(), String>;

    /// Returns whether the answer is as long as the request.
    fn is_echo(&self) -> bool;
}

/// A conversation in which the peer asks.
pub trait Answering {
    /// Returns an answer of `length` bytes to the first message of the client, or one of the
    /// nearest possible length.
    ///
    /// # Errors
    /// The message does not belong to this upper layer.
    fn reply(&mut self, request: &[u8], length: usize) -> Result<Vec<u8>, String>;

    /// Returns an answer to the next message of the client that ends the conversation, if there is
    /// one.
    fn farewell(&mut self, request: &[u8]) -> Option<Vec<u8>>;
}
