//! `smbdirect demo`: both ends of a real connection in one command.

use std::{
    fs::File,
    io,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, anyhow};
use clap::Args;
use indicatif::ProgressBar;
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use smbdirect::{Config, Connection, Credits, Listener, Statistics};
use tokio::{sync::oneshot, task::spawn_blocking, time::timeout};

use crate::{
    failure::{Kind, of_kind},
    options::{CommonOptions, ConnectOptions, with_profiles},
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

/// Show SMB Direct on this machine: both ends, every byte checked
///
/// Moves FILE over a real connection three times: as fragmented messages, by RDMA Read from the
/// memory of the sender, and by RDMA Write to the memory of the receiver. Buffer descriptors
/// advertise the memory, and Send with Invalidate ends its registration.
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

/// The methods, in the order in which they are shown.
const METHODS: [Method; 3] = [Method::Messages, Method::RdmaRead, Method::RdmaWrite];
/// Longest time without progress between the ends.
const INACTIVITY_LIMIT: Duration = Duration::from_secs(30);
/// Longest time for closing the connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

impl Demo {
    pub(crate) async fn run(self) -> Result<bool> {
        let report = Report::new(self.options.json);
        let config = self.options.config(Some(&self.connect), None)?;
        let (ends, _capture) = transport::both_ends(&self.options, &self.connect)?;
        let path = match &self.file {
            Some(path) => path.clone(),
            None => std::env::current_exe().context("the path of this program is unknown")?,
        };
        let what = DemoFile::find(path)?;
        let demo = self.demonstrate(&report, &ends, config, what);
        signals::unless_interrupted(demo).await
    }

    async fn demonstrate(
        &self,
        report: &Report,
        ends: &transport::Ends,
        config: Config,
        mut what: DemoFile,
    ) -> Result<bool> {
        let (active, passive) = self.connect(ends, config).await?;
        let name = ends.active.name();
        // The first message gives the listening end its first credits.
        let round_trip = active.keepalive().await?;
        report_connection(report, [&active, &passive], name, &what, round_trip);
        what.hash(report).await?;
        let what = &what;
        if cfg!(debug_assertions) {
            let hint = "(a debug build; one with `cargo run --release` is faster)";
            report.line(report.style.dim(hint));
        }
        report.line(report.style.dim(LEGS_HEAD));
        let mut all_well = true;
        for method in METHODS {
            // As in SMB, the listening end is the server and does the RDMA.
            let (from, to) = match method {
                Method::Messages | Method::RdmaRead => (&active, &passive),
                Method::RdmaWrite => (&passive, &active),
            };
            let before = Counted::of(&active, &passive);
            let result = move_once(report, from, to, what, method).await;
            let counted = Counted::of(&active, &passive).since(&before);
            report_leg(report, what, method, &counted, &result);
            match result {
                Ok(received) => all_well &= received.checksum == what.checksum,
                Err(error) => {
                    let peer = passive.local_addr();
                    return Err(anyhow!("{method} over {name} on {peer} failed: {error}"));
                }
            }
        }
        transport::close(&active, CLOSE_TIMEOUT).await;
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
        let address = SocketAddr::new(self.address, 0);
        let mut listener = Listener::bind(&**ends.passive.provider(), address, config.clone())
            .await
            .map_err(|error| {
                let error = anyhow!("cannot listen on {address}: {error}");
                of_kind(Kind::Listen, error)
            })?;
        let address = listener.local_addr();
        let both = async {
            tokio::try_join!(
                async {
                    let connected =
                        Connection::connect(&**ends.active.provider(), address, config).await;
                    connected.map_err(|error| {
                        let error = anyhow!("cannot connect to {address}: {error}");
                        of_kind(Kind::Connect, error)
                    })
                },
                async { listener.accept().await.map_err(anyhow::Error::from) }
            )
        };
        timeout(self.connect.connect_timeout, both)
            .await
            .map_err(|_| anyhow!("the two ends did not connect in time; try again with -v"))?
    }
}

/// Returns a progress bar, which is visible for long files only.
fn progress(report: &Report, what: &DemoFile, doing: &str) -> ProgressBar {
    if what.length < LONG_FILE_BYTES {
        return ProgressBar::hidden();
    }
    report.progress(what.length, doing)
}

/// Least size in bytes of a file with a visible progress bar.
const LONG_FILE_BYTES: u64 = 256 << 20;

/// The file, hashed once, so that hashing at one end is not timed three times.
#[derive(Debug)]
struct DemoFile {
    path: PathBuf,
    length: u64,
    checksum: Checksum,
}

impl DemoFile {
    /// Finds the file and its length. The checksum is not known yet.
    fn find(path: PathBuf) -> Result<Self> {
        let source = Source::open(&path).map_err(|reason| unreadable(&path, &reason))?;
        let length = source.length;
        Ok(Self {
            path,
            length,
            checksum: Checksum([0; 32]),
        })
    }

    async fn hash(&mut self, report: &Report) -> Result<()> {
        let bar = progress(report, self, "hashing");
        // The thread ends soon after the receiver is dropped.
        let (wanted, shown) = (Arc::new(()), bar.clone());
        let (is_wanted, path) = (Arc::downgrade(&wanted), self.path.clone());
        let goes_on = move |done| {
            shown.set_position(done);
            is_wanted.strong_count() > 0
        };
        let checksum = spawn_blocking(move || hash(&path, goes_on)).await?;
        drop(wanted);
        bar.finish_and_clear();
        self.checksum = checksum.map_err(|error| unreadable(&self.path, &report::plain(&error)))?;
        Ok(())
    }

    fn name(&self) -> String {
        let name = self.path.file_name().unwrap_or(self.path.as_os_str());
        report::printable(&name.to_string_lossy())
    }
}

fn unreadable(path: &Path, reason: &str) -> anyhow::Error {
    let shown = report::printable(&path.to_string_lossy());
    of_kind(Kind::File, anyhow!("cannot read {shown}: {reason}"))
}

/// Hashes the file. `goes_on` gets the bytes done, and returns whether to continue.
fn hash(path: &Path, goes_on: impl Fn(u64) -> bool) -> io::Result<Checksum> {
    let mut hasher = Sha256::new();
    let mut file = File::open(path)?;
    let mut buffer = vec![0; 1 << 20];
    let mut done = 0;
    loop {
        match io::Read::read(&mut file, &mut buffer)? {
            0 => return Ok(hasher.into()),
            read => {
                hasher.update(&buffer[..read]);
                done += read as u64;
            }
        }
        if !goes_on(done) {
            return Err(io::Error::other("the checksum is not needed any more"));
        }
    }
}

/// A file that exists.
struct Moved {
    checksum: Checksum,
    took: Duration,
}

/// Moves the file once, and returns what the receiver stored.
async fn move_once(
    report: &Report,
    from: &Connection,
    to: &Connection,
    what: &DemoFile,
    method: Method,
) -> Result<Moved, TransferError> {
    let mut source = Source::open(&what.path).map_err(TransferError::Here)?;
    source.checksum = Some(what.checksum);
    let (sender, arrived) = oneshot::channel();
    let mut sender = Some(sender);
    let stored = |received: Received| {
        if let Some(sender) = sender.take() {
            // The receiver is gone if the sending end has failed.
            let _ = sender.send(received.result);
        }
    };
    let receiving = receive_files(to, Arc::new(Nowhere), INACTIVITY_LIMIT, stored);
    let sending = async {
        let bar = progress(report, what, &method.to_string());
        let sent = send_file(from, source, method, INACTIVITY_LIMIT, |done| {
            bar.set_position(done);
        })
        .await?;
        bar.finish_and_clear();
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

/// The statistics of both ends.
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
    what: &DemoFile,
    round_trip: Duration,
) {
    let address = passive.local_addr();
    let style = report.style;
    report.line(format_args!(
        "{}, {}, over {transport} on {address}\n",
        style.bold(&what.name()),
        report::bytes(what.length),
    ));
    let ends = [active.negotiated(), passive.negotiated()];
    let credits = [active.credits(), passive.credits()];
    let version = format!("SMB Direct {}", report::VERSION);
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
    let [one, other] = credits;
    let (send, receive) = (
        [send_credits(&one, &other), send_credits(&other, &one)],
        credits.map(receive_credits),
    );
    row("SendCredits", send.map(of_most));
    row("ReceiveCredits", receive.map(of_most));
    let round_trip = report::time(round_trip);
    report.line(format_args!(
        "{:<24}{round_trip:>14}",
        "keepalive round trip"
    ));
    if send.iter().chain(&receive).any(|(now, most)| now > most) {
        report.line(style.dim(ONE_MORE));
    }
    report.line("");
    report.event(&Event::Connected {
        address,
        transport,
        file: what.path.to_string_lossy().into_owned(),
        bytes: what.length,
        connecting: active.into(),
        listening: passive.into(),
    });
}

const ONE_MORE: &str = "* one receive more than the maximum is posted, so that a message with the last credit can be answered";

/// Returns the send credits, and the most there can be: the smaller of what this end asks for and
/// the other grants.
fn send_credits(this: &Credits, other: &Credits) -> (u16, u16) {
    let most = this.send_credit_target.min(other.receive_credit_max);
    (this.send_credits, most)
}

/// Returns the posted receives, and the most there can be: the smaller of what the peer asks for
/// and this end grants.
fn receive_credits(this: Credits) -> (u16, u16) {
    let most = this.receive_credit_target.min(this.receive_credit_max);
    (this.receive_credits, most)
}

/// Returns text as `255 of 255`; a star refers to the footnote.
fn of_most((now, most): (u16, u16)) -> String {
    let star = if now > most { "*" } else { "" };
    format!("{now}{star} of {most}")
}

const LEGS_HEAD: &str =
    "                   time          rate  messages  segments  grants  RDMA ops  invalidated";

fn report_leg(
    report: &Report,
    what: &DemoFile,
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
