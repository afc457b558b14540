//! How many bytes a socket collects before it wakes its reader.
//!
//! Linux siw sends the data of a Read Response one TCP segment at a time. To be woken for each of them
//! takes ten times the processor time of receiving it. So where small wake-ups come one after another,
//! and the peer owes data of Reads, the reader record_sleep until much of it has come. It record_sleep for
//! [`MAX_SLEEP`] at most, so that a message that comes between the data is not held up for longer.

use std::time::Duration;

/// Bytes that are worth a wake-up.
const MIN_WAKE_UP_BYTES: usize = 16 * 1024;
/// Most bytes to sleep for.
const MAX_MARK_BYTES: usize = 256 * 1024;
/// Wake-ups one after another with fewer bytes than [`MIN_WAKE_UP_BYTES`], behind which the reader record_sleep for
/// more.
const SMALL_WAKE_UPS: u32 = 4;
/// The longest sleep for more than one byte.
pub(super) const MAX_SLEEP: Duration = Duration::from_millis(10);

/// Decides each time before a reader record_sleep.
#[derive(Clone, Debug)]
pub(super) struct LowWater {
    mark: usize,
    small_wake_ups: u32,
    /// Bytes received until the last sleep.
    received: u64,
}

impl LowWater {
    pub(super) const fn new() -> Self {
        Self {
            mark: 1,
            small_wake_ups: 0,
            received: 0,
        }
    }

    /// How many bytes the reader is woken for.
    pub(super) const fn mark(&self) -> usize {
        self.mark
    }

    /// Takes account of a sleep, behind so many bytes received in all and before so many that are
    /// certain to come. Returns whether bytes have come since the last one.
    pub(super) fn record_sleep(&mut self, received: u64, awaited: usize) -> bool {
        let came = received - self.received;
        self.received = received;
        if came > 0 && self.mark == 1 {
            self.small_wake_ups = match came < MIN_WAKE_UP_BYTES as u64 {
                true => self.small_wake_ups.saturating_add(1),
                false => 0,
            };
        }
        self.mark = match self.small_wake_ups >= SMALL_WAKE_UPS && awaited >= MIN_WAKE_UP_BYTES {
            true => awaited.min(MAX_MARK_BYTES),
            false => 1,
        };
        came > 0
    }

    /// The reader has slept for [`MAX_SLEEP`], and takes what there is.
    pub(super) const fn give_up(&mut self) {
        self.mark = 1;
        self.small_wake_ups = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The marks behind wake-ups with so many bytes each, before so many that are certain to come.
    fn marks(wake_ups: &[(u64, usize)]) -> Vec<usize> {
        let (mut low_water, mut received) = (LowWater::new(), 0);
        let sleep = |&(bytes, awaited)| {
            received += bytes;
            assert_eq!(low_water.record_sleep(received, awaited), bytes > 0);
            low_water.mark()
        };
        wake_ups.iter().map(sleep).collect()
    }

    const AMPLE_BYTES: usize = 10 * MAX_MARK_BYTES;

    #[test]
    fn small_wake_ups_one_after_another_raise_the_mark() {
        assert_eq!(
            marks(&[(1448, AMPLE_BYTES); 5]),
            [1, 1, 1, MAX_MARK_BYTES, MAX_MARK_BYTES]
        );
        let small = (MIN_WAKE_UP_BYTES as u64 - 1, AMPLE_BYTES);
        let large = (MIN_WAKE_UP_BYTES as u64, AMPLE_BYTES);
        let wake_ups = [small, small, small, large, small, small, small, small];
        assert_eq!(marks(&wake_ups), [1, 1, 1, 1, 1, 1, 1, MAX_MARK_BYTES]);
    }

    #[test]
    fn a_sleep_behind_nothing_is_no_small_wake_up() {
        assert_eq!(marks(&[(0, AMPLE_BYTES); 10]), [1; 10]);
    }

    #[test]
    fn the_mark_is_no_more_than_is_certain_to_come() {
        let awaited = [
            MAX_MARK_BYTES + 1,
            MAX_MARK_BYTES,
            MAX_MARK_BYTES - 1,
            MIN_WAKE_UP_BYTES,
            MIN_WAKE_UP_BYTES - 1,
            0,
            AMPLE_BYTES,
        ];
        let behind: Vec<_> = awaited.map(|awaited| (1, awaited)).into();
        let all: Vec<_> = [(1, 0); 3].into_iter().chain(behind).collect();
        assert_eq!(
            marks(&all)[3..],
            [
                MAX_MARK_BYTES,
                MAX_MARK_BYTES,
                MAX_MARK_BYTES - 1,
                MIN_WAKE_UP_BYTES,
                1,
                1,
                MAX_MARK_BYTES
            ]
        );
    }

    #[test]
    fn what_comes_while_the_mark_is_high_says_nothing_of_the_peer() {
        let wake_ups = [
            (1, AMPLE_BYTES),
            (1, AMPLE_BYTES),
            (1, AMPLE_BYTES),
            (1, AMPLE_BYTES),
            (1 << 18, AMPLE_BYTES),
        ];
        assert_eq!(marks(&wake_ups)[3..], [MAX_MARK_BYTES, MAX_MARK_BYTES]);
    }

    #[test]
    fn behind_a_sleep_that_was_too_long_the_wake_ups_are_counted_anew() {
        let (mut low_water, mut received) = (LowWater::new(), 0);
        for _ in 0..2 {
            for expected in [1, 1, 1, MAX_MARK_BYTES] {
                received += 1;
                low_water.record_sleep(received, AMPLE_BYTES);
                assert_eq!(low_water.mark(), expected);
            }
            low_water.give_up();
            assert_eq!(low_water.mark(), 1);
        }
    }
}
