//! Connecting to a peer through the connection manager.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use smbdirect::rdma::{
    provider::{ConnectRequest, Connected, QueuePair},
    work::{ProviderError, ProviderErrorKind},
};
use tokio::{task::spawn_blocking, time::timeout};
use tracing::debug;

use crate::{
    cm::{CmEvent, CmEvents, CmId, EventChannel},
    config::{INFINIBAND_PORT, IWARP_PORT, SMB_DIRECT_PORTS, VerbsConfig},
    device::{self, Device},
    error::{local_error, os_error},
    ffi::{self, Functions},
    interface::source_address,
    negotiate::{agreed_read_depths, check_private_data, wanted_read_depths},
    queue_pair::VerbsQueuePair,
};

/// Connects to a peer.
pub(crate) async fn connect(
    functions: Arc<Functions>,
    config: Arc<VerbsConfig>,
    request: ConnectRequest,
) -> Result<Connected, ProviderError> {
    check_private_data(&request.private_data)?;
    let address = request.address;
    let limit = config.connect_timeout;
    let failed = |error: io::Error| os_error("connecting", &error);
    let mut id = resolve(&functions, &config, address).await?;
    let mut address = address;
    if config.port_by_device && SMB_DIRECT_PORTS.contains(&address.port()) {
        let port = if id.is_iwarp() {
            IWARP_PORT
        } else {
            INFINIBAND_PORT
        };
        if port != address.port() {
            address.set_port(port);
            id = resolve(&functions, &config, address).await?;
        }
    }
    let device = Device::of_id(&id).map_err(|error| device::capabilities_unknown(&error))?;
    let mut queue_pair = VerbsQueuePair::new(id.clone(), &config, &device)?;
    let wanted = wanted_read_depths(&device, &config);
    // The Receives are posted first, because the peer may send as soon as it has accepted.
    queue_pair.post(request.receive);
    let private_data = request.private_data;
    // On Linux' software iWARP the call blocks while TCP connects. The task owns the queue pair, so
    // that it outlives the call even if the future is dropped.
    let connecting = spawn_blocking(move || {
        let result = queue_pair.id().connect(wanted, &private_data);
        (queue_pair, result)
    });
    let (mut queue_pair, result) = timeout(limit, connecting)
        .await
        .map_err(|_| {
            ProviderError::new(
                ProviderErrorKind::TimedOut,
                "the peer did not answer in time",
            )
        })?
        .map_err(|_| local_error("the runtime is shutting down"))?;
    result.map_err(failed)?;
    let event = expect_event(
        queue_pair.cm_events(),
        ffi::RDMA_CM_EVENT_ESTABLISHED,
        limit,
    )
    .await?;
    queue_pair.set_read_depths(agreed_read_depths(wanted, &event, id.is_iwarp()));
    queue_pair.set_established();
    let connected = queue_pair.connected(
        id.local_addr().map_err(failed)?,
        address,
        event.private_data,
    );
    debug!(%address, limits = ?connected.limits, "RDMA connection");
    Ok(connected)
}

/// Returns an identifier that is bound to the device on the route to `address`.
async fn resolve(
    functions: &Arc<Functions>,
    config: &VerbsConfig,
    address: SocketAddr,
) -> Result<Arc<CmId>, ProviderError> {
    let limit = config.connect_timeout;
    let failed = |error: io::Error| os_error("connecting", &error);
    let channel = EventChannel::new(functions.clone()).map_err(failed)?;
    let id = CmId::new(channel.clone()).map_err(failed)?;
    let events = CmEvents::new(channel).map_err(failed)?;
    id.set_dscp(config.network.dscp).map_err(failed)?;
    let interface = config.network.interface.as_deref();
    let source = interface.map(|interface| source_address(interface, address));
    let source = source.transpose().map_err(failed)?;
    id.resolve_address(source, address, limit).map_err(failed)?;
    expect_event(&events, ffi::RDMA_CM_EVENT_ADDR_RESOLVED, limit).await?;
    id.resolve_route(limit).map_err(failed)?;
    expect_event(&events, ffi::RDMA_CM_EVENT_ROUTE_RESOLVED, limit).await?;
    Ok(Arc::new(id))
}

/// Waits for an event of one kind. Any other event is an error of connecting.
async fn expect_event(
    events: &CmEvents,
    kind: u32,
    limit: Duration,
) -> Result<CmEvent, ProviderError> {
    let event = timeout(limit, events.next()).await.map_err(|_| {
        ProviderError::new(
            ProviderErrorKind::TimedOut,
            "the connection manager did not answer in time",
        )
    })?;
    let event = event.map_err(|error| os_error("connecting", &error))?;
    if event.kind == kind {
        return Ok(event);
    }
    let error = io::Error::from_raw_os_error(event.status.saturating_abs());
    Err(match event.kind {
        ffi::RDMA_CM_EVENT_REJECTED => {
            // Reason 8 of InfiniBand is "invalid service ID": nothing listens on the port.
            let refused = event.status == 8 || error.kind() == io::ErrorKind::ConnectionRefused;
            if refused {
                ProviderError::new(ProviderErrorKind::Refused, "connecting: connection refused")
            } else {
                let what = "the listener refused the connection";
                ProviderError::new(ProviderErrorKind::Rejected, what)
            }
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
        ffi::RDMA_CM_EVENT_CONNECT_ERROR => match os_error("connecting", &error) {
            known if known.kind != ProviderErrorKind::Local => known,
            mut unknown => {
                unknown.kind = ProviderErrorKind::Reset;
                unknown
            }
        },
        ffi::RDMA_CM_EVENT_DISCONNECTED => ProviderError::new(
            ProviderErrorKind::Reset,
            "connecting: the peer closed the connection",
        ),
        ffi::RDMA_CM_EVENT_DEVICE_REMOVAL => local_error("connecting: the RDMA device was removed"),
        kind => local_error(&format!(
            "connecting: unexpected event {kind} of the connection manager"
        )),
    })
}
