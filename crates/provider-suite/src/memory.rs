//! Registered memory: accesses that must fail. Each fault ends the connection.

use bytes::{Bytes, BytesMut};
use smbdirect_rdma::{
    memory::{DeregisterError, Registration},
    work::{Access, RemoteAddress, Teardown, Token},
};

use super::fabric::{Fabric, Pair, past, pattern};

const READ: Access = Access::REMOTE_READ;
const WRITE: Access = Access::REMOTE_WRITE;
const INVALIDATE: Access = Access::REMOTE_INVALIDATE;

/// The size of the regions, in bytes.
const SIZE: usize = 4096;

/// An access of the peer that must fail.
#[derive(Clone, Copy, Debug)]
enum Attempt {
    Write,
    Read,
}

const BOTH: [Attempt; 2] = [Attempt::Write, Attempt::Read];

/// Lets the active end attempt an access, and checks that the connection ends and that a Read
/// returns no byte.
async fn attempt_fails(pair: &mut Pair, attempt: Attempt, at: RemoteAddress, length: usize) {
    match attempt {
        Attempt::Write => pair.active.write(vec![0xee; length], at),
        Attempt::Read => drop(pair.active.read(at, length)),
    }
    pair.ended_by_fault_of_active().await;
    assert!(pair.active.reads.is_empty(), "{attempt:?}");
    for (_, buffer) in pair.active.flushed.iter() {
        let untouched = buffer.iter().flatten().all(|&byte| byte == 0);
        assert!(untouched, "{attempt:?} brought something");
    }
}

//= SEC-04 test
//= DDP-14 test
//= DDP-15 test
//= RDMAP-07 test
pub async fn bounds(fabric: &Fabric) {
    let size = SIZE as u64;
    for attempt in BOTH {
        for (start, length) in [
            (0, SIZE + 1),
            (size, 1),
            (size - 1, 2),
            (u64::MAX, 1),
            (u64::MAX, SIZE),
            (1 << 40, 1),
        ] {
            let mut pair = fabric.pair().await;
            // The region is between two buffers that are not registered.
            let mut below = pattern(3 * SIZE, 5);
            let mut inside = below.split_off(SIZE);
            let above = inside.split_off(SIZE);
            let region = pair.passive.register(inside, READ | WRITE);
            attempt_fails(&mut pair, attempt, past(region, start), length).await;
            let mut inside = pair.passive.deregister(region.address.token).unwrap();
            if !fabric.capabilities.writes_are_whole {
                inside.copy_from_slice(&pattern(3 * SIZE, 5)[SIZE..2 * SIZE]);
            }
            let whole = [&below[..], &inside, &above].concat();
            assert!(
                whole == pattern(3 * SIZE, 5),
                "{attempt:?} {start} {length}"
            );
        }
        // The end of the address space.
        let mut pair = fabric.pair().await;
        let region = pair.passive.register(pattern(SIZE, 5), READ | WRITE);
        let top = RemoteAddress {
            token: region.address.token,
            offset: u64::MAX,
        };
        attempt_fails(&mut pair, attempt, top, 2).await;
    }
}

//= SEC-03 test
//= SMBD-3.1.4.3-01 test
//= RDMAP-07 test
pub async fn rights(fabric: &Fabric) {
    for (attempt, access) in [
        (Attempt::Write, READ | INVALIDATE),
        (Attempt::Write, Access::empty()),
        (Attempt::Read, WRITE | INVALIDATE),
        (Attempt::Read, Access::empty()),
    ] {
        if matches!(attempt, Attempt::Read) && !fabric.capabilities.rights_are_checked {
            println!("skipped: {access:?} does not keep a peer from reading");
            continue;
        }
        let mut pair = fabric.pair().await;
        let region = pair.passive.register(pattern(SIZE, 6), access);
        attempt_fails(&mut pair, attempt, region.address, 16).await;
        let buffer = pair.passive.deregister(region.address.token).unwrap();
        assert!(buffer == pattern(SIZE, 6), "{attempt:?} {access:?}");
    }
}

//= SEC-02 test
//= DDP-15 test
pub async fn unknown_token(fabric: &Fabric) {
    for attempt in BOTH {
        let mut pair = fabric.pair().await;
        let at = RemoteAddress {
            token: Token(0x1234_5678),
            offset: 0,
        };
        attempt_fails(&mut pair, attempt, at, 16).await;
    }
}

/// Tries tokens next to a known token, and small numbers.
//= SEC-01 test
pub async fn guessed_tokens(fabric: &Fabric) {
    for guess in [
        |_| Token(0),
        |_| Token(1),
        |known: Token| Token(known.0 ^ 1),
        |known: Token| Token(known.0.wrapping_add(0x100)),
    ] {
        let mut pair = fabric.pair().await;
        let region = pair.passive.register(pattern(SIZE, 7), READ | WRITE);
        let at = RemoteAddress {
            token: guess(region.address.token),
            ..region.address
        };
        attempt_fails(&mut pair, Attempt::Write, at, 16).await;
        let buffer = pair.passive.deregister(region.address.token).unwrap();
        assert!(buffer == pattern(SIZE, 7));
    }
}

//= SMBD-3.1.4.4-03 test
pub async fn stale_token(fabric: &Fabric) {
    for attempt in BOTH {
        for access in [READ, WRITE, READ | WRITE] {
            let mut pair = fabric.pair().await;
            let region = pair.passive.register(pattern(SIZE, 8), access);
            let buffer = pair.passive.deregister(region.address.token).unwrap();
            // A new registration does not revive the old token.
            let renewed = pair.passive.register(buffer, READ | WRITE);
            assert_ne!(renewed.address.token, region.address.token);
            attempt_fails(&mut pair, attempt, region.address, 16).await;
            let buffer = pair.passive.deregister(renewed.address.token).unwrap();
            assert!(buffer == pattern(SIZE, 8));
        }
    }
}

//= SMBD-3.1.4.4-03 test
//= SEC-05 test
pub async fn deregister_ends_access_and_gives_the_buffer_back(fabric: &Fabric) {
    for access in [READ, WRITE, READ | WRITE, Access::empty()] {
        let mut pair = fabric.pair().await;
        let buffer = pattern(SIZE, 9);
        let place = buffer.as_ptr();
        let region = pair.passive.register(buffer, access);
        if access.contains(WRITE) {
            pair.active.write(vec![1; 8], region.address);
            pair.active.send("written");
            pair.until("a message", |_, p| p.messages.pop_front()).await;
        }
        let token = region.address.token;
        let buffer = pair.passive.deregister(token).unwrap();
        assert_eq!(buffer.as_ptr(), place, "the buffer itself, not a copy");
        assert_eq!(
            pair.passive.deregister(token),
            Err(DeregisterError::Unknown)
        );
        let expected = BytesMut::from(&buffer[..]);
        attempt_fails(&mut pair, Attempt::Write, region.address, SIZE).await;
        assert!(buffer == expected, "{access:?}");
    }
}

/// Some applications have one large allocation and register parts of it.
//= SMBD-3.1.4.4-03 test
pub async fn parts_of_a_larger_buffer_come_back(fabric: &Fabric) {
    let mut pair = fabric.pair().await;
    let mut rest = pattern(3 * SIZE, 14);
    for access in [READ, WRITE, READ | WRITE] {
        let region = pair.passive.register(rest.split_to(SIZE), access);
        if access.contains(READ) {
            pair.active.read(region.address, SIZE);
            pair.settle().await;
        }
        let token = region.address.token;
        let part = pair
            .until("the part", |_, p| p.deregister(token).ok())
            .await;
        assert_eq!(part.len(), SIZE);
    }
}

//= SEC-02 test
pub async fn another_connection(fabric: &Fabric) {
    for attempt in BOTH {
        let (mut one, mut other) = (fabric.pair().await, fabric.pair().await);
        let region = one.passive.register(pattern(SIZE, 10), READ | WRITE);
        attempt_fails(&mut other, attempt, region.address, 16).await;
        let buffer = one.passive.deregister(region.address.token).unwrap();
        assert!(buffer == pattern(SIZE, 10));
        assert_eq!(one.passive.ended, None);
    }
}

//= RDMAP-12 test
//= RDMAP-13 test
pub async fn send_with_invalidate(fabric: &Fabric) {
    for access in [READ | INVALIDATE, WRITE | INVALIDATE, INVALIDATE] {
        let mut pair = fabric.pair().await;
        if !pair.active.limits().send_with_invalidate {
            return;
        }
        let region = pair.passive.register(pattern(SIZE, 11), access);
        let token = region.address.token;
        pair.announce().await;
        pair.active
            .send_parts(b"done ", Bytes::from("with it"), Some(token));
        let message = pair.until("a message", |_, p| p.messages.pop_front()).await;
        assert_eq!(message.bytes, "done with it");
        if pair.capabilities.invalidation_is_told {
            assert_eq!(message.invalidated, Some(token));
        }
        attempt_fails(&mut pair, Attempt::Write, region.address, 16).await;
        let buffer = pair.passive.deregister(token).unwrap();
        assert!(buffer == pattern(SIZE, 11), "{access:?}");
    }
}

//= RDMAP-13 test
pub async fn invalidation_that_is_not_allowed(fabric: &Fabric) {
    let mut pair = fabric.pair().await;
    let region = pair.passive.register(pattern(SIZE, 12), READ | WRITE);
    invalidation_fails(&mut pair, region.address.token).await;
    expect_back(&mut pair, region);
}

//= RDMAP-13 test
pub async fn invalidation_of_an_unknown_token(fabric: &Fabric) {
    let mut pair = fabric.pair().await;
    let region = pair
        .passive
        .register(pattern(SIZE, 12), READ | WRITE | INVALIDATE);
    pair.announce().await;
    invalidation_fails(&mut pair, Token(region.address.token.0 ^ 1)).await;
    expect_back(&mut pair, region);
}

async fn invalidation_fails(pair: &mut Pair, token: Token) {
    if !pair.active.limits().send_with_invalidate || !pair.capabilities.rights_are_checked {
        println!("skipped: invalidation is not supported, or is not restricted");
        return;
    }
    pair.active.send_parts(b"", Bytes::from("x"), Some(token));
    pair.ended_by_fault_of_active().await;
    assert!(pair.passive.messages.is_empty());
}

fn expect_back(pair: &mut Pair, region: Registration) {
    let buffer = pair.passive.deregister(region.address.token).unwrap();
    assert!(buffer == pattern(SIZE, 12));
}

pub async fn buffers_come_back_after_the_end(fabric: &Fabric) {
    let mut pair = fabric.pair().await;
    let regions: Vec<_> = [READ, WRITE, READ | WRITE]
        .map(|access| pair.active.register(pattern(SIZE, 13), access))
        .into();
    pair.passive.disconnect(Teardown::Graceful);
    pair.ended().await;
    for region in regions {
        let buffer = pair.active.deregister(region.address.token).unwrap();
        assert!(buffer == pattern(SIZE, 13));
    }
}
