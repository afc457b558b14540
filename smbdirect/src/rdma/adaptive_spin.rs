//! Whether to look again before sleeping.
//!
//! To sleep and be woken costs both ends: microseconds of CPU time where the processor is close at
//! hand, hundreds of them in some virtual machines. While a stream flows, the next bytes are mostly
//! nearer than that: an end that looks a little longer meets them awake, and its peer need not wake
//! it. But looking is vain where the peer is slow or, worse, waits for the same core. So only who
//! has just moved much looks again, goes on only while much moves, and does it more and more seldom
//! if in vain.

use std::time::{Duration, Instant};

/// What has to be moved, since the last sleep, for a stream to flow,
const FLOW: u64 = 16 * 1024;
/// and while it is looked for, for it to go on: credits that come alone let much be sent.
const TRICKLE: u64 = 4 * 1024;
/// After so many watches in vain, one more, they become no rarer.
const MOST_IN_VAIN: u32 = 6;

/// Decides at each moment when there is nothing to do.
#[derive(Clone, Debug)]
pub(super) struct AdaptiveSpin {
    /// How long to look without anything coming.
    length: Duration,
    /// Bytes moved until the last look, and until the last sleep.
    moved: u64,
    slept_at: u64,
    /// Bytes moved until the last flush.
    flushed_at: u64,
    /// It looks since then.
    since: Option<Mark>,
    /// Watches in vain, one behind the other.
    in_vain: u32,
    /// Streams that it sleeps behind without a watch, before the next.
    skip: u32,
}

/// A moment, with the bytes received and moved until then.
#[derive(Clone, Copy, Debug)]
struct Mark {
    time: Instant,
    received: u64,
    moved: u64,
}

impl AdaptiveSpin {
    pub(super) const fn new(length: Duration) -> Self {
        Self {
            length,
            moved: 0,
            slept_at: 0,
            flushed_at: 0,
            since: None,
            in_vain: 0,
            skip: 0,
        }
    }

    /// Whether [`goes_on`](Self::goes_on) could say yes, after so many bytes in all.
    pub(super) const fn flows(&self, sent: u64, received: u64) -> bool {
        !self.length.is_zero() && sent + received - self.slept_at >= FLOW
    }

    /// Takes account of a flush, behind so many bytes in all. Behind one with which little was moved,
    /// an end may sleep without asking.
    pub(super) const fn flushed(&mut self, sent: u64, received: u64) {
        let moved = sent + received;
        if moved - self.flushed_at < FLOW && self.since.is_none() {
            self.slept_at = moved;
        }
        self.flushed_at = moved;
    }

    /// Whether to look again rather than to sleep, when so many bytes were sent and received in
    /// all.
    pub(super) fn goes_on(
        &mut self,
        sent: u64,
        received: u64,
        now: impl FnOnce() -> Instant,
    ) -> bool {
        let moved = sent + received != self.moved;
        self.moved = sent + received;
        // What it sends itself is no sign that looking pays.
        let flows = |mark: Mark| received > mark.received && self.moved - mark.moved >= TRICKLE;
        match self.since {
            None if !moved || self.length.is_zero() => return false,
            None if self.moved - self.slept_at < FLOW => return self.sleep(),
            None if self.skip > 0 => {
                self.skip -= 1;
                return self.sleep();
            }
            None => {}
            Some(mark) if flows(mark) => self.in_vain = 0,
            Some(mark) => {
                if now().saturating_duration_since(mark.time) < self.length {
                    return true;
                }
                self.in_vain = (self.in_vain + 1).min(MOST_IN_VAIN);
                self.skip = (1 << self.in_vain) - 1;
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

    const fn sleep(&mut self) -> bool {
        self.slept_at = self.moved;
        self.since = None;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: Duration = Duration::from_micros(100);
    const NOTHING: Duration = Duration::ZERO;

    /// A watch, the bytes sent and received, and the time.
    struct Bench {
        spin: AdaptiveSpin,
        bytes: [u64; 2],
        now: Instant,
    }

    impl Bench {
        fn new() -> Self {
            Self {
                spin: AdaptiveSpin::new(LENGTH),
                bytes: [0; 2],
                now: Instant::now(),
            }
        }

        fn look(&mut self, sent: u64, received: u64, time: Duration) -> bool {
            self.bytes[0] += sent;
            self.bytes[1] += received;
            self.now += time;
            let [sent, received] = self.bytes;
            self.spin.goes_on(sent, received, || self.now)
        }

        /// Whether it goes on when so much came in so long.
        fn after(&mut self, bytes: u64, time: Duration) -> bool {
            self.look(0, bytes, time)
        }

        /// Whether it watches at all behind a stream, which then stops.
        fn watches_in_vain(&mut self) -> bool {
            let watched = self.after(FLOW, NOTHING);
            assert!(!self.after(0, LENGTH), "no longer than that");
            assert!(!self.after(0, NOTHING), "nor again without cause");
            watched
        }
    }

    #[test]
    fn a_stream_is_watched_for_a_moment() {
        for (sent, received) in [(FLOW, 0), (0, FLOW), (FLOW / 2, FLOW / 2)] {
            let mut bench = Bench::new();
            assert!(!bench.after(0, NOTHING), "nothing moved");
            assert!(bench.look(sent, received, NOTHING));
            assert!(bench.after(0, LENGTH / 2));
            assert!(
                bench.after(TRICKLE, LENGTH / 4),
                "much that comes counts anew"
            );
            let little_that_lets_much_be_sent = bench.look(TRICKLE - 1, 1, LENGTH / 2);
            assert!(little_that_lets_much_be_sent);
            assert!(bench.look(FLOW, 0, LENGTH / 2));
            assert!(
                !bench.look(FLOW, 0, LENGTH / 2),
                "what is only sent does not"
            );
        }
    }

    #[test]
    fn a_trickle_does_not_keep_it_awake() {
        let mut bench = Bench::new();
        assert!(bench.after(FLOW, NOTHING));
        for _ in 0..9 {
            assert!(bench.after(TRICKLE / 10, LENGTH / 10));
        }
        assert!(!bench.after(TRICKLE / 10 - 1, LENGTH / 10));
        // Nor does it wake it again, however much comes of it.
        assert!((0..10 * FLOW).all(|_| !bench.after(1, LENGTH / 2)));
    }

    #[test]
    fn little_is_not_worth_it_however_often_it_comes() {
        let mut bench = Bench::new();
        for _ in 0..1000 {
            assert!(!bench.after(FLOW - 1, LENGTH / 2));
        }
        assert!(bench.after(FLOW, NOTHING));
        let mut never = AdaptiveSpin::new(Duration::ZERO);
        assert!(!never.goes_on(FLOW, FLOW, || panic!("no clock is needed")));
    }

    #[test]
    fn what_is_flushed_bit_by_bit_is_no_stream() {
        let mut spin = AdaptiveSpin::new(LENGTH);
        let mut sent = 0;
        for _ in 0..100 {
            sent += FLOW - 1;
            spin.flushed(sent, 0);
            assert!(!spin.flows(sent, 0));
        }
        assert!(!spin.goes_on(sent, 0, || panic!("no clock is needed")));
        sent += FLOW;
        spin.flushed(sent, 0);
        assert!(spin.flows(sent, 0));
        assert!(spin.goes_on(sent, 0, Instant::now));
        // While it looks, little is no reason to sleep.
        spin.flushed(sent + 1, 0);
        assert!(spin.flows(sent + 1, 0));
        assert!(!AdaptiveSpin::new(Duration::ZERO).flows(FLOW, FLOW));
    }

    #[test]
    fn watches_in_vain_become_rare_and_do_not_die_out() {
        let mut bench = Bench::new();
        let watched: Vec<_> = (0..512).filter(|_| bench.watches_in_vain()).collect();
        let pauses: Vec<_> = watched.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(pauses[..6], [2, 4, 8, 16, 32, 64]);
        assert!(pauses.len() > 8 && pauses[6..].iter().all(|&pause| pause == 64));
        // One that is not in vain sets it right.
        while !bench.after(FLOW, NOTHING) {}
        assert!(bench.after(TRICKLE, NOTHING));
        assert!(!bench.after(0, LENGTH));
        assert!(!bench.watches_in_vain(), "one was in vain since");
        assert!(bench.watches_in_vain());
    }
}
