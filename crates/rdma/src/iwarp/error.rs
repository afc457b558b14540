//! The errors that end an iWARP stream, and the Terminate codes that tell the peer.

use thiserror::Error;

use super::{
    ddp::DdpError,
    mpa::CrcMismatch,
    rdmap::{Opcode, RdmapError, Terminate, TerminateCode},
};
use crate::{
    memory::AccessFault,
    work::{ProviderError, ProviderErrorKind, Token},
};

/// The reason why a stream broke.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StreamError {
    /// MPA: the CRC of an FPDU is wrong.
    #[error(transparent)]
    Crc(#[from] CrcMismatch),
    /// DDP: the bytes are not a segment.
    #[error(transparent)]
    Ddp(#[from] DdpError),
    /// RDMAP: the message is unknown.
    #[error(transparent)]
    Rdmap(#[from] RdmapError),
    /// DDP: the queue does not match the opcode.
    #[error("a {opcode:?} for queue {queue_number}")]
    QueueNumber {
        /// The opcode of the segment.
        opcode: Opcode,
        /// QN as received.
        queue_number: u32,
    },
    /// DDP: a message is missing or duplicated.
    #[error("message sequence number {received} where {expected} was due")]
    MessageSequenceNumber {
        /// The next MSN of the queue.
        expected: u32,
        /// MSN as received.
        received: u32,
    },
    /// DDP: a part of a message is missing or duplicated.
    #[error("message offset {received} where {expected} was due")]
    MessageOffset {
        /// The bytes of the message that have arrived.
        expected: u64,
        /// MO as received.
        received: u32,
    },
    /// DDP: a Send arrived and no receive was posted.
    #[error("a Send without a posted receive")]
    NoReceive,
    /// DDP: a Send is longer than its receive.
    #[error("a Send of {length} bytes or more for a receive of {limit}")]
    MessageTooLong {
        /// The bytes that have arrived.
        length: u64,
        /// The bytes that the receive accepts.
        limit: u32,
    },
    /// RDMAP: a message that has to be one segment has several.
    #[error("a {0:?} of more than one segment")]
    NotOneSegment(Opcode),
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
    /// A Read Response arrived without an outstanding Read Request.
    #[error("a Read Response without a Read Request")]
    UnexpectedReadResponse,
    /// A Read Response names another buffer than the oldest Read Request.
    #[error("a Read Response with STag 0x{received:08x} where 0x{expected:08x} was due")]
    ReadResponseStag {
        /// The sink STag of the oldest request.
        expected: u32,
        /// STag as received.
        received: u32,
    },
    /// A Read Response is out of order, too long or too short.
    #[error("a Read Response that does not fit its Read Request")]
    ReadResponseBounds,
    /// The peer sent a Terminate.
    #[error("the peer sent {0}")]
    Terminated(Terminate),
    /// TCP ended inside an FPDU or a message.
    #[error("the TCP connection ended inside a message")]
    Truncated,
    /// TCP failed.
    #[error("{0}")]
    Lost(ProviderError),
}

impl StreamError {
    /// Returns the code of the Terminate to send, or `None` if no Terminate can reach the peer or
    /// none is needed.
    pub fn terminate_code(&self) -> Option<TerminateCode> {
        let tagged = |fault: &AccessFault| match fault {
            // DDP has no code for missing rights.
            AccessFault::InvalidToken | AccessFault::Rights => 0,
            AccessFault::Bounds => 1,
            AccessFault::Wrap => 3,
        };
        let protection = |fault: &AccessFault| match fault {
            AccessFault::InvalidToken => 0,
            AccessFault::Bounds => 1,
            AccessFault::Rights => 2,
            AccessFault::Wrap => 4,
        };
        let (layer, error_type, error_code) = match self {
            Self::Crc(_) => (2, 0, 2),
            // The RFCs have no code for an impossible length. This code is the closest.
            Self::Ddp(DdpError::TooShort { .. }) | Self::Rdmap(RdmapError::Length { .. }) => {
                (2, 0, 3)
            }
            Self::Ddp(DdpError::TaggedVersion(_)) => (1, 1, 4),
            Self::Ddp(DdpError::UntaggedVersion(_)) => (1, 2, 6),
            Self::Rdmap(RdmapError::Version(_)) => (0, 2, 5),
            Self::Rdmap(RdmapError::Opcode(_)) | Self::UnexpectedReadResponse => (0, 2, 6),
            Self::QueueNumber { .. } => (1, 2, 1),
            Self::NoReceive => (1, 2, 2),
            Self::MessageSequenceNumber { .. } => (1, 2, 3),
            Self::MessageOffset { .. } => (1, 2, 4),
            Self::MessageTooLong { .. } => (1, 2, 5),
            Self::NotOneSegment(_) => (0, 2, 0xff),
            Self::Write(fault) => (1, 1, tagged(fault)),
            Self::ReadSource(fault) => (0, 1, protection(fault)),
            Self::Invalidate { .. } => (0, 1, 9),
            Self::TooManyReads { .. } => (0, 2, 7),
            Self::ReadResponseStag { .. } => (1, 1, 0),
            Self::ReadResponseBounds => (1, 1, 1),
            //= RDMAP-20
            Self::Terminated(_) | Self::Truncated | Self::Lost(_) => return None,
        };
        Some(TerminateCode::new(layer, error_type, error_code))
    }

    /// Returns whether a Terminate with this code contains the headers of the offending segment.
    pub(super) const fn shows_headers(code: TerminateCode) -> bool {
        matches!(
            (code.layer, code.error_type, code.error_code),
            (1, 1 | 2, _) | (0, 1, _) | (0, 2, 7)
        )
    }
}

impl From<StreamError> for ProviderError {
    fn from(error: StreamError) -> Self {
        let kind = match error {
            StreamError::Lost(error) => return error,
            StreamError::Truncated => ProviderErrorKind::Reset,
            //= RDMAP-20
            StreamError::Terminated(ref terminate)
                if terminate.code() == TerminateCode::LOCAL_CATASTROPHIC =>
            {
                ProviderErrorKind::Reset
            }
            StreamError::Terminated(_) => ProviderErrorKind::Terminated,
            _ => ProviderErrorKind::Protocol,
        };
        Self::new(kind, format!("iWARP: {error}"))
    }
}
