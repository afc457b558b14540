//! A client that gives each request a time limit, and connects again when the connection is lost:
//!
//! ```sh
//! cargo run --example echo_server -- 127.0.0.1:5445 &
//! cargo run --example reconnect -- 127.0.0.1:5445
//! ```
//!
//! End the server and start it again while the client runs.

use std::{error::Error, time::Duration};

use smbdirect::{
    Config, ConnectError, Connection, ConnectionError, Iwarp, IwarpConfig, Message, SendError,
};
use thiserror::Error as ThisError;
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
    /// Fails if there is no use in trying again, because the server speaks another protocol or takes no request of this
    /// length, for example.
    pub(crate) async fn request(&mut self, request: &str) -> Result<Message, Failure> {
        let mut pause = PAUSES.0;
        loop {
            match self.try_request(request).await {
                Ok(answer) => return Ok(answer),
                Err(failure) if !failure.is_retryable() => return Err(failure),
                Err(failure) => println!("{failure}; trying again in {pause:?}"),
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    async fn try_request(&mut self, request: &str) -> Result<Message, Failure> {
        // A connection that fails is not put back: a late answer must not be taken for that of the next request.
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::connect(&self.provider, &self.address, Config::default()).await?,
        };
        let exchange = async {
            connection.send(request.to_owned())?.await?;
            Ok(connection.recv().await?)
        };
        let answer = timeout(REQUEST_TIMEOUT, exchange)
            .await
            .unwrap_or(Err(Failure::TimedOut))?;
        self.connection = Some(connection);
        Ok(answer)
    }
}

/// Why an attempt failed.
#[derive(Debug, ThisError)]
pub(crate) enum Failure {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Send(#[from] SendError),
    #[error(transparent)]
    Lost(#[from] ConnectionError),
    #[error("no answer within {REQUEST_TIMEOUT:?}")]
    TimedOut,
}

impl Failure {
    fn is_retryable(&self) -> bool {
        match self {
            Self::Connect(error) => error.is_retryable(),
            Self::Lost(error) | Self::Send(SendError::Connection(error)) => error.is_retryable(),
            // A message that is too long now is too long later, too.
            Self::Send(_) => false,
            Self::TimedOut => true,
        }
    }
}
