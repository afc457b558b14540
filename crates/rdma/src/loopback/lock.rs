//! Locks and wakers.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    task::Waker,
};

/// Locks `mutex`, even if a thread panicked while it held the lock.
///
/// Locks of this module guard plain data only, and a panic leaves that data consistent. Wakers are
/// called and dropped without a lock, because they may run code of the application.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Wakes `waker`, if there is one.
pub(super) fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}
