//! The status that `GET /status` returns and `top` shows: the connections and the totals, as JSON.

use std::{collections::HashMap, net::SocketAddr, time::Duration};

use serde::{Deserialize, Serialize};
use smbdirect::{
    Statistics,
    metrics::{ConnectionSnapshot, Snapshot},
};
use smbdirect_transport::canonical;

#[cfg(target_os = "linux")]
use super::process;
use crate::Waited;

/// The state of a running command.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// Version of the command. An object of `top` has the version of `top`, too.
    pub server_version: String,
    /// The current activity of the command.
    pub title: String,
    /// Time since the command started.
    pub seconds: f64,
    /// Connections established since then.
    pub established: u64,
    /// Attempts that failed, and connections that ended for another reason than a close.
    pub failed: u64,
    /// Sum over all connections since the command started.
    pub total: Traffic,
    /// The connections that are open.
    pub connections: Vec<ConnectionStatus>,
    /// The threads of the command. Empty where the system does not tell.
    #[serde(default)]
    pub threads: Vec<ThreadStatus>,
}

/// A thread of the process.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ThreadStatus {
    /// Number of the thread in the system.
    pub id: u64,
    /// Processor time so far.
    pub cpu_seconds: f64,
}

/// One SMB Direct connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ConnectionStatus {
    /// Number of the connection in this process.
    pub id: u64,
    /// `active` if this end has connected, `passive` if it has accepted.
    pub role: String,
    /// Address of the peer.
    pub peer: SocketAddr,
    /// Address of this end.
    pub local: SocketAddr,
    /// Time since the connection was established.
    pub seconds: f64,
    /// Messages that this end may send now.
    pub send_credits: u16,
    /// Send credits that this end requests.
    pub send_credit_target: u16,
    /// Messages that the peer may send now.
    pub granted_credits: u16,
    /// Receives that this end posts at most.
    pub receive_credit_max: u16,
    /// Memory of received messages that were not taken.
    pub received_message_bytes: u64,
    /// Counters of the connection.
    #[serde(flatten)]
    pub traffic: Traffic,
    /// What the session of this connection has waited for, as far as the command tells.
    #[serde(default)]
    pub waited: Option<Waited>,
}

/// Counters of one connection, or of all.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Traffic {
    /// Messages sent.
    pub messages_sent: u64,
    /// Messages received.
    pub messages_received: u64,
    /// Bytes of messages sent.
    pub bytes_sent: u64,
    /// Bytes of messages received.
    pub bytes_received: u64,
    /// Bytes that this end has read by RDMA.
    pub bytes_read: u64,
    /// Bytes that this end has written by RDMA.
    pub bytes_written: u64,
    /// Memory regions registered so far.
    pub registrations: u64,
    /// Memory regions registered now.
    pub memory_regions: u64,
    /// Tokens that the peer has invalidated.
    pub remote_invalidations: u64,
    /// Times that a message waited for send credits.
    pub credit_stalls: u64,
    /// Time that messages waited for send credits.
    pub credit_stall_seconds: f64,
    /// Times that a message waited for room in the send queue.
    pub send_queue_stalls: u64,
    /// Keepalives that were answered.
    pub keepalive_round_trips: u64,
    /// The last round trip of a keepalive, if there was one.
    pub last_round_trip_seconds: Option<f64>,
}

impl Status {
    /// Returns the status; `waited` is by the number of a connection.
    pub(super) fn of(
        snapshot: &Snapshot,
        title: String,
        uptime: Duration,
        waited: &HashMap<u64, Waited>,
    ) -> Self {
        let failed: u64 = snapshot.failed.values().sum();
        let good = ["closed_here", "closed_by_peer"];
        let broken = snapshot
            .ended
            .iter()
            .filter(|(cause, _)| !good.contains(cause));
        let open = snapshot
            .connections
            .iter()
            .filter(|one| one.error.is_none());
        Self {
            server_version: env!("CARGO_PKG_VERSION").into(),
            title,
            seconds: uptime.as_secs_f64(),
            established: snapshot.established.values().sum(),
            failed: failed + broken.map(|(_, count)| count).sum::<u64>(),
            total: Traffic::of(&snapshot.statistics),
            connections: open
                .map(|one| ConnectionStatus::of(one, waited.get(&one.id).copied()))
                .collect(),
            #[cfg(target_os = "linux")]
            threads: process::threads()
                .map(|(id, cpu_seconds)| ThreadStatus { id, cpu_seconds })
                .collect(),
            #[cfg(not(target_os = "linux"))]
            threads: Vec::new(),
        }
    }
}

impl ConnectionStatus {
    fn of(one: &ConnectionSnapshot, waited: Option<Waited>) -> Self {
        Self {
            id: one.id,
            role: one.role.label().into(),
            peer: canonical(one.peer_addr),
            local: canonical(one.local_addr),
            seconds: one.age.as_secs_f64(),
            send_credits: one.credits.send_credits,
            send_credit_target: one.credits.send_credit_target,
            granted_credits: one.credits.granted,
            receive_credit_max: one.credits.receive_credit_max,
            received_message_bytes: one.received_bytes,
            traffic: Traffic::of(&one.statistics),
            waited,
        }
    }
}

impl Traffic {
    fn of(statistics: &Statistics) -> Self {
        let trips = &statistics.keepalive_round_trips;
        Self {
            messages_sent: statistics.messages_sent,
            messages_received: statistics.messages_received,
            bytes_sent: statistics.bytes_sent,
            bytes_received: statistics.bytes_received,
            bytes_read: statistics.bytes_read,
            bytes_written: statistics.bytes_written,
            registrations: statistics.registrations,
            memory_regions: statistics.regions,
            remote_invalidations: statistics.tokens_invalidated,
            credit_stalls: statistics.credit_stalls,
            credit_stall_seconds: statistics.credit_stall_time.as_secs_f64(),
            send_queue_stalls: statistics.send_queue_stalls,
            keepalive_round_trips: trips.count,
            last_round_trip_seconds: trips.last.map(|time| time.as_secs_f64()),
        }
    }
}
