//! [`Sends`]: the sends of one connection, shared by the handles of its endpoint and by its task.
//!
//! This file has the latch of "send possible". The lock under which a refusal sets the latch is
//! also the lock under which room is freed, and a waiter reads the latch itself instead of an
//! event. A wake-up can therefore not be lost between a refusal and the wait that follows it.
//! `super::shuttled` runs this file under a scheduler that tries many thread interleavings.

use std::{collections::HashMap, mem, task::Waker, time::Instant};

use tokio::sync::{Notify, oneshot};

use super::sync::{Mutex, MutexGuard, PoisonError};
use crate::{
    protocol::{
        Outbound, OutboundTsdu, RequestId, ResourceStatistics, SendAvailability, SendCompletion,
        SendEvent, SendFlags, SendRequest, Status, Submission,
    },
    session::completions::{Completions, Routine},
};

/// The sends of one connection.
#[derive(Debug)]
pub(crate) struct Sends {
    state: Mutex<State>,
    /// Wakes the futures that wait for room.
    room: Notify,
}

#[derive(Debug)]
struct State {
    outbound: Outbound,
    completions: Completions<SendCompletion, SendNews>,
    /// The routines of the requests that complete by one.
    routines: HashMap<RequestId, Routine>,
    /// Whether to wake the futures that wait for room, after the lock is released.
    wakes_room: bool,
    ended: Option<Status>,
    /// The latest deadline that had already passed when its send was submitted.
    passed: Option<Instant>,
}

/// A request that is pending: its id, and its completion.
type Pending = (RequestId, oneshot::Receiver<SendCompletion>);

/// An event of the sends for the connection's task.
#[derive(Debug)]
pub(crate) enum SendNews {
    /// A request that has a routine has completed.
    Completed(Routine, SendCompletion),
    /// The client is to be notified that the send buffer has this many free bytes.
    SendPossible(usize),
    /// A send has timed out, and the connection must be aborted.
    Abort,
    /// Everything was sent after a release.
    Drained,
}

impl Sends {
    pub(crate) fn new(mut outbound: Outbound) -> Self {
        outbound.keep_spent();
        Self {
            state: Mutex::new(State {
                outbound,
                completions: Completions::default(),
                routines: HashMap::new(),
                wakes_room: false,
                ended: None,
                passed: None,
            }),
            room: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `action` under the lock, then wakes tasks, delivers completions and drops buffers
    /// without the lock: the destructor of a buffer is the client's and may call into this object.
    fn with<R>(&self, action: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.lock();
        let result = action(&mut state);
        let due = state.completions.take_due();
        let wakes_room = mem::take(&mut state.wakes_room);
        let spent = state.outbound.take_spent();
        drop(state);
        due.deliver();
        if wakes_room {
            self.room.notify_waiters();
        }
        drop(spent);
        result
    }

    /// Submits a request. The request's id is not used.
    pub(crate) fn submit(&self, now: Instant, request: SendRequest) -> Pending {
        self.with(|state| state.submit(now, request))
    }

    /// Submits a request whose completion calls `routine`, or returns both if the task of the connection has ended.
    pub(crate) fn submit_then(
        &self,
        now: Instant,
        request: SendRequest,
        routine: Routine,
    ) -> Result<RequestId, Box<(SendRequest, Routine)>> {
        self.with(|state| {
            if state.completions.is_over {
                return Err(Box::new((request, routine)));
            }
            let id = state.completions.next_id();
            state.routines.insert(id, routine);
            state.submit_as(id, now, request);
            Ok(id)
        })
    }

    /// Submits a request that is a whole TSDU.
    ///
    /// # Errors
    /// [`Status::INVALID_DEVICE_STATE`]: a TSDU of its class is open, which the request would
    /// continue.
    pub(crate) fn submit_whole(
        &self,
        now: Instant,
        request: SendRequest,
    ) -> Result<Pending, Status> {
        self.with(|state| {
            if state.outbound.is_open(request.flags) {
                Err(Status::INVALID_DEVICE_STATE)
            } else {
                Ok(state.submit(now, request))
            }
        })
    }

    /// Submits a non-blocking send and returns the number of bytes taken.
    pub(crate) fn try_send(&self, now: Instant, request: SendRequest) -> Result<usize, Status> {
        let length = request.buffer.len();
        match self.submit(now, request).1.try_recv() {
            Ok(completion) => completion.result(),
            // Without a send buffer the flag has no effect, and the request is still pending.
            Err(_) => Ok(length),
        }
    }

    /// Cancels the request `id` if its TSDU has not been passed to the connection. Returns
    /// whether the request was cancelled.
    pub(crate) fn cancel(&self, id: RequestId) -> bool {
        self.with(|state| {
            let cancelled = state.outbound.cancel(id);
            state.settle();
            cancelled
        })
    }

    /// Discards the open TSDU of a class; see [`Outbound::discard_partial`].
    pub(crate) fn discard_partial(&self, flags: SendFlags) -> bool {
        self.with(|state| {
            let discarded = state.outbound.discard_partial(flags);
            state.settle();
            discarded
        })
    }

    /// Waits while the latch of a refusal is set, and returns the free bytes of the send buffer.
    pub(crate) async fn possible(&self) -> Result<usize, Status> {
        loop {
            // This future is made before the latch is read, so that no wake-up after that is lost.
            let room = self.room.notified();
            if let Some(result) = self.possible_now() {
                return result;
            }
            room.await;
        }
    }

    fn possible_now(&self) -> Option<Result<usize, Status>> {
        let state = self.lock();
        if let Some(status) = state.ended {
            return Some(Err(status));
        }
        //= TDI-SEND-17
        let possible = !state.outbound.is_refused();
        possible.then(|| Ok(state.outbound.available()))
    }

    pub(crate) fn available(&self) -> usize {
        self.lock().outbound.available()
    }

    pub(crate) fn usage(&self) -> ResourceStatistics {
        self.lock().completions.usage
    }

    /// Accepts no more sends, and reports [`SendNews::Drained`] when the earlier ones were sent.
    ///
    /// # Errors
    /// The errors of [`Outbound::release`].
    pub(crate) fn release(&self) -> Result<(), Status> {
        self.with(|state| {
            let result = state.outbound.release();
            state.settle();
            result
        })
    }

    /// Completes all pending requests with `status`, because the connection has ended.
    pub(crate) fn end(&self, status: Status) {
        self.with(|state| {
            state.outbound.close(status);
            // Of the earlier events only completions are still reported.
            let is_completion = |news: &SendNews| matches!(news, SendNews::Completed(..));
            state.completions.news.retain(is_completion);
            state.ended.get_or_insert(status);
            state.wakes_room = true;
            state.settle();
        });
    }

    // Methods for the connection's task

    /// Sets the waker that is woken when the task has work.
    pub(crate) fn watch(&self, waker: &Waker) {
        let old = self.lock().completions.watch(waker);
        drop(old);
    }

    pub(crate) fn has_tsdu(&self) -> bool {
        self.lock().outbound.has_tsdu()
    }

    pub(crate) fn poll_tsdu(&self, availability: SendAvailability) -> Option<OutboundTsdu> {
        self.lock().outbound.poll_tsdu(availability)
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

    /// Returns whether the deadline `due` had already passed when its send was submitted. If so, no stall has
    /// made the check of `due` late.
    pub(crate) fn was_passed(&self, due: Instant) -> bool {
        self.lock().passed.is_some_and(|passed| due <= passed)
    }

    pub(crate) fn handle_timeout(&self, now: Instant) {
        self.with(|state| {
            state.outbound.handle_timeout(now);
            state.settle();
        });
    }

    /// Returns the next event for the task.
    pub(crate) fn poll_news(&self) -> Option<SendNews> {
        self.lock().completions.news.pop_front()
    }

    /// Ends the task of the connection, unless events are left. Returns whether it ends.
    pub(crate) fn end_task(&self) -> bool {
        let completions = &mut self.lock().completions;
        completions.is_over = completions.news.is_empty();
        completions.is_over
    }
}

impl State {
    fn submit(&mut self, now: Instant, request: SendRequest) -> Pending {
        let pending = self.completions.add();
        self.submit_as(pending.0, now, request);
        pending
    }

    fn submit_as(&mut self, id: RequestId, now: Instant, mut request: SendRequest) {
        request.id = id;
        self.passed = self.passed.max(request.deadline.filter(|&due| due <= now));
        if let Submission::Completed(completion) = self.outbound.send(now, request) {
            if completion.status == Status::DEVICE_NOT_READY {
                self.completions.usage.exhausted += 1;
            }
            self.complete(completion);
        }
        let used = self.outbound.buffered() as u64;
        let usage = &mut self.completions.usage;
        usage.maximum_used = usage.maximum_used.max(used);
        self.completions.wake_task();
    }

    fn settle(&mut self) {
        while let Some(event) = self.outbound.poll_event() {
            let news = match event {
                SendEvent::Completed(completion) => {
                    self.complete(completion);
                    continue;
                }
                SendEvent::SendPossible { available } => {
                    self.wakes_room = true;
                    SendNews::SendPossible(available)
                }
                SendEvent::Abort(_) => SendNews::Abort,
                SendEvent::Drained => SendNews::Drained,
            };
            self.completions.report(news);
        }
    }

    fn complete(&mut self, completion: SendCompletion) {
        match self.routines.remove(&completion.id) {
            None => self.completions.complete(completion.id, completion),
            Some(routine) => {
                let news = SendNews::Completed(routine, completion);
                self.completions.report(news);
            }
        }
    }
}
