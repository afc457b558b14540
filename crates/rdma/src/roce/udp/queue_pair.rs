//! The queue pair: one end of a connection, driven by the polls of its owner.

use std::{
    collections::VecDeque,
    fmt, io,
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::{Bytes, BytesMut};
use tracing::debug;

use super::{config::RoceConfig, driver::Running, shared::MAX_GROUPS_PER_CALL};
use crate::{
    memory::{DeregisterError, RegisterError, Registration},
    provider::{Connected, QueuePair, Usage},
    roce::{
        CongestionStatistics, RetransmissionStatistics,
        endpoint::{ConnectionId, Path},
    },
    work::{Access, Completion, Room, Teardown, Token, WorkRequest},
};

/// A connection of an endpoint that has an owner. Dropping it abandons the connection.
#[derive(Debug)]
pub(super) struct Owned {
    pub(super) socket: Arc<Running>,
    pub(super) id: ConnectionId,
}

impl Owned {
    pub(super) const fn new(socket: Arc<Running>, id: ConnectionId) -> Self {
        Self { socket, id }
    }

    /// Moves the connection to the current runtime, whose task then also drives the socket.
    pub(super) fn change_runtime(&mut self) -> io::Result<()> {
        self.socket = Arc::new(Running::join(&self.socket.shared.common)?);
        Ok(())
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        let (again, congestion) = self.socket.shared.with_core(|core, now| {
            let again = core.endpoint.retransmissions(self.id);
            let congestion = core.endpoint.congestion(self.id);
            core.forget(self.id);
            core.endpoint.release(now, self.id);
            (again, congestion)
        });
        if let Some(again) = again {
            let RetransmissionStatistics {
                gaps,
                timeouts,
                needless,
                pauses,
                packets,
            } = again;
            debug!(gaps, timeouts, needless, pauses, packets, "sent again");
        }
        if let Some(congestion) = congestion
            && congestion != CongestionStatistics::default()
        {
            let CongestionStatistics {
                marked,
                notifications_sent,
                notifications_received,
            } = congestion;
            debug!(
                marked,
                notifications_sent, notifications_received, "congestion"
            );
        }
    }
}

/// One end of a connection.
pub(super) struct RoceQueuePair {
    owned: Owned,
    path: Path,
    /// Completions that were taken from the endpoint together, so that not each of them needs the lock.
    completions: VecDeque<Completion>,
    /// Whether the last poll has received as many datagrams as one poll may.
    is_unfinished: bool,
    /// Whether the next poll receives without asking the runtime if the socket is ready.
    skip_readiness_check: bool,
    /// Whether the last completion was returned.
    has_ended: bool,
}

impl RoceQueuePair {
    /// Creates the queue pair of an established connection, whose addresses are `local` and `remote`.
    pub(super) fn connected(
        owned: Owned,
        path: Path,
        config: &RoceConfig,
        (local, remote): (SocketAddr, SocketAddr),
        private_data: Bytes,
    ) -> Connected {
        let limits = owned.socket.shared.lock().endpoint.limits(owned.id);
        let queue_pair = Self {
            owned,
            path,
            completions: VecDeque::new(),
            is_unfinished: false,
            skip_readiness_check: false,
            has_ended: false,
        };
        Connected {
            queue_pair: Box::new(queue_pair),
            limits: limits.expect("an established connection has a queue pair"),
            is_zero_copy: false,
            poll_window: config.poll_window,
            peer_addr: remote,
            local_addr: local,
            private_data,
        }
    }
}

impl QueuePair for RoceQueuePair {
    fn room(&self) -> Room {
        let core = self.owned.socket.shared.lock();
        core.endpoint.room(self.owned.id)
    }

    fn post(&mut self, work: WorkRequest) {
        let mut core = self.owned.socket.shared.lock();
        core.endpoint.post(self.owned.id, work);
    }

    fn flush(&mut self, _: &mut Context<'_>, _: u64) {
        // If the socket is full, its task sends the rest.
        self.owned
            .socket
            .shared
            .with_core(|core, _| core.endpoint.flush(self.owned.id));
    }

    fn usage(&self) -> Usage {
        let core = self.owned.socket.shared.lock();
        let (sent, received) = core.endpoint.moved_bytes(self.owned.id);
        drop(core);
        Usage {
            sent,
            received,
            lent: self.owned.socket.shared.common.lent_bytes(),
        }
    }

    fn poll_completion(&mut self, context: &mut Context<'_>) -> Poll<Completion> {
        if self.has_ended {
            return Poll::Pending;
        }
        if let Some(completion) = self.completions.pop_front() {
            return Poll::Ready(completion);
        }
        let shared = &self.owned.socket.shared;
        let mut skip_readiness_check = std::mem::take(&mut self.skip_readiness_check);
        let mut rounds = 0;
        loop {
            let waits = {
                let mut core = shared.lock();
                core.endpoint
                    .take_completions(self.owned.id, &mut self.completions);
                if let Some(completion) = self.completions.pop_front() {
                    return Poll::Ready(completion);
                }
                if let Some(completion) = core.endpoint.poll_completion(self.owned.id) {
                    self.has_ended = matches!(completion, Completion::Disconnected(_));
                    return Poll::Ready(completion);
                }
                core.wake_owner(self.owned.id, context.waker());
                core.endpoint.awaits_packets(self.owned.id)
            };
            // The datagrams that have arrived may be for another queue pair.
            let skip = std::mem::take(&mut skip_readiness_check);
            if !waits || !shared.receive(skip) {
                self.is_unfinished = false;
                return Poll::Pending;
            }
            // There may be more, and no waker is registered.
            self.is_unfinished = true;
            // A flood of datagrams for no connection must not keep other tasks from running.
            rounds += 1;
            if rounds == MAX_GROUPS_PER_CALL {
                return Poll::Pending;
            }
        }
    }

    fn needs_poll(&self) -> bool {
        if self.has_ended {
            return false;
        }
        if self.is_unfinished || !self.completions.is_empty() {
            return true;
        }
        let core = self.owned.socket.shared.lock();
        core.endpoint.has_completion(self.owned.id)
    }

    fn busy_poll(&mut self) -> bool {
        let shared = &self.owned.socket.shared;
        let has_completion = || shared.lock().endpoint.has_completion(self.owned.id);
        let found = !self.completions.is_empty()
            || has_completion()
            || shared.receive(true) && has_completion();
        self.skip_readiness_check = found;
        found
    }

    fn change_runtime(&mut self) -> bool {
        self.owned.change_runtime().is_ok()
    }

    fn disconnect(&mut self, how: Teardown) {
        let shared = &self.owned.socket.shared;
        shared.with_core(|core, now| core.endpoint.disconnect(now, self.owned.id, how));
    }

    fn register(
        &mut self,
        buffer: BytesMut,
        access: Access,
    ) -> Result<Registration, RegisterError> {
        let mut core = self.owned.socket.shared.lock();
        core.endpoint.register(self.owned.id, buffer, access)
    }

    fn deregister(&mut self, token: Token) -> Result<BytesMut, DeregisterError> {
        let mut core = self.owned.socket.shared.lock();
        core.endpoint.deregister(self.owned.id, token)
    }
}

impl fmt::Debug for RoceQueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RoceQueuePair")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}
