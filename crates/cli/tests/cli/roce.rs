//! `--transport roce`: two processes on one machine, the owner of the UDP port, and captures.

use std::{
    fs,
    net::UdpSocket,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use crate::support::{command, listening, run, start, write_noise};

/// A UDP port that no other test uses.
fn udp_port() -> String {
    let probe = UdpSocket::bind("127.0.0.1:0").unwrap();
    probe.local_addr().unwrap().port().to_string()
}

#[test]
fn messages_arrive_between_two_processes_on_one_machine() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        if address.starts_with('[') && UdpSocket::bind(address).is_err() {
            continue;
        }
        let port = udp_port();
        let roce = ["--transport", "roce", "--udp-port", &port];
        let mut listen = command(&["listen", address, "--echo"]);
        listen.args(roce);
        let listening = listening(listen);
        for echo in [&["--echo", "--size", "1M"][..], &[]] {
            let ping = [
                "ping",
                &listening.address,
                "--count",
                "3",
                "--interval",
                "0",
            ];
            run(&[&ping, echo, &roce].concat()).succeeded();
        }
        listening.terminate().succeeded();
    }
}

#[test]
fn nobody_listens_and_the_port_is_taken() {
    let port = udp_port();
    let roce = ["--transport", "roce", "--udp-port", &port];
    let mut ping = vec!["ping", "127.0.0.1"];
    ping.extend(roce);
    run(&ping).failed(1, "nothing listens on 127.0.0.1:445 by RoCE");
    let mut listen = vec!["listen", "127.0.0.1", "--echo"];
    listen.extend(roce);
    let mut first = start(&listen);
    let line = format!("listening on 127.0.0.1:445 by RoCE, on UDP port {port}\n");
    assert_eq!(first.line(), line);
    let second = run(&listen);
    second.failed(1, &format!("has UDP port {port}; stop it"));
    if cfg!(target_os = "linux") {
        let owner = format!("process {} (smbdirect)", first.id());
        second.failed(1, &owner);
    }
    second.one_line();
    // The listener is there, but another service was asked for.
    ping[1] = "127.0.0.1:446";
    run(&ping).failed(1, "nothing listens on 127.0.0.1:446 by RoCE");
}

/// The attempt takes as long as --connect-timeout permits, and the error names the owner of the port.
#[test]
fn nobody_answers_and_another_process_has_the_port() {
    let begun = Instant::now();
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let done = run(&[
        "ping",
        "127.0.0.1",
        "--transport",
        "roce",
        "--udp-port",
        &port.to_string(),
        "--connect-timeout",
        "6",
    ]);
    assert!(begun.elapsed() > Duration::from_secs(5));
    done.failed(1, &format!("127.0.0.1:{port} did not answer"));
    if cfg!(target_os = "linux") {
        let owner = format!("process {} (", std::process::id());
        done.failed(1, &owner);
        done.failed(1, &format!("has UDP port {port}, so only this library"));
    }
    done.one_line();
}

/// The address of an interface that is valid on its link only has to be bound with the interface's number.
#[cfg(target_os = "linux")]
#[test]
fn link_local_addresses_are_reached() {
    let interfaces = fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
    let found = interfaces.lines().find_map(|line| {
        // The address, and then the number, the prefix, the scope (20: the link), the flags and the name.
        let fields: Vec<_> = line.split_whitespace().collect();
        let [address, _, _, "20", _, name] = fields[..] else {
            return None;
        };
        let address = u128::from_str_radix(address, 16).ok()?;
        Some(format!("[{}%{name}]", std::net::Ipv6Addr::from(address)))
    });
    let Some(address) = found else {
        return eprintln!("skipped: no interface has a link-local address");
    };
    let port = udp_port();
    let roce = ["--transport", "roce", "--udp-port", &port];
    let mut listen = vec!["listen", "[::]:0", "--echo"];
    listen.extend(roce);
    let listener = listening(command(&listen));
    let (_, smb_direct_port) = listener.address.rsplit_once(':').unwrap();
    let to = format!("{address}:{smb_direct_port}");
    let mut ping = vec!["ping", &to, "--echo", "--count", "2", "--interval", "0"];
    ping.extend(roce);
    run(&ping).succeeded();
}

#[test]
fn a_capture_is_read_by_tshark() {
    let is_there = Command::new("tshark").arg("--version").output().is_ok();
    if !is_there {
        assert!(std::env::var_os("SMBDIRECT_REQUIRE_TOOLS").is_none());
        return eprintln!("skipped: tshark is not installed");
    }
    let folder = tempfile::tempdir().unwrap();
    let file = write_noise(folder.path(), "file", 300_001);
    let capture = folder.path().join("own.pcap");
    let port = udp_port();
    let arguments = [
        "demo",
        file.to_str().unwrap(),
        "--transport",
        "roce",
        "--udp-port",
        &port,
        "--pcap",
        capture.to_str().unwrap(),
    ];
    run(&arguments).succeeded();
    let count = |filter: &str| tshark(&capture, &port, filter);
    let all = count("frame");
    assert!(all > 100, "{all} packets");
    assert_eq!(count("!infiniband"), 0);
    assert_eq!(count("_ws.malformed"), 0);
    for (attribute, name) in [(0x10, "REQ"), (0x13, "REP"), (0x14, "RTU"), (0x15, "DREQ")] {
        let filter = format!("infiniband.mad.attributeid == {attribute}");
        assert!(count(&filter) >= 1, "{name}");
    }
    // A Read Request, Writes of one packet, and the first packets of Read Responses.
    for opcode in [12, 10, 13] {
        let filter = format!("infiniband.bth.opcode == {opcode}");
        assert!(count(&filter) >= 1, "opcode {opcode}");
    }
}

/// The end that connects has another UDP port than the listener, because both are on one machine.
#[test]
fn a_capture_of_two_processes_on_one_machine_is_complete() {
    let folder = tempfile::tempdir().unwrap();
    let port = udp_port();
    let roce = ["--transport", "roce", "--udp-port", &port];
    let captures = ["listen.pcap", "ping.pcap"].map(|name| folder.path().join(name));
    let [there, here] = captures.each_ref().map(|path| path.to_str().unwrap());
    let listen = ["listen", "127.0.0.1:4455", "--echo"];
    let listening = listening(command(&[&listen[..], &roce, &["--pcap", there]].concat()));
    let ping = [
        "ping",
        &listening.address,
        "--echo",
        "--size",
        "300001",
        "--interval",
        "0",
    ];
    run(&[&ping[..], &roce, &["--pcap", here]].concat()).succeeded();
    listening.terminate().succeeded();
    for capture in [there, here] {
        let decode = ["decode", capture, "--json", "--port", "4455"];
        let done = run(&[&decode[..], &["--udp-port", &port]].concat()).succeeded();
        let summary = done.json().pop().unwrap();
        assert_eq!(summary["streams"], 1, "{summary}");
        for name in ["missing_packets", "roce_wrong_icrc", "roce_undecoded"] {
            assert_eq!(summary[name], 0, "{summary}");
        }
        assert_eq!(summary["roce_packets"], summary["packets"], "{summary}");
        // Without the option there is nothing of RoCE.
        run(&decode).failed(1, "give --udp-port");
    }
}

/// Returns how many packets of a capture match a filter.
fn tshark(capture: &Path, port: &str, filter: &str) -> usize {
    let output = Command::new("tshark")
        .args(["-o", &format!("infiniband.rroce.port:{port}")])
        .arg("-r")
        .arg(capture)
        .args(["-Y", filter])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{filter}: {errors}");
    String::from_utf8_lossy(&output.stdout).lines().count()
}
