//! The end of a connection: a graceful close, an abort, and the loss of the RDMA connection
//! (3.1.4.3, 3.1.7.1).

use std::time::Instant;

use bytes::BytesMut;

use super::{Connection, Kind, Role};
use crate::{
    engine::{error::ConnectionError, event::Event, stalls::Stalls},
    rdma::work::{Disconnect, Teardown, WorkId},
};

impl Connection {
    /// Closes the connection gracefully once all earlier messages, reads and writes are done. New messages, reads
    /// and writes are refused from now on. The connection also ends if none of them completes for
    /// [`keepalive_interval`](crate::engine::Settings::keepalive_interval), because a peer can
    /// leave a read unanswered for ever and still answer keepalives.
    pub fn close(&mut self) {
        self.touch();
        match self.role {
            Role::Established(_) => self.closing = true,
            _ => self.end(ConnectionError::ClosedHere),
        }
        self.end_if_drained();
    }

    /// Ends the connection immediately, with [`ConnectionError::Aborted`]. Requests that have not
    /// been posted are dropped.
    pub fn abort(&mut self) {
        self.end(ConnectionError::Aborted);
    }

    /// Handles the loss of the RDMA connection (3.1.7.1).
    #[cold]
    pub(super) fn connection_loss(&mut self, now: Instant, how: Disconnect) {
        self.stalls.end_credit_stall(now, &mut self.statistics);
        // A peer may accept and then disconnect before this end has posted its receives. The owner
        // still gets `Negotiated` first.
        if let Role::Posting {
            outcome,
            passive: false,
        } = self.role
        {
            self.events.push_back(Event::Negotiated(outcome.negotiated));
        }
        //= SMBD-3.1.7.1-01
        self.end(match how {
            Disconnect::Local => ConnectionError::ClosedHere,
            Disconnect::Remote => ConnectionError::Closed,
            Disconnect::Broken(error) => ConnectionError::Provider(error),
        });
    }

    #[cold]
    pub(super) fn flushed(&mut self, id: WorkId, buffer: Option<BytesMut>) {
        self.flushing = true;
        match Kind::of(id) {
            Kind::Receive => {
                self.statistics.receives_outstanding -= 1;
                return;
            }
            // The message that the Send carried is not reported as sent.
            Kind::Send => {
                self.in_flight.complete(Kind::number(id));
                while self.in_flight.pop_done().is_some() {}
            }
            Kind::Read => self.transfers.read_returned(buffer.unwrap_or_default()),
            Kind::Write => self.transfers.write_returned(),
        }
        self.statistics.work_outstanding -= 1;
        self.abandon_transfers();
    }

    pub(super) fn end_if_drained(&mut self) {
        if self.closing
            && !self.flushing
            && self.send_queue.is_empty()
            && self.in_flight.is_empty()
            && self.transfers.is_idle()
        {
            self.end(ConnectionError::ClosedHere);
        }
    }

    /// Ends the connection. Only the first reason is reported; later reasons are consequences of the first.
    #[cold]
    pub(super) fn end(&mut self, error: ConnectionError) {
        if matches!(self.role, Role::Closed(_)) {
            return;
        }
        self.log.ended(&error);
        self.timers.stop_all();
        self.send_queue.clear();
        self.stalls = Stalls::default();
        self.role = Role::Closed(error.clone());
        self.events.push_back(Event::Closed(error));
        self.events.extend(self.abandoned.drain(..));
        self.abandon_transfers();
    }

    /// Returns how the owner disconnects the queue pair after the end: gracefully only if this end gives up no message,
    /// so that the peer takes no failure for an orderly end. After a timeout the peer still gets what was sent.
    pub fn teardown(&self) -> Teardown {
        match self.error() {
            Some(
                ConnectionError::Closed
                | ConnectionError::ClosedHere
                | ConnectionError::RefusedPeer(_),
            ) => Teardown::Graceful,
            Some(ConnectionError::TimedOut(_)) => Teardown::Terminate,
            _ => Teardown::Abort,
        }
    }

    /// Returns the error for a command that a closing or ended connection refuses.
    pub(super) fn unusable(&self) -> ConnectionError {
        self.error().cloned().unwrap_or(ConnectionError::ClosedHere)
    }
}
