//! The control socket, `gateway ctl`, and what tells whether the gateway takes clients.

use std::{
    io::{Read, Write},
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::Path,
};

use super::{metrics::http, service::Settings, *};

/// Runs `gateway ctl`, and returns its objects.
pub(super) fn ctl(socket: &Path, arguments: &[&str]) -> Vec<Value> {
    let start = ["gateway", "ctl", socket.to_str().unwrap(), "--json"];
    run(&[&start, arguments].concat()).succeeded().json()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_administrator_sees_and_ends_sessions_and_drains_servers() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("gateway.sock");
    let mut server = Server::bind(Tcp, Config::default()).await;
    let upstream = server.address().to_string();
    let path = socket.to_str().unwrap();
    let arguments = [
        "--control",
        path,
        "--metrics",
        "127.0.0.1:0",
        "--drain-timeout",
        "60",
    ];
    let mut gateway = gateway(Tcp, Tcp, &upstream, &arguments);
    let metrics = event(&mut gateway, "metrics")["address"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(
        fs::metadata(&socket).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let mut client = End::connect(Tcp, &gateway.address).await;
    let mut at_server = server.accept().await;
    client.send(b"question").await;
    assert!(at_server.receive().await.is_some());

    let sessions = ctl(&socket, &["sessions"]);
    assert_eq!(sessions.len(), 1);
    for (key, value) in [
        ("event", "session"),
        ("service", "gateway"),
        ("server", &upstream),
    ] {
        assert_eq!(sessions[0][key], value, "{sessions:?}");
    }
    assert_eq!(sessions[0]["messages_to_server"], 1);
    let table = run(&["gateway", "ctl", path, "memory"]).succeeded().stdout;
    assert!(
        table.starts_with("SESSION ") && table.contains("gateway/1"),
        "{table}"
    );
    let servers = ctl(&socket, &["servers"]);
    assert_eq!(
        (&servers[0]["is_up"], &servers[0]["sessions"]),
        (&true.into(), &1.into())
    );
    let top = run(&["top", path, "--once", "--interval", "0.1", "--json"]).succeeded();
    assert_eq!(top.json()[0]["event"], "top");

    // Only the control socket changes anything.
    assert!(http(&metrics, "POST", "/end/1").0.contains("405"));
    assert!(http(&metrics, "GET", "/sessions").0.contains("404"));
    assert_eq!(http(&metrics, "GET", "/healthz").1, "ok\n");
    assert_eq!(
        http(&metrics, "GET", "/readyz"),
        ("HTTP/1.1 200 OK".into(), "ready\n".into())
    );
    assert_eq!(ctl(&socket, &["drain", &upstream])[0]["event"], "done");
    assert_eq!(ctl(&socket, &["servers"])[0]["is_drained"], true);
    ctl(&socket, &["undrain", &upstream]);
    for (arguments, why) in [
        (["end", "99"], "there is no session 99"),
        (["end", "x"], "x is not the number of a session"),
        (["end", "other/1"], "there is no service other"),
        (["drain", "nas"], "there is no server nas"),
        (["end-all", "nas"], "there is no server nas"),
    ] {
        let all = [&["gateway", "ctl", path][..], &arguments].concat();
        run(&all).failed(1, why).one_line();
    }
    // Each argument becomes a part of a path.
    for (arguments, why) in [
        (["end", "x y"], "a session is NUMBER or SERVICE/NUMBER"),
        (["drain", "no such"], "an address is HOST[:PORT]"),
        (["drain", "a/b"], "an address is HOST[:PORT]"),
        (["drain", "a?b"], "an address is HOST[:PORT]"),
    ] {
        let all = [&["gateway", "ctl", path][..], &arguments].concat();
        run(&all).failed(2, why);
    }
    ctl(&socket, &["end", "1"]);
    assert_eq!(client.receive().await, None);
    event(&mut gateway, "closed");
    let mut client = End::connect(Tcp, &gateway.address).await;
    let _at_server = server.accept().await;
    event(&mut gateway, "opened");
    assert_eq!(ctl(&socket, &["end-all", &upstream])[0]["ended"], 1);
    assert_eq!(client.receive().await, None);
    event(&mut gateway, "closed");
    let none = run(&["gateway", "ctl", path, "end-all", &upstream]).succeeded();
    assert_eq!(none.stdout, "ended 0 sessions\n");

    // The gateway ends when the request is answered, and meanwhile takes no clients.
    let mut client = End::connect(Tcp, &gateway.address).await;
    let mut at_server = server.accept().await;
    client.send(b"question").await;
    assert!(at_server.receive().await.is_some());
    ctl(&socket, &["drain-all"]);
    event(&mut gateway, "draining");
    assert!(http(&metrics, "GET", "/readyz").0.contains("503"));
    at_server.send(b"answer").await;
    assert!(client.receive().await.is_some());
    assert!(gateway.running.status().success());
    assert!(!socket.exists());
}

#[test]
fn figures_on_a_path_and_a_path_that_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("metrics");
    let text = format!(
        "listen = '127.0.0.1:0'\nupstream = 'nas'\nmetrics = '{}'\n",
        path.display()
    );
    let file = Settings::new(&text);
    let mut gateway = listening(file.command(&[]));
    let reported = event(&mut gateway, "metrics")["address"].clone();
    assert_eq!(reported, path.to_str().unwrap());
    let mut stream = UnixStream::connect(&path).unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(
        answer.contains("\nsmbdirect_gateway_sessions_max "),
        "{answer}"
    );
    let mut other = file.command(&[]);
    let done =
        crate::support::Running::new(std::mem::replace(&mut other, command(&["x"]))).finish();
    assert_eq!(done.status.code(), Some(1), "{done:?}");
    assert!(
        done.stderr.contains("another process serves there"),
        "{done:?}"
    );
    gateway.terminate().succeeded();
    run(&["top", path.to_str().unwrap()])
        .failed(1, "no such file")
        .one_line();
}
