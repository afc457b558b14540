//! The tests of iWARP and RoCE through the public interface, in one binary: each module tests one subject.
//!
//! Tests that need a connection of SMB Direct are those of the package `smbdirect`.

#[cfg(feature = "tokio")]
mod conformance;
#[cfg(feature = "tokio")]
mod iwarp_startup;
mod iwarp_stream;
#[cfg(feature = "tokio")]
mod iwarp_tcp;
mod roce_captures;
mod roce_swarm;
