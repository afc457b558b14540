//! Connecting to a peer, the negotiation in either role, and the read depths in the private data.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use bytes::{Bytes, BytesMut};
use tokio::net::ToSocketAddrs;
use tracing::{Instrument, field};

use super::{
    ConnectError, ConnectFault, Connection,
    addresses::{Failure, look_up},
};
#[cfg(feature = "metrics")]
use crate::metrics;
use crate::{
    deadline::within,
    driver::{Condition, Driver, Shared, State, now},
    engine::{self, Config, ConnectionError},
    rdma::{
        provider::{ConnectRequest, Connected, Provider, ProviderAttributes, connection_span},
        work::{Limits, ProviderError, ProviderErrorKind},
    },
    wire::IrdOrd,
};

/// The number of the last connection that was established.
static LAST_ID: AtomicU64 = AtomicU64::new(0);

impl Connection {
    /// Connects to a listening peer, and negotiates (3.1.4.1).
    ///
    /// `address` is what [`tokio::net::TcpStream::connect`] takes: `"server.example:5445"`, a [`SocketAddr`], a host name
    /// or an IP address with a port, or a slice of addresses. Each address is tried in turn until one negotiates.
    ///
    /// Gives up after [`active_negotiation_timeout`](crate::Settings::active_negotiation_timeout), which includes the
    /// look-up and all addresses. Over iWARP, [`connect_timeout`](crate::IwarpConfig::connect_timeout) limits the time
    /// for one address.
    ///
    /// When the future resolves, the peer does not hold credits yet: the first message carries them, or an empty message
    /// after 20 ms. The task of the connection sends it, so the runtime has to run from now on. A `current_thread` runtime
    /// runs only within `block_on`: a program that leaves it for longer than the peer waits, 5 seconds by default, loses
    /// the connection.
    ///
    /// ```no_run
    /// # use smbdirect::{Config, Connection, Iwarp, IwarpConfig};
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let provider = Iwarp::new(IwarpConfig::default());
    /// let connection = Connection::connect(&provider, "server:5445", Config::default()).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future abandons the attempt. An RDMA connection that was established already is
    /// closed in the background.
    ///
    /// # Errors
    /// Returns whether RDMA or SMB Direct failed, and why, or that a host name cannot be looked up. If all of several
    /// addresses failed, returns the first error that [is retryable](ConnectError::is_retryable), or else the first
    /// one. Each error is logged at the level `debug`.
    pub async fn connect(
        provider: &dyn Provider,
        address: impl ToSocketAddrs,
        config: Config,
    ) -> Result<Self, ConnectError> {
        let result = Self::connect_to_any(provider, address, config).await;
        #[cfg(feature = "metrics")]
        if let Err(error) = &result {
            let cause = ConnectionError::from(error.clone());
            metrics::failed(metrics::Role::Active, cause.label());
        }
        result
    }

    /// Connects to the first address that works.
    async fn connect_to_any(
        provider: &dyn Provider,
        address: impl ToSocketAddrs,
        config: Config,
    ) -> Result<Self, ConnectError> {
        let (begun, limit) = (now(), config.active_negotiation_timeout);
        let addresses = within(limit, look_up(address)).await;
        let addresses = addresses
            .unwrap_or_else(|| Err(timed_out("address was found")))
            .map_err(|error| ConnectError {
                address: None,
                fault: error.into(),
            })?;
        let mut failure = Failure::new(ConnectFault::is_retryable);
        for address in addresses {
            match Self::connect_to(provider, address, &config, begun).await {
                Ok(connection) => return Ok(connection),
                Err(fault) => failure.add(address, fault),
            }
            if now() - begun >= limit {
                break;
            }
        }
        let (address, fault) = failure.into_error();
        Err(ConnectError { address, fault })
    }

    /// Connects to one address. The attempt with all addresses has begun at `begun`.
    async fn connect_to(
        provider: &dyn Provider,
        address: SocketAddr,
        config: &Config,
        begun: Instant,
    ) -> Result<Self, ConnectFault> {
        let span = connection_span(address);
        let connecting = async {
            let mut engine = engine::Connection::active(config.clone(), begun);
            let receive = engine.negotiate_receive();
            let private_data = read_depths(provider).map_or_else(Bytes::new, encoded);
            let request = ConnectRequest {
                address,
                private_data,
                receive,
            };
            //= SMBD-3.1.4.1-06
            let left = config
                .active_negotiation_timeout
                .saturating_sub(now() - begun);
            let connected = within(left, provider.connect(request))
                .await
                .unwrap_or_else(|| Err(timed_out("RDMA connection was made")))
                //= SMBD-3.1.4.1-08
                .map_err(ConnectFault::Provider)?;
            span.record("local", field::display(connected.local_addr));
            engine.handle_connected(limits(provider, &connected)?);
            //= SMBD-3.1.4.1-10
            Ok(Self::negotiate(engine, connected).await?)
        };
        connecting.instrument(span.clone()).await
    }

    /// Negotiates on an established RDMA connection, in the role that `engine` has. The caller has passed
    /// the limits of the connection to the engine.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection in the background.
    pub(crate) async fn negotiate(
        engine: engine::Connection,
        connected: Connected,
    ) -> Result<Self, ConnectionError> {
        let (local_addr, peer_addr) = (connected.local_addr, connected.peer_addr);
        #[cfg(feature = "metrics")]
        let role = if engine.is_active() {
            metrics::Role::Active
        } else {
            metrics::Role::Passive
        };
        let shared = Shared::new(engine, connected);
        let guard = CloseOnDrop(Some(shared.clone()));
        Driver::spawn(shared.clone());
        let negotiated = shared
            .wait(Condition::Negotiation, State::negotiation_result)
            .await?;
        guard.disarm();
        let id = LAST_ID.fetch_add(1, Ordering::Relaxed) + 1;
        #[cfg(feature = "metrics")]
        shared.meter(metrics::Identity {
            id,
            role,
            local_addr,
            peer_addr,
            established: now(),
            negotiated,
        });
        Ok(Self::new(shared, id, local_addr, peer_addr, negotiated))
    }
}

/// Returns the read depths of this end for the private data (section 6), or `None` if the provider negotiates
/// them.
pub(crate) fn read_depths(provider: &dyn Provider) -> Option<IrdOrd> {
    let ProviderAttributes {
        limits,
        negotiates_read_depths,
        ..
    } = provider.attributes();
    (!negotiates_read_depths).then(|| IrdOrd {
        ird: limits.max_inbound_reads.max(1),
        ord: limits.max_outbound_reads.max(1),
    })
}

pub(crate) fn encoded(depths: IrdOrd) -> Bytes {
    let mut private_data = BytesMut::with_capacity(IrdOrd::LENGTH);
    depths.encode(&mut private_data);
    private_data.freeze()
}

/// Returns the error of an attempt whose Negotiation Timer ran out before RDMA was connected. `what` did not happen.
fn timed_out(what: &str) -> ProviderError {
    let what = format!("no {what} before the Negotiation Timer ran out");
    ProviderError::new(ProviderErrorKind::TimedOut, what)
}

/// Returns the limits of a new connection, lowered to the read depths of the acceptor's answer
/// (section 6).
fn limits(provider: &dyn Provider, connected: &Connected) -> Result<Limits, ProviderError> {
    let mut limits = connected.limits;
    if provider.attributes().negotiates_read_depths {
        return Ok(limits);
    }
    let answer = IrdOrd::decode(&connected.private_data)
        .map_err(|error| ProviderError::new(ProviderErrorKind::Protocol, error.to_string()))?;
    // Acceptors differ in which of the two depths limits this end; see `IrdOrd::answer`.
    if let Some(IrdOrd { ird, ord }) = answer {
        limits.max_outbound_reads = limits.max_outbound_reads.min(ird).min(ord);
    }
    Ok(limits)
}

/// Closes a connection whose negotiation is abandoned or fails.
struct CloseOnDrop(Option<Arc<Shared>>);

impl CloseOnDrop {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        if let Some(shared) = &self.0 {
            shared.with(State::close);
        }
    }
}
