//! Why a connection ended, and why a call was refused.

use std::io;

use thiserror::Error;

use crate::{
    rdma::work::ProviderError,
    wire::{DecodeError, Status},
};

/// The rule that the peer broke: one variant for each MUST, in the specification's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Violation {
    /// SMBD-3.1.5.6-01: the Negotiate Request is shorter than 20 bytes.
    #[error("Negotiate Request of {length} bytes, 20 are needed (3.1.5.6)")]
    RequestTooShort {
        /// Bytes received.
        length: usize,
    },
    /// SMBD-3.1.5.6-04: the Negotiate Request requests no credits.
    #[error("Negotiate Request with CreditsRequested 0 (3.1.5.6)")]
    RequestWithoutCreditsRequested,
    /// SMBD-3.1.5.6-05: the initiator cannot receive a message of 128 bytes.
    #[error("Negotiate Request with MaxReceiveSize {0}, at least 128 is needed (3.1.5.6)")]
    RequestMaxReceiveSize(u32),
    /// SMBD-3.1.5.6-06: the initiator cannot reassemble a message of 131072 bytes.
    #[error("Negotiate Request with MaxFragmentedSize {0}, at least 131072 is needed (3.1.5.6)")]
    RequestMaxFragmentedSize(u32),
    /// SMBD-3.1.5.7-01: the Negotiate Response is shorter than 32 bytes.
    #[error("Negotiate Response of {length} bytes, 32 are needed (3.1.5.7)")]
    ResponseTooShort {
        /// Bytes received.
        length: usize,
    },
    /// SMBD-3.1.5.7-02: the acceptor chose a version that does not exist.
    #[error("Negotiate Response with NegotiatedVersion 0x{0:04x}, 0x0100 is needed (3.1.5.7)")]
    NegotiatedVersion(u16),
    /// SMBD-3.1.5.7-03: the acceptor cannot receive a message of 128 bytes.
    #[error("Negotiate Response with MaxReceiveSize {0}, at least 128 is needed (3.1.5.7)")]
    ResponseMaxReceiveSize(u32),
    /// SMBD-3.1.5.7-04: the acceptor cannot reassemble a message of 131072 bytes.
    #[error("Negotiate Response with MaxFragmentedSize {0}, at least 131072 is needed (3.1.5.7)")]
    ResponseMaxFragmentedSize(u32),
    /// SMBD-3.1.5.7-05: the acceptor granted no credits, so nothing could ever be sent.
    #[error("Negotiate Response with CreditsGranted 0 (3.1.5.7)")]
    ResponseWithoutCreditsGranted,
    /// SMBD-3.1.5.7-06: the acceptor requests no credits.
    #[error("Negotiate Response with CreditsRequested 0 (3.1.5.7)")]
    ResponseWithoutCreditsRequested,
    /// SMBD-3.1.5.7-07: the acceptor wants to send larger messages than this end can receive.
    #[error(
        "Negotiate Response with PreferredSendSize {preferred_send_size}, \
         above our MaxReceiveSize {max_receive_size} (3.1.5.7)"
    )]
    ResponsePreferredSendSize {
        /// The field as received.
        preferred_send_size: u32,
        /// Our own limit.
        max_receive_size: u32,
    },
    /// SMBD-3.1.5.8-01: a Data Transfer is shorter than its header.
    #[error("Data Transfer of {length} bytes, 20 are needed (3.1.5.8)")]
    DataTransferTooShort {
        /// Bytes received.
        length: usize,
    },
    /// SMBD-3.1.5.8-02: a Data Transfer requests no credits.
    #[error("Data Transfer with CreditsRequested 0 (3.1.5.8)")]
    WithoutCreditsRequested,
    /// SMBD-3.1.5.8-03: DataOffset is not a multiple of 8.
    #[error("Data Transfer with DataOffset {0}, not a multiple of 8 (3.1.5.8)")]
    DataOffsetAlignment(u32),
    /// SMBD-3.1.5.8-04: the payload ends after the end of the message.
    #[error(
        "Data Transfer with DataOffset {data_offset} and DataLength {data_length} \
         in a message of {length} bytes (3.1.5.8)"
    )]
    DataBeyondMessage {
        /// The field as received.
        data_offset: u32,
        /// The field as received.
        data_length: u32,
        /// Bytes received.
        length: usize,
    },
    /// SMBD-3.1.5.8-05: the upper-layer message is longer than this end reassembles.
    #[error(
        "Data Transfer with DataLength {data_length} and RemainingDataLength \
         {remaining_data_length}, above our MaxFragmentedSize {max_fragmented_size} (3.1.5.8)"
    )]
    AboveMaxFragmentedSize {
        /// The field as received.
        data_length: u32,
        /// The field as received.
        remaining_data_length: u32,
        /// Our own limit.
        max_fragmented_size: u32,
    },
    /// SMBD-3.1.5.8-11: the send credits exceed the specification's 16 bits.
    #[error("CreditsGranted {granted} on top of {held} credits held (3.1.5.8)")]
    TooManyCredits {
        /// Credits that this end held before.
        held: u16,
        /// Credits that the message granted.
        granted: u16,
    },
    /// SMBD-3.1.5.8-16, -18, -19, -20: a segment does not continue the message it is part of.
    #[error(
        "Data Transfer with DataLength {data_length} and RemainingDataLength \
         {remaining_data_length} while {expected} bytes of the message remained (3.1.5.8)"
    )]
    ReassemblyMismatch {
        /// The field as received.
        data_length: u32,
        /// The field as received.
        remaining_data_length: u32,
        /// Bytes of the message that were missing before this segment.
        expected: u32,
    },
    /// SMBD-3.1.5.1-04: the peer sent without a send credit.
    #[error("a message came although the peer held no send credit (3.1.5.1)")]
    WithoutCredit,
}

/// The timer that expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum Expired {
    /// Negotiation Timer (3.1.6.1).
    #[error("the Negotiation Timer")]
    Negotiation,
    /// Idle Connection Timer, while a keepalive was unanswered (3.1.6.2).
    #[error("the Idle Connection Timer, a keepalive was not answered")]
    IdleConnection,
    /// Send Credit Grant Timer: messages waited and the peer granted no credit.
    #[error("the Send Credit Grant Timer, the peer gave no credits while messages waited")]
    SendCreditGrant,
    /// Timer of a close: no outstanding message, read or write completed for
    /// [`keepalive_interval`](super::Settings::keepalive_interval).
    #[error("the wait for the last work before the close")]
    Close,
}

/// Why a connection ended. Every waiting call returns a copy.
///
/// [`is_retryable`](Self::is_retryable) tells whether a program that reconnects should try again:
///
/// | error | a new connection may succeed | because |
/// |---|---|---|
/// | `Closed`, `Truncated` | yes | the peer may have been restarted, or closes idle connections |
/// | `TimedOut` | yes | the peer was stopped or overloaded, or the network lost the messages |
/// | `Provider` | as [`ProviderErrorKind::is_retryable`](crate::rdma::work::ProviderErrorKind::is_retryable) | a peer that is down, unreachable or not known to the name server may come back; one that speaks another protocol stays as it is |
/// | `Refused` with `INSUFFICIENT_RESOURCES` | yes | the peer has no room for the connection now |
/// | `Refused` with another status, `RefusedPeer`, `Violation` | no | the two ends have no common version, or one has a bug |
/// | `ClosedHere`, `Aborted` | no | this program ended the connection |
/// | `TooLong` | no | the same message is too long for the next connection, too |
///
/// Wait between two tries, longer each time. The peer may have processed a message whether its future has
/// resolved or not: repeat a request only if the upper-layer protocol allows it to be done twice, or can tell
/// that it was done.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// The peer broke a rule of the specification.
    #[error("the peer broke the protocol: {0}")]
    Violation(Violation),
    /// The peer refused the negotiation with this NTSTATUS.
    #[error("the peer refused the negotiation with {0}")]
    Refused(Status),
    /// This end refused the negotiation with this NTSTATUS.
    #[error("the peer's negotiation was refused with {0}")]
    RefusedPeer(Status),
    /// A timer expired.
    #[error("time ran out: {0}")]
    TimedOut(Expired),
    /// The peer closed the connection gracefully.
    ///
    /// Over iWARP, the system of a peer whose process was killed ends TCP as a graceful close does, unless the peer had
    /// left received bytes unread: then this error is reported, too. An upper layer that has to know whether the peer
    /// was done ends its exchange by a message of its own.
    #[error("the peer closed the connection")]
    Closed,
    /// This end closed the connection gracefully.
    #[error("the connection was closed here")]
    ClosedHere,
    /// This end aborted the connection and dropped its outstanding work.
    #[error("the connection was aborted here")]
    Aborted,
    /// The RDMA connection was lost.
    #[error("the RDMA connection was lost: {0}")]
    Provider(ProviderError),
    /// The connection was closed, by either end, in the middle of a message of the peer. Calls that receive return
    /// this in place of [`Closed`](Self::Closed) and [`ClosedHere`](Self::ClosedHere).
    #[error("the connection was closed in the middle of a message, {missing} bytes are missing")]
    Truncated {
        /// Bytes of the message that have not arrived.
        missing: u32,
    },
    /// A message is longer than the peer reassembles (3.1.4.2). It was not sent, and the connection has not ended: a
    /// function with this type of error can use `?` on [`Connection::send`](crate::engine::Connection::send).
    #[error("a message of {length} bytes, the peer takes at most {max}")]
    TooLong {
        /// Bytes in the message.
        length: usize,
        /// MaxFragmentedSendSize.
        max: u32,
    },
}

impl ConnectionError {
    /// Every value that [`label`](Self::label) returns.
    pub const LABELS: &[&str] = &[
        "closed_here",
        "closed_by_peer",
        "too_long",
        "aborted",
        "violation",
        "refused_by_peer",
        "refused_here",
        "negotiation_timeout",
        "keepalive_timeout",
        "credit_timeout",
        "close_timeout",
        "rdma_address",
        "rdma_in_use",
        "rdma_refused",
        "rdma_timeout",
        "rdma_reset",
        "rdma_protocol",
        "rdma_terminated",
        "rdma_local",
    ];

    /// Returns the cause as a short name, for the labels of metrics. It is one of
    /// [`LABELS`](Self::LABELS), so the number of different names is bounded.
    pub const fn label(&self) -> &'static str {
        match self {
            Self::ClosedHere => "closed_here",
            Self::Closed | Self::Truncated { .. } => "closed_by_peer",
            Self::TooLong { .. } => "too_long",
            Self::Aborted => "aborted",
            Self::Violation(_) => "violation",
            Self::Refused(_) => "refused_by_peer",
            Self::RefusedPeer(_) => "refused_here",
            Self::TimedOut(Expired::Negotiation) => "negotiation_timeout",
            Self::TimedOut(Expired::IdleConnection) => "keepalive_timeout",
            Self::TimedOut(Expired::SendCreditGrant) => "credit_timeout",
            Self::TimedOut(Expired::Close) => "close_timeout",
            Self::Provider(error) => error.kind.label(),
        }
    }
}

impl ConnectionError {
    /// Returns whether a new connection to the same peer with the same settings may succeed. The documentation of
    /// [`ConnectionError`] gives the reasons.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Closed | Self::Truncated { .. } | Self::TimedOut(_) => true,
            Self::Refused(status) => *status == Status::INSUFFICIENT_RESOURCES,
            Self::Provider(error) => error.kind.is_retryable(),
            Self::Violation(_)
            | Self::RefusedPeer(_)
            | Self::ClosedHere
            | Self::Aborted
            | Self::TooLong { .. } => false,
        }
    }
}

// These are not `#[from]`, which would also make them the `source`: the text of a variant contains that of its
// cause, and code that prints the whole chain of sources would print the cause twice.
impl From<Violation> for ConnectionError {
    fn from(violation: Violation) -> Self {
        Self::Violation(violation)
    }
}

impl From<ProviderError> for ConnectionError {
    fn from(error: ProviderError) -> Self {
        Self::Provider(error)
    }
}

impl From<SendError> for ConnectionError {
    fn from(error: SendError) -> Self {
        match error {
            SendError::TooLong { length, max } => Self::TooLong { length, max },
            SendError::Connection(error) => error,
        }
    }
}

impl From<ConnectionError> for io::Error {
    fn from(error: ConnectionError) -> Self {
        let kind = match &error {
            ConnectionError::Violation(_) => io::ErrorKind::InvalidData,
            ConnectionError::Refused(_) | ConnectionError::RefusedPeer(_) => {
                io::ErrorKind::ConnectionRefused
            }
            ConnectionError::TimedOut(_) => io::ErrorKind::TimedOut,
            ConnectionError::ClosedHere => io::ErrorKind::NotConnected,
            ConnectionError::Closed => io::ErrorKind::ConnectionReset,
            ConnectionError::Truncated { .. } => io::ErrorKind::UnexpectedEof,
            ConnectionError::TooLong { .. } => io::ErrorKind::InvalidInput,
            ConnectionError::Aborted => io::ErrorKind::ConnectionAborted,
            ConnectionError::Provider(cause) => Self::from(cause.clone()).kind(),
        };
        Self::new(kind, error)
    }
}

/// Why a message was refused for sending. The connection is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SendError {
    /// The message is longer than the peer reassembles (3.1.4.2).
    #[error("a message of {length} bytes, the peer takes at most {max}")]
    TooLong {
        /// Bytes in the message.
        length: usize,
        /// MaxFragmentedSendSize.
        max: u32,
    },
    /// The connection has ended or is closing, so no message can be sent any more.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
}

impl From<SendError> for io::Error {
    fn from(error: SendError) -> Self {
        match error {
            SendError::TooLong { .. } => Self::new(io::ErrorKind::InvalidInput, error),
            SendError::Connection(error) => error.into(),
        }
    }
}

/// Why an RDMA Read or Write was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TransferFault {
    /// Offset plus length exceeds the memory that the descriptors describe.
    #[error("{needed} bytes of remote memory are needed, the descriptors have {described}")]
    BeyondDescriptors {
        /// Offset plus length.
        needed: u64,
        /// Sum of the lengths of the descriptors.
        described: u64,
    },
    /// Offset plus Length of a descriptor exceeds 64 bits.
    #[error("a descriptor's Offset and Length wrap around")]
    Wrap,
    /// The peer's MaxReadWriteSize, or the number of reads that may be outstanding, is zero.
    #[error("the peer does not take part in RDMA Reads or Writes")]
    Unsupported,
    /// The connection has ended or is closing.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
}

impl From<TransferFault> for io::Error {
    fn from(fault: TransferFault) -> Self {
        let kind = match fault {
            TransferFault::BeyondDescriptors { .. } | TransferFault::Wrap => {
                io::ErrorKind::InvalidInput
            }
            TransferFault::Unsupported => io::ErrorKind::Unsupported,
            TransferFault::Connection(error) => return error.into(),
        };
        Self::new(kind, fault)
    }
}

impl Violation {
    pub(super) fn of_data_transfer(error: DecodeError) -> Self {
        match error {
            DecodeError::TooShort { length, .. } => Self::DataTransferTooShort { length },
            DecodeError::DataOffsetAlignment { data_offset } => {
                Self::DataOffsetAlignment(data_offset)
            }
            DecodeError::DataBeyondMessage {
                data_offset,
                data_length,
                length,
            } => Self::DataBeyondMessage {
                data_offset,
                data_length,
                length,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rdma::work::ProviderErrorKind;

    #[test]
    fn each_connection_error_maps_to_an_io_error_kind() {
        use io::ErrorKind::*;
        let provider = |kind| ProviderError::new(kind, "why").into();
        for (error, kind) in [
            (Violation::WithoutCredit.into(), InvalidData),
            (
                ConnectionError::Refused(Status::NOT_SUPPORTED),
                ConnectionRefused,
            ),
            (
                ConnectionError::RefusedPeer(Status::NOT_SUPPORTED),
                ConnectionRefused,
            ),
            (ConnectionError::TimedOut(Expired::IdleConnection), TimedOut),
            (ConnectionError::ClosedHere, NotConnected),
            (ConnectionError::Closed, ConnectionReset),
            (ConnectionError::Aborted, ConnectionAborted),
            (provider(ProviderErrorKind::Refused), ConnectionRefused),
            (provider(ProviderErrorKind::Rejected), ConnectionRefused),
            (
                provider(ProviderErrorKind::PortUnreachable),
                ConnectionRefused,
            ),
            (provider(ProviderErrorKind::OtherProtocol), InvalidData),
            (provider(ProviderErrorKind::TimedOut), TimedOut),
            (provider(ProviderErrorKind::Address), AddrNotAvailable),
            (provider(ProviderErrorKind::InUse), AddrInUse),
            (provider(ProviderErrorKind::Protocol), InvalidData),
            (provider(ProviderErrorKind::Local), Other),
            (provider(ProviderErrorKind::Reset), ConnectionReset),
            (provider(ProviderErrorKind::Terminated), ConnectionReset),
        ] {
            let words = error.to_string();
            assert!(ConnectionError::LABELS.contains(&error.label()), "{words}");
            let error = io::Error::from(error);
            assert_eq!((error.kind(), error.to_string()), (kind, words));
        }
    }

    #[test]
    fn what_may_be_over_later_is_worth_a_retry() {
        let provider = |kind| ConnectionError::from(ProviderError::new(kind, "why"));
        let refused = ConnectionError::Refused;
        for error in [
            ConnectionError::Closed,
            ConnectionError::TimedOut(Expired::IdleConnection),
            refused(Status::INSUFFICIENT_RESOURCES),
            provider(ProviderErrorKind::Refused),
            provider(ProviderErrorKind::Rejected),
            provider(ProviderErrorKind::PortUnreachable),
            provider(ProviderErrorKind::Address),
            provider(ProviderErrorKind::TimedOut),
            provider(ProviderErrorKind::Reset),
        ] {
            assert!(error.is_retryable(), "{error}");
        }
        for error in [
            ConnectionError::ClosedHere,
            ConnectionError::Aborted,
            Violation::WithoutCredit.into(),
            refused(Status::NOT_SUPPORTED),
            ConnectionError::RefusedPeer(Status::INSUFFICIENT_RESOURCES),
            provider(ProviderErrorKind::InUse),
            provider(ProviderErrorKind::Protocol),
            provider(ProviderErrorKind::OtherProtocol),
            provider(ProviderErrorKind::Terminated),
            provider(ProviderErrorKind::Local),
        ] {
            assert!(!error.is_retryable(), "{error}");
        }
    }

    #[test]
    fn the_text_of_an_error_contains_its_cause_and_the_chain_does_not_repeat_it() {
        use std::error::Error as _;
        let violation = Violation::WithoutCredit;
        let error = ConnectionError::from(violation);
        assert!(error.to_string().contains(&violation.to_string()));
        assert!(error.source().is_none());
    }
}
