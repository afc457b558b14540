//! Microsoft's test cases for servers, and their mirror image for clients, with the engine alone.
//!
//! `smbdirect-cli/tests/microsoft.rs` has the same cases with the command over iWARP. Read
//! `microsoft/cases.rs` first.

#[path = "microsoft/engine.rs"]
mod backend;
#[path = "microsoft/cases.rs"]
mod cases;
#[path = "microsoft/mirror.rs"]
mod mirror;
#[path = "microsoft/script.rs"]
mod script;
