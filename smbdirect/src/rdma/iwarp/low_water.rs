//! How many bytes a socket collects before it wakes its reader.
//!
//! Linux siw sends the data of a Read Response one TCP segment at a time. To be woken for each of them
//! takes ten times the processor time of receiving it. So where small wake-ups come one after another,
//! and the peer owes data of Reads, the reader sleeps until much of it has come. It sleeps for
//! [`PATIENCE`] at most, so that a message that comes between the data is not held up for longer.

use std::time::Duration;

/// Bytes that are worth a wake-up.
const ENOUGH: usize = 16 * 1024;
/// Most bytes to sleep for.
const MOST: usize = 256 * 1024;
/// Wake-ups one after another with fewer bytes than [`ENOUGH`], behind which the reader sleeps for
/// more.
const SMALL_WAKE_UPS: u32 = 4;
/// The longest sleep for more than one byte.
pub(super) const PATIENCE: Duration = Duration::from_millis(10);

/// Decides each time before a reader sleeps.
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
    pub(super) fn sleeps(&mut self, received: u64, awaited: usize) -> bool {
        let came = received - self.received;
        self.received = received;
        if came > 0 && self.mark == 1 {
            self.small_wake_ups = match came < ENOUGH as u64 {
                true => self.small_wake_ups.saturating_add(1),
                false => 0,
            };
        }
        self.mark = match self.small_wake_ups >= SMALL_WAKE_UPS && awaited >= ENOUGH {
            true => awaited.min(MOST),
            false => 1,
        };
        came > 0
    }

    /// The reader has slept for [`PATIENCE`], and takes what there is.
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
            assert_eq!(low_water.sleeps(received, awaited), bytes > 0);
            low_water.mark()
        };
        wake_ups.iter().map(sleep).collect()
    }

    const MUCH: usize = 10 * MOST;

    #[test]
    fn small_wake_ups_one_after_another_raise_the_mark() {
        assert_eq!(marks(&[(1448, MUCH); 5]), [1, 1, 1, MOST, MOST]);
        let small = (ENOUGH as u64 - 1, MUCH);
        let large = (ENOUGH as u64, MUCH);
        let wake_ups = [small, small, small, large, small, small, small, small];
        assert_eq!(marks(&wake_ups), [1, 1, 1, 1, 1, 1, 1, MOST]);
    }

    #[test]
    fn a_sleep_behind_nothing_is_no_small_wake_up() {
        assert_eq!(marks(&[(0, MUCH); 10]), [1; 10]);
    }

    #[test]
    fn the_mark_is_no_more_than_is_certain_to_come() {
        let awaited = [MOST + 1, MOST, MOST - 1, ENOUGH, ENOUGH - 1, 0, MUCH];
        let behind: Vec<_> = awaited.map(|awaited| (1, awaited)).into();
        let all: Vec<_> = [(1, 0); 3].into_iter().chain(behind).collect();
        assert_eq!(marks(&all)[3..], [MOST, MOST, MOST - 1, ENOUGH, 1, 1, MOST]);
    }

    #[test]
    fn what_comes_while_the_mark_is_high_says_nothing_of_the_peer() {
        let wake_ups = [(1, MUCH), (1, MUCH), (1, MUCH), (1, MUCH), (1 << 18, MUCH)];
        assert_eq!(marks(&wake_ups)[3..], [MOST, MOST]);
    }

    #[test]
    fn behind_a_sleep_that_was_too_long_the_wake_ups_are_counted_anew() {
        let (mut low_water, mut received) = (LowWater::new(), 0);
        for _ in 0..2 {
            for expected in [1, 1, 1, MOST] {
                received += 1;
                low_water.sleeps(received, MUCH);
                assert_eq!(low_water.mark(), expected);
            }
            low_water.give_up();
            assert_eq!(low_water.mark(), 1);
        }
    }
}
