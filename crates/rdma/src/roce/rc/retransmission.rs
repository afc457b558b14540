//! [`RetransmissionTimer`]: when to send again, and when to give up.

use std::time::{Duration, Instant};

/// The timer of a requester.
///
/// The timeout follows the measured round trips, so that a loss costs little on a fast network. It
/// doubles each time it expires, up to the acknowledgement timeout. The connection breaks when the
/// peer has acknowledged nothing for the acknowledgement timeout and each of its retries. A timeout
/// that is noticed late, because this process did not run, counts no more than one that is noticed in
/// time.
#[derive(Debug)]
pub(super) struct RetransmissionTimer {
    /// The timeout before the first round trip is measured.
    initial_timeout: Duration,
    /// The longest timeout.
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
    /// The sum of the timeouts that expired since the last progress.
    silent: Duration,
    /// The time at which the timeout that runs began. Nothing that its length depends on changes while it runs.
    running: Option<Instant>,
}

/// The least timeout. A busy host may take this long to run the peer's task.
const MIN_TIMEOUT: Duration = Duration::from_millis(20);
/// The timeout before the first round trip is measured, towards a peer that acknowledges immediately.
const INITIAL_TIMEOUT: Duration = Duration::from_millis(100);
/// The timeout in measured round trips.
const ROUND_TRIPS: u32 = 4;

/// What the requester has to do when it checks the timer.
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
    /// Creates a timer that is not running, for a peer that takes up to `target_ack_delay` to
    /// acknowledge a packet.
    pub(super) fn new(ack_timeout: Duration, target_ack_delay: Duration, retry_count: u8) -> Self {
        //= ROCE-9.7.6-03
        let ack_timeout = ack_timeout + target_ack_delay;
        Self {
            initial_timeout: INITIAL_TIMEOUT + target_ack_delay,
            ack_timeout,
            give_up_after: ack_timeout * (u32::from(retry_count) + 1),
            round_trip: None,
            measured: None,
            expired: 0,
            silent: Duration::ZERO,
            running: None,
        }
    }

    /// Returns when the timer expires.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.running.map(|began| began + self.timeout())
    }

    /// Returns the smoothed time of a round trip, or `None` if none is measured.
    pub(super) const fn round_trip(&self) -> Option<Duration> {
        self.round_trip
    }

    /// Records that a packet was sent. `measure` is the sequence number that acknowledges it, if it
    /// was sent for the first time and asks for an acknowledgement.
    pub(super) fn sent(&mut self, now: Instant, measure: Option<u64>) {
        if let (Some(sequence), None) = (measure, self.measured) {
            self.measured = Some((sequence, now));
        }
        self.running.get_or_insert(now);
    }

    /// Records that the peer has acknowledged everything before `sequence`. `in_flight` is true if other packets
    /// are still in flight.
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
        self.silent = Duration::ZERO;
        self.running = in_flight.then_some(now);
    }

    /// Stops the timer until the next packet is sent, because everything is sent again.
    pub(super) fn restart(&mut self) {
        // A round trip that includes a retransmission cannot be measured.
        self.measured = None;
        self.running = None;
    }

    /// Stops the timer and forgets the silence of the peer, because the peer has answered with an RNR NAK and asks this
    /// end to wait.
    pub(super) fn pause(&mut self) {
        self.restart();
        self.silent = Duration::ZERO;
    }

    /// Returns what to do at `now`.
    pub(super) fn expire(&mut self, now: Instant) -> Expired {
        if self.deadline().is_none_or(|deadline| deadline > now) {
            return Expired::No;
        }
        self.silent += self.timeout();
        //= ROCE-9.7.6-02
        if self.silent >= self.give_up_after {
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
            .map_or(self.initial_timeout, |round_trip| round_trip * ROUND_TRIPS)
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
        let mut timer = RetransmissionTimer::new(ACK_TIMEOUT, Duration::ZERO, 7);
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
        // The smoothed round trip is seven eighths of 10 ms, and one eighth of 0 ms.
        let timeout = milliseconds(10) * 7 / 8 * ROUND_TRIPS;
        assert_eq!(timer.deadline(), Some(now + timeout));
    }

    //= ROCE-9.7.6-02 test
    #[test]
    fn it_gives_up_after_the_ack_timeout_and_its_retries() {
        for retry_count in [0, 3, 7] {
            let start = Instant::now();
            let mut timer = RetransmissionTimer::new(ACK_TIMEOUT, Duration::ZERO, retry_count);
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

    //= ROCE-9.7.6-03 test
    #[test]
    fn the_delay_that_the_peer_announces_counts_into_every_timeout() {
        let delay = milliseconds(700);
        let start = Instant::now();
        let mut timer = RetransmissionTimer::new(ACK_TIMEOUT, delay, 1);
        timer.sent(start, Some(1));
        assert_eq!(timer.deadline(), Some(start + INITIAL_TIMEOUT + delay));
        // The delay is added to the longest timeout, and to the time after which the connection breaks.
        timer.progress(start + 2 * delay, 1, true);
        let mut now = timer.deadline().unwrap();
        assert_eq!(now, start + 2 * delay + ACK_TIMEOUT + delay);
        assert_eq!(timer.expire(now), Expired::Retransmit);
        timer.sent(now, None);
        now = timer.deadline().unwrap();
        assert_eq!(timer.expire(now), Expired::GiveUp);
        assert_eq!(now, start + 2 * delay + 2 * (ACK_TIMEOUT + delay));
    }

    /// The process did not run for hours, and then notices the timeout before it reads the answer.
    //= ROCE-9.7.6-02 test
    #[test]
    fn a_timeout_that_is_noticed_late_counts_once() {
        let start = Instant::now();
        let mut timer = RetransmissionTimer::new(ACK_TIMEOUT, Duration::ZERO, 3);
        let mut now = start;
        let mut expirations = 0;
        loop {
            timer.sent(now, None);
            now += Duration::from_secs(3600);
            match timer.expire(now) {
                Expired::No => panic!("the deadline has passed"),
                Expired::Retransmit => expirations += 1,
                Expired::GiveUp => break,
            }
        }
        assert!(expirations >= 3, "{expirations}");
    }

    #[test]
    fn a_pause_does_not_count_as_silence() {
        let start = Instant::now();
        let mut timer = RetransmissionTimer::new(ACK_TIMEOUT, Duration::ZERO, 0);
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
        let mut timer = RetransmissionTimer::new(ACK_TIMEOUT, Duration::ZERO, 7);
        timer.sent(start, Some(1));
        timer.restart();
        timer.progress(start + ACK_TIMEOUT, 1, true);
        let deadline = start + ACK_TIMEOUT + INITIAL_TIMEOUT;
        assert_eq!(timer.deadline(), Some(deadline));
    }
}
