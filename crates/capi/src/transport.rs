//! The providers by the names of their transports.

use std::sync::Arc;

use smbdirect::rdma::provider::Provider;
use smbdirect_transport::{Kind, Rdma, RdmaSettings};

use crate::{
    runtime::Runtime,
    status::{Failure, SMBDIRECT_ERROR_UNSUPPORTED},
};

/// Returns the kind of RDMA with a name.
///
/// # Errors
/// There is no such transport.
pub(crate) fn kind(name: &str) -> Result<Kind, Failure> {
    let kinds = [Kind::Iwarp, Kind::Roce, Kind::Verbs, Kind::Loopback];
    let found = kinds.into_iter().find(|kind| kind.name() == name);
    found.ok_or_else(|| {
        let message = format!("there is no transport {name:?}: use iwarp, roce, verbs or loopback");
        Failure::new(SMBDIRECT_ERROR_UNSUPPORTED, message)
    })
}

/// Returns the provider with these settings.
///
/// # Errors
/// This machine has no RDMA adapters.
pub(crate) fn provider(
    runtime: &Runtime,
    settings: &RdmaSettings,
) -> Result<Arc<dyn Provider>, Failure> {
    match settings.kind {
        Kind::Loopback => Ok(runtime.loopback.clone()),
        Kind::Roce => Ok(Arc::new(runtime.roce.reconfigured(settings.roce.clone()))),
        Kind::Iwarp | Kind::Verbs => {
            let rdma = Rdma::new(settings.clone())
                .map_err(|error| Failure::new(SMBDIRECT_ERROR_UNSUPPORTED, format!("{error:#}")))?;
            Ok(rdma.provider().clone())
        }
    }
}

/// Returns whether a message that was sent shares its memory with the message that is received.
pub(crate) fn shares_memory(kind: Kind) -> bool {
    kind == Kind::Loopback
}
