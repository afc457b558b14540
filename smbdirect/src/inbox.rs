//! Messages that arrived and were not taken: gathers segments, and counts what they cost.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use crate::{
    engine::Message,
    pool::{self, Pool},
    rdma::work::Token,
};

/// Charged for each message on top of its bytes, so that many small ones are not free.
const OVERHEAD: usize = 128;
/// Runs of messages that may wait in memory they share with others. One byte in there can keep a
/// whole arena of the provider's from being used again, and a peer can see to it that it does;
const SHARING: usize = 64;
/// but messages that lie so close behind each other keep hardly more than they need, and are one
/// run.
const CLOSE: usize = 256;
/// A message of this many bytes may keep the rest, too.
const LARGE: usize = 16 << 10;
/// The others are copied to memory of this size, which
const ARENA: usize = 64 << 10;
/// all connections share.
static ARENAS: Pool = Pool::new(ARENA, 64);
/// Most bytes set aside for a message on the word of its first segment; longer ones grow as they
/// come.
const TRUSTED: usize = pool::LARGEST;

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
    /// The runs that `complete` is made of: how many messages each has.
    runs: VecDeque<u32>,
    /// The address behind the last of them.
    end: usize,
    /// Messages that are copied are cut off the front of this.
    arena: BytesMut,
    /// Bytes of it that are still to come; 0 if none is arriving.
    remaining: u32,
    /// What `complete` costs.
    cost: usize,
    /// Messages lie in memory of the peer's own, and may keep all of it.
    hands_over: bool,
    /// Nobody can take anything any more.
    deserted: bool,
}

impl Inbox {
    /// An empty one, of a queue pair that [`hands_over`](crate::rdma::provider::QueuePair::hands_over)
    /// or not.
    pub(crate) fn new(hands_over: bool) -> Self {
        Self {
            hands_over,
            ..Self::default()
        }
    }

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
            self.begin(payload.len() + remaining as usize);
        }
        self.partial.extend_from_slice(&payload);
        self.remaining = remaining;
        if remaining == 0 {
            let message = std::mem::take(&mut self.partial).freeze();
            self.complete(message, invalidated);
        }
    }

    /// The bytes in memory that only messages here have a part in.
    fn copied(&mut self, bytes: &[u8]) -> Bytes {
        if self.arena.capacity() < bytes.len() {
            self.arena = ARENAS.take_to_cut();
        }
        self.arena.extend_from_slice(bytes);
        self.arena.split().freeze()
    }

    /// Makes room for a message of `length` bytes.
    fn begin(&mut self, length: usize) {
        match pool::for_message(length) {
            Some(buffer) => self.partial = buffer,
            None => self.partial.reserve(length.min(TRUSTED)),
        }
    }

    /// Whether the message lies close behind the last one.
    fn continues(&self, payload: &[u8]) -> bool {
        !self.runs.is_empty() && payload.as_ptr().addr().wrapping_sub(self.end) <= CLOSE
    }

    fn complete(&mut self, payload: Bytes, invalidated: Option<Token>) {
        let may_share = payload.len() >= LARGE || self.hands_over;
        let many = self.runs.len() >= SHARING && !may_share;
        let payload = match many && !self.continues(&payload) {
            true => self.copied(&payload),
            false => payload,
        };
        let continues = self.continues(&payload);
        match self.runs.back_mut() {
            Some(run) if continues => *run += 1,
            _ => self.runs.push_back(1),
        }
        self.end = payload.as_ptr_range().end.addr();
        self.cost += payload.len() + OVERHEAD;
        self.complete
            .push_back(Message::received(payload, invalidated));
    }

    /// The oldest whole message.
    pub(crate) fn take(&mut self) -> Option<Message> {
        let message = self.complete.pop_front()?;
        self.cost -= message.len() + OVERHEAD;
        if let Some(run) = self.runs.front_mut() {
            *run -= 1;
            if *run == 0 {
                self.runs.pop_front();
            }
        }
        if self.complete.is_empty() && self.arena.capacity() > 0 {
            self.arena = BytesMut::new();
        }
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
    fn what_is_handed_over_is_never_copied() {
        let mut inbox = Inbox::new(true);
        let payloads: Vec<_> = (0..3 * SHARING)
            .map(|_| Bytes::from(vec![7; 100]))
            .collect();
        for payload in &payloads {
            inbox.push(payload.clone(), 0, None);
        }
        for payload in payloads {
            let message = inbox.take().unwrap().into_bytes();
            assert_eq!(message.as_ptr(), payload.as_ptr());
        }
    }

    #[test]
    fn messages_that_lie_far_apart_are_copied_when_many_wait() {
        let mut inbox = Inbox::default();
        let bytes = Bytes::from(vec![7; 1 << 20]);
        let at = |start: usize| bytes.slice(start..start + 100);
        let mut starts: Vec<_> = (0..1000).map(|index| index * 150).collect();
        starts.extend((0..SHARING - 1).map(|index| 200_000 + index * 1000));
        for &start in &starts {
            inbox.push(at(start), 0, None);
        }
        assert_eq!(inbox.runs.len(), SHARING);
        inbox.push(at(400_000), 0, None);
        inbox.push(at(400_100), 0, None);
        inbox.push(bytes.slice(500_000..500_000 + LARGE), 0, None);
        for start in starts {
            let message = inbox.take().unwrap().into_bytes();
            assert_eq!(message.as_ptr(), at(start).as_ptr());
        }
        for start in [400_000, 400_100] {
            let message = inbox.take().unwrap().into_bytes();
            assert_eq!(message, at(start));
            assert_ne!(message.as_ptr(), at(start).as_ptr());
        }
        let message = inbox.take().unwrap().into_bytes();
        assert_eq!(message.as_ptr(), bytes[500_000..].as_ptr());
        assert!(inbox.runs.is_empty());
        // A run ends with its last message, wherever the next one lies.
        inbox.push(at(500_000 + LARGE), 0, None);
        assert_eq!(inbox.runs, [1]);
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
