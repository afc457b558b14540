//! Tests of the built command: its output, its files and its exit status.
//!
//! All tests use 127.0.0.1 with ports that the system picks, and every wait has a time limit.

#[cfg(target_os = "linux")]
mod assets;
mod bench;
mod check;
mod conform;
mod decode;
mod demo;
#[cfg(target_os = "linux")]
mod devices;
mod events;
mod gateway;
mod listen;
mod log;
#[cfg(target_os = "linux")]
mod measure;
mod namespace;
#[cfg(target_os = "linux")]
mod pages;
#[cfg(target_os = "linux")]
mod password;
mod ping;
#[cfg(target_os = "linux")]
mod places;
mod roce;
#[cfg(target_os = "linux")]
mod segments;
#[cfg(target_os = "linux")]
mod siw;
#[cfg(target_os = "linux")]
mod smb;
mod support;
mod top;
mod tshark;
mod usage;

use smbdirect_test::messages;
