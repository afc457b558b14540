//! Runs every input of the corpora and of the regressions through its target.

mod common;

use self::common::{Attempt, corpus, regressions, target};

fn replay(name: &str) {
    let run = target(name);
    for input in corpus(name).into_iter().chain(regressions(name)) {
        let _attempt = Attempt::new(|| eprintln!("{} fails", input.name));
        run(&input.bytes);
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
fn roce_packet() {
    replay("roce_packet");
}

#[test]
fn roce_queue_pair() {
    replay("roce_queue_pair");
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
