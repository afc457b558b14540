//! The Transport Driver Interface (TDI) of Windows in C, over SMB Direct: the source of a TDI client compiles against
//! the headers in `include` and its requests travel over SMB Direct.
//!
//! The headers have Windows' names, values and layouts. This package reads a request where TDI says it is, in the
//! IRP's stack location, and passes it to the objects of [`smbdirect_tdi`], which make all decisions of the protocol.
//! `docs/tdi-c.md` describes the interface for its users.
//!
//! | module | contents |
//! |---|---|
//! | `layout` | the structures of the headers |
//! | `irp` | the life of requests: allocation, submission, completion and cancellation |
//! | `mdl` | descriptions of the client's memory |
//! | `event` | events that threads wait for |
//! | `files` | handles and objects |
//! | `kernel` | IRQL, DPCs, timers, work items and threads |
//! | `open` | opening files |
//! | `address` | addresses as TDI writes them |
//! | `device` | the devices by their names, and the transport's thread |
//! | `dispatch` | the requests of TDI |
//! | `query` | the answers to queries |
//! | `slots` | the event handlers and contexts that clients have set |
//! | `handlers` | the calls of event handlers |
//! | `chained` | received TSDUs that are lent to clients |
#![warn(clippy::undocumented_unsafe_blocks)]
#![allow(
    clippy::missing_safety_doc,
    reason = "the rules for callers are those of Windows, and docs/tdi-c.md has the exceptions"
)]
#![cfg(target_os = "linux")]

mod address;
mod device;
mod handlers;
mod query;
mod slots;

pub mod chained;
pub mod dispatch;
pub mod event;
pub mod files;
pub mod irp;
pub mod kernel;
#[allow(missing_docs, reason = "each field is that of the header")]
pub mod layout;
pub mod mdl;
pub mod open;
