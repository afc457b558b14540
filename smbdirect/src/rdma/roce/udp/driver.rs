//! The task of a socket.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::time::sleep_until;

use super::shared::Shared;

/// A use of a socket. When nothing uses the socket any more, its task ends, after the connections
/// have ended at their peers.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) shared: Arc<Shared>,
}

/// How long the task waits if no timer is set.
const NO_TIMER: Duration = Duration::from_secs(3600);

impl Running {
    /// Starts the task of a new socket.
    pub(super) fn start(shared: Shared) -> Self {
        let shared = Arc::new(shared);
        shared.lock().users += 1;
        tokio::spawn(drive(shared.clone()));
        Self { shared }
    }

    /// Uses a socket whose task runs, or returns `None` if it has ended.
    pub(super) fn join(shared: Arc<Shared>) -> Option<Self> {
        let mut core = shared.lock();
        if core.has_stopped {
            return None;
        }
        core.users += 1;
        drop(core);
        Some(Self { shared })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shared.lock().users -= 1;
        self.shared.attention.notify_one();
    }
}

/// Receives, runs timers and continues to send, until the socket has no user and the endpoint has no
/// connection left.
async fn drive(shared: Arc<Shared>) {
    loop {
        let (deadline, is_blocked) = {
            shared.with_core(|core, now| core.endpoint.handle_timeout(now));
            let mut core = shared.lock();
            if core.users == 0 && core.endpoint.is_unused() {
                core.has_stopped = true;
                return;
            }
            (core.arm(), core.is_blocked())
        };
        let deadline = deadline.unwrap_or_else(|| Instant::now() + NO_TIMER);
        tokio::select! {
            ready = shared.socket.ready(is_blocked) => {
                if ready.is_ok() {
                    shared.receive_all();
                }
            }
            () = shared.attention.notified() => {}
            () = sleep_until(deadline.into()) => {}
        }
        // A steady flow of datagrams must not keep other tasks from running.
        tokio::task::consume_budget().await;
    }
}
