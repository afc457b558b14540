//! One connection of an endpoint: its sends and receives, the futures that wait for them, and its
//! task.

mod clock;
mod completions;
mod pending;
mod receives;
mod sends;
mod shared;
#[cfg(all(test, any(target_arch = "x86_64", target_arch = "aarch64")))]
mod shuttled;
/// The lock type of `sends`, which `shuttled` replaces.
mod sync {
    pub(super) use std::sync::{Mutex, MutexGuard, PoisonError};
}
mod task;

pub(crate) use clock::now;
pub(crate) use completions::Routine;
pub(crate) use pending::{Completer, requested};
pub use pending::{Receiving, Requested, Sending, Submitted};
pub(crate) use shared::Session;
pub(crate) use task::{Called, OnCompletion, SessionOwner, Task};
