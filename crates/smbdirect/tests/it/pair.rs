//! Tests of two engines on a simulated fabric with virtual time, one behaviour in each file.
//!
//! Read `pair/fabric.rs` first: it has the fabric, its faults, and the checks after every step of
//! every test here. `swarm.rs` runs the same fabric with random settings, faults and commands.

pub(crate) mod backpressure;
pub(crate) mod credit_grant;
pub(crate) mod disconnect_anywhere;
#[allow(dead_code, reason = "the swarm uses the rest")]
pub(crate) mod fabric;
pub(crate) mod fragmented_message;
pub(crate) mod idle_timeout;
pub(crate) mod keepalive;
pub(crate) mod last_credit;
pub(crate) mod minimum_credits;
pub(crate) mod negotiation;
pub(crate) mod policies;
pub(crate) mod remote_invalidate;
pub(crate) mod transfers;
