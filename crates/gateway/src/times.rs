//! How long the server takes to answer, by operation, and how long messages wait for memory.

use std::{
    collections::HashMap,
    sync::{
        Mutex, PoisonError,
        atomic::{
            AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    time::{Duration, Instant},
};

use smbdirect::{
    RoundTrips,
    metrics::{Family, Kind, Sample, Value},
};
use smbdirect_smb::smb2::{Command, Header};

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
    const fn of(&self, command: Command) -> &Times {
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

/// The requests of one session that the server has not answered, by MessageId.
#[derive(Debug, Default)]
pub(super) struct Unanswered(Mutex<HashMap<u64, (Command, Instant)>>);

/// Most requests of a session that are timed at once: more than the SMB2 credits that servers grant. Further ones are
/// not timed, so that a client without respect for credits takes no memory.
const MAX_TIMED: usize = 8192;

impl Unanswered {
    /// Notes a request that has an answer.
    pub(super) fn asked(&self, request: &Header, now: Instant) {
        let mut requests = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if requests.len() < MAX_TIMED {
            requests.insert(request.message_id, (request.command, now));
        }
    }

    /// Notes the final answer to a request, and records its time.
    pub(super) fn answered(&self, answer: &Header, now: Instant, times: &AnswerTimes) {
        let mut requests = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let request = requests.remove(&answer.message_id);
        drop(requests);
        if let Some((command, asked)) = request {
            times
                .of(command)
                .record(now.saturating_duration_since(asked));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(command: Command, message_id: u64) -> Header {
        let mut bytes = smbdirect_test::messages::read(message_id, 0, 9, 0, &[]);
        bytes[12..14].copy_from_slice(&command.0.to_le_bytes());
        Header::decode(&bytes).expect("it is a header")
    }

    fn counts(times: &AnswerTimes) -> [u64; 3] {
        [&times.read, &times.write, &times.other].map(|times| times.count.load(Relaxed))
    }

    #[test]
    fn an_answer_is_timed_by_the_operation_of_its_request() {
        let (unanswered, times) = (Unanswered::default(), AnswerTimes::default());
        let now = Instant::now();
        for (command, id) in [
            (Command::READ, 1),
            (Command::WRITE, 2),
            (Command::SESSION_SETUP, 3),
        ] {
            unanswered.asked(&header(command, id), now);
        }
        let later = now + Duration::from_micros(300);
        for id in [3, 1, 1, 9] {
            unanswered.answered(&header(Command::READ, id), later, &times);
        }
        assert_eq!(counts(&times), [1, 0, 1], "each request once");
        let Value::Histogram(read) = times.read.value() else {
            panic!("a histogram");
        };
        assert_eq!((read.count, read.sum), (1, Duration::from_micros(300)));
        assert_eq!(read.buckets.iter().position(|&count| count == 1), Some(5));
        let family = times.family();
        assert_eq!(family.samples.len(), 3);
        assert_eq!(family.samples[1].labels, [("operation", "write")]);
    }

    #[test]
    fn requests_without_answers_take_a_bounded_amount_of_memory() {
        let unanswered = Unanswered::default();
        let now = Instant::now();
        for id in 0..MAX_TIMED as u64 + 10 {
            unanswered.asked(&header(Command::READ, id), now);
        }
        assert_eq!(unanswered.0.lock().unwrap().len(), MAX_TIMED);
    }
}
