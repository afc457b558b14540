//! The queue pair: one end of a connection.

use std::{
    fmt, mem,
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::{Bytes, BytesMut};

use super::{
    completions::{Completions, Done},
    exchange::{CachePadded, SharedPair},
    lock::{lock, wake},
    staging::{Batch, CHUNKS, Staging},
};
use crate::{
    memory::{DeregisterError, RegisterError, Registration},
    provider::{Connected, QueuePair, Usage},
    software::pool::Account,
    software::receive_queue::{ReceiveQueue, Receives},
    work::{
        Access, Completion, Disconnect, Limits, ProviderError, ProviderErrorKind, Room, Teardown,
        Token, WorkRequest,
    },
};

/// How long an end polls before it sleeps: about the time of a wake-up in a virtual machine.
const POLL_WINDOW: Duration = Duration::from_micros(100);

/// One end of a connection.
pub(super) struct LoopbackQueuePair {
    limits: Limits,
    side: usize,
    shared: Arc<SharedPair>,
    /// Whether the last poll found nothing, so that the owner need not poll before the other end rings the
    /// doorbell.
    waits: bool,
    /// The bytes sent and the bytes received so far.
    pub(super) moved_bytes: [u64; 2],
    /// The work that waits for a flush.
    staging: Staging,
    /// Counts the memory of received messages that have readers.
    lent: Account,
    /// The receives whose message was not taken yet.
    receives: ReceiveQueue,
    /// The messages that have arrived and were not taken yet.
    arrived: Box<Batch>,
    /// Whether the head of the oldest message in `arrived` was taken.
    head_is_taken: bool,
    /// The completions of Sends, Reads and Writes that were not taken yet.
    completions: Completions,
    /// The disconnect to report after the last completion.
    disconnect: Option<Disconnect>,
    /// Whether the connection has ended and all posted work is completed.
    has_ended: bool,
    /// The number of Sends, Reads and Writes whose completion was not taken yet. The limit on this number bounds
    /// the memory of this end.
    sends_outstanding: usize,
}

impl LoopbackQueuePair {
    /// Creates the two ends of a connection.
    pub(super) fn pair(limits: [Limits; 2]) -> [Self; 2] {
        let shared = Arc::new(SharedPair::default());
        let accounts = [Account::default(), Account::default()];
        [0, 1].map(|side| Self {
            limits: limits[side],
            side,
            shared: Arc::clone(&shared),
            waits: false,
            moved_bytes: [0; 2],
            staging: Staging::new(accounts[side].clone()),
            lent: accounts[1 - side].clone(),
            receives: ReceiveQueue::default(),
            arrived: Box::default(),
            head_is_taken: false,
            completions: Completions::default(),
            disconnect: None,
            has_ended: false,
            sends_outstanding: 0,
        })
    }

    /// Returns this end as a connection.
    pub(super) fn connected(
        self,
        local_addr: SocketAddr,
        peer_addr: SocketAddr,
        private_data: Bytes,
    ) -> Connected {
        Connected {
            limits: self.limits,
            is_zero_copy: true,
            poll_window: POLL_WINDOW,
            queue_pair: Box::new(self),
            peer_addr,
            local_addr,
            private_data,
        }
    }

    /// Makes the posted receives available to the other end.
    pub(super) fn publish_receives(&mut self) {
        lock(&self.shared.pair.0).deliver(1 - self.side, &mut self.staging.batch);
    }

    /// Executes all posted work, and wakes the other end if it has completions to take.
    fn execute(&mut self) {
        self.staging.prepare();
        let mut pair = self.shared.lock();
        let has_messages = pair.execute(self.side, &mut self.staging, &mut self.completions);
        let mut waker = None;
        if pair.ended {
            self.shared.ring(self.side);
        }
        if has_messages || pair.ended {
            self.shared.ring(1 - self.side);
            waker = pair.wakers[1 - self.side].take();
        }
        drop(pair);
        wake(waker);
    }

    /// Collects what the other end has delivered. Returns false if there is nothing.
    fn collect(&mut self, context: &mut Context<'_>) -> bool {
        let CachePadded(doorbell) = &self.shared.doorbells[self.side];
        if !doorbell.load(Ordering::Acquire) && context.waker().will_wake(Waker::noop()) {
            self.waits = true;
            return false;
        }
        let mut pair = self.shared.lock();
        doorbell.store(false, Ordering::Relaxed);
        self.waits = false;
        if mem::take(&mut pair.has_delivery[self.side]) {
            mem::swap(&mut pair.delivered[self.side], &mut self.arrived);
        }
        let mut old = None;
        if pair.ended {
            self.disconnect = pair.disconnects[self.side].take();
            drop(pair);
            self.flush_staging();
        } else if self.arrived.messages.is_empty() {
            old = pair.wakers[self.side].replace(context.waker().clone());
            self.waits = true;
            drop(pair);
            self.staging.release_chunk();
        }
        drop(old);
        self.staging.receives.append(&mut self.arrived.receives);
        !self.arrived.messages.is_empty() || self.has_ended
    }

    /// Completes posted work as flushed, because the connection has ended.
    fn flush_staging(&mut self) {
        self.has_ended = true;
        let staging = mem::take(&mut self.staging);
        for id in staging.sends {
            self.completions
                .push(Completion::Flushed { id, buffer: None });
        }
        for work in staging.work {
            self.completions.flush(work);
        }
    }

    /// Takes the oldest message that has arrived, or else the oldest other completion.
    #[inline(always)]
    fn take(&mut self) -> Option<Completion> {
        let arrival = self
            .arrived
            .take(&mut self.receives, &mut self.head_is_taken);
        if let Some(arrival) = arrival {
            self.moved_bytes[1] += match &arrival {
                Completion::Head(head) => head.len() as u64,
                Completion::Received { message, .. } => message.len() as u64,
                _ => 0,
            };
            return Some(arrival);
        }
        self.take_done()
    }

    /// Takes the oldest completion other than a message. The disconnect is the last.
    fn take_done(&mut self) -> Option<Completion> {
        if let Some(Done { count, completion }) = self.completions.0.pop_front() {
            self.sends_outstanding -= count;
            return Some(completion);
        }
        if !self.has_ended {
            return None;
        }
        match self.receives.pop() {
            Some(id) => Some(Completion::Flushed { id, buffer: None }),
            None => self.disconnect.take().map(Completion::Disconnected),
        }
    }
}

impl QueuePair for LoopbackQueuePair {
    fn room(&self) -> Room {
        let Limits {
            max_send_queue,
            max_receive_queue,
            ..
        } = self.limits;
        Room {
            sends: max_send_queue.saturating_sub(self.sends_outstanding),
            receives: max_receive_queue.saturating_sub(self.receives.len()),
        }
    }

    fn post(&mut self, work: WorkRequest) {
        check_against_limits(&work, &self.limits);
        if self.has_ended && self.disconnect.is_none() {
            // No completion follows the Disconnected that was taken.
            return;
        }
        self.moved_bytes[0] += bytes_of(&work) as u64;
        match work {
            WorkRequest::Receive { id, length, count } => {
                let receives = Receives { id, length, count };
                self.receives.post(receives);
                if !self.has_ended {
                    self.staging.batch.receives.push_back(receives);
                }
            }
            work => {
                self.sends_outstanding += 1;
                if self.has_ended {
                    self.completions.flush(work);
                } else {
                    self.staging.work.push_back(work);
                }
            }
        }
    }

    fn flush(&mut self, _context: &mut Context<'_>, _until: u64) {
        if !self.staging.is_empty() {
            self.execute();
        }
    }

    fn poll_completion(&mut self, context: &mut Context<'_>) -> Poll<Completion> {
        if let Some(completion) = self.take() {
            return Poll::Ready(completion);
        }
        if self.has_ended || !self.collect(context) {
            return Poll::Pending;
        }
        self.take().map_or(Poll::Pending, Poll::Ready)
    }

    fn needs_poll(&self) -> bool {
        let CachePadded(doorbell) = &self.shared.doorbells[self.side];
        !self.completions.0.is_empty()
            || !self.arrived.messages.is_empty()
            || self.disconnect.is_some()
            || !self.has_ended && (!self.waits || doorbell.load(Ordering::Relaxed))
    }

    fn usage(&self) -> Usage {
        let [sent, received] = self.moved_bytes;
        Usage {
            sent,
            received,
            lent: self.lent.in_use(&[&CHUNKS]),
        }
    }

    fn change_runtime(&mut self) -> bool {
        true
    }

    fn disconnect(&mut self, how: Teardown) {
        let there = match how {
            Teardown::Graceful => {
                self.execute();
                Disconnect::Remote
            }
            Teardown::Abort | Teardown::Terminate => {
                if how == Teardown::Terminate {
                    self.execute();
                }
                let what = "the peer aborted the connection";
                Disconnect::Broken(ProviderError::new(ProviderErrorKind::Reset, what))
            }
        };
        let mut pair = lock(&self.shared.pair.0);
        pair.end(self.side, Disconnect::Local, there);
        (0..2).for_each(|side| self.shared.ring(side));
        let wakers = mem::take(&mut pair.wakers);
        drop(pair);
        wakers.into_iter().for_each(wake);
    }

    fn register(
        &mut self,
        buffer: BytesMut,
        access: Access,
    ) -> Result<Registration, RegisterError> {
        let mut pair = lock(&self.shared.pair.0);
        pair.memory[self.side].register(buffer, access)
    }

    fn deregister(&mut self, token: Token) -> Result<BytesMut, DeregisterError> {
        lock(&self.shared.pair.0).memory[self.side].deregister(token)
    }
}

impl Drop for LoopbackQueuePair {
    fn drop(&mut self) {
        self.disconnect(Teardown::Abort);
        let mut pair = lock(&self.shared.pair.0);
        let memory = mem::take(&mut pair.memory[self.side]);
        let delivered = mem::take(&mut pair.delivered[self.side]);
        drop(pair);
        // Buffers may be large, so they are freed without the lock.
        drop((memory, delivered));
    }
}

impl fmt::Debug for LoopbackQueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoopbackQueuePair")
            .field("side", &self.side)
            .finish_non_exhaustive()
    }
}

/// Returns the number of payload bytes that `work` moves.
fn bytes_of(work: &WorkRequest) -> usize {
    match work {
        WorkRequest::Receive { .. } => 0,
        WorkRequest::Send {
            header, payload, ..
        } => header.as_slice().len() + payload.len(),
        WorkRequest::Read { into, .. } => into.len(),
        WorkRequest::Write { data, .. } => data.len(),
    }
}

/// Panics if `work` exceeds `limits`: the caller knows them, so this is a bug and not a fault of
/// the peer.
fn check_against_limits(work: &WorkRequest, limits: &Limits) {
    let transfer = match work {
        WorkRequest::Receive { .. } => 0,
        WorkRequest::Send { invalidate, .. } => {
            let allowed = limits.send_with_invalidate || invalidate.is_none();
            assert!(
                allowed,
                "this connection does not support Send with Invalidate"
            );
            0
        }
        WorkRequest::Read { into, .. } => {
            assert!(
                limits.max_outbound_reads > 0,
                "this connection does not support Reads"
            );
            into.len()
        }
        WorkRequest::Write { data, .. } => data.len(),
    };
    assert!(
        transfer <= limits.max_transfer as usize,
        "a transfer of {transfer} bytes"
    );
}
