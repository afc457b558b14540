//! [`Listener`]: accepts peers, and runs the negotiation with each peer in a separate task.

use std::{
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Poll},
};

use futures_core::Stream;
use tokio::{
    net::ToSocketAddrs,
    sync::{Semaphore, mpsc},
    task::JoinSet,
};
use tracing::{Instrument, debug, info, warn};

use crate::{
    connection::Connection,
    engine::Config,
    incoming::IncomingListener,
    rdma::runtime::{OwnedTask, Receiver},
    rdma::{
        provider::Provider,
        work::{ProviderError, ProviderErrorKind},
    },
};

/// Largest number of peers that negotiate concurrently. Further peers wait until a negotiation is over.
const MAX_NEGOTIATING: usize = 256;
/// Largest number of negotiated connections that wait for [`Listener::accept`].
const BACKLOG: usize = 256;

/// Accepts SMB Direct connections.
///
/// Each peer negotiates in a task of its own, so that a silent peer does not delay others. A failed
/// attempt is logged and has no other effect. Dropping the listener, or [`close`](Self::close), stops listening and closes
/// connections that were not accepted yet. Accepted connections continue. When the drop returns, another listener can
/// use the address.
///
/// To refuse a peer by its address, or to choose settings for each peer, use [`IncomingListener`].
#[derive(Debug)]
pub struct Listener {
    local_addr: SocketAddr,
    connections: Receiver<Result<Connection, ProviderError>>,
    config: Arc<Mutex<Config>>,
    task: OwnedTask,
}

impl Listener {
    /// Listens on an address, such as `"0.0.0.0:5445"`. Port 0 picks a free port. If `address` stands for several
    /// addresses, listens on the first one on which it can. Must be called within a tokio runtime.
    ///
    /// ```
    /// # use smbdirect::{Config, Iwarp, IwarpConfig, Listener};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// let provider = Iwarp::new(IwarpConfig::default());
    /// let listener = Listener::bind(&provider, "127.0.0.1:0", Config::default()).await?;
    /// println!("listening on {}", listener.local_addr());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future stops listening.
    ///
    /// # Errors
    /// Fails if the provider cannot listen on any of the addresses, or if a host name cannot be looked up. The error of
    /// several addresses is chosen as in [`Connection::connect`].
    pub async fn bind(
        provider: &dyn Provider,
        address: impl ToSocketAddrs,
        config: Config,
    ) -> Result<Self, ProviderError> {
        let listener = IncomingListener::bind(provider, address).await?;
        let local_addr = listener.local_addr();
        let (sender, connections) = mpsc::channel(BACKLOG);
        let config = Arc::new(Mutex::new(config));
        Ok(Self {
            local_addr,
            connections: connections.into(),
            config: config.clone(),
            task: OwnedTask::spawn(listen(listener, config, sender)),
        })
    }

    /// Sets the settings for the peers that connect from now on. Connections and negotiations that have begun
    /// keep their settings.
    ///
    /// ```no_run
    /// # async fn example(listener: smbdirect::Listener) -> Result<(), Box<dyn std::error::Error>> {
    /// use smbdirect::{Config, Settings};
    ///
    /// let mut settings = Settings::default();
    /// settings.receive_credit_max = 32;
    /// listener.set_config(Config::new(settings)?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_config(&self, config: Config) {
        *lock(&self.config) = config;
    }

    /// Returns the address that the listener listens on, with the port that was picked.
    ///
    /// ```no_run
    /// # async fn example(listener: smbdirect::Listener) -> Result<(), Box<dyn std::error::Error>> {
    /// println!("listening on port {}", listener.local_addr().port());
    /// # Ok(())
    /// # }
    /// ```
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Returns the next negotiated connection.
    ///
    /// ```no_run
    /// # async fn example(mut listener: smbdirect::Listener) -> std::io::Result<()> {
    /// loop {
    ///     let connection = listener.accept().await?;
    ///     tokio::spawn(async move {
    ///         while let Ok(message) = connection.recv().await {
    ///             println!("{} bytes from {}", message.len(), connection.peer_addr());
    ///         }
    ///     });
    /// }
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future loses no connection.
    ///
    /// # Errors
    /// Fails when the provider cannot listen any more. Every later call also fails, and peers that have not negotiated
    /// by then get no connection.
    pub async fn accept(&mut self) -> Result<Connection, ProviderError> {
        self.connections.recv().await.unwrap_or_else(failed_before)
    }

    /// Stops listening, closes the connections that were not accepted, and returns when they are over. When the future is
    /// first polled, another listener can use the address.
    ///
    /// ```no_run
    /// # async fn example(listener: smbdirect::Listener) {
    /// listener.close().await;
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future closes these connections in the background.
    pub async fn close(self) {
        let Self {
            task,
            mut connections,
            ..
        } = self;
        drop(task);
        let mut closing = Vec::new();
        while let Some(connection) = connections.recv().await {
            closing.extend(connection.inspect(Connection::start_close));
        }
        for connection in closing {
            connection.closed().await;
        }
    }

    /// Polls for the next negotiated connection, for hand-written futures. Only the waker of the last call is
    /// kept. It is woken when a connection or an error is ready.
    ///
    /// ```no_run
    /// # async fn example(mut listener: smbdirect::Listener) -> Result<(), Box<dyn std::error::Error>> {
    /// let connection = std::future::poll_fn(|context| listener.poll_accept(context)).await?;
    /// println!("{} has connected", connection.peer_addr());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails as [`accept`](Self::accept) does.
    pub fn poll_accept(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Connection, ProviderError>> {
        let polled = self.connections.poll_recv(context);
        polled.map(|next| next.unwrap_or_else(failed_before))
    }
}

/// Yields what [`Listener::accept`] returns, and ends after its error.
impl Stream for Listener {
    type Item = Result<Connection, ProviderError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.connections.poll_recv(context)
    }
}

fn failed_before() -> Result<Connection, ProviderError> {
    let what = "the listener has failed before";
    Err(ProviderError::new(ProviderErrorKind::Local, what))
}

fn lock(config: &Mutex<Config>) -> MutexGuard<'_, Config> {
    config.lock().expect("no holder of the lock panics")
}

/// Accepts connection requests and negotiates, until the provider cannot listen any more.
async fn listen(
    mut listener: IncomingListener,
    config: Arc<Mutex<Config>>,
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
                // No connection follows the error.
                tasks.shutdown().await;
                // The listener may be dropped, and then the error has no recipient.
                let _ = connections.send(Err(error)).await;
                return;
            }
        };
        while tasks.try_join_next().is_some() {}
        let (config, connections) = (lock(&config).clone(), connections.clone());
        let span = incoming.span().clone();
        let negotiating = async move {
            match incoming.accept(config).await {
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
