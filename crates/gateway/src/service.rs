//! The state that all sessions of a gateway share, and the events that the gateway reports.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::Serialize;
use smbdirect::Config;
use tracing::warn;

use super::{
    buffers::Buffers,
    carried::{Carried, Counts},
    ends::Ends,
    live::Live,
    memory::Memory,
    peer::Peer,
    tcp,
};
use crate::{
    options::{Address, ConnectOptions, Transport},
    report::{self, NegotiatedReport, Report},
    transport::{self, Rdma},
};

/// The protocol that transports SMB messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Kind {
    /// SMB Direct, [MS-SMBD]
    Smbdirect,
    /// SMB over TCP, as on port 445
    Tcp,
}

/// An event that --json prints as an object.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(super) enum Event<'a> {
    Listening {
        address: String,
        /// `null` for TCP without SMB Direct.
        transport: Option<Transport>,
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
    Refused {
        id: u64,
        peer: SocketAddr,
        reason: &'a str,
        cure: &'static str,
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
        reason: &'a str,
    },
    Reloaded {
        changed: &'a [String],
        needs_restart: &'a [String],
    },
    Draining {
        open: u64,
        seconds: f64,
    },
    Summary {
        total: u64,
        failed: u64,
        turned_away: u64,
        #[serde(flatten)]
        carried: Carried,
    },
}

/// The state that all sessions of a gateway share: the server, the settings, and the totals.
pub(super) struct Service {
    /// The address that clients connect to.
    pub(super) listening: SocketAddr,
    pub(super) to: Kind,
    pub(super) rdma: Rdma,
    pub(super) config: Config,
    pub(super) connect: ConnectOptions,
    pub(super) live: Mutex<Arc<Live>>,
    /// The number of connections that the memory of the running gateway affords.
    pub(super) affordable_connections: u64,
    /// Bounds the bytes of requests in flight.
    pub(super) requests: Arc<Memory>,
    /// Bounds the bytes of answers in flight.
    pub(super) answers: Arc<Memory>,
    pub(super) buffers: Arc<Buffers>,
    pub(super) report: Report,
    pub(super) totals: Totals,
}

/// Counts over all sessions.
#[derive(Debug, Default)]
pub(super) struct Totals {
    /// Connections that are open now.
    pub(super) open: AtomicU64,
    /// Connections accepted so far.
    pub(super) total: AtomicU64,
    /// Connections that ended by a fault.
    pub(super) failed: AtomicU64,
    /// Connections closed immediately because too many were open.
    pub(super) turned_away: AtomicU64,
    /// Connections closed immediately because --allow does not have their address.
    pub(super) not_allowed: AtomicU64,
    /// Why sessions ended.
    pub(super) ends: Ends,
    pub(super) counts: Counts,
}

impl Service {
    /// Connects to the server.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub(super) async fn connect(&self, upstream: &Address) -> Result<Peer> {
        Ok(match self.to {
            Kind::Smbdirect => Peer::SmbDirect(self.rdma.connect(upstream, &self.config).await?),
            Kind::Tcp => {
                let limit = self.connect.connect_timeout;
                let stream = transport::connect_tcp(upstream, tcp::PORT, limit).await?;
                let address = stream
                    .peer_addr()
                    .context("the server closed the connection immediately")?;
                Peer::Tcp(stream, address)
            }
        })
    }

    /// Returns the settings for a session that begins now.
    pub(super) fn live(&self) -> Arc<Live> {
        self.live
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Sets the settings for sessions that begin later.
    pub(super) fn set_live(&self, live: Live) {
        *self.live.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(live);
    }

    /// Reports a client that is turned away because too many connections are open.
    pub(super) fn turn_away(&self, peer: SocketAddr) {
        self.totals.turned_away.fetch_add(1, Relaxed);
        let open = self.totals.open.load(Relaxed);
        let are = if open == 1 { "is" } else { "are" };
        let open_now = report::plural(open, "connection");
        self.report_turned_away(peer, open, &format!("{open_now} {are} open"));
    }

    /// Reports a client that is turned away because --allow does not have its address.
    pub(super) fn refuse_address(&self, peer: SocketAddr) {
        self.totals.not_allowed.fetch_add(1, Relaxed);
        let open = self.totals.open.load(Relaxed);
        self.report_turned_away(peer, open, "--allow does not have its address");
    }

    fn report_turned_away(&self, peer: SocketAddr, open: u64, reason: &str) {
        let why = format!("turned away: {reason}");
        if self.report.is_journal() {
            warn!(target: report::CONNECTIONS, %peer, reason, "{peer}  {why}");
        } else {
            let why = self.report.style.bad(&why);
            self.report.line(format_args!("{peer}  {why}"));
        }
        self.report.event(&Event::TurnedAway { peer, open, reason });
    }

    /// Prints the totals.
    pub(super) fn report_summary(&self) {
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
