//! The turn budget: how many bytes one turn of the driver moves before other tasks run.
//!
//! A turn ends early when the futures that it woke have something to do: to start further reads, or to
//! take messages and return their memory while it is still in a cache.

use crate::rdma::provider::WireBytes;

/// Bytes of finished reads that end a turn. The woken futures may then start further reads, which the
/// peer serves while it still sends the data of those in flight. With 128 KiB, 64 connections that read
/// together are a tenth slower.
pub(super) const READ_BUDGET_BYTES: usize = 256 * 1024;
/// Cost of whole messages, in bytes, that ends a turn. The woken futures may then take the messages and
/// return their memory while it is in a cache.
pub(super) const MESSAGE_BUDGET_BYTES: usize = 256 * 1024;
/// Consecutive turns that may end by their budget before the runtime polls its sockets, which costs a
/// system call.
const MAX_TURNS_WITHOUT_IO: u32 = 8;

/// A turn moves this many times fewer bytes in messages than by RDMA, because each byte takes more time.
const MESSAGE_COST: usize = 6;

/// Bytes that the current turn has moved, which the two budgets limit.
#[derive(Debug)]
pub(super) struct TurnBudget {
    /// Bytes of the reads that finished in this turn.
    pub(super) read_bytes: usize,
    /// Cost of the messages that became whole in this turn, in bytes.
    pub(super) message_bytes: usize,
    /// Most bytes that the turn may move, or `usize::MAX` without a limit.
    limit: usize,
    /// Bytes of finished reads that end the turn.
    read_budget: usize,
    /// Cost of whole messages, in bytes, that ends the turn.
    message_budget: usize,
    /// Turns since the runtime last polled its sockets.
    turns: u32,
}

impl TurnBudget {
    pub(super) const fn new() -> Self {
        Self {
            read_bytes: 0,
            message_bytes: 0,
            limit: usize::MAX,
            read_budget: READ_BUDGET_BYTES,
            message_budget: MESSAGE_BUDGET_BYTES,
            turns: 0,
        }
    }

    /// Begins a turn.
    #[inline]
    pub(super) fn reset(&mut self) {
        (self.read_bytes, self.message_bytes) = (0, 0);
    }

    /// Limits the turn to `limit` bytes; those that are sent are messages if `sends_messages` is true. Returns the
    /// limit of the queue pair, or `None` if neither this turn nor the one before is limited.
    #[inline]
    pub(super) fn set_limit(&mut self, limit: usize, sends_messages: bool) -> Option<WireBytes> {
        if limit == usize::MAX && self.limit == usize::MAX {
            return None;
        }
        self.limit = limit;
        let of_messages = match limit {
            usize::MAX => limit,
            _ => limit / MESSAGE_COST,
        };
        self.read_budget = READ_BUDGET_BYTES.min(limit);
        self.message_budget = MESSAGE_BUDGET_BYTES.min(of_messages);
        let sent = if sends_messages { of_messages } else { limit };
        Some(WireBytes {
            sent: sent as u64,
            received: limit as u64,
        })
    }

    /// Returns whether one of the two budgets of the turn is spent.
    #[inline]
    pub(super) fn is_spent(&self) -> bool {
        self.read_bytes >= self.read_budget || self.message_bytes >= self.message_budget
    }

    /// Ends a turn that leaves work to do. Returns whether the next turn may begin before the runtime polls
    /// its sockets: the budget ended this turn, and fewer than [`MAX_TURNS_WITHOUT_IO`] turns have ended
    /// since the last such poll.
    pub(super) fn may_skip_io_poll(&mut self) -> bool {
        self.turns += 1;
        if self.is_spent() && self.turns < MAX_TURNS_WITHOUT_IO {
            return true;
        }
        self.turns = 0;
        false
    }
}
