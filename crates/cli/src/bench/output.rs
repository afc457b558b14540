//! The output of `smbdirect bench` before and after its table: the plan, progress, noise, the summary.

use std::{sync::atomic::AtomicBool, time::Duration};

use anyhow::Result;
use serde::Serialize;

use smbdirect_bench::{
    Choice, Cores, Effort, Measured, Near, Placement, Row, Summary, load_average, measure,
};

use super::{options::Bench, table};
use crate::report::{self, Report};

/// The events other than rows.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event {
    Summary {
        rows: usize,
        samples: usize,
        dropped: usize,
        between_cores_seconds: Option<f64>,
        core_share: Option<f64>,
        load_before: Option<f64>,
        load_after: Option<f64>,
        spread: Option<f64>,
        congestion_control: Option<String>,
        kept_awake: bool,
        two_cores: bool,
        interrupted: bool,
    },
}

/// Prints what is compared, and where the ends run.
pub(super) fn print_head(bench: &Bench, report: &Report, choice: &Choice) {
    let transport = choice.smb.over.name();
    let ends = match &bench.address {
        Some(address) => format!("this machine and {address}"),
        None => "both ends in this process".into(),
    };
    let placement = match choice.placement {
        Placement::TwoCores => "each on a core of its own",
        Placement::SameCore => "on one core",
        Placement::Free => "on any core",
    };
    let awake = if bench.keep_awake { ", kept awake" } else { "" };
    let congestion = bench.used_congestion_control();
    report.line(format_args!(
        "SMB Direct over {}, {ends}, {placement}{awake}; TCP congestion control of all: {}",
        report.style.bold(transport),
        congestion.unwrap_or_else(|| "unknown".into()),
    ));
}

/// Measures `rows` alternately, and shows the progress.
///
/// # Errors
/// The ends cannot work together any more.
pub(super) fn measure_rows(
    report: &Report,
    near: &mut Near,
    rows: &[Row],
    effort: Effort,
    stop: &AtomicBool,
) -> Result<Measured> {
    let bar = report.steps(rows.len() as u64);
    let mut progress = |done, all, row: &str| {
        bar.set_length(all);
        bar.set_message(row.to_owned());
        bar.set_position(done);
    };
    let measured = measure(near, None, rows, effort, stop, &mut progress);
    bar.finish_and_clear();
    measured
}

/// Prints how steady the machine was, and the summary.
pub(super) fn finish(
    bench: &Bench,
    report: &Report,
    measured: &Measured,
    summary: &Summary,
    cores: &Cores,
    load_before: Option<f64>,
) {
    let load_after = load_average();
    let style = report.style;
    // Threads that keep cores awake are load as well.
    let load = load_before.zip(load_after).filter(|_| !bench.keep_awake);
    let noise = noise(summary, load);
    if !noise.is_empty() {
        report.line(style.dim(&format!("\nnoise: {}", noise.join("; "))));
    }
    if measured.interrupted {
        report.line(style.bad("interrupted: these are the results until then"));
    }
    report.event(&Event::Summary {
        rows: summary.results.len(),
        samples: summary.kept,
        dropped: summary.dropped,
        between_cores_seconds: summary.between_cores,
        core_share: summary.core_share,
        load_before,
        load_after,
        spread: summary.spread(),
        congestion_control: bench.used_congestion_control(),
        kept_awake: bench.keep_awake,
        two_cores: cores.are_two(),
        interrupted: measured.interrupted,
    });
}

/// Returns what disturbed the measurement, a phrase each. `load` is the load of the machine before and after it.
fn noise(summary: &Summary, load: Option<(f64, f64)>) -> Vec<String> {
    let mut noise = Vec::new();
    if let Some(spread) = summary.spread() {
        noise.push(format!(
            "half of a row's samples lie within {:.0} % of each other",
            spread * 100.0
        ));
    }
    if let Some(seconds) = summary.between_cores {
        noise.push(format!(
            "a cache line goes from core to core and back in {}",
            report::time(Duration::from_secs_f64(seconds))
        ));
    }
    if let Some(share) = summary.core_share {
        noise.push(format!(
            "while both ends ran on one core, they got {:.0} % of its time",
            share * 100.0
        ));
    }
    if summary.dropped > 0 {
        noise.push(format!(
            "{} of {} samples dropped: a cache line took unusually long or short between the two cores",
            summary.dropped,
            summary.dropped + summary.kept
        ));
    }
    let elsewhere = summary.results.iter().filter(|row| !row.usual_distance);
    let elsewhere: Vec<_> = elsewhere
        .map(|row| format!("{} {}", row.row.name(), table::size(row.row.size())))
        .collect();
    if !elsewhere.is_empty() {
        noise.push(format!(
            "not comparable with the others, because the time of a cache line between the two cores was different: {}",
            elsewhere.join(", ")
        ));
    }
    if let Some((before, after)) = load {
        noise.push(format!("load {before:.1} before, {after:.1} after"));
    }
    noise
}
