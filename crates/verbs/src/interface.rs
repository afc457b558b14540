//! The addresses of a network interface, by which the connection manager finds the adapter that has it.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
};

use nix::ifaddrs::getifaddrs;
use socket2::SockRef;

/// Returns the address from which packets to `remote` leave through an interface. Nothing is sent.
///
/// # Errors
/// The interface does not exist, or has no route to the peer.
pub(crate) fn source_address(interface: &str, remote: SocketAddr) -> io::Result<SocketAddr> {
    let any: IpAddr = match remote {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let probe = UdpSocket::bind((any, 0))?;
    let bound = SockRef::from(&probe).bind_device(Some(interface.as_bytes()));
    bound
        .and_then(|()| probe.connect(remote))
        .map_err(|error| named(interface, &error))?;
    let mut source = probe.local_addr()?;
    source.set_port(0);
    Ok(source)
}

/// Returns the addresses of an interface on which to listen for `ip`, at least one: `ip` itself, or all addresses if it
/// is unspecified. An unspecified IPv6 address includes those of IPv4.
///
/// # Errors
/// The interface has no such address.
pub(crate) fn listening_addresses(
    interface: &str,
    ip: IpAddr,
) -> io::Result<(IpAddr, Vec<IpAddr>)> {
    let mut addresses = addresses(interface)?.into_iter().filter(|address| {
        if ip.is_unspecified() {
            ip.is_ipv6() || address.is_ipv4()
        } else {
            *address == ip
        }
    });
    let first = addresses.next().ok_or_else(|| {
        let missing = if ip.is_unspecified() {
            "it has no IP address".to_owned()
        } else {
            format!("{ip} is not one of its addresses")
        };
        named(
            interface,
            &io::Error::new(io::ErrorKind::AddrNotAvailable, missing),
        )
    })?;
    Ok((first, addresses.collect()))
}

/// Returns the addresses of an interface, except those that are valid only with a scope.
fn addresses(interface: &str) -> io::Result<Vec<IpAddr>> {
    let all = getifaddrs()?.filter(|entry| entry.interface_name == interface);
    let addresses = all.filter_map(|entry| {
        let address = entry.address?;
        if let Some(address) = address.as_sockaddr_in() {
            return Some(IpAddr::V4(address.ip()));
        }
        let ip = address.as_sockaddr_in6()?.ip();
        (!ip.is_unicast_link_local()).then_some(IpAddr::V6(ip))
    });
    Ok(addresses.collect())
}

/// Adds the name of the interface to an error.
fn named(interface: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("interface {interface}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[test]
    fn the_loopback_interface_has_its_addresses() {
        let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        for ip in [any, LOCAL] {
            let (first, others) = listening_addresses("lo", ip).unwrap();
            assert_eq!((first, others), (LOCAL, Vec::new()), "{ip}");
        }
        let (first, others) = listening_addresses("lo", Ipv6Addr::UNSPECIFIED.into()).unwrap();
        assert!(first == LOCAL || others.contains(&LOCAL));
        let source = source_address("lo", SocketAddr::new(LOCAL, 9)).unwrap();
        assert_eq!(source, SocketAddr::new(LOCAL, 0));
    }

    #[test]
    fn errors_name_the_interface() {
        let other = IpAddr::from([192, 0, 2, 1]);
        for (error, words) in [
            (
                listening_addresses("missing0", Ipv4Addr::UNSPECIFIED.into()).unwrap_err(),
                "interface missing0: it has no IP address",
            ),
            (
                listening_addresses("lo", other).unwrap_err(),
                "interface lo: 192.0.2.1 is not one of its addresses",
            ),
            (
                source_address("missing0", SocketAddr::new(LOCAL, 9)).unwrap_err(),
                "interface missing0: ",
            ),
        ] {
            assert!(error.to_string().starts_with(words), "{error}");
        }
    }
}
