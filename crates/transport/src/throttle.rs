//! Warnings that would repeat many times a second.

use std::time::{Duration, Instant};

/// Shortest time between two warnings of one kind.
const WARNING_INTERVAL: Duration = Duration::from_mins(1);

/// Limits a warning that may repeat often: the first is logged immediately, and then one a minute at most.
#[derive(Clone, Debug, Default)]
pub struct Throttle {
    last: Option<Instant>,
    times: u64,
}

impl Throttle {
    /// Counts one time, at `now`. If the warning is due, returns how often it was counted since the last one.
    pub fn due(&mut self, now: Instant) -> Option<u64> {
        self.times += 1;
        if self.last.is_some_and(|last| now - last < WARNING_INTERVAL) {
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.times))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_warning_is_due_and_then_one_a_minute() {
        let mut throttle = Throttle::default();
        let start = Instant::now();
        let due: Vec<_> = [0, 1, 59, 60, 61, 121]
            .into_iter()
            .filter_map(|seconds| throttle.due(start + Duration::from_secs(seconds)))
            .collect();
        assert_eq!(due, [1, 3, 2]);
    }
}
