//! What RDMA is, for this crate: work goes in, completions come out.
//!
//! [`work`] has the vocabulary, plain data without behaviour. [`provider`] has the three traits
//! that a provider implements. [`memory`] is the table of registered buffers that the software
//! providers share. [`loopback`] connects two ends of one process, [`iwarp`] two ends of a TCP
//! connection. Nothing here knows SMB Direct.

mod adaptive_spin;
pub mod iwarp;
pub mod loopback;
pub mod memory;
pub mod provider;
mod receive_queue;
pub mod work;
