//! The loopback provider: it connects and it listens.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use super::{
    handshake::{Handshake, PendingAnswer, PendingConnect, Request, check_private_data, rejected},
    listener::{AddressSpace, LoopbackListener},
    lock::{lock, wake},
};
use crate::{
    provider::{
        BoxFuture, ConnectRequest, Connected, Provider, ProviderAttributes, ProviderListener,
    },
    work::{Limits, ProviderError, ProviderErrorKind},
};

/// The provider whose connections stay inside the process.
///
/// Clones share one address space. The providers that two calls of [`new`](Self::new) return cannot
/// reach each other. The addresses mean nothing to the operating system.
#[derive(Clone, Debug, Default)]
pub struct Loopback {
    config: LoopbackConfig,
    addresses: Arc<Mutex<AddressSpace>>,
}

/// The settings of a [`Loopback`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct LoopbackConfig {
    /// The limits of an end. A connection has the lower limits of its two ends. The default is 1024 operations in each
    /// queue, 16 RDMA Reads in each direction, transfers of 4 GiB, and Send with Invalidate.
    pub limits: Limits,
    /// The most connection requests that wait at a listener; further ones are refused. The default is no limit,
    /// because each waiting request belongs to a future of this process.
    pub backlog: usize,
}

impl Default for LoopbackConfig {
    fn default() -> Self {
        Self {
            limits: Limits {
                max_send_queue: 1024,
                max_receive_queue: 1024,
                max_outbound_reads: 16,
                max_inbound_reads: 16,
                max_transfer: u32::MAX,
                send_with_invalidate: true,
                packet_bytes: None,
            },
            backlog: usize::MAX,
        }
    }
}

impl Loopback {
    /// Creates a provider with an address space of its own and default limits.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a provider with an address space of its own and the settings `config`.
    pub fn with_config(config: LoopbackConfig) -> Self {
        Self {
            config,
            ..Self::default()
        }
    }

    /// Returns a provider with the same address space and other settings, to model a peer with
    /// different abilities.
    pub fn reconfigured(&self, config: LoopbackConfig) -> Self {
        Self {
            config,
            addresses: Arc::clone(&self.addresses),
        }
    }

    /// Queues a connection request at the listener of the requested address.
    fn request_connection(&self, request: ConnectRequest) -> Result<PendingConnect, ProviderError> {
        check_private_data(&request.private_data)?;
        let mut addresses = lock(&self.addresses);
        let from = SocketAddr::new(request.address.ip(), addresses.pick_port()?);
        let backlog = addresses.find(request.address).ok_or_else(|| {
            ProviderError::new(ProviderErrorKind::Refused, "no listener on this address")
        })?;
        backlog
            .requests
            .retain(|request| request.answer.is_awaited());
        if backlog.requests.len() >= backlog.capacity {
            return Err(rejected(
                "too many connection requests wait at this listener",
            ));
        }
        let handshake = Arc::new(Mutex::new(Handshake::Undecided(None)));
        backlog.requests.push_back(Request {
            limits: self.config.limits,
            from,
            to: request.address,
            private_data: request.private_data,
            receive: request.receive,
            answer: PendingAnswer(Arc::clone(&handshake)),
        });
        let waker = backlog.waker.take();
        drop(addresses);
        wake(waker);
        Ok(PendingConnect(handshake))
    }
}

impl Provider for Loopback {
    fn attributes(&self) -> ProviderAttributes {
        ProviderAttributes {
            name: "loopback",
            default_port: 445,
            limits: self.config.limits,
            negotiates_read_depths: true,
        }
    }

    fn connect(&self, request: ConnectRequest) -> BoxFuture<'_, Result<Connected, ProviderError>> {
        Box::pin(async move { self.request_connection(request)?.await })
    }

    fn listen(
        &self,
        address: SocketAddr,
    ) -> BoxFuture<'_, Result<Box<dyn ProviderListener>, ProviderError>> {
        Box::pin(async move {
            let address = lock(&self.addresses).open(address, self.config.backlog)?;
            Ok(Box::new(LoopbackListener {
                address,
                limits: self.config.limits,
                addresses: Arc::clone(&self.addresses),
            }) as Box<dyn ProviderListener>)
        })
    }
}
