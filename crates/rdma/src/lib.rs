//! RDMA for the package `smbdirect`: the interface to providers, and providers in software.
//!
//! Work requests go in, and completions come out. [`work`] defines both, which are plain data; [`provider`] defines the
//! three traits that a provider implements; [`memory`] is the table of registered buffers of the providers in software.
//! [`loopback`] connects two ends in one process, [`iwarp`] connects two ends over TCP, and [`roce`] over UDP. Nothing
//! here depends on SMB Direct.
//!
//! Programs use this package through `smbdirect::rdma`. The page `docs/upper-layer.md` of the repository has what a
//! release may change. Items that are hidden here belong to the other packages of the project.
#![forbid(unsafe_code)]

#[doc(hidden)]
pub mod deadline;
pub mod iwarp;
pub mod loopback;
pub mod memory;
pub mod provider;
pub mod roce;
#[doc(hidden)]
#[cfg(feature = "tokio")]
pub mod runtime;
#[doc(hidden)]
pub mod software;
pub mod work;

#[doc(hidden)]
pub use software::direction::Direction;
#[doc(inline)]
pub use software::network::NetworkSettings;
