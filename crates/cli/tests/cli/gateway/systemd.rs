//! What a gateway tells systemd, what it takes from it, and the unit.

use std::{
    net,
    os::unix::net::UnixDatagram,
    path::Path,
    process::{Command, Stdio},
};

use super::{service::Settings, *};
use crate::support::{PROGRAM, Running, eventually};

/// Receives what a program tells the service manager.
struct Manager {
    directory: tempfile::TempDir,
    socket: UnixDatagram,
}

impl Manager {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(directory.path().join("notify")).unwrap();
        socket.set_read_timeout(Some(STEP_TIMEOUT)).unwrap();
        Self { directory, socket }
    }

    fn manages(&self, command: &mut Command) {
        command.env("NOTIFY_SOCKET", self.directory.path().join("notify"));
    }

    fn next(&self) -> String {
        let mut bytes = [0; 4096];
        let length = self.socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn draining_asks_for_time() {
    let mut server = Server::bind(Tcp, Config::default()).await;
    let manager = Manager::new();
    let address = server.address().to_string();
    let mut start = command(&["gateway", "127.0.0.1:0", &address, "--from", "tcp"]);
    start.args(["--drain-timeout", "90"]);
    manager.manages(&mut start);
    let gateway = listening(start);
    let mut client = End::connect(Tcp, &gateway.address).await;
    let mut upstream = server.accept().await;
    client.send(b"question").await;
    assert!(upstream.receive().await.is_some());
    gateway.running.signal("TERM");
    assert!(manager.next().contains("READY=1"));
    assert!(manager.next().contains("STOPPING=1"));
    assert_eq!(manager.next().trim(), "EXTEND_TIMEOUT_USEC=60000000");
    gateway.running.signal("TERM");
    assert!(gateway.running.status().success());
}

#[cfg(target_os = "linux")]
#[test]
fn a_passed_socket_that_does_not_listen_is_an_error() {
    use std::net::SocketAddrV4;

    use rustix::net::{AddressFamily, SocketType, bind, socket};

    for from in ["smbdirect", "tcp"] {
        let bound = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        let address: SocketAddrV4 = "127.0.0.1:0".parse().unwrap();
        bind(&bound, &address).unwrap();
        let script = format!(
            "export LISTEN_PID=$$ LISTEN_FDS=1; exec {PROGRAM} gateway :1 127.0.0.1 --from {from} 3<&0"
        );
        let manager = Manager::new();
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]).stdin(Stdio::from(bound));
        shell.stdout(Stdio::piped()).stderr(Stdio::piped());
        manager.manages(&mut shell);
        let done = Running::new(shell).finish();
        done.failed(1, "does not listen; use ListenStream=")
            .one_line();
        manager.socket.set_nonblocking(true).unwrap();
        assert!(
            manager.socket.recv(&mut [0; 100]).is_err(),
            "it is not ready"
        );
    }
}

/// A name server that does not answer, in namespaces of its own.
#[cfg(target_os = "linux")]
#[test]
fn a_signal_ends_a_start_that_waits_for_a_name() {
    let folder = tempfile::tempdir().unwrap();
    let resolver = folder.path().join("resolv.conf");
    fs::write(&resolver, "nameserver 192.0.2.1\noptions timeout:30\n").unwrap();
    for arguments in [
        "gateway fileserver.example 127.0.0.1",
        "gateway 127.0.0.1:0 127.0.0.1 --metrics fileserver.example",
        "gateway fileserver.example 127.0.0.1 --from tcp",
        "listen fileserver.example --echo",
    ] {
        let script = format!(
            "ip link set lo up && ip route add 192.0.2.0/24 dev lo && mount --bind {} /etc/resolv.conf && \
             echo ready && exec {PROGRAM} {arguments}",
            resolver.display()
        );
        let mut shell = Command::new("unshare");
        shell.args(["-rnm", "sh", "-c", &script]);
        shell.stdin(Stdio::null());
        shell.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut running = Running::new(shell);
        if running.line() != "ready\n" {
            println!("skipped: needs namespaces");
            return;
        }
        std::thread::sleep(Duration::from_millis(500));
        running.signal("TERM");
        let began = std::time::Instant::now();
        assert!(running.status().success(), "{arguments}");
        assert!(began.elapsed() < Duration::from_secs(7), "{arguments}");
    }
}

#[test]
fn the_unit_is_started_again_until_it_can_run() {
    let unit = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../packaging/systemd/smbdirect-gateway.service");
    let text = fs::read_to_string(unit).unwrap();
    let (unit, service) = text.split_once("[Service]").unwrap();
    assert!(unit.contains("\nStartLimitIntervalSec=0\n"));
    assert!(service.contains("\nRestart=on-failure\n"));
}

#[test]
fn systemd_is_told_each_state() {
    let directory = tempfile::tempdir().unwrap();
    let socket = UnixDatagram::bind(directory.path().join("notify")).unwrap();
    socket.set_read_timeout(Some(STEP_TIMEOUT)).unwrap();
    let next = || {
        let mut bytes = [0; 4096];
        let length = socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    };
    let file = Settings::new("listen = '127.0.0.1:0'\nupstream = '127.0.0.1'\n");
    let mut command = file.command(&[]);
    command.env("NOTIFY_SOCKET", directory.path().join("notify"));
    let gateway = listening(command);
    let ready = format!("STATUS=listening on {}", gateway.address);
    let text = next();
    assert!(text.contains("READY=1") && text.contains(&ready), "{text}");
    gateway.running.signal("HUP");
    let text = next();
    assert!(
        text.contains("RELOADING=1") && text.contains("MONOTONIC_USEC="),
        "{text}"
    );
    assert!(next().contains("READY=1"));
    gateway.running.signal("TERM");
    assert!(next().contains("STOPPING=1"));
    gateway.running.finish().succeeded();
}

/// Returns whether a program is installed. Says so if it is not.
fn has(program: &str) -> bool {
    let mut version = Command::new(program);
    version
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let found = version.status().is_ok();
    if !found {
        println!("skipped: needs {program} (Debian: apt install systemd)");
    }
    found
}

#[test]
fn systemd_can_pass_the_listening_socket() {
    if !has("systemd-socket-activate") {
        return;
    }
    for from in ["smbdirect", "tcp"] {
        let free = net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap().to_string();
        drop(free);
        let mut activate = Command::new("systemd-socket-activate");
        activate
            .args(["--listen", &address, PROGRAM, "gateway", ":1", "127.0.0.1"])
            .args(["--from", from, "--json"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut running = Running::new(activate);
        eventually("listening", || net::TcpStream::connect(&address).is_ok());
        let first = running.line();
        let transport = if from == "tcp" { "null" } else { "\"iwarp\"" };
        let begin = format!(
            "{{\"event\":\"listening\",\"address\":\"{address}\",\"transport\":{transport},"
        );
        assert!(first.starts_with(&begin), "{first}");
        running.signal("TERM");
        assert!(running.status().success());
    }
}

#[test]
fn the_sandbox_of_the_unit_is_tight() {
    if !has("systemd-analyze") {
        return;
    }
    let unit = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../packaging/systemd/smbdirect-gateway.service");
    // The threshold is ten times the exposure level: 2.0.
    let done = Command::new("systemd-analyze")
        .args(["security", "--offline=true", "--threshold=20", "--no-pager"])
        .arg(&unit)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(
        done.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&done.stderr)
    );
    assert!(
        text.contains("Overall exposure level for smbdirect-gateway.service: "),
        "{text}"
    );
}
