//! The providers by the names of their transports.

use std::sync::Arc;

use smbdirect::rdma::{
    iwarp::{Iwarp, IwarpConfig},
    provider::Provider,
};

use crate::{
    runtime::Runtime,
    status::{Failure, SMBDIRECT_ERROR_UNSUPPORTED},
};

/// Returns the provider of a transport.
///
/// # Errors
/// There is no such transport on this machine.
pub(crate) fn provider(runtime: &Runtime, transport: &str) -> Result<Arc<dyn Provider>, Failure> {
    match transport {
        "iwarp" => Ok(Arc::new(Iwarp::new(IwarpConfig::default()))),
        "loopback" => Ok(runtime.loopback.clone()),
        "verbs" => verbs(),
        other => Err(Failure::new(
            SMBDIRECT_ERROR_UNSUPPORTED,
            format!("there is no transport {other:?}: use iwarp, verbs or loopback"),
        )),
    }
}

/// Returns whether a message that was sent shares its memory with the message that is received.
pub(crate) fn shares_memory(transport: &str) -> bool {
    transport == "loopback"
}

#[cfg(target_os = "linux")]
fn verbs() -> Result<Arc<dyn Provider>, Failure> {
    use smbdirect_verbs::{Verbs, VerbsConfig};

    let verbs = Verbs::new(VerbsConfig::default());
    let verbs = verbs.map_err(|error| Failure::new(SMBDIRECT_ERROR_UNSUPPORTED, error))?;
    Ok(Arc::new(verbs))
}

#[cfg(not(target_os = "linux"))]
fn verbs() -> Result<Arc<dyn Provider>, Failure> {
    Err(Failure::new(
        SMBDIRECT_ERROR_UNSUPPORTED,
        "RDMA adapters need Linux",
    ))
}
