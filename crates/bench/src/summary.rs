//! The results of rows: medians over the samples, round trips, and comparison with plain TCP.

use hdrhistogram::Histogram;

use crate::{plan::Row, work::Sample};

/// All rows, and how steady the machine was.
#[derive(Debug)]
pub struct Summary {
    /// The result of each row.
    pub results: Vec<RowResult>,
    /// Number of samples that were used.
    pub kept: usize,
    /// Number of samples that were dropped: taken at another core distance than most, or while it
    /// changed.
    pub dropped: usize,
    /// Median round trip of a cache line between the cores, in seconds.
    pub between_cores: Option<f64>,
    /// Median share of the core that both ends used together, in rounds in which they shared one core.
    pub core_share: Option<f64>,
}

/// The result of a row: medians over the rounds.
#[derive(Clone, Debug)]
pub struct RowResult {
    /// The row.
    pub row: Row,
    /// Bytes per second: first quartile, median, third quartile.
    pub rate: [f64; 3],
    /// Messages per second.
    pub messages: f64,
    /// CPU seconds per GiB, both ends together.
    pub cpu: Option<f64>,
    /// The round trips, if the row measures those.
    pub round_trips: Option<RoundTrips>,
    /// Number of samples.
    pub samples: usize,
    /// Whether the samples were taken at the usual core distance. If none was, all samples of the
    /// row are used.
    pub usual_distance: bool,
}

/// Bytes of a GiB.
pub const GIB: f64 = (1_u64 << 30) as f64;

impl RowResult {
    /// Summarises the samples of a row.
    ///
    /// # Panics
    /// There is no sample.
    pub fn of(row: Row, samples: &[&Sample]) -> Self {
        let of = |number: fn(&Sample) -> f64| {
            quartiles(samples.iter().map(|sample| number(sample)).collect())
        };
        let cpu: Option<Vec<f64>> = samples
            .iter()
            .map(|sample| Some(sample.cpu? * GIB / sample.bytes as f64))
            .collect();
        Self {
            row,
            rate: of(Sample::bytes_per_second),
            messages: of(|sample| sample.messages as f64 / sample.seconds)[1],
            cpu: cpu.map(|cpu| quartiles(cpu)[1]),
            round_trips: RoundTrips::of(row, samples),
            samples: samples.len(),
            usual_distance: true,
        }
    }

    /// Returns the distance of the quartiles as a fraction of the median.
    pub fn spread(&self) -> f64 {
        (self.rate[2] - self.rate[0]) / self.rate[1]
    }
}

/// The round trips of all bursts of a row, in seconds.
#[derive(Clone, Debug)]
pub struct RoundTrips {
    /// The shortest.
    pub min: f64,
    /// Median over the medians of the bursts.
    pub median: f64,
    /// `None` for a program that reports only a mean.
    pub p99: Option<f64>,
    histogram: Histogram<u64>,
}

impl RoundTrips {
    fn of(row: Row, samples: &[&Sample]) -> Option<Self> {
        if !row.is_latency() {
            return None;
        }
        let new =
            || Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are legal");
        let mut histogram = new();
        let (mut medians, mut p99s) = (Vec::new(), Vec::new());
        for sample in samples {
            let mut one: Histogram<u64> = new();
            for &time in &sample.round_trips {
                one.saturating_record(time);
            }
            if one.is_empty() {
                // The program reports only a mean.
                one.saturating_record((sample.seconds * 1e9 / sample.messages as f64) as u64);
            }
            medians.push(one.value_at_quantile(0.5) as f64 / 1e9);
            p99s.push(one.value_at_quantile(0.99) as f64 / 1e9);
            histogram.add(one).expect("they have the same bounds");
        }
        Some(Self {
            min: histogram.min() as f64 / 1e9,
            median: quartiles(medians)[1],
            p99: row.work().map(|_| quartiles(p99s)[1]),
            histogram,
        })
    }
}

impl RoundTrips {
    /// Returns the longest.
    pub fn max(&self) -> f64 {
        self.histogram.max() as f64 / 1e9
    }

    /// Returns upper bounds in seconds, and the number of round trips up to each that are above the one before: in steps
    /// of a quarter of a power of two, without the empty ends.
    pub fn buckets(&self) -> Vec<(f64, u64)> {
        buckets(&self.histogram)
    }
}

/// Returns a histogram in steps of a quarter of a power of two, without its empty ends.
fn buckets(histogram: &Histogram<u64>) -> Vec<(f64, u64)> {
    let mut buckets = Vec::new();
    let mut counted = 0;
    for step in 0..HISTOGRAM_STEPS {
        let bound = 2_f64.powf(f64::from(step) / 4.0 + MIN_EXPONENT);
        let below = histogram.count_between(0, bound as u64);
        if below > counted || (!buckets.is_empty() && counted < histogram.len()) {
            buckets.push((bound / 1e9, below - counted));
        }
        counted = below;
    }
    buckets
}

/// Lower end of the histogram, in powers of two of nanoseconds: a quarter of a microsecond.
const MIN_EXPONENT: f64 = 8.0;
/// Steps of the histogram: 29 doublings, up to two minutes.
const HISTOGRAM_STEPS: u32 = 4 * 29;

/// Returns first quartile, median and third quartile.
pub(crate) fn quartiles(mut numbers: Vec<f64>) -> [f64; 3] {
    numbers.sort_by(f64::total_cmp);
    let at = |share: f64| {
        let position = share * (numbers.len() - 1) as f64;
        let (low, high) = (
            numbers[position.floor() as usize],
            numbers[position.ceil() as usize],
        );
        low + (high - low) * position.fract()
    };
    [at(0.25), at(0.5), at(0.75)]
}

impl Summary {
    /// Returns the result of a row.
    pub fn result(&self, row: &Row) -> Option<&RowResult> {
        self.results.iter().find(|result| result.row == *row)
    }

    /// Returns the result as a multiple of the result of plain TCP: rate by rate, or round trip by round trip.
    pub fn against_tcp(&self, result: &RowResult, batched: bool) -> Option<f64> {
        let tcp = self.result(&result.row.by_tcp(batched)?)?;
        Some(match (&result.round_trips, &tcp.round_trips) {
            (Some(ours), Some(theirs)) => ours.median / theirs.median,
            _ => result.rate[1] / tcp.rate[1],
        })
    }

    /// Returns the median spread of all rows.
    pub fn spread(&self) -> Option<f64> {
        let spreads: Vec<_> = self.results.iter().map(RowResult::spread).collect();
        (!spreads.is_empty()).then(|| quartiles(spreads)[1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_of_few_and_many_numbers() {
        assert_eq!(quartiles(vec![5.0]), [5.0; 3]);
        assert_eq!(quartiles(vec![3.0, 1.0, 2.0]), [1.5, 2.0, 2.5]);
        assert_eq!(
            quartiles((0..=100).map(f64::from).collect()),
            [25.0, 50.0, 75.0]
        );
    }

    #[test]
    fn a_histogram_has_all_round_trips() {
        let mut histogram = Histogram::new_with_bounds(1, 60_000_000_000, 3).unwrap();
        for nanoseconds in [1, 7_800, 7_900, 33_000, 59_000_000_000_u64] {
            histogram.record(nanoseconds).unwrap();
        }
        let buckets = buckets(&histogram);
        assert_eq!(buckets.iter().map(|(_, count)| count).sum::<u64>(), 5);
        assert!(buckets.is_sorted_by(|a, b| a.0 < b.0));
        assert!(buckets[0].1 > 0 && buckets[buckets.len() - 1].1 > 0);
    }
}
