//! The clock of requests and deadlines.

use std::time::Instant;

/// Returns the time of tokio's clock, which tests can stop.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
