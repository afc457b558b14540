//! Bugs of listeners, tested with the whole stack over iWARP on 127.0.0.1 and in one process.

use std::{
    sync::Arc,
    task::{Context, Waker},
    time::Duration,
};

use bytes::Bytes;
use smbdirect::{
    Config, ConnectError, ConnectFault, Connection, Listener, Settings,
    rdma::{
        iwarp::{Iwarp, IwarpConfig, ddp::Header},
        loopback::{Loopback, LoopbackConfig},
        provider::{ConnectRequest, Provider},
        work::{ProviderErrorKind, WorkId, WorkRequest},
    },
    wire::{DataTransfer, Flags},
};
use tokio::task::{JoinSet, yield_now};

use super::ends::{HERE, iwarp, listen};
use crate::peer::{Peer, within};

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
        let last_address = last.local_addr();
        for (number, (provider, listener)) in listeners.iter_mut().enumerate() {
            let address = listener.local_addr();
            let (client, server) = within(async {
                tokio::join!(
                    Connection::connect(&***provider, address, config.clone()),
                    listener.accept()
                )
            })
            .await;
            let (client, server) = (client.unwrap(), server.unwrap());
            assert_eq!(client.peer_addr(), address);
            assert_eq!(server.local_addr().port(), address.port());
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
        assert!(matches!(
            refused,
            Err(ConnectError {
                fault: ConnectFault::Provider(_),
                ..
            })
        ));
    }
}

/// A listener was closed while it had half-open connections, and hung or crashed. Expected: peers
/// at each step of connecting see the end of their connection, and an accepted connection
/// continues.
#[tokio::test]
async fn bug_23_listener_closed_with_half_open_children() {
    // The timers are long, so that they cannot end a connection in this test.
    let mut patient = IwarpConfig::default();
    patient.accept_timeout = Duration::from_secs(600);
    let mut settings = Settings::default();
    settings.passive_negotiation_timeout = Duration::from_secs(600);
    let provider: Arc<dyn Provider> = Arc::new(Iwarp::new(patient));
    let mut listener = listen(&provider, settings).await;
    let address = listener.local_addr();
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
    let mut iwarp = IwarpConfig::default();
    iwarp.connect_timeout = Duration::from_secs(2);
    let provider: Arc<dyn Provider> = Arc::new(Iwarp::new(iwarp));
    let mut few = Settings::default();
    few.send_credit_target = 2;
    few.receive_credit_max = 2;
    // This many concurrent connections take longer.
    few.passive_negotiation_timeout = Duration::from_secs(60);
    let mut listener = listen(&provider, few.clone()).await;
    let address = listener.local_addr();
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
            Err(ConnectError {
                fault: ConnectFault::Provider(error),
                ..
            }) => {
                assert_eq!(error.kind, ProviderErrorKind::TimedOut, "{error}");
                refused += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(connections.len() + refused, PEERS);
    assert!(refused > 0, "the backlog holds them all");
    // Connections are accepted in another order than the clients connected in, and stay open.
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
    let mut loopback = LoopbackConfig::default();
    loopback.backlog = 3;
    let provider = Loopback::with_config(loopback);
    let mut listener = provider.listen(HERE).await.unwrap();
    let address = listener.local_addr();
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
