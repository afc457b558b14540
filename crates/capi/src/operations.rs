//! Operations that were started, and the callbacks of those that are over.

use std::{
    collections::VecDeque,
    ffi::c_void,
    ptr,
    sync::{Arc, Mutex, MutexGuard},
    thread::{self, ThreadId},
};

use tokio::sync::Notify;

use crate::{
    buffer::{Owned, smbdirect_buffer},
    calls::ended_failure,
    events::Events,
    locks::lock,
    status::{Failure, set_errno, smbdirect_error},
};

/// The function that receives the result of an operation of a handle.
type Function<H> = Option<
    unsafe extern "C" fn(
        handle: *mut H,
        error: *const smbdirect_error,
        buffer: *mut smbdirect_buffer,
        user_data: *mut c_void,
    ),
>;

/// The information that a program receives when an operation is over.
pub(crate) struct Callback<H> {
    function: Function<H>,
    user_data: *mut c_void,
}

// SAFETY: the pointer is only handed back to the program, on the thread that calls the library.
unsafe impl<H> Send for Callback<H> {}

impl<H> Callback<H> {
    pub(crate) fn new(function: Function<H>, user_data: *mut c_void) -> Self {
        Self {
            function,
            user_data,
        }
    }
}

/// An operation that is over.
struct Completed<H> {
    callback: Callback<H>,
    result: Result<(), Failure>,
    buffer: Option<Owned>,
}

/// The operations of a handle of the type `H`.
pub(crate) struct Operations<H> {
    events: Arc<Events>,
    state: Mutex<State<H>>,
    /// Notified when an operation is over, or a callback has returned.
    completion: Notify,
}

struct State<H> {
    /// Operations that are not over.
    outstanding: usize,
    completed: VecDeque<Completed<H>>,
    /// The threads that are in a callback.
    calling: Vec<ThreadId>,
}

/// An operation that was started. Dropping it means that it was not submitted.
pub(crate) struct Started<H>(Option<Arc<Operations<H>>>);

impl<H> Started<H> {
    /// Stores the result of the operation, and announces it.
    pub(crate) fn complete(
        mut self,
        callback: Callback<H>,
        result: Result<(), Failure>,
        buffer: Option<Owned>,
    ) {
        let operations = self
            .0
            .take()
            .expect("`complete` and the destructor run once");
        let mut state = operations.state();
        state.outstanding -= 1;
        state.completed.push_back(Completed {
            callback,
            result,
            buffer,
        });
        drop(state);
        operations.completion.notify_waiters();
        operations.events.signal();
    }
}

impl<H> Drop for Started<H> {
    fn drop(&mut self) {
        if let Some(operations) = self.0.take() {
            operations.state().outstanding -= 1;
            operations.completion.notify_waiters();
        }
    }
}

impl<H> Operations<H> {
    pub(crate) fn new(events: &Arc<Events>) -> Arc<Self> {
        Arc::new(Self {
            events: events.clone(),
            state: Mutex::new(State {
                outstanding: 0,
                completed: VecDeque::new(),
                calling: Vec::new(),
            }),
            completion: Notify::new(),
        })
    }

    /// Counts an operation that is going to be submitted.
    ///
    /// # Errors
    /// The handle has ended.
    pub(crate) fn start(self: &Arc<Self>) -> Result<Started<H>, Failure> {
        let mut state = self.state();
        if self.events.calls.has_ended() {
            return Err(ended_failure());
        }
        state.outstanding += 1;
        Ok(Started(Some(self.clone())))
    }

    /// Calls the callbacks of completed operations, and returns their number.
    ///
    /// # Safety
    /// The functions and arguments of the callbacks are valid.
    pub(crate) unsafe fn dispatch(&self, handle: *mut H) -> usize {
        self.events.clear();
        // Those that complete during the callbacks wait for the next call, so that this one ends.
        let number = self.state().completed.len();
        for called in 0..number {
            let mut state = self.state();
            let Some(Completed {
                callback,
                result,
                buffer,
            }) = state.completed.pop_front()
            else {
                // Another thread, or a callback, has called the others.
                return called;
            };
            let Some(function) = callback.function else {
                continue;
            };
            state.calling.push(thread::current().id());
            drop(state);
            let failure = result.err();
            let error = failure.as_ref().map(smbdirect_error::new);
            let error = error.as_ref().map_or(ptr::null(), ptr::from_ref);
            let buffer = buffer.map_or(ptr::null_mut(), Owned::put_back);
            set_errno(failure.map_or(0, |failure| failure.errno));
            // SAFETY: the function has this signature, and all pointers are valid during the call.
            unsafe { function(handle, error, buffer, callback.user_data) };
            let mut state = self.state();
            let here = thread::current().id();
            let at = state.calling.iter().position(|thread| *thread == here);
            state
                .calling
                .swap_remove(at.expect("the thread was added before the call"));
            drop(state);
            self.completion.notify_waiters();
        }
        number
    }

    /// Waits until a callback can be called, and returns true; or until no operation is outstanding and no other
    /// thread is in a callback, and returns false.
    pub(crate) async fn settled(&self, here: ThreadId) -> bool {
        loop {
            let completion = self.completion.notified();
            {
                let state = self.state();
                if !state.completed.is_empty() {
                    return true;
                }
                let calling = state.calling.iter().any(|thread| *thread != here);
                if state.outstanding == 0 && !calling {
                    return false;
                }
            }
            completion.await;
        }
    }

    /// Returns whether operations are not over.
    pub(crate) fn is_any_outstanding(&self) -> bool {
        self.state().outstanding > 0
    }

    fn state(&self) -> MutexGuard<'_, State<H>> {
        // Callbacks run without the lock, so that no panic leaves half a change.
        lock(&self.state)
    }
}
