//! Deadlines that begin while the driver task sleeps, what the statistics say of a wait that is not over, and when a
//! batch of messages is sent.

use tokio::time::{Instant, advance};

use super::*;
use crate::engine::{ConnectionError, Expired, Message};

const SECOND: Duration = Duration::from_secs(1);
/// The defaults of `keepalive_response_timeout` and `credit_grant_timeout`.
const LIMIT: Duration = Duration::from_secs(5);

/// Returns a connection whose task sleeps until the idle timer expires, much later than the deadlines of these tests.
async fn asleep() -> (Arc<Shared>, Arc<Mutex<Lists>>) {
    let (shared, lists) = established();
    give_credits(&shared);
    Driver::spawn(shared.clone());
    advance(SECOND).await;
    yield_now().await;
    (shared, lists)
}

async fn end(shared: &Shared) -> ConnectionError {
    shared.wait(Condition::End, |state| state.error()).await
}

fn messages(count: usize) -> Vec<Message> {
    (0..count).map(|_| "message".into()).collect()
}

#[tokio::test(start_paused = true)]
async fn the_deadline_of_an_answer_wakes_the_sleeping_task() {
    let (shared, _lists) = asleep().await;
    shared.with(|state| state.start_keepalive(now()));
    let since = Instant::now();
    let expired = ConnectionError::TimedOut(Expired::IdleConnection);
    assert_eq!(end(&shared).await, expired);
    assert_eq!(since.elapsed(), LIMIT);
}

/// More messages than the peer has granted credits for: the rest waits for credits, and the statistics count that.
#[tokio::test(start_paused = true)]
async fn the_deadline_of_credits_wakes_the_sleeping_task() {
    let (shared, _lists) = asleep().await;
    let since = Instant::now();
    shared.with(|state| state.submit_many(&mut messages(20)).unwrap());
    advance(2 * SECOND).await;
    let statistics = shared.with(|state| state.statistics());
    assert_eq!(statistics.credit_stalls, 1);
    assert_eq!(statistics.credit_stall_time, 2 * SECOND);
    let expired = ConnectionError::TimedOut(Expired::SendCreditGrant);
    assert_eq!(end(&shared).await, expired);
    assert_eq!(since.elapsed(), LIMIT);
    let statistics = shared.with(|state| state.statistics());
    assert_eq!(statistics.credit_stall_time, LIMIT);
}

/// The future of a batch resolves when its last message is sent.
#[test]
fn a_batch_is_sent_with_its_last_message() {
    let (shared, lists) = established();
    give_credits(&shared);
    lists.lock().unwrap().posted.clear();
    let index = shared.with(|state| {
        let index = state.submit_many(&mut messages(3)).unwrap();
        state.drive(now());
        index
    });
    let ids: Vec<_> = lists
        .lock()
        .unwrap()
        .posted
        .iter()
        .filter_map(|work| match work {
            WorkRequest::Send { id, payload, .. } if !payload.is_empty() => Some(*id),
            _ => None,
        })
        .collect();
    assert_eq!(ids.len(), 3);
    let poll = || {
        let context = &Context::from_waker(Waker::noop());
        shared.with(|state| state.sends.poll(index, context, &mut None))
    };
    for (sent, id) in ids.into_iter().enumerate() {
        assert!(poll().is_pending(), "{sent} of 3 are sent");
        lists
            .lock()
            .unwrap()
            .done
            .push_back(Completion::Sent { id });
        shared.with(|state| state.drive(now()));
    }
    assert_eq!(poll(), Poll::Ready(Ok(())));
}
