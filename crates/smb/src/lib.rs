//! SMB2 as far as SMB Direct needs it, the frames of SMB over TCP, and the translation of a gateway. This crate
//! does no I/O and has no clock and no task.
//!
//! * [`frame`]: the header before each message of SMB over TCP.
//! * [`smb2`]: decodes and encodes the messages.
//! * [`file_information`]: structures of files and directories within messages.
//! * [`network_interface`]: the interfaces that a server offers.
//! * [`client_channel`]: removes the RDMA channel from requests of a client whose server has no RDMA.
//! * [`server_channel`]: adds an RDMA channel to requests of a client that has no RDMA.
//! * [`slow`]: the names, sentences and cures of what makes SMB Direct slow.
//!
//! ```text
//!   client with RDMA ── ClientChannel ── plain SMB2 ── ServerChannel ── server with RDMA
//!         READ, WRITE with channel      data inline        READ, WRITE with channel
//! ```
//!
//! A gateway uses one of the translators, or both in a row. A translator takes a message and returns the
//! messages to send and the RDMA operations to perform; the caller sends and performs them.
#![forbid(unsafe_code)]

pub mod client_channel;
pub mod file_information;
pub mod frame;
pub mod network_interface;
pub mod server_channel;
pub mod slow;
pub mod smb2;

mod fault;
mod opaque;

pub use client_channel::ClientChannel;
pub use fault::{Refusal, ServerFault};
pub use server_channel::ServerChannel;

#[cfg(test)]
use smbdirect_test::messages;
