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

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// When each timer is due.
#[derive(Clone, Debug, Default)]
pub(super) struct TimerTable {
    due: [Option<Instant>; Timer::ALL.len()],
    /// A bit for each timer that runs: mostly there is one.
    running: u8,
}

impl TimerTable {
    pub(super) fn set(&mut self, timer: Timer, due: Instant) {
        self.due[timer as usize] = Some(due);
        self.running |= timer.bit();
    }

    pub(super) fn stop(&mut self, timer: Timer) {
        self.due[timer as usize] = None;
        self.running &= !timer.bit();
    }

    pub(super) fn stop_all(&mut self) {
        *self = Self::default();
    }

    pub(super) fn is_running(&self, timer: Timer) -> bool {
        self.running & timer.bit() != 0
    }

    /// When the next timer is due.
    pub(super) fn next(&self) -> Option<Instant> {
        if self.running == Timer::IdleConnection.bit() {
            return self.due[Timer::IdleConnection as usize];
        }
        self.next_of_several()
    }

    #[inline(never)]
    fn next_of_several(&self) -> Option<Instant> {
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_next_is_the_earliest_of_those_that_run() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut timers = TimerTable::default();
        assert_eq!(timers.next(), None);
        // Each alone, with each other that is due before it or behind, and alone again.
        for one in Timer::ALL {
            for other in Timer::ALL.into_iter().filter(|&other| other != one) {
                for due in [1, 9] {
                    timers.set(one, at(5));
                    assert_eq!(timers.next(), Some(at(5)), "{one:?}");
                    timers.set(other, at(due));
                    assert_eq!(timers.next(), Some(at(due.min(5))), "{one:?} and {other:?}");
                    assert!(timers.is_running(one) && timers.is_running(other));
                    if due == 9 || !timers.expire(other, at(1)) {
                        timers.stop(other);
                    }
                    assert!(timers.is_running(one) && !timers.is_running(other));
                    assert_eq!(timers.next(), Some(at(5)), "{one:?} without {other:?}");
                    timers.stop_all();
                    assert_eq!(timers.next(), None);
                }
            }
        }
    }
}
