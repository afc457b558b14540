//! Deadlines after a stall of this process, on a clock that the tests stop.

use tokio::time::{Instant, advance, timeout};

use super::*;
use crate::engine::{ConnectionError, Expired};

const SECOND: Duration = Duration::from_secs(1);
/// The default of `keepalive_response_timeout`.
const LIMIT: Duration = Duration::from_secs(5);

/// Returns a connection whose peer owes the answer to a keepalive, and the lists of its queue pair.
async fn asked() -> (Arc<Shared>, Arc<Mutex<Lists>>) {
    let (shared, lists) = established();
    give_credits(&shared);
    Driver::spawn(shared.clone());
    shared.with(|state| state.start_keepalive(now()));
    yield_now().await;
    (shared, lists)
}

async fn end(shared: &Shared) -> ConnectionError {
    shared
        .wait(Condition::Keepalive, |state| state.error())
        .await
}

fn is_over(shared: &Shared) -> bool {
    shared.with(|state| state.error().is_some())
}

/// The answer follows more than one round of other completions.
#[tokio::test(start_paused = true)]
async fn an_answer_that_arrived_during_a_stall_counts() {
    for others in [0, 1, 1000] {
        let (shared, lists) = asked().await;
        let sent = || Completion::Sent { id: NO_WORK };
        let arrived = std::iter::repeat_with(sent)
            .take(others)
            .chain([segment(0)]);
        lists.lock().unwrap().done.extend(arrived);
        advance(100 * LIMIT).await;
        yield_now().await;
        shared.with(|state| assert!(!state.awaits_answer() && state.error().is_none()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_has_a_second_after_a_stall() {
    for answers in [true, false] {
        let (shared, lists) = asked().await;
        advance(LIMIT + 3 * SECOND).await;
        yield_now().await;
        assert!(!is_over(&shared), "the peer may not have had time");
        if answers {
            lists.lock().unwrap().done.push_back(segment(0));
            timeout(2 * SECOND, end(&shared)).await.unwrap_err();
            continue;
        }
        let since = Instant::now();
        let expired = ConnectionError::TimedOut(Expired::IdleConnection);
        assert_eq!(end(&shared).await, expired);
        assert!(since.elapsed() <= SECOND, "{:?}", since.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_stall_a_deadline_is_exact() {
    let (shared, _lists) = asked().await;
    let since = Instant::now();
    end(&shared).await;
    assert_eq!(since.elapsed(), LIMIT);
}

#[tokio::test(start_paused = true)]
async fn stalls_without_end_postpone_a_deadline_a_few_times() {
    let (shared, _lists) = asked().await;
    let mut stalls = 0;
    while !is_over(&shared) {
        assert!(stalls < 10);
        stalls += 1;
        advance(LIMIT + SECOND).await;
        yield_now().await;
    }
    assert_eq!(stalls, 4);
}

/// The queue pair always has something to read, but the answer never arrives.
#[tokio::test(start_paused = true)]
async fn a_peer_that_keeps_data_coming_does_not_postpone_a_deadline_without_end() {
    let (shared, lists) = asked().await;
    lists.lock().unwrap().endless = true;
    let since = Instant::now();
    // Each turn of the task ends at its limit, so the task runs all the time. The test advances the clock.
    while !is_over(&shared) {
        assert!(since.elapsed() < LIMIT + 5 * SECOND);
        advance(SECOND / 10).await;
        yield_now().await;
    }
    assert!(since.elapsed() > LIMIT);
    // The task ends with the runtime, and takes the remaining completions.
    lists.lock().unwrap().endless = false;
}
