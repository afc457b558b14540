//! Figures as Prometheus text.

use std::fmt::Write as _;

use smbdirect::{
    RoundTrips,
    metrics::{Family, Kind, Value},
};

/// The type of the text in HTTP.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4";

/// Returns the figures as Prometheus text. A family without samples has no lines.
pub(super) fn encode(families: &[Family]) -> String {
    let mut text = String::new();
    for family in families.iter().filter(|one| !one.samples.is_empty()) {
        let name = family.name;
        let kind = match family.kind {
            Kind::Counter | Kind::Seconds => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let help = family.help.replace('\\', r"\\").replace('\n', r"\n");
        // A string takes everything that is written.
        let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        for sample in &family.samples {
            let mut line = |of: &str, more: Option<(&str, &str)>, value: &dyn std::fmt::Display| {
                let labels: Vec<_> = sample
                    .labels
                    .iter()
                    .copied()
                    .chain(more)
                    .map(label)
                    .collect();
                let _ = match &labels[..] {
                    [] => writeln!(text, "{name}{of} {value}"),
                    labels => writeln!(text, "{name}{of}{{{}}} {value}", labels.join(",")),
                };
            };
            let trips = match &sample.value {
                Value::Number(number) => {
                    line("", None, number);
                    continue;
                }
                Value::Histogram(trips) => trips,
            };
            let mut sum = 0;
            for (bound, count) in RoundTrips::BOUNDS.iter().zip(trips.buckets) {
                sum += count;
                let bound = bound.as_secs_f64().to_string();
                line("_bucket", Some(("le", &bound)), &sum);
            }
            line("_bucket", Some(("le", "+Inf")), &trips.count);
            line("_sum", None, &trips.sum.as_secs_f64());
            line("_count", None, &trips.count);
        }
    }
    text
}

fn label((name, value): (&str, &str)) -> String {
    let value = value
        .replace('\\', r"\\")
        .replace('"', "\\\"")
        .replace('\n', r"\n");
    format!("{name}=\"{value}\"")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use smbdirect::metrics::Sample;

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
            (vec![("cause", "a\"b\\c\nd")], 0.0),
        ];
        let text = encode(&[
            Family::labelled("smbdirect_none_total", "Nothing.", Kind::Counter, []),
            Family::labelled("smbdirect_a_total", "A counter.", Kind::Counter, labelled),
            Family::single("smbdirect_b_total", "A time.", Kind::Seconds, 1.25),
            histogram,
        ]);
        let start = r#"# HELP smbdirect_a_total A counter.
# TYPE smbdirect_a_total counter
smbdirect_a_total{cause="violation"} 2
smbdirect_a_total{cause="a\"b\\c\nd"} 0
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
