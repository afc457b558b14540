//! The objects of TDI that a client opens: [`Address`] and [`Endpoint`], and the [`Client`] whose
//! handlers they call.
//!
//! These three name each other: an address opens endpoints, an endpoint belongs to an address, and
//! the handlers of a client receive both. They are therefore the one circle of imports in `tdi`,
//! and this folder holds all of it. `phase` has no part in it.

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
