//! `--metrics`: what it returns for real traffic, to whom, and what a real Prometheus makes of it.

use std::{
    env,
    io::{Read, Write},
    net,
    path::Path,
    process::{Child, Command, Stdio},
    thread::sleep as pause,
    time::Instant,
};

use super::*;

/// Returns the status line and the body of an answer to an HTTP request.
pub(crate) fn http(address: &str, method: &str, path: &str) -> (String, String) {
    let mut stream = net::TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(STEP_TIMEOUT)).unwrap();
    let request =
        format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.lines().next().unwrap().to_owned();
    (status, body.to_owned())
}

/// Returns the value of a sample in Prometheus text.
#[track_caller]
pub(crate) fn sample(text: &str, name: &str) -> f64 {
    let value = text.lines().find_map(|line| {
        let (key, value) = line.rsplit_once(' ')?;
        (key == name).then_some(value)
    });
    value
        .unwrap_or_else(|| panic!("{name} in {text}"))
        .parse()
        .unwrap()
}

/// A gateway with metrics, both ends of a connection through it, and the address of the metrics.
async fn metered() -> (Listening, End, End, String) {
    let arguments = ["--metrics", "127.0.0.1:0", "--max-connections", "2"];
    let (mut gateway, client, server) = through(SmbDirect, Tcp, &arguments).await;
    // The server sees the connection before the figures do. Either event may be the first.
    let (mut address, mut is_open) = (None, false);
    while address.is_none() || !is_open {
        let event: Value = serde_json::from_str(&gateway.running.line()).unwrap();
        match event["event"].as_str().unwrap() {
            "metrics" => address = event["address"].as_str().map(str::to_owned),
            "opened" => is_open = true,
            _ => {}
        }
    }
    let address = address.unwrap();
    (gateway, client, server, address)
}

/// Sends a message to the server and one back.
async fn exchange(client: &mut End, server: &mut End, length: usize) {
    let message = noise(length, 1);
    client.send(&message).await;
    assert_eq!(server.receive().await.unwrap().len(), length);
    server.send(&message).await;
    assert_eq!(client.receive().await.unwrap().len(), length);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_metrics_of_a_gateway_count_its_traffic() {
    let (mut gateway, mut client, mut server, address) = metered().await;
    exchange(&mut client, &mut server, 50_000).await;
    soon(client.connection().keepalive()).await.unwrap();
    // The gateway counts a message after it has passed it on, which the client may see first.
    let passed = "smbdirect_gateway_bytes_total{direction=\"to_client\"}";
    let deadline = Instant::now() + Duration::from_secs(10);
    let (status, text) = loop {
        let (status, text) = http(&address, "GET", "/metrics");
        if sample(&text, passed) == 50_000.0 || Instant::now() >= deadline {
            break (status, text);
        }
    };
    assert_eq!(status, "HTTP/1.1 200 OK");
    for (name, value) in [
        ("smbdirect_connections_total{role=\"passive\"}", 1.0),
        ("smbdirect_connections_active", 1.0),
        ("smbdirect_received_bytes_total", 50_000.0),
        ("smbdirect_sent_bytes_total", 50_000.0),
        ("smbdirect_messages_received_total", 1.0),
        ("smbdirect_keepalives_received_total", 1.0),
        (
            "smbdirect_connections_ended_total{cause=\"violation\"}",
            0.0,
        ),
        ("smbdirect_gateway_sessions_active", 1.0),
        ("smbdirect_gateway_sessions_max", 2.0),
        (
            "smbdirect_gateway_messages_total{direction=\"to_server\"}",
            1.0,
        ),
        (
            "smbdirect_gateway_bytes_total{direction=\"to_client\"}",
            50_000.0,
        ),
        (
            "smbdirect_gateway_requests_refused_total{cause=\"signed\"}",
            0.0,
        ),
        (
            "smbdirect_gateway_memory_limit_bytes{pool=\"answers\"}",
            (1u64 << 30) as f64,
        ),
    ] {
        assert_eq!(sample(&text, name), value, "{name}");
    }
    let (_, json) = http(&address, "GET", "/status");
    let status: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(status["connections"][0]["role"], "passive");
    assert_eq!(status["connections"][0]["bytes_received"], 50_000);
    assert_eq!(
        status["connections"][0]["peer"],
        client.local_addr().to_string()
    );
    assert_eq!(status["established"], 1);

    client.close().await;
    assert!(ended(&mut gateway).contains("closed by the client"));
    let (_, text) = http(&address, "GET", "/metrics");
    for (name, value) in [
        ("smbdirect_connections_active", 0.0),
        (
            "smbdirect_gateway_sessions_ended_total{cause=\"closed_by_client\"}",
            1.0,
        ),
        (
            "smbdirect_connections_ended_total{cause=\"closed_by_peer\"}",
            1.0,
        ),
        ("smbdirect_received_bytes_total", 50_000.0),
        ("smbdirect_gateway_memory_bytes{pool=\"requests\"}", 0.0),
    ] {
        assert_eq!(sample(&text, name), value, "{name}");
    }
    gateway.terminate().succeeded();
}

#[tokio::test(flavor = "multi_thread")]
async fn only_reading_is_possible_and_slow_clients_keep_out_nobody() {
    let (gateway, _client, _server, address) = metered().await;
    let idle: Vec<_> = (0..15)
        .map(|_| net::TcpStream::connect(&address).unwrap())
        .collect();
    let status = |method, path| http(&address, method, path).0;
    assert_eq!(
        status("POST", "/metrics"),
        "HTTP/1.1 405 Method Not Allowed"
    );
    assert_eq!(status("GET", "/secret"), "HTTP/1.1 404 Not Found");
    assert_eq!(status("GET", "/"), "HTTP/1.1 200 OK");
    assert_eq!(http(&address, "HEAD", "/metrics").1, "");
    drop(idle);
    gateway.terminate().succeeded();
}

/// Each figure and each value of its labels is on the page about metrics.
#[tokio::test(flavor = "multi_thread")]
async fn the_page_about_metrics_is_complete() {
    let (gateway, _client, _server, address) = metered().await;
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, text) = http(&address, "GET", "/metrics");
    let samples = text.lines().filter(|line| line.starts_with("smbdirect_"));
    for sample in samples {
        let (name, rest) = sample.split_once(['{', ' ']).unwrap();
        let histogram = ["_bucket", "_sum", "_count"];
        let name = histogram
            .iter()
            .find_map(|end| name.strip_suffix(end))
            .unwrap_or(name);
        assert!(
            page.contains(&format!("`{name}`")) || page.contains(&format!("`{name}{{")),
            "{name}"
        );
        let labels = rest.split('"').skip(1).step_by(2);
        for value in labels.filter(|value| value.starts_with(|c: char| c.is_alphabetic())) {
            let known = ["active", "passive", "+Inf"].contains(&value);
            assert!(known || page.contains(&format!("`{value}`")), "{sample}");
        }
    }
    gateway.terminate().succeeded();
}

#[test]
fn metrics_that_cannot_be_served_are_named() {
    let taken = net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let done = run(&["gateway", "127.0.0.1:0", "127.0.0.1", "--metrics", &address]);
    done.failed(1, &address).one_line();
    assert_eq!(done.stdout, "");
}

/// A program that ends with this value.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns whether Prometheus is installed. Says so if it is not.
fn has_prometheus() -> bool {
    let found = ["prometheus", "promtool"].iter().all(|name| {
        let mut version = Command::new(name);
        version
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        version.status().is_ok()
    });
    if !found {
        let required = env::var_os("SMBDIRECT_REQUIRE_TOOLS").is_some();
        assert!(!required, "prometheus is missing");
        println!("skipped: needs prometheus (Debian: apt install prometheus)");
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn promtool_finds_no_fault_with_the_names() {
    if !has_prometheus() {
        return;
    }
    let (gateway, mut client, mut server, address) = metered().await;
    exchange(&mut client, &mut server, 1000).await;
    let (_, text) = http(&address, "GET", "/metrics");
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    promtool
        .stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    let done = promtool.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
    assert!(done.status.success() && said.is_empty(), "{said}");
    gateway.terminate().succeeded();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_answers_of_the_server_are_timed_by_operation() {
    use smbdirect_test::messages::{READ, SUCCESS, answer, read};

    let (gateway, mut client, mut server, address) = metered().await;
    let request = read(5, 0, 9, 0, &[]);
    client.send(&request).await;
    assert_eq!(server.receive().await.unwrap(), request);
    let before = Instant::now();
    pause(Duration::from_millis(20));
    server.send(&answer(READ, 5, SUCCESS)).await;
    client.receive().await.unwrap();
    let waited = before.elapsed();
    let (_, text) = http(&address, "GET", "/metrics");
    let of = |operation: &str, figure: &str| {
        let name = "smbdirect_gateway_answer_seconds";
        sample(
            &text,
            &format!("{name}_{figure}{{operation=\"{operation}\"}}"),
        )
    };
    assert_eq!(of("read", "count"), 1.0);
    assert_eq!(of("write", "count"), 0.0);
    assert_eq!(of("other", "count"), 0.0);
    let seconds = of("read", "sum");
    assert!(seconds >= 0.02, "{seconds}");
    assert!(seconds <= waited.as_secs_f64() + 1.0, "{seconds}");
    gateway.terminate().succeeded();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_session_waits_for_is_counted_and_shown_by_top() {
    use smbdirect_test::messages::{READ, SUCCESS, answer, read};

    let (gateway, mut client, mut server, address) = metered().await;
    let waited = || {
        let (_, text) = http(&address, "GET", "/status");
        let status: Value = serde_json::from_str(&text).unwrap();
        status["connections"][0]["waited"].clone()
    };
    let seconds = |waited: &Value, cause: &str| waited[cause].as_f64().unwrap();
    let top = |cause: &str| {
        let done = run(&["top", &address, "--once", "--interval", "0.2"]).succeeded();
        let row = done.stdout.lines().last().unwrap();
        assert!(row.contains(&format!(" {cause} ")), "{done:?}");
        done.stdout
    };
    assert_eq!(seconds(&waited(), "think_seconds"), 0.0, "no request yet");
    top("think");

    let request = read(5, 0, 9, 0, &[]);
    client.send(&request).await;
    assert_eq!(server.receive().await.unwrap(), request);
    let shown = top("server");
    assert!(shown.contains("of the time, 1 request now"), "{shown}");
    let asked = waited();
    assert_eq!(asked["unanswered"], 1);
    assert!(seconds(&asked, "server_seconds") >= 0.2, "{asked}");

    server.send(&answer(READ, 5, SUCCESS)).await;
    client.receive().await.unwrap();
    let shown = top("think");
    assert!(shown.contains("no connection waits, except"), "{shown}");
    let answered = waited();
    assert_eq!(answered["unanswered"], 0);
    assert!(seconds(&answered, "think_seconds") >= 0.2, "{answered}");

    // The next request ends the time in which the client asked for nothing.
    client.send(&read(6, 0, 9, 0, &[])).await;
    server.receive().await.unwrap();
    let (_, text) = http(&address, "GET", "/metrics");
    let name = "smbdirect_gateway_wait_seconds_count{cause=\"think\"}";
    assert_eq!(sample(&text, name), 1.0);
    gateway.terminate().succeeded();
}

#[tokio::test(flavor = "multi_thread")]
async fn of_encrypted_messages_it_is_unknown_what_they_wait_for() {
    let (gateway, mut client, mut server, address) = metered().await;
    client.send(&smbdirect_test::messages::encrypted(100)).await;
    server.receive().await.unwrap();
    let (_, text) = http(&address, "GET", "/status");
    let status: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(status["connections"][0]["waited"], Value::Null);
    gateway.terminate().succeeded();
}

/// Starts a Prometheus that scrapes `address` each second, and returns its address.
fn prometheus(directory: &Path, address: &str) -> (Program, String) {
    let config = directory.join("prometheus.yml");
    let text = format!(
        "global: {{scrape_interval: 1s}}\nscrape_configs:\n- job_name: smbdirect\n  \
         static_configs: [{{targets: ['{address}']}}]\n"
    );
    fs::write(&config, text).unwrap();
    let free = net::TcpListener::bind("127.0.0.1:0").unwrap();
    let own = free.local_addr().unwrap().to_string();
    drop(free);
    let child = Command::new("prometheus")
        .arg(format!("--config.file={}", config.display()))
        .arg(format!(
            "--storage.tsdb.path={}",
            directory.join("data").display()
        ))
        .arg(format!("--web.listen-address={own}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let program = Program(child);
    let started = Instant::now();
    // It listens before it can answer queries.
    while net::TcpStream::connect(&own).is_err()
        || http(&own, "GET", "/-/ready").0 != "HTTP/1.1 200 OK"
    {
        assert!(
            started.elapsed() < STEP_TIMEOUT,
            "Prometheus starts in time"
        );
        pause(Duration::from_millis(50));
    }
    (program, own)
}

/// Returns the result of a query, as Prometheus answers it.
fn query(prometheus: &str, expression: &str) -> Value {
    let encoded: String = expression
        .bytes()
        .map(|byte| format!("%{byte:02x}"))
        .collect();
    let (status, body) = http(prometheus, "GET", &format!("/api/v1/query?query={encoded}"));
    let body = match body.split_once("\r\n") {
        // The body is in chunks.
        Some((size, rest)) if usize::from_str_radix(size, 16).is_ok() => rest
            .rsplit_once("\r\n0\r\n")
            .map_or(rest, |(body, _)| body)
            .to_owned(),
        _ => body,
    };
    assert_eq!(status, "HTTP/1.1 200 OK", "{expression}: {body}");
    let answer: Value = serde_json::from_str(&body).unwrap_or_else(|_| panic!("{body}"));
    assert_eq!(answer["status"], "success", "{expression}");
    answer["data"]["result"].clone()
}

/// Returns the dashboard.
fn dashboard() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/grafana/smbdirect.json");
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Returns the query and the legend of each line of the dashboard.
fn dashboard_lines() -> Vec<(String, String)> {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels
        .iter()
        .filter_map(|panel| panel["targets"].as_array())
        .flatten();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    targets
        .map(|target| (text(&target["expr"]), text(&target["legendFormat"])))
        .collect()
}

/// The figures of two services of a process are two lines, and one service can be selected.
#[test]
fn the_dashboard_tells_services_apart() {
    let variables = dashboard()["templating"]["list"].clone();
    let variables = variables.as_array().unwrap();
    assert!(variables.iter().any(|one| one["name"] == "service"));
    let lines = dashboard_lines();
    let of_services: Vec<_> = lines
        .iter()
        .filter(|(expression, _)| expression.contains("smbdirect_gateway_"))
        .collect();
    assert!(of_services.len() > 10);
    for (expression, legend) in of_services {
        assert!(expression.contains("service=~\"$service\""), "{expression}");
        assert!(expression.contains("sum by (service"), "{expression}");
        assert!(legend.contains("{{service}}"), "{expression}: {legend}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_prometheus_scrapes_it_and_answers_every_query_of_the_dashboard() {
    if !has_prometheus() {
        return;
    }
    let (gateway, mut client, mut server, address) = metered().await;
    let directory = tempfile::tempdir().unwrap();
    let (_program, prometheus) = prometheus(directory.path(), &address);
    let started = Instant::now();
    loop {
        exchange(&mut client, &mut server, 20_000).await;
        soon(client.connection().keepalive()).await.unwrap();
        let rates = query(&prometheus, "rate(smbdirect_received_bytes_total[5s]) > 0");
        if !rates.as_array().unwrap().is_empty() {
            break;
        }
        assert!(
            started.elapsed() < STEP_TIMEOUT,
            "two scrapes happen in time"
        );
        sleep(Duration::from_millis(100)).await;
    }
    let lines = dashboard_lines();
    assert!(lines.len() > 30);
    for (expression, _) in lines {
        let expression = expression
            .replace("$__rate_interval", "5s")
            .replace("$instance", ".*")
            .replace("$service", ".*");
        let result = query(&prometheus, &expression);
        // Some figures count failures only, and nothing failed.
        let may_be_empty = expression.ends_with("> 0");
        let found = !result.as_array().unwrap().is_empty();
        assert!(found || may_be_empty, "{expression}");
    }
    // Shows the dashboard with real data.
    if let Ok(seconds) = env::var("SMBDIRECT_METRICS_SECONDS") {
        println!("prometheus on http://{prometheus}, metrics on http://{address}/metrics");
        sleep(Duration::from_secs(seconds.parse().unwrap())).await;
    }
    gateway.terminate().succeeded();
}
