//! tshark decodes what `smbdirect demo` sends: packets of the loopback interface, where tcpdump may
//! capture, and `--pcap` files.
//!
//! Without the tools each test prints the reason and skips, unless SMBDIRECT_REQUIRE_TOOLS is set.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

/// An odd length of many segments and several RDMA operations.
const FILE_SIZE: usize = 3_000_001;

/// The contents of a capture.
#[derive(Debug, Default)]
struct Seen {
    /// RDMAP Sends, with and without invalidation.
    sends: usize,
    sends_with_invalidate: usize,
    reads: usize,
    writes: usize,
    /// SMB Direct messages: negotiation and Data Transfer.
    smb_direct: usize,
    negotiate: usize,
    fpdus: usize,
    good_crcs: usize,
}

fn is_there(tool: &str) -> bool {
    let found = Command::new(tool)
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success());
    if !found {
        assert!(
            std::env::var_os("SMBDIRECT_REQUIRE_TOOLS").is_none(),
            "{tool} is required and missing"
        );
        eprintln!("skipped: {tool} is not installed");
    }
    found
}

fn tshark(capture: &Path, port: u16, arguments: &[&str]) -> String {
    let output = Command::new("tshark")
        // Port numbers must not decide what a stream is, and several Sends in one TCP segment
        // are each to be shown.
        .args(["-o", "tcp.try_heuristic_first:TRUE"])
        // Two processors may put packets into a capture in another order than they were sent.
        .args(["-o", "tcp.reassemble_out_of_order:TRUE"])
        .args(["-o", "iwarp_ddp_rdmap.reassemble_iwarp_rdma_send:FALSE"])
        .arg("-r")
        .arg(capture)
        .args(["-Y", &format!("tcp.port == {port}")])
        .args(arguments)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

fn judge(capture: &Path, port: u16) -> Seen {
    let fields = [
        "-T",
        "fields",
        "-E",
        "occurrence=a",
        "-E",
        "separator=;",
        "-e",
        "iwarp_rdma.opcode",
        "-e",
        "smb_direct.credits.requested",
        "-e",
        "smb_direct.negotiate_request",
        "-e",
        "smb_direct.negotiate_response",
        "-e",
        "iwarp_mpa.ulpdulength",
    ];
    let mut seen = Seen::default();
    for line in tshark(capture, port, &fields).lines() {
        let columns: Vec<Vec<&str>> = line
            .split(';')
            .map(|column| {
                column
                    .split(',')
                    .filter(|value| !value.is_empty())
                    .collect()
            })
            .collect();
        let opcode = |wanted: &str| columns[0].iter().filter(|value| **value == wanted).count();
        seen.sends += opcode("0x03") + opcode("0x04");
        seen.sends_with_invalidate += opcode("0x04");
        seen.reads += opcode("0x01");
        seen.writes += opcode("0x00");
        seen.smb_direct += columns[1].len();
        seen.negotiate += columns[2].len() + columns[3].len();
        seen.fpdus += columns[4].len();
    }
    let tree = tshark(capture, port, &["-V"]);
    seen.good_crcs = tree.matches("Good CRC32").count();
    assert_eq!(tree.matches("Bad CRC32").count(), 0);
    assert_eq!(tree.to_lowercase().matches("malformed").count(), 0);
    seen
}

fn assert_all_is_understood(seen: &Seen, max_send_size: usize) {
    assert_eq!(
        seen.smb_direct, seen.sends,
        "each Send is an SMB Direct message: {seen:?}"
    );
    assert_eq!(seen.negotiate, 2, "{seen:?}");
    assert_eq!(seen.good_crcs, seen.fpdus, "{seen:?}");
    let segments = FILE_SIZE / (max_send_size - 24);
    assert!(seen.sends > segments, "{seen:?}");
    assert!(
        seen.sends_with_invalidate >= 2 && seen.reads >= 1 && seen.writes >= 2,
        "{seen:?}"
    );
}

/// Runs the demo and returns its port.
fn demo(folder: &Path, arguments: &[&str]) -> u16 {
    let file = folder.join("file");
    fs::write(
        &file,
        (0..FILE_SIZE)
            .map(|i| (i * 7 / 3) as u8)
            .collect::<Vec<_>>(),
    )
    .unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_smbdirect"))
        .args(["demo", "--json"])
        .arg(&file)
        .args(arguments)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).unwrap();
    let first: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    first["address"]
        .as_str()
        .unwrap()
        .rsplit_once(':')
        .unwrap()
        .1
        .parse()
        .unwrap()
}

/// tcpdump on the loopback interface, if it is allowed there.
struct Capture {
    tcpdump: Child,
}

impl Capture {
    fn start(file: &Path) -> Option<Self> {
        let mut tcpdump = Command::new("tcpdump")
            .args([
                "-i",
                "lo",
                "-s",
                "0",
                "-B",
                "65536",
                "--immediate-mode",
                "-U",
                "-w",
            ])
            .arg(file)
            .arg("tcp")
            .stderr(Stdio::piped())
            .spawn()
            .ok()?;
        let mut first = String::new();
        BufReader::new(tcpdump.stderr.take()?)
            .read_line(&mut first)
            .ok()?;
        if !first.contains("listening on") {
            eprintln!("skipped: tcpdump may not capture: {}", first.trim());
            tcpdump.wait().ok()?;
            return None;
        }
        Some(Self { tcpdump })
    }

    /// Waits until the file has stopped growing.
    fn finish(mut self, file: &Path) {
        let size = || fs::metadata(file).map_or(0, |metadata| metadata.len());
        let deadline = Instant::now() + Duration::from_secs(30);
        let mut before = size();
        loop {
            sleep(Duration::from_millis(300));
            let now = size();
            if (now == before && now > 0) || Instant::now() > deadline {
                break;
            }
            before = now;
        }
        // On this signal it finishes the packet that it writes.
        let id = self.tcpdump.id().to_string();
        let asked = Command::new("kill").args(["-s", "TERM", &id]).status();
        assert!(asked.unwrap().success());
        self.tcpdump.wait().unwrap();
    }
}

#[test]
fn real_packets_of_the_demo_are_understood() {
    if !is_there("tshark") || !is_there("tcpdump") {
        return;
    }
    for (profile, max_send_size) in [("default", 8136), ("windows", 1364)] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("loopback.pcap");
        let Some(capture) = Capture::start(&file) else {
            return;
        };
        let port = demo(folder.path(), &["--profile", profile]);
        capture.finish(&file);
        assert_all_is_understood(&judge(&file, port), max_send_size);
    }
}

#[test]
fn pcap_files_of_the_demo_are_understood() {
    if !is_there("tshark") {
        return;
    }
    for (profile, max_send_size) in [("default", 8136), ("linux", 1364)] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("own.pcap");
        let path = file.to_str().unwrap();
        let port = demo(folder.path(), &["--profile", profile, "--pcap", path]);
        assert_all_is_understood(&judge(&file, port), max_send_size);
    }
}
