//! A connected pair of handles over a provider, and the check that nothing of them is left.

use std::{net::SocketAddr, sync::Arc};

use bytes::{Bytes, BytesMut};
use smbdirect::{
    Access, Config, Connection, Listener, MemoryRegion, Settings,
    rdma::{
        iwarp::{Iwarp, IwarpConfig},
        loopback::{Loopback, LoopbackConfig},
        provider::Provider,
    },
};

use crate::peer::within;

pub(crate) const HERE: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

pub(crate) fn iwarp() -> Arc<dyn Provider> {
    Arc::new(Iwarp::new(IwarpConfig::default()))
}

/// Returns the providers that need no hardware, and one with very small limits.
pub(crate) fn providers() -> Vec<Arc<dyn Provider>> {
    let mut lean = LoopbackConfig::default();
    lean.limits.max_send_queue = 2;
    lean.limits.max_receive_queue = 4;
    lean.limits.max_outbound_reads = 1;
    lean.limits.max_inbound_reads = 1;
    lean.limits.max_transfer = 5000;
    vec![
        iwarp(),
        Arc::new(Loopback::new()),
        Arc::new(Loopback::with_config(lean)),
    ]
}

fn all_access() -> Access {
    Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_INVALIDATE
}

pub(crate) fn region(connection: &Connection, content: &[u8]) -> MemoryRegion {
    connection
        .register(BytesMut::from(content), all_access())
        .unwrap()
}

pub(crate) fn bytes(length: usize, seed: u8) -> Bytes {
    (0..length).map(|at| (at * 31 / 7) as u8 ^ seed).collect()
}

pub(crate) async fn listen(provider: &Arc<dyn Provider>, settings: Settings) -> Listener {
    let config = Config::new(settings).unwrap();
    Listener::bind(&**provider, HERE, config).await.unwrap()
}

/// Returns both ends of a connection.
pub(crate) struct Ends {
    pub(crate) client: Connection,
    pub(crate) server: Connection,
    _listener: Listener,
}

impl Ends {
    pub(crate) async fn new(provider: &Arc<dyn Provider>, settings: Settings) -> Self {
        let mut listener = listen(provider, settings.clone()).await;
        let address = listener.local_addr();
        let config = Config::new(settings).unwrap();
        let (client, server) = within(async {
            tokio::join!(
                Connection::connect(&**provider, address, config),
                listener.accept()
            )
        })
        .await;
        Self {
            client: client.unwrap(),
            server: server.unwrap(),
            _listener: listener,
        }
    }
}

/// Asserts that an ended connection has no outstanding work, receives or regions.
pub(crate) fn assert_nothing_outstanding(connection: &Connection) {
    let stats = connection.stats();
    let left = (
        stats.receives_outstanding,
        stats.work_outstanding,
        stats.regions,
    );
    assert_eq!(left, (0, 0, 0), "receives, work and regions at the end");
}
