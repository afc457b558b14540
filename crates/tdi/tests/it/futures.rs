//! All futures of the crate are in one list, which `smbdirect_test::futures` checks.

use std::{collections::BTreeSet, path::Path, sync::Arc};

use bytes::{Bytes, BytesMut};
use smbdirect::{Connection, Provider, Settings};
use smbdirect_tdi::{ReceiveFlags, SendFlags};
use smbdirect_test::{
    future_cases,
    futures::{self, World},
};

use crate::endpoint::ends::{Ends, any_port, iwarp, loopback, settings};

/// The two ends of a connection, whose handles the wakers own.
struct Handles {
    connections: Vec<Connection>,
    ends: Ends,
}

impl Handles {
    async fn new(provider: Arc<dyn Provider>) -> Self {
        let ends = Ends::with(provider, settings(Settings::default())).await;
        let connections = [&ends.here, &ends.there].map(|end| end.connection().unwrap());
        Self {
            connections: connections.into(),
            ends,
        }
    }
}

impl World for Handles {
    type Handle = Connection;
    type Rest = Ends;

    fn handles(&self) -> Vec<Connection> {
        self.connections.clone()
    }

    fn split(self) -> (Vec<Connection>, Ends) {
        (self.connections, self.ends)
    }

    fn abort(&self) {
        for connection in &self.connections {
            connection.abort();
        }
    }

    fn call(connection: &Connection) {
        connection.stats();
    }
}

future_cases! { Handles:
    "open_address" false |world| {
        let transport = world.ends.transport.clone();
        async move {
            let share = smbdirect_tdi::Share::Exclusive;
            transport.open_address::<()>(any_port(), share).await
        }
    };
    "Requested" true |world| {
        let endpoint = world.ends.transport.open_endpoint(());
        endpoint.associate(&world.ends.remote).unwrap();
        let listen = endpoint.listen(None);
        async move {
            let result = listen.await;
            drop(endpoint);
            result
        }
    };
    "InProgress" true |world| world.ends.here.send(Bytes::from("a TSDU"), SendFlags::empty());
    "InProgress" true |world| world.ends.here.receive(BytesMut::zeroed(9), ReceiveFlags::NORMAL);
    "send_possible" true |world| {
        let at = world.ends.here.clone();
        while at.try_send(vec![1; 65536], SendFlags::empty()).is_ok() {}
        async move { at.send_possible().await }
    };
    "disconnected" true |world| {
        let at = world.ends.here.clone();
        async move { at.disconnected().await }
    };
}

#[test]
fn a_dropped_future_leaves_nothing_behind_and_no_waker_runs_under_a_lock() {
    futures::check(CASES, true, || Handles::new(iwarp()));
    futures::check(CASES, false, || Handles::new(loopback()));
}

/// Finds the asynchronous functions and the futures in the source: each is in the list above.
#[test]
fn the_list_has_all_futures() {
    /// Tasks of the crate, and futures of functions that are in the list.
    const WITHIN: &[&str] = &["Task"];
    let found = futures::in_source(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    let known = CASES.iter().map(|case| case.name);
    let known: BTreeSet<_> = known
        .chain(WITHIN.iter().copied())
        .map(String::from)
        .collect();
    assert_eq!(found, known);
}
