//! `top`: what it prints of a running listener, and how it fails.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::support::{listen, run, start};

/// A listener with metrics, and their address.
fn metered() -> (crate::support::Listening, String) {
    let mut listening = listen(&["--echo", "--metrics", "127.0.0.1:0", "--json"]);
    let line = listening.running.line();
    let event: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(event["event"], "metrics");
    let address = event["address"].as_str().unwrap().to_owned();
    (listening, address)
}

#[test]
fn one_table_shows_the_connections_and_their_rates() {
    let (listening, metrics) = metered();
    let idle = run(&["top", &metrics, "--interval", "0.1"]).succeeded();
    assert_eq!(
        idle.stdout.lines().count(),
        5,
        "without a terminal: {idle:?}"
    );
    assert!(
        idle.stdout
            .starts_with(&format!("listen {}  up ", listening.address))
    );
    assert!(
        idle.stdout
            .contains("0 connections open, 0 so far, 0 failed")
    );

    let arguments = [
        "ping",
        &listening.address,
        "--echo",
        "--count",
        "200",
        "--interval",
        "0.05",
    ];
    let mut ping = start(&arguments);
    for _ in 0..3 {
        ping.line();
    }
    let busy = run(&["top", &metrics, "--once", "--interval", "0.5"]).succeeded();
    assert!(
        busy.stdout
            .contains("1 connection open, 1 so far, 0 failed"),
        "{busy:?}"
    );
    let rows: Vec<_> = busy.stdout.lines().skip(6).collect();
    assert_eq!(rows.len(), 2, "{busy:?}");
    assert!(rows[0].contains("WAITS FOR"), "{busy:?}");
    assert!(
        rows[0].starts_with("PEER ") && rows[1].starts_with("127.0.0.1:"),
        "{busy:?}"
    );

    let json = run(&["top", &metrics, "--once", "--json", "--interval", "0.5"]).succeeded();
    let top = &json.json()[0];
    assert_eq!(top["event"], "top");
    assert_eq!(top["server_version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(top["connections"][0]["role"], "passive");
    for rate in [
        &top["rates"]["messages_sent"],
        &top["connection_rates"][0]["bytes_received"],
    ] {
        assert!(rate.as_f64().unwrap() > 0.0, "{top}");
    }
    drop(ping);
    listening.terminate().succeeded();
}

#[test]
fn what_is_not_there_is_named_with_a_cure() {
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string();
    run(&["top", &free])
        .failed(
            1,
            "; the server is a gateway or listener with --metrics ADDR",
        )
        .one_line();
    let listening = listen(&["--sink"]);
    run(&["top", &listening.address])
        .failed(1, "is not the address of --metrics")
        .one_line();
    run(&["top", ":0"]).failed(2, "host");
}

#[test]
fn json_goes_on_when_the_listener_is_started_again() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let metrics = free.local_addr().unwrap().to_string();
    drop(free);
    let arguments = ["--echo", "--metrics", &metrics, "--json"];
    let mut first = listen(&arguments);
    first.running.line();
    let mut top = start(&["top", &metrics, "--json", "--interval", "0.05"]);
    assert!(top.line().contains(&first.address));
    first.terminate().succeeded();
    let mut second = listen(&arguments);
    second.running.line();
    while !top.line().contains(&second.address) {}
    top.signal("TERM");
    let done = top.finish();
    assert!(done.status.success(), "{done:?}");
    assert!(
        done.stderr.lines().count() <= 1,
        "one line for one restart: {done:?}"
    );
    second.terminate().succeeded();
}

/// The endpoint answers twice, and hangs then.
#[test]
fn a_signal_ends_it_while_the_endpoint_hangs() {
    let (listening, metrics) = metered();
    let hanging = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = hanging.local_addr().unwrap().to_string();
    let (hangs, has_hung) = mpsc::channel();
    thread::spawn(move || {
        let mut held = Vec::new();
        for stream in hanging.incoming().map_while(Result::ok) {
            held.push(stream);
            if held.len() > 2 {
                hangs.send(()).unwrap();
                continue;
            }
            let mut asked = [0; 4096];
            let stream = held.last_mut().unwrap();
            let length = stream.read(&mut asked).unwrap();
            let mut real = TcpStream::connect(&metrics).unwrap();
            real.write_all(&asked[..length]).unwrap();
            let length = real.read(&mut asked).unwrap();
            stream.write_all(&asked[..length]).unwrap();
        }
    });
    let top = start(&["top", &address, "--json", "--interval", "0.05"]);
    has_hung.recv_timeout(Duration::from_secs(30)).unwrap();
    let signalled = Instant::now();
    top.signal("TERM");
    assert!(top.finish().status.success());
    // An answer is waited for during 5 s.
    assert!(signalled.elapsed() < Duration::from_secs(4));
    listening.terminate().succeeded();
}

/// Starts the command on a terminal, and returns it with its end of the terminal.
#[cfg(target_os = "linux")]
fn on_a_terminal(arguments: &[&str]) -> (std::process::Child, std::fs::File) {
    use std::{fs::File, os::unix::process::CommandExt, process::Command};

    use rustix::{
        pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
        termios::{Winsize, tcsetwinsize},
    };

    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let slave = File::options()
        .read(true)
        .write(true)
        .open(name.to_str().unwrap())
        .unwrap();
    let size = Winsize {
        ws_row: 24,
        ws_col: 80,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(&slave, size).unwrap();
    let mut command = Command::new(crate::support::PROGRAM);
    command.args(arguments).process_group(0);
    command
        .stdin(slave.try_clone().unwrap())
        .stdout(slave.try_clone().unwrap())
        .stderr(slave);
    (command.spawn().unwrap(), master.into())
}

/// Reads from a terminal until `wanted` is in what was read.
#[cfg(target_os = "linux")]
fn read_until(terminal: &mut std::fs::File, wanted: &str) -> String {
    let mut seen = String::new();
    while !seen.contains(wanted) {
        let mut bytes = [0; 4096];
        let length = terminal.read(&mut bytes).expect(&seen);
        seen += &String::from_utf8_lossy(&bytes[..length]);
    }
    seen
}

/// A shell sets its own modes of the terminal while a job is stopped.
#[cfg(target_os = "linux")]
#[test]
fn a_job_that_continues_has_its_terminal_again() {
    use rustix::{
        process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid},
        termios::{OptionalActions, tcgetattr, tcsetattr},
    };
    const ENTERED: &str = "\x1b[?1049h";
    const LEFT: &str = "\x1b[?1049l";

    let (listening, metrics) = metered();
    let (mut top, mut terminal) = on_a_terminal(&["top", &metrics]);
    let modes = tcgetattr(&terminal).unwrap();
    let pid = Pid::from_child(&top);
    let stopped = || waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED).unwrap();
    read_until(&mut terminal, ENTERED);
    for by_key in [true, false] {
        if by_key {
            terminal.write_all(b"\x1a").unwrap();
            read_until(&mut terminal, LEFT);
        } else {
            kill_process(pid, Signal::STOP).unwrap();
        }
        stopped();
        tcsetattr(&terminal, OptionalActions::Now, &modes).unwrap();
        kill_process(pid, Signal::CONT).unwrap();
        let drawn = read_until(&mut terminal, ENTERED);
        assert!(!drawn.contains("panicked"), "{drawn}");
        read_until(&mut terminal, &listening.address);
    }
    terminal.write_all(b"q").unwrap();
    read_until(&mut terminal, LEFT);
    assert!(top.wait().unwrap().success());
    listening.terminate().succeeded();
}
