//! [`IncomingListener`] and [`Incoming`]: connection requests of peers, which the owner accepts or refuses one
//! by one.

use std::{fmt, io, net::SocketAddr};

use bytes::Bytes;
use thiserror::Error;
use tokio::net::ToSocketAddrs;
use tracing::{Instrument, Span, debug, field};

use crate::{
    connection::{Connection, Failure, encoded, look_up, read_depths},
    deadline::within,
    driver::now,
    engine::{self, Config, ConnectionError},
    rdma::{
        provider::{
            AcceptRequest, Admission, IncomingRequest, Place, Provider, ProviderListener,
            connection_span,
        },
        work::ProviderError,
    },
    wire::{IrdOrd, ZeroDepth},
};

/// Listens for peers and returns each connection request before it is answered. When its drop returns, another
/// listener can use the address.
///
/// The owner decides about each [`Incoming`]: it refuses the peer, or accepts it with settings of its choice.
/// [`Listener`](crate::Listener) is the simpler interface for owners that accept every peer with the same
/// settings.
#[derive(Debug)]
pub struct IncomingListener {
    listener: Box<dyn ProviderListener>,
    read_depths: Option<IrdOrd>,
    admission: Option<Admission>,
}

impl IncomingListener {
    /// Listens on an address, such as `"0.0.0.0:5445"`. Port 0 picks a free port. If `address` stands for several
    /// addresses, listens on the first one on which it can.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use smbdirect::{IncomingListener, Iwarp, IwarpConfig};
    ///
    /// let provider = Iwarp::new(IwarpConfig::default());
    /// let listener = IncomingListener::bind(&provider, "0.0.0.0:5445").await?;
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
    ) -> Result<Self, ProviderError> {
        let mut failure = Failure::new(|error: &ProviderError| error.kind.is_retryable());
        for address in look_up(address).await? {
            match provider.listen(address).await {
                Ok(listener) => {
                    return Ok(Self {
                        listener,
                        read_depths: read_depths(provider),
                        admission: None,
                    });
                }
                Err(error) => failure.add(address, error),
            }
        }
        Err(failure.into_error().1)
    }

    /// Asks `admission` about each peer that connects from now on. A peer that it refuses takes no resources: by iWARP
    /// its TCP connection is closed before anything is read from it, and otherwise its connection request is
    /// rejected. The place of a peer is dropped when [`Incoming::accept`] returns, or when the [`Incoming`] is dropped.
    /// Only the first call has an effect.
    #[must_use]
    pub fn with_admission(mut self, admission: Admission) -> Self {
        if self.admission.is_none() {
            self.listener.set_admission(admission.clone());
            self.admission = Some(admission);
        }
        self
    }

    /// Returns the address that the listener listens on, with the port that was picked.
    ///
    /// ```no_run
    /// # async fn example(listener: smbdirect::IncomingListener) -> Result<(), Box<dyn std::error::Error>> {
    /// println!("listening on port {}", listener.local_addr().port());
    /// # Ok(())
    /// # }
    /// ```
    pub fn local_addr(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    /// Stops listening, and returns whether the provider can: [`accept`](Self::accept) then returns the peers that have
    /// connected before, and fails when there are no more. So a process can pass its listening socket on to another one
    /// without an effect on peers. If the result is false, nothing has changed, and the drop of the listener ends it.
    pub fn stop(&mut self) -> bool {
        self.listener.stop()
    }

    /// Returns the next connection request.
    ///
    /// The provider limits the number of requests that wait here. A peer waits until its request is answered, so
    /// the owner calls this in a loop and accepts each peer in a task of its own.
    ///
    /// ```no_run
    /// # async fn example(mut listener: smbdirect::IncomingListener) -> Result<(), Box<dyn std::error::Error>> {
    /// loop {
    ///     let incoming = listener.accept().await?;
    ///     if incoming.peer_addr().ip().is_loopback() {
    ///         tokio::spawn(incoming.accept(smbdirect::Config::default()));
    ///     } // Dropping it refuses the peer.
    /// }
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future loses no request.
    ///
    /// # Errors
    /// Fails when the provider cannot listen any more.
    pub async fn accept(&mut self) -> Result<Incoming, ProviderError> {
        loop {
            let mut request = self.listener.accept().await?;
            if request.place.is_none()
                && let Some(admission) = &self.admission
            {
                let Some(place) = admission.admit(request.peer_addr) else {
                    debug!(peer = %request.peer_addr, "a peer is not admitted");
                    continue;
                };
                request.place = Some(place);
            }
            return Ok(Incoming {
                span: connection_span(request.peer_addr),
                request,
                read_depths: self.read_depths,
            });
        }
    }
}

/// A connection request that is not answered yet. Dropping it refuses the peer.
#[must_use = "accept it, or drop it to refuse the peer"]
pub struct Incoming {
    request: IncomingRequest,
    /// The read depths of this end, if SMB Direct announces them (section 6).
    read_depths: Option<IrdOrd>,
    span: Span,
}

impl Incoming {
    /// Returns the address of the peer.
    pub const fn peer_addr(&self) -> SocketAddr {
        self.request.peer_addr
    }

    /// Accepts the RDMA connection (3.1.7.2), and negotiates on it with the settings of `config`.
    ///
    /// Gives up after [`passive_negotiation_timeout`](crate::Settings::passive_negotiation_timeout).
    ///
    /// ```no_run
    /// # async fn example(incoming: smbdirect::Incoming) -> Result<(), Box<dyn std::error::Error>> {
    /// let connection = incoming.accept(smbdirect::Config::default()).await?;
    /// println!("{} has negotiated", connection.peer_addr());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future refuses the peer, or closes the connection in the background.
    ///
    /// # Errors
    /// Returns why the peer did not get a connection.
    pub async fn accept(self, config: Config) -> Result<Connection, AcceptError> {
        let span = self.span.clone();
        let result = self.accept_in_span(config).instrument(span).await;
        #[cfg(feature = "metrics")]
        if let Err(error) = &result {
            crate::metrics::failed(crate::metrics::Role::Passive, error.label());
        }
        result
    }

    /// Takes the place that the [`Admission`] of the listener has given the peer, to keep it longer than
    /// [`accept`](Self::accept) does. `None` without an admission.
    pub fn take_place(&mut self) -> Option<Place> {
        self.request.place.take()
    }

    /// Refuses the peer, as dropping this value does.
    ///
    /// ```no_run
    /// # async fn example(incoming: smbdirect::Incoming) -> Result<(), Box<dyn std::error::Error>> {
    /// if !incoming.peer_addr().ip().is_loopback() {
    ///     incoming.refuse();
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn refuse(self) {
        drop(self);
    }

    /// Returns the tracing span of the connection, for what the owner logs about the peer.
    ///
    /// ```no_run
    /// # async fn example(incoming: smbdirect::Incoming) -> Result<(), Box<dyn std::error::Error>> {
    /// incoming.span().in_scope(|| tracing::info!("a peer asks"));
    /// # Ok(())
    /// # }
    /// ```
    pub const fn span(&self) -> &Span {
        &self.span
    }

    async fn accept_in_span(self, config: Config) -> Result<Connection, AcceptError> {
        let Self {
            mut request,
            read_depths: own,
            ..
        } = self;
        let _place = request.place.take();
        let mut engine = engine::Connection::passive(config.clone(), now());
        let depths = match IrdOrd::decode(&request.private_data) {
            _ if own.is_none() => None,
            Ok(depths) => depths,
            // The handshake of RDMA has carried the read depths, so the private data need not contain them.
            Err(_) if request.knows_read_depths => None,
            //= SMBD-6-04
            Err(error) => return Err(AcceptError::PrivateData(error)),
        };
        //= SMBD-6-02
        //= EST-15
        let private_data = match (depths, own) {
            (Some(theirs), Some(own)) if !request.knows_read_depths => encoded(theirs.answer(own)),
            _ => Bytes::new(),
        };
        let peer_serves_reads = depths.map(|depths| depths.ird);
        //= SMBD-3.1.7.2-03
        let answer = AcceptRequest {
            private_data,
            receive: engine.negotiate_receive(),
            peer_serves_reads,
        };
        let accepting = request.accept(answer);
        let connected = within(config.passive_negotiation_timeout, accepting)
            .await
            .ok_or(AcceptError::TimedOut)?
            .map_err(AcceptError::Provider)?;
        Span::current().record("local", field::display(connected.local_addr));
        engine.handle_connected(connected.limits);
        //= SMBD-3.1.7.2-07
        let negotiating = Connection::negotiate(engine, connected);
        negotiating.await.map_err(AcceptError::Negotiation)
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming")
            .field("peer_addr", &self.peer_addr())
            .finish_non_exhaustive()
    }
}

/// The reason why a peer that requested a connection did not get one.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AcceptError {
    /// The private data of the request announces a read depth of 0 (section 6).
    #[error("its private data is malformed: {0}")]
    PrivateData(ZeroDepth),
    /// The provider could not establish the RDMA connection.
    #[error("it did not connect: {0}")]
    Provider(ProviderError),
    /// The RDMA connection was not established in time.
    #[error("it took too long to connect")]
    TimedOut,
    /// The RDMA connection was established, and the negotiation failed.
    #[error("it did not negotiate: {0}")]
    Negotiation(ConnectionError),
}

impl From<AcceptError> for io::Error {
    fn from(error: AcceptError) -> Self {
        let kind = match &error {
            AcceptError::PrivateData(_) => io::ErrorKind::InvalidData,
            AcceptError::TimedOut => io::ErrorKind::TimedOut,
            AcceptError::Provider(error) => Self::from(error.clone()).kind(),
            AcceptError::Negotiation(error) => Self::from(error.clone()).kind(),
        };
        Self::new(kind, error)
    }
}

#[cfg(feature = "metrics")]
impl AcceptError {
    /// Returns the cause as one of [`ConnectionError::LABELS`].
    fn label(&self) -> &'static str {
        match self {
            Self::PrivateData(_) => "rdma_protocol",
            Self::Provider(error) => ConnectionError::from(error.clone()).label(),
            Self::TimedOut => "negotiation_timeout",
            Self::Negotiation(error) => error.label(),
        }
    }
}
