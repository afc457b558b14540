//! Messages that arrived and were not taken: gathers segments, and counts what they cost.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use crate::{engine::Message, rdma::work::Token};

/// Charged for each message on top of its bytes, so that many small ones are not free.
const OVERHEAD: usize = 128;
/// Messages that may wait in memory they share with others. One byte in there can keep a whole
/// arena of the provider's from being used again, and a peer can see to it that it does;
const SHARING: usize = 64;
/// not so if it has this many bytes of it.
const LARGE: usize = 16 << 10;
/// Most bytes set aside for a message on the word of its first segment.
const TRUSTED: usize = 128 << 10;

/// A piece of a message, as [`recv_segment`](crate::Connection::recv_segment) gives it.
#[derive(Clone, Debug)]
pub struct Segment {
    /// What has arrived of the message and was not taken before.
    pub payload: Bytes,
    /// Bytes of the message that are still to come; 0 ends it.
    pub remaining: u32,
    /// With the end of a message: the token of ours that it invalidated.
    pub invalidated_token: Option<Token>,
}

#[derive(Debug, Default)]
pub(crate) struct Inbox {
    complete: VecDeque<Message>,
    /// The message that is arriving.
    partial: BytesMut,
    /// Bytes of it that are still to come; 0 if none is arriving.
    remaining: u32,
    /// What `complete` costs.
    cost: usize,
    /// Nobody can take anything any more.
    deserted: bool,
}

impl Inbox {
    /// Bytes that wait to be taken. A message that is still arriving is not counted: it has to
    /// be let in whole, and its size is limited by MaxFragmentedRecvSize.
    pub(crate) fn cost(&self) -> usize {
        self.cost
    }

    /// Nobody will take anything any more: what is there and what comes costs nothing.
    pub(crate) fn desert(&mut self) {
        *self = Self {
            deserted: true,
            ..Self::default()
        };
    }

    /// A segment arrived.
    pub(crate) fn push(&mut self, payload: Bytes, remaining: u32, invalidated: Option<Token>) {
        if self.deserted {
            return;
        }
        let whole = remaining == 0 && self.remaining == 0;
        if whole {
            self.complete(payload, invalidated);
            return;
        }
        if self.remaining == 0 {
            self.partial
                .reserve((payload.len() + remaining as usize).min(TRUSTED));
        }
        self.partial.extend_from_slice(&payload);
        self.remaining = remaining;
        if remaining == 0 {
            let message = std::mem::take(&mut self.partial).freeze();
            self.complete(message, invalidated);
        }
    }

    fn complete(&mut self, payload: Bytes, invalidated: Option<Token>) {
        let payload = match self.complete.len() >= SHARING && payload.len() < LARGE {
            true => Bytes::copy_from_slice(&payload),
            false => payload,
        };
        self.cost += payload.len() + OVERHEAD;
        self.complete
            .push_back(Message::received(payload, invalidated));
    }

    /// The oldest whole message.
    pub(crate) fn take(&mut self) -> Option<Message> {
        let message = self.complete.pop_front()?;
        self.cost -= message.len() + OVERHEAD;
        Some(message)
    }

    /// The oldest message, or what there is of it.
    pub(crate) fn take_segment(&mut self) -> Option<Segment> {
        if let Some(message) = self.take() {
            let invalidated_token = message.invalidated_token();
            return Some(Segment {
                payload: message.into_bytes(),
                remaining: 0,
                invalidated_token,
            });
        }
        if self.partial.is_empty() {
            return None;
        }
        let payload = self.partial.split().freeze();
        Some(Segment {
            payload,
            remaining: self.remaining,
            invalidated_token: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gathers_and_counts() {
        let mut inbox = Inbox::default();
        inbox.push(Bytes::from("ab"), 3, None);
        inbox.push(Bytes::new(), 3, None);
        assert!(inbox.take().is_none() && inbox.cost() == 0);
        inbox.push(Bytes::from("cde"), 0, Some(Token(7)));
        inbox.push(Bytes::from("f"), 0, None);
        assert_eq!(inbox.cost(), 6 + 2 * OVERHEAD);
        let message = inbox.take().unwrap();
        assert_eq!(message.invalidated_token(), Some(Token(7)));
        assert_eq!(message.into_bytes(), "abcde");
        assert_eq!(inbox.take().unwrap().into_bytes(), "f");
        assert_eq!(inbox.cost(), 0);
    }

    #[test]
    fn what_nobody_takes_costs_nothing() {
        let mut inbox = Inbox::default();
        inbox.push(Bytes::from("a"), 0, None);
        inbox.push(Bytes::from("b"), 1, None);
        inbox.desert();
        inbox.push(Bytes::from("c"), 0, None);
        assert_eq!(inbox.cost(), 0);
        assert!(inbox.take_segment().is_none());
    }

    #[test]
    fn segments_can_be_taken_early() {
        let mut inbox = Inbox::default();
        inbox.push(Bytes::from("ab"), 3, None);
        let segment = inbox.take_segment().unwrap();
        assert_eq!((&segment.payload[..], segment.remaining), (&b"ab"[..], 3));
        assert!(inbox.take_segment().is_none());
        inbox.push(Bytes::from("c"), 2, None);
        inbox.push(Bytes::from("de"), 0, Some(Token(7)));
        let segment = inbox.take_segment().unwrap();
        assert_eq!((&segment.payload[..], segment.remaining), (&b"cde"[..], 0));
        assert_eq!(segment.invalidated_token, Some(Token(7)));
    }

    #[test]
    fn a_claimed_length_reserves_little() {
        let mut inbox = Inbox::default();
        inbox.push(Bytes::from("a"), u32::MAX - 1, None);
        assert!(inbox.partial.capacity() < 2 * TRUSTED);
    }
}
