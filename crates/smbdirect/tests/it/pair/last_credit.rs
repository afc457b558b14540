//! The last send credit is never spent on a message without a grant. Linux before 2026 deadlocked
//! here, as does every implementation that overlooks 3.1.5.1. `Pair` checks each sent message;
//! these tests produce the situations in which a mistake would show.

use super::fabric::{Active, Faults, Pair, Passive, Who, same_credits};

//= SMBD-3.1.5.1-06 test
//= SMBD-3.1.5.1-06b test
//= SMBD-3.1.5.9-03 test
#[test]
fn both_ends_send_concurrently_with_few_credits() {
    for number in 1..=4 {
        for seed in 0..20 {
            let faults = Faults {
                completion_delay: [30; 4],
                ..Faults::default()
            };
            let settings = same_credits(number);
            let mut pair = Pair::established(seed, settings.clone(), settings, faults);
            for round in 0..20 {
                for who in Who::BOTH {
                    pair.send(who, 10 + round * 400);
                }
            }
            pair.drive();
            assert_eq!(pair.active.messages_received, 20);
            assert_eq!(pair.passive.messages_received, 20);
            pair.finish(Active);
        }
    }
}

//= SMBD-3.1.5.1-06 test
#[test]
fn a_sender_does_not_block_a_peer_that_only_grants() {
    for number in 1..=4 {
        for (sender, seed) in [(Active, 1), (Passive, 2), (Active, 3), (Passive, 4)] {
            let settings = same_credits(number);
            let faults = Faults::default();
            let mut pair = Pair::established(seed, settings.clone(), settings, faults);
            for _ in 0..50 {
                pair.send(sender, 1);
            }
            pair.drive();
            assert_eq!(pair.end(sender.peer()).messages_received, 50);
            assert_eq!(pair.end(sender.peer()).messages_sent, 0);
        }
    }
}

//= SMBD-3.1.5.9-06 test
#[test]
fn the_last_credit_needs_one_receive_beyond_the_target() {
    let settings = same_credits(3);
    let mut pair = Pair::established(7, settings.clone(), settings, Faults::default());
    for _ in 0..100 {
        pair.send(Active, 2000);
        pair.send(Passive, 2000);
    }
    pair.drive();
    for who in Who::BOTH {
        assert!(pair.end(who).most_receives <= 3 + 2);
    }
}
