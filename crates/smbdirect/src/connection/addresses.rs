//! The addresses that `connect` and `bind` take.

use std::{io, net::SocketAddr};

use tokio::net::{ToSocketAddrs, lookup_host};

use crate::rdma::work::{ProviderError, ProviderErrorKind};

/// Looks up host names, and returns all addresses.
///
/// # Errors
/// Fails if a host name cannot be looked up.
pub(crate) async fn look_up(
    addresses: impl ToSocketAddrs,
) -> Result<impl Iterator<Item = SocketAddr>, ProviderError> {
    lookup_host(addresses).await.map_err(not_found)
}

/// Returns the error of a host name without an address.
pub(crate) fn no_address() -> ProviderError {
    ProviderError::new(ProviderErrorKind::Address, "the host name has no address")
}

fn not_found(error: io::Error) -> ProviderError {
    let what = format!("the address cannot be looked up: {error}");
    // A text that is not an address fails at every attempt, but a host name that is unknown now may be known
    // later.
    let kind = if error.kind() == io::ErrorKind::InvalidInput {
        ProviderErrorKind::Local
    } else {
        ProviderErrorKind::Address
    };
    ProviderError::new(kind, what).with_os_error(error.raw_os_error())
}
