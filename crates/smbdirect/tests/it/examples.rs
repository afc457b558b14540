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

use std::{error::Error, time::Duration};

use smbdirect::{
    Config, Connection, Listener,
    rdma::iwarp::{Iwarp, IwarpConfig},
};
use tokio::time::timeout;

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
