//! Tests of handlers that panic, of handles that are dropped at any time, and of links and listeners
//! that fail: each request completes once, and other connections are not affected.

use std::{future::poll_fn, pin::Pin, sync::Arc, time::Duration};

use bytes::BytesMut;
use futures_core::Stream;
use smbdirect::rdma::{
    provider::{
        BoxFuture, ConnectRequest, Connected, IncomingRequest, Provider, ProviderAttributes,
        ProviderListener,
    },
    work::{ProviderError, ProviderErrorKind},
};
use smbdirect_tdi::{
    Cause, Client, DisconnectFlags, EndpointState, Event, ReceiveFlags, Receiving, SendFlags,
    Sending, Share, Status, TransportSettings,
};
use tokio::sync::Notify;

use super::ends::{
    Ends, How, Recorder, credits, iwarp, loopback, over_providers, pattern, settings, small_buffer,
    within,
};

const PLAIN: SendFlags = SendFlags::empty();

over_providers! {
    panicking_handler_ends_only_its_connection;
    every_request_completes_once_when_the_link_fails;
    handles_can_be_dropped_at_any_time;
}

//= TDI-EVENT-01 test
async fn panicking_handler_ends_only_its_connection(provider: Arc<dyn Provider>) {
    // The other connections of the same address are not affected.
    let ends = Ends::new(provider.clone()).await;
    for chained in [false, true] {
        let recorder = if chained {
            Recorder::chained(false)
        } else {
            Recorder::new(How::Take)
        };
        let listening = ends.transport.open_endpoint(());
        let connecting = ends.transport.open_endpoint(());
        listening.associate(&ends.remote).unwrap();
        connecting.associate(&ends.local).unwrap();
        let listen = listening.listen(None);
        within(connecting.connect(ends.remote.local_addr(), None))
            .await
            .unwrap();
        within(listen).await.unwrap();
        ends.remote.set_client(Some(recorder.clone()));
        let receiving = ends
            .there
            .receive(BytesMut::zeroed(9), ReceiveFlags::empty());
        recorder.answer(How::Panic);
        drop(connecting.send("boom", PLAIN));
        assert_eq!(
            within(listening.disconnected()).await,
            Some(Cause::HandlerPanicked)
        );
        assert!(within(connecting.disconnected()).await.is_some());
        // The disconnect handler panics too. The endpoint can be used again nevertheless.
        within(async {
            while recorder.lines().len() < 2 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        assert_eq!(
            recorder.lines()[1],
            "disconnect: a handler of the client panicked"
        );
        assert_eq!(listening.state(), EndpointState::Associated);
        let lost = within(listening.receive(BytesMut::zeroed(9), ReceiveFlags::empty())).await;
        assert_eq!(lost.status, Status::INVALID_CONNECTION);
        recorder.answer(How::Take);
        let listen = listening.listen(None);
        within(connecting.connect(ends.remote.local_addr(), None))
            .await
            .unwrap();
        within(listen).await.unwrap();
        drop(connecting.send("again", PLAIN));
        recorder.has_taken(5).await;
        drop(ends.here.send("unhurt", PLAIN));
        assert_eq!(&within(receiving).await.into_data().unwrap()[..], b"unhurt");
    }
    // The handler of another event panics.
    let ends = Ends::with(provider, small_buffer()).await;
    let recorder = Recorder::new(How::Panic);
    ends.local.set_client(Some(recorder.clone()));
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
    assert!(recorder.lines()[0].starts_with("send possible"));
}

/// Random sends in both directions, and receives.
struct Traffic {
    sends: Vec<Sending>,
    receives: Vec<Receiving>,
}

fn traffic(ends: &Ends, seed: u64) -> Traffic {
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut sends, mut receives) = (Vec::new(), Vec::new());
    for _ in 0..60 {
        let endpoint = if random.bool() {
            &ends.here
        } else {
            &ends.there
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
        // The connection of one of the two endpoints fails.
        let victim = if random.bool() {
            &ends.here
        } else {
            &ends.there
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

/// Drops one handle at a random time during traffic, then all others.
//= TDI-CLOSE-01 test
async fn handles_can_be_dropped_at_any_time(provider: Arc<dyn Provider>) {
    for seed in 0..40 {
        let mut random = fastrand::Rng::with_seed(seed);
        let ends = Ends::apart(provider.clone(), settings(credits(6))).await;
        let listen = if random.bool() {
            ends.there.listen(None)
        } else {
            ends.there.listen_and_query(None)
        };
        let connect = ends.here.connect(ends.remote.local_addr(), None);
        let chained = Recorder::chained(true);
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
        // No other handle of the chosen endpoint is left.
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

/// The runtime stops while requests are pending, and handles are dropped outside of a runtime.
#[test]
fn handles_outlive_their_runtime() {
    for provider in [loopback(), iwarp()] {
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

/// A client whose `takes_chained` panics.
struct Undecided;

impl Client for Undecided {
    fn takes_chained(&self) -> bool {
        panic!("the test panics here")
    }
}

//= TDI-EVENT-01 test
#[tokio::test]
async fn panic_in_takes_chained_ends_the_connection() {
    let ends = Ends::new(loopback()).await;
    ends.remote.set_client(Some(Arc::new(Undecided)));
    let receiving = ends
        .there
        .receive(BytesMut::zeroed(9), ReceiveFlags::empty());
    assert_eq!(
        within(ends.there.disconnected()).await,
        Some(Cause::HandlerPanicked)
    );
    assert_eq!(within(receiving).await.status, Status::CONNECTION_ABORTED);
    assert_eq!(ends.there.state(), EndpointState::Associated);
}

/// A provider whose listeners fail when the test notifies them.
#[derive(Debug)]
struct Failing {
    below: Arc<dyn Provider>,
    failure: Arc<Notify>,
}

#[derive(Debug)]
struct FailingListener {
    below: Box<dyn ProviderListener>,
    failure: Arc<Notify>,
}

impl Provider for Failing {
    fn attributes(&self) -> ProviderAttributes {
        self.below.attributes()
    }

    fn connect(&self, request: ConnectRequest) -> BoxFuture<'_, Result<Connected, ProviderError>> {
        self.below.connect(request)
    }

    fn listen(
        &self,
        address: std::net::SocketAddr,
    ) -> BoxFuture<'_, Result<Box<dyn ProviderListener>, ProviderError>> {
        Box::pin(async move {
            let below = self.below.listen(address).await?;
            let failure = self.failure.clone();
            Ok(Box::new(FailingListener { below, failure }) as Box<dyn ProviderListener>)
        })
    }
}

impl ProviderListener for FailingListener {
    fn local_addr(&self) -> std::net::SocketAddr {
        self.below.local_addr()
    }

    fn accept(&mut self) -> BoxFuture<'_, Result<IncomingRequest, ProviderError>> {
        Box::pin(async move {
            tokio::select! {
                incoming = self.below.accept() => incoming,
                () = self.failure.notified() => {
                    Err(ProviderError::new(ProviderErrorKind::Local, "the test made the listener fail"))
                }
            }
        })
    }
}

#[tokio::test]
async fn stream_of_events_has_the_failure_of_the_listener() {
    let failure = Arc::new(Notify::new());
    let provider = Failing {
        below: loopback(),
        failure: failure.clone(),
    };
    let ends = Ends::apart(Arc::new(provider), TransportSettings::default()).await;
    let mut events = ends.remote.events(1);
    failure.notify_one();
    let next = poll_fn(|context| Pin::new(&mut events).poll_next(context));
    let event = within(next).await.unwrap();
    assert!(
        matches!(event, Event::Error(Status::INSUFFICIENT_RESOURCES)),
        "{event:?}"
    );
}

#[tokio::test]
async fn listens_complete_when_their_listener_fails() {
    let failure = Arc::new(Notify::new());
    let provider = Failing {
        below: loopback(),
        failure: failure.clone(),
    };
    let ends = Ends::apart(Arc::new(provider), TransportSettings::default()).await;
    let recorder = Recorder::new(How::Take);
    ends.remote.set_client(Some(recorder.clone()));
    ends.connect().await;
    let spare = ends.transport.open_endpoint(());
    spare.associate(&ends.remote).unwrap();
    let listen = spare.listen(None);
    failure.notify_one();
    assert_eq!(within(listen).await, Err(Status::INSUFFICIENT_RESOURCES));
    assert_eq!(
        recorder.wait_for_lines(1).await,
        ["error STATUS_INSUFFICIENT_RESOURCES"]
    );
    assert_eq!(spare.state(), EndpointState::Associated);
    // Later listens fail immediately.
    let late = within(spare.listen(None)).await;
    assert_eq!(late, Err(Status::INVALID_ADDRESS));
    // The connection stays open, and the address can be opened again.
    drop(ends.here.send("goes on", PLAIN));
    recorder.has_taken(7).await;
    let address = ends.remote.local_addr();
    let again = ends.transport.open_address::<()>(address, Share::Exclusive);
    within(again).await.unwrap();
}
