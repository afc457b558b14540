//! The end of a connection: failures, events of the connection manager, deadlines, and the flush of
//! posted work.

use std::{io, sync::Arc, time::Duration};

use smbdirect::rdma::work::{Completion, Disconnect, ProviderError, ProviderErrorKind};
use tokio::time::{sleep, timeout};
use tracing::{Instrument, debug, trace};

use super::{Phase, VerbsQueuePair, raw::status_text};
use crate::{
    cm::{CmEvent, CmEvents, CmId},
    ffi,
    ledger::Failure,
};

/// Longest time that flushed work may take to complete before the queue pair is destroyed.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest time to wait for the connection manager to report why a queue pair failed.
const FAULT_REPORT_TIMEOUT: Duration = Duration::from_millis(500);

impl VerbsQueuePair {
    /// Handles a work request that failed. A failure ends the connection; a flushed request means
    /// that the queue pair has failed, for a reason that the connection manager may know.
    pub(super) fn handle_failure(&mut self, failure: Failure) {
        match failure {
            Failure::Failed { kind, status } => {
                let text = status_text(self.id.functions(), status);
                self.fail_connection(kind, text);
            }
            Failure::Flushed if matches!(self.phase, Phase::Open | Phase::Closing) => {
                self.await_fault_report();
            }
            Failure::Flushed => {}
        }
    }

    /// Waits a short time for the connection manager to report why the queue pair failed.
    pub(super) fn await_fault_report(&mut self) {
        self.set_phase(Phase::Failed, Some(FAULT_REPORT_TIMEOUT));
    }

    /// Ends the connection for this reason, unless it is ending for an earlier one.
    pub(super) fn fail_connection(&mut self, kind: ProviderErrorKind, what: String) {
        if matches!(
            self.phase,
            Phase::Open | Phase::Closing | Phase::Failed | Phase::Draining(_)
        ) {
            self.start_flush(Disconnect::Broken(ProviderError::new(kind, what)));
        }
    }

    /// Enters a phase, and sets its deadline.
    pub(super) fn set_phase(&mut self, phase: Phase, limit: Option<Duration>) {
        self.is_phase_new = !matches!(phase, Phase::Ended);
        self.phase = phase;
        let _runtime = self.runtime.enter();
        self.deadline = limit.map(|limit| Box::pin(sleep(limit)));
    }

    /// Disconnects, so that the adapter flushes the posted work and the peer learns of the end.
    fn start_flush(&mut self, how: Disconnect) {
        self.id.disconnect();
        self.set_phase(Phase::Flushing(how), Some(FLUSH_TIMEOUT));
    }

    /// Handles an event of the connection manager, or the failure of its channel.
    pub(super) fn handle_cm_event(&mut self, event: io::Result<CmEvent>) {
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                let what = format!("the connection manager is gone: {error}");
                return self.fail_connection(ProviderErrorKind::Local, what);
            }
        };
        self.awaits_established = false;
        let broken = |kind, what: &str| Disconnect::Broken(ProviderError::new(kind, what));
        let how = match event.kind {
            ffi::RDMA_CM_EVENT_ESTABLISHED => {
                self.is_established = true;
                if matches!(self.phase, Phase::Flushing(_)) {
                    // An earlier disconnect had no effect, because the connection was not
                    // established.
                    self.id.disconnect();
                }
                return;
            }
            ffi::RDMA_CM_EVENT_DISCONNECTED => match &self.device_fault {
                Some(fault) => Disconnect::Broken(fault.clone()),
                // Over InfiniBand a peer that disconnects gracefully does not make this end's queue
                // pair fail.
                None if matches!(self.phase, Phase::Failed) && !self.is_iwarp => broken(
                    ProviderErrorKind::Reset,
                    "the queue pair failed, then the peer left",
                ),
                None => Disconnect::Remote,
            },
            ffi::RDMA_CM_EVENT_DEVICE_REMOVAL => {
                broken(ProviderErrorKind::Local, "the RDMA device was removed")
            }
            ffi::RDMA_CM_EVENT_CONNECT_ERROR
            | ffi::RDMA_CM_EVENT_UNREACHABLE
            | ffi::RDMA_CM_EVENT_REJECTED => broken(
                ProviderErrorKind::Reset,
                "the peer gave up before it was connected",
            ),
            kind => {
                self.id
                    .span()
                    .in_scope(|| trace!(kind, "an event of the connection manager is ignored"));
                return;
            }
        };
        match self.phase {
            Phase::Open | Phase::Failed => self.set_phase(Phase::Draining(how), None),
            // The peer disconnected before this end had sent everything.
            Phase::Closing if self.has_sends() => self.set_phase(Phase::Draining(how), None),
            Phase::Closing => self.start_flush(Disconnect::Local),
            Phase::Draining(_) | Phase::Flushing(_) | Phase::Ended => {}
        }
    }

    fn has_sends(&self) -> bool {
        !self.queue.is_empty() || self.ledger.sends() > 0
    }

    /// Takes the next step of the teardown that is possible once the completion queue is empty, and
    /// returns whether there was one.
    pub(super) fn advance_teardown(&mut self) -> bool {
        match &self.phase {
            // The connection manager disconnects established connections only.
            Phase::Closing if self.is_established && !self.has_sends() => {
                self.start_flush(Disconnect::Local);
            }
            // The completion queue is empty, so all that the peer sent has been received.
            Phase::Draining(how) => {
                let how = how.clone();
                self.start_flush(how);
            }
            Phase::Flushing(how) if self.ledger.receives() == 0 && self.ledger.sends() == 0 => {
                let how = how.clone();
                self.finish(how);
            }
            _ => return false,
        }
        true
    }

    /// Handles the deadline of the current phase.
    pub(super) fn handle_deadline(&mut self) {
        let phase = std::mem::replace(&mut self.phase, Phase::Open);
        match phase {
            Phase::Closing => {
                self.id.disconnect();
                self.finish(Disconnect::Local);
            }
            Phase::Failed => {
                let unknown = "the queue pair failed for an unknown reason";
                let fault = self.device_fault.clone();
                let error =
                    fault.unwrap_or_else(|| ProviderError::new(ProviderErrorKind::Reset, unknown));
                self.start_flush(Disconnect::Broken(error));
            }
            Phase::Flushing(how) => {
                let (receives, sends) = (self.ledger.receives(), self.ledger.sends());
                self.id
                    .span()
                    .in_scope(|| debug!(receives, sends, "the adapter does not flush"));
                self.finish(how);
            }
            Phase::Open | Phase::Draining(_) | Phase::Ended => self.phase = phase,
        }
    }

    /// Ends the connection: destroys the queue pair, and returns all work as flushed.
    pub(super) fn finish(&mut self, how: Disconnect) {
        self.destroy_queue_pair();
        self.disconnect_when_established();
        while let Some((id, slot)) = self.ledger.take_receive() {
            self.pool.put(slot);
            self.ready
                .push_back(Completion::Flushed { id, buffer: None });
        }
        while let Some(entry) = self.ledger.take_send() {
            self.flush_entry(entry);
        }
        self.flushed = 0;
        for entry in std::mem::take(&mut self.queue) {
            self.flush_entry(entry);
        }
        self.ready.extend(self.late.drain(..));
        self.ready.push_back(Completion::Disconnected(how));
        self.set_phase(Phase::Ended, None);
    }

    /// Starts a task that disconnects an accepted connection once it is established, if it is not
    /// yet: an earlier disconnect has no effect, and the peer would not learn of the end.
    pub(super) fn disconnect_when_established(&mut self) {
        if std::mem::take(&mut self.awaits_established) {
            let (events, id) = (self.cm_events.clone(), self.id.clone());
            let span = id.span().clone();
            let task = disconnect_after_event(events, id, self.close_timeout);
            self.runtime.spawn(task.instrument(span));
        }
    }

    /// Destroys the queue pair, after which the adapter does not access memory of the connection.
    pub(super) fn destroy_queue_pair(&mut self) {
        // rxe does not destroy a queue pair while a window is bound to it.
        for region in self.regions.values_mut() {
            region.window = None;
        }
        self.qp = None;
    }
}

/// Disconnects after the next event of the connection manager, or after `limit`.
async fn disconnect_after_event(events: Arc<CmEvents>, id: Arc<CmId>, limit: Duration) {
    if timeout(limit, events.next()).await.is_err() {
        debug!("the connection manager did not report the outcome of a connection");
    }
    id.disconnect();
}

#[cfg(test)]
mod tests {
    use std::{
        ffi::c_int,
        fs::File,
        io::{Read, Write},
        mem::{ManuallyDrop, MaybeUninit},
        os::{
            fd::{AsRawFd, FromRawFd},
            unix::net::UnixStream,
        },
        sync::atomic::{AtomicUsize, Ordering},
    };

    use super::*;
    use crate::ffi::{Functions, rdma_cm_event, rdma_cm_id, rdma_event_channel};

    /// Calls of `rdma_disconnect`. Only one test uses it.
    static DISCONNECTS: AtomicUsize = AtomicUsize::new(0);

    /// Reads an event from the descriptor of the channel, on which the fake connection manager
    /// writes its kind as one byte.
    unsafe extern "C" fn get_event(
        channel: *mut rdma_event_channel,
        event: *mut *mut rdma_cm_event,
    ) -> c_int {
        let mut kind = [0];
        // SAFETY: the channel is the fake one of the test, which keeps the descriptor open.
        let fd = ManuallyDrop::new(unsafe { File::from_raw_fd((*channel).fd) });
        // A failed read sets `errno`, as the real function does.
        if !matches!((&*fd).read(&mut kind), Ok(1)) {
            return -1;
        }
        // SAFETY: the event consists of pointers, which may be null, and numbers.
        let mut read: Box<rdma_cm_event> = unsafe { Box::new(MaybeUninit::zeroed().assume_init()) };
        read.event = kind[0].into();
        // SAFETY: the caller provides memory for the pointer.
        unsafe { *event = Box::into_raw(read) };
        0
    }

    unsafe extern "C" fn ack_event(event: *mut rdma_cm_event) -> c_int {
        // SAFETY: `get_event` allocated it, and it is acknowledged once.
        drop(unsafe { Box::from_raw(event) });
        0
    }

    unsafe extern "C" fn disconnect(_: *mut rdma_cm_id) -> c_int {
        DISCONNECTS.fetch_add(1, Ordering::SeqCst);
        0
    }

    #[tokio::test]
    async fn disconnect_waits_for_the_established_event_or_the_timeout() {
        let (mut manager, end) = UnixStream::pair().unwrap();
        end.set_nonblocking(true).unwrap();
        let spawn = |limit: Duration| {
            let mut functions = Functions::none();
            functions.rdma_get_cm_event = get_event;
            functions.rdma_ack_cm_event = ack_event;
            functions.rdma_disconnect = disconnect;
            let id = CmId::fake_at(functions, end.as_raw_fd());
            let events = Arc::new(CmEvents::new(id.channel().clone()).unwrap());
            tokio::spawn(disconnect_after_event(events, id, limit))
        };
        let waiting = spawn(Duration::from_secs(60));
        sleep(Duration::from_millis(20)).await;
        assert_eq!(DISCONNECTS.load(Ordering::SeqCst), 0);
        manager
            .write_all(&[ffi::RDMA_CM_EVENT_ESTABLISHED as u8])
            .unwrap();
        let soon = |task| timeout(Duration::from_secs(10), task);
        soon(waiting).await.unwrap().unwrap();
        assert_eq!(DISCONNECTS.load(Ordering::SeqCst), 1);
        let waiting = spawn(Duration::from_millis(1));
        soon(waiting).await.unwrap().unwrap();
        assert_eq!(DISCONNECTS.load(Ordering::SeqCst), 2);
    }
}
