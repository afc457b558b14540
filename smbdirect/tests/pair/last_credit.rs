//! The last send credit is never spent without giving one: the deadlock that Linux had until
//! 2026, and every implementation that overlooks 3.1.5.1. `Pair` looks at each message as it
//! leaves; here are the situations in which a mistake would show.

use super::fabric::{Active, Faults, Pair, Passive, Who, same_credits};

//= SMBD-3.1.5.1-06 test
//= SMBD-3.1.5.1-06b test
//= SMBD-3.1.5.9-03 test
#[test]
fn both_sides_send_at_once_on_few_credits() {
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
fn one_side_sends_and_the_other_only_grants() {
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
fn one_receive_beyond_the_target_is_enough() {
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
