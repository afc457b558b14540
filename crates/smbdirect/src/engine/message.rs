//! [`Message`]: an upper-layer message, as a short list of byte slices that need not be contiguous.

use std::{fmt, io::IoSlice};

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::rdma::{
    software::pool::{self, PartList},
    work::{ByteCount, Token},
};

/// A message of the upper layer, sent and received as a whole.
///
/// A message is made from anything that converts to [`Bytes`], or from several `Bytes` in order, which are sent
/// without being copied together. A received message has one part for each segment it arrived in, except that
/// small segments are copied together. [`into_bytes`](Self::into_bytes) copies the parts together, and [`Buf`]
/// reads them in place. A part may share its allocation with other data that was received at about the same time.
/// The messages that a program keeps of one connection occupy at most four times their length plus 512 KiB.
///
/// ```
/// use bytes::{Buf, Bytes};
/// use smbdirect::Message;
///
/// let message: Message = [Bytes::from("head"), Bytes::from("body")].into_iter().collect();
/// assert_eq!(message.len(), 8);
/// assert_eq!(message.into_bytes(), "headbody");
/// ```
// In this order of the fields a moved message is written in the same 16-byte units in which it is
// read next. Otherwise the processor stalls, because it cannot forward a store to the load.
#[derive(Clone, Default)]
#[cfg_attr(not(doc), repr(C))]
pub struct Message {
    head: Bytes,
    /// The parts after `head`, none of them empty. Most messages have none. Only a message with parts takes the
    /// process-wide mutex of [`PartList`], once to get a list and once to return it, which costs less than
    /// allocating the list.
    tail: PartList,
    length: usize,
    invalidated_token: Option<Token>,
}

/// Least number of bytes for which copied parts go to a pooled buffer.
const MIN_POOLED_BYTES: usize = 2048;

impl Message {
    /// Returns the number of bytes in the message.
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Returns whether the message has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the local token that the peer invalidated with this message, if any.
    pub const fn invalidated_token(&self) -> Option<Token> {
        self.invalidated_token
    }

    /// Returns the message as one slice. Copies only if it has several parts.
    pub fn into_bytes(mut self) -> Bytes {
        if self.tail.is_unused() {
            self.head
        } else {
            self.copy_to_bytes(self.length)
        }
    }

    /// Creates a received message, for callers that drive an engine of their own.
    pub fn received(payload: Bytes, invalidated_token: Option<Token>) -> Self {
        Self {
            length: payload.len(),
            head: payload,
            tail: PartList::default(),
            invalidated_token,
        }
    }

    /// Returns the message with the token of this end that its arrival invalidated, as received messages have it.
    pub fn invalidating(self, invalidated_token: Option<Token>) -> Self {
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

/// Shows the number of bytes, and not the bytes.
impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("payload", &ByteCount(self.length))
            .field("invalidated_token", &self.invalidated_token)
            .finish()
    }
}

impl Buf for Message {
    fn remaining(&self) -> usize {
        self.length
    }

    fn chunk(&self) -> &[u8] {
        &self.head
    }

    /// Returns all parts, so that one vectored write to a file or socket can take many of them.
    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let head = (!self.head.is_empty()).then_some(&self.head);
        let parts = slices
            .iter_mut()
            .zip(head.into_iter().chain(self.tail.iter()));
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

    /// Shares the bytes if they are in one part, and copies them otherwise.
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
        let pooled = (count >= MIN_POOLED_BYTES).then(|| pool::for_message(count));
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

impl From<String> for Message {
    fn from(text: String) -> Self {
        text.into_bytes().into()
    }
}

impl From<Box<[u8]>> for Message {
    fn from(bytes: Box<[u8]>) -> Self {
        Bytes::from(bytes).into()
    }
}

/// Copies the array.
impl<const N: usize> From<[u8; N]> for Message {
    fn from(bytes: [u8; N]) -> Self {
        Bytes::copy_from_slice(&bytes).into()
    }
}

impl<const N: usize> From<&'static [u8; N]> for Message {
    fn from(bytes: &'static [u8; N]) -> Self {
        bytes.as_slice().into()
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

    #[test]
    fn debug_output_has_the_length_and_not_the_content() {
        let message = Message::received(Bytes::from("secret"), Some(Token(7)));
        let expected = "Message { payload: 6 bytes, invalidated_token: Some(Token(7)) }";
        assert_eq!(format!("{message:?}"), expected);
    }

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
    fn the_head_is_at_a_multiple_of_16_bytes() {
        assert_eq!(std::mem::offset_of!(Message, head) % 16, 0);
    }

    #[test]
    fn reading_in_pieces_of_any_size_gives_all_bytes() {
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
    fn only_a_received_message_has_a_token() {
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
    fn bytes_of_one_part_are_shared_not_copied() {
        let bytes = Bytes::from(vec![7; 100]);
        let pointer = bytes.as_ptr();
        let mut message = Message::from(bytes);
        assert_eq!(message.copy_to_bytes(40).as_ptr(), pointer);
        assert_eq!(message.into_bytes().as_ptr(), pointer.wrapping_add(40));
    }
}
