//! A keepalive gets one answer, and the answer is not a keepalive.

use super::fabric::{Active, Faults, Pair, Passive, Who, same_credits};

fn pair(number: u16) -> Pair {
    let settings = same_credits(number);
    let mut pair = Pair::established(1, settings.clone(), settings, Faults::default());
    pair.story.clear();
    pair
}

//= SMBD-3.1.5.8-09 test
//= SMBD-3.1.5.5-02 test
#[test]
fn a_keepalive_is_followed_by_one_answer() {
    for who in Who::BOTH {
        let mut pair = pair(10);
        pair.keepalive(who);
        pair.drive();
        assert_eq!(pair.end(who).keepalives_answered, 1);
        let peer = who.peer();
        let expected = [format!("{who:?} asks 0"), format!("{peer:?} says 0")];
        assert_eq!(pair.story, expected.map(|line| line.to_lowercase()));
    }
}

#[test]
fn both_ends_can_send_keepalives_concurrently() {
    for number in [1, 2, 10] {
        let mut pair = pair(number);
        pair.keepalive(Active);
        pair.keepalive(Passive);
        pair.drive();
        assert!(pair.active.keepalives_answered >= 1);
        assert!(pair.passive.keepalives_answered >= 1);
        assert!(pair.story.len() <= 6, "{:?}", pair.story);
    }
}

//= SMBD-3.1.5.1-09 test
#[test]
fn messages_include_the_keepalive_and_its_answer() {
    let mut pair = pair(10);
    pair.keepalive(Active);
    pair.send(Active, 7);
    pair.step();
    pair.send(Passive, 9);
    pair.drive();
    assert_eq!(pair.active.keepalives_answered, 1);
    assert_eq!(pair.story[0], "active asks 7");
}

#[test]
fn a_keepalive_under_load_is_answered() {
    for seed in 0..20 {
        let settings = same_credits(2);
        let faults = Faults {
            completion_delay: [30; 4],
            lazy: true,
            ..Faults::default()
        };
        let mut pair = Pair::new(seed, settings.clone(), settings, faults);
        while !pair.is_open() {
            pair.step();
        }
        for round in 0..10 {
            pair.keepalive(Active);
            pair.keepalive(Passive);
            pair.send(Active, round * 300);
            for _ in 0..round {
                pair.step();
            }
        }
        pair.drive();
        assert!(pair.active.keepalives_answered > 0 && pair.passive.keepalives_answered > 0);
    }
}
