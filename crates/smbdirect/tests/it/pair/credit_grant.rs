//! The Send Credit Grant Timer: how long messages wait for a peer that grants no credits.

use std::time::Duration;

use smbdirect::{ConnectionError, Settings, engine::Expired};

use super::fabric::{Active, Faults, Pair, Passive, Who, same_credits};

const SECOND: Duration = Duration::from_secs(1);
const FOR_EVER: Duration = Duration::from_secs(1 << 30);

fn pair(settings: Settings) -> Pair {
    Pair::established(1, settings.clone(), settings, Faults::default())
}

//= SMBD-WIN-CGT-01 test
//= SMBD-3.1.5.9-10 test
#[test]
fn the_timer_expires_after_five_seconds() {
    for who in Who::BOTH {
        let mut pair = pair(same_credits(10));
        pair.fill_buffer(who.peer(), FOR_EVER);
        for _ in 0..20 {
            pair.send(who, 1);
        }
        pair.advance(4 * SECOND);
        let received = pair.end(who.peer()).messages_received;
        assert!((9..20).contains(&received), "{received}");
        assert!(pair.is_open());
        pair.advance(2 * SECOND);
        let expected = ConnectionError::TimedOut(Expired::SendCreditGrant);
        assert_eq!(pair.end(who).closed, Some(expected));
        assert!(matches!(
            pair.end(who.peer()).closed,
            Some(ConnectionError::Provider(_))
        ));
        pair.assert_all_returned();
    }
}

//= SMBD-WIN-CGT-01 test
#[test]
fn a_grant_in_time_stops_the_timer() {
    let mut pair = pair(same_credits(4));
    for round in 0..5 {
        pair.fill_buffer(Passive, 4 * SECOND);
        for _ in 0..20 {
            pair.send(Active, 1);
        }
        pair.drive();
        assert_eq!(pair.passive.messages_received, 20 * (round + 1));
    }
}

#[test]
fn the_timer_does_not_run_without_a_waiting_message() {
    let mut pair = pair(same_credits(4));
    pair.fill_buffer(Passive, 100 * SECOND);
    for _ in 0..4 {
        pair.send(Active, 1);
    }
    pair.advance(100 * SECOND);
    assert!(pair.is_open());
    pair.drive();
}

//= SMBD-3.1.6.2-03 test
#[test]
fn without_the_timer_the_keepalive_ends_the_connection() {
    let mut settings = same_credits(4);
    settings.credit_grant_timeout = None;
    let mut pair = pair(settings);
    pair.fill_buffer(Passive, FOR_EVER);
    for _ in 0..10 {
        pair.send(Active, 1);
    }
    pair.advance(100 * SECOND);
    assert!(pair.is_open());
    pair.advance(40 * SECOND);
    // The peer, which grants nothing, cannot spend its last credit on a keepalive either, so the
    // idle timer of either end may expire first.
    let expired = Some(ConnectionError::TimedOut(Expired::IdleConnection));
    assert!(pair.active.closed == expired || pair.passive.closed == expired);
    pair.assert_all_returned();
}

//= SMBD-3.1.5.8-07 test
//= SMBD-3.1.5.9-01 test
#[test]
fn a_receiving_end_grants_in_batches_before_the_last_credit_is_used() {
    // A grant is due after three quarters of the credits, or after 64 if that is less.
    for (credits, batch) in [(40, 30..36), (80, 60..70), (100, 64..70), (255, 64..70)] {
        let mut pair = pair(same_credits(credits));
        for _ in 0..1000 {
            pair.send(Active, 1);
        }
        pair.drive();
        let grants = &pair.passive.grants;
        assert!(
            grants.len() >= 1000 / usize::from(batch.end) - 3,
            "{grants:?}"
        );
        assert!(
            grants.iter().all(|grant| batch.contains(grant)),
            "{grants:?}"
        );
    }
}
