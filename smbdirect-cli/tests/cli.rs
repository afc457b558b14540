//! The built command, from the outside: what it prints, what it stores, how it ends.
//!
//! Everything happens on 127.0.0.1 with ports the system picks, and every wait is bounded.

#[path = "cli/bench.rs"]
mod bench;
#[path = "cli/decode.rs"]
mod decode;
#[path = "cli/demo.rs"]
mod demo;
#[cfg(target_os = "linux")]
#[path = "cli/devices.rs"]
mod devices;
#[path = "cli/files.rs"]
mod files;
#[path = "cli/gateway.rs"]
mod gateway;
#[path = "cli/listen.rs"]
mod listen;
#[path = "cli/log.rs"]
mod log;
#[allow(dead_code, reason = "the tests of the translator need the rest")]
#[path = "../../smbdirect-smb/tests/common/messages.rs"]
mod messages;
#[path = "cli/ping.rs"]
mod ping;
#[path = "cli/support.rs"]
mod support;
#[path = "cli/tdi.rs"]
mod tdi;
#[path = "cli/usage.rs"]
mod usage;
