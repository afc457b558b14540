//! Histograms: how long the server takes to answer, by operation, and how long sessions wait, by cause.

use std::{
    sync::atomic::{
        AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
    time::Duration,
};

use smbdirect::{
    RoundTrips,
    metrics::{Family, Kind, Sample, Value},
};
use smbdirect_smb::smb2::Command;

/// A histogram of times that tasks share.
#[derive(Debug, Default)]
pub(super) struct Times {
    count: AtomicU64,
    nanoseconds: AtomicU64,
    buckets: [AtomicU64; RoundTrips::BOUNDS.len()],
}

impl Times {
    pub(super) fn record(&self, time: Duration) {
        self.count.fetch_add(1, Relaxed);
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds.fetch_add(nanoseconds, Relaxed);
        let bucket = RoundTrips::BOUNDS.iter().position(|&bound| time <= bound);
        if let Some(bucket) = bucket {
            self.buckets[bucket].fetch_add(1, Release);
        }
    }

    /// Returns the number of times.
    #[cfg(test)]
    pub(super) fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    fn value(&self) -> Value {
        let mut times = RoundTrips::default();
        times.sum = Duration::from_nanos(self.nanoseconds.load(Relaxed));
        // First, because the number of all must not be less than that of the buckets.
        times.buckets = self.buckets.each_ref().map(|bucket| bucket.load(Acquire));
        times.count = self.count.load(Relaxed);
        Value::Histogram(times)
    }

    /// Returns the metrics of several histograms, each with the value of its label.
    pub(super) fn family(
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
pub(super) struct AnswerTimes {
    read: Times,
    write: Times,
    other: Times,
}

impl AnswerTimes {
    pub(super) const fn of(&self, command: Command) -> &Times {
        match command {
            Command::READ => &self.read,
            Command::WRITE => &self.write,
            _ => &self.other,
        }
    }

    pub(super) fn family(&self) -> Family {
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
