//! Measuring: takes samples of all rows alternately, and summarises them.

use std::{
    collections::HashMap,
    hint::black_box,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use anyhow::Result;
use crc_fast::CrcAlgorithm;
use hdrhistogram::Histogram;

use super::{
    compare::Programs,
    ends::{LinkId, Near},
    machine::{self, Distance},
    plan::{self, Memory, Other, Row, Work},
    work::{Kind, MAX_BURST_MESSAGES, MAX_BURST_ROUND_TRIPS, Means, Placement, Sample},
};

/// How often and how long to measure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    pub(crate) rounds: u32,
    pub(crate) time: Duration,
    /// Extra rounds are added until each row has enough samples at the usual core distance, but not
    /// after this time.
    pub(crate) most: Duration,
}

/// The samples of all rows.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    pub(crate) rows: Vec<(Row, Vec<Sample>)>,
    pub(crate) interrupted: bool,
    /// Rows that could not be measured, with the reason.
    pub(crate) failed: Vec<(Row, String)>,
}

/// Reports progress: bursts done, bursts in all, and the row that is measured now.
pub(crate) type Progress<'a> = &'a mut dyn FnMut(u64, u64, &str);

/// Measures `rows` alternately, until enough rounds are done or `stop` is set.
///
/// # Errors
/// The ends cannot work together any more.
pub(crate) fn measure(
    near: &mut Near,
    programs: &Programs,
    rows: &[Row],
    effort: Effort,
    stop: &AtomicBool,
    progress: Progress<'_>,
) -> Result<Measured> {
    let mut bench = Bench {
        links: HashMap::new(),
        counts: HashMap::new(),
        watched: near.is_one_machine() && near.cores().are_two(),
        before: None,
        near,
        programs,
        time: effort.time,
    };
    let mut measured = Measured {
        rows: rows.iter().map(|&row| (row, Vec::new())).collect(),
        ..Measured::default()
    };
    for link in plan::links(rows) {
        let id = bench.near.open(link)?;
        bench.links.insert((link.means, link.connections), id);
    }
    let started = Instant::now();
    let mut total = rows.len() as u64 * u64::from(effort.rounds);
    let (mut done, mut round) = (0, 0);
    'rounds: while round < effort.rounds || measured.lacks(effort.rounds) {
        if round >= effort.rounds {
            if started.elapsed() > effort.most || round >= effort.rounds * 3 {
                break;
            }
            total += rows.len() as u64;
        }
        round += 1;
        for (row, samples) in &mut measured.rows {
            if stop.load(Ordering::Relaxed) {
                measured.interrupted = true;
                break 'rounds;
            }
            progress(done, total, &row.name());
            done += 1;
            if measured.failed.iter().any(|(failed, _)| failed == row) {
                continue;
            }
            match bench.sample(row) {
                Ok(sample) => samples.push(sample),
                Err(error) if row.work().is_none() => {
                    measured.failed.push((*row, format!("{error:#}")));
                }
                Err(error) => return Err(error.context(row.name())),
            }
        }
    }
    for (_, id) in bench.links {
        bench.near.close(id)?;
    }
    measured.rows.retain(|(_, samples)| !samples.is_empty());
    Ok(measured)
}

struct Bench<'a> {
    near: &'a mut Near,
    programs: &'a Programs,
    links: HashMap<(Means, u32), LinkId>,
    /// Number of messages in a burst of each row.
    counts: HashMap<Row, u64>,
    time: Duration,
    /// Whether the distance between the cores can be measured.
    watched: bool,
    before: Option<Duration>,
}

impl Bench<'_> {
    /// Finds the number of messages that makes a burst of the wanted length.
    fn calibrate(&mut self, row: &Row) -> Result<u64> {
        let mut count = match row {
            Row::Work(work) if work.kind != Kind::Echo => (1 << 18) / u64::from(work.size) + 8,
            // Starting a program takes longer than most runs.
            Row::Other(Other::Iperf3 | Other::Ucx | Other::UcxMemory, size) => {
                (1 << 23) / u64::from(*size) + 100
            }
            _ => 50,
        };
        for _ in 0..16 {
            let seconds = self.run(row, count)?.seconds;
            // A connection over a long distance begins slowly, and a shorter run would mislead.
            let enough = seconds >= self.time.as_secs_f64() / 2.0;
            count = self.adjusted(row, count, seconds);
            if enough || matches!(row, Row::Other(..)) {
                break;
            }
        }
        Ok(count)
    }

    /// Returns the number of messages that would have taken the wanted length of a burst.
    fn adjusted(&self, row: &Row, count: u64, seconds: f64) -> u64 {
        let factor = (self.time.as_secs_f64() / seconds.max(1e-9)).clamp(0.1, 16.0);
        let most = if row.is_latency() {
            MAX_BURST_ROUND_TRIPS
        } else {
            MAX_BURST_MESSAGES
        };
        ((count as f64 * factor) as u64).clamp(1, most)
    }

    fn sample(&mut self, row: &Row) -> Result<Sample> {
        let count = match self.counts.get(row) {
            Some(&count) => count,
            None => self.calibrate(row)?,
        };
        let is_watched = self.watched && row.placement() == Some(Placement::TwoCores);
        let before = match self.before.take() {
            _ if !is_watched => None,
            // The round trip after the previous burst.
            Some(before) => Some(before),
            None => machine::cache_line_round_trip(self.near.cores()),
        };
        let mut sample = self.run(row, count)?;
        if is_watched {
            let after = machine::cache_line_round_trip(self.near.cores());
            sample.between_cores = before.zip(after);
            self.before = after;
        }
        let count = self.adjusted(row, count, sample.seconds);
        self.counts.insert(*row, count);
        Ok(sample)
    }

    fn run(&mut self, row: &Row, count: u64) -> Result<Sample> {
        match row {
            Row::Work(work) => self.work(work, count),
            Row::Memory(memory, size) => Ok(in_memory(*memory, *size, count)),
            Row::Other(other, size) => self.programs.run(*other, *size, count),
        }
    }

    fn work(&mut self, work: &Work, count: u64) -> Result<Sample> {
        let id = self.links[&(work.means, work.connections)];
        let burst = work.burst(count);
        let (near, far) = self.near.burst(id, &burst)?;
        let moved = count * u64::from(work.connections) * if work.both { 2 } else { 1 };
        Ok(Sample {
            seconds: near.seconds,
            bytes: moved * u64::from(work.size),
            messages: moved,
            cpu: near.cpu.zip(far.cpu).map(|(near, far)| near + far),
            round_trips: near.round_trips,
            between_cores: None,
        })
    }
}

fn in_memory(memory: Memory, size: u32, count: u64) -> Sample {
    let source = super::smb::source(size);
    let mut target = source.to_vec();
    let (started, cpu) = (Instant::now(), machine::thread_cpu());
    for _ in 0..count {
        match memory {
            Memory::Copy => {
                target.copy_from_slice(black_box(&source));
                black_box(&mut target);
            }
            Memory::Crc => {
                black_box(crc_fast::checksum(
                    CrcAlgorithm::Crc32Iscsi,
                    black_box(&source),
                ));
            }
        }
    }
    let clocks = machine::thread_cpu().zip(cpu);
    Sample {
        cpu: clocks.map(|(after, before)| (after - before).as_secs_f64()),
        ..Sample::reported(
            started.elapsed().as_secs_f64(),
            count * u64::from(size),
            count,
        )
    }
}

impl Measured {
    fn nearest(&self) -> Option<Duration> {
        let times = self.rows.iter().flat_map(|(_, samples)| samples);
        let times = times.filter_map(|sample| sample.between_cores);
        times.map(|(before, after)| before.min(after)).min()
    }

    /// Returns the core distance of most samples, and the shortest round trip of a cache line.
    fn usual(&self) -> Option<(Distance, Duration)> {
        let nearest = self.nearest()?;
        let all = self.rows.iter().flat_map(|(_, samples)| samples);
        let distances: Vec<_> = all.filter_map(|sample| distance(sample, nearest)).collect();
        let near = distances
            .iter()
            .filter(|&&distance| distance == Distance::Near);
        let usual = if near.count() * 2 >= distances.len() {
            Distance::Near
        } else {
            Distance::Far
        };
        Some((usual, nearest))
    }

    /// Returns whether a row has fewer than `rounds` samples at the usual distance.
    fn lacks(&self, rounds: u32) -> bool {
        let usual = self.usual();
        self.rows.iter().any(|(row, samples)| {
            !self.failed.iter().any(|(failed, _)| failed == row)
                && samples
                    .iter()
                    .filter(|sample| is_usual(sample, usual))
                    .count()
                    < rounds as usize
        })
    }

    fn core_share(&self) -> Option<f64> {
        let shared = |row: &Row| row.placement() == Some(Placement::SameCore);
        let rows = self.rows.iter().filter(|(row, _)| shared(row));
        let shares: Vec<_> = rows
            .filter(|(row, _)| !row.is_latency())
            .flat_map(|(_, samples)| samples)
            .filter_map(|sample| Some(sample.cpu? / sample.seconds))
            .collect();
        (!shares.is_empty()).then(|| quartiles(shares)[1])
    }

    /// Summarises the samples that were taken at the usual core distance.
    pub(crate) fn summarise(&self) -> Summary {
        let usual = self.usual();
        let mut results = Vec::new();
        let (mut kept, mut dropped) = (0, 0);
        for (row, samples) in &self.rows {
            let counted: Vec<_> = samples
                .iter()
                .filter(|sample| is_usual(sample, usual))
                .collect();
            let usual_distance = !counted.is_empty();
            // A row without samples at the usual distance shows the others.
            let counted = if usual_distance {
                counted
            } else {
                samples.iter().collect()
            };
            kept += counted.len();
            dropped += samples.len() - counted.len();
            results.push(RowResult {
                usual_distance,
                ..RowResult::of(*row, &counted)
            });
        }
        let times: Vec<f64> = self
            .rows
            .iter()
            .flat_map(|(_, samples)| samples)
            .filter(|sample| is_usual(sample, usual))
            .filter_map(|sample| sample.between_cores)
            .map(|(before, _)| before.as_secs_f64())
            .collect();
        Summary {
            results,
            kept,
            dropped,
            between_cores: (!times.is_empty()).then(|| quartiles(times)[1]),
            core_share: self.core_share(),
        }
    }
}

/// Returns where the cores were during `sample`, if they stayed there and the clock tells.
fn distance(sample: &Sample, nearest: Duration) -> Option<Distance> {
    let (before, after) = sample.between_cores?;
    machine::distance(before, after, nearest)
}

/// Returns whether `sample` was taken at the usual distance, or does not depend on it.
fn is_usual(sample: &Sample, usual: Option<(Distance, Duration)>) -> bool {
    match (usual, sample.between_cores) {
        (Some((usual, nearest)), Some(_)) => distance(sample, nearest) == Some(usual),
        _ => true,
    }
}

/// All rows, and how steady the machine was.
#[derive(Debug)]
pub(crate) struct Summary {
    pub(crate) results: Vec<RowResult>,
    /// Number of samples that were used.
    pub(crate) kept: usize,
    /// Number of samples that were dropped: taken at another core distance than most, or while it
    /// changed.
    pub(crate) dropped: usize,
    /// Median round trip of a cache line between the cores, in seconds.
    pub(crate) between_cores: Option<f64>,
    /// Median share of a core that both ends had where they shared one.
    pub(crate) core_share: Option<f64>,
}

/// The result of a row: medians over the rounds.
#[derive(Clone, Debug)]
pub(crate) struct RowResult {
    pub(crate) row: Row,
    /// Bytes per second: first quartile, median, third quartile.
    pub(crate) rate: [f64; 3],
    pub(crate) messages: f64,
    /// CPU seconds per GiB, both ends together.
    pub(crate) cpu: Option<f64>,
    pub(crate) round_trips: Option<RoundTrips>,
    pub(crate) samples: usize,
    /// Whether the samples were taken at the usual core distance. If none was, all samples of the
    /// row are used.
    pub(crate) usual_distance: bool,
}

/// Bytes of a GiB.
pub(crate) const GIB: f64 = (1_u64 << 30) as f64;

impl RowResult {
    fn of(row: Row, samples: &[&Sample]) -> Self {
        let of = |number: fn(&Sample) -> f64| {
            quartiles(samples.iter().map(|sample| number(sample)).collect())
        };
        let cpu: Option<Vec<f64>> = samples
            .iter()
            .map(|sample| Some(sample.cpu? * GIB / sample.bytes as f64))
            .collect();
        Self {
            row,
            rate: of(Sample::bytes_per_second),
            messages: of(|sample| sample.messages as f64 / sample.seconds)[1],
            cpu: cpu.map(|cpu| quartiles(cpu)[1]),
            round_trips: RoundTrips::of(row, samples),
            samples: samples.len(),
            usual_distance: true,
        }
    }

    /// Returns the distance of the quartiles as a fraction of the median.
    pub(crate) fn spread(&self) -> f64 {
        (self.rate[2] - self.rate[0]) / self.rate[1]
    }
}

/// The round trips of all bursts of a row, in seconds.
#[derive(Clone, Debug)]
pub(crate) struct RoundTrips {
    pub(crate) min: f64,
    /// Median over the medians of the bursts.
    pub(crate) median: f64,
    /// `None` for a program that reports only a mean.
    pub(crate) p99: Option<f64>,
    pub(crate) histogram: Histogram<u64>,
}

impl RoundTrips {
    fn of(row: Row, samples: &[&Sample]) -> Option<Self> {
        if !row.is_latency() {
            return None;
        }
        let new =
            || Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are legal");
        let mut histogram = new();
        let (mut medians, mut p99s) = (Vec::new(), Vec::new());
        for sample in samples {
            let mut one: Histogram<u64> = new();
            for &time in &sample.round_trips {
                one.saturating_record(time);
            }
            if one.is_empty() {
                // The program reports only a mean.
                one.saturating_record((sample.seconds * 1e9 / sample.messages as f64) as u64);
            }
            medians.push(one.value_at_quantile(0.5) as f64 / 1e9);
            p99s.push(one.value_at_quantile(0.99) as f64 / 1e9);
            histogram.add(one).expect("they have the same bounds");
        }
        Some(Self {
            min: histogram.min() as f64 / 1e9,
            median: quartiles(medians)[1],
            p99: row.work().map(|_| quartiles(p99s)[1]),
            histogram,
        })
    }
}

/// Returns first quartile, median and third quartile.
pub(crate) fn quartiles(mut numbers: Vec<f64>) -> [f64; 3] {
    numbers.sort_by(f64::total_cmp);
    let at = |share: f64| {
        let place = share * (numbers.len() - 1) as f64;
        let (low, high) = (
            numbers[place.floor() as usize],
            numbers[place.ceil() as usize],
        );
        low + (high - low) * place.fract()
    };
    [at(0.25), at(0.5), at(0.75)]
}

impl Summary {
    pub(crate) fn result(&self, row: &Row) -> Option<&RowResult> {
        self.results.iter().find(|result| result.row == *row)
    }

    /// Returns the result as a multiple of that of plain TCP: rate by rate, or round trip by round
    /// trip.
    pub(crate) fn against_tcp(&self, result: &RowResult, batched: bool) -> Option<f64> {
        let tcp = self.result(&result.row.by_tcp(batched)?)?;
        Some(match (&result.round_trips, &tcp.round_trips) {
            (Some(ours), Some(theirs)) => ours.median / theirs.median,
            _ => result.rate[1] / tcp.rate[1],
        })
    }

    /// Returns the median spread of all rows.
    pub(crate) fn spread(&self) -> Option<f64> {
        let spreads: Vec<_> = self.results.iter().map(RowResult::spread).collect();
        (!spreads.is_empty()).then(|| quartiles(spreads)[1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(seconds: f64, between_cores: Option<(u64, u64)>) -> Sample {
        let at = Duration::from_nanos;
        Sample {
            between_cores: between_cores.map(|(before, after)| (at(before), at(after))),
            ..Sample::reported(seconds, 1 << 20, 16)
        }
    }

    #[test]
    fn quartiles_of_few_and_many_numbers() {
        assert_eq!(quartiles(vec![5.0]), [5.0; 3]);
        assert_eq!(quartiles(vec![3.0, 1.0, 2.0]), [1.5, 2.0, 2.5]);
        assert_eq!(
            quartiles((0..=100).map(f64::from).collect()),
            [25.0, 50.0, 75.0]
        );
    }

    #[test]
    fn samples_at_another_core_distance_are_dropped() {
        let row = Row::Memory(Memory::Copy, 64);
        let measured = Measured {
            rows: vec![(
                row,
                vec![
                    sample(1.0, Some((120, 121))),
                    sample(1.0, Some((125, 120))),
                    sample(9.0, Some((120, 400))),
                    sample(9.0, Some((400, 400))),
                ],
            )],
            ..Measured::default()
        };
        assert!(measured.lacks(3));
        assert!(!measured.lacks(2));
        let summary = measured.summarise();
        assert_eq!((summary.kept, summary.dropped), (2, 2));
        let result = summary.result(&row).unwrap();
        assert_eq!(result.rate, [1048576.0; 3]);
        assert_eq!((result.messages, result.samples), (16.0, 2));
        assert_eq!(result.cpu, None);
        assert!(result.usual_distance);
    }

    #[test]
    fn a_row_without_usual_samples_shows_the_others() {
        let (usual, elsewhere) = (
            Row::Memory(Memory::Copy, 64),
            Row::Memory(Memory::Copy, 128),
        );
        let near = sample(1.0, Some((120, 121)));
        let measured = Measured {
            rows: vec![
                (usual, vec![near.clone(), near]),
                (elsewhere, vec![sample(4.0, Some((120, 400)))]),
            ],
            ..Measured::default()
        };
        let summary = measured.summarise();
        assert_eq!((summary.kept, summary.dropped), (3, 0));
        assert!(summary.result(&usual).unwrap().usual_distance);
        let result = summary.result(&elsewhere).unwrap();
        assert!(!result.usual_distance);
        assert_eq!((result.rate[1], result.samples), (262144.0, 1));
    }
}
