//! Measurements with both ends in this process, in the shortest bursts. No test depends on a rate.

use std::{net::TcpStream, sync::atomic::AtomicBool, time::Duration};

use smbdirect_bench::{
    Choice, Cores, Effort, EndSettings, Load, Means, Near, Operation, Placement, Smb, Subject,
    Summary, measure, measure_loads, start_far_thread,
};
use smbdirect_transport::Kind;

/// Returns a choice of `subjects` with messages of one size, on any cores.
fn choice(over: Kind, subjects: &[Subject], size: u32) -> Choice {
    Choice {
        smb: Smb {
            over,
            crc: true,
            segment: 0,
            send_credit_target: 255,
            receive_credit_max: 255,
            max_read_write_size: 8 << 20,
        },
        crcs: vec![true],
        segments: vec![8136, 1364],
        sizes: vec![size],
        subjects: subjects.to_vec(),
        outstanding: vec![16],
        directions: vec![false],
        busy: false,
        connections: vec![1],
        with_loads: false,
        placement: Placement::Free,
        alone: false,
    }
}

/// Connects the near end to a far end in a thread of its own.
fn ends() -> Near {
    let settings = EndSettings {
        cores: Cores::allowed(),
        iwarp: Default::default(),
        roce: Default::default(),
        adapters: None,
        in_process: None,
        max_connections: 16,
    };
    let (address, shared) = start_far_thread(&settings).unwrap();
    let settings = EndSettings {
        in_process: Some(shared),
        ..settings
    };
    Near::new(TcpStream::connect(address).unwrap(), settings).unwrap()
}

/// Measures each row once, and checks that each has a rate.
fn measured(choice: &Choice) -> Summary {
    let effort = Effort {
        rounds: 1,
        time: Duration::from_millis(2),
        most: Duration::from_secs(20),
    };
    let stop = AtomicBool::new(false);
    let rows = choice.rows();
    let measured = measure(&mut ends(), None, &rows, effort, &stop, &mut |_, _, _| ());
    let summary = measured.unwrap().summarise();
    assert_eq!(summary.results.len(), rows.len());
    for result in &summary.results {
        assert!(result.rate[1] > 0.0 && result.messages > 0.0, "{result:?}");
        assert!(result.samples > 0, "{result:?}");
    }
    summary
}

/// Returns the number of rows whose means and operation are these.
fn count(summary: &Summary, is: impl Fn(Means, Operation) -> bool) -> usize {
    let works = summary
        .results
        .iter()
        .filter_map(|result| result.row.work());
    works.filter(|work| is(work.means, work.kind)).count()
}

#[test]
fn round_trips_have_a_histogram() {
    let summary = measured(&choice(Kind::Iwarp, &[Subject::Latency], 64));
    // SMB Direct, plain TCP and frames, sleeping and busy-polling.
    assert_eq!(summary.results.len(), 6);
    for result in &summary.results {
        let round_trips = result.round_trips.as_ref().expect("a row of round trips");
        assert!(round_trips.min > 0.0 && round_trips.min <= round_trips.max());
        assert!(!round_trips.buckets().is_empty());
        assert!(summary.against_tcp(result, false).is_some());
    }
}

#[test]
fn in_the_process_it_is_compared_with_a_channel() {
    let subjects = [
        Subject::Send,
        Subject::Write,
        Subject::Read,
        Subject::Latency,
    ];
    let mut choice = choice(Kind::Loopback, &subjects, 1000);
    choice.segments.truncate(1);
    let summary = measured(&choice);
    let is_ours =
        |means, _| matches!(means, Means::SmbDirect(smb) if smb.over == Kind::Loopback && !smb.crc);
    assert_eq!(count(&summary, is_ours), 5);
    assert_eq!(count(&summary, |means, _| means == Means::Channel), 2);
}

#[test]
fn several_connections_both_ways() {
    for (both, connections) in [(true, 1), (false, 3)] {
        let subjects = [Subject::Send, Subject::Read, Subject::Write];
        let choice = Choice {
            directions: vec![both],
            connections: vec![connections],
            ..choice(Kind::Iwarp, &subjects, 5000)
        };
        // Frames are compared in one direction, with one connection.
        let summary = measured(&choice);
        let by = |wanted| count(&summary, |means, kind| (means, kind) == wanted);
        assert_eq!(by((Means::Tcp, Operation::Send)), 1);
        assert_eq!(by((Means::Tcp, Operation::Batch)), 1);
        assert_eq!(summary.results.len(), 6);
    }
}

#[test]
fn requests_are_measured_beside_the_data_of_each_number_of_connections() {
    let choice = Choice {
        connections: vec![1, 3],
        with_loads: true,
        ..choice(Kind::Iwarp, &[Subject::Connections], 64)
    };
    assert!(choice.rows().is_empty());
    let (mut loads, stop) = (Vec::new(), AtomicBool::new(false));
    let effort = (1, Some(Duration::from_millis(2)));
    let mut check = |load: &Load| {
        let least = [load.p50_seconds, load.p99_seconds, load.p999_seconds];
        assert!(least.iter().all(|&seconds| seconds > 0.0), "{load:?}");
        assert!(load.requests > 0 && load.gib_per_second.least > 0.0);
        let is_compared = load.means == "smbdirect";
        assert_eq!(load.rate_to_tcp.is_some(), is_compared, "{load:?}");
        assert_eq!(load.p99_to_tcp.is_some(), is_compared, "{load:?}");
        loads.push((load.connections, load.kind, load.size, load.means));
    };
    measure_loads(&mut ends(), &choice, effort, &stop, &mut check).unwrap();
    let mut expected = Vec::new();
    for connections in [1, 3] {
        for (kind, size) in [("write", 65_536), ("read", 65_536), ("send", 4096)] {
            expected.extend(["smbdirect", "tcp"].map(|means| (connections, kind, size, means)));
        }
    }
    assert_eq!(loads, expected);
}
