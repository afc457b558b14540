//! The local address and the MTU towards a peer, as the operating system's routes have them.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
};

#[cfg(target_os = "linux")]
use nix::{
    getsockopt_impl, libc, sockopt_impl,
    sys::socket::{getsockopt, sockopt::IpMtu},
};

use socket2::SockRef;

use super::address::with_port;
use crate::software::network::NetworkSettings;

/// How packets travel to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Route {
    /// The address that packets are sent from, with its scope, and without a port.
    pub(super) local: SocketAddr,
    /// The most bytes of an IP packet.
    pub(super) mtu: usize,
}

/// Returns the route to `remote` through the interface of the settings. Nothing is sent.
pub(super) fn route_to(remote: SocketAddr, network: &NetworkSettings) -> io::Result<Route> {
    let any: IpAddr = match remote {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let probe = UdpSocket::bind((any, 0))?;
    network.apply_interface(&SockRef::from(&probe))?;
    probe.connect(remote)?;
    Ok(Route {
        local: with_port(probe.local_addr()?, 0),
        mtu: mtu(&probe, remote).unwrap_or(FALLBACK_MTU),
    })
}

/// The MTU that is assumed where the system does not report one: the MTU of Ethernet.
const FALLBACK_MTU: usize = 1500;

#[cfg(target_os = "linux")]
fn mtu(probe: &UdpSocket, remote: SocketAddr) -> Option<usize> {
    let mtu = match remote {
        SocketAddr::V4(_) => getsockopt(probe, IpMtu),
        SocketAddr::V6(_) => getsockopt(probe, Ipv6Mtu),
    };
    usize::try_from(mtu.ok()?).ok()
}

#[cfg(not(target_os = "linux"))]
fn mtu(_: &UdpSocket, _: SocketAddr) -> Option<usize> {
    None
}

#[cfg(target_os = "linux")]
sockopt_impl!(
    /// `IPV6_MTU`: the most bytes of a packet on the path of a connected socket.
    Ipv6Mtu,
    GetOnly,
    libc::IPPROTO_IPV6,
    libc::IPV6_MTU,
    i32
);

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_route_within_the_machine_has_a_large_mtu() {
        for address in ["127.0.0.1:9", "[::1]:9"] {
            let address: SocketAddr = address.parse().unwrap();
            let Ok(route) = route_to(address, &NetworkSettings::default()) else {
                assert!(address.is_ipv6(), "a machine without IPv6");
                continue;
            };
            assert_eq!(route.local, with_port(address, 0));
            assert!(route.mtu > 4096 + 100, "{}", route.mtu);
        }
    }
}
