//! [`Requested`], [`Sending`] and [`Receiving`]: requests under way, as futures.
//!
//! A request was submitted by the call that made the future, which only waits for the completion.
//! Dropping one is what a request without a completion routine is in TDI: it goes on.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::BytesMut;
use tokio::sync::oneshot;

use super::{
    receive::ReceiveCompletion, request::RequestId, send::SendCompletion, session::Session,
    status::Status,
};
use crate::engine::Message;

/// A connect, listen, accept or disconnect under way. Dropping it changes nothing.
#[derive(Debug)]
#[must_use = "await it to learn what became of the request, or drop it"]
pub struct Requested(oneshot::Receiver<Result<(), Status>>);

/// Whom to tell that a request is over.
pub(crate) type Completer = oneshot::Sender<Result<(), Status>>;

/// A request, and whom to tell that it is over.
pub(crate) fn requested() -> (Completer, Requested) {
    let (completer, receiver) = oneshot::channel();
    (completer, Requested(receiver))
}

/// A request that is over.
pub(crate) fn done(result: Result<(), Status>) -> Requested {
    let (completer, requested) = requested();
    complete(Some(completer), result);
    requested
}

pub(crate) fn complete(completer: Option<Completer>, result: Result<(), Status>) {
    if let Some(completer) = completer {
        // Nobody need wait for it.
        let _ = completer.send(result);
    }
}

impl Future for Requested {
    type Output = Result<(), Status>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let result = ready!(Pin::new(&mut self.0).poll(context));
        // The runtime stopped with whoever would have told.
        Poll::Ready(result.unwrap_or(Err(Status::CANCELLED)))
    }
}

/// A send under way: a future with its one completion, which has the buffer. Dropping it changes
/// nothing; [`cancel`](Self::cancel) does.
#[must_use = "await it to get the buffer back, or drop it"]
#[derive(Debug)]
pub struct Sending {
    place: SendPlace,
}

#[derive(Debug)]
enum SendPlace {
    Waiting(Arc<Session>, usize),
    /// There was no connection.
    Refused(SendCompletion),
    Taken,
}

impl Sending {
    pub(crate) const fn waiting(session: Arc<Session>, place: usize) -> Self {
        Self {
            place: SendPlace::Waiting(session, place),
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
            place: SendPlace::Refused(completion),
        }
    }

    /// Cancels the send if its TSDU has not begun to leave; it then completes with
    /// [`CANCELLED`](Status::CANCELLED), and what was submitted of its TSDU is not sent. Else
    /// nothing changes, and the completion tells how it went. Says which of the two.
    pub fn cancel(&self) -> bool {
        match &self.place {
            SendPlace::Waiting(session, place) => session.sends.cancel(*place),
            _ => false,
        }
    }
}

impl Future for Sending {
    type Output = SendCompletion;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let SendPlace::Waiting(session, place) = &self.place {
            let completion = ready!(session.sends.poll(*place, context));
            self.place = SendPlace::Taken;
            return Poll::Ready(completion);
        }
        match std::mem::replace(&mut self.place, SendPlace::Taken) {
            SendPlace::Refused(completion) => Poll::Ready(completion),
            _ => panic!("a future was polled after it was done"),
        }
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        //= TDI-SEND-33
        if let SendPlace::Waiting(session, place) = &self.place {
            session.sends.abandon(*place);
        }
    }
}

/// A receive under way: a future with its one completion, which has the buffer. Dropping it does
/// not end the receive: what that gets is lost. [`cancel`](Self::cancel) ends it.
#[must_use = "what is received comes from this future, and is lost if that is dropped"]
#[derive(Debug)]
pub struct Receiving {
    place: ReceivePlace,
}

#[derive(Debug)]
enum ReceivePlace {
    Waiting(Arc<Session>, usize),
    Refused(ReceiveCompletion),
    Taken,
}

impl Receiving {
    pub(crate) const fn waiting(session: Arc<Session>, place: usize) -> Self {
        Self {
            place: ReceivePlace::Waiting(session, place),
        }
    }

    pub(crate) const fn refused(status: Status, buffer: BytesMut) -> Self {
        let completion = ReceiveCompletion {
            id: RequestId(0),
            status,
            information: 0,
            buffer,
            invalidated_token: None,
        };
        Self {
            place: ReceivePlace::Refused(completion),
        }
    }

    /// Cancels the receive if it waits; it then completes with [`CANCELLED`](Status::CANCELLED).
    /// Bytes that it has got already are in its buffer, and nowhere else. Says whether it waited.
    pub fn cancel(&self) -> bool {
        match &self.place {
            ReceivePlace::Waiting(session, place) => session.receives.cancel(*place),
            _ => false,
        }
    }
}

impl Future for Receiving {
    type Output = ReceiveCompletion;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let ReceivePlace::Waiting(session, place) = &self.place {
            let completion = ready!(session.receives.poll(*place, context));
            self.place = ReceivePlace::Taken;
            return Poll::Ready(completion);
        }
        match std::mem::replace(&mut self.place, ReceivePlace::Taken) {
            ReceivePlace::Refused(completion) => Poll::Ready(completion),
            _ => panic!("a future was polled after it was done"),
        }
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        if let ReceivePlace::Waiting(session, place) = &self.place {
            session.receives.abandon(*place);
        }
    }
}
