//! The registry of this process: its connections, and the counters of those that are gone.

use std::{
    collections::BTreeMap,
    fmt,
    net::SocketAddr,
    sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak},
    time::Instant,
};

use crate::engine::{ConnectionError, Credits, Negotiated, Statistics};

/// The role of this process in a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// This process connected to the peer.
    Active,
    /// This process accepted the peer.
    Passive,
}

impl Role {
    /// Returns the value of the label `role`.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Passive => "passive",
        }
    }
}

/// The properties of a connection that never change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    pub(crate) id: u64,
    pub(crate) role: Role,
    pub(crate) local_addr: SocketAddr,
    pub(crate) peer_addr: SocketAddr,
    pub(crate) established: Instant,
    pub(crate) negotiated: Negotiated,
}

/// The values that are read from a connection for a snapshot.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) credits: Credits,
    pub(crate) statistics: Statistics,
    pub(crate) received_bytes: u64,
    pub(crate) error: Option<ConnectionError>,
}

/// A connection that can be read.
pub(crate) trait Source: fmt::Debug + Send + Sync {
    fn read(&self) -> Reading;
}

/// The reports of a connection so far.
#[derive(Debug, Default)]
pub(crate) struct Metered {
    /// The number of the connection, once it is established.
    pub(crate) id: Option<u64>,
    /// Round trips of keepalives that were reported.
    pub(crate) round_trips: u64,
}

/// The connections of this process.
#[derive(Debug, Default)]
pub(super) struct Registry {
    pub(super) live: BTreeMap<u64, Entry>,
    /// Sum of the statistics of the connections that are gone.
    pub(super) gone: Statistics,
    pub(super) established: BTreeMap<Role, u64>,
    pub(super) failed: BTreeMap<(Role, &'static str), u64>,
    pub(super) ended: BTreeMap<&'static str, u64>,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) source: Weak<dyn Source>,
    pub(super) identity: Identity,
}

static REGISTRY: LazyLock<Mutex<Registry>> = LazyLock::new(Mutex::default);

/// Locks the registry, poisoned or not: its figures are consistent after each statement.
pub(super) fn registry() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds a connection that was established.
pub(crate) fn established(source: &Arc<impl Source + 'static>, identity: Identity) {
    let source: Weak<dyn Source> = Arc::downgrade(source) as Weak<dyn Source>;
    let mut registry = registry();
    *registry.established.entry(identity.role).or_default() += 1;
    registry
        .live
        .insert(identity.id, Entry { source, identity });
}

/// Counts an attempt to establish a connection that failed.
pub(crate) fn failed(role: Role, cause: &'static str) {
    *registry().failed.entry((role, cause)).or_default() += 1;
}

/// Counts the end of a connection that was established.
pub(crate) fn ended(error: &ConnectionError) {
    *registry().ended.entry(error.label()).or_default() += 1;
}

/// Removes a connection that is gone, and keeps its counters. It has no outstanding work any more.
pub(crate) fn gone(id: u64, statistics: Statistics) {
    let mut registry = registry();
    registry.live.remove(&id);
    registry.gone += Statistics {
        receives_outstanding: 0,
        work_outstanding: 0,
        regions: 0,
        ..statistics
    };
}
