//! The built command, from the outside: what it prints, what it stores, how it ends.
//!
//! Everything happens on 127.0.0.1 with ports the system picks, and every wait is bounded.

mod bench;
mod decode;
mod demo;
#[cfg(target_os = "linux")]
mod devices;
mod files;
mod gateway;
mod listen;
mod log;
#[allow(dead_code, reason = "the tests of the translator need the rest")]
#[path = "../../../smbdirect-smb/tests/common/messages.rs"]
mod messages;
mod ping;
#[cfg(target_os = "linux")]
mod segments;
#[cfg(target_os = "linux")]
mod siw;
mod support;
mod tdi;
mod tshark;
mod usage;
