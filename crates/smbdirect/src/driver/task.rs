//! The driver task of a connection, which its socket and its timer wake.
//!
//! On a runtime with one thread, the task defers the work that a single message causes until the
//! futures that the message woke have run, because they usually send a reply.

use std::{
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::time::{Instant, Sleep, sleep_until};

use super::{
    clock::now, handover::delay_end_of_thread, rounds::COMPLETIONS_PER_ROUND, shared::Shared,
    turns::Turn,
};
use crate::runtime::{has_one_thread, take_deferred};

/// The driver task. It ends when the queue pair is disconnected and every orphaned registration is
/// released. If its runtime ends first, the runtime of the library continues with a new task.
#[derive(Debug)]
pub(crate) struct Driver {
    shared: Arc<Shared>,
    sleep: Pin<Box<Sleep>>,
    /// The runtime has one thread, so that a task that this one wakes runs after this one returns and
    /// before this one runs again. Tasks on other threads and the future given to `block_on` do not
    /// follow that order. Deferring work for them only makes this task run twice for a message.
    current_thread: bool,
    /// Whether a poll has begun and not returned: if the task is dropped then, the poll has panicked.
    in_poll: bool,
}

impl Driver {
    /// Spawns the task on the current tokio runtime.
    ///
    /// # Panics
    /// Panics outside a tokio runtime.
    pub(crate) fn spawn(shared: Arc<Shared>) {
        tokio::spawn(Self::new(shared));
    }

    /// Creates the task of the current tokio runtime.
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let sleep = Box::pin(sleep_until(Instant::now()));
        let current_thread = has_one_thread();
        if current_thread {
            shared.with(|state| state.turn = Turn::on_this_runtime());
        }
        Self {
            shared,
            sleep,
            current_thread,
            in_poll: false,
        }
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Self {
            shared,
            sleep,
            current_thread,
            in_poll,
        } = self.get_mut();
        *in_poll = true;
        let mut old = None;
        let polled = shared.with(|state| {
            if !state.task_waker.will_wake(context.waker()) {
                let waker = context.waker().clone();
                old = Some(mem::replace(&mut state.task_waker, waker));
            }
            state.wake_pending = false;
            if !state.turn.begin(context) {
                return Poll::Pending;
            }
            loop {
                let now = now();
                if state.engine.poll_timeout().is_some_and(|due| due <= now) {
                    state.handle_timers(now);
                }
                // The task reads the engine's deadline before it returns, so no drive has to wake it
                // for an earlier one.
                state.armed = Some(now);
                // Usually a message has arrived. The work that it causes leaves with the work that was
                // gathered for the task.
                state.begin_turn();
                let mut taken = state.take_completions(now, context, 1, false);
                if *current_thread && state.turn.allows_callers() && state.defer_work_for_reply() {
                    return Poll::Pending;
                }
                if taken > 0 {
                    taken += state.take_completions(now, context, COMPLETIONS_PER_ROUND - 1, false);
                }
                state.run_rounds(now, taken < COMPLETIONS_PER_ROUND);
                if state.finished && state.orphans.is_empty() {
                    return Poll::Ready(());
                }
                state.armed = state.engine.poll_timeout();
                let Some(due) = state.armed else {
                    return Poll::Pending;
                };
                let due = Instant::from_std(due);
                if sleep.deadline() > due || sleep.is_elapsed() {
                    sleep.as_mut().reset(due);
                } else {
                    // The timer stays set to an earlier deadline that no longer counts, and is set to
                    // the current one when it fires. Resetting it for each message would cost more.
                    state.armed = Some(sleep.deadline().into_std());
                }
                if sleep.as_mut().poll(context).is_pending() {
                    return Poll::Pending;
                }
            }
        });
        drop(old);
        // The runtime keeps the wake-ups that a task has deferred.
        take_deferred();
        *in_poll = false;
        polled
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let (mut turn, background) = self.shared.with(|state| {
            let turn = mem::take(&mut state.turn);
            if state.finished {
                return (turn, None);
            }
            // A task that panicked would panic again.
            let background = (!self.in_poll).then(|| state.change_runtime()).flatten();
            if background.is_none() {
                state.give_up();
            }
            (turn, background)
        });
        // This wakes the task of another connection, so it is done without the lock.
        turn.leave();
        if let Some(background) = background {
            let shared = self.shared.clone();
            background.spawn(async move { Self::new(shared).await });
            delay_end_of_thread(&self.shared);
        }
    }
}
