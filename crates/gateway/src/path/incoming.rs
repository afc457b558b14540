//! A message that is being forwarded: received completely, or still arriving by TCP.

use std::borrow::Cow;

use bytes::{Buf, Bytes, BytesMut};
use smbdirect::{Connection, Message};

use crate::{
    path::{buffers::Buffers, exchange::Exchange, memory::Grant, tcp},
    stop::{Side, Stop},
};

/// A message of one side, of which the bytes are taken from the front.
pub(crate) struct Incoming<'a> {
    side: Side,
    content: Content<'a>,
}

/// The bytes of a message.
enum Content<'a> {
    /// All of them, received on this SMB Direct connection.
    Whole(Message, &'a Connection),
    /// The first of them are in the buffer of this TCP connection, and the others follow.
    Begun(&'a mut tcp::Source),
}

impl<'a> Incoming<'a> {
    /// Returns a message that was made from one that was received on `connection`.
    pub(crate) const fn whole(side: Side, message: Message, connection: &'a Connection) -> Self {
        let content = Content::Whole(message, connection);
        Self { side, content }
    }

    /// Returns the message of which `source` has received the first bytes.
    pub(crate) const fn begun(side: Side, source: &'a mut tcp::Source) -> Self {
        let content = Content::Begun(source);
        Self { side, content }
    }

    /// Returns the message if it was received completely, and otherwise itself.
    pub(crate) fn into_whole(self) -> Result<Message, Self> {
        match self.content {
            Content::Whole(message, _) => Ok(message),
            Content::Begun(_) => Err(self),
        }
    }

    /// Joins the parts of a message that was received, so that its head can be all of it.
    pub(crate) fn join(&mut self) {
        if let Content::Whole(message, _) = &mut self.content {
            *message = std::mem::take(message).into_bytes().into();
        }
    }

    /// Returns whether some of its bytes may not have arrived, so that forwarding it takes memory of the gateway.
    pub(crate) const fn is_arriving(&self) -> bool {
        matches!(self.content, Content::Begun(_))
    }

    /// Returns the number of bytes that were not yet taken.
    pub(crate) fn remaining(&self) -> usize {
        match &self.content {
            Content::Whole(message, _) => message.len(),
            Content::Begun(source) => source.remaining(),
        }
    }

    /// Returns the first `length` bytes, or all bytes of a shorter message. By TCP they must be in the buffer.
    pub(crate) fn head(&self, length: usize) -> Cow<'_, [u8]> {
        match &self.content {
            Content::Begun(source) => source.head().into(),
            Content::Whole(message, _) => head(message, length),
        }
    }

    /// Takes the next `length` bytes in one piece. Of a message that is still arriving, the caller may ask for a
    /// few KiB at most, because all of them are buffered first.
    pub(crate) async fn take(&mut self, length: usize) -> Result<Bytes, Stop> {
        match &mut self.content {
            Content::Whole(message, _) => Ok(message.copy_to_bytes(length)),
            Content::Begun(source) => source.take(length).await.map_err(failed(self.side)),
        }
    }

    /// Takes at most `most` bytes that are in one piece in memory, or a chunk that is read for this.
    pub(crate) async fn piece(&mut self, most: usize, buffers: &Buffers) -> Result<Bytes, Stop> {
        match &mut self.content {
            Content::Whole(message, _) => {
                let length = message.chunk().len().min(most);
                Ok(message.copy_to_bytes(length))
            }
            Content::Begun(source) => {
                let piece = source.piece(most, buffers).await;
                piece.map_err(failed(self.side))
            }
        }
    }

    /// Appends the next `length` bytes to `into`.
    pub(crate) async fn fill(&mut self, into: &mut BytesMut, length: usize) -> Result<(), Stop> {
        match &mut self.content {
            Content::Whole(message, _) => {
                into.extend_from_slice(&message.copy_to_bytes(length));
                Ok(())
            }
            Content::Begun(source) => source.fill(into, length).await.map_err(failed(self.side)),
        }
    }

    /// Discards the next `length` bytes.
    pub(crate) async fn skip(&mut self, length: usize) -> Result<(), Stop> {
        match &mut self.content {
            Content::Whole(message, _) => {
                message.advance(length);
                Ok(())
            }
            Content::Begun(source) => source.skip(length).await.map_err(failed(self.side)),
        }
    }

    /// Takes the rest of the message in one piece.
    pub(crate) async fn rest(&mut self, exchange: &Exchange<'_>) -> Result<Bytes, Stop> {
        let length = self.remaining();
        if let Content::Begun(source) = &self.content
            && source.head().len() < length
        {
            let mut whole = exchange.region(length);
            whole.clear();
            self.fill(&mut whole, length).await?;
            return Ok(whole.freeze());
        }
        self.take(length).await
    }

    /// Waits for memory for a request, which only answers to earlier requests free. The server may never answer, so
    /// the wait also ends when the client is gone.
    pub(crate) async fn memory_for_request(
        &self,
        exchange: &Exchange<'_>,
        bytes: usize,
    ) -> Result<Grant, Stop> {
        let gone = async {
            match &self.content {
                Content::Whole(_, client) => gone(client).await,
                // A client on TCP can wait for answers after it has finished sending.
                Content::Begun(client) => {
                    client.hang_up().wait().await;
                    exchange.traffic.session.silence().await;
                    Stop::Closed(self.side)
                }
            }
        };
        unless_gone(gone, exchange.request_memory(bytes)).await
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

/// Returns the conversion of a fault of the TCP peer on `side`.
pub(crate) fn failed(side: Side) -> impl Fn(tcp::Fault) -> Stop {
    move |fault| fault.stop(side)
}
