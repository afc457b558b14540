//! What others see of a session while it is open.

use std::{
    net::SocketAddr,
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use serde::Serialize;
use tokio::sync::watch;

use crate::{
    figures::{
        counters::{Carried, Traffic},
        waits::Waited,
    },
    path::memory::Holding,
};

/// The part of a session that others see.
#[derive(Debug)]
pub(crate) struct SessionState {
    pub(crate) id: u64,
    /// Both ends of the connection that was accepted, the other end first.
    pub(crate) ends: Option<(SocketAddr, SocketAddr)>,
    /// When the client connected.
    pub(crate) since: Instant,
    /// The time that the client took to connect and negotiate SMB Direct.
    pub(crate) negotiated: Duration,
    pub(crate) traffic: Traffic,
    peers: Mutex<Peers>,
    holding: OnceLock<[Holding; 2]>,
    is_ending: watch::Sender<bool>,
}

#[derive(Clone, Debug)]
struct Peers {
    client: SocketAddr,
    /// The server that was chosen last, also while it is being connected.
    choice: Option<String>,
    server: Option<String>,
    upstream: Option<SocketAddr>,
    connected: Duration,
    /// The numbers of its SMB Direct connections: to the client, and to the server.
    connections: [Option<u64>; 2],
}

/// A session that is open.
#[derive(Clone, Debug, Serialize)]
pub struct SessionStatus {
    /// The number of the session, from 1.
    pub id: u64,
    /// The client.
    pub client: SocketAddr,
    /// The server, as the settings name it; `None` before one was chosen.
    pub server: Option<String>,
    /// The address of the server; `None` before it is connected.
    pub upstream: Option<SocketAddr>,
    /// Time since the client connected.
    pub seconds: f64,
    /// Bytes of requests and answers in flight that the session holds.
    pub memory_bytes: u64,
    /// The traffic so far.
    #[serde(flatten)]
    pub carried: Carried,
    /// The numbers of its SMB Direct connections: to the client, and to the server.
    pub connections: [Option<u64>; 2],
    /// Time of the session by what it waited for; `None` if its messages are encrypted or compressed.
    pub waited: Option<Waited>,
}

impl SessionState {
    pub(crate) fn new(
        id: u64,
        client: SocketAddr,
        here: Option<SocketAddr>,
        since: Instant,
    ) -> Self {
        let peers = Peers {
            client,
            choice: None,
            server: None,
            upstream: None,
            connected: Duration::ZERO,
            connections: [None; 2],
        };
        Self {
            id,
            ends: here.map(|here| (client, here)),
            since,
            negotiated: since.elapsed(),
            traffic: Traffic::default(),
            peers: Mutex::new(peers),
            holding: OnceLock::new(),
            is_ending: watch::Sender::new(false),
        }
    }

    fn peers(&self) -> MutexGuard<'_, Peers> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the address of the client.
    pub(crate) fn client(&self) -> SocketAddr {
        self.peers().client
    }

    pub(crate) fn set_client(&self, client: SocketAddr) {
        self.peers().client = client;
    }

    /// Returns the server, and the time that connecting to it took.
    pub(crate) fn server(&self) -> (Option<String>, Duration) {
        let peers = self.peers();
        (peers.server.clone(), peers.connected)
    }

    /// Notes the server that is to be connected.
    pub(crate) fn choose(&self, server: &str) {
        self.peers().choice = Some(server.to_owned());
    }

    /// Returns whether the session is at this server, or is being connected to it.
    pub(crate) fn is_for(&self, server: &str) -> bool {
        self.peers().choice.as_deref() == Some(server)
    }

    pub(crate) fn set_server(&self, server: &str, upstream: SocketAddr, connected: Duration) {
        let mut peers = self.peers();
        peers.server = Some(server.to_owned());
        peers.upstream = Some(upstream);
        peers.connected = connected;
    }

    /// Notes the numbers of the SMB Direct connections to the client and to the server.
    pub(crate) fn set_connections(&self, connections: [Option<u64>; 2]) {
        self.peers().connections = connections;
    }

    pub(crate) fn set_holding(&self, holding: [Holding; 2]) {
        // A session sets it once.
        let _ = self.holding.set(holding);
    }

    /// Ends the session.
    pub(crate) fn end(&self) {
        self.is_ending.send_replace(true);
    }

    /// Waits until another task ends the session.
    pub(crate) async fn ended(&self) {
        let mut is_ending = self.is_ending.subscribe();
        // The sender lives as long as this value.
        let _ = is_ending.wait_for(|&is_ending| is_ending).await;
    }

    pub(crate) fn status(&self) -> SessionStatus {
        let peers = self.peers().clone();
        let held = self.holding.get().into_iter().flatten();
        SessionStatus {
            id: self.id,
            client: peers.client,
            server: peers.server,
            upstream: peers.upstream,
            seconds: self.since.elapsed().as_secs_f64(),
            memory_bytes: held.map(Holding::bytes).sum(),
            carried: self.traffic.carried(),
            connections: peers.connections,
            waited: self.traffic.waited(),
        }
    }
}
