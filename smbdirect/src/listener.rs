//! [`Listener`]: accepts peers, and runs the negotiation with each peer in a separate task.

use std::{net::SocketAddr, sync::Arc};

use bytes::Bytes;
use thiserror::Error;
use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinSet,
    time::timeout,
};
use tracing::{Instrument, Span, debug, field, info, warn};

use crate::{
    connection::{Connection, encoded, read_depths},
    driver::now,
    engine::{self, Config, ConnectionError},
    rdma::{
        provider::{self, Answer, Incoming, Provider, connection_span},
        work::ProviderError,
    },
    wire::{IrdOrd, ZeroDepth},
};

/// Largest number of peers that negotiate concurrently. Further peers wait until a negotiation is over.
const MAX_NEGOTIATING: usize = 256;
/// Largest number of negotiated connections that wait for [`Listener::accept`].
const BACKLOG: usize = 256;

/// Accepts SMB Direct connections.
///
/// Each peer negotiates in a task of its own, so that a silent peer does not delay others. A failed
/// attempt is logged and has no other effect. Dropping the listener stops listening and closes
/// connections that were not accepted yet. Accepted connections continue.
#[derive(Debug)]
pub struct Listener {
    local_address: SocketAddr,
    connections: mpsc::Receiver<Result<Connection, ProviderError>>,
    /// Aborts the task when the listener is dropped.
    _task: JoinSet<()>,
}

impl Listener {
    /// Listens on `address`. Port 0 picks a free port. Must be called within a tokio runtime.
    ///
    /// # Cancel safety
    /// Dropping the future stops listening.
    ///
    /// # Errors
    /// Fails if the provider cannot listen on the address.
    pub async fn bind(
        provider: Arc<dyn Provider>,
        address: SocketAddr,
        config: Config,
    ) -> Result<Self, ProviderError> {
        let listener = provider.listen(address).await?;
        let local_address = listener.local_address();
        let (sender, connections) = mpsc::channel(BACKLOG);
        let mut task = JoinSet::new();
        task.spawn(listen(provider, listener, config, sender));
        Ok(Self {
            local_address,
            connections,
            _task: task,
        })
    }

    /// Returns the address that the listener listens on, with the port that was picked.
    pub fn local_address(&self) -> SocketAddr {
        self.local_address
    }

    /// Returns the next negotiated connection.
    ///
    /// # Cancel safety
    /// Dropping the future loses no connection.
    ///
    /// # Errors
    /// Fails when the provider cannot listen any more. Every later call fails too.
    pub async fn accept(&mut self) -> Result<Connection, ProviderError> {
        let gone = || {
            let what = "the listener has failed before";
            Err(ProviderError::new(
                crate::rdma::work::ProviderErrorKind::Local,
                what,
            ))
        };
        self.connections.recv().await.unwrap_or_else(gone)
    }
}

/// Accepts connection requests and negotiates, until the provider cannot listen any more.
async fn listen(
    provider: Arc<dyn Provider>,
    mut listener: Box<dyn provider::Listener>,
    config: Config,
    connections: mpsc::Sender<Result<Connection, ProviderError>>,
) {
    let negotiating = Arc::new(Semaphore::new(MAX_NEGOTIATING));
    let mut tasks = JoinSet::new();
    loop {
        let permit = negotiating
            .clone()
            .acquire_owned()
            .await
            .expect("the semaphore is never closed");
        let incoming = match listener.accept().await {
            Ok(incoming) => incoming,
            Err(error) => {
                warn!(%error, "listening ends");
                // The listener may be dropped, and then the error has no recipient.
                let _ = connections.send(Err(error)).await;
                return;
            }
        };
        while tasks.try_join_next().is_some() {}
        let (provider, config, connections) =
            (provider.clone(), config.clone(), connections.clone());
        let span = connection_span(incoming.remote_address);
        let negotiating = async move {
            match accept_incoming(&*provider, incoming, config).await {
                Ok(connection) => {
                    debug!("accepted");
                    let _ = connections.send(Ok(connection)).await;
                }
                Err(why) => info!(%why, "a peer did not get a connection"),
            }
            drop(permit);
        };
        tasks.spawn(negotiating.instrument(span));
    }
}

/// Why a peer that asked for a connection did not get one.
#[derive(Debug, Error)]
pub(crate) enum AcceptError {
    #[error("its private data is malformed: {0}")]
    PrivateData(ZeroDepth),
    #[error("it did not connect: {0}")]
    Provider(ProviderError),
    #[error("it took too long to connect")]
    TooLate,
    #[error("it did not negotiate: {0}")]
    Negotiation(ConnectionError),
}

#[cfg(feature = "metrics")]
impl AcceptError {
    /// Returns the cause as one of [`ConnectionError::LABELS`].
    fn label(&self) -> &'static str {
        match self {
            Self::PrivateData(_) => "rdma_protocol",
            Self::Provider(error) => ConnectionError::from(error.clone()).label(),
            Self::TooLate => "negotiation_timeout",
            Self::Negotiation(error) => error.label(),
        }
    }
}

/// Accepts an RDMA connection (3.1.7.2) and negotiates on it. The caller polls the future in the
/// [span of the connection](connection_span).
///
/// # Cancel safety
/// Dropping the future turns the peer away, or closes the connection in the background.
pub(crate) async fn accept_incoming(
    provider: &dyn Provider,
    incoming: Incoming,
    config: Config,
) -> Result<Connection, AcceptError> {
    let result = answer_and_negotiate(provider, incoming, config).await;
    #[cfg(feature = "metrics")]
    if let Err(error) = &result {
        crate::metrics::failed(crate::metrics::Role::Passive, error.label());
    }
    result
}

async fn answer_and_negotiate(
    provider: &dyn Provider,
    incoming: Incoming,
    config: Config,
) -> Result<Connection, AcceptError> {
    let mut engine = engine::Connection::passive(config.clone(), now());
    let own = read_depths(provider);
    let depths = match IrdOrd::decode(&incoming.private_data) {
        _ if own.is_none() => None,
        Ok(depths) => depths,
        // The handshake has carried the read depths, so these bytes are the peer's own.
        Err(_) if incoming.knows_read_depths => None,
        //= SMBD-6-04
        Err(error) => return Err(AcceptError::PrivateData(error)),
    };
    //= SMBD-6-02
    //= EST-15
    let private_data = match (depths, own) {
        (Some(theirs), Some(own)) if !incoming.knows_read_depths => encoded(theirs.answer(own)),
        _ => Bytes::new(),
    };
    let peer_serves_reads = depths.map(|depths| depths.ird);
    //= SMBD-3.1.7.2-03
    let answer = Answer {
        private_data,
        receive: engine.negotiate_receive(),
        peer_serves_reads,
    };
    let accepting = (incoming.answer)(answer);
    let connected = timeout(config.passive_negotiation_timeout, accepting)
        .await
        .map_err(|_| AcceptError::TooLate)?
        .map_err(AcceptError::Provider)?;
    Span::current().record("local", field::display(connected.local_address));
    engine.handle_connected(connected.queue_pair.limits());
    //= SMBD-3.1.7.2-07
    let negotiating = Connection::negotiate(engine, connected, &config);
    negotiating.await.map_err(AcceptError::Negotiation)
}
