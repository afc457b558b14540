//! The state that both directions of a stream share: memory, and the work that waits for the peer.

use std::collections::VecDeque;

use bytes::BytesMut;

use super::{ddp::Untagged, error::StreamError, rdmap::ReadRequest};
use crate::{
    memory::MemoryTable,
    software::receive_queue::ReceiveQueue,
    work::{Completion, WorkId, WorkRequest},
};

/// The state that both directions of a stream use.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) memory: MemoryTable,
    /// The posted receives that wait for a message.
    pub(super) receives: ReceiveQueue,
    /// The RDMA Reads of this end whose request is sent, oldest first.
    pub(super) reads: VecDeque<OutboundRead>,
    /// The RDMA Reads of the peer whose response is incomplete, oldest first.
    pub(super) inbound_reads: VecDeque<InboundRead>,
    pub(super) completions: VecDeque<Completion>,
}

/// An RDMA Read of this end, and the data that has arrived for it.
#[derive(Debug)]
pub(super) struct OutboundRead {
    /// The identifier of the work request; `None` for the ready-to-receive frame, which was not
    /// posted.
    pub(super) id: Option<WorkId>,
    pub(super) buffer: BytesMut,
    /// The bytes of `buffer` that have arrived.
    pub(super) filled: usize,
    pub(super) sink_stag: u32,
}

/// An RDMA Read of the peer.
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

    /// Completes a work request as flushed.
    pub(super) fn flush(&mut self, id: WorkId, buffer: Option<BytesMut>) {
        self.completions
            .push_back(Completion::Flushed { id, buffer });
    }

    /// Completes work that was not started as flushed.
    pub(super) fn flush_work(&mut self, work: WorkRequest) {
        self.completions.extend(work.flushed());
    }
}

/// An error and the segment in which it was found.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) error: StreamError,
    /// The ULPDU_Length and the first bytes of the ULPDU.
    pub(super) segment: Option<(u16, Vec<u8>)>,
}

impl Fault {
    /// Creates the fault of `error` in the segment `ulpdu`.
    pub(super) fn within(error: impl Into<StreamError>, ulpdu: &[u8]) -> Self {
        // A Read Request has the longest headers that a Terminate copies.
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
