//! The schedule of a connection: when a submitted message is flushed, how much one poll moves, and when an idle
//! end polls before it sleeps.
//!
//! | decision | rule | place |
//! |---|---|---|
//! | When is a submitted message flushed? | Immediately, by the caller: to wake a task takes longer than the whole path to the wire. But a flush costs a system call, so what is submitted within [`BURST`] after a flush is left to the driver task, which flushes a whole burst at once. | [`Schedule::submit`] |
//! | How much does one poll move? | A poll of the driver task ends after [`POLL_BYTES`], so that the futures that it woke can start further reads, or take messages while these are in a cache. If requests come on another connection of its thread, or there are many, it ends after [`SHARED_POLL_BYTES`]. A connection that then has more to do, or has moved [`BULK_BYTES`] while others wait, waits for its turn. The runtime polls its sockets between two turns, so a request on another connection waits for one turn, and not for the turns of all. | [`Schedule::begin_poll`], [`Crowd`] |
//! | When does an idle end poll before it sleeps? | After it has moved [`BULK_BYTES`], for the time that the provider gives: in a steady stream the next bytes mostly arrive sooner than a wake-up takes. | [`Polling`] |

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{clock::now, crowd::Crowd};

/// Work that is submitted this soon after a flush is part of a burst, and the driver task flushes it.
const BURST: Duration = Duration::from_micros(20);
/// Longest time for which a burst is left to the driver task. Callers that never pause keep that task from
/// running. The clock is read once for [`CLOCK_INTERVAL`] messages.
const MAX_BURST: Duration = Duration::from_micros(100);
/// Messages, reads and writes between two reads of the clock.
const CLOCK_INTERVAL: usize = 16;
/// Number of messages, reads and writes in a burst after which the caller flushes.
pub(super) const MAX_BURST_COUNT: usize = 256;
/// Bytes of a burst, after which the caller flushes.
const MAX_BURST_BYTES: usize = 1024 * 1024;

/// Bytes of whole messages, or of finished reads, after which a poll ends.
pub(super) const POLL_BYTES: usize = 256 * 1024;
/// Bytes that a poll sends or receives by RDMA, if another connection of the thread carries requests. With more,
/// a request on another connection waits longer than with plain TCP.
const SHARED_POLL_BYTES: usize = 96 * 1024;
/// Number of bytes moved by RDMA that take about as long as one byte of a message. Such a poll moves fewer bytes in
/// messages by this factor.
const MESSAGE_COST: usize = 8;
/// Consecutive polls and calls with fewer than [`BULK_BYTES`] after which a connection counts as one that carries
/// requests. The end that receives bulk data has a short poll now and then.
const SHORT_POLLS_OF_REQUESTS: u8 = 8;

/// Number of bytes, sent and received, after which an end that becomes idle polls before it sleeps.
const BULK_BYTES: u64 = 16 * 1024;
/// Number of bytes, sent and received, that restart the time for which an idle end polls, if some of the bytes
/// were received. It is less than [`BULK_BYTES`]: a short message can grant the credits for many bytes.
const EXTENSION_BYTES: u64 = 4 * 1024;
/// Number of consecutive useless poll windows after which polling does not become rarer: the end then polls at
/// one of 64 opportunities.
const MAX_USELESS: u32 = 6;

/// Which code flushes submitted work: the caller or the driver task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flush {
    /// The caller, now. `in_burst` is true if the driver task has not run since the burst began.
    Now { in_burst: bool },
    /// The driver task.
    Task,
}

/// The state of a connection on which the three decisions depend.
#[derive(Debug)]
pub(super) struct Schedule {
    /// When work was last flushed, or `None` if the next message is flushed immediately: nothing was flushed, or a
    /// message has arrived, whose answer must not wait as part of a burst.
    last_flush: Option<Instant>,
    /// Messages, reads and writes that were submitted and not flushed, and their bytes.
    burst: (usize, usize),
    /// Bytes of whole messages after which this poll ends, less those that have arrived.
    messages_left: usize,
    /// Bytes of finished reads after which this poll ends, less those that have arrived.
    reads_left: usize,
    /// The connections of the runtime, if it has one thread.
    crowd: Option<Arc<Crowd>>,
    /// Consecutive polls and calls that moved fewer than [`BULK_BYTES`].
    short_polls: u8,
    /// Whether the last poll or call ended before everything was done, or moved bulk data while other connections
    /// waited for their turns. What this connection submits next must then not overtake those connections.
    has_more: bool,
    /// Bytes that were sent and received in total, at the end of the last poll or call.
    moved: u64,
    polling: Polling,
}

impl Schedule {
    /// Creates the schedule of a connection whose idle end polls for `window`.
    pub(super) fn new(window: Duration) -> Self {
        Self {
            last_flush: None,
            burst: (0, 0),
            messages_left: POLL_BYTES,
            reads_left: POLL_BYTES,
            crowd: None,
            short_polls: 0,
            has_more: false,
            moved: 0,
            polling: Polling::new(window),
        }
    }

    /// Joins the connections of the current runtime, if it has one thread.
    pub(super) fn join_runtime(&mut self) {
        self.crowd = Crowd::of_this_runtime();
    }

    // When a submitted message is flushed

    /// Decides whether the caller or the driver task flushes `count` messages, reads and writes of `bytes` bytes
    /// in total, which were just submitted.
    pub(super) fn submit(&mut self, count: usize, bytes: usize) -> Flush {
        let (before, queued) = self.burst;
        self.burst = (before + count, queued + bytes);
        if self.takes_turns() {
            return Flush::Task;
        }
        let waits = before > 0 && before < MAX_BURST_COUNT && queued + bytes < MAX_BURST_BYTES;
        if waits && !before.is_multiple_of(CLOCK_INTERVAL) {
            return Flush::Task;
        }
        let pause = |flush| now().saturating_duration_since(flush);
        let pause = self.last_flush.map_or(Duration::MAX, pause);
        if waits && pause <= MAX_BURST || before == 0 && pause < BURST {
            Flush::Task
        } else {
            Flush::Now {
                in_burst: before > 0,
            }
        }
    }

    /// Returns whether something was submitted that is not flushed.
    pub(super) const fn has_burst(&self) -> bool {
        self.burst.0 > 0
    }

    /// Records that everything that was submitted is flushed now.
    #[inline]
    pub(super) const fn begin_flush(&mut self) {
        self.burst = (0, 0);
    }

    /// Records when work was flushed.
    #[inline]
    pub(super) const fn flushed(&mut self, now: Instant) {
        self.last_flush = Some(now);
    }

    /// Records a whole message, which may be answered.
    #[inline]
    pub(super) const fn message_arrived(&mut self, bytes: usize) {
        self.messages_left = self.messages_left.saturating_sub(bytes);
        self.last_flush = None;
    }

    // How much one poll moves

    /// Begins a poll, or a call that moves bytes as a poll does. Returns how many bytes it may send, if that is
    /// limited. `sends_messages` is true if the bytes belong to messages.
    #[inline]
    pub(super) fn begin_poll(&mut self, sends_messages: bool) -> Option<u64> {
        let shares = self.shares_thread();
        let Some(crowd) = self.crowd.as_ref().filter(|_| shares) else {
            self.messages_left = POLL_BYTES;
            self.reads_left = POLL_BYTES;
            return None;
        };
        self.reads_left = SHARED_POLL_BYTES;
        if self.has_more {
            self.reads_left += crowd.longer_turn_bytes();
        }
        self.messages_left = self.reads_left / MESSAGE_COST;
        let most = if sends_messages {
            self.messages_left
        } else {
            self.reads_left
        };
        Some(most as u64)
    }

    #[inline]
    pub(super) const fn read_finished(&mut self, bytes: usize) {
        self.reads_left = self.reads_left.saturating_sub(bytes);
    }

    /// Returns whether the poll has to end, although there may be more to take.
    #[inline]
    pub(super) const fn is_over(&self) -> bool {
        self.messages_left == 0 || self.reads_left == 0
    }

    /// Returns whether the connection must wait for its turn before it continues.
    #[inline]
    pub(super) fn takes_turns(&self) -> bool {
        self.has_more && self.shares_thread()
    }

    /// Returns whether requests are expected on the same thread.
    #[inline]
    fn shares_thread(&self) -> bool {
        self.crowd
            .as_ref()
            .is_some_and(|crowd| crowd.expects_requests())
    }

    #[inline]
    fn others_wait(&self) -> bool {
        self.crowd.as_ref().is_some_and(|crowd| crowd.has_waiting())
    }

    /// Returns the connections with which this one takes turns now.
    pub(super) fn crowd(&self) -> Option<Arc<Crowd>> {
        self.crowd.clone().filter(|_| self.takes_turns())
    }

    /// Ends a poll or a call, given whether everything was moved, and how many bytes the connection has sent and
    /// received in total. Returns whether the poll or call has moved [`BULK_BYTES`].
    #[inline]
    pub(super) fn end_poll(&mut self, all_moved: bool, moved: u64) -> bool {
        let bytes = moved.saturating_sub(self.moved);
        self.moved = moved;
        self.has_more = !all_moved || bytes >= BULK_BYTES && self.others_wait();
        if bytes > 0 {
            let is_short = all_moved && bytes < BULK_BYTES;
            self.short_polls = if is_short {
                self.short_polls.saturating_add(1)
            } else {
                0
            };
            if let Some(crowd) = &self.crowd {
                crowd.record_poll(is_short, self.short_polls >= SHORT_POLLS_OF_REQUESTS);
            }
        }
        bytes >= BULK_BYTES
    }

    // When an idle end polls before it sleeps

    /// Returns whether the driver task is to poll again rather than to sleep, given how many bytes the connection
    /// has sent and received in total.
    #[inline]
    pub(super) fn polls_again(&mut self, sent: u64, received: u64) -> bool {
        // Real time: tokio's clock may be paused, and then does not move while the task polls.
        self.polling.again(sent + received, received, Instant::now)
    }

    /// Returns whether the driver task polls without sleeping. Nothing has to wake it then.
    #[inline]
    pub(super) const fn is_polling(&self) -> bool {
        self.polling.since.is_some()
    }
}

/// The decision of an idle end to poll or to sleep.
///
/// To sleep and to be woken costs both ends microseconds of CPU time, and hundreds in some virtual machines. But
/// polling is useless if the peer is slow, and harmful if the peer waits for the same core. So an end polls only
/// after bulk data, and only while enough bytes keep arriving; after each useless poll window it uses fewer
/// opportunities.
#[derive(Debug)]
struct Polling {
    window: Duration,
    /// Bytes moved in total at the last decision.
    moved: u64,
    /// Bytes moved in total at the last sleep.
    slept_at: u64,
    /// When the polling began or was last extended, and the bytes received and moved in total until then.
    since: Option<(Instant, u64, u64)>,
    /// The number of consecutive useless poll windows.
    useless: u32,
    /// The number of opportunities still to be skipped.
    skip: u32,
}

impl Polling {
    const fn new(window: Duration) -> Self {
        Self {
            window,
            moved: 0,
            slept_at: 0,
            since: None,
            useless: 0,
            skip: 0,
        }
    }

    /// Returns whether to poll again, given the bytes moved and the bytes received in total.
    fn again(&mut self, moved: u64, received: u64, now: impl FnOnce() -> Instant) -> bool {
        let has_moved = moved != self.moved;
        self.moved = moved;
        match self.since {
            None if !has_moved || self.window.is_zero() => return false,
            None if moved - self.slept_at < BULK_BYTES => return self.sleep(),
            None if self.skip > 0 => {
                self.skip -= 1;
                return self.sleep();
            }
            None => {}
            // Bytes that this end sends do not show that the peer is fast.
            Some((_, received_then, moved_then))
                if received > received_then && moved - moved_then >= EXTENSION_BYTES =>
            {
                self.useless = 0;
            }
            Some((since, ..)) => {
                if now().saturating_duration_since(since) < self.window {
                    return true;
                }
                self.useless = (self.useless + 1).min(MAX_USELESS);
                self.skip = (1 << self.useless) - 1;
                return self.sleep();
            }
        }
        self.since = Some((now(), received, moved));
        true
    }

    /// Records a sleep, and returns false.
    const fn sleep(&mut self) -> bool {
        self.slept_at = self.moved;
        self.since = None;
        false
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use tokio::{
        runtime::Builder,
        task::yield_now,
        time::{advance, timeout},
    };

    use super::*;
    use crate::driver::crowd::{
        FEW_CONNECTIONS, MAX_COUNTED_WAITING, POLLS_WITHOUT_REQUEST, WAITING_BYTES,
    };

    const WINDOW: Duration = Duration::from_micros(100);
    const NOTHING: Duration = Duration::ZERO;

    fn schedule() -> Schedule {
        Schedule::new(WINDOW)
    }

    /// Submits a message, and flushes it if the schedule leaves that to the caller.
    fn submit(schedule: &mut Schedule, bytes: usize) -> Flush {
        let flush = schedule.submit(1, bytes);
        if let Flush::Now { .. } = flush {
            schedule.begin_flush();
            schedule.flushed(now());
        }
        flush
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_is_flushed_by_its_caller_and_a_burst_by_the_task() {
        const ALONE: Flush = Flush::Now { in_burst: false };
        const FULL: Flush = Flush::Now { in_burst: true };
        let mut schedule = schedule();
        assert_eq!(submit(&mut schedule, 7), ALONE);
        assert_eq!(submit(&mut schedule, 7), Flush::Task, "a burst");
        assert_eq!(submit(&mut schedule, 7), Flush::Task);
        schedule.begin_flush();
        schedule.flushed(now());
        advance(BURST).await;
        assert_eq!(submit(&mut schedule, 7), ALONE, "after a pause");
        schedule.message_arrived(1);
        assert_eq!(submit(&mut schedule, 7), ALONE, "an answer");
        for _ in 0..2 {
            assert_eq!(submit(&mut schedule, 7), Flush::Task);
            for _ in 1..MAX_BURST_COUNT {
                assert_eq!(submit(&mut schedule, 7), Flush::Task);
            }
            assert_eq!(submit(&mut schedule, 7), FULL);
        }
        assert_eq!(submit(&mut schedule, MAX_BURST_BYTES - 1), Flush::Task);
        assert_eq!(submit(&mut schedule, 1), FULL);
        assert_eq!(submit(&mut schedule, 7), Flush::Task);
        advance(MAX_BURST + BURST).await;
        for _ in 1..CLOCK_INTERVAL {
            assert_eq!(submit(&mut schedule, 7), Flush::Task);
        }
        assert_eq!(submit(&mut schedule, 7), FULL, "the task does not run");
    }

    #[tokio::test]
    async fn polls_are_short_beside_other_connections() {
        let [mut alone, mut other] = [schedule(), schedule()];
        alone.join_runtime();
        other.join_runtime();
        for poll in 1..100 {
            alone.end_poll(false, poll * BULK_BYTES);
        }
        assert_eq!(alone.begin_poll(false), None, "there are no requests");
        assert!(!alone.takes_turns() && alone.crowd().is_none());
        alone.message_arrived(POLL_BYTES - 1);
        alone.read_finished(POLL_BYTES - 1);
        assert!(!alone.is_over());
        alone.read_finished(1);
        assert!(alone.is_over());

        assert_eq!(other.begin_poll(false), None);
        requests(&mut other);
        for (sends_messages, most) in [
            (false, SHARED_POLL_BYTES),
            (true, SHARED_POLL_BYTES / MESSAGE_COST),
        ] {
            assert_eq!(other.begin_poll(sends_messages), Some(most as u64));
            assert!(!other.is_over());
        }
        other.message_arrived(SHARED_POLL_BYTES / MESSAGE_COST);
        assert!(other.is_over());
        other.begin_poll(false);
        other.read_finished(SHARED_POLL_BYTES);
        assert!(other.is_over());
        for poll in 0..POLLS_WITHOUT_REQUEST {
            assert!(alone.begin_poll(false).is_some(), "poll {poll}");
            alone.end_poll(true, (200 + u64::from(poll)) * BULK_BYTES);
        }
        assert_eq!(alone.begin_poll(false), None, "no request has come");
    }

    /// Runs enough short polls for the connection to count as one that exchanges requests.
    fn requests(schedule: &mut Schedule) {
        for _ in 0..SHORT_POLLS_OF_REQUESTS {
            schedule.end_poll(true, schedule.moved + 1);
        }
    }

    #[tokio::test]
    async fn connections_with_more_to_do_take_turns() {
        let [mut first, mut second] = [schedule(), schedule()];
        first.join_runtime();
        second.join_runtime();
        requests(&mut first);
        for schedule in [&mut first, &mut second] {
            assert_eq!(schedule.submit(1, 7), Flush::Now { in_burst: false });
            schedule.begin_flush();
            assert!(!schedule.end_poll(false, 100));
            assert!(schedule.takes_turns());
            assert_eq!(schedule.submit(1, 7), Flush::Task);
        }
        let crowd = first.crowd().unwrap();
        let turn = crowd.turn().await;
        assert_eq!(first.begin_poll(false), Some(SHARED_POLL_BYTES as u64));
        let waiting = second.crowd().unwrap();
        let waiting = tokio::spawn(async move { drop(waiting.turn().await) });
        yield_now().await;
        let longer = SHARED_POLL_BYTES + WAITING_BYTES;
        assert_eq!(first.begin_poll(false), Some(longer as u64));
        assert_eq!(first.begin_poll(true), Some((longer / MESSAGE_COST) as u64));
        assert!(!waiting.is_finished());
        drop(turn);
        waiting.await.unwrap();
        assert_eq!(first.begin_poll(false), Some(SHARED_POLL_BYTES as u64));
        first.end_poll(true, 100);
        assert!(!first.takes_turns(), "everything is done");
    }

    #[tokio::test]
    async fn a_connection_that_moved_bulk_data_does_not_overtake_those_that_wait() {
        let [mut first, mut second] = [schedule(), schedule()];
        first.join_runtime();
        second.join_runtime();
        requests(&mut first);
        first.end_poll(false, BULK_BYTES);
        second.end_poll(false, BULK_BYTES);
        let crowd = first.crowd().unwrap();
        let turn = crowd.turn().await;
        let waiting = second.crowd().unwrap();
        let waiting = tokio::spawn(async move { drop(waiting.turn().await) });
        yield_now().await;
        first.end_poll(true, 2 * BULK_BYTES);
        assert!(first.takes_turns(), "the other one waits");
        assert_eq!(first.submit(1, 7), Flush::Task);
        first.end_poll(true, 3 * BULK_BYTES - 1);
        assert!(!first.takes_turns(), "it moved few bytes");
        drop(turn);
        waiting.await.unwrap();
        first.end_poll(true, 4 * BULK_BYTES);
        assert!(!first.takes_turns(), "nobody waits");
    }

    /// However many connections have more to do, a request on another one waits for two turns at most, and each of
    /// them moves the same. Only among few connections, the first requests wait for the polls of all. At first all tasks
    /// begin.
    #[tokio::test]
    async fn a_request_waits_for_one_turn_and_not_for_those_of_all() {
        for connections in [2, 8, 64, 512] {
            let moved: Vec<_> = (0..connections).map(|_| Arc::default()).collect();
            let total = || {
                moved
                    .iter()
                    .map(|moved: &Arc<AtomicU64>| moved.load(Relaxed))
            };
            let tasks: Vec<_> = moved
                .iter()
                .map(|moved| tokio::spawn(busy(moved.clone())))
                .collect();
            let mut request = schedule();
            request.join_runtime();
            let mut longest = 0;
            let unexpected = usize::from(SHORT_POLLS_OF_REQUESTS) + 1;
            for count in 0..4 * connections + unexpected {
                let before: u64 = total().sum();
                // The runtime sees the request when it polls its sockets.
                yield_now().await;
                assert!(request.submit(1, 7) != Flush::Task && !request.takes_turns());
                request.begin_flush();
                request.end_poll(true, request.moved + 7);
                if count >= unexpected || count > 0 && connections > FEW_CONNECTIONS {
                    longest = longest.max(total().sum::<u64>() - before);
                }
            }
            let turn = SHARED_POLL_BYTES + WAITING_BYTES * connections.min(MAX_COUNTED_WAITING);
            assert!(longest <= 2 * turn as u64, "{connections}: {longest}");
            let (least, most) = (total().min().unwrap(), total().max().unwrap());
            assert!(
                most - least <= 2 * turn as u64,
                "{connections}: {least} to {most}"
            );
            for task in tasks {
                task.abort();
                assert!(task.await.unwrap_err().is_cancelled());
            }
        }
    }

    /// Moves as much as each poll permits, as the driver task of a connection that always has more to do.
    async fn busy(total: Arc<AtomicU64>) {
        let mut schedule = schedule();
        schedule.join_runtime();
        schedule.end_poll(false, 0);
        loop {
            let crowd = schedule.crowd();
            let turn = match &crowd {
                Some(crowd) => Some(crowd.turn().await),
                None => None,
            };
            let bytes = schedule.begin_poll(false).unwrap_or(POLL_BYTES as u64);
            schedule.end_poll(false, total.fetch_add(bytes, Relaxed) + bytes);
            yield_now().await;
            if turn.is_some() {
                yield_now().await;
            }
        }
    }

    /// A turn does not end while its runtime does not run. Connections of another runtime on the thread do not wait for it.
    #[test]
    fn runtimes_of_one_thread_have_turns_of_their_own() {
        let runtime = || Builder::new_current_thread().enable_time().build().unwrap();
        let [one, another] = [runtime(), runtime()];
        let busy = async || {
            let mut schedule = schedule();
            schedule.join_runtime();
            requests(&mut schedule);
            assert!(!schedule.end_poll(false, 100));
            schedule.crowd().expect("it takes turns")
        };
        let first = one.block_on(busy());
        let _turn = one.block_on(first.turn());
        another.block_on(async {
            let second = busy().await;
            let turn = timeout(Duration::from_secs(1), second.turn()).await;
            assert!(turn.is_ok(), "it waits for another runtime");
        });
        let sibling = one.block_on(busy());
        assert!(Arc::ptr_eq(&first, &sibling));
    }

    /// Threads of one runtime run concurrently, and no connection waits for a turn.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn connections_of_a_runtime_with_threads_take_no_turns() {
        let [mut first, mut second] = [schedule(), schedule()];
        first.join_runtime();
        second.join_runtime();
        requests(&mut second);
        first.end_poll(false, 1);
        assert!(!first.takes_turns() && first.begin_poll(false).is_none());
    }

    /// The state under test, the bytes sent and received in total, and the time.
    struct Harness {
        polling: Polling,
        sent: u64,
        received: u64,
        now: Instant,
    }

    impl Harness {
        fn new(window: Duration) -> Self {
            Self {
                polling: Polling::new(window),
                sent: 0,
                received: 0,
                now: Instant::now(),
            }
        }

        /// Moves bytes, lets `time` pass, and returns whether to poll again.
        fn step(&mut self, sent: u64, received: u64, time: Duration) -> bool {
            self.sent += sent;
            self.received += received;
            self.now += time;
            let moved = self.sent + self.received;
            self.polling.again(moved, self.received, || self.now)
        }

        /// Receives `bytes`, lets `time` pass, and returns whether to poll again.
        fn after(&mut self, bytes: u64, time: Duration) -> bool {
            self.step(0, bytes, time)
        }

        /// Receives bulk data and then nothing more, and returns whether the end polls after the data.
        fn polls_uselessly(&mut self) -> bool {
            let polls = self.after(BULK_BYTES, NOTHING);
            assert!(!self.after(0, WINDOW), "the window is over");
            assert!(!self.after(0, NOTHING), "nothing has moved since");
            polls
        }
    }

    #[test]
    fn an_end_polls_for_its_window_after_bulk_data() {
        for (sent, received) in [
            (BULK_BYTES, 0),
            (0, BULK_BYTES),
            (BULK_BYTES / 2, BULK_BYTES / 2),
        ] {
            let mut harness = Harness::new(WINDOW);
            assert!(!harness.after(0, NOTHING), "nothing moved");
            assert!(harness.step(sent, received, NOTHING));
            assert!(harness.after(0, WINDOW / 2));
            assert!(
                harness.after(EXTENSION_BYTES, WINDOW / 4),
                "enough bytes restart the window"
            );
            let credits_for_many_bytes = harness.step(EXTENSION_BYTES - 1, 1, WINDOW / 2);
            assert!(credits_for_many_bytes);
            assert!(harness.step(BULK_BYTES, 0, WINDOW / 2));
            assert!(
                !harness.step(BULK_BYTES, 0, WINDOW / 2),
                "sent bytes alone do not"
            );
        }
    }

    #[test]
    fn few_bytes_neither_begin_nor_extend_polling() {
        let mut harness = Harness::new(WINDOW);
        for _ in 0..1000 {
            assert!(!harness.after(BULK_BYTES - 1, WINDOW / 2));
        }
        assert!(harness.after(BULK_BYTES, NOTHING));
        for _ in 0..9 {
            assert!(harness.after(EXTENSION_BYTES / 10, WINDOW / 10));
        }
        assert!(!harness.after(EXTENSION_BYTES / 10 - 1, WINDOW / 10));
        let mut never = Harness::new(NOTHING);
        assert!(!never.after(BULK_BYTES, NOTHING));
    }

    #[test]
    fn useless_polling_becomes_rare_but_never_stops() {
        let mut harness = Harness::new(WINDOW);
        let polls: Vec<_> = (0..512).filter(|_| harness.polls_uselessly()).collect();
        let pauses: Vec<_> = polls.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(pauses[..6], [2, 4, 8, 16, 32, 64]);
        assert!(pauses.len() > 8 && pauses[6..].iter().all(|&pause| pause == 64));
        // Bytes that arrive reset the back-off.
        while !harness.after(BULK_BYTES, NOTHING) {}
        assert!(harness.after(EXTENSION_BYTES, NOTHING));
        assert!(!harness.after(0, WINDOW));
        assert!(!harness.polls_uselessly(), "one time was useless since");
        assert!(harness.polls_uselessly());
    }
}
