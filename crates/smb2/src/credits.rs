//! Shares the SMB2 credits of a connection among its requests ([MS-SMB2] 3.2.4.1.5).
//!
//! The crate smb2 counts credits, but fails a request that needs more than the server's window. So requests pass here
//! one at a time, and READ and WRITE take as many credits as there are, and move as many bytes.
//!
//! [MS-SMB2]: https://learn.microsoft.com/en-us/openspecs/windows_protocols/ms-smb2/

use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicU32, Ordering},
};

use smb2::client::connection;
use tokio::{
    sync::{Notify, OwnedMutexGuard},
    time::Instant,
};

/// Returns the credits that a request takes, if it would use `wanted`; `None` if it waits for an answer first.
/// `available` are the credits on hand, `in_flight` those of requests without an answer.
///
/// A request takes at most half of the server's window, or two credits of a small window, so that the server has another
/// request while this one is answered. Without credits and without requests no answer will bring any, so one is taken,
/// and the sender reports that it is missing.
pub(crate) fn charge(wanted: u16, available: u16, in_flight: u32) -> Option<u16> {
    let window = in_flight.saturating_add(available.into());
    let share = (window / 2).max(2).min(window);
    let share = u16::try_from(share).unwrap_or(u16::MAX);
    let charge = wanted.min(share).max(1);
    (available >= charge || in_flight == 0).then_some(charge)
}

/// The credits of the requests of one connection.
pub(crate) struct Credits {
    /// Held by the request that takes credits next. It is fair, so no request is overtaken.
    turn: Arc<tokio::sync::Mutex<()>>,
    in_flight: AtomicU32,
    answered: Notify,
    last_answer: Mutex<Instant>,
}

impl Default for Credits {
    fn default() -> Self {
        Self {
            turn: Arc::default(),
            in_flight: AtomicU32::new(0),
            answered: Notify::new(),
            last_answer: Mutex::new(Instant::now()),
        }
    }
}

/// The right to send one request with `charge` credits. Dropping it returns them.
pub(crate) struct Turn {
    pub(crate) charge: u16,
    /// Until the credits are taken no other request may count them.
    pub(crate) taking: OwnedMutexGuard<()>,
    pub(crate) in_flight: InFlight,
}

/// The credits of a request that is with the server.
pub(crate) struct InFlight {
    credits: Arc<Credits>,
    charge: u16,
}

impl InFlight {
    /// Notes that the server has answered the request.
    pub(crate) fn answered(self) {
        *self.credits.last_answer() = Instant::now();
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let charge = self.charge.into();
        self.credits.in_flight.fetch_sub(charge, Ordering::AcqRel);
        self.credits.answered.notify_one();
    }
}

impl Credits {
    /// Waits for the credits of a request that would use `wanted`.
    ///
    /// # Cancel safety
    /// Dropping the future takes no credits.
    pub(crate) async fn turn(self: &Arc<Self>, smb: &connection::Connection, wanted: u16) -> Turn {
        let taking = self.turn.clone().lock_owned().await;
        loop {
            if let Some(charge) = charge(wanted, smb.credits(), self.in_flight()) {
                self.in_flight.fetch_add(charge.into(), Ordering::AcqRel);
                let in_flight = InFlight {
                    credits: self.clone(),
                    charge,
                };
                return Turn {
                    charge,
                    taking,
                    in_flight,
                };
            }
            self.answered.notified().await;
        }
    }

    /// Wakes the request that waits for credits, because a message of the server may have brought some.
    pub(crate) fn on_message(&self) {
        self.answered.notify_one();
    }

    /// Returns the credits of requests without an answer.
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Acquire)
    }

    /// Returns when the server last answered a request.
    pub(crate) fn last_answer(&self) -> MutexGuard<'_, Instant> {
        self.last_answer
            .lock()
            .expect("no thread panics while it holds the lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests of 16 credits in windows of all sizes: the first, the second, and one behind both.
    #[test]
    fn a_request_takes_at_most_half_of_the_window() {
        for (window, first, second, third) in [
            (1, 1, None, None),
            (2, 2, None, None),
            (3, 2, None, None),
            (4, 2, Some(2), None),
            (5, 2, Some(2), None),
            (8, 4, Some(4), None),
            (15, 7, Some(7), None),
            (16, 8, Some(8), None),
            (33, 16, Some(16), None),
            (512, 16, Some(16), Some(16)),
        ] {
            assert_eq!(charge(16, window, 0), Some(first), "{window}");
            let left = window - first;
            assert_eq!(charge(16, left, first.into()), second, "{window}");
            let Some(taken) = second else { continue };
            let (left, taken) = (left - taken, first + taken);
            assert_eq!(charge(16, left, taken.into()), third, "{window}");
        }
    }

    #[test]
    fn a_window_that_shrinks_makes_requests_smaller() {
        // The answers to a request of 16 credits granted 8, 1 and 0.
        assert_eq!(charge(16, 8, 8), Some(8));
        assert_eq!(charge(16, 1, 8), None, "4 come back with the next answer");
        assert_eq!(charge(16, 1, 0), Some(1));
        assert_eq!(charge(16, 0, 8), None);
        assert_eq!(charge(1, 1, 8), Some(1), "a CLOSE needs one");
        assert_eq!(charge(16, 0, 0), Some(1), "the sender reports it");
        assert_eq!(charge(16, u16::MAX, u32::MAX), Some(16));
    }
}
