//! The two ends of a session, of either kind, and carrying messages from one to the other.

use std::{fmt, net::SocketAddr, time::Duration};

use smbdirect::{Config, Connection, ConnectionError, Message, SendError};
use tokio::net::TcpStream;

use super::{Count, SHUTDOWN, tcp};
use crate::{
    report::{self, NegotiatedReport},
    transport,
};

/// The two that a session is between.
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

/// Why a session, or one direction of it, is over.
#[derive(Debug)]
pub(super) enum Stop {
    /// That side closed its connection in good order.
    Closed(Side),
    /// That side is at fault, and how.
    Failed(Side, String),
    /// This process was told to end.
    Here,
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed(side) => write!(f, "closed by the {side}"),
            Self::Failed(side, what) => write!(f, "{side}: {what}"),
            Self::Here => f.write_str("closed here"),
        }
    }
}

impl Stop {
    /// The end of an SMB Direct connection.
    fn of(side: Side, error: &ConnectionError) -> Self {
        match error {
            ConnectionError::Closed(_) => Self::Closed(side),
            error => Self::Failed(side, transport::explain_end(error)),
        }
    }
}

/// One of the two ways through a session.
pub(super) struct Direction<'a> {
    pub(super) from: Side,
    pub(super) to: Side,
    pub(super) counts: [&'a Count; 2],
}

impl Direction<'_> {
    /// Carries messages until one end is over. All that was taken before has been handed over.
    pub(super) async fn carry(self, from: &mut Source, to: &mut Sink) -> Stop {
        loop {
            let message = match from.next(to.most(), self.from).await {
                Ok(message) => message,
                Err(stop) => return stop,
            };
            let length = message.len();
            if let Err(stop) = self.put(message, to).await {
                return stop;
            }
            for count in self.counts {
                count.add(length as u64);
            }
        }
    }

    async fn put(&self, message: Message, to: &mut Sink) -> Result<(), Stop> {
        let too_long = |length, most| {
            let fault = tcp::Fault::TooLong { length, most };
            // Whoever sent it is to be looked at.
            Stop::Failed(self.from, fault.to_string())
        };
        let over = |error| Stop::of(self.to, &error);
        match to {
            Sink::SmbDirect(connection) => match connection.send(message) {
                Ok(sending) => sending.await.map_err(over),
                Err(SendError::Connection(error)) => Err(over(error)),
                Err(SendError::TooLarge { length, max }) => Err(too_long(length, max)),
            },
            Sink::Tcp(sink) => sink.put(message).await.map_err(|fault| match fault {
                tcp::Fault::TooLong { length, most } => too_long(length, most),
                fault => Stop::Failed(self.to, fault.to_string()),
            }),
        }
    }
}

/// A connection, of either kind, to either side.
pub(super) enum Peer {
    SmbDirect(Connection),
    Tcp(TcpStream, SocketAddr),
}

impl Peer {
    pub(super) fn prepare(&self, side: Side, config: &Config) -> Result<(), Stop> {
        match self {
            Self::SmbDirect(_) => Ok(()),
            Self::Tcp(stream, _) => tcp::prepare(stream, config.keepalive_interval)
                .map_err(|error| Stop::Failed(side, report::plain(&error))),
        }
    }

    pub(super) fn address(&self) -> SocketAddr {
        match self {
            Self::SmbDirect(connection) => connection.remote_address(),
            Self::Tcp(_, address) => *address,
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
                Source::SmbDirect(connection.clone()),
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

/// Where messages come from.
pub(super) enum Source {
    SmbDirect(Connection),
    Tcp(tcp::Source),
}

impl Source {
    /// The next message, of `most` bytes where that can be told before it is read.
    async fn next(&mut self, most: u32, side: Side) -> Result<Message, Stop> {
        match self {
            Self::SmbDirect(connection) => {
                let message = connection.recv().await;
                message.map_err(|error| Stop::of(side, &error))
            }
            Self::Tcp(source) => match source.next(most).await {
                Ok(Some(message)) => Ok(message.into()),
                Ok(None) => Err(Stop::Closed(side)),
                Err(fault) => Err(Stop::Failed(side, fault.to_string())),
            },
        }
    }
}

/// Where messages go.
pub(super) enum Sink {
    SmbDirect(Connection),
    Tcp(tcp::Sink),
}

impl Sink {
    /// The longest message that it takes.
    fn most(&self) -> u32 {
        match self {
            Self::SmbDirect(connection) => connection
                .negotiated()
                .max_fragmented_send_size
                .min(tcp::MAX_MESSAGE),
            Self::Tcp(_) => tcp::MAX_MESSAGE,
        }
    }

    /// Says that nothing else comes, where there is a way to say so and still listen.
    pub(super) async fn finish(&mut self) {
        if let Self::Tcp(sink) = self {
            sink.finish().await;
        }
    }

    pub(super) async fn close(&mut self) {
        match self {
            Self::SmbDirect(connection) => transport::close(connection, SHUTDOWN).await,
            Self::Tcp(sink) => sink.finish().await,
        }
    }
}
