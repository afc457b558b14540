//! The notification point of RoCEv2 congestion management (IBTA annex A17): when to send a CNP.
//!
//! A switch whose queue grows sets the ECN field of packets to CE. The end that receives such a packet answers with a
//! congestion notification packet (CNP), and the end that receives the CNP sends less: see [`Window`] and [`Pace`].
//!
//! [`Window`]: super::window::Window
//! [`Pace`]: super::pace::Pace

use std::time::{Duration, Instant};

use crate::roce::packet::{Bth, Opcode};
use crate::roce::psn::Psn;

/// Decides when to send a CNP.
#[derive(Debug, Default)]
pub(super) struct NotificationPoint {
    /// The earliest time at which another mark causes a CNP.
    next: Option<Instant>,
    is_due: bool,
    statistics: CongestionStatistics,
}

/// The signs of congestion of a queue pair, counted since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CongestionStatistics {
    /// The packets of the peer that arrived with the mark of congestion (CE).
    pub marked: u64,
    /// The CNPs that were sent.
    pub notifications_sent: u64,
    /// The CNPs that were received.
    pub notifications_received: u64,
}

/// The least time between two CNPs of a connection, as usual for adapters. It bounds the packets that marks can cause.
const MIN_INTERVAL: Duration = Duration::from_micros(50);

/// The payload of a CNP: 16 reserved bytes.
pub(super) const CNP_PAYLOAD: [u8; 16] = [0; 16];

/// Returns the header of a CNP for the queue pair `remote_qpn`.
//= ROCE-A17.9.3-01
pub(super) const fn cnp(remote_qpn: u32) -> Bth {
    let mut bth = Bth::new(Opcode::CongestionNotification, remote_qpn, Psn::new(0));
    bth.becn = true;
    bth
}

impl NotificationPoint {
    /// Processes that a packet of the peer arrived with the mark CE.
    pub(super) fn mark(&mut self, now: Instant) {
        self.statistics.marked += 1;
        //= ROCE-SW-07
        if self.next.is_none_or(|next| now >= next) {
            self.next = Some(now + MIN_INTERVAL);
            self.is_due = true;
        }
    }

    /// Counts a CNP of the peer.
    pub(super) const fn count_received(&mut self) {
        self.statistics.notifications_received += 1;
    }

    /// Returns whether a CNP is to be sent.
    pub(super) const fn is_due(&self) -> bool {
        self.is_due
    }

    /// Returns whether a CNP is to be sent, and counts it as sent.
    pub(super) fn take(&mut self) -> bool {
        let is_due = std::mem::take(&mut self.is_due);
        self.statistics.notifications_sent += u64::from(is_due);
        is_due
    }

    /// Returns the counts so far.
    pub(super) const fn statistics(&self) -> CongestionStatistics {
        self.statistics
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    //= ROCE-SW-07 test
    #[test]
    fn marks_cause_at_most_one_cnp_in_50_microseconds() {
        let start = Instant::now();
        let mut point = NotificationPoint::default();
        assert!(!point.take());
        for (microseconds, is_due) in [
            (0, true),
            (0, false),
            (49, false),
            (50, true),
            (99, false),
            (100, true),
            (10_000, true),
            (10_049, false),
        ] {
            point.mark(start + Duration::from_micros(microseconds));
            assert_eq!(point.is_due(), is_due, "{microseconds}");
            assert_eq!(point.take(), is_due, "{microseconds}");
            assert!(!point.take());
        }
        let expected = CongestionStatistics {
            marked: 8,
            notifications_sent: 4,
            notifications_received: 0,
        };
        assert_eq!(point.statistics(), expected);
    }
}
