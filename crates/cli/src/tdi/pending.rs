//! Requests of a session that have not completed, and the wakers that say which to poll next.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Wake, Waker},
};

use smbdirect::tdi::{ReceiveCompletion, Receiving, Requested, SendCompletion, Sending, Status};

use super::lines::{Data, Outcome};

/// A request that is being polled.
pub(super) struct Pending {
    pub(super) request: Submitted,
    /// The status that an `expect` before it allows.
    pub(super) expected: Option<Status>,
    /// It sends a received TSDU back.
    pub(super) is_echo: bool,
    pub(super) waker: Waker,
}

/// A request that was submitted.
pub(super) enum Submitted {
    Send(Sending),
    Receive(Receiving),
    Other(Requested),
}

/// The result of a request.
pub(super) enum Completion {
    Send(SendCompletion),
    Receive(ReceiveCompletion),
    Other(Status),
}

impl Submitted {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Completion> {
        match self {
            Self::Send(sending) => Pin::new(sending).poll(context).map(Completion::Send),
            Self::Receive(receiving) => Pin::new(receiving).poll(context).map(Completion::Receive),
            Self::Other(requested) => Pin::new(requested).poll(context).map(|result| {
                let status = result.err().unwrap_or(Status::SUCCESS);
                Completion::Other(status)
            }),
        }
    }
}

impl Submitted {
    /// Cancels the request, and returns whether that was still possible.
    pub(super) fn cancel(&self) -> bool {
        match self {
            Self::Send(sending) => sending.cancel(),
            Self::Receive(receiving) => receiving.cancel(),
            // TDI cannot cancel these; a disconnect ends them.
            Self::Other(_) => false,
        }
    }
}

impl Completion {
    const fn status(&self) -> Status {
        match self {
            Self::Send(completion) => completion.status,
            Self::Receive(completion) => completion.status,
            Self::Other(status) => *status,
        }
    }

    pub(super) fn outcome(self) -> Outcome {
        let outcome = Outcome::new(self.status());
        if outcome.status.0.is_error() {
            return outcome;
        }
        match self {
            Self::Send(completion) => Outcome {
                information: Some(completion.information),
                ..outcome
            },
            Self::Receive(completion) => Outcome {
                information: Some(completion.information),
                data: Some(Data::new(&completion.buffer[..completion.information])),
                invalidated_token: completion.invalidated_token.map(|token| token.0),
                ..outcome
            },
            Self::Other(_) => outcome,
        }
    }
}

/// The requests that have been woken.
pub(super) struct WokenRequests {
    /// Their numbers, in the order of the wakes.
    numbers: Mutex<VecDeque<u64>>,
    /// The task that polls the requests of the session.
    task: Mutex<Waker>,
}

/// The waker of one request.
pub(super) struct RequestWaker {
    number: u64,
    woken: Arc<WokenRequests>,
}

impl WokenRequests {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            numbers: Mutex::default(),
            task: Mutex::new(Waker::noop().clone()),
        })
    }

    /// Returns the number of the next request to poll.
    pub(super) fn next(&self) -> Option<u64> {
        self.numbers.lock().expect("no panic under it").pop_front()
    }

    /// Has `task` woken when a request is.
    pub(super) fn watch(&self, task: &Waker) {
        self.task
            .lock()
            .expect("no panic under it")
            .clone_from(task);
    }
}

impl RequestWaker {
    pub(super) fn new(number: u64, woken: &Arc<WokenRequests>) -> Arc<Self> {
        let woken = woken.clone();
        Arc::new(Self { number, woken })
    }
}

impl Wake for RequestWaker {
    fn wake(self: Arc<Self>) {
        let mut numbers = self.woken.numbers.lock().expect("no panic under it");
        numbers.push_back(self.number);
        drop(numbers);
        let task = self.woken.task.lock().expect("no panic under it").clone();
        task.wake();
    }
}

impl Pending {
    pub(super) fn poll(&mut self) -> Poll<Completion> {
        self.request.poll(&mut Context::from_waker(&self.waker))
    }

    pub(super) fn new(request: Submitted, expected: Option<Status>) -> Self {
        Self {
            request,
            expected,
            is_echo: false,
            waker: Waker::noop().clone(),
        }
    }
}

impl From<Sending> for Submitted {
    fn from(sending: Sending) -> Self {
        Self::Send(sending)
    }
}

impl From<Receiving> for Submitted {
    fn from(receiving: Receiving) -> Self {
        Self::Receive(receiving)
    }
}

impl From<Requested> for Submitted {
    fn from(requested: Requested) -> Self {
        Self::Other(requested)
    }
}
