//! Idle connections: two idle peers exchange only keepalives, and a silent peer is detected.

use std::time::Duration;

use smbdirect::{ConnectionError, engine::Expired};

use super::fabric::{Active, Faults, Pair, Passive, Who, same_credits};

const HOUR: Duration = Duration::from_secs(3600);

fn said(pair: &Pair) -> usize {
    pair.active.data_transfers + pair.passive.data_transfers
}

//= SMBD-3.1.6.2-02 test
//= SMBD-3.1.5.8-09 test
#[test]
fn two_idle_peers_exchange_nothing_but_keepalives() {
    for active in [1, 2, 3, 10, 255] {
        for passive in [1, 2, 3, 10, 255] {
            let settings = same_credits(active);
            let faults = Faults::default();
            let mut pair = Pair::established(1, settings, same_credits(passive), faults);
            let before = said(&pair);
            pair.advance(10 * HOUR);
            assert!(pair.is_open(), "{active} {passive}\n{pair:?}");
            let keepalives = 10 * HOUR.as_secs() as usize / 120;
            let most = 4 * keepalives;
            let said = said(&pair) - before;
            assert!(
                (keepalives..=most).contains(&said),
                "{said} messages in ten hours with {active} and {passive} credits"
            );
            pair.send(Active, 5000);
            pair.send(Passive, 5000);
            pair.drive();
        }
    }
}

//= SMBD-3.1.6.2-01 test
//= SMBD-3.1.7.1-01 test
#[test]
fn a_vanished_peer_is_detected() {
    let settings = same_credits(10);
    let mut pair = Pair::established(1, settings.clone(), settings, Faults::default());
    pair.fall_silent();
    pair.advance(Duration::from_secs(124));
    assert!(pair.is_open());
    pair.advance(Duration::from_secs(2));
    for who in Who::BOTH {
        let expected = ConnectionError::TimedOut(Expired::IdleConnection);
        assert_eq!(pair.end(who).closed, Some(expected));
    }
    pair.assert_all_returned();
}

#[test]
fn a_busy_connection_sends_no_keepalives() {
    let settings = same_credits(10);
    let mut pair = Pair::established(1, settings.clone(), settings, Faults::default());
    for _ in 0..20 {
        pair.advance(Duration::from_secs(100));
        pair.send(Active, 10);
        pair.send(Passive, 10);
        pair.drive();
    }
    assert!(!pair.story.iter().any(|line| line.contains("asks")));
}
