//! The face of TDI, Windows' Transport Driver Interface, for SMB Direct: message by message, with
//! a status and a completion for each request, and handlers for what comes.
//!
//! "Client" means the user of the transport, as in TDI, whichever side of SMB that is. A TSDU is
//! one [`Message`](crate::Message). The objects need a tokio runtime (feature `tokio`); the
//! decisions behind them, [`Outbound`] and [`Inbound`], have no clock, no task and no socket.
//!
//! # From `TdiBuildSend` to `Endpoint::send`
//!
//! `TdiBuildSend` fills in an IRP, and `IoCallDriver` submits it. [`Endpoint::send`] does both.
//!
//! | parameter | here |
//! |---|---|
//! | `Irp` | none to allocate; [`Sending`] is the request under way, and can [cancel](Sending::cancel) it |
//! | `DevObj` | the [`Transport`] that opened the endpoint |
//! | `FileObj` | the [`Endpoint`], associated and connected |
//! | `CompRoutine`, `Contxt` | `.await` of the [`Sending`], and what is captured around it; dropped, it is a null routine, and the send goes on |
//! | `MdlAddr`, `SendLen` | the buffer, anything that is `Into<Message>`: a `Bytes`, a `Vec<u8>`, a chain of several. It belongs to the transport until the completion gives it back |
//! | `InFlags` | [`SendFlags`], with TDI's numbers |
//! | `IoStatus` | [`SendCompletion`]: `status`, and `information`, the bytes taken |
//! | `ZwWriteFile` | [`Endpoint::write`] |
//!
//! ```
//! # use std::sync::Arc;
//! # use bytes::BytesMut;
//! # use smbdirect::{rdma::loopback::Loopback, tdi::*};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Status> {
//! # let transport = Transport::new(Arc::new(Loopback::new()), TransportSettings::default())?;
//! # let server = transport.open_address("127.0.0.1:445".parse().unwrap(), Share::Exclusive).await?;
//! # let peer = server.open_endpoint(());
//! # let listen = peer.listen(None);
//! # let remote = server.local_address();
//! let address = transport.open_any_address();
//! let endpoint = address.open_endpoint(());
//! endpoint.connect(remote, None).await?;
//!
//! let hello = endpoint.send("hello, ", SendFlags::PARTIAL).await;
//! assert_eq!((hello.status, hello.information), (Status::SUCCESS, 7));
//! let world = endpoint.send("world", SendFlags::empty()).await;
//! assert_eq!(world.buffer.into_bytes(), "world");
//! endpoint.disconnect(DisconnectFlags::RELEASE, None).await?;
//! # listen.await?;
//! # let received = peer.receive(BytesMut::zeroed(100), ReceiveFlags::empty()).await;
//! # assert_eq!(&received.into_data()?[..], b"hello, world");
//! # Ok(())
//! # }
//! ```
//!
//! # The other requests, and the events
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
//! as a stream.
//!
//! # What is different
//!
//! SMB Direct has no place for some of TDI on the wire, and the
//! [service flags](ServiceFlags::SMB_DIRECT) do not promise it:
//!
//! - EXPEDITED overtakes at this end only. The peer receives a normal TSDU.
//! - The parts of PARTIAL sends leave together, when the TSDU is complete.
//! - A TSDU of no bytes is refused; [`Endpoint::poke`] forces protocol flow.
//! - There is no half-close, and no data with connect and disconnect.
//!
//! And in Rust, requests are submitted by the call and not by the await; handles are cheap to
//! clone, and the drop of the last one aborts, so keep the [`Address`] for as long as its endpoints
//! are to listen, to connect and to have handlers.

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
#[cfg(feature = "tokio")]
mod state;
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
pub use endpoint::{Endpoint, EndpointContext, SendOptions};
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
#[cfg(feature = "tokio")]
pub use state::EndpointState;
pub use status::{Severity, Status};
#[cfg(feature = "tokio")]
pub use transport::{
    ConnectionInfo, ProviderInfo, ProviderStatistics, ResourceStatistics, Transport,
    TransportSettings,
};
