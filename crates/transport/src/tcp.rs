//! Connects and listens by plain TCP.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use anyhow::{Result, anyhow};
use socket2::SockRef;
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    time::timeout,
};

use crate::{
    addresses::{Address, Families, accept_ipv4, resolve, resolve_listen},
    explain::{cannot_listen, limit_cure, unanswered},
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

/// Connects by plain TCP to the first address of `address` that answers.
///
/// # Errors
/// The last address failed: the reason, and what to try.
pub async fn connect_tcp(
    address: &Address,
    default_port: u16,
    limit: Duration,
) -> Result<TcpStream> {
    let mut last = None;
    for address in resolve(address, default_port).await? {
        let connecting = async { tcp_socket(address)?.connect(address).await };
        let fault = match timeout(limit, connecting).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => anyhow!(
                "nothing listens on {address} ({}); start the server there, or check the port",
                text::plain(&error)
            ),
            Ok(Err(error)) => anyhow!(
                "{address} cannot be reached: {}; {}",
                text::plain(&error),
                limit_cure(&error).unwrap_or("check the address and the route to it")
            ),
            Err(_) => unanswered(address, limit),
        };
        last = Some(fault);
    }
    Err(last.expect("a name has at least one address"))
}

/// Listens on `address` for plain TCP; without a host, on every address of the machine.
///
/// # Errors
/// The reason, and what to try.
pub async fn listen_tcp(address: &Address, default_port: u16) -> Result<TcpListener> {
    let address = resolve_listen(address, default_port, Families::Both).await?;
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
