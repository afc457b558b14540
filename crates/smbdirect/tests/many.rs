//! Many connections, consecutive and concurrent. At the end every buffer and all memory is released.

use std::{fs, net::SocketAddr, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use smbdirect::{
    Access, Config, Connection, Listener, Statistics,
    rdma::{
        iwarp::{Iwarp, IwarpConfig},
        loopback::Loopback,
        provider::Provider,
        roce::{Roce, RoceConfig},
    },
};
use tokio::time::timeout;

/// Bytes by which memory may grow: more than the slack of an allocator, and far less than the buffers of
/// the connections.
const TOLERANCE: usize = 24 << 20;

fn providers() -> Vec<Arc<dyn Provider>> {
    vec![
        Arc::new(Loopback::new()),
        Arc::new(Iwarp::new(IwarpConfig::default())),
        Arc::new(roce()),
    ]
}

/// Returns a provider of RoCE with a UDP port of its own, so that tests can run concurrently.
fn roce() -> Roce {
    let probe = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let udp_port = probe.local_addr().unwrap().port();
    let mut roce_config = RoceConfig::default();
    roce_config.udp_port = udp_port;
    roce_config.peer_udp_port = udp_port;
    Roce::new(roce_config)
}

/// Returns the bytes of memory in use, or `None` where the system does not report them.
fn resident() -> Option<usize> {
    let pages: usize = fs::read_to_string("/proc/self/statm")
        .ok()?
        .split(' ')
        .nth(1)?
        .parse()
        .ok()?;
    Some(pages * 4096)
}

fn assert_nothing_outstanding(stats: Statistics) {
    let left = (
        stats.receives_outstanding,
        stats.work_outstanding,
        stats.regions,
    );
    assert_eq!(left, (0, 0, 0), "receives, work and regions at the end");
}

/// Uses every operation once, then closes the connection from the end that `index` picks.
async fn session(client: Connection, server: Connection, index: usize) {
    let message: Bytes = (0..20_000 + index).map(|i| i as u8).collect();
    drop(client.send(message.clone()).unwrap());
    assert_eq!(server.recv().await.unwrap().into_bytes(), message);
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_INVALIDATE;
    let region = client
        .register(BytesMut::from(&message[..]), access)
        .unwrap();
    let into = BytesMut::zeroed(message.len());
    assert_eq!(
        server.read(&[region.descriptor()], 0, into).await.unwrap(),
        message
    );
    drop(server.write(&[region.descriptor()], 0, message.slice(1..)));
    drop(server.send_and_invalidate("done", region.token()).unwrap());
    assert_eq!(
        client.recv().await.unwrap().invalidated_token(),
        Some(region.token())
    );
    assert_eq!(
        region.deregister().await.unwrap()[..message.len() - 1],
        message[1..]
    );
    let (first, second) = if index.is_multiple_of(2) {
        (client, server)
    } else {
        (server, client)
    };
    first.close().await.unwrap();
    second.closed().await;
    assert_nothing_outstanding(first.stats());
    assert_nothing_outstanding(second.stats());
}

async fn listen(provider: &Arc<dyn Provider>) -> (Listener, SocketAddr) {
    let address = "127.0.0.1:0";
    let listener = Listener::bind(&**provider, address, Config::default())
        .await
        .unwrap();
    let address = listener.local_addr();
    (listener, address)
}

async fn consecutive(provider: &Arc<dyn Provider>, count: usize) {
    let (mut listener, address) = listen(provider).await;
    for index in 0..count {
        let connecting = Connection::connect(&**provider, address, Config::default());
        let both = async { tokio::join!(connecting, listener.accept()) };
        let both = timeout(Duration::from_secs(20), both);
        let (client, server) = both.await.expect("the connect resolves in time");
        let session = session(client.unwrap(), server.unwrap(), index);
        timeout(Duration::from_secs(20), session)
            .await
            .expect("the session ends in time");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_returns_after_a_thousand_consecutive_and_a_hundred_concurrent_connections() {
    for provider in providers() {
        consecutive(&provider, 50).await;
        // The allocator keeps memory of the first concurrent connections.
        for _ in 0..3 {
            concurrent(&provider, 100).await;
        }
        let before = resident();
        consecutive(&provider, 1000).await;
        concurrent(&provider, 100).await;
        if let (Some(before), Some(after)) = (before, resident()) {
            let name = provider.attributes().name;
            assert!(
                after < before + TOLERANCE,
                "{name}: {before} bytes before, {after} after"
            );
        }
    }
}

/// Opens `count` connections, all before the first moves data.
async fn concurrent(provider: &Arc<dyn Provider>, count: usize) {
    let (mut listener, address) = listen(provider).await;
    let mut pairs = Vec::new();
    for _ in 0..count {
        let connecting = Connection::connect(&**provider, address, Config::default());
        let both = async { tokio::join!(connecting, listener.accept()) };
        let both = timeout(Duration::from_secs(20), both);
        let (client, server) = both.await.expect("the connect resolves in time");
        pairs.push((client.unwrap(), server.unwrap()));
    }
    let sessions: Vec<_> = pairs
        .into_iter()
        .enumerate()
        .map(|(index, (client, server))| tokio::spawn(session(client, server, index)))
        .collect();
    for session in sessions {
        timeout(Duration::from_secs(60), session)
            .await
            .expect("the session ends in time")
            .unwrap();
    }
}
