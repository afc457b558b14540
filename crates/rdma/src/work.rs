//! Work requests, which a queue pair takes, and completions, which it returns.
//!
//! Buffers move by value: into the work request, and back with its completion. So no buffer can be
//! freed or read while the hardware or the peer still uses it.

use std::{
    fmt, io,
    num::{NonZeroU16, NonZeroU32},
    sync::Arc,
};

use bitflags::bitflags;
use bytes::{Bytes, BytesMut};
use thiserror::Error;

/// The identifier of a work request, which its completion repeats. The caller chooses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkId(pub u64);

/// The name of registered memory: the STag of iWARP, or the rkey of InfiniBand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u32);

/// Converts the token of a buffer descriptor.
impl From<u32> for Token {
    #[inline]
    fn from(token: u32) -> Self {
        Self(token)
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:08x}", self.0)
    }
}

/// An address in the registered memory of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteAddress {
    /// The token that the peer advertised.
    pub token: Token,
    /// The tagged offset (iWARP) or virtual address (InfiniBand), in bytes.
    pub offset: u64,
}

bitflags! {
    /// The access rights that a registration gives to the peer. A flag that is not set grants nothing.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Access: u8 {
        /// The peer may read the memory by RDMA Read.
        const REMOTE_READ = 0x01;
        /// The peer may write the memory by RDMA Write.
        const REMOTE_WRITE = 0x02;
        /// The peer may end the registration by Send with Invalidate.
        const REMOTE_INVALIDATE = 0x04;
    }
}

/// A few bytes that need no allocation, such as the header before a payload.
// Moves of this struct load 8 or 16 bytes, and such a load stalls if it overlaps a recent store of
// fewer bytes. So the length has 8 bytes, at a multiple of 8 on every target.
#[derive(Clone, Copy)]
#[cfg_attr(not(doc), repr(align(8)))]
pub struct Inline {
    bytes: [u8; Self::CAPACITY],
    length: u64,
}

impl Inline {
    /// The capacity in bytes: the length of a Negotiate Response.
    pub const CAPACITY: usize = 32;

    /// Creates an empty value.
    #[inline]
    pub const fn new() -> Self {
        Self {
            bytes: [0; Self::CAPACITY],
            length: 0,
        }
    }

    /// Creates a value with the bytes that `write` puts into its buffer.
    ///
    /// # Panics
    /// Panics if `write` puts more than [`CAPACITY`](Self::CAPACITY) bytes.
    pub fn build(write: impl FnOnce(&mut &mut [u8])) -> Self {
        let mut inline = Self::new();
        let mut rest = &mut inline.bytes[..];
        write(&mut rest);
        let length = Self::CAPACITY - rest.len();
        inline.length = length as u64;
        inline
    }

    /// Creates a value with the first `length` of the bytes.
    ///
    /// # Panics
    /// Panics if there are fewer bytes.
    #[inline]
    pub fn first_of(bytes: [u8; 24], length: usize) -> Self {
        assert!(length <= bytes.len(), "{length} of {} bytes", bytes.len());
        let mut inline = Self::new();
        inline.bytes[..bytes.len()].copy_from_slice(&bytes);
        inline.length = length as u64;
        inline
    }

    /// Returns the bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.length as usize]
    }

    /// Returns the number of bytes.
    #[inline]
    pub const fn len(&self) -> usize {
        self.length as usize
    }

    /// Returns whether there are no bytes.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Takes the bytes and leaves this value empty.
    #[inline]
    pub fn take(&mut self) -> Self {
        let taken = *self;
        self.length = 0;
        taken
    }
}

impl Default for Inline {
    fn default() -> Self {
        Self::new()
    }
}

/// Shows the number of bytes, and not the bytes, which may be those of a message.
impl fmt::Debug for Inline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        ByteCount(self.len()).fmt(f)
    }
}

/// A number of bytes, which stands in debugging output for the bytes themselves: they may be secret, and long.
#[doc(hidden)]
#[derive(Clone, Copy)]
pub struct ByteCount(pub usize);

impl fmt::Debug for ByteCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0)
    }
}

/// A request for a queue pair to do something.
pub enum WorkRequest {
    /// Accepts `count` Sends of at most `length` bytes each from the peer.
    Receive {
        /// The identifier, which each [`Completion::Received`] repeats.
        id: WorkId,
        /// The most bytes that a Send may have. A longer one ends the connection.
        length: u32,
        /// The number of receives, at least one. Each takes one of [`Room::receives`].
        count: u32,
    },
    /// Sends `header` followed by `payload` as one message.
    Send {
        /// The identifier, which [`Completion::Sent`] repeats. A completion with the identifier of a
        /// later Send can complete this Send too.
        id: WorkId,
        /// The first bytes of the message.
        header: Inline,
        /// The bytes after the header.
        payload: Bytes,
        /// The token of the peer that the message invalidates on arrival.
        invalidate: Option<Token>,
    },
    /// Reads from the memory of the peer and fills all of `into`.
    Read {
        /// The identifier, which [`Completion::Read`] repeats.
        id: WorkId,
        /// The address to read from.
        from: RemoteAddress,
        /// The buffer for the data. Its length is the number of bytes to read.
        into: BytesMut,
    },
    /// Writes `data` to the memory of the peer.
    Write {
        /// The identifier, which [`Completion::Written`] repeats.
        id: WorkId,
        /// The data to write.
        data: Bytes,
        /// The address to write to.
        to: RemoteAddress,
    },
}

/// Shows the number of bytes in each buffer, and not the bytes.
impl fmt::Debug for WorkRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Receive { id, length, count } => f
                .debug_struct("Receive")
                .field("id", id)
                .field("length", length)
                .field("count", count)
                .finish(),
            Self::Send {
                id,
                header,
                payload,
                invalidate,
            } => f
                .debug_struct("Send")
                .field("id", id)
                .field("header", header)
                .field("payload", &ByteCount(payload.len()))
                .field("invalidate", invalidate)
                .finish(),
            Self::Read { id, from, into } => f
                .debug_struct("Read")
                .field("id", id)
                .field("from", from)
                .field("into", &ByteCount(into.len()))
                .finish(),
            Self::Write { id, data, to } => f
                .debug_struct("Write")
                .field("id", id)
                .field("data", &ByteCount(data.len()))
                .field("to", to)
                .finish(),
        }
    }
}

impl WorkRequest {
    /// Returns the identifier of the work request.
    #[inline]
    pub const fn id(&self) -> WorkId {
        match *self {
            Self::Receive { id, .. }
            | Self::Send { id, .. }
            | Self::Read { id, .. }
            | Self::Write { id, .. } => id,
        }
    }

    /// Completes the work request as flushed: returns a completion with the buffer of a Read, or one for each Receive.
    pub fn flushed(self) -> impl Iterator<Item = Completion> {
        let id = self.id();
        let (count, mut buffer) = match self {
            Self::Receive { count, .. } => (count, None),
            Self::Read { into, .. } => (1, Some(into)),
            Self::Send { .. } | Self::Write { .. } => (1, None),
        };
        (0..count).map(move |_| Completion::Flushed {
            id,
            buffer: buffer.take(),
        })
    }
}

/// The result of a work request, or the end of the connection.
///
/// Receives complete in the order in which they were posted. So do Sends among themselves, Reads among themselves
/// and Writes among themselves. If several Sends finish together, the completion of the last may complete all of
/// them. When a connection ends, every outstanding request completes as
/// [`Flushed`](Self::Flushed), and then [`Disconnected`](Self::Disconnected) is the last
/// completion, exactly once.
// With the fields in this order the message is at a multiple of 16 bytes from the start. Moves load
// 16 bytes, and such a load stalls if the bytes were not stored together.
#[cfg_attr(not(doc), repr(u32))]
pub enum Completion {
    /// The first bytes of a message. The next completion is its [`Received`](Self::Received), with the other
    /// bytes. Only providers that receive the head separately return it. The other bytes are not copied, unless
    /// the payload of the message begins in these first bytes.
    Head(Inline),
    /// A message arrived and took the oldest posted receive.
    Received {
        /// The receive that the message took.
        id: WorkId,
        /// The message, or the bytes after its head. It may share an allocation with other
        /// messages.
        message: Bytes,
        /// The token of this end that the message invalidated.
        invalidated: Option<Token>,
    },
    /// The message was handed to the wire, and so was every earlier Send whose completion was not
    /// returned. This does not mean that the peer has received them.
    Sent {
        /// The identifier of the last finished request.
        id: WorkId,
    },
    /// The buffer of a Read is filled.
    Read {
        /// The finished request.
        id: WorkId,
        /// The buffer, with the data.
        buffer: BytesMut,
    },
    /// The data was handed to the wire. It is in place before a later Send is received.
    Written {
        /// The finished request.
        id: WorkId,
    },
    /// The connection ended before the request finished.
    Flushed {
        /// The identifier of the request, which may or may not have had an effect.
        id: WorkId,
        /// The buffer of a Read, in an unknown state.
        buffer: Option<BytesMut>,
    },
    /// The connection has ended.
    Disconnected(Disconnect),
}

/// Shows the number of bytes in each buffer, and not the bytes.
impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Head(head) => f.debug_tuple("Head").field(head).finish(),
            Self::Received {
                id,
                message,
                invalidated,
            } => f
                .debug_struct("Received")
                .field("id", id)
                .field("message", &ByteCount(message.len()))
                .field("invalidated", invalidated)
                .finish(),
            Self::Sent { id } => f.debug_struct("Sent").field("id", id).finish(),
            Self::Read { id, buffer } => f
                .debug_struct("Read")
                .field("id", id)
                .field("buffer", &ByteCount(buffer.len()))
                .finish(),
            Self::Written { id } => f.debug_struct("Written").field("id", id).finish(),
            Self::Flushed { id, buffer } => f
                .debug_struct("Flushed")
                .field("id", id)
                .field(
                    "buffer",
                    &buffer.as_ref().map(|buffer| ByteCount(buffer.len())),
                )
                .finish(),
            Self::Disconnected(how) => f.debug_tuple("Disconnected").field(how).finish(),
        }
    }
}

/// The way to end a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Teardown {
    /// The connection ends after the work that is already posted.
    Graceful,
    /// The connection ends immediately.
    Abort,
    /// As [`Abort`](Self::Abort), but what a completion has reported as sent still arrives, unless the peer takes so little
    /// that the network has no room. The peer sees that the connection has failed.
    Terminate,
}

/// The way in which a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disconnect {
    /// This end disconnected.
    Local,
    /// The peer disconnected gracefully.
    Remote,
    /// The connection broke.
    Broken(ProviderError),
}

/// An error of a provider.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{what}")]
pub struct ProviderError {
    /// The kind, for programs that react to it.
    pub kind: ProviderErrorKind,
    /// The description, for people.
    pub what: Arc<str>,
    /// The number of the operating system's error, in as little space as possible, because completions are moved.
    os_error: Option<NonZeroU16>,
}

/// The kinds of provider errors, which call for different remedies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProviderErrorKind {
    /// The address cannot be reached or used, or the host name cannot be looked up.
    Address,
    /// Another listener uses the address.
    InUse,
    /// There is no listener on the address.
    Refused,
    /// The host of the address runs no provider of this kind: it answers that the UDP port of RoCE is closed.
    PortUnreachable,
    /// The listener refused the connection. The description has its reason, if the protocol carries one.
    Rejected,
    /// The peer did not answer in time.
    TimedOut,
    /// The peer, or the network between the two ends, has failed.
    Reset,
    /// The peer violated the RDMA protocol. The description names the rule.
    Protocol,
    /// The peer speaks another protocol than the provider: another service has the address.
    OtherProtocol,
    /// The peer reports that this end violated the protocol. The description holds its report.
    Terminated,
    /// An operation on this machine failed. If the system refused it, [`ProviderError::os_error`] has the number, such as
    /// `EMFILE` (too many open files), `ENOBUFS` or `ENOMEM` (too little memory).
    Local,
}

impl ProviderErrorKind {
    /// Returns the kind as a short name, for the labels of metrics.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Address => "rdma_address",
            Self::InUse => "rdma_in_use",
            Self::Refused | Self::PortUnreachable | Self::Rejected => "rdma_refused",
            Self::TimedOut => "rdma_timeout",
            Self::Reset => "rdma_reset",
            Self::Protocol | Self::OtherProtocol => "rdma_protocol",
            Self::Terminated => "rdma_terminated",
            Self::Local => "rdma_local",
        }
    }
}

impl ProviderErrorKind {
    /// Returns whether a later attempt to connect to the same address may succeed.
    ///
    /// A host that is down, a listener that does not run or has no room, and a network that lost packets may be back
    /// later. So may a host name that cannot be looked up: the system does not tell an unknown name apart from a name
    /// server that does not answer. An address in use, a violation of the protocol, another protocol and a failure on
    /// this machine last until a person changes something. A program that can wait until this machine has room again
    /// looks at [`ProviderError::os_error`]: too many open files are `EMFILE` or `ENFILE`, and too little memory is
    /// `ENOBUFS` or `ENOMEM`.
    pub const fn is_retryable(self) -> bool {
        match self {
            Self::Address
            | Self::Refused
            | Self::PortUnreachable
            | Self::Rejected
            | Self::TimedOut
            | Self::Reset => true,
            Self::InUse | Self::Protocol | Self::OtherProtocol | Self::Terminated | Self::Local => {
                false
            }
        }
    }

    /// Returns the kind for an error of the operating system.
    pub(crate) fn of_io(error: &io::Error) -> Self {
        use io::ErrorKind as Kind;
        match error.kind() {
            Kind::ConnectionRefused => Self::Refused,
            Kind::TimedOut => Self::TimedOut,
            Kind::ConnectionReset
            | Kind::ConnectionAborted
            | Kind::BrokenPipe
            | Kind::NotConnected
            | Kind::UnexpectedEof => Self::Reset,
            Kind::AddrInUse => Self::InUse,
            Kind::AddrNotAvailable
            | Kind::HostUnreachable
            | Kind::NetworkUnreachable
            | Kind::NetworkDown
            | Kind::InvalidInput => Self::Address,
            _ => Self::Local,
        }
    }

    /// Returns the kind of error in the standard library that is closest.
    const fn io_kind(self) -> io::ErrorKind {
        match self {
            Self::Refused | Self::PortUnreachable | Self::Rejected => {
                io::ErrorKind::ConnectionRefused
            }
            Self::TimedOut => io::ErrorKind::TimedOut,
            Self::Address => io::ErrorKind::AddrNotAvailable,
            Self::InUse => io::ErrorKind::AddrInUse,
            Self::Protocol | Self::OtherProtocol => io::ErrorKind::InvalidData,
            Self::Local => io::ErrorKind::Other,
            Self::Reset | Self::Terminated => io::ErrorKind::ConnectionReset,
        }
    }
}

/// Converts an error of a transport, such as a socket.
impl From<io::Error> for ProviderError {
    fn from(error: io::Error) -> Self {
        let kind = ProviderErrorKind::of_io(&error);
        Self::new(kind, error.to_string()).with_os_error(error.raw_os_error())
    }
}

impl From<ProviderError> for io::Error {
    fn from(error: ProviderError) -> Self {
        Self::new(error.kind.io_kind(), error)
    }
}

impl ProviderError {
    /// Creates an error of `kind` with a description.
    #[inline]
    pub fn new(kind: ProviderErrorKind, what: impl Into<Arc<str>>) -> Self {
        Self {
            kind,
            what: what.into(),
            os_error: None,
        }
    }

    /// Adds the number of an error of the operating system, as `std::io::Error::raw_os_error` returns it.
    #[must_use]
    pub fn with_os_error(mut self, number: Option<i32>) -> Self {
        let number = number.and_then(|number| u16::try_from(number).ok());
        self.os_error = number.and_then(NonZeroU16::new);
        self
    }

    /// Returns the number of the operating system's error that is the cause, such as `ECONNREFUSED`, if there is one.
    pub fn os_error(&self) -> Option<i32> {
        self.os_error.map(|number| number.get().into())
    }
}

/// The limits of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most Sends, Reads and Writes that may be outstanding.
    pub max_send_queue: usize,
    /// The most receives that may be outstanding.
    pub max_receive_queue: usize,
    /// ORD: the most Reads of this end that may be in flight. If it is 0, none may be posted.
    pub max_outbound_reads: u32,
    /// IRD: the most Reads of the peer that are served concurrently.
    pub max_inbound_reads: u32,
    /// The largest number of bytes in one Read or Write.
    pub max_transfer: u32,
    /// Whether a Send can carry a token to invalidate.
    pub send_with_invalidate: bool,
    /// The most bytes of a Send in one packet, if a provider is faster with Sends whose packets all have
    /// the same length. `None` if the length does not matter.
    pub packet_bytes: Option<NonZeroU32>,
}

/// The work that may be posted now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// The number of Sends, Reads and Writes.
    pub sends: usize,
    /// The number of receives.
    pub receives: usize,
}

#[cfg(all(test, target_pointer_width = "64"))]
mod tests {
    use std::ptr;

    use super::*;

    #[test]
    fn the_message_is_at_a_multiple_of_16_bytes() {
        let completion = Completion::Received {
            id: WorkId(1),
            message: Bytes::new(),
            invalidated: None,
        };
        let Completion::Received { message, .. } = &completion else {
            unreachable!("the completion is a Received");
        };
        let offset = ptr::from_ref(message).addr() - ptr::from_ref(&completion).addr();
        assert_eq!(offset % 16, 0);
    }
}
