//! The memory that bytes from the socket are read into.

use std::{mem, ops::Range};

use bytes::{Bytes, BytesMut};

use crate::{
    software::arena::ARENAS,
    software::pool::{Account, LARGEST_BLOCK, Pool},
};

/// The blocks of all streams. One read returns at most a block.
pub(super) static BLOCKS: Pool = Pool::new(LARGEST_BLOCK, 128);

/// The memory for bytes from the socket.
#[derive(Debug)]
pub(super) enum Block {
    /// No memory.
    None,
    /// A block that may be read into.
    Owned(BytesMut),
    /// A block that was read into, of which messages may be slices.
    Shared(Bytes),
    /// A copy of the few bytes that were left in a block. The block is back in the pool.
    Remainder(BytesMut),
}

impl Block {
    /// Returns the memory to its pool. A block that has readers is counted on `account`.
    pub(super) fn release(&mut self, account: &Account) {
        match mem::replace(self, Self::None) {
            Self::None => {}
            Self::Owned(block) => BLOCKS.lend(block.freeze()),
            Self::Shared(block) => BLOCKS.lend_on(block, Some(account)),
            Self::Remainder(rest) => ARENAS.lend(rest.freeze()),
        }
    }

    /// Copies the bytes `waiting`, which fit an arena, and returns the block to the pool.
    pub(super) fn copy_remainder(&mut self, waiting: Range<usize>, account: &Account) {
        let rest = match self {
            Self::None | Self::Remainder(_) => return,
            Self::Owned(block) => Self::remainder(&block[waiting]),
            Self::Shared(block) => Self::remainder(&block[waiting]),
        };
        self.release(account);
        *self = rest;
    }

    /// Creates a remainder with a copy of `bytes`.
    pub(super) fn remainder(bytes: &[u8]) -> Self {
        let mut rest = ARENAS.take();
        rest.clear();
        rest.extend_from_slice(bytes);
        Self::Remainder(rest)
    }

    /// Returns a block that may be read into. The bytes `rest` of the current memory are moved to
    /// its front.
    pub(super) fn make_room(&mut self, rest: Range<usize>, account: &Account) -> &mut BytesMut {
        let owned = match mem::replace(self, Self::None) {
            Self::None => BLOCKS.take(),
            Self::Owned(block) => block,
            Self::Remainder(waiting) => {
                let mut block = full_length(BLOCKS.take());
                block[..rest.len()].copy_from_slice(&waiting[rest]);
                ARENAS.lend(waiting.freeze());
                block
            }
            Self::Shared(block) => match block.try_into_mut() {
                Ok(mut block) => {
                    block.copy_within(rest, 0);
                    block
                }
                Err(block) => {
                    let mut next = full_length(BLOCKS.take());
                    next[..rest.len()].copy_from_slice(&block[rest]);
                    BLOCKS.lend_on(block, Some(account));
                    next
                }
            },
        };
        *self = Self::Owned(full_length(owned));
        match self {
            Self::Owned(block) => block,
            _ => unreachable!("the block was just stored"),
        }
    }

    /// Returns the block as memory that messages may be slices of.
    pub(super) fn share(&mut self) -> Bytes {
        let block = match mem::replace(self, Self::None) {
            Self::None => Bytes::new(),
            Self::Owned(block) => block.freeze(),
            Self::Shared(block) => block,
            Self::Remainder(rest) => rest.freeze(),
        };
        *self = Self::Shared(block.clone());
        block
    }
}

/// Extends a block to its full length.
fn full_length(mut block: BytesMut) -> BytesMut {
    if block.len() < LARGEST_BLOCK {
        block.resize(LARGEST_BLOCK, 0);
    }
    block
}
