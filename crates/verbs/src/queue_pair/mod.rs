//! A queue pair: posted work, its completions, and the end of the connection.
//!
//! ```text
//!   post ──> queue ──flush──> send queue, receive queue ──> completion queue ──> Ledger ──> ready
//! ```
//!
//! Messages and small payloads are copied into registered buffers of the pool when they are posted.
//! Larger payloads are registered in place until their work request completes. There is no cache of
//! registrations, because the package cannot detect that a cached range was freed and reused.
//!
//! One completion queue serves both directions. When it is empty, the driver task arms its
//! notification and waits for the channel's file descriptor, so an idle connection costs no CPU
//! time.
//!
//! A connection ends for the reason that is known first: a disconnect by the caller, a completion
//! with a fault, or an event of the connection manager. The adapter then flushes the posted work.
//! Work that it does not flush in time is returned after the queue pair has been destroyed, when the
//! adapter no longer accesses memory of the connection.
//!
//! The files: `raw` (the C objects, with the `unsafe`), `work` (entries of the send queue and their
//! memory), `batch` (entries in the form of C), `submit` (from post to the adapter), `complete`
//! (from the adapter to completions), `wait` (events and timers), `teardown` (the end) and
//! `startup_probe`.

mod batch;
mod complete;
mod raw;
mod startup_probe;
mod submit;
mod teardown;
mod wait;
mod work;

use std::{
    collections::{HashMap, VecDeque},
    fmt, io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use smbdirect::rdma::{
    memory::{DeregisterError, RegisterError, RegisterFault, Registration, in_one_descriptor},
    provider::{Connected, QueuePair},
    work::{
        Access, Completion, Disconnect, Limits, ProviderError, ProviderErrorKind, RemoteAddress,
        Room, Teardown, Token, WorkId, WorkRequest,
    },
};
use tokio::{io::unix::AsyncFd, runtime::Handle, time::Sleep};

use self::{
    raw::{CompletionChannel, Cq, Qp, RESERVED_SEND_ENTRIES},
    startup_probe::StartupProbes,
    work::{RegisteredBuffer, SendEntry},
};
use crate::{
    cm::{CmEvents, CmId, ReadDepths},
    config::VerbsConfig,
    device::Device,
    device_events::DeviceEvents,
    error::{local_error, memory_limit_hint},
    ledger::Ledger,
    memory::{Domain, Pool, Slot},
};

/// `EOPNOTSUPP`, reported for an error that has no error number.
const UNSUPPORTED: i32 = 95;

/// A queue pair of an adapter, with everything that belongs to its connection.
///
/// The order of the fields is the order in which they are dropped: first the queue pair, which lets
/// the adapter access memory, then the memory, then the objects that these depend on.
pub(crate) struct VerbsQueuePair {
    qp: Option<Qp>,
    /// Work that is posted to the adapter and has not completed.
    ledger: Ledger<(WorkId, Slot), SendEntry>,
    /// Sends, Reads, Writes and bindings that are not posted to the adapter yet.
    queue: VecDeque<SendEntry>,
    /// Entries at the front of `queue` that a flush released. They are posted as soon as the
    /// adapter takes them.
    flushed: usize,
    regions: HashMap<Token, RegisteredBuffer>,
    pool: Pool,
    cq: Arc<Cq>,
    domain: Arc<Domain>,
    completions: AsyncFd<Arc<CompletionChannel>>,
    cm_events: Arc<CmEvents>,
    device_events: DeviceEvents,
    id: Arc<CmId>,

    limits: Limits,
    is_iwarp: bool,
    /// Scatter/gather elements of a Send.
    send_elements: u32,
    /// Whether the device has memory windows of type 2.
    has_windows: bool,
    /// Whether the device may bind a window a second time when it retransmits earlier work.
    rebinds_on_retransmit: bool,
    /// The runtime of timers and tasks. Work may be posted from threads without a runtime.
    runtime: Handle,
    busy_poll: Duration,
    close_timeout: Duration,
    /// Internal work in the queue and in the ledger, which does not count against the caller's
    /// room.
    internal_work: usize,
    /// Probes that wake a peer which may have overlooked the first message.
    startup_probes: Option<StartupProbes>,
    /// Entries of the adapter's send queue.
    send_depth: usize,
    /// Completions that the driver task has not taken yet.
    ready: VecDeque<Completion>,
    /// The completions of work that was posted after the teardown began, or that could not be queued.
    late: Vec<Completion>,
    /// Whether the notification of the completion queue is armed.
    is_armed: bool,
    /// Whether the peer is known to be connected, so that Sends may be posted to the adapter.
    is_established: bool,
    /// Whether the connection was accepted and the connection manager has not reported it as
    /// established. Until then a disconnect has no effect.
    awaits_established: bool,
    phase: Phase,
    /// The fault that the device reported for the queue pair or for itself.
    device_fault: Option<ProviderError>,
    /// The deadline of the current phase.
    deadline: Option<Pin<Box<Sleep>>>,
    /// Whether no poll has waited since the phase began. Until then nothing wakes the driver task for the next step or
    /// the deadline of the phase.
    is_phase_new: bool,
}

/// How far the connection has come towards its end.
#[derive(Debug)]
enum Phase {
    /// The connection carries work.
    Open,
    /// A graceful disconnect was requested, and posted work is still being sent.
    Closing,
    /// The queue pair has failed, and the connection manager may report why.
    Failed,
    /// The peer or the device has ended the connection, and messages from before are received.
    Draining(Disconnect),
    /// The connection manager has disconnected, and the adapter flushes the posted work.
    Flushing(Disconnect),
    /// The queue pair is destroyed. The last completion is queued or was taken.
    Ended,
}

impl VerbsQueuePair {
    /// Creates a queue pair that is not connected, on an identifier that is bound to a device.
    pub(crate) fn new(
        id: Arc<CmId>,
        config: &VerbsConfig,
        device: &Device,
    ) -> Result<Self, ProviderError> {
        let failed = |what: &str, error: io::Error| local_error(&format!("{what}: {error}"));
        let cm_events =
            CmEvents::new(id.channel().clone()).map_err(|e| failed("the event channel", e))?;
        let device_events = DeviceEvents::new(&id)?;
        let domain = Domain::new(id.clone()).map_err(|e| failed("a protection domain", e))?;
        let (qp, cq, cap) = Qp::create(&domain, &id, config, device)?;
        device_events.set_objects(qp.objects());
        let completions = cq
            .register_channel()
            .map_err(|e| failed("the completion channel", e))?;
        let limits = Limits {
            max_send_queue: (cap.max_send_wr - RESERVED_SEND_ENTRIES) as usize,
            max_receive_queue: cap.max_recv_wr as usize,
            ..device.limits(config)
        };
        Ok(Self {
            is_iwarp: id.is_iwarp(),
            send_elements: device.send_elements(),
            has_windows: device.memory_windows,
            rebinds_on_retransmit: device.rebinds_on_retransmit,
            runtime: Handle::current(),
            qp: Some(qp),
            ledger: Ledger::default(),
            queue: VecDeque::new(),
            flushed: 0,
            regions: HashMap::new(),
            pool: Pool::new(domain.clone()),
            cq,
            domain,
            completions,
            cm_events: Arc::new(cm_events),
            device_events,
            id,
            limits,
            busy_poll: config.busy_poll,
            close_timeout: config.close_timeout,
            internal_work: 0,
            startup_probes: None,
            send_depth: cap.max_send_wr as usize,
            ready: VecDeque::new(),
            late: Vec::new(),
            is_armed: false,
            is_established: false,
            awaits_established: false,
            phase: Phase::Open,
            device_fault: None,
            deadline: None,
            is_phase_new: false,
        })
    }

    pub(crate) const fn id(&self) -> &Arc<CmId> {
        &self.id
    }

    pub(crate) fn cm_events(&self) -> &CmEvents {
        &self.cm_events
    }

    /// Sets the read depths that both ends agreed on.
    pub(crate) fn set_read_depths(&mut self, depths: ReadDepths) {
        self.limits.max_inbound_reads = depths.inbound.into();
        self.limits.max_outbound_reads = depths.outbound.into();
    }

    /// Marks the connection as established: the peer has accepted this end's request.
    pub(crate) fn set_established(&mut self) {
        self.is_established = true;
        if self.is_iwarp {
            self.startup_probes = Some(StartupProbes::new());
        }
    }

    /// Marks the peer's request as accepted. The connection manager reports later that the
    /// connection is established.
    pub(crate) fn set_accepted(&mut self) {
        self.awaits_established = true;
    }

    /// Returns the queue pair as a connection.
    pub(super) fn connected(
        self,
        local_addr: SocketAddr,
        peer_addr: SocketAddr,
        private_data: Bytes,
    ) -> Connected {
        Connected {
            limits: self.limits,
            is_zero_copy: false,
            // [`VerbsConfig::busy_poll`] sets how long each poll looks for completions.
            poll_window: Duration::ZERO,
            queue_pair: Box::new(self),
            peer_addr,
            local_addr,
            private_data,
        }
    }

    /// Returns whether work may still be posted.
    fn accepts_work(&self) -> bool {
        matches!(self.phase, Phase::Open | Phase::Failed | Phase::Draining(_))
    }
}

impl QueuePair for VerbsQueuePair {
    fn room(&self) -> Room {
        let sends = self.ledger.sends() + self.queue.len() - self.internal_work;
        let receives = self.ledger.receives();
        Room {
            sends: self.limits.max_send_queue.saturating_sub(sends),
            receives: self.limits.max_receive_queue.saturating_sub(receives),
        }
    }

    fn post(&mut self, work: WorkRequest) {
        if matches!(self.phase, Phase::Ended) {
            // The work completes as flushed before the final completion. If that was already
            // taken, the work is dropped.
            if let Some(last @ Completion::Disconnected(_)) = self.ready.pop_back() {
                self.ready.extend(work.flushed());
                self.ready.push_back(last);
            }
            return;
        }
        if !self.accepts_work() {
            self.late.extend(work.flushed());
            return;
        }
        if let Err((flushed, error)) = self.enqueue(work) {
            self.late.extend(flushed);
            let what = format!(
                "memory cannot be registered: {error}{}",
                memory_limit_hint(&error)
            );
            self.fail_connection(ProviderErrorKind::Local, what);
        }
    }

    fn flush(&mut self, _context: &mut Context<'_>, _until: u64) {
        self.flushed = self.queue.len();
        self.post_sends();
    }

    fn poll_completion(&mut self, context: &mut Context<'_>) -> Poll<Completion> {
        loop {
            if let Some(completion) = self.ready.pop_front() {
                return Poll::Ready(completion);
            }
            if matches!(self.phase, Phase::Ended) {
                return Poll::Pending;
            }
            if matches!(self.phase, Phase::Closing) {
                // Work that was posted before a graceful disconnect needs no flush.
                self.flushed = self.queue.len();
            }
            // The send queue may have room since the last flush, or the connection may have been
            // established.
            self.post_sends();
            if self.poll_completion_queue() || self.advance_teardown() || self.busy_poll() {
                continue;
            }
            std::task::ready!(self.poll_wait(context));
        }
    }

    fn needs_poll(&self) -> bool {
        !self.ready.is_empty() || self.is_phase_new
    }

    fn disconnect(&mut self, how: Teardown) {
        match (how, &self.phase) {
            (_, Phase::Ended) => {}
            (
                Teardown::Abort | Teardown::Terminate,
                Phase::Draining(reason) | Phase::Flushing(reason),
            ) => {
                let reason = reason.clone();
                self.id.disconnect();
                self.finish(reason);
            }
            (Teardown::Abort | Teardown::Terminate, _) => {
                self.id.disconnect();
                self.finish(Disconnect::Local);
            }
            (Teardown::Graceful, Phase::Open) => {
                self.set_phase(Phase::Closing, Some(self.close_timeout));
            }
            (Teardown::Graceful, _) => {}
        }
    }

    fn register(
        &mut self,
        buffer: BytesMut,
        access: Access,
    ) -> Result<Registration, RegisterError> {
        let (buffer, length) = in_one_descriptor(buffer)?;
        let offset = buffer.as_ptr() as u64;
        let (buffer, window) = match self.register_buffer(buffer, access) {
            Ok(registered) => registered,
            Err((buffer, error)) => {
                let code = error.raw_os_error().unwrap_or(UNSUPPORTED);
                return Err(RegisterError {
                    buffer,
                    reason: RegisterFault::Provider(code),
                });
            }
        };
        let token = self.token_of(&buffer, window.as_ref());
        if self.regions.contains_key(&token) {
            drop(window);
            return Err(RegisterError {
                // If the adapter does not end the registration, an empty buffer is returned
                // instead.
                buffer: buffer.into_memory().unwrap_or_default(),
                reason: RegisterFault::NoToken,
            });
        }
        self.insert_region(token, buffer, window, access);
        let address = RemoteAddress { token, offset };
        Ok(Registration { address, length })
    }

    fn deregister(&mut self, token: Token) -> Result<BytesMut, DeregisterError> {
        let mut region = self
            .regions
            .remove(&token)
            .ok_or(DeregisterError::Unknown)?;
        if region.is_binding && !self.cancel_queued_binding(token) {
            region.is_deregistered = true;
            self.regions.insert(token, region);
            return Err(DeregisterError::InUse);
        }
        region.window = None;
        region.buffer.into_memory().ok_or_else(|| {
            // The buffer is neither freed nor returned while the peer may write to it.
            self.fail_deregistration();
            DeregisterError::Unknown
        })
    }
}

impl Drop for VerbsQueuePair {
    fn drop(&mut self) {
        self.destroy_queue_pair();
        self.disconnect_when_established();
    }
}

impl fmt::Debug for VerbsQueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerbsQueuePair")
            .field("phase", &self.phase)
            .field("receives", &self.ledger.receives())
            .field("sends", &self.ledger.sends())
            .field("queue", &self.queue.len())
            .finish_non_exhaustive()
    }
}
