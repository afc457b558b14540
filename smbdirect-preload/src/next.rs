//! The functions of the C library that this library replaces.

use std::{
    ffi::{CStr, c_int, c_void},
    mem,
    sync::OnceLock,
};

use libc::{sockaddr, socklen_t};

pub(crate) type Connect = unsafe extern "C" fn(c_int, *const sockaddr, socklen_t) -> c_int;
pub(crate) type Name = unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
pub(crate) type GetOption =
    unsafe extern "C" fn(c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int;
pub(crate) type SetOption =
    unsafe extern "C" fn(c_int, c_int, c_int, *const c_void, socklen_t) -> c_int;
pub(crate) type Close = unsafe extern "C" fn(c_int) -> c_int;

/// The next definitions behind those of this library.
pub(crate) struct Next {
    pub(crate) connect: Connect,
    pub(crate) getpeername: Name,
    pub(crate) getsockname: Name,
    pub(crate) getsockopt: GetOption,
    pub(crate) setsockopt: SetOption,
    pub(crate) close: Close,
}

/// Returns the functions of the C library.
pub(crate) fn next() -> &'static Next {
    static NEXT: OnceLock<Next> = OnceLock::new();
    // SAFETY: each name belongs to a function of the C library with the type of its field.
    NEXT.get_or_init(|| unsafe {
        Next {
            connect: mem::transmute::<*mut c_void, Connect>(symbol(c"connect")),
            getpeername: mem::transmute::<*mut c_void, Name>(symbol(c"getpeername")),
            getsockname: mem::transmute::<*mut c_void, Name>(symbol(c"getsockname")),
            getsockopt: mem::transmute::<*mut c_void, GetOption>(symbol(c"getsockopt")),
            setsockopt: mem::transmute::<*mut c_void, SetOption>(symbol(c"setsockopt")),
            close: mem::transmute::<*mut c_void, Close>(symbol(c"close")),
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
