//! [`Endpoint`]: the connection endpoint of TDI, with its state, its handlers and its end.
//!
//! The requests are in `requests` (association and connection) and `data` (sends, receives and
//! queries), and the tasks that establish a connection are in `establish`. The table at
//! [`EndpointState`] says which requests each state allows.

use std::{
    fmt,
    mem::{replace, take},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    thread,
};

use tokio::sync::watch;
use tracing::warn;

use super::{
    device::Device,
    phase::Phase,
    types::{Client, Endpoint, EndpointContext, EndpointLocked, EndpointShared},
};
use crate::{
    protocol::{Cause, EndpointState, Request, Status},
    session::{Completer, Session},
};

impl<C: EndpointContext> Endpoint<C> {
    pub(crate) fn open(device: Arc<Device>, context: C) -> Self {
        device.count(|counters| counters.open_connections += 1);
        Self::from_shared(Arc::new(EndpointShared {
            device,
            context,
            state: Mutex::new(EndpointLocked {
                phase: Phase::Idle,
                address: None,
                session: None,
                attempt: 0,
                established: 0,
            }),
            handler_lock: Mutex::new(()),
            ended: watch::Sender::new((0, None)),
        }))
    }

    pub(crate) const fn from_shared(shared: Arc<EndpointShared<C>>) -> Self {
        Self { shared }
    }

    pub(crate) fn downgrade(&self) -> Weak<EndpointShared<C>> {
        Arc::downgrade(&self.shared)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, EndpointLocked<C>> {
        self.shared.lock()
    }

    /// Returns the context with which the endpoint was opened.
    pub fn context(&self) -> &C {
        &self.shared.context
    }

    /// Returns the state of the endpoint.
    pub fn state(&self) -> EndpointState {
        self.lock().phase.state()
    }

    /// Returns the session of the connection if sends are allowed.
    pub(crate) fn sending_session(&self) -> Result<Arc<Session>, Status> {
        let state = self.lock();
        state.phase.state().check(Request::Send)?;
        state.session.clone().ok_or(Status::INVALID_CONNECTION)
    }

    /// Returns the session to receive from. A session that has ended still has the data that the
    /// client has not received.
    pub(crate) fn receiving_session(&self) -> Option<Arc<Session>> {
        let state = self.lock();
        match state.phase {
            Phase::Connected | Phase::Releasing | Phase::Associated => state.session.clone(),
            _ => None,
        }
    }

    /// Disconnects with [`ABORT`](DisconnectFlags::ABORT) if there is something to abort.
    pub(super) fn abort(&self) {
        let _ = self.abort_if(|state| state.check(Request::Abort), &mut Completer::Nobody);
    }

    /// Disconnects with [`ABORT`](DisconnectFlags::ABORT) if `check` allows it in the present state. `completer` is told
    /// after everything that was pending has completed.
    pub(super) fn abort_if(
        &self,
        check: impl FnOnce(EndpointState) -> Result<(), Status>,
        completer: &mut Completer,
    ) -> Result<(), Status> {
        let mut state = self.lock();
        check(state.phase.state())?;
        //= TDI-DISC-07
        let phase = replace(&mut state.phase, Phase::Associated);
        let (session, address) = (state.session.clone(), state.address.clone());
        let attempt = state.attempt;
        drop(state);
        if matches!(phase, Phase::Listening(_))
            && let Some(address) = address
        {
            address.cancel_listen(&self.downgrade(), attempt);
        }
        if matches!(phase, Phase::Connected | Phase::Releasing)
            && let Some(session) = session
        {
            session.abort(Status::LOCAL_DISCONNECT, take(completer));
            self.shared.report_end(&session, &Cause::LocalDisconnect);
            return Ok(());
        }
        if matches!(phase, Phase::Offered(..)) {
            self.shared
                .device
                .count(|counters| counters.cancelled_connections += 1);
        }
        phase.cancel(Status::CANCELLED);
        take(completer).complete(Ok(()));
        Ok(())
    }

    /// Closes the endpoint as the drop of its last handle does: the connection is aborted and pending requests are
    /// cancelled. Further requests find an endpoint that is not associated.
    pub fn close(&self) {
        self.shared.close();
    }

    /// Returns the client of the address.
    pub(super) fn client(&self) -> Option<Arc<dyn Client<C>>> {
        let address = self.lock().address.clone();
        address.and_then(|address| address.client())
    }

    /// Calls a handler of `client` when no other handler of this endpoint runs.
    pub(super) fn call_client<R>(
        &self,
        client: &dyn Client<C>,
        handler: impl FnOnce(&dyn Client<C>) -> R,
    ) -> thread::Result<R> {
        let lock = self.shared.handler_lock.lock();
        let _lock = lock.unwrap_or_else(PoisonError::into_inner);
        //= TDI-EVENT-01
        catch_unwind(AssertUnwindSafe(|| handler(client)))
    }

    /// Calls a handler without a session. If the handler panics, the endpoint is aborted.
    pub(super) fn call_without_session(&self, handler: impl FnOnce(&dyn Client<C>)) {
        if let Some(client) = self.client() {
            self.abort_after_panic(self.call_client(&*client, handler));
        }
    }

    /// Ends the connection if a handler has panicked that was called without a session.
    pub(super) fn abort_after_panic(&self, called: thread::Result<()>) {
        if called.is_err() {
            warn!("a handler panicked");
            // If the connection was established meanwhile, it ends.
            self.abort();
        }
    }
}

impl<C: EndpointContext> EndpointLocked<C> {
    pub(super) fn is_on(&self, session: &Arc<Session>) -> bool {
        let current = self.session.as_ref();
        current.is_some_and(|current| Arc::ptr_eq(current, session))
    }

    /// Enters the state `Releasing`, unless the connection has ended since the release was submitted.
    pub(super) fn enter_releasing(&mut self, session: &Arc<Session>) {
        if self.is_on(session) && matches!(self.phase, Phase::Connected) {
            self.phase = Phase::Releasing;
        }
    }

    /// Starts a new attempt at a connection, and returns its number.
    pub(super) const fn begin(&mut self) -> u64 {
        self.attempt += 1;
        self.attempt
    }
}

impl<C: EndpointContext> EndpointShared<C> {
    pub(super) fn lock(&self) -> MutexGuard<'_, EndpointLocked<C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Aborts the connection and cancels pending requests.
    fn close(&self) {
        let mut state = self.lock();
        let phase = replace(&mut state.phase, Phase::Idle);
        let (session, address) = (state.session.take(), state.address.take());
        drop(state);
        if let Some(session) = session {
            //= TDI-CLOSE-01
            session.abort(Status::CANCELLED, Completer::Nobody);
            if matches!(phase, Phase::Connected | Phase::Releasing) {
                self.report_end(&session, &Cause::LocalDisconnect);
            }
        }
        phase.cancel(Status::CANCELLED);
        if let Some(address) = address {
            address.remove_endpoint(self);
        }
    }

    /// Counts the end of a connection, and reports it to the futures that wait for it.
    fn report_end(&self, session: &Session, cause: &Cause) {
        self.device.session_ended(session, cause);
        self.session_ended(cause);
    }

    /// Returns the number of bytes that may be lent to the client at one time.
    pub(super) fn lendable(&self) -> usize {
        self.device.settings.receive.lendable
    }

    /// Makes the endpoint ready for another connection. Returns whether its connection was still this one.
    pub(super) fn session_over(&self, session: &Arc<Session>, cause: &Cause) -> bool {
        let mut state = self.lock();
        if !state.is_on(session) || !matches!(state.phase, Phase::Connected | Phase::Releasing) {
            return false;
        }
        //= TDI-CONN-10
        state.phase = Phase::Associated;
        drop(state);
        self.device.session_ended(session, cause);
        true
    }

    /// Tells the futures that wait for the end of the connection.
    pub(super) fn session_ended(&self, cause: &Cause) {
        self.ended.send_modify(|(count, last)| {
            *count += 1;
            *last = Some(cause.clone());
        });
    }
}

impl<C: EndpointContext> Drop for EndpointShared<C> {
    fn drop(&mut self) {
        self.close();
        self.device.count(|counters| counters.open_connections -= 1);
    }
}

impl<C: EndpointContext> Clone for Endpoint<C> {
    fn clone(&self) -> Self {
        Self::from_shared(self.shared.clone())
    }
}

impl<C: EndpointContext> fmt::Debug for Endpoint<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}
