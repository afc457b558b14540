//! The inbox of a connection: assembles segments to messages, and keeps the messages until they are
//! taken.
//!
//! A message is usually a slice of the block of memory that the provider received it in. A slice keeps its whole
//! block in use, and a hostile peer can send short messages each of which is alone in its block. Beyond a limit
//! of such blocks, further short messages are therefore copied, most of them into arenas, one after the other.
//! The cost of the messages in the inbox therefore bounds the memory that they use; see
//! [`Config::receive_memory`].

use std::{collections::VecDeque, fmt, mem};

use bytes::{Buf, Bytes, BytesMut};

use crate::{
    engine::{Config, Message},
    rdma::{
        software::{
            cold_path,
            pool::{Account, Cut, LARGEST_BLOCK, LARGEST_COPY_BYTES, MAX_UNCHECKED_LOANS, Pool},
        },
        work::{ByteCount, Token},
    },
};

/// Cost of a message in addition to its bytes, so that many short messages are not free.
const MESSAGE_OVERHEAD_BYTES: usize = 128;
/// Largest gap between the bytes of two messages that belong to one run.
const ADJACENT_BYTES: usize = 256;
/// Number of runs that are allowed regardless of the cost of the messages in the inbox. A run is a sequence of
/// messages whose bytes are adjacent in memory, and a single byte of it keeps a whole block of the provider in
/// use. One more run is allowed for each [`LARGEST_BLOCK`] bytes of cost. A message that would begin a run beyond
/// this limit is copied.
const MAX_UNCHARGED_RUNS: usize = 8;
/// Messages of several segments that are shorter than this are copied, so that each is one slice.
const MIN_SHARED_MESSAGE_BYTES: usize = 16 << 10;
/// Shortest segment that a message shares. After a shorter segment that is not the last, the rest of the message
/// is copied.
const MIN_SHARED_SEGMENT_BYTES: usize = 1 << 10;
/// Largest number of bytes of memory in use by messages, waiting or taken, at which short messages may share
/// memory of the provider. With more in use, every short message is copied to memory of its own, so that a peer
/// that chooses which messages the application keeps cannot make these messages keep much more memory than their
/// length. Messages that wait here may use four times their length in addition, because a segment of a quarter of
/// a block or more is not copied.
const MAX_LENT_BYTES: usize = 2 * MAX_UNCHECKED_LOANS;
/// While the provider may have more messages, less memory in use than this is not evaluated, because it may belong to
/// messages that this end has not taken yet.
const MAX_QUEUED_BYTES: usize = 16 * LARGEST_BLOCK;
/// Size of an arena: the memory that messages are copied to.
const ARENA_BYTES: usize = 64 << 10;
/// The arenas of all connections.
static ARENAS: Pool = Pool::new(ARENA_BYTES, 64);

/// A part of a message that has arrived; [`recv_segment`](crate::Connection::recv_segment) returns it.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct Segment {
    /// The bytes of the message that have arrived and were not taken before.
    pub payload: Bytes,
    /// Bytes of the message that have not arrived, or 0 if this is its end.
    pub remaining: u32,
    /// The token of this end that the message invalidated, given with the end of the message.
    pub invalidated_token: Option<Token>,
}

/// Shows the number of bytes, and not the bytes.
impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segment")
            .field("payload", &ByteCount(self.payload.len()))
            .field("remaining", &self.remaining)
            .field("invalidated_token", &self.invalidated_token)
            .finish()
    }
}

/// The messages of one connection that were not taken.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    /// Whole messages, oldest first.
    complete: VecDeque<Message>,
    /// The arrived part of the message that is arriving, without the bytes in `copy`.
    partial: Message,
    /// Bytes of the partial message that have not arrived, or 0 if no message is arriving.
    remaining: u32,
    /// Whether the rest of the partial message is copied.
    copies_rest: bool,
    /// The last bytes of the partial message, if they are copied.
    copy: BytesMut,
    /// For each run, the number of messages that end in it, oldest first.
    runs: VecDeque<u32>,
    /// The address after the last byte of the last run.
    last_run_end: usize,
    /// The current arena.
    arena: Cut,
    /// The counter of the arena bytes that readers of messages may still use.
    account: Account,
    /// Whether messages keep more than [`MAX_LENT_BYTES`] in use, so that short messages are copied.
    copies_short: bool,
    /// Cost of the messages in `complete`, in bytes.
    cost: usize,
    /// The provider delivers messages in memory of the peer, which costs this end nothing.
    is_zero_copy: bool,
    /// Messages are discarded on arrival.
    discards: bool,
}

/// Returns whether `bytes` begin at `end` or shortly after it.
fn is_adjacent(end: usize, bytes: &[u8]) -> bool {
    bytes.as_ptr().addr().wrapping_sub(end) <= ADJACENT_BYTES
}

impl Inbox {
    /// Makes an empty inbox. `is_zero_copy` is that of [`Connected`](crate::rdma::provider::Connected).
    pub(crate) fn new(is_zero_copy: bool) -> Self {
        Self {
            is_zero_copy,
            ..Self::default()
        }
    }

    /// Returns the cost of the messages that wait to be taken, in bytes. A message that is still arriving
    /// is not counted: it must be received whole, and MaxFragmentedRecvSize limits it.
    pub(crate) fn cost(&self) -> usize {
        self.cost
    }

    /// Returns the number of whole messages.
    #[inline(always)]
    pub(crate) fn whole_messages(&self) -> usize {
        self.complete.len()
    }

    /// Returns the bytes of the message that is arriving which have not arrived, or 0 between messages.
    pub(crate) const fn missing(&self) -> u32 {
        self.remaining
    }

    /// Discards all messages, and those that arrive from now on.
    pub(crate) fn discard_all(&mut self) {
        *self = Self {
            discards: true,
            ..Self::default()
        };
    }

    /// Sets how many bytes of memory messages of the provider keep in use, whether they wait here or were
    /// taken. If the provider is not drained, it may have more messages.
    pub(crate) fn set_lent(&mut self, bytes: usize, is_drained: bool) {
        if !is_drained && bytes < MAX_QUEUED_BYTES {
            return;
        }
        let lent = bytes + self.account.bytes();
        self.copies_short = lent > MAX_LENT_BYTES && {
            cold_path();
            ARENAS.settle();
            let lent = bytes + self.account.bytes();
            lent > MAX_LENT_BYTES + 4 * (self.cost + self.partial.len())
        };
    }

    /// Adds a segment that arrived.
    #[inline(always)]
    pub(crate) fn push(&mut self, payload: Bytes, remaining: u32, invalidated: Option<Token>) {
        if self.discards {
            cold_path();
            return;
        }
        if remaining == 0 && self.remaining == 0 {
            self.push_whole(payload, invalidated);
        } else {
            self.push_segment(payload, remaining, invalidated);
        }
    }

    /// Adds a message of one segment.
    #[inline(always)]
    fn push_whole(&mut self, payload: Bytes, invalidated: Option<Token>) {
        let payload = if self.may_share(&payload) {
            payload
        } else {
            self.copy_message(&payload)
        };
        self.extend_runs(&payload);
        self.push_complete(Message::received(payload, invalidated));
    }

    /// Adds a segment of a message that has several.
    fn push_segment(&mut self, payload: Bytes, remaining: u32, invalidated: Option<Token>) {
        let to_come = remaining as usize;
        if self.remaining == 0 {
            self.copies_rest = payload.len() + to_come < MIN_SHARED_MESSAGE_BYTES;
        }
        self.remaining = remaining;
        self.copies_rest |= payload.len() < MIN_SHARED_SEGMENT_BYTES && to_come > 0;
        self.copies_rest |= !self.may_share(&payload);
        if self.copies_rest {
            self.append_copy(&payload, to_come);
        } else {
            self.extend_runs(&payload);
            self.partial.push(payload);
        }
        if remaining == 0 {
            self.finish_copy();
            let message = mem::take(&mut self.partial);
            self.push_complete(message.invalidating(invalidated));
        }
    }

    /// Returns whether the bytes may stay in the memory that they arrived in.
    #[inline(always)]
    fn may_share(&self, payload: &[u8]) -> bool {
        if self.copies_short && payload.len() < LARGEST_COPY_BYTES {
            cold_path();
            return false;
        }
        // Most inboxes have far fewer runs.
        if self.runs.len() < MAX_UNCHARGED_RUNS || self.is_zero_copy {
            return true;
        }
        let bytes = self.cost + self.partial.len() + payload.len();
        self.runs.len() < MAX_UNCHARGED_RUNS + bytes / LARGEST_BLOCK
            || self.continues_last_run(payload)
    }

    fn continues_last_run(&self, bytes: &[u8]) -> bool {
        !self.runs.is_empty() && is_adjacent(self.last_run_end, bytes)
    }

    /// Adds the bytes to the last run, or begins a run with them.
    #[inline(always)]
    fn extend_runs(&mut self, bytes: &[u8]) {
        if !self.continues_last_run(bytes) {
            self.runs.push_back(0);
        }
        self.last_run_end = bytes.as_ptr_range().end.addr();
    }

    /// Copies a message to memory that holds only messages of this inbox.
    #[cold]
    fn copy_message(&mut self, bytes: &[u8]) -> Bytes {
        if bytes.len() >= MIN_SHARED_MESSAGE_BYTES || self.copies_short {
            return Bytes::copy_from_slice(bytes);
        }
        let mut copy = self.allocate(bytes.len());
        copy.extend_from_slice(bytes);
        copy.freeze()
    }

    /// Copies bytes to the end of the partial message, of which `to_come` bytes follow.
    fn append_copy(&mut self, mut bytes: &[u8], to_come: usize) {
        while !bytes.is_empty() {
            let room = self.copy.capacity() - self.copy.len();
            if room == 0 {
                self.finish_copy();
                self.copy = self.allocate_piece(bytes.len() + to_come);
                continue;
            }
            let (fits, rest) = bytes.split_at(room.min(bytes.len()));
            self.copy.extend_from_slice(fits);
            bytes = rest;
        }
    }

    /// Moves the copied bytes to the partial message.
    fn finish_copy(&mut self) {
        let piece = mem::take(&mut self.copy).freeze();
        if !piece.is_empty() {
            self.extend_runs(&piece);
            self.partial.push(piece);
        }
    }

    /// Returns empty memory for the next piece of a message that has `left` bytes left. The piece has room
    /// for all of them if they are fewer than [`MIN_SHARED_MESSAGE_BYTES`].
    fn allocate_piece(&mut self, left: usize) -> BytesMut {
        if self.copies_short {
            return BytesMut::with_capacity(left.min(ARENA_BYTES));
        }
        match self.arena.rest.capacity() {
            room @ MIN_SHARED_SEGMENT_BYTES.. if left >= MIN_SHARED_MESSAGE_BYTES => {
                self.allocate(left.min(room))
            }
            _ => self.allocate(left.min(ARENA_BYTES)),
        }
    }

    /// Returns empty memory for `length` bytes, at most [`ARENA_BYTES`]. If the rest of the current arena
    /// is too small, that rest, fewer than [`MIN_SHARED_MESSAGE_BYTES`] bytes, stays unused.
    fn allocate(&mut self, length: usize) -> BytesMut {
        if self.arena.rest.capacity() < length {
            self.arena.next(&ARENAS, Some(&self.account));
        }
        let rest = self.arena.rest.split_off(length);
        mem::replace(&mut self.arena.rest, rest)
    }

    /// Adds a whole message.
    #[inline(always)]
    fn push_complete(&mut self, message: Message) {
        if let Some(run) = self.runs.back_mut() {
            *run += 1;
        }
        self.cost += message.len() + MESSAGE_OVERHEAD_BYTES;
        self.complete.push_back(message);
    }

    /// Takes the oldest whole message.
    #[inline(always)]
    pub(crate) fn take(&mut self) -> Option<Message> {
        self.cost -= self.complete.front()?.len() + MESSAGE_OVERHEAD_BYTES;
        self.remove_oldest_from_runs();
        if self.complete.len() == 1 && self.arena.rest.capacity() > 0 {
            mem::take(&mut self.arena).end(&ARENAS, Some(&self.account));
        }
        // This is the last step, so that the message is moved only once, directly to the caller.
        self.complete.pop_front()
    }

    /// Takes the whole message with this index, counted from the oldest.
    #[inline(always)]
    pub(crate) fn take_at(&mut self, index: usize) -> Option<Message> {
        if index == 0 {
            return self.take();
        }
        cold_path();
        let message = self.complete.remove(index)?;
        self.cost -= message.len() + MESSAGE_OVERHEAD_BYTES;
        let mut before = index as u64;
        for run in &mut self.runs {
            if before < u64::from(*run) {
                // An empty run goes when the message before it is taken.
                *run -= 1;
                break;
            }
            before -= u64::from(*run);
        }
        Some(message)
    }

    #[inline(always)]
    fn remove_oldest_from_runs(&mut self) {
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

    /// Takes the oldest message, or the part of it that has arrived.
    pub(crate) fn take_segment(&mut self) -> Option<Segment> {
        if let Some(message) = self.take() {
            let invalidated_token = message.invalidated_token();
            return Some(Segment {
                payload: message.into_bytes(),
                remaining: 0,
                invalidated_token,
            });
        }
        self.finish_copy();
        if self.partial.is_empty() {
            return None;
        }
        let payload = self.partial.copy_to_bytes(self.partial.chunk().len());
        if self.partial.is_empty() {
            // No message is left in any run.
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
    /// Returns the most bytes of memory that the received messages of a connection occupy at one time:
    /// messages that wait to be taken and messages that may still arrive
    /// ([`receive_buffer`](Self::receive_buffer)), the message that is arriving
    /// (`max_fragmented_receive_size`), and bytes that share memory with them.
    ///
    /// Messages that were taken are not counted. Memory that waits to be used again is not counted either,
    /// because all connections of a process share it. Memory of the peer, which an in-process provider delivers,
    /// is not counted.
    ///
    /// ```
    /// # use smbdirect::Config;
    /// # let config = Config::default();
    /// let clients = (2 << 30) / config.receive_memory(); // The most that 2 GiB of memory carry.
    /// # assert!(clients > 100);
    /// ```
    pub fn receive_memory(&self) -> usize {
        // Copied short messages fill at least three quarters of each arena except the first and the last.
        let waiting = self.receive_buffer() / 3 * 4 + 2 * ARENA_BYTES;
        // Copied pieces of long messages leave less than 1 KiB of each arena unused.
        let arriving = self.max_fragmented_receive_size as usize / 63 * 64 + ARENA_BYTES;
        // The oldest message may hold one more run, and the provider receives into one more block.
        waiting + arriving + (MAX_UNCHARGED_RUNS + 2) * LARGEST_BLOCK
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
    fn segments_are_assembled_and_counted() {
        let mut inbox = Inbox::default();
        inbox.push(Bytes::from("ab"), 3, None);
        inbox.push(Bytes::new(), 3, None);
        assert!(inbox.take().is_none() && inbox.cost() == 0);
        inbox.push(Bytes::from("cde"), 0, Some(Token(7)));
        inbox.push(Bytes::from("f"), 0, None);
        assert_eq!(inbox.cost(), 6 + 2 * MESSAGE_OVERHEAD_BYTES);
        let message = inbox.take().unwrap();
        assert_eq!(message.invalidated_token(), Some(Token(7)));
        assert_eq!(message.into_bytes(), "abcde");
        assert_eq!(inbox.take().unwrap().into_bytes(), "f");
        assert_eq!(inbox.cost(), 0);
    }

    #[test]
    fn zero_copy_messages_are_never_copied() {
        let mut inbox = Inbox::new(true);
        let payloads: Vec<_> = (0..4 * MAX_UNCHARGED_RUNS)
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

    /// Memory in use by messages makes short ones copies. While the provider may have more messages, only much of it
    /// counts.
    #[test]
    fn memory_in_use_decides_whether_short_messages_are_copied() {
        for (waiting, bytes, is_drained, before, after) in [
            (0, MAX_LENT_BYTES, true, true, false),
            (0, MAX_LENT_BYTES + 1, true, false, true),
            (0, MAX_LENT_BYTES + 1, false, false, false),
            (0, 0, false, true, true),
            (0, MAX_QUEUED_BYTES - 1, false, false, false),
            (0, MAX_QUEUED_BYTES, false, false, true),
            (100_000, MAX_LENT_BYTES + 400_000, true, true, false),
            (100_000, MAX_LENT_BYTES + 500_000, true, false, true),
        ] {
            let mut inbox = Inbox {
                copies_short: before,
                cost: waiting,
                ..Inbox::default()
            };
            inbox.set_lent(bytes, is_drained);
            let case = format!("{bytes} with {waiting}, {is_drained}");
            assert_eq!(inbox.copies_short, after, "{case}");
        }
    }

    #[test]
    fn scattered_messages_are_copied_when_many_wait() {
        let mut inbox = Inbox::default();
        let bytes = Bytes::from(vec![7; 1 << 20]);
        let at = |start: usize| bytes.slice(start..start + 100);
        let mut starts: Vec<_> = (0..1000).map(|index| index * 150).collect();
        starts.extend((0..MAX_UNCHARGED_RUNS - 1).map(|index| 200_000 + index * 1000));
        for &start in &starts {
            inbox.push(at(start), 0, None);
        }
        assert_eq!(inbox.runs.len(), MAX_UNCHARGED_RUNS);
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
        // A run ends with its last message, wherever the next message is in memory.
        inbox.push(at(520_000), 0, None);
        assert_eq!(inbox.runs, [1]);
    }

    /// A block of a provider, which is counted until the last slice of it is dropped.
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

    /// A stream whose peer chooses where in the blocks its segments are.
    struct Blocks {
        block: Bytes,
        /// Offset in the block at which the next segment begins.
        at: usize,
        /// Each block is a slice of this.
        pattern: Vec<u8>,
        count: Arc<AtomicUsize>,
        random: fastrand::Rng,
        /// Percentage of segments that begin a new block.
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
    fn memory_is_bounded_by_cost_and_bytes_are_preserved() {
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
                    let longest = 1 + (MIN_SHARED_MESSAGE_BYTES >> random.u32(..14));
                    let segment = stream.segment(left.min(longest));
                    left -= segment.len();
                    message.extend_from_slice(&segment);
                    inbox.push(segment, left as u32, None);
                    // The stream itself holds one block.
                    let shared = stream.count.load(Relaxed) - 1;
                    let most = MAX_UNCHARGED_RUNS + 1 + (WAITING + LONGEST) / LARGEST_BLOCK;
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
    fn copied_messages_fill_their_arenas() {
        let mut random = fastrand::Rng::with_seed(1);
        let (mut inbox, mut bytes) = (Inbox::default(), 0);
        let lengths = [
            2,
            3,
            4,
            5,
            MIN_SHARED_MESSAGE_BYTES - 1,
            MIN_SHARED_MESSAGE_BYTES,
            3 * ARENA_BYTES,
        ];
        for _ in 0..300 {
            let length = lengths[random.usize(..lengths.len())];
            bytes += length;
            // A short first segment makes the inbox copy the whole message.
            let first = Bytes::from(vec![1; 1]);
            let second = Bytes::from(vec![2; length - 1]);
            inbox.push(first, length as u32 - 1, None);
            inbox.push(second, 0, None);
        }
        // A run begins wherever the memory of a message does not follow that of the message before.
        let most = 2 + bytes / (ARENA_BYTES - MIN_SHARED_MESSAGE_BYTES);
        assert!(inbox.runs.len() <= most, "{} of {most}", inbox.runs.len());
    }

    #[test]
    fn message_taken_in_segments_leaves_no_runs() {
        let mut inbox = Inbox::default();
        let bytes = Bytes::from(vec![7; 1 << 20]);
        let segments = 4 * MAX_UNCHARGED_RUNS;
        for index in 1..=segments {
            let segment = bytes.slice(
                index * 2 * MIN_SHARED_SEGMENT_BYTES
                    ..index * 2 * MIN_SHARED_SEGMENT_BYTES + MIN_SHARED_SEGMENT_BYTES,
            );
            let left = (segments - index) * MIN_SHARED_SEGMENT_BYTES;
            inbox.push(segment.clone(), left as u32, None);
            let taken = inbox.take_segment().unwrap();
            assert_eq!(taken.payload.as_ptr(), segment.as_ptr());
            assert_eq!(taken.remaining as usize, left);
        }
        assert!(inbox.runs.is_empty() && inbox.cost() == 0);
    }

    #[test]
    fn messages_are_taken_in_any_order() {
        for seed in 0..200 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut inbox = Inbox::default();
            let mut expected = Vec::new();
            for length in 1..=30_usize {
                let message = Bytes::from(vec![length as u8; length]);
                if random.bool() && length > 1 {
                    inbox.push(message.slice(..1), length as u32 - 1, None);
                    inbox.push(message.slice(1..), 0, None);
                } else {
                    inbox.push(message.clone(), 0, None);
                }
                expected.push(message);
            }
            while !expected.is_empty() {
                let index = random.usize(..expected.len());
                let message = inbox.take_at(index).unwrap();
                assert_eq!(message.into_bytes(), expected.remove(index));
                assert!(inbox.take_at(expected.len()).is_none());
            }
            assert_eq!(inbox.cost(), 0, "seed {seed}");
            inbox.push(Bytes::from(vec![1; 2 * ADJACENT_BYTES]), 0, None);
            assert!(inbox.take_at(0).is_some() && inbox.runs.is_empty());
        }
    }

    #[test]
    fn discarded_messages_cost_nothing() {
        let mut inbox = Inbox::default();
        inbox.push(Bytes::from("a"), 0, None);
        inbox.push(Bytes::from("b"), 1, None);
        inbox.discard_all();
        inbox.push(Bytes::from("c"), 0, None);
        assert_eq!(inbox.cost(), 0);
        assert!(inbox.take_segment().is_none());
    }

    #[test]
    fn segments_are_taken_before_the_message_is_whole() {
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

    /// Pushes `count` segments of a message that begin `apart` bytes from each other, and returns their
    /// bytes.
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
    fn long_messages_share_segments_that_are_adjacent_and_not_short() {
        for (count, length, apart, shared) in [
            (
                20,
                MIN_SHARED_SEGMENT_BYTES,
                MIN_SHARED_SEGMENT_BYTES + ADJACENT_BYTES,
                true,
            ),
            (13, 1340, 1388, true),
            // A few segments may be scattered.
            (
                MAX_UNCHARGED_RUNS,
                4 * MIN_SHARED_MESSAGE_BYTES,
                5 * MIN_SHARED_MESSAGE_BYTES,
                true,
            ),
            (
                20,
                MIN_SHARED_SEGMENT_BYTES - 1,
                MIN_SHARED_SEGMENT_BYTES,
                false,
            ),
            // The message is too short.
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
    fn long_message_is_taken_in_pieces() {
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
    fn claimed_length_reserves_one_arena() {
        let mut inbox = Inbox::default();
        inbox.push(Bytes::from(vec![7; 1]), u32::MAX - 1, None);
        assert_eq!(inbox.copy.capacity(), ARENA_BYTES);
    }
}
