//! The timer of a graceful disconnect.

use std::{task::Context, time::Duration};

use crate::{
    deadline::Deadline,
    work::{ProviderError, ProviderErrorKind},
};

/// The bytes that a graceful disconnect has to move in each period of its timer. A peer that takes data more slowly
/// could otherwise delay the end without limit.
const MIN_PROGRESS_BYTES: u64 = 64 * 1024;

/// Returns the error of a peer that has not acknowledged everything when the timer runs out.
pub(super) fn not_taken() -> ProviderError {
    let what = "the peer has not taken all data before the close timer ran out";
    ProviderError::new(ProviderErrorKind::TimedOut, what)
}

/// Limits the time that a graceful disconnect takes without progress.
pub(super) struct CloseTimer {
    period: Duration,
    /// The timer, which the first poll starts.
    timer: Option<Deadline>,
    /// The number of bytes that had moved when the timer was set.
    moved: u64,
}

impl CloseTimer {
    pub(super) const fn new(period: Duration) -> Self {
        Self {
            period,
            timer: None,
            moved: 0,
        }
    }

    /// Stops the timer. The next poll starts the timer again, in the runtime of that poll.
    pub(super) fn stop(&mut self) {
        self.timer = None;
    }

    /// Returns whether a period has passed without progress. `moved` returns the bytes that have moved so far;
    /// `all_read` is false if there may be more to read.
    pub(super) fn poll(
        &mut self,
        context: &mut Context<'_>,
        all_read: bool,
        moved: impl Fn() -> u64,
    ) -> bool {
        let timer = self.timer.get_or_insert_with(|| {
            self.moved = moved();
            Deadline::after(self.period)
        });
        while timer.has_passed(context, all_read) {
            let before = std::mem::replace(&mut self.moved, moved());
            if self.moved.saturating_sub(before) < MIN_PROGRESS_BYTES {
                return true;
            }
            *timer = Deadline::after(self.period);
        }
        false
    }
}
