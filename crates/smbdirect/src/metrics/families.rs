//! The figures with their names in Prometheus.

use super::{
    registry::Role,
    snapshot::{ConnectionSnapshot, Snapshot},
};
use crate::engine::{ConnectionError, RoundTrips, Statistics};

/// A figure with all its samples.
#[derive(Clone, Debug)]
pub struct Family {
    /// Name, such as `smbdirect_sends_total`.
    pub name: &'static str,
    /// What is counted.
    pub help: &'static str,
    /// Kind of the figure.
    pub kind: Kind,
    /// One sample for each combination of labels.
    pub samples: Vec<Sample>,
}

/// The kind of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A whole number that only rises.
    Counter,
    /// A time in seconds that only rises.
    Seconds,
    /// A number that rises and falls.
    Gauge,
    /// A histogram of times in seconds.
    Histogram,
}

/// The value of a figure for one combination of labels.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Names and values of the labels.
    pub labels: Vec<(&'static str, &'static str)>,
    /// The value.
    pub value: Value,
}

/// A number or a histogram.
#[derive(Clone, Copy, Debug)]
pub enum Value {
    /// A number.
    Number(f64),
    /// A histogram. It is much larger than a number, and rare.
    Histogram(RoundTrips),
}

impl Family {
    /// Creates a figure with one sample, without labels.
    pub fn single(name: &'static str, help: &'static str, kind: Kind, value: f64) -> Self {
        Self::labelled(name, help, kind, [(Vec::new(), value)])
    }

    /// Creates a figure from its samples.
    pub fn labelled(
        name: &'static str,
        help: &'static str,
        kind: Kind,
        samples: impl IntoIterator<Item = (Vec<(&'static str, &'static str)>, f64)>,
    ) -> Self {
        let samples = samples.into_iter().map(|(labels, value)| Sample {
            labels,
            value: Value::Number(value),
        });
        Self {
            name,
            help,
            kind,
            samples: samples.collect(),
        }
    }
}

impl Snapshot {
    /// Returns the figures. Each label has a closed set of values, and each combination is
    /// present from the start.
    pub fn families(&self) -> Vec<Family> {
        let roles = [Role::Active, Role::Passive];
        let established = |role| self.established.get(&role).copied().unwrap_or(0);
        let failed = |role, cause| self.failed.get(&(role, cause)).copied().unwrap_or(0);
        let ended = |cause| self.ended.get(cause).copied().unwrap_or(0);
        let active = self.connections.iter().filter(|one| one.error.is_none());
        let mut families = vec![
            Family::labelled(
                "smbdirect_connections_total",
                "Connections established, by the role of this end.",
                Kind::Counter,
                roles.map(|role| (vec![("role", role.label())], established(role) as f64)),
            ),
            Family::single(
                "smbdirect_connections_active",
                "Connections that are established now.",
                Kind::Gauge,
                active.clone().count() as f64,
            ),
            Family::labelled(
                "smbdirect_connect_failures_total",
                "Attempts to establish a connection that failed, by the role of this end and cause.",
                Kind::Counter,
                roles.into_iter().flat_map(|role| {
                    let causes = ConnectionError::LABELS.iter();
                    causes.map(move |&cause| {
                        let labels = vec![("role", role.label()), ("cause", cause)];
                        (labels, failed(role, cause) as f64)
                    })
                }),
            ),
            Family::labelled(
                "smbdirect_connections_ended_total",
                "Established connections that have ended, by cause.",
                Kind::Counter,
                ConnectionError::LABELS
                    .iter()
                    .map(|&cause| (vec![("cause", cause)], ended(cause) as f64)),
            ),
        ];
        families.extend(FIGURES.iter().map(|&(name, help, kind, figure)| {
            Family::single(name, help, kind, figure(&self.statistics))
        }));
        let histogram = |name, help, times| Family {
            name,
            help,
            kind: Kind::Histogram,
            samples: vec![Sample {
                labels: Vec::new(),
                value: Value::Histogram(times),
            }],
        };
        families.push(histogram(
            ROUND_TRIP,
            "Times from sending a keepalive to the next message of the peer.",
            self.statistics.keepalive_round_trips,
        ));
        families.push(histogram(
            "smbdirect_send_credit_wait_seconds",
            "Times for which messages waited for a send credit.",
            self.statistics.credit_waits,
        ));
        families.extend(STATES.iter().map(|&(name, help, figure)| {
            let sum: u64 = active.clone().map(figure).sum();
            Family::single(name, help, Kind::Gauge, sum as f64)
        }));
        families
    }
}

/// Name of the histogram of keepalives.
pub(super) const ROUND_TRIP: &str = "smbdirect_keepalive_round_trip_seconds";

/// A figure of the statistics: name, help, kind, value.
type Figure = (&'static str, &'static str, Kind, fn(&Statistics) -> f64);

/// The figures of the statistics of all connections.
const FIGURES: &[Figure] = &[
    (
        "smbdirect_sends_total",
        "Data Transfer messages sent, with and without payload.",
        Kind::Counter,
        |all| (all.segments_sent + all.empty_sent) as f64,
    ),
    (
        "smbdirect_receives_total",
        "Data Transfer messages received, with and without payload.",
        Kind::Counter,
        |all| (all.segments_received + all.empty_received) as f64,
    ),
    (
        "smbdirect_empty_sends_total",
        "Data Transfer messages sent without payload, which carry credits or keepalives.",
        Kind::Counter,
        |all| all.empty_sent as f64,
    ),
    (
        "smbdirect_messages_sent_total",
        "Upper-layer messages sent.",
        Kind::Counter,
        |all| all.messages_sent as f64,
    ),
    (
        "smbdirect_messages_received_total",
        "Upper-layer messages received.",
        Kind::Counter,
        |all| all.messages_received as f64,
    ),
    (
        "smbdirect_sent_bytes_total",
        "Payload bytes sent in messages.",
        Kind::Counter,
        |all| all.bytes_sent as f64,
    ),
    (
        "smbdirect_received_bytes_total",
        "Payload bytes received in messages.",
        Kind::Counter,
        |all| all.bytes_received as f64,
    ),
    (
        "smbdirect_rdma_reads_total",
        "RDMA Read operations that this end has completed.",
        Kind::Counter,
        |all| all.reads as f64,
    ),
    (
        "smbdirect_rdma_writes_total",
        "RDMA Write operations that this end has completed.",
        Kind::Counter,
        |all| all.writes as f64,
    ),
    (
        "smbdirect_rdma_read_bytes_total",
        "Bytes that this end has read by RDMA Read.",
        Kind::Counter,
        |all| all.bytes_read as f64,
    ),
    (
        "smbdirect_rdma_written_bytes_total",
        "Bytes that this end has written by RDMA Write.",
        Kind::Counter,
        |all| all.bytes_written as f64,
    ),
    (
        "smbdirect_wire_sent_bytes_total",
        "Bytes sent on the network with the headers of RDMA, as far as providers count them.",
        Kind::Counter,
        |all| all.wire_bytes_sent as f64,
    ),
    (
        "smbdirect_wire_received_bytes_total",
        "Bytes received from the network with the headers of RDMA, as far as providers count them.",
        Kind::Counter,
        |all| all.wire_bytes_received as f64,
    ),
    (
        "smbdirect_rdma_registrations_total",
        "Memory regions registered for peers.",
        Kind::Counter,
        |all| all.registrations as f64,
    ),
    (
        "smbdirect_memory_regions",
        "Memory regions that are registered now.",
        Kind::Gauge,
        |all| all.regions as f64,
    ),
    (
        "smbdirect_remote_invalidations_total",
        "Registrations of this end that peers have invalidated.",
        Kind::Counter,
        |all| all.tokens_invalidated as f64,
    ),
    (
        "smbdirect_invalidations_sent_total",
        "Registrations of peers that messages sent from this end invalidate.",
        Kind::Counter,
        |all| all.invalidations_sent as f64,
    ),
    (
        "smbdirect_send_credit_stalls_total",
        "Times that a message began to wait for a send credit.",
        Kind::Counter,
        |all| all.credit_stalls as f64,
    ),
    (
        "smbdirect_send_credit_stall_seconds_total",
        "Time during which messages waited for a send credit, over all connections.",
        Kind::Seconds,
        |all| all.credit_stall_time.as_secs_f64(),
    ),
    (
        "smbdirect_send_queue_stalls_total",
        "Times that work began to wait because the send queue was full.",
        Kind::Counter,
        |all| all.send_queue_stalls as f64,
    ),
    (
        "smbdirect_credits_granted_total",
        "Send credits granted to peers.",
        Kind::Counter,
        |all| all.credits_granted as f64,
    ),
    (
        "smbdirect_credits_received_total",
        "Send credits granted by peers.",
        Kind::Counter,
        |all| all.credits_received as f64,
    ),
    (
        "smbdirect_keepalives_sent_total",
        "Keepalives sent, which ask the peer for an answer.",
        Kind::Counter,
        |all| all.keepalives_sent as f64,
    ),
    (
        "smbdirect_keepalives_received_total",
        "Keepalives received.",
        Kind::Counter,
        |all| all.keepalives_received as f64,
    ),
    (
        "smbdirect_receives_outstanding",
        "Receives that are posted now.",
        Kind::Gauge,
        |all| all.receives_outstanding as f64,
    ),
    (
        "smbdirect_work_outstanding",
        "Sends, Reads and Writes that are posted now.",
        Kind::Gauge,
        |all| all.work_outstanding as f64,
    ),
];

/// A figure of the state of a connection: name, help, value.
type State = (&'static str, &'static str, fn(&ConnectionSnapshot) -> u64);

/// The sums over all established connections.
const STATES: &[State] = &[
    (
        "smbdirect_send_credits",
        "Messages that this end may send now, over all connections.",
        |one| one.credits.send_credits.into(),
    ),
    (
        "smbdirect_granted_credits",
        "Messages that the peers may send now, over all connections.",
        |one| one.credits.granted.into(),
    ),
    (
        "smbdirect_received_message_bytes",
        "Memory of received messages that the upper layer has not taken.",
        |one| one.received_bytes,
    ),
];
