//! The state that the requester and the responder of a queue pair share.

use std::collections::VecDeque;

use bytes::BytesMut;

use crate::{
    memory::MemoryTable,
    roce::packet::{Bth, Extended},
    software::receive_queue::ReceiveQueue,
    work::{Completion, WorkId, WorkRequest},
};

/// The state that the requester and the responder use.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) memory: MemoryTable,
    /// The posted receives that wait for a message.
    pub(super) receives: ReceiveQueue,
    pub(super) completions: VecDeque<Completion>,
}

impl Shared {
    /// Completes a Send. The completion replaces that of a Send that finished immediately before.
    pub(super) fn sent(&mut self, id: WorkId) {
        match self.completions.back_mut() {
            Some(Completion::Sent { id: last }) => *last = id,
            _ => self.completions.push_back(Completion::Sent { id }),
        }
    }

    /// Completes a work request as flushed.
    pub(super) fn flush(&mut self, id: WorkId, buffer: Option<BytesMut>) {
        self.completions
            .push_back(Completion::Flushed { id, buffer });
    }

    /// Completes work that did not finish as flushed.
    pub(super) fn flush_work(&mut self, work: WorkRequest) {
        self.completions.extend(work.flushed());
    }
}

/// Takes packets to send.
pub(super) trait PacketSink {
    /// Takes a packet, whose payload is the two parts together.
    fn push(&mut self, bth: &Bth, extended: &Extended, parts: [&[u8]; 2]);
}
