//! Connects and listens by plain TCP.

use std::{
    io,
    net::{self, IpAddr, Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use smbdirect::rdma::software::network::NetworkSettings;
use socket2::SockRef;
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    time::timeout,
};
use tracing::warn;

use crate::{
    addresses::{
        Address, Families, accept_ipv4, resolve_listen, resolve_listen_all, resolve_within,
    },
    explain::{Cause, Error, cannot_connect, cannot_listen, unanswered},
    kept::Kept,
    side_by_side::first_of,
    text,
};

/// Maximum number of connections that wait to be accepted, as tokio has.
const BACKLOG: u32 = 1024;

/// Congestion control without pacing, for connections within this machine.
const UNPACED: &str = "reno";

/// Returns the congestion control of a connection within this machine, where pacing by bbr would
/// take more CPU time than everything else. `None` leaves it to the system: for other connections,
/// and where the system does not let a socket choose.
pub(crate) fn local_congestion_control(address: &Address) -> Option<&'static str> {
    let ip = match address.host.as_str() {
        "localhost" => Ok(Ipv4Addr::LOCALHOST.into()),
        host => host.parse::<IpAddr>(),
    };
    ip.ok().filter(IpAddr::is_loopback)?;
    let socket = TcpSocket::new_v4().ok()?;
    set_congestion_control(&socket, UNPACED).ok()?;
    Some(UNPACED)
}

#[cfg(target_os = "linux")]
fn set_congestion_control(socket: &TcpSocket, algorithm: &str) -> io::Result<()> {
    SockRef::from(socket).set_tcp_congestion(algorithm.as_bytes())
}

#[cfg(not(target_os = "linux"))]
fn set_congestion_control(_: &TcpSocket, _: &str) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Creates a socket to connect to `address` or to listen on it. A connection within this machine is
/// not paced.
fn tcp_socket(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    if address.ip().is_loopback() {
        // Where the system refuses, the connection is slower.
        let _ = set_congestion_control(&socket, UNPACED);
    }
    Ok(socket)
}

/// Connects by plain TCP to the first address of `address` that answers, within `limit`, the look-up included. Several
/// addresses are tried side by side.
///
/// # Errors
/// No address answered: the reason of the one that failed last, and what to try.
pub async fn connect_tcp(
    address: &Address,
    default_port: u16,
    limit: Duration,
) -> Result<TcpStream, Error> {
    let options = TcpOptions::default();
    connect_tcp_as(&options, address, default_port, limit).await
}

/// How a connection by plain TCP leaves this machine. The defaults change nothing.
#[derive(Clone, Debug, Default)]
pub struct TcpOptions<'a> {
    /// The address that the connection comes from, with a free port. It may belong to another machine (IP_TRANSPARENT
    /// of Linux).
    pub source: Option<IpAddr>,
    /// The DSCP and the interface of the packets. Connections to loopback addresses have the DSCP only, because no other
    /// interface leads to them.
    pub network: Option<&'a NetworkSettings>,
}

/// Connects as [`connect_tcp`] does, with these options.
///
/// # Errors
/// As [`connect_tcp`], and if the system does not permit the options.
pub async fn connect_tcp_as(
    options: &TcpOptions<'_>,
    address: &Address,
    default_port: u16,
    limit: Duration,
) -> Result<TcpStream, Error> {
    let began = Instant::now();
    let mut addresses = resolve_within(limit, address, default_port).await?;
    if let Some(source) = options.source {
        addresses.retain(|address| address.is_ipv4() == source.is_ipv4());
        let family = if source.is_ipv4() { "IPv4" } else { "IPv6" };
        if addresses.is_empty() {
            let text = format!(
                "{address} has no {family} address, which a connection from {source} needs"
            );
            return Err(Error::new(Cause::Name, text));
        }
    }
    let first = addresses[0];
    let connecting = first_of(addresses, |address| async move {
        let connected = async { connecting_socket(options, address)?.connect(address).await };
        connected
            .await
            .map_err(|error| cannot_connect(&error, address))
    });
    let left = limit.saturating_sub(began.elapsed());
    let connected = timeout(left, connecting).await;
    connected.unwrap_or_else(|_| Err(unanswered(first, limit)))
}

/// Returns a socket to connect to `address`.
fn connecting_socket(options: &TcpOptions<'_>, address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = tcp_socket(address)?;
    if let Some(network) = options.network {
        let mut network = network.clone();
        network.interface.take_if(|_| address.ip().is_loopback());
        network.apply(&SockRef::from(&socket))?;
    }
    if let Some(source) = options.source {
        be_transparent(&socket)?;
        socket.bind(SocketAddr::new(source, 0))?;
    }
    Ok(socket)
}

/// Permits the socket to have an address of another machine. The option of IPv4 also has this effect on a socket of
/// IPv6.
#[cfg(target_os = "linux")]
fn be_transparent(socket: &TcpSocket) -> io::Result<()> {
    SockRef::from(socket).set_ip_transparent_v4(true)
}

#[cfg(not(target_os = "linux"))]
fn be_transparent(_: &TcpSocket) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Checks that this process may connect from the address of another machine (IP_TRANSPARENT of Linux, which needs
/// CAP_NET_ADMIN or CAP_NET_RAW).
///
/// # Errors
/// The error of the system.
pub fn check_transparent() -> io::Result<()> {
    be_transparent(&TcpSocket::new_v4()?)
}

/// Listens on `address` for plain TCP; without a host, on every address of the machine.
///
/// # Errors
/// The reason, and what to try.
pub async fn listen_tcp(address: &Address, default_port: u16) -> Result<TcpListener, Error> {
    let network = NetworkSettings::default();
    bind(
        resolve_listen(address, default_port, Families::Both).await?,
        &network,
    )
}

/// Listens on each address of `address` for plain TCP, with the socket of `kept` that has it, if there is one; without a
/// host, on every address of the machine. Logs the addresses on which it cannot listen. Connections that are accepted
/// have the settings of `network` as well.
///
/// # Errors
/// This end can listen on none of the addresses: the reason, and what to try.
pub async fn listen_tcp_all(
    address: &Address,
    default_port: u16,
    network: &NetworkSettings,
    kept: &mut Kept,
) -> Result<Vec<TcpListener>, Error> {
    let addresses = resolve_listen_all(address, default_port, Families::Both).await?;
    let bound = bind_all(addresses, async |address| {
        let listener = match kept.take(address, network) {
            Some(socket) => listen_tcp_on(socket, network)?,
            None => bind(address, network)?,
        };
        let port = listener.local_addr()?.port();
        Ok((listener, port))
    });
    bound.await
}

/// Binds each address, and logs those that fail. With port 0, all of them have the port that the first one picked.
///
/// # Errors
/// All of them fail; the error is that of the first one.
pub(crate) async fn bind_all<T>(
    addresses: Vec<SocketAddr>,
    mut bind: impl AsyncFnMut(SocketAddr) -> Result<(T, u16), Error>,
) -> Result<Vec<T>, Error> {
    let (mut bound, mut faults) = (Vec::new(), Vec::new());
    let mut picked = None;
    for mut address in addresses {
        if address.port() == 0 {
            address.set_port(picked.unwrap_or(0));
        }
        match bind(address).await {
            Ok((listener, port)) => {
                picked = Some(port);
                bound.push(listener);
            }
            Err(fault) => faults.push(fault),
        }
    }
    if bound.is_empty() {
        return Err(faults.swap_remove(0));
    }
    for fault in faults {
        warn!("{fault}; the other addresses of this name are used");
    }
    Ok(bound)
}

/// Listens for plain TCP on a socket that was opened elsewhere, with the settings of `network`. Must be called within a
/// tokio runtime.
///
/// # Errors
/// The system does not permit the settings.
pub fn listen_tcp_on(
    socket: net::TcpListener,
    network: &NetworkSettings,
) -> io::Result<TcpListener> {
    network.apply(&SockRef::from(&socket))?;
    socket.set_nonblocking(true)?;
    TcpListener::from_std(socket)
}

/// Listens on an address for plain TCP.
fn bind(address: SocketAddr, network: &NetworkSettings) -> Result<TcpListener, Error> {
    let bind = || {
        let socket = tcp_socket(address)?;
        network.apply(&SockRef::from(&socket))?;
        // As tokio does, so that a server can start again while old connections are in TIME_WAIT.
        #[cfg(not(windows))]
        socket.set_reuseaddr(true)?;
        if address.is_ipv6() && address.ip().is_unspecified() {
            accept_ipv4(SockRef::from(&socket));
        }
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    bind().map_err(|error: io::Error| cannot_listen(&text::plain(&error), error.kind(), address))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    fn network(dscp: u8, interface: &str) -> NetworkSettings {
        let mut network = NetworkSettings::default();
        network.dscp = dscp;
        network.interface = Some(interface.to_owned());
        network
    }

    /// Returns the DSCP and the interface of a connection.
    fn of(stream: &TcpStream) -> (u32, Option<Vec<u8>>) {
        let socket = SockRef::from(stream);
        let class = match stream.local_addr().unwrap() {
            SocketAddr::V4(_) => socket.tos_v4(),
            SocketAddr::V6(_) => socket.tclass_v6(),
        };
        (class.unwrap() >> 2, socket.device().unwrap())
    }

    #[tokio::test]
    async fn both_ends_of_a_connection_have_the_settings_of_the_network() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let here = host.parse().unwrap();
            let Ok(listeners) =
                listen_tcp_all(&here, 0, &network(26, "lo"), &mut Kept::default()).await
            else {
                // This machine has no IPv6.
                continue;
            };
            let listener = &listeners[0];
            let address = listener.local_addr().unwrap().to_string();
            let address = address.parse().unwrap();
            // No other interface leads to a loopback address.
            let other = network(46, "missing0");
            let options = TcpOptions {
                network: Some(&other),
                ..TcpOptions::default()
            };
            let connecting = connect_tcp_as(&options, &address, 0, LIMIT);
            let (connected, accepted) = tokio::join!(connecting, listener.accept());
            assert_eq!(of(&connected.unwrap()), (46, None), "{host}");
            let lo = Some(b"lo".to_vec());
            assert_eq!(of(&accepted.unwrap().0), (26, lo), "{host}");
        }
    }

    #[tokio::test]
    async fn an_interface_that_is_missing_is_named() {
        let network = network(0, "missing0");
        let options = TcpOptions {
            network: Some(&network),
            ..TcpOptions::default()
        };
        let elsewhere = "192.0.2.1:445".parse().unwrap();
        let connected = connect_tcp_as(&options, &elsewhere, 0, LIMIT).await;
        let here = "127.0.0.1:0".parse().unwrap();
        let listening = listen_tcp_all(&here, 0, &network, &mut Kept::default()).await;
        for error in [connected.unwrap_err(), listening.unwrap_err()] {
            let text = error.to_string();
            assert!(
                text.contains("interface missing0: No such device"),
                "{text}"
            );
        }
    }
}
