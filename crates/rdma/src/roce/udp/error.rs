//! Errors of arguments as errors of the provider.

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
