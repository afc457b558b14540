//! [`Phase`]: the state of an endpoint, with the data that each state needs.

use std::net::IpAddr;

use smbdirect::Incoming;
use tokio::task::AbortHandle;

use crate::{
    protocol::{EndpointState, Status},
    session::Completer,
};

/// The state of an endpoint, with the data of that state; see [`EndpointState`].
pub(super) enum Phase {
    Idle,
    Associated,
    Connecting(Attempt),
    Listening(Completer),
    Offered(Incoming, Timer),
    Accepting(Attempt),
    Connected,
    Releasing,
}

/// A task that waits for a timeout, and that is aborted when this is dropped.
pub(super) struct Timer(pub(super) AbortHandle);

impl Drop for Timer {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A connection that is being established.
pub(super) struct Attempt {
    /// Completes the request, or ends the task of an offer that the connect handler has accepted.
    pub(super) completer: Completer,
    /// The task, which is aborted when the attempt is cancelled; `None` if `completer` ends it.
    pub(super) task: Option<AbortHandle>,
    /// The remote filter of the listen that accepted the peer. The listen becomes pending again if
    /// this peer fails to negotiate. `None` if the peer was not accepted by a listen.
    pub(super) listen: Option<Option<IpAddr>>,
}

impl Attempt {
    pub(super) const fn new(completer: Completer, task: AbortHandle) -> Self {
        Self {
            completer,
            task: Some(task),
            listen: None,
        }
    }
}

impl Phase {
    pub(super) const fn state(&self) -> EndpointState {
        match self {
            Self::Idle => EndpointState::Idle,
            Self::Associated => EndpointState::Associated,
            Self::Connecting(_) => EndpointState::Connecting,
            Self::Listening(_) => EndpointState::Listening,
            Self::Offered(..) => EndpointState::Offered,
            Self::Accepting(_) => EndpointState::Accepting,
            Self::Connected => EndpointState::Connected,
            Self::Releasing => EndpointState::Releasing,
        }
    }

    /// Completes the request that is pending in this phase with `status`.
    pub(super) fn cancel(self, status: Status) {
        match self {
            Self::Connecting(attempt) | Self::Accepting(attempt) => {
                if let Some(task) = attempt.task {
                    task.abort();
                }
                attempt.completer.complete(Err(status));
            }
            Self::Listening(completer) => completer.complete(Err(status)),
            // Dropping an offer refuses the peer.
            _ => {}
        }
    }
}
