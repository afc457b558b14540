//! The connection breaks or is closed at every operation of a busy scenario, and every buffer is
//! returned.

use std::time::Duration;

use smbdirect::{Access, ConnectionError};

use super::fabric::{Active, Faults, Pair, Passive, Who, closed_by, content, same_credits};

/// Runs a negotiation, messages in both directions, a read, a write, an invalidation and
/// keepalives.
fn scenario(seed: u64, kill_at: Option<u64>, mut between: impl FnMut(&mut Pair, usize)) -> Pair {
    let faults = Faults {
        kill_at,
        completion_delay: [25; 4],
        send_queue: 6,
        outbound_reads: 2,
        max_transfer: 2000,
        ..Faults::default()
    };
    let mut pair = Pair::new(seed, same_credits(3), same_credits(2), faults);
    let all = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_INVALIDATE;
    let memory = pair.register(Active, 1, 9000, all);
    let mut begun = false;
    for step in 0.. {
        if pair.is_open() && !std::mem::replace(&mut begun, true) {
            for length in [1, 5000, 0, 1340] {
                pair.send(Active, length);
                pair.send(Passive, length);
            }
            pair.read(Passive, &[memory], 0, content(1, 9000));
            pair.write(Passive, &[memory], 0, content(1, 9000));
            pair.keepalive(Active);
            pair.keepalive(Passive);
        }
        between(&mut pair, step);
        let before = pair.now;
        pair.step();
        if pair.now > before + Duration::from_secs(1) {
            break;
        }
        if pair.active.closed.is_some() && pair.passive.closed.is_some() {
            break;
        }
    }
    pair
}

//= SMBD-3.1.7.1-01 test
//= SMBD-3.1.4.2-04 test
#[test]
fn every_buffer_returns_if_the_network_fails_at_any_operation() {
    for seed in 0..4 {
        let operations = scenario(seed, None, |_, _| {}).operations;
        assert!(operations > 40, "{operations}");
        for kill_at in 1..=operations {
            let mut pair = scenario(seed, Some(kill_at), |_, _| {});
            pair.run();
            for who in Who::BOTH {
                let reason = pair.end(who).closed.clone();
                let broken = matches!(reason, Some(ConnectionError::Provider(_)));
                assert!(broken, "{who:?} at {kill_at}: {reason:?}");
            }
            pair.assert_all_returned();
        }
    }
}

#[test]
fn every_buffer_returns_if_either_side_closes_at_any_step() {
    for who in Who::BOTH {
        for seed in 0..2 {
            for close_at in 0.. {
                let mut closes = false;
                let mut pair = scenario(seed, None, |pair, step| {
                    if step == close_at {
                        pair.close(who);
                        closes = true;
                    }
                });
                if !closes {
                    assert!(close_at > 50, "{close_at} steps");
                    break;
                }
                pair.run();
                pair.advance(Duration::from_secs(130));
                for end in Who::BOTH {
                    let reason = pair.end(end).closed.clone().unwrap();
                    let negotiating = matches!(reason, ConnectionError::TimedOut(_));
                    assert!(
                        reason == closed_by(who, end) || negotiating,
                        "{end:?} at {close_at}: {reason}"
                    );
                }
                pair.assert_all_returned();
            }
        }
    }
}

/// `close` completes all earlier work first.
#[test]
fn close_completes_all_earlier_work() {
    for number in [1, 2, 10] {
        let settings = same_credits(number);
        let faults = Faults {
            completion_delay: [500, 0, 0, 0],
            ..Faults::default()
        };
        let mut pair = Pair::established(1, settings.clone(), settings, faults);
        for length in [1, 5000, 20_000] {
            pair.send(Active, length);
        }
        pair.close(Active);
        pair.send(Active, 1);
        pair.run();
        assert_eq!(pair.passive.messages_received, 3);
        assert_eq!(pair.active.messages_sent, 3);
        assert_eq!(pair.active.closed, Some(closed_by(Active, Active)));
        assert_eq!(pair.passive.closed, Some(closed_by(Active, Passive)));
        pair.assert_all_returned();
    }
}

#[test]
fn both_ends_can_close_concurrently() {
    let settings = same_credits(2);
    let mut pair = Pair::established(1, settings.clone(), settings, Faults::default());
    pair.send(Active, 1);
    pair.send(Passive, 1);
    pair.close(Active);
    pair.close(Passive);
    pair.run();
    assert!(pair.active.closed.is_some() && pair.passive.closed.is_some());
    pair.assert_all_returned();
}
