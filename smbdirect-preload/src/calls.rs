//! The functions that replace those of the C library.

use std::ffi::{c_int, c_void};

use libc::{sockaddr, sockaddr_storage, socklen_t};

use crate::{
    connecting,
    next::next,
    sockets::{self, Progress, Socket, with},
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
    let again = with(descriptor, |socket| {
        let family = c_int::from(socket.peer.ss_family);
        socket.connect_again(descriptor).ok_or(family)
    });
    let family = match again {
        Some(Ok(0)) => return 0,
        Some(Ok(error)) => return fail(error),
        Some(Err(family)) => Some(family),
        None => None,
    };
    // SAFETY: the arguments are those of the caller.
    unsafe {
        match connecting::connect(descriptor, address, length, family) {
            Some(status) => status,
            None => (next().connect)(descriptor, address, length),
        }
    }
}

/// Sets the error number, and returns the status of a call that failed.
fn fail(error: c_int) -> c_int {
    // SAFETY: the location of the error number of this thread is always valid.
    unsafe { *libc::__errno_location() = error };
    -1
}

/// Copies an address of a socket to the caller.
///
/// # Safety
/// As for `getpeername` of the C library.
unsafe fn give(
    from: &sockaddr_storage,
    from_length: socklen_t,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    if address.is_null() || length.is_null() {
        return fail(libc::EFAULT);
    }
    // SAFETY: the caller's memory has `*length` bytes.
    unsafe { connecting::copy_address(from, from_length, address, length) };
    0
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
    let known = |socket: &mut Socket| match socket.progress(descriptor) {
        Progress::Connected => Ok((socket.peer, socket.peer_length)),
        Progress::Pending | Progress::Failed(_) => Err(libc::ENOTCONN),
    };
    // SAFETY: the arguments are those of the caller.
    unsafe {
        match with(descriptor, known) {
            Some(Ok((peer, peer_length))) => give(&peer, peer_length, address, length),
            Some(Err(error)) => fail(error),
            None => (next().getpeername)(descriptor, address, length),
        }
    }
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
        (own, socket.peer_length)
    };
    // SAFETY: the arguments are those of the caller.
    unsafe {
        match with(descriptor, known) {
            Some((own, own_length)) => give(&own, own_length, address, length),
            None => (next().getsockname)(descriptor, address, length),
        }
    }
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
    let known = |socket: &mut Socket| match (level, name) {
        (libc::SOL_SOCKET, libc::SO_ERROR) => {
            let error = socket.take_error(descriptor)?;
            // The error of the socket itself says less, and is taken with it.
            sockets::option::<c_int>(descriptor, libc::SO_ERROR);
            Some(error)
        }
        (libc::SOL_SOCKET, libc::SO_DOMAIN) => Some(socket.peer.ss_family.into()),
        (libc::SOL_SOCKET, libc::SO_PROTOCOL) => Some(libc::IPPROTO_TCP),
        (libc::IPPROTO_TCP | libc::IPPROTO_IP | libc::IPPROTO_IPV6, _) => Some(0),
        _ => None,
    };
    let Some(answer) = with(descriptor, known).flatten() else {
        return pass();
    };
    if value.is_null() || length.is_null() {
        return fail(libc::EFAULT);
    }
    // SAFETY: the caller's memory has `*length` bytes.
    unsafe {
        let count = (*length as usize).min(size_of::<c_int>());
        let from = (&raw const answer).cast::<u8>();
        value.cast::<u8>().copy_from_nonoverlapping(from, count);
        *length = count as socklen_t;
    }
    0
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
    if matches!(
        level,
        libc::IPPROTO_TCP | libc::IPPROTO_IP | libc::IPPROTO_IPV6
    ) && with(descriptor, |_| ()).is_some()
    {
        return 0;
    }
    // SAFETY: the arguments are those of the caller.
    unsafe { (next().setsockopt)(descriptor, level, name, value, length) }
}

/// Replaces `close`, after which the number of the descriptor may stand for another file.
///
/// # Safety
/// As for the function of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(descriptor: c_int) -> c_int {
    sockets::forget(descriptor);
    // SAFETY: the argument is that of the caller.
    unsafe { (next().close)(descriptor) }
}
