//! The two peers of a session, each on SMB Direct or TCP.

use std::{net::SocketAddr, time::Duration};

use bytes::{Buf, Bytes};
use smbdirect::{Config, Connection, Message};
use smbdirect_transport::{self as transport, NegotiatedReport, text};
use tokio::{net::TcpStream, time::timeout};

use crate::{
    admission::proxy_header,
    path::tcp,
    stop::{Side, Stop},
};

/// Time limit for closing a connection gracefully. After it, the connection is dropped.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);

/// A connection to the client or the server, on SMB Direct or TCP.
pub(crate) enum Peer {
    SmbDirect(Connection),
    Tcp(TcpStream, SocketAddr),
}

impl Peer {
    pub(crate) fn prepare(&self, side: Side, config: &Config) -> Result<(), Stop> {
        match self {
            Self::SmbDirect(_) => Ok(()),
            Self::Tcp(stream, _) => tcp::prepare(stream, config.keepalive_interval)
                .map_err(|error| Stop::Failed(side, text::plain(&error))),
        }
    }

    /// Returns the address of this end.
    pub(crate) fn local(&self) -> Option<SocketAddr> {
        match self {
            Self::SmbDirect(connection) => Some(connection.local_addr()),
            Self::Tcp(stream, _) => stream.local_addr().ok(),
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        match self {
            Self::SmbDirect(connection) => connection.peer_addr(),
            Self::Tcp(_, address) => *address,
        }
    }

    /// Returns the number of its SMB Direct connection, which the metrics have, too.
    pub(crate) fn connection_id(&self) -> Option<u64> {
        match self {
            Self::SmbDirect(connection) => Some(connection.id()),
            Self::Tcp(..) => None,
        }
    }

    pub(crate) fn negotiated(&self) -> Option<NegotiatedReport> {
        match self {
            Self::SmbDirect(connection) => Some(connection.negotiated().into()),
            Self::Tcp(..) => None,
        }
    }

    /// Returns both halves of the connection to the peer on `side`.
    pub(crate) fn split(self, side: Side, stall_limit: Duration) -> (Source, Sink) {
        match self {
            Self::SmbDirect(connection) => (
                Source::SmbDirect(SmbDirectSource {
                    side,
                    connection: connection.clone(),
                    first: None,
                }),
                Sink::SmbDirect(connection),
            ),
            Self::Tcp(stream, _) => {
                let (read, write) = stream.into_split();
                (
                    Source::Tcp(tcp::Source::new(side, read, stall_limit)),
                    Sink::Tcp(tcp::Sink::new(side, write, stall_limit)),
                )
            }
        }
    }
}

/// The receiving half of a connection.
pub(crate) enum Source {
    SmbDirect(SmbDirectSource),
    Tcp(tcp::Source),
}

/// The receiving half of an SMB Direct connection.
pub(crate) struct SmbDirectSource {
    side: Side,
    pub(crate) connection: Connection,
    /// The first message if only its head was looked at.
    first: Option<Message>,
}

impl SmbDirectSource {
    /// Receives the next message.
    pub(crate) async fn recv(&mut self) -> Result<Message, Stop> {
        match self.first.take() {
            Some(first) => Ok(first),
            None => {
                let received = self.connection.recv().await;
                received.map_err(|error| Stop::of(self.side, &error))
            }
        }
    }
}

impl Source {
    /// Returns the first `length` bytes of the first message, or all of a shorter one, which
    /// is still received.
    pub(crate) async fn peek(&mut self, length: usize) -> Result<Bytes, Stop> {
        match self {
            Self::SmbDirect(client) => {
                let message = client.recv().await?;
                let length = length.min(message.len());
                let head = message.clone().copy_to_bytes(length);
                client.first = Some(message);
                Ok(head)
            }
            Self::Tcp(source) => source.peek(length).await,
        }
    }

    /// Returns what tells when the peer has closed its connection, or its sending side, although nothing is received.
    pub(crate) fn leaving(&self) -> Leaving {
        match self {
            Self::SmbDirect(client) => Leaving::SmbDirect(client.connection.clone()),
            Self::Tcp(source) => Leaving::Tcp(source.hang_up()),
        }
    }

    /// Discards what a TCP peer still sends, for at most the time for a graceful end.
    pub(crate) async fn discard(&mut self) {
        if let Self::Tcp(source) = self {
            let _ = timeout(CLOSE_TIMEOUT, source.discard()).await;
        }
    }

    /// Takes the header of the PROXY protocol, and returns the client that it names.
    pub(crate) async fn proxy_header(&mut self) -> Result<Option<SocketAddr>, Stop> {
        let header = match self {
            Self::SmbDirect(client) => client.recv().await?.into_bytes(),
            Self::Tcp(source) => source.take_proxy_header().await?,
        };
        proxy_header::decode(&header).map_err(|fault| Stop::Failed(Side::Client, fault.to_string()))
    }
}

/// Tells when a peer leaves.
pub(crate) enum Leaving {
    SmbDirect(Connection),
    Tcp(tcp::HangUp),
}

impl Leaving {
    /// Waits until the peer has closed its connection, or its sending side.
    pub(crate) async fn wait(&self) {
        match self {
            Self::SmbDirect(connection) => drop(connection.closed().await),
            Self::Tcp(hang_up) => hang_up.wait().await,
        }
    }
}

/// The sending half of a connection.
pub(crate) enum Sink {
    SmbDirect(Connection),
    Tcp(tcp::Sink),
}

impl Sink {
    /// Ends sending while receiving continues. SMB Direct has no half-close, so this affects TCP only.
    pub(crate) async fn finish(&mut self) {
        if let Self::Tcp(sink) = self {
            sink.finish().await;
        }
    }

    pub(crate) async fn close(&mut self) {
        if let Self::SmbDirect(connection) = self {
            transport::close(connection, CLOSE_TIMEOUT).await;
        } else {
            self.finish().await;
        }
    }
}
