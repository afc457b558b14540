//! Busy-polling: a receiving future polls the queue pair for a limited time before it sleeps, because
//! a wake-up takes longer than many round trips.

use std::{
    future::poll_fn,
    hint::spin_loop,
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
    /// Waits until `poll` returns a value, as [`wait`](Self::wait) does, and busy-polls before it sleeps. `poll` gets the
    /// number of futures that have waited for `condition` for longer.
    pub(crate) async fn busy_wait<R>(
        &self,
        condition: Condition,
        mut poll: impl FnMut(&mut State, usize) -> Option<R>,
    ) -> R {
        let mut registered = Registered::new(self, condition);
        poll_fn(|context| {
            // The old waker is dropped after the lock is released, because it may own the last handle of the
            // connection.
            let mut old = None;
            let place = registered.place();
            let poll = |state: &mut State| {
                let ahead = state.waiting.list(condition).ahead(place);
                poll(state, ahead)
            };
            self.spin(poll, |state, waits| {
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
                        .get_or_insert_with(|| SpinWindow::new(state.busy_poll, Instant::now()))
                        .is_open(Instant::now)
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

/// The time for which a future spins before it sleeps. It is real time: tokio's clock may be paused, and then does not
/// move while a task runs.
#[derive(Debug)]
pub(super) struct SpinWindow {
    spins: u32,
    opened: Instant,
    length: Duration,
    /// Whether the window was open at the last read of the clock.
    is_open: bool,
    /// The time of tokio's clock at that read.
    now: Instant,
}

impl SpinWindow {
    fn new(length: Duration, opened: Instant) -> Self {
        Self {
            spins: 0,
            opened,
            length,
            is_open: !length.is_zero(),
            now: now(),
        }
    }

    /// Counts a spin and returns whether the window is still open. `clock` returns the real time.
    fn is_open(&mut self, clock: impl FnOnce() -> Instant) -> bool {
        if self.spins % SPINS_PER_CLOCK_READ == 1 {
            self.is_open = clock().saturating_duration_since(self.opened) < self.length;
            self.now = now();
        }
        self.spins = self.spins.wrapping_add(1);
        self.is_open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spin_window_closes_at_its_deadline() {
        let opened = Instant::now();
        let spins = |window: &mut SpinWindow, micros| {
            let clock = || opened + Duration::from_micros(micros);
            (0..1000).take_while(|_| window.is_open(clock)).count()
        };
        let window = |length| SpinWindow::new(length, opened);
        assert_eq!(spins(&mut window(Duration::ZERO), 0), 0);
        assert_eq!(spins(&mut window(Duration::MAX), 0), 1000);
        let mut short = window(Duration::from_micros(50));
        assert_eq!(spins(&mut short, 0), 1000);
        assert_eq!(spins(&mut short, 49), 1000);
        assert!(spins(&mut short, 50) < SPINS_PER_CLOCK_READ as usize);
        // A window that is over after the first spin closes at the second.
        assert_eq!(spins(&mut window(Duration::from_nanos(1)), 1), 1);
    }
}
