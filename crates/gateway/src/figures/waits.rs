//! What a session waits for: at each instant one thing.
//!
//! The clock is read when that changes, and for a wait only if it cannot end immediately. A message that is forwarded
//! without a wait, while other requests are unanswered, costs nothing more than its entry in the list.

use std::{
    collections::VecDeque,
    pin::pin,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::Poll,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use smbdirect_smb::smb2::{Command, Header};

use crate::figures::times::{AnswerTimes, Times};

/// What a session waits for, by the names of [`smbdirect_smb::slow::Cause`]. If it is several, the first of them counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Memory for messages, which `--memory` limits.
    Memory,
    /// The network to the client, or its window, which takes no more data or has not brought it.
    Network,
    /// The server, which has a request without an answer.
    Server,
    /// The client, which asks for nothing.
    Think,
}

/// The time that a session has waited since its first request, by what it has waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Waited {
    /// Nothing was unanswered: the client asked for nothing.
    pub think_seconds: f64,
    /// The server had requests, and none of the reasons below applied.
    pub server_seconds: f64,
    /// Data to or from the client waited for the network, for its window, or for send credits.
    pub network_seconds: f64,
    /// Messages waited for memory of the gateway.
    pub memory_seconds: f64,
    /// Requests without an answer now.
    pub unanswered: usize,
}

/// The unanswered requests of one session, and what it waits for.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    state: Mutex<State>,
    /// A copy of [`State::is_delivering`], so that the answers to other requests need no lock.
    is_delivering: AtomicBool,
    /// Whether messages are encrypted or compressed, so that requests and answers are not recognised.
    is_opaque: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// The requests that the server has not answered, oldest first. Servers answer about in this order, so a search from
    /// the front costs less than a hash.
    requests: VecDeque<Request>,
    /// Whether the answer to the last unanswered request has begun to arrive, and was not yet forwarded.
    is_delivering: bool,
    /// Tasks that wait for memory, and for the client's network.
    memory: u32,
    window: u32,
    /// When the cause has last changed; `None` before the first request.
    since: Option<Instant>,
    /// Time by cause.
    spent: [Duration; 4],
}

/// A request without an answer.
#[derive(Debug)]
struct Request {
    message_id: u64,
    command: Command,
    asked: Instant,
}

/// Maximum number of requests of a session that are timed at the same time: more than clients have outstanding. Further
/// ones are not timed, so that a client without respect for credits takes no memory, and the search stays short.
const MAX_TIMED: usize = 1024;

impl State {
    fn cause(&self) -> Cause {
        if self.memory > 0 {
            Cause::Memory
        } else if self.window > 0 {
            Cause::Network
        } else if self.is_delivering || !self.requests.is_empty() {
            Cause::Server
        } else {
            Cause::Think
        }
    }

    /// Counts the time since the last change, before the next one. Returns the cause so far, and its time. A message can
    /// have arrived before the last change; then the next change is not earlier.
    fn count(&mut self, now: Instant) -> (Cause, Duration) {
        let since = self.since.unwrap_or(now);
        let time = now.saturating_duration_since(since);
        self.since = Some(since.max(now));
        let cause = self.cause();
        self.spent[cause as usize] += time;
        (cause, time)
    }

    /// Takes a request that is answered.
    fn take(&mut self, message_id: u64) -> Option<Request> {
        let is_its = |request: &Request| request.message_id == message_id;
        if self.requests.front().is_some_and(is_its) {
            return self.requests.pop_front();
        }
        let index = self.requests.iter().position(is_its)?;
        self.requests.remove(index)
    }

    fn waiting(&mut self, cause: Cause) -> &mut u32 {
        match cause {
            Cause::Memory => &mut self.memory,
            _ => &mut self.window,
        }
    }
}

impl Waits {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the messages of the session cannot be recognised.
    pub(crate) fn set_opaque(&self) {
        self.is_opaque.store(true, Relaxed);
    }

    /// Notes a request that has an answer, and records in `client` how long the client asked for nothing before it.
    pub(crate) fn asked(&self, request: &Header, now: Instant, client: &Times) {
        let mut state = self.lock();
        if state.requests.is_empty() {
            let is_first = state.since.is_none();
            let (cause, time) = state.count(now);
            if cause == Cause::Think && !is_first {
                client.record(time);
            }
        }
        if state.requests.len() < MAX_TIMED {
            state.requests.push_back(Request {
                message_id: request.message_id,
                command: request.command,
                asked: now,
            });
        }
    }

    /// Notes the beginning of the final answer to a request, and records its time.
    pub(crate) fn answered(&self, answer: &Header, now: Instant, times: &AnswerTimes) {
        let mut state = self.lock();
        let Some(request) = state.take(answer.message_id) else {
            return;
        };
        if state.requests.is_empty() {
            state.is_delivering = true;
            self.is_delivering.store(true, Relaxed);
        }
        drop(state);
        let time = now.saturating_duration_since(request.asked);
        times.of(request.command).record(time);
    }

    /// Notes that the message of the server that has arrived last was forwarded.
    pub(crate) fn delivered(&self) {
        if !self.is_delivering.load(Relaxed) {
            return;
        }
        let mut state = self.lock();
        if state.requests.is_empty() {
            state.count(Instant::now());
        }
        state.is_delivering = false;
        self.is_delivering.store(false, Relaxed);
    }

    /// Waits for `future`, for this cause. A wait that does not end immediately is recorded in `times`, if there are any.
    pub(crate) async fn during<T>(
        &self,
        cause: Cause,
        times: Option<&Times>,
        future: impl Future<Output = T>,
    ) -> T {
        let mut future = pin!(future);
        let first = std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context)));
        if let Poll::Ready(value) = first.await {
            return value;
        }
        let _wait = self.begin(cause, times);
        future.await
    }

    fn begin<'a>(&'a self, cause: Cause, times: Option<&'a Times>) -> Wait<'a> {
        let began = Instant::now();
        let mut state = self.lock();
        state.count(began);
        *state.waiting(cause) += 1;
        drop(state);
        Wait {
            waits: self,
            times,
            cause,
            began,
        }
    }

    /// Returns the time so far; `None` if messages of the session cannot be recognised.
    pub(crate) fn waited(&self) -> Option<Waited> {
        if self.is_opaque.load(Relaxed) {
            return None;
        }
        let mut state = self.lock();
        if state.since.is_some() {
            state.count(Instant::now());
        }
        let seconds = |cause| state.spent[cause as usize].as_secs_f64();
        Some(Waited {
            think_seconds: seconds(Cause::Think),
            server_seconds: seconds(Cause::Server),
            network_seconds: seconds(Cause::Network),
            memory_seconds: seconds(Cause::Memory),
            unanswered: state.requests.len(),
        })
    }
}

/// A wait. Dropping the value ends it, also if the session ends first.
struct Wait<'a> {
    waits: &'a Waits,
    times: Option<&'a Times>,
    cause: Cause,
    began: Instant,
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut state = self.waits.lock();
        state.count(now);
        *state.waiting(self.cause) -= 1;
        drop(state);
        if let Some(times) = self.times {
            times.record(now.saturating_duration_since(self.began));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn header(command: Command, message_id: u64) -> Header {
        let mut bytes = smbdirect_test::messages::read(message_id, 0, 9, 0, &[]);
        bytes[12..14].copy_from_slice(&command.0.to_le_bytes());
        Header::decode(&bytes).expect("it is a header")
    }

    #[test]
    fn an_answer_is_timed_by_the_operation_of_its_request() {
        let (waits, times, client) = (Waits::default(), AnswerTimes::default(), Times::default());
        let now = Instant::now();
        for (command, id) in [
            (Command::READ, 1),
            (Command::WRITE, 2),
            (Command::SESSION_SETUP, 3),
        ] {
            waits.asked(&header(command, id), now, &client);
        }
        for id in [3, 1, 1, 9] {
            waits.answered(&header(Command::READ, id), now + MS, &times);
        }
        let counts = [Command::READ, Command::WRITE, Command::SESSION_SETUP];
        let counts = counts.map(|command| times.of(command).count());
        assert_eq!(counts, [1, 0, 1], "each request once");
    }

    #[test]
    fn requests_without_answers_take_a_bounded_amount_of_memory() {
        let (waits, client) = (Waits::default(), Times::default());
        let now = Instant::now();
        for id in 0..MAX_TIMED as u64 + 10 {
            waits.asked(&header(Command::READ, id), now, &client);
        }
        assert_eq!(waits.lock().requests.len(), MAX_TIMED);
    }

    /// Each instant counts for the cause that the state has, and a second of the clock for exactly one.
    #[test]
    fn the_cause_follows_from_the_state() {
        for (memory, window, delivering, requests, cause) in [
            (0, 0, false, 0, Cause::Think),
            (0, 0, false, 1, Cause::Server),
            (0, 0, true, 0, Cause::Server),
            (0, 1, true, 1, Cause::Network),
            (0, 1, false, 0, Cause::Network),
            (1, 0, false, 0, Cause::Memory),
            (2, 2, true, 1, Cause::Memory),
        ] {
            let began = Instant::now();
            let mut state = State {
                memory,
                window,
                is_delivering: delivering,
                since: Some(began),
                ..State::default()
            };
            for message_id in 0..requests {
                state.requests.push_back(Request {
                    message_id,
                    command: Command::READ,
                    asked: began,
                });
            }
            assert_eq!(state.count(began + MS), (cause, MS));
            let mut spent = [Duration::ZERO; 4];
            spent[cause as usize] = MS;
            assert_eq!(state.spent, spent);
        }
    }

    #[test]
    fn a_message_that_arrived_before_the_last_change_counts_no_time_twice() {
        let began = Instant::now();
        let mut state = State {
            since: Some(began + 2 * MS),
            ..State::default()
        };
        assert_eq!(state.count(began + MS).1, Duration::ZERO);
        assert_eq!(state.count(began + 3 * MS).1, MS);
    }

    #[test]
    fn the_client_is_timed_from_an_answer_that_was_forwarded_to_the_next_request() {
        let (waits, times, client) = (Waits::default(), AnswerTimes::default(), Times::default());
        let read = header(Command::READ, 1);
        waits.asked(&read, Instant::now(), &client);
        waits.answered(&read, Instant::now(), &times);
        assert_eq!(waits.lock().cause(), Cause::Server, "it is not forwarded");
        waits.delivered();
        assert_eq!(waits.lock().cause(), Cause::Think);
        assert_eq!(client.count(), 0, "nothing is before the first request");
        let later = Instant::now() + MS;
        waits.asked(&read, later, &client);
        waits.asked(&header(Command::READ, 2), later + MS, &client);
        assert_eq!(client.count(), 1, "while another is unanswered");
        assert!(waits.waited().unwrap().think_seconds >= MS.as_secs_f64());
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_wait_that_does_not_end_immediately_is_recorded() {
        let (waits, window) = (Waits::default(), Times::default());
        waits
            .during(Cause::Network, Some(&window), std::future::ready(()))
            .await;
        assert_eq!(window.count(), 0);
        waits
            .during(Cause::Network, Some(&window), tokio::time::sleep(MS))
            .await;
        assert_eq!(window.count(), 1);
        let endless = waits.during(Cause::Memory, None, std::future::pending::<()>());
        assert!(tokio::time::timeout(MS, endless).await.is_err());
        assert_eq!(
            waits.lock().cause(),
            Cause::Think,
            "a wait that was given up"
        );
    }

    #[test]
    fn encrypted_messages_tell_nothing() {
        let waits = Waits::default();
        assert!(waits.waited().is_some());
        waits.set_opaque();
        assert!(waits.waited().is_none());
    }
}
