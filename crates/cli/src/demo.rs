//! `smbdirect demo`: both ends of a connection in one process, which move a file three ways and compare every byte.
//!
//! It uses nothing but the library, so it also shows how a program moves data: in messages, by RDMA Read from memory
//! that a message advertises, and by RDMA Write to such memory.

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
use smbdirect::{Access, BufferDescriptorV1, Config, Connection, Listener, Statistics};
use tokio::{task::block_in_place, time::timeout, try_join};

use crate::{
    failure::{Kind, OfKind, of_kind},
    options::{CommonOptions, ConnectOptions, with_profiles},
    report::{self, NegotiatedReport, Report},
    signals, transport,
};

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

/// A way to move the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Method {
    Messages,
    RdmaRead,
    RdmaWrite,
}

const METHODS: [(Method, &str); 3] = [
    (Method::Messages, "messages"),
    (Method::RdmaRead, "RDMA Read"),
    (Method::RdmaWrite, "RDMA Write"),
];

/// Bytes of a message or of an RDMA operation, if both ends take as many.
const PIECE_BYTES: usize = 1 << 20;
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
        let pair = Pair::connect(self, &ends, config).await?;
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
            let before = pair.work();
            let started = Instant::now();
            let bar = match length {
                ..LONG_FILE_BYTES => ProgressBar::hidden(),
                _ => report.progress(length, name),
            };
            pair.move_file(&path, method, &bar).await?;
            bar.finish_and_clear();
            let (took, work) = (started.elapsed(), pair.work().since(&before));
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

/// Both ends of one connection. The client has the memory, and the server reads and writes it, as in SMB.
struct Pair {
    client: Connection,
    server: Connection,
}

impl Pair {
    async fn connect(demo: &Demo, ends: &transport::Ends, config: Config) -> Result<Self> {
        let address = SocketAddr::new(demo.address, 0);
        let listener = Listener::bind(&**ends.passive.provider(), address, config.clone()).await;
        let mut listener = listener
            .map_err(|error| anyhow!("cannot listen on {address}: {error}"))
            .of_kind(Kind::Listen)?;
        let address = listener.local_addr();
        let connecting = async {
            let provider = &**ends.active.provider();
            let connected = Connection::connect(provider, address, config).await;
            connected
                .map_err(|error| anyhow!("cannot connect to {address}: {error}"))
                .of_kind(Kind::Connect)
        };
        let accepting = async { Ok(listener.accept().await?) };
        let both = timeout(demo.connect.connect_timeout, async {
            try_join!(connecting, accepting)
        });
        let late = |_| anyhow!("the two ends did not connect in time; try again with -v");
        let (client, server) = both.await.map_err(late)??;
        Ok(Self { client, server })
    }

    /// Moves the file from one end to the other, which has it too, and compares.
    async fn move_file(&self, path: &Path, method: Method, bar: &ProgressBar) -> Result<()> {
        let negotiated = self.client.negotiated();
        let most = negotiated.max_read_write_size;
        let most = most.min(negotiated.max_fragmented_send_size) as usize;
        let open = || Pieces::open(path, most.min(PIECE_BYTES));
        let (here, there) = (open()?, open()?);
        match method {
            Method::Messages => try_join!(self.send(here), self.compare(there, bar)),
            Method::RdmaRead => try_join!(self.lend(here), self.read(there, bar)),
            Method::RdmaWrite => try_join!(self.fill(here, bar), self.write(there)),
        }?;
        Ok(())
    }

    /// The client sends the file in messages.
    async fn send(&self, mut file: Pieces) -> Result<()> {
        let mut before = None;
        while let Some(piece) = file.next()? {
            let sending = self.client.send(piece)?;
            // One more is under way meanwhile.
            if let Some(before) = before.replace(sending) {
                before.await?;
            }
        }
        if let Some(last) = before {
            last.await?;
        }
        Ok(())
    }

    /// The server compares the messages.
    async fn compare(&self, mut file: Pieces, bar: &ProgressBar) -> Result<()> {
        while let Some(piece) = file.next()? {
            let message = self.server.recv().await?;
            same(&message.into_bytes(), &piece, bar)?;
        }
        Ok(())
    }

    /// The client lends the file in its memory.
    async fn lend(&self, mut file: Pieces) -> Result<()> {
        while let Some(piece) = file.next()? {
            self.used(piece, Access::REMOTE_READ).await?;
        }
        Ok(())
    }

    /// The server reads the memory, and compares.
    async fn read(&self, mut file: Pieces, bar: &ProgressBar) -> Result<()> {
        while let Some(piece) = file.next()? {
            let memory = BufferDescriptorV1::from_bytes(&self.server.recv().await?.into_bytes())?;
            let into = BytesMut::zeroed(piece.len());
            let data = self.server.read(&[memory], 0, into).await?;
            let done = self.server.send_and_invalidate("read", memory.token.into());
            done?.await?;
            same(&data, &piece, bar)?;
        }
        Ok(())
    }

    /// The client lends empty memory, and compares what the server has written.
    async fn fill(&self, mut file: Pieces, bar: &ProgressBar) -> Result<()> {
        while let Some(piece) = file.next()? {
            let memory = BytesMut::zeroed(piece.len());
            let data = self.used(memory, Access::REMOTE_WRITE).await?;
            same(&data, &piece, bar)?;
        }
        Ok(())
    }

    /// The server writes the file to the memory.
    async fn write(&self, mut file: Pieces) -> Result<()> {
        while let Some(piece) = file.next()? {
            let memory = BufferDescriptorV1::from_bytes(&self.server.recv().await?.into_bytes())?;
            // The message is sent after the write, so it arrives when the data is in place.
            let writing = self.server.write(&[memory], 0, piece);
            let done = self
                .server
                .send_and_invalidate("written", memory.token.into());
            writing.await?;
            done?.await?;
        }
        Ok(())
    }

    /// Advertises memory of the client, and returns it when the server has used it and ended its registration.
    async fn used(&self, memory: BytesMut, access: Access) -> Result<BytesMut> {
        let access = access | Access::REMOTE_INVALIDATE;
        let region = self.client.register(memory, access);
        let region =
            region.map_err(|error| anyhow!("memory cannot be registered: {}", error.reason))?;
        let mut descriptor = BytesMut::new();
        region.descriptor().encode(&mut descriptor);
        self.client.send(descriptor)?.await?;
        // With Send with Invalidate, this message has ended the registration already.
        self.client.recv().await?;
        Ok(region.deregister().await?)
    }

    fn work(&self) -> Work {
        let sum = |count: fn(&Statistics) -> u64| {
            count(&self.client.stats()) + count(&self.server.stats())
        };
        Work {
            segments: sum(|statistics| statistics.segments_sent),
            rdma_operations: sum(|statistics| statistics.reads + statistics.writes),
            invalidations: sum(|statistics| statistics.tokens_invalidated),
        }
    }
}

impl Work {
    const fn since(&self, before: &Self) -> Self {
        Self {
            segments: self.segments - before.segments,
            rdma_operations: self.rdma_operations - before.rdma_operations,
            invalidations: self.invalidations - before.invalidations,
        }
    }
}

fn same(arrived: &[u8], expected: &[u8], bar: &ProgressBar) -> Result<()> {
    ensure!(
        arrived == expected,
        "other bytes arrived than were sent, or the file changed meanwhile"
    );
    bar.inc(arrived.len() as u64);
    Ok(())
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

/// A file in pieces of one length, the last of which may be shorter.
struct Pieces {
    file: File,
    bytes: usize,
}

impl Pieces {
    fn open(path: &Path, bytes: usize) -> Result<Self> {
        let file = File::open(path).of_kind(Kind::File)?;
        Ok(Self { file, bytes })
    }

    fn next(&mut self) -> Result<Option<BytesMut>> {
        let mut piece = Vec::with_capacity(self.bytes);
        let mut part = (&mut self.file).take(self.bytes as u64);
        let read = block_in_place(|| part.read_to_end(&mut piece)).of_kind(Kind::File)?;
        Ok((read > 0).then(|| BytesMut::from(&piece[..])))
    }
}
