//! One connection of an endpoint: its sends and receives, and the futures that wait for them.

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

pub(crate) use clock::now;
pub(crate) use completions::{Returning, Routine};
pub(crate) use pending::{Completer, requested};
pub use pending::{InProgress, Receiving, Requested, Sending, Submitted};
pub(crate) use receives::ReceiveNews;
pub(crate) use sends::SendNews;
pub(crate) use shared::Session;
