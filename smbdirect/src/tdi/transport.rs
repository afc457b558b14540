//! [`Transport`]: the transport device of TDI, and what can be asked of it.

use std::{
    collections::HashMap,
    fmt,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, SystemTime},
};

use super::{
    address::{Address, Port, Share, open_status},
    client::Cause,
    endpoint::{Endpoint, EndpointContext},
    flags::ServiceFlags,
    receive::{Inbound, ReceiveSettings},
    send::{Outbound, SendSettings},
    session::Session,
    state::EndpointState,
    status::Status,
};
use crate::{
    engine::{Config, Statistics},
    rdma::provider::Provider,
};

/// SMB Direct over one RDMA provider, as a TDI transport.
///
/// Handles are cheap to clone, and what was opened goes on without one.
///
/// ```
/// use std::sync::Arc;
///
/// use bytes::BytesMut;
/// use smbdirect::{
///     rdma::loopback::Loopback,
///     tdi::{ReceiveFlags, SendFlags, Share, Status, Transport, TransportSettings},
/// };
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Status> {
/// let transport = Transport::new(Arc::new(Loopback::new()), TransportSettings::default())?;
/// let server = transport.open_address("127.0.0.1:445".parse().unwrap(), Share::Exclusive).await?;
/// let listening = server.open_endpoint(());
/// let listen = listening.listen(None);
///
/// let local = transport.open_any_address();
/// let endpoint = local.open_endpoint(());
/// endpoint.connect(server.local_address(), None).await?;
/// listen.await?;
///
/// // TdiBuildSend, twice: a part of a TSDU, and its end.
/// endpoint.send("hel", SendFlags::PARTIAL).await.result()?;
/// endpoint.send("lo", SendFlags::empty()).await.result()?;
///
/// let received = listening.receive(BytesMut::zeroed(100), ReceiveFlags::empty()).await;
/// assert_eq!(&received.into_data()?[..], b"hello");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Transport {
    shared: Arc<TransportShared>,
}

/// How a transport treats its connections.
#[derive(Clone, Debug)]
pub struct TransportSettings {
    /// What SMB Direct negotiates.
    pub config: Config,
    /// How sends are treated. `max_tsdu` is MaxSendSize of the transport; a connection may have
    /// less.
    pub send: SendSettings,
    /// How what arrives is treated.
    pub receive: ReceiveSettings,
    /// How long a connect may take that has no time-out of its own.
    pub connect_timeout: Duration,
    /// How long an offer may wait to be accepted or rejected.
    pub offer_timeout: Duration,
}

impl TransportSettings {
    /// The defaults, for connections that negotiate `config`: TSDUs as long as what that
    /// reassembles, a send buffer for two of them, and connects that take a minute at most.
    pub fn new(config: Config) -> Self {
        let max_tsdu = config.max_fragmented_receive_size as usize;
        let offer_timeout = config.passive_negotiation_timeout;
        let receive = ReceiveSettings::default();
        Self {
            config,
            send: SendSettings::new(max_tsdu),
            receive: ReceiveSettings {
                lendable: receive.receive_buffer / 2,
                ..receive
            },
            connect_timeout: Duration::from_secs(60),
            offer_timeout,
        }
    }
}

impl Default for TransportSettings {
    fn default() -> Self {
        Self::new(Config::default())
    }
}

/// TDI_QUERY_PROVIDER_INFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProviderInfo {
    /// Version of the interface: 0x0200.
    pub version: u32,
    /// MaxSendSize: most bytes of a TSDU. A connection may have
    /// [less](Endpoint::max_tsdu).
    pub max_send_size: usize,
    /// MaxConnectionUserData: 0, SMB Direct has no place for such.
    pub max_connection_user_data: usize,
    /// MaxDatagramSize: 0, there are none.
    pub max_datagram_size: usize,
    /// What the transport does.
    pub service_flags: ServiceFlags,
    /// Whether expedited sends overtake normal ones at this end. The service flag for expedited
    /// data promises more, and is not set.
    pub local_priority_sends: bool,
    /// Fewest bytes indicated, if a TSDU has so many left.
    pub minimum_lookahead_data: usize,
    /// Most bytes indicated.
    pub maximum_lookahead_data: usize,
    /// NumberOfResources: those of [`ProviderStatistics::resources`].
    pub number_of_resources: usize,
    /// When the transport was created.
    pub start_time: SystemTime,
}

/// TDI_QUERY_PROVIDER_STATISTICS: what has happened on all endpoints since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProviderStatistics {
    /// Endpoints that are open now.
    pub open_connections: u64,
    /// Connections made. There are no retries.
    pub connections_after_no_retry: u64,
    /// Connections that this end has ended.
    pub local_disconnects: u64,
    /// Connections that the peer has ended.
    pub remote_disconnects: u64,
    /// Connections that were lost with the link, some of them before they were made.
    pub link_failures: u64,
    /// Connections and offers that ended by time.
    pub session_timeouts: u64,
    /// Offers turned away by the client.
    pub cancelled_connections: u64,
    /// Connects that the peer had no resources for, or refused.
    pub remote_resource_failures: u64,
    /// Connections that this end had no resources for.
    pub local_resource_failures: u64,
    /// Connects to where there is no way.
    pub not_found_failures: u64,
    /// Connects where nobody listened, and offers for which nobody listened here.
    pub no_listen_failures: u64,
    /// SMB Direct messages sent, empty ones among them.
    pub packets_sent: u64,
    /// SMB Direct messages received, empty ones among them.
    pub packets_received: u64,
    /// SMB Direct messages sent with payload.
    pub data_frames_sent: u64,
    /// Payload bytes sent.
    pub data_frame_bytes_sent: u64,
    /// SMB Direct messages received with payload.
    pub data_frames_received: u64,
    /// Payload bytes received.
    pub data_frame_bytes_received: u64,
    /// Connections ended for a message that broke a rule.
    pub data_frames_rejected: u64,
    /// Keepalives that were not answered.
    pub response_timer_expirations: u64,
    /// Waits for credits that took too long.
    pub ack_timer_expirations: u64,
    /// Credits given on messages that had to be sent for nothing else.
    pub piggyback_ack_timeouts: u64,
    /// The send buffers and the receive buffers of the connections.
    pub resources: [ResourceStatistics; 2],
}

/// What a kind of resource was used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResourceStatistics {
    /// Most bytes in use on one connection.
    pub maximum_used: u64,
    /// How often one had no room.
    pub exhausted: u64,
}

/// TDI_QUERY_CONNECTION_INFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionInfo {
    /// Where the endpoint stands.
    pub state: EndpointState,
    /// TSDUs sent.
    pub transmitted_tsdus: u64,
    /// TSDUs received whole.
    pub received_tsdus: u64,
    /// Bytes of TSDUs sent.
    pub transmitted_bytes: u64,
    /// Bytes of TSDUs received.
    pub received_bytes: u64,
    /// Size of the send buffer; 0 if there is none.
    pub send_buffer_size: usize,
    /// Bytes in it that could be taken now.
    pub send_buffer_available: usize,
    /// Size of the receive buffer.
    pub receive_buffer_size: usize,
    /// Bytes in it that wait to be received.
    pub receive_buffer_held: usize,
    /// Whether sends and receives are likely to fail: a sign of life was asked for that has not
    /// come, credits are withheld for want of room, or the connection is ending.
    pub unreliable: bool,
}

impl ConnectionInfo {
    pub(crate) fn new(
        state: EndpointState,
        session: &Session,
        settings: &TransportSettings,
    ) -> Self {
        let statistics = session.connection.stats();
        let held = session.receives.held();
        let receive_buffer_size = settings.receive.receive_buffer;
        Self {
            state,
            transmitted_tsdus: statistics.messages_sent,
            received_tsdus: statistics.messages_received,
            transmitted_bytes: statistics.bytes_sent,
            received_bytes: statistics.bytes_received,
            send_buffer_size: settings.send.high_water,
            send_buffer_available: session.sends.available(),
            receive_buffer_size,
            receive_buffer_held: held,
            unreliable: state != EndpointState::Connected
                || session.connection.awaits_answer()
                || held >= receive_buffer_size,
        }
    }
}

/// What the handles of a transport and its objects share.
pub(crate) struct TransportShared {
    pub(crate) provider: Arc<dyn Provider>,
    pub(crate) settings: TransportSettings,
    start_time: SystemTime,
    ports: tokio::sync::Mutex<HashMap<SocketAddr, Weak<Port>>>,
    counters: Mutex<ProviderStatistics>,
    /// Connections whose figures are not counted yet.
    sessions: Mutex<Vec<Weak<Session>>>,
}

impl Transport {
    /// A transport over `provider`.
    ///
    /// # Errors
    /// [`INVALID_PARAMETER`](Status::INVALID_PARAMETER): settings that contradict each other.
    pub fn new(provider: Arc<dyn Provider>, settings: TransportSettings) -> Result<Self, Status> {
        Outbound::new(settings.send.clone())?;
        Inbound::new(settings.receive.clone())?;
        let shared = Arc::new(TransportShared {
            provider,
            settings,
            start_time: SystemTime::now(),
            ports: tokio::sync::Mutex::default(),
            counters: Mutex::default(),
            sessions: Mutex::default(),
        });
        Ok(Self { shared })
    }

    /// Opens a local address that peers can connect to; port 0 picks a free one. Must be called
    /// within a tokio runtime.
    ///
    /// # Errors
    /// [`SHARING_VIOLATION`](Status::SHARING_VIOLATION): it is open, and one of the two does not
    /// share it. [`ADDRESS_ALREADY_EXISTS`](Status::ADDRESS_ALREADY_EXISTS): another program has
    /// it. [`INVALID_ADDRESS_COMPONENT`](Status::INVALID_ADDRESS_COMPONENT): it is no address of
    /// this machine. [`INSUFFICIENT_RESOURCES`](Status::INSUFFICIENT_RESOURCES): all else.
    pub async fn open_address<C: EndpointContext>(
        &self,
        address: SocketAddr,
        share: Share,
    ) -> Result<Address<C>, Status> {
        let mut ports = self.shared.ports.lock().await;
        ports.retain(|_, port| port.strong_count() > 0);
        if let Some(port) = ports.get(&address).and_then(Weak::upgrade) {
            //= TDI-ADDR-01
            if share != Share::Shared || port.share != Share::Shared {
                return Err(Status::SHARING_VIOLATION);
            }
            return Ok(self.address_on(port));
        }
        let listener = self.shared.provider.listen(address).await;
        let listener = listener.map_err(|error| open_status(&error))?;
        let port = Port::open(&self.shared, listener, share);
        ports.insert(port.local_address, Arc::downgrade(&port));
        Ok(self.address_on(port))
    }

    fn address_on<C: EndpointContext>(&self, port: Arc<Port>) -> Address<C> {
        Address::open(self.shared.clone(), port.local_address, Some(port))
    }

    /// Opens an address to connect from. Connections leave from a port that the system picks, and
    /// peers cannot connect to it: listens end with
    /// [`INVALID_ADDRESS`](Status::INVALID_ADDRESS).
    pub fn open_any_address<C: EndpointContext>(&self) -> Address<C> {
        let any = SocketAddr::from(([0; 4], 0));
        Address::open(self.shared.clone(), any, None)
    }

    /// Opens a connection endpoint that is not associated with an address yet; see also
    /// [`Address::open_endpoint`]. `context` is what its client knows it by.
    pub fn open_endpoint<C: EndpointContext>(&self, context: C) -> Endpoint<C> {
        Endpoint::open(self.shared.clone(), context)
    }

    /// TDI_QUERY_PROVIDER_INFO.
    pub fn info(&self) -> ProviderInfo {
        let TransportSettings { send, receive, .. } = &self.shared.settings;
        let mut service_flags = ServiceFlags::SMB_DIRECT;
        service_flags.set(ServiceFlags::INTERNAL_BUFFERING, send.high_water > 0);
        ProviderInfo {
            version: 0x0200,
            //= TDI-SEND-23
            max_send_size: send.max_tsdu,
            max_connection_user_data: 0,
            max_datagram_size: 0,
            service_flags,
            local_priority_sends: send.expedited == super::Expedited::LocalPriority,
            minimum_lookahead_data: receive.minimum_lookahead,
            maximum_lookahead_data: receive.maximum_lookahead,
            number_of_resources: ProviderStatistics::default().resources.len(),
            start_time: self.shared.start_time,
        }
    }

    /// TDI_QUERY_PROVIDER_STATISTICS.
    pub fn statistics(&self) -> ProviderStatistics {
        //= TDI-QUERY-02
        let mut statistics = *self.shared.counters();
        let sessions = self.shared.sessions();
        for session in sessions.iter().filter_map(Weak::upgrade) {
            statistics.add(&session);
        }
        statistics
    }
}

impl TransportShared {
    fn counters(&self) -> MutexGuard<'_, ProviderStatistics> {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sessions(&self) -> MutexGuard<'_, Vec<Weak<Session>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn count(&self, add: impl FnOnce(&mut ProviderStatistics)) {
        add(&mut self.counters());
    }

    pub(crate) fn opened_endpoint(&self) {
        self.count(|counters| counters.open_connections += 1);
    }

    pub(crate) fn closed_endpoint(&self) {
        self.count(|counters| counters.open_connections -= 1);
    }

    pub(crate) fn session_began(&self, session: &Arc<Session>) {
        self.sessions().push(Arc::downgrade(session));
    }

    /// Counts what was done on a connection that is over.
    pub(crate) fn session_ended(&self, session: &Session, cause: &Cause) {
        let is_other = |known: &Weak<Session>| !std::ptr::eq(known.as_ptr(), session);
        self.sessions().retain(is_other);
        self.count(|counters| {
            counters.add(session);
            match cause {
                Cause::LocalDisconnect | Cause::HandlerPanicked => counters.local_disconnects += 1,
                Cause::RemoteDisconnect => counters.remote_disconnects += 1,
                Cause::LinkFailed(_) => counters.link_failures += 1,
                Cause::ProtocolViolation(_) => counters.data_frames_rejected += 1,
                Cause::IdleTimeout => {
                    counters.response_timer_expirations += 1;
                    counters.session_timeouts += 1;
                }
                Cause::CreditTimeout => {
                    counters.ack_timer_expirations += 1;
                    counters.session_timeouts += 1;
                }
                Cause::SendTimeout | Cause::OfferTimeout => counters.session_timeouts += 1,
            }
        });
    }
}

impl ProviderStatistics {
    /// What became of a connect or an acceptance.
    pub(crate) fn connected(&mut self, result: Result<(), Status>) {
        let Err(status) = result else {
            self.connections_after_no_retry += 1;
            return;
        };
        match status {
            Status::BAD_NETWORK_PATH => self.not_found_failures += 1,
            Status::REMOTE_NOT_LISTENING => self.no_listen_failures += 1,
            Status::IO_TIMEOUT => self.session_timeouts += 1,
            Status::INSUFFICIENT_RESOURCES => self.local_resource_failures += 1,
            Status::CONNECTION_REFUSED => self.remote_resource_failures += 1,
            _ => self.link_failures += 1,
        }
    }

    fn add(&mut self, session: &Session) {
        let Statistics {
            segments_sent,
            segments_received,
            empty_sent,
            empty_received,
            bytes_sent,
            bytes_received,
            ..
        } = session.connection.stats();
        self.packets_sent += segments_sent + empty_sent;
        self.packets_received += segments_received + empty_received;
        self.data_frames_sent += segments_sent;
        self.data_frame_bytes_sent += bytes_sent;
        self.data_frames_received += segments_received;
        self.data_frame_bytes_received += bytes_received;
        self.piggyback_ack_timeouts += empty_sent;
        let used = [session.sends.usage(), session.receives.usage()];
        for (resource, used) in self.resources.iter_mut().zip(used) {
            resource.maximum_used = resource.maximum_used.max(used.maximum_used);
            resource.exhausted += used.exhausted;
        }
    }
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transport")
            .field("provider", &self.shared.provider.name())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for TransportShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransportShared").finish_non_exhaustive()
    }
}
