//! The sockets that the clients of a service connect to.

use std::net::SocketAddr;

use anyhow::Result;
use smbdirect_gateway::{ClientListener, Protocol};
use smbdirect_smb::frame;
use smbdirect_transport::{Kept, Rdma};

use super::Gateway;
use crate::{
    failure::{self, OfKind},
    options::{Transport, usage},
    pcap::Capture,
    systemd::{KEPT, Passed},
    transport,
};

/// The listeners of a service, and its RDMA.
pub(super) struct Listeners {
    pub(super) rdma: Rdma,
    pub(super) listeners: Vec<ClientListener>,
    pub(super) addresses: Vec<SocketAddr>,
    /// Duplicates of the listening sockets, for a process that takes the place of this one.
    pub(super) sockets: Vec<Passed>,
    /// The capture of --pcap, until it is dropped.
    pub(super) capture: Option<Capture>,
}

impl Listeners {
    /// Listens on `passed`, the sockets that the service manager has passed for this service, or on the addresses of the
    /// options, by the sockets of `kept` that have them.
    ///
    /// # Errors
    /// The addresses cannot be used, or there is no RDMA.
    pub(super) async fn open(
        options: &Gateway,
        passed: Vec<Passed>,
        kept: &mut Kept,
    ) -> Result<Self> {
        let listen = options.listen()?;
        let network = options.options.network();
        let is_tcp = options.from == Protocol::Tcp;
        let first = if is_tcp {
            options.upstream()?.first()
        } else {
            listen.first()
        };
        if !passed.is_empty() && !is_tcp && options.options.transport != Transport::Iwarp {
            return Err(usage(
                "RDMA adapters do not listen on the socket of the service manager; disable the socket unit",
            ));
        }
        let (rdma, capture) = transport::one_end(&options.options, Some(&options.connect), first)?;
        let own = if passed.is_empty() {
            listen.uncovered()
        } else {
            Vec::new()
        };
        let mut opened = Vec::new();
        for Passed { name, socket } in passed {
            let listener = if is_tcp {
                ClientListener::Tcp(transport::listen_tcp_on(socket, &network)?)
            } else {
                ClientListener::SmbDirect(rdma.open_on(socket)?)
            };
            opened.push((name, listener));
        }
        for address in own {
            let found: Vec<_> = if is_tcp {
                let found = transport::listen_tcp_all(address, frame::PORT, &network, kept);
                let found = found.await.of_kind(failure::Kind::Listen)?;
                found.into_iter().map(ClientListener::Tcp).collect()
            } else {
                let found = rdma.open_all(address, kept).await;
                let found = found.of_kind(failure::Kind::Listen)?;
                found.into_iter().map(ClientListener::SmbDirect).collect()
            };
            opened.extend(found.into_iter().map(|found| (KEPT.to_owned(), found)));
        }
        let (mut listeners, mut addresses, mut sockets) = (Vec::new(), Vec::new(), Vec::new());
        for (name, listener) in opened {
            addresses.push(listener.address()?);
            let socket = match &listener {
                ClientListener::SmbDirect(listener) => listener.socket()?,
                ClientListener::Tcp(listener) => Some(transport::duplicate(listener)?),
            };
            sockets.extend(socket.map(|socket| Passed { name, socket }));
            listeners.push(listener);
        }
        Ok(Self {
            rdma,
            listeners,
            addresses,
            sockets,
            capture,
        })
    }
}
