//! The calls that wait on a handle, and the rule of its end.
//!
//! A handle ends when the program frees it or closes everything ([`Calls::end`]). The calls that wait on it then
//! return [`SMBDIRECT_ERROR_ABORTED`], and so do later ones. What the end of a handle does to its object, such as
//! closing the connection, begins after the last of these calls has returned ([`Calls::left`]). No call can see it.

use std::sync::{Mutex, MutexGuard};

use tokio::sync::{Notify, SetOnce};

use crate::{
    locks::lock,
    status::{Failure, SMBDIRECT_ERROR_ABORTED},
};

/// The calls that wait on one handle.
#[derive(Default)]
pub(crate) struct Calls {
    state: Mutex<State>,
    /// Set when the handle ends.
    ended: SetOnce<()>,
    /// Notified when the last call has returned after the end.
    left: Notify,
}

#[derive(Default)]
struct State {
    waiting: usize,
    has_ended: bool,
}

/// One call that waits.
struct Call<'a>(&'a Calls);

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.waiting -= 1;
        if state.waiting == 0 && state.has_ended {
            drop(state);
            self.0.left.notify_waiters();
        }
    }
}

impl Calls {
    /// Waits for `future`, or until the handle ends.
    ///
    /// # Errors
    /// The handle has ended.
    pub(crate) async fn wait<T>(&self, future: impl Future<Output = T>) -> Result<T, Failure> {
        let _call = self.enter()?;
        tokio::select! {
            biased;
            value = future => Ok(value),
            _ = self.ended.wait() => Err(ended_failure()),
        }
    }

    fn enter(&self) -> Result<Call<'_>, Failure> {
        let mut state = self.state();
        if state.has_ended {
            return Err(ended_failure());
        }
        state.waiting += 1;
        Ok(Call(self))
    }

    /// Ends the handle.
    pub(crate) fn end(&self) {
        self.state().has_ended = true;
        // The program may free a handle after it has closed everything.
        let _ = self.ended.set(());
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.state().has_ended
    }

    /// Waits until the handle ends.
    pub(crate) async fn ended(&self) {
        self.ended.wait().await;
    }

    /// Waits until no call waits. New ones cannot come after the end.
    pub(crate) async fn left(&self) {
        loop {
            let left = self.left.notified();
            if self.state().waiting == 0 {
                return;
            }
            left.await;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// Returns the failure of a call on a handle that ends.
pub(crate) fn ended_failure() -> Failure {
    Failure::new(
        SMBDIRECT_ERROR_ABORTED,
        "the handle was freed, or everything was closed, during the call",
    )
}
