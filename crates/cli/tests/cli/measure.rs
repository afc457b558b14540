//! `smbdirect check --measure` with a Samba, a gateway and a sink in a namespace.
//!
//! Without smbd, without root or without namespaces, the tests print that and skip, unless SMBDIRECT_REQUIRE_TOOLS is
//! set.

use std::fs;

use serde_json::Value;

use crate::{
    namespace::Namespace,
    smb::{can_run_smbd, smbd_arguments},
    support::{Running, eventually, names_in, write_noise},
};

/// A Samba on port 445, a gateway on port 5445 and a sink on port 4455, all in a namespace.
struct Measured {
    root: tempfile::TempDir,
    // Those that use the namespace end before it.
    _servers: [Running; 3],
    namespace: Namespace,
}

impl Measured {
    fn start() -> Option<Self> {
        if !can_run_smbd() {
            return None;
        }
        let Some(namespace) = Namespace::new(65_536) else {
            assert!(std::env::var_os("SMBDIRECT_REQUIRE_TOOLS").is_none());
            println!("skipped: no namespace can be made");
            return None;
        };
        let root = tempfile::tempdir().unwrap();
        let mut smbd = namespace.command("smbd");
        smbd.args(smbd_arguments(root.path(), 445, ""));
        let smbd = Running::new(smbd);
        eventually("smbd listens", || {
            let mut connect = namespace.command("bash");
            connect.args(["-c", "exec 3<>/dev/tcp/127.0.0.1/445"]);
            connect.output().is_ok_and(|done| done.status.success())
        });
        let started = |arguments: &[&str]| {
            let mut running = Running::new(namespace.smbdirect(arguments));
            running.line();
            running
        };
        let gateway = started(&["gateway", "127.0.0.1:5445", "127.0.0.1:445"]);
        let sink = started(&["listen", "127.0.0.1:4455", "--sink"]);
        Some(Self {
            root,
            _servers: [smbd, gateway, sink],
            namespace,
        })
    }

    fn measure(&self, options: &[&str]) -> Running {
        let target = [
            "check",
            "--measure",
            "//127.0.0.1:4455/share",
            "--user",
            "Guest",
        ];
        let mut check = self.namespace.smbdirect(&[&target[..], options].concat());
        check.env("SMBDIRECT_PASSWORD", "");
        Running::new(check)
    }
}

fn named<'a>(events: &'a [Value], name: &str) -> Vec<&'a Value> {
    let named = events.iter().filter(|event| event["event"] == name);
    named.collect()
}

#[test]
fn rates_over_tcp_and_smb_direct_are_measured_and_compared() {
    let Some(measured) = Measured::start() else {
        return;
    };
    let share = measured.root.path().join("share");
    let done = measured.measure(&["--json", "--size", "16M"]).finish();
    println!("{}", done.stdout);
    let events = done.json();
    assert_eq!(done.status.code(), Some(0), "{events:#?}");
    let rates = named(&events, "rate");
    for transport in ["TCP", "SMB Direct by software iWARP"] {
        let of_transport = rates.iter().filter(|rate| rate["transport"] == transport);
        let kinds = of_transport.clone().map(|rate| {
            let number = |key: &str| rate[key].as_u64().expect("a number");
            let operation = rate["operation"].as_str().expect("a name");
            assert!(
                rate["bytes_per_second"]
                    .as_f64()
                    .is_some_and(|rate| rate > 0.0)
            );
            (operation, number("request_bytes"), number("outstanding"))
        });
        let kinds: Vec<_> = kinds.collect();
        for bytes in [4096, 1 << 20] {
            for outstanding in [1, 16] {
                assert!(kinds.contains(&("write", bytes, outstanding)), "{kinds:?}");
                assert!(kinds.contains(&("read", bytes, outstanding)), "{kinds:?}");
            }
        }
        let is_direct = transport != "TCP";
        for rate in of_transport {
            let by_rdma = rate["bytes_by_rdma"].as_u64().expect("a number") > 0;
            assert_eq!(by_rdma, is_direct, "{rate:#?}");
        }
    }
    let limits = named(&events, "limit");
    assert_eq!(limits.len(), 8, "{limits:#?}");
    assert!(limits.iter().all(|limit| limit["because"].is_string()));
    assert_eq!(named(&events, "not_measured"), [&Value::Null; 0]);
    let comparisons = named(&events, "comparison");
    assert_eq!(comparisons.len(), 2, "{events:#?}");
    assert!(comparisons.iter().all(|it| it["ratio"].as_f64().is_some()));
    assert!(named(&events, "path")[0]["bytes_per_second"].is_f64());
    assert_eq!(
        events[0]["faults"],
        Value::Array(Vec::new()),
        "the sink is none"
    );
    eventually("no scratch file is left", || names_in(&share).is_empty());

    // For people, with a file of the share, which stays as it is.
    write_noise(&share, "file", 3_000_000);
    let contents = fs::read(share.join("file")).unwrap();
    let done = measured
        .measure(&["--read-only", "file"])
        .finish()
        .succeeded();
    println!("{}", done.stdout);
    assert!(done.stdout.contains("The path carries "), "{done:?}");
    assert!(done.stdout.contains("limited by "), "{done:?}");
    assert!(!done.stdout.contains("  write "), "{done:?}");
    assert!(fs::read(share.join("file")).unwrap() == contents);
    assert_eq!(names_in(&share), ["file"]);
    let done = measured
        .measure(&["--read-only", "missing", "--json"])
        .finish();
    assert_eq!(done.status.code(), Some(2), "{done:?}");
    let events = done.json();
    assert_eq!(named(&events, "not_measured").len(), 2, "{events:#?}");
}

#[test]
fn a_measurement_that_is_interrupted_leaves_no_file() {
    let Some(measured) = Measured::start() else {
        return;
    };
    let share = measured.root.path().join("share");
    for transport in ["TCP", "SMB Direct"] {
        let check = measured.measure(&[]);
        let has_file = || {
            let names = names_in(&share);
            let mut lengths = names.iter().map(|name| fs::metadata(share.join(name)));
            lengths.any(|file| file.is_ok_and(|file| file.len() > 0))
        };
        eventually("it writes over TCP", has_file);
        if transport == "SMB Direct" {
            eventually("TCP is measured", || !has_file());
            eventually("it writes over SMB Direct", has_file);
        }
        check.signal("INT");
        check.finish().failed(1, "interrupted");
        eventually("nothing is left", || names_in(&share).is_empty());
    }
}
