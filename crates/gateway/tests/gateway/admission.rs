//! Which clients are admitted, how many of each, and the addresses that proxies name.

use std::net::SocketAddr;

use serde_json::Value;
use smbdirect::Connection;
use smbdirect_gateway::{ClientAddress, Live};
use smbdirect_test::peers::{End, Kind, Server, SmbDirect, Tcp, iwarp, rdma::patient, soon};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
};

use super::{EVENT_TIMEOUT, MEMORY, Running, echo, event, gateway, live, settings};

/// Connects by TCP from this address of the machine.
async fn from_address(ip: &str, gateway: &Running) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(format!("{ip}:0").parse().unwrap()).unwrap();
    let address: SocketAddr = gateway.address.parse().unwrap();
    soon(socket.connect(address)).await.unwrap()
}

/// Returns whether the gateway closes the connection without a byte.
async fn is_closed(mut stream: TcpStream) -> bool {
    matches!(soon(stream.read(&mut [0; 1])).await, Ok(0) | Err(_))
}

fn with(from: Kind, to: Kind, server: &Server, change: impl FnOnce(&mut Live)) -> Running {
    let settings = settings(from, to, MEMORY);
    let mut live = live(&settings, &[&server.address().to_string()]);
    change(&mut live);
    Running::start_with(settings, live)
}

#[tokio::test(flavor = "multi_thread")]
async fn one_address_cannot_take_all_places() {
    for from in [SmbDirect, Tcp] {
        let mut server = Server::bind(Tcp, patient()).await;
        let mut gateway = with(from, Tcp, &server, |live| {
            live.max_connections_per_client = Some(2);
        });
        // By SMB Direct these clients say nothing, and do not even negotiate.
        let mut open = Vec::new();
        for _ in 0..2 {
            let client = from_address("127.0.0.5", &gateway).await;
            let upstream = match from {
                SmbDirect => None,
                Tcp => Some(server.accept().await),
            };
            open.push((client, upstream));
        }
        assert!(is_closed(from_address("127.0.0.5", &gateway).await).await);
        let away = event(&mut gateway, "turned_away");
        assert_eq!(away["reason"], "2 connections of its address are open");
        let mut other = End::connect(from, &gateway.address).await;
        let mut upstream = server.accept().await;
        other.send(&echo(1)).await;
        assert_eq!(upstream.receive().await, Some(echo(1)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denied_client_costs_nothing() {
    for from in [SmbDirect, Tcp] {
        let mut server = Server::bind(Tcp, patient()).await;
        let deny = vec!["127.0.0.5".parse().unwrap()];
        let gateway = with(from, Tcp, &server, |live| live.deny = deny);
        let mut silent = Vec::new();
        for _ in 0..400 {
            silent.push(from_address("127.0.0.5", &gateway).await);
        }
        let mut client = End::connect(from, &gateway.address).await;
        let mut upstream = server.accept().await;
        client.send(&echo(1)).await;
        assert_eq!(upstream.receive().await, Some(echo(1)));
        for stream in silent {
            assert!(is_closed(stream).await);
        }
        assert_eq!(gateway.service.open(), 1);
        // The system may reset some that wait to be accepted.
        let turned_away = gateway.terminate()["turned_away"].as_u64().unwrap();
        assert!((300..=400).contains(&turned_away), "{turned_away}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_listed_and_ended() {
    let mut server = Server::bind(Tcp, patient()).await;
    let mut gateway = gateway(SmbDirect, Tcp, &server.address().to_string());
    let mut client = End::connect(SmbDirect, &gateway.address).await;
    let mut upstream = server.accept().await;
    client.send(&echo(1)).await;
    assert_eq!(upstream.receive().await, Some(echo(1)));
    let sessions = gateway.service.sessions();
    assert_eq!(sessions.len(), 1);
    assert_eq!(sessions[0].client, client.local_addr());
    assert_eq!(sessions[0].upstream, Some(server.address()));
    assert_eq!(sessions[0].carried.messages_to_server, 1);
    assert!(!gateway.service.end_session(7));
    assert!(gateway.service.end_session(sessions[0].id));
    assert_eq!(client.receive().await, None);
    assert_eq!(upstream.receive().await, None);
    let closed = event(&mut gateway, "closed");
    assert_eq!(closed["ended"], "ended by an administrator");
    assert_eq!((&closed["ok"], &closed["open"]), (&true.into(), &0.into()));
    assert!(gateway.service.sessions().is_empty());
}

/// The last event has the last number of open sessions, also if many end at the same time.
#[tokio::test(flavor = "multi_thread")]
async fn the_numbers_of_open_sessions_are_in_order() {
    const CLIENTS: u64 = 40;
    let mut server = Server::bind(Tcp, patient()).await;
    let mut gateway = gateway(Tcp, Tcp, &server.address().to_string());
    let mut ends = Vec::new();
    for open in 1..=CLIENTS {
        let client = End::connect(Tcp, &gateway.address).await;
        ends.push((client, server.accept().await));
        assert_eq!(event(&mut gateway, "opened")["open"], open);
    }
    drop(ends);
    for open in (0..CLIENTS).rev() {
        assert_eq!(event(&mut gateway, "closed")["open"], open);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_to_itself_makes_no_endless_chain() {
    for kind in [SmbDirect, Tcp] {
        let settings = settings(kind, kind, MEMORY);
        let nowhere = live(&settings, &["127.0.0.1:1"]);
        let gateway = Running::start_with(settings.clone(), nowhere);
        let to_itself = live(&settings, &[&gateway.address]);
        let places = to_itself.max_connections;
        gateway.service.set_live(to_itself);
        let provider = iwarp();
        match kind {
            SmbDirect => {
                let connecting = Connection::connect(&*provider, &*gateway.address, patient());
                if let Ok(connection) = soon(connecting).await {
                    soon(connection.closed()).await;
                }
            }
            Tcp => assert!(is_closed(TcpStream::connect(&gateway.address).await.unwrap()).await),
        }
        // One of the two ends notices it.
        let is_noticed = |event: &Value| {
            let text = if event["event"] == "turned_away" {
                "reason"
            } else {
                "ended"
            };
            event[text]
                .as_str()
                .is_some_and(|text| text.contains("this gateway itself"))
        };
        while !is_noticed(
            &gateway
                .events
                .recv_timeout(EVENT_TIMEOUT)
                .expect("an event"),
        ) {}
        // Until one of the ends notices it, every end makes one more connection; an endless chain takes all places.
        let total = gateway.terminate()["total"].as_u64().unwrap();
        assert!(total < places, "{kind:?}: {total} sessions");
    }
}

/// The address of the client reaches the server through two gateways in a row.
#[tokio::test(flavor = "multi_thread")]
async fn proxies_name_the_client() {
    for between in [SmbDirect, Tcp] {
        let mut server = Server::bind(Tcp, patient()).await;
        let proxied = |from, to, upstream: &str, trusted: &[&str]| {
            let mut settings = settings(from, to, MEMORY);
            settings.client_address = ClientAddress::Proxy;
            let mut live = live(&settings, &[upstream]);
            live.trusted_proxies = trusted.iter().map(|text| text.parse().unwrap()).collect();
            live.deny = vec!["127.0.0.9".parse().unwrap()];
            Running::start_with(settings, live)
        };
        let address = server.address().to_string();
        let mut second = proxied(between, Tcp, &address, &["127.0.0.1"]);
        let first = proxied(Tcp, between, &second.address, &[]);
        let mut client = from_address("127.0.0.7", &first).await;
        let End::Tcp(mut upstream) = server.accept().await else {
            unreachable!("the server is on TCP");
        };
        let mut header = [0; 28];
        soon(upstream.read_exact(&mut header)).await.unwrap();
        assert_eq!(header[..12], *b"\r\n\r\n\0\r\nQUIT\n");
        assert_eq!(header[12..20], [0x21, 0x11, 0, 12, 127, 0, 0, 7]);
        let port = client.local_addr().unwrap().port();
        assert_eq!(header[24..26], port.to_be_bytes());
        let opened = event(&mut second, "opened");
        assert_eq!(opened["peer"], client.local_addr().unwrap().to_string());
        assert!(opened["proxy"].as_str().unwrap().starts_with("127.0.0.1:"));
        let message = echo(1);
        let frame = [&(message.len() as u32).to_be_bytes(), &message[..]].concat();
        soon(client.write_all(&frame)).await.unwrap();
        let mut received = vec![0; frame.len()];
        soon(upstream.read_exact(&mut received)).await.unwrap();
        assert_eq!(received, frame);
        drop((client, first));
        // A client that a trusted proxy names is turned away by its own address, and another proxy is not believed.
        let mut proxy = End::connect(between, &second.address).await;
        let mut denied = header;
        denied[19] = 9;
        match &mut proxy {
            End::Tcp(stream) => soon(stream.write_all(&denied)).await.unwrap(),
            End::SmbDirect(_) => proxy.send(&denied).await,
        }
        assert_eq!(proxy.receive().await, None);
        let away = event(&mut second, "turned_away");
        assert_eq!(away["reason"], "its address is not allowed");
        assert!(away["peer"].as_str().unwrap().starts_with("127.0.0.9:"));
        // It is counted as turned away, and is no fault.
        let closed = loop {
            let closed = event(&mut second, "closed");
            if closed["ended"].as_str().unwrap().starts_with("turned away") {
                break closed;
            }
        };
        assert_eq!(closed["ok"], true);
        // A check of the proxy sends nothing, and is no fault either.
        let check = End::connect(between, &second.address).await;
        check.close().await;
        let closed = loop {
            let closed = event(&mut second, "closed");
            if closed["server_name"].is_null() {
                break closed;
            }
        };
        assert_eq!(closed["ended"], "closed by the client");
        assert_eq!(closed["ok"], true);
        let mut honest = End::connect(between, &second.address).await;
        honest.send(&echo(1)).await;
        assert_eq!(honest.receive().await, None);
        let reason = loop {
            let closed = event(&mut second, "closed");
            let reason = closed["ended"].as_str().unwrap().to_owned();
            if reason.contains("PROXY") {
                break reason;
            }
        };
        assert!(
            reason.contains("does not begin with a PROXY header"),
            "{reason}"
        );
    }
}
