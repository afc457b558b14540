//! The requests of an [`Endpoint`] for its association and its connection: associate, connect,
//! listen, accept and disconnect.

use std::{
    mem::{replace, take},
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use super::{
    establish::{accept, connect},
    phase::{Attempt, Phase},
    types::{Address, Endpoint, EndpointContext, EndpointLocked, PendingListen},
};
use crate::{
    protocol::{Cause, DisconnectFlags, EndpointState, Request, Status},
    session::{Completer, Requested, now, requested},
};

impl<C: EndpointContext> Endpoint<C> {
    /// Submits TDI_ASSOCIATE_ADDRESS: from now on the client of `address` receives the events of
    /// this endpoint.
    ///
    /// # Errors
    /// [`ADDRESS_ALREADY_ASSOCIATED`](Status::ADDRESS_ALREADY_ASSOCIATED): the endpoint is
    /// associated. [`INVALID_PARAMETER`](Status::INVALID_PARAMETER): the address belongs to another
    /// transport.
    pub fn associate(&self, address: &Address<C>) -> Result<(), Status> {
        let address = address.shared();
        let mut state = self.lock();
        state.phase.state().check(Request::Associate)?;
        if !Arc::ptr_eq(address.device(), &self.shared.device) {
            return Err(Status::INVALID_PARAMETER);
        }
        address.add_endpoint(self.downgrade());
        state.address = Some(address.clone());
        state.phase = Phase::Associated;
        Ok(())
    }

    /// Submits TDI_DISASSOCIATE_ADDRESS. Data that has not been received is discarded.
    ///
    /// # Errors
    /// [`ADDRESS_NOT_ASSOCIATED`](Status::ADDRESS_NOT_ASSOCIATED): the endpoint is not associated.
    /// [`CONNECTION_ACTIVE`](Status::CONNECTION_ACTIVE): it has a connection, or a request for one.
    pub fn disassociate(&self) -> Result<(), Status> {
        let mut state = self.lock();
        state.phase.state().check(Request::Disassociate)?;
        let address = state.address.take();
        let session = state.session.take();
        state.phase = Phase::Idle;
        drop(state);
        if let Some(address) = address {
            address.remove_endpoint(&self.shared);
        }
        if let Some(session) = session {
            session.receives.close(Status::CANCELLED);
        }
        Ok(())
    }

    /// Submits TDI_CONNECT: connects to `remote` and negotiates SMB Direct. `timeout` limits both
    /// together; `None` means [`connect_timeout`](crate::TransportSettings::connect_timeout).
    ///
    /// # Errors
    /// The future returns:
    /// - [`BAD_NETWORK_PATH`](Status::BAD_NETWORK_PATH): there is no route to the address.
    /// - [`REMOTE_NOT_LISTENING`](Status::REMOTE_NOT_LISTENING): nothing listens there, or the peer
    ///   refused the offer, which looks the same on the wire.
    /// - [`CONNECTION_REFUSED`](Status::CONNECTION_REFUSED): SMB Direct was not negotiated.
    /// - [`IO_TIMEOUT`](Status::IO_TIMEOUT): the time-out expired.
    /// - [`INSUFFICIENT_RESOURCES`](Status::INSUFFICIENT_RESOURCES): this end has no resources.
    /// - [`CONNECTION_RESET`](Status::CONNECTION_RESET) or
    ///   [`CONNECTION_ABORTED`](Status::CONNECTION_ABORTED): the peer disconnected, or violated the
    ///   protocol.
    /// - [`CANCELLED`](Status::CANCELLED): a disconnect cancelled the connect.
    /// - [`ADDRESS_CLOSED`](Status::ADDRESS_CLOSED): no handle of the address is left.
    /// - The status of the table at [`EndpointState`](crate::EndpointState), if the state does
    ///   not allow a connect.
    pub fn connect(&self, remote: SocketAddr, timeout: Option<Duration>) -> Requested {
        self.request(Operation::Connect { remote, timeout })
    }

    /// Submits TDI_LISTEN: waits for a peer and accepts it. The listen completes when the
    /// connection is established.
    ///
    /// With `remote`, the listen accepts only peers from that host. Peers are given to the listens
    /// of an address in the order of submission. The connect handler is called only for a peer that
    /// no pending listen accepts. A peer that connects and does not negotiate occupies the listen
    /// for [`passive_negotiation_timeout`](smbdirect::Settings::passive_negotiation_timeout), so submit
    /// several listens if other peers are to be accepted meanwhile.
    ///
    /// # Errors
    /// The future returns:
    /// - [`CANCELLED`](Status::CANCELLED): a disconnect cancelled the listen, or the address was
    ///   closed.
    /// - [`INSUFFICIENT_RESOURCES`](Status::INSUFFICIENT_RESOURCES): the listener of the address
    ///   failed.
    /// - [`INVALID_ADDRESS`](Status::INVALID_ADDRESS): peers cannot connect to the address.
    /// - [`ADDRESS_CLOSED`](Status::ADDRESS_CLOSED): no handle of the address is left.
    /// - The status of the table at [`EndpointState`](crate::EndpointState), if the state does
    ///   not allow a listen.
    pub fn listen(&self, remote: Option<IpAddr>) -> Requested {
        //= TDI-CONN-01
        self.request(Operation::Listen {
            remote,
            query_accept: false,
        })
    }

    /// Submits TDI_LISTEN with TDI_QUERY_ACCEPT: waits for the offer of a peer, without accepting
    /// it.
    ///
    /// After it completes, [`accept`](Self::accept) the offer, or reject it with
    /// [`disconnect`](Self::disconnect). The transport refuses the peer after
    /// [`offer_timeout`](crate::TransportSettings::offer_timeout), and the peer gives up after
    /// a time of its own.
    ///
    /// # Errors
    /// The errors of [`listen`](Self::listen).
    pub fn listen_and_query(&self, remote: Option<IpAddr>) -> Requested {
        //= TDI-CONN-02
        self.request(Operation::Listen {
            remote,
            query_accept: true,
        })
    }

    /// Submits TDI_ACCEPT: accepts the offer of [`listen_and_query`](Self::listen_and_query). It
    /// completes when the connection is established.
    ///
    /// # Errors
    /// The future returns:
    /// - [`IO_TIMEOUT`](Status::IO_TIMEOUT): the peer did not negotiate in time.
    /// - [`CONNECTION_ABORTED`](Status::CONNECTION_ABORTED): the peer disconnected, or the
    ///   negotiation failed.
    /// - The status of the table at [`EndpointState`](crate::EndpointState), if there is no
    ///   offer.
    pub fn accept(&self) -> Requested {
        self.request(Operation::Accept)
    }

    /// Submits TDI_DISCONNECT.
    ///
    /// Without a flag, or with [`ABORT`](DisconnectFlags::ABORT), it disconnects immediately:
    /// pending requests are cancelled, an offer is refused, and no more events are indicated. It completes after the
    /// requests that it cancels, and after a handler that is running has returned.
    ///
    /// With [`RELEASE`](DisconnectFlags::RELEASE), it disconnects when the TSDUs of all earlier sends
    /// have been sent. Data is received as before until then. SMB Direct cannot close one direction
    /// only, so the peer cannot send after that. A release that takes longer than `timeout` becomes
    /// an abort; `None` means no limit. For an offer, a release refuses the peer as an abort does.
    ///
    /// # Errors
    /// The future returns:
    /// - [`INVALID_PARAMETER`](Status::INVALID_PARAMETER): several flags are set, or a TSDU is
    ///   incomplete at a release.
    /// - [`NOT_SUPPORTED`](Status::NOT_SUPPORTED): [`WAIT`](DisconnectFlags::WAIT) is set; use
    ///   [`disconnected`](Self::disconnected).
    /// - [`IO_TIMEOUT`](Status::IO_TIMEOUT): the release took longer than `timeout`.
    /// - The status of the cause that ended the connection before the release was done.
    /// - The status of the table at [`EndpointState`](crate::EndpointState), if the state does
    ///   not allow a disconnect.
    pub fn disconnect(&self, flags: DisconnectFlags, timeout: Option<Duration>) -> Requested {
        self.request(Operation::Disconnect { flags, timeout })
    }

    fn request(&self, operation: Operation) -> Requested {
        let (completer, requested) = requested();
        self.submit(operation, completer);
        requested
    }

    /// Submits the request that `operation` describes, as the method with its name does. `routine` is called once, with
    /// its result: within this call if that is known at once, otherwise on the task that has it, before any event that
    /// comes after it. It must not panic.
    pub fn request_then(
        &self,
        operation: Operation,
        routine: impl FnOnce(Result<(), Status>) + Send + 'static,
    ) {
        self.submit(operation, Completer::Routine(Box::new(routine)));
    }

    fn submit(&self, operation: Operation, mut completer: Completer) {
        let submitted = match operation {
            Operation::Connect { remote, timeout } => {
                self.submit_connect(remote, timeout, &mut completer)
            }
            Operation::Listen {
                remote,
                query_accept,
            } => self.submit_listen(remote, query_accept, &mut completer),
            Operation::Accept => self.submit_accept(&mut completer),
            Operation::Disconnect { flags, timeout } => {
                self.submit_disconnect(flags, timeout, &mut completer)
            }
        };
        // The endpoint is not locked any more.
        if let Err(status) = submitted {
            completer.complete(Err(status));
        }
    }

    fn submit_connect(
        &self,
        remote: SocketAddr,
        timeout: Option<Duration>,
        completer: &mut Completer,
    ) -> Result<(), Status> {
        let mut state = self.lock();
        may_begin(&state, Request::Connect)?;
        let attempt = state.begin();
        let limit = timeout.unwrap_or(self.shared.device.settings.connect_timeout);
        let work = connect(self.downgrade(), attempt, remote, limit);
        let task = tokio::spawn(work).abort_handle();
        state.phase = Phase::Connecting(Attempt::new(take(completer), task));
        Ok(())
    }

    fn submit_listen(
        &self,
        remote: Option<IpAddr>,
        query_accept: bool,
        completer: &mut Completer,
    ) -> Result<(), Status> {
        let mut state = self.lock();
        may_begin(&state, Request::Listen)?;
        let attempt = state.begin();
        state.phase = Phase::Listening(take(completer));
        let address = state.address.clone().expect("it is associated");
        drop(state);
        let endpoint = self.downgrade();
        let listen = PendingListen {
            endpoint,
            attempt,
            remote,
            query_accept,
        };
        address.listen(listen, false);
        Ok(())
    }

    fn submit_accept(&self, completer: &mut Completer) -> Result<(), Status> {
        let mut state = self.lock();
        state.phase.state().check(Request::Accept)?;
        let attempt = state.begin();
        let Phase::Offered(incoming, _timer) = replace(&mut state.phase, Phase::Associated) else {
            unreachable!("the state was just checked to be `Offered`")
        };
        let task = tokio::spawn(accept(self.downgrade(), attempt, incoming, None)).abort_handle();
        state.phase = Phase::Accepting(Attempt::new(take(completer), task));
        Ok(())
    }

    fn submit_disconnect(
        &self,
        flags: DisconnectFlags,
        timeout: Option<Duration>,
        completer: &mut Completer,
    ) -> Result<(), Status> {
        //= TDI-DISC-01
        if !flags.is_one_choice() {
            return Err(Status::INVALID_PARAMETER);
        }
        if flags.contains(DisconnectFlags::WAIT) {
            return Err(Status::NOT_SUPPORTED);
        }
        if flags.contains(DisconnectFlags::RELEASE) {
            self.release(timeout, completer)
        } else {
            self.abort_if(|state| state.check(Request::Abort), completer)
        }
    }

    /// Cancels a pending connect, listen or acceptance, which completes with [`CANCELLED`](Status::CANCELLED).
    /// Returns false and changes nothing if no such request is pending, for example because it has just
    /// completed.
    pub fn cancel(&self) -> bool {
        let is_pending = |state| match state {
            EndpointState::Connecting | EndpointState::Listening | EndpointState::Accepting => {
                Ok(())
            }
            _ => Err(Status::INVALID_DEVICE_STATE),
        };
        self.abort_if(is_pending, &mut Completer::Nobody).is_ok()
    }

    fn release(&self, timeout: Option<Duration>, completer: &mut Completer) -> Result<(), Status> {
        let state = self.lock();
        state.phase.state().check(Request::Release)?;
        let is_connected = matches!(state.phase, Phase::Connected);
        let session = state.session.clone().filter(|_| is_connected);
        drop(state);
        let Some(session) = session else {
            return self.abort_if(|state| state.check(Request::Abort), completer);
        };
        let deadline = timeout.and_then(|timeout| now().checked_add(timeout));
        //= TDI-DISC-03
        session.release(deadline, completer)?;
        self.lock().enter_releasing(&session);
        Ok(())
    }

    /// Waits until the connection has ended, by this end or by the peer, and returns why. It is the
    /// counterpart of a disconnect with [`WAIT`](DisconnectFlags::WAIT).
    ///
    /// Without a connection it resolves immediately: to the cause of the last connection's end, or
    /// to `None` if there was no connection yet.
    pub async fn disconnected(&self) -> Option<Cause> {
        let mut ended = self.shared.ended.subscribe();
        // The state changes a moment before the cause is reported, so this counts the reports.
        let established = self.lock().established;
        let seen = ended.wait_for(|(count, _)| *count >= established).await;
        seen.ok().and_then(|seen| seen.1.clone())
    }
}

/// A request of [`Endpoint::request_then`]. The method that each variant names describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// [`Endpoint::connect`].
    Connect {
        /// The address of the peer.
        remote: SocketAddr,
        /// The time-out; `None` is that of the transport.
        timeout: Option<Duration>,
    },
    /// [`Endpoint::listen`], or [`Endpoint::listen_and_query`].
    Listen {
        /// The only host whose peers are accepted; `None` accepts all.
        remote: Option<IpAddr>,
        /// Whether the listen completes with the offer.
        query_accept: bool,
    },
    /// [`Endpoint::accept`].
    Accept,
    /// [`Endpoint::disconnect`].
    Disconnect {
        /// The kind of disconnect.
        flags: DisconnectFlags,
        /// The time-out of a release; `None` means no limit.
        timeout: Option<Duration>,
    },
}

/// Checks whether the state and the address allow a connect or a listen.
fn may_begin<C: EndpointContext>(
    state: &EndpointLocked<C>,
    request: Request,
) -> Result<(), Status> {
    state.phase.state().check(request)?;
    match &state.address {
        Some(address) if address.is_closed() => Err(Status::ADDRESS_CLOSED),
        Some(address) if request == Request::Listen && !address.accepts_peers() => {
            Err(Status::INVALID_ADDRESS)
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use crate::{objects::pair::Pair, protocol::EndpointState};

    /// The connection can end while its release is submitted.
    #[tokio::test]
    async fn release_of_an_ended_connection_leaves_the_state() {
        let pair = Pair::apart().await;
        pair.connect().await;
        let old = pair.here.sending_session().unwrap();
        pair.here.abort();
        pair.here.lock().enter_releasing(&old);
        assert_eq!(pair.here.state(), EndpointState::Associated);
        assert!(pair.there.disconnected().await.is_some());
        pair.connect().await;
        pair.here.lock().enter_releasing(&old);
        assert_eq!(pair.here.state(), EndpointState::Connected);
        let current = pair.here.sending_session().unwrap();
        pair.here.lock().enter_releasing(&current);
        assert_eq!(pair.here.state(), EndpointState::Releasing);
    }
}
