//! `--junit`: the results as JUnit XML.

use std::{fs::File, io::BufWriter, path::Path, time::Duration};

use anyhow::Result;
use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};
use smbdirect_conform::{Case, Group, Outcome};

/// A case that has ended.
pub(super) struct Done {
    pub(super) case: &'static Case,
    pub(super) outcome: Outcome,
    pub(super) took: Duration,
}

/// Writes one suite per group of cases.
///
/// # Errors
/// The file cannot be written.
pub(super) fn write(path: &Path, peer: &str, done: &[Done], took: Duration) -> Result<()> {
    let mut report = Report::new(format!("smbdirect conform {peer}"));
    report.set_time(took);
    for group in Group::ALL {
        let cases: Vec<_> = done
            .iter()
            .filter(|done| done.case.group == group)
            .collect();
        if cases.is_empty() {
            continue;
        }
        let mut suite = TestSuite::new(group.name());
        suite.set_time(cases.iter().map(|done| done.took).sum());
        suite.add_test_cases(cases.into_iter().map(test_case));
        report.add_test_suite(suite);
    }
    let mut file = BufWriter::new(File::create(path)?);
    report.serialize(&mut file)?;
    Ok(())
}

fn test_case(done: &Done) -> TestCase {
    let status = match &done.outcome {
        Outcome::Pass => TestCaseStatus::success(),
        Outcome::Fail { expected, seen } => {
            let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
            status.set_message(format!("expected {expected}; seen {seen}"));
            status.set_type("nonconforming");
            status
        }
        Outcome::Skipped { reason } => {
            let mut status = TestCaseStatus::skipped();
            status.set_message(reason.to_string());
            status
        }
    };
    let case = done.case;
    let mut test = TestCase::new(format!("{} {}", case.id, case.title), status);
    test.set_classname(format!("smbdirect.{}", case.group.name()));
    test.set_time(done.took);
    test.set_system_out(format!("{}: {}", case.section, case.does));
    test
}
