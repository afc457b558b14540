//! The exchange of keepalives on a connection, and the Idle Connection Timer (3.1.5.5, 3.1.6.2).

use std::time::Instant;

use super::Connection;
use crate::{
    engine::{
        error::{ConnectionError, Expired},
        event::Event,
        keepalive_requested::{KeepaliveRequested, OnIdle},
        timer::Timer,
    },
    rdma::software::cold_path,
};

impl Connection {
    /// Sends an empty message to the peer now, unless another message is about to be sent.
    #[doc(hidden)]
    pub fn prompt(&mut self) {
        self.touch();
        self.send_immediate = true;
    }

    /// Sends a keepalive to the peer now. [`Event::KeepaliveAnswered`] follows, or the connection
    /// ends after `keepalive_response_timeout`. Does nothing unless the connection is established.
    pub fn prompt_keepalive(&mut self, now: Instant) {
        if self.negotiated().is_none() {
            return;
        }
        if self.keepalive_requested == KeepaliveRequested::None {
            self.keepalive_requested = KeepaliveRequested::Pending;
            self.timers.set(
                Timer::IdleConnection,
                now + self.config.keepalive_response_timeout,
            );
        }
        self.prompt();
    }

    /// Makes the last queued segment ask the peer for an answer, so that the peer grants credits
    /// without waiting for a message of its own to carry them. If nothing is queued, the next
    /// message asks: unlike [`prompt_keepalive`](Self::prompt_keepalive) this call sends no message
    /// itself.
    #[doc(hidden)]
    pub fn prompt_answer(&mut self) {
        self.ask_after_queue = true;
    }

    /// Returns whether a keepalive is unanswered or about to be sent.
    #[doc(hidden)]
    pub fn awaits_answer(&self) -> bool {
        self.ask_after_queue || self.keepalive_requested != KeepaliveRequested::None
    }

    /// Restarts the idle timer: every message, even an invalid one, shows that the peer is alive.
    pub(super) fn message_arrived(&mut self, now: Instant) {
        //= SMBD-3.1.5.5-02
        self.timers
            .set(Timer::IdleConnection, now + self.config.keepalive_interval);
        if self.keepalive_requested.received() {
            cold_path();
            // A keepalive that was not sent yet has no round trip.
            if let Some(sent) = self.stalls.keepalive_sent.take() {
                let time = now.saturating_duration_since(sent);
                self.statistics.keepalive_round_trips.record(time);
            }
            self.events.push_back(Event::KeepaliveAnswered);
        }
    }

    /// Handles the expiry of the Idle Connection Timer (3.1.6.2).
    #[cold]
    pub(super) fn idle_connection(&mut self, now: Instant) {
        match self.keepalive_requested.idle() {
            OnIdle::Terminate => self.end(ConnectionError::TimedOut(Expired::IdleConnection)),
            OnIdle::Ask => {
                self.send_immediate = true;
                //= SMBD-3.1.6.2-03
                let due = now + self.config.keepalive_response_timeout;
                self.timers.set(Timer::IdleConnection, due);
            }
        }
    }
}
