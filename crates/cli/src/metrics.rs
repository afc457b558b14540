//! `--metrics ADDR`: figures of a running gateway or listener, over HTTP.

mod client;
mod endpoint;

use std::{io, path::Path, sync::Arc};

use anyhow::{Result, anyhow};
use clap::Args;
use serde::Serialize;
use smbdirect::{
    metrics::{Family, Kind},
    rdma::software::network::NetworkSettings,
};
use smbdirect_gateway::observe::{Access, Figures, Server};
use smbdirect_transport::Kept;

pub(crate) use client::ask;
pub(crate) use endpoint::Endpoint;

use crate::{
    failure::{self, OfKind},
    panics,
    report::{self, Report},
    streams,
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
        let Some(address) = &self.metrics else {
            return Ok(None);
        };
        let mut server = Server::new();
        match address {
            Endpoint::Address(address) => {
                let network = NetworkSettings::default();
                let listeners = transport::listen_tcp_all(address, DEFAULT_PORT, &network, kept);
                for listener in listeners.await.of_kind(failure::Kind::Listen)? {
                    server.add_tcp(listener)?;
                }
            }
            Endpoint::Path(path) => bind_path(&mut server, path, Access::Read, kept).await?,
        }
        Ok(Some(server))
    }
}

/// Listens on the path of a Unix socket, which it takes over if `kept` are the sockets of a process that still serves.
///
/// # Errors
/// The path cannot be used: the reason, and what to try.
pub(crate) async fn bind_path(
    server: &mut Server,
    path: &Path,
    access: Access,
    kept: &Kept,
) -> Result<()> {
    #[cfg(unix)]
    let bound = server.add_path(path, access, kept.is_shared()).await;
    #[cfg(not(unix))]
    let bound: io::Result<()> = {
        let _ = (server, access, kept);
        Err(io::ErrorKind::Unsupported.into())
    };
    let explained = bound.map_err(|error| {
        let why = match error.kind() {
            io::ErrorKind::AddrInUse => "another process serves there".into(),
            io::ErrorKind::AlreadyExists => "it exists and is not a socket".into(),
            io::ErrorKind::InvalidInput => "the path of a socket may not be so long".into(),
            io::ErrorKind::Unsupported => "sockets with a path are for Unix".into(),
            _ => report::plain(&error),
        };
        anyhow!("cannot listen on {}: {why}; check the path", path.display())
    });
    explained.of_kind(failure::Kind::Listen)
}

/// Returns the sockets of `server` that have no path, for a process that takes the place of this one.
///
/// # Errors
/// The system has too many open files.
pub(crate) fn passed(server: &Server) -> Result<Vec<Passed>> {
    let named = |socket| Passed {
        name: KEPT.to_owned(),
        socket,
    };
    Ok(server.duplicates()?.into_iter().map(named).collect())
}

/// Serves `figures`, and reports the addresses.
pub(crate) fn start(server: &mut Server, report: Report, figures: Arc<dyn Figures>) {
    for address in server.start(figures) {
        if address.contains('/') {
            report.line(format_args!("metrics on {address}"));
        } else {
            report.line(format_args!("metrics on http://{address}/metrics"));
        }
        report.event(&Event::Metrics { address: &address });
    }
}

/// Returns the figures that each command has.
pub(crate) fn of_program() -> Vec<Family> {
    vec![
        Family::single(
            "smbdirect_panics_total",
            "Faults of the program that ended a task; please report them.",
            Kind::Counter,
            panics::count() as f64,
        ),
        Family::single(
            "smbdirect_log_lines_lost_total",
            "Lines of the output and the log that were lost, because nothing read them in time.",
            Kind::Counter,
            streams::lost() as f64,
        ),
    ]
}
