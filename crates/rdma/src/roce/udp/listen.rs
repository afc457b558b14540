//! The listener: the requests of peers that arrive on a socket.

use std::{net::SocketAddr, sync::Arc};

use tokio::sync::mpsc;
use tracing::debug;

use super::{
    config::RoceConfig, driver::Running, incoming::incoming, queue_pair::Owned, route::route_to,
    shared::Request,
};
use crate::{
    provider::{BoxFuture, IncomingRequest, ProviderListener},
    roce::endpoint::Rejection,
    work::{ProviderError, ProviderErrorKind},
};

/// A listener, which returns the peers whose request has arrived.
#[derive(Debug)]
pub(super) struct RoceListener {
    socket: Arc<Running>,
    local_addr: SocketAddr,
    requests: mpsc::UnboundedReceiver<Request>,
    config: Arc<RoceConfig>,
}

impl RoceListener {
    pub(super) const fn new(
        socket: Arc<Running>,
        local_addr: SocketAddr,
        requests: mpsc::UnboundedReceiver<Request>,
        config: Arc<RoceConfig>,
    ) -> Self {
        Self {
            socket,
            local_addr,
            requests,
            config,
        }
    }

    /// Returns whether packets with the path MTU of a request can reach the peer. If not, rejects the request,
    /// and names the largest path MTU that can.
    fn fits(&self, request: &Request) -> bool {
        let remote = request.path.remote;
        let Ok(route) = route_to(remote, &self.config.network) else {
            return true;
        };
        let most = self.config.path_mtu(route.mtu, remote.is_ipv6());
        if request.path_mtu <= most {
            return true;
        }
        debug!(peer = %remote, asked = request.path_mtu.bytes(), most = most.bytes(), "path MTU");
        let rejection = Rejection::PathMtu(most);
        let shared = &self.socket.shared;
        shared.with_core(|core, now| core.endpoint.reject(now, request.id, rejection));
        false
    }
}

impl ProviderListener for RoceListener {
    fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    fn accept(&mut self) -> BoxFuture<'_, Result<IncomingRequest, ProviderError>> {
        Box::pin(async move {
            loop {
                let Some(request) = self.requests.recv().await else {
                    let what = "the listener has stopped";
                    return Err(ProviderError::new(ProviderErrorKind::Local, what));
                };
                if self.fits(&request) {
                    let owned = Owned::new(self.socket.clone(), request.id);
                    let port = self.local_addr.port();
                    return Ok(incoming(owned, request, port, self.config.clone()));
                }
            }
        })
    }
}

impl Drop for RoceListener {
    fn drop(&mut self) {
        let shared = &self.socket.shared;
        shared.lock().remove_listener(self.local_addr.port());
        self.requests.close();
        while let Ok(request) = self.requests.try_recv() {
            shared.with_core(|core, now| core.endpoint.release(now, request.id));
        }
    }
}
