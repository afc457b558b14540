//! RDMA adapters for [`smbdirect`]: InfiniBand, RoCE and iWARP, by rdma-core's libibverbs and
//! librdmacm, which are loaded at run time.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use smbdirect::{Config, Connection};
//! use smbdirect_verbs::{Verbs, VerbsConfig};
//!
//! let verbs = Verbs::new(VerbsConfig::default())?;
//! let peer = "192.0.2.1:445".parse()?;
//! let connection = Connection::connect(&verbs, peer, Config::default()).await?;
//! # Ok(())
//! # }
//! ```
//!
//! Nothing of rdma-core is needed to build this, and where it is missing at run time
//! [`Verbs::new`] says so. This is the only package of the project with `unsafe` in it: each block
//! says which promise it rests on, and a test compares the layout of every structure with the C
//! headers.
//!
//! [`Verbs`] is the provider; [`Device`] tells what there is. Below them, from the bottom up:
//! [`ffi`] (the C names), `cm` (the connection manager), `adapter` (what becomes of a device),
//! `memory` (what the adapter may touch),
//! [`ledger`] (what its completions mean, without unsafe) and `queue_pair`.

#![cfg(target_os = "linux")]

pub mod ffi;
pub mod ledger;

mod adapter;
mod cm;
mod device;
mod memory;
mod provider;
mod queue_pair;

pub use device::{Device, Port, Transport};
pub use provider::{Unavailable, Verbs, VerbsConfig};
