//! SendQueue (3.1.5.1): the messages to send in order, cut into segments at the moment of sending
//! (3.1.5.4).
//!
//! The queue of the specification holds segments; this one holds messages and cuts its head. The
//! result on the wire is the same, and no other message can come between two segments of a message.

use std::collections::VecDeque;

use bytes::{Buf, Bytes};

use super::{event::MessageId, message::Message};
use crate::rdma::work::Token;

/// The queue of messages to send.
#[derive(Clone, Debug, Default)]
pub(super) struct SendQueue {
    messages: VecDeque<Queued>,
}

/// A message in the queue.
#[derive(Clone, Debug)]
struct Queued {
    id: MessageId,
    /// The part of the message that has not been sent.
    unsent: Message,
    invalidate: Option<Token>,
    /// Its number in the common sequence of messages and RDMA Writes.
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

    /// Removes the next segment, of at most `max_payload` bytes, from the head.
    pub(super) fn cut(&mut self, max_payload: usize) -> Option<Segment> {
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

#[cfg(test)]
mod tests {
    use super::*;

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
