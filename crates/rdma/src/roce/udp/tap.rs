//! An observer of the datagrams on the wire.

use std::{fmt, net::SocketAddr};

use crate::software::direction::Direction;

/// An observer of the RoCEv2 datagrams of all connections, for example to write captures.
pub trait DatagramTap: Send + Sync + fmt::Debug {
    /// Receives the payload of a UDP datagram that was sent or received.
    ///
    /// `identification` is the Identification of its IPv4 header, which the ICRC covers; 0 for IPv6.
    /// Received datagrams that were dropped are not shown.
    fn datagram(
        &self,
        direction: Direction,
        local: SocketAddr,
        remote: SocketAddr,
        identification: u16,
        datagram: &[u8],
    );
}
