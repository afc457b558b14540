//! `listen`: its first line, its exit, and independent connections.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    time::Duration,
};

use serde_json::Value;

use crate::support::{command, listen, listening, run, start};

#[test]
fn first_line_names_the_address() {
    let mut running = start(&["listen", "127.0.0.1:0", "--echo"]);
    let line = running.line();
    let port = line.strip_prefix("listening on 127.0.0.1:").unwrap();
    assert_ne!(port.strip_suffix('\n').unwrap().parse::<u16>().unwrap(), 0);
    let mut running = start(&["listen", "127.0.0.1:0", "--sink", "--json"]);
    let line = running.line();
    let event: Value = serde_json::from_str(&line).unwrap();
    let address = event["address"].as_str().unwrap();
    let begin = format!(
        "{{\"event\":\"listening\",\"address\":\"{address}\",\"transport\":\"iwarp\",\"time\":"
    );
    assert!(line.starts_with(&begin), "{line}");
    assert!(address.starts_with("127.0.0.1:"));
}

/// Returns whether IPv6 listeners of this system accept IPv4 peers, as they do by default.
fn has_both_families() -> bool {
    let dual = TcpListener::bind("[::]:0").and_then(|listener| listener.local_addr());
    dual.is_ok_and(|address| TcpStream::connect(("127.0.0.1", address.port())).is_ok())
}

#[test]
fn without_a_host_both_families_can_connect() {
    if !has_both_families() {
        return;
    }
    let echo = listening(command(&["listen", ":0", "--echo"]));
    let port = echo.address.strip_prefix("[::]:").unwrap();
    for host in ["127.0.0.1", "[::1]"] {
        let address = format!("{host}:{port}");
        run(&["ping", &address, "--count", "1"]).succeeded();
    }
    let plain: [&[&str]; 2] = [
        &["bench", "--serve", ":0"],
        &[
            "gateway",
            ":0",
            "127.0.0.1:1",
            "--from",
            "tcp",
            "--to",
            "smbdirect",
        ],
    ];
    for arguments in plain {
        let listening = listening(command(arguments));
        let port = listening.address.strip_prefix("[::]:").unwrap();
        for host in ["127.0.0.1", "[::1]"] {
            TcpStream::connect(format!("{host}:{port}")).unwrap();
        }
    }
}

#[test]
fn an_ipv4_peer_of_both_families_has_its_own_address() {
    if !has_both_families() {
        return;
    }
    let mut listening = listening(command(&["listen", ":0", "--echo"]));
    let port = listening.address.strip_prefix("[::]:").unwrap();
    run(&["ping", &format!("127.0.0.1:{port}"), "--count", "1"]).succeeded();
    let line = listening.running.line();
    assert!(
        line.contains("127.0.0.1:") && !line.contains("ffff"),
        "{line}"
    );
}

#[test]
fn signals_end_it_well() {
    for signal in ["TERM", "INT"] {
        let listening = listen(&["--sink"]);
        listening.running.signal(signal);
        let done = listening.running.finish().succeeded();
        assert_eq!(done.stdout, "");
    }
}

#[test]
fn signals_end_connections_too() {
    let listening = listen(&["--echo"]);
    let mut ping = start(&[
        "ping",
        &listening.address,
        "--count",
        "0",
        "--interval",
        "0.02",
    ]);
    ping.line();
    ping.line();
    let done = listening.terminate().succeeded();
    assert!(done.stdout.ends_with("closed\n"), "{done:?}");
    let done = ping.finish();
    assert_eq!(done.status.code(), Some(1));
    assert!(
        done.stdout.contains("the peer closed the connection"),
        "{done:?}"
    );
}

#[test]
fn ends_after_the_given_number_of_connections() {
    let listening = listen(&["--echo", "--count", "2", "--json"]);
    for _ in 0..2 {
        run(&["ping", &listening.address, "-c", "1", "--echo"]).succeeded();
    }
    let done = listening.running.finish().succeeded();
    let events = done.json();
    assert_eq!(events.len(), 2);
    for event in events {
        assert_eq!(event["event"], "connection");
        assert_eq!(
            (&event["ok"], &event["ended"]),
            (&true.into(), &"closed".into())
        );
        assert_eq!(event["messages_received"], 1);
        assert_eq!(event["bytes_sent"], 64);
        assert!(event["peer"].as_str().unwrap().starts_with("127.0.0.1:"));
    }
    let listening = listen(&["--sink", "--once"]);
    run(&["ping", &listening.address, "-c", "1"]).succeeded();
    listening.running.finish().succeeded();
}

#[test]
fn strangers_are_turned_away_and_others_served() {
    let listening = listen(&["--echo"]);
    let _silent = TcpStream::connect(&listening.address).unwrap();
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 64], &[0xff; 4096]] {
        let mut stranger = TcpStream::connect(&listening.address).unwrap();
        stranger
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        // It may close the connection before it has read everything.
        let _ = stranger.write_all(garbage);
        let mut answer = Vec::new();
        let end = stranger.read_to_end(&mut answer);
        let late = |kind| {
            matches!(
                kind,
                std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
            )
        };
        assert!(
            !end.is_err_and(|error| late(error.kind())),
            "hung up in time"
        );
    }
    run(&["ping", &listening.address, "-c", "1", "--echo"]).succeeded();
    listening.terminate().succeeded();
}

#[test]
fn an_address_can_be_listened_on_once() {
    let listening = listen(&["--sink"]);
    run(&["listen", &listening.address, "--sink"])
        .failed(1, "another program listens there")
        .one_line();
}

#[test]
fn a_reader_that_is_gone_does_not_matter() {
    let mut listening = listen(&["--echo"]);
    listening.running.close_stdout();
    run(&["ping", &listening.address, "-c", "1", "--echo"]).succeeded();
    run(&["ping", &listening.address, "-c", "1", "--echo"]).succeeded();
    listening.running.signal("TERM");
    assert!(listening.running.status().success());
}

#[test]
fn output_that_cannot_be_written_is_a_failure() {
    let Ok(full) = std::fs::OpenOptions::new().write(true).open("/dev/full") else {
        return;
    };
    let mut command = command(&["demo", "Cargo.toml", "--transport", "loopback"]);
    command.stdout(full);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.starts_with("error: cannot write to stdout: "),
        "{stderr}"
    );
}
