//! The end of a connection, and the results of its futures and messages.

use std::{
    io,
    net::{SocketAddr, UdpSocket},
    sync::Arc,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use smbdirect::{
    Access, Config, Connection, ConnectionError, Listener, Roce, RoceConfig, SendError, Settings,
    TrySendError,
    engine::Expired,
    rdma::{
        iwarp::{Iwarp, IwarpConfig},
        loopback::Loopback,
        memory::RegisterFault,
        provider::Provider,
    },
};
use smbdirect_test::within;
use tokio::io::AsyncWriteExt;

use super::{Pair, bytes, few_credits, pair, pair_with, send_until_refused};

over_every_provider! {
    closing_sends_what_was_submitted_and_both_ends_learn_why
    dropping_the_last_handle_closes
    a_close_ends_the_wait_for_credits
    every_future_ends_when_the_runtime_stops
    a_closed_listener_frees_its_address_and_closes_what_was_not_accepted
    nothing_is_registered_after_the_end
    one_type_of_error_is_enough_for_an_echo
}

async fn a_closed_listener_frees_its_address_and_closes_what_was_not_accepted(
    provider: Arc<dyn Provider>,
) {
    let address: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let bind = |address| Listener::bind(&*provider, address, Config::default());
    let mut listener = bind(address).await.unwrap();
    let address = listener.local_addr();
    let connect = || Connection::connect(&*provider, address, Config::default());
    let (accepted, server) = within(async { tokio::join!(connect(), listener.accept()) }).await;
    let (accepted, _server) = (accepted.unwrap(), server.unwrap());
    let waiting = within(connect()).await.unwrap();
    within(listener.close()).await;
    within(waiting.closed()).await;
    assert_eq!(accepted.error(), None);
    let _again = bind(address).await.unwrap();
}

/// `Duration::MAX` stands for "never" in every setting.
#[tokio::test]
async fn every_timeout_may_be_the_longest_duration() {
    let never = Duration::MAX;
    let probe = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut roce = RoceConfig::default();
    roce.udp_port = probe.local_addr().unwrap().port();
    roce.peer_udp_port = roce.udp_port;
    drop(probe);
    (
        roce.connect_timeout,
        roce.accept_timeout,
        roce.close_timeout,
    ) = (never, never, never);
    let mut iwarp = IwarpConfig::default();
    (
        iwarp.connect_timeout,
        iwarp.accept_timeout,
        iwarp.close_timeout,
    ) = (never, never, never);
    let mut settings = Settings::default();
    settings.keepalive_interval = never;
    settings.keepalive_response_timeout = never;
    settings.active_negotiation_timeout = never;
    settings.passive_negotiation_timeout = never;
    settings.credit_grant_timeout = Some(never);
    let providers: [Arc<dyn Provider>; 2] =
        [Arc::new(Roce::new(roce)), Arc::new(Iwarp::new(iwarp))];
    for provider in providers {
        let Pair { client, server, .. } =
            pair_with(provider, settings.clone(), settings.clone()).await;
        drop(client.send("last words").unwrap());
        within(client.close()).await.unwrap();
        assert_eq!(within(server.recv()).await.unwrap().len(), 10);
        assert_eq!(within(server.closed()).await, ConnectionError::Closed);
    }
}

async fn nothing_is_registered_after_the_end(provider: Arc<dyn Provider>) {
    let Pair { client, server, .. } = pair(provider).await;
    let register = |connection: &Connection| {
        let buffer = BytesMut::zeroed(9);
        let error = connection
            .register(buffer, Access::REMOTE_READ)
            .unwrap_err();
        assert_eq!(
            (error.reason, error.buffer.len()),
            (RegisterFault::Connection, 9)
        );
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::NotConnected);
        let all = connection.register_all([BytesMut::zeroed(9)], Access::REMOTE_READ);
        assert_eq!(all.unwrap_err().reason, RegisterFault::Connection);
    };
    server.start_close();
    register(&server);
    within(client.closed()).await;
    register(&client);
    assert_eq!(client.stats().regions, 0);
}

async fn one_type_of_error_is_enough_for_an_echo(provider: Arc<dyn Provider>) {
    async fn echo(connection: Connection, add: usize) -> Result<(), ConnectionError> {
        loop {
            let message = connection.recv().await?.into_bytes();
            connection
                .send([&message[..], &vec![0; add]].concat())?
                .await?;
        }
    }
    let Pair { client, server, .. } = pair(provider).await;
    let longest = server.negotiated().max_fragmented_send_size as usize;
    let echoing = tokio::spawn(echo(server.clone(), longest));
    drop(client.send("x").unwrap());
    let error = within(echoing).await.unwrap().unwrap_err();
    let max = longest as u32;
    assert_eq!(
        error,
        ConnectionError::TooLong {
            length: longest + 1,
            max
        }
    );
    assert_eq!(server.error(), None, "the connection goes on");
    let echoing = tokio::spawn(echo(server, 0));
    drop(client.send("x").unwrap());
    assert_eq!(within(client.recv()).await.unwrap().into_bytes(), "x");
    within(client.close()).await.unwrap();
    assert_eq!(within(echoing).await.unwrap(), Err(ConnectionError::Closed));
}

async fn closing_sends_what_was_submitted_and_both_ends_learn_why(provider: Arc<dyn Provider>) {
    let Pair { client, server, .. } = pair(provider).await;
    for _ in 0..100 {
        drop(client.send(bytes(100_000)).unwrap());
    }
    let closing = tokio::spawn({
        let client = client.clone();
        async move { client.close().await }
    });
    for _ in 0..100 {
        assert_eq!(within(server.recv()).await.unwrap().len(), 100_000);
    }
    assert_eq!(
        within(server.recv()).await.unwrap_err(),
        ConnectionError::Closed
    );
    within(closing).await.unwrap().unwrap();
    assert_eq!(within(client.closed()).await, ConnectionError::ClosedHere);
    assert!(matches!(
        client.send("x"),
        Err(SendError::Connection(
            ConnectionError::Closed | ConnectionError::ClosedHere
        ))
    ));
    for stats in [client.stats(), server.stats()] {
        assert_eq!(
            (
                stats.receives_outstanding,
                stats.work_outstanding,
                stats.regions
            ),
            (0, 0, 0)
        );
    }
}

async fn dropping_the_last_handle_closes(provider: Arc<dyn Provider>) {
    let Pair { client, server, .. } = pair(provider).await;
    drop(client.send("last words").unwrap());
    drop(client);
    assert_eq!(
        within(server.recv()).await.unwrap().into_bytes(),
        "last words"
    );
    assert_eq!(within(server.closed()).await, ConnectionError::Closed);
}

async fn every_future_ends_when_the_runtime_stops(provider: Arc<dyn Provider>) {
    let address: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let mut listener = Listener::bind(&*provider, address, Config::default())
        .await
        .unwrap();
    let address = listener.local_addr();
    let (client, gone) = tokio::sync::oneshot::channel();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let connection = Connection::connect(&*provider, address, Config::default()).await;
            client.send(connection.unwrap()).unwrap();
            stopped.await.unwrap();
        });
    });
    let server = listener.accept().await.unwrap();
    let client = gone.await.unwrap();
    let region = server
        .register(BytesMut::zeroed(64), Access::all())
        .unwrap();
    let ours = client
        .register(BytesMut::zeroed(64), Access::all())
        .unwrap();
    let sendings: Vec<_> = (0..1000)
        .map(|_| client.send(bytes(8000)).unwrap())
        .collect();
    let mut begun = Vec::new();
    for _ in 0..4 {
        begun.push(client.read(&[region.descriptor()], 0, BytesMut::zeroed(64)));
    }
    let receiving = tokio::spawn({
        let client = client.clone();
        async move { client.recv().await.map(|_| ()) }
    });
    tokio::task::yield_now().await;
    stop.send(()).unwrap();
    tokio::task::spawn_blocking(|| thread.join().unwrap())
        .await
        .unwrap();

    // The connection continues without its runtime, or it has ended together with the runtime.
    let closing = within(client.close()).await;
    let stopped = client.error().unwrap();
    match &stopped {
        ConnectionError::ClosedHere => assert_eq!(closing, Ok(())),
        ConnectionError::Provider(_) => assert_eq!(closing, Err(stopped.clone())),
        other => panic!("{other}"),
    }
    assert_eq!(within(receiving).await.unwrap(), Err(stopped.clone()));
    for sending in sendings {
        let _ = within(sending).await;
    }
    for reading in begun {
        let buffer = within(reading)
            .await
            .map_or_else(|error| error.buffer, Some);
        assert_eq!(buffer.unwrap().len(), 64);
    }
    let reading = client.read(&[region.descriptor()], 0, BytesMut::zeroed(64));
    let refused = within(reading).await.unwrap_err();
    assert_eq!(refused.fault, stopped.clone().into());
    assert_eq!(
        refused.buffer.unwrap().len(),
        64,
        "the read was not submitted"
    );
    assert_eq!(client.send("x").unwrap_err(), stopped.clone().into());
    assert_eq!(within(client.keepalive()).await, Err(stopped.clone()));
    assert_eq!(within(client.ready()).await, Err(stopped.clone()));
    assert_eq!(within(client.close()).await, closing);
    assert_eq!(within(client.closed()).await, stopped);
    assert_eq!(within(ours.deregister()).await.unwrap().len(), 64);
    let stats = client.stats();
    assert_eq!(
        (
            stats.receives_outstanding,
            stats.work_outstanding,
            stats.regions
        ),
        (0, 0, 0)
    );
    within(server.closed()).await;
}

//= SMBD-3.1.5.1-13b test
#[tokio::test]
async fn unsent_messages_return_the_reason() {
    let mut few = few_credits();
    few.credit_grant_timeout = Some(Duration::from_millis(50));
    let provider = Arc::new(Loopback::new());
    let Pair { client, server, .. } = pair_with(provider, few.clone(), few).await;
    // The peer does not take the messages, so its credits run out.
    let sendings: Vec<_> = (0..20).map(|_| client.send(bytes(8000)).unwrap()).collect();
    let mut results = Vec::new();
    for sending in sendings {
        results.push(within(sending).await);
    }
    let starved = ConnectionError::TimedOut(Expired::SendCreditGrant);
    assert_eq!(results[0], Ok(()));
    assert_eq!(results[19], Err(starved.clone()));
    assert!(results.is_sorted_by_key(Result::is_err));
    assert_eq!(within(client.closed()).await, starved);
    drop(server);
}

#[tokio::test]
async fn timeouts_of_duration_max_never_fire() {
    let mut patient = few_credits();
    patient.keepalive_interval = Duration::MAX;
    patient.keepalive_response_timeout = Duration::MAX;
    patient.active_negotiation_timeout = Duration::MAX;
    patient.passive_negotiation_timeout = Duration::MAX;
    patient.credit_grant_timeout = Some(Duration::MAX);
    let provider = Arc::new(Loopback::new());
    let Pair { client, server, .. } = pair_with(provider, patient.clone(), patient).await;
    for _ in 0..20 {
        drop(client.send(bytes(8000)).unwrap());
    }
    for _ in 0..20 {
        assert_eq!(within(server.recv()).await.unwrap().len(), 8000);
    }
    within(client.keepalive()).await.unwrap();
    within(client.close()).await.unwrap();
}

#[tokio::test]
async fn the_last_handle_may_be_dropped_outside_the_runtime() {
    let provider = Arc::new(Iwarp::new(IwarpConfig::default()));
    let Pair { client, server, .. } = pair(provider).await;
    for _ in 0..3 {
        drop(client.send("last words").unwrap());
    }
    // The driver task, which would send the other messages, does not run meanwhile.
    let drop_it = move || {
        std::thread::sleep(Duration::from_millis(1));
        drop(client);
    };
    std::thread::spawn(drop_it).join().unwrap();
    for _ in 0..3 {
        let message = within(server.recv()).await.unwrap();
        assert_eq!(message.into_bytes(), "last words");
    }
    assert_eq!(within(server.closed()).await, ConnectionError::Closed);
}

/// The destructor of a payload panics, on any thread on which the library may drop it.
#[tokio::test]
async fn a_payload_that_panics_ends_only_its_connection() {
    let provider: Arc<dyn Provider> = Arc::new(Iwarp::new(IwarpConfig::default()));
    struct Panics(Vec<u8>);
    impl AsRef<[u8]> for Panics {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    impl Drop for Panics {
        fn drop(&mut self) {
            panic!("the test panics here")
        }
    }
    let Pair { client, server, .. } = pair(provider.clone()).await;
    let other = pair(provider).await;
    let receiving = tokio::spawn({
        let client = client.clone();
        async move { client.recv().await.map(|_| ()) }
    });
    tokio::task::yield_now().await;
    let payload = Bytes::from_owner(Panics(vec![7; 10_000]));
    let send = || client.send(payload).map(drop);
    // The panic may unwind through this call.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(send));
    let end = within(receiving).await.unwrap().unwrap_err();
    assert!(matches!(end, ConnectionError::Provider(_)), "{end}");
    assert_eq!(within(client.closed()).await, end);
    assert_eq!(client.send("x").unwrap_err(), end.into());
    drop(client);
    within(server.closed()).await;
    other.client.keepalive().await.unwrap();
}

/// While a close waits for the peer, nothing can be sent any more, and nobody waits for it.
async fn a_close_ends_the_wait_for_credits(provider: Arc<dyn Provider>) {
    let mut few = few_credits();
    few.credit_grant_timeout = None;
    let Pair { client, server, .. } = pair_with(provider, few.clone(), few).await;
    // The peer takes nothing, so the close waits for its credits.
    send_until_refused(&client).await;
    drop(client.send("the last words").unwrap());
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.ready().await }
    });
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    client.start_close();
    let soon = tokio::time::timeout(Duration::from_secs(2), waiting);
    let waited = soon.await.expect("the close wakes it").unwrap();
    assert_eq!(waited, Err(ConnectionError::ClosedHere));
    assert_eq!(client.error(), None, "the close waits");
    let sent = client.try_send("later").map(drop);
    let closed = matches!(
        sent,
        Err(TrySendError::Send(SendError::Connection(
            ConnectionError::ClosedHere
        )))
    );
    assert!(closed, "{sent:?}");
    let mut stream = client.into_stream();
    let writing = tokio::time::timeout(Duration::from_secs(2), stream.write(b"\0\0"));
    let error = writing.await.expect("it does not wait").unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotConnected, "{error}");
    drop(server);
}
