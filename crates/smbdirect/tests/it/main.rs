//! The tests of the public interface, in one binary: each module tests one subject.
//!
//! Tests that depend on the state of the process are in binaries of their own next to this folder: `many`
//! and `hostile` measure it, and `log` sets subscribers, which `tracing` caches for all threads.
//! `house` and `requirements` read the source and need no library.

mod captures;
mod conform;
#[cfg(feature = "tokio")]
mod connection;
#[cfg(feature = "tokio")]
mod delivery;
#[cfg(feature = "tokio")]
mod examples;
#[cfg(feature = "tokio")]
mod futures;
mod literal;
mod pair;
#[cfg(feature = "tokio")]
mod registration;
#[cfg(feature = "tokio")]
mod roce_runtimes;
#[cfg(feature = "tokio")]
mod stalls;
#[cfg(all(unix, feature = "tokio"))]
mod stream;
#[cfg(feature = "tokio")]
mod stress;
mod swarm;
#[cfg(feature = "tokio")]
mod turns;
