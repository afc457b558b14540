//! Bugs of disconnecting and of shutdown, tested with the whole stack over iWARP on 127.0.0.1 and in one
//! process.

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::BytesMut;
use smbdirect::{
    Config, Connection, ConnectionError, Settings,
    rdma::{
        iwarp::mpa::{FrameKind, StartupFrame},
        loopback::Loopback,
        provider::Provider,
    },
};
use tokio::task::{JoinSet, yield_now};

use super::ends::{Ends, assert_nothing_outstanding, bytes, iwarp, listen, region};
use crate::peer::{Peer, within};

/// The way in which a connection with work in flight ends.
#[derive(Clone, Copy, Debug)]
enum End {
    Close,
    Drop,
    BothClose,
    BothDrop,
}

/// Starts work of every kind in both directions, takes no messages, yields `turns` times, and ends
/// the connection. Asserts that all work is returned once, in time, and that every call reports the
/// reason.
async fn end_with_work_in_flight(provider: &Arc<dyn Provider>, end: End, turns: usize) {
    let mut impatient = Settings::default();
    impatient.keepalive_interval = Duration::from_secs(1);
    impatient.keepalive_response_timeout = Duration::from_millis(500);
    impatient.credit_grant_timeout = Some(Duration::from_millis(300));
    let Ends { client, server, .. } = Ends::new(provider, impatient).await;
    let mut sendings = Vec::new();
    let mut readings = Vec::new();
    let mut writings = Vec::new();
    let mut regions = Vec::new();
    const SIZE: usize = 2 << 20;
    for (one, other) in [(&client, &server), (&server, &client)] {
        let memory = region(other, &vec![1; SIZE]);
        for _ in 0..300 {
            // On a busy machine a timer may have expired first.
            sendings.extend(one.send(bytes(8000, 8)));
        }
        for _ in 0..8 {
            let into = BytesMut::zeroed(SIZE);
            readings.push(one.read(&[memory.descriptor()], 0, into));
            writings.push(one.write(&[memory.descriptor()], 0, bytes(SIZE, 9)));
        }
        regions.push(memory);
    }
    for _ in 0..turns {
        yield_now().await;
    }
    let ended = [client.clone(), server.clone()];
    match end {
        End::Close => {
            let _ = within(client.close()).await;
        }
        End::BothClose => {
            let _ = within(async { tokio::join!(client.close(), server.close()) }).await;
        }
        End::Drop | End::BothDrop => {}
    }
    // Regions and futures keep the state of the connection alive, but not the connection open.
    let [one, other] = ended;
    drop(client);
    drop(server);
    let (one, other) = match end {
        End::Drop => {
            drop(one);
            (None, Some(other))
        }
        End::BothDrop => (None, None),
        _ => (Some(one), Some(other)),
    };
    for connection in [&one, &other].into_iter().flatten() {
        within(connection.closed()).await;
    }
    for sending in sendings {
        let _ = within(sending).await;
    }
    for reading in readings {
        let buffer = within(reading)
            .await
            .map_or_else(|error| error.buffer, Some);
        assert_eq!(buffer.expect("the buffer comes back").len(), SIZE);
    }
    for writing in writings {
        let _ = within(writing).await;
    }
    for region in regions {
        assert_eq!(within(region.deregister()).await.unwrap().len(), SIZE);
    }
    for connection in [one, other].into_iter().flatten() {
        assert_nothing_outstanding(&connection);
    }
}

/// A disconnect waited for ever for work that was never drained. Expected: with hundreds of posted
/// receives and other work in flight, the connection ends in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bug_17_disconnect_with_work_outstanding() {
    for provider in [iwarp(), Arc::new(Loopback::new())] {
        let mut games = JoinSet::new();
        for end in [End::Close, End::Drop, End::BothClose, End::BothDrop] {
            for turns in [0, 3, 30] {
                let provider = provider.clone();
                games.spawn(async move { end_with_work_in_flight(&provider, end, turns).await });
            }
        }
        while let Some(game) = within(games.join_next()).await {
            game.unwrap();
        }
    }
}

/// Polls `future` at most `polls` times, and returns its output if it is ready.
async fn polled<T>(future: impl Future<Output = T>, polls: usize) -> Option<T> {
    let mut future = pin!(future);
    for _ in 0..polls {
        let context = &mut Context::from_waker(Waker::noop());
        if let Poll::Ready(done) = future.as_mut().poll(context) {
            return Some(done);
        }
        yield_now().await;
    }
    None
}

/// A shutdown hung or crashed in some states of a connection. Expected: an initiator can be dropped
/// at each step of connecting and negotiating, an acceptor or an idle, established or closing
/// connection can be dropped at any time, and the listener accepts the next connection.
#[tokio::test]
async fn bug_18_shutdown_in_any_state() {
    for provider in [iwarp(), Arc::new(Loopback::new())] {
        let mut listener = listen(&provider, Settings::default()).await;
        let address = listener.local_addr();
        let mut given_up = 0;
        for polls in 0..60 {
            let connecting = Connection::connect(&*provider, address, Config::default());
            let client = polled(connecting, polls).await;
            given_up += usize::from(client.is_none());
            let Some(client) = client else { continue };
            let client = client.unwrap();
            match polls % 4 {
                0 => drop(client),
                1 => assert!(
                    polled(client.close(), polls % 7)
                        .await
                        .is_none_or(|end| end.is_ok())
                ),
                2 => assert!(polled(client.recv(), polls % 7).await.is_none()),
                _ => drop(polled(client.keepalive(), polls % 7).await),
            }
        }
        assert!(given_up > 1, "{given_up} of 60 were given up");
        let client = within(async {
            let connecting = Connection::connect(&*provider, address, Config::default());
            connecting.await.unwrap()
        })
        .await;
        drop(client.send("the last").unwrap());
        // Connections accepted before have ended or are ending, and are skipped.
        loop {
            let server = within(listener.accept()).await.unwrap();
            match within(server.recv()).await {
                Ok(message) => {
                    assert_eq!(message.into_bytes(), "the last");
                    within(server.close()).await.unwrap();
                    break;
                }
                Err(error) => {
                    assert!(matches!(
                        error,
                        ConnectionError::Closed
                            | ConnectionError::ClosedHere
                            | ConnectionError::Provider(_)
                    ));
                    within(server.closed()).await;
                    assert_nothing_outstanding(&server);
                }
            }
        }
        within(client.closed()).await;
        assert_nothing_outstanding(&client);
    }
}

/// Expected: a listener accepts the next connection after peers that vanish after each byte of
/// their first messages.
#[tokio::test]
async fn bug_18_peers_that_vanish_in_any_state() {
    let provider = iwarp();
    let mut listener = listen(&provider, Settings::default()).await;
    let address = listener.local_addr();
    let mut request = Vec::new();
    StartupFrame::new(FrameKind::Request, 1).encode(&mut request);
    // There are more peers than may negotiate concurrently, so each has to make room for the next.
    for _ in 0..7 {
        for said in 0..request.len() {
            let mut peer = Peer::silent(address).await;
            peer.say(&request[..said]).await;
        }
        for said in 0.. {
            let mut peer = Peer::connected(address).await;
            let request = peer.negotiate_request();
            if said == request.len() {
                break;
            }
            peer.say(&request[..said]).await;
        }
    }
    for _ in 0..3 {
        drop(Peer::negotiated(address).await);
        let server = within(listener.accept()).await.unwrap();
        within(server.closed()).await;
        assert_nothing_outstanding(&server);
    }
    let _peer = Peer::negotiated(address).await;
    assert_eq!(within(listener.accept()).await.unwrap().error(), None);
}
