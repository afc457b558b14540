//! Messages that arrived and were not taken: gathers segments, and counts what they cost.
//!
//! Messages are slices of what the provider has read, where that keeps little more memory than they
//! have bytes: a slice keeps the whole block that it lies in from being used again, and a peer can
//! see to it that there is nothing else in it. Other messages are copied behind each other. So the
//! memory of all messages here is bounded by what they cost: see [`Config::receive_memory`].

use std::{collections::VecDeque, hint::cold_path, mem};

use bytes::{Buf, Bytes, BytesMut};

use crate::{
    engine::{Config, Message},
    pool::{LARGEST_BLOCK, Pool},
    rdma::work::Token,
};

/// Charged for each message on top of its bytes, so that many small ones are not free.
const OVERHEAD: usize = 128;
/// Messages whose bytes lie no further behind each other than this are one run.
const CLOSE: usize = 256;
/// One byte of a run keeps the whole block of the provider's that it lies in from being used
/// again. So many runs may keep more than they have; for a further one there must be as many bytes
/// of messages as a block has. What would make more runs is copied.
const RUNS: usize = 8;
/// Shorter messages of several segments are copied, so that each is one piece.
const LARGE: usize = 16 << 10;
/// Segments of a longer message are shared if they have this many bytes. Behind one that has fewer,
/// the rest of the message is copied, unless it was the last.
const SMALL: usize = 1 << 10;
/// Bytes of the memory that messages are copied to.
const ARENA: usize = 64 << 10;
/// The arenas of all connections.
static ARENAS: Pool = Pool::new(ARENA, 64);

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
    /// The message that is arriving: what has come of it, but for what is in `copying`.
    partial: Message,
    /// Bytes of the partial message that are still to come; 0 if none is arriving.
    remaining: u32,
    /// The segments of the partial message are copied from here on.
    copies: bool,
    /// The last bytes of the partial message, if they are copied.
    copying: BytesMut,
    /// The runs that all messages here are made of: how many messages end in each.
    runs: VecDeque<u32>,
    /// The address behind the last of them.
    end: usize,
    /// The rest of the memory that messages are copied to.
    arena: BytesMut,
    /// What `complete` costs.
    cost: usize,
    /// Messages lie in memory of the peer's own, and may keep all of it.
    is_zero_copy: bool,
    /// Nobody can take anything any more.
    deserted: bool,
}

/// Whether bytes lie close behind the address.
fn lies_behind(end: usize, bytes: &[u8]) -> bool {
    bytes.as_ptr().addr().wrapping_sub(end) <= CLOSE
}

impl Inbox {
    /// An empty one, of a queue pair that [`is_zero_copy`](crate::rdma::provider::QueuePair::is_zero_copy)
    /// or not.
    pub(crate) fn new(is_zero_copy: bool) -> Self {
        Self {
            is_zero_copy,
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
        } else {
            self.segment(payload, remaining, invalidated);
        }
    }

    /// A message of one segment arrived.
    #[inline(always)]
    fn whole(&mut self, payload: Bytes, invalidated: Option<Token>) {
        let payload = match self.may_share(&payload) {
            true => payload,
            false => self.copied(&payload),
        };
        self.add_run(&payload);
        self.complete(Message::received(payload, invalidated));
    }

    /// A segment of a message of several arrived.
    fn segment(&mut self, payload: Bytes, remaining: u32, invalidated: Option<Token>) {
        let to_come = remaining as usize;
        if self.remaining == 0 {
            self.copies = payload.len() + to_come < LARGE;
        }
        self.remaining = remaining;
        self.copies |= payload.len() < SMALL && to_come > 0;
        self.copies |= !self.may_share(&payload);
        if self.copies {
            self.copy(&payload, to_come);
        } else {
            self.add_run(&payload);
            self.partial.push(payload);
        }
        if remaining == 0 {
            self.end_copying();
            let message = mem::take(&mut self.partial);
            self.complete(message.invalidating(invalidated));
        }
    }

    /// Whether the bytes may stay where they are.
    #[inline(always)]
    fn may_share(&self, payload: &[u8]) -> bool {
        // Most have far fewer runs.
        if self.runs.len() < RUNS || self.is_zero_copy {
            return true;
        }
        let bytes = self.cost + self.partial.len() + payload.len();
        self.runs.len() < RUNS + bytes / LARGEST_BLOCK || self.continues(payload)
    }

    /// Whether the bytes are part of the last run.
    fn continues(&self, bytes: &[u8]) -> bool {
        !self.runs.is_empty() && lies_behind(self.end, bytes)
    }

    /// Counts the bytes as a run, or as part of the last one.
    #[inline(always)]
    fn add_run(&mut self, bytes: &[u8]) {
        if !self.continues(bytes) {
            self.runs.push_back(0);
        }
        self.end = bytes.as_ptr_range().end.addr();
    }

    /// The bytes in memory that only messages here have a part in.
    #[cold]
    fn copied(&mut self, bytes: &[u8]) -> Bytes {
        if bytes.len() >= LARGE {
            return Bytes::copy_from_slice(bytes);
        }
        let mut copy = self.cut(bytes.len());
        copy.extend_from_slice(bytes);
        copy.freeze()
    }

    /// Adds bytes to the partial message, behind which so many are to come.
    fn copy(&mut self, mut bytes: &[u8], to_come: usize) {
        while !bytes.is_empty() {
            let room = self.copying.capacity() - self.copying.len();
            if room == 0 {
                self.end_copying();
                self.copying = self.cut_piece(bytes.len() + to_come);
                continue;
            }
            let (fits, rest) = bytes.split_at(room.min(bytes.len()));
            self.copying.extend_from_slice(fits);
            bytes = rest;
        }
    }

    /// What was copied of the partial message becomes part of it.
    fn end_copying(&mut self) {
        let piece = mem::take(&mut self.copying).freeze();
        if !piece.is_empty() {
            self.add_run(&piece);
            self.partial.push(piece);
        }
    }

    /// Empty memory for the next piece of a message of which so many bytes are left. The piece has
    /// all of them if they are fewer than [`LARGE`].
    fn cut_piece(&mut self, left: usize) -> BytesMut {
        match self.arena.capacity() {
            room @ SMALL.. if left >= LARGE => self.cut(left.min(room)),
            _ => self.cut(left.min(ARENA)),
        }
    }

    /// Empty memory for so many bytes, an arena's at most. What is left of the arena that is too
    /// small for them is lost, fewer than [`LARGE`] bytes.
    fn cut(&mut self, length: usize) -> BytesMut {
        if self.arena.capacity() < length {
            self.arena = ARENAS.take_to_cut();
        }
        let rest = self.arena.split_off(length);
        mem::replace(&mut self.arena, rest)
    }

    /// A message is there whole.
    #[inline(always)]
    fn complete(&mut self, message: Message) {
        if let Some(run) = self.runs.back_mut() {
            *run += 1;
        }
        self.cost += message.len() + OVERHEAD;
        self.complete.push_back(message);
    }

    /// The oldest whole message.
    #[inline(always)]
    pub(crate) fn take(&mut self) -> Option<Message> {
        self.cost -= self.complete.front()?.len() + OVERHEAD;
        self.leave_runs();
        if self.complete.len() == 1 && self.arena.capacity() > 0 {
            self.arena = BytesMut::new();
        }
        // In one move to the place where the caller has it.
        self.complete.pop_front()
    }

    /// The oldest message leaves the runs that it is in.
    #[inline(always)]
    fn leave_runs(&mut self) {
        while let Some(run) = self.runs.front_mut() {
            let ends_here = *run > 0;
            *run = run.saturating_sub(1);
            if *run == 0 {
                self.runs.pop_front();
            }
            if ends_here {
                break;
            }
        }
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
        self.end_copying();
        if self.partial.is_empty() {
            return None;
        }
        let payload = self.partial.copy_to_bytes(self.partial.chunk().len());
        if self.partial.is_empty() {
            // Nothing is left in any of them.
            self.runs.clear();
        }
        Some(Segment {
            payload,
            remaining: self.remaining + self.partial.len() as u32,
            invalidated_token: None,
        })
    }
}

impl Config {
    /// Most bytes of memory that what a connection receives takes at one time: messages that wait to
    /// be taken and messages that may still come ([`receive_buffer`](Self::receive_buffer)), the
    /// message that is arriving (`max_fragmented_receive_size`), and what shares memory with them.
    ///
    /// Messages that were taken are not counted, nor is memory that waits to be used again, which
    /// all connections of a process share. Neither is memory of an in-process provider's peer.
    pub fn receive_memory(&self) -> usize {
        // Copied short messages fill at least three quarters of each arena but the first and the last.
        let waiting = self.receive_buffer() / 3 * 4 + 2 * ARENA;
        // Copied pieces of long ones leave less than 1 KiB of each.
        let arriving = self.max_fragmented_receive_size as usize / 63 * 64 + ARENA;
        // One more run may be left in the oldest message, and the provider reads into one more block.
        waiting + arriving + (RUNS + 2) * LARGEST_BLOCK
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    };

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
        let payloads: Vec<_> = (0..4 * RUNS).map(|_| Bytes::from(vec![7; 100])).collect();
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
        starts.extend((0..RUNS - 1).map(|index| 200_000 + index * 1000));
        for &start in &starts {
            inbox.push(at(start), 0, None);
        }
        assert_eq!(inbox.runs.len(), RUNS);
        let copied = [at(400_000), at(400_100), bytes.slice(500_000..520_000)];
        for payload in &copied {
            inbox.push(payload.clone(), 0, None);
        }
        for start in starts {
            let message = inbox.take().unwrap().into_bytes();
            assert_eq!(message.as_ptr(), at(start).as_ptr());
        }
        for payload in copied {
            let message = inbox.take().unwrap().into_bytes();
            assert_eq!(message, payload);
            assert_ne!(message.as_ptr(), payload.as_ptr());
        }
        assert!(inbox.runs.is_empty());
        // A run ends with its last message, wherever the next one lies.
        inbox.push(at(520_000), 0, None);
        assert_eq!(inbox.runs, [1]);
    }

    /// A block of a provider's. It counts itself for as long as somebody has a part of it.
    struct Block {
        bytes: Vec<u8>,
        count: Arc<AtomicUsize>,
    }

    impl Block {
        fn shared(bytes: Vec<u8>, count: &Arc<AtomicUsize>) -> Bytes {
            count.fetch_add(1, Relaxed);
            let count = count.clone();
            Bytes::from_owner(Self { bytes, count })
        }
    }

    impl AsRef<[u8]> for Block {
        fn as_ref(&self) -> &[u8] {
            &self.bytes
        }
    }

    impl Drop for Block {
        fn drop(&mut self) {
            self.count.fetch_sub(1, Relaxed);
        }
    }

    /// A stream whose segments lie in blocks as its peer likes it.
    struct Blocks {
        block: Bytes,
        /// Where the next segment begins.
        at: usize,
        /// Each block is a part of this.
        pattern: Vec<u8>,
        count: Arc<AtomicUsize>,
        random: fastrand::Rng,
        /// Of a hundred segments, how many are not behind the one before.
        apart: u8,
    }

    impl Blocks {
        fn segment(&mut self, length: usize) -> Bytes {
            if self.at + length > self.block.len() || self.random.u8(..100) < self.apart {
                let first = self.random.usize(..2000);
                let bytes = self.pattern[first..first + LARGEST_BLOCK].to_vec();
                self.block = Block::shared(bytes, &self.count);
                self.at = 0;
            }
            let segment = self.block.slice(self.at..self.at + length);
            self.at += length + self.random.usize(..100);
            segment
        }
    }

    #[test]
    fn memory_is_bounded_by_what_messages_cost_and_no_byte_changes() {
        const WAITING: usize = 2 << 20;
        const LONGEST: usize = 1 << 20;
        let pattern = (0..LARGEST_BLOCK + 2000).map(|at| (at / 7) as u8);
        let pattern: Vec<u8> = pattern.collect();
        for seed in 0..60 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut stream = Blocks {
                block: Bytes::new(),
                at: 0,
                pattern: pattern.clone(),
                count: Arc::default(),
                apart: [0, 2, 100][seed as usize % 3],
                random: random.fork(),
            };
            let (mut inbox, mut expected) = (Inbox::default(), VecDeque::new());
            for _ in 0..150 {
                let mut left = 1 + (LONGEST >> random.u32(..20)) / random.usize(1..4);
                let mut message = Vec::new();
                while left > 0 {
                    let longest = 1 + (LARGE >> random.u32(..14));
                    let segment = stream.segment(left.min(longest));
                    left -= segment.len();
                    message.extend_from_slice(&segment);
                    inbox.push(segment, left as u32, None);
                    // The stream itself has one.
                    let shared = stream.count.load(Relaxed) - 1;
                    let most = RUNS + 1 + (WAITING + LONGEST) / LARGEST_BLOCK;
                    assert!(shared <= most, "seed {seed}: {shared} blocks");
                }
                expected.push_back(message);
                while inbox.cost() > WAITING || random.u8(..) < 30 && !expected.is_empty() {
                    let message = inbox.take().unwrap().into_bytes();
                    assert!(message == expected.pop_front().unwrap(), "seed {seed}");
                }
            }
            while let Some(message) = inbox.take() {
                assert!(message.into_bytes() == expected.pop_front().unwrap());
            }
            assert!(expected.is_empty() && inbox.runs.is_empty());
        }
    }

    #[test]
    fn copied_messages_fill_their_memory() {
        let mut random = fastrand::Rng::with_seed(1);
        let (mut inbox, mut bytes) = (Inbox::default(), 0);
        let lengths = [2, 3, 4, 5, LARGE - 1, LARGE, 3 * ARENA];
        for _ in 0..300 {
            let length = lengths[random.usize(..lengths.len())];
            bytes += length;
            // Small, so that all of a message is copied.
            let first = Bytes::from(vec![1; 1]);
            let second = Bytes::from(vec![2; length - 1]);
            inbox.push(first, length as u32 - 1, None);
            inbox.push(second, 0, None);
        }
        // Where the memory of a message is not that behind the one before, a run begins.
        let most = 2 + bytes / (ARENA - LARGE);
        assert!(inbox.runs.len() <= most, "{} of {most}", inbox.runs.len());
    }

    #[test]
    fn a_message_that_is_taken_in_segments_leaves_no_runs() {
        let mut inbox = Inbox::default();
        let bytes = Bytes::from(vec![7; 1 << 20]);
        let segments = 4 * RUNS;
        for index in 1..=segments {
            let segment = bytes.slice(index * 2 * SMALL..index * 2 * SMALL + SMALL);
            let left = (segments - index) * SMALL;
            inbox.push(segment.clone(), left as u32, None);
            let taken = inbox.take_segment().unwrap();
            assert_eq!(taken.payload.as_ptr(), segment.as_ptr());
            assert_eq!(taken.remaining as usize, left);
        }
        assert!(inbox.runs.is_empty() && inbox.cost() == 0);
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
            // A few may lie apart.
            (RUNS, 4 * LARGE, 5 * LARGE, true),
            (20, SMALL - 1, SMALL, false),
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
        let mut inbox = Inbox::default();
        inbox.push(Bytes::from(vec![7; 1]), u32::MAX - 1, None);
        assert_eq!(inbox.copying.capacity(), ARENA);
    }
}
