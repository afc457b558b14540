//! The end of connections, at which no completion is lost or duplicated.

use std::time::Duration;

use bytes::BytesMut;
use smbdirect_rdma::{
    memory::Registration,
    work::{Access, Disconnect, Teardown},
};
use tokio::{runtime::Builder, task::spawn_blocking};

use super::fabric::{End, Fabric, Pair, past, pattern};

/// The size of the region that [`keep_busy`] reads and writes, in bytes.
const SIZE: usize = 1 << 20;

//= RDMAP-22 test
pub async fn graceful_delivers_everything_first(fabric: &Fabric) {
    let mut pair = fabric.pair().await;
    let region = pair
        .passive
        .register(BytesMut::zeroed(SIZE), Access::REMOTE_WRITE);
    pair.passive.receives(50, 20_000);
    pair.active.send("first");
    pair.active.write(pattern(SIZE, 1), region.address);
    for i in 1..50 {
        pair.active.send(pattern(20_000, i));
    }
    pair.active.disconnect(Teardown::Graceful);
    let (active, passive) = pair.ended().await;
    assert_eq!(active, Disconnect::Local);
    assert_eq!(passive, Disconnect::Remote);
    let messages = &pair.passive.messages;
    assert_eq!(messages.len(), 50);
    assert_eq!(messages[0].bytes, "first");
    for (i, message) in messages.iter().enumerate().skip(1) {
        assert!(message.bytes == pattern(20_000, i as u64), "message {i}");
    }
    // Only the last receive of the peer and the only receive of this end are left.
    assert_eq!(pair.passive.flushed.len(), 1);
    assert_eq!(pair.active.flushed.len(), 1);
    let buffer = pair.passive.deregister(region.address.token).unwrap();
    assert!(buffer == pattern(SIZE, 1));
}

//= RDMAP-22 test
pub async fn graceful_from_the_passive_side(fabric: &Fabric) {
    let mut pair = fabric.pair().await;
    pair.passive.send("so long");
    pair.passive.disconnect(Teardown::Graceful);
    let (active, passive) = pair.ended().await;
    assert_eq!(passive, Disconnect::Local);
    assert_eq!(active, Disconnect::Remote);
    assert_eq!(pair.active.messages[0].bytes, "so long");
}

pub async fn both_at_once(fabric: &Fabric) {
    let mut pair = fabric.pair().await;
    pair.active.disconnect(Teardown::Graceful);
    pair.passive.disconnect(Teardown::Graceful);
    let (active, passive) = pair.ended().await;
    // Either end may have been first, and the disconnect was graceful.
    let fine = |how: &Disconnect| matches!(how, Disconnect::Local | Disconnect::Remote);
    assert!(fine(&active) && fine(&passive), "{active:?} {passive:?}");
}

pub async fn abort_is_seen(fabric: &Fabric) {
    let mut pair = fabric.pair().await;
    pair.active.disconnect(Teardown::Abort);
    let (active, passive) = pair.ended().await;
    assert_eq!(active, Disconnect::Local);
    fabric.expect_vanished(&passive);
}

pub async fn dropping_is_seen(fabric: &Fabric) {
    let Pair {
        active,
        mut passive,
        ..
    } = fabric.pair().await;
    let drop_later = async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        drop(active);
    };
    // The waiting end must be woken.
    let (how, ()) = tokio::join!(passive.ended(), drop_later);
    fabric.expect_vanished(&how);
    let Pair {
        mut active,
        passive,
        ..
    } = fabric.pair().await;
    drop(passive);
    fabric.expect_vanished(&active.ended().await);
}

//= RDMAP-21 test
pub async fn everything_completes_once(fabric: &Fabric) {
    for how in [Teardown::Graceful, Teardown::Abort] {
        for turns in [0, 1, 3, 10] {
            let mut pair = fabric.pair().await;
            keep_both_busy(&mut pair);
            for _ in 0..turns {
                pair.turn().await;
            }
            pair.active.disconnect(how);
            let (active, _) = pair.ended().await;
            assert_eq!(active, Disconnect::Local, "{how:?} after {turns} turns");
            expect_all_completed(&pair);
        }
    }
}

//= RDMAP-21 test
pub async fn everything_completes_once_when_the_peer_ends_it(fabric: &Fabric) {
    for turns in [0, 1, 3, 10] {
        // The peer vanishes.
        let mut pair = fabric.pair().await;
        keep_both_busy(&mut pair);
        for _ in 0..turns {
            pair.turn().await;
        }
        drop(pair.passive);
        fabric.expect_vanished(&pair.active.ended().await);
        assert_eq!(pair.active.completed, pair.active.posted);
        // The peer or this end breaks a rule while work is outstanding.
        let mut pair = fabric.pair().await;
        let region = keep_both_busy(&mut pair);
        for _ in 0..turns {
            pair.turn().await;
        }
        pair.active.write("x", past(region, SIZE as u64));
        pair.ended_by_fault_of_active().await;
        expect_all_completed(&pair);
    }
}

//= RDMAP-21 test
pub async fn read_buffers_come_back(fabric: &Fabric) {
    let mut pair = fabric.pair().await;
    let ids: Vec<_> = {
        let region = pair.passive.register(pattern(SIZE, 2), Access::REMOTE_READ);
        let lengths = 1..=20;
        lengths
            .map(|i| pair.active.read(region.address, i * 1000))
            .collect()
    };
    pair.active.disconnect(Teardown::Abort);
    pair.ended().await;
    let flushed = pair.active.flushed.iter();
    let buffers: Vec<_> = flushed
        .filter_map(|(id, buffer)| Some((*id, buffer.as_ref()?.len())))
        .collect();
    let expected: Vec<_> = ids.into_iter().zip((1..=20).map(|i| i * 1000)).collect();
    assert_eq!(buffers, expected);
}

//= RDMAP-21 test
pub async fn posting_after_the_end(fabric: &Fabric) {
    for how in [Teardown::Abort, Teardown::Graceful] {
        let mut pair = fabric.pair().await;
        let region = pair.passive.register(pattern(SIZE, 3), Access::all());
        pair.active.disconnect(how);
        pair.active.receive(10);
        pair.active.send("too late");
        pair.active.write("too late", region.address);
        let read = pair.active.read(region.address, 77);
        pair.ended().await;
        // The four requests above are flushed, and the receive that was posted before connecting.
        let flushed = &pair.active.flushed;
        assert_eq!(flushed.len(), 5, "{how:?}");
        let buffer = flushed.iter().find(|(id, _)| *id == read);
        assert_eq!(buffer.unwrap().1.as_ref().unwrap().len(), 77);
        assert!(pair.passive.messages.is_empty());
        let buffer = pair.passive.deregister(region.address.token).unwrap();
        assert!(buffer == pattern(SIZE, 3));
    }
}

pub async fn ending_twice(fabric: &Fabric) {
    let mut pair = fabric.pair().await;
    pair.active.disconnect(Teardown::Graceful);
    pair.active.disconnect(Teardown::Graceful);
    pair.active.disconnect(Teardown::Abort);
    pair.active.disconnect(Teardown::Graceful);
    let (active, _) = pair.ended().await;
    assert_eq!(active, Disconnect::Local);
    pair.active.disconnect(Teardown::Abort);
    pair.passive.disconnect(Teardown::Graceful);
    // Any completion fails the test.
    pair.turn().await;
}

pub async fn silence_after_the_end(fabric: &Fabric) {
    let mut pair = fabric.pair().await;
    pair.active.disconnect(Teardown::Graceful);
    pair.ended().await;
    for _ in 0..3 {
        // Any completion fails the test.
        pair.turn().await;
        assert!(!pair.active.take_now().await);
    }
}

/// The runtime in which a connection was made ends, and the connection continues in another one.
pub async fn a_connection_outlives_its_runtime(fabric: &Fabric) {
    if !fabric.capabilities.changes_runtime {
        return;
    }
    let mut builder = Builder::new_multi_thread();
    let other = builder.worker_threads(1).enable_all().build().unwrap();
    let there = fabric.clone();
    let mut pair = other
        .spawn(async move { there.pair().await })
        .await
        .unwrap();
    assert!(pair.active.change_runtime() && pair.passive.change_runtime());
    spawn_blocking(|| drop(other)).await.unwrap();
    pair.active.send("there");
    pair.until("a message", |_, p| p.messages.pop_front()).await;
    pair.passive.send("and back");
    pair.until("an answer", |a, _| a.messages.pop_front()).await;
    pair.active.disconnect(Teardown::Graceful);
    assert_eq!(pair.ended().await, (Disconnect::Local, Disconnect::Remote));
}

/// Posts many work requests of each kind on both ends. Returns the region of the passive end.
fn keep_both_busy(pair: &mut Pair) -> Registration {
    let both = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let ours = pair.active.register(pattern(SIZE, 4), both);
    let theirs = pair.passive.register(pattern(SIZE, 5), both);
    keep_busy(&mut pair.active, theirs);
    keep_busy(&mut pair.passive, ours);
    theirs
}

fn keep_busy(end: &mut End, peer: Registration) {
    let count = (end.room().sends / 4).min(40);
    end.receives(2 * count, 4000);
    for i in 0..count {
        let at = past(peer, (i * 1000) as u64);
        // The receive that was posted before connecting is short.
        end.send(pattern(if i == 0 { 10 } else { 4000 }, i as u64));
        end.write(pattern(5000, i as u64), at);
        end.read(at, 6000);
    }
}

fn expect_all_completed(pair: &Pair) {
    for end in [&pair.active, &pair.passive] {
        assert_eq!(end.completed, end.posted);
    }
}
