//! TCP connections, and the meaning of their failures.

use std::{io, net::SocketAddr, time::Duration};

use smbdirect_transport::text;
use tokio::{net::TcpStream, time::timeout};

use crate::facts::Tcp;

/// Longest time for TCP to connect: a lost SYN is repeated after a second.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Connects. Returns the meaning of the answer, and the connection.
pub(super) async fn connect(address: SocketAddr, limit: Duration) -> (Tcp, Option<TcpStream>) {
    match timeout(limit, TcpStream::connect(address)).await {
        Ok(Ok(stream)) => (Tcp::Open, Some(stream)),
        Ok(Err(error)) => (failure(&error), None),
        Err(_) => (Tcp::Dropped, None),
    }
}

fn failure(error: &io::Error) -> Tcp {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Tcp::Refused,
        io::ErrorKind::TimedOut => Tcp::Dropped,
        _ => Tcp::Unreachable(text::plain(error)),
    }
}

/// Returns the largest segment that the connection sends, in bytes.
pub(super) fn segment(stream: &TcpStream) -> Option<u32> {
    #[cfg(target_os = "linux")]
    return socket2::SockRef::from(stream).tcp_mss().ok();
    #[cfg(not(target_os = "linux"))]
    {
        let _ = stream;
        None
    }
}
