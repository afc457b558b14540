//! Several servers: who goes to which, and what happens when one fails.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use smbdirect::Config;
use smbdirect_gateway::{Balance, Check, Live};
use smbdirect_smb::smb2::NegotiateRequest;
use smbdirect_test::{
    messages::{NEGOTIATE, header, negotiated},
    peers::{End, Kind, Server, SmbDirect, Tcp, soon},
};
use tokio::time::{sleep, timeout};

use super::{MEMORY, Running, echo, event, live, settings};

/// Checks that take little time.
const CHECK: Check = Check {
    interval: Duration::from_millis(50),
    rise: 2,
    fall: 3,
    slow_start: Duration::ZERO,
};

/// A server that answers NEGOTIATE, and returns every other message with its name in front.
struct Node {
    address: SocketAddr,
    is_frozen: Arc<AtomicBool>,
}

impl Node {
    async fn start(kind: Kind, name: &'static [u8]) -> Self {
        let mut server = Server::bind(kind, Config::default()).await;
        let node = Self {
            address: server.address(),
            is_frozen: Arc::default(),
        };
        let is_frozen = node.is_frozen.clone();
        tokio::spawn(async move {
            loop {
                let accepting = timeout(Duration::from_secs(3600), server.accept());
                let Ok(mut end) = accepting.await else {
                    return;
                };
                let is_frozen = is_frozen.clone();
                tokio::spawn(async move {
                    while let Some(message) = end.receive().await {
                        while is_frozen.load(SeqCst) {
                            sleep(Duration::from_millis(10)).await;
                        }
                        let is_negotiate = message[12..14] == [0, 0];
                        end.send(&if is_negotiate {
                            negotiated(0x0302)
                        } else {
                            [name, &message].concat()
                        })
                        .await;
                    }
                });
            }
        });
        node
    }
}

fn negotiate(guid: u8) -> Vec<u8> {
    let mut message = header(NEGOTIATE, 0);
    let request = NegotiateRequest {
        security_mode: 1,
        capabilities: 0,
        client_guid: [guid; 16],
        dialects: vec![0x0302],
        contexts: Vec::new(),
    };
    request.encode(&mut message);
    message
}

/// Connects a client, and returns it with the name of its server.
async fn client(kind: Kind, gateway: &Running, guid: u8) -> (End, u8) {
    let mut client = End::connect(kind, &gateway.address).await;
    client.send(&negotiate(guid)).await;
    let answer = client.receive().await.expect("a server answers");
    assert_eq!(answer, negotiated(0x0302));
    let name = name_of_server(&mut client).await;
    (client, name)
}

async fn name_of_server(client: &mut End) -> u8 {
    client.send(&echo(1)).await;
    let answer = client.receive().await.expect("the server answers");
    assert_eq!(answer[1..], echo(1));
    answer[0]
}

/// Starts two servers and a gateway in front of them.
async fn cluster(from: Kind, to: Kind, change: impl FnOnce(&mut Live)) -> (Running, [Node; 2]) {
    let nodes = [Node::start(to, b"a").await, Node::start(to, b"b").await];
    let settings = settings(from, to, MEMORY);
    let addresses = nodes.each_ref().map(|node| node.address.to_string());
    let mut live = live(&settings, &addresses.each_ref().map(String::as_str));
    change(&mut live);
    (Running::start_with(settings, live), nodes)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_and_its_channels_go_to_one_server() {
    for (from, to) in [
        (SmbDirect, Tcp),
        (Tcp, Tcp),
        (Tcp, SmbDirect),
        (SmbDirect, SmbDirect),
    ] {
        for balance in [Balance::LeastConnections, Balance::RoundRobin] {
            let (gateway, _nodes) = cluster(from, to, |live| live.balance = balance).await;
            let (_first, name) = client(from, &gateway, 1).await;
            let (_other, others) = client(from, &gateway, 2).await;
            assert_ne!(name, others, "{from:?} {to:?} {balance:?}");
            let mut channels = Vec::new();
            for _ in 0..3 {
                let (channel, server) = client(from, &gateway, 1).await;
                assert_eq!(server, name, "{from:?} {to:?} {balance:?}");
                channels.push(channel);
            }
            let sessions: Vec<u64> = gateway
                .service
                .servers()
                .iter()
                .map(|one| one.sessions)
                .collect();
            assert_eq!(sessions.iter().sum::<u64>(), 5);
            drop((_first, channels));
            let (_again, server) = client(from, &gateway, 1).await;
            assert_eq!(server, name, "its durable handles are there");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sessions_of_a_server_that_fails_end_and_go_elsewhere() {
    for (from, to) in [(SmbDirect, Tcp), (Tcp, SmbDirect)] {
        let (mut gateway, nodes) = cluster(from, to, |live| live.check = Some(CHECK)).await;
        let (mut first, name) = client(from, &gateway, 1).await;
        let (mut other, others) = client(from, &gateway, 2).await;
        assert_ne!(name, others);
        let node = &nodes[usize::from(name - b'a')];
        node.is_frozen.store(true, SeqCst);
        first.send(&echo(9)).await;
        let down = event(&mut gateway, "server_down");
        assert_eq!(down["server"], node.address.to_string());
        assert_eq!(first.receive().await, None);
        let closed = event(&mut gateway, "closed");
        assert_eq!(
            closed["ended"],
            "server: its checks fail, so its connections end"
        );
        assert_eq!(closed["server_name"], node.address.to_string());
        assert_eq!(name_of_server(&mut other).await, others, "others go on");
        let (_again, server) = client(from, &gateway, 1).await;
        assert_eq!(server, others);
        assert!(gateway.service.is_ready());
        node.is_frozen.store(false, SeqCst);
        assert_eq!(
            event(&mut gateway, "server_up")["server"],
            node.address.to_string()
        );
        let (_new, server) = client(from, &gateway, 3).await;
        assert_eq!(server, name);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_server_clients_are_told_in_the_log() {
    let (mut gateway, nodes) = cluster(Tcp, Tcp, |live| live.check = Some(CHECK)).await;
    for node in &nodes {
        node.is_frozen.store(true, SeqCst);
    }
    event(&mut gateway, "server_down");
    event(&mut gateway, "server_down");
    assert!(!gateway.service.is_ready());
    let mut client = End::connect(Tcp, &gateway.address).await;
    client.send(&negotiate(1)).await;
    assert_eq!(client.receive().await, None);
    let ended = event(&mut gateway, "closed")["ended"].clone();
    assert_eq!(ended, "server: no server takes clients now");
}

/// A server that refuses connections is noticed before its checks have failed.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_server_is_tried() {
    let bound = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let unused = bound.local_addr().unwrap();
    drop(bound);
    let node = Node::start(Tcp, b"a").await;
    let settings = settings(Tcp, Tcp, MEMORY);
    let servers = [unused.to_string(), node.address.to_string()];
    let live = live(&settings, &servers.each_ref().map(String::as_str));
    let gateway = Running::start_with(settings, live);
    for guid in 1..5 {
        assert_eq!(client(Tcp, &gateway, guid).await.1, b'a');
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_drained_and_removed_without_cutting_sessions() {
    let (gateway, nodes) = cluster(Tcp, Tcp, |_| ()).await;
    let (mut first, name) = client(Tcp, &gateway, 1).await;
    let node = &nodes[usize::from(name - b'a')];
    assert!(
        gateway
            .service
            .set_server_drained(&node.address.to_string(), true)
    );
    for guid in 2..6 {
        assert_ne!(client(Tcp, &gateway, guid).await.1, name);
    }
    let settings = settings(Tcp, Tcp, MEMORY);
    let other = nodes[usize::from(b'b' - name)].address.to_string();
    gateway.service.set_live(live(&settings, &[&other]));
    assert_eq!(gateway.service.servers().len(), 1);
    assert_eq!(name_of_server(&mut first).await, name);
    // With one server nothing needs to be known about a client.
    let mut silent = soon(async { End::connect(Tcp, &gateway.address).await }).await;
    assert_ne!(name_of_server(&mut silent).await, name);
}
