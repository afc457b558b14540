//! The two peers of a session, each on SMB Direct or TCP, and the reasons why a session ends.

use std::{fmt, net::SocketAddr, time::Duration};

use bytes::{Buf, Bytes};
use smbdirect::{
    Config, Connection, ConnectionError, Message, ReadError, SendError, TransferFault,
};
use smbdirect_smb::{Refusal, ServerFault};
use smbdirect_transport::{self as transport, NegotiatedReport, text};
use tokio::net::TcpStream;

use super::{proxy_header, refused::Refused, tcp};

/// Time limit for closing a connection gracefully. After it, the connection is dropped.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);

/// The two sides of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Client,
    Server,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client => "client",
            Self::Server => "server",
        })
    }
}

/// The two directions of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    ToServer,
    ToClient,
}

/// The reason for the end of a session, or of one direction of it.
#[derive(Debug)]
pub(super) enum Stop {
    /// This side closed its connection gracefully.
    Closed(Side),
    /// This side failed, with the reason.
    Failed(Side, String),
    /// There is no connection to the server, with the reason.
    Unreachable(String),
    /// The client sent a request that cannot be translated.
    Refused(Refusal),
    /// A signal told this process to end.
    Here,
    /// An administrator ended the session.
    Ended,
    /// The client of a proxy is not admitted.
    NotAdmitted(Refused),
    /// The code of this program has panicked.
    Fault(String),
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed(side) => write!(f, "closed by the {side}"),
            Self::Failed(side, what) => write!(f, "{side}: {what}"),
            Self::Unreachable(what) => write!(f, "{}: {what}", Side::Server),
            Self::Refused(refusal) => {
                write!(f, "refused: {refusal}; to cure it: {}", refusal.cure())
            }
            Self::Here => f.write_str("closed here"),
            Self::Ended => f.write_str("ended by an administrator"),
            Self::NotAdmitted(why) => write!(f, "turned away: {}", why.reason()),
            Self::Fault(what) => write!(f, "a fault of smbdirect: {what}; please report it"),
        }
    }
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<ServerFault> for Stop {
    fn from(fault: ServerFault) -> Self {
        Self::Failed(Side::Server, fault.to_string())
    }
}

impl Stop {
    /// Returns the reason for the end of an SMB Direct connection.
    pub(super) fn of(side: Side, error: &ConnectionError) -> Self {
        match error {
            ConnectionError::Closed | ConnectionError::ClosedHere => Self::Closed(side),
            error => Self::Failed(side, transport::explain_end(error)),
        }
    }

    /// Returns the reason after a failed send from `from` to `to`. If the message is too long, `from`
    /// is the side at fault.
    pub(super) fn of_send(from: Side, to: Side, error: SendError) -> Self {
        match error {
            SendError::Connection(error) => Self::of(to, &error),
            SendError::TooLong { length, max } => Self::too_long(from, length, max),
            error => Self::Failed(to, error.to_string()),
        }
    }

    /// Returns the reason for a message of `from` that the other side does not accept.
    pub(super) fn too_long(from: Side, length: usize, most: u32) -> Self {
        let fault = tcp::Fault::TooLong { length, most };
        let cure = match from {
            Side::Client => "have the server offer less (ksmbd: `smb2 max write` = 65536)",
            Side::Server => "have the client ask for less (Linux: rsize=65536)",
        };
        Self::Failed(from, format!("{fault}; {cure}"))
    }

    /// Returns the reason for a fault of a TCP peer.
    pub(super) fn of_tcp(side: Side, fault: &tcp::Fault) -> Self {
        Self::Failed(side, fault.to_string())
    }

    /// Returns the reason after a failed read from the memory of the client.
    pub(super) fn of_read(error: &ReadError) -> Self {
        Self::of_transfer(&error.fault)
    }

    /// Returns the reason after a failed access to the memory of the client.
    pub(super) fn of_transfer(fault: &TransferFault) -> Self {
        match fault {
            TransferFault::Connection(error) => Self::of(Side::Client, error),
            fault => Self::Failed(Side::Client, fault.to_string()),
        }
    }
}

/// A connection to the client or the server, on SMB Direct or TCP.
pub(crate) enum Peer {
    SmbDirect(Connection),
    Tcp(TcpStream, SocketAddr),
}

impl Peer {
    pub(super) fn prepare(&self, side: Side, config: &Config) -> Result<(), Stop> {
        match self {
            Self::SmbDirect(_) => Ok(()),
            Self::Tcp(stream, _) => tcp::prepare(stream, config.keepalive_interval)
                .map_err(|error| Stop::Failed(side, text::plain(&error))),
        }
    }

    /// Returns the address of this end.
    pub(super) fn local(&self) -> Option<SocketAddr> {
        match self {
            Self::SmbDirect(connection) => Some(connection.local_addr()),
            Self::Tcp(stream, _) => stream.local_addr().ok(),
        }
    }

    pub(super) fn address(&self) -> SocketAddr {
        match self {
            Self::SmbDirect(connection) => connection.peer_addr(),
            Self::Tcp(_, address) => *address,
        }
    }

    /// Returns the number of its SMB Direct connection, which the metrics have, too.
    pub(super) fn connection_id(&self) -> Option<u64> {
        match self {
            Self::SmbDirect(connection) => Some(connection.id()),
            Self::Tcp(..) => None,
        }
    }

    pub(super) fn negotiated(&self) -> Option<NegotiatedReport> {
        match self {
            Self::SmbDirect(connection) => Some(connection.negotiated().into()),
            Self::Tcp(..) => None,
        }
    }

    pub(super) fn split(self, stall_limit: Duration) -> (Source, Sink) {
        match self {
            Self::SmbDirect(connection) => (
                Source::SmbDirect(SmbDirectSource {
                    connection: connection.clone(),
                    first: None,
                }),
                Sink::SmbDirect(connection),
            ),
            Self::Tcp(stream, _) => {
                let (read, write) = stream.into_split();
                (
                    Source::Tcp(tcp::Source::new(read, stall_limit)),
                    Sink::Tcp(tcp::Sink::new(write, stall_limit)),
                )
            }
        }
    }
}

/// The receiving half of a connection.
pub(super) enum Source {
    SmbDirect(SmbDirectSource),
    Tcp(tcp::Source),
}

/// The receiving half of an SMB Direct connection.
pub(super) struct SmbDirectSource {
    pub(super) connection: Connection,
    /// The first message if only its head was looked at.
    first: Option<Message>,
}

impl SmbDirectSource {
    /// Receives the next message of the peer, which is on `side`.
    pub(super) async fn recv(&mut self, side: Side) -> Result<Message, Stop> {
        match self.first.take() {
            Some(first) => Ok(first),
            None => {
                let received = self.connection.recv().await;
                received.map_err(|error| Stop::of(side, &error))
            }
        }
    }
}

impl Source {
    /// Returns the first `length` bytes of the first message, or all of a shorter one, which
    /// is still received.
    pub(super) async fn peek(&mut self, length: usize) -> Result<Bytes, Stop> {
        let side = Side::Client;
        match self {
            Self::SmbDirect(client) => {
                let message = client.recv(side).await?;
                let length = length.min(message.len());
                let head = message.clone().copy_to_bytes(length);
                client.first = Some(message);
                Ok(head)
            }
            Self::Tcp(source) => {
                let head = source.peek(length).await;
                let head = head.map_err(|fault| Stop::of_tcp(side, &fault))?;
                head.ok_or(Stop::Closed(side))
            }
        }
    }

    /// Returns what tells when the peer has closed its connection, or its sending side, although nothing is received.
    pub(super) fn leaving(&self) -> Leaving {
        match self {
            Self::SmbDirect(client) => Leaving::SmbDirect(client.connection.clone()),
            Self::Tcp(source) => Leaving::Tcp(source.hang_up()),
        }
    }

    /// Takes the header of the PROXY protocol, and returns the client that it names.
    pub(super) async fn proxy_header(&mut self) -> Result<Option<SocketAddr>, Stop> {
        let side = Side::Client;
        let header = match self {
            Self::SmbDirect(client) => client.recv(side).await?.into_bytes(),
            Self::Tcp(source) => {
                let header = source.take_proxy_header().await;
                header.map_err(|fault| Stop::of_tcp(side, &fault))?
            }
        };
        proxy_header::decode(&header).map_err(|fault| Stop::Failed(side, fault.to_string()))
    }
}

/// Tells when a peer leaves.
pub(super) enum Leaving {
    SmbDirect(Connection),
    Tcp(tcp::HangUp),
}

impl Leaving {
    /// Waits until the peer has closed its connection, or its sending side.
    pub(super) async fn wait(&self) {
        match self {
            Self::SmbDirect(connection) => drop(connection.closed().await),
            Self::Tcp(hang_up) => hang_up.wait().await,
        }
    }
}

/// The sending half of a connection.
pub(super) enum Sink {
    SmbDirect(Connection),
    Tcp(tcp::Sink),
}

impl Sink {
    /// Ends sending while receiving continues. SMB Direct has no half-close, so this affects TCP only.
    pub(super) async fn finish(&mut self) {
        if let Self::Tcp(sink) = self {
            sink.finish().await;
        }
    }

    pub(super) async fn close(&mut self) {
        if let Self::SmbDirect(connection) = self {
            transport::close(connection, CLOSE_TIMEOUT).await;
        } else {
            self.finish().await;
        }
    }
}
