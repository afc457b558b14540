//! The sockets of SMB Direct connections in this process, by the numbers of their descriptors.

use std::{
    os::fd::{OwnedFd, RawFd},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Number of descriptors that can be such sockets.
const MAX_DESCRIPTORS: usize = 4096;

/// What the program is told about a socket.
pub(crate) struct Socket {
    /// The address that the program has connected to, as the C library has it.
    pub(crate) peer: libc::sockaddr_storage,
    pub(crate) peer_length: libc::socklen_t,
    /// The socket to the broker, until its answer was read.
    pub(crate) answer: Option<OwnedFd>,
    /// Why the connection could not be established, until the program has asked.
    pub(crate) error: i32,
}

static SOCKETS: [Mutex<Option<Socket>>; MAX_DESCRIPTORS] =
    [const { Mutex::new(None) }; MAX_DESCRIPTORS];

/// Locks the place of a descriptor, which is empty unless it is a socket of an SMB Direct connection.
/// Returns `None` for numbers that cannot be one.
pub(crate) fn socket(descriptor: RawFd) -> Option<MutexGuard<'static, Option<Socket>>> {
    let place = usize::try_from(descriptor)
        .ok()
        .and_then(|index| SOCKETS.get(index))?;
    Some(place.lock().unwrap_or_else(PoisonError::into_inner))
}
