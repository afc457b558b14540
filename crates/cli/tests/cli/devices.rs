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
        &["listen", "--transport", "verbs", "--echo"],
        &["gateway", "--transport", "verbs", ":0", "127.0.0.1"],
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
        let software = arguments[0] == "devices";
        assert_eq!(done.stdout.is_empty(), !software, "{arguments:?}");
    }
}

#[test]
fn software_rdma_is_listed_with_what_its_sockets_can_do() {
    let done = run(&["devices"]);
    let mut lines = done.stdout.lines();
    assert_eq!(
        lines.next(),
        Some("iwarp in software over TCP: yes, port 5445")
    );
    assert_eq!(
        lines.next(),
        Some("roce  in software over UDP: yes, port 445")
    );
    assert!(done.stdout.contains("datagrams per call"), "{done:?}");
    assert!(done.stdout.contains("UDP port 4791"), "{done:?}");
    let done = run(&["devices", "--json"]);
    let events = done.json();
    let roce = &events[1];
    assert_eq!(
        (&roce["event"], &roce["transport"]),
        (&"software".into(), &"roce".into())
    );
    assert!(roce["datagrams_per_send"].as_u64().unwrap() >= 1);
    if cfg!(target_os = "linux") {
        assert_ne!(roce["identification_is_right"], false, "{roce}");
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
        done.failed(2, "--pcap cannot capture --transport verbs");
    }
}
