//! [`Requested`], [`Sending`] and [`Receiving`]: the futures of requests that are in progress, and [`Submitted`]: a
//! request whose completion calls a routine of the client.
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

use bytes::BytesMut;
use smbdirect::Message;
use tokio::sync::oneshot;

use super::{completions::PendingRequest, receives::Receives, sends::Sends};
use crate::protocol::{ReceiveCompletion, RequestId, SendCompletion, Status};

/// A future that resolves when a connect, listen, accept or disconnect completes.
///
/// # Cancel safety
/// Dropping the future does not cancel the request.
#[derive(Debug)]
#[must_use = "await it to learn the result of the request, or drop it"]
pub struct Requested(oneshot::Receiver<Result<(), Status>>);

/// Whoever learns the result of a request.
pub(crate) enum Completer {
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

/// A request whose completion calls a routine, in order with the handlers of its endpoint.
///
/// Dropping it does not cancel the request.
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

    /// Cancels the request, as [`Sending::cancel`] and [`Receiving::cancel`] do.
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

/// A future that resolves to the completion of a send, which returns the buffer.
///
/// # Cancel safety
/// Dropping the future does not cancel the send; [`cancel`](Self::cancel) does.
#[must_use = "await it to get the buffer back, or drop it"]
#[derive(Debug)]
pub struct Sending {
    state: SendState,
}

#[derive(Debug)]
enum SendState {
    /// The request was submitted to the session's sends.
    Waiting(Arc<Sends>, PendingRequest<SendCompletion>),
    /// The endpoint was not connected, so the send was not submitted.
    Refused(SendCompletion),
    /// The future has returned the completion.
    Taken,
}

impl Sending {
    pub(crate) const fn waiting(
        sends: Arc<Sends>,
        pending: PendingRequest<SendCompletion>,
    ) -> Self {
        Self {
            state: SendState::Waiting(sends, pending),
        }
    }

    pub(crate) const fn refused(status: Status, buffer: Message) -> Self {
        let completion = SendCompletion {
            id: RequestId(0),
            status,
            information: 0,
            buffer,
        };
        Self {
            state: SendState::Refused(completion),
        }
    }

    /// Cancels the send if its TSDU has not been passed to the connection. Returns whether the send
    /// was cancelled.
    ///
    /// A cancelled send completes with [`CANCELLED`](Status::CANCELLED), and the parts of its TSDU
    /// that were submitted before it are not sent. Otherwise nothing changes, and the completion
    /// has the result of the send.
    pub fn cancel(&self) -> bool {
        match &self.state {
            SendState::Waiting(sends, pending) => sends.cancel(pending.id),
            _ => false,
        }
    }
}

impl Future for Sending {
    type Output = SendCompletion;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let SendState::Waiting(_, pending) = &mut self.state {
            let completion = ready!(pending.poll(context));
            self.state = SendState::Taken;
            return Poll::Ready(completion);
        }
        match std::mem::replace(&mut self.state, SendState::Taken) {
            SendState::Refused(completion) => Poll::Ready(completion),
            _ => panic!("a future was polled after it was done"),
        }
    }
}

/// A future that resolves to the completion of a receive, which returns the buffer.
///
/// # Cancel safety
/// Dropping the future does not cancel the receive, and the data that it receives is lost.
/// [`cancel`](Self::cancel) cancels it.
#[must_use = "the future returns the received data, which is lost if the future is dropped"]
#[derive(Debug)]
pub struct Receiving {
    state: ReceiveState,
}

#[derive(Debug)]
enum ReceiveState {
    /// The request was submitted to the session's receives.
    Waiting(Arc<Receives>, PendingRequest<ReceiveCompletion>),
    /// The endpoint was not connected, so the receive was not submitted.
    Refused(ReceiveCompletion),
    /// The future has returned the completion.
    Taken,
}

impl Receiving {
    pub(crate) const fn waiting(
        receives: Arc<Receives>,
        pending: PendingRequest<ReceiveCompletion>,
    ) -> Self {
        Self {
            state: ReceiveState::Waiting(receives, pending),
        }
    }

    pub(crate) const fn refused(status: Status, buffer: BytesMut) -> Self {
        let completion = ReceiveCompletion {
            id: RequestId(0),
            status,
            information: 0,
            buffer,
            target: None,
            invalidated_token: None,
        };
        Self {
            state: ReceiveState::Refused(completion),
        }
    }

    /// Cancels the receive if it is still pending, and returns whether it was pending.
    ///
    /// A cancelled receive completes with [`CANCELLED`](Status::CANCELLED). The bytes that were
    /// placed in its buffer before are not received again.
    pub fn cancel(&self) -> bool {
        match &self.state {
            ReceiveState::Waiting(receives, pending) => receives.cancel(pending.id),
            _ => false,
        }
    }
}

impl Future for Receiving {
    type Output = ReceiveCompletion;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let ReceiveState::Waiting(_, pending) = &mut self.state {
            let completion = ready!(pending.poll(context));
            self.state = ReceiveState::Taken;
            return Poll::Ready(completion);
        }
        match std::mem::replace(&mut self.state, ReceiveState::Taken) {
            ReceiveState::Refused(completion) => Poll::Ready(completion),
            _ => panic!("a future was polled after it was done"),
        }
    }
}
