//! The sockets of SMB Direct connections in this process, by the numbers of their descriptors.

use std::{
    ffi::c_int,
    os::fd::{OwnedFd, RawFd},
    sync::{Mutex, MutexGuard, PoisonError},
};

use libc::socklen_t;

use crate::next::next;

/// Number of descriptors that can be such sockets.
const MAX_DESCRIPTORS: usize = 4096;

/// What the program is told about a socket.
pub(crate) struct Socket {
    /// The address that the program has connected to, as the C library has it.
    pub(crate) peer: libc::sockaddr_storage,
    pub(crate) peer_length: socklen_t,
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

/// Returns an option of a socket.
pub(crate) fn option(descriptor: c_int, name: c_int) -> Option<c_int> {
    let mut value: c_int = 0;
    let mut length = size_of::<c_int>() as socklen_t;
    // SAFETY: the value has the length that is given.
    let status = unsafe {
        let value = (&raw mut value).cast();
        (next().getsockopt)(descriptor, libc::SOL_SOCKET, name, value, &raw mut length)
    };
    (status == 0).then_some(value)
}
