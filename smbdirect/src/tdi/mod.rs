//! The face of TDI, Windows' Transport Driver Interface, for SMB Direct: its numbers, and the
//! decisions behind its send and receive requests.
//!
//! | TDI | here |
//! |---|---|
//! | NTSTATUS of a request | [`Status`] |
//! | `TDI_SEND_...` | [`SendFlags`] |
//! | `TDI_RECEIVE_...` | [`ReceiveFlags`] of a request, [`IndicationFlags`] of an indication |
//! | `TDI_DISCONNECT_...`, `TDI_SERVICE_...` | [`DisconnectFlags`], [`ServiceFlags`] |
//! | `TdiBuildSend` and what a transport owes it | [`SendRequest`], [`Outbound`] |
//! | `TdiBuildReceive`, and when handlers are called | [`ReceiveRequest`], [`Inbound`] |
//! | what `ClientEventReceive` is told, and returns | [`Indication`], [`Answer`] |
//! | the chain of `ClientEventChainedReceive` | [`ChainedTsdu`] |
//!
//! "Client" means the user of the transport, as in TDI, whichever side of SMB that is. A TSDU is
//! one [`Message`](crate::Message). Nothing here has a clock, a task or a socket.

#[cfg(feature = "tokio")]
mod adapters;
#[cfg(feature = "tokio")]
mod address;
#[cfg(feature = "tokio")]
mod client;
#[cfg(feature = "tokio")]
mod endpoint;
mod flags;
#[cfg(feature = "tokio")]
mod pending;
mod receive;
#[cfg(feature = "tokio")]
mod receives;
mod request;
mod send;
#[cfg(feature = "tokio")]
mod sends;
#[cfg(feature = "tokio")]
mod session;
#[cfg(all(test, feature = "tokio"))]
mod shuttled;
mod status;
/// The lock that `sends` is made with.
#[cfg(feature = "tokio")]
mod sync {
    pub(super) use std::sync::{Mutex, MutexGuard, PoisonError};
}
#[cfg(feature = "tokio")]
mod transport;

#[cfg(feature = "tokio")]
pub use adapters::{Event, Events, TsduSink, TsduWriter, Tsdus};
#[cfg(feature = "tokio")]
pub use address::{Address, Share};
#[cfg(feature = "tokio")]
pub use client::{Cause, Client, ConnectAnswer, Offer};
#[cfg(feature = "tokio")]
pub use endpoint::{Endpoint, EndpointContext, EndpointState, SendOptions};
pub use flags::{DisconnectFlags, IndicationFlags, ReceiveFlags, SendFlags, ServiceFlags};
#[cfg(feature = "tokio")]
pub use pending::{Receiving, Requested, Sending};
pub use receive::{
    Answer, ChainedTsdu, Inbound, Indication, ReceiveCompletion, ReceiveEvent, ReceiveRequest,
    ReceiveSettings,
};
pub use request::RequestId;
pub use send::{
    Expedited, NoResponse, NonBlocking, Outbound, OutboundTsdu, Outlook, SendCompletion, SendEvent,
    SendRequest, SendSettings, Submission,
};
pub use status::{Severity, Status};
#[cfg(feature = "tokio")]
pub use transport::{
    ConnectionInfo, ProviderInfo, ProviderStatistics, ResourceStatistics, Transport,
    TransportSettings,
};
