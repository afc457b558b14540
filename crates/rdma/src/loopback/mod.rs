//! Loopback: RDMA between two ends in one process, for tests, examples and first experiments.
//!
//! To understand this module, read `Pair::execute` in `exchange` first: it does everything that a wire does. A
//! Send takes the oldest receive of the other end, a Write is copied into the memory table of the other end, and
//! a Read is copied out of it.
//!
//! The state that both ends share is guarded by one lock. An end takes the lock once for everything
//! that it flushes and once for everything that has arrived, because between two cores a lock costs
//! more than a message. Messages are assembled before the lock is taken, in a box that is then only
//! handed over under the lock. There is no task and no thread: the end that flushes does the work
//! and wakes the other end, unless that end is spinning.
//!
//! A payload shorter than 2 KiB is copied. A longer one is handed over without a copy: the receiver
//! reads the sender's own memory, and keeping a slice of such a message keeps the whole allocation
//! that the sender took it from.

mod completions;
mod exchange;
mod handshake;
mod listener;
mod lock;
mod provider;
mod queue_pair;
mod staging;
#[cfg(test)]
mod tests;

pub use provider::{Loopback, LoopbackConfig};
