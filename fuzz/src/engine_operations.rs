//! The engine under any sequence of operations: against a peer that says what it likes, and
//! against another engine.
//!
//! What is asserted all the time stands in [`end`]: no send without a credit, a receive behind
//! every credit, whole messages in order, one end, and nothing posted behind it. When the input
//! is used up, every connection is ended and every buffer has to be back; two engines have to
//! have done all that was asked of them, if they still talk to each other.

mod end;

use std::time::{Duration, Instant};

use smbdirect::{
    Settings,
    engine::{GrantPolicy, Policy, Revision},
    rdma::work::{Disconnect, Limits, ProviderError, ProviderErrorKind, Room},
};

use self::end::End;
use crate::input::Input;

/// Turns after which two engines that should fall silent have not. Long messages in segments of
/// 104 bytes on a single credit take some thousands.
const TOO_MANY_TURNS: usize = 100_000;
/// Longer than the first credits wait for a message, shorter than any timer in the settings.
const PATIENCE: Duration = Duration::from_millis(25);

/// Plays the operations that `data` spells.
pub fn engine_operations(data: &[u8]) {
    let mut input = Input::new(data);
    match input.up_to(2) {
        0 => hostile(false, &mut input),
        1 => hostile(true, &mut input),
        _ => pair(&mut input),
    }
}

/// One engine; the input is its peer, its provider and its owner.
fn hostile(passive: bool, input: &mut Input<'_>) {
    let mut now = Instant::now();
    let policy = policy(input);
    let settings = settings(input, policy);
    let limits = limits(input, &[300, 0, 1, 2, 3, 5]);
    let mut end = End::new(passive, settings, limits, now);
    // Most inputs are not about what happens before there is a connection.
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

/// Two engines and a network that loses nothing.
fn pair(input: &mut Input<'_>) {
    let mut now = Instant::now();
    let mut ends = [false, true].map(|passive| {
        // The other policies are for experiments: two such ends never fall silent.
        let policy = Policy {
            literal_keepalive_echo: false,
            ..policy(input)
        };
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

/// Runs until nobody has anything to do but wait for a timer of seconds.
fn settle(ends: &mut [End; 2], now: &mut Instant) {
    let mut waited = false;
    for _ in 0..TOO_MANY_TURNS {
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
            *now += PATIENCE;
            for end in &mut *ends {
                end.time_out(*now);
            }
        }
    }
    panic!("two engines never fall silent: {ends:?}");
}

/// The oldest message on its way arrives.
fn travel(from: &mut End, to: &mut End) {
    if to.is_disconnected() {
        return from.forget_sent();
    }
    if let Some((message, token)) = from.next_sent() {
        assert!(to.arrive(message, token), "no receive for it: {to:?}");
    }
}

/// When one engine is done its provider ends the connection, behind what it has sent.
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

/// Ends a connection, in good order if the input does not want it otherwise, and sees that
/// everything comes back.
fn finish(end: &mut End, now: &mut Instant, input: &mut Input<'_>) {
    let orderly = !input.is_odd();
    if orderly && !end.is_disconnected() {
        end.close();
        // The wait for the last work ends too: nothing is done, so some timer says so.
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

/// What the owner wants.
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

/// Time passes: to the next timer, or a little; nobody is called too late by more than that.
fn pass_time(now: &mut Instant, ends: &mut [&mut End], input: &mut Input<'_>) {
    let next = ends.iter().filter_map(|end| end.due()).min();
    *now = match (input.up_to(3), next) {
        (0, Some(due)) => due.max(*now),
        (1, _) => *now + PATIENCE,
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
    Settings {
        send_credit_target: input.pick(&credits),
        receive_credit_max: input.pick(&credits),
        max_send_size: input.pick(&[1364, 128, 8136]),
        max_receive_size: input.pick(&[8192, 1364, 128]),
        max_fragmented_receive_size: input.pick(&[1 << 20, 131_072]),
        max_read_write_size: input.pick(&[8 << 20, 65_536]),
        keepalive_interval: input.pick(&[120 * second, second]),
        credit_grant_timeout: input.pick(&[Some(5 * second), None]),
        policy,
        ..Settings::default()
    }
}

fn policy(input: &mut Input<'_>) -> Policy {
    let bits = input.byte();
    Policy {
        revision: match bits & 32 {
            0 => Revision::Current,
            _ => Revision::V2014,
        },
        grant_policy: input.pick(&[GrantPolicy::Hysteresis, GrantPolicy::Eager]),
        strict_last_credit: bits & 1 == 0,
        literal_keepalive_echo: bits & 2 != 0,
        tolerate_empty_in_sequence: bits & 4 != 0,
        strict_windows_versions: bits & 8 != 0,
        windows_8136_limit: bits & 16 != 0,
    }
}

fn limits(input: &mut Input<'_>, receive_queues: &[usize]) -> Limits {
    Limits {
        max_send_queue: input.pick(&[64, 1, 2]),
        max_receive_queue: input.pick(receive_queues),
        max_outbound_reads: input.pick(&[16, 0, 1]),
        max_inbound_reads: 16,
        max_transfer: input.pick(&[1 << 20, 100, 7]),
        send_with_invalidate: input.byte() & 1 == 0,
    }
}
