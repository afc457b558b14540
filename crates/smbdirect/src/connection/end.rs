//! The end of a connection: closing, aborting, and its reason.

use std::task::{Context, Poll};

use super::Connection;
use crate::{
    driver::{Condition, State},
    engine::ConnectionError,
};

impl Connection {
    /// Closes the connection: sends the submitted messages, finishes reads and writes, disconnects, and
    /// returns when the connection is over. If the result is `Ok`, the peer has taken what was sent, or it has closed the
    /// connection itself. If the peer lets none of that work complete for
    /// [`keepalive_interval`](crate::Settings::keepalive_interval), the connection ends without it.
    ///
    /// Sending the submitted messages takes credits from the peer, and this end spends its last credit only
    /// on a message that grants credits to the peer. If received messages that were not taken fill the
    /// receive buffer, this end cannot grant any. Take the messages or drop all handles; otherwise only a
    /// timer ends the close.
    ///
    /// ```
    /// # use smbdirect::{Config, Connection, Listener, Loopback};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let provider = Loopback::new();
    /// # let mut listener = Listener::bind(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let client = Connection::connect(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let server = listener.accept().await?;
    /// client.send("last words")?;
    /// client.close().await?; // The peer has taken what was sent.
    /// assert_eq!(server.recv().await?.into_bytes(), "last words");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// A future that was never polled does nothing. After its first poll, dropping it does not stop the
    /// close.
    ///
    /// # Errors
    /// Returns the error that ended the connection, if it was not closed gracefully by either end.
    pub async fn close(&self) -> Result<(), ConnectionError> {
        self.start_close();
        match self
            .shared()
            .wait(Condition::End, State::final_reason)
            .await
        {
            ConnectionError::Closed | ConnectionError::ClosedHere => Ok(()),
            error => Err(error),
        }
    }

    /// Starts to close the connection as [`close`](Self::close) does, without waiting for the end.
    /// [`closed`](Self::closed) waits for it.
    ///
    /// ```no_run
    /// # async fn example(connection: smbdirect::Connection) -> Result<(), Box<dyn std::error::Error>> {
    /// connection.start_close();
    /// println!("{}", connection.closed().await);
    /// # Ok(())
    /// # }
    /// ```
    pub fn start_close(&self) {
        self.shared().with(State::close);
    }

    /// Starts to close the connection, and discards the messages that arrived and those that still arrive.
    pub(crate) fn close_unread(&self) {
        self.shared().with(State::close_unread);
    }

    /// Ends the connection immediately. Submitted work that has not left is discarded, and every future
    /// that waits returns [`ConnectionError::Aborted`]. Over iWARP this resets TCP, which also discards what was
    /// reported as sent and has not reached the peer. Does nothing on a connection that is over.
    ///
    /// ```no_run
    /// # async fn example(connection: smbdirect::Connection) -> Result<(), Box<dyn std::error::Error>> {
    /// connection.abort();
    /// assert_eq!(connection.error(), Some(smbdirect::ConnectionError::Aborted));
    /// # Ok(())
    /// # }
    /// ```
    pub fn abort(&self) {
        self.shared().with(State::abort);
    }

    /// Waits for the end of the connection, and returns its reason.
    ///
    /// ```no_run
    /// # async fn example(connection: smbdirect::Connection) -> Result<(), Box<dyn std::error::Error>> {
    /// let error = connection.closed().await;
    /// println!("{} is gone: {error}", connection.peer_addr());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future has no effect.
    pub async fn closed(&self) -> ConnectionError {
        self.shared()
            .wait(Condition::End, State::final_reason)
            .await
    }

    /// The poll function of [`closed`](Self::closed), for futures that are written by hand. The connection keeps
    /// the waker until the end.
    ///
    /// ```no_run
    /// # async fn example(connection: smbdirect::Connection) -> Result<(), Box<dyn std::error::Error>> {
    /// let error = std::future::poll_fn(|context| connection.poll_closed(context)).await;
    /// println!("{error}");
    /// # Ok(())
    /// # }
    /// ```
    pub fn poll_closed(&self, context: &mut Context<'_>) -> Poll<ConnectionError> {
        self.shared()
            .poll(context, Condition::End, State::final_reason)
    }

    /// Returns why the connection is over, if it is.
    ///
    /// ```no_run
    /// # async fn example(connection: smbdirect::Connection) -> Result<(), Box<dyn std::error::Error>> {
    /// if let Some(error) = connection.error() {
    ///     println!("{error}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn error(&self) -> Option<ConnectionError> {
        self.shared().with(|state| state.error())
    }

    /// Takes everything that has arrived from the peer, and does the work that it causes. Returns whether nothing
    /// is left to read.
    ///
    /// An upper layer that has deadlines for its peer calls this before it decides that the peer has missed one:
    /// after a stall of this process the answer may be in the socket. The module `deadline` defines the rule.
    ///
    /// ```no_run
    /// # async fn example(connection: smbdirect::Connection) -> Result<(), Box<dyn std::error::Error>> {
    /// // The answer of the peer may be in the socket, after a stall of this process.
    /// if connection.catch_up() {
    ///     println!("everything that has arrived was taken");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[doc(hidden)]
    pub fn catch_up(&self) -> bool {
        self.shared().with(State::catch_up)
    }
}
