//! Poll rounds: each posts and flushes the work that the engine wants, then takes completions.

use std::{
    task::{Context, Poll},
    time::Instant,
};

use super::{clock::now, schedule::Flush, state::State, waiting::Condition};
use crate::rdma::work::{Completion, WorkRequest};

/// Largest number of completions that one round takes before it posts again.
pub(super) const COMPLETIONS_PER_ROUND: usize = 256;
/// Number of rounds of reading before the engine decides whether a deadline was missed. Each reads at least 256
/// KiB, if that much has arrived, and together they read more than the largest receive buffer of a socket on
/// Linux by default, 6 MiB.
const READS_BEFORE_DEADLINE: usize = 32;
/// Largest number of rounds of one drive. Other tasks run after it.
const ROUNDS_PER_DRIVE: usize = 2;

impl State {
    /// Flushes the `count` messages, reads and writes of `bytes` bytes in total that were just submitted, or leaves
    /// them to the driver task.
    pub(super) fn submitted(&mut self, count: usize, bytes: usize) {
        match self.schedule.submit(count, bytes) {
            Flush::Now { in_burst } => {
                // During a burst the driver task has not run, and this caller also takes the completions that
                // the task would have taken.
                self.drive_unless(!in_burst, now());
                self.schedule.flushed(now());
            }
            Flush::Task => self.wake_task(),
        }
    }

    /// Runs the engine and the queue pair in a call of a handle. The driver task does the work that is left after
    /// that.
    pub(super) fn drive(&mut self, now: Instant) {
        // The driver task has taken all earlier completions, or it is woken and will take them.
        self.drive_unless(true, now);
    }

    fn drive_unless(&mut self, drained: bool, now: Instant) {
        let waker = self.task_waker.clone();
        let all_done = self.run(now, &mut Context::from_waker(&waker), drained);
        // After bulk data, the task may poll rather than sleep.
        if self.end_poll() || !all_done {
            self.wake_task();
        }
    }

    /// Takes one completion, if there is one. `now` may be some spins old.
    ///
    /// The upper layer usually replies to a received message, so the work that the message causes is sent with
    /// the reply, or by the driver task. That task may not run while a future spins, so the next call of this
    /// function does that work first.
    pub(super) fn poll_once(&mut self, now: Instant) {
        if self.schedule.has_burst() || std::mem::take(&mut self.wake_pending) {
            self.drive(now);
        }
        if self.queue_pair.busy_poll() {
            let waker = self.task_waker.clone();
            let context = &mut Context::from_waker(&waker);
            self.schedule.begin_poll(false);
            self.take_completions(now, context, 1, false);
            self.wake_task();
        }
    }

    /// Records what this poll or call has moved, and whether a limit has ended it. Returns whether it has moved bulk
    /// data.
    pub(super) fn end_poll(&mut self) -> bool {
        let usage = self.queue_pair.usage();
        let all_moved = !self.schedule.is_over() && !self.queue_pair.needs_poll();
        self.schedule
            .end_poll(all_moved, usage.sent + usage.received)
    }

    /// Runs poll rounds until there is nothing to do or the poll is over, and returns whether there is nothing to
    /// do. `drained` is true if the caller has taken all earlier completions, so that only work that these
    /// rounds post can complete.
    #[inline(never)]
    pub(super) fn run(
        &mut self,
        now: Instant,
        context: &mut Context<'_>,
        mut drained: bool,
    ) -> bool {
        let sends_messages = self.engine.queued_messages() > 0;
        let until = match self.schedule.begin_poll(sends_messages) {
            Some(bytes) => self.queue_pair.usage().sent + bytes,
            None => u64::MAX,
        };
        self.schedule.begin_flush();
        if !drained {
            let taken = self.take_completions(now, context, COMPLETIONS_PER_ROUND, false);
            drained = taken < COMPLETIONS_PER_ROUND;
        }
        let mut all_done = false;
        for _ in 0..ROUNDS_PER_DRIVE {
            self.post_work(now);
            self.queue_pair.flush(context, until);
            if self.schedule.is_over() {
                break;
            }
            // The flush may have completed work. If it did not, the engine has no new work to post.
            let taken = self.take_completions(now, context, COMPLETIONS_PER_ROUND, drained);
            if taken == 0 {
                all_done = !self.queue_pair.needs_poll();
                break;
            }
            drained = taken < COMPLETIONS_PER_ROUND;
        }
        self.after_run();
        all_done
    }

    /// Takes all bytes that can be read, then handles the timers of the engine that are due.
    #[cold]
    pub(super) fn handle_timers(&mut self, now: Instant) {
        let all_read = self.take_readable(now);
        self.engine.postpone_deadlines(now, all_read);
        self.engine.handle_timeout(now);
        self.take_events();
    }

    /// Takes all bytes that can be read, including bytes that the runtime has not noticed yet. Returns whether
    /// nothing is left to read.
    pub(super) fn take_readable(&mut self, now: Instant) -> bool {
        let waker = self.task_waker.clone();
        let context = &mut Context::from_waker(&waker);
        for _ in 0..READS_BEFORE_DEADLINE {
            self.schedule.begin_poll(false);
            let before = self.queue_pair.usage().received;
            self.queue_pair.busy_poll();
            let taken = self.take_completions(now, context, COMPLETIONS_PER_ROUND, false);
            let after = self.queue_pair.usage().received;
            if taken == 0 && before == after {
                return true;
            }
        }
        false
    }

    /// Takes all bytes that can be read, and does the work that they cause, before a caller decides whether a
    /// deadline was missed. Returns whether nothing is left to read.
    pub(crate) fn catch_up(&mut self) -> bool {
        let now = now();
        let all_read = self.take_readable(now);
        self.drive(now);
        all_read
    }

    /// Takes up to `limit` completions, stops early when the poll is over, and returns how many it took. If
    /// `drained` is true, only work that was posted in this round can have completed.
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
            && !self.schedule.is_over()
            && (!drained || self.queue_pair.needs_poll())
        {
            let polled = self.queue_pair.poll_completion(context);
            match &polled {
                // A header is not counted, because the message that follows it is counted.
                Poll::Ready(Completion::Head(_)) => {}
                Poll::Ready(completion) => {
                    taken += 1;
                    if let Completion::Disconnected(how) = completion {
                        self.finish(how);
                    }
                }
                Poll::Pending => {
                    self.inbox.set_lent(self.queue_pair.usage().lent, true);
                    return taken;
                }
            }
            if let Poll::Ready(completion) = polled {
                self.engine.handle_completion(now, completion);
            }
            self.take_events();
        }
        if taken > 0 {
            let is_drained = drained && !self.queue_pair.needs_poll();
            self.inbox
                .set_lent(self.queue_pair.usage().lent, is_drained);
        }
        taken
    }

    /// Posts the work that the engine wants, as far as there is room.
    fn post_work(&mut self, now: Instant) {
        if self.engine.is_idle() {
            return;
        }
        self.engine.set_unread(self.inbox.cost());
        let mut room = self.queue_pair.room();
        loop {
            let next = self.engine.poll_work(now, room);
            match &next {
                Some(WorkRequest::Receive { count, .. }) => room.receives -= *count as usize,
                Some(_) => {
                    room.sends -= 1;
                    self.schedule.flushed(now);
                }
                None => break,
            }
            // This is a second match, because binding the request in the first one would move it twice.
            if let Some(work) = next {
                self.queue_pair.post(work);
            }
        }
        self.take_events();
    }

    /// Ends a run: releases orphaned registrations, and wakes the futures and the driver task if they have to
    /// act.
    fn after_run(&mut self) {
        self.starved = self.engine.wants_receives();
        if !self.orphans.is_empty() {
            self.reclaim_orphans();
        }
        // Credits may arrive without a message, and the last queued message may leave. Neither is an
        // event of the engine.
        self.wake_if_ready();
        self.wake(Condition::Release);
        let due = self.engine.poll_timeout();
        if due.is_some_and(|due| self.armed.is_none_or(|armed| due < armed)) || self.finished {
            self.wake_task();
        }
    }
}
