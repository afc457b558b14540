//! [`Client`]: the event handlers of whoever uses the transport, one method an event.
//!
//! These are the only callbacks of the library. What a handler returns steers the transport, and
//! the defaults are those of TDI for an event that nobody has a handler for.

use std::{fmt, net::SocketAddr};

use super::{
    address::Address,
    endpoint::{Endpoint, EndpointContext},
    flags::DisconnectFlags,
    receive::{Answer, ChainedTsdu, Indication, ReceiveCompletion},
    status::Status,
};
use crate::{
    engine::{ConnectionError, Expired, Initiator, Violation},
    rdma::work::Token,
};

/// Handlers for what happens on the endpoints of an address; see
/// [`Address::set_client`](super::Address::set_client).
///
/// For one endpoint they are called one after another, on the task of its connection, and must
/// not block: others wait meanwhile. They may submit requests, and wait for none. A handler that
/// panics costs its connection, and nothing else.
///
/// `C` is the context of the endpoints, what TDI calls ConnectionContext.
pub trait Client<C: EndpointContext = ()>: Send + Sync + 'static {
    /// TDI_EVENT_CONNECT: a peer wants to connect to `address`, and no pending listen is for it.
    fn connect(&self, address: &Address<C>, offer: &Offer) -> ConnectAnswer<C> {
        let _ = (address, offer);
        ConnectAnswer::Refuse
    }

    /// What became of an offer that [`connect`](Self::connect) has accepted. From here on the
    /// endpoint lives as long as somebody has a handle of it.
    fn accept_completed(&self, endpoint: &Endpoint<C>, result: Result<(), Status>) {
        let _ = (endpoint, result);
    }

    /// TDI_EVENT_RECEIVE: bytes of a TSDU are here.
    fn receive(&self, endpoint: &Endpoint<C>, indication: Indication) -> Answer {
        let _ = (endpoint, indication);
        Answer::NotAccepted(0)
    }

    /// Whether [`chained_receive`](Self::chained_receive) is to be called at all. If not, TSDUs
    /// go to [`receive`](Self::receive).
    fn takes_chained(&self) -> bool {
        false
    }

    /// TDI_EVENT_CHAINED_RECEIVE: a whole TSDU, lent. Dropped, here or later, it is given back;
    /// returned, it is held for a receive.
    ///
    /// # Errors
    /// The TSDU, if it is not accepted.
    fn chained_receive(
        &self,
        endpoint: &Endpoint<C>,
        tsdu: ChainedTsdu,
    ) -> Result<(), ChainedTsdu> {
        let _ = endpoint;
        Err(tsdu)
    }

    /// The request that [`receive`](Self::receive) has returned is over.
    fn receive_completed(&self, endpoint: &Endpoint<C>, completion: ReceiveCompletion) {
        let _ = (endpoint, completion);
    }

    /// TDI_EVENT_SEND_POSSIBLE: after a refused non-blocking send there is room again, now for so
    /// many bytes, of which none is set aside.
    fn send_possible(&self, endpoint: &Endpoint<C>, available: usize) {
        let _ = (endpoint, available);
    }

    /// The peer has invalidated a registration of ours by a message without bytes. With bytes, the
    /// token comes with the end of the TSDU.
    fn invalidated(&self, endpoint: &Endpoint<C>, token: Token) {
        let _ = (endpoint, token);
    }

    /// TDI_EVENT_DISCONNECT: the connection is over, and not by a request of this end. The last
    /// event of the connection; the endpoint can be connected again from here on. A TSDU of which
    /// the end was not indicated is to be thrown away. What was held for receives can be received.
    ///
    /// The flags are always [`ABORT`](DisconnectFlags::ABORT), since SMB Direct has no other end.
    fn disconnect(&self, endpoint: &Endpoint<C>, flags: DisconnectFlags, cause: &Cause) {
        let _ = (endpoint, flags, cause);
    }

    /// TDI_EVENT_ERROR: nothing will be offered on this address any more.
    fn error(&self, status: Status) {
        let _ = status;
    }
}

/// A peer that wants to connect.
#[derive(Clone, Debug)]
pub struct Offer {
    /// The peer.
    pub remote_address: SocketAddr,
}

/// What [`Client::connect`] makes of an [`Offer`].
#[derive(Debug)]
pub enum ConnectAnswer<C: EndpointContext = ()> {
    /// MORE_PROCESSING_REQUIRED: the connection is for this endpoint, which has to be associated
    /// with the address and otherwise idle. Else the peer is turned away.
    Accept(Endpoint<C>),
    /// CONNECTION_REFUSED: the peer is turned away, unless another who shares the address wants it.
    Refuse,
    /// INSUFFICIENT_RESOURCES: the peer is turned away.
    NoResources,
}

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// A disconnect of this end.
    LocalDisconnect,
    /// The peer ended it.
    RemoteDisconnect,
    /// The RDMA connection was lost.
    LinkFailed(ConnectionError),
    /// The peer broke a rule of SMB Direct.
    ProtocolViolation(Violation),
    /// The peer gave no sign of life.
    IdleTimeout,
    /// The peer gave no credits while TSDUs waited.
    CreditTimeout,
    /// A TSDU that had begun to leave, or was promised to, was not sent in time.
    SendTimeout,
    /// An offer was neither accepted nor rejected in time.
    OfferTimeout,
    /// A handler of the client's has panicked.
    HandlerPanicked,
}

impl Cause {
    /// What requests end with that were pending.
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
            ConnectionError::Closed(Initiator::Local) | ConnectionError::Aborted => {
                Self::LocalDisconnect
            }
            ConnectionError::Closed(Initiator::Remote) => Self::RemoteDisconnect,
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
            Self::HandlerPanicked => f.write_str("a handler of the client's panicked"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    //= TDI-DISC-09 test
    #[test]
    fn every_end_has_its_cause_and_status() {
        let lost = ConnectionError::RefusedPeer(crate::wire::Status::NOT_SUPPORTED);
        for (error, cause, status) in [
            (
                ConnectionError::Closed(Initiator::Remote),
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
