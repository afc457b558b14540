//! Posted work before it is flushed, and the batches that change hands between the two ends.

use std::{collections::VecDeque, mem};

use bytes::Bytes;

use crate::{
    software::pool::{Account, Cut, Pool},
    software::receive_queue::{ReceiveQueue, Receives},
    work::{Completion, Inline, Token, WorkId, WorkRequest},
};

/// The messages and receives that one end delivers to the other.
// Three boxes rotate: the sender fills one, one is delivered, and the receiver empties one. The
// contents are therefore not moved, and neither end works in cache lines that the other needs.
#[derive(Default)]
pub(super) struct Batch {
    /// Messages, oldest first.
    pub(super) messages: VecDeque<Message>,
    /// The payloads of the messages that are not copied, each with the header before it.
    zero_copy: VecDeque<(Bytes, Inline)>,
    /// Chunks of the messages that were copied, each with its number of messages. Only the
    /// receiving end splits a chunk, so that its reference count stays on one core.
    copied: VecDeque<(Bytes, usize)>,
    /// Receives for Sends of the other end.
    pub(super) receives: VecDeque<Receives>,
}

/// A message in a batch.
pub(super) struct Message {
    /// The length of a message that was copied, in bytes. `None` if its payload was not copied.
    length: Option<u32>,
    /// The token that the message invalidates.
    invalidated: Option<Token>,
}

impl Batch {
    /// Returns whether there is nothing to deliver.
    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.receives.is_empty()
    }

    /// Moves the contents of `other` to the end of this batch.
    pub(super) fn append(&mut self, other: &mut Self) {
        append(&mut self.messages, &mut other.messages);
        append(&mut self.zero_copy, &mut other.zero_copy);
        append(&mut self.copied, &mut other.copied);
        append(&mut self.receives, &mut other.receives);
    }

    /// Takes the oldest message, which completes the oldest of `receives`. If the message has a separate head,
    /// the head is taken first.
    #[inline(always)]
    pub(super) fn take(
        &mut self,
        receives: &mut ReceiveQueue,
        head_is_taken: &mut bool,
    ) -> Option<Completion> {
        let &Message {
            length,
            invalidated,
        } = self.messages.front()?;
        let message = match length {
            Some(length) => self.split_copied(length),
            None => {
                let oldest = self.zero_copy.front();
                let (_, head) = oldest.expect("the batch has the payload of its message");
                *head_is_taken = !*head_is_taken && !head.is_empty();
                if *head_is_taken {
                    return Some(Completion::Head(*head));
                }
                let (payload, _) = self.zero_copy.pop_front()?;
                payload
            }
        };
        self.messages.pop_front();
        Some(Completion::Received {
            id: receives
                .pop()
                .expect("the sender found a receive for the message"),
            message,
            invalidated,
        })
    }

    /// Splits the oldest message off the oldest chunk.
    #[inline(always)]
    fn split_copied(&mut self, length: u32) -> Bytes {
        let oldest = self.copied.front_mut();
        let (bytes, left) = oldest.expect("the batch has the chunk of its message");
        let message = bytes.split_to(length as usize);
        *left -= 1;
        if *left == 0 {
            self.copied.pop_front();
        }
        message
    }
}

/// Moves the contents of `from` to the end of `to`. The two queues may exchange their memory.
fn append<T>(to: &mut VecDeque<T>, from: &mut VecDeque<T>) {
    if to.is_empty() {
        mem::swap(to, from);
    } else {
        to.append(from);
    }
}

/// The work that waits for a flush. Everything that needs no state of the other end is prepared
/// before the lock is taken.
#[derive(Default)]
pub(super) struct Staging {
    /// The posted receives, and the messages of the Sends that have found a receive.
    pub(super) batch: Box<Batch>,
    /// The identifiers of the Sends whose messages are in `batch`.
    pub(super) sends: VecDeque<WorkId>,
    /// The chunk to which short messages are copied.
    chunk: Cut,
    /// The number of messages in `chunk`.
    messages_in_chunk: usize,
    /// Counts the chunks that have readers at the other end.
    account: Account,
    /// The Sends, Reads and Writes that were posted after those in `sends`.
    pub(super) work: VecDeque<WorkRequest>,
    /// The receives of the other end that wait for a Send, as far as this end knows.
    pub(super) receives: ReceiveQueue,
}

/// The size of a chunk. It has room for several of the longest copied messages, and is small enough
/// to stay in the cache of a core until it is reused.
const CHUNK_BYTES: usize = 64 * 1024;

/// Payloads of at least this length are handed over without a copy, because sharing them costs less
/// than copying them.
pub(super) const ZERO_COPY_THRESHOLD_BYTES: usize = 2048;

/// The chunks of all connections.
pub(super) static CHUNKS: Pool = Pool::new(CHUNK_BYTES, 64);

impl Staging {
    /// Makes an empty staging area whose chunks are on `account`.
    pub(super) fn new(account: Account) -> Self {
        Self {
            account,
            ..Self::default()
        }
    }

    /// Returns whether there is nothing to flush.
    pub(super) fn is_empty(&self) -> bool {
        self.batch.is_empty() && self.work.is_empty()
    }

    /// Assembles the oldest Sends, as long as the other end is known to have receives for them.
    // All Sends are assembled in one loop. Consecutive writes to cache lines that the other core
    // holds wait for that core only once; with other work in between, each write waits.
    pub(super) fn prepare(&mut self) {
        while self.has_receive_for_first() {
            if let Some(WorkRequest::Send {
                id,
                header,
                payload,
                ..
            }) = self.work.pop_front()
            {
                self.receives.pop();
                self.sends.push_back(id);
                self.push_message(header, payload, None);
            }
        }
        self.seal_chunk();
    }

    /// Returns whether the oldest work request is a plain Send for which a receive is known.
    #[inline(always)]
    fn has_receive_for_first(&self) -> bool {
        let Some(WorkRequest::Send {
            header,
            payload,
            invalidate: None,
            ..
        }) = self.work.front()
        else {
            return false;
        };
        let oldest = self.receives.front();
        oldest.is_some_and(|receive| header.len() + payload.len() <= receive.length as usize)
    }

    /// Adds a message to the batch.
    #[inline(always)]
    pub(super) fn push_message(
        &mut self,
        header: Inline,
        payload: Bytes,
        invalidated: Option<Token>,
    ) {
        let mut length = None;
        if !payload.is_empty() && payload.len() < ZERO_COPY_THRESHOLD_BYTES {
            length = Some(self.append_to_chunk([header.as_slice(), &payload]));
        } else {
            self.batch.zero_copy.push_back((payload, header));
        }
        self.batch.messages.push_back(Message {
            length,
            invalidated,
        });
    }

    /// Copies both slices to the end of the chunk and returns their total length.
    #[inline(always)]
    fn append_to_chunk(&mut self, [one, two]: [&[u8]; 2]) -> u32 {
        let length = one.len() + two.len();
        let rest = &self.chunk.rest;
        if rest.capacity() - rest.len() < length {
            self.seal_chunk();
            self.chunk.next(&CHUNKS, Some(&self.account));
        }
        self.chunk.rest.extend_from_slice(one);
        self.chunk.rest.extend_from_slice(two);
        self.messages_in_chunk += 1;
        length as u32
    }

    /// Moves the copied messages to the batch.
    pub(super) fn seal_chunk(&mut self) {
        if self.messages_in_chunk > 0 {
            let copied = (
                self.chunk.rest.split().freeze(),
                mem::take(&mut self.messages_in_chunk),
            );
            self.batch.copied.push_back(copied);
        }
    }

    /// Gives up the memory of the chunk while this end has nothing to send.
    pub(super) fn release_chunk(&mut self) {
        mem::take(&mut self.chunk).end(&CHUNKS, Some(&self.account));
    }
}

#[cfg(test)]
mod tests {
    use bytes::BufMut;

    use super::*;

    /// One direction of a connection, with the receives for it.
    struct Direction {
        staging: Staging,
        arrived: Batch,
        head_is_taken: bool,
        receives: ReceiveQueue,
    }

    impl Direction {
        fn new() -> Self {
            let mut receives = ReceiveQueue::default();
            for id in 0..300 {
                receives.post(Receives {
                    id: WorkId(id),
                    length: u32::MAX,
                    count: 1,
                });
            }
            Self {
                staging: Staging::default(),
                arrived: Batch::default(),
                head_is_taken: false,
                receives,
            }
        }

        fn flush(&mut self) {
            self.staging.seal_chunk();
            self.arrived.append(&mut self.staging.batch);
        }

        /// Takes a message, with its head if the head is separate.
        fn take(&mut self, id: u64) -> [Bytes; 2] {
            let mut head = Bytes::new();
            loop {
                match self
                    .arrived
                    .take(&mut self.receives, &mut self.head_is_taken)
                {
                    Some(Completion::Head(bytes)) if head.is_empty() && !bytes.is_empty() => {
                        head = Bytes::copy_from_slice(bytes.as_slice());
                    }
                    Some(Completion::Received {
                        id: WorkId(taken),
                        message,
                        invalidated: None,
                    }) => {
                        assert_eq!(taken, id);
                        return [head, message];
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    #[test]
    fn copied_messages_share_a_chunk() {
        let mut direction = Direction::new();
        // 32 messages of this size fill a chunk, and the last two start another.
        let size = CHUNK_BYTES / 32;
        let payload = Bytes::from(vec![7; size - 1]);
        for id in 0..34 {
            direction
                .staging
                .push_message(inline(b"h"), payload.clone(), None);
            if id == 9 {
                direction.flush();
            }
        }
        direction.flush();
        let mut pointers = Vec::new();
        for id in 0..34 {
            let [head, message] = direction.take(id);
            assert!(head.is_empty() && message[0] == b'h' && message[1..] == payload);
            pointers.push(message.as_ptr());
        }
        assert!(direction.arrived.messages.is_empty() && direction.arrived.copied.is_empty());
        for at in (1..32).chain([33]) {
            assert_eq!(pointers[at], pointers[at - 1].wrapping_add(size));
        }
    }

    #[test]
    fn long_payloads_are_not_copied_and_keep_their_order() {
        let mut direction = Direction::new();
        let payload = |id: u64| {
            let lengths = [
                0,
                1,
                ZERO_COPY_THRESHOLD_BYTES - 1,
                ZERO_COPY_THRESHOLD_BYTES,
                3 * CHUNK_BYTES,
            ];
            let length = lengths[(id * id) as usize % lengths.len()];
            Bytes::from(vec![id as u8; length])
        };
        let payloads: Vec<_> = (0..200).map(payload).collect();
        // Every third message has no head.
        let head = |id: usize| {
            if id.is_multiple_of(3) {
                &b""[..]
            } else {
                b"head"
            }
        };
        // Between two flushes, all or some of the messages are taken.
        let (mut pushed, mut popped) = (0, 0);
        for batch in [1, 2, 7, 30, 60, 100] {
            for payload in &payloads[pushed..pushed + batch] {
                direction
                    .staging
                    .push_message(inline(head(pushed)), payload.clone(), None);
                pushed += 1;
            }
            direction.flush();
            let left = if batch == 7 { 0 } else { batch / 3 };
            while popped < pushed - left {
                let pieces = direction.take(popped as u64);
                compare(pieces, head(popped), &payloads[popped]);
                popped += 1;
            }
        }
        while popped < pushed {
            let pieces = direction.take(popped as u64);
            compare(pieces, head(popped), &payloads[popped]);
            popped += 1;
        }
        let Batch {
            messages,
            copied,
            zero_copy,
            ..
        } = direction.arrived;
        assert!(messages.is_empty() && copied.is_empty() && zero_copy.is_empty());
    }

    fn inline(bytes: &[u8]) -> Inline {
        Inline::build(|out| out.put_slice(bytes))
    }

    fn compare([head, message]: [Bytes; 2], sent: &[u8], payload: &Bytes) {
        if !payload.is_empty() && payload.len() < ZERO_COPY_THRESHOLD_BYTES {
            assert!(head.is_empty() && message == [sent, &payload[..]].concat());
        } else if payload.is_empty() {
            assert!(head == sent && message.is_empty());
        } else {
            assert_eq!(head, sent);
            let shared = message.as_ptr() == payload.as_ptr();
            assert!(shared && message.len() == payload.len());
        }
    }
}
