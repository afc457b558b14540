//! `tdi` and `listen --tdi`: sessions between two processes over iWARP.
//!
//! All commands of a script are submitted before anything is sent, so the order of sends is the same in
//! every run.

use std::{collections::HashMap, fs, net::TcpListener, path::Path, process::Stdio};

use crate::support::{
    Done, Listening, Running, command, listen, listening, run, start, write_noise,
};

fn listen_tdi(commands: &str, arguments: &[&str]) -> Listening {
    listen(&[&["--tdi", "--execute", commands], arguments].concat())
}

/// Runs a scripted session with `listening`.
fn session(listening: &Listening, commands: &str, arguments: &[&str]) -> Done {
    run(&[
        &["tdi", &listening.address, "--execute", commands],
        arguments,
    ]
    .concat())
}

/// The data of all TSDUs that were indicated, in order.
fn indicated(done: &Done) -> Vec<&str> {
    let lines = done.stdout.lines();
    lines
        .filter(|line| line.contains("indicated "))
        .map(|line| line.split('"').nth(1).expect("the data is in quotes"))
        .collect()
}

/// Replaces ports that the system picked with those of the text.
fn without_port(line: &str) -> String {
    let Some((before, after)) = line.split_once("127.0.0.1:") else {
        return line.into();
    };
    let after = after.trim_start_matches(|c: char| c.is_ascii_digit());
    format!("{before}127.0.0.1:PORT{after}")
}

/// Runs lines after `$`, types lines after `>`, and compares all other lines.
#[test]
fn the_session_of_the_documentation() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/tdi-session.md");
    let text = fs::read_to_string(path).unwrap();
    let (mut ends, mut end) = (HashMap::<&str, Running>::new(), None);
    let (mut address, mut compared) = (String::new(), 0);
    for (number, line) in (1..).zip(text.lines()) {
        if let Some(name) = line.strip_prefix("```text ") {
            end = Some(name);
            continue;
        }
        if line == "```" {
            end = None;
        }
        let Some(name) = end else {
            continue;
        };
        if let Some(arguments) = line.strip_prefix("$ smbdirect ") {
            if let Some(before) = ends.remove(name) {
                ended_well(before);
            }
            let here = match name {
                "listening" => "127.0.0.1:0",
                _ => &address,
            };
            let arguments = arguments.replace("127.0.0.1", here);
            let mut command = command(&arguments.split(' ').collect::<Vec<_>>());
            command.stdin(Stdio::piped());
            ends.insert(name, Running::new(command));
            continue;
        }
        let end = ends.get_mut(name).expect("it was started");
        if let Some(command) = line.strip_prefix("> ") {
            end.type_line(command);
            // What was typed is repeated, since it is not on a terminal, as it is run.
            let seen = end.line();
            assert!(seen.starts_with("> "), "line {number}: {seen}");
            continue;
        }
        // The other commands of the line are repeated as well.
        let mut seen = end.line();
        while seen.starts_with("> ") {
            seen = end.line();
        }
        let seen = seen.trim_end();
        assert_eq!(without_port(seen), without_port(line), "line {number}");
        if let Some(listening) = seen.strip_prefix("listening on ") {
            address = listening.to_owned();
        }
        compared += 1;
    }
    assert!(compared > 50, "{compared}");
    ends.into_values().for_each(ended_well);
}

fn ended_well(end: Running) {
    let done = end.finish().succeeded();
    let rest = done.stdout.lines().find(|line| !line.starts_with("> "));
    assert_eq!(rest, None);
}

#[test]
fn expedited_sends_overtake_by_default() {
    let commands = "send one; send two; send --expedited three; send --expedited four; wait";
    for (arguments, order) in [
        (&[][..], ["three", "four", "one", "two"]),
        (&["--no-expedited"], ["one", "two", "three", "four"]),
    ] {
        let listening = listen_tdi("take", &["--once"]);
        session(&listening, commands, arguments).succeeded();
        let done = listening.running.finish().succeeded();
        assert_eq!(indicated(&done), order);
    }
}

#[test]
fn a_non_blocking_send_is_as_the_transport_is() {
    for (arguments, commands, says) in [
        (
            &["--max-tsdu", "8", "--send-buffer", "16"][..],
            "send -n -e 12345678; send -n 1234; send -n 12345678; send 9; wait",
            "#3 send NON_BLOCKING 8 B -> STATUS_SUCCESS, 4 B taken",
        ),
        (
            &["--max-tsdu", "8", "--send-buffer", "16", "--atomic"],
            "send -n -e 12345678; send -n 1234; expect DEVICE_NOT_READY send -n 12345678; wait",
            "#3 send NON_BLOCKING 8 B -> STATUS_DEVICE_NOT_READY, as expected",
        ),
        (
            &["--send-buffer", "0"],
            "send -n x; wait",
            "#1 send NON_BLOCKING 1 B -> STATUS_PENDING",
        ),
    ] {
        let listening = listen_tdi("take", &["--once"]);
        let done = session(&listening, commands, arguments).succeeded();
        assert!(done.stdout.contains(says), "{done:?}");
        listening.running.finish().succeeded();
    }
}

#[test]
fn failures_have_status_1() {
    let listening = listen_tdi("take", &[]);
    for (commands, code, says) in [
        ("send ''", 1, "#1 failed"),
        ("send ''; discard", 1, "#1, `discard` failed"),
        ("expect SUCCESS send ''", 1, "#1 failed"),
        ("expect IO_TIMEOUT send x; wait", 1, "#1 failed"),
        ("wait --disconnected --timeout 0.01", 1, "`wait` failed"),
        // An incomplete TSDU would be lost.
        ("send --partial x", 1, "#2 failed"),
        ("expect INVALID_PARAMETER send ''", 0, ""),
        (
            "expect IO_TIMEOUT wait --disconnected --timeout 0.01",
            0,
            "",
        ),
        ("receive 10", 0, ""),
        ("send a; quit; send ''", 0, ""),
        ("", 0, ""),
    ] {
        let done = session(&listening, commands, &[]);
        match code {
            0 => drop(done.succeeded()),
            _ => done.failed(code, says).one_line(),
        }
    }
    listening.terminate().succeeded();
}

#[test]
fn scripts_are_read_before_anything_is_done() {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("script");
    let file = script.to_str().unwrap();
    let listening = listen_tdi("take", &[]);
    fs::write(&script, "# a comment\n\nsend 'a; b' # text\nwait\n").unwrap();
    let done = run(&["tdi", &listening.address, "--script", file]).succeeded();
    assert!(done.stdout.contains("#1 send 11 B"), "{done:?}");
    fs::write(&script, "send a\nsend --size b\n").unwrap();
    let done = run(&["tdi", &listening.address, "--script", file]);
    done.failed(2, "script:2: ").one_line();
    assert_eq!(done.stdout, "");
    let absent = directory.path().join("absent");
    let done = run(&[
        "tdi",
        &listening.address,
        "--script",
        absent.to_str().unwrap(),
    ]);
    done.failed(1, "give a file of commands").one_line();
    write_noise(directory.path(), "noise", 1000);
    let noise = directory.path().join("noise");
    let done = run(&[
        "tdi",
        &listening.address,
        "--script",
        noise.to_str().unwrap(),
    ]);
    done.failed(1, "cannot read").one_line();
    listening.terminate().succeeded();
}

#[test]
fn a_line_of_stdin_that_cannot_be_understood_ends_the_session() {
    let listening = listen_tdi("take", &[]);
    let mut command = command(&["tdi", &listening.address]);
    command.stdin(Stdio::piped());
    let mut running = Running::new(command);
    running.type_line("help send");
    running.type_line("sned x");
    let done = running.finish();
    done.failed(2, "stdin:2: unrecognized subcommand 'sned'")
        .one_line();
    assert!(done.stdout.contains("--no-response-expected"), "{done:?}");
    listening.terminate().succeeded();
}

#[test]
fn an_endpoint_is_used_again() {
    let listening = listen_tdi("take", &["--count", "2"]);
    let commands = "send one; disconnect --release; wait; connect; wait; send two; wait";
    let done = session(&listening, commands, &[]).succeeded();
    assert!(
        done.stdout.contains("#4 completed STATUS_SUCCESS"),
        "{done:?}"
    );
    let done = listening.running.finish().succeeded();
    assert_eq!(indicated(&done), ["one", "two"]);
    for peer in [1, 2] {
        let end = format!("peer {peer}: event: disconnected (ABORT): the peer disconnected");
        assert!(done.stdout.contains(&end), "{done:?}");
    }
}

#[test]
fn connections_after_the_last_are_refused() {
    let listening = listen_tdi("take", &["--once"]);
    let mut first = start(&[
        "tdi",
        &listening.address,
        "--execute",
        "wait --disconnected",
    ]);
    while !first.line().starts_with("> wait") {}
    session(&listening, "send x", &[])
        .failed(1, "turned the offer away")
        .one_line();
    first.signal("INT");
    first.finish().failed(1, "interrupted");
    listening.running.finish();
}

#[test]
fn misuse_has_its_status() {
    let listening = listen_tdi("take", &["--once"]);
    let commands = "expect CONNECTION_ACTIVE disassociate; expect ADDRESS_ALREADY_ASSOCIATED \
                    associate; expect CONNECTION_ACTIVE connect; disconnect --release; wait; \
                    expect INVALID_CONNECTION disconnect; expect INVALID_CONNECTION poke; disassociate; \
                    expect ADDRESS_NOT_ASSOCIATED connect; expect INVALID_CONNECTION receive 1; \
                    expect INVALID_CONNECTION connection; associate; expect \
                    INVALID_CONNECTION write x; expect INVALID_DEVICE_STATE cancel 77";
    session(&listening, commands, &[]).succeeded();
    listening.running.finish().succeeded();
}

#[test]
fn all_echoes_come_back_however_many() {
    for chained in ["on", "off"] {
        let listening = listen_tdi(&format!("echo; chained {chained}"), &["--once"]);
        let receives = "receive 9; ".repeat(100);
        let sends: String = (100..200)
            .map(|number| format!("send {number}; "))
            .collect();
        let done = session(&listening, &format!("{receives}{sends}wait"), &[]).succeeded();
        for number in 100..200 {
            let back = format!("completed STATUS_SUCCESS, 3 B: \"{number}\"");
            assert!(done.stdout.contains(&back), "{done:?}");
        }
        listening.running.finish().succeeded();
    }
}

#[test]
fn peers_have_sessions_of_their_own() {
    let listening = listen_tdi(
        "hold; send welcome; wait; receive 100; wait",
        &["--count", "3"],
    );
    let clients: Vec<_> = (1..=3)
        .map(|_| {
            let commands = "hold; receive 100; wait; send thanks; wait";
            start(&["tdi", &listening.address, "--execute", commands])
        })
        .collect();
    for client in clients {
        let done = client.finish().succeeded();
        assert!(done.stdout.contains("\"welcome\""), "{done:?}");
    }
    let done = listening.running.finish().succeeded();
    for peer in 1..=3 {
        // Immediately or later, depending on timing.
        let prefix = format!("peer {peer}: #2 ");
        let mut lines = done.stdout.lines().filter(|line| line.starts_with(&prefix));
        let received = |line: &str| line.ends_with("STATUS_SUCCESS, 6 B: \"thanks\"");
        assert!(lines.any(received), "{done:?}");
    }
}

#[test]
fn json_has_the_documented_fields() {
    let listening = listen_tdi("request 2", &["--once", "--json"]);
    let commands = "info; send abcd; wait; connection; statistics; resume";
    let events = session(&listening, commands, &["--json"])
        .succeeded()
        .json();
    let kinds: Vec<_> = events
        .iter()
        .map(|event| event["event"].as_str().unwrap())
        .collect();
    let mut expected = vec![
        "connected",
        "command",
        "info",
        "command",
        "request",
        "command",
    ];
    expected.extend([
        "completed",
        "command",
        "connection",
        "command",
        "statistics",
        "command",
    ]);
    expected.extend(["done", "request", "completed"]);
    assert_eq!(kinds, expected);
    let request = &events[4];
    assert_eq!(
        (
            &request["id"],
            &request["request"],
            &request["bytes"],
            &request["status"]
        ),
        (
            &1.into(),
            &"send".into(),
            &4.into(),
            &"STATUS_PENDING".into()
        )
    );
    assert_eq!(events[6]["information"], 4);
    assert!(events[0]["negotiated"]["max_send_size"].as_u64() > Some(0));
    assert_eq!(events[8]["transmitted_bytes"], 4);
    let events = listening.running.finish().succeeded().json();
    let of = |kind: &str| events.iter().find(|event| event["event"] == kind).unwrap();
    let seen = of("indicated");
    assert_eq!(seen["flags"], "NORMAL|ENTIRE_MESSAGE|AT_DISPATCH_LEVEL");
    assert_eq!(
        (&seen["tsdu_length"], &seen["data"]),
        (&4.into(), &"abcd".into())
    );
    let completed = of("completed");
    assert_eq!(completed["status"], "STATUS_BUFFER_OVERFLOW");
    assert_eq!(completed["data"], "ab");
    assert_eq!(of("disconnected")["status"], "STATUS_REMOTE_DISCONNECT");
}

#[test]
fn connecting_without_a_listener_fails() {
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let done = run(&["tdi", &port.to_string()]);
    done.failed(1, "start `smbdirect listen --tdi` there")
        .one_line();
    assert_eq!(done.stdout, "");
}

#[test]
fn a_port_that_is_taken() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    run(&["listen", &address, "--tdi"])
        .failed(1, "another program listens there")
        .one_line();
}

#[test]
fn a_connection_that_is_lost_is_a_failure() {
    let listening = listen_tdi("take", &[]);
    let mut session = start(&[
        "tdi",
        &listening.address,
        "--execute",
        "expect SUCCESS poke; wait --credits 65535; send never",
    ]);
    while !session.line().starts_with("> wait") {}
    listening.running.signal("KILL");
    session
        .finish()
        .failed(1, "the connection was lost")
        .one_line();
}

#[test]
fn a_peer_may_end_it_where_that_is_expected() {
    for (commands, code) in [
        ("send go; wait --disconnected", 0),
        ("send go; receive 1; wait; poke", 1),
    ] {
        let listening = listen_tdi(
            "hold; receive 9; wait; disconnect --release; wait",
            &["--once"],
        );
        let done = session(&listening, commands, &[]);
        assert_eq!(done.status.code(), Some(code), "{done:?}");
        assert!(
            done.stdout.contains("event: disconnected (ABORT)"),
            "{done:?}"
        );
        listening.running.finish().succeeded();
    }
}

#[test]
fn signals_end_both_ends() {
    let listening = listen_tdi("take", &[]);
    for signal in ["INT", "TERM"] {
        let mut session = start(&["tdi", &listening.address, "--execute", "sleep 600"]);
        while !session.line().starts_with("> sleep") {}
        session.signal(signal);
        session.finish().failed(1, "interrupted").one_line();
    }
    let mut session = start(&[
        "tdi",
        &listening.address,
        "--execute",
        "wait --disconnected",
    ]);
    while !session.line().starts_with("> wait") {}
    listening.terminate().succeeded();
    session.finish().succeeded();
}

#[test]
fn commands_on_stdin_are_for_the_peer_that_came_last() {
    let mut listen = command(&["listen", "127.0.0.1:0", "--tdi", "--once"]);
    listen.stdin(Stdio::piped());
    let mut listening = listening(listen);
    // Without a session, one command is kept for the next session and the other has no meaning.
    listening.running.type_line("hold");
    let mut client = command(&["tdi", &listening.address]);
    client.stdin(Stdio::piped());
    let mut client = Running::new(client);
    client.type_line("send held");
    while !listening.running.line().contains("-> not accepted") {}
    listening.running.type_line("receive 9");
    let mut line = listening.running.line();
    while !line.starts_with('#') {
        line = listening.running.line();
    }
    assert_eq!(line, "#1 receive 9 B -> STATUS_SUCCESS, 4 B: \"held\"\n");
    client.type_line("quit");
    client.finish().succeeded();
    listening.running.finish().succeeded();
}

/// On a terminal there is a prompt, input is not repeated, and mistakes do not end the session.
#[cfg(target_os = "linux")]
#[test]
fn a_person_is_asked() {
    let listening = listen_tdi("take", &["--once"]);
    let tdi = format!("{} tdi {}", crate::support::PROGRAM, listening.address);
    let mut script = std::process::Command::new("script");
    script.args(["-qec", &tdi, "/dev/null"]);
    script.stdin(Stdio::piped()).stdout(Stdio::piped());
    let Ok(mut child) = script.spawn() else {
        eprintln!("skipped: there is no `script` to make a terminal");
        return;
    };
    let mut stdin = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut stdin, b"sned\nsend ''\nquit\n").unwrap();
    let output = child.wait_with_output().unwrap();
    drop(stdin);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(text.contains("\n> "), "{text}");
    assert!(text.contains("`help` lists the commands"), "{text}");
    assert!(
        text.contains("#1 send 0 B -> STATUS_INVALID_PARAMETER"),
        "{text}"
    );
    listening.running.finish().succeeded();
}
