//! The provider of RoCEv2: it connects and it listens.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError, Weak},
    thread,
};

use tokio::sync::mpsc;
use tracing::debug;

use super::{
    address::with_port,
    config::RoceConfig,
    driver::Running,
    error::check_private_data,
    listen::RoceListener,
    port_owner::port_owner,
    queue_pair::{Owned, RoceQueuePair},
    route::{Route, route_to},
    shared::Common,
};
use crate::{
    provider::{
        BoxFuture, ConnectRequest, Connected, Provider, ProviderAttributes, ProviderListener,
    },
    roce::{
        cm::PathMtu,
        endpoint::{ConnectParameters, MAX_REQUEST_DATA, Path},
        rc::QueuePair,
    },
    software::os_error::os_error,
    work::{ProviderError, ProviderErrorKind, WorkRequest},
};

/// The provider of RoCEv2 in software, over UDP.
///
/// Clones share their sockets. A provider belongs to no runtime: connections and listeners work as long as the
/// runtime in which they were made runs. They do not depend on other runtimes that use the provider. The timers
/// of the provider (retransmission, connecting, closing) use the system's clock, as those of the system's TCP do,
/// even if the clock of the runtime is paused.
#[derive(Clone, Debug, Default)]
pub struct Roce {
    config: Arc<RoceConfig>,
    sockets: Arc<Mutex<Vec<KnownSocket>>>,
}

/// A socket that may be in use.
#[derive(Debug)]
struct KnownSocket {
    /// The address that was asked for.
    address: SocketAddr,
    /// The interface that was asked for.
    interface: Option<String>,
    common: Weak<Common>,
}

impl KnownSocket {
    /// Returns the socket for the current runtime, if it is open.
    fn join(&self) -> Option<io::Result<Arc<Running>>> {
        let common = self.common.upgrade()?;
        Some(Running::join(&common).map(Arc::new))
    }

    /// Returns whether the socket is open.
    fn is_open(&self) -> bool {
        self.common.strong_count() > 0
    }
}

/// The attempts to bind an address whose socket another thread is about to close.
const MAX_BIND_ATTEMPTS: usize = 1000;

impl Roce {
    /// Creates a provider with the settings `config`.
    ///
    /// ```
    /// use smbdirect_rdma::roce::{Roce, RoceConfig};
    ///
    /// let provider = Roce::new(RoceConfig::default());
    /// ```
    pub fn new(config: RoceConfig) -> Self {
        Self {
            config: Arc::new(config),
            sockets: Arc::default(),
        }
    }

    /// Returns a provider with the same sockets and other settings. The provider that opens a socket decides its `ird`,
    /// `ord`, `close_timeout`, `max_half_open`, `max_in_flight`, DSCPs and `tap`, for all that use it while it is open.
    pub fn reconfigured(&self, config: RoceConfig) -> Self {
        Self {
            config: Arc::new(config),
            sockets: Arc::clone(&self.sockets),
        }
    }

    /// Returns the socket of this provider that is bound to `address`, or binds one.
    fn socket(&self, address: SocketAddr) -> io::Result<Arc<Running>> {
        let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        let interface = &self.config.network.interface;
        let known = sockets
            .iter()
            .find(|socket| socket.address == address && socket.interface == *interface);
        if let Some(running) = known.and_then(KnownSocket::join) {
            return running;
        }
        let bind = || Common::bind(address, &self.config);
        let mut bound = bind();
        for _ in 0..MAX_BIND_ATTEMPTS {
            if known.is_none() || !bound.as_ref().is_err_and(is_taken) {
                break;
            }
            thread::yield_now();
            bound = bind();
        }
        let common = Arc::new(bound?);
        let running = Arc::new(Running::join(&common)?);
        sockets.retain(KnownSocket::is_open);
        // Later requests for a free port share this socket.
        sockets.push(KnownSocket {
            address,
            interface: interface.clone(),
            common: Arc::downgrade(&common),
        });
        Ok(running)
    }

    /// Returns a socket to connect from `local`. If the UDP port of RoCEv2 is taken and the socket
    /// therefore has another port, also returns why.
    fn socket_to_connect(
        &self,
        local: SocketAddr,
    ) -> Result<(Arc<Running>, Option<TakenPort>), ProviderError> {
        // A listener of this provider may have the port.
        let any = match local.ip() {
            IpAddr::V4(_) => IpAddr::from([0; 4]),
            IpAddr::V6(_) => IpAddr::from([0; 16]),
        };
        let port = self.config.udp_port;
        let listening = {
            let sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
            let is_any = |socket: &&KnownSocket| {
                let ip = socket.address.ip();
                socket.interface == self.config.network.interface
                    && socket.address.port() == port
                    && (ip == any || ip == IpAddr::from([0; 16]))
            };
            let known = sockets.iter().find(is_any);
            known.and_then(KnownSocket::join)
        };
        if let Some(socket) = listening {
            let socket = socket.map_err(|error| os_error("connecting", &error))?;
            return Ok((socket, None));
        }
        match self.socket(with_port(local, port)) {
            Ok(socket) => Ok((socket, None)),
            Err(error) if is_taken(&error) => {
                let owner = port_owner(port).unwrap_or_else(|| "another process".into());
                debug!(%owner, port, "the UDP port is taken; connecting from a free port");
                let socket = self.socket(local);
                let socket = socket.map_err(|error| os_error("connecting", &error))?;
                let taken = TakenPort {
                    port,
                    owner,
                    os_error: error.raw_os_error(),
                };
                Ok((socket, Some(taken)))
            }
            Err(error) => Err(taken_or(error, "connecting", port)),
        }
    }

    /// Connects with a path MTU.
    async fn attempt(
        &self,
        request: &mut Option<WorkRequest>,
        address: SocketAddr,
        private_data: &bytes::Bytes,
        route: Route,
        path_mtu: PathMtu,
    ) -> Result<Connected, (ProviderError, Option<PathMtu>)> {
        let failed = |error| (error, None);
        let (socket, taken) = self.socket_to_connect(route.local).map_err(failed)?;
        let shared = &socket.shared;
        let path = Path {
            local: with_port(route.local, shared.socket.local().port()),
            remote: with_port(address, self.config.peer_udp_port),
        };
        let receive = copy_of(request);
        let (id, established) = {
            let parameters = ConnectParameters {
                path,
                path_mtu,
                port: address.port(),
                private_data: private_data.clone(),
                receive,
            };
            let begun = shared.with_core(|core, now| {
                // An error of an earlier attempt does not concern this one.
                drop(core.take_send_error(path.remote));
                let id = core.endpoint.connect(now, parameters)?;
                Ok((id, core.wait_until_established(id)))
            });
            begun.map_err(failed)?
        };
        let owned = Owned::new(socket.clone(), id);
        let result = shared
            .wait_for(self.config.connect_timeout, established)
            .await;
        let result = result.unwrap_or_else(|| {
            let what = format!("{} did not answer", path.remote);
            Err(failed(ProviderError::new(
                ProviderErrorKind::TimedOut,
                what,
            )))
        });
        let private_data = result.map_err(|(error, path_mtu)| {
            let error = with_send_error(error, shared.lock().take_send_error(path.remote));
            let error = match taken {
                Some(taken) => taken.add_to(error),
                None => error,
            };
            (error, path_mtu)
        })?;
        Ok(RoceQueuePair::connected(
            owned,
            path,
            &self.config,
            (path.local, address),
            private_data,
        ))
    }
}

impl Provider for Roce {
    fn attributes(&self) -> ProviderAttributes {
        let settings = self.config.endpoint(0);
        ProviderAttributes {
            name: "roce",
            default_port: 445,
            limits: QueuePair::limits_of(
                settings.initiator_depth.into(),
                settings.responder_resources.into(),
            ),
            negotiates_read_depths: true,
        }
    }

    fn connect(&self, request: ConnectRequest) -> BoxFuture<'_, Result<Connected, ProviderError>> {
        Box::pin(async move {
            check_private_data(&request.private_data, MAX_REQUEST_DATA)?;
            let remote = with_port(request.address, self.config.peer_udp_port);
            let route = route_to(remote, &self.config.network);
            let route = route.map_err(|error| os_error("connecting", &error))?;
            let mut path_mtu = self.config.path_mtu(route.mtu, remote.is_ipv6());
            let mut receive = Some(request.receive);
            loop {
                let attempt = self.attempt(
                    &mut receive,
                    request.address,
                    &request.private_data,
                    route,
                    path_mtu,
                );
                match attempt.await {
                    Ok(connected) => return Ok(connected),
                    Err((_, Some(smaller))) if smaller < path_mtu => path_mtu = smaller,
                    Err((error, _)) => return Err(error),
                }
            }
        })
    }

    fn listen(
        &self,
        address: SocketAddr,
    ) -> BoxFuture<'_, Result<Box<dyn ProviderListener>, ProviderError>> {
        Box::pin(async move {
            let udp_port = self.config.udp_port;
            let socket = self
                .socket(with_port(address, udp_port))
                .map_err(|error| taken_or(error, "listening", udp_port))?;
            let (sender, requests) = mpsc::unbounded_channel();
            let port = socket.shared.lock().add_listener(address.port(), sender)?;
            let local_addr = with_port(address, port);
            let listener = RoceListener::new(socket, local_addr, requests, self.config.clone());
            Ok(Box::new(listener) as Box<dyn ProviderListener>)
        })
    }
}

/// Returns the receive of a request, and leaves a copy for another attempt.
fn copy_of(receive: &mut Option<WorkRequest>) -> WorkRequest {
    match receive {
        &mut Some(WorkRequest::Receive { id, length, count }) => {
            WorkRequest::Receive { id, length, count }
        }
        _ => panic!("only a receive can be posted before connecting"),
    }
}

fn is_taken(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrInUse
}

/// Adds the system's error of sending to the error of an attempt that got no answer.
fn with_send_error(error: ProviderError, send_error: Option<io::Error>) -> ProviderError {
    match send_error {
        Some(refused) if error.kind == ProviderErrorKind::TimedOut => {
            let what = format!(
                "{}; this system refused to send packets there: {refused}",
                error.what
            );
            ProviderError::new(ProviderErrorKind::TimedOut, what)
                .with_os_error(refused.raw_os_error())
        }
        _ => error,
    }
}

/// The UDP port of RoCEv2, which another program has.
struct TakenPort {
    port: u16,
    owner: String,
    /// The error number of binding the port.
    os_error: Option<i32>,
}

impl TakenPort {
    /// Adds the owner and the error number to the error of an attempt from another port that got no answer, for which
    /// this system has told no other reason.
    fn add_to(&self, error: ProviderError) -> ProviderError {
        if error.kind != ProviderErrorKind::TimedOut || error.os_error().is_some() {
            return error;
        }
        let Self { port, owner, .. } = self;
        let what = format!(
            "{}; {owner} has UDP port {port}, so only this library can be reached",
            error.what
        );
        ProviderError::new(ProviderErrorKind::TimedOut, what).with_os_error(self.os_error)
    }
}

/// Returns the error for a UDP port that could not be bound. If another program has the port, the error says so,
/// and names the program if it is known.
fn taken_or(error: io::Error, doing: &str, port: u16) -> ProviderError {
    if !is_taken(&error) {
        return os_error(doing, &error);
    }
    let owner = port_owner(port).unwrap_or_else(|| "another program".into());
    let what = format!("{doing}: {owner} has UDP port {port}");
    ProviderError::new(ProviderErrorKind::InUse, what).with_os_error(error.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn providers_with_other_settings_share_the_sockets() {
        let config = RoceConfig {
            udp_port: 0,
            ..RoceConfig::default()
        };
        let first = Roce::new(config.clone());
        let second = first.reconfigured(RoceConfig {
            connect_timeout: 2 * config.connect_timeout,
            ..config
        });
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let _listening = first.listen(address).await.unwrap();
        let _other = second.listen(address).await.unwrap();
        assert_eq!(first.sockets.lock().unwrap().len(), 1);
    }

    #[test]
    fn an_attempt_without_an_answer_names_the_error_of_sending() {
        let refused = || Some(io::Error::from(io::ErrorKind::PermissionDenied));
        for (kind, send_error, is_named) in [
            (ProviderErrorKind::TimedOut, refused(), true),
            (ProviderErrorKind::TimedOut, None, false),
            (ProviderErrorKind::Refused, refused(), false),
        ] {
            let error = with_send_error(ProviderError::new(kind, "no"), send_error);
            assert_eq!(error.kind, kind);
            assert_eq!(&*error.what == "no", !is_named, "{error}");
            assert_eq!(error.what.contains("refused to send"), is_named, "{error}");
        }
    }
}
