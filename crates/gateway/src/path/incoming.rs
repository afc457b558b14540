//! A message that is being forwarded: received completely, or still arriving by TCP.

use std::borrow::Cow;

use bytes::{Buf, Bytes, BytesMut};
use smbdirect::{Connection, Message};

use crate::{
    path::{buffers::Buffers, tcp},
    stop::{Side, Stop},
};

/// A message, of which the bytes are taken from the front.
pub(crate) enum Incoming<'a> {
    /// All of its bytes, received on this SMB Direct connection.
    Whole(Message, &'a Connection),
    /// The first of its bytes are in the buffer of this TCP connection, and the others follow.
    Begun(&'a mut tcp::Source),
}

impl Incoming<'_> {
    /// Returns the message if it was received completely, and otherwise itself.
    pub(crate) fn into_whole(self) -> Result<Message, Self> {
        match self {
            Self::Whole(message, _) => Ok(message),
            Self::Begun(_) => Err(self),
        }
    }

    /// Joins the parts of a message that was received, so that its head can be all of it.
    pub(crate) fn join(&mut self) {
        if let Self::Whole(message, _) = self {
            *message = std::mem::take(message).into_bytes().into();
        }
    }

    /// Returns whether some of its bytes may not have arrived, so that forwarding it takes memory of the gateway.
    pub(crate) const fn is_arriving(&self) -> bool {
        matches!(self, Self::Begun(_))
    }

    /// Returns the number of bytes that were not yet taken.
    pub(crate) fn remaining(&self) -> usize {
        match self {
            Self::Whole(message, _) => message.len(),
            Self::Begun(source) => source.remaining(),
        }
    }

    /// Returns the first `length` bytes, or all bytes of a shorter message. By TCP they must be in the buffer.
    pub(crate) fn head(&self, length: usize) -> Cow<'_, [u8]> {
        match self {
            Self::Begun(source) => source.head().into(),
            Self::Whole(message, _) => head(message, length),
        }
    }

    /// Takes the next `length` bytes in one piece. Of a message that is still arriving, the caller may ask for a
    /// few KiB at most, because all of them are buffered first.
    pub(crate) async fn take(&mut self, length: usize) -> Result<Bytes, Stop> {
        match self {
            Self::Whole(message, _) => Ok(message.copy_to_bytes(length)),
            Self::Begun(source) => source.take(length).await,
        }
    }

    /// Takes at most `most` bytes that are in one piece in memory, or a chunk that is read for this.
    pub(crate) async fn piece(&mut self, most: usize, buffers: &Buffers) -> Result<Bytes, Stop> {
        match self {
            Self::Whole(message, _) => {
                let length = message.chunk().len().min(most);
                Ok(message.copy_to_bytes(length))
            }
            Self::Begun(source) => source.piece(most, buffers).await,
        }
    }

    /// Appends the next `length` bytes to `into`.
    pub(crate) async fn fill(&mut self, into: &mut BytesMut, length: usize) -> Result<(), Stop> {
        match self {
            Self::Whole(message, _) => {
                into.extend_from_slice(&message.copy_to_bytes(length));
                Ok(())
            }
            Self::Begun(source) => source.fill(into, length).await,
        }
    }

    /// Discards the next `length` bytes.
    pub(crate) async fn skip(&mut self, length: usize) -> Result<(), Stop> {
        match self {
            Self::Whole(message, _) => {
                message.advance(length);
                Ok(())
            }
            Self::Begun(source) => source.skip(length).await,
        }
    }
}

/// Returns the first `length` bytes of a message, or all bytes of a shorter one.
pub(crate) fn head(message: &Message, length: usize) -> Cow<'_, [u8]> {
    let length = length.min(message.len());
    match message.chunk().get(..length) {
        Some(head) => head.into(),
        None => message.clone().copy_to_bytes(length).to_vec().into(),
    }
}

/// Waits for `room`, unless the client is gone.
pub(crate) async fn unless_gone<T>(
    gone: impl Future<Output = Stop>,
    room: impl Future<Output = T>,
) -> Result<T, Stop> {
    tokio::select! {
        biased;
        room = room => Ok(room),
        stop = gone => Err(stop),
    }
}

/// Waits until the connection of an SMB Direct client ends.
pub(crate) async fn gone(client: &Connection) -> Stop {
    Stop::of(Side::Client, &client.closed().await)
}
