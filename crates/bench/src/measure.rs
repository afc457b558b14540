//! Measuring: takes samples of all rows alternately, and selects those to summarise.

use std::{
    collections::HashMap,
    hint::black_box,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use crc_fast::CrcAlgorithm;

use crate::{
    ends::{LinkId, Near},
    host::{self, Distance},
    means::smb_direct::source,
    plan::{self, Memory, Program, Row, Work},
    summary::{RowResult, Summary, quartiles},
    work::{MAX_BURST_MESSAGES, MAX_BURST_ROUND_TRIPS, Means, Operation, Placement, Sample},
};

/// How often and how long to measure.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Samples of each row.
    pub rounds: u32,
    /// Length of a burst.
    pub time: Duration,
    /// Extra rounds are added until each row has enough samples at the usual core distance, but not
    /// after this time.
    pub most: Duration,
}

/// The samples of all rows.
#[derive(Debug, Default)]
pub struct Measured {
    pub(crate) rows: Vec<(Row, Vec<Sample>)>,
    /// Whether it ended early.
    pub interrupted: bool,
    /// Rows that could not be measured, with the reason.
    pub failed: Vec<(Row, String)>,
}

/// Runs a program once, with messages of this many bytes and about this many of them.
pub type RunProgram<'a> = &'a dyn Fn(Program, u32, u64) -> Result<Sample>;

/// Reports progress: bursts done, bursts in all, and the row that is measured now.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64, &str);

/// Measures `rows` alternately, until enough rounds are done or `stop` is set. Rows of programs need `programs`.
///
/// # Errors
/// The ends cannot work together any more.
pub fn measure(
    near: &mut Near,
    programs: Option<RunProgram<'_>>,
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
    programs: Option<RunProgram<'a>>,
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
            Row::Work(work) if work.kind != Operation::Echo => (1 << 18) / u64::from(work.size) + 8,
            // Starting a program takes longer than most runs.
            Row::Program(_, size) => (1 << 23) / u64::from(*size) + 100,
            _ => 50,
        };
        for _ in 0..16 {
            let seconds = self.run(row, count)?.seconds;
            // A connection over a long distance begins slowly, and a shorter run would mislead.
            let enough = seconds >= self.time.as_secs_f64() / 2.0;
            count = self.adjusted(row, count, seconds);
            if enough || matches!(row, Row::Program(..)) {
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
            None => host::cache_line_round_trip(self.near.cores()),
        };
        let mut sample = self.run(row, count)?;
        if is_watched {
            let after = host::cache_line_round_trip(self.near.cores());
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
            Row::Program(program, size) => {
                let run = self.programs.context("no programs are run here")?;
                run(*program, *size, count)
            }
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
    let source = source(size);
    let mut target = source.to_vec();
    let (started, cpu) = (Instant::now(), host::thread_cpu());
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
    let clocks = host::thread_cpu().zip(cpu);
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
    pub fn summarise(&self) -> Summary {
        let usual = self.usual();
        let mut results = Vec::new();
        let (mut kept, mut dropped) = (0, 0);
        for (row, samples) in &self.rows {
            let counted: Vec<_> = samples
                .iter()
                .filter(|sample| is_usual(sample, usual))
                .collect();
            let usual_distance = !counted.is_empty();
            // A row without samples at the usual distance shows its other samples.
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

/// Returns the cache distance of the two cores during `sample`. Returns `None` if it changed meanwhile, or if it
/// cannot be measured.
fn distance(sample: &Sample, nearest: Duration) -> Option<Distance> {
    let (before, after) = sample.between_cores?;
    host::distance(before, after, nearest)
}

/// Returns whether `sample` was taken at the usual distance, or does not depend on it.
fn is_usual(sample: &Sample, usual: Option<(Distance, Duration)>) -> bool {
    match (usual, sample.between_cores) {
        (Some((usual, nearest)), Some(_)) => distance(sample, nearest) == Some(usual),
        _ => true,
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
