//! Peers that are refused by their address, and the places of those that are not.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
};

use smbdirect::{
    Config, Connection, Incoming, IncomingListener, Iwarp, Listener,
    rdma::provider::{Admission, Place, Provider},
};
use smbdirect_test::within;
use tokio::{io::AsyncReadExt, net::TcpStream};

over_every_provider! {
    a_peer_is_admitted_before_it_negotiates
    a_panic_of_an_admission_refuses_one_peer
}

/// Counts the places that exist.
#[derive(Clone, Default)]
struct Places {
    count: Arc<AtomicU64>,
    asked: Arc<AtomicU64>,
    is_closed: Arc<AtomicBool>,
}

struct Counted(Arc<AtomicU64>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl Places {
    fn admission(&self) -> Admission {
        let places = self.clone();
        Admission::new(move |peer: SocketAddr| {
            assert!(peer.ip().is_loopback());
            places.asked.fetch_add(1, SeqCst);
            if places.is_closed.load(SeqCst) {
                return None;
            }
            places.count.fetch_add(1, SeqCst);
            Some(Box::new(Counted(places.count.clone())) as Place)
        })
    }

    fn taken(&self) -> u64 {
        self.count.load(SeqCst)
    }
}

async fn a_peer_is_admitted_before_it_negotiates(provider: Arc<dyn Provider>) {
    let places = Places::default();
    let listener = IncomingListener::bind(&*provider, "127.0.0.1:0").await;
    let mut listener = listener.unwrap().with_admission(places.admission());
    let address = listener.local_addr();
    let connect = || Connection::connect(&*provider, address, Config::default());
    let accepting = async {
        let mut incoming = listener.accept().await.unwrap();
        assert_eq!(places.taken(), 1);
        let place = incoming.take_place().expect("it was admitted");
        assert!(place.is::<Counted>());
        let connection = incoming.accept(Config::default()).await.unwrap();
        assert_eq!(places.taken(), 1, "its owner keeps the place");
        drop(place);
        connection
    };
    let (client, server) = within(async { tokio::join!(connect(), accepting) }).await;
    client.unwrap().close().await.unwrap();
    drop(server);
    assert_eq!((places.taken(), places.asked.load(SeqCst)), (0, 1));
    let accepting = async {
        let incoming = listener.accept().await.unwrap();
        incoming.accept(Config::default()).await.unwrap()
    };
    let (client, server) = within(async { tokio::join!(connect(), accepting) }).await;
    assert_eq!(places.taken(), 0, "the place ends with the negotiation");
    drop((client, server));
    let refusing = async {
        let incoming = listener.accept().await.unwrap();
        assert_eq!(places.taken(), 1);
        incoming.refuse();
        assert_eq!(places.taken(), 0);
    };
    let (refused, ()) = within(async { tokio::join!(connect(), refusing) }).await;
    refused.unwrap_err();
    places.is_closed.store(true, SeqCst);
    let asked = places.asked.load(SeqCst);
    tokio::select! {
        refused = within(connect()) => drop(refused.unwrap_err()),
        _ = listener.accept() => panic!("a peer that is not admitted reached the owner"),
    }
    assert!(places.asked.load(SeqCst) > asked);
    assert_eq!(places.taken(), 0);
}

/// A task of a runtime with several threads may hold `&Incoming` while it waits.
#[test]
fn handles_can_be_shared_between_threads() {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<(Incoming, IncomingListener, Listener, Connection)>();
}

async fn a_panic_of_an_admission_refuses_one_peer(provider: Arc<dyn Provider>) {
    let is_mended = Arc::new(AtomicBool::new(false));
    let seen = is_mended.clone();
    let admission = Admission::new(move |_| {
        assert!(seen.load(SeqCst), "a bug in the admission");
        Some(Box::new(()) as Place)
    });
    let listener = IncomingListener::bind(&*provider, "127.0.0.1:0").await;
    let mut listener = listener.unwrap().with_admission(admission);
    let address = listener.local_addr();
    let connect = || Connection::connect(&*provider, address, Config::default());
    tokio::select! {
        refused = within(connect()) => drop(refused.unwrap_err()),
        _ = listener.accept() => panic!("the peer was admitted"),
    }
    is_mended.store(true, SeqCst);
    let accepting = async {
        let incoming = listener.accept().await.unwrap();
        incoming.accept(Config::default()).await.unwrap()
    };
    let (client, _server) = within(async { tokio::join!(connect(), accepting) }).await;
    client.unwrap();
}

/// A peer of iWARP that is not admitted is closed before it has sent anything, and any number of them does not delay
/// others.
#[tokio::test]
async fn a_silent_peer_that_is_not_admitted_is_closed_immediately() {
    let places = Places::default();
    let iwarp = Iwarp::default();
    let listener = IncomingListener::bind(&iwarp, "127.0.0.1:0").await.unwrap();
    let mut listener = listener.with_admission(places.admission());
    let address = listener.local_addr();
    places.is_closed.store(true, SeqCst);
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(within(TcpStream::connect(address)).await.unwrap());
    }
    for peer in &mut silent {
        assert_eq!(within(peer.read(&mut [0; 1])).await.unwrap(), 0);
    }
    places.is_closed.store(false, SeqCst);
    let connecting = Connection::connect(&iwarp, address, Config::default());
    let accepting = async {
        let incoming = listener.accept().await.unwrap();
        incoming.accept(Config::default()).await.unwrap()
    };
    let (client, _server) = within(async { tokio::join!(connecting, accepting) }).await;
    client.unwrap();
    assert_eq!(places.asked.load(SeqCst), 301);
}

#[tokio::test]
async fn peers_that_have_connected_are_accepted_after_a_stop() {
    let places = Places::default();
    let provider = Iwarp::default();
    let listener = IncomingListener::bind(&provider, "127.0.0.1:0").await;
    let mut listener = listener.unwrap().with_admission(places.admission());
    let address = listener.local_addr();
    let connecting = Connection::connect(&provider, address, Config::default());
    let stopping = async {
        // Its TCP connection is accepted, and its Request may not have arrived.
        while places.asked.load(SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        assert!(listener.stop());
        let incoming = listener.accept().await.unwrap();
        let connection = incoming.accept(Config::default()).await.unwrap();
        assert!(listener.accept().await.is_err(), "there are no more");
        connection
    };
    let (client, server) = within(async { tokio::join!(connecting, stopping) }).await;
    client.unwrap().close().await.unwrap();
    drop(server);
    assert!(TcpStream::connect(address).await.is_err());
}
