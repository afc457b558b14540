//! The listener that clients connect to.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, Result, anyhow};
use smbdirect::Listener;
use smbdirect_transport::limit_cure;
use tokio::{net::TcpListener, time::sleep};
use tracing::warn;

use super::peer::Peer;

/// Pause after a failure to accept a TCP connection, for example because file descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The listener that clients connect to.
#[derive(Debug)]
pub enum ClientListener {
    /// Clients with SMB Direct.
    SmbDirect(Listener),
    /// Clients with SMB over TCP.
    Tcp(TcpListener),
}

impl ClientListener {
    /// Returns the address that clients connect to.
    ///
    /// # Errors
    /// The operating system does not support it.
    pub fn address(&self) -> Result<SocketAddr> {
        match self {
            Self::SmbDirect(listener) => Ok(listener.local_addr()),
            Self::Tcp(listener) => listener.local_addr().context("listening"),
        }
    }

    /// Returns the next client. Cancel-safe: dropping the future loses no client.
    pub(super) async fn accept(&mut self) -> Result<(SocketAddr, Peer)> {
        match self {
            Self::SmbDirect(listener) => {
                let accepted = listener.accept().await;
                let connection =
                    accepted.map_err(|error| anyhow!("cannot listen any longer: {error}"))?;
                Ok((connection.peer_addr(), Peer::SmbDirect(connection)))
            }
            Self::Tcp(listener) => loop {
                match listener.accept().await {
                    Ok((stream, peer)) => return Ok((peer, Peer::Tcp(stream, peer))),
                    Err(error) => {
                        let cure = limit_cure(&error);
                        warn!(%error, cure, "a connection cannot be accepted");
                        sleep(ACCEPT_PAUSE).await;
                    }
                }
            },
        }
    }
}
