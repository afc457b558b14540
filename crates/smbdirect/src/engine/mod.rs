//! The protocol of [MS-SMBD] 3.1 as a state machine, without I/O, clock or task.
//!
//! [`Connection`] takes completions, time and commands, and returns work requests, events and the
//! time of its next timer. Every decision of the protocol is made here, so that a race is tested by
//! the order of a few calls, and a timer by passing a time.
//!
//! ```text
//!   send, read, write, prompt, close ──►┌────────────┐──► poll_work     (WorkRequest)
//!   handle_completion, handle_timeout ─►│ Connection │──► poll_event    (Event)
//!                                       └────────────┘──► poll_timeout  (Instant)
//! ```
//!
//! Each part of the state has a module of its own: credits (3.1.5.9), the send queue (3.1.5.1,
//! 3.1.5.4), reassembly (3.1.5.8), keepalive (3.1.6.2), negotiation (3.1.5.2, .3, .6, .7) and
//! transfers (3.1.4.5, 3.1.4.6). `connection` combines them.

mod config;
mod connection;
mod credits;
mod error;
mod event;
mod in_flight;
mod keepalive_requested;
mod message;
mod negotiate_messages;
mod reassembly;
mod segments;
mod send_queue;
mod stalls;
mod statistics;
mod timer;
mod transfer_queue;

pub use connection::Connection;
/// The engine as the driver has it.
#[cfg(all(feature = "tokio", not(smbdirect_proved)))]
pub(crate) use connection::Connection as Driven;
#[cfg(smbdirect_proved)]
pub(crate) use connection::proved::Checked as Driven;
pub use error::Expired;
pub use event::{Event, MessageId, TransferId};

// Programs know these from the root, whose documentation has them.
#[doc(no_inline)]
pub use {
    config::{Config, ConfigError, Policy, Revision, Settings},
    credits::Credits,
    error::{ConnectionError, SendError, TransferFault, Violation},
    message::Message,
    negotiate_messages::Negotiated,
    statistics::{RoundTrips, Statistics},
};
