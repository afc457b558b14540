//! Waits that are not the server's disk, requests that end in another way than with their answer, and connections beside
//! each other.

use std::time::Duration;

use smbdirect_decode::{Cause, Phase};
use smbdirect_test::{
    messages::{
        CREATE, SUCCESS, answer, compound, error, header, interim, other, read, read_answer, write,
    },
    talk::{I, R},
};

use super::{
    causes, explain, explained,
    model::{HEALTHY, Model, Run},
    partial::{Record, capture, cut, modelled, records},
    seconds,
};

const MILLISECOND: u64 = 1_000_000;
const LOCK: u16 = 0x000a;
const CHANGE_NOTIFY: u16 = 0x000f;
const QUERY_INFO: u16 = 0x0010;
const CLOSE: u16 = 0x0006;
const STATUS_DISK_FULL: u32 = 0xc000_007f;

/// A healthy copy, in which the client and the server can say something more.
fn copy() -> Model {
    let mut model = Model::new(&HEALTHY);
    model.add(&HEALTHY);
    model
}

/// Adds a request of this command whose answer comes after a time, and after an interim one if that is wanted.
fn wait(model: &mut Model, command: u16, time: u64, is_announced: bool) {
    let id = model.take_id();
    model.message(I, &other(header(command, id), &[0; 48]), 1, model.now);
    model.acknowledge(R, model.now + 30_000);
    if is_announced {
        model.message(R, &interim(command, id), 1, model.now + MILLISECOND / 10);
    }
    model.now += time;
    model.message(
        R,
        &other(answer(command, id, SUCCESS), &[0; 48]),
        1,
        model.now,
    );
    model.now += MILLISECOND / 10;
}

#[test]
fn a_wait_that_the_server_announces_is_no_slow_disk() {
    for (command, is_announced, expected) in [
        (LOCK, true, Cause::AnnouncedWait),
        (CREATE, true, Cause::AnnouncedWait),
        // Samba announces slow requests of a disk, too.
        (QUERY_INFO, true, Cause::SlowServer),
        (CREATE, false, Cause::SlowServer),
    ] {
        let mut model = copy();
        wait(&mut model, command, 3000 * MILLISECOND, is_announced);
        model.add(&HEALTHY);
        let explanation = explain(&model.capture());
        assert_eq!(causes(&explanation), [expected], "{command}");
        let says = &explanation.verdict.causes[0].figures;
        assert!(
            !is_announced || says.contains('1') || expected == Cause::SlowServer,
            "{says}"
        );
    }
    // Nobody waits for something to happen in a folder.
    let mut model = copy();
    wait(&mut model, CHANGE_NOTIFY, 3000 * MILLISECOND, true);
    model.add(&HEALTHY);
    assert_eq!(causes(&explain(&model.capture())), []);
}

/// The server has the answer, and sends it when the client acknowledges the data before it.
#[test]
fn an_answer_that_waits_for_an_acknowledgement_is_named() {
    for (after, expected) in [
        (MILLISECOND / 100, Cause::DelayedAcknowledgement),
        // The answer comes by itself.
        (20 * MILLISECOND, Cause::SlowServer),
    ] {
        let mut model = copy();
        for _ in 0..20 {
            let id = model.take_id();
            model.message(I, &read(id, 0, 1000, 0, &[]), 1, model.now);
            model.now += MILLISECOND / 10;
            // Another answer has not been acknowledged yet.
            model.message(
                R,
                &other(answer(0x000d, 1 << 40, SUCCESS), &[0; 4]),
                1,
                model.now,
            );
            model.now += 40 * MILLISECOND;
            model.acknowledge(I, model.now);
            model.now += after;
            model.message(R, &read_answer(id, &[7; 1000], 0), 1, model.now);
            model.acknowledge(I, model.now + 1000);
            model.now += MILLISECOND / 10;
        }
        let explanation = explain(&model.capture());
        assert_eq!(
            causes(&explanation).first(),
            Some(&expected),
            "{explanation:#?}"
        );
    }
}

/// The client has the next request, and sends it when the server acknowledges what it sent before.
#[test]
fn a_request_that_waits_for_an_acknowledgement_is_named() {
    let mut model = copy();
    for _ in 0..20 {
        let id = model.take_id();
        model.message(I, &write(id, 0, &[1; 3000]), 1, model.now);
        let done = other(answer(0x0009, id, SUCCESS), &[0; 16]);
        model.message(R, &done, 1, model.now + MILLISECOND / 10);
        // An answer to nothing, which the server acknowledges late.
        model.message(
            I,
            &other(header(0x000c, id), &[0; 4]),
            1,
            model.now + MILLISECOND / 5,
        );
        model.now += 200 * MILLISECOND;
        model.acknowledge(R, model.now);
        model.now += MILLISECOND / 100;
    }
    let explanation = explain(&model.capture());
    let first = causes(&explanation).first().copied();
    assert_eq!(
        first,
        Some(Cause::DelayedAcknowledgement),
        "{explanation:#?}"
    );
}

/// Without the handshake and without packets that only acknowledge, the round trip may be the time of the server.
#[test]
fn a_round_trip_by_answers_only_tells_nothing() {
    let mut model = Model::new(&HEALTHY);
    for _ in 0..100 {
        let id = model.take_id();
        model.message(I, &read(id, 0, 1000, 0, &[]), 1, model.now);
        model.now += 5 * MILLISECOND;
        model.message(R, &read_answer(id, &[7; 1000], 0), 1, model.now);
        model.now += MILLISECOND / 50;
    }
    let all = records(&model.capture());
    let whole = explain(&model.capture());
    assert_eq!(
        causes(&whole).first(),
        Some(&Cause::SlowServer),
        "{whole:#?}"
    );
    let late = explain(&capture(all.into_iter().skip(20).collect()));
    assert_eq!(causes(&late), [], "{late:#?}");
    assert_eq!(late.verdict.limit, None, "{late:#?}");
}

/// The capture goes on for 60 s, with packets of another connection.
#[test]
fn a_request_without_an_answer_is_named() {
    let mut model = copy();
    let id = model.take_id();
    model.message(I, &read(id, 0, 1000, 0, &[]), 1, model.now);
    let mut all = records(&model.capture());
    let mut other = modelled(&HEALTHY, 40_001);
    for record in &mut other {
        record.time += Duration::from_secs(60);
    }
    all.extend(other);
    let explanation = explain(&capture(all));
    assert_eq!(causes(&explanation).first(), Some(&Cause::NoAnswer));
    assert!(
        explanation.verdict.causes[0]
            .figures
            .starts_with("1 requests")
    );
    assert!(seconds(&explanation, 0, Phase::Server) > 59.0);
    // A capture that ends within a copy is no fault.
    let mut all = modelled(&HEALTHY, 40_000);
    all.truncate(all.len() - 3);
    assert_eq!(causes(&explain(&capture(all))), []);
}

#[test]
fn a_client_that_asks_for_no_more_credits_has_enough() {
    let run = Run {
        outstanding: 1,
        smb2_credits: 4,
        server: Duration::from_micros(300),
        ..HEALTHY
    };
    assert_eq!(causes(&explained(&run)).first(), Some(&Cause::Smb2Credits));
    let modest = Run {
        asked_credits: 0,
        ..run
    };
    let named = causes(&explained(&modest));
    assert_eq!(named.first(), Some(&Cause::OneOutstanding));
    assert!(!named.contains(&Cause::Smb2Credits), "{named:?}");
}

#[test]
fn requests_count_what_they_moved() {
    let mut model = copy();
    let before = explain(&model.capture()).verdict.bytes;
    for _ in 0..200 {
        let id = model.take_id();
        model.message(I, &write(id, 0, &[1; 4000]), 1, model.now);
        let refusal = error(0x0009, id, STATUS_DISK_FULL);
        model.message(R, &refusal, 1, model.now + MILLISECOND / 10);
        model.now += MILLISECOND / 5;
    }
    let explanation = explain(&model.capture());
    assert_eq!(explanation.verdict.bytes, before);
    let failed = explanation.connections[0]
        .requests
        .iter()
        .map(|one| one.failed);
    assert_eq!(failed.sum::<u64>(), 200);

    let mut model = Model::new(&HEALTHY);
    for _ in 0..100 {
        let id = model.take_id();
        model.message(I, &read(id, 0, 1 << 20, 0, &[]), 1, model.now);
        model.message(
            R,
            &read_answer(id, &[7; 1000], 0),
            1,
            model.now + MILLISECOND / 10,
        );
        model.now += MILLISECOND / 5;
    }
    let explanation = explain(&model.capture());
    assert_eq!(explanation.verdict.bytes, 100_000);
    assert_eq!(explanation.connections[0].requests[0].size, 1000);
    let named = causes(&explanation);
    assert!(!named.contains(&Cause::Threshold), "{named:?}");
}

/// The client sends the parts of a compound in messages of their own Sends, and the capture has the first part of the
/// answer. Then the client pauses.
#[test]
fn a_cut_answer_to_a_compound_ends_its_requests() {
    let mut model = copy();
    let id = model.take_id();
    let ids = [id, model.take_id(), model.take_id()];
    let asked = compound(&[
        other(header(CREATE, ids[0]), &[0; 57]),
        other(header(QUERY_INFO, ids[1]), &[0; 41]),
        other(header(CLOSE, ids[2]), &[0; 24]),
    ]);
    let answered = compound(&[
        other(answer(CREATE, ids[0], SUCCESS), &[0; 152]),
        other(answer(QUERY_INFO, ids[1], SUCCESS), &[0; 120]),
        other(answer(CLOSE, ids[2], SUCCESS), &[0; 60]),
    ]);
    model.message(I, &asked, 1, model.now);
    model.message(R, &answered, 1, model.now + MILLISECOND);
    model.now += 300 * MILLISECOND;
    model.add(&Run {
        outstanding: 1,
        thought: Duration::from_millis(50),
        requests: 20,
        ..HEALTHY
    });
    for length in [256, 320, 4096] {
        let explanation = explain(&cut(records(&model.capture()), length));
        let first = causes(&explanation).first().copied();
        assert_eq!(first, Some(Cause::Think), "{length}: {explanation:#?}");
    }
}

/// Returns the packets of a run that begin so many milliseconds later.
fn later(run: &Run, port: u16, milliseconds: u64, is_reset: bool) -> Vec<Record> {
    let mut model = Model::new(run).with_port(port);
    model.add(run);
    if is_reset {
        model.reset();
    }
    let mut all = records(&model.capture());
    for record in &mut all {
        record.time += Duration::from_millis(milliseconds);
    }
    all
}

#[test]
fn connections_that_end_and_begin_again_are_named() {
    let run = Run {
        requests: 8,
        ..HEALTHY
    };
    let all = |is_reset: bool| -> Vec<Record> {
        let connections =
            (0..12).map(|number| later(&run, 40_000 + number, u64::from(number) * 500, is_reset));
        connections.flatten().collect()
    };
    let explanation = explain(&capture(all(true)));
    assert_eq!(causes(&explanation).first(), Some(&Cause::Reconnects));
    // They may all be open.
    assert_eq!(causes(&explain(&capture(all(false)))), []);
}

#[test]
fn a_slow_connection_beside_a_fast_one_is_named() {
    let fast = Run {
        requests: 1500,
        ..HEALTHY
    };
    let slow = Run {
        requests: 12,
        bytes: 64 << 10,
        outstanding: 1,
        server: Duration::from_millis(30),
        ..HEALTHY
    };
    let thinks = Run {
        server: HEALTHY.server,
        thought: Duration::from_millis(30),
        ..slow
    };
    for (beside, expected) in [(slow, &[Cause::SlowConnection][..]), (thinks, &[])] {
        let mut all = later(&fast, 40_000, 0, false);
        all.extend(later(&beside, 40_001, 0, false));
        let explanation = explain(&capture(all));
        assert_eq!(causes(&explanation), expected, "{:#?}", explanation.verdict);
    }
}
