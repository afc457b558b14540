//! The status of a running command.

use anyhow::{Context, Result, anyhow, bail};
use hyper::Method;

use smbdirect_gateway::observe::Status;

use crate::metrics::{Endpoint, ask};

/// Returns the status of the command that serves it at `endpoint`.
///
/// # Errors
/// The reason, and what to try.
pub(super) async fn status(endpoint: &Endpoint) -> Result<Status> {
    let (status, answer) = ask(endpoint, Method::GET, "/status", "--metrics").await?;
    let not_metrics = || format!("{endpoint} is not the address of --metrics");
    if !status.is_success() {
        return Err(anyhow!("HTTP status {status}")).with_context(not_metrics);
    }
    match serde_json::from_slice(&answer) {
        Ok(status) => Ok(status),
        Err(error) => bail!(
            "{}: {error}; versions of the two programs may differ",
            not_metrics()
        ),
    }
}
