//! The tasks that establish a connection for a connect, a listen, an acceptance or an offer, and
//! what their results do to the endpoint.

use std::{
    future::{Future, poll_fn},
    net::SocketAddr,
    pin::{Pin, pin},
    sync::{Arc, Weak},
    task::Poll,
    time::Duration,
};

use smbdirect::{
    AcceptError, ConnectFault, Connection, ConnectionError, Incoming,
    deadline::within,
    rdma::work::{ProviderError, ProviderErrorKind},
};
use tokio::time::sleep;
use tracing::{Instrument, warn};

use super::{
    device::TransportSettings,
    phase::{Attempt, Phase, Timer},
    task::Task,
    types::{AddressShared, Client, Endpoint, EndpointContext, EndpointShared, PendingListen},
};
use crate::{
    protocol::{Cause, DisconnectFlags, EndpointState, Status},
    session::{Requested, Session, requested},
};

impl<C: EndpointContext> Endpoint<C> {
    /// Offers a peer to a listen of this endpoint. Returns the offer if the listen is over.
    pub(crate) fn offer(&self, listen: &PendingListen<C>, incoming: Incoming) -> Option<Incoming> {
        let &PendingListen {
            attempt,
            remote,
            query_accept,
            ..
        } = listen;
        let mut state = self.lock();
        if state.attempt != attempt {
            return Some(incoming);
        }
        let completer = match std::mem::replace(&mut state.phase, Phase::Associated) {
            Phase::Listening(completer) => completer,
            phase => {
                state.phase = phase;
                return Some(incoming);
            }
        };
        if query_accept {
            //= TDI-CONN-03
            let limit = self.shared.device.settings.offer_timeout;
            let expiring = expire_offer(self.downgrade(), attempt, limit);
            let timer = tokio::spawn(expiring.in_current_span());
            state.phase = Phase::Offered(incoming, Timer(timer.abort_handle()));
            drop(state);
            completer.complete(Ok(()));
            return None;
        }
        let task = tokio::spawn(accept(self.downgrade(), attempt, incoming, None)).abort_handle();
        state.phase = Phase::Accepting(Attempt {
            listen: Some(remote),
            ..Attempt::new(completer, task)
        });
        None
    }

    /// Accepts a peer for which the connect handler of `client` has returned this endpoint. The completion goes to
    /// that client, even if the address has another one by then. Returns the client if the endpoint cannot accept
    /// the peer.
    pub(crate) fn accept_offer(
        &self,
        address: &Arc<AddressShared<C>>,
        incoming: Incoming,
        client: Arc<dyn Client<C>>,
    ) -> Result<(), Arc<dyn Client<C>>> {
        let mut state = self.lock();
        let is_here = state
            .address
            .as_ref()
            .is_some_and(|own| Arc::ptr_eq(own, address));
        if !is_here || state.phase.state() != EndpointState::Associated {
            warn!("the connect handler gave an endpoint that is not idle on this address");
            return Err(client);
        }
        let attempt = state.begin();
        let (completer, cancelled) = requested();
        tokio::spawn(accept_for(
            self.clone(),
            attempt,
            incoming,
            client,
            cancelled,
        ));
        state.phase = Phase::Accepting(Attempt {
            completer,
            task: None,
            listen: None,
        });
        Ok(())
    }

    /// Completes a pending listen with `status`, because the address was closed or its port has failed. An offer is refused
    /// only with `refuses`.
    pub(crate) fn end_listen(&self, status: Status, refuses: bool) {
        let mut state = self.lock();
        let is_offered = matches!(state.phase, Phase::Offered(..));
        if matches!(state.phase, Phase::Listening(_)) || refuses && is_offered {
            let phase = std::mem::replace(&mut state.phase, Phase::Associated);
            drop(state);
            phase.cancel(status);
        }
    }

    /// Handles the result of `attempt`: starts the session, or completes the request with an error. `acceptor` is
    /// the client whose connect handler has accepted the peer, if one has. Returns false and does nothing if the
    /// attempt is not the current one any more.
    fn attempt_done(
        &self,
        attempt: u64,
        result: Result<Connection, Status>,
        acceptor: Option<&dyn Client<C>>,
    ) -> bool {
        let mut state = self.lock();
        if state.attempt != attempt {
            return false;
        }
        let Attempt {
            completer, listen, ..
        } = match std::mem::replace(&mut state.phase, Phase::Associated) {
            Phase::Connecting(attempt) | Phase::Accepting(attempt) => attempt,
            phase => {
                state.phase = phase;
                return false;
            }
        };
        let device = &self.shared.device;
        let session = match result {
            Ok(connection) => {
                let TransportSettings { send, receive, .. } = &device.settings;
                let session = Session::new(connection, send, receive);
                device.session_started(&session);
                let last = state.session.replace(session.clone());
                state.phase = Phase::Connected;
                state.established += 1;
                drop(state);
                if let Some(last) = last {
                    last.receives.abandon();
                }
                Ok(session)
            }
            Err(status) => {
                //= TDI-CONN-08
                if let Some(remote) = listen {
                    state.phase = Phase::Listening(completer);
                    let address = state.address.clone().expect("it is associated");
                    drop(state);
                    let endpoint = self.downgrade();
                    let listen = PendingListen {
                        endpoint,
                        attempt,
                        remote,
                        query_accept: false,
                    };
                    address.listen(listen, true);
                    return true;
                }
                drop(state);
                Err(status)
            }
        };
        let result = session.as_ref().map(drop).map_err(|&status| status);
        device.count(|counters| counters.add_connect(result));
        completer.complete(result);
        if let Some(acceptor) = acceptor {
            let called = self.call_client(acceptor, |client| client.accept_completed(self, result));
            self.abort_after_panic(called);
        }
        // The task starts last, so that the client sees this result before events of the
        // connection.
        if let Ok(session) = session {
            Task::spawn(session, self.downgrade());
        }
        true
    }
}

pub(super) async fn connect<C: EndpointContext>(
    endpoint: Weak<EndpointShared<C>>,
    attempt: u64,
    remote: SocketAddr,
    limit: Duration,
) {
    let Some(device) = endpoint.upgrade().map(|shared| shared.device.clone()) else {
        return;
    };
    let config = device.settings.config.clone();
    let connecting = Connection::connect(&*device.provider, remote, config);
    let result = match within(limit, connecting).await {
        Some(result) => result.map_err(|error| connect_status(&error.fault)),
        None => Err(Status::IO_TIMEOUT),
    };
    if let Some(shared) = endpoint.upgrade() {
        Endpoint::from_shared(shared).attempt_done(attempt, result, None);
    }
}

/// Establishes the connection of an offer that the connect handler of `client` has accepted, and reports the result to
/// that client. `cancelled` resolves when the attempt is cancelled. The task has a handle of the endpoint, which keeps it
/// open until `accept_completed` has given the client one that it can keep.
async fn accept_for<C: EndpointContext>(
    endpoint: Endpoint<C>,
    attempt: u64,
    incoming: Incoming,
    client: Arc<dyn Client<C>>,
    mut cancelled: Requested,
) {
    let mut accepting = pin!(accept(
        endpoint.downgrade(),
        attempt,
        incoming,
        Some(client.clone())
    ));
    let is_reported = poll_fn(|context| match accepting.as_mut().poll(context) {
        Poll::Pending => Pin::new(&mut cancelled).poll(context).map(|_| false),
        is_current => is_current,
    });
    if !is_reported.await {
        let result = Err(Status::CANCELLED);
        let report = |client: &dyn Client<C>| client.accept_completed(&endpoint, result);
        if endpoint.call_client(&*client, report).is_err() {
            warn!("the handler of the acceptance panicked");
        }
    }
}

/// Establishes the connection of an offer, in the tracing span of the connection. Returns whether the attempt was the
/// current one to its end.
pub(super) fn accept<C: EndpointContext>(
    endpoint: Weak<EndpointShared<C>>,
    attempt: u64,
    incoming: Incoming,
    acceptor: Option<Arc<dyn Client<C>>>,
) -> impl Future<Output = bool> + Send {
    let span = incoming.span().clone();
    let accepting = async move {
        let Some(device) = endpoint.upgrade().map(|shared| shared.device.clone()) else {
            return false;
        };
        let config = device.settings.config.clone();
        let result = incoming.accept(config).await;
        let result = result.map_err(|error| accept_status(&error));
        endpoint.upgrade().is_some_and(|shared| {
            Endpoint::from_shared(shared).attempt_done(attempt, result, acceptor.as_deref())
        })
    };
    accepting.instrument(span)
}

/// Refuses a peer that the client has neither accepted nor rejected within `limit`.
async fn expire_offer<C: EndpointContext>(
    endpoint: Weak<EndpointShared<C>>,
    attempt: u64,
    limit: Duration,
) {
    sleep(limit).await;
    let Some(endpoint) = endpoint.upgrade().map(Endpoint::from_shared) else {
        return;
    };
    let mut state = endpoint.lock();
    if state.attempt == attempt && matches!(state.phase, Phase::Offered(..)) {
        state.phase = Phase::Associated;
        drop(state);
        let device = &endpoint.shared.device;
        device.count(|counters| counters.session_timeouts += 1);
        endpoint.call_without_session(|client| {
            client.disconnect(&endpoint, DisconnectFlags::ABORT, &Cause::OfferTimeout);
        });
    }
}

/// Returns the status with which an acceptance completes after `error`.
const fn accept_status(error: &AcceptError) -> Status {
    match error {
        AcceptError::TimedOut | AcceptError::Negotiation(ConnectionError::TimedOut(_)) => {
            Status::IO_TIMEOUT
        }
        _ => Status::CONNECTION_ABORTED,
    }
}

/// Returns the status with which a connect completes after `error`.
fn connect_status(error: &ConnectFault) -> Status {
    //= TDI-CONN-00
    match error {
        ConnectFault::Provider(ProviderError { kind, .. }) => match kind {
            ProviderErrorKind::Address => Status::BAD_NETWORK_PATH,
            ProviderErrorKind::Refused
            | ProviderErrorKind::PortUnreachable
            | ProviderErrorKind::Rejected => Status::REMOTE_NOT_LISTENING,
            ProviderErrorKind::TimedOut => Status::IO_TIMEOUT,
            ProviderErrorKind::Reset => Status::CONNECTION_RESET,
            ProviderErrorKind::Local => Status::INSUFFICIENT_RESOURCES,
            _ => Status::CONNECTION_ABORTED,
        },
        ConnectFault::Negotiation(error) => match error {
            ConnectionError::TimedOut(_) => Status::IO_TIMEOUT,
            ConnectionError::Violation(_) => Status::CONNECTION_ABORTED,
            ConnectionError::Provider(error) if error.kind == ProviderErrorKind::Reset => {
                Status::CONNECTION_RESET
            }
            _ => Status::CONNECTION_REFUSED,
        },
        _ => Status::CONNECTION_ABORTED,
    }
}

#[cfg(test)]
mod tests {
    use smbdirect::{Violation, engine::Expired};

    use super::*;
    use crate::objects::pair::Pair;

    #[test]
    fn each_error_of_an_acceptance_maps_to_a_status() {
        let error = |kind| ProviderError::new(kind, "a reason");
        let expired = ConnectionError::TimedOut(Expired::Negotiation);
        let closed = ConnectionError::Closed;
        for (error, status) in [
            (AcceptError::TimedOut, Status::IO_TIMEOUT),
            (AcceptError::Negotiation(expired), Status::IO_TIMEOUT),
            (AcceptError::Negotiation(closed), Status::CONNECTION_ABORTED),
            (
                AcceptError::Provider(error(ProviderErrorKind::Reset)),
                Status::CONNECTION_ABORTED,
            ),
        ] {
            assert_eq!(accept_status(&error), status, "{error}");
        }
    }

    /// The timer of an offer that was decided may fire before it is aborted.
    #[tokio::test]
    async fn a_timer_expires_only_its_own_offer() {
        let Pair {
            here,
            there,
            remote,
            local: _local,
            ..
        } = Pair::apart().await;
        let listen = there.listen_and_query(None);
        let attempt = there.lock().attempt;
        expire_offer(there.downgrade(), attempt, Duration::ZERO).await;
        assert_eq!(there.state(), EndpointState::Listening);
        let connect = here.connect(remote.local_addr(), None);
        listen.await.unwrap();
        expire_offer(there.downgrade(), attempt - 1, Duration::ZERO).await;
        assert_eq!(there.state(), EndpointState::Offered);
        expire_offer(there.downgrade(), attempt, Duration::ZERO).await;
        assert_eq!(there.state(), EndpointState::Associated);
        assert_eq!(connect.await, Err(Status::REMOTE_NOT_LISTENING));
    }

    //= TDI-CONN-00 test
    #[test]
    fn each_error_of_a_connect_maps_to_a_status() {
        use ProviderErrorKind as Kind;
        let provider = |kind| ProviderError::new(kind, "a reason");
        for (kind, status, while_negotiating) in [
            (
                Kind::Address,
                Status::BAD_NETWORK_PATH,
                Status::CONNECTION_REFUSED,
            ),
            (
                Kind::Refused,
                Status::REMOTE_NOT_LISTENING,
                Status::CONNECTION_REFUSED,
            ),
            (
                Kind::PortUnreachable,
                Status::REMOTE_NOT_LISTENING,
                Status::CONNECTION_REFUSED,
            ),
            (
                Kind::Rejected,
                Status::REMOTE_NOT_LISTENING,
                Status::CONNECTION_REFUSED,
            ),
            (
                Kind::TimedOut,
                Status::IO_TIMEOUT,
                Status::CONNECTION_REFUSED,
            ),
            (
                Kind::Reset,
                Status::CONNECTION_RESET,
                Status::CONNECTION_RESET,
            ),
            (
                Kind::Local,
                Status::INSUFFICIENT_RESOURCES,
                Status::CONNECTION_REFUSED,
            ),
            (
                Kind::Protocol,
                Status::CONNECTION_ABORTED,
                Status::CONNECTION_REFUSED,
            ),
        ] {
            let error = ConnectFault::Provider(provider(kind));
            assert_eq!(connect_status(&error), status, "{kind:?}");
            let error = ConnectFault::Negotiation(provider(kind).into());
            assert_eq!(connect_status(&error), while_negotiating, "{kind:?}");
        }
        for (error, status) in [
            (
                ConnectionError::TimedOut(Expired::Negotiation),
                Status::IO_TIMEOUT,
            ),
            (Violation::WithoutCredit.into(), Status::CONNECTION_ABORTED),
            (ConnectionError::Closed, Status::CONNECTION_REFUSED),
        ] {
            let error = ConnectFault::Negotiation(error);
            assert_eq!(connect_status(&error), status, "{error}");
        }
    }
}
