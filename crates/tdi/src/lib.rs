//! SMB Direct with the interface of TDI, the Transport Driver Interface of Windows: each request
//! has a status and one completion, and handlers are called for events.
//!
//! As in TDI, "client" means the user of the transport, which can be an SMB client or an SMB
//! server. A TSDU (transport service data unit) is one [`Message`](smbdirect::Message). The objects
//! need a tokio runtime. [`Outbound`] and [`Inbound`] make the decisions without
//! a clock, a task or a socket.
//!
//! # From `TdiBuildSend` to `Endpoint::send`
//!
//! `TdiBuildSend` fills in an IRP, and `IoCallDriver` submits it. [`Endpoint::send`] does both.
//!
//! | parameter | here |
//! |---|---|
//! | `Irp` | none; the returned [`Sending`] is the request in progress, and can [cancel](InProgress::cancel) it |
//! | `DevObj` | the [`Transport`] that opened the endpoint |
//! | `FileObj` | the [`Endpoint`], associated and connected |
//! | `CompRoutine`, `Contxt` | `.await` of the [`Sending`], and the variables captured by the async block. Dropping the [`Sending`] is like a null routine: the send goes on. [`Endpoint::send_then`] calls a routine, in order with the handlers |
//! | `MdlAddr`, `SendLen` | the buffer: any type that is `Into<Message>`, such as a `Bytes`, a `Vec<u8>` or a chain of buffers. It belongs to the transport until the completion returns it |
//! | `InFlags` | [`SendFlags`], with the values of TDI |
//! | `IoStatus` | [`SendCompletion`]: `status`, and `information`, the number of bytes taken |
//! | `ZwWriteFile` | [`Endpoint::write`] |
//!
//! ```
//! # use std::sync::Arc;
//! # use bytes::BytesMut;
//! # use smbdirect::Loopback;
//! # use smbdirect_tdi::*;
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Status> {
//! # let transport = Transport::new(Arc::new(Loopback::new()), TransportSettings::default())?;
//! # let server = transport.open_address("127.0.0.1:445".parse().unwrap(), Share::Exclusive).await?;
//! # let peer = server.open_endpoint(());
//! # let listen = peer.listen(None);
//! # let remote = server.local_addr();
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
//! | `TdiBuildAssociateAddress`, `TdiBuildConnect`, `TdiBuildListen`, `TdiBuildAccept`, `TdiBuildDisconnect` | the methods of [`Endpoint`] with these names |
//! | `TDI_QUERY_ACCEPT` | [`Endpoint::listen_and_query`] |
//! | `TdiBuildReceive` | [`Endpoint::receive`] |
//! | `TdiBuildQueryInformation` | [`Transport::info`], [`Transport::statistics`], [`Endpoint::query_connection`] |
//! | `ClientEvent...` handlers | the methods of [`Client`] |
//! | `TdiReturnChainedReceives` | dropping the [`ChainedTsdu`] |
//! | NTSTATUS of a request | [`Status`] |
//! | `TDI_RECEIVE_...` | [`ReceiveFlags`] of a request, [`IndicationFlags`] of an indication |
//! | `TDI_DISCONNECT_...`, `TDI_SERVICE_...` | [`DisconnectFlags`], [`ServiceFlags`] |
//!
//! For async Rust, [`Endpoint::tsdus`] returns a stream, [`Endpoint::sink`] returns a sink,
//! [`Endpoint::begin_tsdu`] assembles a TSDU from parts, and [`Address::events`] returns the events
//! as a stream.
//!
//! # Differences from TDI
//!
//! SMB Direct cannot carry some features of TDI, and the
//! [service flags](ServiceFlags::SMB_DIRECT) do not include them:
//!
//! - EXPEDITED sends overtake normal sends at this end only. The peer receives a normal TSDU.
//! - The parts of PARTIAL sends are sent together, when the TSDU is complete.
//! - An empty TSDU is refused; [`Endpoint::force_send`] sends an empty SMB Direct message.
//! - There is no half-close, and no user data with connect and disconnect.
//!
//! Two properties come from Rust. A request is submitted by the call and not by the `.await`.
//! Handles are cheap to clone, and dropping the last one aborts, so keep the [`Address`] while its
//! endpoints listen, connect or need handlers.
#![cfg_attr(doctest, doc = include_str!("../README.md"))]
#![forbid(unsafe_code)]

mod adapters;
mod objects;
mod protocol;
mod session;

pub use adapters::{Event, Events, TsduSink, TsduWriter, Tsdus};
pub use objects::{
    Address, Client, ConnectAnswer, Endpoint, EndpointContext, Offer, Operation, SendOptions,
    Share, Transport, TransportSettings,
};
pub use protocol::{
    Answer, Cause, ChainedTsdu, ConnectionInfo, DisconnectFlags, EndpointState, Expedited, Inbound,
    Indication, IndicationFlags, NoResponse, NonBlocking, Outbound, OutboundTsdu, ProviderInfo,
    ProviderStatistics, ReceiveBuffer, ReceiveCompletion, ReceiveEvent, ReceiveFlags,
    ReceiveRequest, ReceiveSettings, ReceiveTarget, RequestId, ResourceStatistics,
    SendAvailability, SendCompletion, SendEvent, SendFlags, SendRequest, SendSettings,
    ServiceFlags, Severity, Status, Submission,
};
pub use session::{InProgress, Receiving, Requested, Sending, Submitted};
