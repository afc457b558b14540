//! The bugs that other implementations of SMB Direct have had and fixed, each as a test here.
//!
//! `docs/bugs.md` has the list, with the tests and, for bugs that cannot exist here, the reason.

#[path = "pair/fabric.rs"]
#[allow(dead_code, reason = "what only the pair's tests use")]
mod fabric;

mod bugs {
    pub(crate) mod decoding;
    pub(crate) mod protocol;
}
