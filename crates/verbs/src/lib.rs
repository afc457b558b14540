//! RDMA adapters for [`smbdirect`]: InfiniBand, RoCE and iWARP, through rdma-core's libibverbs and
//! librdmacm, which are loaded at run time.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use smbdirect::{Config, Connection};
//! use smbdirect_verbs::{Verbs, VerbsConfig};
//!
//! let verbs = Verbs::new(VerbsConfig::default())?;
//! let connection = Connection::connect(&verbs, "192.0.2.1:445", Config::default()).await?;
//! # Ok(())
//! # }
//! ```
//!
//! The build needs neither libraries nor headers of rdma-core. If the libraries are missing at run
//! time, [`Verbs::new`] returns an error that names them.
//!
//! [`Verbs`] is the provider, and [`Device`] describes an adapter of this machine.
//!
//! This package calls C libraries and therefore uses `unsafe`. Each unsafe block states the invariant
//! that makes it sound, and a test compares the layout of every C structure with the C headers.
//!
//! The modules, from the bottom up:
//!
//! | module | contents |
//! |---|---|
//! | `ffi` | C types and constants, and the functions of the two libraries |
//! | `config`, `error` | settings and errors |
//! | `cm` | the connection manager: event channels and identifiers |
//! | `memory` | registered memory and the pool of small buffers |
//! | `device` | the devices of this machine and their capabilities |
//! | `device_events` | asynchronous events of a device, and its removal |
//! | `ledger` | posted work and the meaning of completions, without `unsafe` |
//! | `queue_pair` | one connection: work requests, completions and teardown |
//! | `negotiate`, `connect`, `listen` | making connections |
//! | `provider` | the provider and its devices |

#![cfg_attr(doctest, doc = include_str!("../README.md"))]
#![cfg(target_os = "linux")]

// The C interface, public for the test that compares it with the headers.
#[doc(hidden)]
pub mod ffi;
// Posted work and its completions, public for the fuzz target.
#[doc(hidden)]
pub mod ledger;

mod cm;
mod config;
mod connect;
mod device;
mod device_events;
mod error;
mod interface;
mod listen;
mod memory;
mod negotiate;
mod provider;
mod queue_pair;

pub use config::VerbsConfig;
pub use device::{Device, Port, Transport};
pub use error::Unavailable;
pub use provider::Verbs;
