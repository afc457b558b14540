//! Counters of services that have ended, and of the process that this one has succeeded. They are added to those of the
//! present, so that a counter never goes back.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use smbdirect::metrics::{Family, Kind, Sample, Value};

/// Counters by name and labels. A histogram has its count, its sum and its buckets.
pub type Counters = BTreeMap<String, Vec<f64>>;

static PAST: Mutex<Counters> = Mutex::new(BTreeMap::new());

fn past() -> MutexGuard<'static, Counters> {
    PAST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds the counters of something that ends.
pub fn keep(families: &[Family]) {
    let mut past = past();
    for (key, numbers) in counters(families) {
        add(&mut past, key, &numbers);
    }
}

/// Adds the counters of the process that this one succeeds.
pub fn restore(counters: Counters) {
    let mut past = past();
    for (key, numbers) in counters {
        add(&mut past, key, &numbers);
    }
}

/// Returns these counters together with those of the past.
pub(super) fn with_past(families: &[Family]) -> Counters {
    let mut all = past().clone();
    for (key, numbers) in counters(families) {
        add(&mut all, key, &numbers);
    }
    all
}

/// Adds the counters of the past to those of the present.
pub(super) fn add_to(families: &mut [Family]) {
    let past = past();
    for family in families {
        for sample in &mut family.samples {
            let numbers = past
                .get(&key(family.name, sample))
                .map_or(&[][..], Vec::as_slice);
            match (&mut sample.value, numbers) {
                (Value::Number(number), [more]) if family.kind == Kind::Counter => *number += more,
                (Value::Histogram(times), [count, sum, buckets @ ..]) => {
                    times.count += *count as u64;
                    times.sum += Duration::try_from_secs_f64(*sum).unwrap_or_default();
                    for (bucket, more) in times.buckets.iter_mut().zip(buckets) {
                        *bucket += *more as u64;
                    }
                }
                _ => {}
            }
        }
    }
}

fn key(name: &str, sample: &Sample) -> String {
    format!("{name} {:?}", sample.labels)
}

/// Returns the counters and histograms of this program; those of the process itself begin with it.
fn counters(families: &[Family]) -> impl Iterator<Item = (String, Vec<f64>)> {
    let own = families
        .iter()
        .filter(|family| family.name.starts_with("smbdirect_"));
    own.flat_map(|family| {
        family.samples.iter().filter_map(|sample| {
            let numbers = match &sample.value {
                Value::Number(number) if family.kind == Kind::Counter => vec![*number],
                Value::Number(_) => return None,
                Value::Histogram(times) => {
                    let buckets = times.buckets.iter().map(|&count| count as f64);
                    let head = [times.count as f64, times.sum.as_secs_f64()];
                    head.into_iter().chain(buckets).collect()
                }
            };
            Some((key(family.name, sample), numbers))
        })
    })
}

fn add(all: &mut Counters, key: String, numbers: &[f64]) {
    let sums = all.entry(key).or_default();
    sums.resize(sums.len().max(numbers.len()), 0.0);
    for (sum, number) in sums.iter_mut().zip(numbers) {
        *sum += number;
    }
}
