//! A queue pair: work requests in, completions out, and the end of the connection.
//!
//! ```text
//!   post ──> queue ──flush──> send queue, receive queue ──> completion queue ──> Ledger ──> ready
//! ```
//!
//! Messages and small payloads are copied into registered buffers of the pool when they are
//! posted; larger ones are registered where they are, for the time of the work request. There is
//! no cache of registrations: memory that was freed, and means something else by now, cannot be
//! told from memory that was not.
//!
//! One completion queue serves both directions. When it is empty its notification is armed and
//! the channel's file descriptor waited for, so an idle connection costs nothing. How a connection
//! ends is decided by what comes first: this end's own wish, a completion that tells of a fault,
//! or the connection manager. Then what is posted is flushed; what the adapter does not flush in
//! time is given back when the queue pair is destroyed, after which nothing touches memory any more.

use std::{
    collections::{HashMap, VecDeque},
    ffi::{CStr, c_int},
    fmt,
    future::Future,
    io,
    os::fd::{AsRawFd, RawFd},
    pin::Pin,
    ptr::{self, NonNull},
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use smbdirect::rdma::{
    memory::{DeregisterError, RegisterError, RegisterFault, Registration, in_one_descriptor},
    provider::{QueuePair, Teardown},
    work::{
        Access, Completion, Disconnect, Limits, ProviderError, ProviderErrorKind, RemoteAddress,
        Room, Token, WorkId, WorkRequest,
    },
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    runtime::Handle,
    time::{Sleep, sleep, timeout},
};
use tracing::{Instrument, debug, trace, warn};

use crate::{
    adapter::DeviceEvents,
    cm::{self, CmEvents, CmId, ReadDepths},
    config::VerbsConfig,
    device::Capabilities,
    error::{local_error, log_ffi_error},
    ffi::{
        self, ibv_comp_channel, ibv_cq, ibv_qp, ibv_qp_cap, ibv_qp_init_attr, ibv_recv_wr,
        ibv_send_wr, ibv_sge, ibv_wc,
    },
    ledger::{Ended, Failure, Invalidated, Ledger, Oddity, Signal, Verdict, WorkCompletion},
    memory::{Domain, OwnedRegion, Pool, Slot, Window},
};

/// Payloads up to here are copied; to register one costs more.
const COPY: usize = 64 << 10;
/// Linux' software iWARP sends from where the bytes are, as long as TCP needs them, what is so long
/// and asks for no completion of its own. We use the memory again, and a peer would see that.
const PAGE: usize = 4096;
/// Work requests handed over at once, and completions taken at once.
const BATCH: usize = 16;
/// Send queue entries beside those for Sends, Reads and Writes: for work of our own.
const OWN: u32 = 32;
/// How long a peer over iWARP may be silent before it is nudged, and how often it is.
const NUDGE: Duration = Duration::from_millis(250);
const NUDGES: u32 = 3;
/// How long flushed work may take to come back before the queue pair is destroyed.
const FLUSH: Duration = Duration::from_secs(1);
/// How long the connection manager may take to say why a queue pair failed by itself.
const REASON: Duration = Duration::from_millis(500);

/// A queue pair of an adapter, with all that belongs to its connection.
pub(crate) struct VerbsQueuePair {
    // The order of the fields is the order in which they are dropped: first what lets the adapter
    // touch memory, then the memory, then what these stand on.
    qp: Option<Qp>,
    ledger: Ledger<(WorkId, Slot), Sent>,
    /// Sends, Reads, Writes and bindings that the adapter does not have yet.
    queue: VecDeque<Sent>,
    /// How many of these, from the front, are to go as soon as the adapter takes them.
    flushed: usize,
    regions: HashMap<Token, Registered>,
    pool: Pool,
    cq: Arc<Cq>,
    domain: Arc<Domain>,
    completions: AsyncFd<CompletionChannel>,
    events: Arc<CmEvents>,
    watch: DeviceEvents,
    id: Arc<CmId>,

    limits: Limits,
    is_iwarp: bool,
    /// Pieces of memory that a Send is gathered from.
    send_elements: u32,
    /// Whether the device has memory windows of type 2.
    has_windows: bool,
    /// Whether the device may bind a window again with what it sends again.
    binds_again: bool,
    /// Where timers run; work may be posted from threads that know of no runtime.
    runtime: Handle,
    busy_poll: Duration,
    close_timeout: Duration,
    /// Work of our own in the queue and in the ledger: it takes no room from the others.
    own: usize,
    /// Wakes up a peer that may have overlooked our first message.
    nudges: Option<Nudges>,
    send_depth: usize,
    /// What is to be told.
    ready: VecDeque<Completion>,
    /// Posted after the end was asked for; completes as flushed.
    late: Vec<WorkRequest>,
    /// The completion queue will wake us.
    armed: bool,
    /// The peer is known to be connected, so that something may be sent.
    established: bool,
    /// It was accepted, and the connection manager has not said that the peer knows: until then it
    /// ends nothing.
    unheard: bool,
    phase: Phase,
    /// What the adapter told of the queue pair, or of itself.
    reason: Option<ProviderError>,
    /// When patience ends, in whatever phase.
    deadline: Option<Pin<Box<Sleep>>>,
}

/// Writes of nothing, in the first second of a connection in which the peer says nothing.
struct Nudges {
    left: u32,
    next: Pin<Box<Sleep>>,
}

/// How far the connection has come towards its end.
#[derive(Debug)]
enum Phase {
    Open,
    /// A graceful end was asked for: what is posted goes first.
    Closing,
    /// The queue pair has failed; why, the connection manager may know.
    Failed,
    /// The peer, or the device, has ended it; what it sent before is still to be taken.
    Leaving(Disconnect),
    /// What is posted comes back.
    Flushing(Disconnect),
    /// The last completion is told, or about to be.
    Ended,
}

/// What is sent, and what it needs until it is.
struct Sent {
    /// None for work of our own, of which nobody else knows.
    id: Option<WorkId>,
    work: Work,
}

enum Work {
    Send {
        source: Source,
        invalidate: Option<Token>,
    },
    Write {
        source: Source,
        to: RemoteAddress,
    },
    Read {
        into: OwnedRegion<BytesMut>,
        from: RemoteAddress,
    },
    Bind(Token),
}

/// Where the bytes of a Send or Write are.
enum Source {
    /// There are none.
    Nothing,
    Copied {
        slot: Slot,
        length: u32,
    },
    /// The header of a Send is in the slot.
    Gathered {
        header: Option<(Slot, u32)>,
        payload: OwnedRegion<Bytes>,
    },
}

/// A buffer that the peer may use.
struct Registered {
    // The window is given back first, then the region, then the buffer.
    window: Option<Window>,
    buffer: OwnedRegion<BytesMut>,
    access: Access,
    /// The window's binding has not completed.
    binding: bool,
    /// It was deregistered meanwhile.
    ended: bool,
}

impl VerbsQueuePair {
    /// A queue pair on `id`, which is bound to a device, that is not connected yet.
    pub(crate) fn new(
        id: Arc<CmId>,
        config: &VerbsConfig,
        abilities: &Capabilities,
    ) -> Result<Self, ProviderError> {
        let failed = |what: &str, error: io::Error| local_error(&format!("{what}: {error}"));
        let events =
            CmEvents::new(id.channel().clone()).map_err(|e| failed("the event channel", e))?;
        let watch = DeviceEvents::new(&id)?;
        let domain = Domain::new(id.clone()).map_err(|e| failed("a protection domain", e))?;
        let (qp, cq, completions, cap) = Qp::new(&domain, &id, config, abilities)?;
        watch.add([qp.raw.as_ptr() as usize, cq.raw.as_ptr() as usize]);
        // SAFETY: the channel has its file descriptor open as long as it lives, and no other.
        let completions =
            unsafe { AsyncFd::register_with_interest(completions, Interest::READABLE) }
                .map_err(|error| failed("the completion channel", error.into()))?;
        let limits = Limits {
            max_send_queue: (cap.max_send_wr - OWN) as usize,
            max_receive_queue: cap.max_recv_wr as usize,
            ..abilities.limits(config)
        };
        Ok(Self {
            is_iwarp: id.is_iwarp(),
            send_elements: abilities.send_elements(),
            has_windows: abilities.has_windows(),
            binds_again: abilities.binds_again(),
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
            events: Arc::new(events),
            watch,
            id,
            limits,
            busy_poll: config.busy_poll,
            close_timeout: config.close_timeout,
            own: 0,
            nudges: None,
            send_depth: cap.max_send_wr as usize,
            ready: VecDeque::new(),
            late: Vec::new(),
            armed: false,
            established: false,
            unheard: false,
            phase: Phase::Open,
            reason: None,
            deadline: None,
        })
    }

    pub(crate) const fn id(&self) -> &Arc<CmId> {
        &self.id
    }

    pub(crate) fn events(&self) -> &CmEvents {
        &self.events
    }

    /// How many Reads may be under way is agreed.
    pub(crate) fn agree(&mut self, depths: ReadDepths) {
        self.limits.max_inbound_reads = depths.inbound.into();
        self.limits.max_outbound_reads = depths.outbound.into();
    }

    /// The peer has answered our request for a connection.
    pub(crate) fn establish(&mut self) {
        self.established = true;
        if self.is_iwarp {
            self.nudges = Some(Nudges {
                left: NUDGES,
                next: Box::pin(sleep(NUDGE)),
            });
        }
    }

    /// The peer's request was accepted, of which it has still to hear.
    pub(crate) fn accepted(&mut self) {
        self.unheard = true;
    }

    /// Whether it is time to write nothing to the peer: Linux' software iWARP looks again at what
    /// it overlooked between its answer and the connection when more bytes come.
    fn poll_nudge(&mut self, context: &mut Context<'_>) -> bool {
        let Some(nudges) = &mut self.nudges else {
            return false;
        };
        if nudges.next.as_mut().poll(context).is_pending() {
            return false;
        }
        nudges.left -= 1;
        nudges.next = {
            let _runtime = self.runtime.enter();
            Box::pin(sleep(NUDGE))
        };
        if nudges.left == 0 {
            self.nudges = None;
        }
        if matches!(self.phase, Phase::Open) && self.queue.is_empty() {
            let to = RemoteAddress {
                token: Token(0),
                offset: 0,
            };
            let source = Source::Nothing;
            let work = Work::Write { source, to };
            self.queue.push_back(Sent { id: None, work });
            self.own += 1;
            self.flushed = 1;
        }
        true
    }

    /// Hands a Receive to the adapter at once, which it takes before there is a connection too:
    /// the peer may know of it already.
    fn post_receive(&mut self, id: WorkId, length: u32) -> io::Result<()> {
        let slot = self.pool.take(length as usize)?;
        let mut element = ibv_sge {
            addr: slot.address(),
            // 0 would be 2 GiB to some adapters, and no element is an error to others. The ledger
            // knows how long it may be.
            length: length.max(1),
            lkey: slot.local_key(),
        };
        let mut request = ibv_recv_wr {
            wr_id: self.ledger.post_receive(length, (id, slot)),
            next: ptr::null_mut(),
            sg_list: &mut element,
            num_sge: 1,
        };
        let Some(qp) = &self.qp else { return Ok(()) };
        // SAFETY: the request and its element live until the call returns; the slot they name is
        // in the ledger until it completes or the queue pair is gone.
        let posted = unsafe { qp.post_receive(&mut request) };
        if posted.is_err() {
            self.ledger.retract_receive();
        }
        posted
    }

    /// Hands the adapter what was flushed, as far as it takes it.
    fn post_sends(&mut self) {
        if self.established
            && self.flushed > 0
            && !matches!(self.phase, Phase::Flushing(_) | Phase::Ended)
            && let Err(error) = self.try_post_sends()
        {
            let what = format!("the adapter takes no work: {error}");
            self.break_off(ProviderErrorKind::Local, what);
        }
    }

    fn try_post_sends(&mut self) -> io::Result<()> {
        while self.may_post() {
            let mut batch = Batch::new();
            while batch.count < BATCH && self.may_post() {
                let sent = self.queue.pop_front().expect("so many were flushed");
                self.flushed -= 1;
                let last = batch.count + 1 == BATCH
                    || self.next_is_apart()
                    || self.ledger.span() + 1 == self.send_depth;
                let signal = match sent.work {
                    _ if sent.is_nothing() => Signal::None,
                    Work::Read { .. } | Work::Bind(_) => Signal::Own,
                    _ if last || (self.is_iwarp && sent.length() >= PAGE) => Signal::Own,
                    _ => Signal::Later,
                };
                if signal != Signal::None {
                    batch.add(&sent, signal, &self.regions);
                }
                let number = self.ledger.post_send(signal, sent);
                if signal != Signal::None {
                    batch.number_last(number);
                }
            }
            self.take_done();
            let Some(qp) = &self.qp else { break };
            if let Some(first) = batch.chain() {
                // SAFETY: the chain and its elements live until the call returns; what they name
                // is in the ledger until they complete or the queue pair is gone.
                unsafe { qp.post_send(first) }?;
            }
        }
        Ok(())
    }

    /// Whether the adapter can take what is next to be sent.
    fn may_post(&self) -> bool {
        let binds = self.flushed > 0 && matches!(self.queue[0].work, Work::Bind(_));
        self.flushed > 0
            && self.ledger.span() < self.send_depth
            && !(binds && self.binds_again && self.ledger.sends() > 0)
    }

    /// Whether the adapter gets nothing right behind what was just taken from the queue.
    fn next_is_apart(&self) -> bool {
        let mut flushed = self.queue.iter().take(self.flushed);
        match flushed.find(|sent| !sent.is_nothing()) {
            Some(next) => self.binds_again && matches!(next.work, Work::Bind(_)),
            None => true,
        }
    }

    /// Takes what is done without the adapter.
    fn take_done(&mut self) {
        while self.ledger.is_done_already() {
            let sent = self.ledger.take_send().expect("it is there");
            self.sent(sent);
        }
    }

    /// Looks at the completion queue once; whether there was anything.
    fn poll_queue(&mut self) -> bool {
        if matches!(self.phase, Phase::Ended) {
            return false;
        }
        let mut completions = [EMPTY_COMPLETION; BATCH];
        let count = match self.cq.poll(&mut completions) {
            Ok(count) => count,
            Err(error) => {
                let what = format!("the completion queue cannot be read: {error}");
                self.break_off(ProviderErrorKind::Local, what);
                return false;
            }
        };
        for completion in &completions[..count] {
            self.handle(&WorkCompletion {
                wr_id: completion.wr_id,
                status: completion.status,
                opcode: completion.opcode,
                byte_len: completion.byte_len,
                wc_flags: completion.wc_flags,
                invalidated_rkey: completion.invalidated_rkey,
            });
        }
        count > 0
    }

    fn handle(&mut self, completion: &WorkCompletion) {
        match self.ledger.judge(completion) {
            Ok(Verdict::Received {
                length,
                invalidated,
            }) => self.received(length, invalidated),
            Ok(Verdict::Done(number)) => {
                while let Some((sent, _)) = self.ledger.take_ended(number) {
                    self.sent(sent);
                }
                self.take_done();
            }
            Ok(Verdict::ReceiveFailed(failure)) => {
                self.fail(failure);
                let (id, slot) = self.ledger.take_receive().expect("it was judged");
                self.pool.put(slot);
                self.ready
                    .push_back(Completion::Flushed { id, buffer: None });
            }
            Ok(Verdict::Failed(number, failure)) => {
                self.fail(failure);
                while let Some((sent, ended)) = self.ledger.take_ended(number) {
                    match ended {
                        Ended::Besides => self.sent(sent),
                        Ended::Itself => self.not_sent(sent),
                    }
                }
                self.take_done();
            }
            Err(oddity) => {
                self.id
                    .span()
                    .in_scope(|| warn!(?completion, %oddity, "a work completion that cannot be"));
                // The one that is the peer's doing: an empty Receive has room for a byte.
                let kind = match oddity {
                    Oddity::Length => ProviderErrorKind::Protocol,
                    _ => ProviderErrorKind::Local,
                };
                self.break_off(kind, oddity.to_string());
            }
        }
    }

    fn received(&mut self, length: u32, invalidated: Invalidated) {
        self.nudges = None;
        let (id, slot) = self.ledger.take_receive().expect("it was judged");
        let message = self.pool.lend(slot, length as usize);
        // The connection manager has its own message of that. It is not told (`rdma_notify`): in
        // Linux an end right behind would leave its answer to be repeated, for more than a minute,
        // in which `rdma_destroy_id` waits.
        self.established = true;
        let (token, certain) = match invalidated {
            Invalidated::Nothing => (None, true),
            Invalidated::Token(token) => (Some(Token(token)), true),
            Invalidated::Perhaps(token) => (Some(Token(token)), false),
        };
        let may = |region: &&mut Registered| region.access.contains(Access::REMOTE_INVALIDATE);
        // The adapter knows a window only once it is bound, and needs it until then.
        let unbound = |token: &Token| self.queue.iter().any(|sent| sent.binds(*token));
        let invalidated = token.filter(|token| {
            if unbound(token) {
                return false;
            }
            let region = self.regions.get_mut(token).filter(may);
            // rxe takes it badly if a window is invalidated twice.
            region.map(|region| region.window = None).is_some()
        });
        if let (Some(token), None, true) = (token, invalidated, certain) {
            self.ready
                .push_back(Completion::Flushed { id, buffer: None });
            let what = format!("the peer invalidated {token}, which it may not");
            self.break_off(ProviderErrorKind::Protocol, what);
            return;
        }
        self.ready.push_back(Completion::Received {
            id,
            message,
            invalidated,
        });
    }

    /// It has happened.
    fn sent(&mut self, sent: Sent) {
        let Some(id) = sent.id else {
            self.bound(sent);
            return;
        };
        let completion = match sent.work {
            Work::Send { source, .. } => {
                self.put(source);
                // The last of a row stands for all of it.
                if let Some(Completion::Sent { .. }) = self.ready.back() {
                    self.ready.pop_back();
                }
                Completion::Sent { id }
            }
            Work::Write { source, .. } => {
                self.put(source);
                Completion::Written { id }
            }
            Work::Read { into, .. } => match into.into_memory() {
                Some(buffer) => Completion::Read { id, buffer },
                None => {
                    self.ready
                        .push_back(Completion::Flushed { id, buffer: None });
                    return self.not_let_go();
                }
            },
            Work::Bind(_) => unreachable!("bindings have no identifier"),
        };
        self.ready.push_back(completion);
    }

    /// It has not happened.
    fn not_sent(&mut self, sent: Sent) {
        let Some(id) = sent.id else {
            self.bound(sent);
            return;
        };
        let buffer = match sent.work {
            Work::Send { source, .. } | Work::Write { source, .. } => {
                self.put(source);
                None
            }
            Work::Read { into, .. } => into.into_memory(),
            Work::Bind(_) => unreachable!("bindings have no identifier"),
        };
        self.ready.push_back(Completion::Flushed { id, buffer });
    }

    /// Work of our own is over: a binding, and with it what waited for it, or a nudge.
    fn bound(&mut self, sent: Sent) {
        self.own -= 1;
        if let Work::Bind(token) = sent.work
            && let Some(region) = self.regions.get_mut(&token)
        {
            region.binding = false;
            if region.ended {
                region.close();
            }
        }
    }

    /// The adapter keeps memory that it was to give back.
    fn not_let_go(&mut self) {
        let what = "the adapter does not let go of memory".into();
        self.break_off(ProviderErrorKind::Local, what);
    }

    fn put(&self, source: Source) {
        match source {
            Source::Nothing => {}
            Source::Copied { slot, .. } => self.pool.put(slot),
            Source::Gathered { header, payload } => {
                drop(payload);
                if let Some((slot, _)) = header {
                    self.pool.put(slot);
                }
            }
        }
    }

    /// A work request failed: the connection is over, if that is news.
    fn fail(&mut self, failure: Failure) {
        match failure {
            Failure::Failed { kind, status } => {
                // SAFETY: the function takes any number and gives a text that is never freed.
                let text =
                    unsafe { CStr::from_ptr((self.id.functions().ibv_wc_status_str)(status)) };
                self.break_off(kind, text.to_string_lossy().into_owned());
            }
            Failure::Flushed if matches!(self.phase, Phase::Open | Phase::Closing) => {
                self.set_phase(Phase::Failed, Some(REASON));
            }
            Failure::Flushed => {}
        }
    }

    /// Something is wrong: ends the connection, unless a reason was known before.
    fn break_off(&mut self, kind: ProviderErrorKind, what: String) {
        if matches!(
            self.phase,
            Phase::Open | Phase::Closing | Phase::Failed | Phase::Leaving(_)
        ) {
            self.start_flush(Disconnect::Broken(ProviderError::new(kind, what)));
        }
    }

    fn set_phase(&mut self, phase: Phase, limit: Option<Duration>) {
        self.phase = phase;
        let _runtime = self.runtime.enter();
        self.deadline = limit.map(|limit| Box::pin(sleep(limit)));
    }

    /// Has the adapter give back what it has, and the peer know.
    fn start_flush(&mut self, how: Disconnect) {
        self.id.disconnect();
        self.set_phase(Phase::Flushing(how), Some(FLUSH));
    }

    /// An event of the connection manager, or that none can come any more.
    fn handle_event(&mut self, event: io::Result<cm::CmEvent>) {
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                let what = format!("the connection manager is gone: {error}");
                return self.break_off(ProviderErrorKind::Local, what);
            }
        };
        self.unheard = false;
        let broken = |kind, what: &str| Disconnect::Broken(ProviderError::new(kind, what));
        let how = match event.kind {
            ffi::RDMA_CM_EVENT_ESTABLISHED => {
                self.established = true;
                if matches!(self.phase, Phase::Flushing(_)) {
                    // It was too early for that.
                    self.id.disconnect();
                }
                return;
            }
            ffi::RDMA_CM_EVENT_DISCONNECTED => match &self.reason {
                Some(reason) => Disconnect::Broken(reason.clone()),
                // Over InfiniBand a peer that leaves in good order leaves our queue pair to us.
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
                    .in_scope(|| trace!(kind, "an event that changes nothing"));
                return;
            }
        };
        match self.phase {
            Phase::Open | Phase::Failed => self.set_phase(Phase::Leaving(how), None),
            // The peer was faster.
            Phase::Closing if self.has_sends() => self.set_phase(Phase::Leaving(how), None),
            Phase::Closing => self.start_flush(Disconnect::Local),
            Phase::Leaving(_) | Phase::Flushing(_) | Phase::Ended => {}
        }
    }

    fn has_sends(&self) -> bool {
        !self.queue.is_empty() || self.ledger.sends() > 0
    }

    /// What is to be done when the completion queue is empty; whether anything was.
    fn advance(&mut self) -> bool {
        match &self.phase {
            // The connection manager ends no connection that is not established.
            Phase::Closing if self.established && !self.has_sends() => {
                self.start_flush(Disconnect::Local);
            }
            // What the peer sent before it left is taken.
            Phase::Leaving(how) => {
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

    /// Patience has ended.
    fn expire(&mut self) {
        let phase = std::mem::replace(&mut self.phase, Phase::Open);
        match phase {
            Phase::Closing => {
                self.id.disconnect();
                self.finish(Disconnect::Local);
            }
            Phase::Failed => {
                let nobody = "the queue pair failed, and nobody said why";
                let reason = self.reason.clone();
                let error =
                    reason.unwrap_or_else(|| ProviderError::new(ProviderErrorKind::Reset, nobody));
                self.start_flush(Disconnect::Broken(error));
            }
            Phase::Flushing(how) => {
                let (receives, sends) = (self.ledger.receives(), self.ledger.sends());
                self.id
                    .span()
                    .in_scope(|| debug!(receives, sends, "the adapter does not flush"));
                self.finish(how);
            }
            Phase::Open | Phase::Leaving(_) | Phase::Ended => self.phase = phase,
        }
    }

    /// The end: the adapter lets go of everything, and what it had comes back.
    fn finish(&mut self, how: Disconnect) {
        self.let_go();
        self.hang_up_later();
        while let Some((id, slot)) = self.ledger.take_receive() {
            self.pool.put(slot);
            self.ready
                .push_back(Completion::Flushed { id, buffer: None });
        }
        while let Some(sent) = self.ledger.take_send() {
            self.not_sent(sent);
        }
        self.flushed = 0;
        for sent in std::mem::take(&mut self.queue) {
            self.not_sent(sent);
        }
        for work in std::mem::take(&mut self.late) {
            self.give_back(work);
        }
        self.ready.push_back(Completion::Disconnected(how));
        self.set_phase(Phase::Ended, None);
    }

    /// What was posted too late comes back.
    fn give_back(&mut self, work: WorkRequest) {
        let id = work.id();
        let (count, mut buffer) = match work {
            WorkRequest::Receive { count, .. } => (count, None),
            WorkRequest::Read { into, .. } => (1, Some(into)),
            WorkRequest::Send { .. } | WorkRequest::Write { .. } => (1, None),
        };
        for _ in 0..count {
            let buffer = buffer.take();
            self.ready.push_back(Completion::Flushed { id, buffer });
        }
    }

    /// Sees to it that a peer hears of the end which has not heard of the beginning.
    fn hang_up_later(&mut self) {
        if std::mem::take(&mut self.unheard) {
            let (events, id) = (self.events.clone(), self.id.clone());
            let span = id.span().clone();
            let hanging_up = hang_up(events, id, self.close_timeout);
            self.runtime.spawn(hanging_up.instrument(span));
        }
    }

    /// Nothing touches memory of the connection from here on.
    fn let_go(&mut self) {
        // A queue pair of rxe does not go away while a window is bound to it.
        for region in self.regions.values_mut() {
            region.window = None;
        }
        self.qp = None;
    }

    /// Waits for a completion, an event, or the end of patience; `Ready` if there may be something.
    fn poll_wait(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Poll::Ready(event) = self.events.poll_next(context) {
            self.handle_event(event);
            return Poll::Ready(());
        }
        if self.reason.is_none()
            && !matches!(self.phase, Phase::Flushing(_))
            && let Poll::Ready(reason) = self.watch.poll(context)
        {
            self.reason = Some(reason);
            // The connection manager does not end what is not established yet, which it may be.
            if matches!(self.phase, Phase::Open | Phase::Closing) {
                self.set_phase(Phase::Failed, Some(REASON));
            }
            return Poll::Ready(());
        }
        if let Some(deadline) = &mut self.deadline
            && deadline.as_mut().poll(context).is_ready()
        {
            self.deadline = None;
            self.expire();
            return Poll::Ready(());
        }
        if self.poll_nudge(context) {
            return Poll::Ready(());
        }
        if !self.armed {
            if let Err(error) = self.cq.arm() {
                let what = format!("the completion queue cannot be waited for: {error}");
                self.break_off(ProviderErrorKind::Local, what);
                return Poll::Ready(());
            }
            self.armed = true;
            // What came before it was armed wakes nobody.
            return Poll::Ready(());
        }
        match self.completions.poll_read_ready(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(mut ready)) => {
                match self.cq.take_event() {
                    Ok(true) => self.armed = false,
                    Ok(false) => ready.clear_ready(),
                    Err(error) => {
                        drop(ready);
                        let what = format!("the completion channel cannot be read: {error}");
                        self.break_off(ProviderErrorKind::Local, what);
                    }
                }
                Poll::Ready(())
            }
            Poll::Ready(Err(error)) => {
                let what = format!("the completion channel cannot be waited for: {error}");
                self.break_off(ProviderErrorKind::Local, what);
                Poll::Ready(())
            }
        }
    }

    /// Polls on for a moment before it sleeps, where that is wanted.
    fn poll_busily(&mut self) -> bool {
        if self.busy_poll.is_zero() || !matches!(self.phase, Phase::Open) {
            return false;
        }
        let started = Instant::now();
        while started.elapsed() < self.busy_poll {
            if self.poll_queue() {
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }

    /// Whether work may still be posted.
    fn takes_work(&self) -> bool {
        matches!(self.phase, Phase::Open | Phase::Failed | Phase::Leaving(_))
    }

    /// Bytes to be sent: copied if they are few, else registered where they are.
    fn source(&mut self, header: &[u8], payload: Bytes) -> io::Result<Source> {
        let length = in_one_request(header.len().saturating_add(payload.len()))?;
        if length == 0 {
            return Ok(Source::Nothing);
        }
        if payload.len() > COPY
            && (header.is_empty() || self.send_elements > 1)
            && let Some(payload) = self.borrow(payload.clone())
        {
            let header = match header {
                [] => None,
                header => {
                    let mut slot = self.pool.take(header.len())?;
                    slot.bytes_mut()[..header.len()].copy_from_slice(header);
                    Some((slot, header.len() as u32))
                }
            };
            return Ok(Source::Gathered { header, payload });
        }
        let mut slot = self.pool.take(length as usize)?;
        slot.bytes_mut()[..header.len()].copy_from_slice(header);
        slot.bytes_mut()[header.len()..length as usize].copy_from_slice(&payload);
        Ok(Source::Copied { slot, length })
    }

    /// Bytes registered to be read by the adapter; none where it refuses, as for memory of a file
    /// it may.
    fn borrow(&self, payload: Bytes) -> Option<OwnedRegion<Bytes>> {
        let (address, length) = (payload.as_ptr().cast_mut(), payload.len());
        // SAFETY: the bytes stay where they are, and are for reading only.
        unsafe { OwnedRegion::new(&self.domain, payload, address, length, 0) }
            .inspect_err(|(_, error)| {
                self.id
                    .span()
                    .in_scope(|| debug!(%error, "a payload is copied"));
            })
            .ok()
    }

    fn prepare(&mut self, work: WorkRequest) -> Result<(), (WorkRequest, io::Error)> {
        match work {
            WorkRequest::Receive { id, length, count } => {
                for left in (1..=count).rev() {
                    let posted = self.post_receive(id, length);
                    let count = left;
                    posted.map_err(|error| (WorkRequest::Receive { id, length, count }, error))?;
                }
            }
            WorkRequest::Send {
                id,
                header,
                payload,
                invalidate,
            } => match self.source(header.as_slice(), payload) {
                Ok(source) => self.queue.push_back(Sent {
                    id: Some(id),
                    work: Work::Send { source, invalidate },
                }),
                Err(error) => {
                    let payload = Bytes::new();
                    return Err((
                        WorkRequest::Send {
                            id,
                            header,
                            payload,
                            invalidate,
                        },
                        error,
                    ));
                }
            },
            WorkRequest::Write { id, data, to } => match self.source(&[], data) {
                Ok(source) => self.queue.push_back(Sent {
                    id: Some(id),
                    work: Work::Write { source, to },
                }),
                Err(error) => {
                    return Err((
                        WorkRequest::Write {
                            id,
                            data: Bytes::new(),
                            to,
                        },
                        error,
                    ));
                }
            },
            WorkRequest::Read { id, from, mut into } => {
                let length = match in_one_request(into.len()) {
                    Ok(length) => length as usize,
                    Err(error) => return Err((WorkRequest::Read { id, from, into }, error)),
                };
                let into = match length {
                    0 => OwnedRegion::nothing(into),
                    _ => {
                        // Over iWARP the answer to a Read is a write of the peer's.
                        let access = match self.is_iwarp {
                            true => ffi::IBV_ACCESS_LOCAL_WRITE | ffi::IBV_ACCESS_REMOTE_WRITE,
                            false => ffi::IBV_ACCESS_LOCAL_WRITE,
                        };
                        let address = into.as_mut_ptr();
                        // SAFETY: the bytes stay where they are, and nobody looks at them before
                        // the registration has ended.
                        match unsafe {
                            OwnedRegion::new(&self.domain, into, address, length, access)
                        } {
                            Ok(into) => into,
                            Err((into, error)) => {
                                return Err((WorkRequest::Read { id, from, into }, error));
                            }
                        }
                    }
                };
                let work = Work::Read { into, from };
                self.queue.push_back(Sent { id: Some(id), work });
            }
        }
        Ok(())
    }

    /// Registers a buffer, with a window where the peer is to invalidate it.
    fn open(
        &mut self,
        mut buffer: BytesMut,
        access: Access,
    ) -> Result<(OwnedRegion<BytesMut>, Option<Window>), (BytesMut, io::Error)> {
        if buffer.is_empty() {
            return Ok((OwnedRegion::nothing(buffer), None));
        }
        let mut flags = 0;
        if access.contains(Access::REMOTE_READ) {
            flags |= ffi::IBV_ACCESS_REMOTE_READ;
        }
        if access.contains(Access::REMOTE_WRITE) {
            // Nobody may write who the owner may not.
            flags |= ffi::IBV_ACCESS_REMOTE_WRITE | ffi::IBV_ACCESS_LOCAL_WRITE;
        }
        let windowed =
            access.contains(Access::REMOTE_INVALIDATE) && !self.is_iwarp_without_windows();
        let region_flags = match windowed {
            true => ffi::IBV_ACCESS_MW_BIND | flags & ffi::IBV_ACCESS_LOCAL_WRITE,
            false => flags,
        };
        let (address, length) = (buffer.as_mut_ptr(), buffer.len());
        // The window first: what is registered would not come back for certain.
        let window = match windowed.then(|| Window::new(&self.domain)).transpose() {
            Ok(window) => window,
            Err(error) => return Err((buffer, error)),
        };
        // SAFETY: the bytes stay where they are, and nobody looks at them before the registration
        // has ended.
        let held =
            unsafe { OwnedRegion::new(&self.domain, buffer, address, length, region_flags) }?;
        Ok((held, window))
    }

    /// Software iWARP invalidates plain regions, and has no windows.
    fn is_iwarp_without_windows(&self) -> bool {
        self.is_iwarp && !self.has_windows
    }
}

impl QueuePair for VerbsQueuePair {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn room(&self) -> Room {
        let sends = self.ledger.sends() + self.queue.len() - self.own;
        let receives = self.ledger.receives();
        Room {
            sends: self.limits.max_send_queue.saturating_sub(sends),
            receives: self.limits.max_receive_queue.saturating_sub(receives),
        }
    }

    fn post(&mut self, work: WorkRequest) {
        if matches!(self.phase, Phase::Ended) {
            // Dropped, unless the end has still to be told: it is told behind this.
            if let Some(last @ Completion::Disconnected(_)) = self.ready.pop_back() {
                self.give_back(work);
                self.ready.push_back(last);
            }
            return;
        }
        if !self.takes_work() {
            self.late.push(work);
            return;
        }
        if let Err((work, error)) = self.prepare(work) {
            self.late.push(work);
            let what = format!(
                "memory cannot be registered: {error}{}",
                memory_cure(&error)
            );
            self.break_off(ProviderErrorKind::Local, what);
        }
    }

    fn flush(&mut self, _context: &mut Context<'_>) {
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
                // What was posted before goes without being asked for.
                self.flushed = self.queue.len();
            }
            // There may be room, or a peer, since the last time.
            self.post_sends();
            if self.poll_queue() || self.advance() || self.poll_busily() {
                continue;
            }
            std::task::ready!(self.poll_wait(context));
        }
    }

    fn disconnect(&mut self, how: Teardown) {
        match (how, &self.phase) {
            (_, Phase::Ended) => {}
            (Teardown::Abort, Phase::Leaving(reason) | Phase::Flushing(reason)) => {
                let reason = reason.clone();
                self.id.disconnect();
                self.finish(reason);
            }
            (Teardown::Abort, _) => {
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
        let (buffer, window) = match self.open(buffer, access) {
            Ok(opened) => opened,
            Err((buffer, error)) => {
                let code = error.raw_os_error().unwrap_or(UNSUPPORTED);
                return Err(RegisterError {
                    buffer,
                    reason: RegisterFault::Provider(code),
                });
            }
        };
        let token = match &window {
            Some(window) => Token(window.remote_key()),
            None if buffer.is_registered() => Token(buffer.remote_key()),
            // Nothing of an empty buffer can be touched, and no adapter gives keys below this.
            None => (0..0x100)
                .map(Token)
                .find(|token| !self.regions.contains_key(token))
                .unwrap_or(Token(0)),
        };
        if self.regions.contains_key(&token) {
            drop(window);
            return Err(RegisterError {
                // An empty one stands for what the adapter does not give back.
                buffer: buffer.into_memory().unwrap_or_default(),
                reason: RegisterFault::NoToken,
            });
        }
        let address = RemoteAddress { token, offset };
        let binding = window.is_some() && !matches!(self.phase, Phase::Ended);
        if binding {
            self.own += 1;
            self.queue.push_back(Sent {
                id: None,
                work: Work::Bind(token),
            });
        }
        let ended = false;
        self.regions.insert(
            token,
            Registered {
                window,
                buffer,
                access,
                binding,
                ended,
            },
        );
        Ok(Registration { address, length })
    }

    fn deregister(&mut self, token: Token) -> Result<BytesMut, DeregisterError> {
        let region = self
            .regions
            .get_mut(&token)
            .ok_or(DeregisterError::Unknown)?;
        if region.binding {
            let queued = self.queue.iter().position(|sent| sent.binds(token));
            match queued {
                Some(queued) => {
                    self.queue.remove(queued);
                    self.flushed -= usize::from(queued < self.flushed);
                    self.own -= 1;
                }
                None => {
                    region.ended = true;
                    return Err(DeregisterError::InUse);
                }
            }
        }
        let mut region = self.regions.remove(&token).expect("it was just there");
        region.window = None;
        region.buffer.into_memory().ok_or_else(|| {
            // It is neither freed nor handed out as long as the peer may write to it.
            self.not_let_go();
            DeregisterError::Unknown
        })
    }
}

impl Drop for VerbsQueuePair {
    fn drop(&mut self) {
        self.let_go();
        self.hang_up_later();
    }
}

/// Ends a connection as soon as the connection manager has said what became of it.
async fn hang_up(events: Arc<CmEvents>, id: Arc<CmId>, limit: Duration) {
    if timeout(limit, events.next()).await.is_err() {
        debug!("the connection manager does not say what became of a connection");
    }
    id.disconnect();
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

impl Registered {
    /// The peer can do nothing with it from here on.
    fn close(&mut self) {
        self.window = None;
        self.buffer.end();
    }
}

impl Sent {
    /// Whether there is nothing to do for the adapter: an empty Read would need memory all the same.
    fn is_nothing(&self) -> bool {
        matches!(&self.work, Work::Read { into, .. } if !into.is_registered())
    }

    /// Bytes that it sends.
    fn length(&self) -> usize {
        match &self.work {
            Work::Send { source, .. } | Work::Write { source, .. } => source.length(),
            Work::Read { .. } | Work::Bind(_) => 0,
        }
    }

    fn binds(&self, token: Token) -> bool {
        matches!(self.work, Work::Bind(bound) if bound == token)
    }
}

/// `EOPNOTSUPP`, where no error number says more.
const UNSUPPORTED: i32 = 95;

/// The length of a message, Read or Write, which has 32 bits.
fn in_one_request(length: usize) -> io::Result<u32> {
    u32::try_from(length).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// What to do where the kernel lets no more memory be locked.
fn memory_cure(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::OutOfMemory => "; `ulimit -l` says how much may be locked",
        _ => "",
    }
}

/// Work requests in C's form, one chained to the next.
struct Batch {
    requests: [ibv_send_wr; BATCH],
    sges: [[ibv_sge; 2]; BATCH],
    count: usize,
}

impl Batch {
    fn new() -> Self {
        Self {
            requests: [const { EMPTY_SEND }; BATCH],
            sges: [[EMPTY_SGE; 2]; BATCH],
            count: 0,
        }
    }

    fn add(&mut self, sent: &Sent, signal: Signal, regions: &HashMap<Token, Registered>) {
        let request = &mut self.requests[self.count];
        let mut elements = [EMPTY_SGE; 2];
        let mut count = 0;
        let mut push = |address: u64, length: u32, lkey: u32| {
            elements[count] = ibv_sge {
                addr: address,
                length,
                lkey,
            };
            count += 1;
        };
        if signal == Signal::Own {
            request.send_flags = ffi::IBV_SEND_SIGNALED;
        }
        match &sent.work {
            Work::Send { source, invalidate } => {
                request.opcode = ffi::IBV_WR_SEND;
                if let Some(token) = invalidate {
                    request.opcode = ffi::IBV_WR_SEND_WITH_INV;
                    request.invalidate_rkey = token.0;
                    // Where the library of Linux' software iWARP looks for it.
                    request.rdma.rkey = token.0;
                }
                source.elements(&mut push);
            }
            Work::Write { source, to } => {
                request.opcode = ffi::IBV_WR_RDMA_WRITE;
                request.rdma.remote_addr = to.offset;
                request.rdma.rkey = to.token.0;
                source.elements(&mut push);
            }
            Work::Read { into, from } => {
                request.opcode = ffi::IBV_WR_RDMA_READ;
                request.rdma.remote_addr = from.offset;
                request.rdma.rkey = from.token.0;
                push(into.address(), into.length() as u32, into.local_key());
            }
            Work::Bind(token) => {
                request.opcode = ffi::IBV_WR_BIND_MW;
                // A driver looks into both. Neither goes before its binding has been posted.
                let region = &regions[token];
                let window = region.window.as_ref().expect("there is one to bind");
                request.bind_mw.mw = window.raw();
                request.bind_mw.rkey = window.remote_key();
                let info = &mut request.bind_mw.bind_info;
                info.mr = region.buffer.raw().expect("there is memory to bind");
                info.addr = region.buffer.address();
                info.length = region.buffer.length() as u64;
                info.mw_access_flags = window_flags(region.access) as u32;
            }
        }
        request.num_sge = count as c_int;
        self.sges[self.count] = elements;
        self.count += 1;
    }

    fn number_last(&mut self, number: u64) {
        self.requests[self.count - 1].wr_id = number;
    }

    /// The first of the chain, if there is one.
    fn chain(&mut self) -> Option<&mut ibv_send_wr> {
        for i in 0..self.count {
            self.requests[i].sg_list = self.sges[i].as_mut_ptr();
            if i > 0 {
                self.requests[i - 1].next = &mut self.requests[i];
            }
        }
        (self.count > 0).then(|| &mut self.requests[0])
    }
}

const fn window_flags(access: Access) -> c_int {
    let mut flags = 0;
    if access.contains(Access::REMOTE_READ) {
        flags |= ffi::IBV_ACCESS_REMOTE_READ;
    }
    if access.contains(Access::REMOTE_WRITE) {
        flags |= ffi::IBV_ACCESS_REMOTE_WRITE;
    }
    flags
}

impl Source {
    fn length(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Copied { length, .. } => *length as usize,
            Self::Gathered { header, payload } => {
                header.as_ref().map_or(0, |(_, length)| *length as usize) + payload.length()
            }
        }
    }

    fn elements(&self, push: &mut impl FnMut(u64, u32, u32)) {
        match self {
            Self::Nothing => {}
            Self::Copied { slot, length } => push(slot.address(), *length, slot.local_key()),
            Self::Gathered { header, payload } => {
                if let Some((slot, length)) = header {
                    push(slot.address(), *length, slot.local_key());
                }
                let length = payload.length() as u32;
                push(payload.address(), length, payload.local_key());
            }
        }
    }
}

const EMPTY_SGE: ibv_sge = ibv_sge {
    addr: 0,
    length: 0,
    lkey: 0,
};

const EMPTY_SEND: ibv_send_wr = ibv_send_wr {
    wr_id: 0,
    next: ptr::null_mut(),
    sg_list: ptr::null_mut(),
    num_sge: 0,
    opcode: 0,
    send_flags: 0,
    invalidate_rkey: 0,
    rdma: ffi::ibv_send_wr_rdma {
        remote_addr: 0,
        rkey: 0,
    },
    _wr: [0; 2],
    _qp_type: 0,
    bind_mw: ffi::ibv_send_wr_bind_mw {
        mw: ptr::null_mut(),
        rkey: 0,
        bind_info: ffi::ibv_mw_bind_info {
            mr: ptr::null_mut(),
            addr: 0,
            length: 0,
            mw_access_flags: 0,
        },
    },
};

const EMPTY_COMPLETION: ibv_wc = ibv_wc {
    wr_id: 0,
    status: 0,
    opcode: 0,
    vendor_err: 0,
    byte_len: 0,
    invalidated_rkey: 0,
    qp_num: 0,
    src_qp: 0,
    wc_flags: 0,
    pkey_index: 0,
    slid: 0,
    sl: 0,
    dlid_path_bits: 0,
};

/// The queue pair itself. While it lives the adapter works on what is posted.
struct Qp {
    raw: NonNull<ibv_qp>,
    id: Arc<CmId>,
    /// These outlive it.
    _domain: Arc<Domain>,
    _cq: Arc<Cq>,
}

// SAFETY: libibverbs is thread-safe, and a queue pair belongs to no thread.
unsafe impl Send for Qp {}

impl Qp {
    /// A queue pair as deep as `config` wants it and the device has it, with the completion queue
    /// for both directions and its channel.
    fn new(
        domain: &Arc<Domain>,
        id: &Arc<CmId>,
        config: &VerbsConfig,
        abilities: &Capabilities,
    ) -> Result<(Self, Arc<Cq>, CompletionChannel, ibv_qp_cap), ProviderError> {
        let (most, completions) = (abilities.max_queue(), abilities.max_completions());
        let (mut send, mut receive) = depths(config, most, completions).ok_or_else(|| {
            local_error(&format!(
                "the device's queues hold only {most} requests and {completions} completions"
            ))
        })?;
        loop {
            let error = match Self::of_depth(domain, id, send, receive, abilities.send_elements()) {
                Ok(made) => return Ok(made),
                Err(error) => error,
            };
            // An adapter may have less left than it says it can have.
            let (fewer_sends, fewer_receives) = (send / 2, receive / 2);
            if fewer_sends <= OWN + 2 || fewer_receives < 4 {
                let what = format!("no queue pair can be made: {error}{}", memory_cure(&error));
                return Err(local_error(&what));
            }
            id.span()
                .in_scope(|| debug!(%error, send, receive, "a smaller queue pair is tried"));
            (send, receive) = (fewer_sends, fewer_receives);
        }
    }

    fn of_depth(
        domain: &Arc<Domain>,
        id: &Arc<CmId>,
        send: u32,
        receive: u32,
        send_elements: u32,
    ) -> io::Result<(Self, Arc<Cq>, CompletionChannel, ibv_qp_cap)> {
        let (cq, channel) = Cq::new(id, send + receive)?;
        let cap = ibv_qp_cap {
            max_send_wr: send,
            max_recv_wr: receive,
            max_send_sge: send_elements,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let mut attributes = ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: cq.raw.as_ptr(),
            recv_cq: cq.raw.as_ptr(),
            srq: ptr::null_mut(),
            cap,
            qp_type: ffi::IBV_QPT_RC,
            sq_sig_all: 0,
        };
        let create = id.functions().rdma_create_qp;
        // SAFETY: domain and completion queue are of the identifier's device, and outlive the
        // queue pair.
        if unsafe { create(id.raw(), domain.raw(), &mut attributes) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the library has just set it.
        let raw = NonNull::new(unsafe { (*id.raw()).qp }).ok_or(io::ErrorKind::NotFound)?;
        let qp = Self {
            raw,
            id: id.clone(),
            _domain: domain.clone(),
            _cq: cq.clone(),
        };
        // The library says what there is, which may be more; we use what we asked for.
        Ok((qp, cq, channel, cap))
    }

    /// # Safety
    /// The chain of requests is sound, and what they name lives until they have completed or the
    /// queue pair is dropped.
    unsafe fn post_send(&self, first: &mut ibv_send_wr) -> io::Result<()> {
        let post = self.id.ops().post_send.ok_or(io::ErrorKind::Unsupported)?;
        let mut bad = ptr::null_mut();
        // SAFETY: the caller's promise; the function is the one of the queue pair's device.
        posted(unsafe { post(self.raw.as_ptr(), first, &mut bad) })
    }

    /// # Safety
    /// As for [`post_send`](Self::post_send).
    unsafe fn post_receive(&self, first: &mut ibv_recv_wr) -> io::Result<()> {
        let post = self.id.ops().post_recv.ok_or(io::ErrorKind::Unsupported)?;
        let mut bad = ptr::null_mut();
        // SAFETY: as above.
        posted(unsafe { post(self.raw.as_ptr(), first, &mut bad) })
    }
}

/// How deep the queues for what is sent and received are to be, where a device holds `most` requests
/// in each and so many completions; none where that leaves no room beside our own work.
fn depths(config: &VerbsConfig, most: u32, completions: u32) -> Option<(u32, u32)> {
    let send = config.send_queue.max(1).saturating_add(OWN).min(most);
    let receive = config.receive_queue.max(1).min(most);
    let (send, receive) = match send.checked_add(receive) {
        Some(both) if both <= completions => (send, receive),
        _ => (completions / 2, completions / 2),
    };
    (send > OWN && receive > 0).then_some((send, receive))
}

/// Functions of drivers give an error number, or its negative.
fn posted(result: c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error.abs())),
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        // SAFETY: it was made on this identifier and is destroyed once.
        unsafe { (self.id.functions().rdma_destroy_qp)(self.id.raw()) };
    }
}

/// A completion queue. Whatever of its channel's events is read is acknowledged at once.
struct Cq {
    raw: NonNull<ibv_cq>,
    channel: Arc<RawCompletionChannel>,
}

// SAFETY: libibverbs is thread-safe, and a completion queue belongs to no thread.
unsafe impl Send for Cq {}
// SAFETY: as above.
unsafe impl Sync for Cq {}

impl Cq {
    fn new(id: &Arc<CmId>, entries: u32) -> io::Result<(Arc<Self>, CompletionChannel)> {
        let channel = Arc::new(RawCompletionChannel::new(id)?);
        cm::set_nonblocking(channel.fd())?;
        let entries = c_int::try_from(entries).map_err(|_| io::ErrorKind::InvalidInput)?;
        let (create, raw_channel) = (id.functions().ibv_create_cq, channel.raw.as_ptr());
        // SAFETY: the channel is of the same device and outlives the queue.
        let raw = unsafe { create(id.context(), entries, ptr::null_mut(), raw_channel, 0) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        let cq = Self {
            raw,
            channel: channel.clone(),
        };
        Ok((Arc::new(cq), CompletionChannel(channel)))
    }

    /// Takes completions; how many.
    fn poll(&self, completions: &mut [ibv_wc]) -> io::Result<usize> {
        let poll = self
            .channel
            .id
            .ops()
            .poll_cq
            .ok_or(io::ErrorKind::Unsupported)?;
        let most = completions.len() as c_int;
        // SAFETY: there is place for so many; the function is the one of the queue's device.
        let count = unsafe { poll(self.raw.as_ptr(), most, completions.as_mut_ptr()) };
        match usize::try_from(count) {
            Ok(count) if count <= completions.len() => Ok(count),
            _ => Err(io::Error::from_raw_os_error(count.wrapping_abs())),
        }
    }

    /// Has the next completion make an event.
    fn arm(&self) -> io::Result<()> {
        let arm = self
            .channel
            .id
            .ops()
            .req_notify_cq
            .ok_or(io::ErrorKind::Unsupported)?;
        // SAFETY: the function is the one of the queue's device.
        posted(unsafe { arm(self.raw.as_ptr(), 0) })
    }

    /// Takes an event of the channel, if there is one.
    fn take_event(&self) -> io::Result<bool> {
        let functions = self.channel.id.functions();
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel lives, and these are places for pointers.
        let result = unsafe {
            (functions.ibv_get_cq_event)(self.channel.raw.as_ptr(), &mut cq, &mut context)
        };
        if result == 0 {
            // SAFETY: the only queue of the channel is this one; one event was taken.
            unsafe { (functions.ibv_ack_cq_events)(self.raw.as_ptr(), 1) };
            return Ok(true);
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(false),
            _ => Err(error),
        }
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // SAFETY: the queue pair holds it, so it is gone; no event is unacknowledged.
        let error = unsafe { (self.channel.id.functions().ibv_destroy_cq)(self.raw.as_ptr()) };
        log_ffi_error(self.channel.id.span(), "ibv_destroy_cq", error);
    }
}

/// Where a completion queue announces completions.
struct RawCompletionChannel {
    raw: NonNull<ibv_comp_channel>,
    id: Arc<CmId>,
}

// SAFETY: libibverbs is thread-safe, and a channel belongs to no thread.
unsafe impl Send for RawCompletionChannel {}
// SAFETY: as above.
unsafe impl Sync for RawCompletionChannel {}

impl RawCompletionChannel {
    fn new(id: &Arc<CmId>) -> io::Result<Self> {
        // SAFETY: the context is one of an open device.
        let raw = unsafe { (id.functions().ibv_create_comp_channel)(id.context()) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Self {
            raw,
            id: id.clone(),
        })
    }

    fn fd(&self) -> RawFd {
        // SAFETY: the library filled it in and does not change it.
        unsafe { (*self.raw.as_ptr()).fd }
    }
}

impl Drop for RawCompletionChannel {
    fn drop(&mut self) {
        // SAFETY: the completion queue holds it, so it is gone.
        let error = unsafe { (self.id.functions().ibv_destroy_comp_channel)(self.raw.as_ptr()) };
        log_ffi_error(self.id.span(), "ibv_destroy_comp_channel", error);
    }
}

/// The channel as tokio wants it.
struct CompletionChannel(Arc<RawCompletionChannel>);

impl AsRawFd for CompletionChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.0.fd()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        io::{Read, Write},
        mem::{ManuallyDrop, MaybeUninit},
        os::{fd::FromRawFd, unix::net::UnixStream},
        sync::atomic::{AtomicUsize, Ordering},
    };

    use super::*;
    use crate::ffi::{Functions, rdma_cm_event, rdma_cm_id, rdma_event_channel};

    /// Of one test alone.
    static HUNG_UP: AtomicUsize = AtomicUsize::new(0);

    /// An event as the channel's descriptor has it here: its kind.
    unsafe extern "C" fn get_event(
        channel: *mut rdma_event_channel,
        event: *mut *mut rdma_cm_event,
    ) -> c_int {
        let mut kind = [0];
        // SAFETY: the channel is the one below, whose descriptor is closed there.
        let fd = ManuallyDrop::new(unsafe { File::from_raw_fd((*channel).fd) });
        // It leaves the error where C does.
        if !matches!((&*fd).read(&mut kind), Ok(1)) {
            return -1;
        }
        // SAFETY: all of it are pointers, which may be null, and numbers.
        let mut told: Box<rdma_cm_event> = unsafe { Box::new(MaybeUninit::zeroed().assume_init()) };
        told.event = kind[0].into();
        // SAFETY: it is a place for an event.
        unsafe { *event = Box::into_raw(told) };
        0
    }

    unsafe extern "C" fn ack_event(event: *mut rdma_cm_event) -> c_int {
        // SAFETY: it was made above, and is acknowledged once.
        drop(unsafe { Box::from_raw(event) });
        0
    }

    unsafe extern "C" fn disconnect(_: *mut rdma_cm_id) -> c_int {
        HUNG_UP.fetch_add(1, Ordering::SeqCst);
        0
    }

    #[tokio::test]
    async fn an_end_waits_for_the_beginning() {
        let (mut manager, end) = UnixStream::pair().unwrap();
        end.set_nonblocking(true).unwrap();
        let hanging_up = |limit: Duration| {
            let mut functions = Functions::none();
            functions.rdma_get_cm_event = get_event;
            functions.rdma_ack_cm_event = ack_event;
            functions.rdma_disconnect = disconnect;
            let id = CmId::fake_at(functions, end.as_raw_fd());
            let events = Arc::new(CmEvents::new(id.channel().clone()).unwrap());
            tokio::spawn(hang_up(events, id, limit))
        };
        let waiting = hanging_up(Duration::from_secs(60));
        sleep(Duration::from_millis(20)).await;
        assert_eq!(HUNG_UP.load(Ordering::SeqCst), 0);
        manager
            .write_all(&[ffi::RDMA_CM_EVENT_ESTABLISHED as u8])
            .unwrap();
        let soon = |task| timeout(Duration::from_secs(10), task);
        soon(waiting).await.unwrap().unwrap();
        assert_eq!(HUNG_UP.load(Ordering::SeqCst), 1);
        // Nor for ever.
        let waiting = hanging_up(Duration::from_millis(1));
        soon(waiting).await.unwrap().unwrap();
        assert_eq!(HUNG_UP.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn depths_are_within_the_device() {
        let config = VerbsConfig::default();
        let of = |most, completions| depths(&config, most, completions);
        assert_eq!(of(1 << 14, 1 << 15), Some((512 + OWN, 512)));
        assert_eq!(of(128, 1 << 15), Some((128, 128)));
        assert_eq!(of(1 << 14, 200), Some((100, 100)));
        assert_eq!(of(OWN + 1, 1 << 15), Some((OWN + 1, OWN + 1)));
        // Nothing could be sent.
        for (most, completions) in [(0, 0), (0, 1 << 15), (OWN, 1 << 15), (1 << 14, 2 * OWN)] {
            assert_eq!(of(most, completions), None, "{most} {completions}");
        }
        let config = VerbsConfig {
            send_queue: u32::MAX,
            receive_queue: u32::MAX,
            ..config
        };
        let most = i32::MAX as u32;
        assert_eq!(depths(&config, most, most), Some((most / 2, most / 2)));
        let config = VerbsConfig {
            send_queue: 0,
            receive_queue: 0,
            ..config
        };
        assert_eq!(depths(&config, 1 << 14, 1 << 15), Some((OWN + 1, 1)));
    }

    #[test]
    fn a_request_has_32_bits_for_its_length() {
        assert_eq!(in_one_request(u32::MAX as usize).unwrap(), u32::MAX);
        let longer = u32::MAX as usize + 1;
        let error = in_one_request(longer).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
