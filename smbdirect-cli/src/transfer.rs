//! Files over an SMB Direct connection: the small upper-layer protocol of `send`, of
//! `listen --receive` and of `demo`.
//!
//! ```text
//!   sender                                   receiver
//!   OFFER length, method, name        ->
//!                                     <-     ACCEPT                       or FAILED
//!   then, by method, with at most WINDOW pieces not yet DONE:
//!   messages     DATA offset, bytes   ->
//!                                     <-     DONE offset                  stored up to here
//!   RDMA Read    MEMORY offset, descriptor ->
//!                                     <=     RDMA Read
//!                                     <-     DONE offset                  invalidates the memory
//!   RDMA Write                        <-     MEMORY offset, descriptor
//!                RDMA Write           =>
//!                DONE offset          ->                                  invalidates the memory
//!   and in the end:
//!   FINISH sha-256                    ->
//!                                     <-     STORED                       or FAILED
//! ```
//!
//! One file goes after the other. Either side can give a file up and keep the connection: the
//! receiver says FAILED, the sender CANCEL, each with a reason, and each is answered by the
//! other; a side that has given up ignores what else comes until then. The receiver says FAILED
//! only when it has no RDMA Read outstanding, and keeps the memory it advertised until the
//! answer.
//!
//! The peer may be hostile: each field is checked, each count bounded, and a peer that moves
//! nothing for the inactivity limit is given up. What breaks these rules ends the connection.
//!
//! [`frame`] has the bytes of the messages, [`sending`] and [`receiving`] the two sides,
//! [`store`] where received files go.

pub(crate) mod frame;
pub(crate) mod receiving;
pub(crate) mod sending;
pub(crate) mod store;

use std::{fmt, time::Duration};

use serde::Serialize;
use sha2::{Digest as _, Sha256};
use smbdirect::{ConnectionError, SendError, TransferFault};
use thiserror::Error;

use crate::{report, transport};

/// Pieces of a file that may be on their way and not done.
pub(crate) const WINDOW: usize = 8;
/// Most bytes in one piece; a piece by RDMA has as many, the last of a file fewer.
pub(crate) const MAX_PIECE: u32 = 1 << 20;
/// How long a peer may move nothing, unless the command line has something else.
pub(crate) const INACTIVITY_LIMIT: Duration = Duration::from_secs(30);
/// Messages that a peer may have on their way when it is told that a file is given up.
const MAX_STALE: usize = 2 * WINDOW + 2;

/// How the bytes of a file move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Method {
    /// In messages, fragmented.
    Messages,
    /// The receiver reads them from the sender's memory.
    RdmaRead,
    /// The sender writes them to the receiver's memory.
    RdmaWrite,
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Messages => "messages",
            Self::RdmaRead => "RDMA Read",
            Self::RdmaWrite => "RDMA Write",
        })
    }
}

/// Why a file did not arrive.
#[derive(Debug, Error)]
pub(crate) enum TransferError {
    /// The connection is over.
    #[error("{}", transport::explain_end(.0))]
    Connection(#[from] ConnectionError),
    /// The peer broke the rules of this protocol.
    #[error("the peer does not keep to the file protocol: {0}")]
    Protocol(String),
    /// Nothing moved.
    #[error("the peer moved nothing for {}", report::time(*.0))]
    Inactive(Duration),
    /// The peer gave the file up, and said why. The connection is fine.
    #[error("{}", report::printable(.0))]
    Peer(String),
    /// This side gave the file up. The connection is fine.
    #[error("{0}")]
    Here(String),
}

impl TransferError {
    /// Whether the connection cannot be used any more.
    pub(crate) const fn ends_connection(&self) -> bool {
        !matches!(self, Self::Peer(_) | Self::Here(_))
    }
}

impl From<SendError> for TransferError {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Connection(error) => Self::Connection(error),
            // `TooLarge` cannot occur, because messages are cut to the length that the peer
            // accepts.
            error => Self::Protocol(error.to_string()),
        }
    }
}

impl From<TransferFault> for TransferError {
    fn from(fault: TransferFault) -> Self {
        match fault {
            TransferFault::Connection(error) => Self::Connection(error),
            fault => Self::Protocol(fault.to_string()),
        }
    }
}

/// A broken rule, for `?`.
fn broken<T>(what: impl Into<String>) -> Result<T, TransferError> {
    Err(TransferError::Protocol(what.into()))
}

/// A SHA-256.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Checksum(pub(crate) [u8; 32]);

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Serialize for Checksum {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl From<Sha256> for Checksum {
    fn from(hasher: Sha256) -> Self {
        Self(hasher.finalize().into())
    }
}
