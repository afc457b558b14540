//! Turns: on a runtime with one thread, the connections that move bulk data run one after another, and the
//! runtime polls its sockets between two of them.
//!
//! A runtime with one thread polls its sockets when no task is ready, or after some dozens of tasks. If each of
//! those tasks moves many bytes, a short request on another connection waits for all of them. With turns it
//! waits for one.
//!
//! A connection moves bulk data if it moved [`BULK_BYTES`] or more the last time. It begins its next turn only
//! if no turn has begun since the runtime last polled its sockets. Otherwise it waits in a queue. All other
//! connections run whenever they are ready. A connection that is alone on its runtime never waits.

use std::{
    collections::{HashMap, VecDeque},
    mem,
    sync::{
        Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    task::{Context, Wake, Waker},
};

use crate::runtime::{self, wake_after_io_poll};

/// Bytes, sent and received, that a connection with bulk data moves at once.
const BULK_BYTES: u64 = 16 * 1024;
/// Most bytes that a connection sends in one turn, if requests have to be answered between the turns and no
/// other connection waits for its turn. With 128 KiB, data moves 1.4 times as fast, and a request waits 1.5 times as
/// long, longer than with plain TCP.
const SHORTEST_TURN_BYTES: usize = 64 * 1024;
/// Bytes by which a turn is longer for each connection that waits. Measured with eight
/// connections: with 64 KiB, Writes of 64 KiB are a seventh slower; with 48 KiB, the p99 of a request is a tenth higher.
const TURN_BYTES_PER_WAITING: usize = 32 * 1024;
/// Turns after which no request is expected, if none has arrived. The turns are long then.
const TURNS_WITHOUT_REQUEST: u32 = 100;

/// Consecutive turns with less than [`BULK_BYTES`] after which a connection counts as one that carries requests. The
/// end that receives bulk data has a short turn now and then.
const SHORT_TURNS_OF_REQUESTS: u8 = 8;

/// The turns of each runtime that has connections.
static RUNTIMES: LazyLock<Mutex<HashMap<runtime::Id, Weak<Turns>>>> = LazyLock::new(Mutex::default);

/// The turns of one runtime.
#[derive(Debug)]
struct Turns {
    runtime: runtime::Id,
    /// A turn has begun since the runtime last polled its sockets, or the next connection of the queue was
    /// called and has not begun its turn.
    taken: AtomicBool,
    /// Turns since a connection that carries requests last ran.
    since_request: AtomicU32,
    queue: Mutex<Queue>,
}

/// The connections that wait for their turns.
#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<(Ticket, Waker)>,
    /// The ticket of the connection that was called.
    called: Option<Ticket>,
    last: Ticket,
}

/// A place in the queue. The numbers are consecutive.
type Ticket = u64;

/// What one connection knows of the turns.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// The turns of the runtime, if it has one thread.
    turns: Option<Arc<Turns>>,
    /// The ticket of this connection while it waits.
    ticket: Option<Ticket>,
    /// The connection has had a turn without asking, which its driver task has to end.
    has_had_turn: bool,
    /// The connection moves bulk data.
    is_bulk: bool,
    /// Turns since the connection last moved bulk data.
    short_turns: u8,
    /// Bytes that were sent and received in total, when they were last recorded.
    moved: u64,
}

impl Turn {
    /// Returns the turns of a connection on the current runtime, which has one thread.
    pub(super) fn on_this_runtime() -> Self {
        Self {
            turns: runtime::current().map(Turns::of),
            ..Self::default()
        }
    }

    /// Returns whether the runtime is known to have one thread.
    #[inline]
    pub(super) fn has_one_thread(&self) -> bool {
        self.turns.is_some()
    }

    /// Returns whether the driver task may run now. If not, `context` is woken for its turn.
    #[inline]
    pub(super) fn begin(&mut self, context: &mut Context<'_>) -> bool {
        let Some(turns) = &self.turns else {
            return true;
        };
        if !self.is_bulk && self.ticket.is_none() {
            if self.short_turns >= SHORT_TURNS_OF_REQUESTS {
                turns.since_request.store(0, Ordering::Relaxed);
            }
            return true;
        }
        self.begin_bulk(context)
    }

    fn begin_bulk(&mut self, context: &mut Context<'_>) -> bool {
        let Some(turns) = &self.turns else {
            return true;
        };
        let mut queue = turns.queue();
        if let Some(ticket) = self.ticket {
            if queue.called != Some(ticket) {
                return false;
            }
            (queue.called, self.ticket) = (None, None);
            let begins = !mem::take(&mut self.has_had_turn);
            if !begins {
                self.ticket = Some(queue.wait(context));
            }
            drop(queue);
            turns.end_after_io_poll();
            return begins;
        }
        if turns.is_single() {
            return true;
        }
        if turns.taken.swap(true, Ordering::Relaxed) {
            self.ticket = Some(queue.wait(context));
            return false;
        }
        drop(queue);
        turns.end_after_io_poll();
        true
    }

    /// Returns whether a caller that submits work or takes messages may move bytes itself. If not, it leaves
    /// that to the driver task.
    #[inline]
    pub(super) fn allows_callers(&self) -> bool {
        let turns = self.turns.as_ref().filter(|_| self.is_bulk);
        turns.is_none_or(|turns| !turns.taken.load(Ordering::Relaxed))
    }

    /// Returns how many bytes a turn that begins now may send, or `usize::MAX` without a limit.
    #[inline]
    pub(super) fn limit(&self) -> usize {
        match &self.turns {
            Some(turns) if self.is_bulk && !turns.is_single() => turns.limit(),
            _ => usize::MAX,
        }
    }

    /// Records how many bytes the connection has sent and received in total. Returns whether the driver task has to
    /// be woken, because the connection has had a turn without asking, which the task then ends.
    #[inline]
    pub(super) fn record(&mut self, moved: u64) -> bool {
        // A turn that moves nothing, because the socket is full or empty, does not tell what the next one moves.
        if moved == self.moved {
            return false;
        }
        self.is_bulk = moved.saturating_sub(self.moved) >= BULK_BYTES;
        self.moved = moved;
        self.short_turns = if self.is_bulk {
            0
        } else {
            self.short_turns.saturating_add(1)
        };
        self.is_bulk && self.take()
    }

    /// Takes the turn that the connection has just had without asking, and returns whether it did.
    fn take(&mut self) -> bool {
        let Some(turns) = &self.turns else {
            return false;
        };
        if turns.is_single()
            || turns.taken.load(Ordering::Relaxed)
            // Callers on other threads delay nothing on the thread of the runtime.
            || runtime::current() != Some(turns.runtime)
        {
            return false;
        }
        let mut queue = turns.queue();
        if turns.taken.swap(true, Ordering::Relaxed) {
            return false;
        }
        self.ticket = Some(queue.next_ticket());
        (queue.called, self.has_had_turn) = (self.ticket, true);
        true
    }

    /// Leaves the turns, because the driver task ends.
    pub(super) fn leave(&mut self) {
        if let (Some(turns), Some(ticket)) = (self.turns.take(), self.ticket.take()) {
            let mut queue = turns.queue();
            let at = queue.waiting.iter().position(|(other, _)| *other == ticket);
            let waker = at.and_then(|at| queue.waiting.remove(at));
            let was_called = queue.called == Some(ticket);
            drop(queue);
            drop(waker);
            if was_called {
                turns.call_next();
            }
        }
    }
}

impl Queue {
    fn next_ticket(&mut self) -> Ticket {
        self.last += 1;
        self.last
    }

    /// Adds a connection at the end, which wakes `context` when it is called.
    fn wait(&mut self, context: &Context<'_>) -> Ticket {
        let ticket = self.next_ticket();
        self.waiting.push_back((ticket, context.waker().clone()));
        ticket
    }
}

/// Ends the turn. Spawned tasks alone call [`end_after_io_poll`](Turns::end_after_io_poll), so this runs.
impl Wake for Turns {
    fn wake(self: Arc<Self>) {
        self.call_next();
    }
}

impl Turns {
    /// Returns the turns of a runtime.
    fn of(runtime: runtime::Id) -> Arc<Self> {
        let mut runtimes = RUNTIMES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turns) = runtimes.get(&runtime).and_then(Weak::upgrade) {
            return turns;
        }
        let turns = Arc::new(Self {
            runtime,
            taken: AtomicBool::new(false),
            since_request: AtomicU32::new(TURNS_WITHOUT_REQUEST),
            queue: Mutex::default(),
        });
        runtimes.retain(|_, turns| turns.strong_count() > 0);
        runtimes.insert(runtime, Arc::downgrade(&turns));
        turns
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the runtime has only one connection.
    #[inline]
    fn is_single(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) == 1
    }

    /// Returns how many bytes one turn may send.
    fn limit(&self) -> usize {
        if self.since_request.load(Ordering::Relaxed) >= TURNS_WITHOUT_REQUEST {
            return usize::MAX;
        }
        SHORTEST_TURN_BYTES + TURN_BYTES_PER_WAITING * self.queue().waiting.len()
    }

    /// Counts a turn, and ends it after the runtime has polled its sockets.
    fn end_after_io_poll(self: &Arc<Self>) {
        let turns = self.since_request.load(Ordering::Relaxed);
        self.since_request
            .store(turns.saturating_add(1), Ordering::Relaxed);
        let end = Waker::from(self.clone());
        wake_after_io_poll(&mut Context::from_waker(&end));
    }

    /// Calls the next connection that waits for its turn.
    fn call_next(&self) {
        let mut queue = self.queue();
        let next = queue.waiting.pop_front();
        queue.called = next.as_ref().map(|(ticket, _)| *ticket);
        self.taken.store(next.is_some(), Ordering::Relaxed);
        drop(queue);
        if let Some((_, waker)) = next {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use tokio::task::yield_now;

    use super::*;

    /// A connection with a waker that counts.
    struct Peer {
        turn: Turn,
        calls: Arc<Calls>,
    }

    #[derive(Debug, Default)]
    struct Calls(AtomicUsize);

    impl Wake for Calls {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Peer {
        fn new() -> Self {
            Self {
                turn: Turn::on_this_runtime(),
                calls: Arc::default(),
            }
        }

        fn begin(&mut self) -> bool {
            let waker = Waker::from(self.calls.clone());
            self.turn.begin(&mut Context::from_waker(&waker))
        }

        /// Moves bytes, in a call of the upper layer or in a turn. Returns whether the task has to be woken.
        fn moves(&mut self, bytes: u64) -> bool {
            self.turn.record(self.turn.moved + bytes)
        }

        fn calls(&self) -> usize {
            self.calls.0.load(Ordering::Relaxed)
        }
    }

    /// Returns connections that have moved bulk data, after the runtime has polled its sockets.
    async fn bulk<const N: usize>() -> [Peer; N] {
        let mut peers = std::array::from_fn(|_| Peer::new());
        for peer in &mut peers {
            assert!(!peer.moves(BULK_BYTES) || !peer.begin());
        }
        poll_sockets().await;
        for peer in &mut peers {
            assert!(peer.turn.ticket.is_none() || peer.begin());
            peer.calls = Arc::default();
        }
        poll_sockets().await;
        peers
    }

    async fn poll_sockets() {
        yield_now().await;
    }

    #[tokio::test]
    async fn connections_with_bulk_data_take_turns() {
        let [mut first, mut second, mut third] = bulk().await;
        let mut light = Peer::new();
        assert!(first.begin() && !second.begin() && !third.begin());
        assert!(!second.begin(), "it waits, however often it is woken");
        assert!(light.begin() && light.turn.allows_callers());
        assert!(!third.turn.allows_callers());
        poll_sockets().await;
        assert_eq!((second.calls(), third.calls()), (1, 0));
        assert!(!first.begin(), "the second was called");
        assert!(!third.begin() && second.begin());
        poll_sockets().await;
        assert!(third.calls() == 1 && third.begin());
        poll_sockets().await;
        assert!(first.calls() == 1 && first.begin());
        poll_sockets().await;
        assert!(second.turn.allows_callers() && second.begin());
    }

    #[tokio::test]
    async fn a_connection_that_moves_bulk_data_without_asking_has_had_its_turn() {
        let [mut first] = bulk().await;
        let mut second = Peer::new();
        assert!(second.moves(BULK_BYTES), "its task is woken");
        assert!(!first.begin());
        poll_sockets().await;
        assert_eq!(first.calls(), 0);
        assert!(!second.begin(), "it has had its turn, and waits");
        poll_sockets().await;
        assert!(first.calls() == 1 && first.begin());
        poll_sockets().await;
        assert!(second.calls() == 1 && second.begin());
    }

    #[tokio::test]
    async fn what_a_connection_moved_last_decides() {
        let [mut first, mut second] = bulk().await;
        assert!(first.begin());
        assert!(!second.moves(0));
        assert!(
            !second.turn.allows_callers(),
            "it moved nothing, so it may have more"
        );
        assert!(!second.moves(BULK_BYTES - 1));
        assert!(second.begin() && second.turn.allows_callers());
    }

    #[tokio::test]
    async fn a_connection_that_is_alone_does_not_wait() {
        let [mut only] = bulk().await;
        assert!(only.begin() && only.begin() && only.turn.allows_callers());
        assert_eq!(only.turn.limit(), usize::MAX);
    }

    #[tokio::test]
    async fn a_connection_that_ends_calls_the_next() {
        for ends_before_call in [true, false] {
            let [mut first, mut second, mut third] = bulk().await;
            assert!(first.begin() && !second.begin() && !third.begin());
            if ends_before_call {
                second.turn.leave();
            }
            poll_sockets().await;
            second.turn.leave();
            assert!(third.calls() == 1 && third.begin());
        }
    }

    #[tokio::test]
    async fn a_connection_that_is_called_and_moves_little_calls_the_next() {
        let [mut first, mut second, mut third] = bulk().await;
        assert!(first.begin() && !second.begin() && !third.begin());
        assert!(!second.moves(1));
        poll_sockets().await;
        assert!(second.begin());
        poll_sockets().await;
        assert!(third.calls() == 1 && third.begin());
    }

    #[tokio::test]
    async fn turns_are_short_while_there_are_requests() {
        let [mut first, mut second, mut third] = bulk().await;
        let mut light = Peer::new();
        for _ in 0..SHORT_TURNS_OF_REQUESTS {
            assert_eq!(first.turn.limit(), usize::MAX, "no request was seen");
            assert!(light.begin() && !light.moves(1));
        }
        assert!(light.begin());
        assert_eq!(light.turn.limit(), usize::MAX);
        assert_eq!(first.turn.limit(), SHORTEST_TURN_BYTES);
        assert!(first.begin() && !second.begin() && !third.begin());
        let longer = SHORTEST_TURN_BYTES + 2 * TURN_BYTES_PER_WAITING;
        assert_eq!(first.turn.limit(), longer);
        assert!(light.begin());
        let mut last = [second, third];
        for turn in 0..TURNS_WITHOUT_REQUEST as usize {
            assert_ne!(first.turn.limit(), usize::MAX, "turn {turn}");
            poll_sockets().await;
            let [next, other] = &mut last;
            assert!(next.begin() && !first.begin());
            mem::swap(&mut first, next);
            mem::swap(next, other);
        }
        assert_eq!(first.turn.limit(), usize::MAX);
        assert!(light.begin());
        assert_eq!(first.turn.limit(), longer);
    }
}
