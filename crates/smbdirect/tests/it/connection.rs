//! The handle, the driver and the listener, over every provider that needs no device.

use std::{
    future::poll_fn,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use smbdirect::{
    Access, Config, ConnectError, Connection, ConnectionError, IncomingListener, Listener,
    MemoryRegion, Message, MessageOptions, SendError, Settings, TransferFault, TrySendError,
    engine::{Expired, Initiator},
    rdma::{
        iwarp::{Iwarp, IwarpConfig},
        loopback::Loopback,
        memory::RegisterFault,
        provider::{AcceptRequest, Provider, ProviderListener},
        work::{Completion, Inline, ProviderErrorKind, WorkId, WorkRequest},
    },
    wire::{NegotiateResponse, Status},
};
use smbdirect_test::within;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

/// Both ends of one connection, and the listener that accepted it.
struct Pair {
    client: Connection,
    server: Connection,
    _listener: Listener,
}

async fn pair_with(provider: Arc<dyn Provider>, client: Settings, server: Settings) -> Pair {
    let address: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let server_config = Config::new(server).unwrap();
    let mut listener = Listener::bind(&*provider, address, server_config)
        .await
        .unwrap();
    let address = listener.local_address();
    let (client, server) = tokio::join!(
        Connection::connect(&*provider, address, Config::new(client).unwrap()),
        listener.accept()
    );
    Pair {
        client: client.unwrap(),
        server: server.unwrap(),
        _listener: listener,
    }
}

async fn pair(provider: Arc<dyn Provider>) -> Pair {
    pair_with(provider, Settings::default(), Settings::default()).await
}

/// Returns settings with which a few messages fill the receive buffer, and no credits are granted then.
fn few_credits() -> Settings {
    Settings {
        send_credit_target: 4,
        receive_credit_max: 4,
        receive_buffer: Some(6 * 8192),
        ..Settings::default()
    }
}

fn bytes(length: usize) -> Bytes {
    (0..length).map(|i| (i * 31 / 7) as u8).collect()
}

/// Runs each behaviour on one thread over the loopback provider, and on two threads over TCP.
macro_rules! over_every_provider {
    ($($behaviour:ident)*) => {
        mod loopback {
            $(
                #[tokio::test]
                async fn $behaviour() {
                    super::$behaviour(super::Arc::new(super::Loopback::new())).await;
                }
            )*
        }

        mod iwarp {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $behaviour() {
                    let provider = super::Iwarp::new(super::IwarpConfig::default());
                    super::$behaviour(super::Arc::new(provider)).await;
                }
            )*
        }
    };
}

over_every_provider! {
    messages_of_all_sizes_both_ways
    send_many_and_recv_many_act_as_single_calls
    busy_poll_receives_messages_and_can_time_out
    connect_returns_what_failed
    each_peer_is_refused_or_accepted_with_settings
    the_acceptor_may_speak_first
    smallest_credits_and_sizes_allow_traffic_both_ways
    reads_writes_and_invalidation
    several_buffers_are_one_range
    closing_sends_what_was_submitted_and_both_ends_learn_why
    dropping_the_last_handle_closes
    untaken_messages_stop_the_sender_and_memory_is_bounded
    keepalive_is_a_round_trip
    a_requested_response_is_due_until_the_peer_answers
    ready_resolves_on_credits_without_a_message
    every_future_ends_when_the_runtime_stops
    submitted_messages_leave_although_the_inbox_is_full
    wire_bytes_are_payloads_with_headers
    an_address_is_free_when_its_listener_is_dropped
}

/// What one end sends the other receives.
async fn wire_bytes_are_payloads_with_headers(provider: Arc<dyn Provider>) {
    let Pair { client, server, .. } = pair(provider).await;
    within(client.send(bytes(100_000)).unwrap()).await.unwrap();
    assert_eq!(within(server.recv()).await.unwrap().len(), 100_000);
    within(client.close()).await.unwrap();
    within(server.closed()).await;
    let (sent, received) = (client.stats(), server.stats());
    assert!(
        (100_000..120_000).contains(&sent.wire_bytes_sent),
        "{sent:?}"
    );
    assert_eq!(received.wire_bytes_received, sent.wire_bytes_sent);
    assert_eq!(received.wire_bytes_sent, sent.wire_bytes_received);
}

async fn messages_of_all_sizes_both_ways(provider: Arc<dyn Provider>) {
    let Pair { client, server, .. } = pair(provider).await;
    for length in [1, 2, 8111, 8112, 8113, 65_536, 131_072, 1 << 20] {
        let message = bytes(length);
        let sending = client.send(message.clone()).unwrap();
        assert_eq!(within(server.recv()).await.unwrap().into_bytes(), message);
        within(sending).await.unwrap();
        drop(server.send(message.clone()).unwrap());
        assert_eq!(within(client.recv()).await.unwrap().into_bytes(), message);
    }
    let too_long = client.send(bytes((1 << 20) + 1)).unwrap_err();
    assert_eq!(
        too_long,
        SendError::TooLarge {
            length: (1 << 20) + 1,
            max: 1 << 20
        }
    );
    drop(client.send("still up").unwrap());
    assert_eq!(
        within(server.recv()).await.unwrap().into_bytes(),
        "still up"
    );
}

async fn send_many_and_recv_many_act_as_single_calls(provider: Arc<dyn Provider>) {
    let Pair { client, server, .. } = pair(provider).await;
    let words = |from: u32| (from..).map(|i| Message::from(i.to_be_bytes().to_vec()));
    let mut out: Vec<_> = words(0).take(1000).collect();
    let many = client.send_many(&mut out).unwrap();
    assert!(out.is_empty() && out.capacity() >= 1000);
    let last = client.send(bytes(100_000)).unwrap();
    let mut received = Vec::new();
    while received.len() < 1000 {
        let left = 1000 - received.len();
        let before = received.len();
        let count = within(server.recv_many(&mut received, left.min(300)))
            .await
            .unwrap();
        assert!((1..=300).contains(&count));
        assert_eq!(received.len(), before + count);
    }
    for (i, message) in received.drain(..).enumerate() {
        assert_eq!(message.into_bytes(), (i as u32).to_be_bytes()[..]);
    }
    within(many).await.unwrap();
    within(last).await.unwrap();
    assert_eq!(within(server.recv()).await.unwrap().len(), 100_000);
    assert_eq!(within(server.recv_many(&mut received, 0)).await, Ok(0));

    // An empty list resolves immediately. A message that cannot be sent stays in the list, with all
    // after it.
    within(client.send_many(&mut out).unwrap()).await.unwrap();
    out.extend(words(0).take(2));
    out.push(bytes((1 << 20) + 1).into());
    out.extend(words(2).take(1));
    let error = client.send_many(&mut out).unwrap_err();
    assert!(matches!(error, SendError::TooLarge { .. }));
    assert_eq!((out.len(), out[0].len()), (2, (1 << 20) + 1));
    out.remove(0);
    within(client.send_many(&mut out).unwrap()).await.unwrap();
    while received.len() < 3 {
        within(server.recv_many(&mut received, 9)).await.unwrap();
    }
    let seen: Vec<_> = received
        .drain(..)
        .map(|message| message.into_bytes()[3])
        .collect();
    assert_eq!(seen, [0, 1, 2]);

    // Messages that arrived before the end are returned before its error.
    out.extend(words(0).take(2));
    drop(client.send_many(&mut out).unwrap());
    within(client.close()).await.unwrap();
    while received.len() < 2 {
        within(server.recv_many(&mut received, 9)).await.unwrap();
    }
    let ended = within(server.recv_many(&mut received, 9))
        .await
        .unwrap_err();
    assert_eq!(ended, ConnectionError::Closed(Initiator::Remote));
    out.extend(words(0).take(1));
    assert!(client.send_many(&mut out).is_err() && out.len() == 1);
}

async fn busy_poll_receives_messages_and_can_time_out(provider: Arc<dyn Provider>) {
    let Pair { client, server, .. } = pair(provider).await;
    for end in [&client, &server] {
        end.set_busy_poll(Duration::from_millis(1));
    }
    let echo = tokio::spawn(async move {
        while let Ok(message) = server.recv().await {
            drop(server.send(message).unwrap());
        }
    });
    for i in 0..200 {
        let message = bytes(i * 37 % 20_000 + 1);
        drop(client.send(message.clone()).unwrap());
        assert_eq!(within(client.recv()).await.unwrap().into_bytes(), message);
    }
    let nothing = timeout(Duration::from_millis(20), client.recv()).await;
    assert!(nothing.is_err(), "nothing was sent");
    client.set_busy_poll(Duration::ZERO);
    within(client.close()).await.unwrap();
    within(echo).await.unwrap();
}

/// The owner of an `IncomingListener` refuses a peer, drops one, and accepts one with its own settings.
async fn each_peer_is_refused_or_accepted_with_settings(provider: Arc<dyn Provider>) {
    let address = "127.0.0.1:0".parse().unwrap();
    let mut listener = IncomingListener::bind(&*provider, address).await.unwrap();
    let address = listener.local_address();
    for refuses in [true, false] {
        let deciding = async {
            let incoming = listener.accept().await.unwrap();
            assert!(incoming.remote_address().ip().is_loopback());
            if refuses {
                incoming.refuse();
            } else {
                drop(incoming);
            }
        };
        let connecting = Connection::connect(&*provider, address, Config::default());
        let (result, ()) = within(async { tokio::join!(connecting, deciding) }).await;
        let Err(ConnectError::Provider(error)) = result else {
            panic!("a refused peer got a connection");
        };
        assert_eq!(error.kind, ProviderErrorKind::Rejected);
    }
    for max_read_write_size in [1 << 20, 2 << 20] {
        let config = Config::new(Settings {
            max_read_write_size,
            ..Settings::default()
        });
        let accepting = async {
            let incoming = listener.accept().await.unwrap();
            incoming.accept(config.unwrap()).await
        };
        let connecting = Connection::connect(&*provider, address, Config::default());
        let (client, server) = within(async { tokio::join!(connecting, accepting) }).await;
        let (client, server) = (client.unwrap(), server.unwrap());
        assert_eq!(client.negotiated().max_read_write_size, max_read_write_size);
        within(client.send("message").unwrap()).await.unwrap();
        let message = within(server.recv()).await.unwrap();
        assert_eq!(message.into_bytes(), "message");
    }
}

/// Accepts an RDMA connection, refuses the negotiation, and waits for the peer to disconnect.
async fn refuse_negotiation(listener: &mut dyn ProviderListener, status: Status) {
    let incoming = listener.accept().await.unwrap();
    let accepting = (incoming.accept)(AcceptRequest {
        private_data: Bytes::new(),
        receive: WorkRequest::Receive {
            id: WorkId(0),
            length: 512,
            count: 1,
        },
        peer_serves_reads: None,
    });
    let mut queue_pair = accepting.await.unwrap().queue_pair;
    loop {
        let completion = poll_fn(|context| {
            queue_pair.flush(context, u64::MAX);
            queue_pair.poll_completion(context)
        });
        match completion.await {
            Completion::Received { .. } => {
                let mut refusal = Vec::new();
                NegotiateResponse::refusal(status).encode(&mut refusal);
                queue_pair.post(WorkRequest::Send {
                    id: WorkId(1),
                    header: Inline::new(),
                    payload: refusal.into(),
                    invalidate: None,
                });
            }
            Completion::Disconnected(_) => return,
            _ => {}
        }
    }
}

//= SMBD-3.1.4.1-08 test
//= SMBD-3.1.4.1-10 test
async fn connect_returns_what_failed(provider: Arc<dyn Provider>) {
    let address = "127.0.0.1:0".parse().unwrap();
    let mut listener = provider.listen(address).await.unwrap();
    let address = listener.local_address();
    let status = Status::INSUFFICIENT_RESOURCES;
    let connecting = Connection::connect(&*provider, address, Config::default());
    let refusing = refuse_negotiation(&mut *listener, status);
    let (result, ()) = within(async { tokio::join!(connecting, refusing) }).await;
    let refused = ConnectionError::Refused(status);
    assert_eq!(result.unwrap_err(), ConnectError::Negotiation(refused));
    // The port is free again, and no process listens on it.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let connecting = Connection::connect(&*provider, address, Config::default());
    let Err(ConnectError::Provider(error)) = within(connecting).await else {
        panic!("a process listens on {address}");
    };
    assert_eq!(error.kind, ProviderErrorKind::Refused);
}

/// The Negotiation Timer covers the time before there is an RDMA connection.
//= SMBD-3.1.4.1-06 test
#[tokio::test]
async fn connecting_takes_no_longer_than_the_negotiation_timer() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = Config::new(Settings {
        active_negotiation_timeout: Duration::from_millis(50),
        ..Settings::default()
    });
    let provider = Iwarp::new(IwarpConfig {
        connect_timeout: Duration::MAX,
        ..IwarpConfig::default()
    });
    let address = silent.local_addr().unwrap();
    let connecting = Connection::connect(&provider, address, config.unwrap());
    // The error differs from that of a peer that does not negotiate.
    let error = within(connecting).await.unwrap_err();
    assert!(
        matches!(&error, ConnectError::Provider(error) if error.kind == ProviderErrorKind::TimedOut),
        "{error:?}"
    );
}

//= SMBD-3.1.7.2-03 test
//= SMBD-3.1.7.2-07 test
async fn the_acceptor_may_speak_first(provider: Arc<dyn Provider>) {
    let Pair { client, server, .. } = pair(provider).await;
    drop(server.send("welcome").unwrap());
    assert_eq!(within(client.recv()).await.unwrap().into_bytes(), "welcome");
}

async fn smallest_credits_and_sizes_allow_traffic_both_ways(provider: Arc<dyn Provider>) {
    let small = Settings {
        send_credit_target: 1,
        receive_credit_max: 1,
        max_send_size: 128,
        max_receive_size: 128,
        max_fragmented_receive_size: 131_072,
        ..Settings::default()
    };
    let Pair { client, server, .. } = pair_with(provider, small.clone(), small).await;
    let message = bytes(131_072);
    for end in [&client, &server] {
        for _ in 0..3 {
            drop(end.send(message.clone()).unwrap());
        }
    }
    for end in [&client, &server] {
        for _ in 0..3 {
            assert_eq!(within(end.recv()).await.unwrap().into_bytes(), message);
        }
    }
}

//= SMBD-3.1.4.3-05 test
//= SMBD-3.1.4.4-01 test
async fn reads_writes_and_invalidation(provider: Arc<dyn Provider>) {
    let Pair { client, server, .. } = pair(provider).await;
    let data = bytes(3 << 20);
    let source = client
        .register(BytesMut::from(&data[..]), Access::REMOTE_READ)
        .unwrap();
    let access = Access::REMOTE_WRITE | Access::REMOTE_INVALIDATE;
    let sink = client.register(BytesMut::zeroed(3 << 20), access).unwrap();
    let into = BytesMut::zeroed(3 << 20);
    let read = within(server.read(&[source.descriptor()], 0, into))
        .await
        .unwrap();
    assert_eq!(read, data);
    let writing = server.write(&[sink.descriptor()], 0, data.clone());
    drop(server.send_and_invalidate("done", sink.token()).unwrap());
    let done = within(client.recv()).await.unwrap();
    assert_eq!(done.invalidated_token(), Some(sink.token()));
    assert_eq!(within(sink.deregister()).await.unwrap(), data);
    within(writing).await.unwrap();
    let beyond = within(server.read(&[source.descriptor()], 1, BytesMut::zeroed(3 << 20))).await;
    let error = beyond.unwrap_err();
    assert!(matches!(
        error.fault,
        TransferFault::BeyondDescriptors { .. }
    ));
    assert_eq!(error.buffer.unwrap().len(), 3 << 20);
    assert_eq!(within(source.deregister()).await.unwrap(), data);
    assert_eq!(client.stats().regions, 0);
}

//= SMBD-3.1.4.3-02 test
//= SMBD-3.1.4.3-05 test
//= SMBD-3.1.4.4-01 test
async fn several_buffers_are_one_range(provider: Arc<dyn Provider>) {
    let Pair { client, server, .. } = pair(provider).await;
    let data = bytes(100_000);
    let lengths = [1, 0, 70_000, 29_998, 1];
    let (mut parts, mut rest) = (Vec::new(), BytesMut::from(&data[..]));
    for length in lengths {
        parts.push(rest.split_to(length));
    }
    let regions = client.register_all(parts, Access::REMOTE_READ).unwrap();
    let descriptors: Vec<_> = regions.iter().map(MemoryRegion::descriptor).collect();
    assert_eq!(descriptors.len(), lengths.len());
    for (descriptor, length) in descriptors.iter().zip(lengths) {
        assert_eq!(descriptor.length as usize, length);
    }
    let all = within(server.read(&descriptors, 0, BytesMut::zeroed(100_000))).await;
    assert_eq!(all.unwrap(), data);
    let across = within(server.read(&descriptors, 69_999, BytesMut::zeroed(10))).await;
    assert_eq!(across.unwrap(), data[69_999..70_009]);
    assert_eq!(client.stats().regions, 5);
    let mut back = BytesMut::new();
    for region in regions {
        back.unsplit(within(region.deregister()).await.unwrap());
    }
    assert_eq!(
        (back, client.stats().regions),
        (BytesMut::from(&data[..]), 0)
    );
    assert!(client.register_all([], Access::all()).unwrap().is_empty());
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
        ConnectionError::Closed(Initiator::Remote)
    );
    within(closing).await.unwrap().unwrap();
    assert_eq!(
        within(client.closed()).await,
        ConnectionError::Closed(Initiator::Local)
    );
    assert!(matches!(
        client.send("x"),
        Err(SendError::Connection(ConnectionError::Closed(_)))
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
    assert_eq!(
        within(server.closed()).await,
        ConnectionError::Closed(Initiator::Remote)
    );
}

async fn untaken_messages_stop_the_sender_and_memory_is_bounded(provider: Arc<dyn Provider>) {
    let settings = Settings {
        credit_grant_timeout: None,
        ..Settings::default()
    };
    let Pair { client, server, .. } = pair_with(provider, settings.clone(), settings).await;
    let sent: Vec<_> = (0..20_000)
        .map(|_| client.send(bytes(1000)).unwrap())
        .collect();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let waiting = server.stats().bytes_received;
    let limit = Config::default().receive_buffer() as u64;
    assert!(
        (limit / 2..limit).contains(&waiting),
        "{waiting} bytes wait"
    );
    for _ in 0..20_000 {
        assert_eq!(within(server.recv()).await.unwrap().len(), 1000);
    }
    for sending in sent {
        within(sending).await.unwrap();
    }
}

async fn keepalive_is_a_round_trip(provider: Arc<dyn Provider>) {
    let Pair { client, server, .. } = pair(provider).await;
    for _ in 0..3 {
        within(client.keepalive()).await.unwrap();
        within(server.keepalive()).await.unwrap();
    }
    assert_eq!(client.stats().keepalives_sent, 3);
    assert_eq!(client.stats().keepalives_received, 3);
}

async fn a_requested_response_is_due_until_the_peer_answers(provider: Arc<dyn Provider>) {
    let Pair { client, server, .. } = pair(provider).await;
    let options = MessageOptions {
        response_requested: true,
        ..MessageOptions::default()
    };
    let sending = client.send_with("answer me", options).unwrap();
    within(sending).await.unwrap();
    assert_eq!(
        within(server.recv()).await.unwrap().into_bytes(),
        "answer me"
    );
    within(async {
        while client.is_response_due() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    assert_eq!(server.stats().keepalives_received, 1);

    let empty = server.stats().empty_sent;
    server.send_credits();
    within(async {
        while server.stats().empty_sent == empty {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    within(poll_fn(|context| client.poll_ready(context)))
        .await
        .unwrap();
    client.start_close();
    let reason = within(poll_fn(|context| client.poll_closed(context))).await;
    assert!(matches!(reason, ConnectionError::Closed(_)), "{reason}");
}

async fn ready_resolves_on_credits_without_a_message(provider: Arc<dyn Provider>) {
    let few = Settings {
        credit_grant_timeout: None,
        ..few_credits()
    };
    let Pair { client, server, .. } = pair_with(provider, few.clone(), few).await;
    let mut sent = 0;
    for _ in 0..3 {
        // Send until the other end holds as much as it accepts.
        for _ in 0..10 {
            while let Ok(sending) = client.try_send(bytes(8000)) {
                drop(sending);
                sent += 1;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let ready = tokio::spawn({
            let client = client.clone();
            async move { client.ready().await }
        });
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert!(!ready.is_finished());
        while sent > 0 {
            within(server.recv()).await.unwrap();
            sent -= 1;
        }
        within(ready).await.unwrap().unwrap();
    }
}

async fn submitted_messages_leave_although_the_inbox_is_full(provider: Arc<dyn Provider>) {
    let Pair { client, server, .. } = pair_with(provider, few_credits(), few_credits()).await;
    for _ in 0..100 {
        drop(client.send(bytes(8000)).unwrap());
        drop(server.send(bytes(8000)).unwrap());
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    drop(client);
    for _ in 0..100 {
        assert_eq!(within(server.recv()).await.unwrap().len(), 8000);
    }
    assert_eq!(
        within(server.closed()).await,
        ConnectionError::Closed(Initiator::Remote)
    );
}

async fn every_future_ends_when_the_runtime_stops(provider: Arc<dyn Provider>) {
    let address: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let mut listener = Listener::bind(&*provider, address, Config::default())
        .await
        .unwrap();
    let address = listener.local_address();
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

    // The connection goes on without its runtime, or it has ended with it.
    let closing = within(client.close()).await;
    let stopped = client.error().unwrap();
    match &stopped {
        ConnectionError::Closed(Initiator::Local) => assert_eq!(closing, Ok(())),
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
    let few = Settings {
        credit_grant_timeout: Some(Duration::from_millis(50)),
        ..few_credits()
    };
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
    let patient = Settings {
        keepalive_interval: Duration::MAX,
        keepalive_response_timeout: Duration::MAX,
        active_negotiation_timeout: Duration::MAX,
        passive_negotiation_timeout: Duration::MAX,
        credit_grant_timeout: Some(Duration::MAX),
        ..few_credits()
    };
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
    assert_eq!(
        within(server.closed()).await,
        ConnectionError::Closed(Initiator::Remote)
    );
}

#[tokio::test]
async fn try_send_accepts_only_a_message_that_can_start() {
    let one = Settings {
        send_credit_target: 1,
        receive_credit_max: 1,
        ..Settings::default()
    };
    let provider = Arc::new(Loopback::new());
    let Pair { client, server, .. } = pair_with(provider, one.clone(), one).await;
    within(client.ready()).await.unwrap();
    drop(client.try_send("first").unwrap());
    let Err(TrySendError::NotReady(second)) = client.try_send("second") else {
        panic!("there was only one credit");
    };
    assert_eq!(server.recv().await.unwrap().into_bytes(), "first");
    within(client.ready()).await.unwrap();
    drop(client.try_send(second).unwrap());
    assert_eq!(server.recv().await.unwrap().into_bytes(), "second");
    client.close().await.unwrap();
    assert!(matches!(
        client.try_send("third"),
        Err(TrySendError::Send(_))
    ));
}

#[tokio::test(start_paused = true)]
async fn idle_connection_sends_only_keepalives() {
    for credits in [1, 2, 3, 255] {
        let settings = Settings {
            send_credit_target: credits,
            receive_credit_max: credits,
            ..Settings::default()
        };
        let Pair { client, server, .. } =
            pair_with(Arc::new(Loopback::new()), settings.clone(), settings).await;
        drop(client.send("hello").unwrap());
        server.recv().await.unwrap();
        tokio::time::sleep(Duration::from_secs(10)).await;
        let before = (client.stats(), server.stats());
        tokio::time::sleep(Duration::from_secs(36_000)).await;
        let after = (client.stats(), server.stats());
        let keepalives = after.0.keepalives_sent + after.1.keepalives_sent
            - before.0.keepalives_sent
            - before.1.keepalives_sent;
        let messages =
            after.0.empty_sent + after.1.empty_sent - before.0.empty_sent - before.1.empty_sent;
        assert!((299..=600).contains(&keepalives), "{keepalives} keepalives");
        // An answer that spends the only credit of the peer is followed by a message that returns it.
        let each = if credits == 1 { 3 } else { 2 };
        assert!(
            messages <= each * keepalives,
            "{messages} messages for {keepalives} keepalives"
        );
        assert_eq!(client.error(), None);
    }
}

//= SMBD-3.1.4.3-03 test
#[cfg(target_pointer_width = "64")]
#[tokio::test]
async fn failed_registration_returns_buffer_and_reason() {
    let Pair { client, .. } = pair(Arc::new(Loopback::new())).await;
    // Address space only: the pages are never touched.
    let buffer = BytesMut::zeroed(1 << 32);
    let error = client.register(buffer, Access::REMOTE_WRITE).unwrap_err();
    assert_eq!(error.reason, RegisterFault::TooLong);
    assert_eq!(error.buffer.len(), 1 << 32);
    assert_eq!(client.stats().regions, 0);
}

/// Without the depths in the answer's private data the client would have 16 reads outstanding, and
/// the server would end the connection over the second.
//= SMBD-6-02 test
//= SMBD-6-03 test
#[tokio::test]
async fn mpa_revision_1_client_keeps_to_the_read_depth_it_received() {
    let shallow = Iwarp::new(IwarpConfig {
        ird: 1,
        ..IwarpConfig::default()
    });
    let of_revision_1 = Iwarp::new(IwarpConfig {
        revision: 1,
        ..IwarpConfig::default()
    });
    let address = "127.0.0.1:0".parse().unwrap();
    let config = Config::default();
    let mut listener = Listener::bind(&shallow, address, config.clone())
        .await
        .unwrap();
    let address = listener.local_address();
    let (client, server) = tokio::join!(
        Connection::connect(&of_revision_1, address, config),
        listener.accept()
    );
    let (client, server) = (client.unwrap(), server.unwrap());
    let data = bytes(1000);
    let source = server
        .register(BytesMut::from(&data[..]), Access::REMOTE_READ)
        .unwrap();
    let readings: Vec<_> = (0..8)
        .map(|_| client.read(&[source.descriptor()], 0, BytesMut::zeroed(1000)))
        .collect();
    for reading in readings {
        assert_eq!(within(reading).await.unwrap(), data);
    }
}

/// A peer of MPA revision 1 can learn the read depths of this end from the private data only.
//= EST-15 test
//= SMBD-6-02 test
//= SMBD-6-03 test
//= SMBD-6-04 test
#[tokio::test]
async fn mpa_revision_1_peer_receives_the_read_depths() {
    const ACCEPTED: u8 = 0x40;
    const REFUSED: u8 = 0x60;
    let provider = Arc::new(Iwarp::new(IwarpConfig::default()));
    let address = "127.0.0.1:0".parse().unwrap();
    let listener = Listener::bind(&*provider, address, Config::default())
        .await
        .unwrap();
    for (private_data, flags, answer) in [
        (
            &[0, 0, 0, 16, 0, 0, 0, 15][..],
            ACCEPTED,
            &[0, 0, 0, 16, 0, 0, 0, 15][..],
        ),
        (
            &[0, 0, 0, 99, 0, 0, 0, 99],
            ACCEPTED,
            &[0, 0, 0, 32, 0, 0, 0, 32],
        ),
        (&[], ACCEPTED, &[]),
        (&[0, 0, 0, 0, 0, 0, 0, 16], REFUSED, &[]),
        (&[0, 0, 0, 16, 0, 0, 0, 0], REFUSED, &[]),
    ] {
        let mut peer = tokio::net::TcpStream::connect(listener.local_address())
            .await
            .unwrap();
        let mut request = b"MPA ID Req Frame\x40\x01\x00".to_vec();
        request.push(private_data.len() as u8);
        request.extend_from_slice(private_data);
        peer.write_all(&request).await.unwrap();
        let mut reply = vec![0; 20 + answer.len()];
        within(peer.read_exact(&mut reply)).await.unwrap();
        assert_eq!(&reply[..16], b"MPA ID Rep Frame");
        assert_eq!(&reply[16..19], [flags, 1, 0], "{private_data:?}");
        assert_eq!(usize::from(reply[19]), answer.len());
        assert_eq!(&reply[20..], answer);
    }
}

/// A peer refuses the connection over a depth of 0.
//= EST-15 test
//= SMBD-6-01 test
#[tokio::test]
async fn read_depth_of_zero_is_announced_as_one() {
    let provider = Arc::new(Iwarp::new(IwarpConfig {
        ird: 0,
        ord: 0,
        ..IwarpConfig::default()
    }));
    let address = "127.0.0.1:0".parse().unwrap();
    let listener = Listener::bind(&*provider, address, Config::default())
        .await
        .unwrap();
    let mut peer = tokio::net::TcpStream::connect(listener.local_address())
        .await
        .unwrap();
    let request = b"MPA ID Req Frame\x40\x01\x00\x08\x00\x00\x00\x10\x00\x00\x00\x10";
    peer.write_all(request).await.unwrap();
    let mut reply = [0; 28];
    within(peer.read_exact(&mut reply)).await.unwrap();
    assert_eq!(reply[20..], [0, 0, 0, 1, 0, 0, 0, 1]);
}

/// MPA revision 2 carries the read depths in its header, and the private data is ignored.
//= SMBD-6-02 test
#[tokio::test]
async fn mpa_revision_2_peer_receives_no_read_depths_in_private_data() {
    let provider = Arc::new(Iwarp::new(IwarpConfig::default()));
    let address = "127.0.0.1:0".parse().unwrap();
    let listener = Listener::bind(&*provider, address, Config::default())
        .await
        .unwrap();
    for private_data in [[0; 8], [0, 0, 0, 16, 0, 0, 0, 16]] {
        let mut peer = tokio::net::TcpStream::connect(listener.local_address())
            .await
            .unwrap();
        let mut request = b"MPA ID Req Frame\x50\x02\x00\x0c\x00\x10\x00\x10".to_vec();
        request.extend_from_slice(&private_data);
        peer.write_all(&request).await.unwrap();
        let mut reply = vec![0; 24];
        within(peer.read_exact(&mut reply)).await.unwrap();
        assert_eq!(&reply[..20], b"MPA ID Rep Frame\x50\x02\x00\x04");
        assert_eq!(&reply[20..], [0, 16, 0, 16]);
    }
}

//= SMBD-6-01 test
//= SMBD-6-04 test
#[tokio::test]
async fn reply_with_read_depth_zero_fails_the_connect() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let provider = Iwarp::new(IwarpConfig {
        revision: 1,
        ..IwarpConfig::default()
    });
    let connecting = Connection::connect(&provider, address, Config::default());
    let answering = async {
        let (mut peer, _) = listener.accept().await.unwrap();
        let mut request = [0; 28];
        peer.read_exact(&mut request).await.unwrap();
        assert_eq!(request[20..], [0, 0, 0, 32, 0, 0, 0, 32]);
        let reply = b"MPA ID Rep Frame\x40\x01\x00\x08\x00\x00\x00\x10\x00\x00\x00\x00";
        peer.write_all(reply).await.unwrap();
        peer
    };
    let (connected, _peer) = within(async { tokio::join!(connecting, answering) }).await;
    let Err(ConnectError::Provider(error)) = connected else {
        panic!("{connected:?}");
    };
    assert_eq!(error.kind, ProviderErrorKind::Protocol);
}

/// 3.1.7.2 reports a connection when it arrives, 3.1.5.6 when it can be used. The listener does the
/// latter.
//= SMBD-3.1.7.2-07 test
#[tokio::test]
async fn a_peer_that_does_not_negotiate_is_never_accepted() {
    let provider = Arc::new(Iwarp::new(IwarpConfig::default()));
    let address = "127.0.0.1:0".parse().unwrap();
    let config = Config::default();
    let mut listener = Listener::bind(&*provider, address, config.clone())
        .await
        .unwrap();
    let address = listener.local_address();
    let mut silent = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = b"MPA ID Req Frame\x40\x01\x00\x00";
    silent.write_all(request).await.unwrap();
    within(silent.read_exact(&mut [0; 20])).await.unwrap();
    let waiting = timeout(Duration::from_millis(50), listener.accept()).await;
    assert!(waiting.is_err(), "the peer has not negotiated");
    let (client, server) = tokio::join!(
        Connection::connect(&*provider, address, config),
        listener.accept()
    );
    let (client, server) = (client.unwrap(), server.unwrap());
    assert_eq!(server.remote_address(), client.local_address());
}

/// On a runtime with one thread, a task that sends and never pauses keeps the driver task from running.
/// Its messages leave nevertheless.
#[test]
fn messages_leave_while_the_driver_task_cannot_run() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap()
    };
    let (tell, told) = std::sync::mpsc::channel();
    let received = Arc::new(AtomicUsize::new(0));
    let count = received.clone();
    let receiver = std::thread::spawn(move || {
        runtime().block_on(async move {
            let provider = Arc::new(Iwarp::new(IwarpConfig::default()));
            let address = "127.0.0.1:0".parse().unwrap();
            let listener = Listener::bind(&*provider, address, Config::default());
            let mut listener = listener.await.unwrap();
            tell.send(listener.local_address()).unwrap();
            let server = within(listener.accept()).await.unwrap();
            drop(server.send("begin").unwrap());
            while let Ok(message) = within(server.recv()).await {
                count.fetch_add(1, Ordering::SeqCst);
                if message.len() > 4 {
                    drop(server.send("answer").unwrap());
                }
            }
        });
    });
    let address = told.recv().unwrap();
    runtime().block_on(async move {
        let provider = Iwarp::new(IwarpConfig::default());
        let client = Connection::connect(&provider, address, Config::default());
        let client = within(client).await.unwrap();
        within(client.recv()).await.unwrap();
        // The second message follows the first within the gather window, so it is queued, and the messages
        // after it with it.
        drop(client.send("word").unwrap());
        drop(client.send("word").unwrap());
        // The loop sends fewer messages than are flushed for their number, and the next one does more than
        // tokio lets a task do in one turn.
        for sent in 0..200 {
            drop(client.send("word").unwrap());
            if received.load(Ordering::SeqCst) >= 40 {
                break;
            }
            assert!(sent < 199, "queued messages are never flushed");
            std::thread::sleep(Duration::from_millis(1));
        }
        // A message that does not leave makes `recv` busy-poll longer than `within` waits.
        client.set_busy_poll(Duration::from_secs(40));
        for _ in 0..300 {
            let before = received.load(Ordering::SeqCst);
            drop(client.send("a word to be answered").unwrap());
            let answer = within(client.recv()).await.unwrap();
            assert_eq!(answer.into_bytes(), "answer");
            assert!(received.load(Ordering::SeqCst) > before);
        }
        within(client.close()).await.unwrap();
    });
    receiver.join().unwrap();
}

async fn an_address_is_free_when_its_listener_is_dropped(provider: Arc<dyn Provider>) {
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let bind = async |address| Listener::bind(&*provider, address, Config::default()).await;
    let first = bind(any).await.unwrap();
    let address = first.local_address();
    drop(first);
    // Peers may be in any state of their connection.
    for _ in 0..20 {
        let mut listener = bind(address).await.unwrap();
        let connecting = Connection::connect(&*provider, address, Config::default());
        let (connected, accepted) = tokio::join!(connecting, listener.accept());
        let (connected, _accepted) = (connected.unwrap(), accepted.unwrap());
        let connecting = Connection::connect(&*provider, address, Config::default());
        let _ = timeout(Duration::from_micros(100), connecting).await;
        drop(listener);
        connected.keepalive().await.unwrap();
    }
    let incoming = IncomingListener::bind(&*provider, address).await.unwrap();
    drop(incoming);
    // A listener may be dropped elsewhere, while its runtime runs or after it has ended.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    for ends in [false, true] {
        let other = provider.clone();
        let listening = async move { Listener::bind(&*other, address, Config::default()).await };
        let listener = within(runtime.spawn(listening)).await.unwrap().unwrap();
        drop(listener);
        drop(bind(address).await.unwrap());
        if ends {
            break;
        }
    }
    runtime.shutdown_background();
}

/// The destructor of a payload panics, on whatever thread the library drops it.
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

/// All clients connect in one poll, before the listener can accept the first.
#[tokio::test]
async fn as_many_clients_connect_at_once_as_there_are() {
    let provider = Loopback::new();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let mut listener = Listener::bind(&provider, any, Config::default())
        .await
        .unwrap();
    let address = listener.local_address();
    let mut connecting = tokio::task::JoinSet::new();
    for _ in 0..500 {
        let provider = provider.clone();
        connecting.spawn(async move {
            let connecting = Connection::connect(&provider, address, Config::default());
            connecting.await.map(drop)
        });
    }
    for _ in 0..500 {
        within(listener.accept()).await.unwrap();
    }
    for connected in within(connecting.join_all()).await {
        connected.unwrap();
    }
}
