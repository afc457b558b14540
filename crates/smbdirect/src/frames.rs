//! [`Frames`]: bytes of SMB over TCP, cut into messages.

use std::io;

use bytes::{Buf, Bytes, BytesMut};

/// Length of the header of a frame: a type of 0, and the length of the message in 24 bits, big-endian
/// (\[MS-SMB2\] 2.1, Direct TCP).
pub(crate) const HEADER_LENGTH: usize = 4;

/// Longest message that the length of a frame can express, in bytes.
pub(crate) const MAX_FRAME_LENGTH: usize = 0xFF_FFFF;

/// Type of a frame that keeps a connection alive (RFC 1002, 4.3.6).
const NETBIOS_KEEPALIVE: u8 = 0x85;

/// The bytes of frames that were not taken as messages yet.
#[derive(Debug)]
pub(crate) struct Frames {
    pub(crate) buffer: BytesMut,
    /// Largest number of bytes in a message.
    longest: usize,
}

impl Frames {
    pub(crate) fn new(longest: usize) -> Self {
        Self {
            buffer: BytesMut::new(),
            longest,
        }
    }

    /// Returns the length of the next frame with its header, once the header has been read. Drops frames without
    /// a message.
    ///
    /// # Errors
    /// Fails if the frame has another type, or is too long for the peer.
    pub(crate) fn next_length(&mut self) -> io::Result<Option<usize>> {
        let header = loop {
            match self.buffer.first_chunk::<HEADER_LENGTH>() {
                None => return Ok(None),
                Some([0 | NETBIOS_KEEPALIVE, 0, 0, 0]) => self.buffer.advance(HEADER_LENGTH),
                Some(header) => break u32::from_be_bytes(*header),
            }
        };
        let length = header as usize & MAX_FRAME_LENGTH;
        if header as usize != length || length > self.longest {
            let what = format!(
                "a frame with the header {header:#010x}, the peer takes at most {} B",
                self.longest
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Ok(Some(HEADER_LENGTH + length))
    }

    /// Returns whether the next frame has been read completely.
    ///
    /// # Errors
    /// As [`next_length`](Self::next_length).
    #[cfg(unix)]
    pub(crate) fn is_whole(&mut self) -> io::Result<bool> {
        let length = self.next_length()?;
        Ok(length.is_some_and(|length| self.buffer.len() >= length))
    }

    /// Takes the message of the next frame, if it has been read completely.
    ///
    /// # Errors
    /// As [`next_length`](Self::next_length).
    pub(crate) fn take(&mut self) -> io::Result<Option<Bytes>> {
        let length = self.next_length()?;
        let length = length.filter(|&length| self.buffer.len() >= length);
        Ok(length.map(|length| self.buffer.split_to(length).freeze().slice(HEADER_LENGTH..)))
    }

    /// Returns the number of bytes that are missing from the header of the next frame, or from the frame once its
    /// header has been read.
    pub(crate) fn missing(&mut self) -> usize {
        let wanted = self.next_length().ok().flatten().unwrap_or(HEADER_LENGTH);
        wanted.saturating_sub(self.buffer.len())
    }
}
