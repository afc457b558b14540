//! iWARP in software: RDMA over an ordinary TCP connection.
//!
//! ```text
//!   Iwarp: Provider, Listener, QueuePair            tcp        (feature `tokio`)
//!   ---------------------------------------------------------------------------------
//!   Stream: work and completions <-> bytes          stream     no I/O, no clock
//!   messages: Send, Write, Read, Terminate          rdmap      RFC 5040
//!   segments: to a queue or to memory               ddp        RFC 5041
//!   startup frames; FPDUs, CRC32C                   mpa        RFC 5044, RFC 6581
//!   ---------------------------------------------------------------------------------
//!   TCP
//! ```
//!
//! The peer may be this library, Linux siw or an iWARP adapter. [`handshake`] and [`Stream`] are for programs that have a
//! transport of their own. The three codecs serve the packages of the project that decode captures.

#[doc(hidden)]
pub mod ddp;
pub mod handshake;
#[doc(hidden)]
pub mod mpa;
#[doc(hidden)]
pub mod rdmap;

#[cfg_attr(not(all(feature = "tokio", target_os = "linux")), allow(dead_code))]
mod alignment;
mod config;
mod error;
mod inbound_messages;
#[cfg(feature = "tokio")]
mod low_water;
mod outgoing;
mod receive;
mod receive_buffer;
mod segments;
#[cfg(feature = "tokio")]
mod send_buffer;
mod shared;
mod startup;
mod stream;
#[cfg(feature = "tokio")]
mod tcp;
#[cfg(test)]
mod test_vectors;
mod transmit;

#[cfg(feature = "tokio")]
pub use alignment::FpduAlignment;
pub use config::StreamConfig;
pub use error::StreamError;
#[cfg(feature = "tokio")]
pub use send_buffer::SendBuffer;
pub use startup::{MpaCrc, Rtr};
pub use stream::Stream;
#[doc(hidden)]
#[cfg(feature = "tokio")]
pub use tcp::Tap;
#[cfg(feature = "tokio")]
pub use tcp::{Iwarp, IwarpConfig, IwarpTuning};
