//! `--metrics ADDR`: figures of a running gateway or listener, over HTTP.
//!
//! `GET /metrics` returns them as Prometheus text, and `GET /status` as JSON, with each connection,
//! for `smbdirect top`. There is no authentication, so the address should be one that only the
//! monitoring can reach.

mod client;
mod endpoint;
mod past;
mod process;
mod server;
mod socket;
mod source;
mod status;
mod text;

#[cfg(unix)]
use std::io;
use std::{
    net::TcpListener,
    path::Path,
    sync::{Arc, OnceLock},
    time::Instant,
};

use anyhow::{Result, anyhow};
use clap::Args;
use serde::Serialize;
use smbdirect::rdma::software::network::NetworkSettings;
use smbdirect_transport::Kept;
use tokio::task::JoinSet;

pub(crate) use client::ask;
pub(crate) use endpoint::Endpoint;
pub(crate) use past::{Counters, keep, restore};
#[cfg(feature = "top")]
pub(crate) use process::ThreadStatus;
pub(crate) use source::{Answer, Figures, counters};
pub(crate) use status::Waited;
#[cfg(feature = "top")]
pub(crate) use status::{ConnectionStatus, Status, Traffic};

use socket::Socket;
use source::Source;

#[cfg(unix)]
use crate::report;
use crate::{
    failure::{self, OfKind},
    report::Report,
    systemd::{KEPT, Passed},
    transport,
};

/// Port of `--metrics` and `top` without a port.
pub(crate) const DEFAULT_PORT: u16 = 9445;

/// Options of commands that serve metrics.
#[derive(Clone, Debug, Args)]
pub(crate) struct MetricsOptions {
    /// Serve metrics over HTTP; the default port is 9445
    ///
    /// Prometheus text is at /metrics, JSON for `smbdirect top` at /status, and /healthz and /readyz tell whether
    /// it lives and takes clients. Anyone who reaches ADDR can read them. On Unix it may be the path of a socket
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics: Option<Endpoint>,
}

/// The server of the figures. Dropping the value ends the service.
pub(crate) struct Server {
    sockets: Vec<(Served, Socket)>,
    /// Duplicates of the sockets that have no path.
    duplicates: Vec<TcpListener>,
    started: Instant,
    tasks: JoinSet<()>,
}

/// What a socket is for.
#[derive(Clone, Debug)]
enum Served {
    /// Reading figures.
    Metrics(String),
    /// Also changing what runs.
    Control,
}

#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event<'a> {
    Metrics { address: &'a str },
}

impl MetricsOptions {
    /// Listens on each address of `--metrics`, if it was given, with the socket of `kept` that has it, if there is one. A
    /// name may have several; those of them that cannot be used are named in the log.
    ///
    /// # Errors
    /// No address can be used: the reason, and what to try.
    pub(crate) async fn bind(&self, kept: &mut Kept) -> Result<Option<Server>> {
        static STARTED: OnceLock<Instant> = OnceLock::new();
        let started = *STARTED.get_or_init(Instant::now);
        let Some(address) = &self.metrics else {
            return Ok(None);
        };
        process::open();
        let mut duplicates = Vec::new();
        let sockets = match address {
            Endpoint::Address(address) => {
                let network = NetworkSettings::default();
                let listeners = transport::listen_tcp_all(address, DEFAULT_PORT, &network, kept);
                let listeners = listeners.await;
                let listeners = listeners.of_kind(failure::Kind::Listen)?;
                for listener in &listeners {
                    duplicates.push(transport::duplicate(listener)?);
                }
                listeners.into_iter().map(Socket::Tcp).collect()
            }
            Endpoint::Path(path) => vec![on_path(path, METRICS_MODE, kept).await?],
        };
        let of_metrics = |socket: Socket| {
            let bound = socket.address().map(|address| address.to_string());
            let name = bound.unwrap_or_else(|| address.to_string());
            (Served::Metrics(name), socket)
        };
        Ok(Some(Server {
            sockets: sockets.into_iter().map(of_metrics).collect(),
            duplicates,
            started,
            tasks: JoinSet::new(),
        }))
    }
}

/// Listens on the path of a Unix socket, which it takes over if `kept` are the sockets of a process that still serves.
async fn on_path(path: &Path, mode: u32, kept: &Kept) -> Result<Socket> {
    #[cfg(unix)]
    let bound = socket::listen_on_path(path, mode, kept.is_shared());
    #[cfg(unix)]
    let bound = bound.await.map_err(|error| {
        let why = match error.kind() {
            io::ErrorKind::AddrInUse => "another process serves there".into(),
            io::ErrorKind::AlreadyExists => "it exists and is not a socket".into(),
            _ => report::plain(&error),
        };
        anyhow!("cannot listen on {}: {why}; check the path", path.display())
    });
    #[cfg(not(unix))]
    let bound: Result<Socket> = {
        let _ = (mode, kept);
        Err(anyhow!(
            "cannot listen on {}: sockets with a path are for Unix",
            path.display()
        ))
    };
    bound.of_kind(failure::Kind::Listen)
}

/// Permissions of the socket of --metrics, for its user and group.
const METRICS_MODE: u32 = 0o660;
/// Permissions of the control socket.
const CONTROL_MODE: u32 = 0o600;

impl Server {
    /// Returns a server that serves nowhere yet.
    pub(crate) fn new() -> Self {
        process::open();
        Self {
            sockets: Vec::new(),
            duplicates: Vec::new(),
            started: Instant::now(),
            tasks: JoinSet::new(),
        }
    }

    /// Serves the control of what runs on the path of a Unix socket, too, for its user alone.
    ///
    /// # Errors
    /// The path cannot be used.
    pub(crate) async fn bind_control(&mut self, path: &Path, kept: &Kept) -> Result<()> {
        let socket = on_path(path, CONTROL_MODE, kept).await?;
        self.sockets.push((Served::Control, socket));
        Ok(())
    }

    /// Returns duplicates of the sockets that have no path, for a process that takes the place of this one.
    ///
    /// # Errors
    /// The system has too many open files.
    pub(crate) fn sockets(&self) -> Result<Vec<Passed>> {
        let duplicate = |socket: &TcpListener| {
            let (name, socket) = (KEPT.to_owned(), socket.try_clone()?);
            Ok(Passed { name, socket })
        };
        self.duplicates.iter().map(duplicate).collect()
    }

    /// Ends the service. The paths of its sockets are removed when it returns.
    pub(crate) async fn end(mut self) {
        self.tasks.shutdown().await;
    }

    /// Serves `figures`, and reports the addresses.
    pub(crate) fn start(&mut self, report: Report, figures: Arc<dyn Figures>) {
        let source = Arc::new(Source::new(self.started, figures));
        let room = server::room();
        // Whoever reads of an address finds all of them.
        self.sockets
            .iter_mut()
            .for_each(|(_, socket)| socket.open());
        for (served, socket) in self.sockets.drain(..) {
            let site = server::Site {
                source: source.clone(),
                has_control: matches!(served, Served::Control),
            };
            self.tasks.spawn(server::serve(socket, site, room.clone()));
            if let Served::Metrics(address) = served {
                let is_path = address.contains('/');
                if is_path {
                    report.line(format_args!("metrics on {address}"));
                } else {
                    report.line(format_args!("metrics on http://{address}/metrics"));
                }
                report.event(&Event::Metrics { address: &address });
            }
        }
    }
}
