//! Registered buffers: their number, and the release of buffers whose owner has dropped them.

use bytes::BytesMut;

use super::state::State;
use crate::rdma::{
    memory::{DeregisterError, RegisterError, RegisterFault, Registration},
    work::{Access, Token},
};

impl State {
    /// Registers a buffer.
    ///
    /// # Errors
    /// Fails if the connection has ended or is closing, or if the provider refuses the buffer.
    pub(crate) fn register(
        &mut self,
        buffer: BytesMut,
        access: Access,
    ) -> Result<Registration, RegisterError> {
        if self.closed.is_some() || self.engine.is_closing() {
            let reason = RegisterFault::Connection;
            return Err(RegisterError { buffer, reason });
        }
        let registration = self.queue_pair.register(buffer, access)?;
        self.regions += 1;
        self.registrations += 1;
        Ok(registration)
    }

    /// Ends a registration and returns its buffer. Returns `None` while queued work still reads from
    /// the buffer. Each drive wakes the futures that wait for [`Condition::Release`](super::Condition::Release).
    pub(crate) fn deregister(&mut self, token: Token) -> Option<Result<BytesMut, DeregisterError>> {
        match self.queue_pair.deregister(token) {
            //= SMBD-3.1.4.4-01
            //= SMBD-3.1.4.4-02
            Err(DeregisterError::InUse) if !self.finished => None,
            result => {
                self.regions -= 1;
                Some(result)
            }
        }
    }

    /// Ends a registration whose token was never sent to the peer, and returns its buffer. If the peer
    /// has guessed the token and is reading from the buffer, it loses its access, `None` is returned,
    /// and the buffer is dropped when that read is over.
    pub(crate) fn withdraw(&mut self, token: Token) -> Option<BytesMut> {
        match self.queue_pair.deregister(token) {
            Ok(buffer) => {
                self.regions -= 1;
                Some(buffer)
            }
            Err(_) => {
                self.orphan(token);
                None
            }
        }
    }

    /// Ends a registration whose buffer is not wanted back.
    pub(crate) fn orphan(&mut self, token: Token) {
        if !self.reclaim(token) {
            self.orphans.push(token);
        }
    }

    /// Ends the orphaned registrations that queued work has released.
    pub(super) fn reclaim_orphans(&mut self) {
        let mut orphans = std::mem::take(&mut self.orphans);
        orphans.retain(|&token| !self.reclaim(token));
        self.orphans = orphans;
    }

    /// Ends a registration unless queued work still reads from its buffer. Returns whether the registration has
    /// ended.
    fn reclaim(&mut self, token: Token) -> bool {
        match self.queue_pair.deregister(token) {
            Err(DeregisterError::InUse) => false,
            _ => {
                self.regions -= 1;
                true
            }
        }
    }
}
