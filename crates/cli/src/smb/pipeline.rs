//! Requests in parallel, whose results are taken in order.

use std::{collections::VecDeque, future::Future, pin::pin, time::Duration};

use anyhow::Result;
use smbdirect_smb2::{Error, Share};
use tokio::{task::JoinHandle, time::timeout};

use crate::signals::{Interrupted, Stopped, unless, unless_urgent};

use super::session::Session;

/// Bytes of one request, if the server accepts requests of this size.
const REQUEST_BYTES: usize = 1 << 20;
/// Bytes of the requests that are outstanding. More do not make a transfer faster.
const OUTSTANDING_BYTES: usize = 8 << 20;
/// Maximum number of requests that are outstanding: some servers grant 128 credits or fewer.
const MAX_OUTSTANDING: usize = 32;

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

/// The size of requests, and how many are outstanding.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) request_bytes: usize,
    pub(super) outstanding: usize,
}

impl Shape {
    pub(super) fn of(share: &Share) -> Self {
        let request_bytes = share.max_bytes().min(REQUEST_BYTES);
        Self {
            request_bytes,
            outstanding: (OUTSTANDING_BYTES / request_bytes).clamp(2, MAX_OUTSTANDING),
        }
    }
}

/// Outstanding requests, oldest first. Dropping it abandons them; those that were sent keep their memory until the
/// server has answered.
pub(super) struct Pipeline<T> {
    requests: VecDeque<JoinHandle<Result<T, Error>>>,
}

impl<T: Send + 'static> Pipeline<T> {
    pub(super) const fn new() -> Self {
        Self {
            requests: VecDeque::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(super) fn push(
        &mut self,
        request: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) {
        self.requests.push_back(tokio::spawn(request));
    }

    /// Returns the result of the oldest request; `None` if there is none.
    pub(super) async fn next(&mut self) -> Option<Result<T, Error>> {
        let result = self.requests.front_mut()?.await;
        self.requests.pop_front();
        Some(result.expect("requests neither panic nor are aborted while they are waited for"))
    }
}

impl<T> Drop for Pipeline<T> {
    fn drop(&mut self) {
        for request in &self.requests {
            request.abort();
        }
    }
}
