//! Sending messages.

use std::task::{Context, Poll};

use super::{Connection, Sending, TrySendError};
use crate::{
    driver::{Condition, State},
    engine::{ConnectionError, Message, SendError},
    rdma::work::Token,
};

/// Options of [`Connection::send_with`].
///
/// ```
/// let mut options = smbdirect::MessageOptions::default();
/// options.response_requested = true;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MessageOptions {
    /// A registration of the peer that the arrival of the message invalidates. The default is `None`.
    pub invalidate: Option<Token>,
    /// Whether the segment that empties the send queue has the flag SMB_DIRECT_RESPONSE_REQUESTED (2.2.3). The
    /// peer then answers with any message, which also grants credits. The connection ends if nothing arrives
    /// within `keepalive_response_timeout`. The default is `false`.
    pub response_requested: bool,
}

impl Connection {
    /// Sends a message (3.1.4.2). This call submits it, and messages are sent in the order of the calls.
    /// The future resolves when the message is reported as sent: over iWARP when TCP of this machine has taken its last
    /// segment, over RoCE when the peer has acknowledged it, over an RDMA adapter when the adapter has completed it, and
    /// over loopback when it has reached the peer. [`Connection`] describes what is promised from then on. An empty
    /// message is sent, but the peer's upper layer does not see it.
    ///
    /// Messages wait in memory for the peer's credits. To bound that memory, await the future, or use
    /// [`ready`](Self::ready) and [`try_send`](Self::try_send). If a message waits for
    /// [`credit_grant_timeout`](crate::Settings::credit_grant_timeout) and the peer grants none, the connection
    /// ends, as Windows does. A message that is sent after `ready`, or by `try_send`, does not wait to begin, so
    /// a program that sends in this way waits for a slow receiver and keeps the connection.
    ///
    /// The payload is dropped under the lock of the connection: a destructor of its memory
    /// ([`Bytes::from_owner`](bytes::Bytes::from_owner)) that calls the connection deadlocks, and one that panics
    /// ends the connection.
    ///
    /// ```
    /// # use smbdirect::{Config, Connection, Listener, Loopback};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let provider = Loopback::new();
    /// # let mut listener = Listener::bind(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let client = Connection::connect(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let server = listener.accept().await?;
    /// let sending = client.send("submitted by the call")?;
    /// sending.await?; // Sent. Dropping the future in place of awaiting it recalls nothing.
    /// client.send(vec![1, 2, 3])?.await?;
    /// # assert_eq!(server.recv().await?.into_bytes(), "submitted by the call");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future does not recall the message.
    ///
    /// # Errors
    /// Fails if the message is longer than the peer accepts, or the connection is over.
    pub fn send(&self, message: impl Into<Message>) -> Result<Sending, SendError> {
        let message = message.into();
        self.shared()
            .with(|state| self.submit(state, message, None, false))
    }

    /// Sends a message that also invalidates a registration of the peer on arrival (3.1.4.2).
    ///
    /// ```
    /// # use smbdirect::{Config, Connection, Listener, Loopback};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let provider = Loopback::new();
    /// # let mut listener = Listener::bind(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let client = Connection::connect(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let server = listener.accept().await?;
    /// # use bytes::BytesMut;
    /// # use smbdirect::Access;
    /// let access = Access::REMOTE_WRITE | Access::REMOTE_INVALIDATE;
    /// let region = client.register(BytesMut::zeroed(4), access)?;
    /// let descriptor = region.descriptor();
    /// server.write(&[descriptor], 0, "data").await?;
    /// server.send_and_invalidate("done", descriptor.token.into())?.await?;
    ///
    /// let done = client.recv().await?;
    /// assert_eq!(done.invalidated_token(), Some(region.token()));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future does not recall the message.
    ///
    /// # Errors
    /// Fails as [`send`](Self::send) does.
    pub fn send_and_invalidate(
        &self,
        message: impl Into<Message>,
        token: Token,
    ) -> Result<Sending, SendError> {
        let message = message.into();
        self.shared()
            .with(|state| self.submit(state, message, Some(token), false))
    }

    /// Sends messages in order, as calls of [`send`](Self::send) would, at a lower cost per message. Empties
    /// the list and keeps its capacity. The future resolves when the last message is reported as sent.
    ///
    /// ```
    /// # use smbdirect::{Config, Connection, Listener, Loopback};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let provider = Loopback::new();
    /// # let mut listener = Listener::bind(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let client = Connection::connect(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let server = listener.accept().await?;
    /// # use smbdirect::Message;
    /// let mut batch: Vec<Message> = vec!["one".into(), "two".into()];
    /// client.send_many(&mut batch)?.await?; // Both are sent.
    /// assert!(batch.is_empty());
    /// batch.push("three".into()); // The list is used again.
    /// client.send_many(&mut batch)?.await?;
    /// # assert_eq!(server.recv().await?.into_bytes(), "one");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future recalls no message.
    ///
    /// # Errors
    /// Fails if one of the messages cannot be sent. The messages before it are sent. That message and all
    /// after it stay in the list.
    pub fn send_many(&self, messages: &mut Vec<Message>) -> Result<Sending, SendError> {
        self.shared().with(|state| {
            let index = state.submit_many(messages)?;
            Ok(Sending::new(self.shared().clone(), index))
        })
    }

    /// Sends a message as [`send`](Self::send) does, with options (3.1.4.2).
    ///
    /// ```
    /// # use smbdirect::{Config, Connection, Listener, Loopback};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let provider = Loopback::new();
    /// # let mut listener = Listener::bind(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let client = Connection::connect(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let server = listener.accept().await?;
    /// # use smbdirect::MessageOptions;
    /// let mut options = MessageOptions::default();
    /// options.response_requested = true;
    /// client.send_with("the last for now", options)?; // The peer answers, and grants credits.
    /// # assert_eq!(server.recv().await?.into_bytes(), "the last for now");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future does not recall the message.
    ///
    /// # Errors
    /// Fails as [`send`](Self::send) does.
    pub fn send_with(
        &self,
        message: impl Into<Message>,
        options: MessageOptions,
    ) -> Result<Sending, SendError> {
        let message = message.into();
        let MessageOptions {
            invalidate,
            response_requested,
        } = options;
        self.shared()
            .with(|state| self.submit(state, message, invalidate, response_requested))
    }

    /// Sends a message if it can begin immediately.
    ///
    /// ```
    /// # use smbdirect::{Config, Connection, Listener, Loopback};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let provider = Loopback::new();
    /// # let mut listener = Listener::bind(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let client = Connection::connect(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let server = listener.accept().await?;
    /// # use smbdirect::TrySendError;
    /// match client.try_send("progress: 40 %") {
    ///     Ok(_sending) => {}
    ///     Err(TrySendError::NotReady(_)) => {} // The peer is slow: the next report replaces this one.
    ///     Err(error) => return Err(error.into()),
    /// }
    /// # assert_eq!(server.recv().await?.into_bytes(), "progress: 40 %");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future does not recall the message.
    ///
    /// # Errors
    /// Returns the message in [`TrySendError::NotReady`] if it would have to wait. Otherwise fails as
    /// [`send`](Self::send) does.
    pub fn try_send(&self, message: impl Into<Message>) -> Result<Sending, TrySendError> {
        let message = message.into();
        self.shared().with(|state| {
            if state.would_wait() {
                return Err(TrySendError::NotReady(message));
            }
            Ok(self.submit(state, message, None, false)?)
        })
    }

    /// Waits until a message can begin immediately: this end has a credit, and a peer of this library grants the credits
    /// for the rest of a message that has begun, whether its application receives or not. The documentation of
    /// [`credit_grant_timeout`](crate::Settings::credit_grant_timeout) has what other peers do.
    ///
    /// If several tasks send on the connection, each of them calls [`try_send`](Self::try_send), and awaits `ready` when
    /// it returns [`NotReady`](TrySendError::NotReady): another task can send between `ready` and `send`.
    ///
    /// ```
    /// # use smbdirect::{Config, Connection, Listener, Loopback};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let provider = Loopback::new();
    /// # let mut listener = Listener::bind(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let client = Connection::connect(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let server = listener.accept().await?;
    /// for number in 0..3 {
    ///     client.ready().await?; // If the peer is slow, this loop waits, and no message does.
    ///     client.send(format!("block {number}"))?;
    /// }
    /// # assert_eq!(server.recv().await?.into_bytes(), "block 0");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future has no effect.
    ///
    /// # Errors
    /// Returns why the connection is over, or [`ConnectionError::ClosedHere`] from the moment at which this end begins
    /// to close it.
    pub async fn ready(&self) -> Result<(), ConnectionError> {
        self.shared()
            .wait(Condition::Ready, |state| state.check_ready())
            .await
    }

    /// The poll function of [`ready`](Self::ready), for futures that are written by hand. The connection keeps
    /// the waker until the condition is true or the connection ends.
    ///
    /// ```no_run
    /// # async fn example(connection: smbdirect::Connection) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::{
    ///     future::poll_fn,
    ///     task::{Poll, ready},
    /// };
    ///
    /// let submitted = poll_fn(|context| {
    ///     ready!(connection.poll_ready(context))?;
    ///     Poll::Ready(connection.send("made when it can start"))
    /// });
    /// submitted.await?.await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails as [`ready`](Self::ready) does.
    pub fn poll_ready(&self, context: &mut Context<'_>) -> Poll<Result<(), ConnectionError>> {
        self.shared()
            .poll(context, Condition::Ready, |state| state.check_ready())
    }

    #[inline(always)]
    fn submit(
        &self,
        state: &mut State,
        message: Message,
        invalidate: Option<Token>,
        prompt: bool,
    ) -> Result<Sending, SendError> {
        let index = state.submit_send(message, invalidate, prompt)?;
        Ok(Sending::new(self.shared().clone(), index))
    }

    /// Sends the peer an empty message with the credits that it can be granted, unless another message is about
    /// to be sent. The connection grants credits by itself; this method grants them earlier.
    #[doc(hidden)]
    pub fn send_credits(&self) {
        self.shared().with(State::submit_prompt);
    }
}
