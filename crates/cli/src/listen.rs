//! `smbdirect listen`: the accepting end, for `ping --echo`, for tests, and for files.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    path::PathBuf,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow};
use bytes::BytesMut;
use clap::{ArgGroup, Args};
use serde::Serialize;
use smbdirect::{
    Access, Connection, ConnectionError, Listener, SendError, Sending, Statistics, metrics::Family,
};
use smbdirect_transport::Kept;
use tokio::{sync::watch, task::JoinSet, time::timeout};
use tracing::debug;

use crate::{
    failure::{Kind, OfKind},
    metrics::{Figures, MetricsOptions},
    options::{
        AcceptOptions, Address, CommonOptions, Transport, at_least_one, seconds, size, usage,
        with_profiles,
    },
    report::{self, Report},
    signals::Interrupted,
    transfer::{
        Checksum, INACTIVITY_LIMIT, Method,
        receiving::{Received, receive_files},
        store::{Directory, Store},
    },
    transport,
};

/// Accept SMB Direct connections, and echo, drop or store messages
///
/// With --memory, it lends each peer memory for RDMA Read and Write.
///
/// Prints the listening address in the first line, then one line for each file and one at the end
/// of each connection. Runs until SIGINT or SIGTERM, and ends with status 0; with --count or
/// --once, the status is 0 only if every connection ended gracefully.
#[derive(Debug, Args)]
#[command(after_help = with_profiles(EXAMPLES), group = ArgGroup::new("mode").required(true))]
pub(crate) struct Listen {
    /// Address to listen on: HOST[:PORT] [default: every address, port 5445]
    ///
    /// Port 0 picks a free one. With --transport roce the default port is 445
    #[arg(value_name = "ADDR")]
    address: Option<Address>,

    /// Return every message unchanged
    #[arg(long, group = "mode")]
    echo: bool,

    /// Count messages, and drop them
    #[arg(long, group = "mode")]
    sink: bool,

    /// Store the files that `smbdirect send` offers in DIR
    ///
    /// The checksum of each file is checked, and an existing file is never overwritten
    #[arg(long, group = "mode", value_name = "DIR")]
    receive: Option<PathBuf>,

    /// Lend each peer SIZE bytes to read and write by RDMA
    ///
    /// The first message to the peer is the descriptor of 16 bytes. Messages from the peer are dropped. If the peer
    /// invalidates the descriptor's token with one of them, it can no longer use the memory.
    #[arg(long, group = "mode", value_name = "SIZE", value_parser = size)]
    memory: Option<u32>,

    /// End after N connections
    #[arg(short, long, value_name = "N", value_parser = at_least_one)]
    count: Option<u64>,

    /// End after one connection
    #[arg(long, conflicts_with = "count")]
    once: bool,

    /// With --receive, end connections without progress for this time [default: 30]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    inactivity_limit: Option<Duration>,

    #[command(flatten)]
    metrics: MetricsOptions,

    #[command(flatten)]
    pub(crate) options: CommonOptions,

    #[command(flatten)]
    accept: AcceptOptions,
}

const EXAMPLES: &str = "\x1b[1m\x1b[4mExamples:\x1b[0m
  smbdirect listen --receive /srv/incoming
  smbdirect listen 127.0.0.1:0 --echo --once
  smbdirect listen [::]:5445 --sink --profile windows
  smbdirect listen 127.0.0.1:0 --memory 1M    memory for peers that use RDMA Read and Write
  smbdirect listen --sink --metrics 127.0.0.1:9445

\x1b[1m\x1b[4mWith --json:\x1b[0m
  {\"event\":\"listening\", address, transport}
  {\"event\":\"metrics\", address}   with --metrics
  {\"event\":\"file\", peer, name, bytes, bytes_moved, method, seconds, bytes_per_second, sha256, ok,
   error}
  {\"event\":\"connection\", peer, seconds, ok, ended, files, messages_received, messages_sent,
   bytes_received, bytes_sent, reads, writes, bytes_read, bytes_written}
  {\"event\":\"lines_lost\", lines}   when lines were lost because nothing read them";

#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event {
    Listening {
        address: String,
        transport: Transport,
    },
    File {
        peer: SocketAddr,
        name: String,
        bytes: u64,
        bytes_moved: u64,
        method: Method,
        seconds: f64,
        bytes_per_second: Option<f64>,
        sha256: Option<Checksum>,
        ok: bool,
        error: Option<String>,
    },
    Connection {
        peer: SocketAddr,
        seconds: f64,
        ok: bool,
        ended: String,
        files: u64,
        messages_received: u64,
        messages_sent: u64,
        bytes_received: u64,
        bytes_sent: u64,
        reads: u64,
        writes: u64,
        bytes_read: u64,
        bytes_written: u64,
    },
}

/// Largest number of concurrent connections; further ones are closed immediately.
const MAX_CONNECTIONS: usize = 128;
/// Longest time that connections may take to end after a signal.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum number of messages being sent back before no more are received.
const MAX_ECHOES: usize = 16;

/// What to do with the messages of connections.
#[derive(Clone)]
enum Mode {
    Echo,
    Sink,
    /// Gives each peer memory of this length in bytes.
    Memory(u32),
    Receive {
        store: Arc<dyn Store>,
        inactivity_limit: Duration,
    },
}

impl Listen {
    pub(crate) async fn run(self) -> Result<bool> {
        let report = Report::new(self.options.json);
        let config = self.options.config(None, Some(&self.accept))?;
        let mode = self.mode()?;
        let (rdma, _capture) = transport::one_end(&self.options, None, &self.address())?;
        // From here on a signal ends the command gracefully.
        let mut interrupted = Interrupted::new();
        let starting = async {
            let listener = rdma.listen(&self.address(), &config).await;
            let listener = listener.of_kind(Kind::Listen)?;
            Ok::<_, anyhow::Error>((listener, self.metrics.bind(&mut Kept::default()).await?))
        };
        // A name may take long to be looked up.
        let (listener, mut metrics) = tokio::select! {
            started = starting => started?,
            () = interrupted.wait() => return Ok(true),
        };
        let address = listener.local_addr();
        let over = transport::listening_over(&self.options);
        report.line(format_args!("listening on {address}{over}"));
        report.event(&Event::Listening {
            address: address.to_string(),
            transport: self.options.transport,
        });
        if let Some(server) = &mut metrics {
            server.start(report, Arc::new(Title(format!("listen {address}"))));
        }
        serve(listener, mode, report, self.most(), interrupted).await
    }

    fn address(&self) -> Address {
        let everywhere = || Address {
            host: String::new(),
            port: None,
        };
        self.address.clone().unwrap_or_else(everywhere)
    }

    /// Returns the number of connections after which to end.
    const fn most(&self) -> Option<u64> {
        if self.once { Some(1) } else { self.count }
    }

    fn mode(&self) -> Result<Mode> {
        if self.receive.is_none() && self.inactivity_limit.is_some() {
            return Err(usage("--inactivity-limit needs --receive"));
        }
        if self.echo {
            return Ok(Mode::Echo);
        }
        if let Some(length) = self.memory {
            return Ok(Mode::Memory(length));
        }
        let Some(path) = &self.receive else {
            return Ok(Mode::Sink);
        };
        let directory = Directory::open(path).map_err(|error| {
            let path = report::printable(&path.to_string_lossy());
            anyhow!(
                "cannot receive into {path}: {}; give an existing directory that can be written to",
                report::plain(&error)
            )
        })?;
        Ok(Mode::Receive {
            store: Arc::new(directory),
            inactivity_limit: self.inactivity_limit.unwrap_or(INACTIVITY_LIMIT),
        })
    }
}

/// The figures of a listener besides the figures of its connections.
struct Title(String);

impl Figures for Title {
    fn title(&self) -> String {
        self.0.clone()
    }

    fn families(&self) -> Vec<Family> {
        Vec::new()
    }
}

async fn serve(
    listener: Listener,
    mode: Mode,
    report: Report,
    most: Option<u64>,
    mut interrupted: Interrupted,
) -> Result<bool> {
    let mut listener = Some(listener);
    let (end, ended) = watch::channel(false);
    let mut connections = JoinSet::new();
    let (mut accepted, mut all_well) = (0, true);
    let signalled = loop {
        if most.is_some_and(|most| accepted >= most) {
            // Peers that connect from now on are refused instead of waiting.
            listener = None;
            if connections.is_empty() {
                break false;
            }
        }
        tokio::select! {
            connection = accept(&mut listener) => {
                let connection = connection?;
                if connections.len() >= MAX_CONNECTIONS {
                    turn_away(report, &connection);
                    continue;
                }
                accepted += 1;
                let one = One { connection, mode: mode.clone(), report };
                connections.spawn(one.serve(ended.clone()));
            }
            Some(well) = connections.join_next() => all_well &= well.unwrap_or(false),
            () = interrupted.wait() => break true,
        }
    };
    drop(listener);
    end.send_replace(true);
    let all = async { while connections.join_next().await.is_some() {} };
    if timeout(SHUTDOWN_TIMEOUT, all).await.is_err() {
        debug!("some connections did not end in time");
    }
    Ok(signalled || all_well)
}

async fn accept(listener: &mut Option<Listener>) -> Result<Connection> {
    match listener {
        Some(listener) => {
            let accepted = listener.accept().await;
            accepted.map_err(|error| anyhow!("cannot listen any longer: {error}"))
        }
        None => std::future::pending().await,
    }
}

fn turn_away(report: Report, connection: &Connection) {
    let peer = transport::canonical(connection.peer_addr());
    report.line(format_args!(
        "{peer}  {}",
        report.style.bad(&format!(
            "turned away: {MAX_CONNECTIONS} connections are open"
        )),
    ));
}

/// One connection, and the treatment of its messages.
struct One {
    connection: Connection,
    mode: Mode,
    report: Report,
}

impl One {
    /// Serves the connection, and returns whether it ended gracefully.
    async fn serve(self, mut ended: watch::Receiver<bool>) -> bool {
        let started = Instant::now();
        let mut tally = Tally::default();
        let result = {
            let mut work = pin!(self.work(&mut tally));
            let told_to_end = async {
                // The result holds a lock, so it is dropped immediately.
                let _ = ended.wait_for(|&ended| ended).await;
            };
            tokio::select! {
                result = &mut work => result,
                () = told_to_end => {
                    // Closing the connection ends the work too.
                    let (result, _) = tokio::join!(work, transport::close(&self.connection, SHUTDOWN_TIMEOUT));
                    result
                }
            }
        };
        let well = result.is_ok() && tally.failed == 0;
        let statistics = self.connection.stats();
        self.report_end(started.elapsed(), &tally, &statistics, result);
        transport::close(&self.connection, SHUTDOWN_TIMEOUT).await;
        well
    }

    async fn work(&self, tally: &mut Tally) -> Result<(), String> {
        let result = match &self.mode {
            Mode::Echo => return self.echo().await,
            Mode::Sink => self.sink().await,
            Mode::Memory(length) => return self.offer_memory(*length).await,
            Mode::Receive {
                store,
                inactivity_limit,
            } => {
                let report = |received: Received| {
                    tally.files += u64::from(received.result.is_ok());
                    tally.failed += u64::from(received.result.is_err());
                    self.report_file(received);
                };
                let store = store.clone();
                let received =
                    receive_files(&self.connection, store, *inactivity_limit, report).await;
                return received.map_err(|error| error.to_string());
            }
        };
        well_ended(result)
    }

    async fn sink(&self) -> ConnectionError {
        loop {
            if let Err(error) = self.connection.recv().await {
                return error;
            }
        }
    }

    /// Lets the peer use memory of `length` bytes until the end of the connection.
    async fn offer_memory(&self, length: u32) -> Result<(), String> {
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_INVALIDATE;
        let region = self
            .connection
            .register(BytesMut::zeroed(length as usize), access)
            .map_err(|error| format!("no memory for the peer: {}", error.reason))?;
        let mut descriptor = BytesMut::new();
        region.descriptor().encode(&mut descriptor);
        match self.connection.send(descriptor) {
            Ok(_) => well_ended(self.sink().await),
            Err(SendError::Connection(error)) => well_ended(error),
            Err(error) => Err(error.to_string()),
        }
    }

    async fn echo(&self) -> Result<(), String> {
        let mut echoes: VecDeque<Sending> = VecDeque::with_capacity(MAX_ECHOES);
        loop {
            let message = match self.connection.recv().await {
                Ok(message) => message,
                Err(error) => return well_ended(error),
            };
            if echoes.len() == MAX_ECHOES
                && let Some(oldest) = echoes.pop_front()
                && let Err(error) = oldest.await
            {
                return well_ended(error);
            }
            match self.connection.send(message) {
                Ok(sending) => echoes.push_back(sending),
                Err(SendError::Connection(error)) => return well_ended(error),
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    fn report_file(&self, received: Received) {
        let Received {
            name,
            length,
            moved,
            method,
            took,
            result,
        } = received;
        let peer = transport::canonical(self.connection.peer_addr());
        let style = self.report.style;
        let plain_name = report::printable(&name);
        match &result {
            Ok(_) => self.report.line(format_args!(
                "{peer}  {}  {} in {}  {}  {method}  {}",
                style.bold(&plain_name),
                report::bytes(length),
                report::time(took),
                report::rate(length, took),
                style.good("stored"),
            )),
            Err(reason) => self.report.line(format_args!(
                "{peer}  {}  {}  {} {}",
                style.bold(&plain_name),
                report::part(moved, length),
                style.bad("not stored:"),
                report::printable(reason),
            )),
        }
        let rate = report::per_second(length, took);
        self.report.event(&Event::File {
            peer,
            name,
            bytes: length,
            bytes_moved: moved,
            method,
            seconds: took.as_secs_f64(),
            bytes_per_second: rate.filter(|_| result.is_ok()),
            sha256: result.as_ref().ok().copied(),
            ok: result.is_ok(),
            error: result.err(),
        });
    }

    fn report_end(
        &self,
        took: Duration,
        tally: &Tally,
        statistics: &Statistics,
        result: Result<(), String>,
    ) {
        let peer = transport::canonical(self.connection.peer_addr());
        let style = self.report.style;
        let what = match self.mode {
            Mode::Receive { .. } => {
                let bytes = statistics.bytes_received + statistics.bytes_read;
                format!(
                    "{}, {}",
                    report::plural(tally.files, "file"),
                    report::bytes(bytes)
                )
            }
            Mode::Echo | Mode::Sink | Mode::Memory(_) => {
                let messages = report::plural(statistics.messages_received, "message");
                format!("{messages}, {}", report::bytes(statistics.bytes_received))
            }
        };
        let how = match (&result, tally.failed) {
            (Ok(()), 0) => style.dim("closed"),
            (Ok(()), failed) => {
                style.bad(&format!("{} not stored", report::plural(failed, "file")))
            }
            (Err(reason), _) => style.bad(reason),
        };
        self.report.line(format_args!(
            "{peer}  {what} in {}  {how}",
            report::time(took)
        ));
        self.report.event(&Event::Connection {
            peer,
            seconds: took.as_secs_f64(),
            ok: result.is_ok() && tally.failed == 0,
            ended: result.err().unwrap_or_else(|| "closed".into()),
            files: tally.files,
            messages_received: statistics.messages_received,
            messages_sent: statistics.messages_sent,
            bytes_received: statistics.bytes_received,
            bytes_sent: statistics.bytes_sent,
            reads: statistics.reads,
            writes: statistics.writes,
            bytes_read: statistics.bytes_read,
            bytes_written: statistics.bytes_written,
        });
    }
}

/// Counts the files of one connection.
#[derive(Debug, Default)]
struct Tally {
    files: u64,
    failed: u64,
}

/// Returns whether the connection was closed gracefully, by either end.
fn well_ended(error: ConnectionError) -> Result<(), String> {
    match error {
        ConnectionError::Closed | ConnectionError::ClosedHere => Ok(()),
        error => Err(transport::explain_end(&error)),
    }
}
