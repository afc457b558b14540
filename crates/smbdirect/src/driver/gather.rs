//! Gathering: whether the caller that submits work flushes it, or the driver task flushes it together
//! with other work.
//!
//! A flush costs a system call. A caller that submits to a quiet connection drives it immediately,
//! because to wake another task takes longer than the whole path to the wire. Work that is submitted
//! within the gather window after a flush is queued for the driver task, so that a burst of messages
//! takes few system calls. Queued work waits until the task runs, or until the caller that submits more
//! work reaches one of the limits below and flushes.

use std::time::Duration;

use super::{clock::now, state::State};

/// Work that is submitted this soon after a flush is queued for the driver task.
const GATHER_WINDOW: Duration = Duration::from_micros(20);
/// Longest time since the last flush for which queued work waits for the driver task. After it, the
/// caller that submits more work flushes: callers that never pause may keep the task from running.
const MAX_GATHER_DELAY: Duration = Duration::from_micros(100);
/// Queued messages, reads and writes between two reads of the clock.
const CLOCK_CHECK_INTERVAL: usize = 16;
/// Queued bytes at which the caller flushes.
const MAX_GATHERED_BYTES: usize = 1024 * 1024;
/// Queued messages, reads and writes at which the caller flushes.
pub(super) const MAX_GATHERED_COUNT: usize = 256;
/// A flush of this many bytes can take [`MAX_GATHER_DELAY`] by itself, so the clock is read again after
/// it.
const SLOW_FLUSH_BYTES: usize = 16 * 1024;
/// A received message that costs less than this, in bytes, is assumed to be a request that the upper layer
/// answers soon.
const MAX_REQUEST_BYTES: usize = 16 * 1024;

impl State {
    /// Flushes the `count` messages, reads and writes that were just submitted, or leaves them to the
    /// driver task. `length` is the sum of their bytes.
    pub(super) fn flush_or_defer(&mut self, count: usize, length: usize) {
        let (bytes, queued) = (self.gathered_bytes + length, self.gathered_count);
        (self.gathered_bytes, self.gathered_count) = (bytes, queued + count);
        let gathers = queued > 0 && queued < MAX_GATHERED_COUNT && bytes < MAX_GATHERED_BYTES;
        if gathers && !queued.is_multiple_of(CLOCK_CHECK_INTERVAL) {
            return;
        }
        let now = now();
        let pause = |flush| now.saturating_duration_since(flush);
        let recent = self
            .last_flush
            .is_some_and(|flush| pause(flush) < GATHER_WINDOW);
        let late = self
            .last_flush
            .is_none_or(|flush| pause(flush) > MAX_GATHER_DELAY);
        if gathers && !late {
            return;
        }
        if queued == 0 && recent || !self.turn.allows_callers() {
            self.wake_task();
            return;
        }
        // If work was queued, the driver task has not run since, and this caller also takes the
        // completions that the task would have taken.
        self.begin_turn();
        self.run_callers_rounds(now, queued == 0);
        if length >= SLOW_FLUSH_BYTES {
            self.last_flush = Some(self::now());
        }
    }

    /// Defers the work that a short received message causes until the future that the message woke has
    /// run, and returns whether the work was deferred. Usually that future sends a reply, and the work
    /// leaves with the reply. The driver task is woken again, runs after that future, and then handles
    /// sockets and timers.
    ///
    /// Work is deferred only if there is no other completion to take and nothing waits to be sent.
    #[inline]
    pub(super) fn defer_work_for_reply(&mut self) -> bool {
        let defers = !self.deferred_work
            && !self.finished
            && (1..MAX_REQUEST_BYTES).contains(&self.budget.message_bytes)
            && !self.wakes.is_empty()
            && self.gathered_count == 0
            && self.engine.queued_messages() == 0
            && !self.queue_pair.has_completion();
        if defers {
            self.deferred_work = true;
            self.wake_task();
        }
        defers
    }

    /// Drives the connection if work was deferred, and returns whether it was.
    #[inline]
    pub(super) fn drain_deferred(&mut self) -> bool {
        let deferred = self.deferred_work;
        if deferred {
            self.drive(now());
        }
        deferred
    }
}
