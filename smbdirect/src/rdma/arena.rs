//! [`Arena`], the memory to which short received bytes are copied, so that a message which is kept for
//! long keeps little other memory alive.

use bytes::{Bytes, BytesMut};

use crate::pool::{self, Pool};

/// The size of an arena in bytes. A connection keeps its arena.
pub(super) const ARENA_BYTES: usize = 16 * 1024;

/// The most bytes that one copy has.
pub(super) const LARGEST_COPY_BYTES: usize = pool::LARGEST_BLOCK / 4;

/// The arenas of all connections.
pub(super) static ARENAS: Pool = Pool::new(ARENA_BYTES, 64);

/// Buffers for copies that are longer than half an arena.
static SMALL_BLOCKS: Pool = Pool::new(LARGEST_COPY_BYTES, 64);

/// Memory to which short received bytes are copied, one after the other.
#[derive(Debug, Default)]
pub(super) struct Arena(BytesMut);

impl Arena {
    /// Returns a copy of `bytes`, which are at most [`LARGEST_COPY_BYTES`].
    pub(super) fn copy_of(&mut self, bytes: &[u8]) -> Bytes {
        if bytes.len() > ARENA_BYTES / 2 {
            let mut block = SMALL_BLOCKS.take_to_cut();
            block.extend_from_slice(bytes);
            return block.freeze();
        }
        if self.0.capacity() < bytes.len() {
            self.0 = ARENAS.take_to_cut();
        }
        self.0.extend_from_slice(bytes);
        self.0.split().freeze()
    }
}
