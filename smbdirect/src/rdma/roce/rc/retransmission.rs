//! [`RetransmissionTimer`]: when to send again, and when to give up.

use std::time::{Duration, Instant};

/// The timer of a requester.
///
/// The timeout follows the measured round trips, so that a loss costs little on a fast network. It
/// doubles each time it expires, up to the acknowledgement timeout. The connection breaks when the
/// peer has acknowledged nothing for the acknowledgement timeout and each of its retries.
#[derive(Debug)]
pub(super) struct RetransmissionTimer {
    ack_timeout: Duration,
    /// The time without progress after which the connection breaks.
    give_up_after: Duration,
    /// The smoothed time of a round trip.
    round_trip: Option<Duration>,
    /// The packet whose round trip is being measured: the sequence number that acknowledges it, and
    /// the time at which it was sent.
    measured: Option<(u64, Instant)>,
    /// How many times the timeout expired since the last progress.
    expired: u32,
    /// The time since which the peer has acknowledged nothing; `None` while nothing is in flight.
    silent_since: Option<Instant>,
    deadline: Option<Instant>,
}

/// The least timeout. A busy host may take this long to run the peer's task.
const MIN_TIMEOUT: Duration = Duration::from_millis(20);
/// The timeout before the first round trip is measured.
const INITIAL_TIMEOUT: Duration = Duration::from_millis(100);
/// The timeout in measured round trips.
const ROUND_TRIPS: u32 = 4;

/// What an expired timer calls for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expired {
    /// The timer has not expired.
    No,
    /// All unacknowledged packets are to be sent again.
    Retransmit,
    /// The connection is to be broken.
    GiveUp,
}

impl RetransmissionTimer {
    /// Creates a timer that is not running.
    pub(super) fn new(ack_timeout: Duration, retry_count: u8) -> Self {
        Self {
            ack_timeout,
            give_up_after: ack_timeout * (u32::from(retry_count) + 1),
            round_trip: None,
            measured: None,
            expired: 0,
            silent_since: None,
            deadline: None,
        }
    }

    /// Returns when the timer expires.
    pub(super) const fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Records that a packet was sent. `measure` is the sequence number that acknowledges it, if it
    /// was sent for the first time and asks for an acknowledgement.
    pub(super) fn sent(&mut self, now: Instant, measure: Option<u64>) {
        if let (Some(sequence), None) = (measure, self.measured) {
            self.measured = Some((sequence, now));
        }
        if self.deadline.is_none() {
            self.silent_since.get_or_insert(now);
            self.deadline = Some(now + self.timeout());
        }
    }

    /// Records that the peer has acknowledged everything before `sequence`. `in_flight` says
    /// whether other packets are still in flight.
    pub(super) fn progress(&mut self, now: Instant, sequence: u64, in_flight: bool) {
        if let Some((measured, sent)) = self.measured
            && measured <= sequence
        {
            self.measured = None;
            let sample = now.saturating_duration_since(sent);
            let smoothed = self
                .round_trip
                .map_or(sample, |round_trip| (round_trip * 7 + sample) / 8);
            self.round_trip = Some(smoothed);
        }
        self.expired = 0;
        self.silent_since = in_flight.then_some(now);
        self.deadline = in_flight.then(|| now + self.timeout());
    }

    /// Stops the timer until the next packet is sent, because everything is sent again.
    pub(super) fn restart(&mut self) {
        // A round trip that includes a retransmission cannot be measured.
        self.measured = None;
        self.deadline = None;
    }

    /// Records that the peer is alive and asks for a pause.
    pub(super) fn pause(&mut self) {
        self.restart();
        self.silent_since = None;
    }

    /// Returns what to do at `now`.
    pub(super) fn expire(&mut self, now: Instant) -> Expired {
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return Expired::No;
        }
        let silent = self.silent_since.map(|since| now.duration_since(since));
        //= ROCE-9.7.6-02
        if silent.is_some_and(|silent| silent >= self.give_up_after) {
            return Expired::GiveUp;
        }
        self.expired += 1;
        self.restart();
        Expired::Retransmit
    }

    /// Returns the time to wait for an acknowledgement.
    fn timeout(&self) -> Duration {
        let base = self
            .round_trip
            .map_or(INITIAL_TIMEOUT, |round_trip| round_trip * ROUND_TRIPS)
            .max(MIN_TIMEOUT);
        let doubled = base.saturating_mul(1 << self.expired.min(16));
        doubled.min(self.ack_timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACK_TIMEOUT: Duration = Duration::from_millis(500);

    fn milliseconds(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    //= ROCE-9.7.6-01 test
    #[test]
    fn the_timeout_follows_round_trips_and_doubles_up_to_the_ack_timeout() {
        let start = Instant::now();
        let mut timer = RetransmissionTimer::new(ACK_TIMEOUT, 7);
        assert_eq!(timer.deadline(), None);
        timer.sent(start, Some(1));
        assert_eq!(timer.deadline(), Some(start + INITIAL_TIMEOUT));
        let mut now = start + milliseconds(10);
        timer.progress(now, 1, false);
        assert_eq!(timer.deadline(), None);
        for expected in [40, 80, 160, 320, 500, 500] {
            timer.sent(now, None);
            assert_eq!(timer.expire(now), Expired::No);
            assert_eq!(timer.deadline(), Some(now + milliseconds(expected)));
            now += milliseconds(expected);
            assert_eq!(timer.expire(now), Expired::Retransmit);
        }
        timer.sent(now, Some(2));
        timer.progress(now, 2, true);
        // Seven parts of 10 ms and one of 0 ms.
        let timeout = milliseconds(10) * 7 / 8 * ROUND_TRIPS;
        assert_eq!(timer.deadline(), Some(now + timeout));
    }

    //= ROCE-9.7.6-02 test
    #[test]
    fn it_gives_up_after_the_ack_timeout_and_its_retries() {
        for retry_count in [0, 3, 7] {
            let start = Instant::now();
            let mut timer = RetransmissionTimer::new(ACK_TIMEOUT, retry_count);
            let mut now = start;
            let silent = loop {
                timer.sent(now, None);
                now = timer.deadline().unwrap();
                match timer.expire(now) {
                    Expired::No => panic!("the deadline has passed"),
                    Expired::Retransmit => {}
                    Expired::GiveUp => break now - start,
                }
            };
            let least = ACK_TIMEOUT * (u32::from(retry_count) + 1);
            assert!(
                (least..=least + ACK_TIMEOUT).contains(&silent),
                "{silent:?}"
            );
        }
    }

    #[test]
    fn a_pause_does_not_count_as_silence() {
        let start = Instant::now();
        let mut timer = RetransmissionTimer::new(ACK_TIMEOUT, 0);
        timer.sent(start, Some(1));
        timer.pause();
        assert_eq!(timer.deadline(), None);
        let later = start + 10 * ACK_TIMEOUT;
        timer.sent(later, None);
        let deadline = timer.deadline().unwrap();
        assert_eq!(timer.expire(deadline), Expired::Retransmit);
    }

    #[test]
    fn retransmitted_packets_are_not_measured() {
        let start = Instant::now();
        let mut timer = RetransmissionTimer::new(ACK_TIMEOUT, 7);
        timer.sent(start, Some(1));
        timer.restart();
        timer.progress(start + ACK_TIMEOUT, 1, true);
        let deadline = start + ACK_TIMEOUT + INITIAL_TIMEOUT;
        assert_eq!(timer.deadline(), Some(deadline));
    }
}
