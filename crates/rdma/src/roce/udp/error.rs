//! Errors of the operating system and of arguments as errors of the provider.

use std::io;

use crate::work::{ProviderError, ProviderErrorKind};

/// Returns an error if there is too much private data.
pub(super) fn check_private_data(data: &[u8], limit: usize) -> Result<(), ProviderError> {
    if data.len() <= limit {
        return Ok(());
    }
    let what = format!(
        "{} bytes of private data, at most {limit} can be sent over RoCE",
        data.len()
    );
    Err(ProviderError::new(ProviderErrorKind::Local, what))
}

/// Converts an error of the operating system that occurred while `doing` something.
pub(super) fn os_error(doing: &str, error: &io::Error) -> ProviderError {
    use io::ErrorKind as Kind;
    let kind = match error.kind() {
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
