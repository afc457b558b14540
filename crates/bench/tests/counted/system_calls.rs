//! The number of system calls that a stream over TCP takes.
//!
//! Both ends run on one thread, so that the counts do not depend on scheduling.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use smbdirect::rdma::{
    Direction,
    iwarp::{Iwarp, IwarpConfig, Tap},
    provider::Provider,
};

use crate::units::connection::{Connections, Traffic};

/// Bytes of a stream, which is long enough for its beginning and end not to matter.
const BYTES: usize = 64 << 20;
/// Least average of bytes for each sending call of the sender.
const MIN_BYTES_PER_SEND_CALL: u64 = 128 << 10;
/// Least average of bytes for each receiving call of a receiver of messages.
const MIN_BYTES_PER_RECEIVE_CALL: u64 = 64 << 10;
/// Least average of bytes for each receiving call of RDMA. A call takes the rest of one FPDU, of 64 KiB at most, to
/// its destination, and little more; one in 16 takes less. In return the payload is not copied.
const MIN_PLACED_BYTES_PER_RECEIVE_CALL: u64 = 56 << 10;

/// System calls of one direction, including those that moved nothing.
#[derive(Debug, Default)]
struct Calls {
    calls: AtomicU64,
    bytes: AtomicU64,
}

impl Calls {
    /// Returns the average of bytes for each call.
    fn average(&self) -> u64 {
        let bytes = self.bytes.load(Relaxed);
        assert!(bytes >= BYTES as u64, "{self:?}");
        bytes / self.calls.load(Relaxed)
    }
}

/// Counts the system calls of one end.
#[derive(Debug, Default)]
struct Counter {
    sent: Calls,
    received: Calls,
}

impl Tap for Counter {
    fn bytes(&self, _: Direction, _: SocketAddr, _: SocketAddr, _: &[u8]) {}

    fn call(&self, direction: Direction, count: usize) {
        let calls = match direction {
            Direction::Sent => &self.sent,
            Direction::Received => &self.received,
        };
        calls.calls.fetch_add(1, Relaxed);
        calls.bytes.fetch_add(count as u64, Relaxed);
    }
}

fn provider(tap: &Arc<Counter>) -> Arc<dyn Provider> {
    let mut iwarp = IwarpConfig::default();
    iwarp.tap = Some(tap.clone());
    Arc::new(Iwarp::new(iwarp))
}

/// Asserts that a stream of `traffic` takes few system calls, with Data Transfers of at most `segment`
/// bytes and `window` messages or transfers in flight.
#[track_caller]
fn assert_few_calls(traffic: Traffic, segment: u32, window: usize) {
    let (client, server) = (Arc::default(), Arc::default());
    let providers = [provider(&client), provider(&server)];
    let (Traffic::Send(length) | Traffic::Read(length) | Traffic::Write(length)) = traffic;
    Connections::new(providers, segment, traffic).stream(BYTES / length, window);
    let (from, to) = match traffic {
        Traffic::Read(_) => (server, client),
        _ => (client, server),
    };
    let least_received = match traffic {
        Traffic::Send(_) => MIN_BYTES_PER_RECEIVE_CALL,
        Traffic::Read(_) | Traffic::Write(_) => MIN_PLACED_BYTES_PER_RECEIVE_CALL,
    };
    let (a_send_call, a_receive_call) = (from.sent.average(), to.received.average());
    let what = format!("{a_send_call} bytes a send call, {a_receive_call} bytes a receive call");
    eprintln!("{traffic:?} by {segment}: {what}");
    assert!(a_send_call >= MIN_BYTES_PER_SEND_CALL, "{what}");
    assert!(a_receive_call >= least_received, "{what}");
}

#[test]
fn messages_of_64_kib_by_1364() {
    let _alone = crate::alone();
    assert_few_calls(Traffic::Send(64 << 10), 1364, 16);
}

#[test]
fn messages_of_1_mib_by_8136() {
    let _alone = crate::alone();
    assert_few_calls(Traffic::Send(1 << 20), 8136, 4);
}

#[test]
fn messages_of_1340_bytes_by_1364() {
    let _alone = crate::alone();
    assert_few_calls(Traffic::Send(1340), 1364, 256);
}

#[test]
fn writes_of_1_mib() {
    let _alone = crate::alone();
    assert_few_calls(Traffic::Write(1 << 20), 1364, 4);
}

#[test]
fn reads_of_64_kib() {
    let _alone = crate::alone();
    assert_few_calls(Traffic::Read(64 << 10), 1364, 16);
}

#[test]
fn reads_of_1_mib() {
    let _alone = crate::alone();
    assert_few_calls(Traffic::Read(1 << 20), 1364, 4);
}

#[test]
fn messages_of_64_kib_by_8136() {
    let _alone = crate::alone();
    assert_few_calls(Traffic::Send(64 << 10), 8136, 16);
}

#[test]
fn writes_of_64_kib() {
    let _alone = crate::alone();
    assert_few_calls(Traffic::Write(64 << 10), 1364, 16);
}
