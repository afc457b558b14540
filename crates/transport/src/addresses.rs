//! The addresses that a host, or no host, stands for.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use anyhow::{Context, Result, anyhow};
use socket2::{Domain, SockRef, Socket, Type};

use crate::{options::Address, report};

/// The address families that a listener without a host accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Families {
    /// IPv6 and IPv4, by one IPv6 socket, where the system has IPv6.
    Both,
    /// IPv4 only.
    Ipv4,
}

impl Families {
    /// Returns the families that a listener of the provider called `provider` accepts.
    ///
    /// RDMA adapters stay with IPv4: some refuse IPv4 peers on an IPv6 listener.
    pub(crate) fn of(provider: &str) -> Self {
        match provider {
            "verbs" => Self::Ipv4,
            _ => Self::Both,
        }
    }

    /// Returns the address to bind for every address of the machine.
    fn every_address(self) -> IpAddr {
        match self == Self::Both && is_dual_stack() {
            true => Ipv6Addr::UNSPECIFIED.into(),
            false => Ipv4Addr::UNSPECIFIED.into(),
        }
    }
}

/// Has an IPv6 listener accept IPv4 peers too, as the library does for its own. On Linux `net.ipv6.bindv6only`
/// decides.
pub(super) fn accept_ipv4(socket: SockRef<'_>) {
    if cfg!(not(target_os = "linux")) {
        // Without this option of the system the listener accepts IPv6 peers only.
        let _ = socket.set_only_v6(false);
    }
}

/// Returns whether an IPv6 listener of this system accepts IPv4 peers too.
fn is_dual_stack() -> bool {
    let probe = || {
        let socket = Socket::new(Domain::IPV6, Type::STREAM, None)?;
        accept_ipv4(SockRef::from(&socket));
        socket.bind(&SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0).into())?;
        Ok::<_, io::Error>(!socket.only_v6()?)
    };
    probe().unwrap_or(false)
}

/// Returns the address to listen on for `address`; without a host, every address of `families`.
///
/// # Errors
/// A name that has no address.
pub(crate) async fn resolve_listen(
    address: &Address,
    default_port: u16,
    families: Families,
) -> Result<SocketAddr> {
    if address.host.is_empty() {
        let port = address.port.unwrap_or(default_port);
        return Ok(SocketAddr::new(families.every_address(), port));
    }
    let resolved = resolve(address, default_port).await?;
    let first = resolved.first().copied();
    first.with_context(|| format!("{address} has no addresses"))
}

/// Returns the addresses that `address` stands for.
///
/// # Errors
/// A name that has none.
pub(crate) async fn resolve(address: &Address, default_port: u16) -> Result<Vec<SocketAddr>> {
    let port = address.port.unwrap_or(default_port);
    let host = address.host.as_str();
    let addresses = tokio::net::lookup_host((host, port)).await;
    let addresses = addresses.map_err(|error| {
        let why = report::printable(&error.to_string());
        let why = why.strip_prefix("failed to lookup address information: ");
        match why {
            Some(why) => anyhow!("`{host}` has no address: {why}; check the name"),
            None => anyhow!("`{host}` has no address: {error}; check the name"),
        }
    })?;
    Ok(addresses.collect())
}
