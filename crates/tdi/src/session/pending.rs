//! [`Requested`] and [`InProgress`]: the futures of requests that are in progress, and [`Submitted`]: a send or a receive.
//!
//! The call that returns the future submits the request; the future only waits for the completion. Dropping the
//! future does not cancel the request, which continues like a request without a completion routine in TDI.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::sync::oneshot;

use super::{receives::Receives, sends::Sends};
use crate::protocol::{ReceiveCompletion, RequestId, SendCompletion, Status};

/// A future that resolves when a connect, listen, accept or disconnect completes.
///
/// # Cancel safety
/// Dropping the future does not cancel the request.
#[derive(Debug)]
#[must_use = "await it to learn the result of the request, or drop it"]
pub struct Requested(oneshot::Receiver<Result<(), Status>>);

/// Whoever learns the result of a request.
#[derive(Default)]
pub(crate) enum Completer {
    #[default]
    Nobody,
    Future(oneshot::Sender<Result<(), Status>>),
    Routine(Box<dyn FnOnce(Result<(), Status>) + Send>),
}

impl Completer {
    /// Completes the request. The caller holds no lock, because a routine is the client's.
    pub(crate) fn complete(self, result: Result<(), Status>) {
        match self {
            Self::Nobody => {}
            // The client may have dropped the future.
            Self::Future(sender) => drop(sender.send(result)),
            Self::Routine(routine) => routine(result),
        }
    }
}

impl fmt::Debug for Completer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Completer")
    }
}

/// Returns the two ends of a new request.
pub(crate) fn requested() -> (Completer, Requested) {
    let (completer, receiver) = oneshot::channel();
    (Completer::Future(completer), Requested(receiver))
}

/// A send or a receive that was submitted. Dropping it does not cancel the request.
#[derive(Clone, Debug)]
pub struct Submitted(Submission);

#[derive(Clone, Debug)]
enum Submission {
    Send(Arc<Sends>, RequestId),
    Receive(Arc<Receives>, RequestId),
}

impl Submitted {
    pub(crate) const fn send(sends: Arc<Sends>, id: RequestId) -> Self {
        Self(Submission::Send(sends, id))
    }

    pub(crate) const fn receive(receives: Arc<Receives>, id: RequestId) -> Self {
        Self(Submission::Receive(receives, id))
    }

    /// Cancels a send if its TSDU has not been passed to the connection, or a receive if it is still pending. Returns
    /// whether the request was cancelled.
    ///
    /// A cancelled request completes with [`CANCELLED`](Status::CANCELLED). The parts of the TSDU of a cancelled send that
    /// were submitted before it are not sent; the bytes that were placed in the buffer of a cancelled receive are not
    /// received again. Otherwise nothing changes, and the completion has the result of the request.
    pub fn cancel(&self) -> bool {
        match &self.0 {
            Submission::Send(sends, id) => sends.cancel(*id),
            Submission::Receive(receives, id) => receives.cancel(*id),
        }
    }
}

impl Future for Requested {
    type Output = Result<(), Status>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let result = ready!(Pin::new(&mut self.0).poll(context));
        // The completer is dropped without a result only if the runtime has shut down its task.
        Poll::Ready(result.unwrap_or(Err(Status::CANCELLED)))
    }
}

/// A future that resolves to the completion of a request, which returns the buffer.
///
/// # Cancel safety
/// Dropping the future does not cancel the request, and the data that a receive gets is lost.
/// [`cancel`](Self::cancel) cancels it.
#[must_use = "await it to get the buffer back, or drop it"]
#[derive(Debug)]
pub struct InProgress<T> {
    /// `None` if the endpoint was not connected, so that the request was not submitted.
    submitted: Option<Submitted>,
    completion: oneshot::Receiver<T>,
}

/// A send in progress.
pub type Sending = InProgress<SendCompletion>;

/// A receive in progress.
pub type Receiving = InProgress<ReceiveCompletion>;

impl<T> InProgress<T> {
    pub(crate) const fn new(submitted: Submitted, completion: oneshot::Receiver<T>) -> Self {
        Self {
            submitted: Some(submitted),
            completion,
        }
    }

    /// Returns a request that has completed without being submitted.
    pub(crate) fn refused(refusal: T) -> Self {
        let (sender, completion) = oneshot::channel();
        let _ = sender.send(refusal);
        Self {
            submitted: None,
            completion,
        }
    }

    /// Cancels the request, as [`Submitted::cancel`] does.
    pub fn cancel(&self) -> bool {
        self.submitted.as_ref().is_some_and(Submitted::cancel)
    }
}

impl<T> Future for InProgress<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let completion = ready!(Pin::new(&mut self.completion).poll(context));
        Poll::Ready(completion.expect("each request completes"))
    }
}
