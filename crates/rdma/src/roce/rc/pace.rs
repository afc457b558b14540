//! [`Pace`], the limit of responses to Reads after congestion.
//!
//! No packet acknowledges a response, so a responder does not know how many are in flight. It sends responses without a
//! limit until the network reports congestion: by a CNP, or by a Read that the peer requests again. From then on it
//! sends at most a window of response packets in each round trip. The window shrinks as the window of requests does. It
//! grows back with time, and when it has its maximum, the limit ends.

use std::time::{Duration, Instant};

use super::window::Window;

/// The number of response packets that may be sent in each round trip.
#[derive(Debug)]
pub(super) struct Pace {
    window: Window,
    round_trip: Duration,
    /// The time at which the current round trip began.
    began: Instant,
    /// The packets that may still be sent in the current round trip.
    allowed: u64,
    /// The time at which the window last shrank.
    shrunk: Option<Instant>,
}

/// A report of congestion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Congestion {
    /// The peer sent a CNP.
    Notified,
    /// A packet was lost.
    Lost,
}

/// The round trip that is assumed before one is measured.
const DEFAULT_ROUND_TRIP: Duration = Duration::from_millis(1);
/// The least round trip to count with. In a shorter time a peer sends no second CNP.
const MIN_ROUND_TRIP: Duration = Duration::from_micros(50);
/// The most round trips that are counted after a time without responses. The window then has its maximum.
const MAX_ROUNDS: u128 = 1 << 17;

impl Pace {
    /// Creates a limit with a window of `max` packets, for a connection with this round trip.
    pub(super) fn new(now: Instant, max: usize, round_trip: Option<Duration>) -> Self {
        let window = Window::full(max);
        Self {
            allowed: window.packets(),
            window,
            round_trip: round_trip.unwrap_or(DEFAULT_ROUND_TRIP).max(MIN_ROUND_TRIP),
            began: now,
            shrunk: None,
        }
    }

    /// Shrinks the window. The reports of one round trip count once, because they are about the same packets.
    pub(super) fn shrink(&mut self, now: Instant, reason: Congestion) {
        let is_same = |shrunk| now.saturating_duration_since(shrunk) < self.round_trip;
        if self.shrunk.is_some_and(is_same) {
            return;
        }
        self.shrunk = Some(now);
        //= ROCE-SW-08
        match reason {
            Congestion::Notified => self.window.notify(),
            Congestion::Lost => self.window.shrink(),
        }
        self.allowed = self.allowed.min(self.window.packets());
    }

    /// Lets the window grow for the round trips that have passed. Returns whether the limit still applies.
    pub(super) fn advance(&mut self, now: Instant) -> bool {
        let elapsed = now.saturating_duration_since(self.began);
        let rounds = elapsed.as_nanos() / self.round_trip.as_nanos();
        if rounds == 0 {
            return true;
        }
        if rounds > MAX_ROUNDS {
            return false;
        }
        let rounds = rounds as u32;
        self.began += self.round_trip * rounds;
        self.allowed = 0;
        for _ in 0..rounds {
            self.window.end_round();
            if self.window.is_full() {
                return false;
            }
            self.allowed += self.window.packets();
        }
        // A caller that runs seldom must not send the packets of many round trips at once.
        self.allowed = self.allowed.min(self.window.max_packets());
        true
    }

    /// Counts a response packet. Returns the time at which the next one may be sent, unless that is now.
    pub(super) fn count(&mut self) -> Option<Instant> {
        self.allowed = self.allowed.saturating_sub(1);
        (self.allowed == 0).then(|| self.began + self.round_trip)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND_TRIP: Duration = Duration::from_micros(100);

    /// Sends as many packets as are permitted at `now`.
    fn burst(pace: &mut Pace, now: Instant) -> (u64, Instant) {
        assert!(pace.advance(now));
        let mut packets = 0;
        loop {
            packets += 1;
            if let Some(next) = pace.count() {
                return (packets, next);
            }
        }
    }

    //= ROCE-SW-08 test
    #[test]
    fn responses_are_limited_after_congestion_and_recover_with_time() {
        let mut now = Instant::now();
        let mut pace = Pace::new(now, 64, Some(ROUND_TRIP));
        pace.shrink(now, Congestion::Notified);
        // Another report within the round trip is about the same packets.
        pace.shrink(now + ROUND_TRIP / 2, Congestion::Notified);
        let mut bursts = Vec::new();
        for _ in 0..6 {
            let (packets, next) = burst(&mut pace, now);
            assert_eq!(next, now + ROUND_TRIP);
            bursts.push(packets);
            now = next;
        }
        assert_eq!(bursts, [32, 48, 56, 60, 62, 63]);
        pace.shrink(now, Congestion::Lost);
        assert_eq!(burst(&mut pace, now).0, 32);
        // A caller that was away for several round trips sends no more than the maximum.
        let (packets, _) = burst(&mut pace, now + 4 * ROUND_TRIP);
        assert_eq!(packets, 64);
        // The limit ends when the window has its maximum.
        assert!(!pace.advance(now + 100 * ROUND_TRIP));
    }

    #[test]
    fn a_limit_after_a_long_silence_ends() {
        let now = Instant::now();
        let mut pace = Pace::new(now, 1 << 16, None);
        pace.shrink(now, Congestion::Notified);
        assert!(pace.advance(now + DEFAULT_ROUND_TRIP / 2));
        assert!(!pace.advance(now + Duration::from_secs(3600)));
    }

    #[test]
    fn the_least_window_lets_packets_through() {
        let start = Instant::now();
        let mut pace = Pace::new(start, 64, Some(ROUND_TRIP));
        for round in 0..20 {
            pace.shrink(start + ROUND_TRIP * round, Congestion::Lost);
        }
        assert_eq!(burst(&mut pace, start).0, 2);
    }
}
