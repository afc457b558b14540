//! `smbdirect demo`: both ends of a connection in one process, which move a file three ways and compare every byte.

mod pair;

use std::{
    fs::File,
    io::Read as _,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, ensure};
use bytes::BytesMut;
use clap::Args;
use indicatif::ProgressBar;
use serde::Serialize;
use smbdirect::Statistics;
use tokio::task::block_in_place;

use crate::{
    failure::{Kind, OfKind, of_kind},
    options::{CommonOptions, ConnectOptions, with_profiles},
    report::{self, NegotiatedReport, Report},
    signals, transport,
};

use pair::{Method, Pair};

/// Show SMB Direct on this machine: both ends, every byte compared
///
/// Moves FILE over a real connection three times: in fragmented messages, by RDMA Read from the memory of the
/// connecting end, and by RDMA Write to it. Buffer descriptors advertise the memory, and Send with Invalidate ends
/// its registration.
#[derive(Debug, Args)]
#[command(after_help = with_profiles(EXAMPLES))]
pub(crate) struct Demo {
    /// File to move [default: this program]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,

    /// Address of this machine to connect over; with --transport verbs, one of an RDMA adapter
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    address: IpAddr,

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
  {\"event\":\"connected\", address, transport, file, bytes, negotiated}
  {\"event\":\"leg\", method (messages, rdma_read, rdma_write), seconds, bytes_per_second, segments,
   rdma_operations, invalidations}
  {\"event\":\"summary\", legs, ok}";

#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event {
    Connected {
        address: SocketAddr,
        transport: &'static str,
        file: String,
        bytes: u64,
        negotiated: NegotiatedReport,
    },
    Leg {
        method: Method,
        seconds: f64,
        bytes_per_second: Option<f64>,
        #[serde(flatten)]
        work: Work,
    },
    Summary {
        legs: usize,
        ok: bool,
    },
}

const METHODS: [(Method, &str); 3] = [
    (Method::Messages, "messages"),
    (Method::RdmaRead, "RDMA Read"),
    (Method::RdmaWrite, "RDMA Write"),
];

/// Least length of a file with a visible progress bar.
const LONG_FILE_BYTES: u64 = 256 << 20;
/// Longest time for closing the connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// What both ends together have done.
#[derive(Debug, Serialize)]
struct Work {
    segments: u64,
    rdma_operations: u64,
    invalidations: u64,
}

impl Work {
    /// Returns what the ends have done until now.
    fn of(pair: &Pair) -> Self {
        let sum = |count: fn(&Statistics) -> u64| {
            count(&pair.client.stats()) + count(&pair.server.stats())
        };
        Self {
            segments: sum(|statistics| statistics.segments_sent),
            rdma_operations: sum(|statistics| statistics.reads + statistics.writes),
            invalidations: sum(|statistics| statistics.tokens_invalidated),
        }
    }

    /// Returns what was done after `before`.
    const fn since(&self, before: &Self) -> Self {
        Self {
            segments: self.segments - before.segments,
            rdma_operations: self.rdma_operations - before.rdma_operations,
            invalidations: self.invalidations - before.invalidations,
        }
    }
}

impl Demo {
    pub(crate) async fn run(self) -> Result<bool> {
        signals::unless_interrupted(self.demonstrate()).await
    }

    async fn demonstrate(&self) -> Result<bool> {
        let report = Report::new(self.options.json);
        let config = self.options.config(Some(&self.connect), None)?;
        let (ends, _capture) = transport::both_ends(&self.options, &self.connect)?;
        let path = match &self.file {
            Some(path) => path.clone(),
            None => std::env::current_exe().context("the path of this program is unknown")?,
        };
        let length = length(&path)?;
        let limit = self.connect.connect_timeout;
        let pair = Pair::connect(self.address, &ends, config, limit).await?;
        let name = path.file_name().unwrap_or(path.as_os_str());
        let name = report::printable(&name.to_string_lossy());
        let address = pair.server.local_addr();
        report.line(format_args!(
            "{}, {}, over {} on {address}",
            report.style.bold(&name),
            report::bytes(length),
            ends.active.name(),
        ));
        report.event(&Event::Connected {
            address,
            transport: ends.active.name(),
            file: path.to_string_lossy().into_owned(),
            bytes: length,
            negotiated: pair.client.negotiated().into(),
        });
        for (method, name) in METHODS {
            let before = Work::of(&pair);
            let started = Instant::now();
            let bar = match length {
                ..LONG_FILE_BYTES => ProgressBar::hidden(),
                _ => report.progress(length, name),
            };
            move_file(&pair, &path, method, &bar).await?;
            bar.finish_and_clear();
            let (took, work) = (started.elapsed(), Work::of(&pair).since(&before));
            report.line(format_args!(
                "{name:<12}{:>11}{:>14}  {}, {}",
                report::time(took),
                report::rate(length, took),
                report::plural(work.segments, "segment"),
                report::plural(work.rdma_operations, "RDMA operation"),
            ));
            report.event(&Event::Leg {
                method,
                seconds: took.as_secs_f64(),
                bytes_per_second: report::per_second(length, took),
                work,
            });
        }
        transport::close(&pair.client, CLOSE_TIMEOUT).await;
        report.line(report.style.good("every byte arrived three times"));
        let legs = METHODS.len();
        report.event(&Event::Summary { legs, ok: true });
        Ok(true)
    }
}

/// Moves the file from one end to the other, and compares.
async fn move_file(pair: &Pair, path: &Path, method: Method, bar: &ProgressBar) -> Result<()> {
    let mut file = File::open(path).of_kind(Kind::File)?;
    loop {
        let mut piece = Vec::with_capacity(pair.piece_bytes());
        let mut part = (&mut file).take(pair.piece_bytes() as u64);
        let read = block_in_place(|| part.read_to_end(&mut piece)).of_kind(Kind::File)?;
        if read == 0 {
            return Ok(());
        }
        let arrived = pair.move_piece(BytesMut::from(&*piece), method).await?;
        ensure!(arrived == piece, "other bytes arrived than were sent");
        bar.inc(read as u64);
    }
}

/// Returns the length of the file.
fn length(path: &Path) -> Result<u64> {
    let shown = report::printable(&path.to_string_lossy());
    let metadata = path.metadata();
    let metadata = metadata
        .map_err(|error| anyhow!("cannot read {shown}: {}", report::plain(&error)))
        .of_kind(Kind::File)?;
    if !metadata.is_file() {
        let error = anyhow!("cannot read {shown}: it is not a regular file");
        return Err(of_kind(Kind::File, error));
    }
    Ok(metadata.len())
}
