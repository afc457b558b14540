//! Many connections with random work over a network that loses, repeats and reorders datagrams.

use super::*;

/// A connection, and the state of its two ends.
struct Pair {
    ids: [ConnectionId; 2],
    /// The messages that each end sent; `arrived` holds the messages that it received.
    sent: [Vec<Bytes>; 2],
    arrived: [Vec<Bytes>; 2],
    ended: [bool; 2],
    /// Whether only one end ends the connection, gracefully, so that nothing may be lost.
    is_graceful: bool,
    /// The end that disconnects first.
    first: usize,
}

fn run(seed: u64, loss: f64) {
    // The timeout is long, so that no work is lost even if a fifth of the datagrams is lost and several timeouts
    // follow each other.
    let settings = EndpointSettings {
        close_timeout: Duration::from_secs(30),
        ..EndpointSettings::default()
    };
    let mut network = Network::with(seed, settings);
    network.loss = loss;
    network.jitter = Duration::from_micros(network.rng.u64(..300));
    network.marking = network.rng.f64() / 2.0;
    let count = network.rng.usize(1..4);
    let mut pairs: Vec<Pair> = (0..count).map(|_| pair(&mut network)).collect();
    for pair in &mut pairs {
        for end in 0..2 {
            network.post(end, pair.ids[end], receive(40));
            for id in 0..network.rng.u64(..20) {
                let length = network.rng.usize(..20_000);
                let message: Bytes = (0..length).map(|_| network.rng.u8(..)).collect();
                pair.sent[end].push(message.clone());
                network.post(end, pair.ids[end], send(id + 1, message));
            }
        }
    }
    for _ in 0..network.rng.usize(..2000) {
        network.step();
        take(&mut network, &mut pairs);
    }
    for pair in &pairs {
        let now = network.now;
        let how = if pair.is_graceful {
            Teardown::Graceful
        } else {
            Teardown::Abort
        };
        network.ends[pair.first].disconnect(now, pair.ids[pair.first], how);
    }
    let mut steps = 0;
    while pairs.iter().any(|pair| pair.ended != [true; 2]) {
        steps += 1;
        assert!(network.step() && steps < 200_000, "seed {seed}: no end");
        take(&mut network, &mut pairs);
    }
    for pair in &pairs {
        for end in 0..2 {
            let (sent, arrived) = (&pair.sent[end], &pair.arrived[1 - end]);
            assert!(
                sent.starts_with(arrived),
                "seed {seed}: other messages arrived"
            );
            if pair.is_graceful && end == pair.first && loss < 0.3 {
                assert_eq!(
                    sent.len(),
                    arrived.len(),
                    "seed {seed}: a message is missing"
                );
            }
            let now = network.now;
            network.ends[end].release(now, pair.ids[end]);
        }
    }
    network.expect_unused();
}

fn pair(network: &mut Network) -> Pair {
    Pair {
        ids: network.connected(),
        sent: Default::default(),
        arrived: Default::default(),
        ended: [false; 2],
        is_graceful: network.rng.bool(),
        first: network.rng.usize(..2),
    }
}

fn take(network: &mut Network, pairs: &mut [Pair]) {
    for pair in pairs {
        for end in 0..2 {
            while let Some(completion) = network.ends[end].poll_completion(pair.ids[end]) {
                assert!(!pair.ended[end], "{completion:?} after the end");
                match completion {
                    Completion::Received { message, .. } => pair.arrived[end].push(message),
                    Completion::Disconnected(_) => pair.ended[end] = true,
                    _ => {}
                }
            }
        }
    }
}

#[test]
fn nothing_is_lost_repeated_or_left_behind() {
    let seeds = std::env::var("SMBDIRECT_SWARM_SEEDS").ok();
    let seeds = seeds.and_then(|seeds| seeds.parse().ok()).unwrap_or(60);
    for seed in 0..seeds {
        for loss in [0.0, 0.01, 0.1, 0.2] {
            run(seed, loss);
        }
    }
}
