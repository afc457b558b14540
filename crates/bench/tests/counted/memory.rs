//! Bytes of the heap that an idle connection keeps.
//!
//! Pools of memory belong to the process. So each figure is measured in a process of its own, and is the
//! least of several rounds: the peak use of a pool depends on time, but later rounds use its memory again.

use std::{env, process::Command, sync::Arc};

use bytes::Bytes;
use smbdirect::{
    Config, Connection, Listener,
    rdma::{
        iwarp::{Iwarp, IwarpConfig},
        loopback::Loopback,
        provider::Provider,
    },
};
use tokio::runtime::Builder;

use crate::units::content;

/// Connections of a round. The process has both ends of each.
const CONNECTIONS: usize = 50;
/// Rounds of [`CONNECTIONS`] connections each.
const ROUNDS: usize = 4;
/// Maximum number of bytes that an idle end may keep.
const MAX_IDLE_END_BYTES: i64 = 32 << 10;

/// Returns the bytes of the heap that each end keeps: when it is new, and after a message in each
/// direction.
fn kept(provider: &Arc<dyn Provider>) -> (i64, i64) {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let address = "127.0.0.1:0";
    let config = Config::default();
    let mut listener = runtime
        .block_on(Listener::bind(&**provider, address, config.clone()))
        .unwrap();
    let mut connect = || {
        runtime.block_on(async {
            let (one, other) = tokio::join!(
                Connection::connect(&**provider, listener.local_addr(), config.clone()),
                listener.accept(),
            );
            (one.unwrap(), other.unwrap())
        })
    };
    let exchange = |(one, other): &(Connection, Connection), message: &Bytes| {
        runtime.block_on(async {
            drop(one.send(message.clone()).unwrap());
            drop(other.send(message.clone()).unwrap());
            assert_eq!(one.recv().await.unwrap().len(), message.len());
            assert_eq!(other.recv().await.unwrap().len(), message.len());
        });
    };
    let message = content(100_000);
    // Makes the allocations that happen once in a process or in a runtime.
    exchange(&connect(), &message);
    let mut all = Vec::with_capacity(ROUNDS * CONNECTIONS);
    let rounds = [(); ROUNDS].map(|()| {
        let new = allocation_counter::measure(|| {
            all.extend((0..CONNECTIONS).map(|_| connect()));
        });
        let connections = &all[all.len() - CONNECTIONS..];
        let more = allocation_counter::measure(|| {
            for connection in connections {
                exchange(connection, &message);
            }
        });
        let ends = 2 * CONNECTIONS as i64;
        (new.bytes_current / ends, more.bytes_current / ends)
    });
    let new = rounds.iter().map(|(new, _)| *new).min().unwrap();
    let more = rounds.iter().map(|(_, more)| *more).min().unwrap();
    (new, new + more)
}

/// Names the provider in the process that is measured.
const PROVIDER: &str = "SMBDIRECT_COUNTED_PROVIDER";

/// The measured process, which the other tests start. Does nothing without [`PROVIDER`].
#[test]
fn measured_process() {
    let provider: Arc<dyn Provider> = match env::var(PROVIDER).as_deref() {
        Err(_) => return,
        Ok("iwarp") => Arc::new(Iwarp::new(IwarpConfig::default())),
        Ok(_) => Arc::new(Loopback::new()),
    };
    let (new, used) = kept(&provider);
    println!("kept: {new} {used}");
}

#[track_caller]
fn kept_in_a_process_of_its_own(provider: &str) -> (i64, i64) {
    let measured = Command::new(env::current_exe().unwrap())
        .args(["--exact", "memory::measured_process", "--nocapture"])
        .env(PROVIDER, provider)
        .output()
        .unwrap();
    assert!(measured.status.success(), "{measured:?}");
    let said = String::from_utf8_lossy(&measured.stdout);
    let (_, kept) = said
        .split_once("kept: ")
        .expect("the process prints what was kept");
    eprintln!("{provider}: {}", kept.lines().next().unwrap());
    let mut kept = kept.split_whitespace().map(|kept| kept.parse().unwrap());
    (kept.next().unwrap(), kept.next().unwrap())
}

#[track_caller]
fn assert_little(kept: i64) {
    assert!(kept <= MAX_IDLE_END_BYTES, "{kept} bytes for each end");
}

#[test]
fn new_iwarp_connection_keeps_little() {
    assert_little(kept_in_a_process_of_its_own("iwarp").0);
}

#[test]
fn used_iwarp_connection_keeps_little() {
    assert_little(kept_in_a_process_of_its_own("iwarp").1);
}

#[test]
fn loopback_connection_keeps_little() {
    let (new, used) = kept_in_a_process_of_its_own("loopback");
    assert_little(new);
    assert_little(used);
}
