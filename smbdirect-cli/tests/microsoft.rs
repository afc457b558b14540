//! Microsoft's test cases for servers, and their mirror image for clients, with the built command
//! over iWARP on 127.0.0.1.
//!
//! The cases are those of `smbdirect/tests/microsoft.rs`, which has them with the engine alone.
//! Read `cases.rs` there first.

#[path = "microsoft/process.rs"]
mod backend;
#[path = "../../smbdirect/tests/microsoft/cases.rs"]
mod cases;
#[path = "../../smbdirect/tests/microsoft/mirror.rs"]
mod mirror;
#[path = "../../smbdirect/tests/microsoft/script.rs"]
mod script;
