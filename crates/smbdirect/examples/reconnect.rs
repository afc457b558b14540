//! A client that gives each request a time limit, and connects again when the connection is lost:
//!
//! ```sh
//! cargo run --example echo_server -- 127.0.0.1:5445 &
//! cargo run --example reconnect -- 127.0.0.1:5445
//! ```
//!
//! End the server and start it again while the client runs.

use std::{error::Error, io, time::Duration};

use smbdirect::{Config, ConnectError, Connection, Iwarp, IwarpConfig, Message};
use tokio::time::{sleep, timeout};

/// Longest time for the answer to a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause before the first and the longest pause before a later attempt to connect.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).ok_or("give ADDRESS:PORT")?;
    let mut client = Client::new(address);
    for number in 1..=10 {
        let answer = client.request(&format!("request {number}")).await?;
        println!("{}", String::from_utf8_lossy(&answer.into_bytes()));
        sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

/// A client of one server, which connects when it has to.
pub(crate) struct Client {
    provider: Iwarp,
    address: String,
    connection: Option<Connection>,
}

impl Client {
    pub(crate) fn new(address: String) -> Self {
        Self {
            provider: Iwarp::new(IwarpConfig::default()),
            address,
            connection: None,
        }
    }

    /// Sends a request until it is answered. A server may therefore see it twice.
    ///
    /// # Errors
    /// Fails if there is no use in trying again, because the server speaks another protocol, for example.
    pub(crate) async fn request(&mut self, request: &str) -> Result<Message, ConnectError> {
        let mut pause = PAUSES.0;
        loop {
            match self.try_request(request).await {
                Ok(answer) => return Ok(answer),
                Err(Failure::Connect(error)) if !error.is_retryable() => return Err(error),
                Err(Failure::Connect(error)) => println!("{error}; trying again in {pause:?}"),
                Err(Failure::Request(error)) => println!("{error}; trying again in {pause:?}"),
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    async fn try_request(&mut self, request: &str) -> Result<Message, Failure> {
        // A connection that fails is not put back: a late answer must not be taken for that of the next request.
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::connect(&self.provider, &self.address, Config::default())
                .await
                .map_err(Failure::Connect)?,
        };
        let exchange = async {
            connection.send(request.to_owned())?.await?;
            Ok(connection.recv().await?)
        };
        let answer = timeout(REQUEST_TIMEOUT, exchange)
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            .map_err(Failure::Request)?;
        self.connection = Some(connection);
        Ok(answer)
    }
}

/// Why an attempt failed.
enum Failure {
    Connect(ConnectError),
    /// Every error of the library converts into this one.
    Request(io::Error),
}
