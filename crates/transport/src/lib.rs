//! Connecting and listening, for the command and for the products that it starts: by each kind of RDMA and by plain
//! TCP, with the cause and the cure in each error.
//!
//! * [`Address`]: `HOST[:PORT]` as people write it, and what it resolves to.
//! * [`Rdma`]: a kind of RDMA with its settings, which connects and listens.
//! * [`connect_tcp`], [`listen_tcp`]: the same by plain TCP.
//! * [`text`]: errors, names and numbers as people read them.
//!
//! An [`Error`] says what it says about the peer, and which setting may cure it, so that a program can name its option.
#![forbid(unsafe_code)]

pub mod text;
mod throttle;

mod addresses;
mod connection;
mod explain;
mod kept;
mod kind;
mod negotiated;
mod rdma;
mod side_by_side;
mod tcp;

pub use addresses::{
    Address, AddressError, Families, ResolveError, canonical, resolve, resolve_listen,
    resolve_within,
};
pub use connection::{close, connection_span, peer_span};
pub use explain::{
    Cause, Error, Setting, explain_connect, explain_end, explain_listen, limit_cure,
};
pub use kept::Kept;
pub use kind::Kind;
pub use negotiated::{NegotiatedReport, VERSION};
#[cfg(target_os = "linux")]
pub use rdma::unavailable;
pub use rdma::{Opened, Rdma, RdmaSettings};
pub use tcp::{
    TcpOptions, check_transparent, connect_tcp, connect_tcp_as, listen_tcp, listen_tcp_all,
    listen_tcp_on,
};
pub use throttle::Throttle;
