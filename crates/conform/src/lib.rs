//! Conformance cases for implementations of SMB Direct ([MS-SMBD]): servers and clients, over any
//! RDMA transport, and engines without a network.
//!
//! A [`Case`] is a value: it has an id, a section, and one sentence that says what it does and
//! expects. There are five groups ([`Group`]):
//!
//! * cases 1 to 42 of Microsoft's suite for servers;
//! * their mirror image, for clients;
//! * peers that break RDMA or SMB Direct on purpose;
//! * malformed MPA, DDP and RDMAP;
//! * bugs that other implementations have had, as far as they show on the wire.
//!
//! To judge an implementation, implement [`Server`] or [`Client`] and give it to [`run`], with the
//! [`UpperLayer`] that the implementation carries: [`Echo`], or [`Smb2`] for any SMB3 server or
//! client. With the feature `tokio`, which is on by default, [`RdmaServer`] and [`RdmaClient`]
//! judge what an RDMA provider connects to.
//!
//! ```no_run
//! # #[cfg(feature = "tokio")] {
//! use std::sync::Arc;
//!
//! use smbdirect::rdma::iwarp::Iwarp;
//! use smbdirect_conform::{Echo, Outcome, RdmaServer, run, server_cases};
//!
//! let address = "192.0.2.1:5445".parse().unwrap();
//! let provider = Arc::new(Iwarp::default());
//! let mut server = RdmaServer::new(provider, address).unwrap().with_tcp();
//! for case in server_cases().filter(|case| !case.is_disruptive) {
//!     let outcome = run(case, &mut server, &Echo);
//!     if let Outcome::Fail { expected, seen } = outcome {
//!         println!("{} ({}): expected {expected}; seen {seen}", case.id, case.section);
//!     }
//! }
//! # }
//! ```
//!
//! The functions block: over a network, call them on a thread without a runtime. The `conform`
//! command of `smbdirect-cli` does so.
//!
//! [MS-SMBD]: https://learn.microsoft.com/en-us/openspecs/windows_protocols/ms-smbd/
#![forbid(unsafe_code)]

mod bugs;
mod case;
mod client;
mod hostile;
mod iwarp;
mod outcome;
mod peer;
mod raw;
#[cfg(feature = "tokio")]
mod rdma;
mod script;
mod server;
mod suite;
mod upper;

pub use case::{Case, Group};
pub use outcome::{Outcome, SkipReason, Stop, Verdict, fail, require, skip};
pub use peer::{
    Client, ClientAction, Link, Next, PeerFacts, PeerSettings, Server, Tcp, Timers, Watch,
};
#[cfg(feature = "tokio")]
pub use rdma::{RdmaClient, RdmaServer};
pub use suite::{
    Selection, SelectionError, client_cases, detect, run, run_client, server_cases, serves,
};
pub use upper::{Answering, Asking, Detect, Echo, Smb2, UpperLayer};
