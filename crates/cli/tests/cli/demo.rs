//! `demo`: all sizes, all profiles, both transports, both languages.

use std::{
    fs,
    process::{Command, Stdio},
};

use crate::support::{run, start, write_noise};

const SIZES: [usize; 5] = [0, 1, 131_072, (1 << 20) + 1, 5_242_917];

#[test]
fn moves_files_of_all_sizes() {
    files_of_all_sizes(&["iwarp", "loopback"]);
}

#[test]
fn moves_files_of_all_sizes_by_roce() {
    files_of_all_sizes(&["roce"]);
}

fn files_of_all_sizes(transports: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    for transport in transports {
        for size in SIZES {
            let path = write_noise(directory.path(), "file", size);
            let path = path.to_str().unwrap();
            let done = run(&["demo", path, "--transport", transport]).succeeded();
            let last = done.stdout.lines().last().unwrap();
            assert!(last.starts_with("every byte arrived three times"), "{last}");
            assert!(
                !done.stdout.contains('\x1b'),
                "no colour where no terminal is"
            );
            assert!(done.stdout.lines().count() < 24, "it fits a screen");
            assert!(done.stdout.lines().all(|line| line.chars().count() <= 112));
        }
    }
}

#[test]
fn json_has_the_documented_fields() {
    let directory = tempfile::tempdir().unwrap();
    let path = write_noise(directory.path(), "file", 3_000_000);
    let done = run(&["demo", path.to_str().unwrap(), "--json"]).succeeded();
    let events = done.json();
    let kinds: Vec<_> = events
        .iter()
        .map(|event| event["event"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["connected", "leg", "leg", "leg", "summary"]);
    assert_eq!(events[0]["bytes"], 3_000_000);
    assert_eq!(events[0]["transport"], "iwarp");
    assert_eq!(events[0]["negotiated"]["version"], "1.0");
    assert_eq!(events[0]["negotiated"]["max_send_size"], 8136);
    assert_eq!(events[0]["negotiated"]["max_read_write_size"], 8 << 20);
    for (leg, method) in events[1..4]
        .iter()
        .zip(["messages", "rdma_read", "rdma_write"])
    {
        assert_eq!(leg["method"], method);
        assert!(leg["bytes_per_second"].as_f64().unwrap() > 0.0);
        let (operations, invalidations) = match method {
            "messages" => (0, 0),
            _ => (3, 3),
        };
        assert_eq!(leg["rdma_operations"], operations);
        assert_eq!(leg["invalidations"], invalidations);
    }
    assert!(events[1]["segments"].as_u64().unwrap() > 3_000_000 / 8136);
    assert_eq!(
        (&events[4]["legs"], &events[4]["ok"]),
        (&3.into(), &true.into())
    );
}

#[test]
fn every_profile_negotiates_its_own_sizes() {
    let directory = tempfile::tempdir().unwrap();
    let path = write_noise(directory.path(), "file", 1_000_003);
    let path = path.to_str().unwrap();
    for (profile, max_send_size, max_fragmented) in [
        ("default", 8136, 1 << 20),
        ("windows", 1364, 1 << 20),
        ("linux", 1364, 173_910),
    ] {
        let done = run(&["demo", path, "--json", "--profile", profile]).succeeded();
        let negotiated = &done.json()[0]["negotiated"];
        assert_eq!(negotiated["max_send_size"], max_send_size, "{profile}");
        assert_eq!(
            negotiated["max_fragmented_send_size"], max_fragmented,
            "{profile}"
        );
    }
}

#[test]
fn a_long_file_can_be_interrupted_from_the_first_line_on() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("huge");
    fs::File::create(&path).unwrap().set_len(64 << 30).unwrap();
    let mut demo = start(&["demo", path.to_str().unwrap()]);
    assert!(demo.line().starts_with("huge, 64.0 GiB, over iwarp on "));
    demo.signal("INT");
    demo.finish().failed(1, "interrupted").one_line();
}

#[test]
fn the_smallest_of_everything_is_enough() {
    let directory = tempfile::tempdir().unwrap();
    let path = write_noise(directory.path(), "file", 300_001);
    for transport in ["iwarp", "loopback"] {
        let smallest = [
            "demo",
            path.to_str().unwrap(),
            "--transport",
            transport,
            "--send-credit-target",
            "1",
            "--receive-credit-max",
            "1",
            "--max-send-size",
            "128",
            "--max-receive-size",
            "128",
            "--max-fragmented-size",
            "128K",
            "--max-read-write-size",
            "64K",
        ];
        run(&smallest).succeeded();
    }
}

#[test]
fn checksums_of_the_frames_change_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = write_noise(directory.path(), "file", 100_000);
    for when in ["auto", "on", "off"] {
        run(&["demo", path.to_str().unwrap(), "--mpa-crc", when]).succeeded();
    }
}

/// The MPA Request contains what the options select.
#[test]
fn the_request_has_the_revision_and_the_depths_that_were_asked_for() {
    const KEY: &[u8] = b"MPA ID Req Frame";
    let directory = tempfile::tempdir().unwrap();
    let path = write_noise(directory.path(), "file", 100_000);
    let capture = directory.path().join("capture.pcap");
    // Flags and revision, then the length of the private data, then for revision 2 the enhanced block, then the
    // depths of SMB Direct.
    for (options, flags_and_revision, depths) in [
        (
            &[][..],
            b"\x10\x02",
            &b"\x80\x20\xc0\x20\0\0\0\x20\0\0\0\x20"[..],
        ),
        (
            &["--mpa-revision=2", "--mpa-crc=on", "--ird=5", "--ord=3"],
            b"\x50\x02",
            b"\x80\x08\xc0\x03\0\0\0\x08\0\0\0\x03",
        ),
        (
            &["--mpa-revision=1", "--ird=128", "--ord=1"],
            b"\0\x01",
            b"\0\0\0\x80\0\0\0\x01",
        ),
    ] {
        let demo = [
            "demo",
            path.to_str().unwrap(),
            "--pcap",
            capture.to_str().unwrap(),
        ];
        run(&[&demo, options].concat()).succeeded();
        let bytes = fs::read(&capture).unwrap();
        let at = bytes.windows(KEY.len()).position(|window| window == KEY);
        let request = &bytes[at.expect("a Request") + KEY.len()..];
        assert_eq!(&request[..2], flags_and_revision, "{options:?}");
        assert_eq!(&request[4..][..depths.len()], depths, "{options:?}");
    }
}

#[test]
fn the_capture_holds_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = write_noise(directory.path(), "file", 100_000);
    let capture = directory.path().join("capture.pcap");
    let capture = capture.to_str().unwrap();
    run(&["demo", path.to_str().unwrap(), "--pcap", capture]).succeeded();
    assert!(fs::metadata(capture).unwrap().len() > 3 * 100_000);
    let nowhere = directory.path().join("none/capture.pcap");
    run(&["demo", "--pcap", nowhere.to_str().unwrap()])
        .failed(1, "no such file or directory")
        .one_line();
}

#[cfg(target_os = "linux")]
#[test]
fn a_capture_that_is_incomplete_is_a_failure() {
    let directory = tempfile::tempdir().unwrap();
    // All that fits the buffer fails at the end, what does not in the middle.
    for size in [1, 3_000_000] {
        let path = write_noise(directory.path(), "file", size);
        let done = run(&["demo", path.to_str().unwrap(), "--pcap", "/dev/full"]);
        let says = "the capture /dev/full is incomplete: no space left on device";
        done.failed(1, says).one_line();
        assert!(done.stdout.contains("every byte arrived"), "{done:?}");
    }
}

/// tshark reads the capture, where it is installed.
#[test]
fn wireshark_reads_the_capture() {
    let directory = tempfile::tempdir().unwrap();
    let path = write_noise(directory.path(), "file", 300_000);
    let capture = directory.path().join("capture.pcap");
    let capture = capture.to_str().unwrap();
    run(&["demo", path.to_str().unwrap(), "--pcap", capture]).succeeded();
    let read = |filter: &str| {
        let options = [
            "-o",
            "tcp.check_checksum:TRUE",
            "-o",
            "ip.check_checksum:TRUE",
        ];
        let mut tshark = Command::new("tshark");
        tshark.args(["-r", capture, "-Y", filter]).args(options);
        let output = tshark.stdin(Stdio::null()).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        output.status.success().then_some(text)
    };
    let Some(messages) = read("smb_direct") else {
        eprintln!("skipped: there is no tshark");
        return;
    };
    for kind in ["NegotiateRequest", "NegotiateResponse", "DataMessage"] {
        assert!(messages.contains(kind), "{messages}");
    }
    let strange = "tcp.analysis.flags || _ws.malformed || \
                   tcp.checksum.status == \"Bad\" || ip.checksum.status == \"Bad\"";
    assert_eq!(read(strange).unwrap(), "");
}

#[test]
fn unreadable_input_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing");
    run(&["demo", missing.to_str().unwrap()])
        .failed(1, "no such file or directory")
        .one_line();
    run(&["demo", directory.path().to_str().unwrap()])
        .failed(1, "not a regular file")
        .one_line();
}
