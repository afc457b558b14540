//! Judges the rates that were measured: what limits each, and whether SMB Direct is faster than TCP.

mod limit;

#[cfg(test)]
mod tests;

use std::time::Duration;

use smbdirect_transport::text;

use self::limit::Figures;
use crate::{
    facts::{Measured, Measurement},
    measurement::{Comparison, Limited, Operation, Rate, Speed, TransportSpeed},
};

/// Above this ratio of two rates one is called faster. Rates of a second each differ by a few percent between runs.
const CLEAR_RATIO: f64 = 1.1;

/// A first read that ended sooner measures how requests begin, and not the disk.
const MIN_FIRST_READ_SECONDS: f64 = 0.1;

/// A longer time without an answer is a stall.
const STALL_SECONDS: f64 = 0.5;

/// Draws the conclusions from a measurement.
pub(super) fn explain(measurement: &Measurement) -> Speed {
    let path = path(measurement);
    let transports: Vec<TransportSpeed> = measurement
        .transports
        .iter()
        .map(|measured| TransportSpeed {
            name: name(measured),
            rates: measured.rates.clone(),
            limits: limits(measured, measurement),
            failure: measured.failure.clone(),
        })
        .collect();
    let comparisons = comparisons(measurement, &transports);
    let mut sentences: Vec<String> = comparisons
        .iter()
        .map(|comparison| comparison.sentence.clone())
        .collect();
    if comparisons.is_empty() {
        sentences.extend(transports.iter().flat_map(limits_in_words));
    }
    sentences.extend(transports.iter().filter_map(stall));
    if measurement.is_cut_short {
        sentences.push("The time was over before everything was measured.".into());
    }
    sentences.extend(measurement.left.iter().map(|path| {
        format!(
            "The connection ended before the scratch file {path} was closed: if the server has not deleted it, delete it."
        )
    }));
    Speed {
        sentences,
        path,
        path_sentence: path_sentence(measurement),
        transports,
        comparisons,
    }
}

/// Says for how long the server answered nothing, if that is longer than a disk or a lost packet takes.
fn stall(speed: &TransportSpeed) -> Option<String> {
    let longest = speed
        .rates
        .iter()
        .max_by(|one, other| one.longest_wait.total_cmp(&other.longest_wait))?;
    (longest.longest_wait >= STALL_SECONDS).then(|| {
        format!(
            "The server answered nothing for {:.1} s over {} ({} of {} bytes): the rates include that.",
            longest.longest_wait,
            speed.name,
            longest.operation.name(),
            longest.request_bytes
        )
    })
}

fn path(measurement: &Measurement) -> Option<f64> {
    measurement.path.as_ref()?.as_ref().ok().copied()
}

fn path_sentence(measurement: &Measurement) -> String {
    match &measurement.path {
        Some(Ok(rate)) => format!(
            "The path carries {} to the server by SMB Direct without SMB.",
            in_words(*rate)
        ),
        Some(Err(why)) => format!("What the path carries is unknown: {why}."),
        None => "What the path carries is unknown: no `smbdirect listen --sink` was named, as in \
                 //HOST:PORT/SHARE."
            .into(),
    }
}

fn name(measured: &Measured) -> String {
    if measured.fabric.is_some() {
        format!("SMB Direct by {}", measured.by)
    } else {
        measured.by.clone()
    }
}

/// Returns the rate of the largest requests of this operation, with one or with the most outstanding.
fn large(measured: &Measured, operation: Operation, is_many: bool) -> Option<&Rate> {
    let of_operation = || {
        let rates = measured.rates.iter();
        rates.filter(move |rate| rate.operation == operation)
    };
    let bytes = of_operation().map(|rate| rate.request_bytes).max()?;
    let mut large = of_operation().filter(|rate| rate.request_bytes == bytes);
    large.find(|rate| (rate.outstanding > 1) == is_many)
}

/// Returns what limits large requests over a transport.
fn limits(measured: &Measured, measurement: &Measurement) -> Vec<Limited> {
    let mut limits = Vec::new();
    for operation in [Operation::Write, Operation::Read] {
        let Some(figures) = figures(measured, operation, measurement) else {
            continue;
        };
        let limit = figures.limit_of_many();
        limits.push(Limited {
            operation,
            outstanding: figures.outstanding,
            limit,
            because: figures.because(limit),
        });
        if let Some(limit) = figures.limit_of_one() {
            limits.push(Limited {
                operation,
                outstanding: 1,
                limit,
                because: figures.because(limit),
            });
        }
    }
    limits
}

fn figures(
    measured: &Measured,
    operation: Operation,
    measurement: &Measurement,
) -> Option<Figures> {
    let many = large(measured, operation, true)?;
    let one = large(measured, operation, false).map(|rate| rate.bytes_per_second);
    let first = match operation {
        Operation::Read => large(measured, Operation::FirstRead, true),
        Operation::Write | Operation::FirstRead => None,
    };
    let first = first.filter(|rate| rate.seconds >= MIN_FIRST_READ_SECONDS);
    let others = measurement.transports.iter();
    let others = others.filter(|other| *other != measured);
    let others = others.filter_map(|other| large(other, operation, true));
    let best_elsewhere = others.map(|rate| rate.bytes_per_second);
    Some(Figures {
        one,
        many: many.bytes_per_second,
        first_read: first.map(|rate| rate.bytes_per_second),
        path: path(measurement).filter(|_| operation == Operation::Write),
        best_elsewhere: best_elsewhere.fold(0.0, f64::max),
        busiest_thread: many.busiest_thread,
        machine_busy: many.machine_busy,
        credit_wait: many.credit_wait,
        smb2_credits: measured.smb2_credits,
        request_bytes: many.request_bytes,
        outstanding: many.outstanding,
        is_by_rdma: many.bytes_by_rdma > 0,
        signs: measured.signs,
        in_messages: measured.in_messages.clone(),
    })
}

/// Compares each kind of SMB Direct with TCP.
fn comparisons(measurement: &Measurement, transports: &[TransportSpeed]) -> Vec<Comparison> {
    let both = || measurement.transports.iter().zip(transports);
    let Some((tcp, _)) = both().find(|(measured, _)| measured.fabric.is_none()) else {
        return Vec::new();
    };
    let mut comparisons = Vec::new();
    for (measured, speed) in both().filter(|(measured, _)| measured.fabric.is_some()) {
        for operation in [Operation::Write, Operation::Read] {
            let rates = large(measured, operation, true).zip(large(tcp, operation, true));
            let limit = speed.limits.iter();
            let mut limit = limit.filter(|limit| limit.outstanding > 1);
            let limit = limit.find(|limit| limit.operation == operation);
            if let (Some((direct, tcp)), Some(limit)) = (rates, limit) {
                let ratio = direct.bytes_per_second / tcp.bytes_per_second;
                comparisons.push(Comparison {
                    transport: speed.name.clone(),
                    operation,
                    ratio,
                    sentence: compared(&speed.name, limit, direct, tcp),
                });
            }
        }
    }
    // The slow ones are what the user asks about.
    comparisons.sort_by(|one, other| one.ratio.total_cmp(&other.ratio));
    comparisons
}

fn compared(name: &str, limited: &Limited, direct: &Rate, tcp: &Rate) -> String {
    let Limited {
        operation, because, ..
    } = limited;
    let (rate, of_tcp) = (direct.bytes_per_second, tcp.bytes_per_second);
    let both = format!("{} and {}", in_words(rate), in_words(of_tcp));
    let verb = operation.name();
    if rate * CLEAR_RATIO < of_tcp {
        format!("{name} is slower than TCP here ({verb}: {both}), because of {because}.")
    } else if rate > of_tcp * CLEAR_RATIO {
        let times = rate / of_tcp;
        format!(
            "{name} is {times:.1} times as fast as TCP ({verb}: {both}); it is limited by {because}."
        )
    } else {
        format!("{name} is as fast as TCP ({verb}: {both}); it is limited by {because}.")
    }
}

/// Returns the limits of a transport that is compared with no other.
fn limits_in_words(speed: &TransportSpeed) -> Vec<String> {
    let many = speed.limits.iter().filter(|limit| limit.outstanding > 1);
    many.map(|limited| {
        let rate = speed.rates.iter().filter(|rate| {
            rate.operation == limited.operation && rate.outstanding == limited.outstanding
        });
        let rate = rate.max_by_key(|rate| rate.request_bytes);
        let rate = rate.map_or(0.0, |rate| rate.bytes_per_second);
        format!(
            "{} ({}: {}) is limited by {}.",
            speed.name,
            limited.operation.name(),
            in_words(rate),
            limited.because
        )
    })
    .collect()
}

/// Returns a rate for people.
pub(super) fn in_words(bytes_per_second: f64) -> String {
    text::rate(bytes_per_second as u64, Duration::from_secs(1))
}
