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
//! Files go one after the other. Either side can give a file up and keep the connection: the
//! receiver sends FAILED, the sender CANCEL, each with a reason, and the other side answers with
//! the other message. A side that has given up ignores everything until that answer. The receiver
//! sends FAILED only when it has no RDMA Read outstanding, and keeps the memory it advertised until
//! the answer.
//!
//! The peer may be hostile: each field is checked, each count bounded, and a peer without progress
//! for the inactivity limit is given up. A message that breaks these rules ends the connection.
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

/// Maximum number of pieces of a file in flight.
pub(crate) const WINDOW: usize = 8;
/// Maximum number of bytes of a piece. Pieces by RDMA have exactly this many, except the last of a file.
pub(crate) const MAX_PIECE: u32 = 1 << 20;
/// Default of the longest time without progress.
pub(crate) const INACTIVITY_LIMIT: Duration = Duration::from_secs(30);
/// Maximum number of messages that a peer may still have in flight when a file is given up.
const MAX_STALE: usize = 2 * WINDOW + 2;

/// The method by which the bytes of a file move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Method {
    /// In fragmented messages.
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
    /// No progress for the inactivity limit.
    #[error("the peer moved nothing for {}", report::time(*.0))]
    Inactive(Duration),
    /// The peer gave the file up, with this reason. The connection can still be used.
    #[error("{}", report::printable(.0))]
    Peer(String),
    /// This side gave the file up. The connection can still be used.
    #[error("{0}")]
    Here(String),
}

impl TransferError {
    /// Returns whether the connection cannot be used any more.
    pub(crate) const fn ends_connection(&self) -> bool {
        !matches!(self, Self::Peer(_) | Self::Here(_))
    }
}

impl From<SendError> for TransferError {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Connection(error) => Self::Connection(error),
            // `TooLong` cannot occur, because messages are cut to the length that the peer
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

/// Returns a broken rule, for `?`.
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
