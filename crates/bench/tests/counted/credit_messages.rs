//! The number of credit messages that a stream in one direction takes.

use std::sync::Arc;

use smbdirect::rdma::{
    iwarp::{Iwarp, IwarpConfig},
    loopback::Loopback,
    provider::Provider,
};

use crate::units::{
    Unit,
    connection::{Connections, Traffic},
    engine::{Engines, Step},
};

/// Fewest segments for each message that only grants credits, for a receiver that may grant 255.
const MIN_SEGMENTS_PER_CREDIT_MESSAGE: u64 = 32;

#[track_caller]
fn assert_few(segments: u64, credit_messages: u64) {
    assert!(segments > 10_000, "the stream is too short");
    assert!(
        credit_messages > 0,
        "255 credits do not last for {segments} segments"
    );
    assert!(
        credit_messages * MIN_SEGMENTS_PER_CREDIT_MESSAGE <= segments,
        "{credit_messages} credit messages for {segments} segments"
    );
}

/// The engine is polled for work after each segment, not only after a round.
#[test]
fn engine_grants_credits_in_batches() {
    let _alone = crate::alone();
    let mut engines = Engines::new(64 << 10, 1364, Step::Receive);
    for _ in 0..200 {
        engines.feed();
        for message in std::mem::take(&mut engines.receiver.incoming) {
            engines.receiver.incoming.push(message);
            engines.receive(|_| {});
        }
    }
    let segments = engines.sender.engine.statistics().segments_sent;
    let credit_messages = engines.receiver.engine.statistics().empty_sent;
    assert_few(segments, credit_messages);
}

#[test]
fn connections_grant_credits_in_batches() {
    let _alone = crate::alone();
    let providers: [Arc<dyn Provider>; 2] = [
        Arc::new(Loopback::new()),
        Arc::new(Iwarp::new(IwarpConfig::default())),
    ];
    for provider in providers {
        for (length, window) in [(64, 256), (1340, 256), (64 << 10, 16)] {
            let mut connections = Connections::new(
                [provider.clone(), provider.clone()],
                1364,
                Traffic::Send(length),
            );
            connections.stream(20_000_usize.div_ceil(length.div_ceil(1340)), window);
            let segments = connections.client.stats().segments_sent;
            assert_few(segments, connections.server.stats().empty_sent);
        }
    }
}
