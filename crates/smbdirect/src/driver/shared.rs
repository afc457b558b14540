//! The mutex around a connection's state, and the wake-ups that follow its release.

use std::{
    future::poll_fn,
    mem,
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Poll, Waker},
};

use super::{state::State, waiting::Condition};
use crate::{engine, rdma::provider::Connected, waiters::Place};

/// The state that the handles and the driver task of one connection share.
#[derive(Debug)]
pub(crate) struct Shared {
    state: Mutex<State>,
}

impl Shared {
    pub(crate) fn new(engine: engine::Connection, connected: Connected) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State::new(engine, connected)),
        })
    }

    /// Runs `action` under the lock, then wakes the futures and tasks that it affects.
    pub(crate) fn with<R>(&self, action: impl FnOnce(&mut State) -> R) -> R {
        // `unwinding` is dropped only if `action` panics, and then after the guard of the lock.
        let unwinding = EndOnUnwind(self);
        let mut state = self.lock();
        let result = action(&mut state);
        mem::forget(unwinding);
        if state.wakes.is_empty() {
            return result;
        }
        let mut wakes = mem::take(&mut state.wakes);
        drop(state);
        for waker in wakes.drain(..) {
            waker.wake();
        }
        // Return the empty list for its capacity, unless the state has allocated another one.
        if let Ok(mut state) = self.state.try_lock()
            && state.wakes.capacity() == 0
        {
            state.wakes = wakes;
        }
        result
    }

    /// Takes the lock. After a panic under the lock, in the destructor of a payload or by a bug of this crate,
    /// the connection ends: its work may be half done, and the handles must not panic as well.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| {
            self.state.clear_poison();
            let mut state = poisoned.into_inner();
            state.end_after_panic();
            state
        })
    }

    /// Waits until `poll` returns a value. `poll` runs under the lock, at the first poll of the future and
    /// each time that `condition` holds or the connection ends.
    pub(crate) async fn wait<R>(
        &self,
        condition: Condition,
        mut poll: impl FnMut(&mut State) -> Option<R>,
    ) -> R {
        let mut registered = Registered::new(self, condition);
        poll_fn(|context| {
            // The old waker is dropped after the lock is released, because it may own the last handle of the
            // connection.
            let mut old = None;
            self.with(|state| {
                let result = poll(state);
                old = registered.update(state, context, result.is_none());
                result.map_or(Poll::Pending, Poll::Ready)
            })
        })
        .await
    }

    /// Returns the value of `poll`. If it has none, registers `context` to be woken at `condition` and at
    /// the end of the connection.
    pub(crate) fn poll<R>(
        &self,
        context: &mut Context<'_>,
        condition: Condition,
        poll: impl FnOnce(&mut State) -> Option<R>,
    ) -> Poll<R> {
        self.with(|state| match poll(state) {
            Some(result) => Poll::Ready(result),
            None => {
                state.waiting.list(condition).add_task(context.waker());
                Poll::Pending
            }
        })
    }
}

/// Takes the lock again after a panic under it. This ends the connection and wakes all futures that wait.
struct EndOnUnwind<'a>(&'a Shared);

impl Drop for EndOnUnwind<'_> {
    fn drop(&mut self) {
        self.0.with(|_| ());
    }
}

/// The registration of a waiting future. Dropping it removes the waker of the future.
pub(super) struct Registered<'a> {
    shared: &'a Shared,
    condition: Condition,
    place: Option<Place>,
}

impl<'a> Registered<'a> {
    pub(super) const fn new(shared: &'a Shared, condition: Condition) -> Self {
        Self {
            shared,
            condition,
            place: None,
        }
    }

    /// Returns the place of the future in the list of its condition, if it waits.
    pub(super) const fn place(&self) -> Option<Place> {
        self.place
    }

    /// Registers the waker of `context` if the future waits, or removes the waker of an earlier poll. Returns the
    /// waker that is not registered any more, which the caller drops without the lock.
    #[inline]
    pub(super) fn update(
        &mut self,
        state: &mut State,
        context: &Context<'_>,
        waits: bool,
    ) -> Option<Waker> {
        let list = state.waiting.list(self.condition);
        if waits {
            return list.add_future(&mut self.place, context.waker());
        }
        list.remove(self.place.take())
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            let remove = |state: &mut State| {
                let waker = state.waiting.list(self.condition).remove(Some(place));
                // A message for which this future was woken is for the next one.
                state.wake_receivers();
                waker
            };
            drop(self.shared.with(remove));
        }
    }
}
