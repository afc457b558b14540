//! RoCEv2 in software: RDMA over UDP, compatible with network cards and with Linux rxe.
//!
//! ```text
//!   packets: BTH, extended headers, payload         packet     IBTA volume 1, chapter 9
//!   invariant CRC                                   icrc       annex A17
//!   ---------------------------------------------------------------------------------
//!   UDP, port 4791
//! ```
//!
//! The packet layer is public so that programs can decode captures with it. No module here has a
//! socket or a clock.

pub mod icrc;
pub mod packet;
mod psn;

pub use psn::Psn;
