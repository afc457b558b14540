//! The state that the mutex of a connection protects, and the operations that the handles call under it.

use std::{
    mem,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use tracing::Span;

use super::{
    clock::now,
    schedule::Schedule,
    waiting::{Condition, Waiting},
};
use crate::{
    engine::{
        self, ConnectionError, Credits, Message, MessageId, Negotiated, SendError, Statistics,
        TransferFault, TransferId,
    },
    inbox::{Inbox, Segment},
    rdma::{
        memory::{DeregisterError, RegisterError, RegisterFault, Registration},
        provider::{Connected, QueuePair},
        work::{Access, Token},
    },
    waiters::{Abandoned, Waiters},
    wire::BufferDescriptorV1,
};

/// The outcome of a read or write: the buffer of a read, and the fault if it failed.
pub(crate) type TransferResult = (Option<BytesMut>, Result<(), TransferFault>);

/// Engine, queue pair and waiting futures of one connection.
#[derive(Debug)]
pub(crate) struct State {
    pub(super) engine: engine::Driven,
    pub(super) queue_pair: Box<dyn QueuePair>,
    pub(super) inbox: Inbox,
    pub(super) sends: Waiters<Result<(), ConnectionError>>,
    pub(super) transfers: Waiters<TransferResult>,
    pub(super) waiting: Waiting,
    pub(super) negotiated: Option<Negotiated>,
    /// Why the engine has ended the connection. The queue pair may still be connected.
    pub(super) closed: Option<ConnectionError>,
    /// The queue pair has reported its disconnect, after which it reports nothing.
    pub(super) finished: bool,
    /// The runtime of the connection has ended, and the library's own runtime drives the connection.
    pub(super) lost_runtime: bool,
    pub(super) keepalives_answered: u64,
    /// Number of buffers that are registered now.
    pub(super) regions: u64,
    /// Number of buffers that were registered in total.
    pub(super) registrations: u64,
    /// Registrations that their owner dropped while queued work still read from the buffer.
    pub(super) orphans: Vec<Token>,
    /// Wakers to call when the lock is released.
    pub(super) wakes: Vec<Waker>,
    pub(super) task_waker: Waker,
    /// The driver task was woken and has not run since.
    pub(super) wake_pending: bool,
    pub(super) schedule: Schedule,
    /// When the timer of the driver task fires.
    pub(super) armed: Option<Instant>,
    /// The engine wants receives for which untaken messages leave no room.
    pub(super) starved: bool,
    /// How long a receiving future busy-polls before it sleeps.
    pub(super) busy_poll: Duration,
    #[cfg(feature = "metrics")]
    pub(super) metered: crate::metrics::Metered,
}

impl State {
    pub(super) fn new(engine: engine::Connection, connected: Connected) -> Self {
        #[cfg(smbdirect_proved)]
        let engine = engine.into();
        Self {
            engine,
            inbox: Inbox::new(connected.is_zero_copy),
            queue_pair: connected.queue_pair,
            sends: Waiters::default(),
            transfers: Waiters::default(),
            waiting: Waiting::default(),
            negotiated: None,
            closed: None,
            finished: false,
            lost_runtime: false,
            keepalives_answered: 0,
            regions: 0,
            registrations: 0,
            orphans: Vec::new(),
            wakes: Vec::new(),
            task_waker: Waker::noop().clone(),
            wake_pending: false,
            schedule: Schedule::new(connected.poll_window),
            armed: None,
            starved: false,
            busy_poll: Duration::ZERO,
            #[cfg(feature = "metrics")]
            metered: crate::metrics::Metered::default(),
        }
    }

    // Sending

    /// Submits a message, and returns the index of its waiter in [`poll_sent`](Self::poll_sent). With
    /// `prompt`, the last segment of the message asks the peer for an answer.
    #[inline(always)]
    pub(crate) fn submit_send(
        &mut self,
        message: Message,
        invalidate: Option<Token>,
        prompt: bool,
    ) -> Result<usize, SendError> {
        let (index, length) = (self.sends.insert(), message.len());
        if let Err(error) = self
            .engine
            .send(MessageId(index as u64), message, invalidate)
        {
            self.sends.remove(index);
            return Err(error);
        }
        if prompt {
            self.engine.prompt_answer();
        }
        self.submitted(1, length);
        Ok(index)
    }

    /// Submits the messages of a list in order and removes them from it, and returns the index of the
    /// waiter for the last. Stops at the first message that cannot be sent, which stays in the list
    /// with all after it.
    pub(crate) fn submit_many(&mut self, messages: &mut Vec<Message>) -> Result<usize, SendError> {
        let index = self.sends.insert();
        let (mut sent, mut length) = (0, 0);
        let all = messages.len();
        let result = messages.iter_mut().try_for_each(|place| {
            // Messages are sent in order: when the waiter of the last one completes, all have been sent.
            let id = if sent + 1 == all {
                MessageId(index as u64)
            } else {
                MessageId::UNWATCHED
            };
            self.engine.check(place)?;
            let message = mem::take(place);
            (sent, length) = (sent + 1, length + message.len());
            self.engine.send(id, message, None)
        });
        messages.drain(..sent);
        if sent > 0 {
            self.submitted(sent, length);
        }
        if let Err(error) = result {
            self.sends.remove(index);
            return Err(error);
        }
        if all == 0 {
            let done = self.sends.complete(index, Ok(()));
            done.expect("no future can have abandoned the slot before its index is returned");
        }
        Ok(index)
    }

    /// Returns whether a message would have to wait: the connection is open, and no message can start
    /// immediately.
    #[inline]
    pub(crate) fn would_wait(&self) -> bool {
        !self.engine.is_ready() && self.closed.is_none() && !self.engine.is_closing()
    }

    /// Returns `Ok` if a message can start immediately, or the reason if none can start any more: the connection is
    /// over, or this end closes it.
    pub(crate) fn check_ready(&self) -> Option<Result<(), ConnectionError>> {
        match &self.closed {
            Some(error) => Some(Err(error.clone())),
            None if self.engine.is_closing() => Some(Err(ConnectionError::ClosedHere)),
            None => self.engine.is_ready().then_some(Ok(())),
        }
    }

    /// Returns the result of a submitted message, once its last segment was handed to the wire. The caller
    /// drops `old` outside the lock.
    #[inline]
    pub(crate) fn poll_sent(
        &mut self,
        index: usize,
        context: &Context<'_>,
        old: &mut Option<Waker>,
    ) -> Poll<Result<(), ConnectionError>> {
        self.sends.poll(index, context, old)
    }

    /// Abandons the waiter of a submitted message. The message is still sent. The caller drops what this
    /// returns outside the lock.
    #[inline]
    pub(crate) fn abandon_sent(&mut self, index: usize) -> Abandoned<Result<(), ConnectionError>> {
        self.sends.abandon(index)
    }

    /// Sends the peer an empty message with the credits that it can be granted, unless another message
    /// is about to be sent.
    pub(crate) fn submit_prompt(&mut self) {
        self.engine.prompt();
        self.submitted(1, 0);
    }

    // Reads and writes

    /// Submits an RDMA Read, and returns the index of its waiter in
    /// [`poll_transfer`](Self::poll_transfer).
    pub(crate) fn submit_read(
        &mut self,
        from: &[BufferDescriptorV1],
        offset: u64,
        into: BytesMut,
    ) -> usize {
        let (index, length) = (self.transfers.insert(), into.len());
        let id = TransferId(index as u64);
        if let Err((fault, buffer)) = self.engine.read(id, from, offset, into) {
            self.fail_transfer(index, (Some(buffer), Err(fault)));
        }
        self.submitted(1, length);
        index
    }

    /// Submits an RDMA Write, and returns the index of its waiter in
    /// [`poll_transfer`](Self::poll_transfer).
    pub(crate) fn submit_write(
        &mut self,
        to: &[BufferDescriptorV1],
        offset: u64,
        data: Bytes,
    ) -> usize {
        let (index, length) = (self.transfers.insert(), data.len());
        let id = TransferId(index as u64);
        if let Err(fault) = self.engine.write(id, to, offset, data) {
            self.fail_transfer(index, (None, Err(fault)));
        }
        self.submitted(1, length);
        index
    }

    /// Completes a read or write that the engine did not take. No future has the index yet.
    fn fail_transfer(&mut self, index: usize, result: TransferResult) {
        self.transfers
            .complete(index, result)
            .expect("no future can have abandoned the slot before its index is returned");
    }

    /// Returns the result of a submitted read or write, once it is over. The caller drops `old` outside the
    /// lock.
    #[inline]
    pub(crate) fn poll_transfer(
        &mut self,
        index: usize,
        context: &Context<'_>,
        old: &mut Option<Waker>,
    ) -> Poll<TransferResult> {
        self.transfers.poll(index, context, old)
    }

    /// Abandons the waiter of a submitted read or write, which still completes. The caller drops what this
    /// returns outside the lock.
    #[inline]
    pub(crate) fn abandon_transfer(&mut self, index: usize) -> Abandoned<TransferResult> {
        self.transfers.abandon(index)
    }

    // Receiving

    /// Takes the oldest whole message that is not due to the `ahead` futures that have waited for longer. Call
    /// [`taken`](Self::taken) after the last message. After the end of the connection no message is due to others, because
    /// a future that is not polled any more would keep it.
    #[inline]
    pub(crate) fn take_message(&mut self, ahead: usize) -> Option<Message> {
        let ahead = if self.closed.is_some() { 0 } else { ahead };
        self.inbox.take_at(ahead)
    }

    /// Takes the oldest message, or the arrived part of a message that is still arriving.
    #[inline]
    pub(crate) fn take_segment(&mut self) -> Option<Segment> {
        self.inbox.take_segment()
    }

    /// Posts the receives for which the messages that were just taken have made room.
    #[inline]
    pub(crate) fn taken(&mut self) {
        if self.starved {
            if self.schedule.takes_turns() {
                self.wake_task();
            } else {
                self.drive(now());
            }
        } else if self.waiting.any(Condition::Ready) {
            self.engine.set_unread(self.inbox.cost());
            self.wake_if_ready();
        }
    }

    /// Sets how long a receiving future busy-polls before it sleeps.
    pub(crate) fn set_busy_poll(&mut self, duration: Duration) {
        self.busy_poll = duration;
    }

    // The connection

    /// Returns the outcome of the negotiation, once it is over.
    pub(crate) fn negotiation_result(&mut self) -> Option<Result<Negotiated, ConnectionError>> {
        match (self.negotiated, &self.closed) {
            (Some(negotiated), _) => Some(Ok(negotiated)),
            (None, Some(error)) => Some(Err(error.clone())),
            (None, None) => None,
        }
    }

    /// Asks the peer for a keepalive, and returns how many it has answered so far.
    pub(crate) fn start_keepalive(&mut self, now: Instant) -> u64 {
        let before = self.keepalives_answered;
        self.engine.prompt_keepalive(now);
        self.drive(now);
        before
    }

    /// Returns the outcome of a keepalive, once more than `before` were answered or the connection is
    /// over.
    pub(crate) fn keepalive_result(&self, before: u64) -> Option<Result<(), ConnectionError>> {
        match &self.closed {
            _ if self.keepalives_answered != before => Some(Ok(())),
            Some(error) => Some(Err(error.clone())),
            None => None,
        }
    }

    /// Returns whether the peer was asked for an answer that has not arrived.
    pub(crate) fn awaits_answer(&self) -> bool {
        self.engine.awaits_answer()
    }

    pub(crate) fn credits(&self) -> Credits {
        self.engine.credits()
    }

    pub(crate) fn statistics(&self) -> Statistics {
        let mut statistics = self.engine.statistics();
        statistics.regions = self.regions;
        statistics.registrations = self.registrations;
        let usage = self.queue_pair.usage();
        (statistics.wire_bytes_sent, statistics.wire_bytes_received) = (usage.sent, usage.received);
        if let Some(since) = self.engine.credit_stall() {
            statistics.credit_stall_time += now().saturating_duration_since(since);
        }
        statistics
    }

    pub(crate) fn span(&self) -> Span {
        self.engine.span().clone()
    }

    /// Closes the connection after the work submitted so far. The driver task does the rest of the work, because a
    /// handle may be dropped outside the runtime, where the timers of the runtime cannot be used.
    pub(crate) fn close(&mut self) {
        self.engine.close();
        self.wake(Condition::Ready);
        self.wake_task();
    }

    /// Closes the connection when nobody receives its messages any more, and discards those that arrived. A
    /// full inbox would keep this end from granting credits, and so from sending its last messages.
    ///
    /// Returns whether the runtime of the connection had already ended.
    pub(crate) fn close_unread(&mut self) -> bool {
        self.inbox.discard_all();
        self.close();
        self.lost_runtime
    }

    /// Ends the connection immediately. As in [`close`](Self::close), the driver task is woken to finish
    /// this.
    pub(crate) fn abort(&mut self) {
        self.engine.abort();
        self.take_events();
        self.wake_task();
    }

    /// Returns why no message follows, if the connection is over and the arrived messages were taken.
    #[inline]
    pub(crate) fn receive_error(&self) -> Option<ConnectionError> {
        match self.closed.clone()? {
            ConnectionError::Closed | ConnectionError::ClosedHere if self.inbox.missing() > 0 => {
                Some(ConnectionError::Truncated {
                    missing: self.inbox.missing(),
                })
            }
            error => Some(error),
        }
    }

    /// Returns why the connection is over for the protocol, if it is. Its last work may still be under
    /// way.
    #[inline]
    pub(crate) fn error(&self) -> Option<ConnectionError> {
        self.closed.clone()
    }

    /// Returns why the connection is over, once its queue pair is also disconnected.
    pub(crate) fn final_reason(&mut self) -> Option<ConnectionError> {
        self.finished.then(|| self.reason())
    }

    // Registered buffers

    /// Registers a buffer.
    ///
    /// # Errors
    /// Fails if the connection has ended or is closing, or if the provider refuses the buffer.
    pub(crate) fn register(
        &mut self,
        buffer: BytesMut,
        access: Access,
    ) -> Result<Registration, RegisterError> {
        if self.closed.is_some() || self.engine.is_closing() {
            let reason = RegisterFault::Connection;
            return Err(RegisterError { buffer, reason });
        }
        let registration = self.queue_pair.register(buffer, access)?;
        self.regions += 1;
        self.registrations += 1;
        Ok(registration)
    }

    /// Ends a registration and returns its buffer. Returns `None` while queued work still reads from
    /// the buffer. Each drive wakes the futures that wait for [`Condition::Release`](Condition::Release).
    pub(crate) fn deregister(&mut self, token: Token) -> Option<Result<BytesMut, DeregisterError>> {
        match self.queue_pair.deregister(token) {
            //= SMBD-3.1.4.4-01
            //= SMBD-3.1.4.4-02
            Err(DeregisterError::InUse) if !self.finished => None,
            result => {
                self.regions -= 1;
                Some(result)
            }
        }
    }

    /// Ends a registration whose token was never sent to the peer, and returns its buffer. If the peer
    /// has guessed the token and is reading from the buffer, it loses its access, `None` is returned,
    /// and the buffer is dropped when that read is over.
    pub(crate) fn withdraw(&mut self, token: Token) -> Option<BytesMut> {
        match self.queue_pair.deregister(token) {
            Ok(buffer) => {
                self.regions -= 1;
                Some(buffer)
            }
            Err(_) => {
                self.orphan(token);
                None
            }
        }
    }

    /// Ends a registration whose buffer is not wanted back.
    pub(crate) fn orphan(&mut self, token: Token) {
        if !self.reclaim(token) {
            self.orphans.push(token);
        }
    }

    /// Ends the orphaned registrations that queued work has released.
    pub(super) fn reclaim_orphans(&mut self) {
        let mut orphans = mem::take(&mut self.orphans);
        orphans.retain(|&token| !self.reclaim(token));
        self.orphans = orphans;
    }

    /// Ends a registration unless queued work still reads from its buffer. Returns whether the registration has
    /// ended.
    fn reclaim(&mut self, token: Token) -> bool {
        match self.queue_pair.deregister(token) {
            Err(DeregisterError::InUse) => false,
            _ => {
                self.regions -= 1;
                true
            }
        }
    }

    // The end of the runtime

    /// Returns whether the connection has lost its runtime, and its end is under way.
    pub(super) fn is_ending(&self) -> bool {
        self.lost_runtime && !self.finished && (self.closed.is_some() || self.engine.is_closing())
    }

    // Wake-ups

    /// Wakes as many of the futures that wait for a whole message as there are messages, the first ones first.
    #[inline]
    pub(super) fn wake_receivers(&mut self) {
        let messages = self.inbox.whole_messages();
        let receivers = self.waiting.list(Condition::Message);
        receivers.wake_first(messages, &mut self.wakes);
    }

    /// Wakes the futures that wait until a message can begin, if it can.
    pub(super) fn wake_if_ready(&mut self) {
        if self.waiting.any(Condition::Ready) && self.engine.is_ready() {
            self.wake(Condition::Ready);
        }
    }

    /// Wakes the futures that wait for `condition`, once the lock is released.
    #[inline]
    pub(super) fn wake(&mut self, condition: Condition) {
        self.waiting.take(condition, &mut self.wakes);
    }

    /// Wakes every future that waits for a change, once the lock is released.
    pub(super) fn wake_all(&mut self) {
        self.waiting.take_all(&mut self.wakes);
    }

    /// Wakes the driver task, once the lock is released, unless it was woken already.
    #[inline]
    pub(super) fn wake_task(&mut self) {
        if !self.wake_pending {
            self.wake_pending = true;
            self.wakes.push(self.task_waker.clone());
        }
    }
}
