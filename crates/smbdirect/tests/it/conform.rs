//! The cases of `smbdirect-conform` judge the engine in virtual time, as a server and as a client.
//!
//! `crates/cli/tests/cli/conform.rs` judges the command over iWARP.

mod engine;

use engine::{EngineClient, EngineServer};
use smbdirect_conform::{Echo, Outcome, SkipReason, client_cases, run, run_client, server_cases};

/// Asserts that all cases passed, apart from those that need bytes below RDMA, and returns the
/// number of these.
fn count_skipped<'a>(outcomes: impl Iterator<Item = (&'a str, Outcome)>) -> usize {
    let (mut skipped, mut failed) = (0, Vec::new());
    for (id, outcome) in outcomes {
        match outcome {
            Outcome::Pass => {}
            Outcome::Skipped {
                reason: SkipReason::BelowRdma,
            } => skipped += 1,
            other => failed.push(format!("{id}: {other:?}")),
        }
    }
    assert!(failed.is_empty(), "\n{}", failed.join("\n"));
    skipped
}

#[test]
fn the_engine_passes_as_a_server() {
    let outcomes = server_cases().map(|case| {
        let outcome = run(case, &mut EngineServer::default(), &Echo);
        (case.id, outcome)
    });
    // h1 to h6, h8, i1 to i23, b18, b20 and b23.
    assert_eq!(count_skipped(outcomes), 33);
}

#[test]
fn the_engine_passes_as_a_client() {
    let outcomes = client_cases().map(|case| {
        let outcome = run_client(case, &mut EngineClient::default(), &Echo);
        (case.id, outcome)
    });
    assert_eq!(count_skipped(outcomes), 0);
}
