//! `conform`: its output, its files and its exit status.

use std::{
    fs,
    net::{TcpListener, UdpSocket},
};

use tempfile::TempDir;

use crate::support::{listen, run, start};

#[test]
fn results_of_a_server_as_lines_json_junit_and_captures() {
    let listening = listen(&["--echo"]);
    let directory = TempDir::new().unwrap();
    let junit = directory.path().join("results.xml");
    let captures = format!("{}/captures/", directory.path().display());
    let only = ["--only", "m1,m7,m19,h4", "--skip", "m19"];
    let mut arguments = vec!["conform", &listening.address, "--pcap", &captures];
    arguments.extend(["--junit", junit.to_str().unwrap()]);
    arguments.extend(only);
    let done = run(&arguments).succeeded();
    for text in [
        "upper layer echo, 3 cases",
        "PASS m1 ",
        "SKIP m7 ",
        "--disruptive runs it",
        "PASS h4 ",
        "2 passed, 0 failed, 1 skipped in",
    ] {
        assert!(done.stdout.contains(text), "{text}: {}", done.stdout);
    }
    let xml = fs::read_to_string(junit).unwrap();
    for text in [
        "tests=\"3\"",
        "name=\"hostile\"",
        "<skipped",
        "smbdirect.microsoft",
    ] {
        assert!(xml.contains(text), "{text}: {xml}");
    }
    // The bytes below RDMA are captured too; STags that were never given break no rule of decode.
    for id in ["m1", "h4"] {
        let file = format!("{captures}{id}.pcap");
        let decoded = run(&["decode", &file]);
        assert!(decoded.stdout.contains("Negotiate Response"), "{decoded:?}");
    }
    let events = run(&[
        "conform",
        &listening.address,
        "--json",
        "--only",
        "m1,m7",
        "--disruptive",
    ])
    .succeeded()
    .json();
    let kinds: Vec<_> = events
        .iter()
        .map(|event| event["event"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["started", "case", "case", "summary"]);
    assert_eq!(events[1]["section"], "3.1.5.6");
    assert_eq!(events[3]["passed"], 2);
}

/// Microsoft's cases, hostile peers and known bugs. Cases of iWARP alone are skipped.
#[test]
fn a_server_over_roce_passes_every_case() {
    let probe = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = probe.local_addr().unwrap().port().to_string();
    drop(probe);
    let roce = ["--transport", "roce", "--udp-port", &port];
    let listening = listen(&[&["--echo"][..], &roce].concat());
    let judge = ["conform", &listening.address, "--json"];
    let events = run(&[&judge[..], &roce].concat()).succeeded().json();
    let summary = events.last().unwrap();
    assert_eq!(summary["failed"], 0, "{events:?}");
    assert!(summary["passed"].as_u64() >= Some(45), "{summary}");
}

#[test]
fn a_failed_case_has_status_1_and_says_what_was_seen() {
    let listening = listen(&["--echo"]);
    let done = run(&[
        "conform",
        &listening.address,
        "--upper",
        "smb2",
        "--only",
        "m19",
    ]);
    assert_eq!(done.status.code(), Some(1), "{done:?}");
    for text in [
        "FAIL m19",
        "expected: the answer of the upper layer",
        "1 failed",
    ] {
        assert!(done.stdout.contains(text), "{text}: {}", done.stdout);
    }
}

#[test]
fn clients_are_judged_one_connection_after_the_other() {
    let mut judging = start(&[
        "conform",
        "127.0.0.1:0",
        "--listen",
        "--only",
        "c2,c34",
        "--json",
    ]);
    let started: serde_json::Value = serde_json::from_str(&judging.line()).unwrap();
    let address = started["peer"].as_str().unwrap().to_owned();
    for _ in 0..3 {
        let ping = [
            "ping",
            &address,
            "--echo",
            "--count",
            "2",
            "--interval",
            "0.01",
        ];
        run(&ping);
    }
    let events = judging.finish().succeeded().json();
    let outcomes: Vec<_> = events
        .iter()
        .filter(|event| event["event"] == "case")
        .collect();
    assert_eq!(outcomes.len(), 2);
    assert!(
        outcomes.iter().all(|event| event["outcome"] == "pass"),
        "{events:?}"
    );
}

#[test]
fn nobody_to_judge_is_an_error_with_a_cause() {
    let nobody = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    run(&["conform", &nobody.to_string()])
        .failed(1, "is an SMB Direct server there?")
        .one_line();
    let done = run(&[
        "conform",
        "127.0.0.1:0",
        "--listen",
        "--accept-timeout",
        "0.1",
    ]);
    assert_eq!(done.status.code(), Some(1), "{done:?}");
    assert!(
        done.stdout.contains("no client connected within"),
        "{}",
        done.stdout
    );
    assert!(
        done.stdout.contains("no client connects any more"),
        "{}",
        done.stdout
    );
}

#[test]
fn cases_are_listed_without_an_address() {
    let done = run(&["conform", "--list"]).succeeded();
    for text in [
        "microsoft\n",
        "m42 ",
        "c44 ",
        "h14 ",
        "b26 ",
        "(disruptive)",
    ] {
        assert!(done.stdout.contains(text), "{text}: {}", done.stdout);
    }
    for event in run(&["conform", "--list", "--json", "--only", "mirror"]).json() {
        assert_eq!(event["group"], "mirror");
    }
}

#[test]
fn usage_errors_name_the_option() {
    for (arguments, says) in [
        (
            &["conform", "localhost", "--max-send-size", "200"][..],
            "choose sizes and credits",
        ),
        (
            &["conform", "localhost", "--transport", "loopback"],
            "stays within one process",
        ),
        (&["conform", "localhost", "--only", "c1"], "see --listen"),
        (
            &["conform", "localhost", "--only", "m99"],
            "unknown case `m99`",
        ),
        (&["conform"], "required"),
        (&["conform", ":5445"], "has no host"),
    ] {
        let done = run(arguments);
        assert_eq!(done.status.code(), Some(2), "{arguments:?}: {done:?}");
        assert!(done.stderr.contains(says), "{arguments:?}: {done:?}");
    }
}
