//! The output of the commands without RDMA adapters.

use crate::support::run;

#[test]
fn without_adapters_one_line_gives_cause_and_cure() {
    let devices = run(&["devices"]);
    if devices.status.success() {
        println!("skipped: this machine has an RDMA adapter");
        return;
    }
    for arguments in [
        &["devices"][..],
        &["devices", "--json"],
        &["ping", "--transport", "verbs", "127.0.0.1"],
        &["send", "--transport", "verbs", "127.0.0.1", "Cargo.toml"],
        &["listen", "--transport", "verbs", "--echo"],
        &["gateway", "--transport", "verbs", ":0", "127.0.0.1"],
        &["tdi", "--transport", "verbs", "127.0.0.1"],
        &["demo", "--transport", "verbs"],
        &["bench", "--transport", "verbs", "127.0.0.1"],
        &["bench", "--serve", "--transport", "verbs", "127.0.0.1:0"],
    ] {
        let done = run(arguments);
        let says = ["libibverbs", "kernel has no RDMA", "no RDMA device"];
        let named = says.iter().find(|says| done.stderr.contains(**says));
        done.failed(1, named.expect("it says what was looked for"));
        done.one_line();
        let cures = ["; install ", "; load ", "; check "];
        assert!(
            cures.iter().any(|cure| done.stderr.contains(cure)),
            "{done:?}"
        );
        assert!(!done.stderr.contains("os error"), "{done:?}");
        assert_eq!(done.stdout, "", "{arguments:?}");
    }
}

#[test]
fn pcap_is_refused_with_adapters() {
    for command in ["demo", "listen"] {
        let mut arguments = vec![command, "--transport", "verbs", "--pcap", "x.pcap"];
        if command == "listen" {
            arguments.push("--echo");
        }
        let done = run(&arguments);
        done.failed(2, "--pcap has nothing to see with --transport verbs");
    }
}
