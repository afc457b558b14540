//! The end of a runtime: its connections continue on the runtime of the library, so that what was submitted is
//! still sent, and the thread that ended the runtime waits for those that are closing.
//!
//! A process ends with its first thread. Without that wait, a program that sends, drops its handles and returns
//! from `main` would lose what TCP has not delivered: a socket that the system closes while the peer still sends
//! discards that data.

use std::{
    cell::RefCell,
    future::Future,
    pin::pin,
    sync::{Arc, Weak},
    task::{Context, Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use tokio::runtime::Handle;

use super::{shared::Shared, state::State, waiting::Condition};
use crate::rdma::runtime::background;

/// Longest time that the end of a thread is delayed. A connection whose close takes longer is not waited for.
const MAX_END_DELAY: Duration = Duration::from_secs(5);

/// Moves the connection to the runtime of the library, and returns that runtime, or `None` if this is not possible.
pub(super) fn change_runtime(state: &mut State) -> Option<Handle> {
    let background = background()?;
    let entered = background.enter();
    state.lost_runtime = state.queue_pair.change_runtime();
    drop(entered);
    state.lost_runtime.then_some(background)
}

/// Makes this thread wait at its end until the connection has closed, if the close is under way then.
pub(crate) fn delay_end_of_thread(shared: &Arc<Shared>) {
    // The destructor of another thread-local value may call this after the list was destroyed.
    let _ = ENDING.try_with(|ending| {
        let mut connections = ending.0.borrow_mut();
        if connections.len() == connections.capacity() {
            connections.retain(|connection| connection.strong_count() > 0);
        }
        connections.push(Arc::downgrade(shared));
    });
}

thread_local! {
    static ENDING: Ending = const { Ending(RefCell::new(Vec::new())) };
}

/// The connections for which a thread waits when it ends.
struct Ending(RefCell<Vec<Weak<Shared>>>);

impl Drop for Ending {
    fn drop(&mut self) {
        // On Windows, all other threads have ended before the destructors of the first thread run, so nothing
        // would complete the close.
        if cfg!(windows) {
            return;
        }
        let deadline = Instant::now() + MAX_END_DELAY;
        for connection in self.0.take().iter().filter_map(Weak::upgrade) {
            wait_for_end(&connection, deadline);
        }
    }
}

/// Blocks while the close of a connection is under way, and at most until `deadline`.
fn wait_for_end(connection: &Shared, deadline: Instant) {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut over =
        pin!(connection.wait(Condition::End, |state| (!state.is_ending()).then_some(())));
    while over.as_mut().poll(&mut context).is_pending() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        thread::park_timeout(left);
    }
}

/// Wakes a thread that is parked.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
