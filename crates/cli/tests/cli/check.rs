//! `smbdirect check`: its output, its exit status, and its findings about a machine whose files are below another
//! root.

use std::path::Path;

use serde_json::Value;
use smbdirect_test::machine::{machine, write};

use crate::{
    namespace::Namespace,
    support::{Running, command, run, start},
};

fn check(root: &Path) -> (i32, Vec<Value>) {
    let root = root.to_str().expect("it is a name of ours");
    let done = run(&["check", "--json", "--root", root]);
    assert_eq!(done.stderr, "");
    (done.status.code().expect("it ended"), done.json())
}

#[track_caller]
fn has(root: &Path, status: i32, fault: &str) {
    let (code, events) = check(root);
    assert_eq!(code, status, "{events:#?}");
    let verdict = &events[0];
    assert_eq!(verdict["event"], "verdict");
    let all = ["faults", "limits"].map(|kind| verdict[kind].as_array().expect("a list").clone());
    let named = all.concat().iter().any(|each| each == fault);
    assert!(named || fault.is_empty(), "{events:#?}");
    for step in &events[1..] {
        assert_eq!(step["event"], "step");
        let is_bare = step["cause"].is_null() || step["cures"].as_array().unwrap().is_empty();
        assert!(step["fault"].is_null() || !is_bare, "{step:#?}");
    }
}

#[test]
fn a_machine_is_read_from_its_files() {
    let directory = machine();
    let root = directory.path();
    has(root, 0, "");
    let (_, events) = check(root);
    assert_eq!(
        events[0]["verdict"],
        "SMB Direct works here as client: RoCE 445 by mlx5_0"
    );
}

#[test]
fn a_mount_over_tcp_says_why() {
    let directory = machine();
    let root = directory.path();
    let mount = "//server/share /mnt cifs rw,vers=3.1.1,username=me,addr=10.0.0.2 0 0\n";
    write(root, "proc/mounts", mount);
    has(root, 1, "mount-over-tcp");
    let root = root.to_str().unwrap();
    let done = run(&["check", "--root", root]);
    let first = done.stdout.lines().next().unwrap_or_default();
    assert!(
        first.starts_with("The mount /mnt uses TCP because"),
        "{done:?}"
    );
    let cure = "sudo umount /mnt && sudo mount -t cifs //server/share /mnt -o rdma,username=me";
    assert!(done.stdout.contains(cure), "{done:?}");
    assert!(done.stdout.contains("[mount-over-tcp]"), "{done:?}");
}

#[test]
fn what_cannot_be_told_has_a_status_of_its_own() {
    let directory = tempfile::tempdir().unwrap();
    has(directory.path(), 2, "");
    let done = run(&["check", "no-such-host.invalid", "--json"]);
    assert_eq!(done.status.code(), Some(2), "{done:?}");
    assert_eq!(done.json()[0]["faults"][0], "name-unknown");
}

#[test]
fn passwords_come_from_anywhere_but_the_command_line() {
    run(&["check", "--user", "me"]).failed(2, "--user needs a TARGET");
    let done = run(&["check", "127.0.0.1", "--user", "me", "--password-fd", "77"]);
    done.failed(2, "'--password-fd <N>'");
    run(&["check", "server/share"]).failed(2, "//SERVER[:PORT]/SHARE");
    let url = run(&["check", "smb://me:hidden@server/share"]);
    url.failed(2, "a URL with a password is refused");
    assert!(!url.stderr.contains("hidden"), "{url:?}");
}

/// `interop/check` logs in with passwords from each source.
#[cfg(unix)]
#[test]
fn a_password_from_a_descriptor_the_environment_or_a_terminal_is_taken() {
    use std::{
        fs,
        process::{Command, Stdio},
    };

    let arguments = ["check", "127.0.0.1", "--user", "me", "--json"];
    let is_answered = |done: crate::support::Done| {
        assert_eq!(done.stderr, "", "{done:?}");
        assert_eq!(done.json()[0]["event"], "verdict", "{done:?}");
    };
    let mut by_environment = command(&arguments);
    by_environment.env("SMBDIRECT_PASSWORD", "secret");
    is_answered(Running::new(by_environment).finish());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    fs::write(&file, "secret\n").unwrap();
    let mut by_descriptor = command(&[&arguments[..], &["--password-fd", "0"]].concat());
    by_descriptor.stdin(fs::File::open(&file).unwrap());
    by_descriptor.env_remove("SMBDIRECT_PASSWORD");
    is_answered(Running::new(by_descriptor).finish());

    // `script` gives it a terminal.
    let is_there = Command::new("script").arg("--version").output().is_ok();
    if !is_there || !cfg!(target_os = "linux") {
        assert!(std::env::var_os("SMBDIRECT_REQUIRE_TOOLS").is_none());
        return eprintln!("skipped: script is not installed");
    }
    let mut terminal = Command::new("script");
    let inside = format!("{} {}", crate::support::PROGRAM, arguments.join(" "));
    terminal.args(["--quiet", "--return", "--command", &inside, "/dev/null"]);
    terminal.env_remove("SMBDIRECT_PASSWORD");
    terminal
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut typed = Running::new(terminal);
    // The terminal has an echo until the command asks.
    std::thread::sleep(std::time::Duration::from_secs(1));
    typed.type_line("not shown");
    let done = typed.finish();
    assert!(done.stdout.contains("Password of me: "), "{done:?}");
    assert!(done.stdout.contains("\"event\":\"verdict\""), "{done:?}");
    let (_, after) = done.stdout.split_once("Password of me: ").unwrap();
    assert!(!after.contains("not shown"), "{done:?}");
}

#[test]
fn smb_direct_is_found_over_roce_too() {
    // Clients look for RoCE on one UDP port, which other programs may have at any time, but not in a namespace.
    let namespace = Namespace::new(65_536);
    if namespace.is_none() && std::net::UdpSocket::bind("127.0.0.1:4791").is_err() {
        return eprintln!("skipped: another program has the UDP port of RoCE");
    }
    let started = |arguments: &[&str]| {
        let alone = namespace
            .as_ref()
            .map(|namespace| namespace.smbdirect(arguments));
        Running::new(alone.unwrap_or_else(|| command(arguments)))
    };
    let roce = ["--transport", "roce", "--echo", "--json"];
    let mut listen = started(&[&["listen", "127.0.0.1:4455"], &roce[..]].concat());
    listen.line();
    let done = started(&["check", "127.0.0.1:4455", "--json"]).finish();
    let events = done.json();
    let step = events.iter().find(|event| event["name"] == "RoCE 4455");
    let step = step.unwrap_or_else(|| panic!("{events:#?}"));
    assert_eq!(step["fault"], "wrong-port", "{events:#?}");
    let evidence = step["evidence"].as_str().unwrap();
    assert!(
        evidence.contains("SMB Direct 1.0 by software RoCE") && evidence.contains("keepalive"),
        "{evidence}"
    );
    // For a port that the target names, only findings about that port are reported.
    let of_iwarp = events.iter().any(|event| event["name"] == "iWARP 4455");
    assert!(!of_iwarp, "{events:#?}");
}

#[test]
fn smb_direct_is_found_on_the_wrong_port() {
    let mut listener = start(&["listen", "127.0.0.1:0", "--echo", "--json"]);
    let listening: Value = serde_json::from_str(&listener.line()).unwrap();
    let address = listening["address"].as_str().expect("it says where");
    let done = run(&["check", address, "--json"]);
    assert_eq!(done.status.code(), Some(1), "{done:?}");
    let events = done.json();
    let faults = events[0]["faults"].as_array().expect("a list");
    assert!(
        faults.iter().any(|fault| fault == "wrong-port"),
        "{events:#?}"
    );
    let step = events.iter().find(|event| event["fault"] == "wrong-port");
    let evidence = step.expect("it is a step")["evidence"].as_str().unwrap();
    assert!(
        evidence.contains("SMB Direct 1.0") && evidence.contains("keepalive"),
        "{evidence}"
    );
}

/// A namespace has ports and addresses of its own.
#[test]
fn an_address_with_a_zone_is_checked_in_its_zone() {
    let Some(namespace) = Namespace::new(65_536) else {
        return eprintln!("skipped: no network namespace can be made here");
    };
    let mut add = namespace.command("ip");
    let added = add.args(["addr", "add", "fe80::5/64", "dev", "lo", "nodad"]);
    assert!(added.status().unwrap().success());
    let mut listener = Running::new(namespace.smbdirect(&["listen", "--echo", "--json"]));
    listener.line();
    let done = Running::new(namespace.smbdirect(&["check", "fe80::5%lo", "--json"])).finish();
    let events = done.json();
    let step = events.iter().find(|event| event["name"] == "iWARP 5445");
    let evidence = step.unwrap_or_else(|| panic!("{events:#?}"))["evidence"].to_string();
    assert!(evidence.contains("SMB Direct 1.0"), "{events:#?}");
}

#[test]
fn a_measurement_needs_a_share_and_an_account() {
    run(&["check", "--measure", "127.0.0.1", "--user", "me"])
        .failed(2, "--measure needs //SERVER/SHARE");
    run(&["check", "--measure", "//127.0.0.1/data"]).failed(2, "--measure needs --user");
    run(&["check", "//127.0.0.1/data", "--size", "1M"]).failed(2, "--measure");
    let small = ["check", "--measure", "//127.0.0.1/data", "--kerberos"];
    run(&[&small[..], &["--size", "4095"]].concat()).failed(2, "--size has to be at least 4096");
}
