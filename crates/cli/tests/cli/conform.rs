//! The command `conform`; and the cases of `smbdirect-conform` judge the built command over iWARP
//! on 127.0.0.1: `listen --echo` as a server, `send` and `ping --echo` as clients.
//!
//! `crates/smbdirect/tests` judges the engine alone with the same cases.

mod command;
mod process;

use std::{
    path::Path,
    process::Command,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use process::{CommandClient, CommandServer};
use smbdirect_conform::{Case, Echo, Outcome, client_cases, run, run_client, server_cases};

/// Number of cases that run concurrently; most of them wait.
const WORKERS: usize = 4;

/// Runs the cases, and asserts that all pass.
fn assert_all_pass(
    cases: impl Iterator<Item = &'static Case>,
    judge: impl Fn(&Case) -> Outcome + Sync,
) {
    let cases = Mutex::new(cases.collect::<Vec<_>>().into_iter());
    let failed = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                loop {
                    let case = cases.lock().unwrap().next();
                    let Some(case) = case else { break };
                    let started = Instant::now();
                    let outcome = judge(case);
                    if started.elapsed() > Duration::from_secs(5) {
                        println!("{} took {:?}", case.id, started.elapsed());
                    }
                    if outcome != Outcome::Pass {
                        failed
                            .lock()
                            .unwrap()
                            .push(format!("{}: {outcome:?}", case.id));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "\n{}", failed.join("\n"));
}

#[test]
fn listen_echo_passes_every_case_for_servers() {
    assert_all_pass(server_cases(), |case| {
        run(case, &mut CommandServer::new(), &Echo)
    });
}

#[test]
fn send_and_ping_pass_every_case_for_clients() {
    assert_all_pass(client_cases(), |case| {
        run_client(case, &mut CommandClient::new(), &Echo)
    });
}

/// `packaging/notes/linux.md` says which rule each capture shows, and which end breaks it.
#[test]
fn captures_of_linux_show_what_the_documentation_says() {
    let captures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../interop/captures");
    for (name, rule, by) in [
        ("ksmbd-m1", "SMBD-3.1.5.7-04", "responder"),
        ("ksmbd-m40", "SMBD-3.1.5.1-06", "responder"),
        ("ksmbd-m32", "SMBD-3.1.5.8-16", "initiator"),
        ("cifs-c32", "SMBD-3.1.5.8-16", "responder"),
        ("ksmbd-h14", "SMBD-3.1.5.6-01", "initiator"),
        ("siw-i9", "DDP-03", "initiator"),
        ("siw-i16", "DDP-06", "initiator"),
        ("siw-i18", "RDMAP-03", "initiator"),
        ("siw-i19", "RDMAP-09", "initiator"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_smbdirect"));
        command
            .arg("decode")
            .arg(captures.join(format!("{name}.pcap")));
        let output = command.args(["--broken", "--json"]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{name}: rules are broken");
        let text = String::from_utf8(output.stdout).unwrap();
        let shown = text.lines().any(|line| {
            let event: serde_json::Value = serde_json::from_str(line).unwrap();
            let broken = event["broken"].as_array();
            event["from"] == by
                && broken.is_some_and(|rules| rules.iter().any(|broken| broken["rule"] == rule))
        });
        assert!(shown, "{name}: {rule} by the {by}\n{text}");
    }
}
