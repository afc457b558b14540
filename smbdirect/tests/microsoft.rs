//! Microsoft's test cases for servers, and their mirror image for clients, run against the engine.
//!
//! `smbdirect-cli/tests/microsoft.rs` runs the same cases against the command over iWARP. Read
//! `microsoft/cases.rs` first.

#[path = "microsoft/engine.rs"]
mod backend;
#[path = "microsoft/cases.rs"]
mod cases;
#[path = "microsoft/mirror.rs"]
mod mirror;
#[path = "microsoft/script.rs"]
mod script;
