//! The futures that wait for a change of the connection, sorted by the kind of change.

use std::task::Waker;

use crate::waiters::WakerList;

/// A change of the connection. Every future also waits for the end of the connection.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Condition {
    /// A whole message has arrived.
    Message,
    /// A segment has arrived, whether it completes a message or not.
    Segment,
    /// A message can start immediately, or none can start any more.
    Ready,
    /// A keepalive was answered.
    Keepalive,
    /// Queued work may have released a registered buffer.
    Release,
    /// The negotiation is over.
    Negotiation,
    /// The connection is over.
    End,
}

const CONDITIONS: usize = Condition::End as usize + 1;

/// A list of wakers for each condition.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    lists: [WakerList; CONDITIONS],
}

impl Waiting {
    #[inline]
    pub(super) const fn list(&mut self, condition: Condition) -> &mut WakerList {
        &mut self.lists[condition as usize]
    }

    /// Returns whether a future waits for `condition`.
    #[inline]
    pub(super) fn any(&self, condition: Condition) -> bool {
        !self.lists[condition as usize].is_empty()
    }

    /// Moves the wakers of `condition` to `wakes`.
    #[inline]
    pub(super) fn take(&mut self, condition: Condition, wakes: &mut Vec<Waker>) {
        self.list(condition).take(wakes);
    }

    /// Moves the wakers of all conditions to `wakes`.
    pub(super) fn take_all(&mut self, wakes: &mut Vec<Waker>) {
        for list in &mut self.lists {
            list.take(wakes);
        }
    }
}
