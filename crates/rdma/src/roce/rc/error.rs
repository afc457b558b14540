//! The errors that break a queue pair, and the NAK codes that tell the peer.

use thiserror::Error;

use crate::{
    memory::AccessFault,
    roce::packet::{NakCode, Opcode},
    work::{ProviderError, ProviderErrorKind, Token},
};

/// The reason why a queue pair broke.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum QueuePairError {
    /// The peer sent a request that this library does not support.
    #[error("a {0:?}, which is not supported")]
    Unsupported(Opcode),
    /// A packet does not continue the message of the packet before it.
    #[error("a {opcode:?} {place}")]
    OpcodeSequence {
        /// The opcode of the packet.
        opcode: Opcode,
        /// The place in the sequence of packets.
        place: &'static str,
    },
    /// The payload of a packet has a length that its place in the message does not permit.
    #[error("a {opcode:?} with {length} bytes of payload, the path MTU is {path_mtu}")]
    PayloadLength {
        /// The opcode of the packet.
        opcode: Opcode,
        /// The length of the payload, in bytes.
        length: usize,
        /// The path MTU, in bytes.
        path_mtu: usize,
    },
    /// The peer sent a Send again and again, and no receive was posted.
    #[error("a Send without a posted receive")]
    NoReceive,
    /// A Send is longer than its receive.
    #[error("a Send of {length} bytes or more for a receive of {limit}")]
    MessageTooLong {
        /// The bytes that have arrived.
        length: u64,
        /// The bytes that the receive accepts.
        limit: u32,
    },
    /// The packets of an RDMA Write have more or fewer bytes than it announced.
    #[error("an RDMA Write whose length is not the announced one")]
    WriteLength,
    /// An RDMA Read or Write is longer than 2^31 bytes.
    #[error("an RDMA operation of {0} bytes")]
    TooLong(u32),
    /// The peer may not write to the address it named.
    #[error("RDMA Write: {0}")]
    Write(AccessFault),
    /// The peer may not read from the address it named.
    #[error("RDMA Read: {0}")]
    ReadSource(AccessFault),
    /// The peer may not invalidate the token it named.
    #[error("Send with Invalidate of {token}: {fault}")]
    Invalidate {
        /// The token that the peer named.
        token: Token,
        /// The reason.
        fault: AccessFault,
    },
    /// The peer has more RDMA Reads outstanding than were granted to it.
    #[error("more than {granted} RDMA Reads at once")]
    TooManyReads {
        /// The most that the peer may have.
        granted: u32,
    },
    /// The peer answered with something that does not fit its request.
    #[error("a {0:?} that does not fit its request")]
    BadResponse(Opcode),
    /// The peer refused a request.
    #[error("the peer sent the NAK {0:?} (code {code})", code = .0.code())]
    Refused(NakCode),
    /// The peer had no receive for a Send, each time that the Send was repeated.
    #[error("the peer posted no receive")]
    ReceiverNotReady,
    /// The peer acknowledged nothing for too long.
    #[error("the peer does not acknowledge packets")]
    Unacknowledged,
    /// The peer acknowledged nothing for too long, and has never acknowledged a packet as long as the oldest
    /// unacknowledged one.
    #[error(
        "the peer does not acknowledge packets of {lost} bytes, and has acknowledged none of more than {acknowledged}: \
         the network between may not carry packets of that size, see the MTU of the route"
    )]
    LongPacketsLost {
        /// The length in bytes of the payload of the oldest unacknowledged packet.
        lost: usize,
        /// The length in bytes of the longest payload that is known to be acknowledged. Of the packets that one
        /// acknowledgement covers, only the oldest is considered.
        acknowledged: usize,
    },
}

impl QueuePairError {
    /// Returns the code of the NAK to send, or `None` if the error concerns a request of this end.
    pub const fn nak_code(&self) -> Option<NakCode> {
        //= ROCE-9.7.5-06
        match self {
            Self::Unsupported(_)
            | Self::OpcodeSequence { .. }
            | Self::PayloadLength { .. }
            | Self::MessageTooLong { .. }
            | Self::WriteLength
            | Self::TooLong(_)
            | Self::TooManyReads { .. } => Some(NakCode::InvalidRequest),
            Self::Write(_) | Self::ReadSource(_) | Self::Invalidate { .. } => {
                Some(NakCode::RemoteAccessError)
            }
            Self::NoReceive => Some(NakCode::RemoteOperationalError),
            Self::BadResponse(_)
            | Self::Refused(_)
            | Self::ReceiverNotReady
            | Self::Unacknowledged
            | Self::LongPacketsLost { .. } => None,
        }
    }
}

impl From<QueuePairError> for ProviderError {
    fn from(error: QueuePairError) -> Self {
        let kind = match error {
            QueuePairError::Refused(_) | QueuePairError::ReceiverNotReady => {
                ProviderErrorKind::Terminated
            }
            QueuePairError::Unacknowledged | QueuePairError::LongPacketsLost { .. } => {
                ProviderErrorKind::Reset
            }
            _ => ProviderErrorKind::Protocol,
        };
        Self::new(kind, format!("RoCE: {error}"))
    }
}
