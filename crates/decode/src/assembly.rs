//! The SMB messages of a connection, put together from their Data Transfers.

use smbdirect_smb::{
    frame::MAX_MESSAGE_LENGTH,
    smb2::{Flags, Header, Protocol},
};

use crate::{
    event::{DataTransfer, Event, Payload},
    per_end::{PerEnd, Side},
    tcp::Position,
};

/// An SMB message.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) from: Side,
    /// The packets with its first and its last byte.
    pub(crate) began: Position,
    pub(crate) ended: Position,
    pub(crate) protocol: Protocol,
    /// The first bytes of the message, as far as they are kept; all of them if the capture has them.
    pub(crate) bytes: Vec<u8>,
    /// Bytes so far, and of the whole message.
    received: u64,
    pub(crate) length: u64,
}

/// Puts the messages of a connection together.
#[derive(Debug, Default)]
pub(crate) struct Assembly {
    /// The client, once the connection or an SMB2 message shows it.
    pub(crate) client: Option<Side>,
    partial: PerEnd<Option<Message>>,
}

impl Assembly {
    /// Returns the bytes that are held.
    pub(crate) fn held(&self) -> usize {
        let partial = self.partial.iter().flatten();
        partial.map(|message| message.bytes.len()).sum()
    }

    /// Forgets the message of one end that has not ended, because the capture lacks something.
    pub(crate) fn lost(&mut self, end: Side) {
        self.partial[end] = None;
    }

    /// Takes a Data Transfer, and returns the message that it completes. Keeps at most `limit` bytes of a message.
    pub(crate) fn transfer(
        &mut self,
        event: &Event,
        transfer: &DataTransfer,
        limit: usize,
    ) -> Option<Message> {
        let length = u64::from(transfer.data_length);
        if length == 0 {
            return None;
        }
        let content = &event.extra.content;
        let start = (transfer.data_offset as usize).min(content.len());
        let end = start.saturating_add(transfer.data_length as usize);
        let payload = &content[start..end.min(content.len())];
        let remaining = u64::from(transfer.remaining_data_length);
        let partial = &mut self.partial[event.from];
        match transfer.payload {
            Payload::Continued => {}
            Payload::None | Payload::Other => *partial = None,
            _ => {
                self.client = self.client.or_else(|| client(event.from, payload));
                *partial = Some(Message {
                    from: event.from,
                    began: event.extra.began.unwrap_or(event.position),
                    ended: event.position,
                    protocol: Protocol::of(payload),
                    bytes: Vec::new(),
                    received: 0,
                    length: length + remaining,
                });
            }
        }
        let message = partial.as_mut()?;
        let is_next = message.received + length + remaining == message.length;
        if !is_next || message.length > MAX_MESSAGE_LENGTH.into() {
            *partial = None;
            return None;
        }
        if message.bytes.len() as u64 == message.received {
            let room = limit.saturating_sub(message.bytes.len());
            let kept = &payload[..payload.len().min(room)];
            message.bytes.extend_from_slice(kept);
        }
        message.received += length;
        message.ended = event.position;
        if remaining == 0 { partial.take() } else { None }
    }
}

/// Returns the client by an SMB2 message of an end.
fn client(from: Side, message: &[u8]) -> Option<Side> {
    let (_, flags) = Header::command_and_flags(message)?;
    Some(if flags.contains(Flags::RESPONSE) {
        !from
    } else {
        from
    })
}
