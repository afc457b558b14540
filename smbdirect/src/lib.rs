#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod engine;
#[cfg(feature = "metrics")]
pub mod metrics;
pub mod rdma;
pub mod tdi;
pub mod wire;

#[cfg(feature = "tokio")]
mod connection;
#[cfg(feature = "tokio")]
mod driver;
#[cfg(feature = "tokio")]
mod inbox;
#[cfg(feature = "tokio")]
mod listener;
mod pool;
#[cfg(feature = "tokio")]
mod runtime;
#[cfg(all(unix, feature = "tokio"))]
mod stream;
#[cfg(feature = "tokio")]
mod waiters;

#[cfg(feature = "tokio")]
pub use connection::{
    ConnectError, Connection, MemoryRegion, ReadError, Reading, RegisterAllError, RegisterError,
    Sending, TrySendError, Writing,
};
pub use engine::{
    Config, ConfigError, ConnectionError, Credits, GrantPolicy, Message, Negotiated, Policy,
    Revision, RoundTrips, SendError, Settings, Statistics, TransferFault, Violation,
};
#[cfg(feature = "tokio")]
pub use inbox::Segment;
#[cfg(feature = "tokio")]
pub use listener::Listener;
pub use rdma::work::{Access, Token};
pub use wire::BufferDescriptorV1;
