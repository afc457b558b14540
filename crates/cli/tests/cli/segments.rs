//! FPDUs and TCP segments: tcpdump captures what `smbdirect ping` and `listen` send, in a network
//! namespace whose loopback interface has the MTU of Ethernet.
//!
//! Prints the reason and skips without the right to create a namespace, and without tcpdump unless
//! SMBDIRECT_REQUIRE_TOOLS is set.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use pcap_file::pcap::PcapReader;
use tempfile::TempDir;

use crate::namespace::Namespace;

/// The time limit of a step.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

/// A process. Dropping it ends the process.
struct Running(Child);

impl Running {
    /// Starts it, and waits for the line on stdout or stderr that reports that it is ready.
    fn ready(mut command: Command, says: &str, on_stdout: bool) -> Self {
        if on_stdout {
            command.stdout(Stdio::piped());
        } else {
            command.stderr(Stdio::piped());
        }
        let mut child = command.spawn().unwrap();
        let mut lines: Box<dyn BufRead + Send> = if on_stdout {
            Box::new(BufReader::new(child.stdout.take().unwrap()))
        } else {
            Box::new(BufReader::new(child.stderr.take().unwrap()))
        };
        let running = Self(child);
        let mut line = String::new();
        while !line.contains(says) {
            line.clear();
            assert_ne!(lines.read_line(&mut line).unwrap(), 0, "never {says:?}");
        }
        // Keep reading, so that later output does not block the process.
        std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
        running
    }

    /// Waits until it ends.
    fn ended(&mut self) {
        let deadline = Instant::now() + STEP_TIMEOUT;
        while self.0.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "it does not end");
            sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A TCP segment with payload.
#[derive(Clone, Copy, Debug)]
struct Segment {
    /// Length of the payload in bytes.
    length: usize,
    /// Whether the payload is exactly one FPDU.
    is_fpdu: bool,
}

/// The payload of a full segment with the MTUs of these tests: headers take 40 bytes, and timestamps 12.
const FULL_SEGMENTS: [usize; 2] = [1448, 8948];

/// The length of the FPDU at the front of `bytes`.
fn fpdu_length(bytes: &[u8]) -> Option<usize> {
    let field = bytes.first_chunk()?;
    Some((2 + usize::from(u16::from_be_bytes(*field))).next_multiple_of(4) + 4)
}

/// The segments in a capture, without those of the startup frames. The loopback interface passes several
/// segments as one packet. Such a packet begins with an FPDU that fills a segment, and is cut as a network
/// device would cut it.
fn segments(capture: &Path) -> Vec<Segment> {
    let mut segments = Vec::new();
    let bytes = fs::read(capture).unwrap();
    let mut packets = PcapReader::new(&bytes[..]).unwrap();
    while let Some(packet) = packets.next_packet() {
        let packet = packet.unwrap().data;
        // Ethernet, IPv4, TCP.
        let ip = &packet[14..];
        let ip_header = 4 * usize::from(ip[0] & 0xf);
        let tcp_header = 4 * usize::from(ip[ip_header + 12] >> 4);
        let payload = &ip[ip_header + tcp_header..];
        if payload.is_empty() || payload.starts_with(b"MPA ID Re") {
            continue;
        }
        let first = fpdu_length(payload).filter(|first| FULL_SEGMENTS.contains(first));
        for segment in payload.chunks(first.unwrap_or(payload.len())) {
            segments.push(Segment {
                length: segment.len(),
                is_fpdu: fpdu_length(segment) == Some(segment.len()),
            });
        }
    }
    segments
}

/// The length of the longest FPDU that is a segment.
fn longest(segments: &[Segment]) -> Option<usize> {
    let fpdus = segments.iter().filter(|segment| segment.is_fpdu);
    fpdus.map(|segment| segment.length).max()
}

fn fpdus(segments: &[Segment]) -> usize {
    segments.iter().filter(|segment| segment.is_fpdu).count()
}

/// Returns the segments of this many echoes of 300 KB, with an MTU of `mtu` that changes to `later`
/// halfway, or `None` where this cannot be measured.
fn run(echoes: u32, mtu: usize, later: Option<usize>, options: &[&str]) -> Option<Vec<Segment>> {
    let program = env!("CARGO_BIN_EXE_smbdirect");
    if Command::new("tcpdump").arg("--version").output().is_err() {
        assert!(
            std::env::var_os("SMBDIRECT_REQUIRE_TOOLS").is_none(),
            "tcpdump is required and missing"
        );
        eprintln!("skipped: tcpdump is not installed");
        return None;
    }
    let Some(namespace) = Namespace::new(mtu) else {
        eprintln!("skipped: no network namespace can be made here");
        return None;
    };
    let directory = TempDir::new().unwrap();
    let capture = directory.path().join("segments.pcap");
    let mut tcpdump = namespace.command("tcpdump");
    tcpdump
        .args([
            "-Z",
            "root",
            "-i",
            "lo",
            "-s",
            "0",
            "-B",
            "65536",
            "-U",
            "--immediate-mode",
            "-w",
        ])
        .arg(&capture)
        .args(["tcp", "port", "5445"]);
    let mut tcpdump = Running::ready(tcpdump, "listening on", false);
    let mut listen = namespace.command(program);
    listen
        .args(["listen", "127.0.0.1", "--echo", "--once"])
        .args(options);
    let mut listen = Running::ready(listen, "127.0.0.1:5445", true);
    let mut ping = namespace.command(program);
    ping.args(["ping", "127.0.0.1", "--echo", "--size", "300K"])
        .args(["--count", &echoes.to_string(), "--interval", "0.01"])
        .args(options)
        .stdout(Stdio::null());
    let mut ping = Running(ping.spawn().unwrap());
    let captured = || fs::metadata(&capture).unwrap().len();
    if let Some(mtu) = later {
        let deadline = Instant::now() + STEP_TIMEOUT;
        while captured() < 3_000_000 {
            assert!(Instant::now() < deadline, "nothing is captured");
            sleep(Duration::from_millis(1));
        }
        assert!(namespace.set_mtu(mtu));
    }
    ping.ended();
    assert!(ping.0.wait().unwrap().success(), "every echo is right");
    listen.ended();
    // On a signal tcpdump drops packets that it has not read.
    let mut length = 0;
    while captured() != length {
        length = captured();
        sleep(Duration::from_millis(500));
    }
    // `ip netns exec` becomes the program it starts, so this is tcpdump's own number.
    let interrupt = ["-INT", &tcpdump.0.id().to_string()];
    assert!(
        Command::new("kill")
            .args(interrupt)
            .status()
            .unwrap()
            .success()
    );
    tcpdump.ended();
    Some(segments(&capture))
}

/// With revision 1 the two ends cannot detect that both are this implementation.
const STRANGERS: [&str; 4] = [
    "--mpa-revision=1",
    "--mpa-crc=on",
    "--max-send-size=32K",
    "--max-receive-size=32K",
];

//= MPA-28 test
//= MPA-35 test
#[test]
fn with_crc_and_a_stranger_each_fpdu_is_a_segment() {
    // FPDUs that do not fill a segment leave room for 36 bytes of options, and their length is a multiple
    // of 8.
    for (mtu, alignment, length) in [
        (1499, "auto", 1408),
        (1500, "auto", 1448),
        (1500, "single", 1408),
        (9000, "auto", 8948),
        (9000, "single", 8912),
    ] {
        let options = [&STRANGERS[..], &["--mpa-alignment", alignment]].concat();
        let Some(seen) = run(10, mtu, None, &options) else {
            return;
        };
        // Of 6 MB; tcpdump may miss some.
        assert!(seen.len() > 1_000_000 / mtu, "{}", seen.len());
        assert_eq!(fpdus(&seen), seen.len());
        assert_eq!(longest(&seen), Some(length));
    }
}

/// FPDUs in flight when segments become shorter are split; later ones are not.
//= MPA-27 test
//= MPA-35 test
#[test]
fn fpdus_follow_the_size_of_segments() {
    if let Some(seen) = run(100, 9000, Some(1500), &STRANGERS) {
        assert_eq!(longest(&seen), Some(8948));
        let last = &seen[seen.len() - 500..];
        assert_eq!((fpdus(last), longest(last)), (500, Some(1448)));
    }
}

/// Between two ends of this implementation FPDUs span segments, and the check detects it.
//= PERF-02 test
#[test]
fn between_two_ends_of_ours_fpdus_share_segments() {
    if let Some(seen) = run(10, 1500, None, &["--mpa-crc=on"]) {
        assert!(2 * fpdus(&seen) < seen.len(), "{}", fpdus(&seen));
    }
}
