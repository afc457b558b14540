//! What the engine tells its owner.

use bytes::{Bytes, BytesMut};

use super::{error::ConnectionError, negotiation::Negotiated};
use crate::rdma::work::Token;

/// Names a message in [`Event::MessageSent`]; chosen by whoever sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(pub u64);

impl MessageId {
    /// For messages of which nobody needs to know that they were sent: no event follows.
    pub const UNWATCHED: Self = Self(u64::MAX);
}

/// Names a read or write in [`Event::TransferDone`]; chosen by whoever starts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransferId(pub u64);

/// Something that happened on the connection.
// As in a `Completion`: with the fields in this order the payload lies a multiple of 16 bytes behind the
// start.
#[derive(Debug)]
#[repr(u32)]
pub enum Event {
    /// Negotiation succeeded; messages may be sent and will come.
    Negotiated(Negotiated),
    /// Bytes of an upper-layer message came, in order.
    Segment {
        /// Bytes of the message still to come; 0 completes it.
        remaining: u32,
        /// With the last segment: the token of ours that the message invalidated.
        invalidated: Option<Token>,
        /// The bytes; empty only where a token came alone, or in the middle of a message.
        payload: Bytes,
    },
    /// The last segment of the message was handed to the wire.
    MessageSent(MessageId),
    /// A read or write is over.
    TransferDone {
        /// The transfer.
        id: TransferId,
        /// For a read: its buffer, filled if `completed`.
        buffer: Option<BytesMut>,
        /// False if the connection ended first.
        completed: bool,
    },
    /// The peer gave the sign of life that was asked for.
    KeepaliveAnswered,
    /// The connection is over for the protocol; the last event that is not `TransferDone`.
    /// The queue pair is to be disconnected: gracefully after [`Closed`](ConnectionError::Closed)
    /// and [`RefusedPeer`](ConnectionError::RefusedPeer), at once after all else.
    Closed(ConnectionError),
}

/// What went over a connection since it began, and what is outstanding on it now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Upper-layer messages sent.
    pub messages_sent: u64,
    /// Upper-layer messages received whole.
    pub messages_received: u64,
    /// Data Transfer messages sent with a payload.
    pub segments_sent: u64,
    /// Data Transfer messages received with a payload.
    pub segments_received: u64,
    /// Data Transfer messages sent without a payload.
    pub empty_sent: u64,
    /// Data Transfer messages received without a payload.
    pub empty_received: u64,
    /// Payload bytes sent in messages.
    pub bytes_sent: u64,
    /// Payload bytes received in messages.
    pub bytes_received: u64,
    /// Credits given to the peer.
    pub credits_granted: u64,
    /// Credits got from the peer.
    pub credits_received: u64,
    /// Keepalives sent (RESPONSE_REQUESTED).
    pub keepalives_sent: u64,
    /// Keepalives received.
    pub keepalives_received: u64,
    /// Messages received whose payload overlaps the header: legal, and strange.
    pub payloads_in_header: u64,
    /// Tokens of ours that the peer invalidated.
    pub tokens_invalidated: u64,
    /// RDMA Read operations done; a long read takes several.
    pub reads: u64,
    /// RDMA Write operations done; a long write takes several.
    pub writes: u64,
    /// Bytes read by RDMA.
    pub bytes_read: u64,
    /// Bytes written by RDMA.
    pub bytes_written: u64,
    /// Receives that are posted now.
    pub receives_outstanding: u64,
    /// Sends, Reads and Writes that are posted now.
    pub work_outstanding: u64,
    /// Buffers that are registered now.
    pub regions: u64,
}

#[cfg(all(test, target_pointer_width = "64"))]
mod tests {
    use std::ptr;

    use super::*;

    #[test]
    fn the_payload_lies_a_multiple_of_16_bytes_behind_the_start() {
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
