//! The shortest runs after which a pair with other rules is stuck, as `proofs/others.py` finds them, with the engine.
//!
//! A run names the two ends, their credits, and what happens: an end sends a message, hears the next message of its peer,
//! or its application pauses. A is the initiator, and P the acceptor. Then both applications receive, and everything
//! arrives.

use std::time::{Duration, Instant};

use smbdirect::{Revision, wire::Flags};

use super::{
    Alone, ENDLESS_MESSAGES, HOUR,
    ends::{End, Pipe, Real, Who},
    literal, real, settings,
    text::{Departures, Wording},
};

const WITH_THE_TEXT: &str = "ours, 2 credits and text, SHOULD first, 2 credits: P sends, P sends";
const WITH_THE_TEXT_OF_2014: &str =
    "ours, 2 credits and text of 2014, SHOULD first, 2 credits: P sends, P sends";
const NOT_STRICT: &str = "ours, not strict, 2 credits and ours, not strict (2014), 2 credits: A sends, A pauses, A sends, A sends, P pauses, P hears, P sends";
const OF_LINUX: &str = "Linux 7.2, 2 credits and Linux 7.2, 2 credits: A sends, A sends, P sends, P sends, P pauses, P hears";
const TOO_GENEROUS: &str = "257 messages with 255 credits each";

/// Returns the ends after a run, and the number of messages that each has sent.
fn replay(run: &str, mut pipe: Pipe) -> (Pipe, [usize; 2]) {
    let mut sent = [0; 2];
    let (_, steps) = run.rsplit_once(": ").expect("a run has steps");
    for step in steps.split(", ") {
        let (name, does) = step.split_once(' ').expect("an end does something");
        let (who, count) = match name {
            "A" => (Who::Active, &mut sent[0]),
            _ => (Who::Passive, &mut sent[1]),
        };
        match does {
            "sends" => {
                *count += 1;
                pipe.send(who, &[1]);
            }
            "hears" => pipe.hear(who),
            "pauses" => pipe.pause(who, true),
            other => panic!("{other} is no step"),
        }
    }
    for who in Who::BOTH {
        if pipe.end(who).over().is_none() && run.contains("pauses") {
            pipe.pause(who, false);
        }
    }
    pipe.run(ENDLESS_MESSAGES);
    (pipe, sent)
}

fn not_strict(wordings: [Wording; 2]) -> Pipe {
    let now = Instant::now();
    let [active, passive] = [0, 1].map(|end| -> Box<dyn End> {
        let mut settings = settings(2);
        settings.policy.strict_last_credit = false;
        settings.policy.revision = match wordings[end] {
            Wording::Current => Revision::Current,
            Wording::V2014 => Revision::V2014,
        };
        Box::new(Real::new(Who::BOTH[end], settings, now))
    });
    Pipe::new(active, passive, now)
}

fn all_have_arrived(pipe: &Pipe, [active, passive]: [usize; 2]) -> bool {
    let delivered = |end: &dyn End| end.delivered().concat().len();
    delivered(&*pipe.passive) == active && delivered(&*pipe.active) == passive
}

/// The peer keeps its last send credit for ever, because it has granted all that the engine asked for. The engine owes it
/// only one credit, for which alone it sends no empty message. Its keepalive brings the credit.
#[test]
fn a_literal_peer_waits_for_our_keepalive() {
    for (run, wording) in [
        (WITH_THE_TEXT, Wording::Current),
        (WITH_THE_TEXT_OF_2014, Wording::V2014),
    ] {
        let now = Instant::now();
        let peer = literal(Who::Passive, wording, Departures::TO_START, 2);
        let ours = real(Who::Active, Wording::Current, 2, now);
        let (mut pipe, sent) = replay(run, Pipe::new(ours, peer, now));
        assert_eq!(pipe.passive.queued(), 1, "{wording:?}");
        pipe.wait(Duration::from_secs(100), ENDLESS_MESSAGES);
        assert_eq!(pipe.passive.queued(), 1, "nothing but a keepalive helps");
        pipe.wait(HOUR, ENDLESS_MESSAGES);
        assert!(pipe.is_open() && all_have_arrived(&pipe, sent));
    }
}

/// With the MUST of 3.1.5.9 first, the peer grants one beyond the target, and the run goes on.
#[test]
fn a_peer_with_the_must_first_waits_for_nothing() {
    let must_first = Departures {
        must_before_should: true,
        ..Departures::TO_START
    };
    for wording in Wording::BOTH {
        let now = Instant::now();
        let peer = literal(Who::Passive, wording, must_first, 2);
        let (pipe, sent) = replay(
            WITH_THE_TEXT,
            Pipe::new(real(Who::Active, wording, 2, now), peer, now),
        );
        assert!(all_have_arrived(&pipe, sent), "{wording:?}");
    }
}

/// Each end spends its last send credit without a grant, because the other holds credits, which the other then spends in
/// the same way. The Send Credit Grant Timer ends the connection.
#[test]
fn two_ends_that_are_not_strict_starve_each_other() {
    let (mut pipe, sent) = replay(NOT_STRICT, not_strict([Wording::Current, Wording::V2014]));
    assert!(pipe.is_open() && !all_have_arrived(&pipe, sent));
    pipe.wait(Duration::from_secs(4), ENDLESS_MESSAGES);
    assert!(pipe.is_open() && !all_have_arrived(&pipe, sent));
    pipe.wait(Duration::from_secs(2), ENDLESS_MESSAGES);
    let over = [&pipe.active, &pipe.passive].map(|end| end.over());
    let given_up = over.into_iter().flatten().next().expect("an end gave up");
    assert!(given_up.contains("Send Credit Grant Timer"), "{given_up}");
}

/// The engine without the setting posts one receive more for the last send credit, which Linux does not.
#[test]
fn the_run_that_starves_linux_does_not_starve_the_engine() {
    for wording in Wording::BOTH {
        let (pipe, sent) = replay(OF_LINUX, not_strict([wording; 2]));
        assert!(all_have_arrived(&pipe, sent), "{wording:?}");
    }
    for wording in Wording::BOTH {
        for run in [OF_LINUX, NOT_STRICT] {
            let now = Instant::now();
            let [active, passive] = Who::BOTH.map(|who| real(who, wording, 2, now));
            let (pipe, sent) = replay(run, Pipe::new(active, passive, now));
            assert!(all_have_arrived(&pipe, sent), "{wording:?} {run}");
        }
    }
}

/// The credits of the engine do not exceed 16 bits: it ends the connection.
#[test]
fn a_peer_that_always_grants_255_is_refused_at_last() {
    let (number, _) = TOO_GENEROUS.split_once(' ').expect("a number comes first");
    let number: usize = number.parse().expect("it is a number");
    let now = Instant::now();
    let mut ours = Alone::new(
        Who::Active,
        real(Who::Active, Wording::Current, 255, now),
        now,
        255,
        255,
    );
    let due = ours.end.timeout().expect("the first grant waits");
    ours.end.handle_timeout(due);
    for heard in 1..=number {
        assert_eq!(ours.end.over(), None, "after {heard}");
        ours.hear(255, Flags::empty(), (1, 0));
    }
    let over = ours.end.over().expect("the credits do not fit");
    assert!(over.contains("credits"), "{over}");
}
