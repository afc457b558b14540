//! The addresses that `connect` and `bind` take.

use std::{fmt, io, net::SocketAddr};

use tokio::net::{ToSocketAddrs, lookup_host};
use tracing::debug;

use crate::rdma::{
    provider::connection_span,
    work::{ProviderError, ProviderErrorKind},
};

/// Looks up host names, and returns all addresses.
///
/// # Errors
/// Fails if a host name cannot be looked up.
pub(crate) async fn look_up(
    addresses: impl ToSocketAddrs,
) -> Result<impl Iterator<Item = SocketAddr>, ProviderError> {
    lookup_host(addresses).await.map_err(not_found)
}

/// The error of several addresses that were tried in turn: the first after which a later attempt may succeed, or else
/// the first.
#[derive(Debug)]
pub(crate) struct Failure<E> {
    error: Option<(SocketAddr, E)>,
    is_retryable: fn(&E) -> bool,
}

impl<E: fmt::Display + From<ProviderError>> Failure<E> {
    pub(crate) fn new(is_retryable: fn(&E) -> bool) -> Self {
        Self {
            error: None,
            is_retryable,
        }
    }

    /// Records the error of an address. Of two errors, the one that is not returned is logged.
    pub(crate) fn add(&mut self, address: SocketAddr, error: E) {
        let is_retryable = self.is_retryable;
        let known = self.error.as_ref();
        let other = if known.is_none_or(|(_, known)| !is_retryable(known) && is_retryable(&error)) {
            self.error.replace((address, error))
        } else {
            Some((address, error))
        };
        if let Some((address, error)) = other {
            connection_span(address).in_scope(|| debug!(%error, "an address failed"));
        }
    }

    /// Returns the error of the whole attempt, and the address that it is of.
    pub(crate) fn into_error(self) -> (Option<SocketAddr>, E) {
        self.error.map_or_else(
            || {
                let what = "there is no address to try: the list of addresses is empty";
                (
                    None,
                    ProviderError::new(ProviderErrorKind::Local, what).into(),
                )
            },
            |(address, error)| (Some(address), error),
        )
    }
}

fn not_found(error: io::Error) -> ProviderError {
    let what = format!("the address cannot be looked up: {error}");
    // A text that is not an address fails at every attempt. A host name that is unknown now may be known later: the
    // system does not tell it apart from a name server that does not answer, as while a machine starts.
    let kind = if error.kind() == io::ErrorKind::InvalidInput {
        ProviderErrorKind::Local
    } else {
        ProviderErrorKind::Address
    };
    ProviderError::new(kind, what).with_os_error(error.raw_os_error())
}
