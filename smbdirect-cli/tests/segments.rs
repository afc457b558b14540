//! FPDUs and TCP segments, as packets show them: in a network namespace of its own, whose loopback
//! interface has the MTU of Ethernet, tcpdump looks at what `smbdirect ping` and `listen` send.
//!
//! Skips with a spoken reason where there is no right to make a namespace; and where tcpdump is
//! missing, unless SMBDIRECT_REQUIRE_TOOLS is set.
#![cfg(target_os = "linux")]

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread::sleep,
    time::{Duration, Instant},
};

use pcap_file::pcap::PcapReader;
use tempfile::TempDir;

/// No step may take longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// A network namespace; it is gone with this value.
struct Namespace(String);

impl Namespace {
    fn new(mtu: usize) -> Option<Self> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Relaxed);
        let namespace = Self(format!("smbd-{}-{number}", std::process::id()));
        let name = &namespace.0[..];
        let mtu = mtu.to_string();
        let made = ip(&["netns", "add", name])
            && ip(&["-n", name, "link", "set", "lo", "up", "mtu", &mtu]);
        made.then_some(namespace)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &self.0, program])
            .stdin(Stdio::null());
        command
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        ip(&["netns", "del", &self.0]);
    }
}

fn ip(arguments: &[&str]) -> bool {
    let output = Command::new("ip").args(arguments).output();
    output.is_ok_and(|output| output.status.success())
}

/// A process that ends with this value.
struct Running(Child);

impl Running {
    /// Starts it, and waits until it says on `stdout` or else on stderr that it is ready.
    fn ready(mut command: Command, says: &str, on_stdout: bool) -> Self {
        if on_stdout {
            command.stdout(Stdio::piped());
        } else {
            command.stderr(Stdio::piped());
        }
        let mut child = command.spawn().unwrap();
        let mut lines: Box<dyn BufRead + Send> = match on_stdout {
            true => Box::new(BufReader::new(child.stdout.take().unwrap())),
            false => Box::new(BufReader::new(child.stderr.take().unwrap())),
        };
        let running = Self(child);
        let mut line = String::new();
        while !line.contains(says) {
            line.clear();
            assert_ne!(lines.read_line(&mut line).unwrap(), 0, "never {says:?}");
        }
        // Whoever says more later is to find somebody who listens.
        std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
        running
    }

    /// Waits for its end.
    fn ended(&mut self) {
        let deadline = Instant::now() + PATIENCE;
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

/// What the segments in a capture are.
#[derive(Debug, Default)]
struct Seen {
    /// One FPDU each, from its first byte to its last.
    whole: usize,
    /// Anything else, but for the startup frames.
    other: usize,
    longest: usize,
}

fn segments(capture: &Path) -> Seen {
    let mut seen = Seen::default();
    let bytes = fs::read(capture).unwrap();
    let mut packets = PcapReader::new(&bytes[..]).unwrap();
    while let Some(packet) = packets.next_packet() {
        let packet = packet.unwrap().data;
        // Ethernet, IPv4, TCP.
        let ip = &packet[14..];
        let ip_header = 4 * usize::from(ip[0] & 0xf);
        let tcp_header = 4 * usize::from(ip[ip_header + 12] >> 4);
        let payload = &ip[ip_header + tcp_header..];
        let length = payload.len();
        if length == 0 || payload.starts_with(b"MPA ID Re") {
            continue;
        }
        let ulpdu_length = usize::from(u16::from_be_bytes([payload[0], payload[1]]));
        let is_whole = length == (2 + ulpdu_length).next_multiple_of(4) + 4;
        *if is_whole {
            &mut seen.whole
        } else {
            &mut seen.other
        } += 1;
        seen.longest = seen.longest.max(length);
    }
    seen
}

/// The segments of some megabytes each way; nothing where this cannot be tried.
fn run(mtu: usize, options: &[&str]) -> Option<Seen> {
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
        .args(["--count", "10", "--interval", "0"])
        .args(options)
        .stdout(Stdio::null());
    let mut ping = Running(ping.spawn().unwrap());
    ping.ended();
    assert!(ping.0.wait().unwrap().success(), "every echo is right");
    listen.ended();
    // tcpdump drops what it has not read when it is told to end.
    let mut length = 0;
    while let now = fs::metadata(&capture).unwrap().len()
        && now != length
    {
        length = now;
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

//= MPA-27 test
//= MPA-28 test
//= MPA-35 test
#[test]
fn with_crc_and_a_stranger_each_fpdu_is_a_segment() {
    // Headers of 40 bytes, timestamps of 12, and room for other options; a multiple of 8.
    for (mtu, longest) in [(1500, 1408), (9000, 8912)] {
        // In revision 1 nothing tells the two ends that they are of a kind.
        let options = [
            "--mpa-revision=1",
            "--mpa-crc=on",
            "--max-send-size=32K",
            "--max-receive-size=32K",
        ];
        let Some(seen) = run(mtu, &options) else {
            return;
        };
        assert_eq!(seen.other, 0, "{seen:?}");
        // Of 6 MB; tcpdump may miss some.
        assert!(seen.whole > 1_000_000 / mtu, "{seen:?}");
        assert_eq!(seen.longest, longest, "{seen:?}");
    }
}

/// Without the need nobody pays for it; and the measure tells the two apart.
//= PERF-02 test
#[test]
fn between_two_ends_of_ours_fpdus_share_segments() {
    if let Some(seen) = run(1500, &["--mpa-crc", "on"]) {
        assert!(seen.other > seen.whole, "{seen:?}");
    }
}
