//! A stall of this process ends no connection: everything that has arrived is read before a deadline is judged,
//! and a peer that had no time to answer gets more time.

use std::{
    future::{Future, poll_fn},
    net::SocketAddr,
    pin::pin,
    sync::{Arc, mpsc},
    task::Poll,
    thread,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use smbdirect::{
    Access, BufferDescriptorV1, Config, Connection, Listener, Settings,
    rdma::{
        iwarp::{Iwarp, IwarpConfig},
        loopback::Loopback,
        provider::Provider,
    },
};
use smbdirect_test::within;
use tokio::runtime::{Builder, Runtime};

/// Every deadline of the end that is stopped.
const LIMIT: Duration = Duration::from_millis(400);
/// A stop of the thread.
const STOP: Duration = Duration::from_millis(900);
/// A stop that is over just after the deadline.
const SHORT_STOP: Duration = Duration::from_millis(403);

fn config() -> Config {
    let mut settings = Settings::default();
    settings.keepalive_response_timeout = LIMIT;
    settings.active_negotiation_timeout = LIMIT;
    settings.passive_negotiation_timeout = LIMIT;
    settings.credit_grant_timeout = Some(LIMIT);
    Config::new(settings).unwrap()
}

fn iwarp() -> Arc<dyn Provider> {
    let mut iwarp_config = IwarpConfig::default();
    iwarp_config.connect_timeout = LIMIT;
    iwarp_config.accept_timeout = LIMIT;
    iwarp_config.close_timeout = LIMIT;
    Arc::new(Iwarp::new(iwarp_config))
}

fn loopback() -> Arc<dyn Provider> {
    Arc::new(Loopback::new())
}

fn any_port() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// The runtimes on which a thread stops.
fn runtimes() -> [Runtime; 2] {
    let several = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    [one_thread(), several.unwrap()]
}

/// Runs a peer on a thread of its own that takes all messages, and returns its address.
fn peer(provider: Arc<dyn Provider>) -> SocketAddr {
    let (told, address) = mpsc::channel();
    thread::spawn(move || {
        one_thread().block_on(async move {
            let bound = Listener::bind(&*provider, any_port(), Config::default());
            let mut listener = bound.await.unwrap();
            told.send(listener.local_addr()).unwrap();
            while let Ok(connection) = listener.accept().await {
                tokio::spawn(async move { while connection.recv().await.is_ok() {} });
            }
        });
    });
    address.recv().unwrap()
}

/// Polls a future once, stops the thread, and returns the output.
async fn stopped<F: Future>(stop: Duration, future: F) -> F::Output {
    let mut future = pin!(future);
    let first = poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await;
    if let Poll::Ready(output) = first {
        return output;
    }
    thread::sleep(stop);
    within(future).await
}

#[test]
fn messages_that_wait_for_credits_and_a_keepalive_outlive_a_stop() {
    for provider in [iwarp(), loopback()] {
        let address = peer(provider.clone());
        for (runtime, stop) in runtimes().into_iter().zip([STOP, SHORT_STOP]) {
            let provider = provider.clone();
            let task = async move {
                let connection = within(Connection::connect(&*provider, address, config()));
                let connection = connection.await.unwrap();
                for _ in 0..2000 {
                    drop(connection.send(vec![1; 1000]).unwrap());
                }
                let last = connection.send("last").unwrap();
                thread::sleep(stop);
                within(last).await.unwrap();
                stopped(stop, connection.keepalive()).await.unwrap();
            };
            runtime.block_on(async { tokio::spawn(task).await.unwrap() });
        }
    }
}

/// Both ends stop, as with SIGSTOP of one process or a suspended machine: the other end has not read the question.
#[test]
fn both_ends_outlive_a_stop() {
    for provider in [iwarp(), loopback()] {
        for (runtime, stop) in runtimes().into_iter().zip([STOP, SHORT_STOP]) {
            let provider = provider.clone();
            runtime.block_on(async move {
                let (here, there) = pair(&*provider).await;
                for connection in [&here, &there] {
                    stopped(stop, connection.keepalive()).await.unwrap();
                }
                stopped(stop, here.close()).await.unwrap();
            });
        }
    }
}

async fn pair(provider: &dyn Provider) -> (Connection, Connection) {
    let mut listener = Listener::bind(provider, any_port(), config())
        .await
        .unwrap();
    let at = listener.local_addr();
    let (here, there) = tokio::join!(
        Connection::connect(provider, at, config()),
        listener.accept()
    );
    (here.unwrap(), there.unwrap())
}

/// Steps of the startup whose deadline passes while the thread is stopped.
#[test]
fn connecting_and_accepting_outlive_a_stop() {
    for provider in [iwarp(), loopback()] {
        for steps in 0..6 {
            let address = peer(provider.clone());
            one_thread().block_on(async {
                let mut connecting = pin!(Connection::connect(&*provider, address, config()));
                for _ in 0..steps {
                    let polled = tokio::time::timeout(Duration::from_micros(300), &mut connecting);
                    if let Ok(done) = polled.await {
                        done.unwrap();
                        return;
                    }
                }
                thread::sleep(STOP);
                within(connecting).await.unwrap();
            });
            one_thread().block_on(async {
                let bound = Listener::bind(&*provider, any_port(), config());
                let mut listener = bound.await.unwrap();
                let (at, there) = (listener.local_addr(), provider.clone());
                let connecting = thread::spawn(move || {
                    let connecting = async {
                        let long = IwarpConfig::default();
                        let iwarp: Arc<dyn Provider> = Arc::new(Iwarp::new(long));
                        let there = if there.attributes().name == "iwarp" {
                            iwarp
                        } else {
                            there
                        };
                        let connection = Connection::connect(&*there, at, Config::default());
                        drop(within(connection).await.unwrap());
                    };
                    one_thread().block_on(connecting);
                });
                for _ in 0..steps {
                    let polled =
                        tokio::time::timeout(Duration::from_micros(300), listener.accept());
                    if polled.await.is_ok() {
                        return connecting.join().unwrap();
                    }
                }
                thread::sleep(STOP);
                within(listener.accept()).await.unwrap();
                connecting.join().unwrap();
            });
        }
    }
}

/// The rest of the data is still in this process when the thread goes on after `close_timeout`.
#[test]
fn a_close_outlives_a_stop() {
    const BYTES: usize = 32 << 20;
    let (told, places) = mpsc::channel::<(SocketAddr, BufferDescriptorV1)>();
    let (done, is_done) = mpsc::channel();
    let peer = thread::spawn(move || {
        one_thread().block_on(async move {
            let provider = Iwarp::new(IwarpConfig::default());
            let bound = Listener::bind(&provider, any_port(), Config::default());
            let mut listener = bound.await.unwrap();
            let nothing = BufferDescriptorV1 {
                offset: 0,
                token: 0,
                length: 0,
            };
            told.send((listener.local_addr(), nothing)).unwrap();
            let connection = listener.accept().await.unwrap();
            let region = connection
                .register(BytesMut::zeroed(BYTES), Access::REMOTE_WRITE)
                .unwrap();
            told.send((connection.local_addr(), region.descriptor()))
                .unwrap();
            connection.closed().await;
            done.send(region.deregister().await.unwrap()).unwrap();
        });
    });
    one_thread().block_on(async {
        let provider = iwarp();
        let (address, _) = places.recv().unwrap();
        let connection = Connection::connect(&*provider, address, config())
            .await
            .unwrap();
        let place = tokio::task::spawn_blocking(move || places.recv().unwrap().1)
            .await
            .unwrap();
        let writing = connection.write(&[place], 0, Bytes::from(vec![7; BYTES]));
        stopped(STOP, connection.close()).await.unwrap();
        within(writing).await.unwrap();
    });
    assert!(is_done.recv().unwrap().iter().all(|&byte| byte == 7));
    peer.join().unwrap();
}

/// The grant follows more data than one read takes, and more than the socket holds.
#[test]
fn a_grant_behind_other_data_counts() {
    const BYTES: usize = 16 << 20;
    for runtime in runtimes() {
        let (told, address) = mpsc::channel();
        let (tell, descriptor) = mpsc::channel::<BufferDescriptorV1>();
        let peer = thread::spawn(move || {
            one_thread().block_on(async move {
                let provider = Iwarp::new(IwarpConfig::default());
                let mut settings = Settings::default();
                settings.receive_buffer = Some(128 * 1024);
                settings.receive_credit_max = 8;
                let config = Config::new(settings).unwrap();
                let mut listener = Listener::bind(&provider, any_port(), config).await.unwrap();
                told.send(listener.local_addr()).unwrap();
                let connection = listener.accept().await.unwrap();
                let place = descriptor.recv().unwrap();
                drop(connection.write(&[place], 0, Bytes::from(vec![7; BYTES])));
                while connection.recv().await.is_ok() {}
            });
        });
        let task = async move {
            let provider = iwarp();
            let connection = Connection::connect(&*provider, address.recv().unwrap(), config());
            let connection = connection.await.unwrap();
            let region = connection
                .register(BytesMut::zeroed(BYTES), Access::REMOTE_WRITE)
                .unwrap();
            for _ in 0..100 {
                drop(connection.send(vec![1; 1000]).unwrap());
            }
            let last = connection.send("last").unwrap();
            tell.send(region.descriptor()).unwrap();
            thread::sleep(STOP);
            within(last).await.unwrap();
            connection.close().await.unwrap();
        };
        runtime.block_on(async { tokio::spawn(task).await.unwrap() });
        peer.join().unwrap();
    }
}

/// The connection to a peer that always sends something, but never the answer that is due, ends nevertheless.
#[test]
fn a_peer_that_floods_is_given_up() {
    const BYTES: usize = 1 << 20;
    let (told, address) = mpsc::channel();
    let (tell, descriptor) = mpsc::channel::<BufferDescriptorV1>();
    let peer = thread::spawn(move || {
        one_thread().block_on(async move {
            let provider = Iwarp::new(IwarpConfig::default());
            let mut settings = Settings::default();
            settings.receive_buffer = Some(128 * 1024);
            settings.receive_credit_max = 8;
            let config = Config::new(settings).unwrap();
            let mut listener = Listener::bind(&provider, any_port(), config).await.unwrap();
            told.send(listener.local_addr()).unwrap();
            let connection = listener.accept().await.unwrap();
            let place = descriptor.recv().unwrap();
            let data = Bytes::from(vec![7; BYTES]);
            while connection.write(&[place], 0, data.clone()).await.is_ok() {}
        });
    });
    one_thread().block_on(async move {
        let provider = iwarp();
        let connection = Connection::connect(&*provider, address.recv().unwrap(), config());
        let connection = connection.await.unwrap();
        let region = connection
            .register(BytesMut::zeroed(BYTES), Access::REMOTE_WRITE)
            .unwrap();
        tell.send(region.descriptor()).unwrap();
        for _ in 0..2000 {
            drop(connection.send(vec![1; 1000]).unwrap());
        }
        let since = Instant::now();
        within(connection.send("last").unwrap()).await.unwrap_err();
        within(connection.closed()).await;
        assert!(since.elapsed() >= LIMIT);
    });
    peer.join().unwrap();
}

/// A process of its own that is stopped and continued by signals.
#[cfg(target_os = "linux")]
#[test]
fn a_process_outlives_sigstop() {
    use std::{
        io::{BufRead, BufReader},
        process::{Command, Stdio},
    };
    let this = std::env::current_exe().unwrap();
    let mut child = Command::new(this)
        .args([
            "--exact",
            "stalls::child_that_is_stopped",
            "--ignored",
            "--nocapture",
        ])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let signal = |name: &str| {
        let pid = child.id().to_string();
        assert!(
            Command::new("kill")
                .args([name, &pid])
                .status()
                .unwrap()
                .success()
        );
    };
    let mut rounds = 0;
    for line in lines {
        if line.unwrap().contains("asking") {
            rounds += 1;
            signal("-STOP");
            thread::sleep(STOP);
            signal("-CONT");
        }
    }
    assert!(child.wait().unwrap().success());
    assert_eq!(rounds, 4);
}

#[test]
#[ignore = "a_process_outlives_sigstop runs it"]
fn child_that_is_stopped() {
    let address = peer(iwarp());
    for runtime in runtimes() {
        runtime.block_on(async move {
            let provider = iwarp();
            let connection = within(Connection::connect(&*provider, address, config()));
            let connection = connection.await.unwrap();
            for _ in 0..2 {
                println!("asking");
                // The other process stops this process at about this time.
                let since = Instant::now();
                while since.elapsed() < STOP {
                    within(connection.keepalive()).await.unwrap();
                    within(connection.send("x").unwrap()).await.unwrap();
                }
            }
        });
    }
}
