//! Prints an answer: one screen for people, or JSON.

use serde::Serialize;

use super::{
    answer::{About, Answer, Cure, Outcome, State, Step},
    fault::Fault,
};
use crate::report::{Report, Style, printable};

#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event<'a> {
    Verdict {
        outcome: Outcome,
        verdict: &'a str,
        faults: Vec<Fault>,
        limits: Vec<Fault>,
    },
    Step {
        about: About,
        section: &'a str,
        #[serde(flatten)]
        step: &'a Step,
    },
}

/// Columns of the name of a step.
const NAME_WIDTH: usize = 13;

/// Prints the answer.
pub(super) fn print(answer: &Answer, report: &Report) {
    let style = report.style;
    let verdict = printable(&answer.verdict);
    report.line(match answer.outcome {
        Outcome::Works => style.good(&verdict),
        Outcome::DoesNot => style.bad(&verdict),
        Outcome::Unknown => style.bold(&verdict),
    });
    let of = |state: State| {
        let steps = answer.steps().filter(|step| step.state == state);
        steps.filter_map(|step| step.fault).collect()
    };
    report.event(&Event::Verdict {
        outcome: answer.outcome,
        verdict: &answer.verdict,
        faults: of(State::Fault),
        limits: of(State::Warning),
    });
    for section in &answer.sections {
        report.line(format_args!("\n{}", style.bold(&printable(&section.title))));
        for step in &section.steps {
            print_step(step, report);
            report.event(&Event::Step {
                about: section.about,
                section: &section.title,
                step,
            });
        }
    }
    if answer.steps().any(|step| step.fault.is_some()) {
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
            .map_or_else(String::new, |fault| format!(" [{}]", fault.slug()));
        report.line(format_args!(
            "{indent}because {}{}",
            printable(cause),
            style.dim(&slug)
        ));
    }
    for Cure { place, command } in &step.cures {
        report.line(format_args!(
            "{indent}{place}: {}",
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
