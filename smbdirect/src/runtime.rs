//! What the async layer asks of the runtime beyond its documented interface.

use std::{future::Future, pin::pin, task::Context};

use tokio::task::yield_now;

/// Wakes the task of `context` after the runtime has run other tasks and polled its sockets, or
/// immediately on a thread without a runtime.
///
/// This relies on a detail of tokio that its documentation does not promise: the future of
/// [`yield_now`] hands the waker to the runtime in its first poll, and the runtime wakes it even if
/// the future is dropped afterwards. Waking the task directly would let the runtime poll its sockets
/// only every few dozen task switches, which starves tasks that wait for one.
pub(crate) fn wake_after_io_poll(context: &mut Context<'_>) {
    // The first poll is always pending.
    let _ = pin!(yield_now()).poll(context);
}
