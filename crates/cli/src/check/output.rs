//! Prints a diagnosis: one screen for people, or JSON.

use smbdirect_check::{Cure, Diagnosis, Fault, Outcome, Rate, Speed, State, Step, TransportSpeed};

use std::time::Duration;

use crate::report::{self, Report, Style, printable};

/// Columns of the name of a step.
const NAME_WIDTH: usize = 13;

/// Prints a diagnosis.
pub(super) fn print(diagnosis: &Diagnosis, report: &Report) {
    for event in diagnosis.events() {
        report.event(&event);
    }
    let style = report.style;
    let verdict = printable(&diagnosis.verdict);
    report.line(match diagnosis.outcome {
        Outcome::Works => style.good(&verdict),
        Outcome::DoesNot => style.bad(&verdict),
        Outcome::Unknown => style.bold(&verdict),
    });
    for section in &diagnosis.sections {
        report.line(format_args!("\n{}", style.bold(&printable(&section.title))));
        for step in &section.steps {
            print_step(step, report);
        }
    }
    if diagnosis.steps().any(|step| step.fault.is_some()) {
        report.line(style.dim("\nThe words in brackets are headings of docs/check.md."));
    }
    if let Some(speed) = &diagnosis.speed {
        print_speed(speed, report);
    }
}

/// Prints the rates, and first what follows from them.
fn print_speed(speed: &Speed, report: &Report) {
    let style = report.style;
    report.line("");
    for sentence in &speed.sentences {
        report.line(style.bold(&printable(sentence)));
    }
    report.line(printable(&speed.path_sentence));
    for transport in &speed.transports {
        report.line(format_args!(
            "\n{}",
            style.bold(&printable(&transport.name))
        ));
        for rate in &transport.rates {
            print_rate(rate, transport, report);
        }
        if let Some(failure) = &transport.failure {
            report.line(format_args!("  not measured: {}", printable(failure)));
        }
    }
}

fn print_rate(rate: &Rate, transport: &TransportSpeed, report: &Report) {
    let per_second = report::rate(rate.bytes_per_second as u64, Duration::from_secs(1));
    let requests = report::count(rate.requests_per_second as u64);
    let cores = rate
        .cpu_seconds
        .map(|cpu| format!("{:.2} cores", cpu / rate.seconds));
    let by = if rate.bytes_by_rdma > 0 {
        "RDMA"
    } else {
        "messages"
    };
    report.line(format_args!(
        "  {:<10} {:>8} x {:<2} {per_second:>11} {requests:>9}/s  {:<10} {by}",
        rate.operation.name(),
        report::bytes(rate.request_bytes.into()),
        rate.outstanding,
        cores.unwrap_or_default(),
    ));
    let limits = transport.limits.iter().filter(|limited| {
        let same = (limited.operation, limited.outstanding) == (rate.operation, rate.outstanding);
        let largest = transport.rates.iter().map(|rate| rate.request_bytes).max();
        same && Some(rate.request_bytes) == largest
    });
    for limited in limits {
        report.line(format_args!(
            "{}limited by {}",
            " ".repeat(13),
            printable(&limited.because)
        ));
    }
}

fn print_step(step: &Step, report: &Report) {
    let style = report.style;
    let evidence = printable(&step.evidence);
    let name = printable(&step.name);
    let mark = mark(step.state, style);
    report.line(format_args!("  {mark} {name:<NAME_WIDTH$} {evidence}"));
    let indent = " ".repeat(11);
    if let Some(cause) = &step.cause {
        let slug = step
            .fault
            .map_or_else(String::new, |fault: Fault| format!(" [{}]", fault.slug()));
        report.line(format_args!(
            "{indent}{}{}",
            printable(cause),
            style.dim(&slug)
        ));
    }
    for Cure { run_on, command } in &step.cures {
        report.line(format_args!(
            "{indent}{}: {}",
            run_on.name(),
            style.bold(&printable(command))
        ));
    }
}

fn mark(state: State, style: Style) -> String {
    match state {
        State::Ok => style.good("ok      "),
        State::Warning => style.bold("limit   "),
        State::Fault => style.bad("FAULT   "),
        State::Unknown => style.bold("unknown "),
        State::Skipped => style.dim("-       "),
    }
}
