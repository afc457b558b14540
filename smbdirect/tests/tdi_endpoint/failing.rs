//! Handlers that panic, handles that are dropped at any moment, links that fail: every request is
//! completed once, and nobody else suffers.

use std::{sync::Arc, time::Duration};

use bytes::BytesMut;
use smbdirect::{
    rdma::provider::Provider,
    tdi::{
        Cause, DisconnectFlags, EndpointState, ReceiveFlags, SendFlags, Status, TransportSettings,
    },
};

use crate::ends::{
    Ends, How, Witness, credits, over_providers, pattern, settings, starving_settings, within,
};

const PLAIN: SendFlags = SendFlags::empty();

over_providers! {
    a_handler_that_panics_costs_its_connection;
    every_request_completes_once_when_the_link_fails;
    handles_can_be_dropped_at_every_moment;
}

//= TDI-EVENT-01 test
async fn a_handler_that_panics_costs_its_connection(provider: Arc<dyn Provider>) {
    // The others of the same address go on.
    let ends = Ends::new(provider.clone()).await;
    for chained in [false, true] {
        let witness = match chained {
            true => Witness::chained(false),
            false => Witness::new(How::Take),
        };
        let listening = ends.transport.open_endpoint(());
        let connecting = ends.transport.open_endpoint(());
        listening.associate(&ends.remote).unwrap();
        connecting.associate(&ends.local).unwrap();
        let listen = listening.listen(None);
        within(connecting.connect(ends.remote.local_address(), None))
            .await
            .unwrap();
        within(listen).await.unwrap();
        ends.remote.set_client(Some(witness.clone()));
        let receiving = ends
            .there
            .receive(BytesMut::zeroed(9), ReceiveFlags::empty());
        witness.answer(How::Panic);
        drop(connecting.send("boom", PLAIN));
        assert_eq!(
            within(listening.disconnected()).await,
            Some(Cause::HandlerPanicked)
        );
        assert!(within(connecting.disconnected()).await.is_some());
        // Even the handler that is told of it panics; the endpoint is of use again all the same.
        within(async {
            while witness.lines().len() < 2 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        assert_eq!(
            witness.lines()[1],
            "disconnect: a handler of the client's panicked"
        );
        assert_eq!(listening.state(), EndpointState::Associated);
        let lost = within(listening.receive(BytesMut::zeroed(9), ReceiveFlags::empty())).await;
        assert_eq!(lost.status, Status::INVALID_CONNECTION);
        witness.answer(How::Take);
        let listen = listening.listen(None);
        within(connecting.connect(ends.remote.local_address(), None))
            .await
            .unwrap();
        within(listen).await.unwrap();
        drop(connecting.send("again", PLAIN));
        witness.has_taken(5).await;
        drop(ends.here.send("unhurt", PLAIN));
        assert_eq!(&within(receiving).await.into_data().unwrap()[..], b"unhurt");
    }
    // The handler of another event.
    let mut small = starving_settings();
    small.send.max_tsdu = 200_000;
    small.send.high_water = 400_000;
    small.send.low_water = 100_000;
    let ends = Ends::with(provider, small).await;
    let witness = Witness::new(How::Panic);
    ends.local.set_client(Some(witness.clone()));
    let data = pattern(200_000, 0);
    while ends.here.try_send(data.clone(), PLAIN).is_ok() {}
    let _ = within(
        ends.there
            .receive(BytesMut::zeroed(1 << 20), ReceiveFlags::empty()),
    )
    .await;
    drop(
        ends.there
            .receive(BytesMut::zeroed(1 << 20), ReceiveFlags::empty()),
    );
    assert_eq!(
        within(ends.here.disconnected()).await,
        Some(Cause::HandlerPanicked)
    );
    assert!(witness.lines()[0].starts_with("send possible"));
}

/// Sends of all kinds, in both directions, and receives.
struct Traffic {
    sends: Vec<smbdirect::tdi::Sending>,
    receives: Vec<smbdirect::tdi::Receiving>,
}

fn traffic(ends: &Ends, seed: u64) -> Traffic {
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut sends, mut receives) = (Vec::new(), Vec::new());
    for _ in 0..60 {
        let endpoint = match random.bool() {
            true => &ends.here,
            false => &ends.there,
        };
        if random.u8(..4) == 0 {
            let buffer = BytesMut::zeroed(random.usize(1..30_000));
            receives.push(endpoint.receive(buffer, ReceiveFlags::empty()));
            continue;
        }
        let flags = SendFlags::from_bits_retain(random.u32(..16) << 5);
        sends.push(endpoint.send(pattern(random.usize(1..20_000), 1), flags));
    }
    Traffic { sends, receives }
}

//= TDI-SEND-26 test
async fn every_request_completes_once_when_the_link_fails(provider: Arc<dyn Provider>) {
    for seed in 0..20 {
        let mut random = fastrand::Rng::with_seed(seed);
        let ends = Ends::with(provider.clone(), settings(credits(6))).await;
        let Traffic { sends, receives } = traffic(&ends, seed);
        for _ in 0..random.u32(..200) {
            tokio::task::yield_now().await;
        }
        // The connection goes away under one of the two.
        let victim = match random.bool() {
            true => &ends.here,
            false => &ends.there,
        };
        victim.connection().unwrap().abort();
        for sending in sends {
            let done = within(sending).await;
            assert!(
                done.status.is_success() || done.information == 0,
                "{done:?}"
            );
            assert!(!done.buffer.is_empty());
        }
        for receiving in receives {
            let done = within(receiving).await;
            assert!(done.information <= done.buffer.len(), "{done:?}");
        }
        for endpoint in [&ends.here, &ends.there] {
            assert!(within(endpoint.disconnected()).await.is_some());
            assert_eq!(endpoint.state(), EndpointState::Associated);
        }
        ends.connect().await;
    }
}

/// One of all the handles goes away at a random moment of a busy life, then all the others.
//= TDI-CLOSE-01 test
async fn handles_can_be_dropped_at_every_moment(provider: Arc<dyn Provider>) {
    for seed in 0..40 {
        let mut random = fastrand::Rng::with_seed(seed);
        let ends = Ends::apart(provider.clone(), settings(credits(6))).await;
        let listen = match random.bool() {
            true => ends.there.listen(None),
            false => ends.there.listen_and_query(None),
        };
        let connect = ends.here.connect(ends.remote.local_address(), None);
        let chained = Witness::chained(true);
        ends.remote.set_client(Some(chained.clone()));
        let victim = random.u8(..6);
        let turns = random.u32(..150);
        let Ends {
            transport,
            here,
            there,
            local,
            remote,
        } = ends;
        let mut handles: [Option<Box<dyn std::any::Any>>; 6] = [
            Some(Box::new(transport.clone())),
            Some(Box::new(here.clone())),
            Some(Box::new(there.clone())),
            Some(Box::new(local)),
            Some(Box::new(remote)),
            Some(Box::new((connect, listen))),
        ];
        let (near, far) = (here, there);
        let mut sends = Vec::new();
        for turn in 0..turns {
            if turn % 10 == 0 {
                sends.push(near.send(pattern(5000, 1), PLAIN));
                sends.push(far.send(pattern(5000, 1), SendFlags::EXPEDITED));
                if far.state() == EndpointState::Offered {
                    drop(far.accept());
                }
            }
            tokio::task::yield_now().await;
        }
        let receiving = far.receive(BytesMut::zeroed(10), ReceiveFlags::empty());
        // The endpoint that is to go has no other handle then.
        let mut rest = vec![near, far];
        if victim == 1 || victim == 2 {
            rest.remove(usize::from(victim) - 1);
        }
        handles[usize::from(victim)] = None;
        for _ in 0..random.u32(..50) {
            tokio::task::yield_now().await;
        }
        drop(handles);
        drop(rest);
        for sending in sends {
            within(sending).await;
        }
        within(receiving).await;
        drop(chained.kept());
        assert_eq!(transport.statistics().open_connections, 0);
    }
}

/// The runtime stops with everything pending, and handles are dropped outside of it.
#[test]
fn handles_outlive_their_runtime() {
    for provider in [crate::ends::loopback(), crate::ends::iwarp()] {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let (ends, sending, receiving, release) = runtime.block_on(async {
            let ends = Ends::with(provider, TransportSettings::default()).await;
            let sending = ends.here.send(pattern(1 << 20, 1), PLAIN);
            let receiving = ends
                .there
                .receive(BytesMut::zeroed(9), ReceiveFlags::empty());
            let release = ends.here.disconnect(DisconnectFlags::RELEASE, None);
            (ends, sending, receiving, release)
        });
        drop(runtime);
        drop(ends);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            assert_eq!(within(sending).await.status, Status::CANCELLED);
            assert_eq!(within(receiving).await.status, Status::CANCELLED);
            assert!(within(release).await.is_err());
            tokio::time::sleep(Duration::from_millis(1)).await;
        });
    }
}
