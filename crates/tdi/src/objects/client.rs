//! [`Client`]: the event handlers of the transport's user, one method for each event of TDI.
//!
//! These are the only callbacks of the library. The return value of a handler tells the transport
//! what to do next. The default methods do what TDI does for an event without a handler.

use std::net::SocketAddr;

use smbdirect::Token;

use super::{
    address::Address,
    endpoint::{Endpoint, EndpointContext},
};
use crate::protocol::{
    Answer, Cause, ChainedTsdu, DisconnectFlags, Indication, ReceiveCompletion, Status,
};

/// Handlers for the events of an address and its endpoints; see
/// [`Address::set_client`](super::Address::set_client).
///
/// The handlers of one endpoint are called one at a time, on the task of its connection. They must
/// not block, because they keep other tasks from running. They may submit requests, but must not
/// wait for their completion. A handler that panics ends its connection and nothing else.
///
/// `C` is the context of the endpoints, which TDI calls ConnectionContext.
#[expect(
    unused_variables,
    reason = "the default handlers do nothing with what they are given"
)]
pub trait Client<C: EndpointContext = ()>: Send + Sync + 'static {
    /// Handles TDI_EVENT_CONNECT: a peer wants to connect to `address`, and no pending listen
    /// accepts it.
    fn connect(&self, address: &Address<C>, offer: &Offer) -> ConnectAnswer<C> {
        ConnectAnswer::Refuse
    }

    /// Handles the result of an acceptance: whether the connection of an offer that
    /// [`connect`](Self::connect) accepted was established. After this call the endpoint is closed
    /// unless the client has kept a handle.
    fn accept_completed(&self, endpoint: &Endpoint<C>, result: Result<(), Status>) {}

    /// Handles TDI_EVENT_RECEIVE: bytes of a TSDU have arrived.
    fn receive(&self, endpoint: &Endpoint<C>, indication: Indication) -> Answer {
        Answer::NotAccepted(0)
    }

    /// Returns whether [`chained_receive`](Self::chained_receive) is called for whole TSDUs. If it
    /// is not, [`receive`](Self::receive) is. This method is called before each indication and must
    /// be fast.
    fn takes_chained(&self) -> bool {
        false
    }

    /// Handles TDI_EVENT_CHAINED_RECEIVE: a whole TSDU has arrived and is lent to the client.
    ///
    /// The client returns the memory by dropping the TSDU, in the handler or later. A TSDU that the
    /// handler returns as an error is held for a receive.
    ///
    /// # Errors
    /// The TSDU, if it is not accepted.
    fn chained_receive(
        &self,
        endpoint: &Endpoint<C>,
        tsdu: ChainedTsdu,
    ) -> Result<(), ChainedTsdu> {
        Err(tsdu)
    }

    /// Handles the completion of the request that [`receive`](Self::receive) returned.
    fn receive_completed(&self, endpoint: &Endpoint<C>, completion: ReceiveCompletion) {}

    /// Handles TDI_EVENT_SEND_POSSIBLE: after a refused non-blocking send, the send buffer has
    /// `available` free bytes again. They are not reserved for this client.
    fn send_possible(&self, endpoint: &Endpoint<C>, available: usize) {}

    /// Handles the invalidation of a registration of this end by a message of the peer without
    /// payload. The token of a message with payload is reported with the end of its TSDU.
    fn invalidated(&self, endpoint: &Endpoint<C>, token: Token) {}

    /// Handles TDI_EVENT_DISCONNECT: the connection has ended without a request of this client, or an
    /// offer was not accepted in time ([`OfferTimeout`](crate::Cause::OfferTimeout)).
    ///
    /// This is the last event of the connection, and the endpoint can be connected again. Discard a
    /// TSDU whose end was not indicated. Data that is held for receives can still be received.
    ///
    /// The flags are always [`ABORT`](DisconnectFlags::ABORT), because SMB Direct has no orderly
    /// release.
    fn disconnect(&self, endpoint: &Endpoint<C>, flags: DisconnectFlags, cause: &Cause) {}

    /// Handles TDI_EVENT_ERROR: peers cannot connect to this address any more. The listens that
    /// were pending have completed with `status`.
    fn error(&self, status: Status) {}
}

/// A peer that wants to connect.
#[derive(Clone, Debug)]
pub struct Offer {
    /// The address of the peer.
    pub remote_address: SocketAddr,
}

/// The answer of [`Client::connect`] to an [`Offer`].
#[derive(Debug)]
pub enum ConnectAnswer<C: EndpointContext = ()> {
    /// MORE_PROCESSING_REQUIRED: this endpoint accepts the connection. It must be associated with
    /// the address and have no connection; otherwise the peer is refused.
    Accept(Endpoint<C>),
    /// CONNECTION_REFUSED: the peer is refused, unless another client that shares the address
    /// accepts it.
    Refuse,
    /// INSUFFICIENT_RESOURCES: the peer is refused.
    NoResources,
}
