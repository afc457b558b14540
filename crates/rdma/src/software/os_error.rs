//! Errors of the operating system as errors of the providers.

use std::io;

use crate::work::{ProviderError, ProviderErrorKind};

/// Converts an error of the operating system that occurred while `doing` something.
#[cold]
pub(crate) fn os_error(doing: &str, error: &io::Error) -> ProviderError {
    let what = format!("{doing}: {error}");
    ProviderError::new(ProviderErrorKind::of_io(error), what).with_os_error(error.raw_os_error())
}
