//! Many connections that move data, and one that sends requests beside them, compared with plain TCP by
//! one thread an end.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use anyhow::Result;
use hdrhistogram::Histogram;
use serde::Serialize;

use super::{
    ends::{LinkId, Near},
    measure::{GIB, quartiles},
    plan::Choice,
    scale, table,
    work::{Burst, Kind, Link, Means},
};
use crate::report::{self, Report};

/// What the connections move, and the bytes of each operation.
const LOADS: [(Kind, u32); 3] = [
    (Kind::Write, 64 << 10),
    (Kind::Read, 64 << 10),
    (Kind::Send, 4 << 10),
];
/// Bytes of a request, and of its answer.
const REQUEST_BYTES: u32 = 4 << 10;
/// Duration of a burst without --time.
const DEFAULT_BURST: Duration = Duration::from_millis(500);

/// One burst.
#[derive(Debug)]
struct Sample {
    bytes_per_second: f64,
    cpu_per_gib: Option<f64>,
    /// Operations of the slowest connection divided by those of the fastest.
    least_to_most: f64,
    round_trips: Histogram<u64>,
}

/// The samples of SMB Direct and of plain TCP, for each load.
type Samples = [(Vec<Sample>, Vec<Sample>); LOADS.len()];

/// The memory of connections that move data.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename = "load_memory")]
struct Memory {
    connections: u32,
    /// Resident bytes of each end of a connection, beyond the buffers of the bench.
    bytes_each: f64,
}

/// Median, least and most of the rounds.
#[derive(Clone, Copy, Debug, Serialize)]
struct Range {
    median: f64,
    least: f64,
    most: f64,
}

impl Range {
    fn of(numbers: impl Iterator<Item = f64>) -> Self {
        let numbers: Vec<_> = numbers.collect();
        Self {
            least: numbers.iter().copied().fold(f64::INFINITY, f64::min),
            most: numbers.iter().copied().fold(0.0, f64::max),
            median: quartiles(numbers)[1],
        }
    }
}

/// The result of one load.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename = "load")]
struct Load {
    /// `write`, `read` or `send`.
    kind: &'static str,
    /// `smbdirect` or `tcp`.
    means: &'static str,
    size: u32,
    connections: u32,
    gib_per_second: Range,
    cpu_seconds_per_gib: Option<f64>,
    least_to_most: Range,
    requests: u64,
    p50_seconds: f64,
    p99_seconds: f64,
    p999_seconds: f64,
    /// Ratios to plain TCP within each round.
    rate_to_tcp: Option<Range>,
    p99_to_tcp: Option<Range>,
    rounds: usize,
}

/// The links and the samples of one number of connections.
struct Many<'a> {
    near: &'a mut Near,
    choice: &'a Choice,
    connections: u32,
    seconds: f64,
    stop: &'a AtomicBool,
}

/// Measures each load with each number of connections, and prints the results. Returns whether it was
/// interrupted.
///
/// # Errors
/// The connections cannot be made, or fail.
pub(super) fn measure(
    report: &Report,
    near: &mut Near,
    choice: &Choice,
    (rounds, time): (u64, Option<Duration>),
    stop: &AtomicBool,
) -> Result<bool> {
    print_head(report);
    let (mut opened, mut memory) = (Vec::new(), Vec::new());
    for &connections in &choice.connections {
        let mut many = Many {
            near,
            choice,
            connections,
            seconds: time.unwrap_or(DEFAULT_BURST).as_secs_f64(),
            stop,
        };
        let smb = many.open(Means::SmbDirect(scale::smb(choice)))?;
        memory.extend(many.memory(smb)?);
        let tcp = if choice.alone {
            None
        } else {
            Some(many.open(Means::TcpLoop)?)
        };
        let samples = many.rounds(smb, tcp, rounds)?;
        opened.extend([Some(smb), tcp].into_iter().flatten());
        for ((ours, tcp), load) in samples.iter().zip(LOADS) {
            print(report, load, connections, ours, tcp);
        }
    }
    // Memory of closed connections would be used again, and not be counted.
    for link in opened {
        near.close(link)?;
    }
    print_legend(report);
    print_memory(report, &memory);
    Ok(stop.load(Ordering::Relaxed))
}

impl Many<'_> {
    /// Opens the connections that move data, and the one for requests.
    fn open(&mut self, means: Means) -> Result<LinkId> {
        let rdma = matches!(means, Means::SmbDirect(_));
        self.near.open(Link {
            means,
            connections: self.connections + 1,
            largest: LOADS[0].1,
            rdma,
            // Reads have memory for each operation.
            places: if rdma { 1 } else { self.choice.outstanding[0] },
        })
    }

    /// Runs each load once on new connections, and returns how much memory they take.
    fn memory(&mut self, link: LinkId) -> Result<Option<Memory>> {
        // What an idle connection takes is measured elsewhere.
        let before = self.near.resident()?;
        for load in LOADS {
            let burst = self.burst(load);
            self.near.burst(link, &burst)?;
        }
        let after = self.near.resident()?;
        let Some((before, after)) = before.zip(after) else {
            return Ok(None);
        };
        // The end that reads has memory for each operation.
        let buffers = u64::from(self.connections) * u64::from(LOADS[0].1);
        let buffers = buffers * u64::from(self.choice.outstanding[0]);
        let beyond = after.saturating_sub(before).saturating_sub(buffers);
        Ok(Some(Memory {
            connections: self.connections,
            bytes_each: beyond as f64 / f64::from(2 * (self.connections + 1)),
        }))
    }

    /// Runs each load on both links alternately.
    fn rounds(&mut self, smb: LinkId, tcp: Option<LinkId>, rounds: u64) -> Result<Samples> {
        let mut all: Samples = Default::default();
        // The first round warms up.
        for round in 0..=rounds {
            for ((ours, theirs), load) in all.iter_mut().zip(LOADS) {
                if self.stop.load(Ordering::Relaxed) {
                    return Ok(all);
                }
                let burst = self.burst(load);
                let mut ends = [(Some(smb), ours), (tcp, theirs)];
                ends.rotate_left(round as usize % 2);
                for (link, samples) in ends {
                    let Some(link) = link else { continue };
                    let sample = sample(self.near, link, &burst)?;
                    if round > 0 {
                        samples.push(sample);
                    }
                }
            }
        }
        Ok(all)
    }

    fn burst(&self, (kind, size): (Kind, u32)) -> Burst {
        Burst {
            kind,
            size,
            count: 0,
            outstanding: self.choice.outstanding[0],
            both: false,
            busy: self.choice.busy,
            placement: self.choice.placement,
            seconds: Some(self.seconds),
            request: Some(REQUEST_BYTES),
        }
    }
}

fn sample(near: &mut Near, link: LinkId, burst: &Burst) -> Result<Sample> {
    let (near, far) = near.burst(link, burst)?;
    let counted = if far.arrived.is_empty() {
        &near.arrived
    } else {
        &far.arrived
    };
    let most = counted.iter().max().copied().unwrap_or(0);
    let least = counted.iter().min().copied().unwrap_or(0);
    let bytes = (counted.iter().sum::<u64>() * u64::from(burst.size)) as f64;
    let mut round_trips = histogram();
    for time in near.round_trips {
        round_trips.saturating_record(time);
    }
    Ok(Sample {
        bytes_per_second: bytes / near.seconds,
        cpu_per_gib: near
            .cpu
            .zip(far.cpu)
            .map(|(near, far)| (near + far) * GIB / bytes),
        least_to_most: least as f64 / most.max(1) as f64,
        round_trips,
    })
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are legal")
}

fn print_head(report: &Report) {
    report.line(report.style.dim(&format!(
        "\n{:<17}{:>6}{:>7}{:>11}{:>10}{:>9}{:>9}{:>9}{:>7}{:>7}",
        "", "conns", "GiB/s", "CPU s/GiB", "fairness", "p50", "p99", "p99.9", "x TCP", "p99 x"
    )));
}

/// Explains the columns.
fn print_legend(report: &Report) {
    report.line(report.style.dim(
        "\nfairness: operations of the slowest connection / of the fastest; p50 to p99.9: a request of \
         4 KiB\non another connection; x TCP, p99 x: rate and p99 / those of plain TCP by one thread an \
         end",
    ));
}

fn print_memory(report: &Report, memory: &[Memory]) {
    let all: Vec<_> = memory
        .iter()
        .map(|memory| {
            report.event(memory);
            let bytes = report::bytes(memory.bytes_each as u64);
            format!("{bytes} of {}", memory.connections)
        })
        .collect();
    if !all.is_empty() {
        report.line(format_args!(
            "memory of each end of a connection that moves data, beyond its buffers: {}",
            all.join(", ")
        ));
    }
}

fn print(
    report: &Report,
    (kind, size): (Kind, u32),
    connections: u32,
    ours: &[Sample],
    tcp: &[Sample],
) {
    for (means, samples) in [("smbdirect", ours), ("tcp", tcp)] {
        if samples.is_empty() {
            continue;
        }
        let ratio = |of: fn(&Sample) -> f64| {
            let pairs = samples.iter().zip(tcp);
            let beside = means == "smbdirect" && !tcp.is_empty();
            beside.then(|| Range::of(pairs.map(|(ours, tcp)| of(ours) / of(tcp))))
        };
        let mut all = histogram();
        for sample in samples {
            all.add(&sample.round_trips)
                .expect("they have the same bounds");
        }
        let at = |share| all.value_at_quantile(share) as f64 / 1e9;
        let cpu: Option<Vec<_>> = samples.iter().map(|sample| sample.cpu_per_gib).collect();
        let load = Load {
            kind: match kind {
                Kind::Write => "write",
                Kind::Read => "read",
                _ => "send",
            },
            means,
            size,
            connections,
            gib_per_second: Range::of(samples.iter().map(|sample| sample.bytes_per_second / GIB)),
            cpu_seconds_per_gib: cpu.map(|cpu| quartiles(cpu)[1]),
            least_to_most: Range::of(samples.iter().map(|sample| sample.least_to_most)),
            requests: all.len(),
            p50_seconds: at(0.5),
            p99_seconds: at(0.99),
            p999_seconds: at(0.999),
            rate_to_tcp: ratio(|sample| sample.bytes_per_second),
            p99_to_tcp: ratio(|sample| sample.round_trips.value_at_quantile(0.99) as f64),
            rounds: samples.len(),
        };
        load.print(report);
        report.event(&load);
    }
}

impl Load {
    fn print(&self, report: &Report) {
        let size = table::size(self.size);
        let name = match (self.means, self.kind) {
            ("tcp", _) => format!("  TCP {size}"),
            (_, "write") => format!("Write {size}"),
            (_, "read") => format!("Read {size}"),
            _ => format!("Send {size}"),
        };
        let time = |seconds| report::time(Duration::from_secs_f64(seconds));
        let ratio = |range: Option<Range>| {
            range.map_or_else(|| "-".into(), |range| table::digits(range.median))
        };
        report.line(format_args!(
            "{name:<17}{:>6}{:>7}{:>11}{:>10}{:>9}{:>9}{:>9}{:>7}{:>7}",
            self.connections,
            table::digits(self.gib_per_second.median),
            self.cpu_seconds_per_gib
                .map_or_else(|| "-".into(), table::digits),
            table::digits(self.least_to_most.median),
            time(self.p50_seconds),
            time(self.p99_seconds),
            time(self.p999_seconds),
            ratio(self.rate_to_tcp),
            ratio(self.p99_to_tcp),
        ));
    }
}
