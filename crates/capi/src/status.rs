//! Status codes, and errors with their text.

use std::{
    ffi::{CStr, c_char, c_int},
    panic::{AssertUnwindSafe, catch_unwind},
};

use smbdirect::{
    ConfigError, ConnectFault, ConnectionError, SendError, TransferFault,
    rdma::{
        memory::{DeregisterError, RegisterFault},
        work::{ProviderError, ProviderErrorKind},
    },
};
use smbdirect_transport::{Error, Setting, explain_end};
use thiserror::Error;

/// The call did what it was asked for.
pub const SMBDIRECT_OK: i32 = 0;
/// An argument is invalid. The text names it.
pub const SMBDIRECT_ERROR_INVALID: i32 = -1;
/// The timeout was 0 and the call would have to wait. The descriptor of the handle becomes readable when
/// the call is worth repeating.
pub const SMBDIRECT_ERROR_WOULD_BLOCK: i32 = -2;
/// The timeout of the call, or a timer of the connection, ran out.
pub const SMBDIRECT_ERROR_TIMED_OUT: i32 = -3;
/// The connection was closed gracefully, by the peer or by this end.
pub const SMBDIRECT_ERROR_CLOSED: i32 = -4;
/// The peer refused the connection or the negotiation, or nothing listens on the address.
pub const SMBDIRECT_ERROR_REFUSED: i32 = -5;
/// The address cannot be resolved, reached or used.
pub const SMBDIRECT_ERROR_ADDRESS: i32 = -6;
/// The address is in use by another listener.
pub const SMBDIRECT_ERROR_IN_USE: i32 = -7;
/// One end broke a rule of SMB Direct or RDMA. The text names the rule.
pub const SMBDIRECT_ERROR_PROTOCOL: i32 = -8;
/// The RDMA connection was lost, or closed in the middle of a message.
pub const SMBDIRECT_ERROR_LOST: i32 = -9;
/// This end aborted the connection.
pub const SMBDIRECT_ERROR_ABORTED: i32 = -10;
/// The message is longer than the peer accepts.
pub const SMBDIRECT_ERROR_TOO_LARGE: i32 = -11;
/// The message is longer than the caller's memory. It is kept for the next call.
pub const SMBDIRECT_ERROR_BUFFER_TOO_SMALL: i32 = -12;
/// The range is outside the peer's buffer descriptors, or the peer has no RDMA Reads and Writes.
pub const SMBDIRECT_ERROR_RANGE: i32 = -13;
/// The transport does not exist on this machine or in this build.
pub const SMBDIRECT_ERROR_UNSUPPORTED: i32 = -14;
/// An operation of this machine failed. The text names it.
pub const SMBDIRECT_ERROR_SYSTEM: i32 = -15;
/// The handle belongs to the process that forked this one.
pub const SMBDIRECT_ERROR_FORKED: i32 = -16;
/// A bug of the library. The text helps to report it.
pub const SMBDIRECT_ERROR_INTERNAL: i32 = -17;
/// The function that the program has set by smbdirect_set_interrupt() has ended the wait.
pub const SMBDIRECT_ERROR_INTERRUPTED: i32 = -18;

/// Length of the text in [`smbdirect_error`], in bytes, with the 0 at its end.
const MESSAGE_BYTES: usize = 252;

/// Why a call failed: a status code for programs, and a text for people. The layout never changes.
#[repr(C)]
pub struct smbdirect_error {
    /// One of the SMBDIRECT_ERROR_ codes.
    pub code: i32,
    /// A sentence in UTF-8 that names the cause, ended by a 0 byte; cut off if it is too long.
    pub message: [c_char; 252],
}

impl smbdirect_error {
    /// Returns the error of `failure`.
    pub(crate) fn new(failure: &Failure) -> Self {
        let mut message = [0; MESSAGE_BYTES];
        let text = failure.message.as_str();
        let cut = text.floor_char_boundary(message.len() - 1);
        for (to, from) in message.iter_mut().zip(text[..cut].bytes()) {
            *to = from as c_char;
        }
        Self {
            code: failure.code,
            message,
        }
    }
}

#[cfg(test)]
impl smbdirect_error {
    /// Returns the text that a program sees.
    pub(crate) fn text(&self) -> String {
        let bytes = self.message.iter().map(|&byte| byte as u8);
        String::from_utf8(bytes.take_while(|&byte| byte != 0).collect()).unwrap()
    }
}

/// A status code with its text.
#[derive(Clone, Debug, Error)]
#[error("{message}")]
pub(crate) struct Failure {
    pub(crate) code: i32,
    pub(crate) message: String,
    /// The number of the system's error that is the cause, or 0.
    pub(crate) errno: i32,
}

impl Failure {
    pub(crate) fn new(code: i32, message: impl ToString) -> Self {
        Self {
            code,
            message: message.to_string(),
            errno: 0,
        }
    }

    /// Adds the number of the system's error that is the cause.
    pub(crate) fn with_errno(mut self, number: Option<i32>) -> Self {
        self.errno = number.unwrap_or(0);
        self
    }

    /// Replaces the text by one that names the address and what to try, and the setting that may help if there is room.
    /// `timeout` is the setting of the time that the failed step could take.
    pub(crate) fn explained(mut self, error: &Error, timeout: &str) -> Self {
        self.message = error.to_string();
        if let Some(setting) = error.setting() {
            let setting = match setting {
                Setting::ConnectTimeout => format!(" ({timeout})"),
                Setting::Kind => " (transport)".into(),
                Setting::UdpPort => " (udp_port, peer_udp_port)".into(),
            };
            if self.message.len() + setting.len() < MESSAGE_BYTES {
                self.message += &setting;
            }
        }
        self
    }

    pub(crate) fn invalid(message: impl ToString) -> Self {
        Self::new(SMBDIRECT_ERROR_INVALID, message)
    }

    pub(crate) fn timed_out(timeout_ms: i32) -> Self {
        match timeout_ms {
            0 => Self::new(SMBDIRECT_ERROR_WOULD_BLOCK, "the call would have to wait"),
            _ => Self::new(
                SMBDIRECT_ERROR_TIMED_OUT,
                format!("not done within {timeout_ms} ms"),
            ),
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        let number = error.raw_os_error();
        Self::new(SMBDIRECT_ERROR_SYSTEM, error).with_errno(number)
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::invalid(error)
    }
}

impl From<ProviderError> for Failure {
    fn from(error: ProviderError) -> Self {
        let number = error.os_error();
        Self::new(code_of_provider(error.kind), error).with_errno(number)
    }
}

impl From<ConnectionError> for Failure {
    fn from(error: ConnectionError) -> Self {
        let code = match &error {
            ConnectionError::Violation(_) => SMBDIRECT_ERROR_PROTOCOL,
            ConnectionError::Refused(_) | ConnectionError::RefusedPeer(_) => {
                SMBDIRECT_ERROR_REFUSED
            }
            ConnectionError::TimedOut(_) => SMBDIRECT_ERROR_TIMED_OUT,
            ConnectionError::Closed | ConnectionError::ClosedHere => SMBDIRECT_ERROR_CLOSED,
            ConnectionError::Aborted => SMBDIRECT_ERROR_ABORTED,
            ConnectionError::Provider(error) => code_of_provider(error.kind),
            ConnectionError::TooLong { .. } => SMBDIRECT_ERROR_TOO_LARGE,
            _ => SMBDIRECT_ERROR_LOST,
        };
        let number = match &error {
            ConnectionError::Provider(error) => error.os_error(),
            _ => None,
        };
        Self::new(code, explain_end(&error)).with_errno(number)
    }
}

impl From<ConnectFault> for Failure {
    fn from(error: ConnectFault) -> Self {
        match error {
            ConnectFault::Provider(error) => error.into(),
            ConnectFault::Negotiation(error) => error.into(),
            _ => Self::new(SMBDIRECT_ERROR_LOST, error),
        }
    }
}

impl From<SendError> for Failure {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Connection(error) => error.into(),
            _ => Self::new(SMBDIRECT_ERROR_TOO_LARGE, error),
        }
    }
}

impl From<TransferFault> for Failure {
    fn from(fault: TransferFault) -> Self {
        match fault {
            TransferFault::Connection(error) => error.into(),
            _ => Self::new(SMBDIRECT_ERROR_RANGE, fault),
        }
    }
}

impl From<RegisterFault> for Failure {
    fn from(fault: RegisterFault) -> Self {
        let code = match fault {
            RegisterFault::TooLong => SMBDIRECT_ERROR_INVALID,
            _ => SMBDIRECT_ERROR_SYSTEM,
        };
        Self::new(code, fault)
    }
}

impl From<DeregisterError> for Failure {
    fn from(error: DeregisterError) -> Self {
        Self::new(SMBDIRECT_ERROR_LOST, error)
    }
}

fn code_of_provider(kind: ProviderErrorKind) -> i32 {
    match kind {
        ProviderErrorKind::Address => SMBDIRECT_ERROR_ADDRESS,
        ProviderErrorKind::InUse => SMBDIRECT_ERROR_IN_USE,
        ProviderErrorKind::Refused
        | ProviderErrorKind::PortUnreachable
        | ProviderErrorKind::Rejected => SMBDIRECT_ERROR_REFUSED,
        ProviderErrorKind::TimedOut => SMBDIRECT_ERROR_TIMED_OUT,
        ProviderErrorKind::Protocol
        | ProviderErrorKind::OtherProtocol
        | ProviderErrorKind::Terminated => SMBDIRECT_ERROR_PROTOCOL,
        ProviderErrorKind::Local => SMBDIRECT_ERROR_SYSTEM,
        _ => SMBDIRECT_ERROR_LOST,
    }
}

/// Sets `errno` of this thread.
pub(crate) fn set_errno(number: i32) {
    #[cfg(target_os = "linux")]
    use libc::__errno_location as location;
    #[cfg(any(target_vendor = "apple", target_os = "freebsd"))]
    use libc::__error as location;

    // SAFETY: the function returns the address of the value of this thread.
    unsafe { *location() = number };
}

/// Keeps pthread_cancel() from ending this thread as long as the value lives: its unwinding must not pass through the
/// library, which would not release what it holds.
struct Uncancelled {
    before: c_int,
}

impl Uncancelled {
    fn new() -> Self {
        const DISABLE: c_int = if cfg!(target_vendor = "apple") { 0 } else { 1 };

        Self {
            before: set_cancel_state(DISABLE),
        }
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        set_cancel_state(self.before);
    }
}

/// Sets whether pthread_cancel() ends this thread, and returns what it was before.
fn set_cancel_state(state: c_int) -> c_int {
    unsafe extern "C" {
        fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    }
    let mut before = state;
    // SAFETY: the state is one of the system, and the pointer is valid during the call.
    unsafe { pthread_setcancelstate(state, &mut before) };
    before
}

/// Runs the body of a function of the interface. Returns the value of `body`. If it fails, returns its status
/// code, stores it in `error` unless that is null, and sets `errno`.
///
/// # Safety
/// `error` is null or valid for a write.
pub(crate) unsafe fn call(
    error: *mut smbdirect_error,
    body: impl FnOnce() -> Result<i64, Failure>,
) -> i64 {
    let _uncancelled = Uncancelled::new();
    // A panic leaves no lock of ours poisoned that a later call would not report.
    let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied());
        let message = format!("a bug of the library: {}", text.unwrap_or("a panic"));
        Err(Failure::new(SMBDIRECT_ERROR_INTERNAL, message))
    });
    match result {
        Ok(value) => value,
        Err(failure) => {
            if !error.is_null() {
                // SAFETY: the caller passed a pointer that is valid for a write.
                unsafe { error.write(smbdirect_error::new(&failure)) };
            }
            let (code, number) = (failure.code, failure.errno);
            drop(failure);
            set_errno(number);
            code.into()
        }
    }
}

/// As [`call`], for a function that returns a status code only.
///
/// # Safety
/// `error` is null or valid for a write.
pub(crate) unsafe fn call_status(
    error: *mut smbdirect_error,
    body: impl FnOnce() -> Result<(), Failure>,
) -> i32 {
    // SAFETY: the caller's promise is the same.
    unsafe { call(error, || body().map(|()| 0)) as i32 }
}

/// Returns the name of a status code, such as "timed out". Never returns NULL. The text is static.
#[unsafe(no_mangle)]
pub extern "C" fn smbdirect_strerror(code: i32) -> *const c_char {
    let text: &'static CStr = match code {
        SMBDIRECT_OK => c"success",
        SMBDIRECT_ERROR_INVALID => c"invalid argument",
        SMBDIRECT_ERROR_WOULD_BLOCK => c"would block",
        SMBDIRECT_ERROR_TIMED_OUT => c"timed out",
        SMBDIRECT_ERROR_CLOSED => c"connection closed",
        SMBDIRECT_ERROR_REFUSED => c"connection refused",
        SMBDIRECT_ERROR_ADDRESS => c"address not usable",
        SMBDIRECT_ERROR_IN_USE => c"address in use",
        SMBDIRECT_ERROR_PROTOCOL => c"protocol violated",
        SMBDIRECT_ERROR_LOST => c"connection lost",
        SMBDIRECT_ERROR_ABORTED => c"connection aborted",
        SMBDIRECT_ERROR_TOO_LARGE => c"message too large",
        SMBDIRECT_ERROR_BUFFER_TOO_SMALL => c"buffer too small",
        SMBDIRECT_ERROR_RANGE => c"outside the remote memory",
        SMBDIRECT_ERROR_UNSUPPORTED => c"transport not supported",
        SMBDIRECT_ERROR_SYSTEM => c"operation of this machine failed",
        SMBDIRECT_ERROR_FORKED => c"handle of the parent process",
        SMBDIRECT_ERROR_INTERNAL => c"bug of the library",
        SMBDIRECT_ERROR_INTERRUPTED => c"interrupted",
        _ => c"unknown status code",
    };
    text.as_ptr()
}

/// Returns the version of the library that runs, such as "0.1.0". SMBDIRECT_VERSION is that of the header that a
/// program was built with. A library works with programs that were built with an older header of the same soname.
#[unsafe(no_mangle)]
pub extern "C" fn smbdirect_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
