//! Random commands from several tasks over every provider and kind of runtime. Any future may be dropped
//! before it resolves. Every connection must end, and no work or registration may be left.
//!
//! `STRESS_SEED=7 cargo test -p smbdirect --test it stress::` repeats one run, as far as threads allow.

use std::{future::poll_fn, pin::pin, sync::Arc, task::Poll, time::Duration};

use bytes::BytesMut;
use fastrand::Rng;
use smbdirect::{
    Access, BufferDescriptorV1, Config, Connection, ConnectionError, Listener, Settings,
    rdma::{
        iwarp::{Iwarp, IwarpConfig},
        loopback::Loopback,
        memory::RegisterFault,
        provider::Provider,
        roce::{Roce, RoceConfig},
    },
};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};

/// Runs with each provider and kind of runtime.
const SEEDS: u64 = 12;
/// Tasks that use each end.
const TASKS: u64 = 4;
/// Longest time that a run may take.
const RUN_LIMIT: Duration = Duration::from_secs(30);

/// Returns a length that is mostly short, and sometimes long.
fn any_length(random: &mut Rng) -> usize {
    let largest = [1, 100, 9000, 100_000][random.usize(..4)];
    random.usize(..=largest)
}

/// Awaits `future`, or polls it a few times and drops it.
async fn perhaps<T>(random: &mut Rng, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    if random.u64(..2) == 0 {
        let patience = Duration::from_millis(random.u64(..20));
        return timeout(patience, future).await.ok();
    }
    let mut polls = random.u64(..4);
    poll_fn(|context| {
        if polls == 0 {
            return Poll::Ready(None);
        }
        polls -= 1;
        if let Poll::Ready(result) = future.as_mut().poll(context) {
            return Poll::Ready(Some(result));
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await
}

/// The descriptors that each end has registered for the other.
type Memory = Arc<[watch::Sender<Vec<BufferDescriptorV1>>; 2]>;

/// Runs one of several users of one end, until the connection is over.
async fn user(connection: Connection, end: usize, memory: Memory, mut random: Rng) {
    while connection.error().is_none() {
        let theirs = memory[1 - end].borrow().clone();
        let length = any_length(&mut random);
        match random.u64(..12) {
            0..3 => {
                if let Ok(sending) = connection.send(vec![7; length]) {
                    perhaps(&mut random, sending).await;
                }
            }
            3 => drop(connection.try_send(vec![7; length])),
            4 => drop(perhaps(&mut random, connection.ready()).await),
            5 => drop(perhaps(&mut random, connection.recv_segment()).await),
            6 => drop(perhaps(&mut random, connection.keepalive()).await),
            7 => {
                let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
                let access = if random.u64(..2) == 0 {
                    access
                } else {
                    Access::REMOTE_READ
                };
                let buffer = BytesMut::zeroed(100_000);
                let region = match connection.register(buffer, access) {
                    Ok(region) => region,
                    Err(error) => {
                        assert_eq!(error.reason, RegisterFault::Connection);
                        continue;
                    }
                };
                if access.contains(Access::REMOTE_WRITE) {
                    // The region is kept to the end: a peer that used it later would break the protocol.
                    memory[end].send_modify(|all| all.push(region.descriptor()));
                    let connection = connection.clone();
                    tokio::spawn(async move {
                        connection.closed().await;
                        drop(connection);
                        drop(region);
                    });
                } else if random.u64(..2) == 0 {
                    perhaps(&mut random, region.deregister()).await;
                }
            }
            8 if !theirs.is_empty() => {
                let into = BytesMut::zeroed(length);
                let reading = connection.read(&theirs[..1], 0, into);
                if let Some(read) = perhaps(&mut random, reading).await {
                    let buffer = read.unwrap_or_else(|error| error.buffer.unwrap());
                    assert_eq!(buffer.len(), length);
                }
            }
            9 if !theirs.is_empty() => {
                let writing = connection.write(&theirs[..1], 0, vec![9; length]);
                drop(perhaps(&mut random, writing).await);
            }
            10 => drop(perhaps(&mut random, connection.closed()).await),
            _ => drop(perhaps(&mut random, connection.recv()).await),
        }
    }
}

/// Takes every message, so that the other end gets its credits.
async fn taker(connection: Connection) {
    while connection.recv().await.is_ok() {}
}

async fn run_seed(provider: Arc<dyn Provider>, seed: u64) {
    let mut random = Rng::with_seed(seed);
    let credits = [1, 2, 10, 255][random.usize(..4)];
    let mut settings = Settings::default();
    settings.send_credit_target = credits;
    settings.receive_credit_max = credits;
    let config = Config::new(settings).unwrap();
    let address = "127.0.0.1:0";
    let mut listener = Listener::bind(&*provider, address, config.clone())
        .await
        .unwrap();
    let address = listener.local_addr();
    // Some attempts are abandoned while they connect.
    for _ in 0..random.u64(..5) {
        let connecting = Connection::connect(&*provider, address, config.clone());
        drop(perhaps(&mut random, connecting).await);
    }
    let client = Connection::connect(&*provider, address, config)
        .await
        .unwrap();
    // Abandoned attempts may have been accepted, and over RoCE all connections of a socket have its address. The
    // other end of one connection closes without a message.
    drop(client.send("this one"));
    let server = loop {
        let server = listener.accept().await.unwrap();
        if server.recv().await.is_ok() {
            break server;
        }
    };
    let memory: Memory = Arc::new([watch::Sender::default(), watch::Sender::default()]);
    let mut users = JoinSet::new();
    for (end, connection) in [(0, &client), (1, &server)] {
        users.spawn(taker(connection.clone()));
        for _ in 0..TASKS {
            let random = random.fork();
            users.spawn(user(connection.clone(), end, memory.clone(), random));
        }
    }
    sleep(Duration::from_millis(50 + random.u64(..100))).await;
    match random.u64(..4) {
        0 => drop(perhaps(&mut random, client.close()).await),
        1 => drop(perhaps(&mut random, server.close()).await),
        2 => drop(tokio::join!(client.close(), server.close())),
        _ => {
            let both = [client.clone(), server.clone()];
            for connection in both {
                tokio::spawn(async move { connection.close().await });
            }
        }
    }
    // A close that was never polled has done nothing.
    client.close().await.unwrap();
    for connection in [&client, &server] {
        let reason = connection.closed().await;
        assert!(
            matches!(
                reason,
                ConnectionError::Closed | ConnectionError::ClosedHere
            ),
            "{reason}"
        );
    }
    while let Some(user) = users.join_next().await {
        user.unwrap();
    }
    for connection in [client, server] {
        let left = || {
            let stats = connection.stats();
            (
                stats.receives_outstanding,
                stats.work_outstanding,
                stats.regions,
            )
        };
        // Other tasks drop the regions, and may not have done so yet.
        while left() != (0, 0, 0) {
            sleep(Duration::from_millis(1)).await;
        }
    }
}

fn play(provider: fn() -> Arc<dyn Provider>, threads: usize) {
    let seeds = match std::env::var("STRESS_SEED") {
        Ok(seed) => vec![seed.parse().expect("STRESS_SEED is a number")],
        Err(_) => (0..SEEDS).collect(),
    };
    for seed in seeds {
        let mut builder = match threads {
            0 => tokio::runtime::Builder::new_current_thread(),
            _ => tokio::runtime::Builder::new_multi_thread(),
        };
        if threads > 0 {
            builder.worker_threads(threads);
        }
        let runtime = builder.enable_all().build().unwrap();
        let ended =
            runtime.block_on(async { timeout(RUN_LIMIT, run_seed(provider(), seed)).await });
        ended.unwrap_or_else(|_| panic!("the run with seed {seed} does not end"));
    }
}

fn loopback() -> Arc<dyn Provider> {
    Arc::new(Loopback::new())
}

fn iwarp() -> Arc<dyn Provider> {
    Arc::new(Iwarp::new(IwarpConfig::default()))
}

/// Returns a provider of RoCE with a UDP port of its own, so that tests can run concurrently.
fn roce() -> Arc<dyn Provider> {
    let probe = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let udp_port = probe.local_addr().unwrap().port();
    let mut roce_config = RoceConfig::default();
    roce_config.udp_port = udp_port;
    roce_config.peer_udp_port = udp_port;
    Arc::new(Roce::new(roce_config))
}

#[test]
fn roce_on_one_thread() {
    play(roce, 0);
}

#[test]
fn roce_on_three_threads() {
    play(roce, 3);
}

#[test]
fn loopback_on_one_thread() {
    play(loopback, 0);
}

#[test]
fn loopback_on_three_threads() {
    play(loopback, 3);
}

#[test]
fn iwarp_on_one_thread() {
    play(iwarp, 0);
}

#[test]
fn iwarp_on_three_threads() {
    play(iwarp, 3);
}
