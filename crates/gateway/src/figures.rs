//! The figures of a gateway for Prometheus: sessions, requests, and memory.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use smbdirect::metrics::{Family, Kind};

use super::{carried::Counts, service::Service};

impl Service {
    /// Returns what the gateway is doing, in one line.
    pub fn title(&self) -> String {
        format!("gateway {} to {}", self.listening, self.live().upstream)
    }

    /// Returns the figures.
    pub fn families(&self) -> Vec<Family> {
        let totals = &self.totals;
        let counter = |name, help, count: &AtomicU64| {
            Family::single(name, help, Kind::Counter, count.load(Relaxed) as f64)
        };
        let gauge = |name, help, value| Family::single(name, help, Kind::Gauge, value);
        let mut families =
            vec![
            counter(
                "smbdirect_gateway_sessions_total",
                "Client connections accepted.",
                &totals.total,
            ),
            gauge(
                "smbdirect_gateway_sessions_active",
                "Sessions that are open now.",
                totals.open.load(Relaxed) as f64,
            ),
            gauge(
                "smbdirect_gateway_sessions_max",
                "Sessions that may be open at the same time.",
                self.live().max_connections as f64,
            ),
            totals.ends.sessions.family(
                "smbdirect_gateway_sessions_ended_total",
                "Sessions that have ended, by cause.",
            ),
            labelled(
                "smbdirect_gateway_turned_away_total",
                "Clients that were turned away, by cause.",
                "cause",
                [("too_many", &totals.turned_away), ("not_allowed", &totals.not_allowed)],
            ),
            totals.ends.refusals.family(
                "smbdirect_gateway_requests_refused_total",
                "Requests that cannot be translated, each of which ended its session, by cause.",
            ),
        ];
        families.extend(traffic(&totals.counts));
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

/// Returns the figures of messages and requests.
fn traffic(counts: &Counts) -> Vec<Family> {
    let directions = |to_server, to_client| [("to_server", to_server), ("to_client", to_client)];
    let commands = |read, write| [("read", read), ("write", write)];
    vec![
        labelled(
            "smbdirect_gateway_messages_total",
            "SMB messages forwarded, by direction.",
            "direction",
            directions(&counts.messages_to_server, &counts.messages_to_client),
        ),
        labelled(
            "smbdirect_gateway_bytes_total",
            "Bytes forwarded, by direction, with the data that moved by RDMA.",
            "direction",
            directions(&counts.bytes_to_server, &counts.bytes_to_client),
        ),
        labelled(
            "smbdirect_gateway_requests_translated_total",
            "READ and WRITE requests whose data moved by RDMA, by command.",
            "command",
            commands(&counts.reads_by_rdma, &counts.writes_by_rdma),
        ),
        labelled(
            "smbdirect_gateway_rdma_bytes_total",
            "Data of READ and WRITE requests that moved by RDMA, by command.",
            "command",
            commands(&counts.bytes_read_by_rdma, &counts.bytes_written_by_rdma),
        ),
        Family::single(
            "smbdirect_gateway_requests_passed_total",
            "Messages of clients that were forwarded unchanged.",
            Kind::Counter,
            counts.requests_passed.load(Relaxed) as f64,
        ),
    ]
}

/// Returns a counter for each value of a label.
fn labelled(
    name: &'static str,
    help: &'static str,
    label: &'static str,
    values: [(&'static str, &AtomicU64); 2],
) -> Family {
    let samples = values.map(|(value, count)| (vec![(label, value)], count.load(Relaxed) as f64));
    Family::labelled(name, help, Kind::Counter, samples)
}
