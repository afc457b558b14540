//! An echo server for many clients, which Ctrl-C ends gracefully:
//!
//! ```sh
//! cargo run --example echo_server -- 127.0.0.1:5445
//! ```
//!
//! `cargo run --example echo -- connect 127.0.0.1:5445` and `smbdirect ping 127.0.0.1:5445` are clients of it.

use std::error::Error;

use smbdirect::{Config, Connection, ConnectionError, Iwarp, IwarpConfig, Listener};
use tokio::{sync::watch, task::JoinSet};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).ok_or("give ADDRESS:PORT")?;
    let provider = Iwarp::new(IwarpConfig::default());
    let listener = Listener::bind(&provider, address, Config::default()).await?;
    println!(
        "listening on {}; Ctrl-C ends the server",
        listener.local_addr()
    );
    let served = serve(listener, async {
        tokio::signal::ctrl_c()
            .await
            .expect("Ctrl-C can be handled");
    });
    println!("returned {} messages", served.await?);
    Ok(())
}

/// Serves every client until `stop` resolves, and returns the number of messages.
pub(crate) async fn serve(
    mut listener: Listener,
    stop: impl Future<Output = ()>,
) -> Result<u64, Box<dyn Error>> {
    tokio::pin!(stop);
    let (stopping, stopped) = watch::channel(());
    let mut clients = JoinSet::new();
    let mut messages = 0;
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                clients.spawn(echo(accepted?, stopped.clone()));
            }
            Some(ended) = clients.join_next() => messages += ended?,
            () = &mut stop => break,
        }
    }
    // New clients are refused from now on. Dropping the sender tells the tasks of the others.
    drop((listener, stopping));
    while let Some(ended) = clients.join_next().await {
        messages += ended?;
    }
    Ok(messages)
}

/// Returns each message of a client until it leaves or the server stops.
async fn echo(connection: Connection, mut stopped: watch::Receiver<()>) -> u64 {
    let client = connection.peer_addr();
    let mut messages = 0;
    let ended = loop {
        tokio::select! {
            received = connection.recv() => match received {
                Ok(message) => match connection.send(message) {
                    // The message goes out in the background, and the next one is received meanwhile.
                    Ok(_sending) => messages += 1,
                    Err(error) => break error.to_string(),
                },
                Err(ConnectionError::Closed) => break "it has left".into(),
                Err(error) => break error.to_string(),
            },
            _ = stopped.changed() => {
                // This waits until everything was sent.
                let closed = connection.close().await;
                break closed.map_or_else(|error| error.to_string(), |()| "the server stops".into());
            }
        }
    };
    println!("{client}: {messages} messages; {ended}");
    messages
}
