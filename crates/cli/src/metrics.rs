//! `--metrics ADDR`: figures of a running gateway or listener, over HTTP.
//!
//! `GET /metrics` returns them as Prometheus text, and `GET /status` as JSON, with each connection,
//! for `smbdirect top`. There is no authentication, so the address should be one that only the
//! monitoring can reach.

mod process;
mod server;
mod source;
mod status;
mod text;

use std::{
    net::SocketAddr,
    sync::{Arc, OnceLock},
    time::Instant,
};

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use tokio::{net::TcpListener, task::JoinSet};

pub(crate) use source::Figures;
#[cfg(feature = "top")]
pub(crate) use status::{ConnectionStatus, Status, Traffic};

use source::Source;

use crate::{
    failure::{self, OfKind},
    options::Address,
    report::Report,
    transport,
};

/// Port of `--metrics` and `top` without a port.
pub(crate) const DEFAULT_PORT: u16 = 9445;

/// Options of commands that serve metrics.
#[derive(Clone, Debug, Args)]
pub(crate) struct MetricsOptions {
    /// Serve metrics over HTTP; the default port is 9445
    ///
    /// Prometheus text is at /metrics, and JSON for `smbdirect top` at /status. Anyone who reaches ADDR
    /// can read them
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics: Option<Address>,
}

/// The server of the figures. Dropping the value ends the service.
pub(crate) struct Server {
    listeners: Vec<(SocketAddr, TcpListener)>,
    started: Instant,
    tasks: JoinSet<()>,
}

#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event {
    Metrics { address: SocketAddr },
}

impl MetricsOptions {
    /// Listens on each address of `--metrics`, if it was given. A name may have several; those of them that cannot be
    /// used are named in the log.
    ///
    /// # Errors
    /// No address can be used: the reason, and what to try.
    pub(crate) async fn bind(&self) -> Result<Option<Server>> {
        static STARTED: OnceLock<Instant> = OnceLock::new();
        let started = *STARTED.get_or_init(Instant::now);
        let Some(address) = &self.metrics else {
            return Ok(None);
        };
        process::open();
        let listeners = transport::listen_tcp_all(address, DEFAULT_PORT).await;
        let listeners = listeners.of_kind(failure::Kind::Listen)?.into_iter();
        let with_address = listeners.map(|listener| Ok((listener.local_addr()?, listener)));
        Ok(Some(Server {
            listeners: with_address.collect::<Result<_>>()?,
            started,
            tasks: JoinSet::new(),
        }))
    }
}

impl Server {
    /// Serves `figures`, and reports the addresses.
    pub(crate) fn start(&mut self, report: Report, figures: Arc<dyn Figures>) {
        let source = Arc::new(Source::new(self.started, figures));
        let room = server::room();
        for (address, listener) in self.listeners.drain(..) {
            let serving = server::serve(listener, source.clone(), room.clone());
            self.tasks.spawn(serving);
            report.line(format_args!("metrics on http://{address}/metrics"));
            report.event(&Event::Metrics { address });
        }
    }
}
