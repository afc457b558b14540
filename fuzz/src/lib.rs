//! Fuzz targets of smbdirect. Each is a function of bytes that panics if smbdirect breaks a
//! property. libFuzzer runs them for hours, `tests/replay.rs` with the inputs that it found, and
//! `tests/smoke.rs` with mutations of those.
#![deny(unsafe_code)]

// The interfaces of C are the only ones that need `unsafe`.
#[cfg(unix)]
mod capi_calls;
mod capture_reader;
mod decode;
mod engine_operations;
mod gateway_translation;
mod input;
mod memory_table;
mod mpa_stream;
mod rdmap_stream;
mod roce_endpoint;
mod roce_packet;
mod roce_queue_pair;
mod smb2;
#[cfg(target_os = "linux")]
mod tdi_calls;
mod wire_decode;
#[cfg(target_os = "linux")]
mod work_completions;

#[cfg(unix)]
pub use capi_calls::{capi_calls, capi_calls_that_succeed};
pub use capture_reader::capture_reader;
pub use decode::decode;
pub use engine_operations::engine_operations;
pub use gateway_translation::gateway_translation;
pub use memory_table::memory_table;
pub use mpa_stream::mpa_stream;
pub use rdmap_stream::rdmap_stream;
pub use roce_endpoint::roce_endpoint;
pub use roce_packet::roce_packet;
pub use roce_queue_pair::roce_queue_pair;
pub use smb2::smb2;
#[cfg(target_os = "linux")]
pub use tdi_calls::{tdi_calls, tdi_calls_and_statuses};
pub use wire_decode::wire_decode;
#[cfg(target_os = "linux")]
pub use work_completions::work_completions;
