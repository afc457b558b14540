//! Histograms: how long the server takes to answer, by operation, and how long sessions wait, by cause.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use smbdirect::{
    RoundTrips,
    metrics::{Family, Kind, Sample, Value},
};
use smbdirect_smb::smb2::Command;

/// A histogram of times that tasks share.
#[derive(Debug, Default)]
pub(crate) struct Times {
    nanoseconds: AtomicU64,
    /// The number of times in each bucket of [`BOUNDS`].
    buckets: [AtomicU64; BOUNDS.len()],
    /// The number of times above the last bound.
    above: AtomicU64,
}

/// The bounds of the buckets, in nanoseconds: a search in numbers costs less than one in durations.
const BOUNDS: [u64; RoundTrips::BOUNDS.len()] = {
    let mut bounds = [0; RoundTrips::BOUNDS.len()];
    let mut index = 0;
    while index < bounds.len() {
        bounds[index] = RoundTrips::BOUNDS[index].as_nanos() as u64;
        index += 1;
    }
    bounds
};

impl Times {
    pub(crate) fn record(&self, time: Duration) {
        let nanoseconds = time
            .as_secs()
            .saturating_mul(1_000_000_000)
            .saturating_add(time.subsec_nanos().into());
        self.nanoseconds.fetch_add(nanoseconds, Relaxed);
        let bucket = BOUNDS.partition_point(|&bound| bound < nanoseconds);
        let bucket = self.buckets.get(bucket).unwrap_or(&self.above);
        bucket.fetch_add(1, Relaxed);
    }

    /// Returns the number of times.
    #[cfg(test)]
    pub(crate) fn count(&self) -> u64 {
        let buckets = self.buckets.iter().chain([&self.above]);
        buckets.map(|bucket| bucket.load(Relaxed)).sum()
    }

    fn value(&self) -> Value {
        let mut times = RoundTrips::default();
        times.sum = Duration::from_nanos(self.nanoseconds.load(Relaxed));
        times.buckets = self.buckets.each_ref().map(|bucket| bucket.load(Relaxed));
        times.count = times.buckets.iter().sum::<u64>() + self.above.load(Relaxed);
        Value::Histogram(times)
    }

    /// Returns the metrics of several histograms, each with the value of its label.
    pub(crate) fn family(
        name: &'static str,
        help: &'static str,
        label: &'static str,
        all: &[(&'static str, &Self)],
    ) -> Family {
        let samples = all.iter().map(|(value, times)| Sample {
            labels: vec![(label, *value)],
            value: times.value(),
        });
        Family {
            name,
            help,
            kind: Kind::Histogram,
            samples: samples.collect(),
        }
    }
}

/// The times from requests to their final answers, of all sessions.
#[derive(Debug, Default)]
pub(crate) struct AnswerTimes {
    read: Times,
    write: Times,
    other: Times,
}

impl AnswerTimes {
    pub(crate) const fn of(&self, command: Command) -> &Times {
        match command {
            Command::READ => &self.read,
            Command::WRITE => &self.write,
            _ => &self.other,
        }
    }

    pub(crate) fn family(&self) -> Family {
        Times::family(
            "smbdirect_gateway_answer_seconds",
            "Times from a request of a client to the answer of the server, by operation.",
            "operation",
            &[
                ("read", &self.read),
                ("write", &self.write),
                ("other", &self.other),
            ],
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_the_bucket_of_its_bound() {
        let nanosecond = Duration::from_nanos(1);
        for (index, bound) in RoundTrips::BOUNDS.into_iter().enumerate() {
            for (time, expected) in [(bound, index), (bound + nanosecond, index + 1)] {
                let times = Times::default();
                times.record(time);
                let Value::Histogram(found) = times.value() else {
                    panic!("a histogram");
                };
                let bucket = found.buckets.iter().position(|&count| count == 1);
                assert_eq!(bucket.unwrap_or(found.buckets.len()), expected, "{time:?}");
                assert_eq!((found.count, found.sum), (1, time));
            }
        }
    }

    #[test]
    fn a_family_has_a_histogram_for_each_operation() {
        let times = AnswerTimes::default();
        times.read.record(Duration::from_micros(300));
        let family = times.family();
        assert_eq!(family.samples.len(), 3);
        assert_eq!(family.samples[1].labels, [("operation", "write")]);
        let Value::Histogram(read) = &family.samples[0].value else {
            panic!("a histogram");
        };
        assert_eq!((read.count, read.sum), (1, Duration::from_micros(300)));
        assert_eq!(read.buckets.iter().position(|&count| count == 1), Some(5));
    }
}
