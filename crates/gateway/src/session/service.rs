//! The state that all sessions of a gateway share.

use std::{
    collections::HashMap,
    fmt,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering::Relaxed},
    time::Duration,
};

use bytes::Bytes;
use smbdirect::metrics::{Family, Kind};
use smbdirect_smb::frame;
use smbdirect_transport::{Address, Cause, Error, Rdma, TcpOptions, canonical, connect_tcp_as};

use crate::{
    admission::{clients::Clients, proxy_header, refused::Refused},
    figures::{counters::Counters, times::Times},
    live::Live,
    path::{buffers::Buffers, memory::Memory, peer::Peer},
    servers::{ServerStatus, Servers},
    session::{
        event::Event,
        places::{Place, Places},
        state::SessionStatus,
    },
    settings::{ClientAddress, Protocol, Settings},
    stop::Stop,
};

/// The state that all sessions of a gateway share: the server, the settings, and the counters.
pub struct Service {
    /// The addresses that clients connect to.
    listening: Vec<SocketAddr>,
    pub(crate) settings: Settings,
    rdma: Rdma,
    live: Mutex<Arc<Live>>,
    pub(crate) servers: Arc<Servers>,
    places: Arc<Places>,
    /// Both ends of the connections to servers, this end first. Those of RoCE have one port and may be equal.
    outgoing: Mutex<HashMap<Ends, u64>>,
    /// Bounds the bytes of requests in flight.
    pub(crate) requests: Arc<Memory>,
    /// Bounds the bytes of answers in flight.
    pub(crate) answers: Arc<Memory>,
    pub(crate) buffers: Arc<Buffers>,
    report: Box<dyn Fn(&Event<'_>) + Send + Sync>,
    /// Held from a change of the number of open sessions to the report of it, so that the last report has the last number.
    reporting: Mutex<()>,
    pub(crate) counters: Counters,
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
        listening: Vec<SocketAddr>,
        report: impl Fn(&Event<'_>) + Send + Sync + 'static,
    ) -> Self {
        let (in_flight, affordable) = (settings.memory / 4, settings.affordable_connections());
        Self {
            listening,
            settings,
            rdma,
            live: Mutex::new(Arc::new(live)),
            servers: Arc::default(),
            places: Arc::new(Places::new(affordable)),
            outgoing: Mutex::default(),
            requests: Memory::new(in_flight),
            answers: Memory::new(in_flight),
            // Half of the memory for one direction, so that small settings also limit free buffers.
            buffers: Arc::new(Buffers::new(in_flight / 2)),
            report: Box::new(report),
            reporting: Mutex::default(),
            counters: Counters::default(),
        }
    }

    /// Numbers the sessions after this number, so that they are told apart from those of another service.
    #[must_use]
    pub fn numbered_after(mut self, number: u64) -> Self {
        let affordable = self.settings.affordable_connections();
        self.places = Arc::new(Places::new(affordable).numbered_after(number));
        self
    }

    /// Shares the knowledge of which server a client has with other services, whose settings name servers in the same way.
    #[must_use]
    pub fn with_clients(mut self, clients: Arc<Clients>) -> Self {
        self.servers = Arc::new(Servers::of(clients));
        self
    }

    /// Returns the number of the last session.
    pub fn last_session(&self) -> u64 {
        self.places.last_id()
    }

    /// Connects to a server, from the address `source` of another machine if it is given.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub(crate) async fn connect(
        &self,
        upstream: &Address,
        source: Option<IpAddr>,
        limit: Duration,
    ) -> Result<Peer, Error> {
        Ok(match self.settings.to {
            Protocol::SmbDirect => {
                let config = &self.settings.config;
                let connecting = self.rdma.connect_within(limit, upstream, config);
                Peer::SmbDirect(connecting.await?)
            }
            Protocol::Tcp => {
                let options = TcpOptions {
                    source,
                    network: Some(&self.settings.network),
                };
                let stream = connect_tcp_as(&options, upstream, frame::PORT, limit).await?;
                let closed = "the server closed the connection immediately";
                let address = stream.peer_addr();
                let address = address.map_err(|_| Error::new(Cause::Closed, closed))?;
                Peer::Tcp(stream, address)
            }
        })
    }

    /// Returns the settings for a session that begins now.
    pub(crate) fn live(&self) -> Arc<Live> {
        lock(&self.live).clone()
    }

    /// Sets the settings for sessions that begin later.
    pub(crate) fn replace_live(&self, live: Live) {
        *lock(&self.live) = Arc::new(live);
    }

    /// Returns the header of the PROXY protocol for a connection that is no client's, if the server expects one.
    pub(crate) fn local_header(&self) -> Option<Bytes> {
        let expects = self.settings.client_address == ClientAddress::Proxy;
        expects.then(|| proxy_header::encode_local().into())
    }

    /// Returns the sessions that are open.
    pub fn sessions(&self) -> Vec<SessionStatus> {
        let sessions = self.places.sessions();
        sessions.iter().map(|session| session.status()).collect()
    }

    /// Ends the session with this number. Returns whether there is one.
    pub fn end_session(&self, id: u64) -> bool {
        let sessions = self.places.sessions();
        let found = sessions.iter().find(|session| session.id == id);
        if let Some(session) = found {
            session.end();
        }
        found.is_some()
    }

    /// Ends the sessions of the server with this name, and returns their number. Their clients may go elsewhere.
    pub fn end_sessions_of(&self, server: &str) -> u64 {
        self.servers.release(server);
        let sessions = self.places.sessions().into_iter();
        let of_server = sessions.filter(|session| session.is_for(server));
        of_server.map(|session| session.end()).count() as u64
    }

    /// Returns the state of each server.
    pub fn servers(&self) -> Vec<ServerStatus> {
        self.servers.status()
    }

    /// Has the server with this name take no new clients, or take them again. Its sessions go on. Returns whether there
    /// is such a server.
    pub fn set_server_drained(&self, name: &str, is_drained: bool) -> bool {
        self.servers.set_drained(name, is_drained)
    }

    /// Returns whether a client that connects now could be served: a server takes clients, and there is room.
    pub fn is_ready(&self) -> bool {
        self.servers.is_any_up() && self.open() < self.places.most(&self.live())
    }

    /// Returns a number after which a process that takes the place of this one numbers its sessions: clients that have
    /// connected here already begin sessions before it.
    pub fn numbers_until(&self) -> u64 {
        self.places.last_id() + self.places.most(&self.live())
    }

    /// Returns the number of sessions that are open.
    pub fn open(&self) -> u64 {
        self.places.open()
    }

    /// Returns the number of sessions so far.
    pub fn total(&self) -> u64 {
        self.places.total()
    }

    /// Returns the addresses that clients connect to.
    pub fn listening(&self) -> &[SocketAddr] {
        &self.listening
    }

    /// Returns a guard for a change of the number of open sessions and the report of it.
    pub(crate) fn reporting(&self) -> MutexGuard<'_, ()> {
        lock(&self.reporting)
    }

    /// Reports an event.
    pub(crate) fn report(&self, event: &Event<'_>) {
        (self.report)(event);
    }

    /// Returns a place for a client that connects, or turns it away. `here` is the address that it has connected to, if
    /// that is known already.
    pub(crate) fn admit(&self, peer: SocketAddr, here: Option<SocketAddr>) -> Option<Place> {
        let admitted = if here.is_some_and(|here| self.is_itself((peer, here))) {
            Err(Refused::Itself)
        } else {
            self.places.admit(&self.live(), peer)
        };
        admitted.map_err(|why| self.turn_away(peer, &why)).ok()
    }

    /// Returns whether the connection of a client, whose end comes first, is one of this gateway to a server.
    pub(crate) fn is_itself(&self, ends: Ends) -> bool {
        lock(&self.outgoing).contains_key(&ends)
    }

    /// Records both ends of a connection to a server.
    ///
    /// # Errors
    /// The server is this gateway itself.
    pub(crate) fn outgoing(self: &Arc<Self>, server: &Peer) -> Result<Outgoing, Stop> {
        // The address of a client is not that of this end.
        let is_own = self.settings.client_address != ClientAddress::Transparent;
        let Some(here) = server.local().filter(|_| is_own) else {
            return Ok(Outgoing(None));
        };
        let ends = (canonical(here), canonical(server.address()));
        *lock(&self.outgoing).entry(ends).or_default() += 1;
        let outgoing = Outgoing(Some((self.clone(), ends)));
        let sessions = self.places.sessions();
        if sessions.iter().any(|session| session.ends == Some(ends)) {
            let what = "it is this gateway itself; set `upstream` to the SMB server";
            return Err(Stop::Unreachable(what.into()));
        }
        Ok(outgoing)
    }

    /// Counts and reports a client that is turned away.
    pub(crate) fn turn_away(&self, peer: SocketAddr, why: &Refused) {
        self.counters.turn_away(why);
        let _reporting = self.reporting();
        self.report(&Event::TurnedAway {
            peer,
            open: self.open(),
            reason: &why.reason(),
            since_last_line: self.places.count_turned_away(peer.ip()),
        });
    }

    /// Reports the totals.
    pub(crate) fn report_summary(&self) {
        let counters = &self.counters;
        self.report(&Event::Summary {
            total: self.total(),
            failed: counters.failed.load(Relaxed),
            turned_away: counters.turned_away(),
            carried: counters.traffic.carried(),
        });
    }

    /// Returns the state of the gateway, in one line.
    pub fn title(&self) -> String {
        let list = |texts: Vec<String>| texts.join(", ");
        let listening = self.listening.iter().map(ToString::to_string).collect();
        let servers = self
            .live()
            .servers
            .iter()
            .map(ToString::to_string)
            .collect();
        format!("gateway {} to {}", list(listening), list(servers))
    }

    /// Returns the metrics: sessions, traffic, and memory.
    pub fn families(&self) -> Vec<Family> {
        let sessions = (self.total(), self.open(), self.places.most(&self.live()));
        let mut families = self.counters.families(sessions);
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
        let [client, window] = self.counters.traffic.wait_times();
        families.push(Times::family(
            "smbdirect_gateway_wait_seconds",
            "Times for which sessions waited, by cause.",
            "cause",
            &[
                client,
                window,
                ("memory_requests", self.requests.waits()),
                ("memory_answers", self.answers.waits()),
            ],
        ));
        families
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The two ends of a connection: that of the client, or of the end that has connected, first.
pub(crate) type Ends = (SocketAddr, SocketAddr);

/// The ends of a connection to a server, by which the gateway recognises itself. A drop forgets them.
pub(crate) struct Outgoing(Option<(Arc<Service>, Ends)>);

impl Drop for Outgoing {
    fn drop(&mut self) {
        if let Some((service, ends)) = &self.0 {
            let mut outgoing = lock(&service.outgoing);
            if let Some(count) = outgoing.get_mut(ends) {
                *count -= 1;
                if *count == 0 {
                    outgoing.remove(ends);
                }
            }
        }
    }
}
