//! The decision of a queue pair to spin or to sleep when it finds nothing to do.
//!
//! Sleeping and being woken costs both ends microseconds of CPU time on bare metal, and hundreds of
//! microseconds in some virtual machines. In a steady stream the next bytes mostly arrive sooner
//! than that: an end that spins a little longer receives them awake, and its peer does not have to
//! wake it. But spinning is useless if the peer is slow, and harmful if the peer waits for the same
//! core. An end therefore spins only after it has moved many bytes, and only while many bytes keep
//! arriving. After each spin that found nothing, it skips more opportunities to spin.

use std::time::{Duration, Instant};

/// The bytes that must have moved since the last sleep before an end starts to spin.
const MIN_BYTES_TO_SPIN: u64 = 16 * 1024;
/// The bytes, sent and received together, that must move within a spin to restart its time limit. At
/// least one of them must be received. The value is lower than [`MIN_BYTES_TO_SPIN`], because a small
/// message can grant the credits for many bytes to send.
const MIN_BYTES_TO_EXTEND: u64 = 4 * 1024;
/// The number of consecutive fruitless spins after which the back-off stops growing.
const MAX_COUNTED_FRUITLESS: u32 = 6;

/// Decides between spinning and sleeping each time there is nothing to do.
#[derive(Clone, Debug)]
pub(super) struct AdaptiveSpin {
    /// How long to spin without enough bytes arriving.
    window: Duration,
    /// The bytes moved in total, as of the last decision.
    moved: u64,
    /// The bytes moved in total, as of the last sleep.
    slept_at: u64,
    /// The bytes moved in total, as of the last flush.
    flushed_at: u64,
    /// The start of the current spin, or the moment of its last extension.
    since: Option<Mark>,
    /// The consecutive spins that found too little.
    fruitless: u32,
    /// The opportunities to spin that are still to be skipped.
    skip: u32,
}

/// A moment, with the bytes received and moved in total until then.
#[derive(Clone, Copy, Debug)]
struct Mark {
    time: Instant,
    received: u64,
    moved: u64,
}

impl AdaptiveSpin {
    /// Creates the state of an end that spins for `window` at most; zero disables spinning.
    pub(super) const fn new(window: Duration) -> Self {
        Self {
            window,
            moved: 0,
            slept_at: 0,
            flushed_at: 0,
            since: None,
            fruitless: 0,
            skip: 0,
        }
    }

    /// Returns whether [`keep_spinning`](Self::keep_spinning) could return true, given the bytes
    /// `sent` and `received` in total.
    pub(super) const fn may_spin(&self, sent: u64, received: u64) -> bool {
        !self.window.is_zero() && sent + received - self.slept_at >= MIN_BYTES_TO_SPIN
    }

    /// Records a flush, given the bytes `sent` and `received` in total. If few bytes have moved
    /// since the last flush, the end may sleep without asking.
    pub(super) const fn record_flush(&mut self, sent: u64, received: u64) {
        let moved = sent + received;
        if moved - self.flushed_at < MIN_BYTES_TO_SPIN && self.since.is_none() {
            self.slept_at = moved;
        }
        self.flushed_at = moved;
    }

    /// Returns whether to poll again rather than to sleep, given the bytes `sent` and `received` in
    /// total. The clock `now` is read only if needed.
    pub(super) fn keep_spinning(
        &mut self,
        sent: u64,
        received: u64,
        now: impl FnOnce() -> Instant,
    ) -> bool {
        let moved = sent + received != self.moved;
        self.moved = sent + received;
        // Spinning pays only if bytes are received: those that this end sends do not show that.
        let is_extended =
            |mark: Mark| received > mark.received && self.moved - mark.moved >= MIN_BYTES_TO_EXTEND;
        match self.since {
            None if !moved || self.window.is_zero() => return false,
            None if self.moved - self.slept_at < MIN_BYTES_TO_SPIN => return self.sleep(),
            None if self.skip > 0 => {
                self.skip -= 1;
                return self.sleep();
            }
            None => {}
            Some(mark) if is_extended(mark) => self.fruitless = 0,
            Some(mark) => {
                if now().saturating_duration_since(mark.time) < self.window {
                    return true;
                }
                self.fruitless = (self.fruitless + 1).min(MAX_COUNTED_FRUITLESS);
                self.skip = (1 << self.fruitless) - 1;
                return self.sleep();
            }
        }
        self.since = Some(Mark {
            time: now(),
            received,
            moved: self.moved,
        });
        true
    }

    /// Records a sleep and returns false.
    const fn sleep(&mut self) -> bool {
        self.slept_at = self.moved;
        self.since = None;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_micros(100);
    const NOTHING: Duration = Duration::ZERO;

    /// The state under test, the bytes sent and received in total, and the time.
    struct Harness {
        spin: AdaptiveSpin,
        bytes: [u64; 2],
        now: Instant,
    }

    impl Harness {
        fn new() -> Self {
            Self {
                spin: AdaptiveSpin::new(WINDOW),
                bytes: [0; 2],
                now: Instant::now(),
            }
        }

        /// Moves bytes, lets `time` pass, and returns whether to keep spinning.
        fn step(&mut self, sent: u64, received: u64, time: Duration) -> bool {
            self.bytes[0] += sent;
            self.bytes[1] += received;
            self.now += time;
            let [sent, received] = self.bytes;
            self.spin.keep_spinning(sent, received, || self.now)
        }

        /// Receives `bytes`, lets `time` pass, and returns whether to keep spinning.
        fn after(&mut self, bytes: u64, time: Duration) -> bool {
            self.step(0, bytes, time)
        }

        /// Returns whether the end spins after a stream, which then stops.
        fn spins_fruitlessly(&mut self) -> bool {
            let spun = self.after(MIN_BYTES_TO_SPIN, NOTHING);
            assert!(!self.after(0, WINDOW), "the window is over");
            assert!(!self.after(0, NOTHING), "nothing has moved since");
            spun
        }
    }

    #[test]
    fn an_end_spins_for_its_window_after_a_stream() {
        for (sent, received) in [
            (MIN_BYTES_TO_SPIN, 0),
            (0, MIN_BYTES_TO_SPIN),
            (MIN_BYTES_TO_SPIN / 2, MIN_BYTES_TO_SPIN / 2),
        ] {
            let mut harness = Harness::new();
            assert!(!harness.after(0, NOTHING), "nothing moved");
            assert!(harness.step(sent, received, NOTHING));
            assert!(harness.after(0, WINDOW / 2));
            assert!(
                harness.after(MIN_BYTES_TO_EXTEND, WINDOW / 4),
                "enough bytes restart the window"
            );
            let credits_that_let_much_be_sent =
                harness.step(MIN_BYTES_TO_EXTEND - 1, 1, WINDOW / 2);
            assert!(credits_that_let_much_be_sent);
            assert!(harness.step(MIN_BYTES_TO_SPIN, 0, WINDOW / 2));
            assert!(
                !harness.step(MIN_BYTES_TO_SPIN, 0, WINDOW / 2),
                "sent bytes alone do not"
            );
        }
    }

    #[test]
    fn few_bytes_do_not_extend_a_spin() {
        let mut harness = Harness::new();
        assert!(harness.after(MIN_BYTES_TO_SPIN, NOTHING));
        for _ in 0..9 {
            assert!(harness.after(MIN_BYTES_TO_EXTEND / 10, WINDOW / 10));
        }
        assert!(!harness.after(MIN_BYTES_TO_EXTEND / 10 - 1, WINDOW / 10));
        // Nor do single bytes start another spin, however many arrive in total.
        assert!((0..10 * MIN_BYTES_TO_SPIN).all(|_| !harness.after(1, WINDOW / 2)));
    }

    #[test]
    fn few_bytes_between_sleeps_never_start_a_spin() {
        let mut harness = Harness::new();
        for _ in 0..1000 {
            assert!(!harness.after(MIN_BYTES_TO_SPIN - 1, WINDOW / 2));
        }
        assert!(harness.after(MIN_BYTES_TO_SPIN, NOTHING));
        let mut never = AdaptiveSpin::new(Duration::ZERO);
        assert!(
            !never.keep_spinning(MIN_BYTES_TO_SPIN, MIN_BYTES_TO_SPIN, || panic!(
                "no clock is needed"
            ))
        );
    }

    #[test]
    fn small_flushes_do_not_start_a_spin() {
        let mut spin = AdaptiveSpin::new(WINDOW);
        let mut sent = 0;
        for _ in 0..100 {
            sent += MIN_BYTES_TO_SPIN - 1;
            spin.record_flush(sent, 0);
            assert!(!spin.may_spin(sent, 0));
        }
        assert!(!spin.keep_spinning(sent, 0, || panic!("no clock is needed")));
        sent += MIN_BYTES_TO_SPIN;
        spin.record_flush(sent, 0);
        assert!(spin.may_spin(sent, 0));
        assert!(spin.keep_spinning(sent, 0, Instant::now));
        // During a spin, a small flush is no reason to sleep.
        spin.record_flush(sent + 1, 0);
        assert!(spin.may_spin(sent + 1, 0));
        assert!(!AdaptiveSpin::new(Duration::ZERO).may_spin(MIN_BYTES_TO_SPIN, MIN_BYTES_TO_SPIN));
    }

    #[test]
    fn fruitless_spins_become_rare_but_never_stop() {
        let mut harness = Harness::new();
        let spun: Vec<_> = (0..512).filter(|_| harness.spins_fruitlessly()).collect();
        let pauses: Vec<_> = spun.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(pauses[..6], [2, 4, 8, 16, 32, 64]);
        assert!(pauses.len() > 8 && pauses[6..].iter().all(|&pause| pause == 64));
        // A spin that receives bytes resets the back-off.
        while !harness.after(MIN_BYTES_TO_SPIN, NOTHING) {}
        assert!(harness.after(MIN_BYTES_TO_EXTEND, NOTHING));
        assert!(!harness.after(0, WINDOW));
        assert!(!harness.spins_fruitlessly(), "one spin was fruitless since");
        assert!(harness.spins_fruitlessly());
    }
}
