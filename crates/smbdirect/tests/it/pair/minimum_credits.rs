//! Any number of credits works, down to one in each direction: floods of messages arrive, and the
//! connection is idle afterwards.

use std::time::Duration;

use super::fabric::{Faults, Pair, Who, credits};

const NUMBERS: [u16; 5] = [1, 2, 3, 10, 255];

fn flood(active: (u16, u16), passive: (u16, u16), senders: &[Who]) {
    let faults = Faults {
        completion_delay: [20; 4],
        ..Faults::default()
    };
    let (active, passive) = (credits(active.0, active.1), credits(passive.0, passive.1));
    let mut pair = Pair::established(3, active, passive, faults);
    for length in [1, 5000, 0, 20_000, 1364, 1340, 1341] {
        for &who in senders {
            pair.send(who, length);
        }
    }
    pair.drive();
    let before = pair.active.data_transfers + pair.passive.data_transfers;
    pair.advance(Duration::from_secs(60));
    let after = pair.active.data_transfers + pair.passive.data_transfers;
    assert_eq!(before, after, "they are to fall silent");
    pair.finish(senders[0]);
}

//= SMBD-3.1.5.9-03 test
//= SMBD-3.1.5.9-04 test
#[test]
fn every_combination_of_targets_delivers_floods_in_both_directions() {
    for active in NUMBERS {
        for passive in NUMBERS {
            flood((active, active), (passive, passive), &Who::BOTH);
            for who in Who::BOTH {
                flood((active, active), (passive, passive), &[who]);
            }
        }
    }
}

//= SMBD-3.1.5.9-06 test
#[test]
fn targets_may_differ_from_the_granted_credits() {
    for asked in NUMBERS {
        for given in NUMBERS {
            flood((asked, given), (given, asked), &Who::BOTH);
            flood((asked, given), (asked, given), &Who::BOTH);
            flood((1, given), (asked, 1), &Who::BOTH);
        }
    }
}
