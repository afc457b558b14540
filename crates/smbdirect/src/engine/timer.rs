//! [`TimerTable`]: the due time of each running timer of a connection.

use std::time::Instant;

use crate::deadline::Postponements;

/// The two timers of the specification (3.1.2), and three further ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timer {
    /// Negotiation Timer.
    Negotiation,
    /// Idle Connection Timer; it also limits the wait for the answer to a keepalive.
    IdleConnection,
    /// Send Credit Grant Timer of Windows: limits the wait of messages for a send credit.
    SendCreditGrant,
    /// Limits the time that the initiator's first grant waits for a message to carry it.
    FirstGrant,
    /// Limits the time between two completions of messages, reads or writes during a close.
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

/// The due time of each running timer.
#[derive(Clone, Debug, Default)]
pub(super) struct TimerTable {
    due: [Option<Instant>; Timer::ALL.len()],
    /// A bit for each running timer; usually one is set.
    running: u8,
    postponements: [Postponements; Timer::ALL.len()],
}

impl TimerTable {
    pub(super) fn set(&mut self, timer: Timer, due: Instant) {
        self.due[timer as usize] = Some(due);
        self.running |= timer.bit();
        self.postponements[timer as usize] = Postponements::default();
    }

    /// Postpones `timer` if it is due at `now`, and this call is late or `all_read` is false.
    pub(super) fn postpone(&mut self, timer: Timer, now: Instant, all_read: bool) {
        let due = &mut self.due[timer as usize];
        if let Some(due) = due.as_mut().filter(|due| **due <= now)
            && let Some(later) = self.postponements[timer as usize].postpone(*due, now, all_read)
        {
            *due = later;
        }
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

    /// Returns when the next timer is due.
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

    /// Stops `timer` if it is due, and returns whether it was due.
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
    fn next_is_the_earliest_running_timer() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut timers = TimerTable::default();
        assert_eq!(timers.next(), None);
        // Each timer alone, with each other timer due before or after it, and alone again.
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
