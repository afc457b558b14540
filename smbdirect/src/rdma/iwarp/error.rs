//! What can end an iWARP stream, and what the peer is told of it.

use thiserror::Error;

use super::{
    ddp::DdpError,
    mpa::CrcMismatch,
    rdmap::{Opcode, RdmapError, Terminate, TerminateCode},
};
use crate::rdma::{
    memory::AccessFault,
    work::{ProviderError, ProviderErrorKind, Token},
};

/// Why a stream broke.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StreamError {
    /// MPA: the CRC of an FPDU is wrong.
    #[error(transparent)]
    Crc(#[from] CrcMismatch),
    /// DDP: no segment.
    #[error(transparent)]
    Ddp(#[from] DdpError),
    /// RDMAP: no message that we know.
    #[error(transparent)]
    Rdmap(#[from] RdmapError),
    /// DDP: the queue does not go with the opcode.
    #[error("a {opcode:?} for queue {queue_number}")]
    QueueNumber {
        /// What the segment belongs to.
        opcode: Opcode,
        /// QN as received.
        queue_number: u32,
    },
    /// DDP: a message is missing, or came twice.
    #[error("message sequence number {received} where {expected} was due")]
    MessageSequenceNumber {
        /// The next in its queue.
        expected: u32,
        /// MSN as received.
        received: u32,
    },
    /// DDP: part of a message is missing, or came twice.
    #[error("message offset {received} where {expected} was due")]
    MessageOffset {
        /// Bytes of the message that have come.
        expected: u64,
        /// MO as received.
        received: u32,
    },
    /// DDP: a Send came and no receive was posted.
    #[error("a Send without a posted receive")]
    NoReceive,
    /// DDP: a Send is longer than the receive it takes.
    #[error("a Send of {length} bytes or more for a receive of {limit}")]
    MessageTooLong {
        /// Bytes that have come.
        length: u64,
        /// Bytes that the receive takes.
        limit: u32,
    },
    /// RDMAP: a message that is always one segment goes on in another.
    #[error("a {0:?} of more than one segment")]
    NotOneSegment(Opcode),
    /// The peer may not write where it wants to.
    #[error("RDMA Write: {0}")]
    Write(AccessFault),
    /// The peer may not read where it wants to.
    #[error("RDMA Read: {0}")]
    ReadSource(AccessFault),
    /// The peer may not invalidate what it wants to.
    #[error("Send with Invalidate of {token}: {fault}")]
    Invalidate {
        /// What it named.
        token: Token,
        /// Why it may not.
        fault: AccessFault,
    },
    /// The peer has more RDMA Reads outstanding than were granted to it.
    #[error("more than {granted} RDMA Reads at once")]
    TooManyReads {
        /// How many it may have.
        granted: u32,
    },
    /// A Read Response that answers nothing.
    #[error("a Read Response without a Read Request")]
    UnexpectedReadResponse,
    /// A Read Response for another buffer than the oldest Read Request names.
    #[error("a Read Response with STag 0x{received:08x} where 0x{expected:08x} was due")]
    ReadResponseStag {
        /// The sink of the oldest request.
        expected: u32,
        /// STag as received.
        received: u32,
    },
    /// A Read Response out of order, too long or too short.
    #[error("a Read Response that does not fit its Read Request")]
    ReadResponseBounds,
    /// The peer says that we are at fault.
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
    /// What to say to the peer; `None` if there is nobody to say it to.
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
            // No code says that a length cannot be; this one comes closest.
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

    /// Whether the Terminate shows the headers of the offending segment: wherever their layout
    /// is known to both ends.
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
            StreamError::Terminated(_) => ProviderErrorKind::Terminated,
            _ => ProviderErrorKind::Protocol,
        };
        Self::new(kind, format!("iWARP: {error}"))
    }
}
