//! Makes the provider of a kind of RDMA, and connects and listens by it.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    sync::Arc,
    time::{Duration, Instant},
};

use smbdirect::{
    Config, Connection, IncomingListener, Listener,
    rdma::{
        NetworkSettings,
        iwarp::{Iwarp, IwarpConfig},
        loopback::Loopback,
        provider::Provider,
        roce::{Roce, RoceConfig},
    },
};
#[cfg(target_os = "linux")]
use smbdirect_verbs::{Unavailable, Verbs, VerbsConfig};
use tokio::time::timeout;
use tracing::debug;

use crate::{
    addresses::{Address, Families, resolve_listen, resolve_listen_all, resolve_within},
    connection::{close, peer_span},
    explain::{Cause, Error, explain_connect, explain_listen, unanswered},
    kept::Kept,
    kind::Kind,
    side_by_side::first_of,
    tcp::{bind_all, local_congestion_control},
};

/// The kind of RDMA, and the settings of each kind.
#[derive(Clone, Debug, Default)]
pub struct RdmaSettings {
    /// The kind to use. The settings of the other kinds are ignored.
    pub kind: Kind,
    /// Settings of software iWARP.
    pub iwarp: IwarpConfig,
    /// Settings of software RoCE.
    pub roce: RoceConfig,
    /// Settings of RDMA adapters.
    #[cfg(target_os = "linux")]
    pub verbs: VerbsConfig,
}

/// RDMA of one kind, which connects and listens.
#[derive(Clone, Debug)]
pub struct Rdma {
    kind: Kind,
    provider: Arc<dyn Provider>,
    /// The provider, if it is software iWARP, and the settings of its sockets.
    iwarp: Option<(Iwarp, NetworkSettings)>,
    /// Longest time for connecting by iWARP, which its errors name.
    connect_timeout: Duration,
}

impl Rdma {
    /// Creates RDMA with the given settings.
    ///
    /// # Errors
    /// There are no RDMA adapters.
    pub fn new(settings: RdmaSettings) -> Result<Self, Error> {
        let (kind, connect_timeout) = (settings.kind, settings.iwarp.connect_timeout);
        let mut software = None;
        let provider: Arc<dyn Provider> = match kind {
            Kind::Iwarp => {
                let network = settings.iwarp.network.clone();
                let iwarp = Iwarp::new(settings.iwarp);
                software = Some((iwarp.clone(), network));
                Arc::new(iwarp)
            }
            Kind::Roce => Arc::new(Roce::new(settings.roce)),
            Kind::Verbs => verbs(settings)?,
            Kind::Loopback => Arc::new(Loopback::new()),
        };
        Ok(Self {
            kind,
            provider,
            iwarp: software,
            connect_timeout,
        })
    }

    /// Creates RDMA for an end at `address`, or one that connects to it. Connections of iWARP within this machine are
    /// not paced. Without a port in `address`, the kind of an adapter decides the port.
    ///
    /// # Errors
    /// There are no RDMA adapters.
    pub fn at(mut settings: RdmaSettings, address: &Address) -> Result<Self, Error> {
        if settings.kind == Kind::Iwarp {
            settings.iwarp.tuning.congestion_control =
                local_congestion_control(address).map(str::to_owned);
        }
        #[cfg(target_os = "linux")]
        {
            settings.verbs.port_by_device = address.port.is_none();
        }
        Self::new(settings)
    }

    /// Returns the provider.
    pub const fn provider(&self) -> &Arc<dyn Provider> {
        &self.provider
    }

    /// Returns the name of the provider, for reports.
    pub fn name(&self) -> &'static str {
        self.provider.attributes().name
    }

    /// Connects to the first address of `address` that answers, within the active negotiation timeout of `config`, the
    /// look-up included. Several addresses are tried side by side.
    ///
    /// # Errors
    /// No address answered: the reason of the one that failed last, and what to try.
    pub async fn connect(&self, address: &Address, config: &Config) -> Result<Connection, Error> {
        let limit = config.active_negotiation_timeout;
        self.connect_within(limit, address, config).await
    }

    /// Connects as [`connect`](Self::connect) does, within `limit`.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub async fn connect_within(
        &self,
        limit: Duration,
        address: &Address,
        config: &Config,
    ) -> Result<Connection, Error> {
        let began = Instant::now();
        let port = self.provider.attributes().default_port;
        let addresses = resolve_within(limit, address, port).await?;
        let first = addresses[0];
        let connecting = first_of(addresses, |address| async move {
            let connecting = Connection::connect(&*self.provider, address, config.clone());
            let error = match connecting.await {
                Ok(connection) => return Ok(connection),
                Err(error) => error,
            };
            let fault = explain_connect(self.kind, &error.fault, address, self.connect_timeout);
            let fault = fault.await;
            peer_span(address).in_scope(|| debug!("{fault}"));
            Err(fault)
        });
        let left = limit.saturating_sub(began.elapsed()) + EXPLAINING;
        let connected = timeout(left, connecting).await;
        connected.unwrap_or_else(|_| Err(unanswered(first, limit)))
    }

    /// Returns the address of `address` that answers: the only one, or else that of a connection as
    /// [`connect`](Self::connect) makes it, which is closed.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub async fn choose(&self, address: &Address, config: &Config) -> Result<SocketAddr, Error> {
        let limit = config.active_negotiation_timeout;
        let port = self.provider.attributes().default_port;
        let addresses = resolve_within(limit, address, port).await?;
        if let [only] = addresses[..] {
            return Ok(only);
        }
        let connection = self.connect(address, config).await?;
        close(&connection, limit).await;
        Ok(connection.peer_addr())
    }

    /// Listens on `address`; without a host, on every address of the machine.
    ///
    /// # Errors
    /// The reason, and what to try.
    pub async fn listen(&self, address: &Address, config: &Config) -> Result<Listener, Error> {
        let families = Families::of(self.kind);
        let address =
            resolve_listen(address, self.provider.attributes().default_port, families).await?;
        Listener::bind(&*self.provider, address, config.clone())
            .await
            .map_err(|error| explain_listen(&error, self.kind, address))
    }

    /// Opens a listener for each address of `address`, by iWARP with the socket of `kept` that has it, if there is one;
    /// without a host, for every address of the machine. Logs the addresses on which it cannot listen.
    ///
    /// # Errors
    /// This end can listen on none of the addresses: the reason, and what to try.
    pub async fn open_all(&self, address: &Address, kept: &mut Kept) -> Result<Vec<Opened>, Error> {
        let families = Families::of(self.kind);
        let port = self.provider.attributes().default_port;
        let addresses = resolve_listen_all(address, port, families).await?;
        let opened = bind_all(addresses, async |address| {
            let opened = match &self.iwarp {
                Some((iwarp, network)) => match kept.take(address, network) {
                    Some(socket) => Ok(socket),
                    None => iwarp.bind(address),
                }
                .map(|socket| Opened::Socket(iwarp.clone(), socket)),
                None => {
                    let listener = IncomingListener::bind(&*self.provider, address).await;
                    listener.map(Opened::Listener)
                }
            };
            let opened = opened.map_err(|error| explain_listen(&error, self.kind, address))?;
            let port = opened.local_addr()?.port();
            Ok((opened, port))
        });
        opened.await
    }

    /// Returns a listener for a socket that a service manager has opened.
    ///
    /// # Errors
    /// This kind of RDMA has no sockets.
    pub fn open_on(&self, socket: TcpListener) -> Result<Opened, Error> {
        match &self.iwarp {
            Some((iwarp, _)) => Ok(Opened::Socket(iwarp.clone(), socket)),
            None => {
                let text = "only software iWARP can listen on a socket";
                Err(Error::new(Cause::Own, text))
            }
        }
    }
}

/// A listener that is open, and accepts no peers yet.
#[derive(Debug)]
pub enum Opened {
    /// Software iWARP, and its socket, in whose queue peers wait.
    Socket(Iwarp, TcpListener),
    /// A listener of another kind of RDMA.
    Listener(IncomingListener),
}

impl Opened {
    /// Returns the address that peers connect to.
    ///
    /// # Errors
    /// The operating system does not support it.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Socket(_, socket) => socket.local_addr(),
            Self::Listener(listener) => Ok(listener.local_addr()),
        }
    }

    /// Returns a duplicate of the socket, if there is one.
    ///
    /// # Errors
    /// The system has too many open files.
    pub fn socket(&self) -> io::Result<Option<TcpListener>> {
        match self {
            Self::Socket(_, socket) => socket.try_clone().map(Some),
            Self::Listener(_) => Ok(None),
        }
    }

    /// Accepts peers from now on.
    ///
    /// # Errors
    /// The settings cannot be applied to the socket: the reason, and what to try.
    pub async fn listen(self) -> Result<IncomingListener, Error> {
        match self {
            Self::Socket(iwarp, socket) => {
                let address = socket.local_addr()?;
                let iwarp = iwarp.with_listener(socket);
                let listener = IncomingListener::bind(&iwarp, address).await;
                listener.map_err(|error| explain_listen(&error, Kind::Iwarp, address))
            }
            Self::Listener(listener) => Ok(listener),
        }
    }
}

/// Time that an attempt may take beyond the limit of connecting, to find out why it failed.
const EXPLAINING: Duration = Duration::from_millis(1500);

#[cfg(target_os = "linux")]
fn verbs(settings: RdmaSettings) -> Result<Arc<dyn Provider>, Error> {
    let verbs = Verbs::new(settings.verbs).map_err(|why| unavailable(&why))?;
    Ok(Arc::new(verbs))
}

#[cfg(not(target_os = "linux"))]
fn verbs(_: RdmaSettings) -> Result<Arc<dyn Provider>, Error> {
    let text = "RDMA adapters are used through rdma-core, which is for Linux; use iWARP";
    Err(Error::new(Cause::Own, text))
}

/// Explains why there is no RDMA, without error numbers.
#[cfg(target_os = "linux")]
pub fn unavailable(why: &Unavailable) -> Error {
    let text = why.to_string();
    let code = text.split_once(" (os error ");
    let rest = code.and_then(|(before, code)| Some((before, code.split_once(')')?.1)));
    let text = rest.map_or_else(
        || text.clone(),
        |(before, after)| format!("{before}{after}"),
    );
    Error::new(Cause::Own, text)
}
