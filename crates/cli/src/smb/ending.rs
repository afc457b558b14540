//! How `get` and `put` end, also by signals.

use std::{future::Future, pin::pin, time::Duration};

use anyhow::Result;
use tokio::time::timeout;

use crate::signals::{Interrupted, Stopped, unless, unless_urgent};

use super::session::Session;

/// Longest time for the server to answer the requests of a transfer that ends, and for closing its file.
pub(super) const GIVE_UP_TIMEOUT: Duration = Duration::from_secs(5);

/// Ends a session gracefully, unless there is a second signal.
pub(super) async fn end(session: Session, interrupted: &mut Interrupted) {
    if !interrupted.is_urgent() {
        let closing = async {
            session.close().await;
            Ok(())
        };
        // The bytes that were moved are in place, so there is nothing to report.
        let _ = unless_urgent(interrupted, closing).await;
    }
}

/// Runs `work` to its end. After a first signal the server has `GIVE_UP_TIMEOUT` left for it; a second signal drops it.
pub(super) async fn unless_late<T>(
    interrupted: &mut Interrupted,
    work: impl Future<Output = Result<T>>,
) -> Result<T, Stopped> {
    let mut work = pin!(work);
    match unless(interrupted, &mut work).await {
        Err(Stopped::Interrupted) => {
            let rest = timeout(GIVE_UP_TIMEOUT, unless(interrupted, work));
            rest.await.unwrap_or(Err(Stopped::Interrupted))
        }
        result => result,
    }
}
