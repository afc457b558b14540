//! What a gateway tells systemd, what it takes from it, and the unit.

use std::{
    io::IoSliceMut,
    mem::MaybeUninit,
    net,
    os::{fd::OwnedFd, unix::net::UnixDatagram},
    path::Path,
    process::{Command, Stdio},
};

use command_fds::{CommandFdExt, FdMapping};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg, sockopt::set_socket_passcred,
};

use super::{
    service::{Settings, settings},
    *,
};
use crate::support::{PROGRAM, Running, eventually};

/// Receives what a program tells the service manager.
pub(crate) struct Manager {
    directory: tempfile::TempDir,
    socket: UnixDatagram,
}

/// A message to the service manager.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) text: String,
    /// The process that has sent it.
    pub(crate) process: u32,
    pub(crate) descriptors: Vec<OwnedFd>,
}

impl Manager {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(directory.path().join("notify")).unwrap();
        socket.set_read_timeout(Some(STEP_TIMEOUT)).unwrap();
        set_socket_passcred(&socket, true).unwrap();
        Self { directory, socket }
    }

    pub(crate) fn manages(&self, command: &mut Command) {
        command.env("NOTIFY_SOCKET", self.directory.path().join("notify"));
    }

    pub(crate) fn receive(&self) -> Message {
        let mut bytes = [0; 4096];
        let mut space = [MaybeUninit::uninit(); 2048];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let length = recvmsg(&self.socket, &mut into, &mut ancillary, flags)
            .unwrap()
            .bytes;
        let (mut process, mut descriptors) = (0, Vec::new());
        for part in ancillary.drain() {
            match part {
                RecvAncillaryMessage::ScmRights(rights) => descriptors.extend(rights),
                RecvAncillaryMessage::ScmCredentials(sender) => {
                    process = sender.pid.as_raw_nonzero().get().unsigned_abs();
                }
                _ => {}
            }
        }
        Message {
            text: String::from_utf8(bytes[..length].to_vec()).unwrap(),
            process,
            descriptors,
        }
    }

    /// Receives at an abstract name in place of a path.
    fn abstract_one() -> Self {
        use std::os::{linux::net::SocketAddrExt, unix::net::SocketAddr};

        let manager = Self::new();
        let name = manager.directory.path().as_os_str().as_encoded_bytes();
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name).unwrap());
        let socket = socket.unwrap();
        socket.set_read_timeout(Some(STEP_TIMEOUT)).unwrap();
        Self { socket, ..manager }
    }

    /// Returns the next message that is not about stored descriptors.
    fn next(&self) -> String {
        loop {
            let text = self.receive().text;
            if !text.starts_with("FDSTORE") {
                return text;
            }
        }
    }

    /// Returns what is stored when a program is ready.
    fn stored(&self) -> Vec<OwnedFd> {
        let mut stored = Vec::new();
        loop {
            let message = self.receive();
            if message.text.contains("READY=1") {
                return stored;
            }
            if message.text.starts_with("FDSTOREREMOVE=1\nFDNAME=stored\n") {
                stored.clear();
            }
            if message.text.starts_with("FDSTORE=1\nFDNAME=stored\n") {
                stored.extend(message.descriptors);
            }
        }
    }
}

/// Passes these descriptors to a program, as a service manager does that has stored them.
fn pass(command: &mut Command, stored: &[OwnedFd]) {
    let mappings = stored.iter().zip(3..).map(|(stored, child_fd)| FdMapping {
        parent_fd: stored.try_clone().unwrap(),
        child_fd,
    });
    command
        .env("LISTEN_FDS", stored.len().to_string())
        .env("LISTEN_FDNAMES", vec!["stored"; stored.len()].join(":"))
        .fd_mappings(mappings.collect())
        .unwrap();
}

/// A client that connects while nothing serves waits for the next start.
#[tokio::test(flavor = "multi_thread")]
async fn clients_wait_while_the_service_restarts() {
    for from in [SmbDirect, Tcp] {
        let mut server = Server::bind(Tcp, Config::default()).await;
        let address = own_address();
        let text = settings(&server, &format!("from = '{}'", from.name()));
        let text = text.replace("127.0.0.1:0", &address);
        let file = Settings::new(&text);
        let manager = Manager::new();
        let start = |stored: &[OwnedFd]| {
            let mut start = file.command(&[]);
            manager.manages(&mut start);
            pass(&mut start, stored);
            listening(start)
        };
        let first = start(&[]);
        let stored = manager.stored();
        assert_eq!(stored.len(), 1);
        // A reload stores the same.
        first.running.signal("HUP");
        assert_eq!(manager.stored().len(), 1);
        first.terminate().succeeded();
        let client = {
            let address = address.clone();
            tokio::spawn(async move { End::connect(from, &address).await })
        };
        drop(net::TcpStream::connect(&address).expect("it waits"));
        let second = start(&stored);
        let stored = manager.stored();
        let mut client = soon(client).await.unwrap();
        let mut upstream = loop {
            // The other client has ended its connection.
            let mut upstream = server.accept().await;
            client.send(b"question").await;
            if upstream.receive().await.is_some() {
                break upstream;
            }
        };
        upstream.send(b"answer").await;
        assert_eq!(client.receive().await.as_deref(), Some(&b"answer"[..]));
        client.close().await;
        second.terminate().succeeded();

        // Another address, which the stored socket would prevent.
        let everywhere = format!("0.0.0.0:{}", 20_000 + std::process::id() % 10_000);
        file.write(&text.replace(&address, &everywhere));
        let third = start(&stored);
        assert_eq!(third.address, everywhere);
        let stored = manager.stored();
        third.terminate().succeeded();
        let port = everywhere.split_once(':').unwrap().1;
        let narrow = format!("{}:{port}", address.split_once(':').unwrap().0);
        file.write(&text.replace(&address, &narrow));
        let fourth = start(&stored);
        assert_eq!(fourth.address, narrow);
        assert_eq!(manager.stored().len(), 1);
        let elsewhere = net::TcpStream::connect(format!("127.0.0.1:{port}"));
        assert!(elsewhere.is_err(), "the stored socket listens no more");
        fourth.terminate().succeeded();
    }
}

/// The name of the socket of the service manager may be an abstract one.
#[test]
fn a_service_manager_without_a_path_is_told() {
    let manager = Manager::abstract_one();
    let mut start = command(&["gateway", "127.0.0.1:0", "127.0.0.1", "--from", "tcp"]);
    let mut name = std::ffi::OsString::from("@");
    name.push(manager.directory.path());
    start.env("NOTIFY_SOCKET", name);
    let gateway = listening(start);
    assert_eq!(manager.stored().len(), 1);
    gateway.terminate().succeeded();
}

/// A reload removes the service of a socket unit, an upgrade follows, and another reload adds it again.
#[tokio::test(flavor = "multi_thread")]
async fn a_service_of_a_socket_unit_comes_back() {
    let server = Server::bind(Tcp, Config::default()).await;
    let sockets = [(); 2].map(|()| net::TcpListener::bind("127.0.0.1:0").unwrap());
    let [one, two] = sockets
        .each_ref()
        .map(|socket| socket.local_addr().unwrap());
    let table = |name: &str| format!("[[service]]\nname = '{name}'\nlisten = ':1'\n");
    let head = format!("from = 'tcp'\nupstream = '{}'\n", server.address());
    let both = format!("{head}{}{}", table("one"), table("two"));
    let file = Settings::new(&both);
    let mut start = file.command(&[]);
    let sockets: Vec<OwnedFd> = sockets.into_iter().map(OwnedFd::from).collect();
    pass(&mut start, &sockets);
    start.env("LISTEN_FDNAMES", "one:two");
    let mut gateway = listening(start);
    drop(sockets);
    assert_eq!(gateway.address, one.to_string());
    for (text, list) in [
        (format!("{head}{}", table("one")), "removed"),
        (both, "added"),
    ] {
        file.write(&text);
        gateway.running.signal("HUP");
        let reloaded = event(&mut gateway, "reloaded");
        assert_eq!(reloaded[list], serde_json::json!(["two"]));
    }
    let mut client = End::connect(Tcp, &two.to_string()).await;
    let mut server = server;
    let mut upstream = server.accept().await;
    client.send(b"question").await;
    assert_eq!(upstream.receive().await.as_deref(), Some(&b"question"[..]));
    gateway.terminate();
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
    let manager = Manager::new();
    let next = || manager.next();
    let file = Settings::new("listen = '127.0.0.1:0'\nupstream = '127.0.0.1'\n");
    let mut command = file.command(&[]);
    manager.manages(&mut command);
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
