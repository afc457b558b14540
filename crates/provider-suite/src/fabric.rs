//! Connected pairs of queue pairs, and the rules that every completion must obey.

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    mem,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use smbdirect_rdma::{
    memory::{DeregisterError, Registration},
    provider::{
        AcceptRequest, ConnectRequest, Connected, IncomingRequest, Provider, ProviderListener,
        QueuePair, Usage,
    },
    work::{
        Access, Completion, Disconnect, Inline, Limits, ProviderError, ProviderErrorKind,
        RemoteAddress, Room, Teardown, Token, WorkId, WorkRequest,
    },
};
use tokio::time::timeout;

/// The time limit of a step, which no passing test reaches on a busy machine.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

/// The size of the receive that is posted before connecting, in bytes.
pub(crate) const FIRST_RECEIVE: u32 = 512;

/// The providers of the two ends, and the address on which the passive one listens.
#[derive(Clone, Debug)]
pub struct Fabric {
    /// The provider of the end that connects.
    pub active: Arc<dyn Provider>,
    /// The provider of the end that listens.
    pub passive: Arc<dyn Provider>,
    /// The address to listen on. With port 0 the provider selects a free port.
    pub listen: SocketAddr,
    /// What this kind of RDMA can do.
    pub capabilities: Capabilities,
}

/// The abilities of a kind of RDMA. Kinds of RDMA may differ in this.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Capabilities {
    /// Whether a plain TCP connection reaches the listeners.
    pub over_tcp: bool,
    /// The most bytes of private data in a request.
    pub private_data: usize,
    /// Whether private data arrives with its length, and is not padded with zeros.
    pub exact_private_data: bool,
    /// Whether an end learns if the other end disconnected gracefully, and which rule was broken.
    /// Adapters do not report that.
    pub ends_are_told: bool,
    /// Whether a completion contains the token that its message invalidated.
    pub invalidation_is_told: bool,
    /// Whether the passive end may send before the active one has.
    pub passive_may_begin: bool,
    /// The least size of a Read that works reliably, in bytes.
    pub least_read: usize,
    /// Whether the passive end permits reading and invalidation only if they were registered.
    pub rights_are_checked: bool,
    /// Whether a Write that does not fit into its region changes none of its bytes. A provider that cuts
    /// Writes into several has them checked one by one.
    pub writes_are_whole: bool,
    /// Whether an end counts the bytes that it sends and receives.
    pub counts_bytes: bool,
    /// Whether a flush stops at its limit.
    pub limits_flushes: bool,
    /// Whether a queue pair can move to another runtime.
    pub changes_runtime: bool,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self {
            over_tcp: false,
            private_data: 200,
            exact_private_data: true,
            ends_are_told: true,
            invalidation_is_told: true,
            passive_may_begin: true,
            least_read: 0,
            rights_are_checked: true,
            writes_are_whole: true,
            counts_bytes: true,
            limits_flushes: false,
            changes_runtime: true,
        }
    }
}

impl Fabric {
    /// Uses `provider` at both ends, which listens on 127.0.0.1 and can do everything that [`Capabilities`] lists but
    /// TCP and limited flushes.
    pub fn new(provider: impl Provider + 'static) -> Self {
        let provider = Arc::new(provider);
        Self {
            active: provider.clone(),
            passive: provider,
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            capabilities: Capabilities::default(),
        }
    }

    pub(crate) async fn listener(&self) -> Box<dyn ProviderListener> {
        within_time("listen", self.passive.listen(self.listen))
            .await
            .unwrap()
    }

    pub(crate) async fn connect(&self, address: SocketAddr) -> Result<Connected, ProviderError> {
        within_time("connect", self.active.connect(request(address))).await
    }

    /// Checks that the other end has vanished.
    pub(crate) fn expect_vanished(&self, how: &Disconnect) {
        let kinds = [ProviderErrorKind::Reset, ProviderErrorKind::Terminated];
        self.capabilities.expect_broken(how, &kinds);
    }

    /// Returns the active and the passive end of a new connection.
    pub(crate) async fn pair(&self) -> Pair {
        let mut listener = self.listener().await;
        self.pair_at(listener.as_mut()).await
    }

    pub(crate) async fn pair_at(&self, listener: &mut dyn ProviderListener) -> Pair {
        let address = listener.local_addr();
        let passive = async { accept(next_incoming(listener).await).await };
        let (active, passive) = tokio::join!(self.connect(address), passive);
        let mut pair = Pair {
            active: End::new(active.unwrap()),
            passive: End::new(passive.unwrap()),
            capabilities: self.capabilities,
        };
        if !self.capabilities.passive_may_begin {
            pair.active.send("you may");
            pair.until("a beginning", |_, p| p.messages.pop_front())
                .await;
            pair.settle().await;
            pair.passive.receive(FIRST_RECEIVE);
        }
        pair
    }
}

pub(crate) fn request(address: SocketAddr) -> ConnectRequest {
    ConnectRequest {
        address,
        private_data: Bytes::new(),
        receive: first_receive(),
    }
}

pub(crate) fn first_receive() -> WorkRequest {
    WorkRequest::Receive {
        id: WorkId(0),
        length: FIRST_RECEIVE,
        count: 1,
    }
}

pub(crate) async fn next_incoming(listener: &mut dyn ProviderListener) -> IncomingRequest {
    within_time("accept", listener.accept()).await.unwrap()
}

pub(crate) async fn accept(incoming: IncomingRequest) -> Result<Connected, ProviderError> {
    let answer = AcceptRequest {
        private_data: Bytes::new(),
        receive: first_receive(),
        peer_serves_reads: None,
    };
    within_time("answer", incoming.accept(answer)).await
}

pub(crate) async fn within_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(STEP_TIMEOUT, future)
        .await
        .unwrap_or_else(|_| panic!("{what} takes too long"))
}

/// Both ends of a connection. A wait for one end drives the other too, as two tasks would.
pub(crate) struct Pair {
    pub(crate) active: End,
    pub(crate) passive: End,
    pub(crate) capabilities: Capabilities,
}

impl Pair {
    /// Drives both ends until `find` returns something.
    pub(crate) async fn until<T>(
        &mut self,
        what: &str,
        mut find: impl FnMut(&mut End, &mut End) -> Option<T>,
    ) -> T {
        let Self {
            active, passive, ..
        } = self;
        let found = poll_fn(|context| {
            loop {
                let progress = active.turn(context) | passive.turn(context);
                if let Some(found) = find(active, passive) {
                    return Poll::Ready(found);
                }
                if !progress {
                    return Poll::Pending;
                }
            }
        });
        within_time(what, found).await
    }

    /// Drives both ends once, without waiting.
    pub(crate) async fn turn(&mut self) {
        poll_fn(|context| {
            self.active.turn(context);
            self.passive.turn(context);
            Poll::Ready(())
        })
        .await;
    }

    /// Drives both ends until only receives are outstanding.
    pub(crate) async fn settle(&mut self) {
        self.until("settling", |a, p| {
            (a.is_idle() && p.is_idle()).then_some(())
        })
        .await;
    }

    /// Drives both ends until the connection has ended for both, and returns how, active end first.
    pub(crate) async fn ended(&mut self) -> (Disconnect, Disconnect) {
        self.until("the end of both", |a, p| {
            a.ended.clone().zip(p.ended.clone())
        })
        .await
    }

    /// Checks that the connection ended because the active end broke a rule, which the passive end
    /// names.
    pub(crate) async fn ended_by_fault_of_active(&mut self) {
        let (offender, offended) = self.ended().await;
        let rule = [ProviderErrorKind::Protocol];
        self.capabilities.expect_broken(&offended, &rule);
        // The last bytes of the peer may be lost when a connection breaks.
        let kinds = [ProviderErrorKind::Terminated, ProviderErrorKind::Reset];
        self.capabilities.expect_broken(&offender, &kinds);
    }

    /// Sends a message from the passive to the active end, after which an adapter has applied the
    /// last changes of the passive end.
    pub(crate) async fn announce(&mut self) {
        self.passive.send("it is done");
        self.until("an announcement", |a, _| a.messages.pop_front())
            .await;
        self.active.receive(FIRST_RECEIVE);
    }
}

impl Capabilities {
    fn expect_broken(self, disconnect: &Disconnect, kinds: &[ProviderErrorKind]) {
        match disconnect {
            Disconnect::Broken(error) if self.ends_are_told => {
                assert!(kinds.contains(&error.kind), "{error:?}");
                assert!(!error.what.is_empty());
            }
            Disconnect::Broken(_) | Disconnect::Remote if !self.ends_are_told => {}
            other => panic!("{other:?} and not broken"),
        }
    }
}

/// A received message.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) bytes: Bytes,
    pub(crate) invalidated: Option<Token>,
}

/// One end of a connection, with its expected completions.
pub(crate) struct End {
    queue_pair: Box<dyn QueuePair>,
    limits: Limits,
    woken: Arc<Woken>,
    last_id: u64,
    /// The outstanding work of each kind, in order.
    outstanding: [VecDeque<WorkId>; 4],
    /// The number of posted and of completed requests, including the receive before connecting.
    pub(crate) posted: usize,
    pub(crate) completed: usize,
    /// The head of a message whose other bytes are in the next completion.
    head: Inline,
    pub(crate) messages: VecDeque<Arrived>,
    pub(crate) reads: VecDeque<BytesMut>,
    pub(crate) flushed: Vec<(WorkId, Option<BytesMut>)>,
    pub(crate) ended: Option<Disconnect>,
    /// The number of bytes that a turn may send, if it is limited.
    pub(crate) turn_bytes: Option<u64>,
}

/// Polls a queue pair as a future is polled: the context is woken if the queue pair has to be polled again.
pub fn poll_completion(
    queue_pair: &mut dyn QueuePair,
    context: &mut Context<'_>,
) -> Poll<Completion> {
    let polled = queue_pair.poll_completion(context);
    if polled.is_pending() && queue_pair.needs_poll() {
        context.waker().wake_by_ref();
    }
    polled
}

/// Whether the provider has woken an end since its last poll, and the waker to pass this on to.
struct Woken {
    flag: AtomicBool,
    outer: Mutex<Waker>,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.flag.store(true, Ordering::Release);
        let outer = self.outer.lock().unwrap().clone();
        outer.wake();
    }
}

/// The index of receives in [`End::outstanding`]. Each kind of work completes in order.
const RECEIVE: usize = 0;
/// The index of Sends in [`End::outstanding`].
const SEND: usize = 1;
/// The index of Reads in [`End::outstanding`].
const READ: usize = 2;
/// The index of Writes in [`End::outstanding`].
const WRITE: usize = 3;

impl End {
    pub(crate) fn new(connected: Connected) -> Self {
        let mut outstanding: [VecDeque<WorkId>; 4] = Default::default();
        outstanding[RECEIVE].push_back(WorkId(0));
        Self {
            queue_pair: connected.queue_pair,
            limits: connected.limits,
            woken: Arc::new(Woken {
                flag: AtomicBool::new(true),
                outer: Mutex::new(Waker::noop().clone()),
            }),
            last_id: 0,
            outstanding,
            posted: 1,
            completed: 0,
            head: Inline::new(),
            messages: VecDeque::new(),
            reads: VecDeque::new(),
            flushed: Vec::new(),
            ended: None,
            turn_bytes: None,
        }
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    pub(crate) fn room(&self) -> Room {
        self.queue_pair.room()
    }

    pub(crate) fn usage(&self) -> Usage {
        self.queue_pair.usage()
    }

    pub(crate) fn change_runtime(&mut self) -> bool {
        self.queue_pair.change_runtime()
    }

    pub(crate) fn receive(&mut self, length: u32) {
        self.receives(1, length);
    }

    pub(crate) fn receives(&mut self, count: usize, length: u32) {
        let mut left = count as u32;
        while left > 0 {
            // Some receives are posted alone, and some in rows.
            let id = self.next_id(RECEIVE);
            let count = left.min(1 + (id.0 % 3) as u32);
            let again = std::iter::repeat_n(id, count as usize - 1);
            self.outstanding[RECEIVE].extend(again);
            self.posted += count as usize - 1;
            self.queue_pair
                .post(WorkRequest::Receive { id, length, count });
            left -= count;
        }
        self.flush();
    }

    pub(crate) fn flush(&mut self) {
        self.queue_pair
            .flush(&mut Context::from_waker(Waker::noop()), u64::MAX);
    }

    pub(crate) fn send(&mut self, message: impl Into<Bytes>) {
        self.send_parts(&[], message.into(), None);
    }

    pub(crate) fn send_parts(&mut self, header: &[u8], payload: Bytes, invalidate: Option<Token>) {
        let id = self.next_id(SEND);
        self.queue_pair.post(WorkRequest::Send {
            id,
            header: Inline::build(|rest| bytes::BufMut::put_slice(rest, header)),
            payload,
            invalidate,
        });
    }

    pub(crate) fn write(&mut self, data: impl Into<Bytes>, to: RemoteAddress) {
        let (id, data) = (self.next_id(WRITE), data.into());
        self.queue_pair.post(WorkRequest::Write { id, data, to });
    }

    pub(crate) fn read(&mut self, from: RemoteAddress, length: usize) -> WorkId {
        let (id, into) = (self.next_id(READ), BytesMut::zeroed(length));
        self.queue_pair.post(WorkRequest::Read { id, from, into });
        id
    }

    fn next_id(&mut self, kind: usize) -> WorkId {
        self.last_id += 1;
        self.posted += 1;
        let id = WorkId(self.last_id);
        self.outstanding[kind].push_back(id);
        id
    }

    pub(crate) fn disconnect(&mut self, how: Teardown) {
        self.queue_pair.disconnect(how);
    }

    pub(crate) fn register(&mut self, buffer: BytesMut, access: Access) -> Registration {
        let length = buffer.len();
        let registration = self.queue_pair.register(buffer, access).unwrap();
        assert_eq!(registration.length as usize, length);
        registration
    }

    pub(crate) fn deregister(&mut self, token: Token) -> Result<BytesMut, DeregisterError> {
        self.queue_pair.deregister(token)
    }

    /// Returns the number of outstanding receives.
    pub(crate) fn receives_outstanding(&self) -> usize {
        self.outstanding[RECEIVE].len()
    }

    fn is_idle(&self) -> bool {
        self.outstanding[SEND..].iter().all(VecDeque::is_empty)
    }

    /// Flushes and takes all completions. Returns whether there were any. As the driver does, it
    /// polls for completions of the flush, and for others only after it was woken.
    fn turn(&mut self, context: &mut Context<'_>) -> bool {
        self.woken.outer.lock().unwrap().clone_from(context.waker());
        let waker = Waker::from(self.woken.clone());
        let context = &mut Context::from_waker(&waker);
        let mut progress = false;
        if self.woken.flag.swap(false, Ordering::AcqRel) {
            progress = self.take(context);
        }
        let sent = self.queue_pair.usage().sent;
        let until = self.turn_bytes.map_or(u64::MAX, |bytes| sent + bytes);
        self.queue_pair.flush(context, until);
        while self.queue_pair.needs_poll() {
            if let Poll::Ready(completion) = self.queue_pair.poll_completion(context) {
                progress = true;
                self.note(completion);
            } else if self.ends_turn() {
                break;
            }
        }
        progress
    }

    /// Busy-polls until `find` returns something. Polls only if `busy_poll` returns true.
    pub(crate) fn busy_poll_until<T>(&mut self, mut find: impl FnMut(&mut Self) -> Option<T>) -> T {
        let context = &mut Context::from_waker(Waker::noop());
        let started = Instant::now();
        let found = loop {
            if self.queue_pair.busy_poll()
                && let Poll::Ready(completion) = self.queue_pair.poll_completion(context)
            {
                self.note(completion);
            }
            if let Some(found) = find(self) {
                break found;
            }
            assert!(
                started.elapsed() < STEP_TIMEOUT,
                "busy-polling takes too long"
            );
        };
        // The waker is not called for other arrivals.
        self.woken.flag.store(true, Ordering::Release);
        found
    }

    /// Takes all completions without a flush. Returns whether there were any.
    pub(crate) async fn take_now(&mut self) -> bool {
        // The waker that the provider has registered must stay valid.
        let waker = Waker::from(self.woken.clone());
        self.take(&mut Context::from_waker(&waker))
    }

    fn take(&mut self, context: &mut Context<'_>) -> bool {
        let mut progress = false;
        loop {
            if let Poll::Ready(completion) = self.queue_pair.poll_completion(context) {
                progress = true;
                self.note(completion);
            } else if !self.queue_pair.needs_poll() || self.ends_turn() {
                return progress;
            }
        }
    }

    /// Returns whether a limit ends the turn of an end that needs a further poll, and wakes it for the next turn.
    fn ends_turn(&self) -> bool {
        if self.turn_bytes.is_some() {
            self.woken.outer.lock().unwrap().wake_by_ref();
        }
        self.turn_bytes.is_some()
    }

    /// Drives this end alone until the connection has ended.
    pub(crate) async fn ended(&mut self) -> Disconnect {
        self.until("the end", |end| end.ended.clone()).await
    }

    /// Drives this end alone until `find` returns something.
    pub(crate) async fn until<T>(
        &mut self,
        what: &str,
        mut find: impl FnMut(&mut Self) -> Option<T>,
    ) -> T {
        let found = poll_fn(|context| {
            self.turn(context);
            find(self).map_or(Poll::Pending, Poll::Ready)
        });
        within_time(what, found).await
    }

    //= RDMAP-21 test
    //= SMBD-2.1-01 test
    fn note(&mut self, completion: Completion) {
        assert!(self.ended.is_none(), "{completion:?} after the end");
        let is_message = matches!(completion, Completion::Received { .. });
        assert!(
            is_message || self.head.is_empty(),
            "{completion:?} after a head"
        );
        match completion {
            Completion::Head(head) => self.head = head,
            Completion::Received {
                id,
                message: bytes,
                invalidated,
            } => {
                self.note_done(RECEIVE, id);
                let bytes = match mem::take(&mut self.head) {
                    head if head.is_empty() => bytes,
                    head => [head.as_slice(), &bytes].concat().into(),
                };
                self.messages.push_back(Arrived { bytes, invalidated });
            }
            Completion::Sent { id } => {
                let before = self.outstanding[SEND]
                    .iter()
                    .take_while(|&&send| send != id);
                for _ in 0..=before.count() {
                    let oldest = self.outstanding[SEND][0];
                    self.note_done(SEND, oldest);
                }
            }
            Completion::Written { id } => self.note_done(WRITE, id),
            Completion::Read { id, buffer } => {
                self.note_done(READ, id);
                self.reads.push_back(buffer);
            }
            Completion::Flushed { id, buffer } => {
                let kind = self.outstanding.iter().position(|kind| kind.contains(&id));
                let kind = kind.expect("the flushed request was outstanding");
                assert_eq!(
                    buffer.is_some(),
                    kind == READ,
                    "buffers of Reads are returned"
                );
                self.note_done(kind, id);
                self.flushed.push((id, buffer));
            }
            Completion::Disconnected(how) => {
                let left: Vec<_> = self.outstanding.iter().flatten().collect();
                assert!(left.is_empty(), "{left:?} never completed");
                self.ended = Some(how);
            }
        }
    }

    fn note_done(&mut self, kind: usize, id: WorkId) {
        let expected = self.outstanding[kind].pop_front();
        assert_eq!(Some(id), expected, "completions of a kind are in order");
        self.completed += 1;
    }
}

/// Returns bytes that depend on their position and on `seed`.
pub(crate) fn pattern(length: usize, seed: u64) -> BytesMut {
    let mut bytes = BytesMut::zeroed(length);
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

/// Returns the address `bytes` bytes into a registration.
pub(crate) fn past(registration: Registration, bytes: u64) -> RemoteAddress {
    let RemoteAddress { token, offset } = registration.address;
    RemoteAddress {
        token,
        offset: offset.wrapping_add(bytes),
    }
}
