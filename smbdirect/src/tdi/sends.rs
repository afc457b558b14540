//! [`Sends`]: the sends of one connection, shared by all handles of its endpoint and by its task.
//!
//! The latch of "send possible" is here. A refusal arms it under the same lock under which room is
//! freed, and whoever waits looks at the latch itself and not at an event: so no wake-up falls
//! between a refusal and the wait that follows it. `super::shuttled` runs this file under a
//! scheduler that tries the orders of its threads.

use std::{
    collections::VecDeque,
    mem,
    task::{Context, Poll, Waker},
    time::Instant,
};

use super::sync::{Mutex, MutexGuard, PoisonError};
use crate::{
    tdi::{
        Outbound, OutboundTsdu, Outlook, RequestId, SendCompletion, SendEvent, SendFlags,
        SendRequest, Status, Submission, transport::ResourceStatistics,
    },
    waiters::Waiters,
};

#[derive(Debug)]
pub(crate) struct Sends {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    outbound: Outbound,
    waiters: Waiters<SendCompletion>,
    /// Who waits for room.
    waiting: Vec<Waker>,
    /// The task of the connection.
    task: Waker,
    news: VecDeque<SendNews>,
    ended: Option<Status>,
    usage: ResourceStatistics,
    /// Whom to wake when the lock is released.
    wakes: Vec<Waker>,
    /// Completions that nobody waits for, to be dropped when the lock is released: the drop of a
    /// buffer is the client's, and may do anything.
    unclaimed: Vec<SendCompletion>,
}

/// What the task has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendNews {
    /// Tell the client: so many bytes are free.
    SendPossible(usize),
    /// Abort the connection.
    Abort(Status),
    /// All has left after a release.
    Drained,
}

impl Sends {
    pub(crate) fn new(mut outbound: Outbound) -> Self {
        outbound.keep_spent();
        Self {
            state: Mutex::new(State {
                outbound,
                waiters: Waiters::default(),
                waiting: Vec::new(),
                task: Waker::noop().clone(),
                news: VecDeque::new(),
                ended: None,
                usage: ResourceStatistics::default(),
                wakes: Vec::new(),
                unclaimed: Vec::new(),
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does `action` under the lock, then wakes whom it concerns.
    fn with<R>(&self, action: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.lock();
        let result = action(&mut state);
        let wakes = mem::take(&mut state.wakes);
        let unclaimed = mem::take(&mut state.unclaimed);
        let spent = state.outbound.take_spent();
        drop(state);
        wakes.into_iter().for_each(Waker::wake);
        drop((unclaimed, spent));
        result
    }

    /// Submits a request, and says where its completion is waited for. The name in it is not used.
    pub(crate) fn submit(&self, now: Instant, request: SendRequest) -> usize {
        self.with(|state| state.submit(now, request))
    }

    /// Submits a request that is a TSDU by itself.
    ///
    /// # Errors
    /// [`Status::INVALID_DEVICE_STATE`]: it would go on with one that is being put together.
    pub(crate) fn submit_whole(&self, now: Instant, request: SendRequest) -> Result<usize, Status> {
        self.with(|state| match state.outbound.is_open(request.flags) {
            true => Err(Status::INVALID_DEVICE_STATE),
            false => Ok(state.submit(now, request)),
        })
    }

    /// A send whose outcome is known at once: bytes taken.
    pub(crate) fn try_send(&self, now: Instant, request: SendRequest) -> Result<usize, Status> {
        let length = request.buffer.len();
        let completion = self.with(|state| {
            let place = state.submit(now, request);
            // If it is not done, there is no send buffer, the flag means nothing, and it is on
            // its way.
            state.waiters.abandon(place)
        });
        completion.map_or(Ok(length), |completion| completion.result())
    }

    /// The completion of the request that waits at `place`.
    pub(crate) fn poll(&self, place: usize, context: &mut Context<'_>) -> Poll<SendCompletion> {
        self.lock().waiters.poll(place, context)
    }

    /// Nobody waits at `place` any more; the request goes on.
    pub(crate) fn abandon(&self, place: usize) {
        // The completion, a buffer of the client's, is dropped without the lock.
        let completion = self.lock().waiters.abandon(place);
        drop(completion);
    }

    /// Cancels the request that waits at `place`, if it has not begun to leave.
    pub(crate) fn cancel(&self, place: usize) -> bool {
        self.with(|state| {
            let cancelled = state.outbound.cancel(RequestId(place as u64));
            state.settle();
            cancelled
        })
    }

    pub(crate) fn discard_partial(&self, flags: SendFlags) -> bool {
        self.with(|state| {
            let discarded = state.outbound.discard_partial(flags);
            state.settle();
            discarded
        })
    }

    /// Waits until no refusal stands: bytes that a non-blocking send would take now.
    pub(crate) fn poll_possible(&self, context: &mut Context<'_>) -> Poll<Result<usize, Status>> {
        let mut state = self.lock();
        if let Some(status) = state.ended {
            return Poll::Ready(Err(status));
        }
        //= TDI-SEND-17
        if !state.outbound.is_refused() {
            return Poll::Ready(Ok(state.outbound.available()));
        }
        let waker = context.waker();
        if !state.waiting.iter().any(|known| known.will_wake(waker)) {
            state.waiting.push(waker.clone());
        }
        Poll::Pending
    }

    pub(crate) fn available(&self) -> usize {
        self.lock().outbound.available()
    }

    pub(crate) fn usage(&self) -> ResourceStatistics {
        self.lock().usage
    }

    /// No more sends; what is there leaves.
    ///
    /// # Errors
    /// As [`Outbound::release`].
    pub(crate) fn release(&self) -> Result<(), Status> {
        self.with(|state| {
            let result = state.outbound.release();
            state.settle();
            result
        })
    }

    /// The connection is over: whatever is pending ends with `status`.
    pub(crate) fn end(&self, status: Status) {
        self.with(|state| {
            state.outbound.close(status);
            // Nobody is told of room that is gone.
            state.news.clear();
            state.ended.get_or_insert(status);
            state.wakes.append(&mut state.waiting);
            state.settle();
        });
    }

    // For the task

    /// Wakes `waker` when there is something for the task.
    pub(crate) fn watch(&self, waker: &Waker) {
        let mut state = self.lock();
        if !state.task.will_wake(waker) {
            state.task = waker.clone();
        }
    }

    pub(crate) fn has_tsdu(&self) -> bool {
        self.lock().outbound.has_tsdu()
    }

    pub(crate) fn poll_tsdu(&self, outlook: Outlook) -> Option<OutboundTsdu> {
        self.lock().outbound.poll_tsdu(outlook)
    }

    pub(crate) fn tsdu_sent(&self) {
        self.with(|state| {
            state.outbound.tsdu_sent();
            state.settle();
        });
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.lock().outbound.poll_timeout()
    }

    pub(crate) fn handle_timeout(&self, now: Instant) {
        self.with(|state| {
            state.outbound.handle_timeout(now);
            state.settle();
        });
    }

    /// What the task has to do next.
    pub(crate) fn poll_news(&self) -> Option<SendNews> {
        self.lock().news.pop_front()
    }
}

impl State {
    fn submit(&mut self, now: Instant, mut request: SendRequest) -> usize {
        let place = self.waiters.insert();
        request.id = RequestId(place as u64);
        if let Submission::Completed(completion) = self.outbound.send(now, request) {
            if completion.status == Status::DEVICE_NOT_READY {
                self.usage.exhausted += 1;
            }
            self.complete(completion);
        }
        let used = self.outbound.buffered() as u64;
        self.usage.maximum_used = self.usage.maximum_used.max(used);
        self.wakes.push(self.task.clone());
        place
    }

    /// Takes what has happened.
    fn settle(&mut self) {
        while let Some(event) = self.outbound.poll_event() {
            let news = match event {
                SendEvent::Completed(completion) => {
                    self.complete(completion);
                    continue;
                }
                SendEvent::SendPossible { available } => {
                    self.wakes.append(&mut self.waiting);
                    SendNews::SendPossible(available)
                }
                SendEvent::Abort(status) => SendNews::Abort(status),
                SendEvent::Drained => SendNews::Drained,
            };
            self.news.push_back(news);
            self.wakes.push(self.task.clone());
        }
    }

    fn complete(&mut self, completion: SendCompletion) {
        let place = completion.id.0 as usize;
        match self.waiters.complete(place, completion) {
            Ok(waker) => self.wakes.extend(waker),
            Err(completion) => self.unclaimed.push(completion),
        }
    }
}
