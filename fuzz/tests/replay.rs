//! Runs every input of the corpora and of the regressions through its target.

mod common;

#[cfg(unix)]
use std::collections::BTreeSet;

use self::common::{Attempt, corpus, regressions, target};

fn replay(name: &str) {
    let run = target(name);
    for input in corpus(name).into_iter().chain(regressions(name)) {
        let _attempt = Attempt::new(|| eprintln!("{} fails", input.name));
        run(&input.bytes);
    }
}

#[cfg(unix)]
#[test]
fn capi_calls() {
    replay("capi_calls");
}

/// Calls that only fail would test little.
#[cfg(unix)]
#[test]
fn every_call_of_libsmbdirect_succeeds_in_some_input() {
    let mut succeeded = BTreeSet::new();
    for input in corpus("capi_calls") {
        succeeded.extend(smbdirect_fuzz::capi_calls_that_succeed(&input.bytes));
    }
    let calls = "abort accept buffer_data buffer_free close connect connect_finish connect_start connection_free \
                 deregister get_fd keepalive query read read_start recv recv_message region_free register runtime_run \
                 send send_and_invalidate send_start service stream use_stream write write_start";
    let failed: Vec<_> = calls
        .split_whitespace()
        .filter(|call| !succeeded.contains(call))
        .collect();
    assert!(failed.is_empty(), "{failed:?}");
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
fn roce_endpoint() {
    replay("roce_endpoint");
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

#[cfg(target_os = "linux")]
#[test]
fn tdi_calls() {
    replay("tdi_calls");
}

/// Requests that only fail would test little: each that the transport has succeeds in some input.
#[cfg(target_os = "linux")]
#[test]
fn every_request_of_tdi_succeeds_in_some_input() {
    let mut seen = BTreeSet::new();
    for input in corpus("tdi_calls") {
        seen.extend(smbdirect_fuzz::tdi_calls_and_statuses(&input.bytes));
    }
    for minor in (0x01..=0x08).chain([0x0B, 0x0C]) {
        assert!(seen.contains(&(minor, 0)), "{minor:#x}");
    }
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
