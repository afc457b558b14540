//! `smbdirect demo`: both ends of a real connection in one command.

use std::{
    fs::File,
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, anyhow};
use clap::Args;
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use smbdirect::{Config, Connection, Credits, Listener, Statistics};
use tokio::{sync::oneshot, task::spawn_blocking, time::timeout};

use crate::{
    options::{CommonOptions, ConnectOptions},
    report::{self, NegotiatedReport, Report},
    signals,
    transfer::{
        Checksum, Method, TransferError,
        receiving::{Received, receive_files},
        sending::{Source, send_file},
        store::Nowhere,
    },
    transport,
};

/// Show SMB Direct on this machine: both ends, every way to move data, every byte checked
///
/// Moves FILE over a real connection three times: as fragmented messages, by RDMA Read from the
/// sender's memory, and by RDMA Write to the receiver's memory; the memory is advertised by
/// buffer descriptors and taken back by Send with Invalidate.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Demo {
    /// What to move [default: this program]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,

    #[command(flatten)]
    connect: ConnectOptions,

    #[command(flatten)]
    pub(crate) options: CommonOptions,
}

const EXAMPLES: &str = "\x1b[1m\x1b[4mExamples:\x1b[0m
  smbdirect demo
  smbdirect demo big.iso --profile windows
  smbdirect demo --pcap demo.pcap && wireshark demo.pcap

\x1b[1m\x1b[4mWith --json:\x1b[0m
  {\"event\":\"connected\", address, transport, file, bytes, connecting, listening}
                        (the two ends: negotiated and credits)
  {\"event\":\"leg\", method, bytes, seconds, bytes_per_second, messages, segments,
   credit_messages, rdma_operations, invalidations, sha256, ok, error}
  {\"event\":\"summary\", legs, sha256, ok}";

#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event {
    Connected {
        address: SocketAddr,
        transport: &'static str,
        file: String,
        bytes: u64,
        connecting: End,
        listening: End,
    },
    Leg {
        method: Method,
        bytes: u64,
        seconds: f64,
        bytes_per_second: Option<f64>,
        messages: u64,
        segments: u64,
        credit_messages: u64,
        rdma_operations: u64,
        invalidations: u64,
        sha256: Option<Checksum>,
        ok: bool,
        error: Option<String>,
    },
    Summary {
        legs: usize,
        sha256: Checksum,
        ok: bool,
    },
}

/// One end of the connection.
#[derive(Debug, Serialize)]
struct End {
    negotiated: NegotiatedReport,
    send_credits: u16,
    send_credit_target: u16,
    receive_credits: u16,
    receive_credit_target: u16,
    receive_credit_max: u16,
}

impl From<&Connection> for End {
    fn from(connection: &Connection) -> Self {
        let credits = connection.credits();
        Self {
            negotiated: connection.negotiated().into(),
            send_credits: credits.send_credits,
            send_credit_target: credits.send_credit_target,
            receive_credits: credits.receive_credits,
            receive_credit_target: credits.receive_credit_target,
            receive_credit_max: credits.receive_credit_max,
        }
    }
}

/// The ways, in the order they are shown.
const METHODS: [Method; 3] = [Method::Messages, Method::RdmaRead, Method::RdmaWrite];
/// How long nothing may move between the ends of one machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long the end of the connection may take.
const CLOSE: Duration = Duration::from_secs(5);

impl Demo {
    pub(crate) async fn run(self) -> Result<bool> {
        let report = Report::new(self.options.json);
        let config = self.options.config(Some(&self.connect))?;
        let (ends, _capture) = transport::both_ends(&self.options, &self.connect)?;
        let path = match &self.file {
            Some(path) => path.clone(),
            None => std::env::current_exe().context("this program does not find itself")?,
        };
        let what = WhatMoves::read(path).await?;
        let demo = self.demonstrate(&report, &ends, config, &what);
        signals::unless_interrupted(demo).await
    }

    async fn demonstrate(
        &self,
        report: &Report,
        ends: &transport::Ends,
        config: Config,
        what: &WhatMoves,
    ) -> Result<bool> {
        let (active, passive) = self.connect(ends, config).await?;
        let name = ends.active.name();
        // The first message brings the listening end its first credits.
        let round_trip = active.keepalive().await?;
        report_connection(report, [&active, &passive], name, what, round_trip);
        report.line(report.style.dim(LEGS_HEAD));
        let mut all_well = true;
        for method in METHODS {
            // As in SMB: the listening end, the server, does the RDMA.
            let (from, to) = match method {
                Method::Messages | Method::RdmaRead => (&active, &passive),
                Method::RdmaWrite => (&passive, &active),
            };
            let before = Counted::of(&active, &passive);
            let result = move_once(from, to, what, method).await;
            let counted = Counted::of(&active, &passive).since(&before);
            report_leg(report, what, method, &counted, &result);
            match result {
                Ok(received) => all_well &= received.checksum == what.checksum,
                Err(error) => {
                    let peer = passive.local_address();
                    return Err(anyhow!("{method} over {name} on {peer} failed: {error}"));
                }
            }
        }
        transport::close(&active, CLOSE).await;
        report.line(format_args!(
            "\n{}, sha-256 {}",
            report.style.good("every byte arrived three times"),
            what.checksum
        ));
        report.event(&Event::Summary {
            legs: METHODS.len(),
            sha256: what.checksum,
            ok: all_well,
        });
        Ok(all_well)
    }

    async fn connect(
        &self,
        ends: &transport::Ends,
        config: Config,
    ) -> Result<(Connection, Connection)> {
        let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
        let mut listener = Listener::bind(ends.passive.clone(), address, config.clone())
            .await
            .map_err(|error| anyhow!("cannot listen on {address}: {error}"))?;
        let address = listener.local_address();
        let both = async {
            tokio::try_join!(
                async {
                    let connected = Connection::connect(&*ends.active, address, config).await;
                    connected.map_err(|error| anyhow!("cannot connect to {address}: {error}"))
                },
                async { listener.accept().await.map_err(anyhow::Error::from) }
            )
        };
        timeout(self.connect.connect_timeout, both)
            .await
            .map_err(|_| anyhow!("the two ends did not connect in time; try again with -v"))?
    }
}

/// The file, hashed once so that the hashing at one end is not timed three times.
#[derive(Debug)]
struct WhatMoves {
    path: PathBuf,
    length: u64,
    checksum: Checksum,
}

impl WhatMoves {
    async fn read(path: PathBuf) -> Result<Self> {
        let shown = report::printable(&path.to_string_lossy());
        let source =
            Source::open(&path).map_err(|reason| anyhow!("cannot read {shown}: {reason}"))?;
        let length = source.length;
        let hashed = path.clone();
        let checksum = spawn_blocking(move || hash(&hashed)).await?;
        let checksum =
            checksum.map_err(|error| anyhow!("cannot read {shown}: {}", report::plain(&error)))?;
        Ok(Self {
            path,
            length,
            checksum,
        })
    }

    fn name(&self) -> String {
        let name = self.path.file_name().unwrap_or(self.path.as_os_str());
        report::printable(&name.to_string_lossy())
    }
}

fn hash(path: &Path) -> io::Result<Checksum> {
    let mut hasher = Sha256::new();
    let mut file = File::open(path)?;
    let mut buffer = vec![0; 1 << 20];
    loop {
        match io::Read::read(&mut file, &mut buffer)? {
            0 => return Ok(hasher.into()),
            read => hasher.update(&buffer[..read]),
        }
    }
}

/// A file that is there.
struct Moved {
    checksum: Checksum,
    took: Duration,
}

/// Moves the file once, and says what the receiver made of it.
async fn move_once(
    from: &Connection,
    to: &Connection,
    what: &WhatMoves,
    method: Method,
) -> Result<Moved, TransferError> {
    let mut source = Source::open(&what.path).map_err(TransferError::Here)?;
    source.checksum = Some(what.checksum);
    let (sender, arrived) = oneshot::channel();
    let mut sender = Some(sender);
    let report = |received: Received| {
        if let Some(sender) = sender.take() {
            // Nobody waits for it if the sending end has failed.
            let _ = sender.send(received.result);
        }
    };
    let receiving = receive_files(to, Arc::new(Nowhere), PATIENCE, report);
    let sending = async {
        let sent = send_file(from, source, method, PATIENCE, |_| ()).await?;
        let received = arrived.await.map_err(|_| missing())?;
        let checksum = received.map_err(TransferError::Peer)?;
        Ok(Moved {
            checksum,
            took: sent.took,
        })
    };
    tokio::select! {
        biased;
        moved = sending => moved,
        ended = receiving => Err(ended.err().unwrap_or_else(missing)),
    }
}

fn missing() -> TransferError {
    TransferError::Protocol("the receiving end stopped".into())
}

/// What both ends counted together.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    messages: u64,
    segments: u64,
    empty: u64,
    operations: u64,
    invalidations: u64,
}

impl Counted {
    fn of(one: &Connection, other: &Connection) -> Self {
        let sum = |count: fn(&Statistics) -> u64| count(&one.stats()) + count(&other.stats());
        Self {
            messages: sum(|statistics| statistics.messages_sent),
            segments: sum(|statistics| statistics.segments_sent),
            empty: sum(|statistics| statistics.empty_sent),
            operations: sum(|statistics| statistics.reads + statistics.writes),
            invalidations: sum(|statistics| statistics.tokens_invalidated),
        }
    }

    fn since(self, before: &Self) -> Self {
        Self {
            messages: self.messages - before.messages,
            segments: self.segments - before.segments,
            empty: self.empty - before.empty,
            operations: self.operations - before.operations,
            invalidations: self.invalidations - before.invalidations,
        }
    }
}

fn report_connection(
    report: &Report,
    [active, passive]: [&Connection; 2],
    transport: &'static str,
    what: &WhatMoves,
    round_trip: Duration,
) {
    let address = passive.local_address();
    let style = report.style;
    report.line(format_args!(
        "{}, {}, over {transport} on {address}\n",
        style.bold(&what.name()),
        report::bytes(what.length),
    ));
    let ends = [active.negotiated(), passive.negotiated()];
    let credits = [active.credits(), passive.credits()];
    let version = format!("SMB Direct {}", report::version(ends[0].protocol));
    let head = format!("{version:<24}{:>14}{:>14}", "connecting", "listening");
    report.line(style.dim(&head));
    let row = |name: &str, [active, passive]: [String; 2]| {
        report.line(format_args!("{name:<24}{active:>14}{passive:>14}"));
    };
    let size = |bytes: u32| match bytes {
        bytes if bytes < 1 << 17 => format!("{} B", report::count(bytes.into())),
        bytes => report::bytes(bytes.into()),
    };
    row("MaxSendSize", ends.map(|end| size(end.max_send_size)));
    row("MaxReceiveSize", ends.map(|end| size(end.max_receive_size)));
    row(
        "MaxFragmentedSendSize",
        ends.map(|end| size(end.max_fragmented_send_size)),
    );
    row(
        "MaxReadWriteSize",
        ends.map(|end| size(end.max_read_write_size)),
    );
    let of = |now: fn(&Credits) -> u16, wanted: fn(&Credits) -> u16| {
        credits.map(|credits| format!("{} of {}", now(&credits), wanted(&credits)))
    };
    row(
        "SendCredits",
        of(|c| c.send_credits, |c| c.send_credit_target),
    );
    row(
        "ReceiveCredits",
        of(|c| c.receive_credits, |c| c.receive_credit_target),
    );
    let round_trip = report::time(round_trip);
    report.line(format_args!(
        "{:<24}{round_trip:>14}\n",
        "keepalive round trip"
    ));
    report.event(&Event::Connected {
        address,
        transport,
        file: what.path.to_string_lossy().into_owned(),
        bytes: what.length,
        connecting: active.into(),
        listening: passive.into(),
    });
}

const LEGS_HEAD: &str =
    "                   time          rate  messages  segments  grants  RDMA ops  invalidated";

fn report_leg(
    report: &Report,
    what: &WhatMoves,
    method: Method,
    counted: &Counted,
    result: &Result<Moved, TransferError>,
) {
    let moved = result.as_ref().ok();
    let took = moved.map_or(Duration::ZERO, |moved| moved.took);
    let ok = moved.is_some_and(|moved| moved.checksum == what.checksum);
    if ok {
        report.line(format_args!(
            "{method:<12}{:>11}{:>14}{:>10}{:>10}{:>8}{:>10}{:>13}",
            report::time(took),
            report::rate(what.length, took),
            report::count(counted.messages),
            report::count(counted.segments),
            report::count(counted.empty),
            report::count(counted.operations),
            report::count(counted.invalidations),
        ));
    }
    report.event(&Event::Leg {
        method,
        bytes: what.length,
        seconds: took.as_secs_f64(),
        bytes_per_second: report::per_second(what.length, took),
        messages: counted.messages,
        segments: counted.segments,
        credit_messages: counted.empty,
        rdma_operations: counted.operations,
        invalidations: counted.invalidations,
        sha256: moved.map(|moved| moved.checksum),
        ok,
        error: result.as_ref().err().map(ToString::to_string),
    });
}
