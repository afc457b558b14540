//! The SMB2 messages of a connection, put together from their Data Transfers.

use smbdirect_smb::smb2::{Flags, Header, Protocol};

use crate::{
    event::{Event, EventKind, Payload},
    per_end::{PerEnd, Role, Side},
    tcp::Position,
};

/// An SMB2 message.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) from: Role,
    /// The packets with its first and its last byte.
    pub(super) began: Position,
    pub(super) ended: Position,
    pub(super) protocol: Protocol,
    /// Its first bytes.
    pub(super) head: Vec<u8>,
    pub(super) length: u64,
}

impl Message {
    /// Returns whether the capture lacks a part of its SMB2 header.
    pub(super) fn is_headless(&self) -> bool {
        self.protocol == Protocol::Smb2 && self.head.len() < Header::LENGTH
    }
}

/// Puts the messages of a connection together.
#[derive(Debug, Default)]
pub(super) struct Assembly {
    /// The end that an SMB2 message shows to be the client.
    client: Option<Side>,
    partial: PerEnd<Option<Message>>,
}

/// Maximum number of bytes of a message that are kept.
const MAX_HEAD_BYTES: usize = 4096;

impl Assembly {
    /// Returns the end that is the client at an event, if that is known.
    pub(super) fn client(&self, event: &Event) -> Option<Side> {
        event.initiator.or(self.client)
    }

    /// Forgets the messages that have not ended, because the capture lacks something.
    pub(super) fn lost(&mut self) {
        self.partial = PerEnd::default();
    }

    /// Forgets the message of one end that has not ended.
    pub(super) fn lost_from(&mut self, end: Role) {
        self.partial[end] = None;
    }

    /// Returns whether the capture lacks so much of a Data Transfer that it is unknown whether a message begins in it.
    pub(super) fn lacks_header(&self, event: &Event) -> bool {
        let EventKind::DataTransfer(transfer) = &event.kind else {
            return false;
        };
        let kept = event.extra.content.len() as u64;
        let is_continued = matches!(transfer.payload, Payload::Continued);
        let needed = u64::from(transfer.data_offset) + u64::from(transfer.data_length).min(4);
        transfer.data_length > 0 && !is_continued && kept < needed
    }

    /// Takes an event, and returns the message that it completes.
    pub(super) fn event(&mut self, event: &Event) -> Option<Message> {
        let EventKind::DataTransfer(transfer) = &event.kind else {
            return None;
        };
        if transfer.data_length == 0 {
            return None;
        }
        let content = &event.extra.content;
        let start = (transfer.data_offset as usize).min(content.len());
        let end = start.saturating_add(transfer.data_length as usize);
        let payload = &content[start..end.min(content.len())];
        let protocol = Protocol::of(payload);
        self.learn_client(event, payload);
        let from = Role::of(event.from, self.client(event)?);
        let begins = !matches!(transfer.payload, Payload::Continued | Payload::None);
        let partial = &mut self.partial[from];
        if begins {
            *partial = Some(Message {
                from,
                began: event.extra.began.unwrap_or(event.position),
                ended: event.position,
                protocol,
                head: Vec::new(),
                length: 0,
            });
        }
        let message = partial.as_mut()?;
        if message.head.len() as u64 == message.length {
            let room = MAX_HEAD_BYTES.saturating_sub(message.head.len());
            message
                .head
                .extend_from_slice(&payload[..payload.len().min(room)]);
        }
        message.length += u64::from(transfer.data_length);
        message.ended = event.position;
        if transfer.remaining_data_length == 0 {
            partial.take()
        } else {
            None
        }
    }

    /// Learns from a message which end is the client.
    fn learn_client(&mut self, event: &Event, payload: &[u8]) {
        if self.client.is_some() || event.initiator.is_some() {
            return;
        }
        if let Some((_, flags)) = Header::command_and_flags(payload) {
            let is_response = flags.contains(Flags::RESPONSE);
            self.client = Some(if is_response { !event.from } else { event.from });
        }
    }
}
