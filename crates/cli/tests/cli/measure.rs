//! `smbdirect check --measure` with a Samba, a gateway and a sink in a namespace.
//!
//! Without smbd, without root or without namespaces, the tests print that and skip, unless SMBDIRECT_REQUIRE_TOOLS is
//! set.

use std::{
    fs,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

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
        Self::start_with("")
    }

    /// Starts a Samba with these lines in its settings, in which `ROOT` is its folder.
    fn start_with(settings: &str) -> Option<Self> {
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
        let settings = settings.replace("ROOT", root.path().to_str().unwrap());
        smbd.args(smbd_arguments(root.path(), 445, &settings));
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
        self.measure_share("//127.0.0.1:4455/share", options)
    }

    fn measure_share(&self, share: &str, options: &[&str]) -> Running {
        let target = ["check", "--measure", share, "--user", "Guest"];
        let mut check = self.namespace.smbdirect(&[&target[..], options].concat());
        check.env("SMBDIRECT_PASSWORD", "");
        Running::new(check)
    }

    /// Adds the user root with the password lab.
    fn add_user(&self) {
        let mut adding = Command::new("smbpasswd");
        adding.arg("-c").arg(self.root.path().join("smb.conf"));
        adding.args(["-s", "-a", "root"]);
        adding
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut adding = adding.spawn().unwrap();
        adding
            .stdin
            .take()
            .unwrap()
            .write_all(b"lab\nlab\n")
            .unwrap();
        assert!(adding.wait().unwrap().success());
    }
}

/// A small file system in memory. Dropping the value unmounts it.
struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    fn mount(at: &'a Path) -> Option<Self> {
        let mut mounting = Command::new("mount");
        mounting
            .args(["-t", "tmpfs", "-o", "size=4m", "tmpfs"])
            .arg(at);
        mounting
            .status()
            .is_ok_and(|status| status.success())
            .then_some(Self(at))
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0).status();
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
fn a_signed_session_is_measured_over_roce_too() {
    let Some(measured) = Measured::start_with("server signing = mandatory") else {
        return;
    };
    measured.add_user();
    let mut roce = Running::new(measured.namespace.smbdirect(&[
        "gateway",
        "127.0.0.1:445",
        "127.0.0.1:445",
        "--transport",
        "roce",
    ]));
    roce.line();
    let target = ["check", "--measure", "//127.0.0.1/share", "--user", "root"];
    let options = ["--json", "--size", "8M"];
    let mut check = measured
        .namespace
        .smbdirect(&[&target[..], &options].concat());
    check.env("SMBDIRECT_PASSWORD", "lab");
    let done = Running::new(check).finish();
    println!("{}", done.stdout);
    let events = done.json();
    assert_eq!(done.status.code(), Some(0), "{events:#?}");
    assert_eq!(named(&events, "not_measured"), [&Value::Null; 0]);
    let rates = named(&events, "rate");
    for transport in [
        "TCP",
        "SMB Direct by software iWARP",
        "SMB Direct by software RoCE",
    ] {
        let of_transport = rates.iter().filter(|rate| rate["transport"] == transport);
        assert_eq!(of_transport.count(), 8, "{transport}: {events:#?}");
    }
    // RDMA moves data past the signature, so it is not used.
    assert!(
        rates.iter().all(|rate| rate["bytes_by_rdma"] == 0),
        "{rates:#?}"
    );
    let limits = named(&events, "limit");
    let of_signing = limits.iter().filter(|limit| limit["limit"] == "signing");
    assert!(of_signing.count() >= 4, "{limits:#?}");
    let share = measured.root.path().join("share");
    eventually("no scratch file is left", || names_in(&share).is_empty());
}

#[test]
fn what_keeps_a_measurement_from_writing_is_named() {
    // A namespace has the file systems that were mounted before it was made.
    let full = tempfile::tempdir().unwrap();
    let Some(_disk) = SmallDisk::mount(full.path()) else {
        assert!(std::env::var_os("SMBDIRECT_REQUIRE_TOOLS").is_none());
        println!("skipped: no file system can be mounted");
        return;
    };
    let settings = "[readonly]\npath = ROOT/share\nguest ok = yes\nread only = yes\n\
                    [full]\npath = FULL\nguest ok = yes\nread only = no\n\
                    [closed]\npath = ROOT/closed\nguest ok = yes\nread only = no\nforce user = nobody";
    let settings = settings.replace("FULL", full.path().to_str().unwrap());
    let Some(measured) = Measured::start_with(&settings) else {
        return;
    };
    let root = measured.root.path();
    let [share, closed] = ["share", "closed"].map(|name| root.join(name));
    fs::create_dir(&closed).unwrap();
    write_noise(&share, "file", 1_000_000);
    for (name, reasons) in [
        ("readonly", &["scratch file", "cannot be created"][..]),
        ("closed", &["scratch file", "cannot be created"]),
        ("full", &["disk"]),
    ] {
        let target = format!("//127.0.0.1/{name}");
        let done = measured.measure_share(&target, &["--json"]).finish();
        println!("{}", done.stdout);
        assert_eq!(done.status.code(), Some(2), "{name}: {done:?}");
        let events = done.json();
        let failures = named(&events, "not_measured");
        assert_eq!(failures.len(), 2, "{name}: {events:#?}");
        for failure in failures {
            let reason = failure["reason"].as_str().unwrap().to_lowercase();
            assert!(
                reasons.iter().all(|word| reason.contains(word)),
                "{name}: {reason}"
            );
        }
    }
    for folder in [full.path(), &closed] {
        eventually("no scratch file is left", || names_in(folder).is_empty());
    }
    // What can only be read can be measured so.
    let options = ["--read-only", "file"];
    let done = measured
        .measure_share("//127.0.0.1/readonly", &options)
        .finish();
    done.succeeded();
    assert_eq!(names_in(&share), ["file"]);
}

#[test]
fn a_measurement_that_is_killed_leaves_no_file() {
    let Some(measured) = Measured::start() else {
        return;
    };
    let share = measured.root.path().join("share");
    let check = measured.measure(&[]);
    eventually("it writes", || !names_in(&share).is_empty());
    check.signal("KILL");
    eventually("the server removes the file", || {
        names_in(&share).is_empty()
    });
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
        check.finish().failed(3, "interrupted");
        eventually("nothing is left", || names_in(&share).is_empty());
    }
}

/// A server locks an account after a few wrong passwords.
#[test]
fn a_wrong_password_is_tried_once() {
    let settings = "map to guest = never\nlog level = 1 auth_audit:3";
    let Some(measured) = Measured::start_with(settings) else {
        return;
    };
    measured.add_user();
    let root = measured.root.path();
    let target = ["check", "--measure", "//127.0.0.1/share", "--user", "root"];
    let mut check = measured.namespace.smbdirect(&target);
    check.env("SMBDIRECT_PASSWORD", "wrong");
    let done = Running::new(check).finish();
    assert!(done.stdout.contains("LOGON_FAILURE"), "{done:?}");
    let tried = || {
        let log = fs::read_to_string(root.join("log")).unwrap_or_default();
        log.matches("NT_STATUS_WRONG_PASSWORD").count()
    };
    eventually("the server has logged it", || tried() > 0);
    assert_eq!(tried(), 1);
}
