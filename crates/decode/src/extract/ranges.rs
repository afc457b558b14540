//! The parts of a file that a capture shows.

use std::collections::BTreeMap;

/// Ranges of bytes that do not touch each other: the end of each by its start.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranges {
    ranges: BTreeMap<u64, u64>,
    /// Whether there were too many.
    is_full: bool,
}

/// Maximum number of ranges of a file. A file that was read in any order has few at the end.
const MAX_RANGES: usize = 1 << 16;

impl Ranges {
    /// Adds a range.
    pub(super) fn add(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let (mut start, mut end) = (start, end);
        while let Some((&before, &until)) = self.ranges.range(..=end).next_back()
            && until >= start
        {
            start = start.min(before);
            end = end.max(until);
            self.ranges.remove(&before);
        }
        if self.ranges.len() < MAX_RANGES {
            self.ranges.insert(start, end);
        } else {
            self.is_full = true;
        }
    }

    /// Returns the number of bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.ranges.iter().map(|(start, end)| end - start).sum()
    }

    /// Returns the end of the last range.
    pub(super) fn end(&self) -> u64 {
        self.ranges.last_key_value().map_or(0, |(_, &end)| end)
    }

    /// Returns whether all bytes before `size` are there.
    pub(super) fn is_whole(&self, size: u64) -> bool {
        let first = self.ranges.first_key_value();
        !self.is_full
            && (size == 0 || first.is_some_and(|(&start, &end)| start == 0 && end >= size))
    }
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::*;

    #[test]
    fn ranges_are_the_set_of_their_bytes() {
        for seed in 0..200 {
            let mut rng = Rng::with_seed(seed);
            let (mut ranges, mut bytes) = (Ranges::default(), [false; 64]);
            for _ in 0..rng.usize(1..12) {
                let start = rng.usize(..60);
                let end = rng.usize(start..64);
                ranges.add(start as u64, end as u64);
                bytes[start..end].fill(true);
            }
            assert_eq!(
                ranges.bytes(),
                bytes.iter().filter(|byte| **byte).count() as u64
            );
            let end = bytes
                .iter()
                .rposition(|byte| *byte)
                .map_or(0, |last| last + 1);
            assert_eq!(ranges.end(), end as u64);
            let whole = bytes.iter().position(|byte| !byte).unwrap_or(64);
            assert!(
                ranges.is_whole(whole as u64) && !ranges.is_whole(whole as u64 + 1),
                "{seed}"
            );
        }
    }
}
