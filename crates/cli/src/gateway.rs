//! `smbdirect gateway`: forwards SMB between SMB Direct and TCP, with RDMA on each side that has it.
//!
//! The gateway is the package `smbdirect_gateway`; here are its options, its settings file, and what it shows.

mod build;
mod cluster;
mod ctl;
mod file;
mod keys;
mod listeners;
mod output;
mod reload;
mod services;
mod upgrade;

use std::{env, future::Future, path::PathBuf, pin::pin, time::Duration};

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use smbdirect_gateway::{
    Protocol,
    observe::{Access, Registry, Server},
};
use tracing::warn;

use crate::{
    metrics::{self, MetricsOptions},
    options::{
        self, AcceptOptions, CommonOptions, ConnectOptions, at_least_one, large_size, seconds,
        with_profiles,
    },
    report::Report,
    signals::{Interrupted, Request, Requests},
    systemd::{self, State},
};

use cluster::{Addresses, ClientOptions, Limit, ServerOptions, seconds_or_never};
use file::{Given, ONLY_SERVICE, SettingsFile};
use services::Services;
use upgrade::{Knowledge, Predecessor, Successor};

#[cfg(target_os = "linux")]
pub(crate) use upgrade::start_new_process;

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
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(disable_help_subcommand = true)]
pub(crate) struct Gateway {
    #[command(subcommand)]
    tool: Option<Tool>,

    /// The address that clients connect to: HOST[:PORT][,...]
    ///
    /// Port 0 picks a free one; without HOST it is every address of the machine
    #[arg(value_name = "LISTEN", required_unless_present = "config")]
    listen: Option<Addresses>,

    /// The server: HOST[:PORT][,...]
    ///
    /// The default port is 5445 for SMB Direct and 445 for TCP
    #[arg(value_name = "UPSTREAM", required_unless_present = "config")]
    upstream: Option<Addresses>,

    /// Read settings from a TOML file
    ///
    /// Its keys are `listen`, `upstream` and these options without the leading `--`. Options given here take
    /// precedence. Tables `[[service]]` with a `name` are services of their own; keys before them are for all.
    /// SIGHUP reads the file again
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Check the file of --config and exit
    #[arg(long, requires = "config", hide_short_help = true)]
    check_config: bool,

    /// Protocol of the clients
    #[arg(long, value_enum, value_name = "KIND", default_value = "smbdirect")]
    from: Protocol,

    /// Protocol of the server
    #[arg(long, value_enum, value_name = "KIND", default_value = "tcp")]
    to: Protocol,

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
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds, hide_short_help = true)]
    stall_limit: Duration,

    #[command(flatten)]
    clients: ClientOptions,

    #[command(flatten)]
    servers: ServerOptions,

    /// Longest time that SIGTERM waits for answers to requests, and that sessions go on after SIGUSR2
    ///
    /// 0 ends sessions immediately, and `never` waits until clients leave. A second signal ends the wait
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds_or_never)]
    drain_timeout: Limit,

    #[command(flatten)]
    metrics: MetricsOptions,

    /// Serve `smbdirect gateway ctl` on this Unix socket, for the same user and root
    #[arg(long, value_name = "PATH", hide_short_help = true)]
    control: Option<PathBuf>,

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
  smbdirect gateway ctl sessions              of a running gateway with --control

\x1b[1m\x1b[4mAs a service:\x1b[0m
  SIGTERM stops listening, waits until requests are answered (--drain-timeout), and ends. SIGHUP
  reads --config again: it starts and removes services, and applies the settings that the manual lists
  to later sessions. It names the changes that need a restart. SIGUSR2 (Linux) starts the program
  again: the new process accepts new clients, and sessions continue for at most --drain-timeout.

\x1b[1m\x1b[4mRDMA:\x1b[0m
  READ and WRITE with a channel need no setting, on the client or on the server. They are
  translated where they are neither signed nor encrypted; clients that sign or encrypt keep to
  messages by themselves. A request that cannot be translated ends its connection, with the reason.
  --max-fragmented-size is 8M and 64K here, unless --profile or the option itself says otherwise.

\x1b[1m\x1b[4mWith --json:\x1b[0m
  {\"event\":\"listening\", address, transport, service}   for each address
  {\"event\":\"metrics\", address}   with --metrics
  {\"event\":\"opened\", id, peer, upstream, server_name, client, server, negotiate_seconds,
   connect_seconds, open, total}   client and server have what was negotiated with them, or null
  {\"event\":\"refused\", id, peer, reason, cure}   before the end of a connection whose client
   asked for what cannot be translated
  {\"event\":\"closed\", id, peer, server_name, negotiate_seconds, connect_seconds, seconds, ok, ended,
   CARRIED, open, total}   opened and closed also have proxy, if a trusted proxy was between
  {\"event\":\"server_down\", server, state, reason}   with several servers: it gets no new clients
  {\"event\":\"server_given_up\", server, reason}   its sessions end, because they have no answers either
  {\"event\":\"server_up\", server}   it gets clients again
  {\"event\":\"turned_away\", peer, open, reason}
  {\"event\":\"reloaded\", changed, needs_restart, added, removed}   after SIGHUP, with --config
  {\"event\":\"upgraded\", process, open}   after SIGUSR2: the new process, and the sessions here
  {\"event\":\"lines_lost\", lines}   when lines were lost because nothing read them
  {\"event\":\"draining\", open, seconds}   after SIGTERM or SIGINT, if sessions are open
  {\"event\":\"summary\", total, failed, turned_away, CARRIED}
  Each event about sessions and servers also has service, the name in the settings file.
  CARRIED is messages_to_server, bytes_to_server, messages_to_client, bytes_to_client,
   reads_by_rdma, bytes_read_by_rdma, writes_by_rdma, bytes_written_by_rdma, requests_passed,
   requests_refused; bytes count the data of READ and WRITE however it went";

/// A tool for a running gateway.
#[derive(Debug, Subcommand)]
enum Tool {
    Ctl(ctl::Ctl),
}

/// A service that is to be started.
struct Planned {
    name: String,
    options: Gateway,
    given: Given,
}

impl Gateway {
    /// Returns whether it serves clients, and is no tool for a gateway that does.
    pub(crate) const fn is_service(&self) -> bool {
        self.tool.is_none() && !self.check_config
    }

    /// Returns whether --json was given.
    pub(crate) const fn json(&self) -> bool {
        match &self.tool {
            Some(Tool::Ctl(ctl)) => ctl.json,
            None => self.options.json,
        }
    }

    pub(crate) async fn run(mut self) -> Result<bool> {
        if let Some(Tool::Ctl(ctl)) = self.tool {
            return ctl.run().await;
        }
        // From here on a signal ends the command gracefully.
        let mut signals = Signals::new();
        let path = self.config.take();
        let is_check = self.check_config;
        let (file, has_tables, mut planned) = match path {
            Some(path) => {
                let file = SettingsFile::new(path, env::args_os().skip(2).collect());
                let (has_tables, planned) = reload::plan(&file)?;
                (Some(file), has_tables, planned)
            }
            None => {
                self.check()?;
                let only = Planned {
                    name: ONLY_SERVICE.into(),
                    options: self,
                    given: Given::default(),
                };
                (None, false, vec![only])
            }
        };
        let of_process = &planned[0].options;
        options::set_verbosity(of_process.options.verbose);
        let report = Report::new(of_process.options.json);
        if let (true, Some(file)) = (is_check, &file) {
            for one in &planned {
                let settings = one.options.settings()?;
                let lowered = build::lowered_limit(&settings, one.options.max_connections);
                lowered
                    .iter()
                    .for_each(|text| report.line(format_args!("{}: {text}", one.name)));
            }
            report.line(format_args!("{} is valid", file.name()));
            return Ok(true);
        }
        let (metrics, control) = (of_process.metrics.clone(), of_process.control.clone());
        build::limit_memory(&mut planned, 0);
        build::raise_open_files(&planned)?;
        let mut services = Services::new(report, file, has_tables);
        let Signals {
            interrupted,
            requests,
        } = &mut signals;
        // A name may take long to be looked up.
        let server = tokio::select! {
            started = async {
                let mut inherited = systemd::inherited()?;
                let listening = services.listen(planned, &mut inherited).await?;
                let mut server = metrics.bind(&mut inherited.kept).await?;
                if let Some(path) = &control {
                    let server = server.get_or_insert_with(Server::new);
                    metrics::bind_path(server, path, Access::Control, &inherited.kept).await?;
                }
                let (knowledge, predecessor) = be_ready(inherited, requests).await?;
                services.begin_all(listening, knowledge, predecessor);
                if let Some(server) = &mut server {
                    metrics::start(server, report, services.registry());
                }
                Ok::<_, anyhow::Error>(server)
            } => started?,
            () = interrupted.wait() => return Ok(true),
        };
        serve(signals, services, server).await?;
        Ok(true)
    }
}

/// Waits until this process is to serve: after the process that it is to succeed, if there is one. Returns what that
/// process knows.
///
/// # Errors
/// The other process goes on.
#[cfg(target_os = "linux")]
async fn be_ready(
    mut inherited: systemd::Inherited,
    requests: &mut Requests,
) -> Result<(Knowledge, Option<Predecessor>)> {
    let Some(predecessor) = inherited.predecessor.take() else {
        return Ok((Knowledge::default(), None));
    };
    let (knowledge, predecessor) = upgrade::be_ready(predecessor).await?;
    // It was for the other process.
    requests.forget_upgrade().await;
    Ok((knowledge, Some(predecessor)))
}

#[cfg(not(target_os = "linux"))]
async fn be_ready(
    _: systemd::Inherited,
    _: &mut Requests,
) -> Result<(Knowledge, Option<Predecessor>)> {
    Ok((Knowledge::default(), None))
}

/// Runs the services until a signal ends them, or another process serves and the sessions here have ended.
///
/// # Errors
/// A service accepts no more clients.
async fn serve(
    mut signals: Signals,
    mut services: Services,
    metrics: Option<Server>,
) -> Result<()> {
    let mut watched = pin!(systemd::keep_watchdog_quiet());
    let result = tokio::select! {
        ended = signals.until_end(&mut services, metrics.as_ref()) => ended,
        () = &mut watched => Ok(End::Stopped),
    };
    if let Ok(End::Succeeded) = result {
        // From here on the service manager listens to the other process.
        if let Some(server) = metrics {
            server.end().await;
        }
        services.be_succeeded(signals.end_of_succeeded()).await;
        services.end(signals.interrupted.wait()).await;
        return Ok(());
    }
    systemd::notify(State::Stopping("waiting for the answers to requests"));
    tokio::select! {
        () = systemd::with_more_time(services.end(signals.interrupted.wait())) => {}
        () = &mut watched => {}
    }
    if let Some(server) = metrics {
        server.end().await;
    }
    result.map(drop)
}

/// Why a gateway accepts no more clients.
enum End {
    Stopped,
    /// Another process has taken its place.
    Succeeded,
}

/// The signals that control a gateway.
struct Signals {
    interrupted: Interrupted,
    requests: Requests,
}

impl Signals {
    fn new() -> Self {
        Self {
            // First, because without a handler they end the process.
            requests: Requests::new(),
            interrupted: Interrupted::of_service(),
        }
    }

    /// Waits until a signal or an administrator asks that the gateway ends.
    async fn end_asked(interrupted: &mut Interrupted, registry: &Registry) {
        tokio::select! {
            () = interrupted.wait() => {}
            () = registry.drain_requested() => {}
        }
    }

    /// Runs the services until they are to end, or another process serves.
    ///
    /// # Errors
    /// A service accepts no more clients.
    async fn until_end(
        &mut self,
        services: &mut Services,
        metrics: Option<&Server>,
    ) -> Result<End> {
        let registry = services.registry();
        report_ready(services);
        loop {
            tokio::select! {
                // The sessions of the other services have their time, too.
                ended = services.ended() => ended?,
                request = self.requests.next() => match request {
                    Request::Reload => {
                        systemd::notify(State::Reloading);
                        tokio::select! {
                            () = services.reload() => report_ready(services),
                            () = Self::end_asked(&mut self.interrupted, &registry) => {
                                return Ok(End::Stopped);
                            }
                        }
                    }
                    Request::Upgrade => {
                        let sockets = sockets(services, metrics);
                        let started = async { Successor::start(sockets?).await };
                        if let Some(end) = self.upgrade(services, started).await? {
                            return Ok(end);
                        }
                    }
                },
                () = Self::end_asked(&mut self.interrupted, &registry) => return Ok(End::Stopped),
            }
        }
    }

    /// Waits until the successor has `started`, and has it serve. Returns `None` if there is none, and this process goes on.
    ///
    /// # Errors
    /// A service accepts no more clients.
    async fn upgrade(
        &mut self,
        services: &mut Services,
        started: impl Future<Output = Result<Successor>>,
    ) -> Result<Option<End>> {
        let registry = services.registry();
        let mut is_reload_due = false;
        let mut started = pin!(started);
        let started = loop {
            tokio::select! {
                started = &mut started => break started,
                ended = services.ended() => ended?,
                request = self.requests.next() => match request {
                    Request::Reload => is_reload_due = true,
                    Request::Upgrade => warn!("SIGUSR2: an upgrade is under way already"),
                },
                () = Self::end_asked(&mut self.interrupted, &registry) => {
                    return Ok(Some(End::Stopped));
                }
            }
        };
        let finished = async {
            let succeeded = async {
                let mut successor = started?;
                successor.take_over(&services.knowledge()).await?;
                Ok::<_, anyhow::Error>(successor)
            };
            match succeeded.await {
                Ok(successor) => {
                    services.report_upgraded(&successor);
                    if is_reload_due {
                        successor.reload();
                    }
                    services.keep_successor(successor);
                    Some(End::Succeeded)
                }
                Err(error) => {
                    warn!("the upgrade has failed, and this process goes on: {error:#}");
                    if is_reload_due {
                        services.reload().await;
                        report_ready(services);
                    }
                    None
                }
            }
        };
        Ok(tokio::select! {
            end = finished => end,
            () = Self::end_asked(&mut self.interrupted, &registry) => Some(End::Stopped),
        })
    }

    /// Returns when a signal ends a gateway whose place another process has taken.
    async fn end_of_succeeded(&mut self) {
        loop {
            tokio::select! {
                request = self.requests.next() => {
                    let signal = if request == Request::Reload { "SIGHUP" } else { "SIGUSR2" };
                    warn!("{signal} has no effect: another process has taken the place of this one");
                }
                () = self.interrupted.wait() => return,
            }
        }
    }
}

/// Reports to the service manager that clients are served.
fn report_ready(services: &Services) {
    systemd::store(services.own_sockets());
    systemd::notify(State::Ready(&services.state()));
}

/// Returns the listening sockets for a process that takes the place of this one.
///
/// # Errors
/// There can be no such process.
fn sockets(services: &Services, metrics: Option<&Server>) -> Result<Vec<systemd::Passed>> {
    // What waits for the first process has not ended with it.
    if let Some(why) = upgrade::prevented().filter(|_| !services.is_successor()) {
        bail!("{why}; restart it instead");
    }
    let mut sockets = services.sockets()?;
    if let Some(server) = metrics {
        sockets.extend(metrics::passed(server)?);
    }
    Ok(sockets)
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
        let gateway = file.load::<Gateway>().unwrap().services.remove(0).options;
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
        let example = assets::EXAMPLE;
        let defaults = decided(example);
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
