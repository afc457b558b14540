//! [`Transport`]: the transport device of TDI, which opens addresses and endpoints and answers
//! queries.

use std::{fmt, net::SocketAddr, sync::Arc};

use smbdirect::Provider;

use super::{
    Address, Endpoint, EndpointContext,
    device::{Device, TransportSettings},
    port::{Port, Share},
};
use crate::protocol::{
    Expedited, Inbound, Outbound, ProviderInfo, ProviderStatistics, ServiceFlags, Status,
};

/// SMB Direct over one RDMA provider, as a TDI transport.
///
/// Handles are cheap to clone. Addresses and endpoints stay open when the last handle is dropped.
///
/// ```
/// use std::sync::Arc;
///
/// use bytes::BytesMut;
/// use smbdirect::Loopback;
/// use smbdirect_tdi::{ReceiveFlags, SendFlags, Share, Status, Transport, TransportSettings};
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
/// endpoint.connect(server.local_addr(), None).await?;
/// listen.await?;
///
/// // TdiBuildSend, twice: a part of a TSDU, then its end.
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
    device: Arc<Device>,
}

impl Transport {
    /// Creates a transport over `provider`.
    ///
    /// # Errors
    /// [`INVALID_PARAMETER`](Status::INVALID_PARAMETER): the settings contradict each other.
    pub fn new(provider: Arc<dyn Provider>, settings: TransportSettings) -> Result<Self, Status> {
        Outbound::new(settings.send.clone())?;
        Inbound::new(settings.receive.clone())?;
        Ok(Self {
            device: Arc::new(Device::new(provider, settings)),
        })
    }

    /// Opens a local address that peers can connect to; port 0 picks a free port. Must be called
    /// within a tokio runtime.
    ///
    /// # Errors
    /// [`SHARING_VIOLATION`](Status::SHARING_VIOLATION): the address is open, and one of the two
    /// does not share it. [`ADDRESS_ALREADY_EXISTS`](Status::ADDRESS_ALREADY_EXISTS): another
    /// program uses it. [`INVALID_ADDRESS_COMPONENT`](Status::INVALID_ADDRESS_COMPONENT): it is not
    /// an address of this machine. [`INSUFFICIENT_RESOURCES`](Status::INSUFFICIENT_RESOURCES):
    /// every other failure.
    pub async fn open_address<C: EndpointContext>(
        &self,
        address: SocketAddr,
        share: Share,
    ) -> Result<Address<C>, Status> {
        let port = self.device.open_port(address, share).await?;
        Ok(self.address_on(port))
    }

    fn address_on<C: EndpointContext>(&self, port: Arc<Port>) -> Address<C> {
        Address::open(self.device.clone(), port.local_addr, Some(port))
    }

    /// Opens an address whose endpoints can connect to peers but cannot accept them.
    ///
    /// The system picks the local port of each connection. Listens on this address complete with
    /// [`INVALID_ADDRESS`](Status::INVALID_ADDRESS).
    pub fn open_any_address<C: EndpointContext>(&self) -> Address<C> {
        let any = SocketAddr::from(([0; 4], 0));
        Address::open(self.device.clone(), any, None)
    }

    /// Opens a connection endpoint that is not associated with an address yet. The client
    /// identifies the endpoint by `context`. See also [`Address::open_endpoint`].
    pub fn open_endpoint<C: EndpointContext>(&self, context: C) -> Endpoint<C> {
        Endpoint::open(self.device.clone(), context)
    }

    /// Answers TDI_QUERY_PROVIDER_INFO.
    pub fn info(&self) -> ProviderInfo {
        let TransportSettings { send, receive, .. } = &self.device.settings;
        let mut service_flags = ServiceFlags::SMB_DIRECT;
        service_flags.set(ServiceFlags::INTERNAL_BUFFERING, send.high_water > 0);
        ProviderInfo {
            version: 0x0200,
            //= TDI-SEND-23
            max_send_size: send.max_tsdu,
            max_connection_user_data: 0,
            max_datagram_size: 0,
            service_flags,
            local_priority_sends: send.expedited == Expedited::LocalPriority,
            minimum_lookahead_data: receive.minimum_lookahead,
            maximum_lookahead_data: receive.maximum_lookahead,
            number_of_resources: ProviderStatistics::default().resources.len(),
            start_time: self.device.start_time,
        }
    }

    /// Answers TDI_QUERY_PROVIDER_STATISTICS.
    pub fn statistics(&self) -> ProviderStatistics {
        //= TDI-QUERY-02
        self.device.statistics()
    }
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transport")
            .field("provider", &self.device.provider.attributes().name)
            .finish_non_exhaustive()
    }
}
