//! The one task of a connection, and the state it shares with the handles.
//!
//! Engine and queue pair stand behind one short lock, and whoever holds it may
//! [`drive`](State::drive) them: take completions, hand them to the engine, post what the engine
//! wants, flush. A call of `send` on a quiet connection drives at once, because waking another
//! task costs more than the whole path to the wire. While a flush is only moments old, `send`
//! leaves the message for the task, and so do those behind it, so that a burst of messages shares
//! few system calls: until the task runs, or until there is so much that waiting gains nothing.
//! The task itself is woken by the socket and by time. Where its runtime has one thread, what a
//! single message asks for waits until those ran whom the message woke: mostly they answer.
//!
//! No decision of the protocol is made here.

use std::{
    future::Future,
    hint::spin_loop,
    pin::{Pin, pin},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use bytes::BytesMut;
use tokio::{
    runtime::{Handle, RuntimeFlavor},
    task::yield_now,
    time::{Sleep, sleep_until},
};

use crate::{
    engine::{self, ConnectionError, Event, Initiator, Negotiated, TransferFault},
    inbox::Inbox,
    rdma::{
        memory::DeregisterError,
        provider::{QueuePair, Teardown},
        work::{
            Completion, Disconnect, ProviderError, ProviderErrorKind, Room, Token, WorkRequest,
        },
    },
    waiters::Waiters,
};

/// Completions between two looks at what there is to send.
const ROUND: usize = 256;
/// Rounds before the task lets others run.
const ROUNDS: usize = 2;
/// Bytes of finished reads before it does: who waits for them may have more to ask for, which the
/// peer can look for while it is busy with those that are under way.
const TURN: usize = 128 * 1024;
/// Bytes of whole messages: who takes them gives their memory back while it is in a cache.
const TURN_OF_MESSAGES: usize = 256 * 1024;
/// So many turns behind each other before the runtime looks at its sockets, which is a system call.
const TURNS: u32 = 8;
/// What comes so soon after a flush waits for the task to flush it with others.
const GATHER: Duration = Duration::from_micros(20);
/// The task may be kept from running by those who send and never pause. At every so many messages
const BETWEEN_LOOKS: usize = 16;
/// the time is looked at, and they wait no longer than this.
const PATIENCE: Duration = Duration::from_micros(100);
/// A flush of so many bytes may itself take as long as that.
const LONG: usize = 16 * 1024;
/// Looks for what may have come, for each at the clock: that takes a quarter as long.
const LOOKS_BY_THE_CLOCK: u32 = 16;
/// So many bytes do not wait for the task any longer,
const GATHER_BYTES: usize = 1024 * 1024;
/// nor do so many messages, reads and writes.
const GATHER_COUNT: usize = 256;

/// What the handles and the task of one connection share.
#[derive(Debug)]
pub(crate) struct Shared {
    state: Mutex<State>,
}

/// A read or write that is over: its buffer, and why it did not happen if it did not.
pub(crate) type TransferResult = (Option<BytesMut>, Result<(), TransferFault>);

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) engine: engine::Connection,
    pub(crate) queue_pair: Box<dyn QueuePair>,
    pub(crate) inbox: Inbox,
    pub(crate) sends: Waiters<Result<(), ConnectionError>>,
    pub(crate) transfers: Waiters<TransferResult>,
    /// Futures that wait for something that concerns them all: a message, room, the end.
    pub(crate) waiting: Vec<Waker>,
    pub(crate) negotiated: Option<Negotiated>,
    pub(crate) closed: Option<ConnectionError>,
    /// The queue pair has said its last word.
    pub(crate) finished: bool,
    pub(crate) keepalives_answered: u64,
    /// Somebody waits for a part of a message; others are woken for whole ones only.
    pub(crate) wants_segments: bool,
    pub(crate) regions: u64,
    /// Registrations whose owner is gone while queued work still names them.
    orphans: Vec<Token>,
    /// Somebody waits for queued work to let go of a buffer.
    watches_flushes: bool,
    /// Somebody waits until a message can start at once.
    watches_ready: bool,
    /// Whom to wake when the lock is released.
    wakes: Vec<Waker>,
    /// The task.
    waker: Waker,
    /// It was woken, and has not run since.
    awake: bool,
    /// Bytes of the reads that finished in this drive,
    read: usize,
    /// and what the messages cost that became whole.
    received: usize,
    /// Drives that such bytes have ended, since the runtime was let look at its sockets.
    turns: u32,
    /// What was left for it: bytes and how many messages, reads and writes.
    gathered: (usize, usize),
    /// A completion was taken, and what it asks for was left to the answer, with those behind it.
    behind: bool,
    /// When the task wakes by itself.
    armed: Option<Instant>,
    last_flush: Option<Instant>,
    receive_buffer: usize,
    max_receive_size: usize,
    /// The engine wants receives that the untaken messages leave no room for.
    starved: bool,
    /// How long whoever waits for a message looks again and again before it sleeps.
    pub(crate) busy_poll: Duration,
}

impl Shared {
    pub(crate) fn new(
        engine: engine::Connection,
        queue_pair: Box<dyn QueuePair>,
        config: &engine::Config,
    ) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                engine,
                inbox: Inbox::new(queue_pair.is_zero_copy()),
                queue_pair,
                sends: Waiters::default(),
                transfers: Waiters::default(),
                waiting: Vec::new(),
                negotiated: None,
                closed: None,
                finished: false,
                keepalives_answered: 0,
                wants_segments: false,
                regions: 0,
                orphans: Vec::new(),
                watches_flushes: false,
                watches_ready: false,
                wakes: Vec::new(),
                waker: Waker::noop().clone(),
                awake: false,
                read: 0,
                received: 0,
                turns: 0,
                gathered: (0, 0),
                behind: false,
                armed: None,
                last_flush: None,
                receive_buffer: config.receive_buffer(),
                max_receive_size: config.max_receive_size as usize,
                starved: false,
                busy_poll: Duration::ZERO,
            }),
        })
    }

    /// Does `action` under the lock, then wakes whom it concerns.
    pub(crate) fn with<R>(&self, action: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.lock();
        let result = action(&mut state);
        if state.wakes.is_empty() {
            return result;
        }
        let mut wakes = std::mem::take(&mut state.wakes);
        drop(state);
        for waker in wakes.drain(..) {
            waker.wake();
        }
        // Gives the empty list back for its capacity, unless somebody was faster.
        if let Ok(mut state) = self.state.try_lock()
            && state.wakes.capacity() == 0
        {
            state.wakes = wakes;
        }
        result
    }

    /// A panic under the lock is a bug of ours; the other handles are not to suffer twice.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `poll` has something; `poll` runs under the lock after each change.
    pub(crate) async fn wait<R>(&self, mut poll: impl FnMut(&mut State) -> Option<R>) -> R {
        std::future::poll_fn(|context| self.poll(context, &mut poll)).await
    }

    /// What `poll` has, as [`poll`](Self::poll); if nothing, it looks again and again for as long
    /// as the connection was told to, and drives meanwhile.
    pub(crate) fn poll_busily<R>(
        &self,
        context: &mut Context<'_>,
        mut poll: impl FnMut(&mut State) -> Option<R>,
    ) -> Poll<R> {
        let mut looking: Option<Looking> = None;
        loop {
            let polled = self.with(|state| {
                if let Some(looking) = &looking {
                    state.look(looking.now);
                }
                if let Some(result) = poll(state) {
                    if state.behind {
                        state.wake_task();
                    }
                    return Some(Poll::Ready(result));
                }
                // What the drive has taken is not to be slept over.
                if state.catch_up()
                    && let Some(result) = poll(state)
                {
                    return Some(Poll::Ready(result));
                }
                if !state.busy_poll.is_zero()
                    && looking
                        .get_or_insert_with(|| Looking::new(state.busy_poll))
                        .goes_on()
                {
                    return None;
                }
                state.wait(context.waker());
                Some(Poll::Pending)
            });
            if let Some(polled) = polled {
                return polled;
            }
            spin_loop();
        }
    }

    /// What `poll` has; if nothing, the context is woken at the next change.
    pub(crate) fn poll<R>(
        &self,
        context: &mut Context<'_>,
        poll: impl FnOnce(&mut State) -> Option<R>,
    ) -> Poll<R> {
        self.with(|state| match poll(state) {
            Some(result) => Poll::Ready(result),
            None => {
                state.wait(context.waker());
                Poll::Pending
            }
        })
    }
}

impl State {
    /// So many things of `length` bytes together were asked for. Does them now, or has the task do
    /// them with what else comes.
    pub(crate) fn kick(&mut self, asked: usize, length: usize) {
        let (bytes, count) = self.gathered;
        self.gathered = (bytes + length, count + asked);
        let gathers = count > 0 && count < GATHER_COUNT && bytes + length < GATHER_BYTES;
        if gathers && !count.is_multiple_of(BETWEEN_LOOKS) {
            return;
        }
        let now = now();
        let pause = |flush| now.saturating_duration_since(flush);
        let recent = self.last_flush.is_some_and(|flush| pause(flush) < GATHER);
        let late = self.last_flush.is_none_or(|flush| pause(flush) > PATIENCE);
        if gathers && !late {
            return;
        }
        if count == 0 && recent {
            self.wake_task();
            return;
        }
        // Who sends and never pauses keeps the task from running, and takes what comes itself.
        self.begin_turn();
        self.go_on(now, count == 0);
        if length >= LONG {
            // The flush took its time.
            self.last_flush = Some(self::now());
        }
    }

    /// Ends the connection in good order. It is left to the task, since a handle may be dropped
    /// outside its runtime, where there is no clock.
    pub(crate) fn close(&mut self) {
        self.engine.close();
        self.wake_task();
    }

    /// Ends the connection at once; the task does it, as for [`close`](Self::close).
    pub(crate) fn abort(&mut self) {
        self.engine.abort();
        self.take_rare_events();
        self.wake_task();
    }

    /// Runs engine and queue pair until both have nothing to do, or the budget is spent; then the
    /// task goes on with the rest when others had their turn.
    pub(crate) fn drive(&mut self, now: Instant) {
        self.begin_turn();
        // The task has taken all there was, and is woken if there is more, or it is awake.
        self.go_on(now, true);
    }

    /// Drives on behind completions that were taken already: all there were, if `drained`.
    #[inline(never)]
    fn go_on(&mut self, now: Instant, mut drained: bool) {
        self.gathered = (0, 0);
        self.behind = false;
        let waker = self.waker.clone();
        let context = &mut Context::from_waker(&waker);
        for _ in 0..ROUNDS {
            self.post_work(now, context);
            if self.turn_is_over() {
                break;
            }
            // Behind the flush, which may have finished work. If nothing came of it, the engine
            // wants no more than it wanted just now.
            let taken = self.take_completions(now, context, ROUND, drained);
            if taken == 0 {
                self.after_drive();
                return;
            }
            drained = taken < ROUND;
        }
        self.after_drive();
        self.give_way(context);
    }

    fn begin_turn(&mut self) {
        (self.read, self.received) = (0, 0);
    }

    fn turn_is_over(&self) -> bool {
        self.read >= TURN || self.received >= TURN_OF_MESSAGES
    }

    /// Has the task go on when others had their turn: behind one of its own mostly at once, else when
    /// the runtime has looked at its sockets.
    fn give_way(&mut self, context: &mut Context<'_>) {
        self.turns += 1;
        if self.turn_is_over() && self.turns < TURNS {
            return self.wake_task();
        }
        self.turns = 0;
        let _ = pin!(yield_now()).poll(context);
    }

    /// Looks whether something has come, without waiting to be told, at a time that was a moment ago.
    fn look(&mut self, now: Instant) {
        self.begin_turn();
        let found = self.queue_pair.busy_poll();
        if !found && !self.behind && self.gathered.1 == 0 {
            return;
        }
        let waker = self.waker.clone();
        let context = &mut Context::from_waker(&waker);
        let completed = found && self.take_completions(now, context, 1, false) > 0;
        // The task, which would flush what was left for it, may not come to run meanwhile.
        if self.behind || self.gathered.1 > 0 {
            self.drive(now);
        } else if completed {
            // A message is mostly answered, and what else there is to do goes with the answer.
            self.behind = true;
        }
    }

    /// Whether somebody was woken for a message, and nothing else is there to be taken or waits to be
    /// sent. A message is mostly answered, and what else there is to do goes with the answer, or behind
    /// it: the task is woken once more, last, and sees to sockets and timers then.
    fn answers_come_first(&mut self) -> bool {
        let first = !self.behind
            && !self.finished
            && (1..LONG).contains(&self.received)
            && !self.wakes.is_empty()
            && self.gathered.1 == 0
            && self.engine.queued_messages() == 0
            && !self.queue_pair.has_completion();
        if first {
            self.behind = true;
            self.wake_task();
        }
        first
    }

    /// Drives if the last look did not; tells whether it did.
    fn catch_up(&mut self) -> bool {
        let behind = self.behind;
        if behind {
            self.drive(now());
        }
        behind
    }

    /// Takes completions until there are `most`, or the turn is over; gives their number.
    /// Where the queue pair is `drained`, only what was posted since can have brought about any.
    #[inline(never)]
    fn take_completions(
        &mut self,
        now: Instant,
        context: &mut Context<'_>,
        most: usize,
        drained: bool,
    ) -> usize {
        let mut taken = 0;
        while taken < most && !self.turn_is_over() && (!drained || self.queue_pair.has_completion())
        {
            let polled = self.queue_pair.poll_completion(context);
            match &polled {
                // A message counts once, and its head is never the last that is taken.
                Poll::Ready(Completion::Head(_)) => {}
                Poll::Ready(completion) => {
                    taken += 1;
                    if matches!(completion, Completion::Disconnected(_)) {
                        self.finished = true;
                        self.wake_waiting();
                    }
                }
                Poll::Pending => return taken,
            }
            if let Poll::Ready(completion) = polled {
                self.engine.handle_completion(now, completion);
            }
            self.take_events();
        }
        taken
    }

    fn post_work(&mut self, now: Instant, context: &mut Context<'_>) {
        if self.engine.is_idle() {
            return;
        }
        let mut room = self.room();
        loop {
            let next = self.engine.poll_work(now, room);
            match &next {
                Some(WorkRequest::Receive { count, .. }) => room.receives -= *count as usize,
                Some(_) => {
                    room.sends -= 1;
                    self.last_flush = Some(now);
                }
                None => break,
            }
            // Moved here, and not when it was asked for, which would be twice.
            if let Some(work) = next {
                self.queue_pair.post(work);
            }
        }
        self.take_rare_events();
        self.queue_pair.flush(context);
    }

    fn after_drive(&mut self) {
        self.starved = self.engine.wants_receives();
        if !self.orphans.is_empty() {
            let mut orphans = std::mem::take(&mut self.orphans);
            orphans.retain(|&token| !self.reclaim(token));
            self.orphans = orphans;
        }
        // Credits may come alone, and the last message may leave: neither is an event.
        let ready = self.watches_ready && self.engine.is_ready();
        self.watches_ready &= !ready;
        if std::mem::take(&mut self.watches_flushes) || ready {
            self.wake_waiting();
        }
        let due = self.engine.poll_timeout();
        if due.is_some_and(|due| self.armed.is_none_or(|armed| due < armed)) || self.finished {
            self.wake_task();
        }
    }

    /// What may be posted: the queue pair's room, and for receives what memory is left besides
    /// the messages nobody has taken.
    fn room(&self) -> Room {
        let Room { sends, receives } = self.queue_pair.room();
        let left = self.receive_buffer.saturating_sub(self.inbox.cost());
        let posted = usize::from(self.engine.credits().receive_credits);
        let affordable = (left / self.max_receive_size).saturating_sub(posted);
        Room {
            sends,
            receives: receives.min(affordable),
        }
    }

    /// Does what the engine says has happened.
    // Part of where completions are taken.
    #[inline(always)]
    fn take_events(&mut self) {
        while let Some(event) = self.engine.poll_event() {
            match event {
                Event::Segment {
                    payload,
                    remaining,
                    invalidated,
                } => {
                    let before = self.inbox.cost();
                    self.inbox.push(payload, remaining, invalidated);
                    if remaining == 0 {
                        self.received += self.inbox.cost() - before;
                        // What is sent next may be the answer, and no part of a burst.
                        self.last_flush = None;
                    }
                    if remaining == 0 || std::mem::take(&mut self.wants_segments) {
                        self.wake_waiting();
                    }
                }
                Event::MessageSent(id) => {
                    if let Ok(waker) = self.sends.complete(id.0 as usize, Ok(())) {
                        self.wakes.extend(waker);
                    }
                }
                Event::TransferDone {
                    id,
                    buffer,
                    completed,
                } => {
                    self.read += buffer.as_ref().map_or(0, BytesMut::len);
                    let result = if completed {
                        Ok(())
                    } else {
                        Err(self.reason().into())
                    };
                    let waker = self.transfers.complete(id.0 as usize, (buffer, result));
                    self.wakes.extend(waker.ok().flatten());
                }
                Event::Negotiated(negotiated) => {
                    self.max_receive_size = negotiated.max_receive_size as usize;
                    self.negotiated = Some(negotiated);
                    self.wake_waiting();
                }
                Event::KeepaliveAnswered => {
                    self.keepalives_answered += 1;
                    self.wake_waiting();
                }
                Event::Closed(error) => self.end(error),
            }
        }
    }

    /// The same where it does not matter how long it takes.
    #[inline(never)]
    fn take_rare_events(&mut self) {
        self.take_events();
    }

    #[cold]
    fn end(&mut self, error: ConnectionError) {
        if !self.finished {
            self.queue_pair.disconnect(match error {
                ConnectionError::Closed(_) | ConnectionError::RefusedPeer(_) => Teardown::Graceful,
                _ => Teardown::Abort,
            });
            // Somebody has to poll the queue pair through to its end.
            self.wake_task();
        }
        //= SMBD-3.1.5.1-13b
        self.sends
            .complete_all(|| Err(error.clone()), &mut self.wakes);
        self.closed = Some(error);
        self.wake_waiting();
    }

    /// The task is gone, and with it all hope. What is posted comes back at once.
    fn give_up(&mut self) {
        let what = "the runtime stopped before the connection ended";
        let error = ProviderError::new(ProviderErrorKind::Local, what);
        let now = now();
        self.engine
            .handle_completion(now, Completion::Disconnected(Disconnect::Broken(error)));
        self.take_rare_events();
        self.queue_pair.disconnect(Teardown::Abort);
        let context = &mut Context::from_waker(Waker::noop());
        self.begin_turn();
        while self.take_completions(now, context, ROUND, false) > 0 {
            self.begin_turn();
        }
        self.finished = true;
        let reason = self.reason();
        self.transfers
            .complete_all(|| (None, Err(reason.clone().into())), &mut self.wakes);
        self.wake_waiting();
    }

    /// Why the connection is over.
    pub(crate) fn reason(&self) -> ConnectionError {
        self.closed
            .clone()
            .unwrap_or(ConnectionError::Closed(Initiator::Local))
    }

    /// Somebody took a message; the peer may have waited for that.
    pub(crate) fn taken(&mut self) {
        if self.starved {
            self.drive(now());
        }
    }

    /// Has whoever waits look again after the next flush.
    pub(crate) fn watch_flushes(&mut self) {
        self.watches_flushes = true;
    }

    /// Has whoever waits look again when a message can start at once.
    pub(crate) fn watch_ready(&mut self) {
        self.watches_ready = true;
    }

    /// Ends a registration whose buffer nobody wants.
    pub(crate) fn orphan(&mut self, token: Token) {
        if !self.reclaim(token) {
            self.orphans.push(token);
        }
    }

    fn reclaim(&mut self, token: Token) -> bool {
        match self.queue_pair.deregister(token) {
            Err(DeregisterError::InUse) => false,
            _ => {
                self.regions -= 1;
                true
            }
        }
    }

    /// Wakes `waker` at the next change.
    pub(crate) fn wait(&mut self, waker: &Waker) {
        if !self.waiting.iter().any(|waiting| waiting.will_wake(waker)) {
            self.waiting.push(waker.clone());
        }
    }

    fn wake_waiting(&mut self) {
        self.wakes.append(&mut self.waiting);
    }

    fn wake_task(&mut self) {
        if !self.awake {
            self.awake = true;
            self.wakes.push(self.waker.clone());
        }
    }
}

/// The task: wakes up when the socket or the time wants it.
#[derive(Debug)]
pub(crate) struct Driver {
    shared: Arc<Shared>,
    sleep: Pin<Box<Sleep>>,
    /// The runtime has one thread: tasks that this one wakes run before it does again, and no sooner
    /// than it has returned. Those elsewhere, and the future that `block_on` was given, do not, and
    /// have it run twice for a message.
    alone: bool,
}

impl Driver {
    /// Starts the task. Needs a tokio runtime around it.
    pub(crate) fn spawn(shared: Arc<Shared>) {
        let sleep = Box::pin(sleep_until(tokio::time::Instant::now()));
        let alone = Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread;
        tokio::spawn(Self {
            shared,
            sleep,
            alone,
        });
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Self {
            shared,
            sleep,
            alone,
        } = self.get_mut();
        shared.with(|state| {
            if !state.waker.will_wake(context.waker()) {
                state.waker = context.waker().clone();
            }
            state.awake = false;
            loop {
                let now = now();
                if state.engine.poll_timeout().is_some_and(|due| due <= now) {
                    state.engine.handle_timeout(now);
                    state.take_rare_events();
                }
                // While this runs the task is awake: nothing earlier needs arming.
                state.armed = Some(now);
                // Mostly something came, and what it asks for leaves with what was left for the
                // task.
                state.begin_turn();
                let mut taken = state.take_completions(now, context, 1, false);
                if *alone && state.answers_come_first() {
                    return Poll::Pending;
                }
                if taken > 0 {
                    taken += state.take_completions(now, context, ROUND - 1, false);
                }
                state.go_on(now, taken < ROUND);
                if state.finished && state.orphans.is_empty() {
                    return Poll::Ready(());
                }
                state.armed = state.engine.poll_timeout();
                let Some(due) = state.armed else {
                    return Poll::Pending;
                };
                let due = tokio::time::Instant::from_std(due);
                if sleep.deadline() > due || sleep.is_elapsed() {
                    sleep.as_mut().reset(due);
                } else {
                    // It rings too early, at a time that was right once, and is set again then.
                    state.armed = Some(sleep.deadline().into_std());
                }
                if sleep.as_mut().poll(context).is_pending() {
                    return Poll::Pending;
                }
            }
        })
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.shared.with(|state| {
            if !state.finished {
                state.give_up();
            }
        });
    }
}

/// Looking again and again whether something has come.
#[derive(Debug)]
struct Looking {
    looks: u32,
    started: Instant,
    duration: Duration,
    /// The time, as it was at one of the last looks.
    now: Instant,
}

impl Looking {
    fn new(duration: Duration) -> Self {
        let now = now();
        Self {
            looks: 0,
            started: now,
            duration,
            now,
        }
    }

    fn goes_on(&mut self) -> bool {
        if self.looks % LOOKS_BY_THE_CLOCK == 1 {
            self.now = now();
        }
        self.looks = self.looks.wrapping_add(1);
        self.now.saturating_duration_since(self.started) < self.duration
    }
}

/// The clock of the runtime, which tests can stop.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

#[cfg(test)]
mod tests {
    use std::{collections::VecDeque, future::poll_fn};

    use bytes::Bytes;

    use super::*;
    use crate::{
        engine::{Config, MessageId, TransferId},
        rdma::{
            memory::{RegisterError, Registration},
            work::{Access, Limits, WorkId},
        },
        wire::{BufferDescriptorV1, DataTransfer, Flags, NegotiateResponse, Status, VERSION_1_0},
    };

    /// A queue pair whose work is done when the test says so.
    #[derive(Debug, Default)]
    struct Script(Arc<Mutex<Lists>>);

    #[derive(Debug, Default)]
    struct Lists {
        posted: VecDeque<WorkRequest>,
        done: VecDeque<Completion>,
        /// How often it was polled.
        polls: usize,
        /// It says that there is nothing to poll for.
        denies: bool,
    }

    impl QueuePair for Script {
        fn limits(&self) -> Limits {
            Limits {
                max_send_queue: 100,
                max_receive_queue: 1000,
                max_outbound_reads: 16,
                max_inbound_reads: 0,
                max_transfer: u32::MAX,
                send_with_invalidate: false,
            }
        }

        fn room(&self) -> Room {
            Room {
                sends: 100,
                receives: 1000,
            }
        }

        fn post(&mut self, work: WorkRequest) {
            self.0.lock().unwrap().posted.push_back(work);
        }

        fn flush(&mut self, _: &mut Context<'_>) {}

        fn poll_completion(&mut self, _: &mut Context<'_>) -> Poll<Completion> {
            let mut lists = self.0.lock().unwrap();
            lists.polls += 1;
            lists.done.pop_front().map_or(Poll::Pending, Poll::Ready)
        }

        fn has_completion(&self) -> bool {
            !self.0.lock().unwrap().denies
        }

        fn busy_poll(&mut self) -> bool {
            self.has_completion()
        }

        fn disconnect(&mut self, _: Teardown) {}

        fn register(&mut self, _: BytesMut, _: Access) -> Result<Registration, RegisterError> {
            unreachable!("nothing is registered")
        }

        fn deregister(&mut self, _: Token) -> Result<BytesMut, DeregisterError> {
            unreachable!("nothing is registered")
        }
    }

    /// A connection that has negotiated, and what its queue pair was told.
    fn established() -> (Arc<Shared>, Arc<Mutex<Lists>>) {
        established_with(10)
    }

    /// The same, where the peer wants so many credits.
    fn established_with(credits_requested: u16) -> (Arc<Shared>, Arc<Mutex<Lists>>) {
        let (config, script) = (Config::default(), Script::default());
        let lists = script.0.clone();
        let mut engine = engine::Connection::active(config.clone(), now());
        let receive = engine.negotiate_receive().id();
        engine.handle_connected(script.limits());
        let mut message = Vec::new();
        let response = NegotiateResponse {
            min_version: VERSION_1_0,
            max_version: VERSION_1_0,
            negotiated_version: VERSION_1_0,
            credits_requested,
            credits_granted: 10,
            status: Status::SUCCESS,
            max_read_write_size: 1 << 20,
            preferred_send_size: 1024,
            max_receive_size: 1024,
            max_fragmented_size: 131_072,
        };
        response.encode(&mut message);
        let shared = Shared::new(engine, Box::new(script), &config);
        shared.with(|state| state.drive(now()));
        lists.lock().unwrap().done.extend([Completion::Received {
            id: receive,
            message: message.into(),
            invalidated: None,
        }]);
        shared.with(|state| {
            state.drive(now());
            assert!(state.negotiated.is_some(), "{:?}", state.closed);
        });
        lists.lock().unwrap().posted.clear();
        (shared, lists)
    }

    /// A message leaves, and the peer has credits.
    fn give_credits(shared: &Shared) {
        shared.with(|state| {
            let id = MessageId(state.sends.insert() as u64);
            state.engine.send(id, "credits".into(), None).unwrap();
            state.drive(now());
        });
    }

    /// What a look finds is handed over first, and what it asks for is not forgotten.
    #[test]
    fn an_answer_takes_along_what_the_look_before_it_left() {
        let (shared, lists) = established();
        let send = || {
            shared.with(|state| {
                let id = MessageId(state.sends.insert() as u64);
                state.engine.send(id, "answer".into(), None).unwrap();
                state.kick(1, 6);
            });
            let posted = lists.lock().unwrap().posted.split_off(0);
            let receive = |work: &WorkRequest| matches!(work, WorkRequest::Receive { .. });
            let receives = posted.iter().filter(|work| receive(work)).count();
            (receives, posted.len() - receives)
        };
        shared.with(|state| state.last_flush = None);
        assert_eq!(send(), (0, 1), "it gives the peer its credits");
        lists.lock().unwrap().done.push_back(segment(0));
        shared.with(|state| state.busy_poll = Duration::from_secs(60));
        let context = &mut Context::from_waker(Waker::noop());
        let found = shared.poll_busily(context, |state| state.inbox.take());
        assert!(found.is_ready() && lists.lock().unwrap().posted.is_empty());
        shared.with(|state| assert!(state.awake, "there may be no answer"));
        assert_eq!(send(), (1, 1));
        shared.with(|state| assert!(!state.behind));
    }

    /// On a thread of its own the task leaves the thread to those whom it wakes.
    #[tokio::test]
    async fn an_answer_goes_before_what_else_the_task_has_to_do() {
        for there_is_more in [false, true] {
            let (shared, lists) = established();
            give_credits(&shared);
            Driver::spawn(shared.clone());
            yield_now().await;
            let (waits, told) = (shared.clone(), lists.clone());
            let waiting = tokio::spawn(async move {
                let take = |state: &mut State| state.inbox.take();
                poll_fn(|context| waits.poll_busily(context, take)).await;
                told.lock().unwrap().posted.len()
            });
            yield_now().await;
            *lists.lock().unwrap() = Lists {
                done: [segment(0)].into(),
                denies: !there_is_more,
                ..Lists::default()
            };
            shared.with(State::wake_task);
            let posted = waiting.await.unwrap();
            assert_eq!(
                posted,
                usize::from(there_is_more),
                "before the message was taken"
            );
            // There was no answer.
            yield_now().await;
            let posted = lists.lock().unwrap().posted.split_off(0);
            let receive = |work: &WorkRequest| matches!(work, WorkRequest::Receive { .. });
            assert!(
                posted.len() == 1 && posted.iter().all(receive),
                "{posted:?}"
            );
        }
    }

    /// A segment of one byte.
    fn segment(remaining_data_length: u32) -> Completion {
        segment_with(0, remaining_data_length)
    }

    fn segment_with(credits_granted: u16, remaining_data_length: u32) -> Completion {
        let mut message = Vec::new();
        DataTransfer {
            data_offset: DataTransfer::PAYLOAD_OFFSET,
            data_length: 1,
            remaining_data_length,
            ..DataTransfer::empty(10, credits_granted, Flags::empty())
        }
        .encode(&mut message);
        message.push(b'?');
        Completion::Received {
            id: WorkId(0),
            message: message.into(),
            invalidated: None,
        }
    }

    /// What waits for the task, because a flush was moments ago or credits are short, does not wait
    /// for whoever is woken.
    #[tokio::test]
    async fn what_is_to_be_sent_does_not_wait_for_an_answer() {
        enum Waits {
            Message,
            Messages,
            Write,
        }
        for what in [Waits::Message, Waits::Messages, Waits::Write] {
            let (shared, lists) = established();
            give_credits(&shared);
            Driver::spawn(shared.clone());
            let (waits, told) = (shared.clone(), lists.clone());
            let waiting = tokio::spawn(async move {
                let news = |state: &mut State| {
                    let message = state.inbox.take().map(|_| ());
                    message.or_else(|| state.closed.as_ref().map(|_| ()))
                };
                poll_fn(|context| waits.poll_busily(context, news)).await;
                told.lock().unwrap().posted.len()
            });
            yield_now().await;
            shared.with(|state| {
                // With the last of the peer's ten credits a message waits for one in return.
                let messages = match what {
                    Waits::Message => 1,
                    Waits::Messages => 20,
                    Waits::Write => 0,
                };
                for _ in 0..messages {
                    let id = MessageId(state.sends.insert() as u64);
                    state.engine.send(id, "message".into(), None).unwrap();
                }
                if let Waits::Write = what {
                    let to = BufferDescriptorV1 {
                        offset: 0,
                        token: 7,
                        length: 5,
                    };
                    let id = TransferId(state.transfers.insert() as u64);
                    state.engine.write(id, &[to], 0, "write".into()).unwrap();
                }
                match what {
                    Waits::Messages => state.drive(now()),
                    Waits::Message | Waits::Write => {
                        state.last_flush = Some(now());
                        state.kick(1, 5);
                    }
                }
                state.last_flush = Some(now());
            });
            *lists.lock().unwrap() = Lists {
                done: [segment_with(1, 0)].into(),
                denies: true,
                ..Lists::default()
            };
            shared.with(State::wake_task);
            assert!(waiting.await.unwrap() > 0);
        }
    }

    /// A turn that is over is no reason to find nothing.
    #[test]
    fn a_look_takes_what_is_there_however_much_came_before() {
        let (shared, lists) = established();
        give_credits(&shared);
        shared.with(|state| {
            state.received = TURN_OF_MESSAGES;
            state.busy_poll = Duration::from_nanos(1);
        });
        lists.lock().unwrap().done.push_back(segment(0));
        let context = &mut Context::from_waker(Waker::noop());
        let found = shared.poll_busily(context, |state| state.inbox.take());
        assert!(found.is_ready());
    }

    /// The look after which it is time to sleep takes one completion, and the drive behind it the
    /// others: a message whose first part it was, or the end.
    #[test]
    fn what_the_last_look_leaves_is_not_slept_over() {
        let flushed = Completion::Flushed {
            id: WorkId(0),
            buffer: None,
        };
        let ended = Completion::Disconnected(Disconnect::Remote);
        for done in [[segment(1), segment(0)], [flushed, ended]] {
            let (shared, lists) = established();
            give_credits(&shared);
            shared.with(|state| state.busy_poll = Duration::from_nanos(1));
            lists.lock().unwrap().done.extend(done);
            let context = &mut Context::from_waker(Waker::noop());
            let news = |state: &mut State| {
                let message = state.inbox.take().map(|_| ());
                message.or_else(|| state.closed.as_ref().map(|_| ()))
            };
            assert!(shared.poll_busily(context, news).is_ready());
        }
    }

    /// A look is to take no longer than it has to: what came is seen that much sooner.
    #[test]
    fn who_looks_polls_for_what_has_come_and_no_more() {
        let (shared, lists) = established();
        give_credits(&shared);
        shared.with(|state| state.busy_poll = Duration::from_nanos(1));
        for (denies, polls) in [(true, 0), (false, 1)] {
            *lists.lock().unwrap() = Lists {
                denies,
                ..Lists::default()
            };
            let context = &mut Context::from_waker(Waker::noop());
            let found = shared.poll_busily(context, |state| state.inbox.take());
            assert!(found.is_pending());
            assert_eq!(lists.lock().unwrap().polls, polls);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_looks_does_so_for_as_long_as_told() {
        let looks = |looking: &mut Looking| (0..1000).take_while(|_| looking.goes_on()).count();
        assert_eq!(looks(&mut Looking::new(Duration::ZERO)), 0);
        assert_eq!(looks(&mut Looking::new(Duration::MAX)), 1000);
        let mut looking = Looking::new(Duration::from_micros(50));
        assert_eq!(looks(&mut looking), 1000);
        tokio::time::advance(Duration::from_micros(49)).await;
        assert_eq!(looks(&mut looking), 1000);
        tokio::time::advance(Duration::from_micros(1)).await;
        assert!(looks(&mut looking) < LOOKS_BY_THE_CLOCK as usize);
        // A time that is over with the first look is noticed by it.
        let mut looking = Looking::new(Duration::from_nanos(1));
        tokio::time::advance(Duration::from_micros(1)).await;
        assert_eq!(looks(&mut looking), 1);
    }

    /// To poll for what is not there takes as long as to send a message.
    #[test]
    fn who_sends_polls_for_what_came_of_it_and_no_more() {
        let (shared, lists) = established();
        for (denies, polls) in [(true, 0), (false, 1)] {
            let mut told = lists.lock().unwrap();
            (told.denies, told.polls) = (denies, 0);
            drop(told);
            shared.with(|state| {
                state.last_flush = None;
                let id = MessageId(state.sends.insert() as u64);
                state.engine.send(id, "message".into(), None).unwrap();
                state.kick(1, 7);
            });
            assert_eq!(lists.lock().unwrap().polls, polls);
        }
        // What came is taken, and looked for once more behind what it asks for.
        let sent = |work: &WorkRequest| match work {
            WorkRequest::Send { id, .. } => Some(Completion::Sent { id: *id }),
            _ => None,
        };
        let mut told = lists.lock().unwrap();
        let done: Vec<_> = told.posted.iter().filter_map(sent).collect();
        assert_eq!(done.len(), 2);
        told.done.extend(done);
        told.polls = 0;
        drop(told);
        shared.with(|state| state.drive(now()));
        let told = lists.lock().unwrap();
        assert_eq!(
            (told.polls, told.done.len()),
            (4, 0),
            "twice until there is nothing"
        );
    }

    /// The task, which would take the peer's credits, may not come to run meanwhile.
    #[test]
    fn who_sends_and_never_pauses_takes_what_comes() {
        let (shared, lists) = established();
        let mut told = lists.lock().unwrap();
        (told.denies, told.polls) = (true, 0);
        drop(told);
        shared.with(|state| {
            for _ in 0..GATHER_COUNT + 2 {
                let id = MessageId(state.sends.insert() as u64);
                state.engine.send(id, "message".into(), None).unwrap();
                state.kick(1, 7);
            }
        });
        assert!(lists.lock().unwrap().polls > 0);
    }

    /// Who waits for messages is to give their memory back before all that have come are taken.
    #[test]
    fn a_drive_gives_way_behind_its_turn_of_messages() {
        const LENGTH: usize = 1000;
        let (shared, lists) = established_with(255);
        give_credits(&shared);
        let mut message = Vec::new();
        DataTransfer {
            data_offset: DataTransfer::PAYLOAD_OFFSET,
            data_length: LENGTH as u32,
            ..DataTransfer::empty(255, 0, Flags::empty())
        }
        .encode(&mut message);
        message.resize(message.len() + LENGTH, b'?');
        let message = Bytes::from(message);
        let arrival = || Completion::Received {
            id: WorkId(0),
            message: message.clone(),
            invalidated: None,
        };
        let arrivals = std::iter::repeat_with(arrival).take(255);
        lists.lock().unwrap().done.extend(arrivals);
        let cost = shared.with(|state| {
            state.drive(now());
            state.inbox.cost()
        });
        let left = lists.lock().unwrap().done.len();
        let each = cost / (255 - left);
        assert!(
            (TURN_OF_MESSAGES..TURN_OF_MESSAGES + each).contains(&cost),
            "{cost} in {each}"
        );
        shared.with(|state| state.drive(now()));
        assert!(lists.lock().unwrap().done.is_empty());
    }

    /// Who waits for reads is to ask for more before all that have come are taken.
    #[test]
    fn a_drive_gives_way_behind_its_turn_of_finished_reads() {
        for (length, taken) in [(TURN, 1), (TURN / 2, 2), (TURN / 2 - 1, 3), (1024, 10)] {
            let (shared, lists) = established();
            shared.with(|state| {
                for _ in 0..10 {
                    let place = state.transfers.insert();
                    let from = BufferDescriptorV1 {
                        offset: 0,
                        token: 7,
                        length: length as u32,
                    };
                    let into = BytesMut::zeroed(length);
                    let id = TransferId(place as u64);
                    state.engine.read(id, &[from], 0, into).unwrap();
                }
                state.drive(now());
            });
            let mut told = lists.lock().unwrap();
            let Lists { posted, done, .. } = &mut *told;
            for work in posted.drain(..) {
                if let WorkRequest::Read { id, into, .. } = work {
                    done.push_back(Completion::Read { id, buffer: into });
                }
            }
            assert_eq!(done.len(), 10);
            drop(told);
            for left in [10 - taken, 10_usize.saturating_sub(2 * taken)] {
                shared.with(|state| state.drive(now()));
                assert_eq!(lists.lock().unwrap().done.len(), left, "of {length} bytes");
            }
        }
    }
}
