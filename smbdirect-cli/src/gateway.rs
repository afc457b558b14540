//! `smbdirect gateway`: forwards SMB between SMB Direct and TCP, with RDMA on each side that has it.
//!
//! ```text
//!   client ── accepted connection ──  one session  ── upstream connection ── server
//!                 Source  ───────── requests::carry ────────>  Sink
//!                                       Exchange
//!                 Sink    <──────── answers::carry  ─────────  Source
//! ```
//!
//! `smbdirect_smb` decides how a message is translated; this module does the I/O. The gateway forwards
//! messages whole and unchanged, except READ and WRITE where only one side has RDMA. Backpressure
//! passes from one side to the other by TCP's window or SMB Direct's credits. Memory is bounded:
//! [`memory`] limits requests and answers in flight, and [`Gateway::settings`] limits connection
//! buffers.

mod answers;
mod buffers;
mod carried;
mod ends;
mod exchange;
mod figures;
mod memory;
mod peer;
mod relay;
mod requests;
mod service;
mod session;
mod tcp;

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};
use clap::Args;
use smbdirect::{Config, Listener};
use tokio::{
    net::TcpListener,
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};
use tracing::{debug, warn};

use crate::{
    metrics::MetricsOptions,
    options::{
        AcceptOptions, Address, CommonOptions, ConnectOptions, SMB_MESSAGE_BYTES, at_least_one,
        large_size, seconds, usage, with_profiles,
    },
    report::{self, Report},
    signals::Interrupted,
    transport,
};

use buffers::Buffers;
use carried::Counts;
use memory::Memory;
use peer::{CLOSE_TIMEOUT, Peer};
use service::{Event, Kind, Service, Totals};
use session::Session;

/// Carry SMB between SMB Direct and TCP, for servers or clients that have only one of them
///
/// Listens on LISTEN, opens one connection to UPSTREAM for each that it accepts, and forwards SMB
/// messages both ways until either side ends. Clients read and write by RDMA although the server has
/// none, and a server with RDMA serves clients that have none. All other messages pass unchanged.
///
/// Runs until SIGINT or SIGTERM, and ends with status 0 and a summary.
#[derive(Debug, Args)]
#[command(after_help = with_profiles(EXAMPLES))]
pub(crate) struct Gateway {
    /// The address that clients connect to: HOST[:PORT]; port 0 picks a free one; without HOST it
    /// is every address of the machine
    #[arg(value_name = "LISTEN")]
    listen: Address,

    /// The server: HOST[:PORT]; the default port is 5445 for SMB Direct and 445 for TCP
    #[arg(value_name = "UPSTREAM")]
    upstream: Address,

    /// Protocol of the clients
    #[arg(long, value_enum, value_name = "KIND", default_value = "smbdirect")]
    from: Kind,

    /// Protocol of the server
    #[arg(long, value_enum, value_name = "KIND", default_value = "tcp")]
    to: Kind,

    /// Largest number of concurrent connections; further ones are closed immediately
    #[arg(long, value_name = "N", default_value = "256", value_parser = at_least_one)]
    max_connections: u64,

    /// Most memory for all connections: half of it for their buffers, a quarter for requests and a
    /// quarter for answers in flight. When it is used up, clients wait. It does not include the
    /// program itself and up to 100 MiB of buffers kept for reuse
    #[arg(long, value_name = "SIZE", default_value = "4G", value_parser = large_size)]
    memory: u64,

    /// Longest time that a TCP peer may accept no data or leave a message unfinished
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    stall_limit: Duration,

    #[command(flatten)]
    metrics: MetricsOptions,

    #[command(flatten)]
    connect: ConnectOptions,

    #[command(flatten)]
    pub(crate) options: CommonOptions,

    #[command(flatten)]
    accept: AcceptOptions,
}

const EXAMPLES: &str = "\x1b[1m\x1b[4mExamples:\x1b[0m
  smbdirect gateway :5445 127.0.0.1                               SMB Direct for a Samba next to it
  smbdirect gateway 127.0.0.1:4450 nas --from tcp --to smbdirect  a TCP client to SMB Direct
  smbdirect gateway :5445 nas:5445 --to smbdirect --pcap FILE     capture what passes

\x1b[1m\x1b[4mRDMA:\x1b[0m
  READ and WRITE with a channel need no setting, on the client or on the server. They are
  translated where they are neither signed nor encrypted; clients that sign or encrypt keep to
  messages by themselves. A request that cannot be translated ends its connection, with the reason.
  --max-fragmented-size is 8M and 64K here, unless --profile or the option itself says otherwise.

\x1b[1m\x1b[4mWith --json:\x1b[0m
  {\"event\":\"listening\", address}
  {\"event\":\"metrics\", address}   with --metrics
  {\"event\":\"opened\", id, peer, upstream, client, server, open, total}   client and server have what
   was negotiated with them, or null for TCP
  {\"event\":\"refused\", id, peer, reason, cure}   before the end of a connection whose client
   asked for what cannot be translated
  {\"event\":\"closed\", id, peer, seconds, ok, ended, CARRIED, open, total}
  {\"event\":\"turned_away\", peer, open}
  {\"event\":\"summary\", total, failed, turned_away, CARRIED}
  CARRIED is messages_to_server, bytes_to_server, messages_to_client, bytes_to_client,
   reads_by_rdma, bytes_read_by_rdma, writes_by_rdma, bytes_written_by_rdma, requests_passed,
   requests_refused; bytes count the data of READ and WRITE however it went";

/// Pause after a failure to accept a TCP connection, for example because file descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

impl Gateway {
    pub(crate) async fn run(self) -> Result<bool> {
        transport::check_connectable(&self.upstream)?;
        let report = Report::new(self.options.json);
        let config = self.settings()?;
        let max_connections = self
            .max_connections
            .min(self.affordable_connections(&config));
        if max_connections == 0 {
            let needed = report::bytes(2 * self.memory_of_one(&config));
            return Err(usage(format!(
                "--memory is too little for one connection, which needs {needed}; say more, or \
                 less for --max-fragmented-size"
            )));
        }
        if self.options.pcap.is_some() && (self.from, self.to) == (Kind::Tcp, Kind::Tcp) {
            return Err(usage("--pcap has nothing to see from TCP to TCP"));
        }
        let smbdirect = match self.from {
            Kind::Smbdirect => &self.listen,
            Kind::Tcp => &self.upstream,
        };
        let (provider, _capture) =
            transport::one_end(&self.options, Some(&self.connect), smbdirect)?;
        // From here on a signal ends the command gracefully.
        let interrupted = Interrupted::new();
        let listener = match self.from {
            Kind::Smbdirect => {
                let provider = provider.clone();
                ClientListener::SmbDirect(transport::listen(provider, &self.listen, &config).await?)
            }
            Kind::Tcp => ClientListener::Tcp(transport::listen_tcp(&self.listen, tcp::PORT).await?),
        };
        let mut metrics = self.metrics.bind().await?;
        let address = listener.address()?;
        report.line(format_args!("listening on {address}"));
        report.event(&Event::Listening {
            address: address.to_string(),
        });
        let in_flight = self.memory / 4;
        let service = Service {
            listening: address,
            upstream: self.upstream,
            to: self.to,
            provider,
            config,
            connect: self.connect,
            stall_limit: self.stall_limit,
            max_connections: AtomicU64::new(max_connections),
            requests: Memory::new(in_flight),
            answers: Memory::new(in_flight),
            // Half of the memory for one direction, so that a small --memory also limits free buffers.
            buffers: Arc::new(Buffers::new(in_flight / 2)),
            report,
            totals: Totals::default(),
        };
        let service = Arc::new(service);
        if let Some(server) = &mut metrics {
            server.start(report, service.clone());
        }
        serve(listener, service, interrupted).await?;
        Ok(true)
    }

    /// Returns the settings of both sides.
    ///
    /// The longest message holds a READ or WRITE of Samba's default size, so that two gateways in a
    /// row can forward those of clients that sign or encrypt. The receive buffer of a connection is
    /// little larger than its credits need, because the session takes messages immediately.
    fn settings(&self) -> Result<Config> {
        let config = self
            .options
            .config(Some(&self.connect), Some(&self.accept))?;
        let mut settings = config.into_settings();
        if self.options.is_default_fragmented_size() {
            settings.max_fragmented_receive_size = SMB_MESSAGE_BYTES;
        }
        let credits = usize::from(settings.receive_credit_max) + 2;
        let receive_buffer = credits * settings.max_receive_size as usize + BUFFERED_BEYOND_CREDITS;
        settings.receive_buffer = Some(receive_buffer);
        Ok(Config::new(settings)?)
    }

    /// Returns the number of connections whose buffers fit in half of --memory.
    fn affordable_connections(&self, config: &Config) -> u64 {
        self.memory / 2 / self.memory_of_one(config)
    }

    /// Returns the maximum number of bytes that the two connections of a session buffer.
    fn memory_of_one(&self, config: &Config) -> u64 {
        let smbdirect = config.receive_memory() as u64 + PENDING_REQUESTS_BYTES;
        let of = |kind| match kind {
            Kind::Smbdirect => smbdirect,
            Kind::Tcp => TCP_BUFFER_BYTES,
        };
        of(self.from) + of(self.to)
    }
}

/// Bytes of messages that an SMB Direct connection buffers in addition to the receives of its credits.
const BUFFERED_BEYOND_CREDITS: usize = 1 << 20;
/// Maximum number of bytes in the table of a client's unanswered requests.
const PENDING_REQUESTS_BYTES: u64 = 2 << 20;
/// Maximum number of bytes that a TCP connection buffers, in addition to requests and answers in flight.
const TCP_BUFFER_BYTES: u64 = 512 << 10;

async fn serve(
    mut listener: ClientListener,
    service: Arc<Service>,
    mut interrupted: Interrupted,
) -> Result<()> {
    let (end, ended) = watch::channel(false);
    let mut sessions = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (peer, client) = accepted?;
                let peer = report::peer(peer);
                if service.totals.open.load(Relaxed) >= service.max_connections() {
                    service.turn_away(peer);
                    continue;
                }
                service.totals.open.fetch_add(1, Relaxed);
                let id = service.totals.total.fetch_add(1, Relaxed) + 1;
                let session = Session {
                    id,
                    peer,
                    service: service.clone(),
                    started: Instant::now(),
                    counts: Counts::default(),
                };
                sessions.spawn(session.run(client, ended.clone()));
            }
            // Removes a finished session from the set; it has already reported its result.
            Some(_) = sessions.join_next() => {}
            () = interrupted.wait() => break,
        }
    }
    drop(listener);
    end.send_replace(true);
    let all = async { while sessions.join_next().await.is_some() {} };
    // Each session has a time limit of its own.
    if timeout(CLOSE_TIMEOUT * 2, all).await.is_err() {
        debug!("some connections did not end in time");
    }
    service.report_summary();
    Ok(())
}

/// The listener that clients connect to.
enum ClientListener {
    SmbDirect(Listener),
    Tcp(TcpListener),
}

impl ClientListener {
    fn address(&self) -> Result<SocketAddr> {
        match self {
            Self::SmbDirect(listener) => Ok(listener.local_address()),
            Self::Tcp(listener) => listener.local_addr().context("listening"),
        }
    }

    /// Returns the next client. Cancel-safe: dropping the future loses no client.
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
