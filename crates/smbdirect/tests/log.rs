//! Every log line about a connection is in a span that names the connection, whichever task emits
//! the line.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use smbdirect::{
    Config, Connection, Listener,
    rdma::{
        iwarp::{Iwarp, IwarpConfig},
        loopback::Loopback,
        provider::{ConnectRequest, Provider},
        work::{WorkId, WorkRequest},
    },
};
use smbdirect_test::log::{Log, peer};
use tokio::time::timeout;
use tracing::{Instrument, info_span};

/// Longest time that a step of a test takes.
const LIMIT: Duration = Duration::from_secs(30);

fn any_port() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn iwarp() -> Arc<dyn Provider> {
    Arc::new(Iwarp::new(IwarpConfig::default()))
}

async fn listen(provider: &Arc<dyn Provider>) -> Listener {
    let bound = Listener::bind(&**provider, any_port(), Config::default());
    bound.await.unwrap()
}

async fn connect(provider: &Arc<dyn Provider>, listener: &mut Listener) -> [Connection; 2] {
    let address = listener.local_addr();
    let connecting = Connection::connect(&**provider, address, Config::default());
    let client = connecting.await.unwrap();
    [client, listener.accept().await.unwrap()]
}

#[tokio::test]
async fn the_task_and_every_caller_log_in_the_span_of_the_connection() {
    for provider in [Arc::new(Loopback::new()), iwarp()] {
        let (log, _guard) = Log::start("smbdirect=trace,info");
        let mut listener = listen(&provider).await;
        let session = info_span!("session", id = 7);
        let [client, server] = connect(&provider, &mut listener).instrument(session).await;
        let (c, s) = (client.local_addr(), client.peer_addr());
        let ours = format!(" session{{id=7}}:connection{{peer={s} local={c}}}: ");
        let theirs = format!(" connection{{peer={c} local={s}}}: ");

        // The calls send some of the messages, and the driver task sends the rest.
        info_span!("caller").in_scope(|| {
            for _ in 0..3 {
                drop(client.send("hello").unwrap());
            }
        });
        for _ in 0..3 {
            server.recv().await.unwrap();
        }
        info_span!("caller").in_scope(|| client.abort());
        timeout(LIMIT, client.closed()).await.unwrap();
        timeout(LIMIT, server.closed()).await.unwrap();

        let lines = log.lines();
        let count = |span: &str, text: &str| {
            let named = lines.iter().filter(|line| line.contains(span));
            named.filter(|line| line.contains(text)).count()
        };
        for (span, text, least) in [
            (&ours, "proposing", 1),
            (&ours, "established", 1),
            (&ours, "sending Data Transfer", 3),
            (&ours, "the connection is over", 1),
            (&theirs, "accepting the negotiation", 1),
            (&theirs, "established", 1),
            (&theirs, "accepted", 1),
            (&theirs, "received Data Transfer", 3),
            (&theirs, "the connection is over", 1),
        ] {
            assert!(count(span, text) >= least, "{span}{text}: {lines:#?}");
        }
        for line in &lines {
            assert!([c, s].contains(&peer(line)), "{line}");
            assert!(!line.contains("caller"), "{line}");
        }
    }
}

#[tokio::test]
async fn a_filter_can_trace_one_connection_of_many() {
    let provider = iwarp();
    let mut listeners = [listen(&provider).await, listen(&provider).await];
    let traced = listeners[0].local_addr();
    let filter = format!("smbdirect[connection{{peer={traced}}}]=trace");
    let (log, _guard) = Log::start(&filter);
    for listener in &mut listeners {
        let [client, server] = connect(&provider, listener).await;
        drop(client.send("hello").unwrap());
        server.recv().await.unwrap();
        client.close().await.unwrap();
    }
    let lines = log.lines();
    assert!(lines.iter().all(|line| peer(line) == traced), "{lines:#?}");
    for text in ["iWARP connection", "proposing", "sending", "is over"] {
        assert!(lines.iter().any(|line| line.contains(text)), "{lines:#?}");
    }
}

#[tokio::test]
async fn a_peer_that_does_not_negotiate_is_named() {
    // The span is enabled at the level of each line that it contains.
    let (log, _guard) = Log::start("info");
    let provider = iwarp();
    let listener = listen(&provider).await;
    let request = ConnectRequest {
        address: listener.local_addr(),
        private_data: Bytes::new(),
        receive: WorkRequest::Receive {
            id: WorkId(0),
            length: 512,
            count: 1,
        },
    };
    let connected = provider.connect(request).await.unwrap();
    let local = connected.local_addr;
    drop(connected);
    let line = log.wait_for("a peer did not get a connection").await;
    assert_eq!(peer(&line), local);
    assert!(line.contains(&format!(" local={}}}: ", listener.local_addr())));
}
