//! A running command, and a queue pair of our own iWARP on which the script posts by hand.
//!
//! Timers are short where a case is about them, and are never judged by how long they take at
//! most: only that they do not run out too early, and run out at all.

use std::{
    cell::Cell,
    collections::VecDeque,
    fs,
    future::poll_fn,
    io::{BufRead, BufReader, Read},
    net::SocketAddr,
    process::{Child, Command, Stdio},
    rc::Rc,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use smbdirect::{
    Settings,
    rdma::{
        iwarp::Iwarp,
        provider::{Answer, ConnectRequest, Connected, Listener, Provider, QueuePair, Teardown},
        work::{Completion, Inline, WorkId, WorkRequest},
    },
};
use tempfile::TempDir;
use tokio::{runtime::Runtime, time::timeout};

use crate::script::Next;

/// Longest time that the script waits for a message that is due immediately, also on a busy
/// machine.
pub(crate) const PROMPT_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for which the script checks that no message arrives.
pub(crate) const SILENCE_TIMEOUT: Duration = Duration::from_millis(200);
/// Where a case is about timers, they take so long.
const SHORT: Duration = Duration::from_secs(2);

/// Settings for cases that are about timers.
pub(crate) fn timers(settings: Settings) -> Settings {
    Settings {
        keepalive_interval: SHORT,
        keepalive_response_timeout: SHORT,
        active_negotiation_timeout: SHORT,
        passive_negotiation_timeout: SHORT,
        credit_grant_timeout: Some(SHORT),
        ..settings
    }
}

/// So much less than a timer that a busy machine does not miss it.
pub(crate) fn almost(timer: Duration) -> Duration {
    timer / 3
}

/// It took as long as it should have, or longer.
pub(crate) fn assert_took(took: Duration, expected: Duration) {
    assert!(took >= expected, "{took:?}, {expected:?} was due");
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
    // What ends a negotiation is told there and nowhere else.
    command.env("RUST_LOG", "smbdirect=info");
    command.env_remove("NO_COLOR");
    command.stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A command that is running; dropping it kills it.
struct Running {
    child: Child,
    /// All that it has said, on stdout and on stderr.
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

    /// Waits until `look` finds what it looks for in stdout and stderr.
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

fn runtime() -> Rc<Runtime> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    Rc::new(builder.enable_all().build().unwrap())
}

/// What comes of the future within `limit`.
fn within<T>(runtime: &Runtime, limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    runtime.block_on(async { timeout(limit, future).await.ok() })
}

/// `smbdirect listen --echo`.
pub(crate) struct Server {
    pub(crate) settings: Settings,
    running: Running,
    address: SocketAddr,
    runtime: Rc<Runtime>,
    /// How much of what it has said was looked at.
    heard: Cell<[usize; 2]>,
}

impl Server {
    pub(crate) fn start(settings: Settings) -> Self {
        let running = Running::new(command(&settings, &["listen", "127.0.0.1:0", "--echo"]));
        let address = running.until(|[stdout, _]| {
            let line = stdout.strip_prefix("listening on ")?;
            line.strip_suffix('\n')?.parse().ok()
        });
        Self {
            settings,
            running,
            address,
            runtime: runtime(),
            heard: Cell::default(),
        }
    }

    /// A new RDMA connection.
    pub(crate) fn connect(&self) -> Peer {
        let request = ConnectRequest {
            address: self.address,
            private_data: Bytes::new(),
            receive: first_receive(),
        };
        let started = Instant::now();
        let iwarp = Iwarp::default();
        let connecting = iwarp.connect(request);
        let connected = within(&self.runtime, PROMPT_TIMEOUT, connecting);
        let connected = connected.expect("it connects in time").unwrap();
        Peer::new(connected, started, self.runtime.clone())
    }

    /// The process has said these words since it was asked last.
    pub(crate) fn expect_said(&self, words: &str) {
        let before = self.heard.get();
        let lengths = self.running.until(|said| {
            let new = |place: usize| &said[place][before[place]..];
            let found = new(0).contains(words) || new(1).contains(words);
            found.then(|| [said[0].len(), said[1].len()])
        });
        self.heard.set(lengths);
    }
}

/// `smbdirect send`, or `smbdirect ping --echo`.
pub(crate) struct Initiator {
    pub(crate) settings: Settings,
    listener: Box<dyn Listener>,
    errand: Errand,
    running: Option<Running>,
    runtime: Rc<Runtime>,
    /// Where the file is that it sends.
    directory: TempDir,
}

/// What it connects for.
#[derive(Clone, Copy)]
pub(crate) enum Errand {
    /// A message that is never answered: the offer of a file.
    Send,
    /// A message of so many bytes that is to come back.
    Echo(usize),
}

impl Initiator {
    pub(crate) fn start(settings: Settings, errand: Errand) -> Self {
        let runtime = runtime();
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = runtime.block_on(Iwarp::default().listen(address)).unwrap();
        Self {
            settings,
            listener,
            errand,
            running: None,
            runtime,
            directory: TempDir::new().unwrap(),
        }
    }

    pub(crate) fn accept(&mut self) -> Peer {
        let started = Instant::now();
        let address = self.listener.local_address().to_string();
        let command = match self.errand {
            Errand::Send => {
                let file = self.directory.path().join("file");
                fs::write(&file, [0xa5; 1000]).unwrap();
                command(&self.settings, &["send", &address, file.to_str().unwrap()])
            }
            Errand::Echo(size) => {
                let size = size.to_string();
                let arguments = ["ping", &address, "--echo", "--count", "1", "--size", &size];
                let mut command = command(&self.settings, &arguments);
                command.args(["--timeout", "60"]);
                command
            }
        };
        self.running = Some(Running::new(command));
        let accepting = async {
            let incoming = self.listener.accept().await.unwrap();
            let answer = Answer {
                private_data: Bytes::new(),
                receive: first_receive(),
                peer_serves_reads: None,
            };
            (incoming.answer)(answer).await.unwrap()
        };
        let connected = within(&self.runtime, PROMPT_TIMEOUT, accepting);
        let connected = connected.expect("it connects in time");
        Peer::new(connected, started, self.runtime.clone())
    }

    /// How its errand ended: with words if it failed.
    pub(crate) fn finish(mut self) -> Result<(), String> {
        let running = self.running.take().expect("it was started");
        let (status, [stdout, stderr]) = running.finish();
        match (status, self.errand) {
            (Some(0), _) => Ok(()),
            // Pings that are lost are what it is there to report.
            (Some(1), Errand::Echo(_)) => Err(stdout + &stderr),
            (Some(1), Errand::Send) => {
                assert!(stderr.starts_with("error: "), "{stderr}");
                Err(stderr)
            }
            other => panic!("{other:?} {stdout} {stderr}", other = other.0),
        }
    }
}

/// The script's end of a connection, with the command at the other. What is posted leaves when
/// the script looks for what comes.
pub(crate) struct Peer {
    queue_pair: Box<dyn QueuePair>,
    runtime: Rc<Runtime>,
    last_id: u64,
    connected: Instant,
    arrived: VecDeque<Bytes>,
    ended: bool,
}

/// The receive posted before connecting.
fn first_receive() -> WorkRequest {
    WorkRequest::Receive {
        id: WorkId(0),
        length: 512,
        count: 1,
    }
}

impl Peer {
    fn new(connected: Connected, started: Instant, runtime: Rc<Runtime>) -> Self {
        Self {
            queue_pair: connected.queue_pair,
            runtime,
            last_id: 0,
            connected: started,
            arrived: VecDeque::new(),
            ended: false,
        }
    }

    pub(crate) fn connected(&self) -> Instant {
        self.connected
    }

    pub(crate) fn now(&self) -> Instant {
        Instant::now()
    }

    pub(crate) fn post_receives(&mut self, count: u16, length: u32) {
        let (id, count) = (self.next_id(), count.into());
        self.queue_pair
            .post(WorkRequest::Receive { id, length, count });
    }

    pub(crate) fn send(&mut self, message: &[u8]) {
        self.wait(PROMPT_TIMEOUT, |peer| {
            (peer.ended || peer.queue_pair.room().sends > 0).then_some(())
        })
        .expect("there is room in time");
        let id = self.next_id();
        self.queue_pair.post(WorkRequest::Send {
            id,
            header: Inline::new(),
            payload: Bytes::copy_from_slice(message),
            invalidate: None,
        });
    }

    pub(crate) fn next(&mut self, limit: Duration) -> Next {
        let next = self.wait(limit, |peer| match peer.arrived.pop_front() {
            Some(message) => Some(Next::Message(message)),
            None => peer.ended.then_some(Next::End),
        });
        next.unwrap_or(Next::Silence)
    }

    pub(crate) fn disconnect(&mut self) {
        self.queue_pair.disconnect(Teardown::Graceful);
        self.wait(PROMPT_TIMEOUT, |peer| peer.ended.then_some(()))
            .expect("it ends in time");
    }

    fn next_id(&mut self) -> WorkId {
        self.last_id += 1;
        WorkId(self.last_id)
    }

    /// Drives the queue pair until `look` finds what it looks for, or so long.
    fn wait<T>(&mut self, limit: Duration, look: impl Fn(&mut Self) -> Option<T>) -> Option<T> {
        // Nothing is flushed where nothing has to be waited for.
        if let Some(found) = look(self) {
            return Some(found);
        }
        let runtime = self.runtime.clone();
        let waiting = poll_fn(|context| {
            self.turn(context);
            look(self).map_or(Poll::Pending, Poll::Ready)
        });
        within(&runtime, limit, waiting)
    }

    fn turn(&mut self, context: &mut Context<'_>) {
        self.queue_pair.flush(context);
        while let Poll::Ready(completion) = self.queue_pair.poll_completion(context) {
            match completion {
                Completion::Received { message, .. } => self.arrived.push_back(message),
                Completion::Disconnected(_) => self.ended = true,
                _ => {}
            }
        }
    }
}
