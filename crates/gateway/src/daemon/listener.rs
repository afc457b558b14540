//! The listeners that clients connect to.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};
use smbdirect::{Incoming, rdma::provider::Admission};
use smbdirect_transport::{Opened, canonical, limit_cure};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
    time::sleep,
};
use tracing::warn;

use crate::{
    phase::{Phase, Phases},
    session::{places::Place, service::Service},
};

/// Pause after a failure to accept a TCP connection, for example because file descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The interval of log lines about failures to accept.
const LOG_INTERVAL: Duration = Duration::from_mins(1);

/// A listener that clients connect to.
#[derive(Debug)]
pub enum ClientListener {
    /// Clients with SMB Direct.
    SmbDirect(Opened),
    /// Clients with SMB over TCP.
    Tcp(TcpListener),
}

/// A client that was admitted.
pub(crate) struct Client {
    pub(crate) place: Place,
    pub(crate) peer: SocketAddr,
    pub(crate) connection: Accepted,
}

/// The connection of a client.
pub(crate) enum Accepted {
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
            Self::SmbDirect(listener) => listener.local_addr().context("listening"),
            Self::Tcp(listener) => listener.local_addr().context("listening"),
        }
    }

    /// Accepts clients, and turns those away that are not admitted, until it cannot listen any longer. When the gateway is
    /// succeeded by another process, it stops listening, and ends after the clients that have connected before.
    pub(crate) async fn accept_all(
        self,
        service: Arc<Service>,
        clients: mpsc::Sender<Result<Client>>,
        phases: Phases,
    ) {
        let accepted = match self {
            Self::SmbDirect(listener) => {
                accept_smb_direct(listener, service, &clients, phases).await
            }
            Self::Tcp(listener) => return accept_tcp(listener, &service, &clients, phases).await,
        };
        if let Err(error) = accepted {
            // Without a receiver the gateway has ended.
            let _ = clients.send(Err(error)).await;
        }
    }
}

/// Accepts clients by SMB Direct.
///
/// # Errors
/// The listener cannot listen any longer.
async fn accept_smb_direct(
    listener: Opened,
    service: Arc<Service>,
    clients: &mpsc::Sender<Result<Client>>,
    phases: Phases,
) -> Result<()> {
    let mut listener = listener
        .listen()
        .await?
        .with_admission(Admission::new(move |peer| {
            let place = service.admit(canonical(peer), None)?;
            Some(Box::new(place))
        }));
    let mut is_stopped = false;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = phases.reached(Phase::Succeeded), if !is_stopped => {
                is_stopped = true;
                if listener.stop() {
                    continue;
                }
                return Ok(());
            }
        };
        let mut incoming = match accepted {
            Ok(incoming) => incoming,
            Err(_) if is_stopped => return Ok(()),
            Err(error) => return Err(anyhow!("cannot listen any longer: {error}")),
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
            return Ok(());
        }
    }
}

/// Accepts clients by TCP, until the gateway ends.
async fn accept_tcp(
    listener: TcpListener,
    service: &Service,
    clients: &mpsc::Sender<Result<Client>>,
    phases: Phases,
) {
    let (mut logged, mut failures) = (None, 0);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = phases.reached(Phase::Succeeded) => return,
        };
        let (stream, peer) = match accepted {
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
