//! `ping`: by keepalive, by echo, and to addresses without a listener.

use std::{
    io::{BufRead, BufReader, Read},
    net::TcpListener,
    thread,
    time::Duration,
};

use crate::support::{command, listen, run, start};

fn numbers(stdout: &str) -> usize {
    let number = |line: &&str| {
        line.split_whitespace()
            .next()
            .is_some_and(|word| word.parse::<u32>().is_ok())
    };
    stdout
        .lines()
        .filter(number)
        .filter(|line| !line.contains("sent"))
        .count()
}

#[test]
fn four_keepalives_by_default() {
    let listening = listen(&["--sink"]);
    let done = run(&["ping", &listening.address, "--interval", "0.01"]).succeeded();
    assert_eq!(numbers(&done.stdout), 4);
    assert!(
        done.stdout.contains("\n4 sent, 4 answered, 0 lost\nmin "),
        "{}",
        done.stdout
    );
}

#[test]
fn echoes_of_all_sizes() {
    let listening = listen(&["--echo"]);
    for size in ["1", "7", "4K", "100000", "1M"] {
        let done = run(&[
            "ping",
            &listening.address,
            "--echo",
            "--size",
            size,
            "--count",
            "3",
            "--interval",
            "0",
        ])
        .succeeded();
        assert_eq!(numbers(&done.stdout), 3);
    }
    run(&["ping", &listening.address, "--echo", "--size", "1048577"])
        .failed(2, "--max-fragmented-size")
        .one_line();
    let done = listening.terminate().succeeded();
    assert_eq!(
        done.stdout.matches("3 messages").count(),
        5,
        "{}",
        done.stdout
    );
}

#[test]
fn json_has_the_documented_fields() {
    let listening = listen(&["--echo"]);
    for echo in [false, true] {
        let mut arguments = vec!["ping", &listening.address, "--json", "-c", "2", "-i", "0"];
        if echo {
            arguments.push("--echo");
        }
        let events = run(&arguments).succeeded().json();
        let kinds: Vec<_> = events
            .iter()
            .map(|event| event["event"].as_str().unwrap())
            .collect();
        assert_eq!(kinds, ["connected", "reply", "reply", "summary"]);
        assert_eq!(events[2]["sequence"], 2);
        assert!(events[2]["seconds"].as_f64().unwrap() > 0.0);
        assert_eq!(events[2].get("bytes").is_some(), echo);
        assert_eq!(
            (&events[3]["sent"], &events[3]["lost"]),
            (&2.into(), &0.into())
        );
        for key in [
            "min_seconds",
            "median_seconds",
            "p99_seconds",
            "max_seconds",
        ] {
            assert!(events[3][key].as_f64().unwrap() > 0.0, "{key}");
        }
    }
}

#[test]
fn connecting_without_a_listener_fails() {
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let done = run(&["ping", &port.to_string()]);
    done.failed(1, "start `smbdirect gateway`").one_line();
    assert!(
        done.stderr.contains(&format!("nothing listens on {port}")),
        "{done:?}"
    );
    assert_eq!(done.stdout, "");
}

#[test]
fn peer_that_never_answers() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    run(&["ping", &address, "--connect-timeout", "0.3"])
        .failed(1, "accepts TCP but does not answer as iWARP")
        .one_line();
}

#[test]
fn peer_of_another_protocol() {
    let rude = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = rude.local_addr().unwrap().to_string();
    thread::spawn(move || rude.incoming().for_each(drop));
    run(&["ping", &address, "--connect-timeout", "5"])
        .failed(1, "does not answer as iWARP")
        .one_line();
    let http = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = http.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in http.incoming().flatten() {
            use std::io::Write;
            let (mut stream, mut request) = (stream, [0; 64]);
            let _ = stream.read(&mut request);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        }
    });
    run(&["ping", &address, "--connect-timeout", "5"])
        .failed(
            1,
            "accepts TCP but does not answer as iWARP; is it an SMB Direct listener?",
        )
        .one_line();
}

#[test]
fn a_sink_does_not_echo() {
    let listening = listen(&["--sink"]);
    let done = run(&["ping", &listening.address, "--echo", "--timeout", "0.3"]);
    assert_eq!(done.status.code(), Some(1));
    assert!(
        done.stdout
            .contains("does the peer run `smbdirect listen --echo`?"),
        "{done:?}"
    );
    assert!(
        done.stdout.contains("1 sent, 0 answered, 1 lost"),
        "{done:?}"
    );
}

#[test]
fn answer_after_the_timeout_counts_as_lost() {
    let listening = listen(&["--echo"]);
    let mut arguments = vec!["ping", &listening.address, "--echo", "--count", "1"];
    // Timers are coarser than this, so the answer often arrives first.
    arguments.extend(["--timeout", "0.000001"]);
    let done = run(&arguments);
    assert_eq!(done.status.code(), Some(1), "{done:?}");
    assert!(
        done.stdout.contains("1 sent, 0 answered, 1 lost"),
        "{done:?}"
    );
}

#[test]
fn a_listener_that_is_killed_loses_pings() {
    let listening = listen(&["--echo"]);
    let mut ping = start(&[
        "ping",
        &listening.address,
        "--count",
        "0",
        "--interval",
        "0.02",
    ]);
    for _ in 0..3 {
        ping.line();
    }
    listening.running.signal("KILL");
    let done = ping.finish();
    assert_eq!(done.status.code(), Some(1));
    assert!(
        done.stdout.contains("lost:") && done.stdout.contains("1 lost"),
        "{done:?}"
    );
}

#[test]
fn an_interrupted_ping_sums_up() {
    let listening = listen(&["--echo"]);
    for signal in ["INT", "TERM"] {
        let mut ping = start(&[
            "ping",
            &listening.address,
            "--count",
            "0",
            "--interval",
            "0.02",
        ]);
        for _ in 0..3 {
            ping.line();
        }
        ping.signal(signal);
        let done = ping.finish();
        assert!(done.status.success(), "{done:?}");
        assert!(done.stdout.contains(" answered, 0 lost\nmin "), "{done:?}");
    }
    thread::sleep(Duration::from_millis(10));
}

#[test]
fn it_ends_with_the_reader_of_its_lines() {
    let listener = listen(&["--echo"]);
    let mut ping = command(&["ping", &listener.address, "--count", "0", "--interval", "0"]);
    let mut ping = ping.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(ping.stdout.take().unwrap()).lines();
    // The connection, and a round trip.
    assert!(lines.by_ref().take(2).all(|line| line.is_ok()));
    drop(lines);
    assert!(ping.wait().unwrap().success());
}
