//! How a queue pair waits: for its socket, and for its next turn.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Context,
};

use tokio::{
    io::Interest,
    net::TcpStream,
    task::{unconstrained, yield_now},
};

/// Returns whether the socket is ready or in error. If not, the context is woken when it is.
///
/// The check is exempt from tokio's cooperative budget. A task that sends without a pause would
/// otherwise use up its budget and then find no socket ready. The queue pair itself limits the work
/// of one call.
pub(super) fn ready(stream: &TcpStream, interest: Interest, context: &mut Context<'_>) -> bool {
    // The socket is mostly known to be ready, and no waker has to be registered.
    if stream.try_io(interest, || Ok(())).is_ok() {
        return true;
    }
    let once = pin!(unconstrained(poll_fn(|context| match interest {
        Interest::READABLE => stream.poll_read_ready(context),
        _ => stream.poll_write_ready(context),
    })));
    once.poll(context).is_ready()
}

/// Wakes the current task after the runtime has run other tasks and polled its I/O driver.
///
/// This relies on a detail of tokio that its documentation does not promise: the future of
/// [`yield_now`] registers the waker of the task in its first poll, and it wakes that task even if
/// the future is dropped afterwards. Waking the task directly would let the runtime poll sockets
/// only every few dozen task switches, which starves tasks that wait for one.
pub(super) fn yield_to_runtime(context: &mut Context<'_>) {
    let once = pin!(yield_now());
    // The first poll is always pending.
    let _ = once.poll(context);
}
