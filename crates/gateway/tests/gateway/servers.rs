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
use smbdirect_gateway::{Balance, Check, Live, Seen};
use smbdirect_smb::smb2::NegotiateRequest;
use smbdirect_test::{
    messages::{NEGOTIATE, header, negotiated},
    peers::{End, Kind, Server, SmbDirect, Tcp, soon},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
    time::{sleep, timeout},
};

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
    /// It answers nothing.
    is_frozen: Arc<AtomicBool>,
    /// It closes new connections.
    is_full: Arc<AtomicBool>,
    /// It does not answer to new connections.
    is_deaf: Arc<AtomicBool>,
}

impl Node {
    async fn start(kind: Kind, name: &'static [u8]) -> Self {
        let mut server = Server::bind(kind, Config::default()).await;
        let node = Self {
            address: server.address(),
            is_frozen: Arc::default(),
            is_full: Arc::default(),
            is_deaf: Arc::default(),
        };
        let (is_frozen, is_full) = (node.is_frozen.clone(), node.is_full.clone());
        let is_deaf = node.is_deaf.clone();
        tokio::spawn(async move {
            let mut kept = Vec::new();
            loop {
                let accepting = timeout(Duration::from_secs(3600), server.accept());
                let Ok(mut end) = accepting.await else {
                    return;
                };
                if is_full.load(SeqCst) {
                    continue;
                }
                if is_deaf.load(SeqCst) {
                    kept.push(end);
                    continue;
                }
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
        let given_up = event(&mut gateway, "server_given_up");
        assert_eq!(given_up["server"], node.address.to_string());
        assert_eq!(first.receive().await, None);
        let closed = event(&mut gateway, "closed");
        assert_eq!(
            closed["ended"],
            "server: its checks and its sessions get no answers, so its sessions end"
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

/// Waits until the checks of a server have seen this so often.
async fn seen(gateway: &Running, node: SocketAddr, what: Seen, times: u64) {
    let checks = || {
        let servers = gateway.service.servers();
        let of_node = servers.iter().find(|one| one.server == node.to_string());
        of_node.map_or(0, |one| one.checks[what as usize])
    };
    let least = checks() + times;
    while checks() < least {
        sleep(Duration::from_millis(10)).await;
    }
}

/// As smbd, ksmbd and another gateway do at their limits.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_server_keeps_its_sessions_and_gets_no_new_ones() {
    for (from, to) in [(Tcp, Tcp), (Tcp, SmbDirect)] {
        let (mut gateway, nodes) = cluster(from, to, |live| live.check = Some(CHECK)).await;
        let (mut first, name) = client(from, &gateway, 1).await;
        let (_other, others) = client(from, &gateway, 2).await;
        let node = &nodes[usize::from(name - b'a')];
        node.is_full.store(true, SeqCst);
        let down = event(&mut gateway, "server_down");
        assert_eq!(
            (&down["server"], &down["state"]),
            (&node.address.to_string().into(), &"closes".into())
        );
        seen(&gateway, node.address, Seen::Closes, 6).await;
        for guid in 3..6 {
            assert_eq!(client(from, &gateway, guid).await.1, others);
        }
        assert_eq!(name_of_server(&mut first).await, name, "{to:?}");
        node.is_full.store(false, SeqCst);
        event(&mut gateway, "server_up");
        assert_eq!(name_of_server(&mut first).await, name);
    }
}

/// A server whose sessions are answered lives, although it answers no new connection.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_that_are_answered_go_on() {
    let (mut gateway, nodes) = cluster(Tcp, Tcp, |live| live.check = Some(CHECK)).await;
    let (mut first, name) = client(Tcp, &gateway, 1).await;
    let node = &nodes[usize::from(name - b'a')];
    node.is_deaf.store(true, SeqCst);
    let enough = seen(&gateway, node.address, Seen::Silent, 9);
    let answered = async {
        loop {
            assert_eq!(name_of_server(&mut first).await, name);
        }
    };
    tokio::select! {
        () = enough => {}
        () = answered => {}
    }
    assert_eq!(event(&mut gateway, "server_down")["state"], "silent");
    assert_eq!(gateway.service.sessions().len(), 1);
    event(&mut gateway, "server_given_up");
    while first.receive().await.is_some() {}
}

/// Answers each connection with these bytes, and keeps it.
async fn server_that_says(bytes: Vec<u8>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut kept = Vec::new();
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.read_u8().await.ok();
            stream.write_all(&bytes).await.ok();
            kept.push(stream);
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_check_sees_decides_about_new_clients() {
    let mut refusal = negotiated(0);
    refusal[8..12].copy_from_slice(&0xc000_00bb_u32.to_le_bytes());
    let refusal = [&(refusal.len() as u32).to_be_bytes()[..], &refusal].concat();
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let refuses = unused.local_addr().unwrap().to_string();
    drop(unused);
    let other = server_that_says(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()).await;
    let dialect = server_that_says(refusal).await;
    let silent = server_that_says(Vec::new()).await;
    for (server, state) in [
        (dialect.to_string(), None),
        (other.to_string(), Some("other_protocol")),
        (silent.to_string(), Some("silent")),
        (refuses, Some("refuses")),
        ("nameless.invalid:445".into(), Some("nameless")),
    ] {
        let node = Node::start(Tcp, b"n").await;
        let settings = settings(Tcp, Tcp, MEMORY);
        let well = node.address.to_string();
        let mut live = live(&settings, &[&server, &well]);
        live.check = Some(CHECK);
        let mut gateway = Running::start_with(settings, live);
        let Some(state) = state else {
            seen(&gateway, dialect, Seen::Answers, 6).await;
            assert!(gateway.service.servers()[0].is_up);
            continue;
        };
        assert_eq!(event(&mut gateway, "server_down")["state"], state);
        for guid in 1..4 {
            assert_eq!(client(Tcp, &gateway, guid).await.1, b'n', "{state}");
        }
    }
}

/// Its server is chosen, and then drained while the connection is being made.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_being_connected_to_a_drained_server_goes_elsewhere() {
    let nodes = [
        Node::start(SmbDirect, b"a").await,
        Node::start(SmbDirect, b"b").await,
    ];
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let slow = listener.local_addr().unwrap().to_string();
    let servers = [slow.clone(), nodes[1].address.to_string()];
    let settings = settings(Tcp, SmbDirect, MEMORY);
    let live = live(&settings, &servers.each_ref().map(String::as_str));
    let gateway = Running::start_with(settings, live);
    let mut client = End::connect(Tcp, &gateway.address).await;
    client.send(&negotiate(1)).await;
    let (mut connection, _) = soon(listener.accept()).await.unwrap();
    assert!(gateway.service.set_server_drained(&slow, true));
    let node = nodes[0].address;
    tokio::spawn(async move {
        let mut stream = TcpStream::connect(node).await.unwrap();
        copy_bidirectional(&mut connection, &mut stream).await.ok();
    });
    assert_eq!(client.receive().await.unwrap(), negotiated(0x0302));
    assert_eq!(name_of_server(&mut client).await, b'b');
}

/// The server accepts connections and says nothing, and connecting to it would take 10 seconds.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_gives_its_place_back_before_its_server_answers() {
    let silent = server_that_says(Vec::new()).await.to_string();
    let mut settings = settings(Tcp, SmbDirect, MEMORY);
    settings.connect_timeout = Duration::from_secs(3600);
    let live = live(&settings, &[&silent]);
    let mut gateway = Running::start_with(settings, live);
    for says in [&[][..], &negotiate(1)] {
        let mut client = End::connect(Tcp, &gateway.address).await;
        if !says.is_empty() {
            client.send(says).await;
        }
        client.close().await;
        assert_eq!(event(&mut gateway, "closed")["open"], 0);
    }
}

/// The server has read some bytes, and reads no more, so that requests wait.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_gives_its_place_back_while_its_server_reads_nothing() {
    let frozen = server_that_says(Vec::new()).await.to_string();
    let settings = settings(SmbDirect, Tcp, MEMORY);
    let mut live = live(&settings, &[&frozen]);
    live.stall_limit = Duration::from_secs(3600);
    let mut gateway = Running::start_with(settings, live);
    let mut client = End::connect(SmbDirect, &gateway.address).await;
    // More than the buffers of the sockets take.
    let message = vec![0xfe; 1 << 20];
    let sending = async {
        for _ in 0..64 {
            client.send(&message).await;
        }
    };
    let _ = timeout(Duration::from_secs(1), sending).await;
    drop(client);
    assert_eq!(event(&mut gateway, "closed")["open"], 0);
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
