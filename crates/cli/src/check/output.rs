//! Prints a diagnosis: one screen for people, or JSON.

use smbdirect_check::{Cure, Diagnosis, Fault, Outcome, State, Step};

use crate::report::{Report, Style, printable};

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
