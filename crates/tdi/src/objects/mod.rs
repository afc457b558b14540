//! The objects of TDI that a client opens: [`Address`] and [`Endpoint`], and the [`Client`] whose
//! handlers they call.
//!
//! An address opens endpoints, an endpoint belongs to an address, and the handlers of a client take
//! both as arguments. These files therefore import each other, which no other files of `tdi` do.

mod address;
mod client;
mod data;
mod device;
mod endpoint;
mod establish;
#[cfg(test)]
mod pair;
mod phase;
mod port;
mod requests;
mod transport;

pub use address::Address;
pub use client::{Client, ConnectAnswer, Offer};
pub use data::SendOptions;
pub use device::TransportSettings;
pub(crate) use endpoint::EndpointShared;
pub use endpoint::{Endpoint, EndpointContext};
#[cfg(test)]
pub(crate) use pair::Pair;
pub use port::Share;
pub use transport::Transport;
