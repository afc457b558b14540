//! Captures that cannot tell: one direction, both ends merged, clocks that are coarse or were set.

use std::time::Duration;

use smbdirect_decode::{Cause, Explanation};
use smbdirect_test::talk::{ACK, I, R, Talk};

use super::{
    causes, explain,
    model::{HEALTHY, Run},
    partial::{Record, capture, does_not_see, modelled, records, unsorted},
};

/// A copy from a slow server, with one request at a time.
const SLOW: Run = Run {
    outstanding: 1,
    server: Duration::from_millis(5),
    ..HEALTHY
};

/// Asserts that no cause and no limit is named, because of this.
#[track_caller]
fn cannot_tell(explanation: &Explanation, says: &str) {
    assert_eq!(causes(explanation), [], "{explanation:#?}");
    assert_eq!(explanation.verdict.limit, None, "{explanation:#?}");
    does_not_see(explanation, says);
}

/// Returns the packets that one end has sent.
fn of_end(records: Vec<Record>, is_server: bool) -> Vec<Record> {
    let is_of = |record: &Record| record.bytes[34..36] == 5445_u16.to_be_bytes();
    records
        .into_iter()
        .filter(|record| is_of(record) == is_server)
        .collect()
}

#[test]
fn one_direction_alone_tells_nothing() {
    let short = Run {
        requests: 2,
        ..SLOW
    };
    for run in [SLOW, HEALTHY, short] {
        for is_server in [false, true] {
            let explanation = explain(&capture(of_end(modelled(&run, 40_000), is_server)));
            cannot_tell(&explanation, "packets of one end only");
            let lowest = explanation.connections[0].fewest_smb2_credits;
            assert!(lowest.is_none_or(|lowest| lowest >= 0), "{lowest:?}");
        }
    }
}

#[test]
fn a_clock_that_was_set_back_is_named() {
    for step in [Duration::from_millis(50), Duration::from_secs(5)] {
        let mut all = modelled(&SLOW, 40_000);
        let half = all.len() / 2;
        for record in &mut all[half..] {
            record.time -= step;
        }
        cannot_tell(&explain(&unsorted(all)), "The time goes back by");
    }
    // Two queues of an adapter put packets into a wrong order.
    let mut all = modelled(&SLOW, 40_000);
    for pair in all.chunks_exact_mut(2).skip(10) {
        if pair[1].time - pair[0].time < Duration::from_millis(1) {
            pair.swap(0, 1);
        }
    }
    let explanation = explain(&unsorted(all));
    assert_eq!(causes(&explanation).first(), Some(&Cause::SlowServer));
}

#[test]
fn a_coarse_clock_is_named() {
    for step in [1000, 15_625] {
        let mut all = modelled(&SLOW, 40_000);
        for record in &mut all {
            let micros = record.time.as_micros() as u64;
            record.time = Duration::from_micros(micros - micros % step);
        }
        cannot_tell(&explain(&capture(all)), "The times have steps of");
    }
}

#[test]
fn a_capture_without_times_tells_nothing() {
    let mut all = modelled(&SLOW, 40_000);
    for record in &mut all {
        record.time = Duration::ZERO;
    }
    cannot_tell(&explain(&unsorted(all)), "The capture has no times");
}

/// The captures of both ends, merged: each packet is there again a millisecond later.
#[test]
fn merged_captures_of_both_ends_count_each_packet_once() {
    let lossy = Run {
        lost: (20, Duration::from_millis(20)),
        ..HEALTHY
    };
    for run in [SLOW, lossy] {
        let mut all = modelled(&run, 40_000);
        for (number, record) in all.iter_mut().enumerate() {
            // Identification: a copy has the same one.
            record.bytes[18..20].copy_from_slice(&(number as u16 + 1).to_be_bytes());
        }
        let single = explain(&unsorted(all));
        let mut both = records(&capture_of(&run));
        let mut copies = records(&capture_of(&run));
        for (number, (one, copy)) in both.iter_mut().zip(&mut copies).enumerate() {
            for record in [one, &mut *copy] {
                record.bytes[18..20].copy_from_slice(&(number as u16 + 1).to_be_bytes());
            }
            copy.time += Duration::from_millis(1);
        }
        both.extend(copies);
        let merged = explain(&capture(both));
        assert_eq!(causes(&merged).first(), causes(&single).first());
        does_not_see(&merged, "is in the capture twice, 1.00 ms apart");
        let [single, merged] = [&single, &merged].map(|one| one.connections[0].path.sent_again);
        assert_eq!(single, merged);
    }
}

fn capture_of(run: &Run) -> Vec<u8> {
    capture(modelled(run, 40_000))
}

#[test]
fn smb_over_tcp_may_have_any_times() {
    let mut talk = Talk::new();
    talk.ports = [40_000, 445];
    for _ in 0..10 {
        talk.packet(I, ACK, &[1; 100]);
        talk.packet(R, ACK, &[2; 1000]);
    }
    let mut all = records(&talk.capture());
    let count = all.len();
    all[count - 1].time = Duration::ZERO;
    let explanation = explain(&unsorted(all));
    assert_eq!(causes(&explanation), [Cause::RdmaNotUsed]);
    assert_eq!(explanation.verdict.seconds, 0.0);
}
