//! Messages, between two machines, by iWARP over TCP or by RoCE over UDP:
//!
//! ```sh
//! cargo run --example echo -- listen 127.0.0.1:5445
//! cargo run --example echo -- connect 127.0.0.1:5445
//! ```
//!
//! With `roce` as the third argument both ends use RoCE.
//!
//! The listening end returns each message of one peer, and the connecting end compares what comes back. The
//! examples in C and Python do the same, so each end works with any of them, and with `smbdirect listen --echo`.

use std::error::Error;

use smbdirect::{
    Config, Connection, ConnectionError, Listener,
    rdma::{
        iwarp::{Iwarp, IwarpConfig},
        provider::Provider,
        roce::{Roce, RoceConfig},
    },
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (role, address, provider): (_, _, Box<dyn Provider>) = match &arguments[..] {
        [role, address] => (role, address, Box::new(Iwarp::new(IwarpConfig::default()))),
        [role, address, kind] if kind == "roce" => {
            (role, address, Box::new(Roce::new(RoceConfig::default())))
        }
        _ => return Err("give `listen` or `connect`, ADDRESS:PORT, and `roce` for RoCE".into()),
    };
    if role == "listen" {
        let mut listener = Listener::bind(&*provider, address, Config::default()).await?;
        println!("listening on {}", listener.local_addr());
        serve(listener.accept().await?).await
    } else {
        ask(Connection::connect(&*provider, address, Config::default()).await?).await
    }
}

/// Returns each message, until the peer closes the connection.
pub(crate) async fn serve(connection: Connection) -> Result<(), Box<dyn Error>> {
    let mut count = 0;
    loop {
        match connection.recv().await {
            // The same memory goes back, without a copy.
            Ok(message) => connection.send(message)?.await?,
            Err(ConnectionError::Closed) => break,
            Err(error) => return Err(error.into()),
        }
        count += 1;
    }
    println!("returned {count} messages");
    Ok(())
}

/// Sends messages of several lengths, and compares what comes back.
pub(crate) async fn ask(connection: Connection) -> Result<(), Box<dyn Error>> {
    for length in [1, 64, 1364, 8192, 100_000, 1_000_000] {
        let message: Vec<u8> = (0..length).map(|at| (at * 31 / 7) as u8).collect();
        connection.send(message.clone())?.await?;
        if connection.recv().await?.into_bytes() != message {
            return Err(format!("the echo of {length} bytes differs").into());
        }
        println!("{length} bytes came back");
    }
    connection.close().await?;
    Ok(())
}
