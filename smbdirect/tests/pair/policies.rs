//! The choices that the text leaves, each against each other.

use std::time::Duration;

use smbdirect::{
    Settings,
    engine::{GrantPolicy, Policy, Revision},
};

use super::fabric::{Active, Faults, Pair, Passive, Who, same_credits};

fn with(number: u16, change: fn(&mut Policy)) -> Settings {
    let mut settings = same_credits(number);
    change(&mut settings.policy);
    settings
}

fn default(_: &mut Policy) {}

fn eager(policy: &mut Policy) {
    policy.grant_policy = GrantPolicy::Eager;
}

fn of_2014(policy: &mut Policy) {
    policy.revision = Revision::V2014;
}

fn linux(policy: &mut Policy) {
    policy.strict_last_credit = false;
    policy.tolerate_empty_in_sequence = true;
}

fn echo(policy: &mut Policy) {
    policy.literal_keepalive_echo = true;
}

fn work_and_fall_silent(active: Settings, passive: Settings) {
    let mut pair = Pair::established(1, active, passive, Faults::default());
    for length in [1, 5000, 0, 20_000] {
        for who in Who::BOTH {
            pair.send(who, length);
        }
    }
    pair.drive();
    pair.advance(Duration::from_secs(3600));
    let (active, passive) = (&pair.active, &pair.passive);
    let said = active.data_transfers + passive.data_transfers;
    assert!(pair.is_open() && said < 500, "{said}");
    pair.finish(Active);
}

//= SMBD-3.1.5.8-07 test
//= SMBD-3.1.5.8-07b test
#[test]
fn both_wordings_and_both_ways_to_grant_work_with_each_other() {
    for number in [1, 2, 3, 10, 255] {
        for (active, passive) in [
            (eager as fn(&mut Policy), default as fn(&mut Policy)),
            (default, eager),
            (eager, eager),
            (of_2014, default),
            (default, of_2014),
            (of_2014, of_2014),
            (of_2014, eager),
        ] {
            work_and_fall_silent(with(number, active), with(number, passive));
        }
    }
}

//= SMBD-3.1.5.1-06b test
#[test]
fn the_weaker_rule_of_linux_works_with_the_strict_one() {
    for number in [1, 2, 3, 10, 255] {
        work_and_fall_silent(with(number, linux), with(number, default));
        work_and_fall_silent(with(number, default), with(number, linux));
    }
}

#[test]
fn a_literal_echo_is_tolerated() {
    for number in [1, 2, 10] {
        for who in Who::BOTH {
            let (active, passive) = match who {
                Active => (with(number, echo), with(number, default)),
                Passive => (with(number, default), with(number, echo)),
            };
            let mut pair = Pair::established(1, active, passive, Faults::default());
            pair.keepalive(who.peer());
            pair.drive();
            assert_eq!(pair.end(who.peer()).keepalives_answered, 1);
            let asked = pair.story.iter().filter(|line| line.contains("asks"));
            assert_eq!(asked.count(), 2, "the question, and its echo");
        }
    }
}

/// Why the echo is off: the two never stop.
#[test]
fn two_literal_ends_never_fall_silent() {
    let mut pair = Pair::established(1, with(10, echo), with(10, echo), Faults::default());
    pair.keepalive(Active);
    for _ in 0..10_000 {
        pair.step();
    }
    assert!(pair.active.data_transfers > 1000);
}
