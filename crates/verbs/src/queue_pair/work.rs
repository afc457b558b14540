//! Work in the send queue, with the memory that it needs until it completes, and buffers that are
//! registered for the peer.

use std::io;

use bytes::{Bytes, BytesMut};
use smbdirect::rdma::work::{Access, RemoteAddress, Token, WorkId};

use crate::memory::{OwnedRegion, Slot, Window};

/// An entry of the send queue: a Send, Write, Read or window binding, with its memory.
pub(super) struct SendEntry {
    /// The caller's identifier. It is `None` for internal work, which the caller does not see:
    /// window bindings and startup probes.
    pub(super) id: Option<WorkId>,
    pub(super) operation: Operation,
}

/// The operation of an entry of the send queue.
pub(super) enum Operation {
    Send {
        source: Source,
        invalidate: Option<Token>,
    },
    Write {
        source: Source,
        to: RemoteAddress,
    },
    Read {
        into: OwnedRegion<BytesMut>,
        from: RemoteAddress,
    },
    /// Binds the memory window of the registered buffer with this token.
    Bind(Token),
}

/// The place of the bytes of a Send or Write.
#[derive(Default)]
pub(super) struct Source {
    /// A buffer of the pool to which the first bytes were copied, and their number.
    pub(super) copied: Option<(Slot, u32)>,
    /// The payload after them, which is registered in place.
    pub(super) registered: Option<OwnedRegion<Bytes>>,
}

/// A buffer that is registered for the peer.
///
/// The order of the fields is the order in which they are dropped: the window is deallocated
/// before the region is deregistered, and the region before the buffer is freed.
pub(super) struct RegisteredBuffer {
    pub(super) window: Option<Window>,
    pub(super) buffer: OwnedRegion<BytesMut>,
    pub(super) access: Access,
    /// Whether the binding of the window is posted or queued, and has not completed.
    pub(super) is_binding: bool,
    /// Whether the caller deregistered the buffer while its window was being bound.
    pub(super) is_deregistered: bool,
}

impl RegisteredBuffer {
    /// Ends the peer's access to the buffer.
    pub(super) fn close(&mut self) {
        self.window = None;
        self.buffer.deregister();
    }
}

impl SendEntry {
    /// Returns internal work that writes zero bytes to the peer.
    pub(super) fn zero_length_write() -> Self {
        let to = RemoteAddress {
            token: Token(0),
            offset: 0,
        };
        let source = Source::default();
        Self {
            id: None,
            operation: Operation::Write { source, to },
        }
    }

    /// Returns internal work that binds the window of the buffer with this token.
    pub(super) fn bind(token: Token) -> Self {
        Self {
            id: None,
            operation: Operation::Bind(token),
        }
    }

    /// Returns whether the entry completes without being posted. This is so for an empty Read,
    /// because the adapter would need registered memory for it.
    pub(super) fn is_nothing(&self) -> bool {
        matches!(&self.operation, Operation::Read { into, .. } if !into.is_registered())
    }

    /// Returns the number of bytes that the entry sends.
    pub(super) fn length(&self) -> usize {
        match &self.operation {
            Operation::Send { source, .. } | Operation::Write { source, .. } => source.length(),
            Operation::Read { .. } | Operation::Bind(_) => 0,
        }
    }

    /// Returns whether the entry binds the window of the buffer with this token.
    pub(super) fn binds(&self, token: Token) -> bool {
        matches!(self.operation, Operation::Bind(bound) if bound == token)
    }
}

impl Source {
    fn length(&self) -> usize {
        let copied = self
            .copied
            .as_ref()
            .map_or(0, |(_, length)| *length as usize);
        copied + self.registered.as_ref().map_or(0, OwnedRegion::length)
    }

    /// Calls `push` with address, length and local key of each scatter/gather element.
    pub(super) fn elements(&self, push: &mut impl FnMut(u64, u32, u32)) {
        if let Some((slot, length)) = &self.copied {
            push(slot.address(), *length, slot.local_key());
        }
        if let Some(payload) = &self.registered {
            push(
                payload.address(),
                payload.length() as u32,
                payload.local_key(),
            );
        }
    }
}

/// Returns the length of a Send, Read or Write as the 32 bits of a work request.
///
/// # Errors
/// `InvalidInput` if it does not fit.
pub(super) fn request_length(length: usize) -> io::Result<u32> {
    u32::try_from(length).map_err(|_| io::ErrorKind::InvalidInput.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_above_32_bits_is_refused() {
        assert_eq!(request_length(u32::MAX as usize).unwrap(), u32::MAX);
        let longer = u32::MAX as usize + 1;
        let error = request_length(longer).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
