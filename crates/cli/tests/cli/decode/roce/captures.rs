//! Captures of Linux rxe: every packet as tshark reads it, and parts of captures.

use std::{collections::BTreeMap, path::Path, process::Command};

use pcap_file::DataLink;
use serde_json::Value;

use smbdirect_test::{
    decoded::{broken, events},
    talk::write_pcap,
};

use super::super::{
    captures::{FIELDS, NAMES, capture, number, packets},
    decode,
};

/// The captures: a mount by cifs from ksmbd in two guests with Linux 7.2.13 and rxe, recorded on the
/// server's tap. `read-write`: a file of 20,000 bytes is written and read, path MTU 512. `loss`: the
/// same with path MTU 1024, and each guest drops 3 % of the packets that it sends (`tc qdisc add dev
/// vec0 root netem loss 3%`); its first 250 packets. `reorder`: `netem loss 1% reorder 5% delay 2ms
/// duplicate 2%`. `frag`: 200,000 bytes in fragmented Sends, its first 160 packets. `keepalive`: 14 s
/// of an idle mount with a keepalive interval of 3 s.
const RXE: [&str; 7] = [
    "rxe-negotiate.pcap",
    "rxe-small.pcap",
    "rxe-read-write.pcap",
    "rxe-loss.pcap",
    "rxe-reorder.pcap",
    "rxe-frag.pcap",
    "rxe-keepalive.pcap",
];

/// The fields of a packet by their names in tshark, and here.
const PACKET: [(&str, &str); 11] = [
    ("infiniband.bth.opcode", "opcode"),
    ("infiniband.bth.destqp", "queue_pair"),
    ("infiniband.bth.psn", "psn"),
    ("infiniband.bth.a", "ack_request"),
    ("infiniband.bth.p_key", "p_key"),
    ("infiniband.reth.va", "virtual_address"),
    ("infiniband.reth.r_key", "r_key"),
    ("infiniband.reth.dmalen", "dma_length"),
    ("infiniband.aeth.syndrome", "syndrome"),
    ("infiniband.aeth.msn", "msn"),
    ("infiniband.ieth", "invalidated"),
];

/// The fields of the messages of the CM.
const CM: [(&str, &str); 10] = [
    ("infiniband.cm.req.localqpn", "queue_pair"),
    ("infiniband.cm.req.startpsn", "psn"),
    ("infiniband.cm.req.serviceid.dport", "port"),
    ("infiniband.cm.req.responderres", "ird"),
    ("infiniband.cm.req.initdepth", "ord"),
    ("infiniband.cm.req.ip_cm.sport", "source_port"),
    ("infiniband.cm.rep.localqpn", "queue_pair"),
    ("infiniband.cm.rep.startpsn", "psn"),
    ("infiniband.cm.rep.respres", "ird"),
    ("infiniband.cm.rep.initdepth", "ord"),
];

/// Returns the values of fields by frame, as tshark reads them; `None` if it is not installed.
fn by_tshark(
    path: &Path,
    filter: &str,
    fields: &[(&str, &str)],
) -> Option<BTreeMap<u64, Vec<Option<u64>>>> {
    // The R_Key of an IETH is printed as bytes.
    let value = |(text, (field, _)): (&String, &(&str, &str))| match *field {
        "infiniband.ieth" => u64::from_str_radix(text.trim_start_matches("0x"), 16).ok(),
        _ => number(text),
    };
    let row = |row: Vec<String>| {
        let values = row[1..].iter().zip(fields).map(value).collect();
        (row[0].parse().unwrap(), values)
    };
    Some(rows(path, filter, fields)?.into_iter().map(row).collect())
}

/// Returns the frame and the fields of each packet, as tshark prints them.
fn rows(path: &Path, filter: &str, fields: &[(&str, &str)]) -> Option<Vec<Vec<String>>> {
    let mut command = Command::new("tshark");
    command.arg("-r").arg(path).args(["-Y", filter]);
    command.args(["-o", "smb_direct.reassemble_smb_direct:FALSE"]);
    command.args(["-T", "fields", "-E", "separator=;", "-E", "occurrence=f"]);
    command.args(["-e", "frame.number"]);
    for (field, _) in fields {
        command.args(["-e", field]);
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
    let row = |line: &str| line.split(';').map(str::to_owned).collect();
    Some(text.lines().map(row).collect())
}

/// Returns the same of ours.
fn values(line: &Value, fields: &[(&str, &str)]) -> Vec<Option<u64>> {
    let value = |(_, name): &(&str, &str)| match &line[*name] {
        Value::Bool(is_set) => Some(u64::from(*is_set)),
        value => value.as_u64(),
    };
    fields.iter().map(value).collect()
}

#[test]
fn every_packet_is_as_tshark_reads_it() {
    for name in RXE {
        let Some(path) = capture(name) else { continue };
        let filter = "infiniband && infiniband.bth.opcode < 32";
        let Some(expected) = by_tshark(&path, filter, &PACKET) else {
            return;
        };
        assert!(expected.len() > 50, "{name}");
        let done = decode(&path, &["--json", "--packets"]).succeeded();
        let lines = events(&done, "packet");
        let frame = |line: &Value| line["frame"].as_u64().unwrap();
        let found: BTreeMap<_, _> = lines
            .iter()
            .map(|line| (frame(line), values(line, &PACKET)))
            .collect();
        assert_eq!(lines.len(), found.len(), "{name}: one packet a frame");
        for (frame, expected) in &expected {
            assert_eq!(found.get(frame), Some(expected), "{name}, frame {frame}");
        }
        assert_eq!(found.len(), expected.len(), "{name}");
        let is_right = |line: &Value| line["icrc"] == true;
        assert!(lines.iter().all(is_right), "{name}: an ICRC");
    }
}

/// tshark shows a message of several packets with the first of them, and `decode` with the last, so
/// the messages of each end are compared in their order.
#[test]
fn every_message_of_smb_direct_is_as_tshark_reads_it() {
    for name in RXE {
        if ["rxe-loss.pcap", "rxe-reorder.pcap"].contains(&name) {
            // tshark shows messages that were sent again twice.
            continue;
        }
        let Some(path) = capture(name) else { continue };
        let fields = FIELDS.map(|field| format!("smb_direct.{field}"));
        let names: Vec<_> = fields.iter().map(String::as_str).zip(NAMES).collect();
        let is_request = ("smb_direct.negotiate_request", "");
        let columns = [&[("ip.src", ""), is_request], &names[..]].concat();
        let Some(messages) = rows(&path, "smb_direct", &columns) else {
            return;
        };
        let done = decode(&path, &["--json"]).succeeded();
        let lines = events(&done, "message");
        assert!(messages.len() > 20, "{name}");
        let mut compared = 0;
        for (address, from) in [("10.77.0.3", "initiator"), ("10.77.0.2", "responder")] {
            let expected = messages.iter().filter(|row| row[1] == address);
            let expected = expected.map(|row| row[3..].iter().map(|text| number(text)).collect());
            let found = lines.iter().filter(|line| {
                let kind = line["message"].as_str().unwrap();
                let is_smb = kind.starts_with("Negotiate") || kind == "Data Transfer";
                is_smb && line["from"] == from
            });
            let found = found.map(|line| values(line, &names));
            let both: [Vec<Vec<Option<u64>>>; 2] = [expected.collect(), found.collect()];
            assert_eq!(both[0], both[1], "{name}, {from}");
            compared += both[0].len();
        }
        assert_eq!(compared, messages.len(), "{name}");
    }
}

#[test]
fn every_message_of_the_cm_is_as_tshark_reads_it() {
    for name in RXE {
        let Some(path) = capture(name) else { continue };
        let Some(expected) = by_tshark(&path, "infiniband.mad.attributeid", &CM) else {
            return;
        };
        let done = decode(&path, &["--json"]).succeeded();
        let lines = events(&done, "message");
        let of = |frame: u64| lines.iter().find(|line| line["frame"] == frame);
        for (frame, expected) in expected {
            let line = of(frame).unwrap_or_else(|| panic!("{name}, frame {frame}"));
            let kind = line["message"].as_str().unwrap();
            assert!(kind.starts_with("CM "), "{name}: {line}");
            let range = match kind {
                "CM REQ" => 0..6,
                "CM REP" => 6..10,
                _ => continue,
            };
            let found = values(line, &CM[range.clone()]);
            assert_eq!(found, expected[range], "{name}, frame {frame}");
        }
    }
}

#[test]
fn the_captures_of_rxe_are_complete() {
    for name in RXE {
        let Some(path) = capture(name) else { continue };
        let done = decode(&path, &["--json"]).succeeded();
        let summary = events(&done, "summary").pop().unwrap();
        assert_eq!(summary["missing_packets"], 0, "{name}");
        assert_eq!(summary["roce_wrong_icrc"], 0, "{name}");
        assert_eq!(summary["roce_undecoded"], 0, "{name}");
        let streams = events(&done, "stream");
        assert_eq!(streams.len(), 1, "{name}");
        assert_eq!(streams[0]["from_start"], true, "{name}");
        assert_eq!(streams[0]["port"], 445, "{name}");
        // The credits are known from the negotiation to the end.
        let last = events(&done, "message");
        let last = last
            .iter()
            .rfind(|line| line["message"] == "Data Transfer")
            .unwrap();
        assert!(last["initiator_credits"].is_u64(), "{name}: {last}");
    }
}

/// A packet that was lost and sent again does not appear twice.
#[test]
fn losses_do_not_change_the_messages() {
    let Some(path) = capture("rxe-loss.pcap") else {
        return;
    };
    let done = decode(&path, &["--json"]).succeeded();
    let totals = &events(&done, "summary")[0]["roce"][0];
    for name in ["sent_again", "naks"] {
        assert!(totals[name].as_u64() > Some(0), "{name}: {totals}");
    }
    let lines = events(&done, "message");
    let sum = |kind: &str| -> u64 {
        let of_kind = lines.iter().filter(|line| line["message"] == kind);
        of_kind.map(|line| line["length"].as_u64().unwrap()).sum()
    };
    // Files of 100 and 20,000 bytes are read; only the larger one is written by RDMA, and its rest
    // is in a message.
    assert_eq!(sum("RDMA Write"), 20_100);
    assert_eq!(sum("RDMA Read Response"), 16_384);
    for line in lines.iter().filter(|line| line["dma_length"].is_u64()) {
        if line["message"] != "RDMA Read Request" {
            assert_eq!(line["dma_length"], line["length"], "{line}");
        }
    }
}

/// A capture without its beginning is read once the PSNs show which two directions are a connection.
#[test]
fn a_capture_is_read_from_any_packet_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("later.pcap");
    for name in ["rxe-small.pcap", "rxe-read-write.pcap"] {
        let Some(whole) = capture(name) else { continue };
        let whole = packets(&whole);
        for first in (0..whole.len() - 20).step_by(whole.len() / 16) {
            write_pcap(&path, DataLink::ETHERNET, &whole[first..]);
            let done = decode(&path, &["--json", "--packets"]).succeeded();
            let streams = events(&done, "stream");
            assert_eq!(streams.len(), 1, "{name} from {first}: {}", done.stdout);
            assert_eq!(streams[0]["roles_known"], true, "{name} from {first}");
            assert_eq!(streams[0]["initiator"], "10.77.0.3", "{name} from {first}");
            for end in ["initiator_queue_pair", "responder_queue_pair"] {
                let is_known = streams[0][end] == 0x11 || streams[0]["from_start"] == true;
                assert!(is_known, "{name} from {first}: {}", streams[0]);
            }
            let read = events(&done, "packet").len();
            let rest = whole.len() - first;
            assert!(read + 24 > rest, "{name} from {first}: {read} of {rest}");
        }
    }
}

/// Neither missing packets nor the order of packets is reported as a violation.
#[test]
fn a_capture_of_rxe_with_holes_accuses_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("holes.pcap");
    for name in ["rxe-small.pcap", "rxe-read-write.pcap", "rxe-loss.pcap"] {
        let Some(whole) = capture(name) else { continue };
        let whole = packets(&whole);
        let check = |what: String, some: &[Vec<u8>]| {
            write_pcap(&path, DataLink::ETHERNET, some);
            let done = decode(&path, &["--json"]).succeeded();
            assert_eq!(broken(&done), [""; 0], "{name}, {what}");
            assert!(events(&done, "message").len() > 5, "{name}, {what}");
        };
        for seed in 0..12 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut some = whole.clone();
            match seed % 3 {
                0 => some.retain(|_| random.u8(..20) > 0),
                1 => some.retain(|_| random.u8(..3) > 0),
                _ => some
                    .chunks_mut(8)
                    .for_each(|packets| random.shuffle(packets)),
            }
            check(format!("seed {seed}"), &some);
        }
        for last in [2, 3] {
            let from = |packet: &&Vec<u8>| packet[29] == last;
            let some: Vec<_> = whole.iter().filter(from).cloned().collect();
            check(format!("only from 10.77.0.{last}"), &some);
        }
    }
}
