//! Time in which requests are in the server, until it is certain for what it counts.

use super::{
    account::Account,
    cause::{Cause, Phase},
};

/// Intervals in which everything outstanding was in the server, in their order.
#[derive(Debug, Default)]
pub(super) struct Waits {
    intervals: Vec<Wait>,
}

#[derive(Clone, Copy, Debug)]
struct Wait {
    start: u64,
    end: u64,
    phase: Phase,
    cause: Option<Cause>,
    frames: [u64; 2],
}

/// Maximum number of intervals that wait. More than that are of a request that is outstanding for very long.
const MAX_INTERVALS: usize = 4096;

impl Waits {
    /// Adds an interval after all others.
    pub(super) fn add(
        &mut self,
        [start, end]: [u64; 2],
        (phase, cause): (Phase, Option<Cause>),
        frames: [u64; 2],
    ) {
        let is_full = self.intervals.len() >= MAX_INTERVALS;
        match self.intervals.last_mut() {
            Some(last) if is_full => {
                last.end = end;
                last.frames[1] = frames[1];
            }
            _ => self.intervals.push(Wait {
                start,
                end,
                phase,
                cause,
                frames,
            }),
        }
    }

    /// A request that the server had since `asked` was answered, so it was in the server in each interval since then.
    pub(super) fn answered(&mut self, asked: u64, account: &mut Account) {
        for wait in self.since(asked) {
            account.add(wait.phase, wait.cause, wait.end - wait.start, wait.frames);
        }
    }

    /// Counts the intervals since a time for another phase and cause; a wait that the server has announced stays one.
    pub(super) fn end(
        &mut self,
        since: u64,
        phase: Phase,
        cause: Option<Cause>,
        account: &mut Account,
    ) {
        for wait in self.since(since) {
            let (phase, cause) = match wait.cause {
                Some(Cause::AnnouncedWait) if cause.is_some() => (wait.phase, wait.cause),
                _ => (phase, cause),
            };
            account.add(phase, cause, wait.end - wait.start, wait.frames);
        }
    }

    /// Gives the intervals within a time another phase and cause.
    pub(super) fn turn(&mut self, [start, end]: [u64; 2], (phase, cause): (Phase, Cause)) {
        let within = self.intervals.iter_mut().rev();
        let within = within.skip_while(|wait| wait.start >= end);
        for wait in within.take_while(|wait| wait.start >= start) {
            (wait.phase, wait.cause) = (phase, Some(cause));
        }
    }

    /// Removes the intervals since a time.
    fn since(&mut self, time: u64) -> Vec<Wait> {
        let first = self.intervals.partition_point(|wait| wait.start < time);
        self.intervals.split_off(first)
    }
}
