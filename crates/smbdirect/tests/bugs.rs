//! Tests for the bugs that other implementations of SMB Direct have had and fixed.
//!
//! `docs/bugs.md` lists the bugs with their tests, or with the reason why a bug cannot exist here.
//! The comment of each test first describes the bug, then the expected behaviour.
#![cfg(feature = "tokio")]

use std::{collections::BTreeSet, fs, path::Path};

#[path = "it/pair/fabric.rs"]
#[allow(dead_code, reason = "what only the pair's tests use")]
mod fabric;
#[allow(dead_code, reason = "what only the hostile ones say")]
mod peer;

mod bugs {
    pub(crate) mod decoding;
    pub(crate) mod ends;
    pub(crate) mod listeners;
    pub(crate) mod memory;
    pub(crate) mod protocol;
    pub(crate) mod shutdown;
    pub(crate) mod startup;
    pub(crate) mod transfers;
}

/// Returns the names of the tests in a line of the list.
fn named(line: &str) -> impl Iterator<Item = String> {
    let quoted = line.split('`').skip(1).step_by(2);
    quoted
        .filter(|name| name.starts_with("bug_"))
        .map(str::to_owned)
}

#[test]
fn the_list_names_every_bug_and_every_test() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut tests = BTreeSet::new();
    for entry in fs::read_dir(here.join("tests/bugs")).unwrap() {
        let source = fs::read_to_string(entry.unwrap().path()).unwrap();
        let functions = source.split("fn bug_").skip(1);
        tests.extend(functions.filter_map(|rest| Some(format!("bug_{}", rest.split_once('(')?.0))));
    }
    let list = fs::read_to_string(here.join("../../docs/bugs.md")).unwrap();
    let mut listed = BTreeSet::new();
    let mut numbers = Vec::new();
    for line in list.lines() {
        let columns: Vec<_> = line.split('|').map(str::trim).collect();
        let [_, number, wrong, here, _] = columns[..] else {
            continue;
        };
        let Ok(number) = number.parse::<u32>() else {
            continue;
        };
        numbers.push(number);
        assert!(wrong.len() > 20, "bug {number}: what went wrong?");
        let names: Vec<_> = named(here).collect();
        let own = format!("bug_{number:02}_");
        assert!(
            names.iter().all(|name| name.starts_with(&own)),
            "bug {number} names another's test"
        );
        let reasoned = here.starts_with("Cannot exist: ") && here.len() > 40;
        assert_ne!(
            names.is_empty(),
            !reasoned,
            "bug {number}: a test or a reason"
        );
        listed.extend(names);
    }
    assert!(numbers.into_iter().eq(1..=28), "28 bugs, in order");
    let missing: Vec<_> = listed.difference(&tests).collect();
    assert!(missing.is_empty(), "listed and not there: {missing:?}");
    let unlisted: Vec<_> = tests.difference(&listed).collect();
    assert!(unlisted.is_empty(), "there and not listed: {unlisted:?}");
}
