//! SIGHUP: what a reload changes, what it leaves alone, and what it reports.

#[cfg(target_os = "linux")]
use crate::support::eventually;

use super::{
    service::{Settings, settings},
    *,
};

/// Writes the file, reloads it, and returns the names of what changed and what needs a restart.
fn reload(gateway: &mut Listening, file: &Settings, text: &str) -> [String; 2] {
    file.write(text);
    gateway.running.signal("HUP");
    let event = event(gateway, "reloaded");
    ["changed", "needs_restart"].map(|list| {
        let names = event[list].as_array().unwrap().iter();
        let names: Vec<_> = names.map(|name| name.as_str().unwrap()).collect();
        names.join(" ")
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_reports_the_difference_from_what_runs() {
    let server = Server::bind(Tcp, Config::default()).await;
    let file = Settings::new(&settings(&server, "max-connections = 10"));
    let mut gateway = listening(file.command(&[]));
    // Too little memory, so nothing changes.
    file.write(&settings(&server, "max-connections = 20\nmemory = '1K'"));
    gateway.running.signal("HUP");
    gateway.running.logs("--memory is too small");
    for (more, changed, needs_restart) in [
        ("max-connections = 20", "max-connections", ""),
        ("max-connections = 20\nmemory = '2G'", "", "memory"),
        ("max-connections = 20\nmemory = '2G'", "", "memory"),
        (
            "max-connections = 21\nmemory = '2G'",
            "max-connections",
            "memory",
        ),
        ("max-connections = 21\nmemory = '4096M'", "", ""),
        (
            "max-connections = 21\nto = 'tcp'\nstall-limit = 60.0",
            "",
            "",
        ),
        ("max-connections = 21\ncrc = 'on'", "", "mpa-crc"),
        ("", "max-connections", ""),
        ("max-connections = 256", "", ""),
    ] {
        let reported = reload(&mut gateway, &file, &settings(&server, more));
        assert_eq!(reported, [changed, needs_restart], "{more}");
    }
    let done = gateway.terminate();
    assert!(done.status.success());
    let lines: Vec<_> = done.stderr.lines().collect();
    assert!(
        lines[0].contains("gateway.toml, line 4: --memory is too small"),
        "{lines:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_has_no_effect_before_a_restart() {
    let mut server = Server::bind(Tcp, Config::default()).await;
    let limits = "from = 'tcp'\nmax-connections = 20\n";
    let file = Settings::new(&settings(&server, limits));
    let mut gateway = listening(file.command(&[]));
    // For one connection.
    let less = settings(&server, &format!("{limits}memory = '2M'"));
    assert_eq!(reload(&mut gateway, &file, &less), ["", "memory"]);
    let mut open = Vec::new();
    for _ in 0..5 {
        let client = End::connect(Tcp, &gateway.address).await;
        open.push((client, server.accept().await));
        event(&mut gateway, "opened");
    }
    gateway.running.signal("TERM");
}

#[cfg(target_os = "linux")]
#[test]
fn a_reload_during_the_start_follows_it() {
    let file = Settings::new("listen = '127.0.0.1:0'\nupstream = 'nas'\n");
    for milliseconds in [0, 1, 2, 4] {
        let running = crate::support::Running::new(file.command(&[]));
        // The system is still starting the program until it holds the signal back.
        let status = format!("/proc/{}/status", running.id());
        eventually("the program", || {
            let text = fs::read_to_string(&status).unwrap();
            let of_main = ["SigBlk:\t", "SigCgt:\t"].map(|name| {
                let mask = text.lines().find_map(|line| line.strip_prefix(name));
                u64::from_str_radix(mask.unwrap(), 16).unwrap() & 1
            });
            of_main != [0, 0]
        });
        std::thread::sleep(Duration::from_millis(milliseconds));
        running.signal("HUP");
        let mut gateway = Listening::of(running);
        let reloaded = event(&mut gateway, "reloaded");
        assert_eq!(reloaded["changed"], Value::Array(Vec::new()));
        gateway.terminate().succeeded();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_change_without_dropping_connections() {
    let mut server = Server::bind(Tcp, Config::default()).await;
    let limits = "max-connections = 1\nstall-limit = 5";
    let file = Settings::new(&settings(&server, limits));
    let mut gateway = listening(file.command(&[]));
    let mut client = End::connect(SmbDirect, &gateway.address).await;
    let mut upstream = server.accept().await;
    is_refused(SmbDirect, &gateway.address).await;
    assert_eq!(
        event(&mut gateway, "turned_away")["reason"],
        "1 connection is open"
    );

    let reload = |gateway: &mut Listening, text: &str| {
        file.write(text);
        gateway.running.signal("HUP");
        let event = event(gateway, "reloaded");
        (
            event["changed"].to_string(),
            event["needs_restart"].to_string(),
        )
    };
    let changed = reload(
        &mut gateway,
        &settings(&server, "max-connections = 3\nmemory = '3G'"),
    );
    assert_eq!(
        changed,
        (
            "[\"max-connections\",\"stall-limit\"]".into(),
            "[\"memory\"]".into()
        )
    );
    let third = End::connect(SmbDirect, &gateway.address).await;
    let _third_upstream = server.accept().await;

    // The first connection has not noticed.
    client.send(b"hello").await;
    assert_eq!(upstream.receive().await.as_deref(), Some(&b"hello"[..]));

    let changed = reload(
        &mut gateway,
        &settings(&server, "allow = ['10.0.0.0/8']\nmemory = '3G'"),
    );
    assert_eq!(changed.0, "[\"allow\",\"max-connections\"]");
    is_refused(SmbDirect, &gateway.address).await;
    // The first refusal was tried twice.
    event(&mut gateway, "turned_away");
    let reason = event(&mut gateway, "turned_away")["reason"].clone();
    assert_eq!(reason, "its address is not allowed");

    // A file with a fault changes nothing.
    file.write("allow = []\nmax-conections = 9");
    gateway.running.signal("HUP");
    gateway.running.logs("did you mean `max-connections`?");
    upstream.send(b"world").await;
    assert_eq!(client.receive().await.as_deref(), Some(&b"world"[..]));
    client.close().await;
    third.close().await;
    let done = gateway.terminate();
    assert!(done.status.success(), "{done:?}");
    assert!(
        done.stderr.contains("need a restart to change: memory"),
        "{done:?}"
    );
}

/// SIGHUP asks for something that there is not, and it ends nothing.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_file_sighup_changes_nothing() {
    let mut server = Server::bind(Tcp, Config::default()).await;
    let upstream = server.address().to_string();
    let mut gateway = gateway(SmbDirect, Tcp, &upstream, &[]);
    gateway.running.signal("HUP");
    gateway.running.logs("without --config");
    let client = End::connect(SmbDirect, &gateway.address).await;
    let _upstream = server.accept().await;
    client.close().await;
    assert!(gateway.terminate().status.success());
}

/// The memory takes effect at the start only, and so does the number of connections that it affords.
#[tokio::test(flavor = "multi_thread")]
async fn a_reload_does_not_exceed_the_memory_of_the_running_gateway() {
    let mut server = Server::bind(Tcp, Config::default()).await;
    let file = Settings::new(&settings(&server, "memory = '1M'"));
    let path = file.path();
    let check = run(&[
        "gateway",
        "--check-config",
        "--config",
        path.to_str().unwrap(),
    ]);
    let needed = check.stderr.split("one connection needs ").nth(1).unwrap();
    let needed: f64 = needed.split(" MiB").next().unwrap().parse().unwrap();
    let enough = format!("memory = '{}M'\nmax-connections = 8", needed as u64 + 1);
    file.write(&settings(&server, &enough));
    let mut gateway = listening(file.command(&[]));
    file.write(&settings(&server, "memory = '30G'\nmax-connections = 9"));
    gateway.running.signal("HUP");
    event(&mut gateway, "reloaded");
    let first = End::connect(SmbDirect, &gateway.address).await;
    let _upstream = server.accept().await;
    is_refused(SmbDirect, &gateway.address).await;
    let reason = event(&mut gateway, "turned_away")["reason"].clone();
    assert_eq!(
        reason,
        "1 connection is open, and `memory` is not enough for more"
    );
    first.close().await;
    gateway.terminate();
}
