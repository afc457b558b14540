//! The gateway as a service: its settings file, reload, drain, limits, and what it tells systemd.

use std::{
    convert::Infallible,
    future::pending,
    net,
    path::PathBuf,
    process::{Command, Stdio},
    time::Instant,
};

use smbdirect_smb::smb2;
use tokio::task::JoinHandle;

use super::*;
use crate::support::Running;

/// A settings file in a directory of its own.
pub(crate) struct Settings {
    directory: tempfile::TempDir,
}

impl Settings {
    pub(crate) fn new(text: &str) -> Self {
        let settings = Self {
            directory: tempfile::tempdir().unwrap(),
        };
        settings.write(text);
        settings
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("gateway.toml")
    }

    pub(crate) fn write(&self, text: &str) {
        fs::write(self.path(), text).unwrap();
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = command(&["gateway", "--json", "--config"]);
        command.arg(self.path()).args(arguments);
        command
    }

    /// Returns the command of a program that is at this path.
    #[cfg(target_os = "linux")]
    pub(crate) fn command_of(&self, program: &std::path::Path) -> Command {
        let mut command = Command::new(program);
        command.args(["gateway", "--json", "--config"]);
        command.arg(self.path());
        command
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        command
    }
}

/// Returns the settings of a gateway from SMB Direct to this TCP server.
pub(crate) fn settings(server: &Server, more: &str) -> String {
    let address = server.address();
    format!("listen = '127.0.0.1:0'\nupstream = '{address}'\n{more}\n")
}

#[test]
fn a_settings_file_is_checked_without_starting() {
    let file = Settings::new("listen = ':5445'\nupstream = 'nas'\nmax-connections = 10\n");
    let check = |arguments: &[&str]| {
        let mut all = vec!["gateway", "--check-config", "--config"];
        let path = file.path();
        all.push(path.to_str().unwrap());
        all.extend(arguments);
        run(&all)
    };
    let done = check(&[]).succeeded();
    assert!(done.stdout.ends_with("gateway.toml is valid\n"), "{done:?}");
    for (text, says) in [
        (
            "max-conections = 10",
            "line 1: unknown setting `max-conections`; did you mean `max-connections`?",
        ),
        (
            "max-connections = 0",
            "line 1: max-connections: expected a number of at least 1",
        ),
        (
            "\nfrom = 'smb'",
            "line 2: from: expected one of smbdirect, tcp",
        ),
        (
            "allow = ['10.0.0.0/40']",
            "line 1: allow: expected an IP address or a network",
        ),
        ("listen = ':1'", "gateway.toml: upstream is missing"),
        ("upstream = ':1'", "gateway.toml: listen is missing"),
        (
            "listen = ':1'\nupstream = 'nas'\nmemory = '1M'",
            "gateway.toml, line 3: --memory is too small",
        ),
        (
            "listen = ':1'\nupstream = ':1'",
            "gateway.toml, line 2: upstream: the address to connect to has no host",
        ),
        (
            "upstream = 'nas:0'\nlisten = ':1'",
            "gateway.toml, line 1: upstream: port 0 cannot be connected to",
        ),
        (
            "listen = ':1'\nupstream = ['nas', 'NAS.:445']",
            "gateway.toml, line 2: upstream: nas and NAS.:445 are the same server",
        ),
        (
            "listen = ':1'\nto = 'smbdirect'\nupstream = ['::1', '[0:0::1]:5445']",
            "gateway.toml, line 3: upstream: ::1 and [0:0::1]:5445 are the same server",
        ),
        (
            "listen = ':1'\nupstream = 'nas'\nmetrics = '/run/a'\ncontrol = '/run/a'",
            "metrics and control have the same path, /run/a",
        ),
        (
            "listen = ':1'\nupstream = 'nas'\n\nmax-send-size = 1",
            "gateway.toml, line 4: --max-send-size 1 is too small",
        ),
        (
            "transport = 'loopback'\nlisten = ':1'\nupstream = 'nas'",
            "gateway.toml, line 1: --transport loopback stays within one process",
        ),
    ] {
        file.write(text);
        check(&[]).failed(2, says).one_line();
    }
    file.write(
        "listen = ':1'\nupstream = 'nas'\nfrom = 'tcp'\nmax-connections = 50\nmemory = '40M'",
    );
    let lowered = check(&[]).succeeded();
    let says =
        "gateway: at most 20 of the 50 connections of --max-connections, because --memory 40.0 MiB";
    assert!(lowered.stdout.contains(says), "{lowered:?}");
    file.write("upstream = 'nas'");
    check(&[":1"]).succeeded();
    file.write("listen = ':1'\nupstream = 'no-such-host.invalid'\ncrc = 'on'\nallow = '::ffff:10.0.0.0/104'");
    check(&[]).succeeded();
    run(&["gateway", ":1", "nas", "--check-config"]).failed(2, "--config");
}

/// Returns an Oplock Break Notification ([MS-SMB2] 2.2.23.1) without its body.
fn notification() -> Vec<u8> {
    let header = smb2::Header {
        credit_charge: 0,
        status: 0,
        command: smb2::Command(0x0012),
        credits: 0,
        flags: smb2::Flags::RESPONSE,
        next_command: 0,
        message_id: u64::MAX,
        tree_or_async_id: 0,
        session_id: 0,
        signature: [0; 16],
    };
    let mut message = Vec::new();
    header.encode(&mut message);
    message
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_waits_for_the_answers_to_requests() {
    for (from, to) in [(SmbDirect, Tcp), (Tcp, SmbDirect), (Tcp, Tcp)] {
        let mut server = Server::bind(to, Config::default()).await;
        let address = server.address().to_string();
        let arguments = [
            "--from",
            from.name(),
            "--to",
            to.name(),
            "--drain-timeout",
            "60",
        ];
        let mut start = command(&["gateway", "127.0.0.1:0", &address, "--json"]);
        start.args(arguments);
        let mut gateway = listening(start);
        let mut client = End::connect(from, &gateway.address).await;
        let mut idle = End::connect(from, &gateway.address).await;
        let (mut one, mut other) = (server.accept().await, server.accept().await);
        // A notification does not count as an answer.
        one.send(&notification()).await;
        other.send(&notification()).await;
        assert!(client.receive().await.is_some() && idle.receive().await.is_some());
        client.send(b"question").await;
        // The sessions connect to the server in any order.
        let (mut busy, _quiet) = tokio::select! {
            message = one.receive() => { assert!(message.is_some()); (one, other) }
            () = sleep(Duration::from_secs(2)) => (other, one),
        };
        gateway.running.signal("TERM");
        let draining = event(&mut gateway, "draining");
        assert_eq!(
            (&draining["open"], &draining["seconds"]),
            (&2.into(), &60.0.into())
        );
        assert_eq!(idle.receive().await, None, "an idle session ends");
        let refused = net::TcpStream::connect(&gateway.address);
        assert!(refused.is_err(), "nothing is accepted any more");
        busy.send(b"answer").await;
        assert_eq!(
            client.receive().await.as_deref(),
            Some(&b"answer"[..]),
            "{from:?} {to:?}"
        );
        assert_eq!(client.receive().await, None);
        let done = gateway.running.finish().succeeded();
        assert_eq!(summary(&done)["failed"], 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wait_for_answers_has_a_limit_and_a_second_signal_ends_it() {
    for (limit, signals) in [("0.3", 1), ("60", 2)] {
        let mut server = Server::bind(Tcp, Config::default()).await;
        let address = server.address().to_string();
        let mut gateway = gateway(SmbDirect, Tcp, &address, &["--drain-timeout", limit]);
        let mut client = End::connect(SmbDirect, &gateway.address).await;
        let mut upstream = server.accept().await;
        client.send(b"question").await;
        assert!(upstream.receive().await.is_some());
        let started = Instant::now();
        for _ in 0..signals {
            gateway.running.signal("TERM");
            if signals > 1 {
                sleep(Duration::from_millis(200)).await;
            }
        }
        assert_eq!(client.receive().await, None);
        assert_eq!(ended(&mut gateway), "closed here");
        assert!(gateway.running.finish().status.success());
        assert!(started.elapsed() < Duration::from_secs(30));
    }
}

/// Runs a gateway to 127.0.0.1 under limits of the shell.
fn limited(limit: &str, arguments: &str) -> Listening {
    listening(limited_to("127.0.0.1", limit, arguments))
}

/// Returns a shell that runs a gateway to a server under limits of the shell.
fn limited_to(server: &str, limit: &str, arguments: &str) -> Command {
    let program = crate::support::PROGRAM;
    let script = format!("{limit}; exec {program} gateway 127.0.0.1:0 {server} --json {arguments}");
    let mut shell = Command::new("sh");
    shell
        .args(["-c", &script])
        .env_remove("RUST_LOG")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    shell
}

#[cfg(target_os = "linux")]
#[test]
fn the_limit_of_open_files_is_raised_and_named_if_it_is_too_low() {
    let gateway = limited("ulimit -Sn 128", "");
    let limits = fs::read_to_string(format!("/proc/{}/limits", gateway.running.id())).unwrap();
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max open files"))
        .unwrap();
    let fields: Vec<_> = line.split_whitespace().skip(3).collect();
    assert_eq!(fields[0], fields[1], "{line}");
    let low = limited("ulimit -n 128", "--max-connections 100");
    let done = low.terminate();
    assert!(
        done.stderr
            .contains("needs 264 open files, and the limit is 128"),
        "{done:?}"
    );
    assert!(done.stderr.contains("RLIMIT_NOFILE"), "{done:?}");
}

/// Connects a client, which stays connected until the task is stopped.
#[cfg(target_os = "linux")]
fn client(kind: Kind, address: &str) -> JoinHandle<Infallible> {
    let address = address.to_owned();
    tokio::spawn(async move {
        let _client = match kind {
            SmbDirect => {
                let provider = iwarp();
                Connection::connect(&*provider, address, Config::default())
                    .await
                    .ok()
                    .map(End::SmbDirect)
            }
            Tcp => TcpStream::connect(address).await.ok().map(End::Tcp),
        };
        pending().await
    })
}

/// Each session takes two files, so with one of two limits that differ by one a client cannot be accepted, and with
/// the other the server cannot be connected.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn the_limit_of_open_files_is_named_when_it_is_reached() {
    for (from, failed_to_accept) in [
        (SmbDirect, "accepting a TCP connection failed"),
        (Tcp, "a connection cannot be accepted"),
    ] {
        let failures = [failed_to_accept, "cannot be reached: too many open files"];
        let mut output = String::new();
        for limit in [48, 49] {
            let server = Server::bind(Tcp, Config::default()).await;
            let arguments = format!("--from {} --max-connections 100 2>&1", from.name());
            let address = server.address().to_string();
            let gateway = limited_to(&address, &format!("ulimit -n {limit}"), &arguments);
            let mut running = Running::new(gateway);
            let warning = running.line();
            assert!(warning.contains("needs 264 open files"), "{warning}");
            let mut gateway = Listening::of(running);
            let mut clients = Vec::new();
            // A client connects when the session of the one before is open.
            let mut line = String::from("\"opened\"");
            while !failures.iter().any(|failure| line.contains(failure)) {
                if line.contains("\"opened\"") {
                    clients.push(client(from, &gateway.address));
                }
                line = gateway.running.line();
                output += &line;
            }
            // The gateway may fail to accept the next client before it fails to connect this one to the server.
            sleep(Duration::from_secs(2)).await;
            gateway.running.signal("TERM");
            clients.iter().for_each(JoinHandle::abort);
            output += &gateway.running.finish().stdout;
        }
        for failure in failures {
            let line = output.lines().find(|line| line.contains(failure));
            let line = line.unwrap_or_else(|| panic!("{from:?}: no `{failure}` in {output}"));
            assert!(line.contains("raise RLIMIT_NOFILE"), "{line}");
        }
    }
}
