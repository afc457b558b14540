//! SendQueue (3.1.5.1): the messages to send in order, cut into segments at the moment of sending
//! (3.1.5.4).
//!
//! The queue of the specification holds segments; this one holds messages and cuts its head. The
//! result on the wire is the same, and no other message can come between two segments of a message.
//!
//! # Packets of the same length
//!
//! A provider that sends packets in groups sends them faster if they all have the same length
//! ([`Limits::packet_bytes`](crate::rdma::work::Limits)). If the negotiated length then has room for several
//! packets, segments are as long as whole packets. If it has room for only one, the segments of a message all
//! have the same length. The specification leaves the length of segments to the sender.

use std::{collections::VecDeque, num::NonZeroU32};

use bytes::{Buf, Bytes};

use super::{event::MessageId, message::Message, segments::longest_payload};
use crate::{rdma::work::Token, wire::DataTransfer};

/// The queue of messages to send.
#[derive(Clone, Debug, Default)]
pub(super) struct SendQueue {
    messages: VecDeque<Queued>,
    /// Set if segments are as long as one or more whole packets.
    packets: Option<Packets>,
}

/// How messages are cut into segments so that the provider's packets are full or, if a segment is one packet, of equal
/// length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Packets {
    /// The most bytes of payload in a segment.
    max_payload: usize,
    /// Whether a segment is one packet, and the segments of a message get the same length.
    is_single: bool,
}

/// A message in the queue.
#[derive(Clone, Debug)]
struct Queued {
    id: MessageId,
    /// The part of the message that has not been sent.
    unsent: Message,
    invalidate: Option<Token>,
    /// The number of the message in the common sequence of messages and RDMA Writes.
    sequence: u64,
}

/// The segment to send next.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) payload: Bytes,
    /// RemainingDataLength.
    pub(super) remaining: u32,
    pub(super) invalidate: Option<Token>,
    /// Set on the last segment of a message.
    pub(super) completes: Option<MessageId>,
}

impl SendQueue {
    pub(super) fn push(
        &mut self,
        id: MessageId,
        message: Message,
        invalidate: Option<Token>,
        sequence: u64,
    ) {
        //= SMBD-3.1.5.1-02
        self.messages.push_back(Queued {
            id,
            unsent: message,
            invalidate,
            sequence,
        });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    pub(super) fn clear(&mut self) {
        self.messages.clear();
    }

    /// Returns the head's number in the common sequence of messages and RDMA Writes.
    pub(super) fn head_sequence(&self) -> Option<u64> {
        self.messages.front().map(|head| head.sequence)
    }

    /// Makes segments as long as one or more whole packets of `packet_bytes`, for messages of at most
    /// `max_payload` bytes of payload.
    pub(super) fn fit_packets(&mut self, packet_bytes: Option<NonZeroU32>, max_payload: usize) {
        let header = DataTransfer::PAYLOAD_OFFSET as usize;
        let Some(packet) = packet_bytes.map(|bytes| bytes.get() as usize) else {
            return;
        };
        let packets = (max_payload + header) / packet;
        // A segment that is shorter than a packet cannot fill one.
        self.packets = (packets > 0 && packet > header).then(|| Packets {
            max_payload: packets * packet - header,
            is_single: packets == 1,
        });
    }

    /// Removes the next segment, of at most `max_payload` bytes, from the head.
    pub(super) fn cut(&mut self, max_payload: usize) -> Option<Segment> {
        let max_payload = match self.packets {
            None => max_payload,
            Some(packets) => packets.next_payload(self.messages.front()?.unsent.len()),
        };
        //= SMBD-3.1.4.2-03
        //= SMBD-3.1.5.4-04
        //= SMBD-3.1.5.4-11
        let head = self.messages.front_mut()?;
        if head.unsent.len() <= max_payload {
            let last = self.messages.pop_front()?;
            return Some(Segment {
                payload: last.unsent.into_bytes(),
                remaining: 0,
                invalidate: last.invalidate,
                completes: Some(last.id),
            });
        }
        Some(Segment {
            payload: head.unsent.copy_to_bytes(max_payload),
            //= SMBD-3.1.5.4-07
            remaining: head.unsent.len() as u32,
            //= SMBD-3.1.5.4-09
            invalidate: head.invalidate.take(),
            completes: None,
        })
    }
}

impl Packets {
    /// Returns the largest length of the next segment of a message of which `unsent` bytes are left.
    fn next_payload(self, unsent: usize) -> usize {
        longest_payload(unsent, self.max_payload, self.is_single)
    }
}

#[cfg(test)]
mod tests {
    use std::iter;

    use super::*;

    /// Returns the lengths of the segments of a message, with their headers.
    fn lengths(packet_bytes: u32, max_send_size: usize, message: usize) -> Vec<usize> {
        let mut queue = SendQueue::default();
        queue.fit_packets(NonZeroU32::new(packet_bytes), max_send_size - 24);
        queue.push(MessageId(1), vec![1; message].into(), None, 0);
        let segments = iter::from_fn(|| queue.cut(max_send_size - 24));
        segments.map(|segment| segment.payload.len() + 24).collect()
    }

    #[test]
    fn segments_fill_packets_or_have_the_same_length() {
        for (packet, max_send_size, message, expected) in [
            (4096, 8136, 8112, vec![4080, 4080]),
            (4096, 8136, 4072, vec![4096]),
            (4096, 8136, 4073, vec![2064, 2057]),
            (4096, 8136, 12_216, vec![4096, 4096, 4096]),
            (1024, 8136, 8112, vec![7168, 992]),
            (1024, 1364, 1340, vec![696, 692]),
            (4096, 1364, 1400, vec![1364, 84]),
            (4096, 8192, 8200, vec![8192, 56]),
            (16, 1364, 1400, vec![1364, 84]),
            (24, 1364, 1400, vec![1364, 84]),
            (4096, 8136, 0, vec![24]),
        ] {
            assert_eq!(
                lengths(packet, max_send_size, message),
                expected,
                "{packet} {max_send_size} {message}"
            );
        }
        let mut equal = lengths(4096, 8136, 1 << 20);
        assert_eq!(equal.len(), 258);
        equal.dedup();
        assert_eq!(equal, [4092, 4088], "few groups of packets end early");
    }

    //= SMBD-3.1.4.2-03 test
    //= SMBD-3.1.5.1-02 test
    //= SMBD-3.1.5.4-04 test
    //= SMBD-3.1.5.4-07 test
    //= SMBD-3.1.5.4-09 test
    //= SMBD-3.1.5.4-10 test
    //= SMBD-3.1.5.4-11 test
    #[test]
    fn messages_are_cut_in_order_with_the_token_in_the_first_segment() {
        let mut queue = SendQueue::default();
        queue.push(MessageId(1), vec![1; 25].into(), Some(Token(9)), 0);
        queue.push(MessageId(2), Message::default(), None, 1);
        queue.push(MessageId(3), vec![3; 10].into(), None, 2);
        let mut cut = || {
            let Segment {
                payload,
                remaining,
                invalidate,
                completes,
            } = queue.cut(10)?;
            Some((payload.len(), remaining, invalidate, completes))
        };
        assert_eq!(cut(), Some((10, 15, Some(Token(9)), None)));
        assert_eq!(cut(), Some((10, 5, None, None)));
        assert_eq!(cut(), Some((5, 0, None, Some(MessageId(1)))));
        assert_eq!(cut(), Some((0, 0, None, Some(MessageId(2)))));
        assert_eq!(cut(), Some((10, 0, None, Some(MessageId(3)))));
        assert_eq!(cut(), None);
    }
}
