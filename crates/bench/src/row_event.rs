//! A row as programs read it.

use serde::Serialize;
use smbdirect_transport::Kind;

use crate::{
    plan::Row,
    summary::{GIB, RowResult, Summary},
    work::{Means, Operation, Placement},
};

/// The object of one row.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename = "row")]
pub struct RowEvent {
    name: String,
    /// `send`, `write`, `read`, `echo`, `memory` or `program`.
    kind: &'static str,
    /// `smbdirect`, `smbdirect-apart`, `tcp`, `tcp-batched`, `frames`, `channel`, or nothing.
    means: Option<&'static str>,
    transport: Option<&'static str>,
    size: u32,
    segment: Option<u32>,
    crc: Option<bool>,
    outstanding: Option<u32>,
    both: bool,
    busy_poll: bool,
    connections: u32,
    placement: Option<Placement>,
    gib_per_second: f64,
    gib_per_second_p25: f64,
    gib_per_second_p75: f64,
    cpu_seconds_per_gib: Option<f64>,
    messages_per_second: f64,
    ratio_to_tcp: Option<f64>,
    ratio_to_tcp_batched: Option<f64>,
    latency: Option<LatencyEvent>,
    samples: usize,
    usual_distance: bool,
}

#[derive(Debug, Serialize)]
struct LatencyEvent {
    min_seconds: f64,
    median_seconds: f64,
    p99_seconds: Option<f64>,
    max_seconds: f64,
    /// Upper bounds in seconds, and the number of round trips up to each that are above the one
    /// before.
    histogram: Vec<(f64, u64)>,
}

impl RowEvent {
    /// Creates the object of a result, with its ratios to other results of the summary.
    pub fn new(summary: &Summary, result: &RowResult) -> Self {
        let work = result.row.work();
        let smb = work.and_then(|work| match work.means {
            Means::SmbDirect(smb) => Some(smb),
            _ => None,
        });
        let transport = smb.map(|smb| smb.over.name());
        let (kind, means) = kind_and_means(&result.row);
        let [p25, median, p75] = result.rate.map(|rate| rate / GIB);
        Self {
            name: result.row.name(),
            kind,
            means,
            transport,
            size: result.row.size(),
            segment: smb.map(|smb| smb.segment),
            crc: smb
                .filter(|smb| matches!(smb.over, Kind::Iwarp | Kind::Loopback))
                .map(|smb| smb.crc),
            outstanding: work
                .map(|work| work.outstanding)
                .filter(|&outstanding| outstanding > 0),
            both: work.is_some_and(|work| work.both),
            busy_poll: work.is_some_and(|work| work.busy),
            connections: work.map_or(1, |work| work.connections),
            placement: result.row.placement(),
            gib_per_second: median,
            gib_per_second_p25: p25,
            gib_per_second_p75: p75,
            cpu_seconds_per_gib: result.cpu,
            messages_per_second: result.messages,
            ratio_to_tcp: summary.against_tcp(result, false),
            ratio_to_tcp_batched: summary.against_tcp(result, true),
            latency: result.round_trips.as_ref().map(|round_trips| LatencyEvent {
                min_seconds: round_trips.min,
                median_seconds: round_trips.median,
                p99_seconds: round_trips.p99,
                max_seconds: round_trips.max(),
                histogram: round_trips.buckets(),
            }),
            samples: result.samples,
            usual_distance: result.usual_distance,
        }
    }
}

fn kind_and_means(row: &Row) -> (&'static str, Option<&'static str>) {
    let Row::Work(work) = row else {
        return match row {
            Row::Memory(..) => ("memory", None),
            _ => ("program", None),
        };
    };
    let kind = match work.kind {
        Operation::Send | Operation::Batch => "send",
        Operation::Write | Operation::WriteApart => "write",
        Operation::Read => "read",
        Operation::Echo => "echo",
    };
    let means = match (work.means, work.kind) {
        (Means::SmbDirect(_), Operation::Batch) => "smbdirect-batched",
        (Means::SmbDirect(_), Operation::WriteApart) => "smbdirect-apart",
        (Means::SmbDirect(_), _) => "smbdirect",
        (Means::Tcp, Operation::Batch) => "tcp-batched",
        (Means::Tcp, _) => "tcp",
        (Means::TcpLoop, _) => "tcp-loop",
        (Means::Frames, _) => "frames",
        (Means::Channel, _) => "channel",
    };
    (kind, Some(means))
}
