//! SMB Direct ([MS-SMBD], the RDMA transport of SMB3) in user space.
//!
//! A [`Connection`] carries messages of any length between two ends, with flow control by credits, and gives each
//! end RDMA access to buffers that the other has registered. It runs on a provider of RDMA: [`Iwarp`] speaks
//! iWARP over plain TCP and needs no adapter, no kernel module and no root; [`Roce`] speaks RoCEv2 over UDP;
//! [`Loopback`] connects ends in one process; the package `smbdirect-verbs` uses RDMA adapters through rdma-core.
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
//! A program also needs `bytes`, and `tokio` with a runtime:
//!
//! ```toml
//! [dependencies]
//! bytes = "1"
//! smbdirect = "0.1"
//! tokio = { version = "1", features = ["macros", "rt-multi-thread"] }
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
//! // A message. The call submits it, and the future resolves when it has left.
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
//! # What to know
//!
//! | question | answer |
//! |---|---|
//! | Is it protected? | No. SMB Direct has neither encryption nor authentication. An upper layer can protect its messages, as SMB does. A peer reaches only the memory that is registered for it on its connection. Use a network that you trust, or a tunnel. |
//! | Which runtime? | A tokio runtime of either kind, with I/O and time enabled. Methods are called within it; handles may be dropped anywhere. The task of a connection grants credits and answers keepalives, so a `current_thread` runtime has to be kept running. |
//! | Which provider? | [`Iwarp`] between machines, [`Roce`] for peers that speak RoCE, [`Loopback`] in tests. One value serves any number of connections. |
//! | Which addresses? | What tokio takes: `"server:5445"`, a `SocketAddr`, a pair of host and port. Names are looked up, and each address is tried. The port is 5445 over iWARP and 445 over RoCE. |
//! | Does a slow client delay [`accept`](Listener::accept)? | No. Each peer negotiates in a task of its own, and one that fails is logged. An error of `accept` is one of the listener: it has ended. To refuse or configure peers one by one, use [`IncomingListener`]. |
//! | How does a connection end? | [`close`](Connection::close), or drop the last handle: both send what was submitted first. [`recv`](Connection::recv) then returns [`ConnectionError::Closed`] at the peer. [`closed`](Connection::closed) waits for the end. A peer whose process was killed may also look as if it had closed. |
//! | Which calls are cancel-safe? | All. A `select!` or a timeout around `accept` or `recv` loses nothing, and a dropped [`Sending`] or [`Writing`] is still sent. |
//! | Which timeouts exist? | Those in [`Settings`]: 120 s to connect, 5 s for a peer to negotiate, a keepalive after 120 s without a message, 5 s for its answer, and 5 s for credits from a peer that does not receive. `close` waits as long as submitted work completes within the interval of keepalives. [`IwarpConfig`] and [`RoceConfig`] have shorter ones: 10 s for an address that does not answer, and 5 s for the end after a close. A shorter `tokio::time::timeout` around `connect` abandons the attempt. |
//! | Is an error worth a retry? | [`ConnectionError::is_retryable`] and [`ConnectError::is_retryable`] say so; [`ConnectionError`] has a table of reasons. |
//! | One type of error? | Every error converts to `std::io::Error`. [`SendError`] and [`TransferFault`] take a [`ConnectionError`] by `?`. |
//! | How long may a message be? | [`Negotiated::max_fragmented_send_size`], 1 MiB by default; the receiver sets it by [`Settings::max_fragmented_receive_size`]. |
//! | What does [`write`](Connection::write) take? | Descriptors of the peer's memory, an offset into all of them together, and data of any length: one call or several, as the program wants to show progress. The future resolves when the data was sent. The data is in place before the peer receives a message that is sent later. |
//! | How is a descriptor sent? | [`BufferDescriptorV1::to_bytes`], and [`from_bytes`](BufferDescriptorV1::from_bytes) at the other end: 16 bytes. |
//! | SMB over TCP, as bytes? | [`Connection::into_stream`] is `AsyncRead` and `AsyncWrite`. |
//!
//! Settings have public fields, and [`Config::new`] checks them:
//!
//! ```
//! # #[cfg(feature = "tokio")] {
//! use std::time::Duration;
//!
//! use smbdirect::{Config, Iwarp, IwarpConfig, Settings};
//!
//! let mut settings = Settings::default();
//! settings.max_fragmented_receive_size = 8 << 20;
//! settings.keepalive_interval = Duration::from_secs(30);
//! let config = Config::new(settings)?;
//!
//! let mut iwarp = IwarpConfig::default();
//! iwarp.connect_timeout = Duration::from_secs(3);
//! let provider = Iwarp::new(iwarp);
//! # }
//! # Ok::<(), smbdirect::ConfigError>(())
//! ```
//!
//! # A provider of one's own
//!
//! Three traits of [`rdma::provider`] make a provider: [`Provider`],
//! [`ProviderListener`](rdma::provider::ProviderListener) and [`QueuePair`](rdma::provider::QueuePair). All can be used
//! as `dyn`, so their futures are boxed. This one counts the connections that it makes by another provider:
//!
//! ```
//! use std::{
//!     net::SocketAddr,
//!     sync::atomic::{AtomicU64, Ordering},
//! };
//!
//! use smbdirect::{
//!     Loopback, Provider,
//!     rdma::{
//!         provider::{BoxFuture, ConnectRequest, Connected, ProviderAttributes, ProviderListener},
//!         work::ProviderError,
//!     },
//! };
//!
//! #[derive(Debug)]
//! struct Counting {
//!     inner: Loopback,
//!     made: AtomicU64,
//! }
//!
//! impl Provider for Counting {
//!     fn attributes(&self) -> ProviderAttributes {
//!         self.inner.attributes()
//!     }
//!
//!     fn connect(&self, request: ConnectRequest) -> BoxFuture<'_, Result<Connected, ProviderError>> {
//!         self.made.fetch_add(1, Ordering::Relaxed);
//!         self.inner.connect(request)
//!     }
//!
//!     fn listen(
//!         &self,
//!         address: SocketAddr,
//!     ) -> BoxFuture<'_, Result<Box<dyn ProviderListener>, ProviderError>> {
//!         self.inner.listen(address)
//!     }
//! }
//! ```
//!
//! # Without tokio
//!
//! [`engine::Connection`] decides, [`rdma::iwarp::Stream`] speaks iWARP, and the program has the socket and the clock:
//!
//! ```
//! use std::time::Instant;
//!
//! use smbdirect::{
//!     engine::{Connection, Event},
//!     rdma::iwarp::Stream,
//! };
//!
//! /// Moves work and completions, and returns the next event, such as `Event::Negotiated` or `Event::Segment`.
//! fn step(engine: &mut Connection, stream: &mut Stream, now: Instant) -> Option<Event> {
//!     while let Some(completion) = stream.poll_completion() {
//!         engine.handle_completion(now, completion);
//!     }
//!     while let Some(work) = engine.poll_work(now, stream.room()) {
//!         stream.post(work);
//!     }
//!     engine.poll_event()
//! }
//! ```
//!
//! | step | calls |
//! |---|---|
//! | exchange the startup frames of MPA | [`Initiator::new(&HandshakeConfig::default(), &Bytes::new())`](rdma::iwarp::handshake::Initiator): send `request()`, and give what arrives to `handle_bytes(&bytes)?` until it returns an `Established`, whose `into_stream(engine.negotiate_receive())` is the stream. The other end has a [`Responder`](rdma::iwarp::handshake::Responder) |
//! | begin | [`engine::Connection::active`] or `passive` before `into_stream`, then `engine.handle_connected(stream.limits())` |
//! | bytes to the socket | while `stream.prepare() > 0`: `transmit_slices(&mut slices)` fills in `IoSlice`s and returns their number, and `transmitted(count)` takes the number of bytes written |
//! | bytes from the socket | `stream.handle_bytes`, and `handle_end` at its end |
//! | time | `engine.poll_timeout` is when to call `handle_timeout` |
//! | messages | `engine.send(MessageId::UNWATCHED, bytes, None)`; `Event::Segment { payload, remaining, .. }` is a part of a message, the last one if nothing remains |
//! | end | `engine.close`, then `stream.close` and `finish` after `Event::Closed` |
//!
//! # Examples and modules
//!
//! The folder `examples` of this package has whole programs: `echo` (both ends), `echo_server` (many clients),
//! `reconnect` (a client), `rdma`, `write_progress`, `provider`, `sans_io`, `event_loop`. The pages
//! `docs/upper-layer.md`, `docs/providers.md` and `docs/sans-io.md` of the repository are the guides.
//!
//! | module | for |
//! |---|---|
//! | the root | programs that send and receive: connection, listener, settings, errors |
//! | [`engine`] | programs with an event loop of their own: [`engine::Connection`] takes completions and the time, and returns work, events and its next timer |
//! | [`wire`] | programs that read or build messages: the structures of [MS-SMBD] 2.2 |
//! | [`rdma`] | authors of providers ([`rdma::provider`] has the three traits), and iWARP without sockets ([`rdma::iwarp::Stream`]), which needs no feature |
//!
//! | feature | adds |
//! |---|---|
//! | `tokio` (default) | connection, listener, and iWARP and RoCE over sockets |
//! | `metrics` | the module `metrics`: figures over all connections of the process |
//!
//! The page `docs/upper-layer.md` of the repository has what a release may change: before 1.0, a new minor version may
//! change anything, and a patch changes nothing that this documentation shows. The traits of [`rdma::provider`] and the
//! figures of the module `metrics` stay exempt after 1.0.
//!
//! [MS-SMBD]: https://learn.microsoft.com/en-us/openspecs/windows_protocols/ms-smbd/
#![cfg_attr(doctest, doc = include_str!("../README.md"))]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

pub mod engine;
#[cfg(feature = "metrics")]
pub mod metrics;
pub mod wire;

pub use smbdirect_rdma as rdma;
#[doc(hidden)]
pub use smbdirect_rdma::deadline;

#[cfg(feature = "tokio")]
mod connection;
#[cfg(feature = "tokio")]
mod driver;
#[cfg(feature = "tokio")]
mod frame_stream;
#[cfg(feature = "tokio")]
mod frames;
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
    ConnectError, ConnectFault, Connection, MemoryRegion, MessageOptions, ReadError, Reading,
    RegisterAllError, Sending, TrySendError, Writing,
};
#[doc(inline)]
pub use engine::{
    Config, ConfigError, ConnectionError, Credits, Message, Negotiated, Policy, Revision,
    RoundTrips, SendError, Settings, Statistics, TransferFault, Violation,
};
#[cfg(feature = "tokio")]
pub use frame_stream::FrameStream;
#[cfg(feature = "tokio")]
pub use inbox::Segment;
#[cfg(feature = "tokio")]
pub use incoming::{AcceptError, Incoming, IncomingListener};
#[cfg(feature = "tokio")]
pub use listener::Listener;
#[cfg(feature = "tokio")]
#[doc(inline)]
pub use rdma::{
    iwarp::{Iwarp, IwarpConfig},
    roce::{Roce, RoceConfig},
};
#[doc(inline)]
pub use rdma::{
    loopback::Loopback,
    memory::RegisterError,
    provider::Provider,
    work::{Access, Token},
};
#[doc(inline)]
pub use wire::BufferDescriptorV1;
