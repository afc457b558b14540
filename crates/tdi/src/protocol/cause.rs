//! [`Cause`]: why a connection ended.

use std::fmt;

use smbdirect::{ConnectionError, Violation, engine::Expired};

use super::status::Status;

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// This end disconnected.
    LocalDisconnect,
    /// The peer disconnected.
    RemoteDisconnect,
    /// The RDMA connection was lost.
    LinkFailed(ConnectionError),
    /// The peer violated the SMB Direct protocol.
    ProtocolViolation(Violation),
    /// The peer did not answer a keepalive in time.
    IdleTimeout,
    /// The peer granted no credits in time while TSDUs waited for them.
    CreditTimeout,
    /// A TSDU that was passed to the connection, or whose sends had completed, was not sent in time.
    SendTimeout,
    /// The client neither accepted nor rejected an offer in time.
    OfferTimeout,
    /// A handler of the client panicked.
    HandlerPanicked,
}

impl Cause {
    /// Returns the status with which requests that were pending complete.
    pub const fn status(&self) -> Status {
        match self {
            Self::LocalDisconnect => Status::LOCAL_DISCONNECT,
            Self::RemoteDisconnect => Status::REMOTE_DISCONNECT,
            Self::LinkFailed(_) => Status::LINK_FAILED,
            Self::IdleTimeout | Self::CreditTimeout => Status::LINK_TIMEOUT,
            Self::OfferTimeout => Status::IO_TIMEOUT,
            Self::ProtocolViolation(_) | Self::SendTimeout | Self::HandlerPanicked => {
                Status::CONNECTION_ABORTED
            }
        }
    }
}

impl From<ConnectionError> for Cause {
    fn from(error: ConnectionError) -> Self {
        match error {
            ConnectionError::ClosedHere | ConnectionError::Aborted => Self::LocalDisconnect,
            ConnectionError::Closed => Self::RemoteDisconnect,
            ConnectionError::Violation(violation) => Self::ProtocolViolation(violation),
            ConnectionError::TimedOut(Expired::SendCreditGrant) => Self::CreditTimeout,
            ConnectionError::TimedOut(_) => Self::IdleTimeout,
            error => Self::LinkFailed(error),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LocalDisconnect => f.write_str("this end disconnected"),
            Self::RemoteDisconnect => f.write_str("the peer disconnected"),
            Self::LinkFailed(error) => write!(f, "the link failed: {error}"),
            Self::ProtocolViolation(violation) => {
                write!(f, "the peer broke the protocol: {violation}")
            }
            Self::IdleTimeout => f.write_str("the peer gave no sign of life"),
            Self::CreditTimeout => f.write_str("the peer gave no credits while TSDUs waited"),
            Self::SendTimeout => f.write_str("a TSDU was not sent in time"),
            Self::OfferTimeout => f.write_str("the offer was not decided on in time"),
            Self::HandlerPanicked => f.write_str("a handler of the client panicked"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    //= TDI-DISC-09 test
    #[test]
    fn each_connection_error_maps_to_a_cause_and_a_status() {
        let lost = ConnectionError::RefusedPeer(smbdirect::wire::Status::NOT_SUPPORTED);
        for (error, cause, status) in [
            (
                ConnectionError::Closed,
                Cause::RemoteDisconnect,
                Status::REMOTE_DISCONNECT,
            ),
            (
                ConnectionError::Aborted,
                Cause::LocalDisconnect,
                Status::LOCAL_DISCONNECT,
            ),
            (
                Violation::WithoutCredit.into(),
                Cause::ProtocolViolation(Violation::WithoutCredit),
                Status::CONNECTION_ABORTED,
            ),
            (
                ConnectionError::TimedOut(Expired::IdleConnection),
                Cause::IdleTimeout,
                Status::LINK_TIMEOUT,
            ),
            (
                ConnectionError::TimedOut(Expired::SendCreditGrant),
                Cause::CreditTimeout,
                Status::LINK_TIMEOUT,
            ),
            (lost.clone(), Cause::LinkFailed(lost), Status::LINK_FAILED),
        ] {
            assert_eq!(Cause::from(error), cause);
            assert_eq!(cause.status(), status);
            assert!(!cause.to_string().is_empty());
        }
        assert_eq!(Cause::OfferTimeout.status(), Status::IO_TIMEOUT);
        assert_eq!(Cause::SendTimeout.status(), Status::CONNECTION_ABORTED);
    }
}
