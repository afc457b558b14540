//! Runs the examples, which assert their own results.

#[allow(dead_code, reason = "its `main` is for the command line")]
#[path = "../../examples/event_loop.rs"]
mod event_loop;

#[allow(dead_code, reason = "its `main` is for the command line")]
#[path = "../../examples/sans_io.rs"]
mod sans_io;

#[allow(dead_code, reason = "its `main` is for the command line")]
#[path = "../../examples/echo.rs"]
mod echo;

#[allow(dead_code, reason = "its `main` is for the command line")]
#[path = "../../examples/rdma.rs"]
mod rdma;

#[allow(dead_code, reason = "its `main` is for the command line")]
#[path = "../../examples/echo_server.rs"]
mod echo_server;

#[allow(dead_code, reason = "its `main` is for the command line")]
#[path = "../../examples/provider.rs"]
mod provider;

#[allow(dead_code, reason = "its `main` is for the command line")]
#[path = "../../examples/reconnect.rs"]
mod reconnect;

#[allow(dead_code, reason = "its `main` is for the command line")]
#[path = "../../examples/write_progress.rs"]
mod write_progress;

use std::{error::Error, time::Duration};

use smbdirect::{Config, Connection, ConnectionError, Iwarp, IwarpConfig, Listener};
use smbdirect_provider_suite::{Fabric, conformance};
use tokio::{sync::oneshot, time::timeout};

#[test]
fn event_loop() {
    event_loop::run().expect("it succeeds");
}

#[test]
fn sans_io() {
    sans_io::run().expect("it succeeds");
}

/// Runs both ends of an example.
async fn run_ends<Ask, Serve>(
    ask: impl FnOnce(Connection) -> Ask,
    serve: impl FnOnce(Connection) -> Serve,
) where
    Ask: Future<Output = Result<(), Box<dyn Error>>>,
    Serve: Future<Output = Result<(), Box<dyn Error>>>,
{
    let provider = Iwarp::new(IwarpConfig::default());
    let any = "127.0.0.1:0";
    let listener = Listener::bind(&provider, any, Config::default());
    let mut listener = listener.await.unwrap();
    let connecting = Connection::connect(&provider, listener.local_addr(), Config::default());
    let (client, server) = tokio::join!(connecting, listener.accept());
    let (client, server) = (client.unwrap(), server.unwrap());
    let run = async { tokio::join!(ask(client), serve(server)) };
    let (asked, served) = timeout(Duration::from_secs(60), run)
        .await
        .expect("it ends");
    asked.expect("it succeeds");
    served.expect("it succeeds");
}

#[tokio::test]
async fn echo() {
    run_ends(echo::ask, echo::serve).await;
}

#[tokio::test]
async fn rdma() {
    run_ends(rdma::ask, rdma::serve).await;
}

/// Two clients are served at the same time, and a third is connected when the server stops.
#[tokio::test]
async fn echo_server() {
    let provider = Iwarp::new(IwarpConfig::default());
    let listener = Listener::bind(&provider, "127.0.0.1:0", Config::default());
    let listener = listener.await.unwrap();
    let address = listener.local_addr();
    let (stop, stopped) = oneshot::channel::<()>();
    let clients = async {
        let connect = async || {
            let connecting = Connection::connect(&provider, address, Config::default());
            connecting.await.unwrap()
        };
        let idle = connect().await;
        let (one, two) = tokio::join!(echo::ask(connect().await), echo::ask(connect().await));
        one.and(two).expect("they succeed");
        stop.send(()).expect("the server runs");
        assert!(matches!(idle.closed().await, ConnectionError::Closed));
    };
    let stopped = async { stopped.await.expect("the clients succeed") };
    let run = async { tokio::join!(echo_server::serve(listener, stopped), clients) };
    let (served, ()) = timeout(Duration::from_secs(60), run)
        .await
        .expect("it ends");
    assert_eq!(served.expect("it succeeds"), 12);
}

/// The server goes away between two requests, and then does not answer one.
#[tokio::test]
async fn reconnect() {
    let provider = Iwarp::new(IwarpConfig::default());
    let listener = Listener::bind(&provider, "127.0.0.1:0", Config::default());
    let mut listener = listener.await.unwrap();
    let mut client = reconnect::Client::new(listener.local_addr().to_string());
    let server = async {
        for attempt in 0..3 {
            let connection = listener.accept().await.unwrap();
            let request = connection.recv().await.unwrap();
            if attempt == 1 {
                connection.closed().await;
            } else {
                connection.send(request).unwrap().await.unwrap();
                connection.close().await.unwrap();
            }
        }
    };
    let client = async {
        for request in ["first", "second"] {
            let answer = client.request(request).await.unwrap();
            assert_eq!(answer.into_bytes(), request);
        }
    };
    let run = async { tokio::join!(server, client) };
    timeout(Duration::from_secs(60), run)
        .await
        .expect("it ends");
}

#[tokio::test]
async fn write_progress() {
    const LENGTH: usize = 20_000_001;
    let mut calls = Vec::new();
    run_ends(
        async |connection| {
            let written = write_progress::write(&connection, |done, _| calls.push(done));
            assert_eq!(written.await?, LENGTH);
            Ok(connection.close().await?)
        },
        |connection| write_progress::serve(connection, LENGTH),
    )
    .await;
    assert!(calls.is_sorted() && calls.len() == 20 && calls.ends_with(&[LENGTH]));
}

#[tokio::test]
async fn provider() {
    assert!(provider::run().await.expect("it succeeds") > 2);
}

// Over iWARP, which needs every method of the queue pair to be passed on.
conformance!(provider_suite, {
    let iwarp = Iwarp::new(IwarpConfig::default());
    let mut fabric = Fabric::new(provider::Counting::new(iwarp));
    fabric.capabilities.over_tcp = true;
    fabric.capabilities.limits_flushes = true;
    fabric
});
