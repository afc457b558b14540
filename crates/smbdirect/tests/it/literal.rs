//! The text of [MS-SMBD] executed literally, in both its wordings, to show why the engine departs
//! from it: each test shows the fault of the literal text without one departure, and the behaviour
//! of the engine in the same situation.
//!
//! `literal/text.rs` is the transcription, with a switch for each departure. Each test turns off
//! one departure and keeps the others.

use std::time::{Duration, Instant};

use ends::{End, Pipe, Real, Who};
use smbdirect::{
    Revision, Settings,
    wire::{DataTransfer, Flags, NegotiateRequest, NegotiateResponse, Status},
};
use text::{Departures, Literal, Wording};

mod ends;
mod others;
mod text;

/// Number of messages after which an exchange counts as endless.
const ENDLESS_MESSAGES: usize = 10_000;
const HOUR: Duration = Duration::from_secs(3600);

fn settings(credits: u16) -> Settings {
    let mut changed = Settings::windows();
    changed.send_credit_target = credits;
    changed.receive_credit_max = credits;
    changed
}

fn literal(who: Who, wording: Wording, departures: Departures, credits: u16) -> Box<dyn End> {
    Box::new(Literal::new(who, wording, departures, settings(credits)))
}

/// Returns an end with the engine, by the same wording.
fn real(who: Who, wording: Wording, credits: u16, now: Instant) -> Box<dyn End> {
    let revision = match wording {
        Wording::Current => Revision::Current,
        Wording::V2014 => Revision::V2014,
    };
    let mut settings = settings(credits);
    settings.policy.revision = revision;
    Box::new(Real::new(who, settings, now))
}

/// Returns two ends of the literal text.
fn two(wording: Wording, departures: Departures, credits: u16) -> Pipe {
    let [active, passive] = Who::BOTH.map(|who| literal(who, wording, departures, credits));
    Pipe::new(active, passive, Instant::now())
}

/// Returns two ends of the engine.
fn two_real(wording: Wording, credits: u16) -> Pipe {
    let now = Instant::now();
    let [active, passive] = Who::BOTH.map(|who| real(who, wording, credits, now));
    Pipe::new(active, passive, now)
}

/// One negotiated end; the test acts as its peer.
struct Alone {
    end: Box<dyn End>,
    now: Instant,
    credits: u16,
}

impl Alone {
    /// Negotiates. The peer requests as many credits as the end does, and grants `granted`.
    fn new(who: Who, mut end: Box<dyn End>, now: Instant, credits: u16, granted: u16) -> Self {
        let mut message = Vec::new();
        match who {
            Who::Passive => NegotiateRequest {
                min_version: 0x0100,
                max_version: 0x0100,
                credits_requested: credits,
                preferred_send_size: 1364,
                max_receive_size: 8192,
                max_fragmented_size: 1 << 20,
            }
            .encode(&mut message),
            Who::Active => {
                assert!(end.said().is_some(), "the Negotiate Request");
                NegotiateResponse {
                    min_version: 0x0100,
                    max_version: 0x0100,
                    negotiated_version: 0x0100,
                    credits_requested: credits,
                    credits_granted: granted,
                    status: Status::SUCCESS,
                    max_read_write_size: 1 << 20,
                    preferred_send_size: 1364,
                    max_receive_size: 8192,
                    max_fragmented_size: 1 << 20,
                }
                .encode(&mut message);
            }
        }
        end.receive(now, &message);
        if who == Who::Passive {
            assert!(end.said().is_some(), "the Negotiate Response");
        }
        Self { end, now, credits }
    }

    /// Delivers a message of the peer; `(payload, remaining)` is a segment.
    fn hear(&mut self, granted: u16, flags: Flags, (payload, remaining): (usize, u32)) {
        let header = DataTransfer {
            remaining_data_length: remaining,
            data_offset: if payload > 0 { 24 } else { 0 },
            data_length: payload as u32,
            ..DataTransfer::empty(self.credits, granted, flags)
        };
        let mut bytes = Vec::new();
        header.encode(&mut bytes);
        bytes.resize(bytes.len() + payload, 0x5a);
        self.end.receive(self.now, &bytes);
    }

    /// Returns the headers of the messages that the end has sent since the last call.
    fn said(&mut self) -> Vec<DataTransfer> {
        std::iter::from_fn(|| self.end.said())
            .map(|message| DataTransfer::decode(&message).expect("what it says is legal"))
            .collect()
    }
}

fn is_empty(message: &DataTransfer) -> bool {
    message.data_length == 0
}

// 3.1.5.8 and 3.1.5.9: an answer to each message.

#[test]
fn two_literal_current_ends_never_fall_silent() {
    let answers_all = Departures {
        grants_in_batches: false,
        ..Departures::ALL
    };
    for credits in [1, 2, 3, 10, 255] {
        for departures in [Departures::TO_START, answers_all] {
            let mut pipe = two(Wording::Current, departures, credits);
            pipe.send(Who::Active, b"once");
            assert_eq!(
                pipe.run(ENDLESS_MESSAGES),
                ENDLESS_MESSAGES,
                "{credits} {departures:?}"
            );
        }
        let mut ours = two_real(Wording::Current, credits);
        ours.send(Who::Active, b"once");
        assert!((1..=4).contains(&ours.run(ENDLESS_MESSAGES)), "{credits}");
    }
    // This departure alone is enough.
    for credits in [10, 255] {
        let mut pipe = two(Wording::Current, Departures::ALL, credits);
        pipe.send(Who::Active, b"once");
        assert_eq!(pipe.run(ENDLESS_MESSAGES), 1);
    }
}

#[test]
fn two_literal_2014_ends_never_fall_silent() {
    let answers_all = Departures {
        answers_only_to_grant: false,
        ..Departures::ALL
    };
    for credits in [1, 2, 3, 10, 255] {
        for departures in [Departures::TO_START, answers_all] {
            let mut pipe = two(Wording::V2014, departures, credits);
            pipe.send(Who::Active, b"once");
            assert_eq!(
                pipe.run(ENDLESS_MESSAGES),
                ENDLESS_MESSAGES,
                "{credits} {departures:?}"
            );
        }
        let mut ours = two_real(Wording::V2014, credits);
        ours.send(Who::Active, b"once");
        assert!((1..=4).contains(&ours.run(ENDLESS_MESSAGES)), "{credits}");
    }
    for credits in [10, 255] {
        let mut pipe = two(Wording::V2014, Departures::ALL, credits);
        pipe.send(Who::Active, b"once");
        assert_eq!(pipe.run(ENDLESS_MESSAGES), 1);
    }
}

// 3.1.5.8: the answer to a keepalive is a keepalive.

#[test]
fn a_literal_keepalive_echoes_for_ever() {
    let echoes = Departures {
        answers_without_asking: false,
        ..Departures::ALL
    };
    for wording in Wording::BOTH {
        let mut pipe = two(wording, echoes, 10);
        pipe.send(Who::Active, b"first");
        pipe.run(ENDLESS_MESSAGES);
        pipe.ask(Who::Active);
        assert_eq!(pipe.run(ENDLESS_MESSAGES), ENDLESS_MESSAGES);

        let mut pipe = two(wording, Departures::ALL, 10);
        pipe.send(Who::Active, b"first");
        pipe.run(ENDLESS_MESSAGES);
        pipe.ask(Who::Active);
        assert_eq!(pipe.run(ENDLESS_MESSAGES), 2, "a question and an answer");
    }
    for wording in Wording::BOTH {
        for who in Who::BOTH {
            let mut ours = two_real(wording, 10);
            ours.run(ENDLESS_MESSAGES);
            ours.ask(who);
            assert_eq!(ours.run(ENDLESS_MESSAGES), 2);
        }
    }
}

// 3.1.5.1: SendImmediate.

/// Returns an acceptor without send credits that has received a keepalive and has a message to
/// send. The empty answer is first in the queue and blocks it.
fn blocked(end: Box<dyn End>, now: Instant) -> Alone {
    let mut alone = Alone::new(Who::Passive, end, now, 255, 0);
    alone.hear(0, Flags::RESPONSE_REQUESTED, (0, 0));
    alone.end.send(now, b"message");
    assert!(alone.said().is_empty());
    alone
}

#[test]
fn literal_send_immediate_never_drains_in_2014() {
    let now = Instant::now();
    // Another departure concerns the rule that sets SendImmediate here.
    let answers_all = Departures {
        answers_only_to_grant: false,
        ..Departures::ALL
    };
    let by_the_call = Departures {
        queue_satisfies_send_immediate: false,
        ..answers_all
    };
    for (departures, drains) in [
        (Departures::NONE, false),
        (by_the_call, false),
        (answers_all, true),
    ] {
        let end = literal(Who::Passive, Wording::V2014, departures, 255);
        let mut alone = blocked(end, now);
        let mut drained = false;
        // The peer grants one credit at a time, and each allows one message.
        for round in 0..200 {
            alone.hear(1, Flags::empty(), (0, 0));
            assert_eq!(alone.said().len(), 1, "{departures:?} {round}");
            drained |= alone.end.queued() == 0;
        }
        assert_eq!(drained, drains, "{departures:?}");
    }
    let mut ours = blocked(real(Who::Passive, Wording::V2014, 255, now), now);
    let mut said = Vec::new();
    for _ in 0..200 {
        ours.hear(1, Flags::empty(), (0, 0));
        said.extend(ours.said());
    }
    // The message is the answer; the other messages grant credits to the peer in batches.
    let idle = |message: &&DataTransfer| is_empty(message) && message.credits_granted == 0;
    assert_eq!(said.iter().filter(idle).count(), 0);
    assert!(
        (2..=4).contains(&said.len()) && ours.end.queued() == 0,
        "{}",
        said.len()
    );
}

#[test]
fn literal_send_immediate_multiplies_empties_today() {
    let now = Instant::now();
    let by_the_call = Departures {
        queue_satisfies_send_immediate: false,
        ..Departures::ALL
    };
    for (departures, answers) in [
        (Departures::NONE, 22),
        (by_the_call, 21),
        (Departures::ALL, 1),
    ] {
        let end = literal(Who::Passive, Wording::Current, departures, 255);
        let mut alone = Alone::new(Who::Passive, end, now, 255, 0);
        // The end has no credit for an answer, receives several keepalives, and then gets credits.
        for _ in 0..19 {
            alone.hear(0, Flags::RESPONSE_REQUESTED, (0, 0));
        }
        assert!(alone.said().is_empty());
        alone.hear(200, Flags::RESPONSE_REQUESTED, (0, 0));
        assert_eq!(alone.said().len(), answers, "{departures:?}");
    }
    let mut ours = Alone::new(
        Who::Passive,
        real(Who::Passive, Wording::Current, 255, now),
        now,
        255,
        0,
    );
    for _ in 0..19 {
        ours.hear(0, Flags::RESPONSE_REQUESTED, (0, 0));
    }
    assert!(ours.said().is_empty());
    ours.hear(200, Flags::RESPONSE_REQUESTED, (0, 0));
    assert_eq!(ours.said().len(), 1);
}

// 3.1.5.7 and 3.1.5.9: the first credits and the last.

#[test]
fn a_literal_initiator_never_grants_its_first_credits() {
    let drops_them = Departures {
        grants_first_credits: false,
        ..Departures::ALL
    };
    for wording in Wording::BOTH {
        for departures in [Departures::NONE, drops_them] {
            let mut pipe = two(wording, departures, 10);
            pipe.send(Who::Active, b"request");
            pipe.send(Who::Passive, b"response");
            pipe.run(ENDLESS_MESSAGES);
            assert_eq!(pipe.passive.delivered(), [b"request"]);
            pipe.wait(HOUR, ENDLESS_MESSAGES);
            assert!(pipe.active.delivered().is_empty(), "{departures:?}");
            assert!(!pipe.is_open(), "nobody could answer the keepalive");
        }
        let mut pipe = two(wording, Departures::ALL, 10);
        pipe.send(Who::Active, b"request");
        pipe.send(Who::Passive, b"response");
        pipe.run(ENDLESS_MESSAGES);
        assert_eq!(pipe.active.delivered(), [b"response"]);
    }
    for wording in Wording::BOTH {
        let mut ours = two_real(wording, 10);
        ours.send(Who::Active, b"request");
        ours.send(Who::Passive, b"response");
        ours.run(ENDLESS_MESSAGES);
        assert_eq!(ours.passive.delivered(), [b"request"]);
        assert_eq!(ours.active.delivered(), [b"response"]);
    }
}

/// The peer holds all credits it requested, and grants new ones only when its own are used up, as
/// an end does that grants in batches. Each end waits for the other.
#[test]
fn a_literal_last_credit_is_kept_for_ever() {
    let now = Instant::now();
    let should_first = Departures {
        must_before_should: false,
        ..Departures::ALL
    };
    let sends_three = |end| {
        let mut alone = Alone::new(Who::Active, end, now, 3, 3);
        for _ in 0..3 {
            alone.end.send(now, b"message");
        }
        (alone.said(), alone.end.queued())
    };
    for wording in Wording::BOTH {
        for departures in [Departures::TO_START, should_first] {
            let end = literal(Who::Active, wording, departures, 3);
            let (said, queued) = sends_three(end);
            assert_eq!((said.len(), queued), (2, 1), "{departures:?}");
        }
        let end = literal(Who::Active, wording, Departures::ALL, 3);
        let (said, queued) = sends_three(end);
        assert_eq!((said.len(), queued), (3, 0));
        assert_eq!(said[2].credits_granted, 1, "one beyond the target");
    }
    for wording in Wording::BOTH {
        let (said, queued) = sends_three(real(Who::Active, wording, 3, now));
        assert_eq!((said.len(), queued), (3, 0));
        assert_eq!(said[2].credits_granted, 1);
    }
}

// 3.1.5.8: reassembly.

#[test]
fn a_literal_receiver_delivers_empty_messages() {
    let now = Instant::now();
    let passes_on = Departures {
        keeps_empty_messages: false,
        ..Departures::ALL
    };
    for wording in Wording::BOTH {
        for (departures, delivered) in [(Departures::NONE, 5), (passes_on, 5), (Departures::ALL, 0)]
        {
            let end = literal(Who::Passive, wording, departures, 10);
            let mut alone = Alone::new(Who::Passive, end, now, 10, 0);
            for _ in 0..5 {
                alone.hear(1, Flags::empty(), (0, 0));
            }
            assert_eq!(alone.end.delivered().len(), delivered, "{departures:?}");
        }
    }
    for wording in Wording::BOTH {
        let end = real(Who::Passive, wording, 10, now);
        let mut ours = Alone::new(Who::Passive, end, now, 10, 0);
        for _ in 0..5 {
            ours.hear(1, Flags::empty(), (0, 0));
        }
        assert!(ours.end.delivered().is_empty() && ours.end.over().is_none());
        ours.hear(1, Flags::empty(), (7, 0));
        assert_eq!(ours.end.delivered(), [[0x5a; 7]]);
    }
}

/// A segment brings ten bytes while five are missing. The literal counter is wrong from then on,
/// and the buffer grows above its limit.
#[test]
fn the_literal_subtraction_wraps() {
    let now = Instant::now();
    let limit = settings(255).max_fragmented_receive_size as usize;
    let does_not_check = Departures {
        checks_the_sum: false,
        ..Departures::ALL
    };
    let overruns = |end| {
        let mut alone = Alone::new(Who::Passive, end, now, 255, 0);
        for sent in 0..2 * limit / 1000 {
            alone.hear(1, Flags::empty(), (1000, 5));
            alone.said();
            if alone.end.over().is_some() {
                return (sent + 1, alone);
            }
        }
        (2 * limit / 1000, alone)
    };
    for wording in Wording::BOTH {
        for departures in [Departures::TO_START, does_not_check] {
            let end = literal(Who::Passive, wording, departures, 255);
            let (segments, alone) = overruns(end);
            assert_eq!(segments, 2 * limit / 1000);
            assert!(alone.end.partial() > limit, "{}", alone.end.partial());
        }
        let end = literal(Who::Passive, wording, Departures::ALL, 255);
        assert_eq!(overruns(end).0, 2);
    }
    for wording in Wording::BOTH {
        let (segments, ours) = overruns(real(Who::Passive, wording, 255, now));
        assert_eq!(segments, 2, "{:?}", ours.end.over());
        assert!(ours.end.partial() <= 1000);
    }
}

/// A segment brings exactly the missing bytes and announces more. The literal counter is zero, the
/// next segment counts as the first of a message, and a message above the limit is delivered.
#[test]
fn a_literal_count_at_zero_begins_anew_in_the_middle() {
    let now = Instant::now();
    let limit = settings(255).max_fragmented_receive_size as usize;
    let pieces = 2 * limit / 1000;
    let does_not_check = Departures {
        checks_the_sum: false,
        ..Departures::ALL
    };
    let overruns = |end| {
        let mut alone = Alone::new(Who::Passive, end, now, 255, 0);
        for _ in 0..pieces / 2 {
            for _ in 0..2 {
                if alone.end.over().is_none() {
                    alone.hear(1, Flags::empty(), (1000, 1000));
                    alone.said();
                }
            }
        }
        if alone.end.over().is_none() {
            alone.hear(1, Flags::empty(), (1000, 0));
        }
        alone
    };
    for wording in Wording::BOTH {
        for departures in [Departures::TO_START, does_not_check] {
            let alone = overruns(literal(Who::Passive, wording, departures, 255));
            let longest = alone.end.delivered().iter().map(Vec::len).max();
            assert!(longest > Some(limit), "{longest:?}");
        }
    }
    for wording in Wording::BOTH {
        let ours = overruns(real(Who::Passive, wording, 255, now));
        assert!(ours.end.delivered().is_empty() && ours.end.over().is_some());
    }
}

// The engine and one end of the literal text.

/// Returns each wording of the engine with each wording of the peer.
fn wordings() -> impl Iterator<Item = [Wording; 2]> {
    let with = |ours| Wording::BOTH.map(|theirs| [ours, theirs]);
    Wording::BOTH.into_iter().flat_map(with)
}

/// Returns an end that runs the engine, in the role `who`, and an end that runs the literal text. Each has the
/// wording of its argument.
fn ours_and_a_literal_one(
    who: Who,
    [our_wording, wording]: [Wording; 2],
    departures: Departures,
    credits: [u16; 2],
) -> Pipe {
    let now = Instant::now();
    let [ours, theirs] = credits;
    match who {
        Who::Active => {
            let peer = literal(Who::Passive, wording, departures, theirs);
            Pipe::new(real(who, our_wording, ours, now), peer, now)
        }
        Who::Passive => {
            let peer = literal(Who::Active, wording, departures, theirs);
            Pipe::new(peer, real(who, our_wording, ours, now), now)
        }
    }
}

/// With a literal peer that grants its first credits, in either wording and role, with or without
/// echoed keepalives, every message arrives, and two idle ends exchange only keepalives.
#[test]
fn our_engine_and_a_literal_one_talk_and_fall_silent() {
    let no_echo = Departures {
        answers_without_asking: true,
        ..Departures::TO_START
    };
    let lengths = [1, 1340, 1341, 100_000, 7];
    for who in Who::BOTH {
        for wordings in wordings() {
            for departures in [Departures::TO_START, no_echo] {
                for credits in [[10, 10], [255, 255], [255, 10], [10, 255]] {
                    let what = format!("{who:?} {wordings:?} {departures:?} {credits:?}");
                    let mut pipe = ours_and_a_literal_one(who, wordings, departures, credits);
                    for (round, length) in lengths.into_iter().enumerate() {
                        for end in Who::BOTH {
                            pipe.send(end, &vec![round as u8; length]);
                        }
                    }
                    assert!(pipe.run(ENDLESS_MESSAGES) < ENDLESS_MESSAGES, "{what}");
                    for end in Who::BOTH {
                        let delivered = pipe.end(end).delivered().iter();
                        // The literal text delivers empty messages too.
                        let seen: Vec<_> = delivered.filter(|seen| !seen.is_empty()).collect();
                        assert_eq!(seen.len(), lengths.len(), "{end:?} {what}");
                        for (round, (seen, length)) in seen.iter().zip(lengths).enumerate() {
                            assert_eq!(***seen, vec![round as u8; length], "{what}");
                        }
                    }
                    let hours = 10;
                    let keepalives = hours * 3600 / 120;
                    let said = pipe.wait(hours as u32 * HOUR, ENDLESS_MESSAGES);
                    assert!(pipe.is_open(), "{what}");
                    assert!(said <= 10 * keepalives, "{said} messages: {what}");
                }
            }
        }
    }
}

/// A literal peer answers a keepalive with a keepalive. The engine answers that one without a
/// request, so the exchange ends.
#[test]
fn our_engine_ends_the_echo_of_a_literal_one() {
    let echoes = Departures {
        answers_without_asking: false,
        ..Departures::ALL
    };
    for who in Who::BOTH {
        for wordings in wordings() {
            for credits in [2, 3, 10] {
                let what = format!("{who:?} {wordings:?} {credits}");
                let mut pipe = ours_and_a_literal_one(who, wordings, echoes, [credits; 2]);
                pipe.send(Who::Active, b"first");
                pipe.run(ENDLESS_MESSAGES);
                pipe.ask(who);
                let carried = pipe.run(ENDLESS_MESSAGES);
                // With few credits, one more message returns credits.
                assert!((3..=4).contains(&carried), "{carried} messages: {what}");
                assert!(pipe.is_open(), "{what}");
            }
        }
    }
}

/// Every message arrives, even with a single credit. A peer by the wording of 2014 with one or two
/// credits answers every answer, which the other end cannot prevent; all other pairs become silent.
#[test]
fn our_engine_and_a_literal_one_talk_on_few_credits() {
    let must_first = Departures {
        must_before_should: true,
        ..Departures::TO_START
    };
    for who in Who::BOTH {
        for wordings in wordings() {
            for departures in [Departures::TO_START, must_first] {
                for credits in (1..=5).flat_map(|ours| (1..=5).map(move |theirs| [ours, theirs])) {
                    let what = format!("{who:?} {wordings:?} {departures:?} {credits:?}");
                    let mut pipe = ours_and_a_literal_one(who, wordings, departures, credits);
                    for number in 1..=20 {
                        for end in Who::BOTH {
                            pipe.send(end, &[number]);
                        }
                    }
                    let carried = pipe.run(ENDLESS_MESSAGES);
                    for end in Who::BOTH {
                        let delivered = pipe.end(end).delivered().concat();
                        assert!(delivered.into_iter().eq(1..=20), "{end:?} {what}");
                    }
                    if wordings[1] == Wording::Current || (credits[0] > 2 && credits[1] > 2) {
                        assert!(carried < 200, "{carried} messages: {what}");
                    }
                }
            }
        }
    }
}

/// A literal initiator never grants a credit, so its acceptor can send nothing. The acceptor of the
/// engine ends the connection after the same time as Windows, instead of waiting for ever.
#[test]
fn our_acceptor_gives_a_literal_initiator_up() {
    for wordings in wordings() {
        let mut pipe = ours_and_a_literal_one(Who::Passive, wordings, Departures::NONE, [10, 10]);
        pipe.send(Who::Active, b"request");
        pipe.send(Who::Passive, b"response");
        pipe.wait(Duration::from_secs(4), ENDLESS_MESSAGES);
        assert_eq!(pipe.passive.delivered(), [b"request"]);
        assert!(pipe.is_open());
        pipe.wait(Duration::from_secs(2), ENDLESS_MESSAGES);
        let over = pipe.passive.over().expect("it gave up");
        assert!(over.contains("Send Credit Grant Timer"), "{over}");
    }
}
