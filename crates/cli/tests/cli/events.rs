//! --json in every command: each object says when it was printed, the first one which version printed it, and each
//! failure is an object, too.

use serde_json::Value;

use crate::support::{Done, run};

/// Each command, arguments with which it fails, and the kind of the failure.
const FAILURES: &[(&[&str], &str)] = &[
    (&["demo", "/no/such/file"], "file"),
    (&["listen", "192.0.2.1:1", "--echo"], "listen"),
    (&["ping", "127.0.0.1:1"], "connect"),
    (&["ping", "no-such-host.invalid"], "name"),
    (&["bench", "127.0.0.1:1"], "connect"),
    (&["check", "--user", "me"], "usage"),
    (&["gateway", "--config", "/no/such/file"], "usage"),
    (&["gateway", "192.0.2.1:1", "127.0.0.1"], "listen"),
    (
        &["gateway", ":0", "127.0.0.1", "--metrics", "192.0.2.1:1"],
        "listen",
    ),
    #[cfg(target_os = "linux")]
    (&["run", "--direct-port", "x", "--", "true"], "usage"),
    (&["get", "//127.0.0.1:1/share/a"], "connect"),
    (
        &["get", "//127.0.0.1:1/share/a", "/no/such/folder/a"],
        "file",
    ),
    (&["get", "//127.0.0.1:1/share/Cargo.toml", "."], "file"),
    (&["put", "Cargo.toml", "//127.0.0.1:1/share"], "connect"),
    (&["put", "/no/such/file", "//127.0.0.1:1/share"], "file"),
    (&["ls", "//127.0.0.1:1/share"], "connect"),
    (&["ls", "//127.0.0.1:1/share", "--user", "me"], "usage"),
    (&["top", "127.0.0.1:1"], "connect"),
    (&["conform", "127.0.0.1:1"], "connect"),
    (&["decode", "/no/such/file"], "file"),
    (&["devices", "--no-such-option"], "usage"),
    (&["ping"], "usage"),
    (&["get", "//h/s/f", "--user", "u", "--kerberos"], "usage"),
];

/// Checks the objects of a run, and returns the last.
#[track_caller]
fn checked(done: &Done) -> Value {
    let events = done.stamped_json();
    assert!(!events.is_empty(), "{done:?}");
    for (number, event) in events.iter().enumerate() {
        assert!(event["event"].is_string(), "{event}");
        let time = event["time"].as_str().unwrap_or_default();
        assert!(time.parse::<jiff::Timestamp>().is_ok(), "{event}");
        let version = (number == 0).then_some(env!("CARGO_PKG_VERSION"));
        assert_eq!(event["version"].as_str(), version, "{event}");
    }
    events.into_iter().next_back().expect("there is one")
}

#[test]
fn each_failure_is_an_object() {
    for &(arguments, kind) in FAILURES {
        let (name, rest) = arguments.split_first().expect("a command");
        let done = run(&[&[*name, "--json"], rest].concat());
        let status = if kind == "usage" { 2 } else { 1 };
        assert_eq!(done.status.code(), Some(status), "{arguments:?} {done:?}");
        let error = checked(&done);
        assert_eq!(error["event"], "error", "{done:?}");
        assert_eq!(error["kind"], kind, "{done:?}");
        let message = error["message"].as_str().unwrap_or_default();
        // A usage error has several lines on stderr, up to an empty one.
        let reason = done.stderr.split("\n\n").next().unwrap_or_default();
        let words = reason.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words, format!("error: {message}"), "{done:?}");
    }
}

#[test]
fn objects_of_a_success_have_a_time_and_a_version() {
    let done = run(&["demo", "Cargo.toml", "--transport", "loopback", "--json"]).succeeded();
    assert_eq!(checked(&done)["event"], "summary");
    assert_eq!(
        checked(&run(&["conform", "--list", "--json"]))["event"],
        "listed"
    );
    assert_eq!(checked(&run(&["check", "--json"]))["event"], "step");
}
