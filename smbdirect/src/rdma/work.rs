//! Work requests and completions: what one says to a queue pair and what it answers.
//!
//! Buffers move by value: into the work request, and back with its completion. So nothing can
//! be freed or read while the hardware, or the peer, still uses it.

use std::{fmt, sync::Arc};

use bitflags::bitflags;
use bytes::{Bytes, BytesMut};
use thiserror::Error;

/// Names a work request in its completion; chosen by whoever posts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkId(pub u64);

/// Names registered memory: the STag of iWARP, the rkey of InfiniBand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u32);

/// A token as a buffer descriptor has it.
impl From<u32> for Token {
    fn from(token: u32) -> Self {
        Self(token)
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:08x}", self.0)
    }
}

/// A place in the peer's registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteAddress {
    /// The token that the peer advertised.
    pub token: Token,
    /// Tagged offset (iWARP) or virtual address (InfiniBand), in bytes.
    pub offset: u64,
}

bitflags! {
    /// What the peer may do with registered memory. Nothing is allowed that is not named.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Access: u8 {
        /// The peer may read it by RDMA Read.
        const REMOTE_READ = 0x01;
        /// The peer may write it by RDMA Write.
        const REMOTE_WRITE = 0x02;
        /// The peer may end the registration by Send with Invalidate.
        const REMOTE_INVALIDATE = 0x04;
    }
}

/// A few bytes held in place: the header in front of a payload, without an allocation.
// It is moved by eight bytes or sixteen, and a processor waits for the cache where fewer were written:
// so the length has eight, and lies at a multiple of eight wherever it is compiled for.
#[derive(Clone, Copy)]
#[repr(align(8))]
pub struct Inline {
    bytes: [u8; Self::CAPACITY],
    length: u64,
}

impl Inline {
    /// Most bytes one can hold: a Negotiate Response.
    pub const CAPACITY: usize = 32;

    /// No bytes.
    pub const fn new() -> Self {
        Self {
            bytes: [0; Self::CAPACITY],
            length: 0,
        }
    }

    /// What `write` puts into the buffer it is given.
    ///
    /// # Panics
    /// If `write` puts more than [`CAPACITY`](Self::CAPACITY) bytes.
    pub fn build(write: impl FnOnce(&mut &mut [u8])) -> Self {
        let mut inline = Self::new();
        let mut rest = &mut inline.bytes[..];
        write(&mut rest);
        let length = Self::CAPACITY - rest.len();
        inline.length = length as u64;
        inline
    }

    /// The first `length` of the bytes.
    ///
    /// # Panics
    /// If there are fewer.
    pub(crate) fn first_of(bytes: [u8; 24], length: usize) -> Self {
        assert!(length <= bytes.len(), "{length} of {} bytes", bytes.len());
        let mut inline = Self::new();
        inline.bytes[..bytes.len()].copy_from_slice(&bytes);
        inline.length = length as u64;
        inline
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.length as usize]
    }

    /// How many they are.
    pub const fn len(&self) -> usize {
        self.length as usize
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The bytes, of which none are left here.
    pub(crate) fn take(&mut self) -> Self {
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

impl fmt::Debug for Inline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x?}", self.as_slice())
    }
}

/// One thing for a queue pair to do.
#[derive(Debug)]
pub enum WorkRequest {
    /// Accept `count` Sends of at most `length` bytes each from the peer: so many receives.
    Receive {
        /// Comes back in [`Completion::Received`] with each of them.
        id: WorkId,
        /// Most bytes a Send may have; a longer one ends the connection.
        length: u32,
        /// Receives that this is, one or more. Each takes one of [`Room::receives`].
        count: u32,
    },
    /// Send `header` and behind it `payload` as one message.
    Send {
        /// Comes back in [`Completion::Sent`], or a later Send does.
        id: WorkId,
        /// The first bytes of the message.
        header: Inline,
        /// The bytes behind the header.
        payload: Bytes,
        /// A token of the peer's that the message invalidates on arrival.
        invalidate: Option<Token>,
    },
    /// Fill `into`, all of it, from the peer's memory.
    Read {
        /// Comes back in [`Completion::Read`].
        id: WorkId,
        /// Where the data comes from.
        from: RemoteAddress,
        /// Where it goes to; its length is the number of bytes read.
        into: BytesMut,
    },
    /// Put `data` into the peer's memory.
    Write {
        /// Comes back in [`Completion::Written`].
        id: WorkId,
        /// What is written.
        data: Bytes,
        /// Where it goes to.
        to: RemoteAddress,
    },
}

impl WorkRequest {
    /// The identifier it was posted with.
    pub const fn id(&self) -> WorkId {
        match *self {
            Self::Receive { id, .. }
            | Self::Send { id, .. }
            | Self::Read { id, .. }
            | Self::Write { id, .. } => id,
        }
    }
}

/// One thing a queue pair has done.
///
/// Receives complete in the order they were posted, and so do Sends, Reads and Writes each among
/// themselves; of Sends that are done together the last may stand for all. When a connection ends,
/// every outstanding request completes as [`Flushed`](Self::Flushed) before
/// [`Disconnected`](Self::Disconnected) comes, once, as the last completion of all.
// With the fields in this order a message lies a multiple of 16 bytes behind the start. Moves are made
// by as many, and a processor waits for the cache where they were not written together.
#[derive(Debug)]
#[repr(u32)]
pub enum Completion {
    /// The first bytes of a message whose other bytes are in the next completion, which is its
    /// [`Received`](Self::Received). Comes only from providers that have the two apart. What lies
    /// behind it is not copied, unless the payload of the message begins in these bytes.
    Head(Inline),
    /// A message arrived and took the oldest posted receive.
    Received {
        /// The receive it took.
        id: WorkId,
        /// The message, or what follows its head. It may share an allocation with its neighbours.
        message: Bytes,
        /// The token of ours that the message invalidated.
        invalidated: Option<Token>,
    },
    /// The message was handed to the wire, and so was every Send posted before it that was not told
    /// of. It says nothing of the peer having them.
    Sent {
        /// The last of the finished requests.
        id: WorkId,
    },
    /// The buffer is full.
    Read {
        /// The finished request.
        id: WorkId,
        /// The buffer of the request.
        buffer: BytesMut,
    },
    /// The data was handed to the wire; it is in place before a later Send is received.
    Written {
        /// The finished request.
        id: WorkId,
    },
    /// The connection ended first.
    Flushed {
        /// The request that did not happen, or not as far as anybody knows.
        id: WorkId,
        /// The buffer of a Read, in an unknown state.
        buffer: Option<BytesMut>,
    },
    /// The connection is over.
    Disconnected(Disconnect),
}

/// How a connection of a provider ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disconnect {
    /// This end asked for it.
    Local,
    /// The peer ended it, in good order.
    Remote,
    /// It broke.
    Broken(ProviderError),
}

/// What a provider can say about a failure.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{what}")]
pub struct ProviderError {
    /// The kind, for those who want to act on it.
    pub kind: ProviderErrorKind,
    /// The story, for those who read it.
    pub what: Arc<str>,
}

/// The kinds of provider failure that call for different cures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProviderErrorKind {
    /// The address cannot be reached or used.
    Address,
    /// Somebody listens on the address already.
    InUse,
    /// Nobody listens there, or the listener turned the connection away.
    Refused,
    /// The peer did not answer in time.
    TimedOut,
    /// The peer vanished, or the network between.
    Reset,
    /// The peer broke a rule of the RDMA protocol; the text names it.
    Protocol,
    /// The peer says that we broke one; the text has its words.
    Terminated,
    /// Something on this machine failed.
    Local,
}

impl ProviderError {
    /// An error of `kind` with its story.
    pub fn new(kind: ProviderErrorKind, what: impl Into<Arc<str>>) -> Self {
        Self {
            kind,
            what: what.into(),
        }
    }
}

/// What a connection of a provider can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Sends, Reads and Writes that may be posted at once.
    pub max_send_queue: usize,
    /// Receives that may be posted at once.
    pub max_receive_queue: usize,
    /// Reads of ours that may be outstanding (ORD); 0 means that none may be posted.
    pub max_outbound_reads: u32,
    /// Reads of the peer's that are served at once (IRD).
    pub max_inbound_reads: u32,
    /// Most bytes in one Read or Write.
    pub max_transfer: u32,
    /// Whether a Send can carry a token to invalidate.
    pub send_with_invalidate: bool,
}

/// How much may be posted right now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Sends, Reads and Writes.
    pub sends: usize,
    /// Receives.
    pub receives: usize,
}

#[cfg(all(test, target_pointer_width = "64"))]
mod tests {
    use std::ptr;

    use super::*;

    #[test]
    fn a_message_lies_a_multiple_of_16_bytes_behind_the_start() {
        let completion = Completion::Received {
            id: WorkId(1),
            message: Bytes::new(),
            invalidated: None,
        };
        let Completion::Received { message, .. } = &completion else {
            unreachable!("it was just made");
        };
        let offset = ptr::from_ref(message).addr() - ptr::from_ref(&completion).addr();
        assert_eq!(offset % 16, 0);
    }
}
