//! [`Connection`]: the handle to an established SMB Direct connection.

use std::{fmt, net::SocketAddr, sync::Arc, time::Duration};

use crate::{
    driver::{Condition, Shared, State, delay_end_of_thread, now},
    engine::{ConnectionError, Credits, Negotiated, Statistics},
};

/// An established SMB Direct connection.
///
/// Handles are cheap to clone, and all methods take `&self`. The connection ends when
/// [`close`](Self::close) is called or the last handle is dropped. In both cases it sends the submitted
/// messages first. Call every method within a tokio runtime. Handles may be dropped anywhere.
///
/// # Delivery
/// A message whose future [`Sending`](super::Sending) has resolved with `Ok` reaches the peer unless the peer or
/// the network fails, or the program calls [`abort`](Self::abort). A message that was only submitted can also be
/// lost if the peer withholds credits until a timer ends the connection.
///
/// - **A runtime that ends**: its connections continue on a thread of the library, until their handles are dropped and
///   they are closed as above. Handles on other runtimes remain usable.
/// - **A process that ends**: a thread that ends a runtime with connections, or that drops the last handle of a
///   connection after its runtime has ended, waits at its own end until these connections are closed, for 5
///   seconds at most. So `main` may return immediately. Dropping a `multi_thread` runtime waits for its threads,
///   and therefore for these connections.
///
/// Delivery cannot be promised if the process is killed or calls [`std::process::exit`], if its runtime is never
/// dropped or ends by `shutdown_background` or `shutdown_timeout` right before the process, if the peer takes
/// nothing for those 5 seconds, or on Windows for a process that ends right after its runtime. A connection of an
/// RDMA adapter ends with its runtime. Await [`close`](Self::close) in these cases: it returns after the peer has
/// taken everything.
///
/// Every log line about a connection is in a [`tracing`] span that names the connection:
/// `connection{peer=10.0.0.3:5445 local=10.0.0.1:33019}`. On the connecting side the span is a
/// child of the span in which [`connect`](Self::connect) is first polled, and keeps that span open
/// as long as a handle or the connection's task exists. To trace one connection of many, give
/// `tracing_subscriber::EnvFilter` the filter `smbdirect[connection{peer=10.0.0.3:5445}]=trace`.
///
/// ```
/// use smbdirect::{Config, Connection, Listener, Loopback};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let provider = Loopback::new();
/// let mut listener = Listener::bind(&provider, "127.0.0.1:445", Config::default()).await?;
///
/// let client = Connection::connect(&provider, "127.0.0.1:445", Config::default()).await?;
/// let server = listener.accept().await?;
///
/// client.send("hello")?.await?;
/// assert_eq!(server.recv().await?.into_bytes(), "hello");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Connection {
    handle: Arc<Handle>,
}

/// The state that all clones of a connection share. Dropping it closes the connection.
struct Handle {
    shared: Arc<Shared>,
    id: u64,
    local_addr: SocketAddr,
    peer_addr: SocketAddr,
    negotiated: Negotiated,
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.shared.with(State::close_unread) {
            delay_end_of_thread(&self.shared);
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("id", &self.handle.id)
            .field("local_addr", &self.handle.local_addr)
            .field("peer_addr", &self.handle.peer_addr)
            .finish_non_exhaustive()
    }
}

impl Connection {
    pub(super) fn new(
        shared: Arc<Shared>,
        id: u64,
        local_addr: SocketAddr,
        peer_addr: SocketAddr,
        negotiated: Negotiated,
    ) -> Self {
        let handle = Handle {
            shared,
            id,
            local_addr,
            peer_addr,
            negotiated,
        };
        Self {
            handle: Arc::new(handle),
        }
    }

    /// Asks the peer for a keepalive, and waits until it answers. Returns the time that this took: one
    /// round trip, or less if another message of the peer arrives first.
    ///
    /// ```
    /// # use smbdirect::{Config, Connection, Listener, Loopback};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let provider = Loopback::new();
    /// # let mut listener = Listener::bind(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let client = Connection::connect(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let server = listener.accept().await?;
    /// let round_trip = client.keepalive().await?;
    /// println!("{} is alive, and answered after {round_trip:?}", client.peer_addr());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// A future that was never polled asks for nothing. After its first poll, dropping it does not recall
    /// the keepalive.
    ///
    /// # Errors
    /// Returns why the connection is over. The connection also ends if the peer does not answer within
    /// [`keepalive_response_timeout`](crate::Settings::keepalive_response_timeout).
    pub async fn keepalive(&self) -> Result<Duration, ConnectionError> {
        let started = now();
        let before = self.shared().with(|state| state.start_keepalive(started));
        self.shared()
            .wait(Condition::Keepalive, |state| state.keepalive_result(before))
            .await?;
        Ok(now() - started)
    }

    /// Returns the limits negotiated with the peer (3.1.4.7).
    ///
    /// ```
    /// # use smbdirect::{Config, Connection, Listener, Loopback};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let provider = Loopback::new();
    /// # let mut listener = Listener::bind(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let client = Connection::connect(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let server = listener.accept().await?;
    /// let longest = client.negotiated().max_fragmented_send_size as usize;
    /// assert!(client.send(vec![0; longest]).is_ok());
    /// assert!(client.send(vec![0; longest + 1]).is_err()); // The peer could not reassemble it.
    /// # Ok(())
    /// # }
    /// ```
    pub fn negotiated(&self) -> Negotiated {
        self.handle.negotiated
    }

    /// Returns the credits of both directions.
    ///
    /// ```
    /// # use smbdirect::{Config, Connection, Listener, Loopback};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let provider = Loopback::new();
    /// # let mut listener = Listener::bind(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let client = Connection::connect(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let server = listener.accept().await?;
    /// let credits = client.credits();
    /// println!("{} messages may leave now", credits.send_credits);
    /// println!("{} messages may arrive now", credits.granted);
    /// # Ok(())
    /// # }
    /// ```
    pub fn credits(&self) -> Credits {
        self.shared().with(|state| state.credits())
    }

    /// Returns the counters of completed and outstanding work.
    ///
    /// ```
    /// # use smbdirect::{Config, Connection, Listener, Loopback};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let provider = Loopback::new();
    /// # let mut listener = Listener::bind(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let client = Connection::connect(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let server = listener.accept().await?;
    /// client.send("hello")?.await?;
    /// assert_eq!(client.stats().messages_sent, 1);
    /// assert_eq!(client.stats().bytes_sent, 5);
    /// # Ok(())
    /// # }
    /// ```
    pub fn stats(&self) -> Statistics {
        self.shared().with(|state| state.statistics())
    }

    /// Returns the number of the connection; the first connection of the process has number 1. All clones of a
    /// handle have the same number, no other connection has it, and `metrics::ConnectionSnapshot::id` is the
    /// same.
    ///
    /// ```
    /// # use smbdirect::{Config, Connection, Listener, Loopback};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let provider = Loopback::new();
    /// # let mut listener = Listener::bind(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let client = Connection::connect(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let server = listener.accept().await?;
    /// let same = client.clone();
    /// assert_eq!(client.id(), same.id());
    /// assert_ne!(client.id(), server.id()); // The two ends are two connections of this process.
    /// # Ok(())
    /// # }
    /// ```
    pub fn id(&self) -> u64 {
        self.handle.id
    }

    /// Returns the address of the peer.
    ///
    /// ```
    /// # use smbdirect::{Config, Connection, Listener, Loopback};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let provider = Loopback::new();
    /// # let mut listener = Listener::bind(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let client = Connection::connect(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let server = listener.accept().await?;
    /// assert_eq!(client.peer_addr(), listener.local_addr());
    /// # Ok(())
    /// # }
    /// ```
    pub fn peer_addr(&self) -> SocketAddr {
        self.handle.peer_addr
    }

    /// Returns the address of this end.
    ///
    /// ```
    /// # use smbdirect::{Config, Connection, Listener, Loopback};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let provider = Loopback::new();
    /// # let mut listener = Listener::bind(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let client = Connection::connect(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let server = listener.accept().await?;
    /// assert_eq!(client.local_addr(), server.peer_addr());
    /// # Ok(())
    /// # }
    /// ```
    pub fn local_addr(&self) -> SocketAddr {
        self.handle.local_addr
    }

    /// Returns whether a message with SMB_DIRECT_RESPONSE_REQUESTED (2.2.3) was sent or is about to be sent, and
    /// nothing has arrived since.
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
    /// # let mut options = MessageOptions::default();
    /// # options.response_requested = true;
    /// client.send_with("request", options)?;
    /// assert!(client.is_response_due()); // No keepalive is needed: an answer is on its way.
    /// # server.recv().await?;
    /// server.send("answer")?;
    /// client.recv().await?;
    /// assert!(!client.is_response_due());
    /// # Ok(())
    /// # }
    /// ```
    #[doc(hidden)]
    pub fn is_response_due(&self) -> bool {
        self.shared().with(|state| state.awaits_answer())
    }

    /// Runs `log` in the tracing span of the connection, so that its lines name the connection.
    ///
    /// ```no_run
    /// # async fn example(connection: smbdirect::Connection) -> Result<(), Box<dyn std::error::Error>> {
    /// connection.in_span(|| tracing::info!("session 7 begins")); // connection{peer=.. local=..}: session 7 begins
    /// # Ok(())
    /// # }
    /// ```
    #[doc(hidden)]
    pub fn in_span(&self, log: impl FnOnce()) {
        let span = self.shared().with(|state| state.span());
        span.in_scope(log);
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.handle.shared
    }
}
