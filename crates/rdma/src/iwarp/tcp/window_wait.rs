//! The wait of a queue pair whose next record has no room in the receive window of the peer.
//!
//! Bytes that the window has no room for stay in the stream, because TCP would cut an FPDU at the end of the
//! window. TCP then has nothing to send, so the operating system neither reports that the window opens nor probes
//! a window that stays closed. A timer checks the window, and keepalive packets probe it.

use std::{future::Future, pin::Pin, task::Context, time::Duration};

use tokio::time::{Instant, Sleep, sleep};

use super::socket::Socket;

/// The shortest time between two checks of the window.
const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(1);
/// The longest time between two checks of the window.
const MAX_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// The fraction of the time waited so far after which the window is checked again.
const CHECK_INTERVAL_DIVISOR: u32 = 8;
/// The wait after which TCP probes the window.
const PROBE_DELAY: Duration = Duration::from_millis(500);
/// The wait after which alignment is given up for an FPDU that the open window has no room for.
const MAX_WAIT: Duration = Duration::from_secs(5);

/// A wait for the window of the peer.
pub(super) struct WindowWait {
    /// The start of the wait, on tokio's clock. On the system's clock, the intervals would stay at their minimum
    /// while a test pauses tokio's clock.
    since: Instant,
    timer: Pin<Box<Sleep>>,
    /// Whether TCP probes the window.
    probes: bool,
}

impl WindowWait {
    pub(super) fn new() -> Self {
        Self {
            since: Instant::now(),
            timer: Box::pin(sleep(MIN_CHECK_INTERVAL)),
            probes: false,
        }
    }

    /// Returns whether the peer has offered a window that is too small for too long.
    pub(super) fn is_overdue(&self) -> bool {
        self.since.elapsed() >= MAX_WAIT
    }

    /// Wakes the context when the window should be checked again.
    pub(super) fn poll(&mut self, socket: &Socket, context: &mut Context<'_>) {
        while self.timer.as_mut().poll(context).is_ready() {
            let waited = self.since.elapsed();
            if waited >= PROBE_DELAY && !self.probes {
                self.probes = socket.start_probing();
            }
            let interval =
                (waited / CHECK_INTERVAL_DIVISOR).clamp(MIN_CHECK_INTERVAL, MAX_CHECK_INTERVAL);
            self.timer.as_mut().reset(Instant::now() + interval);
        }
    }

    /// Ends the wait.
    pub(super) fn end(self, socket: &Socket) {
        if self.probes {
            socket.stop_probing();
        }
    }
}
