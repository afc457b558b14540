//! The negotiation of two ends: success, refusal, and time-outs.

use std::time::Duration;

use smbdirect::{ConnectionError, Settings, engine::Expired, wire::Status};

use super::fabric::{Active, Faults, Pair, Passive, Who, credits, same_credits};

//= SMBD-3.1.4.7-01 test
//= SMBD-3.1.5.6-07 test
//= SMBD-3.1.5.6-09 test
//= SMBD-3.1.5.7-11 test
//= SMBD-3.1.5.7-12 test
#[test]
fn both_ends_know_the_same_limits() {
    for (send, receive) in [(128, 128), (128, 8192), (1364, 200), (8136, 65536)] {
        let mut active = Settings::windows();
        active.max_send_size = send;
        active.max_receive_size = receive;
        active.max_fragmented_receive_size = 200_000;
        active.max_read_write_size = 1 << 20;
        let pair = Pair::established(1, active, Settings::windows(), Faults::default());
        let [ours, theirs] = Who::BOTH.map(|who| *pair.end(who).engine.negotiated().unwrap());
        assert_eq!(ours.max_send_size, theirs.max_receive_size);
        assert_eq!(ours.max_receive_size, theirs.max_send_size);
        assert_eq!(
            (ours.max_send_size, theirs.max_send_size),
            (send.min(8192), receive.min(1364))
        );
        assert_eq!(theirs.max_fragmented_send_size, 200_000);
        assert_eq!(ours.max_read_write_size, 1 << 20);
    }
}

//= SMBD-3.1.5.9-08 test
#[test]
fn after_the_first_grant_each_end_holds_its_requested_credits() {
    for (active, passive) in [
        (credits(10, 20), credits(30, 40)),
        (credits(30, 5), credits(7, 9)),
        (credits(2, 2), credits(2, 2)),
    ] {
        let held = |ours: &Settings, theirs: &Settings| {
            ours.send_credit_target.min(theirs.receive_credit_max)
        };
        let expected = [held(&active, &passive), held(&passive, &active)];
        let pair = Pair::established(1, active, passive, Faults::default());
        let [ours, theirs] = Who::BOTH.map(|who| pair.end(who).engine.credits());
        // The initiator has spent one credit on its first grant.
        assert_eq!(ours.granted, expected[1]);
        assert!(theirs.send_credits == expected[1]);
        assert!(ours.send_credits + 1 >= expected[0]);
    }
}

//= SMBD-3.1.5.6-10 test
//= SMBD-3.1.5.3-03 test
#[test]
fn a_refusal_reaches_the_initiator_before_the_connection_ends() {
    for seed in 0..20 {
        let starved = Faults {
            receive_queue: 0,
            completion_delay: [100; 4],
            ..Faults::default()
        };
        let mut pair = Pair::new(seed, Settings::windows(), Settings::windows(), starved);
        pair.run();
        let status = Status::INSUFFICIENT_RESOURCES;
        assert_eq!(pair.active.closed, Some(ConnectionError::Refused(status)));
        let refused = ConnectionError::RefusedPeer(status);
        assert_eq!(pair.passive.closed, Some(refused));
        pair.assert_all_returned();
    }
}

//= SMBD-3.1.6.1-01 test
//= SMBD-3.1.7.2-02 test
#[test]
fn a_silent_peer_is_dropped_by_the_negotiation_timer() {
    let mut pair = Pair::new(1, same_credits(10), same_credits(10), Faults::default());
    pair.fall_silent();
    pair.advance(Duration::from_secs(130));
    let expired = ConnectionError::TimedOut(Expired::Negotiation);
    for (who, after) in [(Active, 120), (Passive, 5)] {
        assert_eq!(pair.end(who).closed, Some(expired.clone()), "{after}");
    }
    pair.assert_all_returned();
}

//= SMBD-3.1.5.6-13 test
#[test]
fn a_prompt_during_the_negotiation_waits_for_its_end() {
    for seed in 0..50 {
        let faults = Faults {
            completion_delay: [50; 4],
            ..Faults::default()
        };
        let mut pair = Pair::new(seed, same_credits(2), same_credits(2), faults);
        for _ in 0..4 {
            for who in Who::BOTH {
                pair.prompt(who);
                pair.keepalive(who);
            }
            pair.step();
        }
        pair.drive();
        assert!(pair.is_open());
    }
}
