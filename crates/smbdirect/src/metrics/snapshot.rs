//! [`snapshot`]: the connections of this process at one moment, and the totals.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use super::registry::{Role, registry};
use crate::engine::{ConnectionError, Credits, Negotiated, Statistics};

/// One connection at the time of the [`snapshot`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConnectionSnapshot {
    /// Number of the connection; the first connection of the process has number 1.
    pub id: u64,
    /// The role of this process in the connection.
    pub role: Role,
    /// Address of this end.
    pub local_addr: SocketAddr,
    /// Address of the peer.
    pub peer_addr: SocketAddr,
    /// Time since the negotiation was complete.
    pub age: Duration,
    /// The negotiated limits.
    pub negotiated: Negotiated,
    /// Credits of both directions.
    pub credits: Credits,
    /// Counters of the connection.
    pub statistics: Statistics,
    /// Memory in bytes of received messages that were not taken.
    pub received_bytes: u64,
    /// Why the connection is over, or `None` if it is open. A connection that is over is listed as long as a
    /// handle to it exists.
    pub error: Option<ConnectionError>,
}

/// The connections of this process, and the totals since it started.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Snapshot {
    /// The connections that exist, in the order in which they were established.
    pub connections: Vec<ConnectionSnapshot>,
    /// Sum of the statistics of all connections, including those that are gone.
    pub statistics: Statistics,
    /// Connections established, by role.
    pub established: BTreeMap<Role, u64>,
    /// Attempts to establish a connection that failed, by role and
    /// [cause](ConnectionError::label).
    pub failed: BTreeMap<(Role, &'static str), u64>,
    /// Connections that have ended, by [cause](ConnectionError::label).
    pub ended: BTreeMap<&'static str, u64>,
}

/// Returns the connections of this process, and the totals since it started.
///
/// Takes the lock of each connection for a moment, one after another.
pub fn snapshot() -> Snapshot {
    // The registry is not locked while connections are, because a connection that ends locks both.
    let (live, mut snapshot) = {
        let registry = registry();
        let live: Vec<_> = registry
            .live
            .iter()
            .filter_map(|(&id, entry)| Some((id, entry.source.upgrade()?, entry.identity)))
            .collect();
        let snapshot = Snapshot {
            connections: Vec::with_capacity(live.len()),
            statistics: registry.gone,
            established: registry.established.clone(),
            failed: registry.failed.clone(),
            ended: registry.ended.clone(),
        };
        (live, snapshot)
    };
    for (id, source, identity) in live {
        let reading = source.read();
        snapshot.statistics += reading.statistics;
        snapshot.connections.push(ConnectionSnapshot {
            id,
            role: identity.role,
            local_addr: identity.local_addr,
            peer_addr: identity.peer_addr,
            age: identity.established.elapsed(),
            negotiated: identity.negotiated,
            credits: reading.credits,
            statistics: reading.statistics,
            received_bytes: reading.received_bytes,
            error: reading.error,
        });
    }
    snapshot
}
