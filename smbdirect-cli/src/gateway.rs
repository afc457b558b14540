//! `smbdirect gateway`: SMB messages between SMB Direct and SMB over TCP, whole and unchanged.
//!
//! ```text
//!   client ── accepted connection ──  one session  ── upstream connection ── server
//!                 Source  ───────────── carry ───────────────>  Sink
//!                 Sink    <──────────── carry ────────────────  Source
//! ```
//!
//! Each direction has one message in hand: the next is taken when that one is with the system (TCP)
//! or on the wire (SMB Direct). So a slow side stops the other, by TCP's window or by SMB Direct's
//! credits, and what a session can take of memory is what its two connections may buffer and one
//! message each way.

mod peer;
mod session;
mod tcp;

use std::{
    fmt,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};
use clap::{Args, ValueEnum};
use serde::Serialize;
use smbdirect::{Config, Listener, rdma::provider::Provider};
use tokio::{
    net::TcpListener,
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};
use tracing::{debug, warn};

use crate::{
    options::{
        AcceptOptions, Address, CommonOptions, ConnectOptions, at_least_one, seconds, usage,
        with_profiles,
    },
    report::{self, NegotiatedReport, Report},
    signals::Interrupted,
    transport,
};

use peer::Peer;
use session::Session;

/// Carry SMB between SMB Direct and TCP, for servers or clients that have only one of them
///
/// Listens on LISTEN, opens one connection to UPSTREAM for each that it accepts, and carries SMB
/// messages both ways, whole and unchanged, until either side ends. It looks into no message. What
/// clients ask for by RDMA Read or Write does not get through: see "RDMA" below.
///
/// Goes on until SIGINT or SIGTERM, and ends with status 0 and a summary.
#[derive(Debug, Args)]
#[command(after_help = with_profiles(EXAMPLES))]
pub(crate) struct Gateway {
    /// Where clients connect: HOST[:PORT]; port 0 picks a free one, an empty HOST is every address
    #[arg(value_name = "LISTEN")]
    listen: Address,

    /// The server: HOST[:PORT]; the port is 5445 for SMB Direct and 445 for TCP if none is given
    #[arg(value_name = "UPSTREAM")]
    upstream: Address,

    /// What clients speak
    #[arg(long, value_enum, value_name = "KIND", default_value = "smbdirect")]
    from: Kind,

    /// What the server speaks
    #[arg(long, value_enum, value_name = "KIND", default_value = "tcp")]
    to: Kind,

    /// Most connections to carry at once; more are closed as soon as they come
    #[arg(long, value_name = "N", default_value = "256", value_parser = at_least_one)]
    max_connections: u64,

    /// How long a TCP peer may take nothing, or leave a message unfinished
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    stall_limit: Duration,

    #[command(flatten)]
    connect: ConnectOptions,

    #[command(flatten)]
    pub(crate) options: CommonOptions,

    #[command(flatten)]
    accept: AcceptOptions,
}

const EXAMPLES: &str = "\x1b[1m\x1b[4mExamples:\x1b[0m
  smbdirect gateway :5445 127.0.0.1                               SMB Direct for a Samba beside it
  smbdirect gateway 127.0.0.1:4450 nas --from tcp --to smbdirect  a TCP client to SMB Direct
  smbdirect gateway :5445 nas:5445 --to smbdirect --pcap FILE     look at what goes by

\x1b[1m\x1b[4mRDMA:\x1b[0m
  SMB clients read and write by RDMA where they can, and a server behind TCP cannot serve that.
  Linux keeps to messages on mounts with `sign`, or with rsize=65536,wsize=65536 and 1000000 in
  /proc/fs/cifs/rdma_readwrite_threshold.
  A TCP client sends what the server says it takes, and an SMB Direct server says what it takes by
  RDMA. Have it say less: `smb2 max read`, `write` and `trans` = 65536 in ksmbd.conf.

\x1b[1m\x1b[4mWith --json:\x1b[0m
  {\"event\":\"listening\", address}
  {\"event\":\"opened\", id, peer, upstream, client, server, open, total}   client and server have what
   was negotiated with them, or null for TCP
  {\"event\":\"closed\", id, peer, seconds, ok, ended, messages_to_server, bytes_to_server,
   messages_to_client, bytes_to_client, open, total}
  {\"event\":\"turned_away\", peer, open}
  {\"event\":\"summary\", total, failed, turned_away, messages_to_server, bytes_to_server,
   messages_to_client, bytes_to_client}";

/// How SMB messages travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// SMB Direct, [MS-SMBD]
    Smbdirect,
    /// SMB over TCP, as on port 445
    Tcp,
}

#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event<'a> {
    Listening {
        address: String,
    },
    Opened {
        id: u64,
        peer: SocketAddr,
        upstream: SocketAddr,
        client: Option<NegotiatedReport>,
        server: Option<NegotiatedReport>,
        open: u64,
        total: u64,
    },
    Closed {
        id: u64,
        peer: SocketAddr,
        seconds: f64,
        ok: bool,
        ended: &'a str,
        #[serde(flatten)]
        carried: Carried,
        open: u64,
        total: u64,
    },
    TurnedAway {
        peer: SocketAddr,
        open: u64,
    },
    Summary {
        total: u64,
        failed: u64,
        turned_away: u64,
        #[serde(flatten)]
        carried: Carried,
    },
}

/// How long connections may take to end in good order.
const SHUTDOWN: Duration = Duration::from_secs(3);
/// Time to get well for a system that cannot accept connections: out of descriptors, for one.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

impl Gateway {
    pub(crate) async fn run(self) -> Result<bool> {
        transport::check_connectable(&self.upstream)?;
        let report = Report::new(self.options.json);
        let config = self
            .options
            .config(Some(&self.connect), Some(&self.accept))?;
        if self.options.pcap.is_some() && (self.from, self.to) == (Kind::Tcp, Kind::Tcp) {
            return Err(usage("--pcap has nothing to see from TCP to TCP"));
        }
        let smbdirect = match self.from {
            Kind::Smbdirect => &self.listen,
            Kind::Tcp => &self.upstream,
        };
        let any_port = smbdirect.port.is_none();
        let (provider, _capture) =
            transport::one_end(&self.options, Some(&self.connect), any_port)?;
        // From here on a signal ends the command in good order.
        let interrupted = Interrupted::new();
        let door = match self.from {
            Kind::Smbdirect => {
                let provider = provider.clone();
                Door::SmbDirect(transport::listen(provider, &self.listen, &config).await?)
            }
            Kind::Tcp => Door::Tcp(transport::listen_tcp(&self.listen, tcp::PORT).await?),
        };
        let address = door.address()?;
        report.line(format_args!("listening on {address}"));
        report.event(&Event::Listening {
            address: address.to_string(),
        });
        let max_connections = self.max_connections;
        let way = Way {
            upstream: self.upstream,
            to: self.to,
            provider,
            config,
            connect: self.connect,
            stall_limit: self.stall_limit,
            report,
            totals: Totals::default(),
        };
        serve(door, Arc::new(way), max_connections, interrupted).await?;
        Ok(true)
    }
}

async fn serve(
    mut door: Door,
    way: Arc<Way>,
    max_connections: u64,
    mut interrupted: Interrupted,
) -> Result<()> {
    let (end, ended) = watch::channel(false);
    let mut sessions = JoinSet::new();
    loop {
        tokio::select! {
            accepted = door.accept() => {
                let (peer, client) = accepted?;
                let peer = report::peer(peer);
                if way.totals.open.load(Relaxed) >= max_connections {
                    way.turn_away(peer);
                    continue;
                }
                way.totals.open.fetch_add(1, Relaxed);
                let id = way.totals.total.fetch_add(1, Relaxed) + 1;
                let session = Session {
                    id,
                    peer,
                    way: way.clone(),
                    started: Instant::now(),
                    counts: Counts::default(),
                };
                sessions.spawn(session.run(client, ended.clone()));
            }
            // Nothing is left of one that is done but its place in the set.
            Some(_) = sessions.join_next() => {}
            () = interrupted.wait() => break,
        }
    }
    drop(door);
    end.send_replace(true);
    let all = async { while sessions.join_next().await.is_some() {} };
    // Each of them has a limit of its own.
    if timeout(SHUTDOWN * 2, all).await.is_err() {
        debug!("some connections did not end in time");
    }
    way.report_summary();
    Ok(())
}

/// Where clients come in.
enum Door {
    SmbDirect(Listener),
    Tcp(TcpListener),
}

impl Door {
    fn address(&self) -> Result<SocketAddr> {
        match self {
            Self::SmbDirect(listener) => Ok(listener.local_address()),
            Self::Tcp(listener) => listener.local_addr().context("listening"),
        }
    }

    /// The next client. Dropping the future loses none.
    async fn accept(&mut self) -> Result<(SocketAddr, Peer)> {
        match self {
            Self::SmbDirect(listener) => {
                let accepted = listener.accept().await;
                let connection =
                    accepted.map_err(|error| anyhow!("cannot listen any longer: {error}"))?;
                Ok((connection.remote_address(), Peer::SmbDirect(connection)))
            }
            Self::Tcp(listener) => loop {
                match listener.accept().await {
                    Ok((stream, peer)) => return Ok((peer, Peer::Tcp(stream, peer))),
                    Err(error) => {
                        warn!(%error, "a connection cannot be accepted");
                        sleep(ACCEPT_PAUSE).await;
                    }
                }
            },
        }
    }
}

/// What all sessions have in common: where they lead, and what is counted.
struct Way {
    upstream: Address,
    to: Kind,
    provider: Arc<dyn Provider>,
    config: Config,
    connect: ConnectOptions,
    stall_limit: Duration,
    report: Report,
    totals: Totals,
}

#[derive(Debug, Default)]
struct Totals {
    open: AtomicU64,
    total: AtomicU64,
    failed: AtomicU64,
    turned_away: AtomicU64,
    counts: Counts,
}

/// What went through, in one session or in all.
#[derive(Debug, Default)]
struct Counts {
    to_server: Count,
    to_client: Count,
}

#[derive(Debug, Default)]
struct Count {
    messages: AtomicU64,
    bytes: AtomicU64,
}

impl Count {
    fn add(&self, bytes: u64) {
        self.messages.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
    }
}

impl Counts {
    fn carried(&self) -> Carried {
        Carried {
            messages_to_server: self.to_server.messages.load(Relaxed),
            bytes_to_server: self.to_server.bytes.load(Relaxed),
            messages_to_client: self.to_client.messages.load(Relaxed),
            bytes_to_client: self.to_client.bytes.load(Relaxed),
        }
    }
}

impl Way {
    async fn connect(&self) -> Result<Peer> {
        let upstream = &self.upstream;
        Ok(match self.to {
            Kind::Smbdirect => {
                let provider = &*self.provider;
                let connection =
                    transport::connect(provider, upstream, &self.config, &self.connect).await?;
                Peer::SmbDirect(connection)
            }
            Kind::Tcp => {
                let limit = self.connect.connect_timeout;
                let stream = transport::connect_tcp(upstream, tcp::PORT, limit).await?;
                let address = stream.peer_addr().context("the server hung up at once")?;
                Peer::Tcp(stream, address)
            }
        })
    }

    fn turn_away(&self, peer: SocketAddr) {
        self.totals.turned_away.fetch_add(1, Relaxed);
        let open = self.totals.open.load(Relaxed);
        let why = format!(
            "turned away: {} are open",
            report::plural(open, "connection")
        );
        let why = self.report.style.bad(&why);
        self.report.line(format_args!("{peer}  {why}"));
        self.report.event(&Event::TurnedAway { peer, open });
    }

    fn report_summary(&self) {
        let Totals {
            total,
            failed,
            turned_away,
            counts,
            ..
        } = &self.totals;
        let [total, failed, turned_away] = [total, failed, turned_away].map(|n| n.load(Relaxed));
        let carried = counts.carried();
        let failures = match failed {
            0 => "none failed".to_owned(),
            failed => self
                .report
                .style
                .bad(&format!("{} failed", report::count(failed))),
        };
        self.report.line(format_args!(
            "\n{}, {failures}  {carried}",
            report::plural(total, "connection"),
        ));
        self.report.event(&Event::Summary {
            total,
            failed,
            turned_away,
            carried,
        });
    }
}

/// What went through, each way.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Carried {
    messages_to_server: u64,
    bytes_to_server: u64,
    messages_to_client: u64,
    bytes_to_client: u64,
}

impl fmt::Display for Carried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "to server {}, {}  to client {}, {}",
            report::plural(self.messages_to_server, "message"),
            report::bytes(self.bytes_to_server),
            report::plural(self.messages_to_client, "message"),
            report::bytes(self.bytes_to_client),
        )
    }
}
