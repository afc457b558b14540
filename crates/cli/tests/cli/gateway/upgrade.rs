//! SIGUSR2: a new process takes the place of a gateway, whose sessions go on.

use std::{
    net,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use tokio::{sync::watch, task::JoinHandle};

use super::{
    control::ctl,
    metrics::http,
    service::{Settings, settings},
    systemd::Manager,
    *,
};
use crate::support::{PROGRAM, Running, eventually};

/// A gateway whose program can be replaced.
struct Upgradable {
    gateway: Listening,
    file: Settings,
    /// The process that serves.
    process: u32,
}

/// Ends the last process, which is no child of this one.
impl Drop for Upgradable {
    fn drop(&mut self) {
        kill(self.process, "KILL");
    }
}

fn kill(process: u32, signal: &str) {
    // It may have ended.
    let _ = Command::new("kill")
        .args(["-s", signal, &process.to_string()])
        .stderr(Stdio::null())
        .status();
}

fn is_running(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

impl Upgradable {
    fn new(text: &str) -> Self {
        Self::with(text, |_| {})
    }

    fn with(text: &str, prepare: impl FnOnce(&mut Command)) -> Self {
        let file = Settings::new(text);
        symlink(PROGRAM, file.path().with_file_name("smbdirect")).unwrap();
        let log = fs::File::create(file.path().with_file_name("log")).unwrap();
        let mut start = file.command_of(&file.path().with_file_name("smbdirect"));
        start.stderr(log);
        prepare(&mut start);
        let gateway = listening(start);
        Self {
            process: gateway.running.id(),
            gateway,
            file,
        }
    }

    fn address(&self) -> String {
        self.gateway.address.clone()
    }

    fn program(&self) -> PathBuf {
        self.file.path().with_file_name("smbdirect")
    }

    fn command(&self) -> Command {
        self.file.command_of(&self.program())
    }

    /// Returns what its processes have written to stderr.
    fn log(&self) -> String {
        fs::read_to_string(self.file.path().with_file_name("log")).unwrap()
    }

    /// Waits until they have written this to stderr.
    fn logs(&self, text: &str) {
        eventually(text, || self.log().contains(text));
    }

    /// Replaces the program by a script of the shell.
    fn replace_program(&self, script: &str) {
        fs::remove_file(self.program()).unwrap();
        fs::write(self.program(), format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(self.program(), fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Upgrades it. Returns the process that served until now.
    fn upgrade(&mut self) -> u32 {
        kill(self.process, "USR2");
        let (mut upgraded, mut listening) = (None, false);
        while upgraded.is_none() || !listening {
            let line = self.gateway.running.line();
            let event: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line}"));
            match event["event"].as_str().unwrap() {
                "upgraded" => upgraded = event["process"].as_u64(),
                "listening" => listening = true,
                _ => {}
            }
        }
        let new = u32::try_from(upgraded.unwrap()).unwrap();
        std::mem::replace(&mut self.process, new)
    }

    /// Upgrades it, which fails with these words.
    fn fails(&self, why: &str) {
        let times = || self.log().matches(why).count();
        let before = times();
        kill(self.process, "USR2");
        eventually(why, || times() > before);
    }

    /// Reads the settings again, after an upgrade that is under way.
    fn reload(&mut self) -> Value {
        kill(self.process, "HUP");
        event(&mut self.gateway, "reloaded")
    }

    /// Ends it. Returns what its processes have written to stderr.
    fn end(self) -> String {
        kill(self.process, "TERM");
        eventually("the end", || !is_running(self.process));
        self.log()
    }
}

/// Answers each message of each client with itself.
fn echo(mut server: Server) -> JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            let mut end = server.accept().await;
            tokio::spawn(async move {
                while let Some(message) = end.receive().await {
                    end.send(&message).await;
                }
            });
        }
    })
}

/// Answers each message of each client with this name.
fn answer(mut server: Server, name: &'static [u8]) -> JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            let mut end = server.accept().await;
            tokio::spawn(async move {
                while end.receive().await.is_some() {
                    end.send(name).await;
                }
            });
        }
    })
}

async fn is_answered(client: &mut End, message: &[u8]) {
    client.send(message).await;
    assert_eq!(client.receive().await.as_deref(), Some(message));
}

/// Connects clients one after the other until the receiver is dropped. Each of them has to be served. Returns their number.
fn clients(from: Kind, address: &str) -> (watch::Receiver<u64>, JoinHandle<u64>) {
    let address = address.to_owned();
    let (count, served) = watch::channel(0);
    let task = tokio::spawn(async move {
        while !count.is_closed() {
            let mut client = End::connect(from, &address).await;
            is_answered(&mut client, b"question").await;
            client.close().await;
            count.send_modify(|count| *count += 1);
        }
        *count.borrow()
    });
    (served, task)
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_go_on_and_no_client_is_refused() {
    for from in [SmbDirect, Tcp] {
        let server = Server::bind(Tcp, Config::default()).await;
        let address = own_address();
        let mut gateway = Upgradable::new(&format!(
            "listen = '{address}'\nupstream = '{}'\nfrom = '{}'\ndrain-timeout = 'never'\n",
            server.address(),
            from.name()
        ));
        let echo = echo(server);
        let mut first = End::connect(from, &address).await;
        is_answered(&mut first, b"question").await;
        let (mut served, others) = clients(from, &address);
        let mut more = async |number: u64| {
            let least = *served.borrow() + number;
            soon(served.wait_for(|&count| count >= least))
                .await
                .unwrap();
        };
        more(5).await;
        let old = gateway.upgrade();
        more(20).await;
        assert!(is_running(old));
        is_answered(&mut first, &noise(300_000, 1)).await;
        let mut second = End::connect(from, &address).await;
        is_answered(&mut second, b"question").await;
        let middle = gateway.upgrade();
        more(20).await;
        // A process that has been succeeded is upgraded no more.
        for (signal, line) in [
            ("USR2", "SIGUSR2 has no effect"),
            ("HUP", "SIGHUP has no effect"),
        ] {
            kill(old, signal);
            gateway.logs(line);
        }
        is_answered(&mut first, b"the last question").await;
        first.close().await;
        eventually("the end of the first process", || !is_running(old));
        is_answered(&mut second, b"the last question").await;
        second.close().await;
        eventually("the end of the second process", || !is_running(middle));
        more(5).await;
        drop(served);
        assert!(soon(others).await.unwrap() > 50);
        gateway.end();
        echo.abort();
    }
}

/// A client has one server in all services that have it, also after an upgrade. A drained server stays so.
#[tokio::test(flavor = "multi_thread")]
async fn the_new_process_knows_the_servers_of_clients() {
    let servers = [
        Server::bind(Tcp, Config::default()).await,
        Server::bind(Tcp, Config::default()).await,
    ];
    let [a, b] = servers
        .each_ref()
        .map(|server| server.address().to_string());
    let [by_smb_direct, by_tcp] = [own_address(), own_address()];
    let folder = tempfile::tempdir().unwrap();
    let control = folder.path().join("control");
    let mut gateway = Upgradable::new(&format!(
        "control = '{}'\nupstream = ['{a}', '{b}']\ncheck-interval = 0\ndrain-timeout = 'never'\n\
         [[service]]\nname = 'smb-direct'\nlisten = '{by_smb_direct}'\n\
         [[service]]\nname = 'tcp'\nlisten = '{by_tcp}'\nfrom = 'tcp'\n",
        control.display()
    ));
    let [one, other] = servers;
    let tasks = [answer(one, b"a"), answer(other, b"b")];
    let server_by = async |from, address: &str| {
        let mut client = End::connect(from, address).await;
        client.send(b"who are you?").await;
        let name = client.receive().await.unwrap();
        (client, name)
    };
    // The first server would have been the first.
    ctl(&control, &["drain", &a]);
    let (session, name) = server_by(Tcp, &by_tcp).await;
    assert_eq!(name, b"b");
    ctl(&control, &["undrain", &a]);
    let first = gateway.process;
    for upgraded in [false, true] {
        for (from, address) in [(SmbDirect, &by_smb_direct), (Tcp, &by_tcp)] {
            let (_channel, name) = server_by(from, address).await;
            assert_eq!(name, b"b", "{from:?}, upgraded: {upgraded}");
        }
        if !upgraded {
            gateway.upgrade();
        }
    }
    // The session in the first process counts, also while its server is drained, as long as it lives.
    ctl(&control, &["drain", &b]);
    let (_channel, name) = server_by(SmbDirect, &by_smb_direct).await;
    assert_eq!(name, b"b");
    drop((session, _channel));
    eventually("the end of the first process", || !is_running(first));
    eventually("the end of the sessions", || {
        ctl(&control, &["sessions"]).is_empty()
    });
    gateway.upgrade();
    let (_moved, name) = server_by(SmbDirect, &by_smb_direct).await;
    assert_eq!(name, b"a");
    let drained = ctl(&control, &["servers"])
        .into_iter()
        .filter_map(|server| {
            let is_drained = server["is_drained"] == true;
            is_drained.then(|| server["server"].as_str().unwrap().to_owned())
        });
    assert_eq!(drained.collect::<Vec<_>>(), [b.clone(), b]);
    gateway.end();
    tasks.iter().for_each(JoinHandle::abort);
}

/// The sessions of a process that has been succeeded have the drain timeout, and then end.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_end_after_the_drain_timeout() {
    let server = Server::bind(Tcp, Config::default()).await;
    let text = settings(&server, "drain-timeout = 0.5").replace("127.0.0.1:0", &own_address());
    let mut gateway = Upgradable::new(&text);
    let echo = echo(server);
    let address = gateway.gateway.address.clone();
    let mut client = End::connect(SmbDirect, &address).await;
    is_answered(&mut client, b"question").await;
    let old = gateway.upgrade();
    assert_eq!(client.receive().await, None);
    eventually("the end of the old process", || !is_running(old));
    let mut client = End::connect(SmbDirect, &address).await;
    is_answered(&mut client, b"question").await;
    gateway.end();
    echo.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_else_goes_to_the_new_process() {
    let servers = [
        Server::bind(Tcp, Config::default()).await,
        Server::bind(Tcp, Config::default()).await,
    ];
    let [one, other, metrics] = [own_address(), own_address(), own_address()];
    let folder = tempfile::tempdir().unwrap();
    let control = folder.path().join("control");
    let text = format!(
        "metrics = '{metrics}'\ncontrol = '{}'\ndrain-timeout = 'never'\n[[service]]\nname = 'one'\nlisten = '{one}'\n\
         upstream = '{}'\n[[service]]\nname = 'other'\nlisten = '{other}'\nupstream = '{}'\nfrom = 'tcp'\n",
        control.display(),
        servers[0].address(),
        servers[1].address(),
    );
    let mut gateway = Upgradable::new(&text);
    let echoes = servers.map(echo);
    let mut client = End::connect(SmbDirect, &one).await;
    is_answered(&mut client, b"question").await;
    let sessions = || {
        let path = control.to_str().unwrap();
        let done = run(&["gateway", "ctl", path, "sessions", "--json"]).succeeded();
        done.json().len()
    };
    assert_eq!(sessions(), 1);
    let figure = |name: &str| -> f64 {
        let text = http(&metrics, "GET", "/metrics").1;
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("{name}: {text}"))
            .trim()
            .parse()
            .unwrap()
    };
    let total = "smbdirect_gateway_sessions_total{service=\"one\"}";
    let received = "smbdirect_messages_received_total";
    let before = [figure(total), figure(received)];
    assert_eq!(before, [1.0, 1.0]);
    let old = gateway.upgrade();
    assert_eq!(
        [figure(total), figure(received)],
        before,
        "counters do not go back"
    );
    assert_eq!(sessions(), 0);
    assert_eq!(http(&metrics, "GET", "/readyz").1, "ready\n");
    let mut new = End::connect(Tcp, &other).await;
    is_answered(&mut new, b"question").await;
    assert_eq!(sessions(), 1);
    let same = End::connect(SmbDirect, &one).await;
    let opened = event(&mut gateway.gateway, "opened");
    assert!(opened["id"].as_u64() > Some(1), "{opened}");
    drop(same);

    let second = text.find("[[service]]\nname = 'other'").unwrap();
    gateway.file.write(&text[..second]);
    let reloaded = gateway.reload();
    assert_eq!(reloaded["removed"], serde_json::json!(["other"]));
    assert_eq!(new.receive().await, None);
    eventually("the end of the listener", || {
        net::TcpStream::connect(&other).is_err()
    });

    is_answered(&mut client, b"question").await;
    client.close().await;
    eventually("the end of the old process", || !is_running(old));
    assert_eq!(sessions(), 0);
    assert_eq!(gateway.end(), "");
    assert!(!control.exists());
    echoes.iter().for_each(JoinHandle::abort);
}

/// Returns the descriptors in the output of `ls -l /proc/self/fd`.
fn descriptors(listing: &Path) -> Vec<u32> {
    let text = fs::read_to_string(listing).unwrap();
    let of_line = |line: &str| line.split_once(" -> ")?.0.rsplit(' ').next()?.parse().ok();
    text.lines().filter_map(of_line).collect()
}

/// The gateway goes on, and the reason is in the log.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_process_that_fails_changes_nothing() {
    let server = Server::bind(Tcp, Config::default()).await;
    let address = own_address();
    let text = settings(&server, "").replace("127.0.0.1:0", &address);
    let mut gateway = Upgradable::new(&text);
    let echo = echo(server);
    let mut client = End::connect(SmbDirect, &address).await;
    let listing = gateway.file.path().with_file_name("descriptors");
    // A command of the shell would have other signals blocked.
    let list = format!(
        "while read -r line; do case $line in SigBlk:*) echo \"$line\";; esac; done </proc/$$/status >'{0}'\n\
         ls -l /proc/self/fd >>'{0}'; exit 3",
        listing.display()
    );

    // The new process has no descriptors but those that it needs: the socket, the stream, and what `ls` opens.
    gateway.replace_program(&list);
    let mut directly = gateway.command();
    assert!(!directly.status().unwrap().success());
    let inherited = descriptors(&listing);
    gateway.fails("the new process has ended: exit status: 3");
    let passed = descriptors(&listing);
    // A signal that each process of the service gets does not end it.
    let listed = fs::read_to_string(&listing).unwrap();
    let blocked = listed
        .lines()
        .next()
        .and_then(|line| line.split_whitespace().nth(1));
    let blocked = blocked.unwrap();
    let blocked = u64::from_str_radix(blocked, 16).unwrap();
    for signal in [rustix::process::Signal::HUP, rustix::process::Signal::USR2] {
        assert!(blocked & 1 << (signal.as_raw() - 1) != 0, "{listed}");
    }
    let is_expected = |fd: &u32| inherited.contains(fd) || [3, 4, 5].contains(fd);
    assert!(passed.contains(&3) && passed.contains(&4), "{passed:?}");
    assert!(passed.iter().all(is_expected), "{passed:?} {inherited:?}");

    let program = gateway.program();
    fs::remove_file(&program).unwrap();
    gateway.fails("the program cannot be started: No such file");
    symlink(PROGRAM, &program).unwrap();
    gateway.file.write("max-conections = 1\n");
    gateway.fails("the new process has ended before it was ready");
    gateway.logs("did you mean `max-connections`?");
    let taken = net::TcpListener::bind("127.0.0.1:0").unwrap();
    let both = format!("['{address}', '{}']", taken.local_addr().unwrap());
    gateway
        .file
        .write(&text.replace(&format!("'{address}'"), &both));
    gateway.fails("the new process has ended before it was ready");
    gateway.logs("cannot listen on ");

    is_answered(&mut client, b"question").await;
    let mut other = End::connect(SmbDirect, &address).await;
    is_answered(&mut other, b"question").await;
    gateway.file.write(&text);
    gateway.upgrade();
    gateway.end();
    echo.abort();
}

/// A new process that does not get ready has its time. What a signal asks for meanwhile follows.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_process_that_is_not_ready_is_ended() {
    let server = Server::bind(Tcp, Config::default()).await;
    let address = own_address();
    let mut gateway = Upgradable::new(&settings(&server, "").replace("127.0.0.1:0", &address));
    let echo = echo(server);
    let id = gateway.file.path().with_file_name("id");
    // As the program does, the process that was started starts another one, and ends.
    gateway.replace_program(&format!("sleep 1000 & echo $! >'{}'", id.display()));
    let started = || {
        let id = fs::read_to_string(&id).unwrap_or_default();
        id.trim().parse::<u32>().ok()
    };
    kill(gateway.process, "USR2");
    eventually("the new process", || started().is_some());
    let new = started().unwrap();
    kill(gateway.process, "USR2");
    // It follows the upgrade.
    gateway.reload();
    eventually("the end of the new process", || !is_running(new));
    let log = gateway.log();
    for line in [
        "the new process was not ready within 30 s",
        "SIGUSR2: an upgrade is under way already",
    ] {
        assert!(log.contains(line), "{log}");
    }
    let mut client = End::connect(SmbDirect, &address).await;
    is_answered(&mut client, b"question").await;

    fs::remove_file(&id).unwrap();
    kill(gateway.process, "USR2");
    eventually("the new process", || started().is_some());
    let new = started().unwrap();
    gateway.end();
    eventually("the end of the new process", || !is_running(new));
    echo.abort();
}

#[test]
fn a_service_without_a_socket_needs_a_restart() {
    let text = "listen = '127.0.0.1:0'\nupstream = 'nas'\n";
    for (more, why) in [
        (
            "transport = 'roce'\nudp-port = 14791\n",
            "listens by RoCE or adapters",
        ),
        (
            "from = 'tcp'\nto = 'smbdirect'\ntransport = 'roce'\nudp-port = 14792\n",
            "connects by RoCE",
        ),
    ] {
        let gateway = Upgradable::new(&format!("{text}{more}"));
        gateway.fails(&format!("and this process goes on: service gateway {why}"));
        assert!(gateway.log().contains("restart it instead"));
        gateway.end();
    }
}

/// With the end of what the init of a container waits for, the container and the new process would end, too.
#[test]
fn what_a_container_ends_with_needs_a_restart() {
    for (shell, why) in [
        ("", "it is PID 1 of its container"),
        ("; exit $?", "the init of its container waits for it"),
    ] {
        needs_a_restart_in_a_container(shell, why);
    }
}

fn needs_a_restart_in_a_container(after: &str, why: &str) {
    let file = Settings::new("listen = '127.0.0.1:0'\nupstream = 'nas'\n");
    let log = file.path().with_file_name("log");
    let mut start = Command::new("unshare");
    let script = if after.is_empty() { "exec " } else { "" }.to_owned()
        + &format!(
            "{PROGRAM} gateway --config {}{after}",
            file.path().display()
        );
    start
        .args(["-rpf", "--mount-proc", "--kill-child", "sh", "-c", &script])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(fs::File::create(&log).unwrap());
    let mut running = Running::new(start);
    if !running.line().starts_with("listening on ") {
        println!("skipped: needs namespaces");
        return;
    }
    let mut gateway = running.id();
    let child = |id: u32| {
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
        children.unwrap().trim().parse::<u32>().ok()
    };
    while let Some(child) = child(gateway) {
        gateway = child;
    }
    kill(gateway, "USR2");
    eventually(why, || fs::read_to_string(&log).unwrap().contains(why));
    kill(gateway, "TERM");
    assert!(running.status().success());
}

/// The service manager is told of the new main process, and after that by it alone.
#[tokio::test(flavor = "multi_thread")]
async fn the_service_manager_is_told_of_the_new_process() {
    let server = Server::bind(Tcp, Config::default()).await;
    let text = settings(&server, "drain-timeout = 'never'");
    let manager = Manager::new();
    let mut gateway = Upgradable::with(&text.replace("127.0.0.1:0", &own_address()), |start| {
        manager.manages(start);
        start.env("WATCHDOG_USEC", "300000");
    });
    let echo = echo(server);
    let mut client = End::connect(SmbDirect, &gateway.address()).await;
    is_answered(&mut client, b"question").await;
    let old = gateway.upgrade();
    let mut from_old = Vec::new();
    while !from_old.contains(&format!("MAINPID={}", gateway.process)) {
        let message = manager.receive();
        assert_eq!(message.process, old, "{message:?}");
        from_old.extend(message.text.lines().map(str::to_owned));
    }
    assert_eq!(from_old.iter().filter(|&line| line == "READY=1").count(), 1);
    let mut from_new = Vec::new();
    let next = |from_new: &mut Vec<String>| {
        let message = manager.receive();
        assert_eq!(message.process, gateway.process, "{message:?}");
        from_new.extend(message.text.lines().map(str::to_owned));
    };
    while from_new.iter().filter(|&line| line == "WATCHDOG=1").count() < 4 {
        next(&mut from_new);
    }
    for line in ["READY=1", "FDSTORE=1"] {
        assert!(from_new.iter().any(|other| other == line), "{from_new:?}");
    }
    is_answered(&mut client, b"question").await;
    client.close().await;
    eventually("the end of the old process", || !is_running(old));
    while from_new.iter().filter(|&line| line == "WATCHDOG=1").count() < 8 {
        next(&mut from_new);
    }
    gateway.end();
    echo.abort();
}
