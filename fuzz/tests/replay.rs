//! Every input of the corpora, and every one that once found something, through its target.

mod common;

use std::fs;

use self::common::{Attempt, inputs, target};

fn replay(name: &str) {
    let run = target(name);
    let corpus = inputs("corpus", name);
    assert!(!corpus.is_empty(), "the corpus of {name} is empty");
    for path in corpus.into_iter().chain(inputs("regressions", name)) {
        let data = fs::read(&path).unwrap();
        let _attempt = Attempt::new(|| eprintln!("{} fails", path.display()));
        run(&data);
    }
}

#[test]
fn capture_reader() {
    replay("capture_reader");
}

#[test]
fn decode() {
    replay("decode");
}

#[test]
fn engine_operations() {
    replay("engine_operations");
}

#[test]
fn gateway_translation() {
    replay("gateway_translation");
}

#[test]
fn memory_table() {
    replay("memory_table");
}

#[test]
fn mpa_stream() {
    replay("mpa_stream");
}

#[test]
fn rdmap_stream() {
    replay("rdmap_stream");
}

#[test]
fn smb2() {
    replay("smb2");
}

#[test]
fn wire_decode() {
    replay("wire_decode");
}

#[cfg(target_os = "linux")]
#[test]
fn work_completions() {
    replay("work_completions");
}
