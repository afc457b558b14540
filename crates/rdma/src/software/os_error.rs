//! Errors of the operating system as errors of the providers.

use std::io;

use crate::work::{ProviderError, ProviderErrorKind};

/// Converts an error of the operating system that occurred while `doing` something.
#[cold]
pub(crate) fn os_error(doing: &str, error: &io::Error) -> ProviderError {
    let what = format!("{doing}: {error}");
    ProviderError::new(kind_of(error), what).with_os_error(error.raw_os_error())
}

/// Converts an error of a transport, such as a socket.
impl From<io::Error> for ProviderError {
    fn from(error: io::Error) -> Self {
        Self::new(kind_of(&error), error.to_string()).with_os_error(error.raw_os_error())
    }
}

fn kind_of(error: &io::Error) -> ProviderErrorKind {
    use io::ErrorKind as Kind;
    match error.kind() {
        Kind::ConnectionRefused => ProviderErrorKind::Refused,
        Kind::TimedOut => ProviderErrorKind::TimedOut,
        Kind::ConnectionReset
        | Kind::ConnectionAborted
        | Kind::BrokenPipe
        | Kind::NotConnected
        | Kind::UnexpectedEof => ProviderErrorKind::Reset,
        Kind::AddrInUse => ProviderErrorKind::InUse,
        Kind::AddrNotAvailable
        | Kind::HostUnreachable
        | Kind::NetworkUnreachable
        | Kind::NetworkDown
        | Kind::InvalidInput => ProviderErrorKind::Address,
        _ => ProviderErrorKind::Local,
    }
}
