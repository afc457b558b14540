//! The events that a connection reports to its owner, and its statistics.

use std::fmt;

use bytes::{Bytes, BytesMut};

use super::{error::ConnectionError, negotiate_messages::Negotiated};
use crate::rdma::work::{ByteCount, Token};

/// The identifier of a message in [`Event::MessageSent`]; the sender chooses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(pub u64);

impl MessageId {
    /// The identifier of messages for which no [`Event::MessageSent`] is reported.
    pub const UNWATCHED: Self = Self(u64::MAX);
}

/// The identifier of a read or write in [`Event::TransferDone`]; the caller that starts it chooses
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransferId(pub u64);

/// An event of a connection.
// As in `Completion`, this order of the fields puts the payload at a multiple of 16 bytes from the
// start.
#[cfg_attr(not(doc), repr(u32))]
#[non_exhaustive]
pub enum Event {
    /// The negotiation succeeded; messages can be sent and received.
    Negotiated(Negotiated),
    /// A segment of an upper-layer message arrived; segments arrive in order.
    Segment {
        /// Bytes of the message still to come; 0 in the last segment.
        remaining: u32,
        /// The local token that the message invalidated; reported with the last segment.
        invalidated: Option<Token>,
        /// The bytes; empty only if the message carries just a token, or in the middle of a
        /// message.
        payload: Bytes,
    },
    /// The Send of the last segment of the message has completed.
    MessageSent(MessageId),
    /// A read or write has finished or failed.
    TransferDone {
        /// Identifier of the transfer.
        id: TransferId,
        /// The buffer of a read, which is filled if `completed`; `None` for a write.
        buffer: Option<BytesMut>,
        /// `false` if the connection ended before the transfer was complete.
        completed: bool,
    },
    /// The peer answered the keepalive.
    KeepaliveAnswered,
    /// The connection has ended; only `TransferDone` events can follow. The owner disconnects the queue pair in
    /// the way that [`teardown`](crate::engine::Connection::teardown) returns.
    Closed(ConnectionError),
}

/// Shows the number of bytes in each buffer, and not the bytes.
impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Negotiated(negotiated) => f.debug_tuple("Negotiated").field(negotiated).finish(),
            Self::Segment {
                remaining,
                invalidated,
                payload,
            } => f
                .debug_struct("Segment")
                .field("remaining", remaining)
                .field("invalidated", invalidated)
                .field("payload", &ByteCount(payload.len()))
                .finish(),
            Self::MessageSent(id) => f.debug_tuple("MessageSent").field(id).finish(),
            Self::TransferDone {
                id,
                buffer,
                completed,
            } => f
                .debug_struct("TransferDone")
                .field("id", id)
                .field(
                    "buffer",
                    &buffer.as_ref().map(|buffer| ByteCount(buffer.len())),
                )
                .field("completed", completed)
                .finish(),
            Self::KeepaliveAnswered => f.write_str("KeepaliveAnswered"),
            Self::Closed(error) => f.debug_tuple("Closed").field(error).finish(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use bytes::BufMut;

    use super::*;
    use crate::rdma::work::{Completion, Inline, RemoteAddress, WorkId, WorkRequest};

    #[test]
    fn debugging_output_has_lengths_in_place_of_content() {
        let secret = || Bytes::from_static(b"secret");
        let buffer = || BytesMut::from(&b"secret"[..]);
        let (id, token) = (WorkId(1), Token(2));
        let header = Inline::build(|out| out.put_slice(b"secret"));
        let address = RemoteAddress { token, offset: 3 };
        let values: [&dyn fmt::Debug; 10] = [
            &Event::Segment {
                remaining: 0,
                invalidated: None,
                payload: secret(),
            },
            &Event::TransferDone {
                id: TransferId(1),
                buffer: Some(buffer()),
                completed: true,
            },
            &Completion::Head(header),
            &Completion::Received {
                id,
                message: secret(),
                invalidated: None,
            },
            &Completion::Read {
                id,
                buffer: buffer(),
            },
            &Completion::Flushed {
                id,
                buffer: Some(buffer()),
            },
            &WorkRequest::Send {
                id,
                header,
                payload: Bytes::new(),
                invalidate: None,
            },
            &WorkRequest::Send {
                id,
                header: Inline::new(),
                payload: secret(),
                invalidate: None,
            },
            &WorkRequest::Read {
                id,
                from: address,
                into: buffer(),
            },
            &WorkRequest::Write {
                id,
                data: secret(),
                to: address,
            },
        ];
        for value in values {
            let text = format!("{value:?}");
            assert!(text.contains("6 bytes"), "{text}");
            assert!(!text.contains("secret") && !text.contains("73"), "{text}");
        }
    }

    #[test]
    #[cfg(target_pointer_width = "64")]
    fn the_payload_is_at_a_multiple_of_16_bytes() {
        let event = Event::Segment {
            remaining: 0,
            invalidated: None,
            payload: Bytes::new(),
        };
        let Event::Segment { payload, .. } = &event else {
            unreachable!("it was just made");
        };
        let offset = ptr::from_ref(payload).addr() - ptr::from_ref(&event).addr();
        assert_eq!(offset % 16, 0);
    }
}
