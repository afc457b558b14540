//! Finds out whether SMB Direct works and is used, and if not, why.
//!
//! [`gather`] probes this machine and, with a [`Target`], a server and the network to it. [`diagnose`] draws conclusions
//! from the [`Facts`] without any I/O, so every diagnosis is tested without a network. [`Fault`] lists the causes that are
//! known, and docs/check.md explains each.
#![forbid(unsafe_code)]

mod diagnose;
mod diagnosis;
mod facts;
mod fault;
mod measurement;
mod probe;
mod settings;

pub use diagnose::diagnose;
pub use diagnosis::{About, Cure, Diagnosis, Event, Outcome, RunOn, Section, State, Step};
pub use facts::Facts;
pub use fault::Fault;
pub use measurement::{Cause, Comparison, Limited, Operation, Rate, Speed, TransportSpeed};
pub use probe::gather;
pub use settings::{Measure, Settings, Stage, Target};
