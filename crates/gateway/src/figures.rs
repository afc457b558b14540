//! What the gateway counts and times.

pub(crate) mod counters;
pub(crate) mod times;
pub(crate) mod waits;
