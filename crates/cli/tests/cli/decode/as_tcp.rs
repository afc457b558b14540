//! `decode --as-tcp`: tshark sees each message that `decode` sees, outputs that cannot be written, and streams.

use std::{collections::BTreeMap, fs, path::Path, process::Command};

use smbdirect_test::{
    decoded::events,
    messages::{V1, descriptor, read, read_answer, write, write_answer},
    talk::{I, R, Talk, Transfer},
};

use super::{captures::capture, decode};
use crate::support::{Done, PROGRAM};

fn as_tcp(capture: &Path, to: &Path) -> Done {
    decode(capture, &["--as-tcp", to.to_str().unwrap(), "--json"])
}

/// Returns how many messages of each kind `decode` sees.
fn decoded(path: &Path) -> BTreeMap<String, usize> {
    let mut seen = BTreeMap::new();
    for event in events(&decode(path, &["--json"]), "message") {
        let payload = event["payload"].as_str().unwrap_or_default();
        if payload.starts_with("SMB") {
            *seen.entry(payload.to_owned()).or_default() += 1;
        }
    }
    seen
}

/// Returns what tshark prints of a capture.
fn tshark(path: &Path, arguments: &[&str]) -> String {
    let output = Command::new("tshark")
        .arg("-r")
        .arg(path)
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns how many messages tshark sees. The first element of a compound stands for it.
fn seen_by_tshark(path: &Path) -> BTreeMap<&'static str, usize> {
    let fields = "smb2.header.transform.msg_size,smb2.flags.response,smb2.flags.chained";
    let fields = fields.split(',').flat_map(|field| ["-e", field]);
    let arguments = ["-Y", "smb2", "-T", "fields", "-E", "separator=;"];
    let lines = tshark(
        path,
        &arguments.into_iter().chain(fields).collect::<Vec<_>>(),
    );
    let mut seen = BTreeMap::new();
    for line in lines.lines() {
        let columns: Vec<_> = line.split(';').collect();
        let count = |column: &str| column.split(',').filter(|cell| !cell.is_empty()).count();
        *seen.entry("encrypted").or_default() += count(columns[0]);
        let is_first = columns[1].split(',').zip(columns[2].split(','));
        for (response, _) in is_first.filter(|(_, chained)| matches!(*chained, "0" | "False")) {
            let kind = match response {
                "1" | "True" => "response",
                _ => "request",
            };
            *seen.entry(kind).or_default() += 1;
        }
    }
    seen
}

fn has_tshark() -> bool {
    let found = Command::new("tshark").arg("--version").output();
    let found = found.is_ok_and(|output| output.status.success());
    if !found {
        assert!(
            std::env::var_os("SMBDIRECT_REQUIRE_TOOLS").is_none(),
            "tshark is required and missing"
        );
        eprintln!("skipped: tshark is not installed");
    }
    found
}

#[test]
fn tshark_sees_each_message_of_linux() {
    if !has_tshark() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for name in [
        "host-to-guest-ksmbd.pcap",
        "kernel-client-to-host.pcap",
        "rxe-negotiate.pcap",
        "rxe-small.pcap",
        "siw-bigmsg.pcap",
        "siw-frag.pcap",
        "siw-keepalive.pcap",
        "siw-large-head.pcap",
        "siw-negotiate-crc.pcap",
        "siw-seal.pcap",
        "siw-small.pcap",
    ] {
        let Some(path) = capture(name) else { continue };
        let to = folder.path().join("tcp.pcapng");
        let done = as_tcp(&path, &to);
        assert_eq!((done.status.code(), done.stderr.as_str()), (Some(0), ""));
        let summary = events(&done, "as_tcp").pop().unwrap();
        assert_eq!(
            (&summary["gaps"], &summary["without_data"]),
            (&0.into(), &0.into())
        );
        let (ours, seen) = (decoded(&path), seen_by_tshark(&to));
        for (words, kind) in [
            (" request", "request"),
            (" response", "response"),
            ("encrypted", "encrypted"),
        ] {
            let ours = ours.iter().filter(|(payload, _)| payload.ends_with(words));
            let ours: usize = ours.map(|(_, count)| count).sum();
            let seen = seen.get(kind).copied().unwrap_or_default();
            assert_eq!(seen, ours, "{name}: {kind}");
        }
        assert_eq!(tshark(&to, &["-Y", "_ws.malformed"]), "", "{name}");
        let checks = [
            "-o",
            "tcp.check_checksum:TRUE",
            "-o",
            "ip.check_checksum:TRUE",
        ];
        let wrong = ["-Y", "tcp.checksum.status == 0 or ip.checksum.status == 0"];
        assert_eq!(
            tshark(&to, &[checks.as_slice(), &wrong].concat()),
            "",
            "{name}"
        );
        let lost = [
            "-Y",
            "tcp.analysis.lost_segment or tcp.analysis.ack_lost_segment",
        ];
        assert_eq!(tshark(&to, &lost), "", "{name}");
    }
}

fn message(talk: &mut Talk, way: usize, payload: &[u8]) {
    let transfer = Transfer {
        rest: [&[0; 4], payload].concat(),
        ..Transfer::of(payload.len() as u32, 0)
    };
    talk.transfer(way, &transfer);
}

fn made(folder: &Path) -> std::path::PathBuf {
    let mut talk = Talk::established();
    message(&mut talk, I, &write(1, 0, b"data"));
    message(&mut talk, R, &write_answer(1, 4));
    message(&mut talk, I, &read(2, 0, 4, V1, &[descriptor(0, 1, 4)]));
    message(&mut talk, R, &read_answer(2, &[], 4));
    let path = folder.join("made.pcap");
    fs::write(&path, talk.capture()).unwrap();
    path
}

/// `/dev/stdout` is stdout under another name.
#[cfg(target_os = "linux")]
#[test]
fn stdout_has_the_capture_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = made(folder.path());
    let written = |to: &str| {
        let mut command = Command::new(PROGRAM);
        command.args(["decode", path.to_str().unwrap(), "--as-tcp", to]);
        command.output().unwrap().stdout
    };
    assert_eq!(written("/dev/stdout"), written("-"));
}

#[test]
fn the_capture_itself_is_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = made(folder.path());
    let before = fs::read(&path).unwrap();
    let link = folder.path().join("link.pcap");
    fs::hard_link(&path, &link).unwrap();
    for to in [&path, &link] {
        as_tcp(&path, to)
            .failed(1, "it is the capture itself; name another file")
            .one_line();
        assert_eq!(fs::read(&path).unwrap(), before);
    }
    #[cfg(target_os = "linux")]
    {
        let done = Command::new(PROGRAM)
            .args(["decode", "-", "--as-tcp", path.to_str().unwrap()])
            .stdin(fs::File::open(&path).unwrap())
            .output()
            .unwrap();
        assert_eq!(done.status.code(), Some(1), "{done:?}");
        assert_eq!(fs::read(&path).unwrap(), before);
    }
    as_tcp(&path, &folder.path().join("none/tcp.pcapng"))
        .failed(1, "cannot write")
        .one_line();
    as_tcp(&path, folder.path())
        .failed(1, "cannot write")
        .one_line();
    #[cfg(target_os = "linux")]
    as_tcp(&path, Path::new("/dev/full"))
        .failed(1, "cannot write /dev/full")
        .one_line();
}

#[test]
fn text_says_what_was_written_and_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let path = made(folder.path());
    let to = folder.path().join("tcp.pcapng");
    let done = decode(&path, &["--as-tcp", to.to_str().unwrap()]);
    let lines: Vec<_> = done.stdout.lines().collect();
    assert_eq!(
        lines,
        [
            "1 connection of SMB Direct with 4 messages, 0 B of data that RDMA moved",
            "1 READ or WRITE whose data is not all in the capture: left without it",
        ],
        "{done:?}"
    );
    // To stdout: the same file, and nothing else.
    let written = fs::read(&to).unwrap();
    let output = Command::new(PROGRAM)
        .args(["decode", path.to_str().unwrap(), "--as-tcp", "-"])
        .output()
        .unwrap();
    assert_eq!((output.status.code(), output.stdout), (Some(0), written));
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = made(folder.path());
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let done = Command::new(PROGRAM)
        .args(["decode", path.to_str().unwrap(), "--as-tcp", "-"])
        .stdout(writer)
        .output()
        .unwrap();
    assert_eq!((done.status.code(), &done.stderr[..]), (Some(0), &b""[..]));
}

#[test]
fn a_capture_without_a_message_of_smb_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("made.pcap");
    fs::write(&path, Talk::established().capture()).unwrap();
    as_tcp(&path, &folder.path().join("tcp.pcapng"))
        .failed(1, "no message of SMB in 1 connection of SMB Direct")
        .one_line();
    fs::write(
        &path,
        smbdirect_test::talk::pcap(pcap_file::DataLink::ETHERNET, &[]),
    )
    .unwrap();
    as_tcp(&path, &folder.path().join("tcp.pcapng"))
        .failed(1, "no packet of TCP")
        .one_line();
}
