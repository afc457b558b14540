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

#[path = "../../gateway/src/answers.rs"]
mod answers;
#[path = "../../gateway/src/buffers.rs"]
mod buffers;
#[path = "../../gateway/src/carried.rs"]
mod carried;
#[path = "../../gateway/src/ends.rs"]
mod ends;
#[path = "../../gateway/src/exchange.rs"]
mod exchange;
#[path = "../../gateway/src/figures.rs"]
mod figures;
mod file;
#[path = "../../gateway/src/live.rs"]
mod live;
#[path = "../../gateway/src/memory.rs"]
mod memory;
#[path = "../../gateway/src/peer.rs"]
mod peer;
#[path = "../../gateway/src/phase.rs"]
mod phase;
#[path = "../../gateway/src/relay.rs"]
mod relay;
#[path = "../../gateway/src/requests.rs"]
mod requests;
#[path = "../../gateway/src/service.rs"]
mod service;
#[path = "../../gateway/src/session.rs"]
mod session;
#[path = "../../gateway/src/tcp.rs"]
pub(crate) mod tcp;

use std::{
    env,
    net::SocketAddr,
    path::PathBuf,
    pin::pin,
    sync::{Arc, Mutex, atomic::Ordering::Relaxed},
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
        self, AcceptOptions, Address, CommonOptions, ConnectOptions, SMB_MESSAGE_BYTES,
        at_least_one, large_size, seconds, seconds_or_zero, usage, with_profiles,
    },
    report::{self, Report},
    resources,
    signals::{Hangup, Interrupted},
    systemd::{self, State},
    transport::{self, Rdma},
};

use buffers::Buffers;
use carried::Counts;
use file::SettingsFile;
use live::{LIVE_KEYS, Live, Network};
use memory::Memory;
use peer::{CLOSE_TIMEOUT, Peer};
use phase::{Phase, Phases};
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
    #[arg(value_name = "LISTEN", required_unless_present = "config")]
    listen: Option<Address>,

    /// The server: HOST[:PORT]; the default port is 5445 for SMB Direct and 445 for TCP
    #[arg(value_name = "UPSTREAM", required_unless_present = "config")]
    upstream: Option<Address>,

    /// Read settings from a TOML file: its keys are these options without dashes, and `listen` and
    /// `upstream`. Options given here take precedence. SIGHUP reads the file again
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Check the file of --config, and end
    #[arg(long, requires = "config")]
    check_config: bool,

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

    /// Permit only clients with these addresses or networks, as in 10.0.0.0/8 [default: all]
    #[arg(long, value_name = "NETWORK")]
    allow: Vec<Network>,

    /// Longest time that SIGTERM waits for the answers to requests; 0 ends sessions immediately. A second
    /// signal ends the wait
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds_or_zero)]
    drain_timeout: Duration,

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
  smbdirect gateway --config /etc/smbdirect/gateway.toml          as the service does

\x1b[1m\x1b[4mAs a service:\x1b[0m
  SIGTERM stops listening, waits until requests are answered (--drain-timeout), and ends. SIGHUP
  reads --config again: allow, drain-timeout, max-connections, stall-limit, upstream and verbose
  change for sessions that begin later; other changes need a restart, and are named.

\x1b[1m\x1b[4mRDMA:\x1b[0m
  READ and WRITE with a channel need no setting, on the client or on the server. They are
  translated where they are neither signed nor encrypted; clients that sign or encrypt keep to
  messages by themselves. A request that cannot be translated ends its connection, with the reason.
  --max-fragmented-size is 8M and 64K here, unless --profile or the option itself says otherwise.

\x1b[1m\x1b[4mWith --json:\x1b[0m
  {\"event\":\"listening\", address, transport}
  {\"event\":\"metrics\", address}   with --metrics
  {\"event\":\"opened\", id, peer, upstream, client, server, open, total}   client and server have what
   was negotiated with them, or null for TCP
  {\"event\":\"refused\", id, peer, reason, cure}   before the end of a connection whose client
   asked for what cannot be translated
  {\"event\":\"closed\", id, peer, seconds, ok, ended, CARRIED, open, total}
  {\"event\":\"turned_away\", peer, open, reason}
  {\"event\":\"reloaded\", changed, needs_restart}   after SIGHUP, with --config
  {\"event\":\"draining\", open, seconds}   after SIGTERM or SIGINT, if sessions are open
  {\"event\":\"summary\", total, failed, turned_away, CARRIED}
  CARRIED is messages_to_server, bytes_to_server, messages_to_client, bytes_to_client,
   reads_by_rdma, bytes_read_by_rdma, writes_by_rdma, bytes_written_by_rdma, requests_passed,
   requests_refused; bytes count the data of READ and WRITE however it went";

/// Pause after a failure to accept a TCP connection, for example because file descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

impl Gateway {
    pub(crate) async fn run(mut self) -> Result<bool> {
        let mut file = None;
        if let Some(path) = self.config.take() {
            let arguments = env::args_os().skip(2).collect();
            let mut settings = SettingsFile::new(path, arguments);
            (self, _) = settings.load()?;
            options::set_verbosity(self.options.verbose);
            file = Some(settings);
        }
        let report = Report::new(self.options.json);
        let (listen, config) = self.check()?;
        if let (true, Some(file)) = (self.check_config, &file) {
            report.line(format_args!("{} is valid", file.name()));
            return Ok(true);
        }
        self.limit_memory();
        let live = self.live(&config)?;
        self.raise_open_files(&live);
        let smbdirect = match self.from {
            Kind::Smbdirect => &listen,
            Kind::Tcp => &live.upstream,
        };
        let passed = systemd::passed_listener()?;
        let (for_provider, for_tcp) = match self.from {
            Kind::Smbdirect => (passed, None),
            Kind::Tcp => (None, passed),
        };
        let connect = Some(&self.connect);
        let (rdma, _capture) =
            transport::accepting_end(&self.options, connect, smbdirect, for_provider)?;
        // From here on a signal ends the command gracefully.
        let control = Control {
            interrupted: Interrupted::new(),
            hangup: Hangup::new(),
            file,
        };
        let listener = match (self.from, for_tcp) {
            (Kind::Smbdirect, _) => ClientListener::SmbDirect(rdma.listen(&listen, &config).await?),
            (Kind::Tcp, Some(passed)) => ClientListener::Tcp(TcpListener::from_std(passed)?),
            (Kind::Tcp, None) => {
                ClientListener::Tcp(transport::listen_tcp(&listen, tcp::PORT).await?)
            }
        };
        let mut metrics = self.metrics.bind().await?;
        let address = listener.address()?;
        let over = match self.from {
            Kind::Smbdirect => transport::listening_over(&self.options),
            Kind::Tcp => String::new(),
        };
        report.line(format_args!("listening on {address}{over}"));
        report.event(&Event::Listening {
            address: address.to_string(),
            transport: (self.from == Kind::Smbdirect).then_some(self.options.transport),
        });
        let service = Arc::new(self.service(address, live, rdma, config, report));
        if let Some(server) = &mut metrics {
            server.start(report, service.clone());
        }
        tokio::select! {
            served = serve(listener, service, control) => served?,
            () = systemd::keep_watchdog_quiet() => {}
        }
        Ok(true)
    }

    /// Checks what can be checked without the network, and returns the address to listen on and the
    /// settings of connections.
    fn check(&self) -> Result<(Address, Config)> {
        let missing = |what: &str| usage(format!("{what} is missing; it is an address"));
        let listen = self.listen.clone().ok_or_else(|| missing("listen"))?;
        let upstream = self.upstream.as_ref();
        transport::check_connectable(upstream.ok_or_else(|| missing("upstream"))?)?;
        let config = self.settings()?;
        self.live(&config)?;
        if self.options.pcap.is_some() && (self.from, self.to) == (Kind::Tcp, Kind::Tcp) {
            return Err(usage(
                "--pcap cannot capture this gateway: both sides are TCP",
            ));
        }
        Ok((listen, config))
    }

    /// Returns the settings that can change while the gateway runs.
    ///
    /// # Errors
    /// There is not enough memory for one connection, or no server.
    fn live(&self, config: &Config) -> Result<Live> {
        let upstream = self.upstream.clone();
        let max_connections = self
            .max_connections
            .min(self.affordable_connections(config));
        if max_connections == 0 {
            let needed = report::bytes(2 * self.memory_of_one(config));
            return Err(usage(format!(
                "--memory is too little for one connection, which needs {needed}; say more, or \
                 less for --max-fragmented-size"
            )));
        }
        Ok(Live {
            upstream: upstream.ok_or_else(|| usage("upstream is missing; it is an address"))?,
            allow: self.allow.clone(),
            max_connections,
            stall_limit: self.stall_limit,
            drain_timeout: self.drain_timeout,
        })
    }

    /// Keeps --memory below the limit of the control group, beyond which the kernel would kill this
    /// process.
    fn limit_memory(&mut self) {
        let Some(limit) = resources::memory_limit() else {
            return;
        };
        let most = limit.bytes / 4 * 3;
        if self.memory > most {
            warn!(
                "--memory is {}, and {} permits {}: using {}, and leaving the rest to the program \
                 itself",
                report::bytes(self.memory),
                limit.file,
                report::bytes(limit.bytes),
                report::bytes(most)
            );
            self.memory = most;
        }
    }

    /// Raises the limit of open files, and names it if it is too low for all connections.
    fn raise_open_files(&self, live: &Live) {
        let Some(limit) = resources::raise_open_files() else {
            return;
        };
        let needed = 2 * live.max_connections + OTHER_FILES;
        if limit < needed {
            warn!(
                "--max-connections {} needs {needed} open files, and the limit is {limit}; raise \
                 RLIMIT_NOFILE (`ulimit -n`, LimitNOFILE= of the unit)",
                live.max_connections
            );
        }
    }

    fn service(
        self,
        listening: SocketAddr,
        live: Live,
        rdma: Rdma,
        config: Config,
        report: Report,
    ) -> Service {
        let in_flight = self.memory / 4;
        let affordable_connections = self.affordable_connections(&config);
        Service {
            listening,
            to: self.to,
            rdma,
            config,
            connect: self.connect,
            live: Mutex::new(Arc::new(live)),
            affordable_connections,
            requests: Memory::new(in_flight),
            answers: Memory::new(in_flight),
            // Half of the memory for one direction, so that a small --memory also limits free buffers.
            buffers: Arc::new(Buffers::new(in_flight / 2)),
            report,
            totals: Totals::default(),
        }
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

/// Time without a session after which the free buffers of the pool are released.
const IDLE_MEMORY_TIME: Duration = Duration::from_mins(1);

/// Open files besides those of connections: standard streams, the runtime, metrics, captures.
const OTHER_FILES: u64 = 64;

/// What controls a running gateway from outside.
struct Control {
    interrupted: Interrupted,
    hangup: Hangup,
    file: Option<SettingsFile>,
}

async fn serve(
    mut listener: ClientListener,
    service: Arc<Service>,
    mut control: Control,
) -> Result<()> {
    let (phase, phases) = watch::channel(Phase::Serving);
    let phases = Phases(phases);
    let mut sessions = JoinSet::new();
    let mut idle = pin!(sleep(IDLE_MEMORY_TIME));
    let ready = format!("listening on {}", service.listening);
    systemd::notify(State::Ready(&ready));
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (peer, client) = accepted?;
                if let Some(session) = admit(&service, transport::canonical(peer), &phases) {
                    sessions.spawn(session.run(client));
                }
            }
            // Removes a finished session from the set; it has already reported its result.
            Some(_) = sessions.join_next() => {
                idle.as_mut().reset(tokio::time::Instant::now() + IDLE_MEMORY_TIME);
            }
            () = &mut idle, if sessions.is_empty() && service.buffers.kept() > 0 => {
                service.buffers.release();
            }
            () = control.hangup.wait() => {
                systemd::notify(State::Reloading);
                reload(&service, &mut control.file);
                systemd::notify(State::Ready(&ready));
            }
            () = control.interrupted.wait() => break,
        }
    }
    drop(listener);
    systemd::notify(State::Stopping("waiting for the answers to requests"));
    drain(&service, &phase, &mut sessions, &mut control.interrupted).await;
    service.report_summary();
    Ok(())
}

/// Returns the session of a client that was accepted, or turns the client away.
fn admit(service: &Arc<Service>, peer: SocketAddr, phases: &Phases) -> Option<Session> {
    let live = service.live();
    if !live.permits(peer.ip()) {
        service.refuse_address(peer);
        return None;
    }
    let totals = &service.totals;
    if totals.open.load(Relaxed) >= live.max_connections {
        service.turn_away(peer);
        return None;
    }
    totals.open.fetch_add(1, Relaxed);
    Some(Session {
        id: totals.total.fetch_add(1, Relaxed) + 1,
        peer,
        service: service.clone(),
        live,
        phases: phases.clone(),
        started: Instant::now(),
        counts: Counts::default(),
    })
}

/// Reads the settings again. Those that can change do so for sessions that begin later.
fn reload(service: &Service, file: &mut Option<SettingsFile>) {
    let Some(file) = file else {
        warn!(
            "SIGHUP: the gateway was started without --config, so there is no file to read again"
        );
        return;
    };
    let loaded = file.load::<Gateway>().and_then(|(mut gateway, changed)| {
        let (_, config) = gateway.check()?;
        gateway.limit_memory();
        Ok((gateway.live(&config)?, gateway.options.verbose, changed))
    });
    let (mut live, verbose, changed) = match loaded {
        Ok(loaded) => loaded,
        Err(error) => {
            warn!("the settings stay as they are: {error:#}");
            return;
        }
    };
    // The memory and the buffers are those that the gateway was started with.
    live.max_connections = live.max_connections.min(service.affordable_connections);
    service.set_live(live);
    options::set_verbosity(verbose);
    let (changed, fixed): (Vec<_>, Vec<_>) = changed
        .into_iter()
        .partition(|key| LIVE_KEYS.contains(&key.as_str()));
    let names = match changed.is_empty() {
        true => "nothing has changed".to_owned(),
        false => format!("changed {}", changed.join(", ")),
    };
    service
        .report
        .line(format_args!("{} read again: {names}", file.name()));
    if !fixed.is_empty() {
        warn!(
            "these settings need a restart to change: {}",
            fixed.join(", ")
        );
    }
    service.report.event(&Event::Reloaded {
        changed: &changed,
        needs_restart: &fixed,
    });
}

/// Ends the sessions: first those whose requests are answered, and all of them after the drain
/// timeout or another signal.
async fn drain(
    service: &Service,
    phase: &watch::Sender<Phase>,
    sessions: &mut JoinSet<()>,
    interrupted: &mut Interrupted,
) {
    let limit = service.live().drain_timeout;
    let open = service.totals.open.load(Relaxed);
    if open > 0 && !limit.is_zero() {
        service.report.event(&Event::Draining {
            open,
            seconds: limit.as_secs_f64(),
        });
        phase.send_replace(Phase::Draining);
        let all = async { while sessions.join_next().await.is_some() {} };
        tokio::select! {
            done = timeout(limit, all) => if done.is_err() {
                let open = service.totals.open.load(Relaxed);
                let open = report::plural(open, "session");
                warn!("{open} with unanswered requests end after --drain-timeout");
            },
            () = interrupted.wait() => {}
        }
    }
    phase.send_replace(Phase::Ending);
    let all = async { while sessions.join_next().await.is_some() {} };
    // Each session has a time limit of its own.
    if timeout(CLOSE_TIMEOUT * 2, all).await.is_err() {
        debug!("some connections did not end in time");
    }
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
                        let cure = transport::limit_cure(&error);
                        warn!(%error, cure, "a connection cannot be accepted");
                        sleep(ACCEPT_PAUSE).await;
                    }
                }
            },
        }
    }
}
