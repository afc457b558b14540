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
//! | module | what it has |
//! |---|---|
//! | `daemon` | [`Gateway`], which accepts clients, checks servers and ends |
//! | `session` | one session, and the [`Service`] that it belongs to |
//! | [`observe`] | what others see of a running gateway, by HTTP |
//! | `path` | what moves one message; it knows nothing of the two above |
//! | `servers` | where a session goes, and the state of each server |
//! | `admission` | who may come in |
//! | `figures` | what is counted and timed |
//! | `stop`, `phase`, `live`, `settings` | why a session ends, phases of the gateway, what a reload changes, and what it does not |
//!
//! `smbdirect_smb` decides how a message is translated; this package does the I/O. The gateway forwards messages whole
//! and unchanged, except READ and WRITE where only one side has RDMA. Backpressure passes from one side to the other by
//! TCP's window or SMB Direct's credits. Memory is bounded: `memory` limits requests and answers in flight, and
//! [`connection_config`] limits the buffers of connections.
#![forbid(unsafe_code)]

mod admission;
mod daemon;
mod figures;
mod live;
pub mod observe;
mod path;
mod phase;
mod servers;
mod session;
mod settings;
mod stop;

pub use admission::clients::{Clients, Remembered};
pub use admission::turned_away::SinceLastLine;
pub use daemon::Gateway;
pub use daemon::listener::ClientListener;
pub use figures::counters::Carried;
pub use figures::waits::Waited;
pub use live::{Balance, Check, Live, Network};
pub use servers::{ServerStatus, state::Seen};
pub use session::event::{Closed, Event};
pub use session::service::Service;
pub use session::state::SessionStatus;
pub use settings::{ClientAddress, Protocol, Settings, connection_config};
