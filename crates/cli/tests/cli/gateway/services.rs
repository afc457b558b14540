//! Several services in one settings file, and several servers for one service.

use super::{
    control::ctl,
    metrics::{http, sample},
    service::Settings,
    *,
};

/// Returns the address of each service that has started, in the order of their names.
fn listening_services(
    gateway: &Listening,
    first: &str,
    others: Vec<Value>,
) -> Vec<(String, String)> {
    let of = |event: Value| {
        let text = |key: &str| event[key].as_str().unwrap().to_owned();
        (text("service"), text("address"))
    };
    let mut all: Vec<_> = others.into_iter().map(of).collect();
    all.push((first.to_owned(), gateway.address.clone()));
    all.sort();
    all
}

/// Returns whether messages pass both ways.
async fn passes(client: &mut End, server: &mut End) -> bool {
    client.send(b"question").await;
    let question = server.receive().await;
    server.send(b"answer").await;
    question.as_deref() == Some(b"question") && client.receive().await.as_deref() == Some(b"answer")
}

#[tokio::test(flavor = "multi_thread")]
async fn services_come_and_go_without_touching_others() {
    let mut one = Server::bind(Tcp, Config::default()).await;
    let mut other = Server::bind(Tcp, Config::default()).await;
    let (to_one, to_other) = (one.address().to_string(), other.address().to_string());
    let all = "from = 'tcp'\nmetrics = '127.0.0.1:0'\nmax-connections = 7\n";
    let a = format!("[[service]]\nname = 'a'\nlisten = '127.0.0.1:0'\nupstream = '{to_one}'\n");
    let b = format!(
        "[[service]]\nname = 'b'\nlisten = '127.0.0.1:0'\nupstream = '{to_other}'\nmax-connections = 3\n"
    );
    let c = b.replace("'b'", "'c'");
    let file = Settings::new(&format!("{all}{a}{b}"));
    let mut gateway = listening(file.command(&[]));
    let second = event(&mut gateway, "listening");
    let metrics = event(&mut gateway, "metrics")["address"]
        .as_str()
        .unwrap()
        .to_owned();
    let services = listening_services(&gateway, "a", vec![second]);
    assert_eq!((&*services[0].0, &*services[1].0), ("a", "b"));
    let (to_a, to_b) = (services[0].1.clone(), services[1].1.clone());

    let mut client = End::connect(Tcp, &to_a).await;
    let mut server = one.accept().await;
    assert_eq!(event(&mut gateway, "opened")["service"], "a");
    let mut second_client = End::connect(Tcp, &to_b).await;
    let mut second_server = other.accept().await;
    assert_eq!(event(&mut gateway, "opened")["service"], "b");
    assert!(passes(&mut client, &mut server).await);
    assert!(passes(&mut second_client, &mut second_server).await);
    let (_, text) = http(&metrics, "GET", "/metrics");
    for (service, most) in [("a", 7.0), ("b", 3.0)] {
        let figure = |name: &str| sample(&text, &format!("{name}{{service=\"{service}\"}}"));
        assert_eq!(figure("smbdirect_gateway_sessions_active"), 1.0);
        assert_eq!(figure("smbdirect_gateway_sessions_max"), most);
    }
    assert_eq!(
        text.matches("# TYPE smbdirect_gateway_sessions_max")
            .count(),
        1
    );

    // b is removed and c is added; a has another limit.
    file.write(&format!("{all}{a}stall-limit = 5\n{c}"));
    gateway.running.signal("HUP");
    let listening = event(&mut gateway, "listening");
    assert_eq!(listening["service"], "c");
    let reloaded = event(&mut gateway, "reloaded");
    assert_eq!(reloaded["changed"][0], "a.stall-limit");
    assert_eq!(
        (&reloaded["added"][0], &reloaded["removed"][0]),
        (&"c".into(), &"b".into())
    );
    assert_eq!(reloaded["needs_restart"], Value::Array(Vec::new()));
    // It has no unanswered requests.
    assert_eq!(second_client.receive().await, None);
    assert!(passes(&mut client, &mut server).await);
    let mut third = End::connect(Tcp, listening["address"].as_str().unwrap()).await;
    let mut third_server = other.accept().await;
    assert!(passes(&mut third, &mut third_server).await);

    // A service that cannot listen: nothing changes.
    file.write(&format!(
        "{all}{a}[[service]]\nname = 'd'\nlisten = '192.0.2.1:1'\nupstream = 'nas'\n"
    ));
    gateway.running.signal("HUP");
    gateway.running.logs("the settings were not changed: ");
    assert!(passes(&mut third, &mut third_server).await);
    let done = gateway.terminate();
    assert!(done.status.success(), "{done:?}");
    let summaries = done
        .json()
        .into_iter()
        .filter(|event| event["event"] == "summary");
    let of: Vec<_> = summaries
        .map(|event| event["service"].to_string())
        .collect();
    assert_eq!(of.len(), 3, "{done:?}");
}

/// The sessions of a removed service that wait for answers stay visible when a service of its name is added.
#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_is_added_again_does_not_hide_the_removed_one() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("gateway.sock");
    let mut server = Server::bind(Tcp, Config::default()).await;
    let all = format!(
        "from = 'tcp'\nupstream = '{}'\ncontrol = '{}'\nmetrics = '127.0.0.1:0'\ndrain-timeout = 'never'\n",
        server.address(),
        socket.display()
    );
    let a = format!("{all}[[service]]\nname = 'a'\nlisten = '127.0.0.1:0'\n");
    let both = format!("{a}[[service]]\nname = 'b'\nlisten = '127.0.0.1:0'\n");
    let file = Settings::new(&both);
    let mut gateway = listening(file.command(&[]));
    let to_b = event(&mut gateway, "listening")["address"].clone();
    let metrics = event(&mut gateway, "metrics")["address"].clone();
    let mut old = End::connect(Tcp, to_b.as_str().unwrap()).await;
    let mut old_server = server.accept().await;
    old.send(b"question").await;
    assert!(old_server.receive().await.is_some());
    file.write(&a);
    gateway.running.signal("HUP");
    assert_eq!(event(&mut gateway, "reloaded")["removed"][0], "b");
    file.write(&both);
    gateway.running.signal("HUP");
    let to_b = event(&mut gateway, "listening")["address"].clone();
    let mut new = End::connect(Tcp, to_b.as_str().unwrap()).await;
    let mut new_server = server.accept().await;
    event(&mut gateway, "opened");

    let sessions = ctl(&socket, &["sessions"]);
    let of: Vec<_> = sessions
        .iter()
        .map(|session| (session["service"].as_str(), session["id"].as_u64()))
        .collect();
    assert_eq!(of, [(Some("b"), Some(1)), (Some("b"), Some(2))]);
    let (_, text) = http(metrics.as_str().unwrap(), "GET", "/metrics");
    for name in ["sessions_active", "sessions_total"] {
        let name = format!("smbdirect_gateway_{name}{{service=\"b\"}}");
        assert_eq!(sample(&text, &name), 2.0, "{name}");
        assert_eq!(text.matches(&name).count(), 1, "{name}");
    }
    ctl(&socket, &["end", "b/1"]);
    assert_eq!(old.receive().await, None);
    assert!(passes(&mut new, &mut new_server).await);
    gateway.terminate().succeeded();
}

/// A reload that renames a service hands its sockets over.
#[tokio::test(flavor = "multi_thread")]
async fn an_address_moves_to_a_service_that_is_added() {
    for kind in [Tcp, SmbDirect] {
        let mut server = Server::bind(Tcp, Config::default()).await;
        let address = own_address();
        let named = |name: &str| {
            let (from, upstream) = (kind.name(), server.address());
            format!(
                "from = '{from}'\nupstream = '{upstream}'\n[[service]]\nname = '{name}'\nlisten = '{address}'\n"
            )
        };
        let (old, new) = (named("old"), named("new"));
        let file = Settings::new(&old);
        let mut gateway = listening(file.command(&[]));
        for text in [new, old] {
            file.write(&text);
            gateway.running.signal("HUP");
            assert_eq!(event(&mut gateway, "listening")["address"], address);
            event(&mut gateway, "reloaded");
            let mut client = End::connect(kind, &address).await;
            let mut at_server = server.accept().await;
            assert!(passes(&mut client, &mut at_server).await);
        }
        gateway.terminate().succeeded();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_servers_and_of_addresses() {
    let mut one = Server::bind(Tcp, Config::default()).await;
    let mut other = Server::bind(Tcp, Config::default()).await;
    let servers = format!("{},{}", one.address(), other.address());
    let mut start = command(&["gateway", "127.0.0.1:0,[::1]:0", &servers, "--json"]);
    start.args([
        "--from",
        "tcp",
        "--balance",
        "round-robin",
        "--check-interval",
        "0",
    ]);
    let mut gateway = listening(start);
    let second = event(&mut gateway, "listening")["address"]
        .as_str()
        .unwrap()
        .to_owned();
    let mut first = End::connect(Tcp, &gateway.address).await;
    // A client without a ClientGuid is known by its address, and two addresses are two clients.
    first.send(&[0; 200]).await;
    let mut next = End::connect(Tcp, &second).await;
    next.send(&[0; 200]).await;
    let (mut at_one, mut at_other) = (one.accept().await, other.accept().await);
    assert!(at_one.receive().await.is_some() && at_other.receive().await.is_some());
    drop((first, next));
    gateway.running.signal("TERM");
    assert!(gateway.running.status().success());
}

#[test]
fn sessions_may_take_as_long_as_they_want_to_end() {
    let file = Settings::new(
        "listen = '127.0.0.1:0'\nupstream = '127.0.0.1:1'\ndrain-timeout = 'never'\n",
    );
    let gateway = listening(file.command(&[]));
    gateway.terminate().succeeded();
}

#[test]
fn the_options_about_clients_are_checked() {
    let check = |text: &str| {
        let file = Settings::new(&format!("listen = ':1'\nupstream = ['a', 'b:1']\n{text}\n"));
        run(&[
            "gateway",
            "--check-config",
            "--config",
            file.path().to_str().unwrap(),
        ])
    };
    check("deny = ['10.0.0.0/8', '::1']\nmax-connections-per-client = 4\nslow-start = 0")
        .succeeded();
    check("client-address = 'proxy'\ntrusted-proxies = '10.0.0.1'\nbalance = 'round-robin'")
        .succeeded();
    let smb_direct = "client-address = 'transparent'\nto = 'smbdirect'";
    check(smb_direct).failed(
        2,
        "line 3: --client-address transparent is for servers on TCP",
    );
    check("check-rise = 0").failed(2, "line 3: check-rise: expected a number of at least 1");
    check("drain-timeout = 'ever'")
        .failed(2, "line 3: drain-timeout: a time is a number of seconds");
    check("[[service]]\nname = 'a'\npcap = 'x'").failed(2, "line 5: pcap is for all services");
}
