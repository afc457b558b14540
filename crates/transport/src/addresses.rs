//! Addresses as users write them, and their resolution: of a host, or without a host.

use std::{
    fmt, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs},
    str::FromStr,
    thread,
    time::Duration,
};

use socket2::{Domain, SockRef, Socket, Type};
use thiserror::Error;
use tokio::{
    sync::{Semaphore, oneshot},
    time::timeout,
};

use crate::{kind::Kind, text};

/// The address of a peer, or to listen on: `HOST[:PORT]`. An empty host is every address of the
/// machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The host; empty for every address of the machine.
    pub host: String,
    /// The port, if one is given.
    pub port: Option<u16>,
}

/// The reason why a text is not an address.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AddressError {
    /// There is neither a host nor a port.
    #[error("the address is empty; an address is HOST[:PORT]")]
    Empty,
    /// The text has none of the forms of an address.
    #[error("an address is HOST[:PORT]; IPv6 with a port is [IPv6]:PORT")]
    Form,
    /// This text follows the host, and is not the number of a port.
    #[error("`{0}` is not a port; a port is a number from 0 to 65535")]
    Port(String),
    /// This address is one of a single link, and the text does not name the interface.
    #[error("`{0}` is on each link another machine; add the interface: {interfaces}", interfaces = with_interfaces(.0))]
    NoInterface(Ipv6Addr),
    /// The text is this number only.
    #[error("`{0}` has no host; a port is written `HOST:{0}`")]
    OnlyPort(String),
}

/// Returns a link-local address with each interface of this machine.
fn with_interfaces(address: &Ipv6Addr) -> String {
    let names = interfaces();
    let names = names.iter().map(|name| format!("`{address}%{name}`"));
    names.collect::<Vec<_>>().join(" or ")
}

/// Returns the names of the network interfaces but the loopback interface, or an example where they are unknown.
fn interfaces() -> Vec<String> {
    #[cfg(target_os = "linux")]
    if let Ok(all) = nix::net::if_::if_nameindex() {
        let names = all.iter().map(|each| each.name().to_string_lossy());
        let names: Vec<_> = names.filter(|name| name != "lo").map(Into::into).collect();
        if !names.is_empty() {
            return names;
        }
    }
    vec!["eth0".into()]
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let never_in_one = |c: char| c.is_whitespace() || c.is_control() || "/?#".contains(c);
        if text.contains(never_in_one) {
            return Err(AddressError::Form);
        }
        let (host, port) = split_port(text)?;
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let port = match port {
            None => None,
            Some(digits) => {
                // Without this check `+1` would be a number.
                let port = digits.parse().ok().filter(|_| is_number(digits));
                Some(port.ok_or_else(|| AddressError::Port(digits.into()))?)
            }
        };
        if host.is_empty() && port.is_none() {
            return Err(AddressError::Empty);
        }
        if !host.is_empty() && is_number(host) {
            return Err(AddressError::OnlyPort(host.into()));
        }
        Ok(Self {
            host: host.into(),
            port,
        })
    }
}

fn split_port(text: &str) -> Result<(&str, Option<&str>), AddressError> {
    if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or(AddressError::Form)?;
        check_ipv6(host)?;
        return match rest.strip_prefix(':') {
            _ if rest.is_empty() => Ok((host, None)),
            Some(port) => Ok((host, Some(port))),
            None => Err(AddressError::Form),
        };
    }
    match text.split_once(':') {
        None => Ok((text, None)),
        Some((_, port)) if port.contains(':') => {
            check_ipv6(text)?;
            Ok((text, None))
        }
        Some((host, port)) => Ok((host, Some(port))),
    }
}

fn check_ipv6(host: &str) -> Result<(), AddressError> {
    let (address, interface) = match host.split_once('%') {
        Some((address, interface)) => (address, Some(interface)),
        None => (host, None),
    };
    match address.parse::<Ipv6Addr>() {
        Ok(address) if address.is_unicast_link_local() && interface.is_none() => {
            Err(AddressError::NoInterface(address))
        }
        Ok(_) => Ok(()),
        Err(_) => Err(AddressError::Form),
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        match port {
            None => f.write_str(host),
            Some(port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Some(port) => write!(f, "{host}:{port}"),
        }
    }
}

/// Returns the IPv4 address of an IPv4 peer of an IPv6 listener; other addresses are unchanged.
pub fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, address.port()),
        // An IPv6 address keeps its scope.
        IpAddr::V6(_) => address,
    }
}

/// The address families that a listener without a host accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Families {
    /// IPv6 and IPv4, by one IPv6 socket, where the system has IPv6.
    Both,
    /// IPv4 only.
    Ipv4,
}

impl Families {
    /// Returns the families that a listener of this kind of RDMA accepts.
    ///
    /// RDMA adapters stay with IPv4: some refuse IPv4 peers on an IPv6 listener.
    pub fn of(kind: Kind) -> Self {
        if kind == Kind::Verbs {
            Self::Ipv4
        } else {
            Self::Both
        }
    }

    /// Returns the address to bind for every address of the machine.
    fn every_address(self) -> IpAddr {
        if self == Self::Both && is_dual_stack() {
            Ipv6Addr::UNSPECIFIED.into()
        } else {
            Ipv4Addr::UNSPECIFIED.into()
        }
    }
}

/// Has an IPv6 listener accept IPv4 peers too, as the library does for its own, whatever the system does by default.
pub(super) fn accept_ipv4(socket: SockRef<'_>) {
    // Without this option of the system the listener accepts IPv6 peers only.
    let _ = socket.set_only_v6(false);
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
pub async fn resolve_listen(
    address: &Address,
    default_port: u16,
    families: Families,
) -> Result<SocketAddr, ResolveError> {
    Ok(resolve_listen_all(address, default_port, families).await?[0])
}

/// Returns all addresses to listen on for `address`; without a host, the one for every address of `families`.
///
/// # Errors
/// A name that has no address.
pub(crate) async fn resolve_listen_all(
    address: &Address,
    default_port: u16,
    families: Families,
) -> Result<Vec<SocketAddr>, ResolveError> {
    if address.host.is_empty() {
        let port = address.port.unwrap_or(default_port);
        return Ok(vec![SocketAddr::new(families.every_address(), port)]);
    }
    resolve(address, default_port).await
}

/// A name without an address.
#[derive(Debug, Error)]
#[error("`{host}` has no address: {}; check the name", self.why())]
pub struct ResolveError {
    /// The name.
    pub host: String,
    /// The error of the system.
    pub error: io::Error,
}

impl ResolveError {
    /// Returns the reason of the system.
    pub fn why(&self) -> String {
        let why = text::printable(&self.error.to_string());
        match why.strip_prefix("failed to lookup address information: ") {
            Some(why) => why.into(),
            None => why,
        }
    }
}

/// Resolves `address`, and returns at least one address.
///
/// # Errors
/// A name that has none.
pub async fn resolve(
    address: &Address,
    default_port: u16,
) -> Result<Vec<SocketAddr>, ResolveError> {
    let port = address.port.unwrap_or(default_port);
    let failed = |error| ResolveError {
        host: address.host.clone(),
        error,
    };
    let found = look_up(&address.host, port).await.map_err(failed)?;
    if found.is_empty() {
        return Err(failed(io::Error::other("the system knows none")));
    }
    Ok(found)
}

/// Resolves `address` within `limit`.
///
/// # Errors
/// A name that has no address, or whose look-up takes longer.
pub async fn resolve_within(
    limit: Duration,
    address: &Address,
    default_port: u16,
) -> Result<Vec<SocketAddr>, ResolveError> {
    let resolving = timeout(limit, resolve(address, default_port));
    resolving.await.unwrap_or_else(|_| {
        let what = format!("the system has not answered within {}", text::time(limit));
        Err(ResolveError {
            host: address.host.clone(),
            error: io::Error::new(io::ErrorKind::TimedOut, what),
        })
    })
}

/// Maximum number of look-ups at the same time. Further ones wait.
static LOOK_UPS: Semaphore = Semaphore::const_new(32);

/// Looks up a host in a thread of its own. Unlike the look-up of tokio, it fails where no thread can be started, and
/// does not panic.
async fn look_up(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let permit = LOOK_UPS.acquire().await.expect("it is never closed");
    let (found, answer) = oneshot::channel();
    let host = host.to_owned();
    thread::Builder::new()
        .name("look-up".into())
        .spawn(move || {
            let addresses = (host.as_str(), port).to_socket_addrs();
            // The caller may have stopped waiting.
            let _ = found.send(addresses.map(Iterator::collect));
            drop(permit);
        })?;
    let ended = |_| Err(io::Error::other("the look-up has ended without an answer"));
    answer.await.unwrap_or_else(ended)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_in_all_their_forms() {
        for (text, host, port) in [
            ("10.0.0.1", "10.0.0.1", None),
            ("10.0.0.1:5445", "10.0.0.1", Some(5445)),
            ("10.0.0.1:0", "10.0.0.1", Some(0)),
            ("server", "server", None),
            ("server.example:445", "server.example", Some(445)),
            ("::1", "::1", None),
            ("::", "::", None),
            ("fe80::1%eth0", "fe80::1%eth0", None),
            ("[::1]", "::1", None),
            ("[::1]:65535", "::1", Some(65535)),
            ("[fe80::1%eth0]:1", "fe80::1%eth0", Some(1)),
            (":5445", "", Some(5445)),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!(
                (address.host.as_str(), address.port),
                (host, port),
                "{text}"
            );
        }
        for (text, error) in [
            ("", AddressError::Empty),
            ("5445", AddressError::OnlyPort("5445".into())),
            ("5445:5445", AddressError::OnlyPort("5445".into())),
            ("host:", AddressError::Port("".into())),
            ("host:+1", AddressError::Port("+1".into())),
            ("host:65536", AddressError::Port("65536".into())),
            ("host:port", AddressError::Port("port".into())),
            ("host:1:2", AddressError::Form),
            ("[::1", AddressError::Form),
            ("[::1]5445", AddressError::Form),
            ("[host]:1", AddressError::Form),
            ("[]:1", AddressError::Form),
            ("::1::2", AddressError::Form),
            (
                "[fe80::1]:5445",
                AddressError::NoInterface("fe80::1".parse().unwrap()),
            ),
            (
                "fe80::1",
                AddressError::NoInterface("fe80::1".parse().unwrap()),
            ),
            ("two words:1", AddressError::Form),
            ("http://host", AddressError::Form),
            ("host?x", AddressError::Form),
            ("host#x", AddressError::Form),
        ] {
            assert_eq!(text.parse::<Address>(), Err(error), "{text}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_link_local_address_is_shown_with_the_interfaces_of_this_machine() {
        let error = "fe80::1".parse::<Address>().unwrap_err().to_string();
        let all = nix::net::if_::if_nameindex().unwrap();
        let names = all.iter().map(|each| each.name().to_string_lossy());
        for name in names.filter(|name| name != "lo") {
            assert!(error.contains(&format!("`fe80::1%{name}`")), "{error}");
        }
        assert!(!error.contains("%lo`"), "{error}");
    }

    #[test]
    fn addresses_print_as_they_parse() {
        for text in ["10.0.0.1", "server:445", "::1", "[::1]:5445"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
    }
}
