//! The functions that replace those of the C library.

use std::{
    ffi::{c_int, c_void},
    fs::File,
    os::fd::AsRawFd,
};

use libc::{sockaddr, sockaddr_storage, socklen_t};

use crate::{
    broker, connecting,
    next::next,
    sockets::{Socket, option, socket},
};

/// Replaces `connect`.
///
/// # Safety
/// As for the function of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn connect(
    descriptor: c_int,
    address: *const sockaddr,
    length: socklen_t,
) -> c_int {
    if let Some(status) = with(descriptor, |socket| Some(connect_again(socket)), || None) {
        return status;
    }
    // SAFETY: the arguments are those of the caller.
    unsafe {
        match connecting::connect(descriptor, address, length) {
            Some(status) => status,
            None => (next().connect)(descriptor, address, length),
        }
    }
}

/// Returns what a further `connect` on the socket returns: some programs ask this way whether they are
/// connected.
fn connect_again(socket: &mut Socket) -> c_int {
    let first = socket.answer.is_some();
    let number = match outcome(socket) {
        Outcome::Pending => libc::EALREADY,
        Outcome::Failed(error) => error,
        Outcome::Connected if first => return 0,
        Outcome::Connected => libc::EISCONN,
    };
    // SAFETY: the location of the error number of this thread is always valid.
    unsafe { *libc::__errno_location() = number };
    -1
}

/// Runs `known` for a socket of an SMB Direct connection, and `other` for any other descriptor, such as one
/// that `dup2` has put in the place of such a socket.
fn with<T>(
    descriptor: c_int,
    known: impl FnOnce(&mut Socket) -> T,
    other: impl FnOnce() -> T,
) -> T {
    if let Some(mut place) = socket(descriptor)
        && let Some(socket) = place.as_mut()
        && option(descriptor, libc::SO_DOMAIN) == Some(libc::AF_UNIX)
    {
        return known(socket);
    }
    other()
}

/// Replaces `getpeername`: the peer is the server, not the broker.
///
/// # Safety
/// As for the function of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getpeername(
    descriptor: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    // SAFETY: the arguments are those of the caller.
    let known = |socket: &mut Socket| unsafe {
        connecting::copy_address(&socket.peer, socket.peer_length, address, length);
        0
    };
    // SAFETY: the arguments are those of the caller.
    with(descriptor, known, || unsafe {
        (next().getpeername)(descriptor, address, length)
    })
}

/// Replaces `getsockname`: the address of this end is the unspecified one of the server's family, as only the
/// broker knows the actual one.
///
/// # Safety
/// As for the function of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockname(
    descriptor: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    let known = |socket: &mut Socket| {
        // SAFETY: all fields of the address are valid when they are zero.
        let mut own: sockaddr_storage = unsafe { std::mem::zeroed() };
        own.ss_family = socket.peer.ss_family;
        // SAFETY: the arguments are those of the caller.
        unsafe { connecting::copy_address(&own, socket.peer_length, address, length) };
        0
    };
    // SAFETY: the arguments are those of the caller.
    with(descriptor, known, || unsafe {
        (next().getsockname)(descriptor, address, length)
    })
}

/// Replaces `getsockopt`: `SO_ERROR` is the result of connecting, and options of TCP are 0.
///
/// # Safety
/// As for the function of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockopt(
    descriptor: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    // SAFETY: the arguments are those of the caller.
    let pass = || unsafe { (next().getsockopt)(descriptor, level, name, value, length) };
    let known = |socket: &mut Socket| {
        let answer = match (level, name) {
            (libc::SOL_SOCKET, libc::SO_ERROR) => {
                // This clears the error of the socket itself.
                let status = pass();
                match outcome(socket) {
                    Outcome::Pending => 0,
                    Outcome::Failed(error) => error,
                    Outcome::Connected => return status,
                }
            }
            (libc::SOL_SOCKET, libc::SO_DOMAIN) => socket.peer.ss_family.into(),
            (libc::SOL_SOCKET, libc::SO_PROTOCOL) => libc::IPPROTO_TCP,
            (libc::IPPROTO_TCP | libc::IPPROTO_IP | libc::IPPROTO_IPV6, _) => 0,
            _ => return pass(),
        };
        // SAFETY: the caller's memory has `*length` bytes.
        unsafe {
            let count = (*length as usize).min(size_of::<c_int>());
            let from = (&raw const answer).cast::<u8>();
            value.cast::<u8>().copy_from_nonoverlapping(from, count);
            *length = count as socklen_t;
        }
        0
    };
    with(descriptor, known, pass)
}

/// How far a socket has connected.
enum Outcome {
    Pending,
    Connected,
    Failed(c_int),
}

/// Asks the broker how far a socket has connected. A failure is returned once.
fn outcome(socket: &mut Socket) -> Outcome {
    if let Some(answer) = &socket.answer {
        let mut ready = libc::pollfd {
            fd: answer.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: there is one entry.
        if unsafe { libc::poll(&raw mut ready, 1, 0) } != 1 {
            return Outcome::Pending;
        }
    }
    if let Some(answer) = socket.answer.take() {
        socket.error = broker::answer(File::from(answer));
    }
    match std::mem::take(&mut socket.error) {
        0 => Outcome::Connected,
        error => Outcome::Failed(error),
    }
}

/// Replaces `setsockopt`: options of TCP and IP have no meaning for SMB Direct, and succeed.
///
/// # Safety
/// As for the function of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setsockopt(
    descriptor: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    // SAFETY: the arguments are those of the caller.
    let pass = || unsafe { (next().setsockopt)(descriptor, level, name, value, length) };
    let known = |_: &mut Socket| match level {
        libc::IPPROTO_TCP | libc::IPPROTO_IP | libc::IPPROTO_IPV6 => 0,
        _ => pass(),
    };
    with(descriptor, known, pass)
}

/// Replaces `close`, after which the number of the descriptor may stand for another file.
///
/// # Safety
/// As for the function of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(descriptor: c_int) -> c_int {
    let forgotten = socket(descriptor).and_then(|mut place| place.take());
    // Dropping it closes the socket to the broker, which comes here again, with the place unlocked.
    drop(forgotten);
    // SAFETY: the argument is that of the caller.
    unsafe { (next().close)(descriptor) }
}
