//! Figures as Prometheus text.

use prometheus::{
    Encoder, TextEncoder,
    proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType},
};
use smbdirect::{
    RoundTrips,
    metrics::{Family, Kind, Sample, Value},
};

/// Returns the figures as Prometheus text.
pub(super) fn encode(families: Vec<Family>) -> String {
    let families: Vec<_> = families.into_iter().map(family).collect();
    let mut text = Vec::new();
    TextEncoder::new()
        .encode(&families, &mut text)
        .expect("each family has a name and samples");
    String::from_utf8(text).expect("names and labels are UTF-8")
}

fn family(family: Family) -> MetricFamily {
    let mut made = MetricFamily::default();
    made.set_name(family.name.into());
    made.set_help(family.help.into());
    made.set_field_type(match family.kind {
        Kind::Counter | Kind::Seconds => MetricType::COUNTER,
        Kind::Gauge => MetricType::GAUGE,
        Kind::Histogram => MetricType::HISTOGRAM,
    });
    let samples = family.samples.iter();
    made.set_metric(samples.map(|sample| metric(family.kind, sample)).collect());
    made
}

fn metric(kind: Kind, sample: &Sample) -> Metric {
    let labels = sample.labels.iter().map(|&(name, value)| {
        let mut label = LabelPair::default();
        label.set_name(name.into());
        label.set_value(value.into());
        label
    });
    let mut metric = Metric::from_label(labels.collect());
    match (kind, sample.value) {
        (_, Value::Histogram(trips)) => metric.set_histogram(histogram(&trips)),
        (Kind::Gauge, Value::Number(value)) => {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        }
        (_, Value::Number(value)) => {
            let mut counter = Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        }
    }
    metric
}

fn histogram(trips: &RoundTrips) -> Histogram {
    let mut sum = 0;
    let buckets = RoundTrips::BOUNDS.iter().zip(trips.buckets);
    let buckets = buckets.map(|(bound, count)| {
        sum += count;
        let mut bucket = Bucket::default();
        bucket.set_upper_bound(bound.as_secs_f64());
        bucket.set_cumulative_count(sum);
        bucket
    });
    let mut histogram = Histogram::default();
    histogram.set_bucket(buckets.collect());
    histogram.set_sample_count(trips.count);
    histogram.set_sample_sum(trips.sum.as_secs_f64());
    histogram
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_kind_has_its_text() {
        let mut trips = RoundTrips::default();
        trips.count = 3;
        trips.sum = Duration::from_millis(1500);
        trips.buckets[0] = 1;
        trips.buckets[2] = 1;
        let histogram = Family {
            name: "smbdirect_c_seconds",
            help: "A histogram.",
            kind: Kind::Histogram,
            samples: vec![Sample {
                labels: Vec::new(),
                value: Value::Histogram(trips),
            }],
        };
        let labelled = [
            (vec![("cause", "violation")], 2.0),
            (vec![("cause", "aborted")], 0.0),
        ];
        let text = encode(vec![
            Family::labelled("smbdirect_a_total", "A counter.", Kind::Counter, labelled),
            Family::single("smbdirect_b_total", "A time.", Kind::Seconds, 1.25),
            histogram,
        ]);
        let start = r#"# HELP smbdirect_a_total A counter.
# TYPE smbdirect_a_total counter
smbdirect_a_total{cause="violation"} 2
smbdirect_a_total{cause="aborted"} 0
# HELP smbdirect_b_total A time.
# TYPE smbdirect_b_total counter
smbdirect_b_total 1.25
# HELP smbdirect_c_seconds A histogram.
# TYPE smbdirect_c_seconds histogram
smbdirect_c_seconds_bucket{le="0.00001"} 1
smbdirect_c_seconds_bucket{le="0.000025"} 1
smbdirect_c_seconds_bucket{le="0.00005"} 2
"#;
        assert!(text.starts_with(start), "{text}");
        for line in [
            "smbdirect_c_seconds_bucket{le=\"+Inf\"} 3\n",
            "smbdirect_c_seconds_sum 1.5\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }
}
