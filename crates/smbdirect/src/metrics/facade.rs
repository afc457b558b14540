//! The `metrics` facade: passes every figure to its recorder.

use std::time::Duration;

use super::{
    families::{Kind, ROUND_TRIP, Value},
    snapshot::snapshot,
};

/// Describes every figure to the recorder of the `metrics` facade.
pub fn describe() {
    for family in snapshot().families() {
        let (name, help) = (family.name, family.help);
        match family.kind {
            Kind::Counter => metrics::describe_counter!(name, help),
            // The counters of the facade are whole numbers.
            Kind::Seconds | Kind::Gauge => metrics::describe_gauge!(name, help),
            Kind::Histogram => {
                metrics::describe_histogram!(name, metrics::Unit::Seconds, help);
            }
        }
    }
}

/// Passes every figure to the recorder of the `metrics` facade. Call it before each export.
///
/// The histogram of keepalives needs no call: each round trip is recorded when it ends. That of waits for send
/// credits is only in [`snapshot`]. The counters of the facade are whole numbers, so a total in seconds is a gauge there.
pub fn collect() {
    for family in snapshot().families() {
        for sample in family.samples {
            let labels: Vec<_> = sample
                .labels
                .iter()
                .map(|&(name, value)| metrics::Label::from_static_parts(name, value))
                .collect();
            match (family.kind, sample.value) {
                (Kind::Counter, Value::Number(value)) => {
                    metrics::counter!(family.name, labels).absolute(value as u64);
                }
                (_, Value::Number(value)) => metrics::gauge!(family.name, labels).set(value),
                (_, Value::Histogram(_)) => {}
            }
        }
    }
}

/// Records the round trip of a keepalive in the histogram of the facade.
pub(crate) fn round_trip(time: Duration) {
    metrics::histogram!(ROUND_TRIP).record(time.as_secs_f64());
}
