//! The RoCEv2 provider over tokio's UDP sockets.
//!
//! One socket with one [`Endpoint`](super::Endpoint) serves all queue pairs of a local address. One
//! task in each runtime that uses the socket receives datagrams, runs timers and continues to send when the
//! socket was full.
//! A queue pair has no task: it sends in the task of its owner, and its owner also receives, for
//! all queue pairs of the socket, while it polls.
//!
//! # Ports
//!
//! Every listener receives on UDP port 4791, which RoCE adapters and Linux rxe always send to. The port of SMB
//! Direct is part of the service ID. An end that connects uses UDP port 4791 too. If another process or the
//! kernel's rxe has the port, the end uses a free port, and then reaches only listeners of this library, which
//! answer to the port of the request. This also lets two processes on one machine connect to each other.

mod address;
mod config;
mod driver;
#[cfg(target_os = "linux")]
mod dscp;
mod error;
mod incoming;
mod listen;
mod port_owner;
mod provider;
mod queue_pair;
mod receiver;
mod route;
mod shared;
mod socket;
mod tap;
#[cfg(all(test, target_os = "linux"))]
mod tests;

pub use config::RoceConfig;
pub use port_owner::port_owner;
pub use provider::Roce;
pub use socket::{Capabilities, capabilities};
pub use tap::DatagramTap;
