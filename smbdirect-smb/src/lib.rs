//! SMB2 as far as an SMB Direct gateway needs it. No I/O, no clock, no task.
//!
//! * [`smb2`]: the messages, from bytes to values and back.
//! * [`client_channel`]: takes RDMA off the requests of a client whose server has none.
//! * [`server_channel`]: puts RDMA onto the requests of a client that has none.
//!
//! ```text
//!   client with RDMA ── ClientChannel ── plain SMB2 ── ServerChannel ── server with RDMA
//!         READ, WRITE with channel      data inline        READ, WRITE with channel
//! ```
//!
//! A gateway uses one of them, or both in a row. They take messages and return messages and the
//! RDMA work that goes with them; the caller does the work.
#![forbid(unsafe_code)]

pub mod client_channel;
pub mod server_channel;
pub mod smb2;

mod fault;
mod opaque;

pub use client_channel::ClientChannel;
pub use fault::{Refusal, ServerFault};
pub use server_channel::ServerChannel;

#[cfg(test)]
#[path = "../tests/common/messages.rs"]
#[allow(dead_code, reason = "some of it is for the swarm")]
mod messages;
