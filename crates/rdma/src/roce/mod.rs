//! RoCEv2 in software: RDMA over UDP, compatible with RoCE adapters and with Linux rxe.
//!
//! ```text
//!   Roce: Provider, Listener, QueuePair             udp        (feature `tokio`)
//!   ---------------------------------------------------------------------------------
//!   many connections behind one socket              endpoint   no I/O, no clock
//!   connecting and disconnecting                    cm         IBTA volume 1, chapter 12, annex A11
//!   reliable connections: work and completions      rc         IBTA volume 1, chapter 9
//!   packets: BTH, extended headers, payload         packet     IBTA volume 1, chapter 9
//!   invariant CRC                                   icrc       annex A17
//!   ---------------------------------------------------------------------------------
//!   UDP, port 4791
//! ```
//!
//! The packet layer and the messages of the CM are public so that programs can decode captures with
//! them. [`Endpoint`] is public for programs that have sockets of their own.

pub mod cm;
mod endpoint;
pub mod icrc;
pub mod packet;
mod psn;
mod rc;
#[cfg(feature = "tokio")]
mod udp;

pub use endpoint::{
    AcceptParameters, ConnectParameters, ConnectionId, Endpoint, EndpointEvent, EndpointSettings,
    EndpointStatistics, MAX_REPLY_DATA, MAX_REQUEST_DATA, Path, Rejection, Traffic, Transmit,
};
pub use psn::Psn;
pub use rc::{
    CongestionStatistics, QueuePair, QueuePairError, QueuePairSettings, RetransmissionStatistics,
};
#[cfg(feature = "tokio")]
pub use udp::{Capabilities, DatagramTap, Roce, RoceConfig, capabilities, port_owner};
