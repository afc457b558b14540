//! Prints results as a table for people and as objects for programs.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::{
    measure::{GIB, RowResult, Summary},
    plan::Row,
    work::{Kind, Means, Over, Placement},
};
use crate::report::{self, Report};

/// The object of one row.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename = "row")]
pub(crate) struct RowEvent {
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
    pub(crate) fn new(summary: &Summary, result: &RowResult) -> Self {
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
                .filter(|smb| matches!(smb.over, Over::Iwarp | Over::Loopback))
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
                max_seconds: round_trips.histogram.max() as f64 / 1e9,
                histogram: buckets(&round_trips.histogram),
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
        Kind::Send | Kind::Batch => "send",
        Kind::Write | Kind::WriteApart => "write",
        Kind::Read => "read",
        Kind::Echo => "echo",
    };
    let means = match (work.means, work.kind) {
        (Means::SmbDirect(_), Kind::Batch) => "smbdirect-batched",
        (Means::SmbDirect(_), Kind::WriteApart) => "smbdirect-apart",
        (Means::SmbDirect(_), _) => "smbdirect",
        (Means::Tcp, Kind::Batch) => "tcp-batched",
        (Means::Tcp, _) => "tcp",
        (Means::TcpLoop, _) => "tcp-loop",
        (Means::Frames, _) => "frames",
        (Means::Channel, _) => "channel",
    };
    (kind, Some(means))
}

/// Returns a histogram in steps of a quarter of a power of two, without its empty ends.
fn buckets(histogram: &Histogram<u64>) -> Vec<(f64, u64)> {
    let mut buckets = Vec::new();
    let mut counted = 0;
    for step in 0..HISTOGRAM_STEPS {
        let bound = 2_f64.powf(f64::from(step) / 4.0 + MIN_EXPONENT);
        let below = histogram.count_between(0, bound as u64);
        if below > counted || (!buckets.is_empty() && counted < histogram.len()) {
            buckets.push((bound / 1e9, below - counted));
        }
        counted = below;
    }
    buckets
}

/// Lower end of the histogram, in powers of two of nanoseconds: a quarter of a microsecond.
const MIN_EXPONENT: f64 = 8.0;
/// Steps of the histogram: 29 doublings, up to two minutes.
const HISTOGRAM_STEPS: u32 = 4 * 29;

/// Prints the table.
pub(crate) fn print(report: &Report, summary: &Summary) {
    let rates: Vec<_> = only(summary, false);
    let style = report.style;
    if !rates.is_empty() {
        report.line(style.dim(&format!(
            "\n{:<49}{:>8}{:>9}{:>15}{:>10}{:>12}{:>8}{:>9}",
            "", "size", "GiB/s", "p25 to p75", "CPU s/GiB", "messages/s", "x TCP", "batched"
        )));
    }
    let mut last = String::new();
    for result in rates {
        let name = result.row.name();
        let [p25, median, p75] = result.rate.map(|rate| digits(rate / GIB));
        let shown = if name == last { "" } else { &name };
        report.line(format_args!(
            "{shown:<49}{:>8}{median:>9}{:>15}{:>10}{:>12}{:>8}{:>9}",
            size(result.row.size()),
            format!("{p25}-{p75}"),
            result.cpu.map_or_else(dash, digits),
            report::count(result.messages as u64),
            summary.against_tcp(result, false).map_or_else(dash, digits),
            summary.against_tcp(result, true).map_or_else(dash, digits),
        ));
        last = name;
    }
    print_latencies(report, summary);
    for result in &summary.results {
        report.event(&RowEvent::new(summary, result));
    }
}

fn only(summary: &Summary, latency: bool) -> Vec<&RowResult> {
    let results = summary.results.iter();
    results
        .filter(|result| result.row.is_latency() == latency)
        .collect()
}

fn print_latencies(report: &Report, summary: &Summary) {
    let rows = only(summary, true);
    if rows.is_empty() {
        return;
    }
    report.line(report.style.dim(&format!(
        "\n{:<49}{:>8}{:>11}{:>11}{:>11}{:>11}{:>8}",
        "round trips", "size", "min", "median", "p99", "max", "x TCP"
    )));
    for result in rows {
        let Some(round_trips) = &result.round_trips else {
            continue;
        };
        let time = |seconds| report::time(Duration::from_secs_f64(seconds));
        report.line(format_args!(
            "{:<49}{:>8}{:>11}{:>11}{:>11}{:>11}{:>8}",
            result.row.name(),
            size(result.row.size()),
            time(round_trips.min),
            time(round_trips.median),
            round_trips.p99.map_or_else(dash, time),
            time(round_trips.histogram.max() as f64 / 1e9),
            summary.against_tcp(result, false).map_or_else(dash, digits),
        ));
        if result.row.work().is_some() {
            print_histogram(report, &round_trips.histogram);
        }
    }
}

/// Returns one line that shows the distribution of round trips, up to one in a thousand.
fn print_histogram(report: &Report, histogram: &Histogram<u64>) {
    let mut buckets = buckets(histogram);
    let all = histogram.len().max(1);
    buckets.retain(|&(_, count)| count * 1000 >= all);
    let most = buckets.iter().map(|&(_, count)| count).max().unwrap_or(1);
    let bars: String = buckets
        .iter()
        .map(|&(_, count)| BARS[((count * 7).div_ceil(most.max(1)) as usize).min(7)])
        .collect();
    let Some(((first, _), (last, _))) = buckets.first().copied().zip(buckets.last().copied())
    else {
        return;
    };
    // The first bound is that of a bucket, which is a quarter of a power of two wide.
    let [first, last] = [first / 2_f64.powf(0.25), last]
        .map(|seconds| report::time(Duration::from_secs_f64(seconds)));
    let line = format!("    {first} {bars} {last}");
    report.line(report.style.dim(&line));
}

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Returns a size as `64 B` or `64 KiB`; sizes that are no multiple are in bytes.
pub(crate) fn size(bytes: u32) -> String {
    match bytes {
        _ if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        _ if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} B"),
    }
}

/// Returns a number with three digits.
pub(crate) fn digits(number: f64) -> String {
    match number {
        _ if number >= 99.95 => format!("{number:.0}"),
        _ if number >= 9.995 => format!("{number:.1}"),
        _ if number >= 0.0995 => format!("{number:.2}"),
        _ => format!("{number:.3}"),
    }
}

fn dash() -> String {
    "-".into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_sizes_their_unit() {
        for (number, text) in [
            (0.0221, "0.022"),
            (1.0, "1.00"),
            (12.34, "12.3"),
            (250.4, "250"),
        ] {
            assert_eq!(digits(number), text);
        }
        for (bytes, text) in [
            (64, "64 B"),
            (1364, "1364 B"),
            (65_536, "64 KiB"),
            (8 << 20, "8 MiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn a_histogram_has_all_round_trips() {
        let mut histogram = Histogram::new_with_bounds(1, 60_000_000_000, 3).unwrap();
        for nanoseconds in [1, 7_800, 7_900, 33_000, 59_000_000_000_u64] {
            histogram.record(nanoseconds).unwrap();
        }
        let buckets = buckets(&histogram);
        assert_eq!(buckets.iter().map(|(_, count)| count).sum::<u64>(), 5);
        assert!(buckets.is_sorted_by(|a, b| a.0 < b.0));
        assert!(buckets[0].1 > 0 && buckets[buckets.len() - 1].1 > 0);
    }
}
