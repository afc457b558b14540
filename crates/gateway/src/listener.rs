//! The listeners that clients connect to.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};
use smbdirect::{Incoming, IncomingListener, rdma::provider::Admission};
use smbdirect_transport::{canonical, limit_cure};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
    time::sleep,
};
use tracing::warn;

use super::{places::Place, service::Service};

/// Pause after a failure to accept a TCP connection, for example because file descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The interval of log lines about failures to accept.
const LOG_INTERVAL: Duration = Duration::from_mins(1);

/// A listener that clients connect to.
#[derive(Debug)]
pub enum ClientListener {
    /// Clients with SMB Direct.
    SmbDirect(IncomingListener),
    /// Clients with SMB over TCP.
    Tcp(TcpListener),
}

/// A client that was admitted.
pub(super) struct Client {
    pub(super) place: Place,
    pub(super) peer: SocketAddr,
    pub(super) connection: Accepted,
}

/// The connection of a client.
pub(super) enum Accepted {
    /// SMB Direct is not negotiated yet.
    SmbDirect(Incoming),
    Tcp(TcpStream),
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

    /// Accepts clients, and turns those away that are not admitted, until it cannot listen any longer.
    pub(super) async fn accept_all(
        self,
        service: Arc<Service>,
        clients: mpsc::Sender<Result<Client>>,
    ) {
        let error = match self {
            Self::SmbDirect(listener) => accept_smb_direct(listener, service, &clients).await,
            Self::Tcp(listener) => return accept_tcp(listener, &service, &clients).await,
        };
        // Without a receiver the gateway has ended.
        let _ = clients.send(Err(error)).await;
    }
}

/// Accepts clients by SMB Direct. Returns why that has ended.
async fn accept_smb_direct(
    listener: IncomingListener,
    service: Arc<Service>,
    clients: &mpsc::Sender<Result<Client>>,
) -> anyhow::Error {
    let mut listener = listener.with_admission(Admission::new(move |peer| {
        let place = service.admit(canonical(peer), None)?;
        Some(Box::new(place))
    }));
    loop {
        let mut incoming = match listener.accept().await {
            Ok(incoming) => incoming,
            Err(error) => return anyhow!("cannot listen any longer: {error}"),
        };
        let place = incoming
            .take_place()
            .and_then(|place| place.downcast().ok());
        let Some(place) = place else {
            continue;
        };
        let client = Client {
            place: *place,
            peer: canonical(incoming.peer_addr()),
            connection: Accepted::SmbDirect(incoming),
        };
        if clients.send(Ok(client)).await.is_err() {
            return anyhow!("the gateway has ended");
        }
    }
}

/// Accepts clients by TCP, until the gateway ends.
async fn accept_tcp(
    listener: TcpListener,
    service: &Service,
    clients: &mpsc::Sender<Result<Client>>,
) {
    let (mut logged, mut failures) = (None, 0);
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                failures += 1;
                if logged.is_none_or(|logged: Instant| logged.elapsed() > LOG_INTERVAL) {
                    let cure = limit_cure(&error);
                    warn!(%error, cure, failures, "a connection cannot be accepted");
                    (logged, failures) = (Some(Instant::now()), 0);
                }
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let peer = canonical(peer);
        let here = stream.local_addr().ok().map(canonical);
        let Some(place) = service.admit(peer, here) else {
            continue;
        };
        let client = Client {
            place,
            peer,
            connection: Accepted::Tcp(stream),
        };
        if clients.send(Ok(client)).await.is_err() {
            return;
        }
    }
}
