//! The sums of a connection's time by phase and by cause.

use std::collections::HashMap;

use super::cause::{Cause, Phase};

/// The time of a connection, in nanoseconds.
#[derive(Clone, Debug, Default)]
pub(super) struct Account {
    pub(super) phases: [u64; Phase::ALL.len()],
    pub(super) causes: HashMap<Cause, Total>,
    /// The time for which no cause is named, by phase.
    pub(super) usual: [u64; Phase::ALL.len()],
    /// The sum of outstanding requests times time, while there were any.
    pub(super) outstanding: f64,
    pub(super) outstanding_time: u64,
    pub(super) most_outstanding: u32,
    run: Option<(Cause, Interval)>,
    /// Bytes that were sent for the first time: all, and those in the time that counts for losses.
    bytes: u64,
    bytes_in_loss: u64,
    /// The interval of [`RATE_INTERVAL`] of the last packet, its bytes, and the most bytes of an interval.
    interval: (u64, u64),
    most_bytes: u64,
}

/// The highest rate of a connection is that of an interval of this length, in nanoseconds.
const RATE_INTERVAL: u64 = 10_000_000;
/// A connection whose mean rate is this part of its highest one fills its path, whatever is lost.
const FULL_PART: f64 = 0.8;

/// The time of a cause, and its longest intervals.
#[derive(Clone, Debug, Default)]
pub(super) struct Total {
    pub(super) time: u64,
    pub(super) longest: Vec<Interval>,
}

/// An interval: its duration, and the frames where it begins and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Interval {
    pub(super) time: u64,
    pub(super) frames: [u64; 2],
}

/// Intervals of each cause that are kept as evidence.
const EVIDENCE: usize = 3;

impl Account {
    /// Counts an interval.
    pub(super) fn add(&mut self, phase: Phase, cause: Option<Cause>, time: u64, frames: [u64; 2]) {
        if time == 0 {
            return;
        }
        self.phases[phase as usize] += time;
        let Some(cause) = cause else {
            self.usual[phase as usize] += time;
            self.end_run();
            return;
        };
        self.causes.entry(cause).or_default().time += time;
        match &mut self.run {
            Some((before, interval)) if *before == cause => {
                interval.time += time;
                interval.frames[1] = frames[1];
            }
            _ => {
                self.end_run();
                self.run = Some((cause, Interval { time, frames }));
            }
        }
    }

    /// Counts how many requests are outstanding for some time.
    pub(super) fn outstanding(&mut self, outstanding: i32, time: u64) {
        if let Ok(outstanding @ 1..) = u32::try_from(outstanding) {
            self.outstanding += f64::from(outstanding) * time as f64;
            self.outstanding_time += time;
            self.most_outstanding = self.most_outstanding.max(outstanding);
        }
    }

    /// Counts the bytes of packets at the end of the last interval.
    pub(super) fn packet(&mut self, time: u64, bytes: u32) {
        let bytes = u64::from(bytes);
        self.bytes = self.bytes.saturating_add(bytes);
        if matches!(self.run, Some((Cause::Loss, _))) {
            self.bytes_in_loss = self.bytes_in_loss.saturating_add(bytes);
        }
        let (number, sum) = &mut self.interval;
        if *number != time / RATE_INTERVAL {
            (*number, *sum) = (time / RATE_INTERVAL, 0);
        }
        *sum = sum.saturating_add(bytes);
        self.most_bytes = self.most_bytes.max(*sum);
    }

    /// Returns the part of a time with losses that they have not cost, because the path was full: the bytes that were sent
    /// meanwhile take that time at the highest rate.
    pub(super) fn used_in_loss(&self, time: u64) -> u64 {
        let apart = [Phase::Idle, Phase::Setup, Phase::Unseen];
        let apart = apart.map(|phase| self.phases[phase as usize]);
        let active = self.total().saturating_sub(apart.iter().sum());
        let highest = self.most_bytes.max(1) as f64 / RATE_INTERVAL as f64;
        if (self.bytes as f64) < FULL_PART * highest * active as f64 {
            return 0;
        }
        ((self.bytes_in_loss as f64 / highest) as u64).min(time)
    }

    /// Ends a run of intervals of one cause.
    pub(super) fn end_run(&mut self) {
        let Some((cause, interval)) = self.run.take() else {
            return;
        };
        let longest = &mut self.causes.entry(cause).or_default().longest;
        let at = longest.partition_point(|other| other.time >= interval.time);
        if at < EVIDENCE {
            longest.insert(at, interval);
            longest.truncate(EVIDENCE);
        }
    }

    /// Returns the whole time.
    pub(super) fn total(&self) -> u64 {
        self.phases.iter().sum()
    }
}
