//! Allocations in the steady state, which are none for each message.

use std::{net::UdpSocket, sync::Arc};

use smbdirect::rdma::{
    iwarp::{Iwarp, IwarpConfig},
    loopback::Loopback,
    provider::Provider,
    roce::{Roce, RoceConfig},
};

use crate::units::{
    self, Done, Unit,
    connection::{Connections, Traffic},
};

/// Batches that let buffers grow to their size, and again as many that are counted.
const BATCHES: usize = 30;

/// Allocations, and the items that caused them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counted {
    allocations: u64,
    items: u64,
}

fn count(unit: &mut dyn Unit, batches: usize) -> Counted {
    let mut counted = Counted::default();
    for round in 0..2 * batches {
        unit.feed();
        let mut done = Done::default();
        let allocated = allocation_counter::measure(|| done = unit.run());
        if round >= batches {
            counted.allocations += allocated.count_total;
            counted.items += done.items;
        }
    }
    assert!(counted.items > 0, "the unit did nothing");
    counted
}

/// Asserts that no unit whose name starts with `beginning` allocates, except those in `but`.
fn assert_no_allocation(beginning: &str, but: &[&str]) {
    let mut cases = units::all();
    cases.retain(|case| case.name.starts_with(beginning) && !but.contains(&&*case.name));
    assert!(!cases.is_empty(), "no unit begins with {beginning}");
    for case in cases {
        let counted = count(&mut *case.build(), BATCHES);
        let Counted { allocations, items } = counted;
        let (name, item) = (&case.name, case.item);
        assert_eq!(allocations, 0, "allocations in {name} for {items} {item}s");
    }
}

#[test]
fn engine_allocates_nothing_for_a_segment() {
    let _alone = crate::alone();
    assert_no_allocation("engine/", &[]);
}

#[test]
fn codecs_allocate_nothing() {
    let _alone = crate::alone();
    // Both are decoded once in a connection, and their contents are kept.
    let but = ["wire/decode/startup-frame", "wire/decode/terminate"];
    assert_no_allocation("wire/", &but);
}

#[test]
fn iwarp_machine_allocates_nothing_for_what_it_sends() {
    let _alone = crate::alone();
    assert_no_allocation("iwarp/transmit/", &[]);
}

#[test]
fn iwarp_machine_allocates_nothing_for_a_send_of_one_segment_it_receives() {
    let _alone = crate::alone();
    let of_several = ["iwarp/receive/send-8192-by-1448-crc"];
    assert_no_allocation("iwarp/receive/send-", &of_several);
}

#[test]
fn iwarp_machine_allocates_nothing_for_a_write_it_receives() {
    let _alone = crate::alone();
    assert_no_allocation("iwarp/receive/write", &[]);
}

#[test]
fn iwarp_machine_allocates_nothing_for_a_send_it_receives() {
    let _alone = crate::alone();
    assert_no_allocation("iwarp/receive/send", &[]);
}

#[test]
fn iwarp_machine_allocates_nothing_for_a_read() {
    let _alone = crate::alone();
    assert_no_allocation("iwarp/both/read", &[]);
}

#[test]
fn roce_allocates_nothing_for_a_packet() {
    let _alone = crate::alone();
    assert_no_allocation("roce/", &[]);
}

/// Fewest messages or transfers of a connection for each allocation. The runtime allocates for its lists,
/// and many messages share one arena.
const MIN_ITEMS_PER_ALLOCATION: u64 = 16;

/// Asserts that both ends, with handle, task and provider, allocate nothing for a single message.
fn assert_few(provider: &Arc<dyn Provider>, traffic: Traffic, segment: u32, window: usize) {
    let (Traffic::Send(length) | Traffic::Read(length) | Traffic::Write(length)) = traffic;
    let count = ((32 << 20) / length).min(8000);
    let mut connections = Connections::new([provider.clone(), provider.clone()], segment, traffic);
    connections.stream(count, window);
    let counted = allocation_counter::measure(|| connections.stream(count, window));
    let allocations = counted.count_total;
    assert!(
        allocations * MIN_ITEMS_PER_ALLOCATION <= count as u64,
        "{allocations} allocations for {count} times {traffic:?} by {segment} on {}",
        provider.attributes().name
    );
}

fn iwarp() -> Arc<dyn Provider> {
    Arc::new(Iwarp::new(IwarpConfig::default()))
}

fn loopback() -> Arc<dyn Provider> {
    Arc::new(Loopback::new())
}

/// Both ends use the same socket.
fn roce() -> Arc<dyn Provider> {
    let probe = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    let udp_port = probe.local_addr().expect("it is bound").port();
    let mut roce_config = RoceConfig::default();
    roce_config.udp_port = udp_port;
    roce_config.peer_udp_port = udp_port;
    Arc::new(Roce::new(roce_config))
}

#[test]
fn messages_of_one_segment_take_no_allocation_each_over_iwarp() {
    let _alone = crate::alone();
    assert_few(&iwarp(), Traffic::Send(64), 1364, 32);
    assert_few(&iwarp(), Traffic::Send(1340), 1364, 32);
    assert_few(&iwarp(), Traffic::Send(8112), 8136, 32);
}

#[test]
fn messages_of_one_segment_take_no_allocation_each_with_the_window_full() {
    let _alone = crate::alone();
    assert_few(&iwarp(), Traffic::Send(64), 1364, 256);
    assert_few(&iwarp(), Traffic::Send(1340), 1364, 256);
}

#[test]
fn messages_of_many_segments_take_no_allocation_each_over_iwarp() {
    let _alone = crate::alone();
    assert_few(&iwarp(), Traffic::Send(64 << 10), 1364, 16);
    assert_few(&iwarp(), Traffic::Send(64 << 10), 8136, 16);
}

#[test]
fn writes_take_no_allocation_each_over_iwarp() {
    let _alone = crate::alone();
    assert_few(&iwarp(), Traffic::Write(64 << 10), 1364, 16);
}

#[test]
fn reads_take_no_allocation_each_over_iwarp() {
    let _alone = crate::alone();
    assert_few(&iwarp(), Traffic::Read(64 << 10), 1364, 16);
}

#[test]
fn messages_take_no_allocation_each_over_loopback() {
    let _alone = crate::alone();
    assert_few(&loopback(), Traffic::Send(64), 1364, 32);
    assert_few(&loopback(), Traffic::Send(8112), 8136, 32);
}

#[test]
fn transfers_take_no_allocation_each_over_loopback() {
    let _alone = crate::alone();
    assert_few(&loopback(), Traffic::Write(64 << 10), 1364, 16);
    assert_few(&loopback(), Traffic::Read(64 << 10), 1364, 16);
}

#[test]
fn messages_take_no_allocation_each_over_roce() {
    let _alone = crate::alone();
    assert_few(&roce(), Traffic::Send(64), 1364, 32);
    assert_few(&roce(), Traffic::Send(8112), 8136, 32);
    assert_few(&roce(), Traffic::Send(64 << 10), 8136, 16);
}

#[test]
fn transfers_take_no_allocation_each_over_roce() {
    let _alone = crate::alone();
    assert_few(&roce(), Traffic::Write(64 << 10), 1364, 16);
    assert_few(&roce(), Traffic::Read(64 << 10), 1364, 16);
}
