//! [`Arena`], the memory to which short received bytes are copied, so that a message which is kept for
//! long keeps little other memory alive.

use bytes::Bytes;

use crate::software::pool::{self, Account, Cut, Pool};

/// The size of an arena in bytes. A connection keeps its arena.
pub(crate) const ARENA_BYTES: usize = 16 * 1024;

/// The arenas of all connections.
pub(crate) static ARENAS: Pool = Pool::new(ARENA_BYTES, 64);

/// Memory to which short received bytes are copied, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Arena(Cut);

impl Arena {
    /// Returns a copy of `bytes`, which are at most [`LARGEST_COPY_BYTES`](pool::LARGEST_COPY_BYTES), in memory that is counted on
    /// `account`, if there is one.
    pub(crate) fn copy_of(&mut self, bytes: &[u8], account: Option<&Account>) -> Bytes {
        if bytes.len() > ARENA_BYTES / 2 {
            let pool = pool::of_size(bytes.len()).expect("a copy is shorter than a block");
            let mut block = Cut::begin(pool);
            block.rest.extend_from_slice(bytes);
            let copy = block.rest.split().freeze();
            block.end(pool, account);
            return copy;
        }
        let Self(arena) = self;
        if arena.rest.capacity() < bytes.len() {
            arena.next(&ARENAS, account);
        }
        arena.rest.extend_from_slice(bytes);
        arena.rest.split().freeze()
    }
}
