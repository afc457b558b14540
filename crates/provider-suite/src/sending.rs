//! Sends and receives.

use std::time::Duration;

use bytes::Bytes;
use smbdirect_rdma::{work::Disconnect, work::Teardown};

use super::fabric::{End, FIRST_RECEIVE, Fabric, Pair, pattern};

//= SMBD-2.1-01 test
pub async fn sends_arrive_in_order(fabric: &Fabric) {
    let mut pair = fabric.pair().await;
    let sizes: Vec<usize> = (0..200).map(|i| (i * 37) % 500).collect();
    pair.passive.receives(sizes.len() - 1, 512);
    for (i, &size) in sizes.iter().enumerate() {
        pair.active.send(pattern(size, i as u64));
        if i % 7 == 0 {
            pair.turn().await;
        }
    }
    for (i, &size) in sizes.iter().enumerate() {
        let message = pair.until("a message", |_, p| p.messages.pop_front()).await;
        assert_eq!(message.bytes, pattern(size, i as u64), "message {i}");
        assert_eq!(message.invalidated, None);
    }
    pair.settle().await;
    assert_eq!(pair.active.ended, None);
}

pub async fn both_ways_at_once(fabric: &Fabric) {
    let mut pair = fabric.pair().await;
    pair.active.receives(99, 2000);
    pair.passive.receives(99, 2000);
    for i in 0..100 {
        pair.active.send(pattern(500, i));
        pair.passive.send(pattern(400, 1000 + i));
    }
    pair.until("all messages", |a, p| {
        (a.messages.len() == 100 && p.messages.len() == 100).then_some(())
    })
    .await;
    for i in 0..100 {
        let at = |end: &End| end.messages[i as usize].bytes.clone();
        assert_eq!(at(&pair.passive), pattern(500, i));
        assert_eq!(at(&pair.active), pattern(400, 1000 + i));
    }
}

/// Each end is a task of its own, which sleeps until the other wakes it.
pub async fn two_tasks_wake_each_other(fabric: &Fabric) {
    const ROUNDS: u32 = 2000;
    let Pair {
        mut active,
        mut passive,
        ..
    } = fabric.pair().await;
    let echo = tokio::spawn(async move {
        for _ in 0..ROUNDS {
            let message = passive
                .until("a ping", |end| end.messages.pop_front())
                .await;
            passive.receive(64);
            passive.send(message.bytes);
        }
        passive.ended().await
    });
    for round in 0..ROUNDS {
        active.send(round.to_le_bytes().to_vec());
        let message = active.until("a pong", |end| end.messages.pop_front()).await;
        assert_eq!(message.bytes, &round.to_le_bytes()[..]);
        active.receive(64);
    }
    active.disconnect(Teardown::Graceful);
    assert_eq!(active.ended().await, Disconnect::Local);
    assert_eq!(echo.await.unwrap(), Disconnect::Remote);
}

/// Busy-polling finds messages, also after a pause, and the end, without a runtime.
pub async fn busy_polling_finds_messages_and_the_end(fabric: &Fabric) {
    let Pair {
        mut active,
        mut passive,
        ..
    } = fabric.pair().await;
    for i in 0..20 {
        let message = pattern(i * 25, i as u64);
        active.send(message.clone());
        active.flush();
        let arrived = passive.busy_poll_until(|end| end.messages.pop_front());
        assert_eq!(arrived.bytes, message);
        passive.receive(FIRST_RECEIVE);
    }
    let later = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(5));
        active.send("later");
        active.flush();
        active
    });
    let arrived = passive.busy_poll_until(|end| end.messages.pop_front());
    assert_eq!(arrived.bytes, "later");
    drop(later.join());
    passive.busy_poll_until(|end| end.ended.clone());
}

//= RDMAP-25 test
pub async fn empty_send(fabric: &Fabric) {
    let mut pair = fabric.pair().await;
    pair.passive.receive(0);
    pair.active.send("");
    pair.active.send("");
    for _ in 0..2 {
        let message = pair.until("a message", |_, p| p.messages.pop_front()).await;
        assert_eq!(message.bytes, "");
    }
    assert_eq!(pair.passive.receives_outstanding(), 0);
    assert_eq!(pair.passive.ended, None);
}

pub async fn header_and_large_payload(fabric: &Fabric) {
    let mut pair = fabric.pair().await;
    let (header, payload) = (pattern(32, 1), pattern(100_000, 2).freeze());
    pair.active.send_parts(&header, Bytes::new(), None);
    pair.passive.receive(100_032);
    pair.active.send_parts(&header, payload.clone(), None);
    pair.passive.receive(100_000);
    pair.active.send_parts(&[], payload.clone(), None);
    for expected in [
        [&header[..], &[]].concat(),
        [&header[..], &payload].concat(),
        payload.to_vec(),
    ] {
        let message = pair.until("a message", |_, p| p.messages.pop_front()).await;
        assert!(message.bytes == expected, "{} bytes", message.bytes.len());
    }
}

pub async fn send_fills_its_receive_to_the_byte(fabric: &Fabric) {
    let mut pair = fabric.pair().await;
    pair.active.send(pattern(FIRST_RECEIVE as usize, 1));
    let message = pair.until("a message", |_, p| p.messages.pop_front()).await;
    assert_eq!(message.bytes, pattern(FIRST_RECEIVE as usize, 1));
}

//= DDP-07 test
pub async fn no_receive_posted(fabric: &Fabric) {
    let mut pair = fabric.pair().await;
    pair.active.send("takes the only receive");
    pair.active.send("finds none");
    pair.ended_by_fault_of_active().await;
    assert_eq!(pair.passive.messages.len(), 1);
}

//= DDP-08 test
pub async fn longer_than_the_receive(fabric: &Fabric) {
    let mut pair = fabric.pair().await;
    pair.passive.receive(10_000);
    pair.active.send(pattern(FIRST_RECEIVE as usize + 1, 1));
    pair.ended_by_fault_of_active().await;
    assert_eq!(pair.passive.messages.len(), 0);
    assert_eq!(pair.passive.flushed.len(), 2);
}

/// Each receive keeps its full length after shorter messages.
pub async fn a_short_message_does_not_keep_later_ones_short(fabric: &Fabric) {
    let mut pair = fabric.pair().await;
    pair.passive.receives(3, 100);
    for size in [1, 100, 0, 100] {
        pair.active.send(pattern(size, 3));
    }
    for size in [1, 100, 0, 100] {
        let message = pair.until("a message", |_, p| p.messages.pop_front()).await;
        assert_eq!(message.bytes, pattern(size, 3));
    }
}

pub async fn nothing_leaves_before_flush(fabric: &Fabric) {
    let mut pair = fabric.pair().await;
    pair.active.send("later");
    for _ in 0..10 {
        assert!(!pair.passive.take_now().await);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(pair.passive.messages.is_empty());
    let message = pair.until("a message", |_, p| p.messages.pop_front()).await;
    assert_eq!(message.bytes, "later");
}

pub async fn room_shrinks_and_recovers(fabric: &Fabric) {
    let mut pair = fabric.pair().await;
    let limits = pair.active.limits();
    let empty = pair.active.room();
    assert!(empty.sends > 0 && empty.sends <= limits.max_send_queue);
    assert!(empty.receives > 0 && empty.receives < limits.max_receive_queue);
    for round in 0..3 {
        let receives = empty.sends.min(pair.passive.room().receives);
        // In the first round the passive end still has its first receive.
        pair.passive.receives(receives, 64);
        for i in 1..=receives {
            pair.active.send("x");
            assert_eq!(pair.active.room().sends, empty.sends - i, "round {round}");
            assert_eq!(pair.active.room().receives, empty.receives);
        }
        pair.settle().await;
        let count =
            |_: &mut _, p: &mut End| (p.messages.len() == receives).then(|| p.messages.clear());
        pair.until("all messages", count).await;
        assert_eq!(pair.active.room(), empty, "round {round}");
    }
    let room = pair.active.room().receives;
    pair.active.receives(room, 1);
    assert_eq!(pair.active.room().receives, 0);
}

pub async fn usage_counts_what_moves(fabric: &Fabric) {
    const MESSAGE: usize = 400;
    if !fabric.capabilities.counts_bytes {
        return;
    }
    let mut pair = fabric.pair().await;
    let (mut sent, mut received) = (pair.active.usage().sent, pair.passive.usage().received);
    for i in 0..10 {
        pair.active.send(pattern(MESSAGE, i));
        pair.until("a message", |_, p| p.messages.pop_front()).await;
        pair.passive.receive(FIRST_RECEIVE);
        let now = (pair.active.usage().sent, pair.passive.usage().received);
        assert!(now.0 - sent >= MESSAGE as u64, "message {i} is sent");
        assert!(now.1 - received >= MESSAGE as u64, "message {i} arrives");
        (sent, received) = now;
    }
}

/// Each flush may send a few bytes more than were sent before, as the driver of a connection does it beside others.
pub async fn limited_flushes_send_everything(fabric: &Fabric) {
    const MESSAGE: usize = 40_000;
    const COUNT: usize = 20;
    let mut pair = fabric.pair().await;
    pair.active.send("takes the first receive");
    pair.until("a message", |_, p| p.messages.pop_front()).await;
    pair.passive.receives(COUNT, MESSAGE as u32);
    pair.settle().await;
    let before = pair.active.usage().sent;
    pair.active.turn_bytes = Some(0);
    for i in 0..COUNT {
        pair.active.send(pattern(MESSAGE, i as u64));
    }
    for _ in 0..10 {
        pair.turn().await;
    }
    if fabric.capabilities.limits_flushes {
        assert_eq!(pair.active.usage().sent, before, "the limit is reached");
    }
    pair.active.turn_bytes = Some(MESSAGE as u64 / 4);
    for i in 0..COUNT {
        let message = pair.until("a message", |_, p| p.messages.pop_front()).await;
        assert!(message.bytes == pattern(MESSAGE, i as u64), "message {i}");
    }
}
