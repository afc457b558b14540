//! The time limit of steps that must not hang.

use std::time::Duration;

use tokio::time::timeout;

/// The time limit of a step, which no passing test reaches on a busy machine.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);

/// Awaits a future that has to resolve.
///
/// # Panics
/// The future does not resolve within 30 seconds.
pub async fn within<T>(future: impl Future<Output = T>) -> T {
    let resolved = timeout(STEP_TIMEOUT, future).await;
    resolved.expect("the future resolves in time")
}
