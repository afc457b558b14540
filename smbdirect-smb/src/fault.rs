//! Faults of a client or of a server for which a gateway ends a connection instead of translating.

use thiserror::Error;

use crate::smb2::{Channel, Command, Malformed};

/// A request that is never forwarded, because a translation could be wrong. It ends the
/// connection; [`cure`](Self::cure) names the setting to change.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Its bytes must not change, so that its channel cannot be taken off.
    #[error("a signed {command} with {channel}")]
    Signed {
        /// READ or WRITE.
        command: Command,
        /// Its channel.
        channel: Channel,
    },
    /// A channel that is neither RDMA_V1 nor RDMA_V1_INVALIDATE.
    #[error("a {command} with {channel}")]
    Channel {
        /// READ or WRITE.
        command: Command,
        /// Its channel.
        channel: Channel,
    },
    /// A client that came without RDMA asks for it.
    #[error("a {command} with {channel} over TCP")]
    NoRdma {
        /// READ or WRITE.
        command: Command,
        /// Its channel.
        channel: Channel,
    },
    /// The structure is broken, so that its channel cannot be read.
    #[error("a malformed {command}: {fault}")]
    Malformed {
        /// The command, or that of the first element of a broken compound.
        command: Command,
        /// How it is broken.
        fault: Malformed,
    },
    /// A message that has the protocol identifier of SMB2 and is none.
    #[error("a malformed message: {fault}")]
    Header {
        /// How its header is broken.
        fault: Malformed,
    },
    /// More bytes than the descriptors hold.
    #[error("a {command} of {length} bytes with descriptors for {described}")]
    BeyondDescriptors {
        /// READ or WRITE.
        command: Command,
        /// Bytes to move.
        length: u32,
        /// Bytes that the descriptors hold.
        described: u64,
    },
    /// A WRITE with a channel that also has data in the message.
    #[error("a WRITE with a channel and with {length} bytes in the message")]
    DataAndChannel {
        /// Bytes in the message.
        length: usize,
    },
    /// A WRITE that, with its data, is longer than a message to the server can be.
    #[error(
        "a WRITE that takes a message of {length} bytes, a message over TCP has at most {most}"
    )]
    TooLong {
        /// Bytes of the message that the server would get.
        length: u64,
        /// Most bytes of a message.
        most: usize,
    },
    /// A compound with more channels or descriptors than there is room for.
    #[error(
        "a compound with more than {requests} requests or {descriptors} descriptors to wait for"
    )]
    TooMany {
        /// Most requests with a channel that may wait for their answer.
        requests: usize,
        /// Most descriptors that these may have together.
        descriptors: usize,
    },
    /// A MessageId that is in use by a request with a channel.
    #[error("a {command} with MessageId {message_id}, which another request still has")]
    Repeated {
        /// The command.
        command: Command,
        /// The MessageId.
        message_id: u64,
    },
}

impl Refusal {
    /// Returns the setting or program to change so that the refusal does not happen again.
    pub const fn cure(&self) -> &'static str {
        match self {
            Self::Signed { .. } => {
                "turn signing off for this client (Linux: no `sign` and no `sec=...i`), or RDMA \
                 reads and writes (Linux: rdma_readwrite_threshold)"
            }
            Self::Channel { .. } => {
                "turn RDMA transforms off on the client (Windows: encryption over SMB Direct)"
            }
            Self::NoRdma { .. } => "have the client connect by SMB Direct: --from smbdirect",
            Self::Malformed { .. }
            | Self::Header { .. }
            | Self::TooMany { .. }
            | Self::BeyondDescriptors { .. }
            | Self::DataAndChannel { .. }
            | Self::Repeated { .. } => "the client breaks [MS-SMB2]; update it, or mount over TCP",
            Self::TooLong { .. } => "have the client write less at once (Linux: wsize=8388608)",
        }
    }
}

/// An answer that cannot be carried, because a translation could be wrong. It ends the connection.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ServerFault {
    /// A message that has the protocol identifier of SMB2 and is none. It can be the answer to a
    /// request with a channel.
    #[error("a malformed answer: {fault}")]
    Header {
        /// How its header is broken.
        fault: Malformed,
    },
    /// The structure is broken.
    #[error("a malformed answer to {command}: {fault}")]
    Malformed {
        /// The command that was answered.
        command: Command,
        /// How the answer is broken.
        fault: Malformed,
    },
    /// A signed answer that would have to change: the data of a READ, or its place in a compound.
    #[error("a signed answer to requests that were not signed")]
    Signed,
    /// An encrypted answer to a client that has encrypted nothing. It can be the answer to a
    /// request with a channel.
    #[error("an encrypted answer to a client that does not encrypt")]
    Encrypted,
    /// A compressed answer to a client that has neither compressed a message nor asked for such an
    /// answer. It can be the answer to a request with a channel.
    #[error("a compressed answer to a client that did not ask for one")]
    Compressed,
    /// More data than was asked for.
    #[error("{length} bytes of data for a READ of {requested}")]
    TooMuch {
        /// Bytes that the server sent.
        length: u64,
        /// Bytes that the client asked for.
        requested: u32,
    },
    /// Data in the message and by RDMA at the same time.
    #[error("a READ answered with {inline} bytes in the message and {remaining} by RDMA")]
    InlineAndRdma {
        /// DataLength.
        inline: usize,
        /// DataRemaining.
        remaining: u32,
    },
    /// An answer to a single request in a compound with others.
    #[error("the answer to a {command} that was no compound came in one")]
    Compounded {
        /// The command that was answered.
        command: Command,
    },
}
