//! Figures over all connections of this process, for monitoring (feature `metrics`).
//!
//! [`snapshot`] returns the open connections and the totals of all connections since the process
//! started. [`Snapshot::families`] names each figure as Prometheus does. To use the [metrics](https://docs.rs/metrics)
//! facade, install a recorder, call [`describe`] once, and call [`collect`] each time before the
//! recorder exports:
//!
//! ```
//! smbdirect::metrics::describe();
//! // Before each export:
//! smbdirect::metrics::collect();
//! ```
//!
//! The figures are read from the counters that each connection keeps with or without this feature. So this
//! feature adds work when a connection begins and ends and when a figure is read, and none for a message.

mod facade;
mod families;
mod registry;
mod snapshot;

pub(crate) use facade::round_trip;
pub use facade::{collect, describe};
pub use families::{Family, Kind, Sample, Value};
pub use registry::Role;
pub(crate) use registry::{Identity, Metered, Reading, Source, ended, established, failed, gone};
pub use snapshot::{ConnectionSnapshot, Snapshot, snapshot};
