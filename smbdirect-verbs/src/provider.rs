//! The provider: connects, listens and accepts through the connection manager.

use std::{
    fmt,
    future::poll_fn,
    io,
    net::SocketAddr,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use smbdirect::rdma::{
    provider::{
        Answer, BoxFuture, ConnectRequest, Connected, Incoming, Listener, Provider, QueuePair,
    },
    work::{Limits, ProviderError, ProviderErrorKind},
};
use tokio::{task::spawn_blocking, time::timeout};
use tracing::{debug, trace};

use crate::{
    adapter::DeviceEvents,
    cm::{CmEvent, CmEvents, CmId, EventChannel, ReadDepths},
    config::{INFINIBAND_PORT, IWARP_PORT, SMB_DIRECT_PORTS, VerbsConfig},
    device::{self, Capabilities, Device, Transport},
    error::{Unavailable, local_error},
    ffi::{self, Functions},
    queue_pair::VerbsQueuePair,
};

/// The provider of RDMA adapters, through libibverbs and librdmacm.
#[derive(Clone)]
pub struct Verbs {
    functions: Arc<Functions>,
    config: Arc<VerbsConfig>,
    devices: Arc<[Device]>,
}

impl fmt::Debug for Verbs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verbs")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl Verbs {
    /// Returns a provider with these settings. Each connection uses the device on the route to the
    /// peer.
    ///
    /// # Errors
    /// RDMA is not available on this machine. The error says what to install or load.
    pub fn new(config: VerbsConfig) -> Result<Self, Unavailable> {
        let functions = load()?;
        let devices = device::devices(&functions)?;
        if devices.is_empty() {
            return Err(Unavailable::NoDevice);
        }
        let why = |device: &Device| Some(format!("{}: {}", device.name, device.unusable.as_ref()?));
        let reasons: Vec<_> = devices.iter().filter_map(why).collect();
        if reasons.len() == devices.len() {
            return Err(Unavailable::NoUsableDevice(reasons.join("; ")));
        }
        EventChannel::new(functions.clone()).map_err(Unavailable::NoConnectionManager)?;
        Ok(Self {
            functions,
            config: Arc::new(config),
            devices: devices.into(),
        })
    }

    /// Returns the devices of this machine, including unusable ones.
    ///
    /// # Errors
    /// There is no device, or RDMA is not available. The error says what to install or load.
    pub fn devices() -> Result<Vec<Device>, Unavailable> {
        match device::devices(&load()?)? {
            devices if devices.is_empty() => Err(Unavailable::NoDevice),
            devices => Ok(devices),
        }
    }

    /// Returns the well-known ports of SMB Direct for the usable devices: 445 for InfiniBand and
    /// RoCE, 5445 for iWARP.
    pub fn ports(&self) -> Vec<u16> {
        let usable = self
            .devices
            .iter()
            .filter(|device| device.unusable.is_none());
        let mut ports: Vec<_> = usable
            .filter_map(|device| device.transport.smb_direct_port())
            .collect();
        ports.sort_unstable();
        ports.dedup();
        ports
    }
}

/// Loads the libraries once. They are never unloaded, because librdmacm does not release its global
/// state when it is.
fn load() -> Result<Arc<Functions>, Unavailable> {
    static LOADED: OnceLock<Arc<Functions>> = OnceLock::new();
    if let Some(functions) = LOADED.get() {
        return Ok(functions.clone());
    }
    let functions = Functions::load().map_err(Unavailable::NoLibrary)?;
    Ok(LOADED.get_or_init(|| Arc::new(functions)).clone())
}

/// Most bytes of private data in a connection request over iWARP. InfiniBand has room for 56 bytes,
/// and the kernel refuses more there.
const MAX_PRIVATE_DATA_BYTES: usize = 200;

impl Provider for Verbs {
    fn name(&self) -> &'static str {
        "verbs"
    }

    fn default_port(&self) -> u16 {
        self.ports().first().copied().unwrap_or(INFINIBAND_PORT)
    }

    fn limits(&self) -> Limits {
        let mut best = Limits {
            max_send_queue: 0,
            max_receive_queue: 0,
            max_outbound_reads: 0,
            max_inbound_reads: 0,
            max_transfer: 0,
            send_with_invalidate: false,
        };
        let config = &self.config;
        for device in self
            .devices
            .iter()
            .filter(|device| device.unusable.is_none())
        {
            let queue = |wanted: u32| wanted.min(device.max_queue) as usize;
            best.max_send_queue = best.max_send_queue.max(queue(config.send_queue));
            best.max_receive_queue = best.max_receive_queue.max(queue(config.receive_queue));
            let reads = device.max_outbound_reads.min(config.ord.into());
            best.max_outbound_reads = best.max_outbound_reads.max(reads);
            let reads = device.max_inbound_reads.min(config.ird.into());
            best.max_inbound_reads = best.max_inbound_reads.max(reads);
            best.send_with_invalidate |= device.send_with_invalidate;
            for port in &device.ports {
                best.max_transfer = best.max_transfer.max(port.max_message);
            }
        }
        best
    }

    fn is_iwarp(&self) -> bool {
        let usable = |device: &&Device| device.unusable.is_none();
        self.devices
            .iter()
            .filter(usable)
            .any(|device| device.transport == Transport::Iwarp)
    }

    fn connect(&self, request: ConnectRequest) -> BoxFuture<'_, Result<Connected, ProviderError>> {
        Box::pin(connect(
            self.functions.clone(),
            self.config.clone(),
            request,
        ))
    }

    fn listen(
        &self,
        address: SocketAddr,
    ) -> BoxFuture<'_, Result<Box<dyn Listener>, ProviderError>> {
        let listener = VerbsListener::new(self, address);
        Box::pin(async move { Ok(Box::new(listener?) as Box<dyn Listener>) })
    }
}

/// Connects to a peer.
async fn connect(
    functions: Arc<Functions>,
    config: Arc<VerbsConfig>,
    request: ConnectRequest,
) -> Result<Connected, ProviderError> {
    check_private_data(&request.private_data)?;
    let address = request.address;
    let limit = config.connect_timeout;
    let failed = |error: io::Error| failure("connecting", &error);
    let mut id = resolve(&functions, address, limit).await?;
    let mut address = address;
    if config.port_by_device && SMB_DIRECT_PORTS.contains(&address.port()) {
        let port = if id.is_iwarp() {
            IWARP_PORT
        } else {
            INFINIBAND_PORT
        };
        if port != address.port() {
            address.set_port(port);
            id = resolve(&functions, address, limit).await?;
        }
    }
    let capabilities =
        Capabilities::of_id(&id).map_err(|error| device::capabilities_unknown(&error))?;
    let mut queue_pair = VerbsQueuePair::new(id.clone(), &config, &capabilities)?;
    let wanted = wanted_read_depths(&capabilities, &config);
    // The Receives are posted first, because the peer may send as soon as it has accepted.
    queue_pair.post(request.receive);
    let private_data = request.private_data;
    // On Linux' software iWARP the call blocks while TCP connects. The task owns the queue pair, so
    // that it outlives the call even if the future is dropped.
    let connecting = spawn_blocking(move || {
        let result = queue_pair.id().connect(wanted, &private_data);
        (queue_pair, result)
    });
    let elapsed = |_| timed_out(address);
    let (mut queue_pair, result) = timeout(limit, connecting)
        .await
        .map_err(elapsed)?
        .map_err(|_| local_error("the runtime is shutting down"))?;
    result.map_err(failed)?;
    let event = expect(
        queue_pair.cm_events(),
        ffi::RDMA_CM_EVENT_ESTABLISHED,
        limit,
    )
    .await?;
    queue_pair.set_read_depths(agreed_read_depths(wanted, &event, id.is_iwarp()));
    queue_pair.set_established();
    debug!(%address, limits = ?queue_pair.limits(), "RDMA connection");
    Ok(Connected {
        remote_address: address,
        local_address: id.local_address().map_err(failed)?,
        private_data: event.private_data,
        queue_pair: Box::new(queue_pair),
    })
}

/// Returns an identifier that is bound to the device on the route to `address`.
async fn resolve(
    functions: &Arc<Functions>,
    address: SocketAddr,
    limit: Duration,
) -> Result<Arc<CmId>, ProviderError> {
    let failed = |error: io::Error| failure("connecting", &error);
    let channel = EventChannel::new(functions.clone()).map_err(failed)?;
    let id = CmId::new(channel.clone()).map_err(failed)?;
    let events = CmEvents::new(channel).map_err(failed)?;
    id.resolve_address(address, limit).map_err(failed)?;
    expect(&events, ffi::RDMA_CM_EVENT_ADDR_RESOLVED, limit).await?;
    id.resolve_route(limit).map_err(failed)?;
    expect(&events, ffi::RDMA_CM_EVENT_ROUTE_RESOLVED, limit).await?;
    Ok(Arc::new(id))
}

/// Waits for an event of one kind. Any other event is an error of connecting.
async fn expect(events: &CmEvents, kind: u32, limit: Duration) -> Result<CmEvent, ProviderError> {
    let event = timeout(limit, events.next()).await.map_err(|_| {
        ProviderError::new(
            ProviderErrorKind::TimedOut,
            "the connection manager did not answer in time",
        )
    })?;
    let event = event.map_err(|error| failure("connecting", &error))?;
    if event.kind == kind {
        return Ok(event);
    }
    let error = io::Error::from_raw_os_error(event.status.saturating_abs());
    Err(match event.kind {
        ffi::RDMA_CM_EVENT_REJECTED => {
            // Reason 8 of InfiniBand is "invalid service ID": nothing listens on the port.
            let refused = event.status == 8 || error.kind() == io::ErrorKind::ConnectionRefused;
            let what = match refused {
                true => "connecting: connection refused",
                false => "the listener turned the connection away",
            };
            ProviderError::new(ProviderErrorKind::Refused, what)
        }
        ffi::RDMA_CM_EVENT_ADDR_ERROR => {
            let what = format!("connecting: the address is not found: {error}");
            ProviderError::new(ProviderErrorKind::Address, what)
        }
        ffi::RDMA_CM_EVENT_ROUTE_ERROR => {
            let what = format!("connecting: no route is found: {error}");
            ProviderError::new(ProviderErrorKind::Address, what)
        }
        ffi::RDMA_CM_EVENT_UNREACHABLE => {
            let what = format!("connecting: no answer: {error}");
            ProviderError::new(ProviderErrorKind::TimedOut, what)
        }
        ffi::RDMA_CM_EVENT_CONNECT_ERROR => match failure("connecting", &error) {
            known if known.kind != ProviderErrorKind::Local => known,
            unknown => ProviderError {
                kind: ProviderErrorKind::Reset,
                ..unknown
            },
        },
        ffi::RDMA_CM_EVENT_DISCONNECTED => {
            ProviderError::new(ProviderErrorKind::Reset, "connecting: the peer hung up")
        }
        ffi::RDMA_CM_EVENT_DEVICE_REMOVAL => local_error("connecting: the RDMA device was removed"),
        kind => local_error(&format!(
            "connecting: unexpected event {kind} of the connection manager"
        )),
    })
}

/// Returns the error of a peer that does not answer.
fn timed_out(address: SocketAddr) -> ProviderError {
    let what = format!("{address} did not answer in time");
    ProviderError::new(ProviderErrorKind::TimedOut, what)
}

/// Returns the read depths to request, or the most to accept.
fn wanted_read_depths(capabilities: &Capabilities, config: &VerbsConfig) -> ReadDepths {
    let limits = capabilities.limits(config);
    let depth = |depth: u32| u8::try_from(depth).unwrap_or(u8::MAX);
    ReadDepths {
        inbound: depth(limits.max_inbound_reads),
        outbound: depth(limits.max_outbound_reads),
    }
}

/// Returns the read depths that both ends support.
///
/// Over InfiniBand the event has the depths from this end's point of view. Over iWARP the driver
/// decides which depth is in which field, so the lower of the two applies to both directions. There
/// 0 may mean that the depth is unknown.
fn agreed_read_depths(wanted: ReadDepths, event: &CmEvent, is_iwarp: bool) -> ReadDepths {
    let (inbound, outbound) = (event.responder_resources, event.initiator_depth);
    if !is_iwarp {
        return ReadDepths {
            inbound: wanted.inbound.min(inbound),
            outbound: wanted.outbound.min(outbound),
        };
    }
    let lower = [inbound, outbound]
        .into_iter()
        .filter(|&depth| depth > 0)
        .min();
    let lower = lower.unwrap_or(u8::MAX);
    ReadDepths {
        inbound: wanted.inbound.min(lower),
        outbound: wanted.outbound.min(lower),
    }
}

/// Checks the length of private data.
fn check_private_data(private_data: &Bytes) -> Result<(), ProviderError> {
    if private_data.len() > MAX_PRIVATE_DATA_BYTES {
        return Err(local_error(&format!(
            "{} bytes of private data, at most {MAX_PRIVATE_DATA_BYTES} can be sent",
            private_data.len()
        )));
    }
    Ok(())
}

/// Converts an error of the operating system while connecting, listening or accepting.
fn failure(doing: &str, error: &io::Error) -> ProviderError {
    use io::ErrorKind as Io;
    let kind = match error.kind() {
        Io::ConnectionRefused => ProviderErrorKind::Refused,
        Io::TimedOut => ProviderErrorKind::TimedOut,
        Io::ConnectionReset | Io::ConnectionAborted | Io::BrokenPipe | Io::NotConnected => {
            ProviderErrorKind::Reset
        }
        Io::AddrInUse => ProviderErrorKind::InUse,
        Io::AddrNotAvailable | Io::HostUnreachable | Io::NetworkUnreachable | Io::NetworkDown => {
            ProviderErrorKind::Address
        }
        _ if error.raw_os_error() == Some(NO_DEVICE) => {
            let what = format!("{doing}: no RDMA device has this address, or a way to it");
            return ProviderError::new(ProviderErrorKind::Address, what);
        }
        _ => ProviderErrorKind::Local,
    };
    let what = match error.kind() {
        // The text of the other providers, without the error number.
        Io::ConnectionRefused => format!("{doing}: connection refused"),
        _ => format!("{doing}: {error}"),
    };
    ProviderError::new(kind, what)
}

/// `ENODEV`, the error number for an address that no RDMA device serves.
const NO_DEVICE: i32 = 19;

/// Ports to try when the caller asks for any port. The connection manager picks a port that no RDMA
/// listener uses, but a TCP listener may use it, and Linux' software iWARP listens through TCP.
const MAX_PORT_ATTEMPTS: u32 = 16;

/// A listener for connection requests on one or two ports.
struct VerbsListener {
    local_address: SocketAddr,
    events: CmEvents,
    /// The events of the device that it is bound to, or `None` if it listens on all devices.
    device_events: Option<DeviceEvents>,
    /// The listening identifiers. Dropping them stops listening.
    _ids: Vec<CmId>,
    channel: Arc<EventChannel>,
    config: Arc<VerbsConfig>,
}

impl VerbsListener {
    fn new(verbs: &Verbs, address: SocketAddr) -> Result<Self, ProviderError> {
        let (channel, ids, local_address) =
            Self::bind(verbs, address).map_err(|error| failure("listening", &error))?;
        let device_events = match &ids[0] {
            id if id.context().is_null() => None,
            id => Some(DeviceEvents::new(id)?),
        };
        let events = CmEvents::new(channel.clone());
        Ok(Self {
            local_address,
            events: events.map_err(|error| failure("listening", &error))?,
            device_events,
            _ids: ids,
            channel,
            config: verbs.config.clone(),
        })
    }

    /// Binds the address, and the ports of all usable devices if the settings ask for it.
    fn bind(
        verbs: &Verbs,
        address: SocketAddr,
    ) -> io::Result<(Arc<EventChannel>, Vec<CmId>, SocketAddr)> {
        let config = &verbs.config;
        let channel = EventChannel::new(verbs.functions.clone())?;
        let listen = |port: u16| {
            let id = CmId::new(channel.clone())?;
            let mut address = address;
            address.set_port(port);
            id.bind(address)?;
            id.listen(config.backlog.into())?;
            io::Result::Ok(id)
        };
        let mut tries = if address.port() == 0 {
            MAX_PORT_ATTEMPTS
        } else {
            1
        };
        let first = loop {
            tries -= 1;
            match listen(address.port()) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && tries > 0 => {}
                first => break first?,
            }
        };
        let local_address = first.local_address()?;
        let mut ids = vec![first];
        if config.port_by_device && SMB_DIRECT_PORTS.contains(&address.port()) {
            for port in verbs.ports() {
                if port != address.port() {
                    ids.push(listen(port)?);
                }
            }
        }
        Ok((channel, ids, local_address))
    }

    /// Returns the next event, or the fault of the device.
    fn poll_next(&self, context: &mut Context<'_>) -> Poll<Result<CmEvent, ProviderError>> {
        if let Some(device_events) = &self.device_events
            && let Poll::Ready(fault) = device_events.poll_fault(context)
        {
            return Poll::Ready(Err(fault));
        }
        let event = self.events.poll_next(context);
        event.map_err(|error| failure("listening", &error))
    }

    /// Waits for the next connection request that can be answered.
    async fn next(&self) -> Result<Incoming, ProviderError> {
        loop {
            let mut event = poll_fn(|context| self.poll_next(context)).await?;
            match event.kind {
                ffi::RDMA_CM_EVENT_CONNECT_REQUEST => {
                    let Some(id) = CmId::of_request(&mut event, self.channel.clone()) else {
                        debug!("a connection request without an identifier");
                        continue;
                    };
                    let made = id.connection_span().in_scope(|| {
                        incoming(id, event, self.config.clone()).inspect_err(|error| {
                            debug!(%error, "a connection request cannot be answered");
                        })
                    });
                    if let Ok(incoming) = made {
                        return Ok(incoming);
                    }
                }
                ffi::RDMA_CM_EVENT_DEVICE_REMOVAL => {
                    return Err(local_error("the RDMA device was removed"));
                }
                kind => trace!(kind, "an event of the connection manager is ignored"),
            }
        }
    }
}

impl fmt::Debug for VerbsListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerbsListener")
            .field("local_address", &self.local_address)
            .finish_non_exhaustive()
    }
}

impl Listener for VerbsListener {
    fn local_address(&self) -> SocketAddr {
        self.local_address
    }

    fn accept(&mut self) -> BoxFuture<'_, Result<Incoming, ProviderError>> {
        Box::pin(self.next())
    }
}

/// Converts a connection request, whose identifier is `id`, to an [`Incoming`]. The caller has
/// entered the span of the connection.
fn incoming(id: CmId, event: CmEvent, config: Arc<VerbsConfig>) -> io::Result<Incoming> {
    let id = id.migrate()?;
    let capabilities = Capabilities::of_id(&id)?;
    let wanted = wanted_read_depths(&capabilities, &config);
    let is_iwarp = id.is_iwarp();
    // MPA revision 1 has no fields for them.
    let knows_read_depths =
        !is_iwarp || (event.responder_resources > 0 && event.initiator_depth > 0);
    let unanswered = Unanswered {
        depths: agreed_read_depths(wanted, &event, is_iwarp),
        id: Some(Arc::new(id)),
        capabilities,
        config,
    };
    Ok(Incoming {
        remote_address: unanswered.id().remote_address()?,
        private_data: event.private_data,
        knows_read_depths,
        answer: Box::new(move |answer| Box::pin(async move { unanswered.accept(answer) })),
    })
}

/// A connection request that waits for an answer. Dropping it rejects the request.
struct Unanswered {
    id: Option<Arc<CmId>>,
    depths: ReadDepths,
    capabilities: Capabilities,
    config: Arc<VerbsConfig>,
}

impl Unanswered {
    fn id(&self) -> &Arc<CmId> {
        self.id.as_ref().expect("the request is not answered yet")
    }

    fn accept(mut self, answer: Answer) -> Result<Connected, ProviderError> {
        check_private_data(&answer.private_data)?;
        let mut queue_pair =
            VerbsQueuePair::new(self.id().clone(), &self.config, &self.capabilities)?;
        let failed = |error: io::Error| failure("accepting", &error);
        // The Receives are posted first, because the peer may send as soon as it is accepted.
        queue_pair.post(answer.receive);
        if let Some(served) = answer.peer_serves_reads {
            let served = u8::try_from(served).unwrap_or(u8::MAX);
            self.depths.outbound = self.depths.outbound.min(served);
        }
        queue_pair.set_read_depths(self.depths);
        let id = self.id.take().expect("the request is answered once");
        id.accept(self.depths, &answer.private_data)
            .map_err(failed)?;
        queue_pair.set_accepted();
        Ok(Connected {
            remote_address: id.remote_address().map_err(failed)?,
            local_address: id.local_address().map_err(failed)?,
            private_data: Bytes::new(),
            queue_pair: Box::new(queue_pair),
        })
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            id.reject();
        }
    }
}
