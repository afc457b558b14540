//! RDMA Reads and Writes that succeed.

use bytes::{Bytes, BytesMut};
use smbdirect_rdma::work::{Access, RemoteAddress, Token};

use super::fabric::{Fabric, past, pattern};

const SIZES: [usize; 6] = [0, 1, 4095, 65_536, (1 << 20) + 1, 8 << 20];

//= RDMAP-11 test
//= SMBD-2.1-02 test
pub async fn write_then_send(fabric: &Fabric) {
    let mut pair = fabric.pair().await;
    pair.passive.receives(20, 16);
    for round in 0..20 {
        let region = pair
            .passive
            .register(BytesMut::zeroed(50_000), Access::REMOTE_WRITE);
        let data = pattern(50_000, round);
        pair.active.write(data.clone(), region.address);
        pair.active.send("written");
        pair.until("a message", |_, p| p.messages.pop_front()).await;
        // The data is there immediately, although the completion of the Write may follow later.
        let buffer = pair.passive.deregister(region.address.token).unwrap();
        assert!(buffer == data, "round {round}");
    }
}

//= SMBD-2.1-02 test
//= SMBD-3.1.4.3-01 test
pub async fn writes_of_many_sizes(fabric: &Fabric) {
    let mut pair = fabric.pair().await;
    pair.passive.receives(SIZES.len(), 16);
    for size in SIZES {
        let region = pair
            .passive
            .register(BytesMut::zeroed(size), Access::REMOTE_WRITE);
        let data = pattern(size, size as u64);
        pair.active.write(data.clone(), region.address);
        pair.active.send("written");
        pair.until("a message", |_, p| p.messages.pop_front()).await;
        pair.settle().await;
        let buffer = pair.passive.deregister(region.address.token).unwrap();
        assert!(buffer == data, "{size} bytes");
    }
}

//= SMBD-2.1-02 test
//= SMBD-3.1.4.3-01 test
//= RDMAP-16 test
pub async fn reads_of_many_sizes(fabric: &Fabric) {
    let mut pair = fabric.pair().await;
    for size in SIZES {
        for access in [
            Access::REMOTE_READ,
            Access::REMOTE_READ | Access::REMOTE_WRITE,
        ] {
            let data = pattern(size, size as u64);
            let region = pair.passive.register(data.clone(), access);
            pair.active.read(region.address, size);
            let buffer = pair.until("a Read", |a, _| a.reads.pop_front()).await;
            assert!(buffer == data, "{size} bytes");
            // The peer may hold the buffer until the network has taken the data.
            let token = region.address.token;
            let back = pair
                .until("the buffer", |_, p| p.deregister(token).ok())
                .await;
            assert!(back == data, "{size} bytes");
        }
    }
}

//= DDP-13 test
//= RDMAP-10 test
pub async fn empty_transfers_need_no_token(fabric: &Fabric) {
    let mut pair = fabric.pair().await;
    let nowhere = RemoteAddress {
        token: Token(1),
        offset: 0,
    };
    pair.active.write(Bytes::new(), nowhere);
    pair.active.read(nowhere, 0);
    pair.active.send("still here");
    pair.until("a message", |_, p| p.messages.pop_front()).await;
    pair.settle().await;
    assert_eq!(pair.active.reads.len(), 1);
    assert_eq!(pair.active.ended, None);
}

//= RDMAP-05 test
//= RDMAP-06 test
//= SMBD-3.1.4.6-05 test
pub async fn reads_beyond_ord_complete_in_order(fabric: &Fabric) {
    let mut pair = fabric.pair().await;
    let ord = pair.active.limits().max_outbound_reads as usize;
    let count = (ord * 3 + 5).min(pair.active.room().sends);
    assert!(count > ord);
    let size = 3000;
    let data = pattern(count * size, 9).freeze();
    let region = pair
        .passive
        .register(BytesMut::from(&data[..]), Access::REMOTE_READ);
    for i in 0..count {
        // Even Reads are long and odd Reads are short, so a wrong implementation would reorder
        // them.
        let length = if i % 2 == 0 { size } else { 1 };
        pair.active.read(past(region, (i * size) as u64), length);
    }
    for i in 0..count {
        let buffer = pair.until("a Read", |a, _| a.reads.pop_front()).await;
        let length = if i % 2 == 0 { size } else { 1 };
        assert!(
            buffer == data.slice(i * size..i * size + length),
            "Read {i}"
        );
    }
}

pub async fn a_write_lands_where_it_should(fabric: &Fabric) {
    let mut pair = fabric.pair().await;
    let before = pattern(10_000, 1);
    let region = pair.passive.register(before.clone(), Access::REMOTE_WRITE);
    let mut expected = before;
    for (start, length) in [(0, 1), (9_999, 1), (1_001, 5_000), (7_000, 3)] {
        let data = pattern(length, start as u64 + 50);
        expected[start..start + length].copy_from_slice(&data);
        pair.active.write(data, past(region, start as u64));
    }
    pair.active.send("written");
    pair.until("a message", |_, p| p.messages.pop_front()).await;
    let buffer = pair.passive.deregister(region.address.token).unwrap();
    assert!(buffer == expected);
}

pub async fn reads_and_writes_both_ways(fabric: &Fabric) {
    let mut pair = fabric.pair().await;
    let size = 300_000;
    let both = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let ours = pair.active.register(pattern(size, 1), both);
    let theirs = pair.passive.register(pattern(size, 2), both);
    let half = size / 2;
    // Each end reads the first half of the other region and writes the second.
    pair.active.read(theirs.address, half);
    pair.passive.read(ours.address, half);
    pair.active
        .write(pattern(half, 3), past(theirs, half as u64));
    pair.passive
        .write(pattern(half, 4), past(ours, half as u64));
    pair.active.send("written");
    pair.passive.send("written");
    pair.until("a message each", |a, p| {
        (a.messages.len() == 1 && p.messages.len() == 1).then_some(())
    })
    .await;
    pair.settle().await;
    assert!(pair.active.reads[0] == pattern(size, 2)[..half]);
    assert!(pair.passive.reads[0] == pattern(size, 1)[..half]);
    let ours = pair.active.deregister(ours.address.token).unwrap();
    let theirs = pair.passive.deregister(theirs.address.token).unwrap();
    assert!(theirs[half..] == pattern(half, 3));
    assert!(ours[half..] == pattern(half, 4));
}
