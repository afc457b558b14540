//! All futures of the crate are in one list, which `smbdirect_test::futures` checks.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex},
};

use bytes::{Bytes, BytesMut};
use smbdirect::{
    Access, Config, Connection, Incoming, IncomingListener, Iwarp, IwarpConfig, Listener, Loopback,
    MemoryRegion, Provider,
};
use smbdirect_test::{
    future_cases,
    futures::{self, World},
    within,
};
use tokio::{sync::Mutex as AsyncMutex, task::JoinHandle};

/// Bytes that do not fit into the buffers of a socket.
const LONG_WRITE_BYTES: usize = 32 << 20;
/// Messages for which a peer that does not run has not granted enough credits.
const MANY_MESSAGES: usize = 600;

fn any_port() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// Handles of each kind, over one provider.
struct Handles {
    client: Connection,
    server: Connection,
    rest: Rest,
}

struct Rest {
    provider: Arc<dyn Provider>,
    region: MemoryRegion,
    listener: Arc<AsyncMutex<Listener>>,
    incoming: Arc<AsyncMutex<IncomingListener>>,
    offer: Mutex<Option<Incoming>>,
    /// The other end of `offer`.
    _offering: JoinHandle<()>,
}

impl Handles {
    async fn new(provider: Arc<dyn Provider>) -> Self {
        let mut listener = Listener::bind(&*provider, any_port(), Config::default())
            .await
            .unwrap();
        let at = listener.local_addr();
        let (client, server) = tokio::join!(
            Connection::connect(&*provider, at, Config::default()),
            listener.accept()
        );
        let server = server.unwrap();
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let region = server.register(BytesMut::zeroed(LONG_WRITE_BYTES), access);
        let mut incoming = IncomingListener::bind(&*provider, any_port())
            .await
            .unwrap();
        let (there, address) = (provider.clone(), incoming.local_addr());
        let offering = tokio::spawn(async move {
            let _ = Connection::connect(&*there, address, Config::default()).await;
        });
        let offer = within(incoming.accept()).await.unwrap();
        Self {
            client: client.unwrap(),
            server,
            rest: Rest {
                region: region.unwrap(),
                listener: Arc::new(AsyncMutex::new(listener)),
                incoming: Arc::new(AsyncMutex::new(incoming)),
                offer: Mutex::new(Some(offer)),
                _offering: offering,
                provider,
            },
        }
    }

    /// Submits messages until the peer has granted too few credits.
    fn fill(&self) {
        for _ in 0..MANY_MESSAGES {
            drop(self.client.send("x").unwrap());
        }
    }
}

impl World for Handles {
    type Handle = Connection;
    type Rest = Rest;

    fn handles(&self) -> Vec<Connection> {
        vec![self.client.clone(), self.server.clone()]
    }

    fn split(self) -> (Vec<Connection>, Rest) {
        (vec![self.client, self.server], self.rest)
    }

    fn abort(&self) {
        self.client.abort();
        self.server.abort();
    }

    fn call(connection: &Connection) {
        connection.stats();
    }
}

future_cases! { Handles:
    "recv" true |world| { let at = world.client.clone(); async move { at.recv().await } };
    "recv_segment" true |world| { let at = world.client.clone(); async move { at.recv_segment().await } };
    "recv_many" true |world| {
        let at = world.client.clone();
        async move { at.recv_many(&mut Vec::new(), 9).await }
    };
    "ready" true |world| {
        world.fill();
        let at = world.client.clone();
        async move { at.ready().await }
    };
    "keepalive" true |world| { let at = world.client.clone(); async move { at.keepalive().await } };
    "close" true |world| { let at = world.client.clone(); async move { at.close().await } };
    "close" true |world| {
        let provider = world.rest.provider.clone();
        let server = world.server.clone();
        async move {
            let listener = Listener::bind(&*provider, any_port(), Config::default()).await.unwrap();
            listener.close().await;
            server.closed().await
        }
    };
    "closed" true |world| { let at = world.client.clone(); async move { at.closed().await } };
    "Sending" true |world| {
        world.fill();
        world.client.send("last").unwrap()
    };
    "Reading" true |world| {
        world.client.read(&[world.rest.region.descriptor()], 0, BytesMut::zeroed(1 << 20))
    };
    "Writing" true |world| {
        let data = Bytes::from(vec![1; LONG_WRITE_BYTES]);
        world.client.write(&[world.rest.region.descriptor()], 0, data)
    };
    "deregister" false |world| {
        let region = world.client.register(BytesMut::zeroed(9), Access::REMOTE_READ).unwrap();
        region.deregister()
    };
    "connect" true |world| {
        let provider = world.rest.provider.clone();
        async move {
            let at = IncomingListener::bind(&*provider, any_port()).await.unwrap();
            Connection::connect(&*provider, at.local_addr(), Config::default()).await
        }
    };
    "bind" false |world| {
        let provider = world.rest.provider.clone();
        async move { Listener::bind(&*provider, any_port(), Config::default()).await }
    };
    "accept" true |world| {
        let listener = world.rest.listener.clone();
        async move { listener.lock().await.accept().await }
    };
    "accept" true |world| {
        let listener = world.rest.incoming.clone();
        async move { listener.lock().await.accept().await }
    };
    "accept" true |world| {
        world.rest.offer.lock().unwrap().take().unwrap().accept(Config::default())
    };
}

#[test]
fn a_dropped_future_leaves_nothing_behind_and_no_waker_runs_under_a_lock() {
    futures::check(CASES, true, || {
        Handles::new(Arc::new(Iwarp::new(IwarpConfig::default())))
    });
    futures::check(CASES, false, || Handles::new(Arc::new(Loopback::new())));
}

/// Finds the asynchronous functions and the futures in the source: each is in the list above.
#[test]
fn the_list_has_all_futures() {
    let found = futures::in_source(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    let known = CASES.iter().map(|case| case.name.to_owned());
    let known: BTreeSet<_> = known.collect();
    assert_eq!(found, known);
}
