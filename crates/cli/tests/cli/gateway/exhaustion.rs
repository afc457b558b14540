//! What a gateway does when something that it needs has run out: a reader of its log, room on the disk, threads, file
//! descriptors.

use std::{
    fs::File,
    io::Read,
    net::TcpStream as Stream,
    process::{Command, Stdio},
    time::Instant,
};

use super::{metrics::http, *};
use crate::support::{PROGRAM, Running, eventually};

/// Connects, and waits until the gateway closes the connection.
fn turned_away(address: &str) -> bool {
    let mut client = Stream::connect(address).unwrap();
    client
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    // The gateway may reset the connection.
    let timed_out = |kind| matches!(kind, std::io::ErrorKind::WouldBlock);
    !client
        .read(&mut [0])
        .is_err_and(|error| timed_out(error.kind()))
}

/// Returns a gateway that turns every client away, which logs a line for each.
fn denying(address: &str, stdout: Stdio) -> Command {
    let mut command = command(&["gateway", address, "127.0.0.1:1", "--from", "tcp"]);
    command.args(["--allow", "10.0.0.0/8"]).stdout(stdout);
    command
}

#[test]
fn a_log_that_nothing_reads_stops_nothing() {
    let listening = listening(denying("127.0.0.1:0", Stdio::piped()));
    // A pipe has room for about 900 of the lines.
    for client in 0..3000 {
        assert!(turned_away(&listening.address), "client {client}");
    }
    listening.running.signal("TERM");
    let began = Instant::now();
    assert!(listening.running.status().success());
    assert!(began.elapsed() < Duration::from_secs(15));
}

#[test]
fn lines_that_found_no_room_are_counted() {
    let mut command = denying("127.0.0.1:0", Stdio::piped());
    command.args(["--json", "--metrics", "127.0.0.1:0"]);
    let mut gateway = listening(command);
    let metrics = event(&mut gateway, "metrics")["address"].clone();
    let lost = || {
        let (_, text) = http(metrics.as_str().unwrap(), "GET", "/metrics");
        metrics::sample(&text, "smbdirect_log_lines_lost_total")
    };
    // The queue has room for a mebibyte.
    while lost() == 0.0 {
        for _ in 0..500 {
            assert!(turned_away(&gateway.address));
        }
    }
    let count = event(&mut gateway, "lines_lost")["lines"].clone();
    assert_eq!(count.as_f64(), Some(lost()));
    assert!(turned_away(&gateway.address));
    event(&mut gateway, "turned_away");
    gateway.terminate().succeeded();
}

#[test]
fn the_summary_counts_all_that_were_turned_away() {
    let gateway = listening(denying("127.0.0.1:0", Stdio::piped()));
    for _ in 0..3 {
        assert!(turned_away(&gateway.address));
    }
    let done = gateway.terminate().succeeded();
    let last = done.stdout.lines().last().unwrap().to_owned();
    assert!(
        last.starts_with("0 connections, none failed, 3 turned away"),
        "{last}"
    );
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_and_a_closed_output_do_not_change_the_status() {
    let full = || Stdio::from(File::options().write(true).open("/dev/full").unwrap());
    let address = own_address();
    let mut running = Running::new(denying(&address, full()));
    eventually("listening", || Stream::connect(&address).is_ok());
    running.signal("TERM");
    assert!(running.status().success());

    running = Running::new(denying(&address, Stdio::piped()));
    eventually("listening", || Stream::connect(&address).is_ok());
    running.close_stdout();
    assert!(turned_away(&address) && turned_away(&address));
    running.signal("TERM");
    assert!(running.status().success());

    let mut listen = command(&["listen", &address, "--echo"]);
    let running = Running::new(std::mem::replace(listen.stdout(full()), Command::new("")));
    eventually("listening", || Stream::connect(&address).is_ok());
    running.signal("TERM");
    assert!(running.status().success());
}

/// Only root can run a program as a user that has no other processes.
#[cfg(target_os = "linux")]
fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output().unwrap().stdout;
    let is_root = id == b"0\n";
    if !is_root {
        println!("skipped: needs root");
    }
    is_root
}

#[cfg(target_os = "linux")]
#[test]
fn without_threads_there_is_an_error() {
    if !is_root() {
        return;
    }
    // The test program may be in a folder that only root can enter.
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let program = folder.path().join("smbdirect");
    fs::copy(PROGRAM, &program).unwrap();
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(folder.path(), everybody).unwrap();
    for limit in 1..100 {
        let mut start = Command::new("setpriv");
        start.args(["--reuid", "61235", "--clear-groups", "--bounding-set=-all"]);
        start.args(["prlimit", &format!("--nproc={limit}:{limit}")]);
        start.arg(&program).args(["gateway", "127.0.0.1:0"]);
        start.args(["127.0.0.1", "--from", "tcp", "--json"]);
        start.stdin(Stdio::null());
        start.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut running = Running::new(start);
        let line = running.line();
        if line.contains("\"listening\"") {
            assert!(limit > 1, "one thread is not enough");
            return;
        }
        let done = running.finish();
        done.failed(1, "cannot start").one_line();
        assert!(line.contains("\"error\""), "{line}");
    }
    panic!("it listens with enough threads");
}

#[cfg(target_os = "linux")]
#[test]
fn figures_are_there_when_file_descriptors_have_run_out() {
    for from in ["tcp", "smbdirect"] {
        let mut start = Command::new("prlimit");
        start.args(["--nofile=40:40", PROGRAM, "gateway", "127.0.0.1:0"]);
        start.args(["127.0.0.1:1", "--from", from, "--json"]);
        start.args(["--metrics", "127.0.0.1:0"]);
        start.stdin(Stdio::null());
        start.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut gateway = listening(start);
        let metrics = event(&mut gateway, "metrics")["address"].clone();
        let _stalled = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let connect = |_| Stream::connect(&gateway.address).unwrap();
        let clients: Vec<_> = (0..60).map(connect).collect();
        // Sessions of TCP clients end, because nothing listens at the server.
        let have_run_out = || {
            let (_, text) = http(metrics.as_str().unwrap(), "GET", "/metrics");
            from == "tcp" || metrics::sample(&text, "process_open_fds") >= 36.0
        };
        eventually("descriptors have run out", have_run_out);
        for _ in 0..3 {
            let (status, text) = http(metrics.as_str().unwrap(), "GET", "/metrics");
            assert!(status.contains("200"), "{status}");
            let figure = |name| metrics::sample(&text, name);
            assert!(figure("process_max_fds") == 40.0, "{text}");
            assert!(figure("process_cpu_seconds_total") >= 0.0);
        }
        drop(clients);
        gateway.running.signal("TERM");
        assert!(gateway.running.status().success());
    }
}
