//! [`Payload`], the payload of a received packet, and how it becomes a message.

use bytes::Bytes;

use crate::{software::arena::Arena, software::pool::Account};

/// The payload of a received packet.
#[derive(Clone, Copy, Debug)]
pub(in crate::roce) struct Payload<'a> {
    /// The bytes of the payload.
    pub(in crate::roce) bytes: &'a [u8],
    /// The memory that contains the bytes, if messages may be slices of it.
    pub(in crate::roce) block: Option<&'a Bytes>,
    /// The counter of the buffer bytes that readers of messages may still use. `None` if they are not counted.
    pub(in crate::roce) account: Option<&'a Account>,
}

/// The least length in bytes of a message that is a slice of a block. Shorter ones are copied, so that a short
/// message which is kept for long does not keep a block in use.
const MIN_SLICE_BYTES: usize = 1024;

impl Payload<'_> {
    /// Returns the payload as a message: a slice of its block, or else a copy in `arena`.
    pub(super) fn to_bytes(self, arena: &mut Arena) -> Bytes {
        match self.block {
            Some(block) if self.bytes.len() >= MIN_SLICE_BYTES => block.slice_ref(self.bytes),
            _ => arena.copy_of(self.bytes, self.account),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_payloads_are_slices_of_their_block_and_others_are_copies() {
        let block = Bytes::from(vec![7; 3 * MIN_SLICE_BYTES]);
        let within = |bytes: &Bytes| block.as_ptr_range().contains(&bytes.as_ptr());
        for (length, has_block, is_slice) in [
            (MIN_SLICE_BYTES, true, true),
            (MIN_SLICE_BYTES - 1, true, false),
            (MIN_SLICE_BYTES, false, false),
            (0, true, false),
        ] {
            let payload = Payload {
                bytes: &block[8..8 + length],
                block: has_block.then_some(&block),
                account: None,
            };
            let message = payload.to_bytes(&mut Arena::default());
            assert_eq!(message, payload.bytes);
            assert_eq!(within(&message), is_slice, "{length} {has_block}");
        }
    }
}
