//! What the providers in software share: pools of blocks, the receive queue, the memory of received bytes, and errors
//! of the operating system; the settings of sockets.

use std::collections::VecDeque;

pub(crate) mod arena;
pub mod direction;
pub mod network;
#[cfg(feature = "tokio")]
pub(crate) mod os_error;
pub mod pool;
pub(crate) mod receive_queue;

/// Marks the path that calls it as one that is rarely taken, as `std::hint::cold_path` of Rust 1.95 does. It is a call,
/// because the mark of an inlined function is lost.
#[cold]
#[inline(never)]
pub const fn cold_path() {}

/// Removes the first entry of `queue` if `is_due` returns true for it, as the method of this name of Rust 1.93 does.
#[inline]
pub(crate) fn pop_front_if<T>(
    queue: &mut VecDeque<T>,
    is_due: impl FnOnce(&mut T) -> bool,
) -> Option<T> {
    if is_due(queue.front_mut()?) {
        queue.pop_front()
    } else {
        None
    }
}
