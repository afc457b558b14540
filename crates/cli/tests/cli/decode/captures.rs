//! Captures of Linux, compared with tshark if it is installed, and of our own commands.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
};

use pcap_file::DataLink;
use serde_json::Value;
use smbdirect_test::{
    decoded::{broken, events},
    talk::write_pcap,
};

use super::decode;
use crate::support::{listen, run, write_noise};

/// Small captures are next to the tests of the library, larger ones outside of the repository.
pub(super) fn capture(name: &str) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = [
        "../smbdirect/tests/captures",
        "tests/cli/decode",
        "../../../shared/pcaps",
    ];
    let found = folders
        .map(|folder| root.join(folder).join(name))
        .into_iter()
        .find(|path| path.exists());
    if found.is_none() {
        eprintln!("skipped: {name} is not there");
    }
    found
}

/// The captures of Linux, with the rules that they violate.
const LINUX: &[(&str, &[&str])] = &[
    ("host-to-guest-ksmbd.pcap", &[]),
    // ksmbd spends its last credit on an answer that grants nothing: our ping, which gives it one.
    ("ksmbd-last-credit.pcap", &["SMBD-3.1.5.1-06"]),
    ("kernel-client-to-host.pcap", &[]),
    ("siw-bigmsg.pcap", &[]),
    ("siw-frag.pcap", &[]),
    ("siw-keepalive.pcap", &[]),
    ("siw-large-head.pcap", &[]),
    ("siw-negotiate.pcap", &[]),
    ("siw-negotiate-crc.pcap", &[]),
    // ksmbd answers a small PreferredSendSize with a small MaxFragmentedSize.
    ("siw-negotiate-refused.pcap", &["SMBD-3.1.5.7-04"]),
    ("siw-seal.pcap", &[]),
    ("siw-small.pcap", &[]),
];

#[test]
fn violations_of_linux_are_reported_and_no_others() {
    for (name, rules) in LINUX {
        let Some(path) = capture(name) else { continue };
        let done = decode(&path, &["--json"]);
        assert_eq!(done.stderr, "", "{name}");
        assert_eq!(broken(&done), *rules, "{name}");
        let expected = i32::from(!rules.is_empty());
        assert_eq!(done.status.code(), Some(expected), "{name}");
        let summary = events(&done, "summary").pop().unwrap();
        assert_eq!(summary["missing_bytes"], 0, "{name}");
    }
}

/// Returns the fields of SMB Direct as tshark prints them, by frame.
fn by_tshark(path: &Path) -> Option<BTreeMap<u64, Vec<Vec<u64>>>> {
    let mut command = Command::new("tshark");
    command
        .args(["-o", "tcp.try_heuristic_first:TRUE"])
        .args(["-o", "iwarp_ddp_rdmap.reassemble_iwarp_rdma_send:FALSE"])
        .args(["-o", "smb_direct.reassemble_smb_direct:FALSE"])
        .arg("-r")
        .arg(path)
        .args(["-Y", "smb_direct", "-T", "fields", "-E", "separator=;"])
        .args(["-e", "frame.number"]);
    for field in FIELDS {
        command.args(["-e", &format!("smb_direct.{field}")]);
    }
    let Ok(output) = command.output() else {
        assert!(
            std::env::var_os("SMBDIRECT_REQUIRE_TOOLS").is_none(),
            "tshark is required and missing"
        );
        eprintln!("skipped: tshark is not installed");
        return None;
    };
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let row = |line: &str| {
        let mut columns = line.split(';');
        let frame = columns.next().unwrap().parse().unwrap();
        let values = columns.map(|column| column.split(',').filter_map(number).collect());
        (frame, values.collect())
    };
    Some(text.lines().map(row).collect())
}

/// The fields of a Data Transfer and a negotiation, by their names in tshark.
pub(super) const FIELDS: [&str; 14] = [
    "version.min",
    "version.max",
    "version.negotiated",
    "credits.requested",
    "credits.granted",
    "status",
    "max_read_write_size",
    "preferred_send_size",
    "max_receive_size",
    "max_fragmented_size",
    "flags",
    "remaining_length",
    "data_offset",
    "data_length",
];

/// The same fields, by their names here.
pub(super) const NAMES: [&str; 14] = [
    "min_version",
    "max_version",
    "negotiated_version",
    "credits_requested",
    "credits_granted",
    "status",
    "max_read_write_size",
    "preferred_send_size",
    "max_receive_size",
    "max_fragmented_size",
    "flags",
    "remaining_data_length",
    "data_offset",
    "data_length",
];

pub(super) fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Returns the same fields of our output.
fn by_decode(lines: &[Value]) -> BTreeMap<u64, Vec<Vec<u64>>> {
    let mut frames: BTreeMap<u64, Vec<Vec<u64>>> = BTreeMap::new();
    for line in lines {
        let name = line["message"].as_str().unwrap();
        if !name.starts_with("Negotiate") && name != "Data Transfer" {
            continue;
        }
        let frame = frames.entry(line["frame"].as_u64().unwrap());
        let columns = frame.or_insert_with(|| vec![Vec::new(); NAMES.len()]);
        for (column, name) in columns.iter_mut().zip(NAMES) {
            column.extend(line[name].as_u64());
        }
    }
    frames
}

#[test]
fn every_message_is_as_tshark_reads_it() {
    for (name, _) in LINUX {
        let Some(path) = capture(name) else { continue };
        let Some(expected) = by_tshark(&path) else {
            return;
        };
        let ours = by_decode(&events(&decode(&path, &["--json"]), "message"));
        let frames: usize = expected.len();
        assert!(frames >= 2, "{name}: {frames}");
        for (frame, fields) in &expected {
            assert_eq!(ours.get(frame), Some(fields), "{name}, frame {frame}");
        }
        assert_eq!(ours.len(), frames, "{name}");
    }
}

/// The traffic of our own commands violates no rule.
#[track_caller]
fn is_clean(path: &Path, needs: &[&str]) {
    let done = decode(path, &["--json"]).succeeded();
    assert_eq!(broken(&done), [""; 0]);
    let summary = events(&done, "summary").pop().unwrap();
    for name in needs {
        assert!(
            summary["messages"][name].as_u64() >= Some(1),
            "{name}: {summary}"
        );
    }
    assert_eq!(summary["missing_bytes"], 0);
    // The same connection is legal from its middle as well, and is reported as such.
    let frames = packets(path);
    let folder = tempfile::tempdir().unwrap();
    let later = folder.path().join("later.pcap");
    write_pcap(&later, DataLink::ETHERNET, &frames[frames.len() / 2..]);
    let port = responder_port(&done);
    let done = decode(&later, &["--json", "--port", &port]).succeeded();
    let stream = &events(&done, "stream")[0];
    assert_eq!(stream["from_start"], false);
    assert!(events(&done, "message").len() > 1);
}

fn responder_port(done: &crate::support::Done) -> String {
    let stream = &events(done, "stream")[0];
    let (_, port) = stream["responder"]
        .as_str()
        .unwrap()
        .rsplit_once(':')
        .unwrap();
    port.to_owned()
}

pub(super) fn packets(path: &Path) -> Vec<Vec<u8>> {
    let file = std::fs::File::open(path).unwrap();
    let mut reader = pcap_file::pcap::PcapReader::new(file).unwrap();
    let mut packets = Vec::new();
    while let Some(packet) = reader.next_packet() {
        packets.push(packet.unwrap().data.into_owned());
    }
    packets
}

#[test]
fn demo_violates_no_rule() {
    let folder = tempfile::tempdir().unwrap();
    let file = write_noise(folder.path(), "file", 1_000_003);
    let pcap = folder.path().join("demo.pcap");
    for arguments in [
        &["--profile", "default"][..],
        &["--profile", "linux", "--mpa-crc", "off"],
        &["--profile", "windows", "--revision", "v2014"],
        &["--send-credit-target", "2", "--receive-credit-max", "2"],
    ] {
        let all = [
            "demo",
            file.to_str().unwrap(),
            "--pcap",
            pcap.to_str().unwrap(),
        ];
        run(&[&all[..], arguments].concat()).succeeded();
        let needs = [
            "Negotiate Response",
            "Data Transfer",
            "RDMA Write",
            "RDMA Read Response",
        ];
        is_clean(&pcap, &needs);
    }
}

#[test]
fn ping_violates_no_rule() {
    let folder = tempfile::tempdir().unwrap();
    let (pcap, theirs) = (
        folder.path().join("ping.pcap"),
        folder.path().join("listen.pcap"),
    );
    let listening = listen(&["--echo", "--pcap", theirs.to_str().unwrap()]);
    for arguments in [&["--echo", "--size", "100K"][..], &[]] {
        let all = [
            "ping",
            &listening.address,
            "--interval",
            "0",
            "--count",
            "20",
        ];
        let pcap = ["--pcap", pcap.to_str().unwrap()];
        run(&[&all[..], &pcap, arguments].concat()).succeeded();
        is_clean(Path::new(pcap[1]), &["Data Transfer"]);
    }
    listening.terminate().succeeded();
    is_clean(&theirs, &["Data Transfer"]);
}

#[test]
fn explain_says_why_and_in_json_too() {
    let Some(path) = capture("siw-small.pcap") else {
        return;
    };
    let done = decode(&path, &["--explain"]);
    assert_eq!((done.status.code(), done.stderr.as_str()), (Some(0), ""));
    assert!(
        done.stdout.contains("1. 98 %  The client asks for nothing"),
        "{}",
        done.stdout
    );
    let done = decode(&path, &["--explain", "--json"]);
    let explanation = events(&done, "explanation").pop().unwrap();
    assert_eq!(explanation["verdict"]["causes"][0]["cause"], "think");
    let phases = explanation["connections"][0]["phases"].as_array().unwrap();
    let sum: f64 = phases
        .iter()
        .map(|phase| phase["seconds"].as_f64().unwrap())
        .sum();
    let seconds = explanation["connections"][0]["seconds"].as_f64().unwrap();
    assert!((sum / seconds - 1.0).abs() < 0.001, "{sum} of {seconds}");
}
