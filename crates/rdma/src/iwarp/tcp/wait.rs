//! How a queue pair waits for its socket and its timers.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Context,
};

use tokio::{io::Interest, net::TcpStream, runtime::Handle, task::unconstrained};

/// Returns whether the socket is ready or in error. If not, the context is woken when it is.
///
/// The check is exempt from tokio's cooperative budget. A task that sends without a pause would
/// otherwise use up its budget and then find no socket ready. The queue pair itself limits the work
/// of one call.
pub(super) fn ready(stream: &TcpStream, interest: Interest, context: &mut Context<'_>) -> bool {
    // Usually the socket is known to be ready, and no waker has to be registered.
    if stream.try_io(interest, || Ok(())).is_ok() {
        return true;
    }
    let once = pin!(unconstrained(poll_fn(|context| match interest {
        Interest::READABLE => stream.poll_read_ready(context),
        _ => stream.poll_write_ready(context),
    })));
    once.poll(context).is_ready()
}

/// Calls `create`, which creates a timer, in `runtime`. The caller may be in another runtime, which can end
/// earlier.
pub(super) fn in_runtime<T>(runtime: &Handle, create: impl FnOnce() -> T) -> T {
    let _runtime = runtime.enter();
    create()
}
