//! [`Tsdu`]: the bytes of one received TSDU that have arrived and were not taken.

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};
use smbdirect::{Message, Token};

use super::{
    chained::ChainedTsdu,
    flags::IndicationFlags,
    receive::{Indication, ReceiveRequest, ReceiveSettings},
};

/// Number of slices that a TSDU keeps as they arrived, regardless of their length.
const MAX_UNJOINED_SLICES: usize = 16;
/// Slices shorter than this are joined after the first `MAX_UNJOINED_SLICES`, because a slice costs
/// about as much memory as these bytes.
const JOIN_THRESHOLD_BYTES: usize = 256;

/// A received TSDU, without the bytes that were taken.
#[derive(Debug, Default)]
pub(crate) struct Tsdu {
    /// The bytes that have arrived and were not taken. No slice is empty.
    slices: VecDeque<Bytes>,
    /// The total length of `slices`.
    pub(crate) available: usize,
    /// The number of bytes that were taken.
    pub(crate) taken: usize,
    /// The number of bytes that have not arrived.
    pub(crate) remaining: usize,
    pub(crate) invalidated_token: Option<Token>,
    /// The handler to which the TSDU was shown; `None` before its first indication.
    pub(crate) handler: Option<Handler>,
    /// The value of `available` at the last indication, if the handler took nothing of it. The TSDU
    /// is not indicated again until more bytes have arrived.
    pub(crate) declined_at: usize,
}

/// The two kinds of receive handlers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handler {
    Copying,
    Chained,
}

/// A receive that is pending, with the number of bytes placed in its buffer.
#[derive(Debug)]
pub(crate) struct Posted {
    pub(crate) request: ReceiveRequest,
    pub(crate) placed: usize,
}

impl Posted {
    /// Copies as many bytes as fit into the buffer, and returns their number.
    pub(crate) fn place(&mut self, bytes: &[u8]) -> usize {
        let buffer = &mut self.request.buffer;
        let count = bytes.len().min(buffer.capacity() - self.placed);
        buffer.put(self.placed, &bytes[..count]);
        self.placed += count;
        count
    }

    pub(crate) fn is_full(&self) -> bool {
        self.placed == self.request.buffer.capacity()
    }
}

impl Tsdu {
    /// Restores a TSDU that the chained handler did not accept, including the bytes that it read.
    pub(crate) fn from_chained(tsdu: ChainedTsdu) -> Self {
        let mut whole = tsdu.into_message();
        let mut tsdu = Self {
            available: whole.len(),
            invalidated_token: whole.invalidated_token(),
            handler: Some(Handler::Chained),
            ..Self::default()
        };
        while whole.has_remaining() {
            let count = whole.chunk().len();
            tsdu.slices.push_back(whole.copy_to_bytes(count));
        }
        tsdu
    }

    pub(crate) const fn length(&self) -> usize {
        self.taken + self.available + self.remaining
    }

    pub(crate) const fn is_at_end(&self) -> bool {
        self.available == 0 && self.remaining == 0
    }

    /// Returns the bytes that were not taken, in slices.
    pub(crate) const fn slices(&self) -> &VecDeque<Bytes> {
        &self.slices
    }

    /// Adds bytes. A short slice is joined with the slice before it if that one is at most twice as
    /// long, and the result is joined in the same way. Each join about doubles a slice, so each byte is
    /// copied only a few times.
    pub(crate) fn append(&mut self, payload: Bytes) {
        let mut last = payload;
        while last.len() < JOIN_THRESHOLD_BYTES
            && let Some(before) = self.slices.pop_back_if(|before| {
                before.len() < JOIN_THRESHOLD_BYTES && before.len() <= 2 * last.len()
            })
        {
            if self.slices.len() < MAX_UNJOINED_SLICES {
                self.slices.push_back(before);
                break;
            }
            let mut joined = BytesMut::with_capacity(before.len() + last.len());
            joined.extend_from_slice(&before);
            joined.extend_from_slice(&last);
            last = joined.freeze();
        }
        self.slices.push_back(last);
    }

    /// Returns the next indication, if enough bytes have arrived for one.
    pub(crate) fn indication(&mut self, settings: &ReceiveSettings) -> Option<Indication> {
        let enough = settings
            .minimum_lookahead
            .min(self.available + self.remaining);
        //= TDI-RECV-15
        if self.available < enough || self.available == self.declined_at {
            return None;
        }
        let data = self.lookahead(enough, settings.maximum_lookahead);
        let mut flags = IndicationFlags::NORMAL | IndicationFlags::AT_DISPATCH_LEVEL;
        flags.set(IndicationFlags::PEEK, self.remaining > 0);
        flags.set(IndicationFlags::COPY_LOOKAHEAD, data.len() < self.available);
        //= TDI-SEND-10
        //= TDI-RECV-13
        let ends = self.remaining == 0 && data.len() == self.available;
        flags.set(IndicationFlags::ENTIRE_MESSAGE, ends);
        Some(Indication {
            flags,
            available: self.available,
            tsdu_length: self.length(),
            tsdu_offset: self.taken,
            invalidated_token: self.invalidated_token.filter(|_| ends),
            data,
        })
    }

    /// Returns the first bytes in one piece. They are copied only if the first slice is shorter
    /// than `minimum`.
    fn lookahead(&mut self, minimum: usize, maximum: usize) -> Bytes {
        if self
            .slices
            .front()
            .is_some_and(|first| first.len() < minimum)
        {
            let mut gathered = BytesMut::with_capacity(minimum);
            while gathered.len() < minimum
                && let Some(slice) = self.slices.front_mut()
            {
                let count = slice.len().min(minimum - gathered.len());
                gathered.extend_from_slice(&slice.split_to(count));
                if slice.is_empty() {
                    self.slices.pop_front();
                }
            }
            self.slices.push_front(gathered.freeze());
        }
        let first = self.slices.front().expect("something is available");
        first.slice(..first.len().min(maximum))
    }

    /// Removes the first `count` bytes.
    pub(crate) fn take(&mut self, mut count: usize) {
        self.taken += count;
        self.available -= count;
        self.declined_at = 0;
        while count > 0 {
            let slice = self.slices.front_mut().expect("it has what is available");
            let part = count.min(slice.len());
            slice.advance(part);
            count -= part;
            if slice.is_empty() {
                self.slices.pop_front();
            }
        }
    }

    /// Returns the bytes that were not taken.
    pub(crate) fn into_message(self) -> Message {
        let message: Message = self.slices.into_iter().collect();
        message.invalidating(self.invalidated_token)
    }

    /// Moves bytes into a receive, and returns their number.
    pub(crate) fn take_into(&mut self, posted: &mut Posted) -> usize {
        let mut count = 0;
        for slice in &self.slices {
            count += posted.place(slice);
        }
        self.take(count);
        count
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Returns the lengths of the slices after parts of these lengths were added.
    fn joined(parts: impl IntoIterator<Item = usize>) -> Vec<usize> {
        let mut tsdu = Tsdu::default();
        let mut whole = Vec::new();
        for (part, length) in parts.into_iter().enumerate() {
            tsdu.append(vec![part as u8; length].into());
            tsdu.available += length;
            whole.extend(vec![part as u8; length]);
        }
        let lengths = tsdu.slices().iter().map(Bytes::len).collect();
        assert_eq!(tsdu.into_message().into_bytes(), whole);
        lengths
    }

    /// Returns the lengths of the first slices, which are kept as they arrived, followed by `last`.
    fn first_and(last: &[usize]) -> Vec<usize> {
        [&[10; MAX_UNJOINED_SLICES], last].concat()
    }

    #[test]
    fn short_slices_are_joined_after_the_first_ones() {
        assert_eq!(joined(first_and(&[])), first_and(&[]));
        assert_eq!(joined(first_and(&[10])), first_and(&[10]));
        assert_eq!(joined(first_and(&[10, 10])), first_and(&[20]));
        assert_eq!(joined(first_and(&[10, 10, 10])), first_and(&[30]));
        // A slice that is more than twice as long as the next one is not joined with it.
        assert_eq!(joined(first_and(&[20, 10])), first_and(&[30]));
        assert_eq!(joined(first_and(&[21, 10])), first_and(&[21, 10]));
        assert_eq!(joined(first_and(&[100, 10])), first_and(&[100, 10]));
        // The result is joined in the same way.
        assert_eq!(
            joined(first_and(&[61, 21, 10, 1, 1])),
            first_and(&[61, 21, 10, 2])
        );
        assert_eq!(joined(first_and(&[60, 21, 10, 1, 20])), first_and(&[112]));
        // Two slices are not joined if one of them has `JOIN_THRESHOLD_BYTES` or more.
        for (one, other) in [(256, 255), (255, 256), (256, 256)] {
            assert_eq!(joined(first_and(&[one, other])), first_and(&[one, other]));
        }
        assert_eq!(joined(first_and(&[255, 255])), first_and(&[510]));
        assert_eq!(joined(first_and(&[510, 255])), first_and(&[510, 255]));
    }

    #[test]
    fn a_tsdu_that_was_not_accepted_is_restored() {
        let token = Token(7);
        let parts = [&b"ab"[..], b"cde"].map(Bytes::from_static);
        let message = parts.into_iter().collect::<Message>();
        let message = message.invalidating(Some(token));
        let tsdu = Tsdu::from_chained(ChainedTsdu::new(message, 5, Arc::default()));
        assert_eq!(
            tsdu.slices().iter().map(Bytes::len).collect::<Vec<_>>(),
            [2, 3]
        );
        assert_eq!((tsdu.available, tsdu.length()), (5, 5));
        assert_eq!(tsdu.handler, Some(Handler::Chained));
        let message = tsdu.into_message();
        assert_eq!(message.invalidated_token(), Some(token));
        assert_eq!(message.into_bytes(), "abcde");
    }
}
