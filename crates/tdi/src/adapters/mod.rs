//! Endpoints and addresses as streams and sinks of async Rust.

mod events;

pub use events::{Event, Events, TsduSink, TsduWriter, Tsdus};
