//! The face of TDI, Windows' Transport Driver Interface, for SMB Direct: message by message, with
//! a status and a completion for each request, and handlers for what comes.
//!
//! From `TdiBuildSend` to the same thing here:
//!
//! | `TdiBuildSend` | here |
//! |---|---|
//! | `Irp`, `DevObj` | nothing: the call submits the request |
//! | `FileObj` | the [`Endpoint`], connected, that [`send`](Endpoint::send) is called on |
//! | `CompRoutine`, `Contxt` | the future [`Sending`]; dropped, it is a routine of `NULL` |
//! | `MdlAddr`, `SendLen` | the buffer, which knows its length; a chain is a [`Message`](crate::Message) of several |
//! | `InFlags` | [`SendFlags`] |
//! | `IoStatus.Status`, `.Information` | [`SendCompletion`], which also gives the buffer back |
//!
//! ```
//! # use std::sync::Arc;
//! use smbdirect::tdi::{SendFlags, Share, Status, Transport, TransportSettings};
//! # use smbdirect::rdma::loopback::Loopback;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Status> {
//! # let provider = Arc::new(Loopback::new());
//! let transport = Transport::new(provider, TransportSettings::default())?;
//! # let server = transport.open_address("127.0.0.1:445".parse().unwrap(), Share::Exclusive).await?;
//! # let peer = server.open_endpoint(());
//! # let listen = peer.listen(None);
//! # let remote = server.local_address();
//! let address = transport.open_any_address();
//! let endpoint = address.open_endpoint(());
//! endpoint.connect(remote, None).await?;
//!
//! let sending = endpoint.send("a TSDU", SendFlags::NON_BLOCKING);
//! let completion = sending.await;
//! assert_eq!((completion.status, completion.information), (Status::SUCCESS, 6));
//! # Ok(())
//! # }
//! ```
//!
//! The other requests and events:
//!
//! | TDI | here |
//! |---|---|
//! | transport device, control channel | [`Transport`] |
//! | address object, `TdiBuildSetEventHandler` | [`Address`], [`Address::set_client`] |
//! | connection endpoint, ConnectionContext | [`Endpoint`], [`Endpoint::context`] |
//! | `TdiBuildAssociateAddress`, `TdiBuildConnect`, `TdiBuildListen`, `TdiBuildAccept`, `TdiBuildDisconnect` | methods of [`Endpoint`] of these names |
//! | `TDI_QUERY_ACCEPT` | [`Endpoint::listen_and_query`] |
//! | `TdiBuildReceive` | [`Endpoint::receive`] |
//! | `TdiBuildQueryInformation` | [`Transport::info`], [`Transport::statistics`], [`Endpoint::query_connection`] |
//! | `ClientEvent...` handlers | methods of [`Client`] |
//! | `TdiReturnChainedReceives` | dropping the [`ChainedTsdu`] |
//! | NTSTATUS of a request | [`Status`] |
//! | `TDI_RECEIVE_...` | [`ReceiveFlags`] of a request, [`IndicationFlags`] of an indication |
//! | `TDI_DISCONNECT_...`, `TDI_SERVICE_...` | [`DisconnectFlags`], [`ServiceFlags`] |
//!
//! For those who come from async Rust: [`Endpoint::tsdus`] is a stream, [`Endpoint::sink`] a sink,
//! [`Endpoint::begin_tsdu`] puts a TSDU together from parts, and [`Address::events`] has the events
//! as a stream. The decisions behind it all are [`Outbound`] and [`Inbound`], without clock, task
//! or socket.
//!
//! What SMB Direct cannot carry is not promised by the [service flags](ServiceFlags::SMB_DIRECT):
//! expedited data at the receiver (an expedited send overtakes at this end only), TSDUs of no
//! bytes, data with a connect or disconnect, and a connection that is open in one direction.
//!
//! "Client" means the user of the transport, as in TDI, whichever side of SMB that is. A TSDU is
//! one [`Message`](crate::Message).

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
