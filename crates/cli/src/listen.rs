//! `smbdirect listen`: a plain peer that accepts connections, for `ping`, `check`, `conform` and tests.

use std::{
    collections::VecDeque,
    net::SocketAddr,
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
use smbdirect_gateway::observe::Figures;
use smbdirect_transport::Kept;
use tokio::{sync::watch, task::JoinSet, time::timeout};
use tracing::debug;

use crate::{
    failure::{Kind, OfKind},
    metrics::{self, MetricsOptions},
    options::{
        AcceptOptions, Address, CommonOptions, Transport, at_least_one, size, with_profiles,
    },
    report::{self, Report},
    signals::Interrupted,
    transport,
};

/// Accept SMB Direct connections, and echo or drop messages
///
/// With --memory, it lends each peer memory for RDMA Read and Write. It serves no SMB: for that see `gateway`.
///
/// Prints the listening address in the first line, then one line at the end of each connection. Runs until SIGINT or SIGTERM, and ends with status 0; with --count or
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

    #[command(flatten)]
    metrics: MetricsOptions,

    #[command(flatten)]
    pub(crate) options: CommonOptions,

    #[command(flatten)]
    accept: AcceptOptions,
}

const EXAMPLES: &str = "\x1b[1m\x1b[4mExamples:\x1b[0m
  smbdirect listen 127.0.0.1:0 --echo --once
  smbdirect listen [::]:5445 --sink --profile windows
  smbdirect listen 127.0.0.1:0 --memory 1M    memory for peers that use RDMA Read and Write
  smbdirect listen --sink --metrics 127.0.0.1:9445

\x1b[1m\x1b[4mWith --json:\x1b[0m
  {\"event\":\"listening\", address, transport}
  {\"event\":\"metrics\", address}   with --metrics
  {\"event\":\"connection\", peer, seconds, ok, ended, messages_received, messages_sent, bytes_received,
   bytes_sent, reads, writes, bytes_read, bytes_written}
  {\"event\":\"lines_lost\", lines}   when lines were lost because nothing read them";

#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event {
    Listening {
        address: String,
        transport: Transport,
    },
    Connection {
        peer: SocketAddr,
        seconds: f64,
        ok: bool,
        ended: String,
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
const MAX_CONNECTIONS: usize = 64;
/// Longest time that connections may take to end after a signal.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum number of messages being sent back before no more are received.
const MAX_ECHOES: usize = 16;

/// What to do with the messages of connections.
#[derive(Clone, Copy)]
enum Mode {
    Echo,
    Sink,
    /// Gives each peer memory of this length in bytes.
    Memory(u32),
}

impl Listen {
    pub(crate) async fn run(self) -> Result<bool> {
        let report = Report::new(self.options.json);
        let config = self.options.config(None, Some(&self.accept))?;
        let mode = self.mode();
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
            let title = Title(format!("listen {address}"));
            metrics::start(server, report, Arc::new(title));
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

    const fn mode(&self) -> Mode {
        match self.memory {
            Some(length) => Mode::Memory(length),
            None if self.echo => Mode::Echo,
            None => Mode::Sink,
        }
    }
}

/// The figures of a listener besides the figures of its connections.
struct Title(String);

impl Figures for Title {
    fn title(&self) -> String {
        self.0.clone()
    }

    fn families(&self) -> Vec<Family> {
        metrics::of_program()
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
                let one = One { connection, mode, report };
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
        let result = {
            let mut work = pin!(self.work());
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
        let well = result.is_ok();
        let statistics = self.connection.stats();
        self.report_end(started.elapsed(), &statistics, result);
        transport::close(&self.connection, SHUTDOWN_TIMEOUT).await;
        well
    }

    async fn work(&self) -> Result<(), String> {
        match self.mode {
            Mode::Echo => self.echo().await,
            Mode::Sink => well_ended(self.sink().await),
            Mode::Memory(length) => self.offer_memory(length).await,
        }
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

    fn report_end(&self, took: Duration, statistics: &Statistics, result: Result<(), String>) {
        let peer = transport::canonical(self.connection.peer_addr());
        let style = self.report.style;
        let messages = report::plural(statistics.messages_received, "message");
        let bytes = report::bytes(statistics.bytes_received);
        let how = match &result {
            Ok(()) => style.dim("closed"),
            Err(reason) => style.bad(reason),
        };
        self.report.line(format_args!(
            "{peer}  {messages}, {bytes} in {}  {how}",
            report::time(took)
        ));
        self.report.event(&Event::Connection {
            peer,
            seconds: took.as_secs_f64(),
            ok: result.is_ok(),
            ended: result.err().unwrap_or_else(|| "closed".into()),
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

/// Returns whether the connection was closed gracefully, by either end.
fn well_ended(error: ConnectionError) -> Result<(), String> {
    match error {
        ConnectionError::Closed | ConnectionError::ClosedHere => Ok(()),
        error => Err(transport::explain_end(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_limits_has_the_number_of_connections() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/limits.md");
        let page = std::fs::read_to_string(page).unwrap();
        let row = format!("| connections of `smbdirect listen` | {MAX_CONNECTIONS} |");
        assert!(page.contains(&row), "{row}");
    }
}
