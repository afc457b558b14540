//! The objects of TDI that a client opens: [`Address`] and [`Endpoint`], and the [`Client`] whose
//! handlers they call.
//!
//! An address opens endpoints, an endpoint belongs to an address, and the handlers of a client take
//! both as arguments. These files therefore import each other, which no other files of `tdi` do.

mod address;
mod client;
mod data;
mod endpoint;
mod establish;
mod phase;
mod requests;

pub use address::Address;
pub use client::{Client, ConnectAnswer, Offer};
pub use data::SendOptions;
pub(crate) use endpoint::Shared;
pub use endpoint::{Endpoint, EndpointContext};
