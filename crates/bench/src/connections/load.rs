//! Many connections that move data, and one that sends requests meanwhile, compared with plain TCP
//! with one thread per end.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use anyhow::Result;
use hdrhistogram::Histogram;
use serde::Serialize;

use super::smb;
use crate::{
    ends::{LinkId, Near},
    plan::Choice,
    summary::{GIB, quartiles},
    work::{Burst, Link, Means, Operation},
};

/// The operations of the connections, and the bytes of each operation.
const LOADS: [(Operation, u32); 3] = [
    (Operation::Write, 64 << 10),
    (Operation::Read, 64 << 10),
    (Operation::Send, 4 << 10),
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
pub struct LoadMemory {
    /// Number of connections that move data.
    pub connections: u32,
    /// Resident bytes of each end of a connection, beyond the buffers of the bench.
    pub bytes_each: f64,
}

/// Median, least and most of the rounds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Range {
    /// The median.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The most.
    pub most: f64,
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
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename = "load")]
pub struct Load {
    /// `write`, `read` or `send`.
    pub kind: &'static str,
    /// `smbdirect` or `tcp`.
    pub means: &'static str,
    /// Bytes of an operation.
    pub size: u32,
    /// Number of connections that move data.
    pub connections: u32,
    /// The rate of all connections.
    pub gib_per_second: Range,
    /// CPU time of both ends.
    pub cpu_seconds_per_gib: Option<f64>,
    /// Operations of the slowest connection divided by those of the fastest.
    pub least_to_most: Range,
    /// Number of requests on another connection.
    pub requests: u64,
    /// Median time of a request.
    pub p50_seconds: f64,
    /// Time that 99 % of the requests do not exceed.
    pub p99_seconds: f64,
    /// Time that 99.9 % of the requests do not exceed.
    pub p999_seconds: f64,
    /// Ratio of the rate to that of plain TCP, in each round.
    pub rate_to_tcp: Option<Range>,
    /// Ratio of the 99 % time to that of plain TCP, in each round.
    pub p99_to_tcp: Option<Range>,
    /// Number of rounds.
    pub rounds: usize,
}

/// The links and the samples of one number of connections.
struct Many<'a> {
    near: &'a mut Near,
    choice: &'a Choice,
    connections: u32,
    seconds: f64,
    stop: &'a AtomicBool,
}

/// Measures each load with each number of connections, and calls `report` with each result. Returns the memory that the
/// connections took.
///
/// # Errors
/// The connections cannot be made, or fail.
pub fn measure_loads(
    near: &mut Near,
    choice: &Choice,
    (rounds, time): (u64, Option<Duration>),
    stop: &AtomicBool,
    report: &mut dyn FnMut(&Load),
) -> Result<Vec<LoadMemory>> {
    let (mut opened, mut memory) = (Vec::new(), Vec::new());
    for &connections in &choice.connections {
        let mut many = Many {
            near,
            choice,
            connections,
            seconds: time.unwrap_or(DEFAULT_BURST).as_secs_f64(),
            stop,
        };
        let smb = many.open(Means::SmbDirect(smb(choice)))?;
        memory.extend(many.memory(smb)?);
        let tcp = if choice.alone {
            None
        } else {
            Some(many.open(Means::TcpLoop)?)
        };
        let samples = many.rounds(smb, tcp, rounds)?;
        opened.extend([Some(smb), tcp].into_iter().flatten());
        for ((ours, tcp), load) in samples.iter().zip(LOADS) {
            Load::of(load, connections, ours, tcp)
                .iter()
                .for_each(&mut *report);
        }
    }
    // Memory of closed connections would be used again, and not be counted.
    for link in opened {
        near.close(link)?;
    }
    Ok(memory)
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
            // Plain TCP needs a slot for each outstanding read. With SMB Direct only RDMA Writes use the
            // slots, and one is enough for them here.
            slots: if rdma { 1 } else { self.choice.outstanding[0] },
        })
    }

    /// Runs each load once on new connections, and returns how much memory they take.
    fn memory(&mut self, link: LinkId) -> Result<Option<LoadMemory>> {
        // The memory of an idle connection is measured elsewhere.
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
        Ok(Some(LoadMemory {
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

    fn burst(&self, (kind, size): (Operation, u32)) -> Burst {
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

impl Load {
    /// Returns the results of SMB Direct and of plain TCP, of those that have samples.
    fn of(
        (kind, size): (Operation, u32),
        connections: u32,
        ours: &[Sample],
        tcp: &[Sample],
    ) -> Vec<Self> {
        let each = [("smbdirect", ours), ("tcp", tcp)];
        let measured = each.into_iter().filter(|(_, samples)| !samples.is_empty());
        measured
            .map(|(means, samples)| {
                let ratio = |of: fn(&Sample) -> f64| {
                    let pairs = samples.iter().zip(tcp);
                    let has_tcp = means == "smbdirect" && !tcp.is_empty();
                    has_tcp.then(|| Range::of(pairs.map(|(ours, tcp)| of(ours) / of(tcp))))
                };
                let mut all = histogram();
                for sample in samples {
                    all.add(&sample.round_trips)
                        .expect("they have the same bounds");
                }
                let at = |share| all.value_at_quantile(share) as f64 / 1e9;
                let cpu: Option<Vec<_>> = samples.iter().map(|sample| sample.cpu_per_gib).collect();
                let rates = samples.iter().map(|sample| sample.bytes_per_second / GIB);
                Self {
                    kind: match kind {
                        Operation::Write => "write",
                        Operation::Read => "read",
                        _ => "send",
                    },
                    means,
                    size,
                    connections,
                    gib_per_second: Range::of(rates),
                    cpu_seconds_per_gib: cpu.map(|cpu| quartiles(cpu)[1]),
                    least_to_most: Range::of(samples.iter().map(|sample| sample.least_to_most)),
                    requests: all.len(),
                    p50_seconds: at(0.5),
                    p99_seconds: at(0.99),
                    p999_seconds: at(0.999),
                    rate_to_tcp: ratio(|sample| sample.bytes_per_second),
                    p99_to_tcp: ratio(|sample| sample.round_trips.value_at_quantile(0.99) as f64),
                    rounds: samples.len(),
                }
            })
            .collect()
    }
}
