//! The interface between the cases and a peer: the operations that a case can do with a server or a client, and
//! the facts that it has about the peer.
//!
//! Everything blocks, so that the same cases run over a network and against an engine in virtual
//! time. Over a network, run the cases on a thread of their own.

use std::{
    net::{SocketAddr, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use smbdirect::Settings;

use crate::outcome::{SkipReason, Verdict, require, skip};

/// The next action of the peer on an RDMA connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// The peer sent a message.
    Message(Bytes),
    /// The RDMA connection has ended, and all earlier messages were taken.
    End,
    /// The peer did nothing within the limit.
    Silence,
}

/// An RDMA connection to the peer. This end sends any bytes, valid or not.
pub trait Link {
    /// Sends one message. On a connection that has ended, nothing happens.
    ///
    /// # Errors
    /// The peer accepts no more bytes.
    fn send(&mut self, message: &[u8]) -> Verdict;

    /// Hands sent messages to the wire without waiting for the peer. [`next`](Self::next) does it
    /// too.
    fn flush(&mut self) {}

    /// Waits for the next action of the peer, for at most `limit`.
    fn next(&mut self, limit: Duration) -> Next;

    /// Posts `count` receives of `length` bytes.
    fn post_receives(&mut self, count: u16, length: u32);

    /// Ends the connection, after the messages that were sent.
    fn disconnect(&mut self);

    /// Returns when this end began to connect, or to accept.
    fn connected(&self) -> Instant;

    /// Returns the time, which may be virtual.
    fn now(&self) -> Instant;
}

/// Called with each piece of a byte stream: whether this end sent it, the local and the remote
/// address, and the bytes.
pub type Watch = Arc<dyn Fn(bool, SocketAddr, SocketAddr, &[u8]) + Send + Sync>;

/// The TCP connection below iWARP, for cases that need bytes below RDMA.
pub struct Tcp {
    /// The connection, in blocking mode.
    pub stream: TcpStream,
    /// Observes all bytes, for a capture.
    pub watch: Option<Watch>,
}

/// A server under test.
pub trait Server {
    /// Prepares the server for a case. A server that cannot be configured ignores `requested`.
    ///
    /// # Errors
    /// The server does not start.
    fn prepare(&mut self, requested: &PeerSettings) -> Verdict;

    /// Returns the facts about the server, as it was last prepared.
    fn facts(&self) -> PeerFacts;

    /// Makes a new RDMA connection. One receive of 512 bytes is posted before.
    ///
    /// # Errors
    /// The server refuses the connection or does not answer.
    fn connect(&mut self) -> Verdict<Box<dyn Link>>;

    /// Makes a new TCP connection to the port of iWARP.
    ///
    /// # Errors
    /// The transport is not iWARP over TCP, or the server does not answer.
    fn connect_tcp(&mut self) -> Verdict<Tcp> {
        skip(SkipReason::BelowRdma)
    }

    /// Is called after the server ended a connection because of a broken rule. One of `reasons`
    /// describes the rule. A server whose log can be read checks it here.
    ///
    /// # Errors
    /// The server gave another reason.
    fn ended_because(&mut self, reasons: &[String]) -> Verdict {
        let _ = reasons;
        Ok(())
    }
}

/// The action of the client on a connection, if the case can choose it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAction {
    /// Sends a message that is never answered.
    Send,
    /// Sends a message of this many bytes and expects the answer.
    Exchange(usize),
}

/// A client under test.
pub trait Client {
    /// Waits for the next connection of the client and accepts it. One receive of 512 bytes is
    /// posted before. A client that cannot be configured ignores `requested` and `action`.
    ///
    /// # Errors
    /// The client did not connect in time.
    fn accept(&mut self, requested: &PeerSettings, action: ClientAction) -> Verdict<Box<dyn Link>>;

    /// Returns what is known about the client since the last [`accept`](Self::accept).
    fn facts(&self) -> PeerFacts;

    /// Waits for the end of the action, and returns how it ended: with the client's error message if it failed,
    /// or `None` if the outcome cannot be seen.
    ///
    /// # Errors
    /// The client does not end.
    fn finish(&mut self) -> Verdict<Option<Result<(), String>>> {
        Ok(None)
    }
}

/// The configuration of the peer that a case asks for. Fields that are `None` or false
/// leave the default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerSettings {
    /// SendCreditTarget and ReceiveCreditMax.
    pub credits: Option<u16>,
    /// MaxFragmentedRecvSize in bytes.
    pub max_fragmented_receive_size: Option<u32>,
    /// The case waits for timers, so they should be short.
    pub short_timers: bool,
}

impl PeerSettings {
    pub(crate) fn short_timers() -> Self {
        Self {
            short_timers: true,
            ..Self::default()
        }
    }

    pub(crate) fn credits(credits: u16) -> Self {
        Self {
            credits: Some(credits),
            ..Self::default()
        }
    }
}

/// What is known about the peer, and how long to wait for it.
#[derive(Clone, Debug)]
pub struct PeerFacts {
    /// All settings of the peer, if they are known. Then each negotiated value is checked, and no
    /// message is tolerated that the peer need not send.
    pub settings: Option<Settings>,
    /// The timers of the peer.
    pub timers: Timers,
    /// Longest time that the peer may take for something that is due immediately.
    pub prompt: Duration,
    /// Time for which a case checks that nothing arrives.
    pub silence: Duration,
    /// Time before a timer expires at which a case still sends something in time.
    pub margin: Duration,
    /// How much earlier than its timer the peer may act.
    pub early: Duration,
    /// How much later than its timer the peer may act.
    pub late: Duration,
    /// Longest time that a case may wait for timers; longer ones are skipped.
    pub patience: Duration,
}

/// The timers of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timers {
    /// Negotiation Timer: 5 s for a server, 120 s for a client.
    pub negotiation: Duration,
    /// KeepaliveInterval.
    pub keepalive_interval: Duration,
    /// Time that this end has to answer a keepalive.
    pub keepalive_response: Duration,
    /// Send Credit Grant Timer of Windows, which the specification does not have.
    pub credit_grant: Option<Duration>,
}

impl Timers {
    /// The timers of the specification for a server.
    pub const SERVER: Self = Self {
        negotiation: Duration::from_secs(5),
        keepalive_interval: Duration::from_secs(120),
        keepalive_response: Duration::from_secs(5),
        credit_grant: None,
    };
    /// The timers of the specification for a client.
    pub const CLIENT: Self = Self {
        negotiation: Duration::from_secs(120),
        ..Self::SERVER
    };
}

impl PeerFacts {
    /// Returns whether all settings are known, so that the peer is judged strictly.
    pub const fn is_strict(&self) -> bool {
        self.settings.is_some()
    }

    /// Returns a time shortly before `timer` expires.
    pub fn almost(&self, timer: Duration) -> Duration {
        timer.saturating_sub(self.margin).max(timer / 3)
    }

    /// Checks that an event happened when a timer was due.
    ///
    /// # Errors
    /// The event came too early or too late.
    pub fn check_took(&self, what: &str, took: Duration, due: Duration) -> Verdict {
        let in_time = took + self.early >= due && took <= due + self.late;
        require(in_time, format!("{what} after {due:?}"), || {
            format!("after {took:?}")
        })
    }

    /// Checks that the case may wait this long.
    ///
    /// # Errors
    /// [`Stop::Skip`](crate::Stop::Skip) if it may not.
    pub fn allow(&self, wait: Duration) -> Verdict {
        if wait <= self.patience {
            return Ok(());
        }
        skip(format!(
            "it waits {} s for the peer's timers, and the limit is {} s",
            wait.as_secs(),
            self.patience.as_secs()
        ))
    }
}
