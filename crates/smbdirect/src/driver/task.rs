//! The driver task of a connection, which its socket and its timer wake.

use std::{
    future::{Future, poll_fn},
    mem,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Waker},
};

use tokio::{
    task::yield_now,
    time::{Instant, Sleep, sleep_until},
};

use super::{
    clock::now,
    handover::{change_runtime, delay_end_of_thread},
    shared::Shared,
    state::State,
};

/// The driver task. It ends when the queue pair is disconnected and every orphaned registration is
/// released. If its runtime ends first, the runtime of the library continues with a new task.
#[derive(Debug)]
pub(crate) struct Driver {
    shared: Arc<Shared>,
    /// Whether a poll has begun and not returned: if the task is dropped then, the poll has panicked.
    in_poll: bool,
}

/// The action of the task after a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// Waits until something wakes it.
    Sleep,
    /// Polls again after the runtime has run other tasks and polled its sockets.
    Poll,
    /// Ends.
    End,
}

impl Driver {
    /// Spawns the task on the current tokio runtime.
    ///
    /// # Panics
    /// Panics outside a tokio runtime.
    pub(crate) fn spawn(shared: Arc<Shared>) {
        tokio::spawn(Self::new(shared).run());
    }

    /// Creates the task of the current tokio runtime.
    fn new(shared: Arc<Shared>) -> Self {
        shared.with(|state| state.schedule.join_runtime());
        Self {
            shared,
            in_poll: false,
        }
    }

    async fn run(mut self) {
        let mut sleep = pin!(sleep_until(Instant::now()));
        loop {
            let takes_turns = self.shared.with(|state| state.schedule.takes_turns());
            let next = if takes_turns {
                // In a box, because the task of an idle connection needs no room for it.
                Box::pin(self.take_turn(sleep.as_mut())).await
            } else {
                let poll = poll_fn(|context| Poll::Ready(self.poll(context, sleep.as_mut())));
                let next = poll.await;
                if next == Next::Poll {
                    yield_now().await;
                }
                next
            };
            match next {
                Next::End => return,
                Next::Sleep => sleep_once().await,
                Next::Poll => {}
            }
        }
    }

    /// Waits for the turn of this connection, and polls.
    async fn take_turn(&mut self, mut sleep: Pin<&mut Sleep>) -> Next {
        let Some(crowd) = self.shared.with(|state| state.schedule.crowd()) else {
            return Next::Poll;
        };
        let _turn = crowd.turn().await;
        let poll = poll_fn(|context| Poll::Ready(self.poll(context, sleep.as_mut())));
        let next = poll.await;
        if next == Next::Poll {
            yield_now().await;
            // The runtime has polled its sockets. The turn continues until the tasks that the runtime has just woken
            // have run, so that they do not have to wait for the next turn.
            yield_now().await;
        }
        next
    }

    /// Polls once. Unless the result is [`Next::Poll`], the waker of `context` is called when there is more to
    /// do.
    fn poll(&mut self, context: &mut Context<'_>, sleep: Pin<&mut Sleep>) -> Next {
        self.in_poll = true;
        let mut old = None;
        let next = self.shared.with(|state| {
            if !state.task_waker.will_wake(context.waker()) {
                let waker = context.waker().clone();
                old = Some(mem::replace(&mut state.task_waker, waker));
            }
            state.wake_pending = false;
            state.poll_task(context, sleep)
        });
        drop(old);
        self.in_poll = false;
        next
    }
}

/// Waits until the task is woken.
async fn sleep_once() {
    let mut woken = false;
    poll_fn(|_| {
        if mem::replace(&mut woken, true) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

impl State {
    fn poll_task(&mut self, context: &mut Context<'_>, mut sleep: Pin<&mut Sleep>) -> Next {
        loop {
            let now = now();
            if self.engine.poll_timeout().is_some_and(|due| due <= now) {
                self.handle_timers(now);
            }
            // The task reads the engine's deadline at the end of this poll, so no drive has to wake it for an
            // earlier deadline.
            self.armed = Some(now);
            let is_turn = self.schedule.takes_turns();
            // While the task polls without sleeping, the peer and the runtime need not wake it.
            let is_polling = self.schedule.is_polling();
            let all_done = if is_polling {
                self.run(now, &mut Context::from_waker(Waker::noop()), false)
            } else {
                self.run(now, context, false)
            };
            if self.finished && self.orphans.is_empty() {
                return Next::End;
            }
            let is_bulk = self.end_poll();
            if !all_done || is_turn && is_bulk || self.polls_again() {
                return Next::Poll;
            }
            if !is_polling && self.arm(context, sleep.as_mut()) {
                return Next::Sleep;
            }
        }
    }

    /// Returns whether the task is to poll again although nothing is left to do.
    fn polls_again(&mut self) -> bool {
        let usage = self.queue_pair.usage();
        self.schedule.polls_again(usage.sent, usage.received)
    }

    /// Sets the timer of the task to the deadline of the engine. Returns false if that deadline has passed.
    fn arm(&mut self, context: &mut Context<'_>, mut sleep: Pin<&mut Sleep>) -> bool {
        self.armed = self.engine.poll_timeout();
        let Some(due) = self.armed else { return true };
        let due = Instant::from_std(due);
        if sleep.deadline() > due || sleep.is_elapsed() {
            sleep.as_mut().reset(due);
        } else {
            // The timer stays set to an earlier deadline that no longer counts, and is set to
            // the current one when it fires. Resetting it for each message would cost more.
            self.armed = Some(sleep.deadline().into_std());
        }
        sleep.poll(context).is_pending()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let background = self.shared.with(|state| {
            if state.finished {
                return None;
            }
            // A task that panicked would panic again.
            let background = (!self.in_poll).then(|| change_runtime(state)).flatten();
            if background.is_none() {
                state.give_up();
            }
            background
        });
        if let Some(background) = background {
            let shared = self.shared.clone();
            background.spawn(async move { Self::new(shared).run().await });
            delay_end_of_thread(&self.shared);
        }
    }
}
