//! The completions of Sends, Reads and Writes.

use std::collections::VecDeque;

use crate::work::{Completion, WorkId, WorkRequest};

/// The completions of Sends, Reads and Writes that were not polled yet, oldest first.
#[derive(Default)]
pub(super) struct Completions(pub(super) VecDeque<Done>);

/// A completion of one or more work requests.
pub(super) struct Done {
    /// The number of work requests that it completes.
    pub(super) count: usize,
    pub(super) completion: Completion,
}

impl Completions {
    /// Appends the completion of one work request.
    pub(super) fn push(&mut self, completion: Completion) {
        self.0.push_back(Done {
            count: 1,
            completion,
        });
    }

    /// Completes `work` as flushed.
    pub(super) fn flush(&mut self, work: WorkRequest) {
        for completion in work.flushed() {
            self.push(completion);
        }
    }

    /// Appends the completion of `number` Sends, of which `id` is the last. Consecutive Sends are
    /// completed by the last of them.
    pub(super) fn push_sent(&mut self, id: WorkId, number: usize) {
        if let Some(Done {
            count,
            completion: Completion::Sent { id: last },
        }) = self.0.back_mut()
        {
            *last = id;
            *count += number;
            return;
        }
        self.0.push_back(Done {
            count: number,
            completion: Completion::Sent { id },
        });
    }
}
