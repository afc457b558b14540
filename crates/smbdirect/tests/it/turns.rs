//! Connections that share one thread: those that move bulk data leave room for short requests, and for each other.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use bytes::{Bytes, BytesMut};
use smbdirect::{
    Access, BufferDescriptorV1, Config, Connection, Listener,
    rdma::{
        iwarp::{Iwarp, IwarpConfig},
        provider::Provider,
    },
};
use smbdirect_test::within;
use tokio::task::JoinSet;

/// Bytes of a read or write.
const BULK_BYTES: usize = 64 * 1024;
/// Bytes of a request, of its answer, and of a short message.
const REQUEST_BYTES: usize = 4096;
/// Reads, writes or messages that a connection has outstanding.
const OUTSTANDING: usize = 16;
/// Requests that are measured.
const REQUESTS: usize = 100;

/// The kind of work that moves bulk data.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Write,
    Read,
    Send,
}

/// Returns both ends of `count` connections.
async fn connected(count: usize) -> Vec<(Connection, Connection)> {
    let provider: Arc<dyn Provider> = Arc::new(Iwarp::new(IwarpConfig::default()));
    let address = "127.0.0.1:0";
    let mut listener = Listener::bind(&*provider, address, Config::default())
        .await
        .unwrap();
    let address = listener.local_addr();
    let mut pairs = Vec::new();
    for _ in 0..count {
        let connect = Connection::connect(&*provider, address, Config::default());
        let (client, server) = tokio::join!(connect, listener.accept());
        pairs.push((client.unwrap(), server.unwrap()));
    }
    pairs
}

/// Moves data on one connection until `stop` is set.
async fn load(kind: Kind, client: Connection, memory: BufferDescriptorV1, stop: Arc<AtomicBool>) {
    let data = Bytes::from(vec![7; BULK_BYTES]);
    while !stop.load(Ordering::Relaxed) {
        match kind {
            Kind::Write => client.write(&[memory], 0, data.clone()).await.unwrap(),
            Kind::Read => {
                let into = BytesMut::zeroed(BULK_BYTES);
                drop(client.read(&[memory], 0, into).await.unwrap());
            }
            Kind::Send => {
                let message = data.slice(..REQUEST_BYTES);
                client.send(message).unwrap().await.unwrap();
            }
        }
    }
}

/// Loads `count` connections, sends requests on another, and returns how many bytes moved on each loaded
/// connection in total, and how many moved on all of them during the median request.
async fn requests_beside(kind: Kind, count: usize) -> (Vec<u64>, u64) {
    let mut pairs = connected(count + 1).await;
    let (asking, answering) = pairs.pop().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    let mut regions = Vec::new();
    for (client, server) in &pairs {
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let region = server
            .register(BytesMut::zeroed(BULK_BYTES), access)
            .unwrap();
        for _ in 0..OUTSTANDING {
            tasks.spawn(load(
                kind,
                client.clone(),
                region.descriptor(),
                stop.clone(),
            ));
        }
        regions.push(region);
        let server = server.clone();
        tasks.spawn(async move { while server.recv().await.is_ok() {} });
    }
    tasks.spawn(async move {
        while let Ok(request) = answering.recv().await {
            drop(answering.send(request));
        }
    });
    let moved = || -> Vec<u64> {
        let of = |(client, _): &(Connection, Connection)| {
            let statistics = client.stats();
            statistics.wire_bytes_sent + statistics.wire_bytes_received
        };
        pairs.iter().map(of).collect()
    };
    let (mut start, mut during) = (moved(), Vec::new());
    for request in 0..2 * REQUESTS {
        if request == REQUESTS {
            start = moved();
        }
        let before: u64 = moved().iter().sum();
        drop(asking.send(vec![1; REQUEST_BYTES]).unwrap());
        asking.recv().await.unwrap();
        during.push(moved().iter().sum::<u64>() - before);
    }
    let end = moved();
    stop.store(true, Ordering::Relaxed);
    drop(pairs);
    drop(asking);
    tasks.shutdown().await;
    let during = &mut during[REQUESTS..];
    during.sort_unstable();
    let each = start.iter().zip(&end).map(|(start, end)| end - start);
    (each.collect(), during[REQUESTS / 2])
}

/// A request waits for a few turns of other connections, independent of how many of them move data, and all of
/// these move the same amount.
#[tokio::test]
async fn requests_wait_for_few_turns_and_turns_are_fair() {
    for kind in [Kind::Write, Kind::Read, Kind::Send] {
        for count in [1, 16] {
            let (each, during) = within(requests_beside(kind, count)).await;
            let (least, most) = (each.iter().min().unwrap(), each.iter().max().unwrap());
            assert!(
                2 * least >= *most,
                "{kind:?} on {count} connections: {each:?}"
            );
            assert!(*least > 0, "the others went on");
            assert!(
                during < 4 << 20,
                "{kind:?} on {count} connections: {during} bytes moved during a request"
            );
        }
    }
}
