//! The protocol of [MS-SMBD] 3.1: the specification's Connection, without I/O, clock or task.
//!
//! [`Connection`] takes completions, time and commands, and gives work requests, events and the
//! moment it next wants to be called. Everything that the protocol decides is decided here, so
//! that every race is a line in a table test and every timer is a number.
//!
//! ```text
//!   send, read, write, prompt, close ──►┌────────────┐──► poll_work     (WorkRequest)
//!   handle_completion, handle_timeout ─►│ Connection │──► poll_event    (Event)
//!                                       └────────────┘──► poll_timeout  (Instant)
//! ```
//!
//! The leaves own their numbers: [`credits`](self) (3.1.5.9), the send queue (3.1.5.1, 3.1.5.4),
//! reassembly (3.1.5.8), keepalive (3.1.6.2), negotiation (3.1.5.2, .3, .6, .7) and transfers
//! (3.1.4.5, 3.1.4.6). `connection` only orders them.

mod config;
mod connection;
mod credits;
mod error;
mod event;
mod in_flight;
mod keepalive;
mod message;
mod negotiation;
mod reassembly;
mod send_queue;
mod timer;
mod transfers;

pub use config::{Config, ConfigError, GrantPolicy, Policy, Revision, Settings};
pub use connection::Connection;
pub use credits::Credits;
pub use error::{ConnectionError, Expired, Initiator, SendError, TransferFault, Violation};
pub use event::{Event, MessageId, Statistics, TransferId};
pub use message::Message;
pub use negotiation::Negotiated;
