//! RDMA for the package `smbdirect`: the interface to providers, and providers in software.
//!
//! Work requests go in, and completions come out. [`work`] defines both, which are plain data; [`provider`] defines the
//! three traits that a provider implements; [`memory`] is the table of registered buffers of the providers in software.
//! [`loopback`] connects two ends in one process, [`iwarp`] connects two ends over TCP, and [`roce`] over UDP. Nothing
//! here depends on SMB Direct.
//!
//! Programs use this package through `smbdirect::rdma`. It may change in any release, and is exempt from the promise of
//! stability of `smbdirect`.
#![forbid(unsafe_code)]

pub mod deadline;
pub mod iwarp;
pub mod loopback;
pub mod memory;
pub mod provider;
pub mod roce;
#[cfg(feature = "tokio")]
pub mod runtime;
pub mod software;
pub mod work;

pub use software::{direction::Direction, network::NetworkSettings};
