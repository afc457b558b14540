//! The tasks of a socket, one for each runtime that uses it.

use std::{
    future::pending,
    io,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use tokio::{runtime::Handle, task::spawn_blocking, time::sleep};

use super::shared::{Common, Shared};

/// A use of a socket. When nothing uses the socket any more, its tasks end, after the connections
/// have ended at their peers.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) shared: Arc<Shared>,
}

impl Running {
    /// Uses a socket in the current runtime, and starts the task of this runtime if there is none.
    pub(super) fn join(common: &Arc<Common>) -> io::Result<Self> {
        let runtime = Handle::current();
        let mut core = common.lock();
        let mut drivers = core.drivers.iter();
        let known = drivers.find(|(id, _)| *id == runtime.id());
        if let Some(shared) = known.and_then(|(_, shared)| shared.upgrade()) {
            core.users += 1;
            return Ok(Self { shared });
        }
        let shared = Arc::new(Shared::new(common.clone())?);
        core.users += 1;
        core.drivers.push((runtime.id(), Arc::downgrade(&shared)));
        // If the runtime has ended, `spawn` drops the task, and dropping the task takes the lock.
        drop(core);
        runtime.spawn(drive(Driver(shared.clone())));
        Ok(Self { shared })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut core = self.shared.lock();
        core.users -= 1;
        core.wake_drivers();
    }
}

/// The place of a task among the tasks of a socket. It becomes free when the task ends, or is dropped because its
/// runtime ends.
struct Driver(Arc<Shared>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.leave(&mut self.0.lock());
    }
}

/// Receives, runs timers and continues to send, until the socket has no user and the endpoint has no
/// connection left.
async fn drive(driver: Driver) {
    let shared = &driver.0;
    loop {
        shared.run_timers();
        let (deadline, is_blocked) = {
            let mut core = shared.lock();
            if core.users == 0 && core.endpoint.is_unused() {
                // The next user of the socket starts another task.
                shared.leave(&mut core);
                return;
            }
            (core.arm(), core.is_blocked())
        };
        tokio::select! {
            ready = shared.socket.ready(is_blocked) => {
                if ready.is_ok() {
                    shared.receive_all();
                }
            }
            () = shared.attention.notified() => {}
            () = sleep_until(deadline) => {}
        }
        // A steady flow of datagrams must not keep other tasks from running.
        tokio::task::consume_budget().await;
    }
}

/// Waits until a time of the system's clock, or for ever.
///
/// The timers of an endpoint use the system's clock, as those of the system's TCP do. The runtimes that use the
/// endpoint may have paused their clocks or advanced them, each to another time.
async fn sleep_until(deadline: Option<Instant>) {
    let Some(deadline) = deadline else {
        return pending().await;
    };
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        sleep(left).await;
        let left = deadline.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            // The clock of the runtime was advanced. It does not advance by itself while a blocking task runs.
            let part = left.min(MAX_BLOCKING_SLEEP);
            let _ = spawn_blocking(move || thread::sleep(part)).await;
        }
    }
}

/// The longest sleep of a blocking task. A runtime that ends waits for it.
const MAX_BLOCKING_SLEEP: Duration = Duration::from_millis(10);
