//! Connects and listens by plain TCP.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
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
    explain::{cannot_connect, cannot_listen, unanswered},
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
) -> Result<TcpStream> {
    connect_tcp_from(None, address, default_port, limit).await
}

/// Connects as [`connect_tcp`] does, from the address `source` with a free port, which may belong to another machine
/// (IP_TRANSPARENT of Linux).
///
/// # Errors
/// As [`connect_tcp`], and if the system does not permit the address.
pub async fn connect_tcp_from(
    source: Option<IpAddr>,
    address: &Address,
    default_port: u16,
    limit: Duration,
) -> Result<TcpStream> {
    let began = Instant::now();
    let mut addresses = resolve_within(limit, address, default_port).await?;
    if let Some(source) = source {
        addresses.retain(|address| address.is_ipv4() == source.is_ipv4());
        let family = if source.is_ipv4() { "IPv4" } else { "IPv6" };
        ensure!(
            !addresses.is_empty(),
            "{address} has no {family} address, which a connection from {source} needs"
        );
    }
    let first = addresses[0];
    let connecting = first_of(addresses, |address| async move {
        let connected = async { socket_from(source, address)?.connect(address).await };
        connected
            .await
            .map_err(|error| cannot_connect(&error, address))
    });
    let left = limit.saturating_sub(began.elapsed());
    let connected = timeout(left, connecting).await;
    connected.unwrap_or_else(|_| Err(unanswered(first, limit)))
}

/// Returns a socket to connect to `address`, from `source` if it is given.
fn socket_from(source: Option<IpAddr>, address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = tcp_socket(address)?;
    if let Some(source) = source {
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
pub async fn listen_tcp(address: &Address, default_port: u16) -> Result<TcpListener> {
    bind(resolve_listen(address, default_port, Families::Both).await?)
}

/// Listens on each address of `address` for plain TCP; without a host, on every address of the machine. Logs the
/// addresses on which it cannot listen.
///
/// # Errors
/// It can listen on none of them: the reason, and what to try.
pub async fn listen_tcp_all(address: &Address, default_port: u16) -> Result<Vec<TcpListener>> {
    let addresses = resolve_listen_all(address, default_port, Families::Both).await?;
    let bound = bind_all(addresses, async |address| {
        let listener = bind(address)?;
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
    bind: impl AsyncFn(SocketAddr) -> Result<(T, u16)>,
) -> Result<Vec<T>> {
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
        warn!("{fault:#}; the other addresses of this name are used");
    }
    Ok(bound)
}

/// Listens on an address for plain TCP.
fn bind(address: SocketAddr) -> Result<TcpListener> {
    let bind = || {
        let socket = tcp_socket(address)?;
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
