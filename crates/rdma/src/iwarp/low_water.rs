//! The low-water mark: how many bytes a socket collects before it wakes its reader.
//!
//! Linux siw sends the data of a Read Response one TCP segment at a time, and a wake-up for each
//! segment takes ten times the processor time of receiving it. So after several small wake-ups, and
//! while the peer owes data of Reads, the reader sleeps until many bytes have arrived. It sleeps
//! for [`MAX_SLEEP`] at most, so that a message between the data is delayed by no more than that.

use std::time::Duration;

/// The fewest bytes with which a wake-up counts as large.
const MIN_WAKE_UP_BYTES: usize = 16 * 1024;
/// The highest low-water mark, in bytes.
const MAX_MARK_BYTES: usize = 256 * 1024;
/// The consecutive wake-ups with fewer than [`MIN_WAKE_UP_BYTES`] after which the mark is raised.
const SMALL_WAKE_UPS: u32 = 4;
/// The longest sleep while the mark is above one byte.
pub(super) const MAX_SLEEP: Duration = Duration::from_millis(10);

/// The state from which the low-water mark is chosen before each sleep of the reader.
#[derive(Clone, Debug)]
pub(super) struct LowWater {
    mark: usize,
    small_wake_ups: u32,
    /// The bytes received in total, as of the last sleep.
    received: u64,
}

impl LowWater {
    /// Creates the state of a reader that is woken for each byte.
    pub(super) const fn new() -> Self {
        Self {
            mark: 1,
            small_wake_ups: 0,
            received: 0,
        }
    }

    /// Returns the bytes that must have arrived before the reader is woken.
    pub(super) const fn mark(&self) -> usize {
        self.mark
    }

    /// Records a sleep, given the bytes `received` in total and the bytes `awaited` that are
    /// certain to arrive. Returns whether bytes have arrived since the last sleep.
    pub(super) fn record_sleep(&mut self, received: u64, awaited: usize) -> bool {
        let arrived = received - self.received;
        self.received = received;
        if arrived > 0 && self.mark == 1 {
            self.small_wake_ups = if arrived < MIN_WAKE_UP_BYTES as u64 {
                self.small_wake_ups.saturating_add(1)
            } else {
                0
            };
        }
        self.mark = if self.small_wake_ups >= SMALL_WAKE_UPS && awaited >= MIN_WAKE_UP_BYTES {
            awaited.min(MAX_MARK_BYTES)
        } else {
            1
        };
        arrived > 0
    }

    /// Resets the mark, because the reader has slept for [`MAX_SLEEP`].
    pub(super) const fn give_up(&mut self) {
        self.mark = 1;
        self.small_wake_ups = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the mark after each wake-up, given its bytes and the bytes that are certain to
    /// arrive.
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
    fn a_wake_up_without_bytes_is_not_counted() {
        assert_eq!(marks(&[(0, AMPLE_BYTES); 10]), [1; 10]);
    }

    #[test]
    fn the_mark_never_exceeds_the_awaited_bytes() {
        let awaited = [
            MAX_MARK_BYTES + 1,
            MAX_MARK_BYTES,
            MAX_MARK_BYTES - 1,
            MIN_WAKE_UP_BYTES,
            MIN_WAKE_UP_BYTES - 1,
            0,
            AMPLE_BYTES,
        ];
        let after: Vec<_> = awaited.map(|awaited| (1, awaited)).into();
        let all: Vec<_> = [(1, 0); 3].into_iter().chain(after).collect();
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
    fn wake_ups_at_a_high_mark_are_not_counted() {
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
    fn giving_up_resets_the_count_of_small_wake_ups() {
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
