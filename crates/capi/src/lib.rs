//! The C interface of [`smbdirect`]: SMB Direct in user space for programs in C and for languages that call C.
//!
//! The header is `include/smbdirect.h`, which describes every function for its users. Rust programs use
//! the package `smbdirect` instead.
//!
//! Every function of the interface is in one of the modules below, checks its arguments, and turns a panic
//! into [`SMBDIRECT_ERROR_INTERNAL`](status::SMBDIRECT_ERROR_INTERNAL). Every `unsafe` block states the
//! invariant that makes it sound; the invariants about arguments are the rules for callers at the top of
//! the header.
//!
//! | module | contents |
//! |---|---|
//! | `status`, `locks` | status codes, and errors with their text; locks |
//! | `pointers` | the table of handles, and checked access to what callers pass |
//! | `calls`, `interrupt` | calls that wait: the end of their handle, and signals |
//! | `buffer`, `borrowed` | memory of the library and memory of callers |
//! | `events`, `operations` | the descriptor that announces events; operations and their callbacks |
//! | `closing` | connections whose handles are gone |
//! | `runtime`, `log`, `exit` | threads and timers; the log; the end of the program |
//! | `settings`, `options`, `transport`, `address` | how to connect, by what, and to where |
//! | `connection`, `listener` | establishing and closing |
//! | `send`, `receive`, `region`, `transfer` | messages and remote memory |
//! | `query`, `stream` | what was negotiated, and the connection as a socket |

// The names are those of the C interface, and the rules for callers are at the top of the header.
#![allow(non_camel_case_types, clippy::missing_safety_doc)]
// Every block states the invariant that makes it sound.
#![warn(clippy::undocumented_unsafe_blocks)]
#![cfg(unix)]

mod address;
mod borrowed;
mod calls;
mod closing;
mod events;
mod locks;
mod operations;
mod pointers;
mod transport;

#[doc(hidden)]
pub use pointers::live_handles;

pub mod buffer;
pub mod connection;
pub mod exit;
pub mod interrupt;
pub mod listener;
pub mod log;
pub mod options;
pub mod query;
pub mod receive;
pub mod region;
pub mod runtime;
pub mod send;
pub mod settings;
pub mod status;
pub mod stream;
pub mod transfer;
