//! Bugs of the protocol, tested with two engines on the simulated fabric, which checks every sent
//! message and both ends after every step, or with one engine and hand-made messages.

use std::time::{Duration, Instant};

use bytes::Bytes;
use smbdirect::{
    Access, Config, ConnectionError, Settings, Violation,
    engine::{Connection, Event, Expired},
    rdma::work::{Completion, Limits, Room, WorkRequest},
    wire::{DataTransfer, Flags, NegotiateRequest, NegotiateResponse},
};

use crate::fabric::{Active, Faults, Pair, Passive, Who, content, same_credits};

const HOUR: Duration = Duration::from_secs(3600);
const SECOND: Duration = Duration::from_secs(1);

fn pair(seed: u64, settings: Settings, faults: Faults) -> Pair {
    Pair::established(seed, settings.clone(), settings, faults)
}

fn said(pair: &Pair) -> usize {
    pair.active.data_transfers + pair.passive.data_transfers
}

/// The last send credit was spent on a message without a grant, and neither end could send any
/// more. Expected: every message arrives; the fabric detects such a message and a deadlock.
#[test]
fn bug_01_last_credit_without_grant() {
    for number in 1..=4 {
        for seed in 0..30 {
            let faults = Faults {
                completion_delay: [40; 4],
                lean_rooms: seed % 2 == 0,
                ..Faults::default()
            };
            let mut pair = pair(seed, same_credits(number), faults);
            for length in [1, 6000, 1340, 100, 20_000] {
                for who in Who::BOTH {
                    pair.send(who, length);
                }
                for _ in 0..seed {
                    pair.step();
                }
            }
            pair.drive();
            for who in Who::BOTH {
                assert_eq!(pair.end(who).messages_received, 5, "{number} {seed}");
            }
        }
    }
}

/// Credits were computed from posted and granted receives while a message had used a receive whose
/// completion was not handled yet, so the peer got a credit without a receive. Expected: with late
/// completions every credit has a receive, which the fabric checks after every step.
#[test]
fn bug_02_credit_without_a_receive() {
    for number in [1, 2, 3, 10, 255] {
        for seed in 0..15 {
            let faults = Faults {
                completion_delay: [10, 3000, 10, 10],
                lazy: true,
                lean_rooms: seed % 3 == 0,
                ..Faults::default()
            };
            let mut pair = pair(seed, same_credits(number), faults);
            for _ in 0..40 {
                for who in Who::BOTH {
                    pair.send(who, 2000);
                }
            }
            pair.drive();
            assert!(Who::BOTH.map(|who| pair.end(who).messages_received) == [40, 40]);
        }
    }
}

/// A keepalive or an empty grant was sent between two segments of a message. Expected: the segments
/// carry the grant and the flag; the fabric detects an empty message between them.
#[test]
fn bug_03_empty_message_between_segments() {
    for seed in 0..4 {
        let faults = Faults {
            completion_delay: [20; 4],
            lean_rooms: true,
            ..Faults::default()
        };
        let mut pair = pair(seed, same_credits(10), faults);
        pair.story.clear();
        for who in Who::BOTH {
            pair.send(who, 1 << 20);
        }
        let mut steps = 0;
        while pair.active.messages_received + pair.passive.messages_received < 2 {
            pair.step();
            steps += 1;
            if steps % 7 == 0 {
                pair.keepalive(Active);
                pair.prompt(Passive);
            }
        }
        let asked = |line: &&String| line.contains("asks") && !line.ends_with(" 0");
        let asked = pair.story.iter().filter(asked).count();
        assert!(asked > 10, "{asked} segments asked for a sign of life");
        pair.drive();
    }
}

/// Expected at the receiving end: an empty message between two segments ends the connection.
#[test]
fn bug_03_empty_message_between_segments_ends_the_connection() {
    let mut pair = pair(1, same_credits(10), Faults::default());
    pair.send(Active, 100_000);
    while pair.passive.engine.statistics().segments_received < 20 {
        pair.step();
    }
    let mut empty = Vec::new();
    DataTransfer::empty(10, 1, Flags::empty()).encode(&mut empty);
    pair.inject(Passive, empty.into());
    let closed = pair.passive.closed.clone();
    let mismatch = matches!(
        closed,
        Some(ConnectionError::Violation(Violation::ReassemblyMismatch {
            data_length: 0,
            remaining_data_length: 0,
            ..
        }))
    );
    assert!(mismatch, "{closed:?}");
    pair.run();
    pair.assert_all_returned();
}

/// One work request of a batch failed, and the others were completed and freed twice. Expected:
/// when the connection breaks at any operation of a batch, every message, read and write ends once.
#[test]
fn bug_04_batch_that_fails_in_the_middle() {
    let batch = |kill_at| {
        let faults = Faults {
            completion_delay: [60; 4],
            send_queue: 16,
            kill_at,
            max_transfer: 3000,
            ..Faults::default()
        };
        let mut pair = Pair::new(5, same_credits(20), same_credits(20), faults);
        let memory = pair.register(Passive, 1, 9000, Access::REMOTE_READ | Access::REMOTE_WRITE);
        for _ in 0..12 {
            pair.step();
        }
        for length in [1, 5000, 7, 3000, 64, 2000] {
            pair.send(Active, length);
            pair.write(Active, &[memory], 0, content(1, 9000));
            pair.read(Active, &[memory], 0, content(1, 9000));
        }
        pair.run();
        pair
    };
    let operations = batch(None).operations;
    assert!(operations > 60, "{operations}");
    for kill_at in 1..=operations {
        batch(Some(kill_at)).assert_all_returned();
    }
}

const NO_LIMITS: Limits = Limits {
    max_send_queue: 300,
    max_receive_queue: 300,
    max_outbound_reads: 1,
    max_inbound_reads: 1,
    max_transfer: 1 << 20,
    send_with_invalidate: true,
    packet_bytes: None,
};

fn negotiate_request() -> Bytes {
    let request = NegotiateRequest {
        min_version: 0x0100,
        max_version: 0x0100,
        credits_requested: 10,
        preferred_send_size: 1364,
        max_receive_size: 8192,
        max_fragmented_size: 1 << 20,
    };
    let mut message = Vec::new();
    request.encode(&mut message);
    message.into()
}

/// Delivers a message to `engine`.
fn hear(engine: &mut Connection, receive: &WorkRequest, message: impl Into<Bytes>, now: Instant) {
    let completion = Completion::Received {
        id: receive.id(),
        message: message.into(),
        invalidated: None,
    };
    engine.handle_completion(now, completion);
}

/// The request arrived before the provider reported the connection, and was lost or crashed the
/// server. Expected: the engine keeps it, and the response grants the receives the provider can
/// hold.
#[test]
fn bug_06_request_before_the_connection_is_there() {
    let now = Instant::now();
    let mut engine = Connection::passive(Config::default(), now);
    let receive = engine.negotiate_receive();
    hear(&mut engine, &receive, negotiate_request(), now);
    engine.handle_connected(NO_LIMITS);
    let room = Room {
        sends: 1,
        receives: 300,
    };
    let mut receives = 0;
    let response = loop {
        match engine.poll_work(now, room) {
            Some(WorkRequest::Receive { count, .. }) => receives += count,
            Some(WorkRequest::Send { header, .. }) => break header,
            other => panic!("{other:?}"),
        }
    };
    let response = NegotiateResponse::decode(response.as_slice()).unwrap();
    assert_eq!((receives, response.credits_granted), (10, 10));
    assert!(matches!(engine.poll_event(), Some(Event::Negotiated(_))));
}

/// A message of the longest legal length needed more receives than there were: its segments kept
/// their receives until the message was complete, and no credit could be granted. Expected: it
/// arrives with any number of credits.
#[test]
fn bug_07_fragments_that_hold_all_receives() {
    for number in [1, 2, 3, 4, 255] {
        let mut changed = Settings::linux();
        changed.send_credit_target = number;
        changed.receive_credit_max = number;
        for settings in [same_credits(number), changed] {
            let longest = settings.max_fragmented_receive_size as usize;
            let mut pair = pair(1, settings, Faults::default());
            for who in Who::BOTH {
                pair.send(who, longest);
                pair.send(who, 1);
            }
            pair.drive();
            for who in Who::BOTH {
                assert_eq!(pair.end(who).messages_received, 2);
                assert!(pair.end(who).most_receives <= usize::from(number) + 3);
            }
        }
    }
}

/// An acceptor waited 120 seconds for a request instead of the specified 5. Expected: every profile
/// ends the connection of a silent initiator after 5 seconds.
#[test]
fn bug_08_acceptor_that_waits_for_minutes() {
    for settings in [Settings::default(), Settings::windows(), Settings::linux()] {
        let mut pair = Pair::new(1, settings.clone(), settings, Faults::default());
        pair.fall_silent();
        pair.advance(Duration::from_millis(4900));
        assert_eq!(pair.passive.closed, None);
        pair.advance(Duration::from_millis(200));
        let expired = ConnectionError::TimedOut(Expired::Negotiation);
        assert_eq!(pair.passive.closed, Some(expired));
    }
}

/// More reads and writes were posted than the send queue or the peer's read depth holds. Expected:
/// no engine posts into a full queue, which the fabric checks with short queues.
#[test]
fn bug_16_reads_and_writes_within_the_queues() {
    for (send_queue, outbound_reads) in [(1, 1), (2, 1), (3, 2), (4, 16), (64, 3)] {
        let faults = Faults {
            send_queue,
            outbound_reads,
            completion_delay: [50; 4],
            max_transfer: 1000,
            ..Faults::default()
        };
        let mut pair = pair(1, same_credits(10), faults);
        for who in Who::BOTH {
            let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
            let memory = pair.register(who.peer(), 1, 5000, access);
            for _ in 0..50 {
                pair.read(who, &[memory], 0, content(1, 5000));
                pair.write(who, &[memory], 0, content(1, 5000));
                pair.send(who, 1);
            }
        }
        pair.drive();
        for who in Who::BOTH {
            let end = pair.end(who);
            assert_eq!((end.transfers_done, end.messages_sent), (100, 50));
            assert!((1..=outbound_reads as usize).contains(&end.most_reads));
        }
    }
}

/// Receives were posted, and an empty message with a grant was sent before the response. Expected:
/// the response is the first message, whatever else is due.
#[test]
fn bug_24_empty_message_before_the_response() {
    let now = Instant::now();
    for receives_at_once in [1, 2, 300] {
        let mut engine = Connection::passive(Config::default(), now);
        let receive = engine.negotiate_receive();
        engine.handle_connected(NO_LIMITS);
        engine.prompt();
        let mut left = receives_at_once;
        let mut work = |engine: &mut Connection, sends| {
            engine.prompt();
            engine.prompt_keepalive(now);
            if left == 0 {
                left = receives_at_once;
            }
            let room = Room {
                sends,
                receives: left,
            };
            let work = engine.poll_work(now, room);
            if let Some(WorkRequest::Receive { count, .. }) = work {
                left -= count as usize;
            }
            work
        };
        assert!(work(&mut engine, 1).is_none(), "nothing was asked yet");
        hear(&mut engine, &receive, negotiate_request(), now);
        let mut posted = 0;
        while posted < 10 {
            let Some(WorkRequest::Receive { count, .. }) = work(&mut engine, 0) else {
                panic!("{posted} receives were posted");
            };
            posted += count as usize;
        }
        assert_eq!(posted, 10);
        assert!(work(&mut engine, 0).is_none(), "there is no room");
        let Some(WorkRequest::Send { header, .. }) = work(&mut engine, 1) else {
            panic!("the response was due");
        };
        assert_eq!(header.as_slice().len(), 32);
        let response = NegotiateResponse::decode(header.as_slice()).unwrap();
        assert_eq!(response.credits_granted, 10);
    }
}

/// The answer to a keepalive was a keepalive, without end. Expected: a keepalive of either end
/// causes two messages, and then both ends are silent.
#[test]
fn bug_25_keepalive_ping_pong() {
    for number in [1, 2, 3, 10, 255] {
        for who in Who::BOTH {
            let mut pair = pair(1, same_credits(number), Faults::default());
            for rounds in 1..=5 {
                let before = said(&pair);
                pair.keepalive(who);
                pair.drive();
                pair.advance(60 * SECOND);
                assert_eq!(pair.end(who).keepalives_answered, rounds);
                let cost = said(&pair) - before;
                // A grant may be due in addition.
                assert!((2..=3).contains(&cost), "{cost} with {number}");
            }
        }
    }
}

/// One missing credit caused an empty message, which used a credit, which caused an empty message.
/// Expected: two idle ends that lack one or more credits send nothing until the keepalive is due,
/// and only a few messages in an hour.
#[test]
fn bug_26_a_missing_credit_is_answered_for_ever() {
    for active in [1, 2, 3, 4, 5, 10, 255] {
        for passive in [1, 2, 3, 4, 5, 10, 255] {
            for messages in 1..=3 {
                let (one, other) = (same_credits(active), same_credits(passive));
                let mut pair = Pair::established(1, one, other, Faults::default());
                for _ in 0..messages {
                    pair.send(Active, 1);
                }
                pair.drive();
                let before = said(&pair);
                pair.advance(100 * SECOND);
                assert_eq!(said(&pair), before, "{active} {passive} {messages}");
                pair.advance(HOUR);
                let most = 4 * (3700 / 120);
                assert!(said(&pair) - before <= most, "{active} {passive}");
                assert!(pair.is_open());
            }
        }
    }
}
