//! Code that the tests of several packages share.
//!
//! * [`captures`]: reads the captures of Linux in `crates/smbdirect/tests/captures`.
//! * [`talk`]: connections made up packet by packet, and captures of them.
//! * [`decoded`]: what was decoded of a capture.
//! * [`futures`]: no future leaves its waker behind, or wakes it under a lock.
//! * [`log`]: the log lines of a test.
//! * [`machine`]: a machine whose files are below another root.
//! * [`messages`]: SMB2 messages, written by their offsets.
//! * `peers`: clients and servers of a gateway, with the feature of this name.
//! * [`within`]: awaits a future that has to resolve.
//!
//! Its documentation tests are the programs of the book.
//!
//! This package depends on `smbdirect`, whose integration tests depend on this package. Its unit tests cannot:
//! they would see the types of two different builds of `smbdirect`.
#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "no interface for users")]

pub mod captures;
pub mod decoded;
pub mod futures;
pub mod log;
pub mod machine;
pub mod messages;
mod noise;
#[cfg(feature = "peers")]
pub mod peers;
pub mod talk;
mod time;

pub use noise::noise;
pub use time::within;

/// The program of `README.md`.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;

/// The programs of `docs/upper-layer.md`.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/upper-layer.md")]
pub struct UpperLayerPage;

/// The programs of `docs/providers.md`.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/providers.md")]
pub struct ProvidersPage;

/// The program of `docs/sans-io.md`.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/sans-io.md")]
pub struct SansIoPage;

/// The program of `docs/migration.md`.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/migration.md")]
pub struct MigrationPage;
