//! Each limit from numbers alone, and the words that follow from it.

use super::{explain, limit::Figures};
use crate::{
    facts::{Fabric, InMessages, Measured, Measurement},
    measurement::{Cause, Operation, Rate},
};

/// MiB, in which rates are printed.
const MIB: f64 = 1_048_576.0;

/// Many requests are as fast as one, and nothing says why.
fn figures() -> Figures {
    Figures {
        one: Some(900.0 * MIB),
        many: 1000.0 * MIB,
        first_read: None,
        path: None,
        best_elsewhere: 1000.0 * MIB,
        busiest_thread: Some(0.5),
        machine_busy: Some(0.5),
        credit_wait: Some(0.0),
        smb2_credits: 512,
        request_bytes: 1 << 20,
        outstanding: 16,
        is_by_rdma: true,
        signs: true,
        in_messages: None,
    }
}

fn of(change: impl FnOnce(&mut Figures)) -> (Cause, Option<Cause>) {
    let mut figures = figures();
    change(&mut figures);
    let (many, one) = (figures.limit_of_many(), figures.limit_of_one());
    assert!(!figures.because(many).is_empty());
    (many, one)
}

fn many(change: impl FnOnce(&mut Figures)) -> Cause {
    of(change).0
}

#[test]
fn without_evidence_it_is_the_server_or_the_path() {
    assert_eq!(many(|_| ()), Cause::ServerOrPath);
}

#[test]
fn the_path_and_the_server_are_told_apart_by_what_the_path_carries() {
    assert_eq!(many(|it| it.path = Some(1200.0 * MIB)), Cause::Path);
    assert_eq!(many(|it| it.path = Some(1300.0 * MIB)), Cause::Server);
    // Another transport shows that the path carries more.
    assert_eq!(
        many(|it| it.best_elsewhere = 1200.0 * MIB),
        Cause::ServerOrPath
    );
    assert_eq!(many(|it| it.best_elsewhere = 1300.0 * MIB), Cause::Server);
}

#[test]
fn a_busy_thread_or_machine_is_this_machine() {
    assert_eq!(
        many(|it| it.busiest_thread = Some(0.95)),
        Cause::ThisMachine
    );
    assert_eq!(
        many(|it| it.busiest_thread = Some(0.85)),
        Cause::ServerOrPath
    );
    assert_eq!(many(|it| it.machine_busy = Some(0.97)), Cause::ThisMachine);
    assert_eq!(many(|it| it.machine_busy = Some(0.90)), Cause::ServerOrPath);
    // The processor limits the measurement of the path, too.
    let both = many(|it| {
        it.path = Some(1000.0 * MIB);
        it.busiest_thread = Some(0.95);
    });
    assert_eq!(both, Cause::ThisMachine);
    let unknown = many(|it| {
        it.busiest_thread = None;
        it.machine_busy = None;
    });
    assert_eq!(unknown, Cause::ServerOrPath);
}

#[test]
fn a_second_read_that_is_faster_shows_the_disk() {
    assert_eq!(many(|it| it.first_read = Some(400.0 * MIB)), Cause::Disk);
    assert_eq!(
        many(|it| it.first_read = Some(600.0 * MIB)),
        Cause::ServerOrPath
    );
}

#[test]
fn credits_of_smb_direct_and_of_smb2_are_told_apart() {
    assert_eq!(many(|it| it.credit_wait = Some(0.5)), Cause::SendCredits);
    assert_eq!(many(|it| it.credit_wait = Some(0.2)), Cause::ServerOrPath);
    // A slow server keeps messages with data waiting, over TCP too.
    let slow_server = many(|it| {
        it.credit_wait = Some(0.5);
        it.is_by_rdma = false;
    });
    assert_eq!(slow_server, Cause::ServerOrPath);
    let fast_over_tcp = many(|it| {
        it.credit_wait = Some(0.5);
        it.is_by_rdma = false;
        it.best_elsewhere = 2000.0 * MIB;
    });
    assert_eq!(fast_over_tcp, Cause::SendCredits);

    // 32 credits pay for two requests of 1 MiB, which are twice as fast as one.
    let with_credits = |smb2_credits, many| {
        of(move |it| {
            it.smb2_credits = smb2_credits;
            it.one = Some(100.0 * MIB);
            it.many = many;
            it.best_elsewhere = many;
        })
    };
    let (limit, one) = with_credits(32, 190.0 * MIB);
    assert_eq!(
        (limit, one),
        (Cause::Smb2Credits, Some(Cause::OneOutstanding))
    );
    // Two requests are not faster than one: more credits would not help.
    let (limit, one) = with_credits(32, 105.0 * MIB);
    assert_eq!(
        (limit, one),
        (Cause::ServerOrPath, Some(Cause::ServerOrPath))
    );
    // There are credits for all requests.
    let (limit, one) = with_credits(256, 1600.0 * MIB);
    assert_eq!(
        (limit, one),
        (Cause::ServerOrPath, Some(Cause::OneOutstanding))
    );
    assert_eq!(
        with_credits(0, 190.0 * MIB).0,
        Cause::ServerOrPath,
        "unknown"
    );
}

#[test]
fn one_request_is_the_limit_only_if_many_are_faster() {
    assert_eq!(
        of(|it| it.one = Some(500.0 * MIB)).1,
        Some(Cause::OneOutstanding)
    );
    assert_eq!(
        of(|it| it.one = Some(800.0 * MIB)).1,
        Some(Cause::ServerOrPath)
    );
    assert_eq!(of(|it| it.one = None).1, None);
}

#[test]
fn signing_is_the_limit_only_if_it_keeps_data_in_messages() {
    let protected = || InMessages::Protected("the server requires signing".into());
    assert_eq!(
        many(|it| it.in_messages = Some(protected())),
        Cause::Signing
    );
    let other = InMessages::Other("the server does not take RDMA".into());
    assert_eq!(many(|it| it.in_messages = Some(other)), Cause::ServerOrPath);
    let disk = many(|it| {
        it.in_messages = Some(protected());
        it.first_read = Some(100.0 * MIB);
    });
    assert_eq!(disk, Cause::Disk);
}

fn rate(operation: Operation, outstanding: u32, bytes_per_second: f64) -> Rate {
    Rate {
        operation,
        request_bytes: 1 << 20,
        outstanding,
        seconds: 1.0,
        bytes: bytes_per_second as u64,
        bytes_by_rdma: 0,
        bytes_per_second,
        requests_per_second: bytes_per_second / f64::from(1 << 20),
        cpu_seconds: Some(0.5),
        busiest_thread: Some(0.5),
        machine_busy: Some(0.5),
        credit_wait: None,
        longest_wait: 0.0,
    }
}

fn measured(fabric: Option<Fabric>, by: &str, many: f64) -> Measured {
    Measured {
        fabric,
        by: by.into(),
        rates: vec![
            rate(Operation::Read, 1, many / 2.0),
            rate(Operation::Read, 16, many),
        ],
        failure: None,
        smb2_credits: 512,
        signs: false,
        in_messages: None,
    }
}

fn sentences(direct: f64, tcp: f64) -> Vec<String> {
    let measurement = Measurement {
        transports: vec![
            measured(None, "TCP", tcp),
            measured(Some(Fabric::Iwarp), "software iWARP", direct),
        ],
        ..Measurement::default()
    };
    explain(&measurement).sentences
}

#[test]
fn smb_direct_is_called_slower_when_it_is() {
    assert_eq!(
        sentences(500.0 * MIB, 1000.0 * MIB),
        [
            "SMB Direct by software iWARP is slower than TCP here (read: 500 MiB/s and 0.98 GiB/s), because of the \
             server: the same data moves at 0.98 GiB/s by another transport."
        ]
    );
    let faster = sentences(2000.0 * MIB, 1000.0 * MIB);
    assert!(
        faster[0].contains("is 2.0 times as fast as TCP"),
        "{faster:?}"
    );
    let same = sentences(1050.0 * MIB, 1000.0 * MIB);
    assert!(same[0].contains("is as fast as TCP"), "{same:?}");
    assert!(
        same[0].ends_with("it is limited by the server or the path."),
        "{same:?}"
    );
}

#[test]
fn a_first_read_that_was_too_short_says_nothing_about_the_disk() {
    for (seconds, expected) in [(0.05, Cause::ServerOrPath), (0.5, Cause::Disk)] {
        let mut direct = measured(Some(Fabric::Iwarp), "siw0", 1000.0 * MIB);
        let first = rate(Operation::FirstRead, 16, 100.0 * MIB);
        direct.rates.push(Rate { seconds, ..first });
        let measurement = Measurement {
            transports: vec![direct],
            ..Measurement::default()
        };
        let limits = explain(&measurement).transports.remove(0).limits;
        assert_eq!(limits[0].limit, expected, "{limits:?}");
    }
}

#[test]
fn the_slowest_comparison_comes_first() {
    let mut direct = measured(Some(Fabric::Roce), "software RoCE", 2000.0 * MIB);
    direct.rates.push(rate(Operation::Write, 16, 100.0 * MIB));
    let mut tcp = measured(None, "TCP", 1000.0 * MIB);
    tcp.rates.push(rate(Operation::Write, 16, 400.0 * MIB));
    let measurement = Measurement {
        transports: vec![tcp, direct],
        path: Some(Ok(120.0 * MIB)),
        left: Vec::new(),
        is_cut_short: true,
    };
    let speed = explain(&measurement);
    assert_eq!(speed.comparisons[0].operation, Operation::Write);
    assert!(
        speed.sentences[0].contains("slower than TCP here (write"),
        "{speed:?}"
    );
    assert!(
        speed.sentences[0].contains("the path, which carries 120 MiB/s"),
        "{speed:?}"
    );
    assert_eq!(speed.sentences.len(), 3, "{speed:?}");
    assert!(
        speed.sentences[2].starts_with("The time was over"),
        "{speed:?}"
    );
}

#[test]
fn a_transport_without_another_is_judged_alone() {
    let measurement = Measurement {
        transports: vec![measured(Some(Fabric::Iwarp), "siw0", 1000.0 * MIB)],
        ..Measurement::default()
    };
    let speed = explain(&measurement);
    assert_eq!(
        speed.sentences,
        ["SMB Direct by siw0 (read: 0.98 GiB/s) is limited by the server or the path."]
    );
    let limits = &speed.transports[0].limits;
    assert_eq!(
        (limits[1].outstanding, limits[1].limit),
        (1, Cause::OneOutstanding)
    );
    assert!(speed.path_sentence.contains("listen --sink"), "{speed:?}");
}

#[test]
fn a_stall_and_a_file_that_may_be_left_are_said() {
    let mut tcp = measured(None, "TCP", 1000.0 * MIB);
    tcp.rates[1].longest_wait = 2.5;
    let of = |tcp: Measured, left: &[&str]| {
        let measurement = Measurement {
            transports: vec![tcp],
            left: left.iter().map(ToString::to_string).collect(),
            ..Measurement::default()
        };
        explain(&measurement).sentences.join(" ")
    };
    let said = of(tcp, &[".smbdirect-check-1"]);
    assert!(
        said.contains("answered nothing for 2.5 s over TCP (read of"),
        "{said}"
    );
    assert!(said.contains("scratch file .smbdirect-check-1"), "{said}");
    let said = of(measured(None, "TCP", 1000.0 * MIB), &[]);
    assert!(
        !said.contains("answered nothing") && !said.contains("scratch"),
        "{said}"
    );
}
