//! What the two directions of a stream share: memory, and the work that waits for the peer.

use std::collections::VecDeque;

use bytes::BytesMut;

use super::{ddp::Untagged, error::StreamError, rdmap::ReadRequest};
use crate::rdma::{
    memory::MemoryTable,
    receive_queue::ReceiveQueue,
    work::{Completion, WorkId, WorkRequest},
};

/// What both directions of a stream touch.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) memory: MemoryTable,
    /// Receives without a message.
    pub(super) receives: ReceiveQueue,
    /// Reads of ours that the peer has been asked for, oldest first.
    pub(super) reads: VecDeque<OutboundRead>,
    /// Reads of the peer's without a whole response, oldest first.
    pub(super) inbound_reads: VecDeque<InboundRead>,
    pub(super) completions: VecDeque<Completion>,
}

/// A Read Request of ours and what has come of its data.
#[derive(Debug)]
pub(super) struct OutboundRead {
    /// `None` for the ready-to-receive frame, which nobody posted.
    pub(super) id: Option<WorkId>,
    pub(super) buffer: BytesMut,
    pub(super) filled: usize,
    pub(super) sink_stag: u32,
}

/// A Read Request of the peer's.
#[derive(Debug)]
pub(super) struct InboundRead {
    pub(super) message_sequence_number: u32,
    pub(super) request: ReadRequest,
}

impl Shared {
    pub(super) fn new() -> Self {
        Self {
            memory: MemoryTable::new(),
            receives: ReceiveQueue::default(),
            reads: VecDeque::new(),
            inbound_reads: VecDeque::new(),
            completions: VecDeque::new(),
        }
    }

    pub(super) fn flush(&mut self, id: WorkId, buffer: Option<BytesMut>) {
        self.completions
            .push_back(Completion::Flushed { id, buffer });
    }

    /// Completes work that has not begun as flushed.
    pub(super) fn flush_work(&mut self, work: WorkRequest) {
        match work {
            WorkRequest::Read { id, into, .. } => self.flush(id, Some(into)),
            WorkRequest::Receive { id, count, .. } => {
                for _ in 0..count {
                    self.flush(id, None);
                }
            }
            other => self.flush(other.id(), None),
        }
    }
}

/// An error together with the segment it was found in.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) error: StreamError,
    /// ULPDU_Length and the first bytes of the ULPDU.
    pub(super) segment: Option<(u16, Vec<u8>)>,
}

impl Fault {
    /// `error` in the segment that is `ulpdu`.
    pub(super) fn within(error: impl Into<StreamError>, ulpdu: &[u8]) -> Self {
        // A Read Request has the longest headers that a Terminate shows.
        let shown = ulpdu.len().min(Untagged::LENGTH + ReadRequest::LENGTH);
        Self {
            error: error.into(),
            segment: Some((ulpdu.len() as u16, ulpdu[..shown].to_vec())),
        }
    }
}

impl From<StreamError> for Fault {
    fn from(error: StreamError) -> Self {
        Self {
            error,
            segment: None,
        }
    }
}
