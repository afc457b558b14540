//! A message that was reported as sent is delivered: after the handles are dropped, and after the runtime or the
//! process ends.

use std::{
    env,
    net::{SocketAddr, UdpSocket},
    process::{Command, Stdio},
    sync::mpsc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use smbdirect::{
    Config, Connection, ConnectionError, Iwarp, IwarpConfig, Listener, Loopback, Provider,
    Settings,
    rdma::roce::{Roce, RoceConfig},
};
use smbdirect_test::within;
use tokio::runtime::{Builder, Runtime};

/// Messages of each test. Together they are more than the receive window of a peer that does not read.
const MESSAGES: usize = 6;
const MESSAGE_BYTES: usize = 300_000;
/// A time limit that no passing test reaches on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn two_threads() -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().unwrap()
}

/// Creates a provider for each end of a connection.
type Provide = fn() -> [Box<dyn Provider>; 2];

fn iwarp() -> [Box<dyn Provider>; 2] {
    [(), ()].map(|()| Box::new(Iwarp::new(IwarpConfig::default())) as Box<dyn Provider>)
}

fn loopback() -> [Box<dyn Provider>; 2] {
    let provider = Loopback::new();
    [Box::new(provider.clone()), Box::new(provider)]
}

/// Two providers with one UDP port: the one that connects finds it taken, and uses a free one.
fn roce() -> [Box<dyn Provider>; 2] {
    let probe = UdpSocket::bind("127.0.0.1:0").unwrap();
    let udp_port = probe.local_addr().unwrap().port();
    drop(probe);
    let mut config = RoceConfig::default();
    config.udp_port = udp_port;
    config.peer_udp_port = udp_port;
    [config.clone(), config].map(|config| Box::new(Roce::new(config)) as Box<dyn Provider>)
}

/// The providers whose peer may be late. RoCE reports a message as sent when the peer has acknowledged it.
const PROVIDERS: [Provide; 2] = [iwarp, loopback];

/// What a peer has received at the end of its connection.
#[derive(Debug, PartialEq)]
struct Received {
    messages: usize,
    bytes: usize,
    end: ConnectionError,
}

impl Received {
    /// All messages, and the end of a connection that the other end has closed.
    fn all(messages: usize) -> Self {
        Self {
            messages,
            bytes: messages * MESSAGE_BYTES,
            end: ConnectionError::Closed,
        }
    }
}

/// A peer on a thread and a runtime of its own.
struct Peer {
    address: SocketAddr,
    /// Has the peer, which blocks its thread after it has accepted a connection, receive.
    resume: mpsc::Sender<()>,
    accepted: mpsc::Receiver<()>,
    thread: JoinHandle<Received>,
}

impl Peer {
    /// Starts a peer that first sends `greetings`.
    fn start(provider: Box<dyn Provider>, greetings: usize) -> Self {
        let (send_address, address) = mpsc::channel();
        let (resume, resumed) = mpsc::channel();
        let (has_accepted, accepted) = mpsc::channel();
        let serve = async move {
            let any = SocketAddr::from(([127, 0, 0, 1], 0));
            let mut listener = Listener::bind(&*provider, any, Config::default())
                .await
                .unwrap();
            send_address.send(listener.local_addr()).unwrap();
            let connection = listener.accept().await.unwrap();
            for _ in 0..greetings {
                connection.send("a greeting").unwrap().await.unwrap();
            }
            // The client's first grant arrives, so that it can be granted all credits.
            within(connection.ready()).await.unwrap();
            connection.keepalive().await.unwrap();
            has_accepted.send(()).unwrap();
            resumed.recv_timeout(LIMIT).unwrap();
            receive_all(&connection).await
        };
        let thread = thread::spawn(|| current_thread().block_on(serve));
        Self {
            address: address.recv_timeout(LIMIT).unwrap(),
            resume,
            accepted,
            thread,
        }
    }

    /// Waits until the peer blocks.
    fn wait_until_accepted(&self) {
        self.accepted.recv_timeout(LIMIT).unwrap();
    }

    fn received(self) -> Received {
        // It may have resumed already.
        let _ = self.resume.send(());
        self.thread.join().unwrap()
    }
}

async fn receive_all(connection: &Connection) -> Received {
    let (mut messages, mut bytes) = (0, 0);
    loop {
        match within(connection.recv()).await {
            Ok(message) => (messages, bytes) = (messages + 1, bytes + message.len()),
            Err(end) => {
                return Received {
                    messages,
                    bytes,
                    end,
                };
            }
        }
    }
}

async fn connect(provider: &dyn Provider, peer: &Peer) -> Connection {
    let connecting = Connection::connect(provider, peer.address, Config::default());
    let connection = within(connecting).await.unwrap();
    // The driver task answers the keepalive of the peer.
    while peer.accepted.try_recv().is_err() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    connection
}

/// Sends all messages, and waits for each to be reported as sent.
async fn send_and_wait(connection: &Connection) {
    for _ in 0..MESSAGES {
        let sending = connection.send(vec![5; MESSAGE_BYTES]).unwrap();
        within(sending).await.unwrap();
    }
}

#[test]
fn messages_reported_as_sent_arrive_after_the_runtime_has_ended() {
    for provide in PROVIDERS {
        for runtime in [current_thread, two_threads] {
            let [ours, theirs] = provide();
            let peer = Peer::start(theirs, 0);
            let runtime = runtime();
            runtime.block_on(async {
                let connection = connect(&*ours, &peer).await;
                send_and_wait(&connection).await;
            });
            drop(runtime);
            assert_eq!(peer.received(), Received::all(MESSAGES));
        }
    }
}

#[test]
fn submitted_messages_arrive_after_the_runtime_has_ended() {
    for provide in PROVIDERS {
        // The second number needs more credits than the peer has granted.
        for messages in [MESSAGES, 20] {
            let [ours, theirs] = provide();
            let peer = Peer::start(theirs, 0);
            let runtime = current_thread();
            runtime.block_on(async {
                let connection = connect(&*ours, &peer).await;
                for _ in 0..messages {
                    drop(connection.send(vec![5; MESSAGE_BYTES]).unwrap());
                }
            });
            drop(runtime);
            assert_eq!(peer.received(), Received::all(messages));
        }
    }
}

#[test]
fn messages_over_roce_arrive_after_the_runtime_has_ended() {
    for (runtime, waits) in [
        (current_thread as fn() -> Runtime, true),
        (two_threads, true),
        (current_thread, false),
    ] {
        let [ours, theirs] = roce();
        let peer = Peer::start(theirs, 50);
        peer.resume.send(()).unwrap();
        let runtime = runtime();
        runtime.block_on(async {
            let connection = connect(&*ours, &peer).await;
            if waits {
                send_and_wait(&connection).await;
            } else {
                (0..MESSAGES).for_each(|_| drop(connection.send(vec![5; MESSAGE_BYTES]).unwrap()));
            }
        });
        drop(runtime);
        assert_eq!(peer.received(), Received::all(MESSAGES));
    }
}

#[test]
fn a_connection_goes_on_after_its_runtime_until_its_handles_are_dropped() {
    for provide in PROVIDERS {
        let [ours, theirs] = provide();
        let peer = Peer::start(theirs, 3);
        let runtime = two_threads();
        let connection = runtime.block_on(connect(&*ours, &peer));
        drop(runtime);
        current_thread().block_on(async {
            send_and_wait(&connection).await;
            for _ in 0..3 {
                let greeting = within(connection.recv()).await.unwrap();
                assert_eq!(greeting.into_bytes(), "a greeting");
            }
        });
        drop(connection);
        assert_eq!(peer.received(), Received::all(MESSAGES));
    }
}

#[test]
fn unread_messages_do_not_keep_ours_from_arriving() {
    for provide in PROVIDERS {
        let [ours, theirs] = provide();
        let peer = Peer::start(theirs, 200);
        let runtime = current_thread();
        runtime.block_on(async {
            let connection = connect(&*ours, &peer).await;
            send_and_wait(&connection).await;
        });
        drop(runtime);
        assert_eq!(peer.received(), Received::all(MESSAGES));
    }
}

/// The runtime ends while the peer sends. Bytes that arrive at a closed socket make TCP discard what it has not
/// delivered.
#[test]
fn a_peer_that_sends_all_the_time_gets_what_was_sent() {
    for provide in PROVIDERS {
        let [ours, theirs] = provide();
        let (send_address, address) = mpsc::channel();
        let peer = thread::spawn(move || {
            current_thread().block_on(async {
                let any = SocketAddr::from(([127, 0, 0, 1], 0));
                let mut listener = Listener::bind(&*theirs, any, Config::default())
                    .await
                    .unwrap();
                send_address.send(listener.local_addr()).unwrap();
                let connection = listener.accept().await.unwrap();
                let sender = connection.clone();
                let sending = async move {
                    while sender.ready().await.is_ok() && sender.send(vec![1; 5000]).is_ok() {
                        tokio::task::yield_now().await;
                    }
                };
                let (received, ()) = tokio::join!(receive_all(&connection), sending);
                received
            })
        });
        let address = address.recv_timeout(LIMIT).unwrap();
        let runtime = current_thread();
        runtime.block_on(async {
            let connecting = Connection::connect(&*ours, address, Config::default());
            let connection = within(connecting).await.unwrap();
            within(connection.recv()).await.unwrap();
            send_and_wait(&connection).await;
        });
        drop(runtime);
        assert_eq!(peer.join().unwrap(), Received::all(MESSAGES));
    }
}

/// A message whose future has not resolved is not reported as sent, and the close sends it all the same.
#[test]
fn a_future_that_waits_elsewhere_learns_that_its_message_was_sent() {
    let [ours, theirs] = iwarp();
    let peer = Peer::start(theirs, 0);
    let runtime = current_thread();
    let sending = runtime.block_on(async {
        let connection = connect(&*ours, &peer).await;
        let sending = connection.send(vec![5; MESSAGE_BYTES]).unwrap();
        drop(connection.send(vec![5; 2 * MESSAGE_BYTES]).unwrap());
        [sending]
    });
    drop(runtime);
    let [sending] = sending;
    current_thread().block_on(within(sending)).unwrap();
    let expected = Received {
        messages: 2,
        ..Received::all(3)
    };
    assert_eq!(peer.received(), expected);
}

#[test]
fn an_abort_discards_what_has_not_left() {
    let [ours, theirs] = iwarp();
    let peer = Peer::start(theirs, 0);
    let runtime = current_thread();
    runtime.block_on(async {
        let connection = connect(&*ours, &peer).await;
        send_and_wait(&connection).await;
        connection.abort();
        assert_eq!(within(connection.closed()).await, ConnectionError::Aborted);
    });
    drop(runtime);
    let received = peer.received();
    assert!(received.messages < MESSAGES, "{received:?}");
    assert!(
        matches!(received.end, ConnectionError::Provider(_)),
        "{received:?}"
    );
}

/// This end gives up waiting for credits. A message that was reported as sent before that still arrives.
#[test]
fn messages_reported_as_sent_survive_the_credit_timer() {
    for provide in PROVIDERS {
        let [ours, theirs] = provide();
        let peer = Peer::start(theirs, 0);
        let sent = current_thread().block_on(async {
            let mut settings = Settings::default();
            settings.credit_grant_timeout = Some(Duration::from_millis(200));
            let config = Config::new(settings);
            let connecting = Connection::connect(&*ours, peer.address, config.unwrap());
            let connection = within(connecting).await.unwrap();
            while peer.accepted.try_recv().is_err() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let sends: Vec<_> = (0..2 * MESSAGES)
                .map(|_| connection.send(vec![5; MESSAGE_BYTES]).unwrap())
                .collect();
            let mut sent = 0;
            for sending in sends {
                sent += usize::from(within(sending).await.is_ok());
            }
            let timed_out = connection.error();
            assert!(
                matches!(timed_out, Some(ConnectionError::TimedOut(_))),
                "{timed_out:?}"
            );
            sent
        });
        assert!((1..2 * MESSAGES).contains(&sent));
        let received = peer.received();
        assert!(received.messages >= sent, "{sent} sent, {received:?}");
    }
}

#[test]
fn a_close_reports_a_peer_that_has_not_taken_everything() {
    let [_, theirs] = iwarp();
    let peer = Peer::start(theirs, 0);
    let mut iwarp_config = IwarpConfig::default();
    iwarp_config.close_timeout = Duration::from_millis(100);
    let ours = Iwarp::new(iwarp_config);
    let end = current_thread().block_on(async {
        let connection = connect(&ours, &peer).await;
        send_and_wait(&connection).await;
        within(connection.close()).await.unwrap_err()
    });
    assert!(matches!(end, ConnectionError::Provider(_)), "{end}");
    peer.received();
}

#[test]
fn two_ends_of_one_runtime_end_without_delay() {
    for provide in PROVIDERS {
        for runtime in [current_thread, two_threads] {
            let [ours, theirs] = provide();
            let started = Instant::now();
            let ended = thread::spawn(move || {
                runtime().block_on(async {
                    let any = SocketAddr::from(([127, 0, 0, 1], 0));
                    let listening = Listener::bind(&*theirs, any, Config::default());
                    let mut listener = listening.await.unwrap();
                    let connecting =
                        Connection::connect(&*ours, listener.local_addr(), Config::default());
                    let connection = within(connecting).await.unwrap();
                    let accepted = within(listener.accept()).await.unwrap();
                    connection.send("one").unwrap().await.unwrap();
                    accepted.send("two").unwrap().await.unwrap();
                });
            });
            ended.join().unwrap();
            assert!(started.elapsed() < Duration::from_secs(4));
        }
    }
}

/// The address of the peer, for a process that this test has started.
const ADDRESS: &str = "SMBDIRECT_TEST_DELIVERY_TO";

/// Sends to the peer and ends, if another process has started this one for that.
fn sends_as_a_program(runtime: Runtime, run: impl AsyncFnOnce(Connection)) -> bool {
    let Ok(address) = env::var(ADDRESS) else {
        return false;
    };
    runtime.block_on(async {
        let provider = Iwarp::new(IwarpConfig::default());
        let connecting = Connection::connect(&provider, address, Config::default());
        let connection = within(connecting).await.unwrap();
        within(connection.recv()).await.unwrap();
        run(connection).await;
    });
    true
}

/// Starts this process again with only the test `name`, and returns what it sends to a peer that is late.
fn received_from_program(name: &str) -> Received {
    let [_, theirs] = iwarp();
    let peer = Peer::start(theirs, 1);
    let mut program = Command::new(env::current_exe().unwrap());
    program.args(["--exact", &format!("delivery::{name}"), "--test-threads=1"]);
    program.env(ADDRESS, peer.address.to_string());
    let mut program = program.stdout(Stdio::null()).spawn().unwrap();
    peer.wait_until_accepted();
    // The process is about to end while its peer does not receive.
    thread::sleep(Duration::from_millis(300));
    let received = peer.received();
    assert!(program.wait().unwrap().success());
    received
}

#[test]
fn messages_arrive_after_main_has_returned() {
    if sends_as_a_program(current_thread(), async |connection| {
        send_and_wait(&connection).await;
    }) {
        return;
    }
    let received = received_from_program("messages_arrive_after_main_has_returned");
    assert_eq!(received, Received::all(MESSAGES));
}

#[test]
fn messages_arrive_after_main_with_threads_has_returned() {
    let submits = async |connection: Connection| {
        for _ in 0..MESSAGES {
            drop(connection.send(vec![5; MESSAGE_BYTES]).unwrap());
        }
    };
    if sends_as_a_program(two_threads(), submits) {
        return;
    }
    let received = received_from_program("messages_arrive_after_main_with_threads_has_returned");
    assert_eq!(received, Received::all(MESSAGES));
}
