//! What a thread asks while it waits, so that a signal can end the call.

use std::{
    cell::Cell,
    ffi::{c_int, c_void},
    time::Duration,
};

use crate::status::{Failure, SMBDIRECT_ERROR_INTERRUPTED};

/// Longest time that a call waits without asking.
pub(crate) const INTERVAL: Duration = Duration::from_millis(50);

/// Returns 0 if the call that waits goes on, and another number if it gives up. It may call every function of the
/// library.
pub type smbdirect_interrupt_callback =
    Option<unsafe extern "C" fn(user_data: *mut c_void) -> c_int>;

thread_local! {
    static ASKED: Cell<(smbdirect_interrupt_callback, *mut c_void)> =
        const { Cell::new((None, std::ptr::null_mut())) };
}

/// Sets the function that the calls of this thread ask every 50 ms while they wait. NULL removes it.
///
/// If it returns another number than 0, the call returns SMBDIRECT_ERROR_INTERRUPTED with EINTR in errno, and has done
/// what it does after a timeout. To let a signal end a call, have the handler set a variable of the type
/// `volatile sig_atomic_t`, and have `interrupted` return it. Only smbdirect_connection_free() and
/// smbdirect_close_all(), whose waits are limited, never ask.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smbdirect_set_interrupt(
    interrupted: smbdirect_interrupt_callback,
    user_data: *mut c_void,
) {
    ASKED.set((interrupted, user_data));
}

/// Returns whether this thread has something to ask.
pub(crate) fn is_set() -> bool {
    ASKED.get().0.is_some()
}

/// Asks whether the call goes on.
///
/// # Errors
/// The program gives up the call.
pub(crate) fn ask() -> Result<(), Failure> {
    let (Some(interrupted), user_data) = ASKED.get() else {
        return Ok(());
    };
    // SAFETY: the function has this signature, and it is called on the thread that has set it.
    match unsafe { interrupted(user_data) } {
        0 => Ok(()),
        _ => Err(
            Failure::new(SMBDIRECT_ERROR_INTERRUPTED, "interrupted by the program")
                .with_errno(Some(libc::EINTR)),
        ),
    }
}
