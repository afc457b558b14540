//! A connection request that waits for an answer.

use std::sync::Arc;

use super::{
    address::with_port,
    config::RoceConfig,
    error::check_private_data,
    queue_pair::{Owned, RoceQueuePair},
    shared::Request,
};
use crate::{
    provider::{AcceptRequest, Connected, IncomingRequest},
    roce::endpoint::{AcceptParameters, MAX_REPLY_DATA, Path},
    software::os_error::os_error,
    work::{ProviderError, ProviderErrorKind},
};

/// Returns a request for the owner of the listener. Dropping it rejects the peer.
pub(super) fn incoming(
    owned: Owned,
    request: Request,
    port: u16,
    config: Arc<RoceConfig>,
) -> IncomingRequest {
    let path = request.path;
    IncomingRequest::new(path.remote, request.private_data, true, move |request| {
        accept(owned, path, port, config, request)
    })
}

/// Accepts the peer, and waits until the peer confirms the connection.
async fn accept(
    mut owned: Owned,
    path: Path,
    port: u16,
    config: Arc<RoceConfig>,
    request: AcceptRequest,
) -> Result<Connected, ProviderError> {
    check_private_data(&request.private_data, MAX_REPLY_DATA)?;
    // The runtime that accepts need not be that of the listener.
    let moved = owned.change_runtime();
    moved.map_err(|error| os_error("accepting", &error))?;
    let established = {
        let shared = &owned.socket.shared;
        let parameters = AcceptParameters {
            private_data: request.private_data,
            receive: request.receive,
            peer_serves_reads: request.peer_serves_reads,
        };
        shared.with_core(|core, now| {
            core.endpoint.accept(now, owned.id, parameters)?;
            Ok::<_, ProviderError>(core.wait_until_established(owned.id))
        })?
    };
    let timed_out = || {
        let what = format!("{} did not confirm the connection", path.remote);
        ProviderError::new(ProviderErrorKind::TimedOut, what)
    };
    let shared = &owned.socket.shared;
    let private_data = shared
        .wait_for(config.accept_timeout, established)
        .await
        .ok_or_else(timed_out)?
        .map_err(|(error, _)| error)?;
    Ok(RoceQueuePair::connected(
        owned,
        path,
        &config,
        (with_port(path.local, port), path.remote),
        private_data,
    ))
}
