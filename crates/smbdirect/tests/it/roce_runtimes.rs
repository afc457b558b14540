//! A RoCE provider that several runtimes use: runtimes that end, that are not driven, and whose clocks are
//! paused. The tests for RoCE also run with iWARP and loopback where that is possible.

use std::{
    net::UdpSocket,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use smbdirect::{
    Config, Connection, Iwarp, IwarpConfig, Listener, Loopback,
    rdma::{
        provider::Provider,
        roce::{Roce, RoceConfig},
    },
};
use tokio::{
    runtime::{Builder, Runtime},
    time::{sleep, timeout},
};

/// The time after which a test has failed. A loaded machine takes a small part of it.
const LIMIT: Duration = Duration::from_secs(60);

/// Returns a provider with a UDP port that was free.
fn roce() -> Roce {
    let probe = UdpSocket::bind("127.0.0.1:0").unwrap();
    let udp_port = probe.local_addr().unwrap().port();
    let mut roce_config = RoceConfig::default();
    roce_config.udp_port = udp_port;
    roce_config.peer_udp_port = udp_port;
    Roce::new(roce_config)
}

fn many_threads() -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(1).enable_all().build().unwrap()
}

fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn paused() -> Runtime {
    let mut builder = Builder::new_current_thread();
    builder.enable_all().start_paused(true).build().unwrap()
}

async fn listener(provider: &dyn Provider) -> Listener {
    let address = "127.0.0.1:0";
    Listener::bind(provider, address, Config::default())
        .await
        .unwrap()
}

/// Returns a connection and its other end.
async fn pair(provider: &dyn Provider) -> (Connection, Connection) {
    let mut listener = listener(provider).await;
    let client = Connection::connect(provider, listener.local_addr(), Config::default());
    let client = client.await.unwrap();
    (client, listener.accept().await.unwrap())
}

/// Moves a short message in each direction.
async fn talk(pair: &(Connection, Connection)) {
    talk_of(pair, "hello".into()).await;
}

/// Moves a message in each direction.
async fn talk_of((one, other): &(Connection, Connection), message: Bytes) {
    for (from, to) in [(one, other), (other, one)] {
        from.send(message.clone()).unwrap().await.unwrap();
        assert_eq!(to.recv().await.unwrap().into_bytes(), message);
    }
}

/// Runs `test` in a thread, and fails if it does not end in time.
fn within_limit(test: impl FnOnce() + Send + 'static) {
    let (done, wait) = mpsc::channel();
    let thread = thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    let waited = wait.recv_timeout(LIMIT);
    assert!(
        waited != Err(mpsc::RecvTimeoutError::Timeout),
        "the test does not end"
    );
    thread.join().unwrap();
}

fn limited<T>(runtime: &Runtime, future: impl Future<Output = T>) -> T {
    runtime.block_on(async { timeout(LIMIT, future).await.expect("in time") })
}

#[test]
fn a_connection_outlives_the_runtime_that_used_the_provider_first() {
    for keeps_handles in [false, true] {
        within_limit(move || {
            let provider = roce();
            let (first, second) = (many_threads(), many_threads());
            let mut handles = Some(limited(&first, async {
                (listener(&provider).await, pair(&provider).await)
            }));
            let talking = limited(&second, pair(&provider));
            limited(&second, talk(&talking));
            if !keeps_handles {
                handles = None;
            }
            drop(first);
            limited(&second, async {
                talk(&talking).await;
                talk(&pair(&provider).await).await;
            });
            drop(handles);
            limited(&second, async {
                talk(&talking).await;
                talk(&pair(&provider).await).await;
            });
        });
    }
}

#[test]
fn a_provider_works_after_all_its_runtimes_have_ended() {
    within_limit(|| {
        let provider = roce();
        let mut kept = Vec::new();
        for keeps_handles in [false, true, false, true] {
            let runtime = one_thread();
            let pair = limited(&runtime, async {
                let pair = pair(&provider).await;
                talk(&pair).await;
                pair
            });
            if keeps_handles {
                kept.push(pair);
            }
        }
    });
}

#[test]
fn a_runtime_that_is_not_driven_stops_no_other_one() {
    within_limit(|| {
        let provider = roce();
        let (idle, busy) = (one_thread(), one_thread());
        let waiting = limited(&idle, pair(&provider));
        let talking = limited(&busy, pair(&provider));
        limited(&busy, talk(&talking));
        limited(&idle, talk(&waiting));
        drop(idle);
        limited(&busy, talk(&talking));
    });
}

#[test]
fn the_two_ends_of_a_connection_are_in_two_runtimes() {
    within_limit(|| {
        let provider = roce();
        let (here, there) = (many_threads(), many_threads());
        let mut listener = limited(&there, listener(&provider));
        let address = listener.local_addr();
        let accepting = there.spawn(async move { listener.accept().await.unwrap() });
        let client = limited(&here, async {
            Connection::connect(&provider, address, Config::default())
                .await
                .unwrap()
        });
        let server = limited(&there, accepting).unwrap();
        limited(&here, async { client.send("one").unwrap().await.unwrap() });
        let message = limited(&there, server.recv()).unwrap();
        assert_eq!(message.into_bytes(), "one");
        // Messages that are submitted when a runtime ends still arrive, followed by the end of the connection.
        limited(&here, async {
            for _ in 0..6 {
                drop(client.send("last").unwrap());
            }
        });
        drop(here);
        drop(client);
        for _ in 0..6 {
            let message = limited(&there, server.recv()).unwrap();
            assert_eq!(message.into_bytes(), "last");
        }
        assert!(limited(&there, server.recv()).is_err());
    });
}

/// The tests of a program run one after the other, or concurrently, each with a runtime of its own.
#[test]
fn many_runtimes_come_and_go() {
    within_limit(|| {
        let provider = roce();
        thread::scope(|scope| {
            for worker in 0..4 {
                let provider = &provider;
                scope.spawn(move || {
                    for round in 0..5 {
                        let runtime = match (worker + round) % 2 {
                            0 => one_thread(),
                            _ => many_threads(),
                        };
                        limited(&runtime, async {
                            talk(&pair(provider).await).await;
                        });
                    }
                });
            }
        });
    });
}

/// Hours pass in the clock of the runtime.
fn sleeps_for_hours(provider: &dyn Provider) {
    let runtime = paused();
    let start = Instant::now();
    let pair = runtime.block_on(async {
        let pair = pair(provider).await;
        talk(&pair).await;
        for seconds in [60, 3600] {
            sleep(Duration::from_secs(seconds)).await;
            talk(&pair).await;
            // After bulk data, an idle end polls before it sleeps.
            talk_of(&pair, vec![7; 256 * 1024].into()).await;
        }
        // A future that busy-polls sleeps in the end, too.
        pair.1.set_busy_poll(Duration::from_micros(50));
        assert!(
            timeout(Duration::from_secs(60), pair.1.recv())
                .await
                .is_err()
        );
        sleep(Duration::from_secs(3600)).await;
        assert!(pair.0.error().is_none() && pair.1.error().is_none());
        pair
    });
    runtime.block_on(async {
        pair.0.close().await.unwrap();
        assert!(pair.1.recv().await.is_err());
    });
    assert!(start.elapsed() < LIMIT);
}

#[test]
fn a_paused_clock_does_not_keep_a_connection_busy() {
    within_limit(|| sleeps_for_hours(&roce()));
    within_limit(|| sleeps_for_hours(&Iwarp::new(IwarpConfig::default())));
    within_limit(|| sleeps_for_hours(&Loopback::new()));
}

#[test]
fn clocks_of_several_runtimes_do_not_disturb_each_other() {
    within_limit(|| {
        let provider = roce();
        let real = many_threads();
        let talking = limited(&real, pair(&provider));
        let (stop, stopped) = mpsc::channel::<()>();
        let talks = real.spawn(async move {
            let mut rounds = 0;
            while stopped.try_recv() == Err(mpsc::TryRecvError::Empty) {
                talk(&talking).await;
                rounds += 1;
            }
            rounds
        });
        for _ in 0..3 {
            sleeps_for_hours(&provider);
        }
        stop.send(()).unwrap();
        assert!(limited(&real, talks).unwrap() > 0);
    });
}

/// Both ends have packets in flight, and the process then does not run for longer than the peer may take.
#[test]
fn a_stall_of_this_process_breaks_no_connection() {
    within_limit(|| {
        let provider = roce();
        let runtime = one_thread();
        runtime.block_on(async {
            let (client, server) = pair(&provider).await;
            let sending = [client.send("one").unwrap(), server.send("two").unwrap()];
            // The requester gives up after 4.3 s without an answer.
            thread::sleep(Duration::from_millis(4700));
            for sent in sending {
                sent.await.unwrap();
            }
            assert_eq!(server.recv().await.unwrap().into_bytes(), "one");
            assert_eq!(client.recv().await.unwrap().into_bytes(), "two");
        });
    });
}
