//! Addresses as RoCEv2 uses them.

use std::net::{IpAddr, SocketAddr};

/// Converts an IPv4-mapped IPv6 address to IPv4. Another IPv6 address keeps its scope.
pub(super) const fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::new(IpAddr::V4(ip), address.port()),
        IpAddr::V6(_) => address,
    }
}

/// Returns the address to pass to a socket of the family of `socket`.
pub(super) fn for_socket(address: SocketAddr, socket: SocketAddr) -> SocketAddr {
    match (address.ip(), socket) {
        (IpAddr::V4(ip), SocketAddr::V6(_)) => {
            SocketAddr::new(ip.to_ipv6_mapped().into(), address.port())
        }
        _ => address,
    }
}

pub(super) const fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}
