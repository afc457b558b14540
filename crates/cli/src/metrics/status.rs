//! The status that `GET /status` returns and `top` shows: the connections and the totals, as JSON.

use std::{collections::HashMap, net::SocketAddr, time::Duration};

use serde::{Deserialize, Serialize};
use smbdirect::{
    Statistics,
    metrics::{ConnectionSnapshot, Snapshot},
};

use super::process::{self, ThreadStatus};
use crate::transport::canonical;

/// The state of a running command.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Status {
    /// Version of the command. An object of `top` has the version of `top`, too.
    pub(crate) server_version: String,
    /// The current activity of the command.
    pub(crate) title: String,
    /// Time since the command started.
    pub(crate) seconds: f64,
    /// Connections established since then.
    pub(crate) established: u64,
    /// Attempts that failed, and connections that ended for another reason than a close.
    pub(crate) failed: u64,
    /// Sum over all connections since the command started.
    pub(crate) total: Traffic,
    pub(crate) connections: Vec<ConnectionStatus>,
    /// The threads of the command. Empty where the system does not tell.
    #[serde(default)]
    pub(crate) threads: Vec<ThreadStatus>,
}

/// One SMB Direct connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ConnectionStatus {
    pub(crate) id: u64,
    /// `active` if this end has connected, `passive` if it has accepted.
    pub(crate) role: String,
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
    /// Time since the connection was established.
    pub(crate) seconds: f64,
    /// Messages that this end may send now.
    pub(crate) send_credits: u16,
    pub(crate) send_credit_target: u16,
    /// Messages that the peer may send now.
    pub(crate) granted_credits: u16,
    pub(crate) receive_credit_max: u16,
    /// Memory of received messages that were not taken.
    pub(crate) received_message_bytes: u64,
    #[serde(flatten)]
    pub(crate) traffic: Traffic,
    /// What the session of this connection has waited for, as far as the command tells.
    #[serde(default)]
    pub(crate) waited: Option<Waited>,
}

/// The time of a session since its first request, by what it has waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Waited {
    pub(crate) think_seconds: f64,
    pub(crate) server_seconds: f64,
    pub(crate) network_seconds: f64,
    pub(crate) memory_seconds: f64,
    /// Requests without an answer now.
    pub(crate) unanswered: usize,
}

/// Counters of one connection, or of all.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Traffic {
    pub(crate) messages_sent: u64,
    pub(crate) messages_received: u64,
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_received: u64,
    pub(crate) bytes_read: u64,
    pub(crate) bytes_written: u64,
    pub(crate) registrations: u64,
    pub(crate) memory_regions: u64,
    pub(crate) remote_invalidations: u64,
    pub(crate) credit_stalls: u64,
    pub(crate) credit_stall_seconds: f64,
    pub(crate) send_queue_stalls: u64,
    pub(crate) keepalive_round_trips: u64,
    /// The last round trip of a keepalive, if there was one.
    pub(crate) last_round_trip_seconds: Option<f64>,
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
            threads: process::threads(),
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
