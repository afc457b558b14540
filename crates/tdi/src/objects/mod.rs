//! The objects of TDI that a client opens: [`Transport`], [`Address`] and [`Endpoint`], and the
//! [`Client`] whose handlers they call.

mod address;
mod data;
mod device;
mod endpoint;
mod establish;
#[cfg(test)]
mod pair;
mod phase;
mod port;
mod requests;
mod task;
mod transport;
mod types;

pub use data::SendOptions;
pub use device::TransportSettings;
#[cfg(test)]
pub(crate) use pair::Pair;
pub use port::Share;
pub use requests::Operation;
pub use transport::Transport;
pub(crate) use types::EndpointShared;
pub use types::{Address, Client, ConnectAnswer, Endpoint, EndpointContext, Offer};
