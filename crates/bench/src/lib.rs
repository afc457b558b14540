//! Measures SMB Direct: bandwidth, message rate, round trips, and many connections, compared with plain TCP and memory.
//!
//! A [`Choice`] says what to measure and makes [`Row`]s of it. Two ends do the work: [`Near`] gives the orders, and the far
//! end serves them in a thread ([`start_far_thread`]), another process or another machine ([`serve_orders`]). [`measure`]
//! takes the samples of all rows alternately, in short bursts, and [`Measured::summarise`] makes a [`Summary`] of them.
//! [`measure_idle`], [`measure_active`] and [`measure_loads`] measure many connections.
//!
//! The units of work of the library, and counts that do not depend on time, are the benches and tests of this package.
#![forbid(unsafe_code)]

mod connections;
mod ends;
mod host;
mod means;
mod measure;
mod plan;
mod row_event;
mod summary;
mod work;

pub use connections::{
    Active, IDLE_CREDITS, Idle, Load, LoadMemory, Range, measure_active, measure_idle,
    measure_loads,
};
pub use ends::{EndSettings, InProcess, Near, serve_orders, start_far_thread};
pub use host::{Awake, Cores, check_congestion_control, congestion_control, load_average};
pub use measure::{Effort, Measured, Progress, RunProgram, measure};
pub use plan::{Choice, Memory, Program, Row, Subject, Work, time_of_a_burst};
pub use row_event::RowEvent;
pub use summary::{GIB, RoundTrips, RowResult, Summary};
pub use work::{MAX_MESSAGE_BYTES, Means, Operation, Placement, Sample, Smb};
