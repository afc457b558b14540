//! `-v`: each line of the log about a connection names the connection.

use std::{
    collections::BTreeSet,
    io::{Read, Write},
    net::TcpStream,
};

#[cfg(target_os = "linux")]
use crate::support::eventually;
use crate::support::{Done, command, listen, listening, run, write_noise};

/// The connection that the span of a line names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Named {
    peer: String,
    local: Option<String>,
}

/// Returns the connection that each line on stderr names.
///
/// # Panics
///
/// Panics if a line is not a line of the log, or does not name exactly one connection.
#[track_caller]
fn named(done: &Done) -> Vec<Named> {
    let name = |line: &str| {
        assert!(line.contains(" smbdirect"), "not a line of the log: {line}");
        let mut spans = line.split("connection{peer=").skip(1);
        let (Some(span), None) = (spans.next(), spans.next()) else {
            panic!("not in one span of a connection: {line}");
        };
        let span = span.split_once("}: ").expect("a span ends").0;
        let (peer, local) = match span.split_once(" local=") {
            Some((peer, local)) => (peer, Some(local.to_owned())),
            None => (span, None),
        };
        let peer = peer.to_owned();
        Named { peer, local }
    };
    let names: Vec<_> = done.stderr.lines().map(name).collect();
    assert!(!names.is_empty(), "{done:?}");
    names
}

#[track_caller]
fn ended_well(done: &Done) {
    assert!(done.status.success(), "{done:?}");
}

#[test]
fn both_ends_of_a_ping_name_the_peer() {
    let listening = listen(&["--echo", "--once", "-v"]);
    let address = listening.address.clone();
    let ping = run(&["ping", &address, "--echo", "-c", "2", "-i", "0", "-v", "-v"]);
    let listen = listening.running.finish();
    let says = |done: &Done, texts: &[&str]| {
        ended_well(done);
        for text in texts {
            assert!(done.stderr.contains(text), "{text}: {done:?}");
        }
    };
    let both = ["iWARP connection", "established", "the connection is over"];
    says(&ping, &both);
    says(&ping, &["proposing", "sending Data", "received Data"]);
    says(&listen, &both);
    says(&listen, &["accepting the negotiation", "accepted"]);

    let ours = named(&ping);
    assert!(ours.iter().all(|named| named.peer == address), "{ping:?}");
    let local = ours.last().unwrap().local.clone().unwrap();
    let theirs = named(&listen);
    assert!(theirs.iter().all(|named| named.peer == local), "{listen:?}");
    let last = theirs.last().unwrap();
    assert_eq!(last.local.as_ref(), Some(&address));
}

#[test]
fn peers_without_a_connection_are_named() {
    let listening = listen(&["--sink", "-v"]);
    let mut stranger = TcpStream::connect(&listening.address).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let peer = stranger.local_addr().unwrap().to_string();
    // Returns when the listener closes the connection.
    let _ = stranger.read_to_end(&mut Vec::new());
    let address = listening.address.clone();
    let done = listening.terminate();
    assert!(done.stderr.contains("no MPA Request"), "{done:?}");
    let local = Some(address.clone());
    assert_eq!(named(&done), [Named { peer, local }]);

    // The listener has stopped.
    let done = run(&["ping", &address, "-v"]);
    let (log, error) = done.stderr.split_once('\n').unwrap();
    let log = Done {
        stderr: log.into(),
        ..done
    };
    assert_eq!(named(&log)[0].peer, address);
    assert!(error.starts_with("error: nothing listens on"), "{error}");
}

#[test]
fn every_command_names_its_connections() {
    let directory = tempfile::tempdir().unwrap();
    let file = write_noise(directory.path(), "file", 300_000);
    let file = file.to_str().unwrap();
    for (mode, options) in [("--sink", &[][..]), ("--echo", &["--echo"])] {
        let listening = listen(&[mode, "--once", "-v", "-v"]);
        let ping = ["ping", &listening.address, "--count", "1", "-v", "-v"];
        let done = run(&[&ping, options].concat());
        ended_well(&done);
        let all = named(&done);
        let address = &listening.address;
        assert!(all.iter().all(|named| named.peer == *address), "{done:?}");
        let listen = listening.running.finish();
        ended_well(&listen);
        let peers: BTreeSet<_> = named(&listen).into_iter().map(|named| named.peer).collect();
        assert_eq!(peers.len(), 1, "{listen:?}");
    }
    for arguments in [
        &["demo", file, "-v", "-v"][..],
        &["demo", file, "--transport", "loopback", "-v", "-v"],
        &[
            "bench", "--rounds", "1", "--time", "0.002", "--sizes", "64", "--what", "send", "-v",
        ],
    ] {
        let done = run(arguments);
        ended_well(&done);
        let peers: BTreeSet<_> = named(&done).into_iter().map(|named| named.peer).collect();
        assert!(peers.len() >= 2, "one for each end: {done:?}");
    }
}

#[test]
fn a_gateway_names_the_session_and_its_connection() {
    let upstream = listen(&["--sink"]);
    let mut command = command(&["gateway", "127.0.0.1:0", &upstream.address, "--json", "-v"]);
    command.args(["--from", "tcp", "--to", "smbdirect"]);
    let mut gateway = listening(command);
    let client = TcpStream::connect(&gateway.address).unwrap();
    let opened = gateway.running.line();
    assert!(opened.contains("opened"), "{opened}");
    let session = format!(" session{{id=1 client={}}}:", client.local_addr().unwrap());
    drop(client);
    let done = gateway.terminate();
    ended_well(&done);
    let mut all = named(&done).into_iter();
    assert!(all.all(|named| named.peer == upstream.address), "{done:?}");
    assert!(
        done.stderr.lines().all(|line| line.contains(&session)),
        "{done:?}"
    );
}

#[test]
fn a_filter_can_trace_one_connection() {
    let listening = listen(&["--sink"]);
    for (peer, traced) in [(&*listening.address, true), ("127.0.0.1:1", false)] {
        let mut command = command(&["ping", &listening.address, "-c", "1"]);
        let filter = format!("smbdirect[connection{{peer={peer}}}]=trace");
        command.env("RUST_LOG", filter);
        let output = command.output().unwrap();
        assert!(output.status.success());
        let log = String::from_utf8(output.stderr).unwrap();
        assert_eq!(log.contains("TRACE"), traced, "{log}");
        assert_eq!(log.is_empty(), !traced, "{log}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn help_that_cannot_be_written_is_an_error() {
    for arguments in [&["--version"][..], &["ls", "-h"]] {
        let full = std::fs::File::options().write(true).open("/dev/full");
        let mut command = command(arguments);
        let output = command.stdout(full.unwrap()).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            text,
            "error: cannot write to stdout: No space left on device\n"
        );
    }
}

/// Terminals and some supervisors share a pipe that another program has made non-blocking.
#[cfg(target_os = "linux")]
#[test]
fn a_full_pipe_that_does_not_block_loses_no_line() {
    let capture = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/cli/decode/rxe-keepalive.pcap"
    );
    for arguments in [&["decode", capture][..], &["gateway", "--help"]] {
        waits_for_a_reader(arguments);
    }
}

#[cfg(target_os = "linux")]
fn waits_for_a_reader(arguments: &[&str]) {
    let expected = run(arguments).succeeded().stdout;
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&writer, true).unwrap();
    let mut filled = 0;
    while let Ok(length) = writer.write(&[b'.'; 512]) {
        filled += length;
    }
    let mut command = command(arguments);
    let mut child = command.stdout(writer).spawn().unwrap();
    drop(command);
    let stat = format!("/proc/{}/stat", child.id());
    eventually("the command waits or ends", || {
        let stat = std::fs::read_to_string(&stat).unwrap();
        stat.contains(") S ") || stat.contains(") Z ")
    });
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(text[filled..], expected);
}
