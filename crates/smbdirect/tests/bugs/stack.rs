//! Bugs of listeners, transfers, memory and shutdown, tested with the whole stack over iWARP on
//! 127.0.0.1 and in one process.

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use smbdirect::{
    Access, Config, ConnectError, Connection, ConnectionError, Listener, MemoryRegion, Message,
    SendError, Settings, TransferFault,
    rdma::{
        iwarp::{
            Iwarp, IwarpConfig, IwarpTuning,
            ddp::Header,
            mpa::{FrameKind, StartupFrame},
        },
        loopback::{Loopback, LoopbackConfig},
        provider::{ConnectRequest, Provider},
        work::{ProviderErrorKind, WorkId, WorkRequest},
    },
    wire::{DataTransfer, Flags},
};
use tokio::task::{JoinSet, yield_now};

use super::ends::{Ends, HERE, assert_nothing_outstanding, bytes, iwarp, listen};
use crate::peer::{Peer, within};

fn all_access() -> Access {
    Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_INVALIDATE
}

fn region(connection: &Connection, content: &[u8]) -> MemoryRegion {
    connection
        .register(BytesMut::from(content), all_access())
        .unwrap()
}

/// Returns the providers that need no hardware, and one with very small limits.
fn providers() -> Vec<Arc<dyn Provider>> {
    let mut lean = LoopbackConfig::default();
    lean.limits.max_send_queue = 2;
    lean.limits.max_receive_queue = 4;
    lean.limits.max_outbound_reads = 1;
    lean.limits.max_inbound_reads = 1;
    lean.limits.max_transfer = 5000;
    vec![
        iwarp(),
        Arc::new(Loopback::new()),
        Arc::new(Loopback::with_config(lean)),
    ]
}

/// iWARP and other kinds of RDMA shared one port, and the device added last decided which port.
/// Expected: each kind has its own port, several listeners with different providers or ports run
/// concurrently, and closing one does not affect the others.
#[tokio::test]
async fn bug_05_one_port_for_all_kinds_of_rdma() {
    let (tcp, local) = (iwarp(), Arc::new(Loopback::new()) as Arc<dyn Provider>);
    assert_eq!(
        (
            tcp.attributes().default_port,
            local.attributes().default_port
        ),
        (5445, 445)
    );
    let config = Config::default();
    let mut listeners = Vec::new();
    for (provider, address) in [
        (&tcp, HERE),
        (&tcp, HERE),
        (&local, "127.0.0.1:445".parse().unwrap()),
        (&local, "127.0.0.1:5445".parse().unwrap()),
    ] {
        let listener = Listener::bind(&**provider, address, config.clone());
        listeners.push((provider, listener.await.unwrap()));
    }
    while let Some((_, last)) = listeners.last() {
        let last_address = last.local_address();
        for (number, (provider, listener)) in listeners.iter_mut().enumerate() {
            let address = listener.local_address();
            let (client, server) = within(async {
                tokio::join!(
                    Connection::connect(&***provider, address, config.clone()),
                    listener.accept()
                )
            })
            .await;
            let (client, server) = (client.unwrap(), server.unwrap());
            assert_eq!(client.remote_address(), address);
            assert_eq!(server.local_address().port(), address.port());
            drop(client.send(vec![number as u8; 9]).unwrap());
            let message = within(server.recv()).await.unwrap().into_bytes();
            assert_eq!(message, vec![number as u8; 9]);
        }
        let (provider, listener) = listeners.pop().expect("it is the last");
        drop(listener);
        // The task of the listener ends when it runs next.
        for _ in 0..100 {
            yield_now().await;
        }
        let refused = within(Connection::connect(
            &**provider,
            last_address,
            config.clone(),
        ))
        .await;
        assert!(matches!(refused, Err(ConnectError::Provider(_))));
    }
}

/// A message used the memory of the receives it arrived in. Expected: the longest message arrives
/// with the smallest legal receive buffer, even if the application takes no message before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bug_07_longest_message_in_the_smallest_buffer() {
    let settings = Settings {
        send_credit_target: 4,
        receive_credit_max: 4,
        receive_buffer: Some(6 * 8192),
        ..Settings::default()
    };
    for provider in providers() {
        let ends = Ends::new(&provider, settings.clone()).await;
        let longest = bytes(settings.max_fragmented_receive_size as usize, 1);
        let sending = ends.client.send(longest.clone()).unwrap();
        within(sending).await.unwrap();
        let message = within(ends.server.recv()).await.unwrap().into_bytes();
        assert!(message == longest);
    }
}

/// A message had more parts than a work request can hold, and the queue pair refused or never
/// completed it. Expected: a message of any number of parts is sent with any provider.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bug_12_message_of_many_buffers() {
    for provider in providers() {
        for max_send_size in [128, 1364, 8136] {
            let settings = Settings {
                max_send_size,
                ..Settings::default()
            };
            let ends = Ends::new(&provider, settings).await;
            for (pieces, length) in [(1, 5000), (2, 4000), (7, 999), (1000, 13), (5000, 1)] {
                let whole = bytes(pieces * length, pieces as u8);
                let message: Message = (0..pieces)
                    .flat_map(|piece| {
                        let start = piece * length;
                        [Bytes::new(), whole.slice(start..start + length)]
                    })
                    .collect();
                within(ends.client.send(message).unwrap()).await.unwrap();
                let received = within(ends.server.recv()).await.unwrap();
                assert!(received.into_bytes() == whole, "{pieces} of {length}");
            }
        }
    }
}

/// A write had the length of the descriptor, not of the data, so files whose size was not a
/// multiple of 128 KiB were corrupted. Expected: the write has the length of the data, and the
/// memory after it is unchanged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bug_13_write_of_the_descriptors_length() {
    const KIB: usize = 1024;
    for provider in providers() {
        let ends = Ends::new(&provider, Settings::default()).await;
        let before = bytes(256 * KIB, 0);
        for length in [
            0,
            1,
            127 * KIB,
            128 * KIB - 1,
            128 * KIB,
            128 * KIB + 1,
            129 * KIB,
        ] {
            let target = region(&ends.client, &before);
            let data = bytes(length, 0xff);
            let descriptors = [target.descriptor()];
            let written = ends.server.write(&descriptors, 0, data.clone());
            drop(ends.server.send("done").unwrap());
            within(ends.client.recv()).await.unwrap();
            within(written).await.unwrap();

            let into = BytesMut::zeroed(length);
            let read = within(ends.server.read(&descriptors, 0, into)).await;
            assert!(read.unwrap() == data, "{length} bytes read back");
            let after = within(target.deregister()).await.unwrap();
            assert!(after[..length] == data, "{length} bytes written");
            assert!(after[length..] == before[length..], "{length} and more");
        }
    }
}

/// Only the first descriptor of a request was used, so longer transfers failed. Expected: transfers
/// use any number of descriptors, including those of the sizes that Windows sends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bug_14_more_than_one_descriptor() {
    for provider in providers() {
        let ends = Ends::new(&provider, Settings::default()).await;
        for lengths in [
            &[0xf_ffc0, 0x40][..],
            &[0x40, 0xf_ffc0],
            &[1, 0, 2, 0, 3],
            &[5000; 40],
            &[524_288, 524_288, 1],
        ] {
            let total = lengths.iter().sum::<usize>();
            let before = bytes(total, 1);
            let mut rest = &before[..];
            let regions: Vec<_> = lengths
                .iter()
                .map(|&length| {
                    let (content, behind) = rest.split_at(length);
                    rest = behind;
                    region(&ends.client, content)
                })
                .collect();
            let descriptors: Vec<_> = regions.iter().map(MemoryRegion::descriptor).collect();
            let read = |offset: usize, length| {
                let into = BytesMut::zeroed(length);
                within(ends.server.read(&descriptors, offset as u64, into))
            };
            assert!(read(0, total).await.unwrap() == before);
            for offset in [1, lengths[0] - 1, lengths[0], total - 1] {
                let length = (total - offset).min(3);
                let part = read(offset, length).await.unwrap();
                assert_eq!(part, before[offset..offset + length], "{lengths:?}");
            }
            let beyond = read(1, total).await.unwrap_err();
            assert!(matches!(
                beyond.fault,
                TransferFault::BeyondDescriptors { .. }
            ));

            let data = bytes(total - 1, 2);
            let written = ends.server.write(&descriptors, 1, data.clone());
            drop(ends.server.send("done").unwrap());
            within(ends.client.recv()).await.unwrap();
            within(written).await.unwrap();
            let mut after = Vec::new();
            for region in regions {
                after.extend(within(region.deregister()).await.unwrap());
            }
            assert!(after[1..] == data && after[0] == before[0], "{lengths:?}");
        }
    }
}

/// The limit of SMB2 was used for SMB Direct. Expected: messages are limited by MaxFragmentedSize,
/// and transfers of any length are split by the smaller MaxReadWriteSize of the two ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bug_15_the_wrong_limit() {
    let small = Settings {
        max_read_write_size: 65_536,
        max_fragmented_receive_size: 131_072,
        ..Settings::default()
    };
    for provider in [iwarp(), Arc::new(Loopback::new())] {
        let mut listener = listen(&provider, small.clone()).await;
        let address = listener.local_address();
        let (client, server) = within(async {
            tokio::join!(
                Connection::connect(&*provider, address, Config::default()),
                listener.accept()
            )
        })
        .await;
        let (client, server) = (client.unwrap(), server.unwrap());
        for end in [&client, &server] {
            assert_eq!(end.negotiated().max_read_write_size, 65_536);
        }
        let longest = bytes(131_072, 3);
        drop(client.send(longest.clone()).unwrap());
        assert!(within(server.recv()).await.unwrap().into_bytes() == longest);
        let too_large = client.send(bytes(131_073, 3)).unwrap_err();
        assert!(matches!(
            too_large,
            SendError::TooLarge { max: 131_072, .. }
        ));

        let data = bytes(1 << 20, 4);
        for (one, other) in [(&client, &server), (&server, &client)] {
            let target = region(other, &vec![0; 1 << 20]);
            let descriptors = [target.descriptor()];
            within(one.write(&descriptors, 0, data.clone()))
                .await
                .unwrap();
            let into = BytesMut::zeroed(1 << 20);
            let read = within(one.read(&descriptors, 0, into)).await.unwrap();
            assert!(read == data);
            assert_eq!((one.stats().writes, one.stats().reads), (16, 16));
            within(target.deregister()).await.unwrap();
        }
    }
}

/// More reads and writes were posted than the send queue or the peer's read depth holds. Expected:
/// hundreds of them are queued and complete with any depth.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bug_16_flood_of_reads_and_writes() {
    let shallow = IwarpConfig {
        ird: 1,
        ord: 1,
        ..IwarpConfig::default()
    };
    let mut providers = providers();
    providers.push(Arc::new(Iwarp::new(shallow)));
    for provider in providers {
        let ends = Ends::new(&provider, Settings::default()).await;
        const COUNT: usize = 300;
        const SIZE: usize = 6000;
        let source = region(&ends.client, &bytes(COUNT * SIZE, 5));
        let target = region(&ends.client, &vec![0; COUNT * SIZE]);
        let data = bytes(COUNT * SIZE, 6);
        let mut begun = Vec::new();
        for at in (0..COUNT).map(|number| number * SIZE) {
            let into = BytesMut::zeroed(SIZE);
            let reading = ends.server.read(&[source.descriptor()], at as u64, into);
            let piece = data.slice(at..at + SIZE);
            let writing = ends.server.write(&[target.descriptor()], at as u64, piece);
            drop(ends.server.send(vec![7; 100]).unwrap());
            begun.push((at, reading, writing));
        }
        let expected = bytes(COUNT * SIZE, 5);
        for (at, reading, writing) in begun {
            assert!(within(reading).await.unwrap() == expected[at..at + SIZE]);
            within(writing).await.unwrap();
        }
        for _ in 0..COUNT {
            assert_eq!(within(ends.client.recv()).await.unwrap().len(), 100);
        }
        assert!(within(target.deregister()).await.unwrap() == data);
        drop(source);
        within(ends.client.close()).await.unwrap();
        within(ends.server.closed()).await;
        assert_nothing_outstanding(&ends.client);
        assert_nothing_outstanding(&ends.server);
    }
}

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
    let impatient = Settings {
        keepalive_interval: Duration::from_secs(1),
        keepalive_response_timeout: Duration::from_millis(500),
        credit_grant_timeout: Some(Duration::from_millis(300)),
        ..Settings::default()
    };
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
        let address = listener.local_address();
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
                        ConnectionError::Closed(_) | ConnectionError::Provider(_)
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
    let address = listener.local_address();
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

/// A listener was closed while it had half-open connections, and hung or crashed. Expected: peers
/// at each step of connecting see the end of their connection, and an accepted connection
/// continues.
#[tokio::test]
async fn bug_23_listener_closed_with_half_open_children() {
    // The timers are long, so that they cannot end a connection in this test.
    let patient = IwarpConfig {
        accept_timeout: Duration::from_secs(600),
        ..IwarpConfig::default()
    };
    let settings = Settings {
        passive_negotiation_timeout: Duration::from_secs(600),
        ..Settings::default()
    };
    let provider: Arc<dyn Provider> = Arc::new(Iwarp::new(patient));
    let mut listener = listen(&provider, settings).await;
    let address = listener.local_address();
    let mut accepted_peer = Peer::negotiated(address).await;
    let accepted = within(listener.accept()).await.unwrap();

    let silent = Peer::silent(address).await;
    let mut half = Peer::silent(address).await;
    half.say(b"MPA ID Req").await;
    let connected = Peer::connected(address).await;
    let mut half_negotiated = Peer::connected(address).await;
    let request = half_negotiated.negotiate_request();
    half_negotiated.say(&request[..30]).await;
    let waiting = Peer::negotiated(address).await;

    drop(listener);
    for mut peer in [silent, half, connected, half_negotiated, waiting] {
        peer.end().await;
    }
    let question = DataTransfer::empty(10, 10, Flags::RESPONSE_REQUESTED);
    let question = accepted_peer.transfer(question, &[]);
    accepted_peer.say(&question).await;
    let (header, answer) = accepted_peer.hear().await;
    assert!(matches!(header, Header::Untagged(_)));
    assert_eq!(DataTransfer::decode(&answer).unwrap().data_length, 0);
    assert_eq!(accepted.error(), None);
}

/// More peers connected than the backlog holds, and hung. Expected: each of them gets a connection
/// or an error in time, and when there is room again the next peer is accepted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bug_23_more_peers_than_the_backlog_holds() {
    const PEERS: usize = 700;
    let provider: Arc<dyn Provider> = Arc::new(Iwarp::new(IwarpConfig {
        connect_timeout: Duration::from_secs(2),
        ..IwarpConfig::default()
    }));
    let few = Settings {
        send_credit_target: 2,
        receive_credit_max: 2,
        // This many concurrent connections take longer.
        passive_negotiation_timeout: Duration::from_secs(60),
        ..Settings::default()
    };
    let mut listener = listen(&provider, few.clone()).await;
    let address = listener.local_address();
    let mut connecting = JoinSet::new();
    for _ in 0..PEERS {
        let (provider, config) = (provider.clone(), Config::new(few.clone()).unwrap());
        connecting.spawn(async move { Connection::connect(&*provider, address, config).await });
    }
    let mut connections = Vec::new();
    let mut refused = 0;
    while let Some(result) = within(connecting.join_next()).await {
        match result.unwrap() {
            Ok(connection) => connections.push(connection),
            Err(ConnectError::Provider(error)) => {
                assert_eq!(error.kind, ProviderErrorKind::TimedOut, "{error}");
                refused += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(connections.len() + refused, PEERS);
    assert!(refused > 0, "the backlog holds them all");
    // Connections are accepted in another order than that of the clients, and stay open.
    let mut servers = Vec::new();
    for _ in &connections {
        servers.push(within(listener.accept()).await.unwrap());
    }
    for connection in connections.iter().chain(&servers) {
        assert_eq!(connection.error(), None);
    }
    let config = Config::new(few).unwrap();
    let (client, server) = within(async {
        tokio::join!(
            Connection::connect(&*provider, address, config),
            listener.accept()
        )
    })
    .await;
    drop(client.unwrap().send("at last").unwrap());
    let message = within(server.unwrap().recv()).await.unwrap();
    assert_eq!(message.into_bytes(), "at last");
}

/// Expected within one process: peers beyond the backlog are refused immediately.
#[tokio::test]
async fn bug_23_a_full_backlog_refuses() {
    let provider = Loopback::with_config(LoopbackConfig {
        backlog: 3,
        ..LoopbackConfig::default()
    });
    let mut listener = provider.listen(HERE).await.unwrap();
    let address = listener.local_address();
    let request = || ConnectRequest {
        address,
        private_data: Bytes::new(),
        receive: WorkRequest::Receive {
            id: WorkId(1),
            length: 512,
            count: 1,
        },
    };
    let waiting: Vec<_> = (0..3).map(|_| provider.connect(request())).collect();
    let mut waiting: Vec<_> = waiting.into_iter().map(Box::pin).collect();
    let context = &mut Context::from_waker(Waker::noop());
    for connecting in &mut waiting {
        assert!(connecting.as_mut().poll(context).is_pending());
    }
    let refused = within(provider.connect(request())).await.unwrap_err();
    assert_eq!(refused.kind, ProviderErrorKind::Rejected);
    drop(within(listener.accept()).await.unwrap());
    let turned_away = within(&mut waiting[0]).await.unwrap_err();
    assert_eq!(turned_away.kind, ProviderErrorKind::Rejected);
    assert!(
        provider
            .connect(request())
            .as_mut()
            .poll(context)
            .is_pending()
    );
}

/// A registration was freed while it was in use, or its deregistration waited for a queue pair that
/// no longer existed. Expected: memory that the peer is reading is returned in time while the
/// connection is established, ending, or has ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bug_27_deregistration_on_a_dying_connection() {
    for way in 0..4 {
        let (victim, memory, peer) = read_in_part().await;
        let buffer = match way {
            // The connection stays established until the idle timer expires.
            0 => within(memory.deregister()).await,
            // The connection ends during the deregistration.
            1 => {
                let deregistering = tokio::spawn(memory.deregister());
                yield_now().await;
                drop(victim);
                within(deregistering).await.unwrap()
            }
            // The peer vanishes during the deregistration.
            2 => {
                let deregistering = tokio::spawn(memory.deregister());
                yield_now().await;
                drop(peer);
                within(deregistering).await.unwrap()
            }
            // The connection has ended before.
            _ => {
                drop(peer);
                within(victim.closed()).await;
                within(memory.deregister()).await
            }
        };
        assert!(buffer.unwrap() == vec![0x5a; LARGE_BYTES], "{way}");
    }
}

/// Number of bytes that exceeds all buffers of a socket.
const LARGE_BYTES: usize = 64 << 20;

/// Returns a connection whose peer reads a large region and has received only its start.
async fn read_in_part() -> (Connection, MemoryRegion, Peer) {
    let impatient = Settings {
        keepalive_interval: Duration::from_secs(3),
        keepalive_response_timeout: Duration::from_secs(1),
        ..Settings::default()
    };
    let provider: Arc<dyn Provider> = Arc::new(Iwarp::new(IwarpConfig {
        close_timeout: Duration::from_millis(500),
        // An FPDU of one segment is copied, where segments are those of Ethernet.
        tuning: IwarpTuning {
            max_fpdu: Some(65_536),
            ..IwarpTuning::default()
        },
        ..IwarpConfig::default()
    }));
    let buffer = BytesMut::from(&vec![0x5a; LARGE_BYTES][..]);
    let mut listener = listen(&provider, impatient).await;
    let mut peer = Peer::negotiated(listener.local_address()).await;
    let victim = within(listener.accept()).await.unwrap();
    let memory = victim.register(buffer, Access::REMOTE_READ).unwrap();
    let descriptor = memory.descriptor();
    let request = peer.read_request(descriptor.token, descriptor.offset, LARGE_BYTES as u32);
    peer.say(&request).await;
    while !matches!(peer.hear().await.0, Header::Tagged(_)) {}
    (victim, memory, peer)
}

/// Expected: while a deregistration waits for bytes in flight, no more bytes of the memory are
/// sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bug_27_memory_that_leaves_after_its_end() {
    let (victim, memory, mut peer) = read_in_part().await;
    let mut deregistering = pin!(memory.deregister());
    let context = &mut Context::from_waker(Waker::noop());
    assert!(deregistering.as_mut().poll(context).is_pending());
    let taken = peer.end().await;
    assert!(taken < LARGE_BYTES / 2, "{taken} bytes left");
    assert!(within(deregistering).await.unwrap() == vec![0x5a; LARGE_BYTES]);
    let reason = within(victim.closed()).await;
    assert!(matches!(reason, ConnectionError::Provider(_)), "{reason}");
}

/// Expected: after a deregistration the peer cannot write to the memory any more, and its attempt
/// ends only the connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bug_27_memory_that_is_taken_back_meanwhile() {
    const SIZE: usize = 4 << 20;
    for turns in [0, 1, 5, 50] {
        for write in [true, false] {
            let Ends { client, server, .. } = Ends::new(&iwarp(), Settings::default()).await;
            let (before, data) = (bytes(SIZE, 1), bytes(SIZE, 2));
            let memory = region(&client, &before);
            let descriptors = [memory.descriptor()];
            let use_it = || {
                let into = BytesMut::zeroed(SIZE);
                if write {
                    Err(server.write(&descriptors, 0, data.clone()))
                } else {
                    Ok(server.read(&descriptors, 0, into))
                }
            };
            let mut begun: Vec<_> = (0..8).map(|_| use_it()).collect();
            for _ in 0..turns {
                yield_now().await;
            }
            let after = within(memory.deregister()).await.unwrap();
            let fine = |at: usize| after[at] == before[at] || (write && after[at] == data[at]);
            assert!(after.len() == SIZE && (0..SIZE).all(fine));

            begun.push(use_it());
            drop(server.send("nobody is to read this"));
            for transfer in begun {
                match transfer {
                    Ok(reading) => {
                        let done = within(reading).await;
                        let buffer = done.map_or_else(|error| error.buffer, Some);
                        assert_eq!(buffer.expect("the buffer comes back").len(), SIZE);
                    }
                    Err(writing) => drop(within(writing).await),
                }
            }
            let reason = within(client.closed()).await;
            assert!(matches!(reason, ConnectionError::Provider(_)), "{reason}");
            within(server.closed()).await;
            // A message may overtake a Read, but not a Write.
            assert!(!write || within(client.recv()).await.is_err());
            assert_nothing_outstanding(&client);
            assert_nothing_outstanding(&server);
        }
    }
}
