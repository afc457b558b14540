//! Peers of the cases: running commands.
//!
//! Timers are short where a case is about them, and are never judged by how long they take at
//! most: only that they do not run out too early, and run out at all.

use std::{
    io::{BufRead, BufReader, Read},
    net::SocketAddr,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use smbdirect::{Settings, rdma::iwarp::Iwarp};
use smbdirect_conform::{
    Client, ClientAction, Link, PeerFacts, PeerSettings, RdmaClient, RdmaServer, Server, Tcp,
    Timers, Verdict, fail,
};

/// Longest time that a case waits for something that is due immediately, also on a busy machine.
const PROMPT_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for which a case checks that no message arrives.
const SILENCE_TIMEOUT: Duration = Duration::from_millis(200);
/// The timers of cases that are about timers.
const SHORT: Duration = Duration::from_secs(2);

/// Returns the settings that a case wishes.
fn settings_for(requested: &PeerSettings) -> Settings {
    let mut settings = Settings::default();
    if let Some(credits) = requested.credits {
        settings.send_credit_target = credits;
        settings.receive_credit_max = credits;
    }
    if let Some(size) = requested.max_fragmented_receive_size {
        settings.max_fragmented_receive_size = size;
    }
    if requested.short_timers {
        settings.keepalive_interval = SHORT;
        settings.keepalive_response_timeout = SHORT;
        settings.active_negotiation_timeout = SHORT;
        settings.passive_negotiation_timeout = SHORT;
        settings.credit_grant_timeout = Some(SHORT);
    }
    settings
}

/// Returns the facts of a command for a case: all settings, and times that allow for a busy machine.
fn facts(settings: &Settings, negotiation: Duration) -> PeerFacts {
    PeerFacts {
        settings: Some(settings.clone()),
        timers: Timers {
            negotiation,
            keepalive_interval: settings.keepalive_interval,
            keepalive_response: settings.keepalive_response_timeout,
            credit_grant: settings.credit_grant_timeout,
        },
        prompt: PROMPT_TIMEOUT,
        silence: SILENCE_TIMEOUT,
        // A third of a short timer is left.
        margin: SHORT * 2 / 3,
        early: Duration::ZERO,
        late: PROMPT_TIMEOUT,
        patience: Duration::MAX,
    }
}

/// The command with `settings` in full.
fn command(settings: &Settings, arguments: &[&str]) -> Command {
    let seconds = |time: Duration| time.as_secs_f64().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_smbdirect"));
    command.args(arguments);
    let credit_grant = settings.credit_grant_timeout.expect("cases leave it on");
    for (option, value) in [
        (
            "--send-credit-target",
            settings.send_credit_target.to_string(),
        ),
        (
            "--receive-credit-max",
            settings.receive_credit_max.to_string(),
        ),
        ("--max-send-size", settings.max_send_size.to_string()),
        ("--max-receive-size", settings.max_receive_size.to_string()),
        (
            "--max-fragmented-size",
            settings.max_fragmented_receive_size.to_string(),
        ),
        (
            "--max-read-write-size",
            settings.max_read_write_size.to_string(),
        ),
        ("--keepalive-interval", seconds(settings.keepalive_interval)),
        (
            "--keepalive-response-timeout",
            seconds(settings.keepalive_response_timeout),
        ),
        ("--credit-grant-timeout", seconds(credit_grant)),
    ] {
        command.args([option, &value]);
    }
    let timeout = match arguments[0] {
        "listen" => (
            "--negotiation-timeout",
            settings.passive_negotiation_timeout,
        ),
        _ => ("--connect-timeout", settings.active_negotiation_timeout),
    };
    command.args([timeout.0, &seconds(timeout.1)]);
    // Only the log says why a negotiation ended.
    command.env("RUST_LOG", "smbdirect=info");
    command.env_remove("NO_COLOR");
    command.stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A running command; dropping it kills it.
struct Running {
    child: Child,
    /// Its output so far, of stdout and stderr.
    said: Arc<Mutex<[String; 2]>>,
    readers: Vec<thread::JoinHandle<()>>,
}

impl Running {
    fn new(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let said: Arc<Mutex<[String; 2]>> = Arc::default();
        let stdout = child.stdout.take().expect("it is piped");
        let stderr = child.stderr.take().expect("it is piped");
        let readers = vec![
            gather(stdout, said.clone(), 0),
            gather(stderr, said.clone(), 1),
        ];
        Self {
            child,
            said,
            readers,
        }
    }

    /// Waits until `look` returns a value for stdout and stderr.
    fn until<T>(&self, look: impl Fn(&[String; 2]) -> Option<T>) -> T {
        let started = Instant::now();
        loop {
            let said = self.said.lock().unwrap();
            if let Some(found) = look(&said) {
                return found;
            }
            assert!(started.elapsed() < PROMPT_TIMEOUT, "{said:?}");
            drop(said);
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits for its end: the status, stdout and stderr.
    fn finish(mut self) -> (Option<i32>, [String; 2]) {
        let started = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(started.elapsed() < PROMPT_TIMEOUT, "it does not end");
            thread::sleep(Duration::from_millis(1));
        };
        for reader in self.readers.drain(..) {
            reader.join().unwrap();
        }
        let said = std::mem::take(&mut *self.said.lock().unwrap());
        (status.code(), said)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads lines as they come.
fn gather(
    from: impl Read + Send + 'static,
    said: Arc<Mutex<[String; 2]>>,
    place: usize,
) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let mut lines = BufReader::new(from);
        let mut line = String::new();
        while lines.read_line(&mut line).is_ok_and(|length| length > 0) {
            said.lock().unwrap()[place] += &std::mem::take(&mut line);
        }
    })
}

/// `smbdirect listen --echo`.
pub(crate) struct CommandServer {
    settings: Settings,
    running: Option<Running>,
    rdma: RdmaServer,
    /// Length of the output that was searched.
    searched: [usize; 2],
}

impl CommandServer {
    pub(crate) fn new() -> Self {
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        Self {
            settings: Settings::default(),
            running: None,
            rdma: RdmaServer::new(Arc::new(Iwarp::default()), nowhere).unwrap(),
            searched: [0; 2],
        }
    }
}

impl Server for CommandServer {
    fn prepare(&mut self, requested: &PeerSettings) -> Verdict {
        let settings = settings_for(requested);
        if self.running.is_some() && settings == self.settings {
            return Ok(());
        }
        let running = Running::new(command(&settings, &["listen", "127.0.0.1:0", "--echo"]));
        let address: SocketAddr = running.until(|[stdout, _]| {
            let line = stdout.strip_prefix("listening on ")?;
            line.strip_suffix('\n')?.parse().ok()
        });
        self.rdma = RdmaServer::new(Arc::new(Iwarp::default()), address)
            .unwrap()
            .with_tcp();
        self.rdma.facts = facts(&settings, settings.passive_negotiation_timeout);
        self.settings = settings;
        self.running = Some(running);
        self.searched = [0; 2];
        Ok(())
    }

    fn facts(&self) -> PeerFacts {
        self.rdma.facts()
    }

    fn connect(&mut self) -> Verdict<Box<dyn Link>> {
        self.rdma.connect()
    }

    fn connect_tcp(&mut self) -> Verdict<Tcp> {
        self.rdma.connect_tcp()
    }

    /// Waits until the process prints one of the reasons, after those that were found before.
    fn ended_because(&mut self, reasons: &[String]) -> Verdict {
        let running = self.running.as_ref().expect("it was prepared");
        let before = self.searched;
        self.searched = running.until(|said| {
            let new = |place: usize| &said[place][before[place]..];
            let said_so = |reason: &String| new(0).contains(reason) || new(1).contains(reason);
            let found = reasons.iter().any(said_so);
            found.then(|| [said[0].len(), said[1].len()])
        });
        Ok(())
    }
}

/// `smbdirect ping --echo`.
pub(crate) struct CommandClient {
    rdma: RdmaClient,
    running: Option<Running>,
}

impl CommandClient {
    pub(crate) fn new() -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut rdma = RdmaClient::listen(&Iwarp::default(), address, || {}).unwrap();
        rdma.accept_timeout = PROMPT_TIMEOUT;
        Self {
            rdma,
            running: None,
        }
    }
}

impl Client for CommandClient {
    fn accept(&mut self, requested: &PeerSettings, action: ClientAction) -> Verdict<Box<dyn Link>> {
        let settings = settings_for(requested);
        self.rdma.facts = facts(&settings, settings.active_negotiation_timeout);
        let address = self.rdma.local_addr().to_string();
        let size = match action {
            ClientAction::Send => 1000,
            ClientAction::Exchange(size) => size,
        };
        let size = size.to_string();
        let arguments = ["ping", &address, "--echo", "--count", "1", "--size", &size];
        let mut command = command(&settings, &arguments);
        command.args(["--timeout", "60"]);
        self.running = Some(Running::new(command));
        self.rdma.accept(requested, action)
    }

    fn facts(&self) -> PeerFacts {
        self.rdma.facts()
    }

    fn finish(&mut self) -> Verdict<Option<Result<(), String>>> {
        let running = self.running.take().expect("it was started");
        let (status, [stdout, stderr]) = running.finish();
        match status {
            Some(0) => Ok(Some(Ok(()))),
            // Lost pings are part of the output.
            Some(1) => Ok(Some(Err(stdout + &stderr))),
            status => fail("status 0 or 1", format!("{status:?} {stdout} {stderr}")),
        }
    }
}
