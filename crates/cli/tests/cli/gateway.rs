//! `gateway`: what is forwarded in every combination, and what faulty peers get. `crates/gateway/tests/gateway` has the
//! translation of READ and WRITE, refused requests and hostile peers.

use std::{fs, sync::Arc, time::Duration};

use serde_json::Value;
use smbdirect::{Config, Connection, Listener, Settings};
use smbdirect_test::peers::{End, Kind, Server, SmbDirect, Tcp, iwarp, soon};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::sleep,
};

use crate::support::{
    Done, Listening, STEP_TIMEOUT, command, listen, listening, noise, run, start,
};

#[cfg(unix)]
mod control;
mod crowd;
#[cfg(unix)]
mod exhaustion;
mod leaving;
mod memory;
mod metrics;
#[cfg(unix)]
mod reload;
#[cfg(unix)]
mod service;
#[cfg(unix)]
mod services;
#[cfg(target_os = "linux")]
mod systemd;
#[cfg(target_os = "linux")]
mod upgrade;

/// Returns an address of this machine with a port that no other test has, for what has to listen on the same one twice.
#[cfg(unix)]
fn own_address() -> String {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    static NUMBER: AtomicU32 = AtomicU32::new(1);
    let (id, number) = (std::process::id(), NUMBER.fetch_add(1, Relaxed));
    if cfg!(target_os = "linux") {
        format!("127.{}.{}.{number}:5445", 64 + (id >> 8) % 64, id % 256)
    } else {
        // Other systems have one address.
        format!("127.0.0.1:{}", 20_000 + (id % 256) * 64 + number)
    }
}

fn gateway(from: Kind, to: Kind, upstream: &str, arguments: &[&str]) -> Listening {
    let mut command = command(&["gateway", "127.0.0.1:0", upstream, "--json"]);
    command.args(["--from", from.name(), "--to", to.name()]);
    if !arguments.contains(&"--drain-timeout") {
        command.args(["--drain-timeout", "0"]);
    }
    command.args(arguments);
    listening(command)
}

/// A gateway, and both ends of one connection through it.
async fn through(from: Kind, to: Kind, arguments: &[&str]) -> (Listening, End, End) {
    through_with(from, to, arguments, Config::default()).await
}

async fn through_with(
    from: Kind,
    to: Kind,
    arguments: &[&str],
    config: Config,
) -> (Listening, End, End) {
    let mut server = Server::bind(to, config.clone()).await;
    let gateway = gateway(from, to, &server.address().to_string(), arguments);
    let client = End::connect_with(from, &gateway.address, config).await;
    let server = server.accept().await;
    (gateway, client, server)
}

/// Returns the next event of this kind, and skips others before it.
fn event(gateway: &mut Listening, kind: &str) -> Value {
    loop {
        let line = gateway.running.line();
        let event: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line}"));
        if event["event"] == kind {
            return event;
        }
    }
}

/// Returns how the next connection ends.
fn ended(gateway: &mut Listening) -> String {
    event(gateway, "closed")["ended"].as_str().unwrap().into()
}

fn summary(done: &Done) -> Value {
    let last = done.json().pop().unwrap();
    assert_eq!(last["event"], "summary");
    last
}

#[tokio::test(flavor = "multi_thread")]
async fn whole_messages_go_through_in_every_combination() {
    for from in [SmbDirect, Tcp] {
        for to in [SmbDirect, Tcp] {
            let (mut gateway, mut client, mut server) = through(from, to, &[]).await;
            let opened = event(&mut gateway, "opened");
            for (side, kind) in [("client", from), ("server", to)] {
                assert_eq!(opened[side].is_null(), kind == Tcp, "{opened}");
            }
            assert_eq!((&opened["open"], &opened["total"]), (&1.into(), &1.into()));
            let sizes = [1, 4, 8112, 8113, 65_536, 300_001, 1 << 20];
            let messages = sizes.map(|size| noise(size, size as u64));
            for message in &messages {
                client.send(message).await;
                assert!(server.receive().await.as_ref() == Some(message));
                server.send(message).await;
                assert!(client.receive().await.as_ref() == Some(message));
            }
            // Many outstanding messages in both directions, in order.
            for number in 0..200u32 {
                client.send(&number.to_be_bytes()).await;
                server.send(&number.to_be_bytes()).await;
            }
            for number in 0..200u32 {
                let expected = Some(number.to_be_bytes().to_vec());
                assert_eq!(server.receive().await, expected);
                assert_eq!(client.receive().await, expected);
            }
            client.close().await;
            assert_eq!(server.receive().await, None);
            server.close().await;
            let closed = event(&mut gateway, "closed");
            assert_eq!((&closed["ok"], &closed["open"]), (&true.into(), &0.into()));
            assert_eq!(closed["ended"], "closed by the client");
            let bytes = sizes.iter().sum::<usize>() + 800;
            let done = gateway.terminate().succeeded();
            for event in [closed, summary(&done)] {
                assert_eq!(event["messages_to_server"], 207, "{event}");
                assert_eq!(event["messages_to_client"], 207, "{event}");
                assert_eq!(event["bytes_to_server"], bytes, "{event}");
                assert_eq!(event["bytes_to_client"], bytes, "{event}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn server_disconnect_ends_the_client() {
    for from in [SmbDirect, Tcp] {
        for to in [SmbDirect, Tcp] {
            let (mut gateway, mut client, mut server) = through(from, to, &[]).await;
            // Messages that were sent before the end arrive before it.
            server.send(&noise(200_000, 1)).await;
            server.close().await;
            assert!(client.receive().await == Some(noise(200_000, 1)));
            assert_eq!(client.receive().await, None);
            assert_eq!(ended(&mut gateway), "closed by the server");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_sends_no_more_still_gets_its_answers() {
    for to in [SmbDirect, Tcp] {
        let (mut gateway, mut client, mut server) = through(Tcp, to, &[]).await;
        client.send(b"the last question").await;
        client.stream().shutdown().await.unwrap();
        assert_eq!(
            server.receive().await.as_deref(),
            Some(&b"the last question"[..])
        );
        if to == Tcp {
            // It sees the end immediately, and may still answer.
            assert_eq!(server.receive().await, None);
        }
        server.send(b"the last answer").await;
        assert_eq!(
            client.receive().await.as_deref(),
            Some(&b"the last answer"[..])
        );
        // It ends although the server sends nothing and does not close the connection.
        assert_eq!(client.receive().await, None);
        assert_eq!(ended(&mut gateway), "closed by the client");
        assert_eq!(server.receive().await, None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_down_is_named_and_may_come_back() {
    for (from, to) in [(SmbDirect, Tcp), (Tcp, SmbDirect)] {
        let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let mut gateway = gateway(from, to, &address.to_string(), &[]);
        let mut client = End::connect(from, &gateway.address).await;
        assert_eq!(client.receive().await, None);
        let closed = event(&mut gateway, "closed");
        assert_eq!(closed["ok"], false);
        let why = closed["ended"].as_str().unwrap();
        let says = format!("server: nothing listens on {address} (connection refused)");
        assert!(why.starts_with(&says), "{why}");
        let mut server = match to {
            SmbDirect => {
                let listener = Listener::bind(&*iwarp(), address, Config::default()).await;
                Server::SmbDirect(listener.unwrap())
            }
            Tcp => Server::Tcp(TcpListener::bind(address).await.unwrap()),
        };
        let mut client = End::connect(from, &gateway.address).await;
        let mut server = server.accept().await;
        client.send(b"again").await;
        assert_eq!(server.receive().await.as_deref(), Some(&b"again"[..]));
        drop((client, server));
        event(&mut gateway, "closed");
        let done = gateway.terminate().succeeded();
        let summary = summary(&done);
        assert_eq!(
            (&summary["total"], &summary["failed"]),
            (&2.into(), &1.into())
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_too_long_ends_its_connection_and_no_other() {
    let mut settings = Settings::default();
    settings.max_fragmented_receive_size = 131_072;
    let small = Config::new(settings);
    let small = small.unwrap();
    for from in [SmbDirect, Tcp] {
        let mut server = Server::bind(SmbDirect, small.clone()).await;
        let address = server.address().to_string();
        let mut gateway = gateway(from, SmbDirect, &address, &[]);
        let mut bystander = End::connect(from, &gateway.address).await;
        let mut bystanders_server = server.accept().await;
        let mut client = End::connect(from, &gateway.address).await;
        let mut server = server.accept().await;
        let longest = noise(131_072, 2);
        client.send(&longest).await;
        assert!(server.receive().await.as_ref() == Some(&longest));
        match &mut client {
            End::SmbDirect(connection) => {
                let sending = connection.send(noise(131_073, 2)).unwrap();
                // It may be sent, or be cut off by the end.
                let _ = soon(sending).await;
            }
            // Only the beginning, which has to be enough.
            End::Tcp(stream) => {
                let beginning = [&[0, 0x02, 0, 1][..], &[7; 112]].concat();
                stream.write_all(&beginning).await.unwrap();
            }
        }
        assert_eq!(
            ended(&mut gateway),
            "client: a message of 131073 bytes is too long: the other side takes at most 131072; have the server \
             offer less (ksmbd: `smb2 max write` = 65536)"
        );
        assert_eq!(client.receive().await, None);
        assert_eq!(server.receive().await, None);
        bystander.send(b"still here").await;
        let received = bystanders_server.receive().await;
        assert_eq!(received.as_deref(), Some(&b"still here"[..]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_stops_the_writer() {
    // Memory is measured where the system reports it.
    const ALL: usize = 96 << 20;
    // Buffers that the gateway keeps for reuse are a part of it, more of them on a busy machine.
    const HELD: u64 = 64 << 20;
    let mut settings = Settings::default();
    settings.credit_grant_timeout = None;
    settings.receive_buffer = Some(4 << 20);
    let patient = Config::new(settings);
    let patient = patient.unwrap();
    for (from, to) in [(Tcp, Tcp), (SmbDirect, Tcp), (Tcp, SmbDirect)] {
        let arguments = ["--credit-grant-timeout", "600", "--stall-limit", "600"];
        let (gateway, mut client, mut server) =
            through_with(from, to, &arguments, patient.clone()).await;
        let before = peak_memory(&gateway);
        let message = noise(1 << 20, 3);
        let sent = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let writer = tokio::spawn({
            let (message, sent) = (message.clone(), sent.clone());
            async move {
                for _ in 0..ALL >> 20 {
                    client.send(&message).await;
                    sent.fetch_add(message.len(), std::sync::atomic::Ordering::Relaxed);
                }
                client
            }
        });
        // Until the number no longer changes. If the machine only pauses for a moment, the test is weaker but
        // does not fail.
        let mut last = usize::MAX;
        loop {
            let now = sent.load(std::sync::atomic::Ordering::Relaxed);
            if now == last {
                break;
            }
            last = now;
            sleep(Duration::from_millis(500)).await;
        }
        assert!(
            !writer.is_finished(),
            "{from:?} to {to:?}: {last} bytes went nowhere"
        );
        if let (Some(before), Some(after)) = (before, peak_memory(&gateway)) {
            let held = after.saturating_sub(before);
            assert!(held < HELD, "{from:?} to {to:?}: {held} bytes");
        }
        for _ in 0..ALL >> 20 {
            assert!(server.receive().await.as_ref() == Some(&message));
        }
        soon(writer).await.unwrap().close().await;
        if let (Some(before), Some(after)) = (before, peak_memory(&gateway)) {
            let held = after.saturating_sub(before);
            assert!(held < HELD, "{from:?} to {to:?}: {held} bytes in the end");
        }
    }
}

/// Returns the peak memory of the gateway in bytes, where the system reports it.
fn peak_memory(gateway: &Listening) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", gateway.running.id())).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kibibytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kibibytes << 10)
}

#[tokio::test(flavor = "multi_thread")]
async fn partial_message_is_not_forwarded() {
    for to in [SmbDirect, Tcp] {
        let (mut gateway, mut client, mut server) = through(Tcp, to, &[]).await;
        client.send(b"whole").await;
        client
            .stream()
            .write_all(&[0, 0, 0, 100, 1, 2])
            .await
            .unwrap();
        client.close().await;
        assert_eq!(server.receive().await.as_deref(), Some(&b"whole"[..]));
        assert_eq!(server.receive().await, None);
        assert_eq!(
            ended(&mut gateway),
            "client: it closed the connection in the middle of a message"
        );
        // The same for messages from the server.
        let (mut gateway, mut client, mut server) = through(to, Tcp, &[]).await;
        server
            .stream()
            .write_all(&[0, 0, 0, 100, 1, 2])
            .await
            .unwrap();
        server.close().await;
        assert_eq!(client.receive().await, None);
        assert_eq!(
            ended(&mut gateway),
            "server: it closed the connection in the middle of a message"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stalled_peers_time_out() {
    for half in [&[0, 0][..], &[0, 0, 0, 2, 1]] {
        let (mut gateway, mut client, mut server) =
            through(Tcp, Tcp, &["--stall-limit", "0.2"]).await;
        client.stream().write_all(half).await.unwrap();
        assert_eq!(
            ended(&mut gateway),
            "client: it has sent nothing for 200 ms in the middle of a message"
        );
        assert_eq!(client.receive().await, None);
        assert_eq!(server.receive().await, None);
    }
    let (mut gateway, mut client, _server) = through(Tcp, Tcp, &["--stall-limit", "0.2"]).await;
    let flood = tokio::spawn(async move {
        let frame = [&[0, 1, 0, 0][..], &[7; 65_536]].concat();
        while client.stream().write_all(&frame).await.is_ok() {}
    });
    assert_eq!(
        ended(&mut gateway),
        "server: it accepted no data for 200 ms"
    );
    soon(flood).await.unwrap();
}

/// Systems limit the idle time of TCP keepalive; Linux refuses more than 32767 seconds.
#[tokio::test(flavor = "multi_thread")]
async fn tcp_allows_any_keepalive_interval() {
    for interval in ["0.001", "100000000"] {
        let arguments = ["--keepalive-interval", interval];
        let (_gateway, mut client, mut server) = through(Tcp, Tcp, &arguments).await;
        client.send(b"hello").await;
        assert_eq!(server.receive().await.as_deref(), Some(&b"hello"[..]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_are_killed_do_not_matter_to_others() {
    let server = listen(&["--echo"]);
    let mut gateway = gateway(SmbDirect, SmbDirect, &server.address, &[]);
    for _ in 0..3 {
        let mut client = start(&[
            "ping",
            &gateway.address,
            "--echo",
            "-s",
            "1M",
            "-c",
            "0",
            "-i",
            "0",
        ]);
        // In the middle of a message.
        for _ in 0..3 {
            client.line();
        }
        client.signal("KILL");
        drop(client);
        event(&mut gateway, "closed");
    }
    run(&["ping", &gateway.address, "--echo", "-c", "2", "-i", "0"]).succeeded();
    let done = gateway.terminate().succeeded();
    assert_eq!(summary(&done)["total"], 4);
    server.terminate().succeeded();
}

#[tokio::test(flavor = "multi_thread")]
async fn other_protocols_over_tcp_are_refused() {
    for to in [SmbDirect, Tcp] {
        let mut server = Server::bind(to, Config::default()).await;
        let mut gateway = gateway(Tcp, to, &server.address().to_string(), &[]);
        for (stranger, says) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], "begins with 0x47"),
            (&[0x81, 0, 0, 68], "asks for a NetBIOS session"),
            (&[0x85, 0, 0, 1], "begins with 0x85"),
            (&[0xff; 4096], "begins with 0xff"),
        ] {
            let mut client = End::connect(Tcp, &gateway.address).await;
            let mut server = server.accept().await;
            client.stream().write_all(stranger).await.unwrap();
            assert_eq!(client.receive().await, None);
            assert_eq!(server.receive().await, None);
            let ended = ended(&mut gateway);
            assert!(ended.contains(says), "{ended}");
        }
        // Keepalives of this connection and empty messages are not forwarded.
        let mut client = End::connect(Tcp, &gateway.address).await;
        let mut server = server.accept().await;
        let nothing = [0x85, 0, 0, 0, 0, 0, 0, 0].repeat(1000);
        client.stream().write_all(&nothing).await.unwrap();
        client.send(b"something").await;
        assert_eq!(server.receive().await.as_deref(), Some(&b"something"[..]));
        server.send(b"an answer").await;
        assert_eq!(client.receive().await.as_deref(), Some(&b"an answer"[..]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_connections() {
    const CLIENTS: u64 = 60;
    let server = listen(&["--echo"]);
    let gateway = gateway(Tcp, SmbDirect, &server.address, &[]);
    let mut clients = JoinSet::new();
    for seed in 0..CLIENTS {
        let address = gateway.address.clone();
        clients.spawn(async move {
            let mut client = End::connect(Tcp, &address).await;
            for round in 0..10 {
                let message = noise(1 + (seed * 1000 + round) as usize, seed);
                client.send(&message).await;
                assert!(client.receive().await == Some(message));
            }
            client.close().await;
        });
    }
    while let Some(client) = soon(clients.join_next()).await {
        client.unwrap();
    }
    let done = gateway.terminate().succeeded();
    let summary = summary(&done);
    assert_eq!(
        (&summary["total"], &summary["failed"]),
        (&CLIENTS.into(), &0.into())
    );
    assert_eq!(summary["messages_to_client"], CLIENTS * 10);
}

/// Checks that a client is turned away before it negotiates. Returns how often: an initiator of iWARP tries again with
/// MPA revision 1.
async fn is_refused(from: Kind, address: &str) -> u64 {
    match from {
        SmbDirect => {
            let provider = iwarp();
            let connecting = Connection::connect(&*provider, address, Config::default());
            soon(connecting).await.unwrap_err();
            2
        }
        Tcp => {
            let mut client = End::connect(from, address).await;
            assert_eq!(client.receive().await, None);
            1
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_beyond_the_limit_are_refused() {
    for from in [SmbDirect, Tcp] {
        let mut server = Server::bind(Tcp, Config::default()).await;
        let address = server.address().to_string();
        let mut gateway = gateway(from, Tcp, &address, &["--max-connections", "2"]);
        let first = End::connect(from, &gateway.address).await;
        let mut first_server = server.accept().await;
        let _second = End::connect(from, &gateway.address).await;
        let _second_server = server.accept().await;
        let refusals = is_refused(from, &gateway.address).await;
        assert_eq!(event(&mut gateway, "turned_away")["open"], 2);
        first.close().await;
        assert_eq!(first_server.receive().await, None);
        event(&mut gateway, "closed");
        let mut fourth = End::connect(from, &gateway.address).await;
        let mut fourth_server = server.accept().await;
        fourth.send(b"there is room").await;
        let received = fourth_server.receive().await;
        assert_eq!(received.as_deref(), Some(&b"there is room"[..]));
        let done = gateway.terminate().succeeded();
        let summary = summary(&done);
        assert_eq!(
            (&summary["total"], &summary["turned_away"]),
            (&3.into(), &refusals.into())
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn signals_end_it_with_a_summary() {
    for signal in ["TERM", "INT"] {
        let mut server = Server::bind(Tcp, Config::default()).await;
        let address = server.address().to_string();
        let command = command(&[
            "gateway",
            "127.0.0.1:0",
            &address,
            "--drain-timeout",
            "0",
            "--max-connections",
            "9",
        ]);
        let gateway = listening(command);
        let mut client = End::connect(SmbDirect, &gateway.address).await;
        let mut server = server.accept().await;
        client.send(b"hello").await;
        assert_eq!(server.receive().await.as_deref(), Some(&b"hello"[..]));
        gateway.running.signal(signal);
        assert_eq!(client.receive().await, None);
        assert_eq!(server.receive().await, None);
        let done = gateway.running.finish().succeeded();
        let lines: Vec<&str> = done.stdout.lines().collect();
        assert!(lines[0].contains("to server 1 message, 5 B  to client 0 messages, 0 B in "));
        assert!(lines[0].ends_with("closed here"), "{done:?}");
        assert_eq!(
            lines[1..],
            [
                "",
                "1 connection, none failed  to server 1 message, 5 B  to client 0 messages, 0 B"
            ]
        );
    }
}

#[test]
fn an_address_that_is_taken_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    for from in ["smbdirect", "tcp"] {
        run(&["gateway", &taken, "127.0.0.1:1", "--from", from])
            .failed(1, "another program listens there")
            .one_line();
    }
}
