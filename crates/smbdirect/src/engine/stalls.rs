//! [`Stalls`]: the reasons why messages, reads and writes of a connection wait, and the time when each wait
//! began.

use std::time::Instant;

use super::statistics::Statistics;

/// The reasons why the queued work of a connection waits.
///
/// Only the paths on which work waits update this, so it adds nothing to a message that is sent
/// immediately.
#[derive(Clone, Debug, Default)]
pub(super) struct Stalls {
    /// When a message began to wait for a send credit.
    credit: Option<Instant>,
    /// The number of work requests that had been posted when the send queue was last found full.
    full_queue: Option<u64>,
    /// When the keepalive that is unanswered was sent.
    pub(super) keepalive_sent: Option<Instant>,
}

impl Stalls {
    /// Returns the time at which the current wait of a message for a send credit began.
    pub(super) const fn credit(&self) -> Option<Instant> {
        self.credit
    }

    /// Records that a message waits for a send credit.
    #[cold]
    pub(super) fn begin_credit_stall(&mut self, now: Instant, statistics: &mut Statistics) {
        if self.credit.is_none() {
            self.credit = Some(now);
            statistics.credit_stalls += 1;
        }
    }

    /// Records that no message waits for a send credit any more.
    #[cold]
    pub(super) fn end_credit_stall(&mut self, now: Instant, statistics: &mut Statistics) {
        if let Some(since) = self.credit.take() {
            let time = now.saturating_duration_since(since);
            statistics.credit_stall_time += time;
            statistics.credit_waits.record(time);
        }
    }

    /// Records that work waits for a full send queue. `posted` is the number of work requests that
    /// were posted so far: as long as it does not change, this is the same stall.
    pub(super) fn full_send_queue(&mut self, posted: u64, statistics: &mut Statistics) {
        if self.full_queue != Some(posted) {
            self.full_queue = Some(posted);
            statistics.send_queue_stalls += 1;
        }
    }
}
