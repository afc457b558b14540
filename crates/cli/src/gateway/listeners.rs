//! The sockets that the clients of a service connect to.

use std::net::SocketAddr;

use anyhow::Result;
use smbdirect_gateway::ClientListener;
use smbdirect_smb::frame;
use smbdirect_transport::Rdma;

use super::{Gateway, Kind};
use crate::{
    failure::{self, OfKind},
    pcap::Capture,
    systemd::Passed,
    transport,
};

/// The listeners of a service, and its RDMA.
pub(super) struct Listeners {
    pub(super) rdma: Rdma,
    pub(super) listeners: Vec<ClientListener>,
    pub(super) addresses: Vec<SocketAddr>,
    /// The capture of --pcap, until it is dropped.
    pub(super) capture: Option<Capture>,
}

impl Listeners {
    /// Listens on `passed`, the sockets that the service manager has passed for this service, or on the addresses of the
    /// options.
    ///
    /// # Errors
    /// The addresses cannot be used, or there is no RDMA.
    pub(super) async fn open(options: &Gateway, passed: Vec<Passed>) -> Result<Self> {
        let connect = Some(&options.connect);
        let end =
            |address, passed| transport::accepting_end(&options.options, connect, address, passed);
        let listen = options.listen()?;
        let network = options.options.network();
        let mut listeners = Vec::new();
        let (rdma, capture) = match options.from {
            Kind::Tcp => end(options.upstream()?.first(), None)?,
            Kind::Smbdirect => end(listen.first(), None)?,
        };
        let is_passed = !passed.is_empty();
        for Passed { socket, .. } in passed {
            match options.from {
                Kind::Tcp => {
                    let listener = transport::listen_tcp_on(socket, &network)?;
                    listeners.push(ClientListener::Tcp(listener));
                }
                Kind::Smbdirect => {
                    let (rdma, _) = end(listen.first(), Some(socket))?;
                    let found = rdma.listen_all(listen.first()).await;
                    let found = found.of_kind(failure::Kind::Listen)?;
                    // The first one is the socket. The others are the addresses of a name, which the socket replaces.
                    listeners.extend(found.into_iter().take(1).map(ClientListener::SmbDirect));
                }
            }
        }
        let own = if is_passed { &[][..] } else { listen.all() };
        for address in own {
            match options.from {
                Kind::Tcp => {
                    let found = transport::listen_tcp_all(address, frame::PORT, &network).await;
                    let found = found.of_kind(failure::Kind::Listen)?;
                    listeners.extend(found.into_iter().map(ClientListener::Tcp));
                }
                Kind::Smbdirect => {
                    let found = rdma.listen_all(address).await;
                    let found = found.of_kind(failure::Kind::Listen)?;
                    listeners.extend(found.into_iter().map(ClientListener::SmbDirect));
                }
            }
        }
        let addresses = listeners.iter().map(ClientListener::address);
        Ok(Self {
            rdma,
            addresses: addresses.collect::<Result<_>>()?,
            listeners,
            capture,
        })
    }
}
