//! An upper-layer message: a short list of byte slices, so that parts need no gluing.

use std::{
    collections::VecDeque,
    io::IoSlice,
    sync::{Mutex, PoisonError},
};

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::{pool, rdma::work::Token};

/// What the upper layer sends or receives as one piece.
///
/// Made from anything that is bytes, or from several `Bytes` in order, which are sent without
/// being copied together first. So is a received message: one that came in many segments has a
/// part for each, unless they are small, which [`into_bytes`](Self::into_bytes) copies together,
/// and [`Buf`] reads where they lie. The parts may share their allocations with what else was
/// received around the same time, so copy what is kept for long.
///
/// ```
/// use bytes::{Buf, Bytes};
/// use smbdirect::Message;
///
/// let message: Message = [Bytes::from("head"), Bytes::from("body")].into_iter().collect();
/// assert_eq!(message.len(), 8);
/// assert_eq!(message.into_bytes(), "headbody");
/// ```
// In this order each 16 bytes are written as they are read when a message is moved: where they are
// not, a processor waits for the cache.
#[derive(Clone, Debug, Default)]
#[repr(C)]
pub struct Message {
    head: Bytes,
    /// Parts behind the head, none of them empty. Most messages have none, and are light to move.
    tail: Parts,
    length: usize,
    invalidated_token: Option<Token>,
}

/// So many bytes are copied together in memory that is used again.
const POOLED: usize = 2048;

impl Message {
    /// Bytes in the message.
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The token of ours that the peer invalidated with this message, if it did.
    pub const fn invalidated_token(&self) -> Option<Token> {
        self.invalidated_token
    }

    /// The message as one slice; copies only if it has several parts.
    pub fn into_bytes(mut self) -> Bytes {
        match self.tail.0 {
            None => self.head,
            Some(_) => self.copy_to_bytes(self.length),
        }
    }

    /// A message as it came, for those who drive an engine of their own.
    pub fn received(payload: Bytes, invalidated_token: Option<Token>) -> Self {
        Self {
            length: payload.len(),
            head: payload,
            tail: Parts::default(),
            invalidated_token,
        }
    }

    /// The message as one that came with a token.
    pub(crate) fn invalidating(self, invalidated_token: Option<Token>) -> Self {
        Self {
            invalidated_token,
            ..self
        }
    }

    /// Adds a part at the end.
    pub(crate) fn push(&mut self, part: Bytes) {
        if part.is_empty() {
            return;
        }
        self.length += part.len();
        if self.head.is_empty() {
            self.head = part;
        } else {
            self.tail.push(part);
        }
    }
}

/// Parts in order. The list they are in is used again by a later message.
#[derive(Clone, Debug, Default)]
struct Parts(Option<List>);

/// Eight bytes to move, not thirty-two.
type List = Box<VecDeque<Bytes>>;

/// Lists that no message uses.
static LISTS: Mutex<Vec<List>> = Mutex::new(Vec::new());
/// Most of them that are kept,
const LISTS_KEPT: usize = 64;
/// and the most parts that one of them has room for.
const PARTS_KEPT: usize = 1024;

impl Parts {
    fn push(&mut self, part: Bytes) {
        let list = self.0.get_or_insert_with(|| {
            let mut lists = LISTS.lock().unwrap_or_else(PoisonError::into_inner);
            lists.pop().unwrap_or_default()
        });
        list.push_back(part);
    }

    fn pop(&mut self) -> Option<Bytes> {
        self.0.as_mut()?.pop_front()
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        if let Some(list) = self.0.take() {
            keep(list);
        }
    }
}

/// Keeps a list for a later message.
#[inline(never)]
fn keep(mut list: List) {
    list.clear();
    if list.capacity() <= PARTS_KEPT {
        let mut lists = LISTS.lock().unwrap_or_else(PoisonError::into_inner);
        if lists.len() < LISTS_KEPT {
            lists.push(list);
        }
    }
}

impl Buf for Message {
    fn remaining(&self) -> usize {
        self.length
    }

    fn chunk(&self) -> &[u8] {
        &self.head
    }

    /// All parts, so that a write to a file or socket takes many of them at once.
    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let tail = self.tail.0.iter().flat_map(|list| list.iter());
        let head = (!self.head.is_empty()).then_some(&self.head);
        let parts = slices.iter_mut().zip(head.into_iter().chain(tail));
        parts
            .map(|(slice, part)| *slice = IoSlice::new(part))
            .count()
    }

    fn advance(&mut self, mut count: usize) {
        assert!(count <= self.length, "advanced beyond the message");
        self.length -= count;
        while count > 0 && count >= self.head.len() {
            count -= self.head.len();
            self.head = self.tail.pop().unwrap_or_default();
        }
        self.head.advance(count);
    }

    /// Shares the bytes where they lie in one part, copies where they do not.
    fn copy_to_bytes(&mut self, count: usize) -> Bytes {
        assert!(count <= self.length, "advanced beyond the message");
        if count < self.head.len() {
            self.length -= count;
            return self.head.split_to(count);
        }
        if count == self.head.len() {
            self.length -= count;
            let next = self.tail.pop().unwrap_or_default();
            return std::mem::replace(&mut self.head, next);
        }
        let pooled = (count >= POOLED).then(|| pool::for_message(count));
        let mut gathered = pooled
            .flatten()
            .unwrap_or_else(|| BytesMut::with_capacity(count));
        gathered.put(self.take(count));
        gathered.freeze()
    }
}

impl From<Bytes> for Message {
    fn from(head: Bytes) -> Self {
        Self::received(head, None)
    }
}

impl From<BytesMut> for Message {
    fn from(bytes: BytesMut) -> Self {
        bytes.freeze().into()
    }
}

impl From<Vec<u8>> for Message {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

impl From<&'static [u8]> for Message {
    fn from(bytes: &'static [u8]) -> Self {
        Bytes::from_static(bytes).into()
    }
}

impl From<&'static str> for Message {
    fn from(text: &'static str) -> Self {
        text.as_bytes().into()
    }
}

impl FromIterator<Bytes> for Message {
    fn from_iter<I: IntoIterator<Item = Bytes>>(parts: I) -> Self {
        let mut message = Self::default();
        for part in parts {
            message.push(part);
        }
        message
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(lengths: &[usize]) -> (Message, Vec<u8>) {
        let all: Vec<u8> = (0..lengths.iter().sum()).map(|i: usize| i as u8).collect();
        let mut rest = Bytes::from(all.clone());
        (
            lengths
                .iter()
                .map(|&length| rest.split_to(length))
                .collect(),
            all,
        )
    }

    #[test]
    fn the_head_lies_at_a_multiple_of_16_bytes() {
        assert_eq!(std::mem::offset_of!(Message, head) % 16, 0);
    }

    #[test]
    fn cut_anywhere_gives_the_same_bytes() {
        for lengths in [
            &[][..],
            &[5],
            &[0, 0],
            &[3, 0, 4],
            &[1, 1, 1, 1],
            &[10, 2, 0, 7],
        ] {
            let total: usize = lengths.iter().sum();
            for cut in 1..=total.max(1) {
                let (mut message, expected) = parts(lengths);
                let mut seen = Vec::new();
                while !message.is_empty() {
                    let piece = message.copy_to_bytes(cut.min(message.len()));
                    seen.extend_from_slice(&piece);
                }
                assert_eq!(seen, expected, "{lengths:?} by {cut}");
            }
            let (mut message, expected) = parts(lengths);
            for (at, &byte) in expected.iter().enumerate() {
                assert_eq!(message.len(), total - at);
                assert_eq!(message.chunk()[0], byte);
                let mut slices = [IoSlice::new(&[]); 4];
                let count = message.chunks_vectored(&mut slices);
                let bytes: Vec<u8> = slices[..count]
                    .iter()
                    .flat_map(|slice| slice.to_vec())
                    .collect();
                assert_eq!(bytes, expected[at..], "all parts");
                assert!(slices[..count].iter().all(|slice| !slice.is_empty()));
                assert_eq!(message.chunks_vectored(&mut slices[..1]), 1);
                message.advance(1);
            }
            assert!(message.is_empty() && message.chunk().is_empty());
        }
    }

    #[test]
    fn a_received_message_has_its_token() {
        let message = Message::received(Bytes::from_static(b"12"), Some(Token(7)));
        assert_eq!(message.invalidated_token(), Some(Token(7)));
        assert_eq!((message.remaining(), message.is_empty()), (2, false));
        assert_eq!(message.into_bytes(), "12");
        for message in [
            Message::from("12"),
            Message::from(&b"12"[..]),
            Message::from(b"12".to_vec()),
            Message::from(BytesMut::from("12")),
        ] {
            assert_eq!(message.invalidated_token(), None);
            assert_eq!(message.into_bytes(), "12");
        }
        assert!(Message::default().is_empty());
    }

    #[test]
    fn one_part_is_shared_not_copied() {
        let bytes = Bytes::from(vec![7; 100]);
        let pointer = bytes.as_ptr();
        let mut message = Message::from(bytes);
        assert_eq!(message.copy_to_bytes(40).as_ptr(), pointer);
        assert_eq!(message.into_bytes().as_ptr(), pointer.wrapping_add(40));
    }
}
