//! The turn budget: how many bytes one turn of the driver moves before other tasks run.
//!
//! A turn ends early when the futures that it woke have something to do: to start further reads, or to
//! take messages and return their memory while it is still in a cache.

use std::{future::Future, pin::pin, task::Context};

use tokio::task::yield_now;

use super::state::State;

/// Bytes of finished reads that end a turn. The woken futures may then start further reads, which the
/// peer serves while it still sends the data of those in flight.
pub(super) const READ_BUDGET_BYTES: usize = 128 * 1024;
/// Cost of whole messages, in bytes, that ends a turn. The woken futures may then take the messages and
/// return their memory while it is in a cache.
pub(super) const MESSAGE_BUDGET_BYTES: usize = 256 * 1024;
/// Consecutive turns that may end by their budget before the runtime polls its sockets, which costs a
/// system call.
const MAX_TURNS_WITHOUT_IO: u32 = 8;

/// What the current turn has moved.
#[derive(Debug, Default)]
pub(super) struct TurnBudget {
    /// Bytes of the reads that finished in this turn.
    pub(super) read_bytes: usize,
    /// Cost of the messages that became whole in this turn, in bytes.
    pub(super) message_bytes: usize,
    /// Turns since the runtime last polled its sockets.
    turns: u32,
}

impl TurnBudget {
    /// Begins a turn.
    #[inline]
    pub(super) fn reset(&mut self) {
        (self.read_bytes, self.message_bytes) = (0, 0);
    }

    /// Returns whether the turn has moved enough.
    #[inline]
    pub(super) fn is_spent(&self) -> bool {
        self.read_bytes >= READ_BUDGET_BYTES || self.message_bytes >= MESSAGE_BUDGET_BYTES
    }
}

impl State {
    /// Schedules the driver task to continue after other tasks. A turn that its budget ended usually
    /// continues without a poll of the runtime's sockets, any other turn after one.
    pub(super) fn yield_to_runtime(&mut self, context: &mut Context<'_>) {
        self.budget.turns += 1;
        if self.budget.is_spent() && self.budget.turns < MAX_TURNS_WITHOUT_IO {
            return self.wake_task();
        }
        self.budget.turns = 0;
        wake_after_io_poll(context);
    }
}

/// Wakes the task of `context` after the runtime has polled its sockets.
///
/// The first poll of `yield_now` hands the waker to the runtime, which wakes it after it has polled its
/// sockets, or immediately on a thread without a runtime. Dropping the future does not take that back.
/// tokio does not document this, but has no other way to ask for it.
fn wake_after_io_poll(context: &mut Context<'_>) {
    let _ = pin!(yield_now()).poll(context);
}
