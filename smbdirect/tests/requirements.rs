//! Requirements are traced both ways: whatever id stands at a deciding line stands at a test, and
//! whatever a test claims to prove is decided somewhere.
//!
//! `cargo test -p smbdirect --test requirements -- --nocapture` prints how many there are by section.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// Ids that are not decided at one line, and why they need no test here.
const EXCEPTIONS: &[(&str, &str)] = &[("PERF-", "figures, not behaviour: benchmarks judge them")];

fn cited(directory: &Path, code: &mut BTreeSet<String>, tests: &mut BTreeSet<String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            cited(&path, code, tests);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            for line in fs::read_to_string(&path).unwrap().lines() {
                let Some(id) = line.trim().strip_prefix("//= ") else {
                    continue;
                };
                match id.strip_suffix(" test") {
                    Some(id) => tests.insert(id.to_owned()),
                    None => code.insert(id.to_owned()),
                };
            }
        }
    }
}

#[test]
fn every_id_is_decided_and_proven() {
    let (mut code, mut tests) = (BTreeSet::new(), BTreeSet::new());
    for part in ["src", "tests"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(part);
        cited(&folder, &mut code, &mut tests);
    }
    let excepted = |id: &String| EXCEPTIONS.iter().any(|(prefix, _)| id.starts_with(prefix));
    let unproven: Vec<_> = code.difference(&tests).filter(|id| !excepted(id)).collect();
    let undecided: Vec<_> = tests.difference(&code).collect();
    assert!(unproven.is_empty(), "decided and not tested: {unproven:?}");
    assert!(
        undecided.is_empty(),
        "tested and not decided: {undecided:?}"
    );
    assert!(code.len() > 250, "only {} ids were found", code.len());

    let mut sections = BTreeMap::new();
    for id in &code {
        let section = id
            .rsplit_once('-')
            .map_or(id.as_str(), |(section, _)| section);
        *sections.entry(section).or_insert(0) += 1;
    }
    for (section, count) in sections {
        println!("{section:<16} {count:>3} requirements, each at a deciding line and in a test");
    }
}
