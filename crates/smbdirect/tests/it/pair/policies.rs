//! The policies of 3.1.5 that the specification leaves open, each combined with each other.

use std::time::Duration;

use smbdirect::{
    Settings,
    engine::{Policy, Revision},
};

use super::fabric::{Active, Faults, Pair, Who, same_credits};

fn with(number: u16, change: fn(&mut Policy)) -> Settings {
    let mut settings = same_credits(number);
    change(&mut settings.policy);
    settings
}

fn default(_: &mut Policy) {}

fn of_2014(policy: &mut Policy) {
    policy.revision = Revision::V2014;
}

fn linux(policy: &mut Policy) {
    policy.strict_last_credit = false;
    policy.tolerate_empty_in_sequence = true;
}

fn assert_delivery_and_silence(active: Settings, passive: Settings) {
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
fn both_wordings_interoperate() {
    for number in [1, 2, 3, 10, 255] {
        for (active, passive) in [
            (default as fn(&mut Policy), of_2014 as fn(&mut Policy)),
            (of_2014, default),
            (of_2014, of_2014),
        ] {
            assert_delivery_and_silence(with(number, active), with(number, passive));
        }
    }
}

//= SMBD-3.1.5.1-06b test
#[test]
fn the_lenient_rule_of_linux_interoperates_with_the_strict_one() {
    for number in [1, 2, 3, 10, 255] {
        assert_delivery_and_silence(with(number, linux), with(number, default));
        assert_delivery_and_silence(with(number, default), with(number, linux));
    }
}
