//! Captures that do not show everything: several connections, encryption, a late beginning, packets cut short, and
//! SMB without RDMA.

use std::time::Duration;

use pcap_file::{
    DataLink, TsResolution,
    pcap::{PcapHeader, PcapPacket, PcapReader, PcapWriter},
};
use smbdirect_decode::{Cause, ConnectionReport, Explanation, Phase};
use smbdirect_test::talk::{ACK, I, R, Talk};

use super::{
    causes, explain,
    model::{HEALTHY, Model, Run},
    seconds,
};

/// One packet of a capture.
pub(super) struct Record {
    pub(super) time: Duration,
    original: u32,
    pub(super) bytes: Vec<u8>,
}

pub(super) fn records(capture: &[u8]) -> Vec<Record> {
    let mut reader = PcapReader::new(capture).unwrap();
    let mut records = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let packet = packet.unwrap();
        records.push(Record {
            time: packet.timestamp,
            original: packet.orig_len,
            bytes: packet.data.into_owned(),
        });
    }
    records
}

/// Returns a capture of these packets, in the order of their times.
pub(super) fn capture(mut records: Vec<Record>) -> Vec<u8> {
    records.sort_by_key(|record| record.time);
    unsorted(records)
}

/// Returns a capture of these packets in their order.
pub(super) fn unsorted(records: Vec<Record>) -> Vec<u8> {
    let header = PcapHeader {
        snaplen: 1 << 18,
        datalink: DataLink::ETHERNET,
        ts_resolution: TsResolution::NanoSecond,
        ..PcapHeader::default()
    };
    let mut writer = PcapWriter::with_header(Vec::new(), header).unwrap();
    for Record {
        time,
        original,
        bytes,
    } in records
    {
        let packet = PcapPacket::new(time, original, &bytes);
        writer.write_packet(&packet).unwrap();
    }
    writer.into_writer()
}

pub(super) fn modelled(run: &Run, port: u16) -> Vec<Record> {
    let mut model = Model::new(run).with_port(port);
    model.add(run);
    records(&model.capture())
}

/// A copy from a server that takes 10 ms for each request.
const SLOW: Run = Run {
    server: Duration::from_millis(10),
    ..HEALTHY
};

#[track_caller]
fn near(found: f64, expected: f64) {
    assert!(
        (found / expected - 1.0).abs() < 0.05,
        "{found} instead of {expected}"
    );
}

/// Asserts that the phases of each connection add up to its length.
#[track_caller]
fn adds_up(explanation: &Explanation) {
    for connection in &explanation.connections {
        let sum: f64 = connection.phases.iter().map(|phase| phase.seconds).sum();
        near(sum, connection.seconds);
    }
}

#[track_caller]
pub(super) fn does_not_see(explanation: &Explanation, says: &str) {
    let unseen = &explanation.unseen;
    assert!(unseen.iter().any(|line| line.contains(says)), "{unseen:?}");
}

#[test]
fn connections_of_a_session_are_explained_together() {
    let mut both = modelled(&SLOW, 40_000);
    both.extend(modelled(&SLOW, 40_001));
    let explanation = explain(&capture(both));
    assert_eq!(explanation.verdict.streams.len(), 2, "{explanation:#?}");
    assert_eq!(causes(&explanation).first(), Some(&Cause::SlowServer));
    let data = u64::from(SLOW.requests * SLOW.bytes);
    assert_eq!(explanation.verdict.bytes, 2 * data, "{explanation:#?}");
    for stream in 0..2 {
        near(seconds(&explanation, stream, Phase::Server), 0.6);
    }
    adds_up(&explanation);
}

#[test]
fn one_slow_connection_of_a_session_is_the_evidence() {
    let mut both = modelled(&HEALTHY, 40_000);
    both.extend(modelled(&SLOW, 40_001));
    let explanation = explain(&capture(both));
    let cause = &explanation.verdict.causes[0];
    assert_eq!(cause.cause, Cause::SlowServer, "{cause:?}");
    let slow = explanation.connections.iter();
    let slow = slow.max_by(|a, b| a.seconds.total_cmp(&b.seconds)).unwrap();
    for evidence in &cause.evidence {
        assert_eq!(evidence.stream, slow.stream, "{cause:?}");
    }
}

#[test]
fn encrypted_sessions_are_matched_by_their_order() {
    let run = Run {
        in_messages: true,
        encrypted: true,
        ..HEALTHY
    };
    let explanation = explain(&capture(modelled(&run, 40_000)));
    assert_eq!(causes(&explanation).first(), Some(&Cause::Encryption));
    let connection = &explanation.connections[0];
    assert_eq!(connection.rdma_bytes, 0);
    let encrypted = connection.requests.iter();
    let encrypted = encrypted.filter(|request| request.kind == "encrypted");
    let requests: u64 = encrypted.map(|request| request.requests).sum();
    assert_eq!(requests, u64::from(run.requests), "{connection:#?}");
    does_not_see(&explanation, "encrypted");
    adds_up(&explanation);
}

#[test]
fn captures_may_begin_in_the_middle() {
    let all = modelled(&SLOW, 40_000);
    for skipped in [5, all.len() / 3, all.len() / 2, all.len() * 3 / 4] {
        let rest: Vec<_> = modelled(&SLOW, 40_000).into_iter().skip(skipped).collect();
        let length = rest[rest.len() - 1].time - rest[0].time;
        let explanation = explain(&capture(rest));
        assert_eq!(explanation.connections.len(), 1, "{skipped}");
        let connection = &explanation.connections[0];
        assert!(!connection.from_start, "{skipped}");
        near(connection.seconds, length.as_secs_f64());
        let named = causes(&explanation);
        assert_eq!(named.first(), Some(&Cause::SlowServer), "{skipped}");
        does_not_see(&explanation, "began before the capture");
        adds_up(&explanation);
        near(
            seconds(&explanation, 0, Phase::Server) / connection.seconds,
            0.97,
        );
    }
}

/// What the capture lacks, the seconds that it does not show, and those that are idle.
#[test]
fn what_the_capture_lacks_is_not_seen() {
    // The server has each request for 10 ms, and the next one waits.
    let one = Run {
        outstanding: 1,
        ..SLOW
    };
    let pause = Run {
        thought: Duration::from_secs(2),
        requests: 1,
        ..SLOW
    };
    let short = Run {
        thought: Duration::from_millis(300),
        ..pause
    };
    let add = |runs: &[Run]| {
        let mut model = Model::new(&runs[0]);
        runs.iter().for_each(|run| model.add(run));
        records(&model.capture())
    };
    for (name, all, lacks, unseen, idle) in [
        ("nothing", add(&[SLOW]), 2.0..2.0, 0.0, 0.0),
        ("a part", add(&[SLOW]), 0.2..0.4, 0.2, 0.0),
        ("a part of one", add(&[one]), 0.2..0.4, 0.2, 0.0),
        ("the beginning", add(&[SLOW]), 0.0..0.3, 0.0, 0.0),
        ("a little", add(&[SLOW]), 0.3..0.301, 0.0, 0.0),
        // Of the 300 ms until the next request it is unknown whether another one is outstanding.
        (
            "a part before a short pause",
            add(&[SLOW, short, SLOW]),
            0.2..0.607,
            0.71,
            0.0,
        ),
        // The gap ends before the answer that is before the pause.
        (
            "a part before a pause",
            add(&[SLOW, pause, SLOW]),
            0.2..0.607,
            0.41,
            2.0,
        ),
    ] {
        let start = all[0].time;
        let seen = all.into_iter().filter(|record| {
            let time = (record.time - start).as_secs_f64();
            !lacks.contains(&time)
        });
        let seen: Vec<_> = seen.collect();
        let length = seen[seen.len() - 1].time - seen[0].time;
        let explanation = explain(&capture(seen));
        let connection = &explanation.connections[0];
        near(connection.seconds, length.as_secs_f64());
        let found = [Phase::Unseen, Phase::Idle].map(|phase| seconds(&explanation, 0, phase));
        // The next request is at most two answers after a gap.
        for (found, expected) in found.into_iter().zip([unseen, idle]) {
            assert!(
                (found - expected).abs() < 0.025,
                "{name}: {found} instead of {expected}"
            );
        }
        let says = |line: &String| line.contains("is not seen");
        let share = found[0] / connection.seconds;
        assert_eq!(
            explanation.unseen.iter().any(says),
            share > 0.05,
            "{name}: {:?}",
            explanation.unseen
        );
        assert_eq!(
            causes(&explanation).first(),
            Some(&Cause::SlowServer),
            "{name}"
        );
        assert!(explanation.verdict.causes[0].share > 0.8, "{name}");
        adds_up(&explanation);
    }
}

/// Cuts each packet to its first bytes, as the snap length of a capture does.
pub(super) fn cut(mut records: Vec<Record>, length: usize) -> Vec<u8> {
    for record in &mut records {
        record.bytes.truncate(length);
    }
    capture(records)
}

/// The headers of a request with one buffer end within 230 bytes of its packet.
#[test]
fn the_headers_of_cut_packets_are_enough() {
    for run in [SLOW, HEALTHY] {
        let whole = explain(&capture(modelled(&run, 40_000)));
        for length in [256, 1024] {
            let explanation = explain(&cut(modelled(&run, 40_000), length));
            does_not_see(&explanation, "and what is in their headers is explained");
            assert_eq!(causes(&explanation), causes(&whole), "{length}");
            assert_eq!(explanation.verdict.limit, whole.verdict.limit, "{length}");
            let [cut, whole] = [&explanation, &whole].map(|one| &one.connections[0]);
            assert_eq!(cut.path.gaps, 0, "{length}");
            assert_eq!(cut.rdma_bytes, whole.rdma_bytes, "{length}");
            let requests = |one: &ConnectionReport| -> u64 {
                one.requests.iter().map(|kind| kind.requests).sum()
            };
            assert_eq!(requests(cut), requests(whole), "{length}");
            for (phase, of_whole) in cut.phases.iter().zip(&whole.phases) {
                let difference = (phase.seconds - of_whole.seconds).abs();
                assert!(difference < 0.01 * whole.seconds, "{length}: {phase:?}");
            }
            adds_up(&explanation);
        }
    }
}

#[test]
fn packets_without_smb2_headers_are_named_and_mislead_nobody() {
    for length in [60, 74, 80, 100, 128, 150] {
        let explanation = explain(&cut(modelled(&SLOW, 40_000), length));
        assert!(!explanation.unseen.is_empty(), "{length}");
        if length > 100 {
            does_not_see(&explanation, "before the end of their SMB2 header");
        }
        let named = causes(&explanation);
        let first = named.first().unwrap_or(&Cause::SlowServer);
        assert_eq!(first, &Cause::SlowServer, "{length}: {named:?}");
        adds_up(&explanation);
    }
}

#[test]
fn smb_over_tcp_alone_does_not_use_rdma() {
    let mut talk = Talk::new();
    talk.ports = [40_000, 445];
    for _ in 0..10 {
        talk.packet(I, ACK, &[1; 100]);
        talk.packet(R, ACK, &[2; 1000]);
    }
    let explanation = explain(&talk.capture());
    assert_eq!(causes(&explanation), [Cause::RdmaNotUsed]);
    let cause = &explanation.verdict.causes[0];
    assert_eq!(explanation.verdict.bytes, 11_000);
    near(explanation.verdict.seconds, 0.019);
    assert!(cause.figures.contains("frames 4 to 23"), "{cause:?}");
    assert_eq!(explanation.unseen, [""; 0]);

    // With a copy by RDMA in the same capture, it is a remark.
    let mut both = modelled(&SLOW, 40_000);
    both.extend(records(&talk.capture()));
    let explanation = explain(&capture(both));
    assert_eq!(causes(&explanation).first(), Some(&Cause::SlowServer));
    does_not_see(&explanation, "11000 bytes went over TCP");
}
