//! Errors of the operating system as errors of the providers.

use std::io;

use crate::work::{ProviderError, ProviderErrorKind};

/// Converts an error of the operating system that occurred while `doing` something.
#[cold]
pub(crate) fn os_error(doing: &str, error: &io::Error) -> ProviderError {
    use io::ErrorKind as Kind;
    let kind = match error.kind() {
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
    };
    ProviderError::new(kind, format!("{doing}: {error}")).with_os_error(error.raw_os_error())
}
