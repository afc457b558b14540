//! Messages that arrived and were not taken: gathers segments, and counts what they cost.
//!
//! A long message of many segments is made of slices of what the provider has read. That keeps the
//! provider's memory from being used again, so it is for segments that lie close together, as they
//! do in a stream, and are not small; the others are copied behind each other.

use std::{collections::VecDeque, hint::cold_path, mem};

use bytes::{Buf, BufMut, Bytes, BytesMut};

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
/// A message may keep the rest, too, for each so many bytes of it.
const LARGE: usize = 16 << 10;
/// Segments of a message that are shorter than this are copied together, but for its last.
const SMALL: usize = 1 << 10;
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
    partial: Partial,
    /// The runs that `complete` is made of: how many messages each has.
    runs: VecDeque<u32>,
    /// The address behind the last of them.
    end: usize,
    /// Messages that are copied are cut off the front of this.
    arena: BytesMut,
    /// Bytes of the partial message that are still to come; 0 if none is arriving.
    remaining: u32,
    /// What `complete` costs.
    cost: usize,
    /// Messages lie in memory of the peer's own, and may keep all of it.
    hands_over: bool,
    /// Nobody can take anything any more.
    deserted: bool,
}

/// What has come of a message.
#[derive(Debug)]
enum Partial {
    /// Its segments, where the provider has them.
    Shared {
        segments: Message,
        /// The runs that they are, as those of [`Inbox::runs`].
        runs: usize,
        end: usize,
    },
    /// Copied behind each other.
    Copied(BytesMut),
}

impl Default for Partial {
    fn default() -> Self {
        Self::Copied(BytesMut::new())
    }
}

impl Partial {
    /// For a message of `length` bytes.
    fn new(length: usize) -> Self {
        if length < LARGE {
            return Self::Copied(memory_for(length));
        }
        Self::Shared {
            segments: Message::default(),
            runs: 0,
            end: 0,
        }
    }

    /// Adds a segment, behind which so many bytes are to come.
    fn push(&mut self, payload: Bytes, remaining: usize) {
        let (segments, runs, end) = match self {
            Self::Copied(bytes) => return bytes.extend_from_slice(&payload),
            Self::Shared {
                segments,
                runs,
                end,
            } => (segments, runs, end),
        };
        *runs += usize::from(!lies_behind(*end, &payload));
        *end = payload.as_ptr_range().end.addr();
        let small = payload.len() < SMALL && remaining > 0;
        segments.push(payload);
        if small || *runs > 1 + segments.len() / LARGE {
            let mut bytes = memory_for(segments.len() + remaining);
            bytes.put(segments);
            *self = Self::Copied(bytes);
        }
    }

    /// Takes what can be taken without a copy.
    fn take(&mut self) -> Bytes {
        match self {
            Self::Copied(bytes) => bytes.split().freeze(),
            Self::Shared { segments, .. } => segments.copy_to_bytes(segments.chunk().len()),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Copied(bytes) => bytes.len(),
            Self::Shared { segments, .. } => segments.len(),
        }
    }
}

/// Memory for a message of `length` bytes that is copied together.
fn memory_for(length: usize) -> BytesMut {
    pool::for_message(length).unwrap_or_else(|| BytesMut::with_capacity(length.min(TRUSTED)))
}

/// Whether bytes lie close behind the address.
fn lies_behind(end: usize, bytes: &[u8]) -> bool {
    bytes.as_ptr().addr().wrapping_sub(end) <= CLOSE
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
    #[inline(always)]
    pub(crate) fn push(&mut self, payload: Bytes, remaining: u32, invalidated: Option<Token>) {
        if self.deserted {
            cold_path();
            return;
        }
        if remaining == 0 && self.remaining == 0 {
            self.whole(payload, invalidated);
            return;
        }
        if self.remaining == 0 {
            self.partial = Partial::new(payload.len() + remaining as usize);
        }
        self.partial.push(payload, remaining as usize);
        self.remaining = remaining;
        if remaining == 0 {
            match mem::take(&mut self.partial) {
                Partial::Copied(bytes) => self.whole(bytes.freeze(), invalidated),
                Partial::Shared { segments, end, .. } => {
                    self.complete(segments.invalidating(invalidated), false, end);
                }
            }
        }
    }

    /// The bytes in memory that only messages here have a part in.
    #[cold]
    fn copied(&mut self, bytes: &[u8]) -> Bytes {
        if self.arena.capacity() < bytes.len() {
            self.arena = ARENAS.take_to_cut();
        }
        self.arena.extend_from_slice(bytes);
        self.arena.split().freeze()
    }

    /// A message of one segment arrived.
    #[inline(always)]
    fn whole(&mut self, payload: Bytes, invalidated: Option<Token>) {
        let continues = |inbox: &Self, payload: &[u8]| {
            !inbox.runs.is_empty() && lies_behind(inbox.end, payload)
        };
        let may_share = payload.len() >= LARGE || self.hands_over;
        let many = self.runs.len() >= SHARING && !may_share;
        let payload = match many && !continues(self, &payload) {
            true => self.copied(&payload),
            false => payload,
        };
        let end = payload.as_ptr_range().end.addr();
        let continues = continues(self, &payload);
        self.complete(Message::received(payload, invalidated), continues, end);
    }

    /// A message is there whole; it ends at the address, and may continue the last run.
    #[inline(always)]
    fn complete(&mut self, message: Message, continues: bool, end: usize) {
        match self.runs.back_mut() {
            Some(run) if continues => *run += 1,
            _ => self.runs.push_back(1),
        }
        self.end = end;
        self.cost += message.len() + OVERHEAD;
        self.complete.push_back(message);
    }

    /// The oldest whole message.
    #[inline(always)]
    pub(crate) fn take(&mut self) -> Option<Message> {
        self.cost -= self.complete.front()?.len() + OVERHEAD;
        if let Some(run) = self.runs.front_mut() {
            *run -= 1;
            if *run == 0 {
                self.runs.pop_front();
            }
        }
        if self.complete.len() == 1 && self.arena.capacity() > 0 {
            self.arena = BytesMut::new();
        }
        // In one move to the place where the caller has it.
        self.complete.pop_front()
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
        if self.partial.len() == 0 {
            return None;
        }
        let payload = self.partial.take();
        Some(Segment {
            payload,
            remaining: self.remaining + self.partial.len() as u32,
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

    /// Pushes `count` segments of a message, that lie `apart` from each other; gives their bytes.
    fn push_segments(inbox: &mut Inbox, count: usize, length: usize, apart: usize) -> Bytes {
        let bytes = Bytes::from_iter((0..count * apart).map(|at| (at / 7) as u8));
        let mut all = BytesMut::new();
        for index in 0..count {
            let segment = bytes.slice(index * apart..index * apart + length);
            all.extend_from_slice(&segment);
            inbox.push(segment, ((count - 1 - index) * length) as u32, None);
        }
        all.freeze()
    }

    #[test]
    fn long_messages_are_slices_if_their_segments_lie_close_and_are_not_small() {
        for (count, length, apart, shared) in [
            (20, SMALL, SMALL + CLOSE, true),
            (13, 1340, 1388, true),
            // Each of them is worth what it keeps.
            (4, LARGE, 10 * LARGE, true),
            (20, SMALL - 1, SMALL, false),
            (20, SMALL, SMALL + CLOSE + 1, false),
            // Too short.
            (12, 1340, 1388, false),
        ] {
            let mut inbox = Inbox::default();
            let expected = push_segments(&mut inbox, count, length, apart);
            let message = inbox.take().unwrap();
            assert_eq!(message.len(), expected.len());
            let parts = message.chunk().len() == length;
            assert_eq!(parts, shared, "{count} of {length}, {apart} apart");
            assert_eq!(message.into_bytes(), expected);
            assert!(inbox.runs.is_empty() && inbox.cost() == 0);
        }
    }

    #[test]
    fn a_long_message_can_be_taken_in_pieces() {
        let mut inbox = Inbox::default();
        let bytes = Bytes::from(vec![7; 20_000]);
        inbox.push(bytes.slice(..5000), 15_000, None);
        inbox.push(bytes.slice(5000..10_000), 10_000, None);
        for remaining in [15_000, 10_000] {
            let segment = inbox.take_segment().unwrap();
            assert_eq!(
                (segment.payload.len(), segment.remaining),
                (5000, remaining)
            );
        }
        assert!(inbox.take_segment().is_none());
        inbox.push(bytes.slice(10_000..), 0, Some(Token(7)));
        let segment = inbox.take_segment().unwrap();
        assert_eq!((segment.payload.len(), segment.remaining), (10_000, 0));
        assert_eq!(segment.invalidated_token, Some(Token(7)));
    }

    #[test]
    fn a_claimed_length_reserves_little() {
        for first in [1, SMALL] {
            let mut inbox = Inbox::default();
            inbox.push(Bytes::from(vec![7; first]), u32::MAX - SMALL as u32, None);
            let reserved = match &inbox.partial {
                Partial::Copied(bytes) => bytes.capacity(),
                Partial::Shared { segments, .. } => segments.len(),
            };
            assert!((first..2 * TRUSTED).contains(&reserved));
        }
    }
}
