//! Startup probes: zero-length Writes that make an iWARP peer read its connection again.
//!
//! Linux' software iWARP can overlook a message that arrives between its answer and the moment the
//! connection is established. It looks at its receive queue again when more bytes arrive, so this
//! end writes zero bytes a few times until the peer has sent something.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::{Instant, Sleep, sleep};

/// How long an iWARP peer may be silent before a startup probe, and between two probes.
const PROBE_INTERVAL: Duration = Duration::from_millis(250);
/// Startup probes of a connection whose peer stays silent.
const PROBE_COUNT: u32 = 3;

/// The remaining startup probes of a connection whose peer has not sent anything yet.
pub(super) struct StartupProbes {
    left: u32,
    timer: Pin<Box<Sleep>>,
}

impl StartupProbes {
    /// Starts the timer of the first probe in the current runtime.
    pub(super) fn new() -> Self {
        Self {
            left: PROBE_COUNT,
            timer: Box::pin(sleep(PROBE_INTERVAL)),
        }
    }

    /// Returns `Ready` when a probe is due, and starts the timer of the next.
    pub(super) fn poll_due(&mut self, context: &mut Context<'_>) -> Poll<()> {
        std::task::ready!(self.timer.as_mut().poll(context));
        self.left -= 1;
        self.timer.as_mut().reset(Instant::now() + PROBE_INTERVAL);
        Poll::Ready(())
    }

    /// Returns whether all probes were due.
    pub(super) const fn is_finished(&self) -> bool {
        self.left == 0
    }
}
