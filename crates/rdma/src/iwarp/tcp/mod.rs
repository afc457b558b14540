//! The iWARP provider over tokio's TCP sockets: startup frames, then a
//! [`Stream`](super::Stream) and its socket.
//!
//! A queue pair has no task. It reads and writes in bulk when it is polled. A short read shows
//! that the socket is drained, and a short write that it is full, without another system call. Where
//! FPDUs are aligned with TCP segments, writes are the records of
//! [`alignment`](super::alignment).
//!
//! A listener has one task that accepts connections. That task owns one task for each peer whose
//! Request has not arrived yet. So a peer that stalls does not delay other peers, and dropping
//! the listener ends all of these tasks.

mod close_timer;
mod config;
mod connect;
mod error;
mod listen;
mod options;
mod provider;
mod queue_pair;
mod socket;
mod tap;
mod wait;
mod window_wait;

pub use config::{IwarpConfig, IwarpTuning};
pub use provider::Iwarp;
pub use tap::Tap;
