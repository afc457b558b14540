//! What moves one message: receiving it, memory for it, translating it, and sending it.
//!
//! [`requests`] and [`answers`] are the two directions, and [`exchange`] is what they share. Nothing here knows how
//! sessions begin or how the gateway runs.

pub(crate) mod answers;
pub(crate) mod buffers;
pub(crate) mod exchange;
pub(crate) mod incoming;
pub(crate) mod memory;
pub(crate) mod peer;
pub(crate) mod requests;
pub(crate) mod tcp;
