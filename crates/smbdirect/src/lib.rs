//! SMB Direct ([MS-SMBD], the RDMA transport of SMB3) in user space.
//!
//! A `Connection` carries messages of any length between two ends, with flow control by credits, and gives each
//! end RDMA access to buffers that the other has registered. It runs on a provider of RDMA: `Iwarp` speaks
//! iWARP over plain TCP and needs no adapter, no kernel module and no root; `rdma::roce::Roce` speaks RoCEv2 over
//! UDP; `Loopback` connects ends in one process; the package `smbdirect-verbs` uses RDMA adapters through rdma-core.
//!
//! ```text
//!    an SMB server or client, a gateway, or another upper layer
//!   ┌─────────────────────────────────────────────────────────────────┐
//!   │ Connection, Listener    send, recv, register, read, write       │  async, on tokio
//!   ├─────────────────────────────────────────────────────────────────┤
//!   │ engine                  credits, fragments, timers              │  no I/O, no clock
//!   │ wire                    bytes to values and back                │
//!   ├─────────────────────────────────────────────────────────────────┤
//!   │ rdma                    queue pairs and memory; the providers   │
//!   └─────────────────────────────────────────────────────────────────┘
//! ```
//!
//! ```
//! # #[cfg(feature = "tokio")]
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use bytes::BytesMut;
//! use smbdirect::{Access, Config, Connection, Iwarp, IwarpConfig, Listener};
//!
//! let provider = Iwarp::new(IwarpConfig::default());
//! let mut listener = Listener::bind(&provider, "127.0.0.1:0", Config::default()).await?;
//! let address = listener.local_addr();
//! let client = Connection::connect(&provider, address, Config::default()).await?;
//! let server = listener.accept().await?;
//!
//! // A message. The future resolves when its last segment was handed to the wire.
//! client.send("hello")?.await?;
//! assert_eq!(server.recv().await?.into_bytes(), "hello");
//!
//! // Bulk data. An upper layer sends the descriptor to its peer in a message.
//! let region = client.register(BytesMut::zeroed(4), Access::REMOTE_WRITE)?;
//! server.write(&[region.descriptor()], 0, "data").await?;
//! server.send("done")?.await?;
//! client.recv().await?;
//! assert_eq!(region.deregister().await?, "data");
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "tokio"))]
//! # fn main() {}
//! ```
//!
//! | module | for |
//! |---|---|
//! | the root | programs that send and receive: connection, listener, settings, errors |
//! | [`engine`] | programs with an event loop of their own: the protocol without I/O |
//! | [`wire`] | programs that read or build messages: the structures of [MS-SMBD] 2.2 |
//! | [`rdma`] | authors of providers, and settings of those that are here |
//! | [`deadline`] | upper layers with deadlines of their own: a stall of this process is not the peer's fault |
//!
//! | feature | adds |
//! |---|---|
//! | `tokio` (default) | connection, listener, and iWARP and RoCE over sockets |
//! | `metrics` | the module `metrics`: figures over all connections of the process |
//!
//! [`rdma::provider`], [`rdma::work`] and [`rdma::memory`] are the interface to providers. They may change in any
//! release, and are exempt from the promise of stability of the rest.
//!
//! [MS-SMBD]: https://learn.microsoft.com/en-us/openspecs/windows_protocols/ms-smbd/
#![cfg_attr(doctest, doc = include_str!("../README.md"))]
#![forbid(unsafe_code)]

pub mod engine;
#[cfg(feature = "metrics")]
pub mod metrics;
pub mod wire;

pub use smbdirect_rdma as rdma;
#[doc(no_inline)]
pub use smbdirect_rdma::deadline;

#[cfg(feature = "tokio")]
mod connection;
#[cfg(feature = "tokio")]
mod driver;
#[cfg(feature = "tokio")]
mod inbox;
#[cfg(feature = "tokio")]
mod incoming;
#[cfg(feature = "tokio")]
mod listener;
#[cfg(all(unix, feature = "tokio"))]
mod stream;
#[cfg(feature = "tokio")]
mod waiters;

#[cfg(feature = "tokio")]
pub use connection::{
    ConnectError, Connection, MemoryRegion, MessageOptions, ReadError, Reading, RegisterAllError,
    Sending, TrySendError, Writing,
};
pub use engine::{
    Config, ConfigError, ConnectionError, Credits, Message, Negotiated, Policy, Revision,
    RoundTrips, SendError, Settings, Statistics, TransferFault, Violation,
};
#[cfg(feature = "tokio")]
pub use inbox::Segment;
#[cfg(feature = "tokio")]
pub use incoming::{AcceptError, Incoming, IncomingListener};
#[cfg(feature = "tokio")]
pub use listener::Listener;
#[cfg(feature = "tokio")]
pub use rdma::iwarp::{Iwarp, IwarpConfig, IwarpTuning};
pub use rdma::{
    loopback::Loopback,
    memory::RegisterError,
    provider::Provider,
    work::{Access, Token},
};
pub use wire::BufferDescriptorV1;
