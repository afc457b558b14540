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

use bytes::Bytes;
use smbdirect::{
    Config, Connection, ConnectionError, Listener, Message, MessageOptions, SendError, Settings,
    TrySendError,
    rdma::{
        iwarp::{Iwarp, IwarpConfig},
        loopback::Loopback,
        provider::Provider,
    },
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
    let address = listener.local_addr();
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
    let mut changed = Settings::default();
    changed.send_credit_target = 4;
    changed.receive_credit_max = 4;
    changed.receive_buffer = Some(6 * 8192);
    changed
}

fn bytes(length: usize) -> Bytes {
    (0..length).map(|i| (i * 31 / 7) as u8).collect()
}

/// Sends messages until the other end, which takes none, accepts nothing more. Returns their number.
async fn send_until_refused(connection: &Connection) -> usize {
    let mut sent = 0;
    for _ in 0..10 {
        while connection.try_send(bytes(8000)).is_ok() {
            sent += 1;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    sent
}

/// Runs each behaviour on one thread over the loopback provider, and on two threads over TCP.
macro_rules! over_every_provider {
    ($($behaviour:ident)*) => {
        mod loopback {
            $(
                #[tokio::test]
                async fn $behaviour() {
                    let provider = smbdirect::rdma::loopback::Loopback::new();
                    super::$behaviour(std::sync::Arc::new(provider)).await;
                }
            )*
        }

        mod iwarp {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $behaviour() {
                    let provider = smbdirect::rdma::iwarp::Iwarp::new(smbdirect::rdma::iwarp::IwarpConfig::default());
                    super::$behaviour(std::sync::Arc::new(provider)).await;
                }
            )*
        }
    };
}

over_every_provider! {
    messages_of_all_sizes_both_ways
    send_many_and_recv_many_act_as_single_calls
    busy_poll_receives_messages_and_can_time_out
    smallest_credits_and_sizes_allow_traffic_both_ways
    untaken_messages_stop_the_sender_and_memory_is_bounded
    keepalive_is_a_round_trip
    a_requested_response_is_due_until_the_peer_answers
    ready_resolves_on_credits_without_a_message
    submitted_messages_leave_although_the_inbox_is_full
    wire_bytes_are_payloads_with_headers
}

/// Each end counts as received the bytes that the other end counts as sent.
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
        SendError::TooLong {
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
    assert!(matches!(error, SendError::TooLong { .. }));
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
    assert_eq!(ended, ConnectionError::Closed);
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

async fn smallest_credits_and_sizes_allow_traffic_both_ways(provider: Arc<dyn Provider>) {
    let mut small = Settings::default();
    small.send_credit_target = 1;
    small.receive_credit_max = 1;
    small.max_send_size = 128;
    small.max_receive_size = 128;
    small.max_fragmented_receive_size = 131_072;
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

async fn untaken_messages_stop_the_sender_and_memory_is_bounded(provider: Arc<dyn Provider>) {
    let mut settings = Settings::default();
    settings.credit_grant_timeout = None;
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
    let mut options = MessageOptions::default();
    options.response_requested = true;
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
    assert!(
        matches!(
            reason,
            ConnectionError::Closed | ConnectionError::ClosedHere
        ),
        "{reason}"
    );
}

async fn ready_resolves_on_credits_without_a_message(provider: Arc<dyn Provider>) {
    let mut few = few_credits();
    few.credit_grant_timeout = None;
    let Pair { client, server, .. } = pair_with(provider, few.clone(), few).await;
    let mut sent = 0;
    for _ in 0..3 {
        sent += send_until_refused(&client).await;
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
    assert_eq!(within(server.closed()).await, ConnectionError::Closed);
}

#[tokio::test]
async fn try_send_accepts_only_a_message_that_can_start() {
    let mut one = Settings::default();
    one.send_credit_target = 1;
    one.receive_credit_max = 1;
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
        let mut settings = Settings::default();
        settings.send_credit_target = credits;
        settings.receive_credit_max = credits;
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

/// 3.1.7.2 reports a connection when it arrives, 3.1.5.6 when it can be used. The listener does the
/// latter.
//= SMBD-3.1.7.2-07 test
#[tokio::test]
async fn a_peer_that_does_not_negotiate_is_never_accepted() {
    let provider = Arc::new(Iwarp::new(IwarpConfig::default()));
    let address = "127.0.0.1:0";
    let config = Config::default();
    let mut listener = Listener::bind(&*provider, address, config.clone())
        .await
        .unwrap();
    let address = listener.local_addr();
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
    assert_eq!(server.peer_addr(), client.local_addr());
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
            let address = "127.0.0.1:0";
            let listener = Listener::bind(&*provider, address, Config::default());
            let mut listener = listener.await.unwrap();
            tell.send(listener.local_addr()).unwrap();
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
        // The second message follows the first so soon that it is left to the driver task, and the messages after it
        // with it.
        drop(client.send("word").unwrap());
        drop(client.send("word").unwrap());
        // The first loop sends fewer messages than the number at which a caller flushes. The second sends more
        // than tokio lets a task do in one turn.
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

mod admission;
mod backpressure;
mod connecting;
mod ending;
mod failing;
mod frame_stream;
mod memory;
mod read_depths;
mod receivers;
