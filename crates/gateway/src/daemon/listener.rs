//! The listeners that clients connect to.

use std::{
    io,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use smbdirect::{Incoming, rdma::provider::Admission};
use smbdirect_transport::{Cause, Error, Opened, Throttle, canonical, limit_cure};
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
    pub fn address(&self) -> io::Result<SocketAddr> {
        match self {
            Self::SmbDirect(listener) => listener.local_addr(),
            Self::Tcp(listener) => listener.local_addr(),
        }
    }

    /// Accepts clients, and turns those away that are not admitted, until it cannot listen any longer. When the gateway is
    /// succeeded by another process, it stops listening, and ends after the clients that have connected before.
    pub(crate) async fn accept_all(
        self,
        service: Arc<Service>,
        clients: mpsc::Sender<Result<Client, Error>>,
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
    clients: &mpsc::Sender<Result<Client, Error>>,
    phases: Phases,
) -> Result<(), Error> {
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
            Err(error) => {
                let text = format!("cannot listen any longer: {error}");
                return Err(Error::new(Cause::Own, text));
            }
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
    clients: &mpsc::Sender<Result<Client, Error>>,
    phases: Phases,
) {
    let mut failures = Throttle::default();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = phases.reached(Phase::Succeeded) => return,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                if let Some(failures) = failures.due(Instant::now()) {
                    let cure = limit_cure(&error);
                    warn!(%error, cure, failures, "a connection cannot be accepted");
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
