//! The functions that replace functions of the C library.

use std::{
    ffi::{c_int, c_void},
    io, ptr,
};

use libc::{msghdr, sockaddr, socklen_t, ssize_t};

use crate::{address::is_readable, broker, next::next, redirect};

/// Sets the error number, and returns the status of a call that failed.
fn fail(error: &io::Error) -> c_int {
    let number = error.raw_os_error().unwrap_or(libc::ECONNREFUSED);
    // SAFETY: the location of the error number of this thread is always valid.
    unsafe { *libc::__errno_location() = number };
    -1
}

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
    // SAFETY: the arguments are those of the caller.
    unsafe {
        match redirect::wanted(descriptor, address, length) {
            Some(server) => match redirect::connect(descriptor, &server) {
                Ok(()) => 0,
                Err(error) => fail(&error),
            },
            None => (next().connect)(descriptor, address, length),
        }
    }
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
    let server = broker::server_of(descriptor);
    let room = if is_readable(length.cast(), size_of::<socklen_t>()) {
        // SAFETY: it is readable.
        unsafe { length.read_unaligned() }
    } else {
        // The kernel refuses it.
        0
    };
    // SAFETY: the arguments are those of the caller.
    let status = unsafe { (next().getpeername)(descriptor, address, length) };
    if let (0, Some(server)) = (status, server) {
        let count = room.min(server.length()) as usize;
        // SAFETY: the kernel has just written as many bytes of another address to the same place.
        unsafe {
            let to = address.cast::<u8>();
            to.copy_from_nonoverlapping(server.0.as_ptr(), count);
        }
    }
    status
}

/// Connects a socket whose first data shall go with the SYN (TCP Fast Open): it goes after the handshake. Returns
/// `None` if the call is not for the broker.
///
/// # Safety
/// The arguments are those of `connect`.
unsafe fn open_fast(
    descriptor: c_int,
    address: *const sockaddr,
    length: socklen_t,
    flags: c_int,
) -> Option<io::Result<()>> {
    if flags & libc::MSG_FASTOPEN == 0 {
        return None;
    }
    // SAFETY: the arguments are those of `connect`.
    let server = unsafe { redirect::wanted(descriptor, address, length) }?;
    Some(redirect::connect(descriptor, &server))
}

/// Replaces `sendto`, which connects with `MSG_FASTOPEN`.
///
/// # Safety
/// As for the function of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendto(
    descriptor: c_int,
    data: *const c_void,
    data_length: usize,
    flags: c_int,
    address: *const sockaddr,
    length: socklen_t,
) -> ssize_t {
    // SAFETY: the arguments are those of the caller.
    unsafe {
        let send = next().sendto;
        match open_fast(descriptor, address, length, flags) {
            None => send(descriptor, data, data_length, flags, address, length),
            Some(Err(error)) => fail(&error) as ssize_t,
            Some(Ok(())) => {
                let flags = flags & !libc::MSG_FASTOPEN;
                send(descriptor, data, data_length, flags, ptr::null(), 0)
            }
        }
    }
}

/// Replaces `sendmsg`, which connects with `MSG_FASTOPEN`.
///
/// # Safety
/// As for the function of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(
    descriptor: c_int,
    message: *const msghdr,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the arguments are those of the caller, and the message is only read if it is readable.
    unsafe {
        let send = next().sendmsg;
        let fast =
            flags & libc::MSG_FASTOPEN != 0 && is_readable(message.cast(), size_of::<msghdr>());
        let opened = if fast {
            open_fast(
                descriptor,
                (*message).msg_name.cast(),
                (*message).msg_namelen,
                flags,
            )
        } else {
            None
        };
        match opened {
            None => send(descriptor, message, flags),
            Some(Err(error)) => fail(&error) as ssize_t,
            Some(Ok(())) => send(descriptor, message, flags & !libc::MSG_FASTOPEN),
        }
    }
}
