//! Arbitrary sequences of operations on the engine, against an arbitrary peer and against another
//! engine.
//!
//! [`end`] asserts after each operation: no send without a credit, a posted receive for every
//! granted credit, whole messages in order, one end, and nothing posted after it. At the end of the
//! input every connection is ended and every buffer has to be back. Two engines also have to have
//! finished all requested work, if they are still connected.

mod end;

use std::time::{Duration, Instant};

use smbdirect::{
    Settings,
    engine::{Policy, Revision},
    rdma::work::{Disconnect, Limits, ProviderError, ProviderErrorKind, Room},
};

use self::end::End;
use crate::input::Input;

/// Rounds after which two engines should have become idle. Long messages in segments of 104 bytes
/// with a single credit take some thousands.
const MAX_ROUNDS: usize = 100_000;
/// Step in time: longer than the delay of the first grant, shorter than any timer in the settings.
const TIME_STEP: Duration = Duration::from_millis(25);

/// Runs the operations that `data` encodes.
pub fn engine_operations(data: &[u8]) {
    let mut input = Input::new(data);
    match input.up_to(2) {
        0 => hostile(false, &mut input),
        1 => hostile(true, &mut input),
        _ => pair(&mut input),
    }
}

/// Runs one engine. The input controls its peer, its provider and its owner.
fn hostile(passive: bool, input: &mut Input<'_>) {
    let mut now = Instant::now();
    let policy = policy(input);
    let settings = settings(input, policy);
    let limits = limits(input, &[300, 0, 1, 2, 3, 5]);
    let mut end = End::new(passive, settings, limits, now);
    // Half of the inputs begin with an established RDMA connection.
    if !input.is_odd() {
        end.connect();
    }
    while !input.is_empty() {
        match input.up_to(19) {
            0 | 1 => end.work(
                now,
                Room {
                    sends: 1000,
                    receives: 1000,
                },
            ),
            2 => end.work(now, some_room(input)),
            3..=5 => end.peer_sends_in_order(now, input),
            6 => end.peer_sends_fields(now, input),
            7 => end.peer_sends_bytes(now, input),
            8 | 9 => end.complete_send(now),
            10 => end.complete_read(now),
            11 => end.complete_write(now),
            12 | 13 => end.hand_over(now),
            14 => pass_time(&mut now, &mut [&mut end], input),
            15 => end.connect(),
            16 => end.begin_to_flush(input),
            17 => end.take_events(),
            _ => command(&mut end, now, input),
        }
        end.check();
    }
    finish(&mut end, &mut now, input);
}

/// Runs two engines over a network without loss.
fn pair(input: &mut Input<'_>) {
    let mut now = Instant::now();
    let mut ends = [false, true].map(|passive| {
        let policy = policy(input);
        let settings = settings(input, policy);
        let limits = limits(input, &[300, 3, 5]);
        let mut end = End::new(passive, settings, limits, now);
        end.connect();
        end
    });
    while !input.is_empty() {
        let which = input.up_to(1);
        let [one, other] = &mut ends;
        let (end, peer) = if which == 0 {
            (one, other)
        } else {
            (other, one)
        };
        match input.up_to(13) {
            0..=2 => end.work(
                now,
                Room {
                    sends: 1000,
                    receives: 1000,
                },
            ),
            3 => end.work(now, some_room(input)),
            4 | 5 => travel(end, peer),
            6 => end.complete_send(now),
            7 => end.complete_read(now),
            8 => end.complete_write(now),
            9 | 10 => end.hand_over(now),
            11 => pass_time(&mut now, &mut [end, peer], input),
            12 => end.take_events(),
            _ => command(end, now, input),
        }
        for end in &mut ends {
            end.check();
        }
        end_together(&mut ends, now);
    }
    settle(&mut ends, &mut now);
    for end in &ends {
        assert!(
            end.is_over() || !end.is_negotiated() || end.is_content(),
            "an engine waits for ever: {end:?}"
        );
    }
    for end in &mut ends {
        finish(end, &mut now, input);
    }
}

/// Runs until both engines only wait for timers of seconds.
fn settle(ends: &mut [End; 2], now: &mut Instant) {
    let mut waited = false;
    for _ in 0..MAX_ROUNDS {
        let before = ends.each_ref().map(End::done);
        for which in [0, 1] {
            let [one, other] = ends;
            let (end, peer) = if which == 0 {
                (one, other)
            } else {
                (other, one)
            };
            end.work(
                *now,
                Room {
                    sends: 1000,
                    receives: 1000,
                },
            );
            travel(end, peer);
            end.complete_send(*now);
            end.complete_read(*now);
            end.complete_write(*now);
            end.hand_over(*now);
            end.check();
        }
        end_together(ends, *now);
        if ends.each_ref().map(End::done) != before {
            waited = false;
        } else if waited {
            return;
        } else {
            waited = true;
            *now += TIME_STEP;
            for end in &mut *ends {
                end.time_out(*now);
            }
        }
    }
    panic!("two engines never fall silent: {ends:?}");
}

/// Delivers the oldest message in flight.
fn travel(from: &mut End, to: &mut End) {
    if to.is_disconnected() {
        return from.forget_sent();
    }
    if let Some((message, token)) = from.next_sent() {
        assert!(to.arrive(message, token), "no receive for it: {to:?}");
    }
}

/// Ends the connection after an engine is finished and its messages have arrived.
fn end_together(ends: &mut [End; 2], now: Instant) {
    for which in [0, 1] {
        let [one, other] = &mut *ends;
        let (end, peer) = if which == 0 {
            (one, other)
        } else {
            (other, one)
        };
        if end.is_over() && !end.is_disconnected() {
            end.disconnect(now, Disconnect::Local);
        }
        let all_arrived = end.has_nothing_under_way() && peer.has_nothing_to_hand_over();
        if end.is_disconnected() && !peer.is_disconnected() && all_arrived {
            peer.disconnect(now, Disconnect::Remote);
        }
    }
}

/// Ends a connection, gracefully unless the input says otherwise, and checks that all buffers are
/// returned.
fn finish(end: &mut End, now: &mut Instant, input: &mut Input<'_>) {
    let orderly = !input.is_odd();
    if orderly && !end.is_disconnected() {
        end.close();
        // No work completes, so a timer has to end the wait.
        for _ in 0..10 {
            end.work(
                *now,
                Room {
                    sends: 1000,
                    receives: 1000,
                },
            );
            if end.is_over() {
                break;
            }
            *now = end
                .due()
                .expect("a connection that is closing has a timer")
                .max(*now);
            end.time_out(*now);
        }
        assert!(end.is_over(), "a close that never ends: {end:?}");
    }
    let broken = ProviderError::new(ProviderErrorKind::Reset, "the network is gone");
    let how = match (orderly, input.up_to(2)) {
        (true, _) | (_, 0) => Disconnect::Local,
        (_, 1) => Disconnect::Remote,
        _ => Disconnect::Broken(broken),
    };
    end.disconnect(*now, how);
    end.assert_all_returned(*now);
}

/// Makes a call of the owner.
fn command(end: &mut End, now: Instant, input: &mut Input<'_>) {
    match input.up_to(7) {
        0..=2 => end.send(input),
        3 => end.read(input),
        4 => end.write(input),
        5 => end.prompt(),
        6 => end.keepalive(now),
        _ if input.up_to(3) == 3 => end.close(),
        _ => {}
    }
}

/// Advances time to the next timer, or by a small step.
fn pass_time(now: &mut Instant, ends: &mut [&mut End], input: &mut Input<'_>) {
    let next = ends.iter().filter_map(|end| end.due()).min();
    *now = match (input.up_to(3), next) {
        (0, Some(due)) => due.max(*now),
        (1, _) => *now + TIME_STEP,
        (2, _) => *now + input.milliseconds(),
        _ => *now,
    };
    for end in ends {
        end.time_out(*now);
    }
}

fn some_room(input: &mut Input<'_>) -> Room {
    Room {
        sends: input.up_to(3),
        receives: input.up_to(3),
    }
}

fn settings(input: &mut Input<'_>, policy: Policy) -> Settings {
    let credits = [10, 1, 2, 3, 255, u16::MAX];
    let second = Duration::from_secs(1);
    let mut changed = Settings::default();
    changed.send_credit_target = input.pick(&credits);
    changed.receive_credit_max = input.pick(&credits);
    changed.max_send_size = input.pick(&[1364, 128, 8136]);
    changed.max_receive_size = input.pick(&[8192, 1364, 128]);
    changed.max_fragmented_receive_size = input.pick(&[1 << 20, 131_072]);
    changed.max_read_write_size = input.pick(&[8 << 20, 65_536]);
    changed.keepalive_interval = input.pick(&[120 * second, second]);
    changed.credit_grant_timeout = input.pick(&[Some(5 * second), None]);
    changed.policy = policy;
    changed
}

fn policy(input: &mut Input<'_>) -> Policy {
    // Three bits and the byte after them have no meaning. Skipping them keeps the meaning of the
    // committed inputs.
    let [bits, _] = [input.byte(), input.byte()];
    let mut policy_ = Policy::default();
    policy_.revision = match bits & 32 {
        0 => Revision::Current,
        _ => Revision::V2014,
    };
    policy_.strict_last_credit = bits & 1 == 0;
    policy_.tolerate_empty_in_sequence = bits & 4 != 0;
    policy_
}

fn limits(input: &mut Input<'_>, receive_queues: &[usize]) -> Limits {
    Limits {
        max_send_queue: input.pick(&[64, 1, 2]),
        max_receive_queue: input.pick(receive_queues),
        max_outbound_reads: input.pick(&[16, 0, 1]),
        max_inbound_reads: 16,
        max_transfer: input.pick(&[1 << 20, 100, 7]),
        send_with_invalidate: input.byte() & 1 == 0,
        packet_bytes: None,
    }
}
