//! Bytes of the heap that are held by messages which the application keeps. The peer chooses which messages those
//! are, and what it sends between them.

use std::{env, net::UdpSocket, process::Command, sync::Arc};

use bytes::{Bytes, BytesMut};
use smbdirect::{
    Access, Config, Connection, Listener,
    rdma::{
        iwarp::{Iwarp, IwarpConfig},
        loopback::Loopback,
        provider::Provider,
        roce::{Roce, RoceConfig},
    },
};
use tokio::runtime::Builder;

use crate::units::content;

/// Maximum number of bytes of the heap for each byte of the messages that are kept.
const MOST_HELD: usize = 4;
/// Bytes that are kept together.
const KEPT_BYTES: usize = 1 << 20;

/// The pattern that the peer repeats: a message that the receiver keeps, and the messages after it.
struct Pattern {
    name: &'static str,
    kept: usize,
    /// Lengths of the messages that are dropped.
    dropped: &'static [usize],
    /// Bytes of an RDMA Write.
    written: usize,
    /// The parts of messages are taken as they arrive.
    in_segments: bool,
}

const fn pattern(name: &'static str, kept: usize, dropped: &'static [usize]) -> Pattern {
    Pattern {
        name,
        kept,
        dropped,
        written: 0,
        in_segments: false,
    }
}

const PATTERNS: &[Pattern] = &[
    pattern("short among long", 100, &[100_000]),
    pattern("short among short", 100, &[100; 50]),
    pattern("short among medium", 200, &[20_000]),
    pattern("one KiB among long", 1024, &[300_000]),
    pattern("two segments", 3000, &[100_000]),
    pattern("medium among medium", 8000, &[8000; 31]),
    pattern("medium among long", 20_000, &[250_000]),
    pattern("long among long", 70_000, &[500_000]),
    pattern("long among short", 100_000, &[100; 10]),
    pattern("short alone", 100, &[]),
    Pattern {
        written: 300_000,
        ..pattern("short among writes", 100, &[])
    },
    Pattern {
        in_segments: true,
        ..pattern("in segments", 9000, &[100_000])
    },
];

/// Receives one message, in one part or in several.
async fn receive(connection: &Connection, in_segments: bool) -> Vec<Bytes> {
    if !in_segments {
        return vec![connection.recv().await.unwrap().into_bytes()];
    }
    let mut parts = Vec::new();
    loop {
        let segment = connection.recv_segment().await.unwrap();
        parts.push(segment.payload);
        if segment.remaining == 0 {
            return parts;
        }
    }
}

/// Exchanges the messages of `pattern`, and returns the bytes of those that were kept, and those of the heap that
/// they hold.
fn held(provider: &dyn Provider, pattern: &Pattern) -> (usize, i64) {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let address = "127.0.0.1:0";
    let (here, there) = runtime.block_on(async {
        let config = Config::default();
        let bound = Listener::bind(provider, address, config.clone());
        let mut listener = bound.await.unwrap();
        let at = listener.local_addr();
        let (here, there) =
            tokio::join!(Connection::connect(provider, at, config), listener.accept());
        (here.unwrap(), there.unwrap())
    });
    let count = KEPT_BYTES / pattern.kept;
    let region = here.register(BytesMut::zeroed(300_000), Access::REMOTE_WRITE);
    let place = region.as_ref().unwrap().descriptor();
    let written = content(pattern.written);
    let kept_content = content(pattern.kept);
    let dropped: Vec<_> = pattern
        .dropped
        .iter()
        .map(|&length| content(length))
        .collect();
    let mut kept = Vec::with_capacity(count);
    let mut run = |keeps: bool| {
        runtime.block_on(async {
            for _ in 0..count {
                // The messages share memory with nothing of the sender.
                drop(
                    there
                        .send(BytesMut::from(&kept_content[..]).freeze())
                        .unwrap(),
                );
                if !written.is_empty() {
                    there.write(&[place], 0, written.clone()).await.unwrap();
                }
                for message in &dropped {
                    drop(there.send(message.clone()).unwrap());
                }
                let message = receive(&here, pattern.in_segments).await;
                assert_eq!(message.concat(), kept_content);
                if keeps {
                    kept.push(message);
                }
                for _ in &dropped {
                    drop(receive(&here, pattern.in_segments).await);
                }
            }
        });
    };
    // The pools grow to what the pattern needs.
    run(false);
    let measured = allocation_counter::measure(|| run(true));
    let bytes = kept.iter().flatten().map(Bytes::len).sum();
    let lists: usize = kept
        .iter()
        .map(|parts| parts.capacity() * size_of::<Bytes>())
        .sum();
    (bytes, measured.bytes_current - lists as i64)
}

/// Names the provider and the pattern in the process that is measured.
const MEASURED: &str = "SMBDIRECT_COUNTED_KEPT";

/// The measured process, which the other tests start, because pools belong to the process. Does nothing without
/// [`MEASURED`].
#[test]
fn measured_process() {
    let Ok(measured) = env::var(MEASURED) else {
        return;
    };
    let (provider, pattern) = measured.split_once(' ').unwrap();
    let provider: Arc<dyn Provider> = match provider {
        "iwarp" => Arc::new(Iwarp::new(IwarpConfig::default())),
        "roce" => {
            let probe = UdpSocket::bind("127.0.0.1:0").unwrap();
            let udp_port = probe.local_addr().unwrap().port();
            let mut roce_config = RoceConfig::default();
            roce_config.udp_port = udp_port;
            roce_config.peer_udp_port = udp_port;
            Arc::new(Roce::new(roce_config))
        }
        _ => Arc::new(Loopback::new()),
    };
    let pattern = &PATTERNS[pattern.parse::<usize>().unwrap()];
    let (kept, held) = held(&*provider, pattern);
    println!("held: {kept} {held}");
}

#[track_caller]
fn messages_hold_little(provider: &str) {
    let mut failed = Vec::new();
    for (index, pattern) in PATTERNS.iter().enumerate() {
        let measured = Command::new(env::current_exe().unwrap())
            .args(["--exact", "kept::measured_process", "--nocapture"])
            .env(MEASURED, format!("{provider} {index}"))
            .output()
            .unwrap();
        assert!(measured.status.success(), "{measured:?}");
        let said = String::from_utf8_lossy(&measured.stdout);
        let (_, numbers) = said.split_once("held: ").expect("the process prints it");
        let mut numbers = numbers
            .split_whitespace()
            .map(|number| number.parse().unwrap());
        let (kept, held): (i64, i64) = (numbers.next().unwrap(), numbers.next().unwrap());
        let line = format!("{provider}, {}: {kept} B kept hold {held} B", pattern.name);
        eprintln!("{line}");
        if held > kept * MOST_HELD as i64 {
            failed.push(line);
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn messages_over_iwarp_hold_little() {
    messages_hold_little("iwarp");
}

#[test]
fn messages_over_roce_hold_little() {
    messages_hold_little("roce");
}

#[test]
fn messages_in_process_hold_little() {
    messages_hold_little("loopback");
}
