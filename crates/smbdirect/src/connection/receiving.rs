//! Receiving messages, whole or in parts.

use std::{
    iter,
    task::{Context, Poll},
    time::Duration,
};

use super::Connection;
use crate::{
    driver::{Condition, State},
    engine::{ConnectionError, Message},
    inbox::Segment,
};

impl Connection {
    /// Receives the next message (3.1.5.8), with the token that it invalidated. Messages that arrived
    /// before the connection ended are returned before its error. If several tasks call this, the one that waits for
    /// the longest time gets the next message, and one message wakes one task.
    ///
    /// ```
    /// # use smbdirect::{Config, Connection, Listener, Loopback};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let provider = Loopback::new();
    /// # let mut listener = Listener::bind(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let client = Connection::connect(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let server = listener.accept().await?;
    /// # use smbdirect::ConnectionError;
    /// client.send("hello")?;
    /// client.close().await?;
    ///
    /// assert_eq!(server.recv().await?.into_bytes(), "hello");
    /// assert_eq!(server.recv().await.unwrap_err(), ConnectionError::Closed);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future loses no message: the message that it would have taken goes to the next call. Where a second
    /// call waited already, that one may have taken the message after it. A program that needs the order
    /// therefore drops the old future before it calls `recv` again. An aborted task drops its future when the
    /// `JoinHandle` says so, not when `abort` returns.
    ///
    /// # Errors
    /// Returns why the connection is over. [`Closed`](ConnectionError::Closed) means that every message was received
    /// whole; otherwise the error is [`Truncated`](ConnectionError::Truncated).
    pub async fn recv(&self) -> Result<Message, ConnectionError> {
        self.shared()
            .busy_wait(Condition::Message, |state, ahead| {
                take(state, |state| state.take_message(ahead))
            })
            .await
    }

    /// Receives the part of the next message that has arrived, and waits only if no part of it has
    /// arrived. Afterwards, [`recv`](Self::recv) returns the rest of that message.
    ///
    /// ```
    /// # use smbdirect::{Config, Connection, Listener, Loopback};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let provider = Loopback::new();
    /// # let mut listener = Listener::bind(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let client = Connection::connect(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let server = listener.accept().await?;
    /// client.send(vec![7; 100_000])?;
    /// let mut length = 0;
    /// loop {
    ///     let segment = server.recv_segment().await?; // Work on it begins before the rest has arrived.
    ///     length += segment.payload.len();
    ///     if segment.remaining == 0 {
    ///         break;
    ///     }
    /// }
    /// assert_eq!(length, 100_000);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// Returns why the connection is over.
    pub async fn recv_segment(&self) -> Result<Segment, ConnectionError> {
        self.shared()
            .busy_wait(Condition::Segment, |state, _| {
                take(state, State::take_segment)
            })
            .await
    }

    /// The poll function of [`recv_segment`](Self::recv_segment), for futures that are written by hand. The
    /// connection keeps the waker until a segment arrives or the connection ends.
    ///
    /// ```no_run
    /// # async fn example(connection: smbdirect::Connection) -> Result<(), Box<dyn std::error::Error>> {
    /// let segment = std::future::poll_fn(|context| connection.poll_recv_segment(context)).await?;
    /// println!("{} bytes, and {} are missing", segment.payload.len(), segment.remaining);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns why the connection is over.
    pub fn poll_recv_segment(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Segment, ConnectionError>> {
        let take = |state: &mut State| take(state, State::take_segment);
        self.shared().busy_poll(context, Condition::Segment, take)
    }

    /// Receives up to `limit` messages that have arrived, and waits only if there is none. Appends them to
    /// `messages` and returns their number, which is 0 only if `limit` is 0.
    ///
    /// ```
    /// # use smbdirect::{Config, Connection, Listener, Loopback};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let provider = Loopback::new();
    /// # let mut listener = Listener::bind(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let client = Connection::connect(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let server = listener.accept().await?;
    /// # client.send_many(&mut vec!["one".into(), "two".into()])?.await?;
    /// let mut messages = Vec::new();
    /// let count = server.recv_many(&mut messages, 16).await?; // 16 at most: those that have arrived.
    /// assert_eq!(count, messages.len());
    /// for message in messages.drain(..) {
    ///     println!("{} bytes", message.len());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future loses no message, and leaves `messages` unchanged.
    ///
    /// # Errors
    /// Returns why the connection is over, after all messages that arrived before its end were taken.
    pub async fn recv_many(
        &self,
        messages: &mut Vec<Message>,
        limit: usize,
    ) -> Result<usize, ConnectionError> {
        if limit == 0 {
            return Ok(0);
        }
        self.shared()
            .busy_wait(Condition::Message, |state, ahead| {
                take(state, |state| {
                    let before = messages.len();
                    let arrived = iter::from_fn(|| state.take_message(ahead));
                    messages.extend(arrived.take(limit));
                    let count = messages.len() - before;
                    (count > 0).then_some(count)
                })
            })
            .await
    }

    /// Sets how long [`recv`](Self::recv), [`recv_segment`](Self::recv_segment) and
    /// [`recv_many`](Self::recv_many) poll for a message before they sleep. They may poll some
    /// microseconds longer. The default is zero: they sleep immediately.
    ///
    /// A wake-up takes longer than many round trips, so polling shortens latency. It costs a core,
    /// though: while a future polls, nothing else runs on its thread, and on a runtime with one thread
    /// not even the connection's own task. A busy peer answers within some tens of microseconds.
    ///
    /// ```
    /// # use smbdirect::{Config, Connection, Listener, Loopback};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let provider = Loopback::new();
    /// # let mut listener = Listener::bind(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let client = Connection::connect(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let server = listener.accept().await?;
    /// # use std::time::Duration;
    /// client.set_busy_poll(Duration::from_micros(50));
    /// client.send("ping")?;
    /// # server.send("pong")?;
    /// let answer = client.recv().await?; // Within 50 us, the answer finds this thread awake.
    /// # assert_eq!(answer.into_bytes(), "pong");
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_busy_poll(&self, duration: Duration) {
        self.shared().with(|state| state.set_busy_poll(duration));
    }
}

/// Takes a value from the inbox, or the reason if the connection is over.
#[inline(always)]
fn take<R>(
    state: &mut State,
    take: impl FnOnce(&mut State) -> Option<R>,
) -> Option<Result<R, ConnectionError>> {
    if let Some(taken) = take(state) {
        state.taken();
        return Some(Ok(taken));
    }
    state.receive_error().map(Err)
}
