//! RDMA Reads and Writes concurrent with messages.

use std::time::Duration;

use bytes::Bytes;
use smbdirect::{Access, rdma::work::Token};

use super::fabric::{Active, Faults, Pair, Passive, Who, content, same_credits};

fn pair(faults: Faults) -> Pair {
    let settings = same_credits(10);
    Pair::established(1, settings.clone(), settings, faults)
}

/// Deregisters the memory of a descriptor and returns its content.
fn deregister(pair: &mut Pair, who: Who, token: u32) -> Bytes {
    let memory = &mut pair.end_mut(who).memory;
    memory.deregister(Token(token)).unwrap().freeze()
}

//= SMBD-3.1.4.5-04 test
//= SMBD-3.1.4.6-02 test
//= SMBD-3.1.4.6-03 test
//= SMBD-3.1.4.6-04 test
//= SMBD-3.1.4.6-05 test
#[test]
fn reads_and_writes_in_both_directions_use_two_descriptors() {
    for (max_transfer, outbound_reads) in [(1000, 1), (4096, 4), (1 << 20, 16)] {
        let mut pair = pair(Faults {
            max_transfer,
            outbound_reads,
            send_queue: 8,
            completion_delay: [30; 4],
            ..Faults::default()
        });
        let mut written = Vec::new();
        for who in Who::BOTH {
            let source = [
                pair.register(who, 1, 10_000, Access::REMOTE_READ),
                pair.register(who, 2, 3000, Access::REMOTE_READ),
            ];
            let mut expected = content(1, 10_000)[9000..].to_vec();
            expected.extend_from_slice(&content(2, 3000)[..2500]);
            pair.read(who.peer(), &source, 9000, expected.into());
            let target = pair.register(who, 3, 20_000, Access::REMOTE_WRITE);
            pair.write(who.peer(), &[target], 5, content(4, 19_990));
            written.push((who, target.token));
            pair.send(who, 3000);
        }
        pair.drive();
        for (who, token) in written {
            assert_eq!(pair.end(who).transfers_done, 2);
            assert!((1..=outbound_reads as usize).contains(&pair.end(who).most_reads));
            let bytes = deregister(&mut pair, who, token);
            assert_eq!(bytes[5..19_995], content(4, 19_990));
            assert_eq!(bytes[..5], content(3, 20_000)[..5]);
        }
        pair.finish(Active);
    }
}

/// A server handles a client's read in this order: Write, then the response.
#[test]
fn earlier_writes_are_in_place_when_a_message_arrives() {
    for seed in 0..30 {
        let settings = same_credits(2);
        let faults = Faults {
            completion_delay: [100; 4],
            send_queue: 3,
            max_transfer: 700,
            lean_rooms: true,
            ..Faults::default()
        };
        let mut pair = Pair::established(seed, settings.clone(), settings, faults);
        let memory = pair.register(Active, 1, 5000, Access::REMOTE_WRITE);
        pair.send(Passive, 100);
        pair.write(Passive, &[memory], 0, content(2, 5000));
        pair.send(Passive, 100);
        while pair.active.messages_received < 2 {
            pair.step();
        }
        let bytes = deregister(&mut pair, Active, memory.token);
        assert_eq!(bytes, content(2, 5000));
        pair.drive();
    }
}

#[test]
fn an_invalid_token_ends_the_connection_and_returns_every_buffer() {
    let mut pair = pair(Faults::default());
    let good = pair.register(Active, 1, 5000, Access::REMOTE_READ);
    let mut bad = good;
    bad.token ^= 1;
    pair.read(Passive, &[good], 0, content(1, 5000));
    pair.read(Passive, &[bad], 0, content(1, 5000));
    pair.read(Passive, &[good], 0, content(1, 5000));
    pair.run();
    assert_eq!(pair.passive.transfers_done, 1);
    pair.assert_all_returned();
}

#[test]
fn transfers_use_no_credits() {
    let mut pair = pair(Faults::default());
    let memory = pair.register(Passive, 1, 5000, Access::REMOTE_READ | Access::REMOTE_WRITE);
    pair.fill_buffer(Passive, Duration::from_secs(3));
    for _ in 0..30 {
        pair.send(Active, 1);
    }
    while pair.active.transfers_done == 0 {
        if pair.active.transfers.is_empty() {
            pair.read(Active, &[memory], 0, content(1, 5000));
        }
        pair.step();
    }
    assert!(pair.passive.messages_received < 30);
    pair.drive();
}
