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
//! The packet layer, the messages of the CM and `Endpoint` serve the packages of the project that decode captures or
//! test the wire.

#[doc(hidden)]
pub mod cm;
mod endpoint;
#[doc(hidden)]
pub mod icrc;
#[doc(hidden)]
pub mod packet;
mod psn;
mod rc;
#[cfg(feature = "tokio")]
mod udp;

#[doc(inline)]
pub use cm::PathMtu;
#[doc(hidden)]
pub use endpoint::{
    AcceptParameters, ConnectParameters, ConnectionId, Endpoint, EndpointEvent, EndpointSettings,
    EndpointStatistics, MAX_REPLY_DATA, MAX_REQUEST_DATA, Path, Rejection, Traffic, Transmit,
};
#[doc(hidden)]
pub use psn::Psn;
#[doc(hidden)]
pub use rc::{
    CongestionStatistics, QueuePair, QueuePairError, QueuePairSettings, RetransmissionStatistics,
};
#[doc(hidden)]
#[cfg(feature = "tokio")]
pub use udp::{Capabilities, DatagramTap, capabilities, port_owner};
#[cfg(feature = "tokio")]
pub use udp::{Roce, RoceConfig};
