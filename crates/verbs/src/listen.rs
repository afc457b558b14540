//! Listening for connection requests and answering them.

use std::{
    fmt,
    future::poll_fn,
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use smbdirect::rdma::{
    provider::{AcceptRequest, BoxFuture, Connected, IncomingRequest, ProviderListener, QueuePair},
    work::ProviderError,
};
use tracing::{debug, trace};

use crate::{
    cm::{CmEvent, CmEvents, CmId, EventChannel, ReadDepths},
    config::{SMB_DIRECT_PORTS, VerbsConfig},
    device::Device,
    device_events::DeviceEvents,
    error::{local_error, os_error},
    ffi::{self, Functions},
    interface::listening_addresses,
    negotiate::{agreed_read_depths, check_private_data, wanted_read_depths},
    queue_pair::VerbsQueuePair,
};

/// Ports to try when the caller asks for any port. The connection manager picks a port that no RDMA
/// listener uses, but a TCP listener may use it, and Linux' software iWARP listens through TCP.
const MAX_PORT_ATTEMPTS: u32 = 16;

/// A listener for connection requests on one or two ports.
pub(crate) struct VerbsListener {
    local_addr: SocketAddr,
    events: CmEvents,
    /// The events of the device that it is bound to, or `None` if it listens on all devices.
    device_events: Option<DeviceEvents>,
    /// The listening identifiers. Dropping them stops listening.
    _ids: Vec<CmId>,
    channel: Arc<EventChannel>,
    config: Arc<VerbsConfig>,
}

impl VerbsListener {
    /// Listens on `address`. If the settings ask for it and the address has a port of SMB Direct,
    /// listens on `ports` too, the ports of the usable devices.
    pub(crate) fn new(
        functions: Arc<Functions>,
        config: Arc<VerbsConfig>,
        ports: &[u16],
        address: SocketAddr,
    ) -> Result<Self, ProviderError> {
        let (channel, ids, local_addr) = Self::bind(functions, &config, ports, address)
            .map_err(|error| os_error("listening", &error))?;
        let device_events = match &ids[0] {
            id if id.context().is_null() => None,
            id => Some(DeviceEvents::new(id)?),
        };
        let events = CmEvents::new(channel.clone());
        Ok(Self {
            local_addr,
            events: events.map_err(|error| os_error("listening", &error))?,
            device_events,
            _ids: ids,
            channel,
            config,
        })
    }

    /// Binds and listens on the address, and on `ports` if the settings ask for it.
    fn bind(
        functions: Arc<Functions>,
        config: &VerbsConfig,
        ports: &[u16],
        address: SocketAddr,
    ) -> io::Result<(Arc<EventChannel>, Vec<CmId>, SocketAddr)> {
        let channel = EventChannel::new(functions)?;
        let listen_at = |ip: IpAddr, port: u16| {
            let id = CmId::new(channel.clone())?;
            id.set_dscp(config.network.dscp)?;
            let mut address = address;
            address.set_ip(ip);
            address.set_port(port);
            id.bind(address)?;
            id.listen(config.backlog.into())?;
            io::Result::Ok(id)
        };
        let (ip, others) = match &config.network.interface {
            None => (address.ip(), Vec::new()),
            Some(interface) => listening_addresses(interface, address.ip())?,
        };
        let listen = |port: u16| listen_at(ip, port);
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
        let local_addr = first.local_addr()?;
        let mut ids = vec![first];
        for ip in others {
            ids.push(listen_at(ip, local_addr.port())?);
        }
        if config.port_by_device && SMB_DIRECT_PORTS.contains(&address.port()) {
            for &port in ports {
                if port != address.port() {
                    ids.push(listen(port)?);
                }
            }
        }
        Ok((channel, ids, local_addr))
    }

    /// Returns the next event, or the fault of the device.
    fn poll_next(&self, context: &mut Context<'_>) -> Poll<Result<CmEvent, ProviderError>> {
        if let Some(device_events) = &self.device_events
            && let Poll::Ready(fault) = device_events.poll_fault(context)
        {
            return Poll::Ready(Err(fault));
        }
        let event = self.events.poll_next(context);
        event.map_err(|error| os_error("listening", &error))
    }

    /// Waits for the next connection request that can be answered.
    async fn next(&self) -> Result<IncomingRequest, ProviderError> {
        loop {
            let mut event = poll_fn(|context| self.poll_next(context)).await?;
            match event.kind {
                ffi::RDMA_CM_EVENT_CONNECT_REQUEST => {
                    let Some(id) = CmId::of_request(&mut event, self.channel.clone()) else {
                        debug!("a connection request without an identifier");
                        continue;
                    };
                    let made = id.connection_span().in_scope(|| {
                        incoming_of(id, event, self.config.clone()).inspect_err(|error| {
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
            .field("local_addr", &self.local_addr)
            .finish_non_exhaustive()
    }
}

impl ProviderListener for VerbsListener {
    fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    fn accept(&mut self) -> BoxFuture<'_, Result<IncomingRequest, ProviderError>> {
        Box::pin(self.next())
    }
}

/// Converts a connection request, whose identifier is `id`, to an [`IncomingRequest`]. The caller has
/// entered the span of the connection.
fn incoming_of(id: CmId, event: CmEvent, config: Arc<VerbsConfig>) -> io::Result<IncomingRequest> {
    let id = id.migrate()?;
    let device = Device::of_id(&id)?;
    let wanted = wanted_read_depths(&device, &config);
    let is_iwarp = id.is_iwarp();
    // MPA revision 1 has no fields for them.
    let knows_read_depths =
        !is_iwarp || (event.responder_resources > 0 && event.initiator_depth > 0);
    let request = PendingRequest {
        depths: agreed_read_depths(wanted, &event, is_iwarp),
        id: Some(Arc::new(id)),
        device,
        config,
    };
    Ok(IncomingRequest::new(
        request.id().peer_addr()?,
        event.private_data,
        knows_read_depths,
        move |answer| async move { request.accept(answer) },
    ))
}

/// A connection request that waits for an answer. Dropping it rejects the request.
struct PendingRequest {
    id: Option<Arc<CmId>>,
    depths: ReadDepths,
    device: Device,
    config: Arc<VerbsConfig>,
}

impl PendingRequest {
    fn id(&self) -> &Arc<CmId> {
        self.id.as_ref().expect("the request is not answered yet")
    }

    fn accept(mut self, answer: AcceptRequest) -> Result<Connected, ProviderError> {
        check_private_data(&answer.private_data)?;
        let mut queue_pair = VerbsQueuePair::new(self.id().clone(), &self.config, &self.device)?;
        let failed = |error: io::Error| os_error("accepting", &error);
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
        Ok(queue_pair.connected(
            id.local_addr().map_err(failed)?,
            id.peer_addr().map_err(failed)?,
            Bytes::new(),
        ))
    }
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            id.reject();
        }
    }
}
