//! Tests of the TDI objects over real connections, in process and over TCP: the completions and
//! events that a client sees.

pub(crate) mod ends;

mod adapters;
mod answers;
mod connecting;
mod disconnecting;
mod failing;
mod model;
mod order;
mod receiving;
mod reentrancy;
mod sending;
mod stress;
