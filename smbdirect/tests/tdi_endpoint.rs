//! Tests of the TDI objects over real connections, in process and over TCP: the completions and
//! events that a client sees.

#[path = "tdi_endpoint/ends.rs"]
mod ends;

#[path = "tdi_endpoint/adapters.rs"]
mod adapters;
#[path = "tdi_endpoint/connecting.rs"]
mod connecting;
#[path = "tdi_endpoint/disconnecting.rs"]
mod disconnecting;
#[path = "tdi_endpoint/failing.rs"]
mod failing;
#[path = "tdi_endpoint/model.rs"]
mod model;
#[path = "tdi_endpoint/receiving.rs"]
mod receiving;
#[path = "tdi_endpoint/reentrancy.rs"]
mod reentrancy;
#[path = "tdi_endpoint/sending.rs"]
mod sending;
#[path = "tdi_endpoint/stress.rs"]
mod stress;
