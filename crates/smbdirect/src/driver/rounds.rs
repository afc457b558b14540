//! Poll rounds: each posts and flushes the work that the engine wants, then takes completions.

use std::{
    task::{Context, Poll},
    time::Instant,
};

use super::clock::now;
use super::{state::State, waiting::Condition};
use crate::{
    rdma::work::{Completion, Room, WorkRequest},
    runtime::{has_one_thread, take_deferred, wake_after_io_poll},
};

/// Completions that one round takes before it posts again.
pub(super) const COMPLETIONS_PER_ROUND: usize = 256;
/// Rounds of reading before a deadline is judged. Each reads 256 KiB at least, if there is so much, and
/// together they read more than the largest receive buffer of a socket on Linux by default, 6 MiB.
const READS_BEFORE_DEADLINE: usize = 32;
/// Rounds of one drive, after which other tasks run.
const ROUNDS_PER_DRIVE: usize = 2;

impl State {
    /// Runs the engine and the queue pair until both have nothing to do or the turn budget is spent. In
    /// the latter case the driver task continues after other tasks.
    pub(super) fn drive(&mut self, now: Instant) {
        self.begin_turn();
        // The driver task has taken all earlier completions, or it is woken and will take them.
        self.run_callers_rounds(now, true);
    }

    /// Runs poll rounds in the caller of an operation, as [`run_rounds`](Self::run_rounds) does.
    pub(super) fn run_callers_rounds(&mut self, now: Instant, drained: bool) {
        self.run_rounds(now, drained);
        self.wake_task_if_deferred();
    }

    /// Wakes the driver task if a caller has deferred a wake-up of it, and the runtime of the caller may not keep
    /// that promise: it may block before its next poll of the sockets, or return from `block_on`.
    pub(super) fn wake_task_if_deferred(&mut self) {
        if take_deferred() && (self.turn.has_one_thread() || has_one_thread()) {
            self.wake_task();
        }
    }

    /// Runs poll rounds. `drained` is true if the caller has taken all earlier completions, so that only
    /// work that these rounds post can complete.
    #[inline(never)]
    pub(super) fn run_rounds(&mut self, now: Instant, mut drained: bool) {
        (self.gathered_bytes, self.gathered_count) = (0, 0);
        self.deferred_work = false;
        let waker = self.task_waker.clone();
        let context = &mut Context::from_waker(&waker);
        for _ in 0..ROUNDS_PER_DRIVE {
            self.post_work(now, context);
            if self.budget.is_spent() {
                break;
            }
            // The flush may have completed work. If it did not, the engine has no new work to post.
            let taken = self.take_completions(now, context, COMPLETIONS_PER_ROUND, drained);
            if taken == 0 {
                self.after_drive();
                return;
            }
            drained = taken < COMPLETIONS_PER_ROUND;
        }
        self.after_drive();
        self.yield_to_runtime(context);
    }

    /// Schedules the driver task to continue after other tasks.
    fn yield_to_runtime(&mut self, context: &mut Context<'_>) {
        if self.budget.may_skip_io_poll() {
            self.wake_task();
        } else {
            wake_after_io_poll(context);
        }
    }

    /// Handles the timers of the engine that are due, after what can be read was taken.
    #[cold]
    pub(super) fn handle_timers(&mut self, now: Instant) {
        let all_read = self.take_readable(now);
        self.engine.postpone_deadlines(now, all_read);
        self.engine.handle_timeout(now);
        self.take_rare_events();
    }

    /// Takes what can be read, whether or not the runtime has seen it yet, and returns whether that is all.
    pub(super) fn take_readable(&mut self, now: Instant) -> bool {
        let waker = self.task_waker.clone();
        let context = &mut Context::from_waker(&waker);
        for _ in 0..READS_BEFORE_DEADLINE {
            self.begin_turn();
            let before = self.queue_pair.wire_bytes().map(|bytes| bytes.received);
            self.queue_pair.busy_poll();
            let taken = self.take_completions(now, context, COMPLETIONS_PER_ROUND, false);
            let after = self.queue_pair.wire_bytes().map(|bytes| bytes.received);
            if taken == 0 && before == after {
                return true;
            }
        }
        false
    }

    /// Takes what can be read, and does the work that it causes, before a caller judges a deadline. Returns
    /// whether that was all.
    pub(crate) fn catch_up(&mut self) -> bool {
        let now = now();
        let all_read = self.take_readable(now);
        self.drive(now);
        all_read
    }

    /// Takes up to `limit` completions, stops early when the turn budget is spent, and returns how many
    /// it took. If the queue pair is `drained`, only work that was posted since can have completed.
    #[inline(never)]
    pub(super) fn take_completions(
        &mut self,
        now: Instant,
        context: &mut Context<'_>,
        limit: usize,
        drained: bool,
    ) -> usize {
        let mut taken = 0;
        while taken < limit
            && !self.budget.is_spent()
            && (!drained || self.queue_pair.has_completion())
        {
            let polled = self.queue_pair.poll_completion(context);
            match &polled {
                // A header is not counted: its message follows and is.
                Poll::Ready(Completion::Head(_)) => {}
                Poll::Ready(completion) => {
                    taken += 1;
                    if let Completion::Disconnected(how) = completion {
                        self.finish(how);
                    }
                }
                Poll::Pending => {
                    self.inbox.set_lent(self.queue_pair.lent_bytes(), true);
                    return taken;
                }
            }
            if let Poll::Ready(completion) = polled {
                self.engine.handle_completion(now, completion);
            }
            self.take_events();
        }
        if taken > 0 {
            self.inbox.set_lent(self.queue_pair.lent_bytes(), false);
        }
        taken
    }

    /// Posts the work that the engine wants, as far as there is room, and flushes it.
    fn post_work(&mut self, now: Instant, context: &mut Context<'_>) {
        if self.engine.is_idle() {
            return;
        }
        let mut room = self.room();
        loop {
            let next = self.engine.poll_work(now, room);
            match &next {
                Some(WorkRequest::Receive { count, .. }) => room.receives -= *count as usize,
                Some(_) => {
                    room.sends -= 1;
                    self.last_flush = Some(now);
                }
                None => break,
            }
            // A second match: to bind the request in the first one would move it twice.
            if let Some(work) = next {
                self.queue_pair.post(work);
            }
        }
        self.take_rare_events();
        self.queue_pair.flush(context);
    }

    /// Does what every drive ends with: releases orphaned registrations, and wakes the futures and the
    /// driver task if they have to act.
    fn after_drive(&mut self) {
        self.starved = self.engine.wants_receives();
        if let Some(bytes) = self.queue_pair.wire_bytes()
            && self.turn.record(bytes.sent + bytes.received)
        {
            self.wake_task();
        }
        if !self.orphans.is_empty() {
            self.reclaim_orphans();
        }
        // Credits may arrive without a message, and the last queued message may leave. Neither is an
        // event of the engine.
        if self.waiting.any(Condition::Ready) && self.engine.is_ready() {
            self.wake(Condition::Ready);
        }
        self.wake(Condition::Release);
        let due = self.engine.poll_timeout();
        if due.is_some_and(|due| self.armed.is_none_or(|armed| due < armed)) || self.finished {
            self.wake_task();
        }
    }

    /// Returns how much work may be posted: the room of the queue pair, with receives limited to the
    /// part of the receive buffer that untaken messages leave free.
    fn room(&self) -> Room {
        let Room { sends, receives } = self.queue_pair.room();
        let left = self.receive_buffer.saturating_sub(self.inbox.cost());
        let posted = usize::from(self.engine.credits().receive_credits);
        let affordable = (left / self.max_receive_size).saturating_sub(posted);
        Room {
            sends,
            receives: receives.min(affordable),
        }
    }
}
