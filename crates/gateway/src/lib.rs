//! The gateway: forwards SMB between SMB Direct and TCP, with RDMA on each side that has it.
//!
//! ```text
//!   client ── accepted connection ──  one session  ── upstream connection ── server
//!                 Source  ──────────── Requests ───────────>  Sink
//!                                      Exchange
//!                 Sink    <──────────── Answers ─────────────  Source
//! ```
//!
//! [`Service`] is the state of a gateway, and [`Gateway`] runs it. It reports [`Event`]s and prints nothing.
//!
//! `smbdirect_smb` decides how a message is translated; this package does the I/O. The gateway forwards messages whole
//! and unchanged, except READ and WRITE where only one side has RDMA. Backpressure passes from one side to the other by
//! TCP's window or SMB Direct's credits. Memory is bounded: `memory` limits requests and answers in flight, and
//! [`connection_config`] limits the buffers of connections.
#![forbid(unsafe_code)]

mod admitted;
mod answers;
mod buffers;
mod clients;
mod connect;
mod counters;
mod event;
mod exchange;
mod gateway;
mod health;
mod incoming;
mod listener;
mod live;
mod memory;
mod peer;
mod phase;
mod places;
mod proxy_header;
mod queue;
mod refused;
mod requests;
mod servers;
mod service;
mod session;
mod settings;
mod state;
mod tcp;
mod times;
mod turned_away;
mod waits;

pub use clients::{Clients, Remembered};
pub use counters::Carried;
pub use event::Event;
pub use gateway::Gateway;
pub use listener::ClientListener;
pub use live::{Balance, Check, Live, Network};
pub use servers::{ServerStatus, state::Seen};
pub use service::Service;
pub use settings::{ClientAddress, Protocol, Settings, connection_config};
pub use state::SessionStatus;
pub use turned_away::SinceLastLine;
pub use waits::Waited;
