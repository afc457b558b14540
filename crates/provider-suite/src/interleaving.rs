//! Random work in both directions, from a seed, with every byte compared.

use bytes::BytesMut;
use fastrand::Rng;
use smbdirect_rdma::{
    memory::Registration,
    work::{Access, Disconnect, Teardown},
};

use super::fabric::{Capabilities, End, Fabric, Pair, past, pattern};

/// The size of each region, in bytes. Each end has one to read from and one to write to.
const REGION: usize = 1 << 20;
/// The size of each receive, in bytes.
const RECEIVE: usize = 20_000;
/// The number of steps in a run.
const STEPS: usize = 400;

//= SMBD-2.1-01 test
//= SMBD-2.1-02 test
pub async fn random_work_both_ways(fabric: &Fabric) {
    for seed in 1..=8 {
        // The seed is printed if the test fails.
        println!("seed={seed}");
        run(fabric, seed).await;
    }
}

async fn run(fabric: &Fabric, seed: u64) {
    let mut random = Rng::with_seed(seed);
    let mut pair = fabric.pair().await;
    let mut models = [
        Model::new(&mut pair.active, 1),
        Model::new(&mut pair.passive, 2),
    ];
    for _ in 0..STEPS {
        let side = random.usize(..2);
        let (here, there) = match side {
            0 => (&mut pair.active, &mut pair.passive),
            _ => (&mut pair.passive, &mut pair.active),
        };
        let [one, other] = &mut models;
        let (ours, theirs) = if side == 0 {
            (one, other)
        } else {
            (other, one)
        };
        step(
            &mut random,
            fabric.capabilities,
            (here, ours),
            (there, theirs),
        );
        if random.usize(..4) == 0 {
            pair.turn().await;
        }
    }
    finish(pair, models).await;
}

/// The expected state of one end: the memory it owns, and its effects on the other end.
struct Model {
    source: Registration,
    sink: Registration,
    source_bytes: BytesMut,
    sink_bytes: BytesMut,
    /// The position of the next Write of the peer. Writes never overlap, because their order is not
    /// guaranteed.
    sink_used: usize,
    /// The receives that no Send of the peer has taken yet.
    receives: usize,
    sent: Vec<BytesMut>,
    read: Vec<BytesMut>,
}

impl Model {
    fn new(end: &mut End, seed: u64) -> Self {
        let source_bytes = pattern(REGION, seed);
        let sink_bytes = pattern(REGION, seed + 100);
        end.receive(RECEIVE as u32);
        Self {
            source: end.register(source_bytes.clone(), Access::REMOTE_READ),
            sink: end.register(sink_bytes.clone(), Access::REMOTE_WRITE),
            source_bytes,
            sink_bytes,
            sink_used: 0,
            receives: 2,
            sent: Vec::new(),
            read: Vec::new(),
        }
    }
}

fn step(
    random: &mut Rng,
    capabilities: Capabilities,
    here: (&mut End, &mut Model),
    there: (&mut End, &mut Model),
) {
    let ((end, ours), (_, theirs)) = (here, there);
    // Lengths are often zero, often short and sometimes long.
    let length = match random.usize(..4) {
        0 => random.usize(..3),
        1 => random.usize(..100),
        2 => random.usize(..2_000),
        _ => random.usize(..RECEIVE),
    };
    let choice = random.usize(..4);
    if choice == 0 && end.room().receives > 0 {
        end.receive(RECEIVE as u32);
        ours.receives += 1;
    }
    if choice == 0 || end.room().sends == 0 {
        return;
    }
    match choice {
        1 if theirs.receives > 0 => {
            // The first receive of each end is shorter than the others.
            let most = if ours.sent.is_empty() { 512 } else { RECEIVE };
            let message = pattern(length.min(most), random.u64(..));
            let cut = random.usize(..33).min(message.len());
            let payload = message.clone().freeze().slice(cut..);
            end.send_parts(&message[..cut], payload, None);
            ours.sent.push(message);
            theirs.receives -= 1;
        }
        2 if theirs.sink_used + length <= REGION => {
            let (start, data) = (theirs.sink_used, pattern(length, random.u64(..)));
            theirs.sink_bytes[start..start + length].copy_from_slice(&data);
            theirs.sink_used += length;
            end.write(data, past(theirs.sink, start as u64));
        }
        3 => {
            let length = length.max(capabilities.least_read);
            let start = random.usize(..REGION - length);
            end.read(past(theirs.source, start as u64), length);
            let expected = &theirs.source_bytes[start..start + length];
            ours.read.push(BytesMut::from(expected));
        }
        _ => {}
    }
}

async fn finish(mut pair: Pair, models: [Model; 2]) {
    pair.settle().await;
    let [a, p] = &models;
    let (to_active, to_passive) = (p.sent.len(), a.sent.len());
    pair.until("all messages", |a, p| {
        (a.messages.len() == to_active && p.messages.len() == to_passive).then_some(())
    })
    .await;
    pair.active.disconnect(Teardown::Graceful);
    assert_eq!(pair.ended().await, (Disconnect::Local, Disconnect::Remote));
    compare(&mut pair.active, a, p);
    compare(&mut pair.passive, p, a);
}

/// Compares the messages of the peer, and the Reads and the memory of this end.
fn compare(end: &mut End, ours: &Model, theirs: &Model) {
    for (i, (message, expected)) in end.messages.iter().zip(&theirs.sent).enumerate() {
        assert!(message.bytes == expected, "message {i}");
    }
    assert_eq!(end.reads.len(), ours.read.len());
    for (i, (read, expected)) in end.reads.iter().zip(&ours.read).enumerate() {
        assert!(read == expected, "Read {i}");
    }
    let sink = end.deregister(ours.sink.address.token).unwrap();
    assert!(sink == ours.sink_bytes, "memory written by the peer");
    let source = end.deregister(ours.source.address.token).unwrap();
    assert!(source == ours.source_bytes, "memory read by the peer");
}
