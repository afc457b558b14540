//! `bench`: every kind of row, with every kind of ends. No test depends on a rate.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    thread,
    time::Duration,
};

use serde_json::Value;

use crate::support::{Done, STEP_TIMEOUT, command, listening, run, start};

/// Runs a bench with the shortest bursts.
fn quick(arguments: &[&str]) -> Done {
    let mut all = vec!["bench", "--rounds", "1", "--time", "0.002", "--json"];
    all.extend(arguments);
    run(&all)
}

/// Returns the rows, and asserts that each has a rate and that the summary is the last event.
#[track_caller]
fn rows(done: &Done) -> Vec<Value> {
    let mut events = done.json();
    let summary = events.pop().expect("there is a summary");
    assert_eq!(summary["event"], "summary", "{summary}");
    assert_eq!(summary["interrupted"], false);
    events.retain(|event| event["event"] == "row");
    assert_eq!(summary["rows"], events.len());
    for row in &events {
        for key in ["gib_per_second", "messages_per_second"] {
            assert!(row[key].as_f64().unwrap() > 0.0, "{key}: {row}");
        }
        assert!(row["samples"].as_u64().unwrap() > 0, "{row}");
    }
    events
}

/// Returns the number of rows with these values.
fn count(rows: &[Value], wanted: &[(&str, Value)]) -> usize {
    let has = |row: &&Value| wanted.iter().all(|(key, value)| row[*key] == *value);
    rows.iter().filter(has).count()
}

#[test]
fn each_kind_of_work_with_its_comparisons() {
    let done = quick(&["--sizes", "64,64K", "--what", "send,write,read,memory"]).succeeded();
    let rows = rows(&done);
    for (kind, means, segments) in [
        ("send", "smbdirect", 2),
        ("write", "smbdirect", 1),
        ("read", "smbdirect", 1),
        ("send", "tcp", 1),
        ("send", "tcp-batched", 1),
        ("send", "frames", 1),
    ] {
        let wanted = [("kind", kind.into()), ("means", means.into())];
        assert_eq!(count(&rows, &wanted), 2 * segments, "{kind} by {means}");
    }
    assert_eq!(count(&rows, &[("kind", "memory".into())]), 4);
    for row in &rows {
        let compared = row["kind"] != "memory";
        assert_eq!(row["ratio_to_tcp"].is_f64(), compared, "{row}");
        assert_eq!(row["ratio_to_tcp_batched"].is_f64(), compared, "{row}");
        assert!(!cfg!(target_os = "linux") || row["cpu_seconds_per_gib"].is_f64());
    }
}

#[test]
fn settings_reach_the_connection() {
    let done = quick(&[
        "--what",
        "rate,write",
        "--sizes",
        "8M",
        "--segment",
        "1364,4K",
        "--outstanding",
        "1,32",
        "--crc",
        "off",
        "--both",
        "--alone",
    ])
    .succeeded();
    let rows = rows(&done);
    // Small messages, batched and one per call, for each segment size.
    assert_eq!(rows.len(), 6);
    assert_eq!(
        count(&rows, &[("crc", false.into()), ("both", true.into())]),
        6
    );
    assert_eq!(count(&rows, &[("means", "smbdirect-batched".into())]), 2);
    for (key, values) in [("segment", [1364, 4096]), ("outstanding", [1, 32])] {
        for value in values {
            assert!(count(&rows, &[(key, value.into())]) >= 1, "{key} {value}");
        }
    }
    assert_eq!(count(&rows, &[("size", (8 << 20).into())]), 2);
}

#[cfg(target_os = "linux")]
#[test]
fn keep_awake_is_reported() {
    for (option, kept) in [(None, false), (Some("--keep-awake"), true)] {
        let arguments = ["--what", "send", "--sizes", "64", "--segment", "1364"];
        let done = quick(&arguments.into_iter().chain(option).collect::<Vec<_>>()).succeeded();
        assert!(!rows(&done).is_empty());
        assert_eq!(done.json().pop().unwrap()["kept_awake"], kept);
    }
}

#[test]
fn requests_are_measured_beside_data() {
    let connections = ["--what", "connections", "--connections", "2"];
    let done = quick(&connections).succeeded();
    assert!(rows(&done).is_empty());
    let mut loads = done.json();
    loads.retain(|event| event["event"] == "load");
    assert_eq!(loads.len(), 6);
    for load in loads {
        assert!(load["gib_per_second"]["least"].as_f64().unwrap() > 0.0);
        let is_compared = load["means"] == "smbdirect";
        assert_eq!(
            load["rate_to_tcp"]["median"].is_f64(),
            is_compared,
            "{load}"
        );
    }
}

#[test]
fn remote_end_survives_invalid_orders() {
    let serving = listening(command(&["bench", "--serve", "127.0.0.1:0"]));
    let orders = [
        "GET / HTTP/1.1\r\n\r\n",
        "{\"order\":\"burst\",\"id\":7,\"burst\":{\"kind\":\"send\",\"size\":0,\"count\":1,\
         \"outstanding\":1,\"both\":false,\"busy\":false,\"placement\":\"free\",\"seconds\":null}}\n",
        "{\"order\":\"open\",\"id\":1,\"link\":{\"means\":\"tcp\",\"connections\":4000000000,\
         \"largest\":4000000000,\"rdma\":true,\"slots\":1},\
         \"congestion_control\":null}\n",
        "{\"order\":\"open\",\"id\":1,\"link\":{\"means\":{\"smb-direct\":{\"over\":\"iwarp\",\
         \"crc\":true,\"segment\":4000000000,\"send_credit_target\":65535,\
         \"receive_credit_max\":65535,\"max_read_write_size\":65536}},\"connections\":1,\
         \"largest\":1,\"rdma\":true,\"slots\":1},\"congestion_control\":null}\n",
        "{\"order\":\"open\",\"id\":1,\"link\":{\"means\":\"tcp\",\"connections\":1,\"largest\":1,\
         \"rdma\":false,\"slots\":4000000000},\"congestion_control\":null}\n",
        "{\"order\":\"burst\",\"id\":7,\"burst\":{\"kind\":\"write\",\"size\":4096,\"count\":0,\
         \"outstanding\":1,\"both\":false,\"busy\":false,\"placement\":\"free\",\"seconds\":1.0,\
         \"request\":4000000000}}\n",
    ];
    for order in orders {
        let mut stream = TcpStream::connect(&serving.address).unwrap();
        stream.set_read_timeout(Some(STEP_TIMEOUT)).unwrap();
        stream.write_all(order.as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answers = String::new();
        let _ = stream.read_to_string(&mut answers);
        assert!(answers.starts_with("{\"answer\":\"hello\""), "{answers}");
        let refused = answers.contains("\"answer\":\"failed\"");
        assert_eq!(refused, order.starts_with('{'), "{answers}");
    }
    let done = quick(&[&serving.address, "--what", "send,read", "--sizes", "4K"]).succeeded();
    assert_eq!(count(&rows(&done), &[("placement", "free".into())]), 6);
    let done = serving.terminate().succeeded();
    assert_eq!(done.stdout.matches("bench from 127.0.0.1:").count(), 7);
    assert!(
        done.stdout
            .contains("the other end is not `smbdirect bench`"),
        "{done:?}"
    );
}

#[test]
fn no_end_or_another_service_elsewhere() {
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string();
    run(&["bench", &port])
        .failed(1, "does `smbdirect bench --serve` run there?")
        .one_line();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in other.incoming().flatten() {
            let mut stream = stream;
            let _ = stream.write_all(b"220 mail.example ESMTP\r\n");
        }
    });
    run(&["bench", &address])
        .failed(1, "the other end is not `smbdirect bench`")
        .one_line();
}

#[test]
fn signal_ends_with_partial_results() {
    // The time until the first result depends on the machine.
    for seconds in [1, 5, 25] {
        let mut arguments = vec!["bench", "--alone", "--what", "send", "--sizes", "64,4K"];
        arguments.extend(["--time", "0.01", "--rounds", "1000"]);
        let mut running = start(&arguments);
        assert!(running.line().starts_with("SMB Direct over iwarp"));
        thread::sleep(Duration::from_secs(seconds));
        running.signal("INT");
        let done = running.finish();
        if done.status.success() {
            // The bench had ended before the signal.
            return;
        }
        assert_eq!(done.status.code(), Some(1), "{done:?}");
        assert!(done.stdout.contains("\ninterrupted"), "{done:?}");
        if done.stdout.contains("\nSend, 8136 B segments") {
            return;
        }
    }
    panic!("there was never anything");
}

#[test]
fn over_adapters_the_other_end_is_named() {
    run(&["bench", "--transport", "verbs"])
        .failed(2, "--transport verbs needs ADDR")
        .one_line();
    // Without --transport verbs no adapters are used.
    let serving = listening(command(&["bench", "--serve", "127.0.0.1:0"]));
    let mut stream = TcpStream::connect(&serving.address).unwrap();
    stream.set_read_timeout(Some(STEP_TIMEOUT)).unwrap();
    let order = "{\"order\":\"open\",\"id\":1,\"link\":{\"means\":{\"smb-direct\":{\"over\":\"verbs\",\
        \"crc\":false,\"segment\":1364,\"send_credit_target\":8,\"receive_credit_max\":8,\
        \"max_read_write_size\":65536}},\"connections\":1,\"largest\":64,\"rdma\":false,\
        \"slots\":1},\
        \"congestion_control\":null}\n";
    stream.write_all(order.as_bytes()).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answers = String::new();
    let _ = stream.read_to_string(&mut answers);
    assert!(
        answers.contains("start it with --transport verbs"),
        "{answers}"
    );
    serving.terminate().succeeded();
}
