//! `smbdirect gateway`: forwards SMB between SMB Direct and TCP, with RDMA on each side that has it.
//!
//! The gateway is the package `smbdirect_gateway`; here are its options, its settings file, and what it shows.

mod file;
mod output;
mod reload;

use std::{env, path::PathBuf, sync::Arc, time::Duration};

use anyhow::Result;
use clap::{Args, ValueEnum};
use smbdirect_gateway::{
    ClientAddress, ClientListener, Live, Network, Protocol, Service, Settings, connection_config,
};
use smbdirect_smb::frame;
use tokio::net::TcpListener;
use tracing::warn;

use crate::{
    failure::{self, OfKind},
    metrics::{self, Figures, MetricsOptions},
    options::{
        self, AcceptOptions, Address, CommonOptions, ConnectOptions, SMB_MESSAGE_BYTES,
        at_least_one, large_size, seconds, seconds_or_zero, usage, with_profiles,
    },
    pcap::Capture,
    report::{self, Report},
    resources,
    signals::{Hangup, Interrupted},
    systemd::{self, State},
    transport,
};

use file::SettingsFile;
use output::Event;
use reload::Reloading;

/// The protocol that transports SMB messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// SMB Direct, [MS-SMBD]
    Smbdirect,
    /// SMB over TCP, as on port 445
    Tcp,
}

impl From<Kind> for Protocol {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Smbdirect => Self::SmbDirect,
            Kind::Tcp => Self::Tcp,
        }
    }
}

/// Carry SMB between SMB Direct and TCP
///
/// It is for servers or clients that have only one of them.
///
/// Listens on LISTEN, opens one connection to UPSTREAM for each that it accepts, and forwards SMB
/// messages both ways until either side ends. Clients read and write by RDMA although the server has
/// none, and a server with RDMA serves clients that have none. All other messages pass unchanged.
///
/// Runs until SIGINT or SIGTERM, and ends with status 0 and a summary.
#[derive(Debug, Args)]
#[command(after_help = with_profiles(EXAMPLES))]
pub(crate) struct Gateway {
    /// The address that clients connect to: HOST[:PORT]
    ///
    /// Port 0 picks a free one; without HOST it is every address of the machine
    #[arg(value_name = "LISTEN", required_unless_present = "config")]
    listen: Option<Address>,

    /// The server: HOST[:PORT]
    ///
    /// The default port is 5445 for SMB Direct and 445 for TCP
    #[arg(value_name = "UPSTREAM", required_unless_present = "config")]
    upstream: Option<Address>,

    /// Read settings from a TOML file
    ///
    /// Its keys are `listen`, `upstream` and these options without the leading `--`. Options given here take
    /// precedence. SIGHUP reads the file again
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Check the file of --config and exit
    #[arg(long, requires = "config")]
    pub(crate) check_config: bool,

    /// Protocol of the clients
    #[arg(long, value_enum, value_name = "KIND", default_value = "smbdirect")]
    from: Kind,

    /// Protocol of the server
    #[arg(long, value_enum, value_name = "KIND", default_value = "tcp")]
    to: Kind,

    /// Maximum number of concurrent connections
    ///
    /// Further ones are closed immediately
    #[arg(long, value_name = "N", default_value = "256", value_parser = at_least_one)]
    max_connections: u64,

    /// Maximum memory for all connections
    ///
    /// Half of it is for their buffers, a quarter for requests and a quarter for answers in flight.
    /// When it is used up, clients wait. It does not include the program itself and up to 100 MiB of
    /// buffers kept for reuse
    #[arg(long, value_name = "SIZE", default_value = "4G", value_parser = large_size)]
    memory: u64,

    /// Longest time that a TCP peer may stall
    ///
    /// It stalls if it accepts no data, or leaves a message unfinished
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    stall_limit: Duration,

    /// Permit only clients of this network, as in 10.0.0.0/8 [default: all]
    ///
    /// It can be given several times, and takes addresses as well.
    #[arg(long, value_name = "NETWORK")]
    allow: Vec<Network>,

    /// Longest time that SIGTERM waits for the answers to requests
    ///
    /// 0 ends sessions immediately. A second signal ends the wait
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
  smbdirect gateway :5445 127.0.0.1           for a Samba next to it
  smbdirect gateway --config /etc/smbdirect/gateway.toml
  smbdirect gateway 127.0.0.1:4450 nas --from tcp --to smbdirect

  smbdirect gateway :5445 nas:5445 --to smbdirect --pcap FILE     capture what passes

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
  {\"event\":\"lines_lost\", lines}   when lines were lost because nothing read them
  {\"event\":\"draining\", open, seconds}   after SIGTERM or SIGINT, if sessions are open
  {\"event\":\"summary\", total, failed, turned_away, CARRIED}
  CARRIED is messages_to_server, bytes_to_server, messages_to_client, bytes_to_client,
   reads_by_rdma, bytes_read_by_rdma, writes_by_rdma, bytes_written_by_rdma, requests_passed,
   requests_refused; bytes count the data of READ and WRITE however it went";

impl Gateway {
    pub(crate) async fn run(mut self) -> Result<bool> {
        // From here on a signal ends the command gracefully.
        let mut signals = Signals::new();
        let mut file = None;
        if let Some(path) = self.config.take() {
            let arguments = env::args_os().skip(2).collect();
            let settings = SettingsFile::new(path, arguments);
            let mut loaded = settings.load::<Self>()?;
            loaded.options.config = None;
            loaded
                .options
                .check()
                .map_err(|error| loaded.locate(error))?;
            self = loaded.options;
            options::set_verbosity(self.options.verbose);
            file = Some((settings, loaded.given));
        } else {
            self.check()?;
        }
        let report = Report::new(self.options.json);
        if let (true, Some((file, _))) = (self.check_config, &file) {
            report.line(format_args!("{} is valid", file.name()));
            return Ok(true);
        }
        self.limit_memory();
        // A name may take long to be looked up.
        let started = tokio::select! {
            started = self.start(report) => started?,
            () = signals.interrupted.wait() => return Ok(true),
        };
        let Started {
            gateway,
            service,
            ready,
            ..
        } = started;
        let reloading = match file {
            Some((file, given)) => Some(Reloading::new(file, given, self.settings()?)),
            None => None,
        };
        tokio::select! {
            served = signals.serve(gateway, &service, report, &ready, reloading) => served?,
            () = systemd::keep_watchdog_quiet() => {}
        }
        Ok(true)
    }

    /// Listens, and serves the metrics.
    async fn start(&self, report: Report) -> Result<Started> {
        let listen = self.listen()?;
        let settings = self.settings()?;
        let live = self.live(&settings)?;
        self.raise_open_files(&live);
        let (with_rdma, passed) = match self.from {
            Kind::Smbdirect => (&listen, systemd::passed_listener()?),
            Kind::Tcp => (&live.servers[0], None),
        };
        let connect = Some(&self.connect);
        let (rdma, capture) = transport::accepting_end(&self.options, connect, with_rdma, passed)?;
        let listeners: Vec<_> = match self.from {
            Kind::Smbdirect => {
                let listeners = rdma.listen_all(&listen).await;
                let listeners = listeners.of_kind(failure::Kind::Listen)?;
                listeners
                    .into_iter()
                    .map(ClientListener::SmbDirect)
                    .collect()
            }
            Kind::Tcp => {
                let listeners = match systemd::passed_listener()? {
                    Some(passed) => vec![TcpListener::from_std(passed)?],
                    None => {
                        let listeners = transport::listen_tcp_all(&listen, frame::PORT).await;
                        listeners.of_kind(failure::Kind::Listen)?
                    }
                };
                listeners.into_iter().map(ClientListener::Tcp).collect()
            }
        };
        let mut metrics = self.metrics.bind().await?;
        let addresses = listeners.iter().map(ClientListener::address);
        let addresses = addresses.collect::<Result<Vec<_>>>()?;
        let address = addresses[0];
        let over = match self.from {
            Kind::Smbdirect => transport::listening_over(&self.options),
            Kind::Tcp => String::new(),
        };
        report.line(format_args!("listening on {address}{over}"));
        report.event(&Event::Listening {
            address: address.to_string(),
            transport: (self.from == Kind::Smbdirect).then_some(self.options.transport),
        });
        let show = move |event: &smbdirect_gateway::Event<'_>| output::show(report, event);
        let service = Arc::new(Service::new(settings, live, rdma, addresses, show));
        if let Some(server) = &mut metrics {
            server.start(report, service.clone());
        }
        Ok(Started {
            gateway: smbdirect_gateway::Gateway::new(service.clone(), listeners),
            service,
            ready: format!("listening on {address}"),
            _metrics: metrics,
            _capture: capture,
        })
    }

    /// Checks what can be checked without the network. Names are not looked up, because they may have an address only
    /// later.
    fn check(&self) -> Result<()> {
        self.listen()?;
        let upstream = self.upstream.as_ref();
        let upstream = upstream.ok_or_else(|| {
            usage("upstream is missing: the address of the server or gateway to connect to")
        })?;
        transport::check_connectable(upstream)
            .map_err(|error| usage(format!("upstream: {error}")))?;
        self.live(&self.settings()?)?;
        if self.options.pcap.is_some() && (self.from, self.to) == (Kind::Tcp, Kind::Tcp) {
            return Err(usage(
                "--pcap cannot capture this gateway: both sides are TCP",
            ));
        }
        transport::check_accepting_end(&self.options, Some(&self.connect))
    }

    /// Returns the address to listen on.
    fn listen(&self) -> Result<Address> {
        let missing = || usage("listen is missing; give an address");
        self.listen.clone().ok_or_else(missing)
    }

    /// Returns the settings that can change while the gateway runs.
    ///
    /// # Errors
    /// There is not enough memory for one connection, or no server.
    fn live(&self, settings: &Settings) -> Result<Live> {
        let upstream = self.upstream.clone();
        let affordable = settings.affordable_connections();
        let max_connections = self.max_connections.min(affordable);
        if max_connections == 0 {
            let needed = report::bytes(2 * settings.memory_of_one());
            return Err(usage(format!(
                "--memory is too small: one connection needs {needed}; raise it, or lower \
                 --max-fragmented-size"
            )));
        }
        let upstream = upstream.ok_or_else(|| usage("upstream is missing; give an address"))?;
        Ok(Live {
            allow: self.allow.clone(),
            max_connections,
            stall_limit: self.stall_limit,
            drain_timeout: Some(self.drain_timeout),
            ..Live::new(vec![upstream])
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
                "--memory is {}, but the memory limit in {} is {}; using {}, which leaves the rest for \
                 the program itself",
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

    /// Returns the settings that do not change while the gateway runs.
    ///
    /// The longest message holds a READ or WRITE of Samba's default size, so that two gateways in a row can
    /// forward the messages of clients that sign or encrypt.
    fn settings(&self) -> Result<Settings> {
        let config = self
            .options
            .config(Some(&self.connect), Some(&self.accept))?;
        let mut settings = config.into_settings();
        if self.options.is_default_fragmented_size() {
            settings.max_fragmented_receive_size = SMB_MESSAGE_BYTES;
        }
        Ok(Settings {
            from: self.from.into(),
            to: self.to.into(),
            client_address: ClientAddress::Own,
            config: connection_config(settings)?,
            connect_timeout: self.connect.connect_timeout,
            memory: self.memory,
        })
    }
}

/// Open files other than connections: standard streams, the runtime, metrics, captures.
const OTHER_FILES: u64 = 64;

impl Figures for Service {
    fn title(&self) -> String {
        Self::title(self)
    }

    fn families(&self) -> Vec<smbdirect::metrics::Family> {
        Self::families(self)
    }
}

/// A gateway that listens.
struct Started {
    gateway: smbdirect_gateway::Gateway,
    service: Arc<Service>,
    /// What the service manager shows.
    ready: String,
    /// Serves until it is dropped.
    _metrics: Option<metrics::Server>,
    /// Captures until it is dropped.
    _capture: Option<Capture>,
}

/// The signals that control a gateway.
struct Signals {
    interrupted: Interrupted,
    hangup: Hangup,
}

impl Signals {
    fn new() -> Self {
        Self {
            // First, because without a handler it ends the process.
            hangup: Hangup::new(),
            interrupted: Interrupted::new(),
        }
    }

    /// Runs the gateway until a signal ends it.
    async fn serve(
        mut self,
        mut gateway: smbdirect_gateway::Gateway,
        service: &Arc<Service>,
        report: Report,
        ready: &str,
        mut reloading: Option<Reloading>,
    ) -> Result<()> {
        systemd::notify(State::Ready(ready));
        loop {
            tokio::select! {
                served = gateway.serve() => match served? {},
                () = self.hangup.wait() => {
                    systemd::notify(State::Reloading);
                    match &mut reloading {
                        Some(reloading) => reloading.reload(service, report),
                        None => warn!(
                            "SIGHUP: the gateway was started without --config, so there is no file to read again"
                        ),
                    }
                    systemd::notify(State::Ready(ready));
                }
                () = self.interrupted.wait() => break,
            }
        }
        systemd::notify(State::Stopping("waiting for the answers to requests"));
        systemd::with_more_time(gateway.end(self.interrupted.wait())).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::Command;

    use super::*;
    use crate::assets;

    /// Returns everything that the options decide, as text.
    fn decided(file: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gateway.toml");
        fs::write(&path, file).unwrap();
        let arguments = ["--config".into(), path.clone().into()].to_vec();
        let file = SettingsFile::new(path, arguments);
        let gateway = file.load::<Gateway>().unwrap().options;
        let settings = gateway.settings().unwrap();
        let live = gateway.live(&settings).unwrap();
        let rdma = gateway.options.rdma(Some(&gateway.connect));
        let (listen, metrics) = (&gateway.listen, &gateway.metrics);
        let verbose = gateway.options.verbose;
        format!("{listen:?} {settings:#?} {live:#?} {rdma:#?} {metrics:?} {verbose}")
    }

    /// The example of the settings file has each option, and a line of it that is no longer a comment changes
    /// nothing.
    #[test]
    fn a_comment_of_the_example_is_the_default() {
        let example = assets::example(&Gateway::augment_args(Command::new("gateway")));
        let defaults = decided(&example);
        let mut all = String::new();
        let mut count = 0;
        for line in example.lines() {
            let setting = line
                .strip_prefix("# ")
                .and_then(|line| line.split_once(" = "));
            match setting {
                Some((key, value)) if !key.contains(' ') => {
                    let one = format!("{example}\n{key} = {value}\n");
                    assert_eq!(decided(&one), defaults, "{key} = {value}");
                    all += &format!("{key} = {value}\n");
                    count += 1;
                }
                _ => all += &format!("{line}\n"),
            }
        }
        assert_eq!(decided(&all), defaults);
        assert!(count > 20, "{count}");
        let command = Gateway::augment_args(Command::new("gateway"));
        for option in command.get_arguments().filter_map(clap::Arg::get_long) {
            let is_named = example.contains(&format!("{option} = "));
            let is_for_people = ["config", "check-config", "json", "pcap"].contains(&option);
            assert!(is_named != is_for_people, "{option}");
        }
    }
}
