//! Busy-polling: a receiving future polls the queue pair for a limited time before it sleeps, because
//! a wake-up takes longer than many round trips.

use std::{
    future::poll_fn,
    hint::spin_loop,
    mem,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use super::{
    clock::now,
    shared::{Registered, Shared},
    state::State,
    waiting::Condition,
};

/// Number of spins between two reads of the clock. A read takes about a quarter of the time of a spin.
const SPINS_PER_CLOCK_READ: u32 = 16;

impl Shared {
    /// Waits until `poll` returns a value, as [`wait`](Self::wait) does, and busy-polls before it sleeps.
    pub(crate) async fn busy_wait<R>(
        &self,
        condition: Condition,
        mut poll: impl FnMut(&mut State) -> Option<R>,
    ) -> R {
        let mut registered = Registered::new(self, condition);
        poll_fn(|context| {
            // This is dropped after the lock is released, because a waker may own the last handle of the
            // connection.
            let mut old = None;
            self.spin(&mut poll, |state, waits| {
                old = registered.update(state, context, waits);
            })
        })
        .await
    }

    /// Returns the value of `poll`, as [`poll`](Self::poll) does, and busy-polls before it registers
    /// `context`.
    pub(crate) fn busy_poll<R>(
        &self,
        context: &mut Context<'_>,
        condition: Condition,
        poll: impl FnMut(&mut State) -> Option<R>,
    ) -> Poll<R> {
        self.spin(poll, |state, waits| {
            if waits {
                state.waiting.list(condition).add_task(context.waker());
            }
        })
    }

    /// Returns the value of `poll`. If it has none, drives the connection and asks again until the spin
    /// window of the connection closes. Before this returns, it calls `settle` with whether the caller has
    /// to wait.
    fn spin<R>(
        &self,
        mut poll: impl FnMut(&mut State) -> Option<R>,
        mut settle: impl FnMut(&mut State, bool),
    ) -> Poll<R> {
        let mut window: Option<SpinWindow> = None;
        loop {
            let polled = self.with(|state| {
                if let Some(window) = &window {
                    state.poll_once(window.now);
                }
                if let Some(result) = poll(state) {
                    settle(state, false);
                    return Some(Poll::Ready(result));
                }
                if !state.busy_poll.is_zero()
                    && window
                        .get_or_insert_with(|| SpinWindow::new(state.busy_poll))
                        .is_open()
                {
                    return None;
                }
                settle(state, true);
                Some(Poll::Pending)
            });
            if let Some(polled) = polled {
                return polled;
            }
            spin_loop();
        }
    }
}

impl State {
    /// Takes one completion, if there is one. `now` may be some spins old.
    ///
    /// The upper layer usually replies to a received message, so the work that the message causes leaves with the
    /// reply, or is left to the driver task. That task may not run while a future spins, so the next call does
    /// the work that was left to the task.
    fn poll_once(&mut self, now: Instant) {
        if self.schedule.has_burst() || mem::take(&mut self.wake_pending) {
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
}

/// The time for which a future spins before it sleeps.
#[derive(Debug)]
pub(super) struct SpinWindow {
    spins: u32,
    opened: Instant,
    length: Duration,
    /// The time at the last read of the clock.
    now: Instant,
}

impl SpinWindow {
    pub(super) fn new(length: Duration) -> Self {
        let now = now();
        Self {
            spins: 0,
            opened: now,
            length,
            now,
        }
    }

    /// Counts a spin and returns whether the window is still open.
    pub(super) fn is_open(&mut self) -> bool {
        if self.spins % SPINS_PER_CLOCK_READ == 1 {
            self.now = now();
        }
        self.spins = self.spins.wrapping_add(1);
        self.now.saturating_duration_since(self.opened) < self.length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn spin_window_closes_at_its_deadline() {
        let spins = |window: &mut SpinWindow| (0..1000).take_while(|_| window.is_open()).count();
        assert_eq!(spins(&mut SpinWindow::new(Duration::ZERO)), 0);
        assert_eq!(spins(&mut SpinWindow::new(Duration::MAX)), 1000);
        let mut window = SpinWindow::new(Duration::from_micros(50));
        assert_eq!(spins(&mut window), 1000);
        tokio::time::advance(Duration::from_micros(49)).await;
        assert_eq!(spins(&mut window), 1000);
        tokio::time::advance(Duration::from_micros(1)).await;
        assert!(spins(&mut window) < SPINS_PER_CLOCK_READ as usize);
        // A window that is over after the first spin closes at the second.
        let mut window = SpinWindow::new(Duration::from_nanos(1));
        tokio::time::advance(Duration::from_micros(1)).await;
        assert_eq!(spins(&mut window), 1);
    }
}
