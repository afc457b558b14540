//! [`Window`], the number of packets that may be in flight.
//!
//! A reliable connection retransmits everything after a lost packet. So a sender that fills a full buffer again
//! and again makes no progress. The window halves on loss and then grows back, like the congestion window of TCP.
//! After a timeout the window first closes to a few packets, because the answer to the first packet shows whether
//! the peer was only late. The maximum of the window bounds what a peer has to buffer.
//!
//! When the network reports congestion before it loses packets, the window follows the outline of the rate control of
//! adapters (DCQCN): it shrinks by half of the share of round trips with congestion, then halves the distance to its
//! former size in each of five round trips, and after that grows by one packet for each round trip.

/// The number of packets that may be sent and not acknowledged.
#[derive(Debug)]
pub(super) struct Window {
    packets: u32,
    /// The size up to which the window grows by one packet for each acknowledged packet. Above it,
    /// the window grows by one packet for each acknowledged window.
    threshold: u32,
    /// The number of packets acknowledged since the window last grew, while it is above the threshold.
    acknowledged: u32,
    max: u32,
    /// The number of packets and the threshold before the window closed.
    before_closing: Option<(u32, u32)>,
    /// The recovery from congestion, until the window has its maximum again.
    recovery: Option<Recovery>,
}

/// The recovery from congestion that the network has reported.
#[derive(Clone, Copy, Debug)]
struct Recovery {
    /// The share of recent round trips with congestion, in units of 1/1024.
    share: u32,
    /// The size that the window approaches.
    target: u32,
    /// The number of round trips since the last report.
    rounds: u32,
}

/// The size of a new window.
const INITIAL_PACKETS: u32 = 64;
/// The least size, which keeps one packet on its way while another is acknowledged.
const MIN_PACKETS: u32 = 2;
/// The most packets that are sent again after a timeout before the peer answers. If fewer packets were sent again, it
/// would be more likely that no packet after a lost one reaches the peer. The peer then sends no NAK, and only another
/// timeout detects the loss.
const PACKETS_AFTER_TIMEOUT: u32 = 8;
/// The most packets in flight. The PSNs of packets in flight must be within half of the number
/// space; this is far below it.
const MAX_PACKETS: u32 = 1 << 16;
/// The value of the share that stands for congestion in all round trips. The first report counts as this.
const WHOLE_SHARE: u32 = 1024;
/// The share moves by this fraction of its distance: towards [`WHOLE_SHARE`] after a round trip with congestion, and
/// towards 0 after one without.
const SHARE_WEIGHT: u32 = 16;
/// The round trips in which the window approaches its former size, before it grows beyond it.
const FAST_RECOVERY_ROUNDS: u32 = 5;

impl Window {
    /// Creates a window that grows to at most `max` packets.
    pub(super) fn new(max: usize) -> Self {
        let max = max.clamp(MIN_PACKETS as usize, MAX_PACKETS as usize) as u32;
        Self {
            packets: INITIAL_PACKETS.min(max),
            threshold: max,
            acknowledged: 0,
            max,
            before_closing: None,
            recovery: None,
        }
    }

    /// Creates a window of `max` packets.
    pub(super) fn full(max: usize) -> Self {
        let mut window = Self::new(max);
        window.packets = window.max;
        window
    }

    /// Returns the number of packets.
    pub(super) const fn packets(&self) -> u64 {
        self.packets as u64
    }

    /// Returns the most packets that the window grows to.
    pub(super) const fn max_packets(&self) -> u64 {
        self.max as u64
    }

    /// Returns whether the window has its maximum.
    pub(super) const fn is_full(&self) -> bool {
        self.packets == self.max
    }

    /// Grows after `packets` packets were acknowledged.
    pub(super) fn grow(&mut self, packets: u64) {
        let packets = u32::try_from(packets).unwrap_or(u32::MAX);
        if self.packets < self.threshold {
            let grown = self.packets.saturating_add(packets);
            self.packets = grown.min(self.threshold);
            return;
        }
        self.acknowledged = self.acknowledged.saturating_add(packets);
        if self.acknowledged >= self.packets {
            self.acknowledged = 0;
            self.end_round();
        }
    }

    /// Grows at the end of a round trip without loss.
    pub(super) fn end_round(&mut self) {
        let Some(recovery) = &mut self.recovery else {
            self.packets = self.max.min(self.packets + 1);
            return;
        };
        //= ROCE-SW-09
        recovery.share -= recovery.share.div_ceil(SHARE_WEIGHT);
        recovery.rounds += 1;
        if recovery.rounds > FAST_RECOVERY_ROUNDS {
            recovery.target = self.max.min(recovery.target + 1);
        }
        self.packets = (self.packets + recovery.target).div_ceil(2);
        if self.packets == self.max {
            self.recovery = None;
        }
    }

    /// Shrinks after the network reported congestion. The caller reports each round trip once.
    //= ROCE-SW-09
    pub(super) fn notify(&mut self) {
        let share = match self.recovery {
            None => WHOLE_SHARE,
            Some(Recovery { share, .. }) => share,
        };
        // The product is below 2^26.
        let cut = (self.packets * share / (2 * WHOLE_SHARE)).max(1);
        self.recovery = Some(Recovery {
            share: share + (WHOLE_SHARE - share) / SHARE_WEIGHT,
            target: self.packets,
            rounds: 0,
        });
        self.packets = MIN_PACKETS.max(self.packets.saturating_sub(cut));
        self.threshold = self.packets;
        self.acknowledged = 0;
        self.before_closing = None;
    }

    /// Halves after a packet was lost.
    //= ROCE-SW-01
    pub(super) fn shrink(&mut self) {
        self.packets = MIN_PACKETS.max(self.packets / 2);
        self.threshold = self.packets;
        self.acknowledged = 0;
        self.before_closing = None;
        self.recovery = None;
    }

    /// Closes the window to a few packets after a timeout. The window then grows to half of its former
    /// size as that of a new connection does.
    //= ROCE-SW-05
    pub(super) fn close(&mut self) {
        match self.before_closing {
            None => {
                self.before_closing = Some((self.packets, self.threshold));
                self.threshold = self.packets / 2;
            }
            Some(_) => self.threshold /= 2,
        }
        self.threshold = self.threshold.max(MIN_PACKETS);
        self.packets = self.threshold.min(PACKETS_AFTER_TIMEOUT);
        self.acknowledged = 0;
        self.recovery = None;
    }

    /// Reopens to the size before [`close`](Self::close), because nothing was lost.
    //= ROCE-SW-05
    pub(super) const fn reopen(&mut self) {
        if let Some((packets, threshold)) = self.before_closing.take() {
            self.packets = packets;
            self.threshold = threshold;
        }
    }

    /// Forgets the size before [`close`](Self::close).
    pub(super) const fn forget_closing(&mut self) {
        self.before_closing = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    //= ROCE-SW-01 test
    #[test]
    fn the_window_halves_on_loss_and_grows_back_to_its_maximum() {
        let mut window = Window::new(200);
        assert_eq!(window.packets(), 64);
        window.grow(64);
        assert_eq!(window.packets(), 128);
        window.grow(1000);
        assert_eq!(window.packets(), 200);
        window.shrink();
        assert_eq!(window.packets(), 100);
        window.grow(99);
        assert_eq!(window.packets(), 100);
        window.grow(1);
        assert_eq!(window.packets(), 101);
        for _ in 0..200 {
            window.grow(1000);
        }
        assert_eq!(window.packets(), 200);
        for _ in 0..20 {
            window.shrink();
        }
        assert_eq!(window.packets(), 2);
    }

    //= ROCE-SW-05 test
    #[test]
    fn the_window_closes_after_a_timeout_and_reopens_if_nothing_was_lost() {
        let mut window = Window::new(200);
        window.grow(1000);
        window.close();
        assert_eq!(window.packets(), 8);
        window.grow(8);
        assert_eq!(window.packets(), 16);
        window.close();
        assert_eq!(window.packets(), 8);
        window.grow(1000);
        assert_eq!(window.packets(), 50);
        window.reopen();
        assert_eq!(window.packets(), 200);
        for expected in [8, 8, 8, 8, 6, 3, 2, 2] {
            window.close();
            assert_eq!(window.packets(), expected);
        }
        window.reopen();
        assert_eq!(window.packets(), 200);
        // After a loss, the window grows quickly to half of its size, and then slowly.
        window.close();
        window.grow(1000);
        assert_eq!(window.packets(), 100);
        window.forget_closing();
        window.grow(100);
        assert_eq!(window.packets(), 101);
        window.reopen();
        assert_eq!(window.packets(), 101);
        // After a loss was detected (`shrink`), `reopen` does not restore the size from before the timeout.
        window.close();
        window.shrink();
        window.reopen();
        assert_eq!(window.packets(), 4);
    }

    //= ROCE-SW-09 test
    #[test]
    fn the_window_shrinks_after_congestion_and_recovers() {
        let sizes = |window: &mut Window, rounds: usize| -> Vec<u64> {
            let grown = (0..rounds).map(|_| {
                window.grow(window.packets());
                window.packets()
            });
            grown.collect()
        };
        let mut window = Window::full(200);
        // The first report halves the window.
        window.notify();
        assert_eq!(window.packets(), 100);
        // The window then approaches its former size, and does not exceed its maximum.
        assert_eq!(
            sizes(&mut window, 9),
            [150, 175, 188, 194, 197, 199, 200, 200, 200]
        );
        // A window that had its maximum begins anew.
        window.notify();
        assert_eq!(window.packets(), 100);
        sizes(&mut window, 4);
        // The longer the network was without congestion, the less a report shrinks the window: after four round trips
        // the share is 790 of 1024.
        window.notify();
        assert_eq!(window.packets(), 194 - 194 * 790 / 2048);
        // Reports in each round trip keep the share high, down to the least window.
        let mut window = Window::full(200);
        for expected in [100, 50, 25, 13, 7, 4, 2, 2, 2] {
            window.notify();
            assert_eq!(window.packets(), expected);
        }
        // From there the window grows by one packet in a round trip.
        let grown = sizes(&mut window, 12);
        assert_eq!(grown, [2, 2, 2, 2, 2, 3, 4, 5, 6, 7, 8, 9]);
        // A loss ends the recovery.
        let mut window = Window::full(200);
        window.notify();
        window.shrink();
        assert_eq!(window.packets(), 50);
        assert_eq!(sizes(&mut window, 2), [51, 52]);
    }

    #[test]
    fn the_maximum_is_within_its_limits() {
        assert_eq!(Window::new(0).packets(), 2);
        let mut window = Window::new(usize::MAX);
        window.grow(u64::MAX);
        assert_eq!(window.packets(), u64::from(MAX_PACKETS));
    }
}
