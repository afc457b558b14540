//! Timers as numbers: when each is due, or that it is not running.

use std::time::Instant;

/// The timers of a connection (3.1.2), and three of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timer {
    /// Negotiation Timer.
    Negotiation,
    /// Idle Connection Timer, also while it waits for the answer to a keepalive.
    IdleConnection,
    /// Send Credit Grant Timer, as Windows has it.
    SendCreditGrant,
    /// How long the initiator's first credits wait for a message to ride on.
    FirstGrant,
    /// How long a connection that is being closed may take for its next piece of work.
    Close,
}

impl Timer {
    pub(super) const ALL: [Self; 5] = [
        Self::Negotiation,
        Self::IdleConnection,
        Self::SendCreditGrant,
        Self::FirstGrant,
        Self::Close,
    ];
}

/// When each timer is due.
#[derive(Clone, Debug, Default)]
pub(super) struct TimerTable {
    due: [Option<Instant>; Timer::ALL.len()],
}

impl TimerTable {
    pub(super) fn set(&mut self, timer: Timer, due: Instant) {
        self.due[timer as usize] = Some(due);
    }

    pub(super) fn stop(&mut self, timer: Timer) {
        self.due[timer as usize] = None;
    }

    pub(super) fn stop_all(&mut self) {
        *self = Self::default();
    }

    pub(super) fn is_running(&self, timer: Timer) -> bool {
        self.due[timer as usize].is_some()
    }

    /// When the next timer is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.due.iter().flatten().min().copied()
    }

    /// Whether `timer` is due; stops it if so.
    pub(super) fn expire(&mut self, timer: Timer, now: Instant) -> bool {
        let expired = self.due[timer as usize].is_some_and(|due| due <= now);
        if expired {
            self.stop(timer);
        }
        expired
    }
}
