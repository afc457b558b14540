//! The functions of the C library that this library replaces.

use std::{
    ffi::{CStr, c_int, c_void},
    io, mem,
    sync::OnceLock,
};

use libc::{msghdr, sockaddr, socklen_t, ssize_t};

pub(crate) type Connect = unsafe extern "C" fn(c_int, *const sockaddr, socklen_t) -> c_int;
pub(crate) type Name = unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
pub(crate) type SendTo =
    unsafe extern "C" fn(c_int, *const c_void, usize, c_int, *const sockaddr, socklen_t) -> ssize_t;
pub(crate) type SendMessage = unsafe extern "C" fn(c_int, *const msghdr, c_int) -> ssize_t;

/// The definitions of the same functions in the libraries that are loaded after this one.
pub(crate) struct Next {
    pub(crate) connect: Connect,
    pub(crate) getpeername: Name,
    pub(crate) sendto: SendTo,
    pub(crate) sendmsg: SendMessage,
}

/// Returns the functions of the C library.
pub(crate) fn next() -> &'static Next {
    static NEXT: OnceLock<Next> = OnceLock::new();
    // SAFETY: each name belongs to a function of the C library with the type of its field.
    NEXT.get_or_init(|| unsafe {
        Next {
            connect: mem::transmute::<*mut c_void, Connect>(symbol(c"connect")),
            getpeername: mem::transmute::<*mut c_void, Name>(symbol(c"getpeername")),
            sendto: mem::transmute::<*mut c_void, SendTo>(symbol(c"sendto")),
            sendmsg: mem::transmute::<*mut c_void, SendMessage>(symbol(c"sendmsg")),
        }
    })
}

/// Returns the next definition of a function.
fn symbol(name: &CStr) -> *mut c_void {
    // SAFETY: the name ends with a 0 byte.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if found.is_null() {
        // No program gets this far without a C library that has these functions.
        std::process::abort();
    }
    found
}

/// Returns the result of a call that sets the error number.
pub(crate) fn check(status: c_int) -> io::Result<c_int> {
    match status {
        0.. => Ok(status),
        _ => Err(io::Error::last_os_error()),
    }
}
