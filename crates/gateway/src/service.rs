//! The state that all sessions of a gateway share.

use std::{
    fmt,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering::Relaxed},
};

use anyhow::{Context, Result};
use smbdirect::metrics::{Family, Kind};
use smbdirect_smb::frame;
use smbdirect_transport::{Address, Rdma, connect_tcp, text};

use super::{
    buffers::Buffers,
    counters::Counters,
    event::Event,
    live::Live,
    memory::Memory,
    peer::Peer,
    settings::{Protocol, Settings},
};

/// The state that all sessions of a gateway share: the server, the settings, and the counters.
pub struct Service {
    /// The address that clients connect to.
    pub(super) listening: SocketAddr,
    pub(super) settings: Settings,
    rdma: Rdma,
    live: Mutex<Arc<Live>>,
    /// Bounds the bytes of requests in flight.
    pub(super) requests: Arc<Memory>,
    /// Bounds the bytes of answers in flight.
    pub(super) answers: Arc<Memory>,
    pub(super) buffers: Arc<Buffers>,
    report: Box<dyn Fn(&Event<'_>) + Send + Sync>,
    pub(super) counters: Counters,
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("Service");
        fields.field("listening", &self.listening);
        fields.field("settings", &self.settings);
        fields.finish_non_exhaustive()
    }
}

impl Service {
    /// Creates the state of a gateway that listens on `listening`. It calls `report` for each event, in the order in
    /// which the events happen; `report` must not block.
    pub fn new(
        settings: Settings,
        live: Live,
        rdma: Rdma,
        listening: SocketAddr,
        report: impl Fn(&Event<'_>) + Send + Sync + 'static,
    ) -> Self {
        let in_flight = settings.memory / 4;
        Self {
            listening,
            settings,
            rdma,
            live: Mutex::new(Arc::new(live)),
            requests: Memory::new(in_flight),
            answers: Memory::new(in_flight),
            // Half of the memory for one direction, so that small settings also limit free buffers.
            buffers: Arc::new(Buffers::new(in_flight / 2)),
            report: Box::new(report),
            counters: Counters::default(),
        }
    }

    /// Connects to the server.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub(super) async fn connect(&self, upstream: &Address) -> Result<Peer> {
        Ok(match self.settings.to {
            Protocol::SmbDirect => {
                Peer::SmbDirect(self.rdma.connect(upstream, &self.settings.config).await?)
            }
            Protocol::Tcp => {
                let limit = self.settings.connect_timeout;
                let stream = connect_tcp(upstream, frame::PORT, limit).await?;
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

    /// Sets the settings for sessions that begin later. The memory is the budget of the running gateway, which
    /// limits the number of connections.
    pub fn set_live(&self, mut live: Live) {
        let affordable = self.settings.affordable_connections();
        live.max_connections = live.max_connections.min(affordable);
        *self.live.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(live);
    }

    /// Reports an event.
    pub(super) fn report(&self, event: &Event<'_>) {
        (self.report)(event);
    }

    /// Reports a client that is turned away because too many connections are open.
    pub(super) fn turn_away(&self, peer: SocketAddr) {
        self.counters.turned_away.fetch_add(1, Relaxed);
        let open = self.counters.open.load(Relaxed);
        let are = if open == 1 { "is" } else { "are" };
        let open_now = text::plural(open, "connection");
        let reason = &format!("{open_now} {are} open");
        self.report(&Event::TurnedAway { peer, open, reason });
    }

    /// Reports a client that is turned away because its address is not allowed.
    pub(super) fn refuse_address(&self, peer: SocketAddr) {
        self.counters.not_allowed.fetch_add(1, Relaxed);
        let open = self.counters.open.load(Relaxed);
        let reason = "its address is not allowed";
        self.report(&Event::TurnedAway { peer, open, reason });
    }

    /// Reports the totals.
    pub(super) fn report_summary(&self) {
        let counters = &self.counters;
        self.report(&Event::Summary {
            total: counters.total.load(Relaxed),
            failed: counters.failed.load(Relaxed),
            turned_away: counters.turned_away.load(Relaxed) + counters.not_allowed.load(Relaxed),
            carried: counters.traffic.carried(),
        });
    }

    /// Returns the state of the gateway, in one line.
    pub fn title(&self) -> String {
        format!("gateway {} to {}", self.listening, self.live().upstream)
    }

    /// Returns the metrics: sessions, traffic, and memory.
    pub fn families(&self) -> Vec<Family> {
        let mut families = self.counters.families(self.live().max_connections);
        let memory = [
            ("requests", self.requests.used(), self.requests.limit()),
            ("answers", self.answers.used(), self.answers.limit()),
            ("free_buffers", self.buffers.kept(), self.buffers.max_kept()),
        ];
        let of_pool = |(pool, bytes): (_, u64)| (vec![("pool", pool)], bytes as f64);
        families.push(Family::labelled(
            "smbdirect_gateway_memory_bytes",
            "Memory of requests and answers in flight, and of free buffers.",
            Kind::Gauge,
            memory.map(|(pool, used, _)| of_pool((pool, used))),
        ));
        families.push(Family::labelled(
            "smbdirect_gateway_memory_limit_bytes",
            "Limits of smbdirect_gateway_memory_bytes.",
            Kind::Gauge,
            memory.map(|(pool, _, limit)| of_pool((pool, limit))),
        ));
        families
    }
}
