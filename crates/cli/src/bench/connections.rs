//! Prints the results of many connections.

use std::time::Duration;

use smbdirect_bench::{Active, IDLE_CREDITS, Idle, Load, LoadMemory, Range};

use super::table;
use crate::report::{self, Report};

/// Prints the memory of idle connections.
pub(super) fn print_idle(report: &Report, idle: &Idle) {
    report.line(format_args!(
        "\n{} idle connections: {} resident for each end; {IDLE_CREDITS} credits need {}",
        idle.connections,
        report::bytes(idle.bytes_each as u64),
        report::bytes(idle.credit_bytes.into()),
    ));
    report.event(idle);
}

/// Prints how active connections share two ends.
pub(super) fn print_active(report: &Report, active: &Active) {
    report.line(format_args!(
        "\n{} active connections: the fastest has {:.2} times the messages of the slowest; \
         all together have {:.2} times the rate of one",
        active.connections, active.fastest_to_slowest, active.together_to_one
    ));
    report.event(active);
}

/// Prints the heads of the columns of loads.
pub(super) fn print_head(report: &Report) {
    report.line(report.style.dim(&format!(
        "\n{:<17}{:>6}{:>7}{:>11}{:>10}{:>9}{:>9}{:>9}{:>7}{:>7}",
        "", "conns", "GiB/s", "CPU s/GiB", "fairness", "p50", "p99", "p99.9", "x TCP", "p99 x"
    )));
}

/// Explains the columns of loads.
pub(super) fn print_legend(report: &Report) {
    report.line(report.style.dim(
        "\nfairness: operations of the slowest connection / of the fastest; p50 to p99.9: a request of \
         4 KiB\non another connection; x TCP, p99 x: rate and p99 / those of plain TCP with one thread \
         per end",
    ));
}

/// Prints the memory of connections with loads.
pub(super) fn print_memory(report: &Report, memory: &[LoadMemory]) {
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

/// Prints the result of a load.
pub(super) fn print_load(report: &Report, load: &Load) {
    let size = table::size(load.size);
    let name = match (load.means, load.kind) {
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
        load.connections,
        table::digits(load.gib_per_second.median),
        load.cpu_seconds_per_gib
            .map_or_else(|| "-".into(), table::digits),
        table::digits(load.least_to_most.median),
        time(load.p50_seconds),
        time(load.p99_seconds),
        time(load.p999_seconds),
        ratio(load.rate_to_tcp),
        ratio(load.p99_to_tcp),
    ));
    report.event(load);
}
