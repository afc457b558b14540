//! Faults of a client or server after which a gateway ends the connection, because it cannot translate.

use thiserror::Error;

use crate::smb2::{Channel, Command, Malformed};

/// The reason why a request is not forwarded: its translation could be wrong. The connection must end;
/// [`cure`](Self::cure) names the setting to change.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The request is signed. Its bytes must not change, so its channel cannot be removed.
    #[error("a signed {command} with {channel}")]
    Signed {
        /// READ or WRITE.
        command: Command,
        /// The channel of the request.
        channel: Channel,
    },
    /// The channel is neither RDMA_V1 nor RDMA_V1_INVALIDATE.
    #[error("a {command} with {channel}")]
    Channel {
        /// READ or WRITE.
        command: Command,
        /// The channel of the request.
        channel: Channel,
    },
    /// A client that is connected by TCP sent a request with a channel.
    #[error("a {command} with {channel} over TCP")]
    NoRdma {
        /// READ or WRITE.
        command: Command,
        /// The channel of the request.
        channel: Channel,
    },
    /// The request is malformed, so its channel cannot be decoded.
    #[error("a malformed {command}: {fault}")]
    Malformed {
        /// The command of the request, or of the first element if a compound is malformed.
        command: Command,
        /// What is malformed.
        fault: Malformed,
    },
    /// The message has the protocol identifier of SMB2, but its header is malformed.
    #[error("a malformed message: {fault}")]
    Header {
        /// What is malformed in the header.
        fault: Malformed,
    },
    /// The request moves more bytes than its descriptors hold.
    #[error("a {command} of {length} bytes with descriptors for {described}")]
    BeyondDescriptors {
        /// READ or WRITE.
        command: Command,
        /// Bytes to move.
        length: u32,
        /// Bytes that the descriptors hold.
        described: u64,
    },
    /// A WRITE has a channel and also data in the message.
    #[error("a WRITE with a channel and with {length} bytes in the message")]
    DataAndChannel {
        /// Bytes in the message.
        length: usize,
    },
    /// A WRITE with its data is longer than a message to the server can be.
    #[error(
        "a WRITE that takes a message of {length} bytes, a message over TCP has at most {most}"
    )]
    TooLong {
        /// Bytes of the message that the server would get.
        length: u64,
        /// Maximum number of bytes of a message.
        most: u32,
    },
    /// A compound has more requests with a channel, or more descriptors, than can be recorded.
    #[error(
        "a compound with more than {requests} requests or {descriptors} descriptors to wait for"
    )]
    TooMany {
        /// Maximum number of unanswered requests with a channel.
        requests: usize,
        /// Maximum number of descriptors of all these requests together.
        descriptors: usize,
    },
    /// An unanswered request with a channel has the same MessageId.
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
            Self::NoRdma { .. } => "have the client connect by SMB Direct",
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

/// The reason why an answer is not forwarded: its translation could be wrong. The connection must end.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ServerFault {
    /// The message has the protocol identifier of SMB2, but its header is malformed. It could be the
    /// answer to a request with a channel.
    #[error("a malformed answer: {fault}")]
    Header {
        /// What is malformed in the header.
        fault: Malformed,
    },
    /// The answer to a request with a channel is malformed.
    #[error("a malformed answer to {command}: {fault}")]
    Malformed {
        /// The command that was answered.
        command: Command,
        /// What is malformed.
        fault: Malformed,
    },
    /// The answer is signed, but the translation would have to change it: remove or add the data of a
    /// READ, or move the answer out of a compound.
    #[error("a signed answer to requests that were not signed")]
    Signed,
    /// The answer is encrypted, but the client has sent no encrypted message. It could be the answer to a
    /// request with a channel.
    #[error("an encrypted answer to a client that does not encrypt")]
    Encrypted,
    /// The answer is compressed, but the client has neither sent a compressed message nor asked for a
    /// compressed answer. It could be the answer to a request with a channel.
    #[error("a compressed answer to a client that did not ask for one")]
    Compressed,
    /// The answer to a READ has more data than the client asked for.
    #[error("{length} bytes of data for a READ of {requested}")]
    TooMuch {
        /// Bytes that the server sent.
        length: u64,
        /// Bytes that the client asked for.
        requested: u32,
    },
    /// The answer to a READ has data in the message although data also moved by RDMA.
    #[error("a READ answered with {inline} bytes in the message and {remaining} by RDMA")]
    InlineAndRdma {
        /// DataLength.
        inline: usize,
        /// DataRemaining.
        remaining: u32,
    },
    /// The answer to a request that was not in a compound arrived in a compound.
    #[error("the answer to a {command} that was no compound came in one")]
    Compounded {
        /// The command that was answered.
        command: Command,
    },
}
