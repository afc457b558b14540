//! Prints results as a table for people and as objects for programs.

use std::time::Duration;

use smbdirect_bench::{GIB, RowEvent, RowResult, Summary};

use crate::report::{self, Report};

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
            time(round_trips.max()),
            summary.against_tcp(result, false).map_or_else(dash, digits),
        ));
    }
}

/// Returns a size as `64 B` or `64 KiB`; a size that is not a multiple of 1 KiB is in bytes.
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
}
