//! RDMA as this crate uses it: work requests go in, and completions come out.
//!
//! [`work`] defines work requests and completions, which are plain data. [`provider`] defines the
//! three traits that a provider implements. [`memory`] is the table of registered buffers of the
//! software providers. [`loopback`] connects two ends in one process, [`iwarp`] connects two ends
//! over TCP, and [`roce`] over UDP. No module here depends on SMB Direct.

mod arena;
mod direction;
pub mod iwarp;
pub mod loopback;
pub mod memory;
pub mod provider;
mod receive_queue;
pub mod roce;
pub mod work;

pub use direction::Direction;
