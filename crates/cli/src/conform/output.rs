//! The output of the command: a line per case, a summary, JSON, and progress on a terminal.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use indicatif::ProgressBar;
use serde::Serialize;
use smbdirect_conform::{Case, Outcome};

use super::junit::{self, Done};
use crate::report::{self, Report};

#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event<'a> {
    Started {
        peer: &'a str,
        transport: &'a str,
        upper: &'a str,
        cases: usize,
    },
    Case {
        #[serde(flatten)]
        case: Described,
        outcome: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        expected: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        seen: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<&'a str>,
        seconds: f64,
        #[serde(skip_serializing_if = "Option::is_none")]
        capture: Option<String>,
    },
    Summary {
        passed: usize,
        failed: usize,
        skipped: usize,
        seconds: f64,
        interrupted: bool,
    },
    Listed {
        #[serde(flatten)]
        case: Described,
    },
}

/// A case, in JSON.
#[derive(Clone, Copy, Debug, Serialize)]
struct Described {
    id: &'static str,
    group: &'static str,
    title: &'static str,
    section: &'static str,
    does: &'static str,
    disruptive: bool,
}

impl From<&Case> for Described {
    fn from(case: &Case) -> Self {
        Self {
            id: case.id,
            group: case.group.name(),
            title: case.title,
            section: case.section,
            does: case.does,
            disruptive: case.is_disruptive,
        }
    }
}

/// Prints the cases.
pub(super) fn list(report: &Report, cases: &[&Case]) {
    let mut group = "";
    for &case in cases {
        if case.group.name() != group {
            group = case.group.name();
            report.line(report.style.bold(group));
        }
        let mark = if case.is_disruptive {
            "  (disruptive)"
        } else {
            ""
        };
        let Case {
            id,
            title,
            section,
            does,
            ..
        } = case;
        report.line(format_args!("  {id:<5} {title}{mark}"));
        report.line(report.style.dim(&format!("        {section}: {does}")));
        report.event(&Event::Listed { case: case.into() });
    }
    let count = report::plural(cases.len() as u64, "case");
    report.line(format_args!(
        "{count}; --only and --skip take ids, ranges and groups"
    ));
}

/// The output of a run.
pub(super) struct Output {
    report: Report,
    progress: ProgressBar,
    started: Instant,
    junit: Option<PathBuf>,
    peer: String,
    done: Vec<Done>,
}

impl Output {
    pub(super) fn new(report: Report, cases: usize, junit: Option<PathBuf>) -> Self {
        Self {
            report,
            progress: report.steps(cases as u64),
            started: Instant::now(),
            junit,
            peer: String::new(),
            done: Vec::new(),
        }
    }

    /// Prints a line above the progress bar.
    fn line(&self, line: impl std::fmt::Display) {
        self.progress.suspend(|| self.report.line(line));
    }

    pub(super) fn started(&mut self, peer: &str, transport: &str, upper: &str) {
        let cases = self.progress.length().unwrap_or(0);
        let count = report::plural(cases, "case");
        let style = self.report.style;
        self.line(format_args!(
            "{} over {transport}, upper layer {upper}, {count}",
            style.bold(peer)
        ));
        self.report.event(&Event::Started {
            peer,
            transport,
            upper,
            cases: cases as usize,
        });
        self.peer = peer.to_owned();
    }

    /// Says how a client connects.
    pub(super) fn invite(&self, address: SocketAddr) {
        let port = address.port();
        self.line(format_args!(
            "waiting for clients on port {port}; each connection takes the next case, so connect in \
             a loop:\n  while :; do mount -t cifs //HOST/x /mnt -o rdma,user=x,password=x; done\n  \
             while :; do smbdirect ping HOST:{port} --echo --count 2 --size 65536; done"
        ));
    }

    /// Returns a function that shows that the command waits for a connection.
    pub(super) fn waiting(&self) -> impl FnMut() + 'static {
        let progress = self.progress.clone();
        move || {
            let message = progress.message();
            let case = message.split(':').next().unwrap_or_default();
            progress.set_message(format!("{case}: waiting for a connection"));
        }
    }

    /// Shows the name of a case while it runs.
    pub(super) fn during<T>(&self, name: &str, run: impl FnOnce() -> T) -> T {
        self.progress.set_message(name.to_owned());
        self.progress.tick();
        let result = run();
        self.progress.set_message("");
        result
    }

    pub(super) fn case(
        &mut self,
        case: &'static Case,
        outcome: &Outcome,
        took: Duration,
        capture: Option<&Path>,
    ) {
        let style = self.report.style;
        let Case {
            id, section, does, ..
        } = case;
        let verdict = match outcome {
            Outcome::Pass => style.good("PASS"),
            Outcome::Fail { .. } => style.bad("FAIL"),
            Outcome::Skipped { .. } => style.dim("SKIP"),
        };
        let mut text = format!("{verdict} {id:<5} {section:<8} {does}");
        let (mut expected, mut seen, mut reason) = (None, None, None);
        match outcome {
            Outcome::Pass => {}
            Outcome::Fail {
                expected: wanted,
                seen: found,
            } => {
                let found = report::printable(found);
                text += &format!("\n       expected: {wanted}\n       seen:     {found}");
                if let Some(capture) = capture {
                    text += &format!("\n       capture:  {}", capture.display());
                }
                (expected, seen) = (Some(wanted.as_str()), Some(found));
            }
            Outcome::Skipped { reason: why } => {
                text += &style.dim(&format!("\n       {why}"));
                reason = Some(why.to_string());
            }
        }
        self.line(text);
        self.progress.inc(1);
        self.report.event(&Event::Case {
            case: case.into(),
            outcome: outcome.name(),
            expected,
            seen: seen.as_deref(),
            reason: reason.as_deref(),
            seconds: took.as_secs_f64(),
            capture: capture.map(|path| path.display().to_string()),
        });
        self.done.push(Done {
            case,
            outcome: outcome.clone(),
            took,
        });
    }

    /// Prints the summary and writes the file for a CI system. Returns whether no case failed and
    /// at least one passed.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn finish(self, interrupted: bool) -> Result<bool> {
        self.progress.finish_and_clear();
        let count = |name: &str| {
            let same = self.done.iter().filter(|done| done.outcome.name() == name);
            same.count()
        };
        let (passed, failed, skipped) = (count("pass"), count("fail"), count("skip"));
        let took = self.started.elapsed();
        let style = self.report.style;
        let told = format!("{failed} failed");
        let stopped = if interrupted { ", interrupted" } else { "" };
        self.report.line(format_args!(
            "\n{passed} passed, {}, {skipped} skipped in {}{stopped}",
            if failed > 0 { style.bad(&told) } else { told },
            report::time(took)
        ));
        self.report.event(&Event::Summary {
            passed,
            failed,
            skipped,
            seconds: took.as_secs_f64(),
            interrupted,
        });
        if let Some(path) = &self.junit {
            junit::write(path, &self.peer, &self.done, took)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(failed == 0 && passed > 0 && !interrupted)
    }
}
