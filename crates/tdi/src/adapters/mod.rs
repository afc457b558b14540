//! Endpoints and addresses as streams and sinks of async Rust.

mod events;
mod tsdus;

pub use events::{Event, Events};
pub use tsdus::{TsduSink, TsduWriter, Tsdus};
