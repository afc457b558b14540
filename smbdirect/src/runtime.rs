//! What the async layer needs of the runtime and of sockets that their interfaces do not offer.

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Wake, Waker},
};

pub(crate) use tokio::runtime::Id;
use tokio::{runtime::Handle, task::yield_now};

/// The flag of a send after which a peer that is gone is an error instead of SIGPIPE. Programs in Rust ignore that
/// signal, and others, which have this library within them, end at it. Apple's systems have a socket option
/// instead, which tokio sets.
pub(crate) const MSG_NOSIGNAL: i32 = if cfg!(any(target_os = "linux", target_os = "android")) {
    0x4000
} else if cfg!(any(target_os = "freebsd", target_os = "dragonfly")) {
    0x20000
} else if cfg!(any(target_os = "openbsd", target_os = "netbsd")) {
    0x400
} else {
    0
};

/// Returns the runtime that runs on this thread, if there is one.
pub(crate) fn current() -> Option<Id> {
    Handle::try_current().ok().map(|runtime| runtime.id())
}

/// Wakes the task of `context` after the runtime has run other tasks and polled its sockets, or
/// immediately on a thread without a runtime.
///
/// Waking the task directly would let the runtime poll its sockets only every few dozen task switches, which
/// starves tasks that wait for one.
pub(crate) fn wake_after_io_poll(context: &mut Context<'_>) {
    let waker = context.waker().clone();
    run_after_io_poll(move || waker.wake_by_ref());
}

/// Runs `action` once after the runtime has run other tasks and polled its sockets, or immediately on a thread
/// without a runtime. `action` must not call this function.
///
/// This relies on a detail of tokio that its documentation does not promise: the future of
/// [`yield_now`] hands the waker to the runtime in its first poll, and the runtime wakes it even if
/// the future is dropped afterwards. If `block_on` returns first, the runtime drops the waker, which runs `action`
/// too.
pub(crate) fn run_after_io_poll(action: impl Fn() + Send + Sync + 'static) {
    let waker = Waker::from(Arc::new(OnDrop(action)));
    // The first poll is always pending.
    let _ = pin!(yield_now()).poll(&mut Context::from_waker(&waker));
}

/// Runs an action when the last of its wakers is woken or dropped.
struct OnDrop<F: Fn()>(F);

impl<F: Fn() + Send + Sync + 'static> Wake for OnDrop<F> {
    fn wake(self: Arc<Self>) {}
}

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::poll_fn,
        mem,
        sync::{Arc, Mutex},
        task::{Context, Poll, Waker},
    };

    use tokio::{runtime, task::yield_now};

    use super::wake_after_io_poll;

    /// `block_on` may return as soon as its future has asked for the wake-up of a task. The task runs in the next
    /// `block_on`.
    #[test]
    fn a_wake_up_outlives_block_on() {
        let runtime = runtime::Builder::new_current_thread().build().unwrap();
        let waker = Arc::new(Mutex::new(None::<Waker>));
        let known = waker.clone();
        let task = runtime.block_on(async {
            let mut waits = true;
            let task = tokio::spawn(poll_fn(move |context| {
                *known.lock().unwrap() = Some(context.waker().clone());
                match mem::replace(&mut waits, false) {
                    true => Poll::Pending,
                    false => Poll::Ready(()),
                }
            }));
            yield_now().await;
            let waker = waker.lock().unwrap().take();
            wake_after_io_poll(&mut Context::from_waker(&waker.unwrap()));
            Some(task)
        });
        runtime.block_on(async {
            for _ in 0..10 {
                yield_now().await;
            }
        });
        assert!(task.is_some_and(|task| task.is_finished()));
    }
}
