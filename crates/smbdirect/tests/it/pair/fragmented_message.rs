//! Messages of many segments arrive complete and in order, with no other message between segments.

use super::fabric::{Active, Faults, Pair, Passive, Who, same_credits};

//= SMBD-2.2-02 test
//= SMBD-2.2-05 test
//= SMBD-2.2.3-01 test
//= SMBD-3.1.5.4-04 test
//= SMBD-3.1.5.4-10 test
//= SMBD-3.1.5.8-13 test
#[test]
fn lengths_around_multiples_of_a_segment_arrive() {
    let settings = same_credits(5);
    let mut pair = Pair::established(1, settings.clone(), settings, Faults::default());
    let payload = 1364 - 24;
    let mut sent = 0;
    for segments in 1..=4_usize {
        for length in segments * payload - 2..=segments * payload + 2 {
            for who in Who::BOTH {
                pair.send(who, length);
            }
            sent += 1;
        }
    }
    pair.drive();
    assert_eq!(pair.active.messages_received, sent);
    assert_eq!(pair.passive.messages_received, sent);
}

//= SMBD-3.1.5.8-05 test
//= SMBD-3.1.4.2-02 test
//= SMBD-3.1.5.8-12 test
#[test]
fn the_longest_message_arrives_with_the_fewest_credits() {
    for number in [1, 2, 10] {
        let settings = same_credits(number);
        let mut pair = Pair::established(2, settings.clone(), settings, Faults::default());
        pair.send(Active, 1 << 20);
        pair.send(Passive, 1 << 20);
        pair.drive();
        assert_eq!(pair.active.messages_received, 1);
        assert_eq!(pair.passive.messages_received, 1);
    }
}

/// Linux before 2026 corrupted the message in this case.
//= SMBD-3.1.5.4-11 test
//= SMBD-3.1.5.9-09 test
#[test]
fn grants_and_keepalives_due_within_a_message_are_carried_by_its_segments() {
    for seed in 0..30 {
        let settings = same_credits(4);
        let faults = Faults {
            completion_delay: [40; 4],
            ..Faults::default()
        };
        let mut pair = Pair::established(seed, settings.clone(), settings, faults);
        for who in Who::BOTH {
            pair.send(who, 60_000);
        }
        for step in 0..300 {
            pair.step();
            let who = if step % 3 == 0 { Active } else { Passive };
            match step % 7 {
                0 => pair.keepalive(who),
                1 => pair.prompt(who),
                _ => {}
            }
        }
        pair.drive();
        assert_eq!(pair.active.messages_received, 1);
        assert_eq!(pair.passive.messages_received, 1);
        assert!(pair.active.keepalives_answered > 0);
    }
}
