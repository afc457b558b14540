//! The events that a connection reports to its owner, and its statistics.

use bytes::{Bytes, BytesMut};

use super::{error::ConnectionError, negotiate_messages::Negotiated};
use crate::rdma::work::Token;

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
#[derive(Debug)]
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

#[cfg(all(test, target_pointer_width = "64"))]
mod tests {
    use std::ptr;

    use super::*;

    #[test]
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
