//! Loopback: RDMA between two ends in one process, for tests, examples and a first try.
//!
//! Read `Pair::execute` first: that is the whole wire. A Send takes the oldest receive of the
//! other end, a Write is copied into its memory table, a Read out of it. What both ends touch
//! stands behind one lock, which is taken once for all that is flushed and once for all that has
//! arrived: between two cores a lock costs more than a message. Messages are put together before,
//! in a box that only changes hands under it. There is no task and no thread: whoever flushes does
//! the work, and the other end is woken, unless it looks for more.
//!
//! The payload of a Send is copied if it is short, and handed over as it is from 2 KiB on: the
//! receiver then reads the sender's own bytes. Whoever keeps a part of such a message keeps the
//! whole allocation that the sender took it from.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    future::{Future, poll_fn},
    hint::spin_loop,
    mem,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};

use super::{
    adaptive_spin::AdaptiveSpin,
    memory::{DeregisterError, MemoryTable, RegisterError, Registration},
    provider::{
        Answer, BoxFuture, ConnectRequest, Connected, Incoming, Listener, Provider, QueuePair,
        Teardown,
    },
    receive_queue::{ReceiveQueue, Receives},
    work::{
        Access, Completion, Disconnect, Inline, Limits, ProviderError, ProviderErrorKind, Room,
        Token, WorkId, WorkRequest,
    },
};
use crate::pool::Pool;

/// The provider whose connections stay inside the process.
///
/// Clones share one name space of addresses; what two calls of [`new`](Self::new) give cannot
/// reach each other. The addresses mean nothing to the operating system.
#[derive(Clone, Debug, Default)]
pub struct Loopback {
    config: LoopbackConfig,
    world: Arc<Mutex<World>>,
}

/// What a [`Loopback`] pretends to be able to do.
#[derive(Clone, Copy, Debug)]
pub struct LoopbackConfig {
    /// What an end can do; a connection does what both of its ends can.
    pub limits: Limits,
    /// Connection requests that wait at a listener; more are refused.
    pub backlog: usize,
}

impl Default for LoopbackConfig {
    fn default() -> Self {
        Self {
            limits: Limits {
                max_send_queue: 1024,
                max_receive_queue: 1024,
                max_outbound_reads: 16,
                max_inbound_reads: 16,
                max_transfer: u32::MAX,
                send_with_invalidate: true,
            },
            backlog: 128,
        }
    }
}

impl Loopback {
    /// A world of its own, with default limits.
    pub fn new() -> Self {
        Self::default()
    }

    /// A world of its own.
    pub fn with_config(config: LoopbackConfig) -> Self {
        Self {
            config,
            ..Self::default()
        }
    }

    /// The same world seen with another configuration: a peer of different abilities.
    pub fn reconfigured(&self, config: LoopbackConfig) -> Self {
        Self {
            config,
            world: Arc::clone(&self.world),
        }
    }

    /// Leaves a request at the listener of the address.
    fn knock(&self, request: ConnectRequest) -> Result<Waiting, ProviderError> {
        check_private_data(&request.private_data)?;
        let mut world = lock(&self.world);
        let from = SocketAddr::new(request.address.ip(), world.pick_port()?);
        let backlog = world
            .find(request.address)
            .ok_or_else(|| refused("nobody listens there"))?;
        backlog
            .requests
            .retain(|request| request.reply.is_awaited());
        if backlog.requests.len() >= backlog.most {
            return Err(refused("too many connection requests wait there"));
        }
        let handshake = Arc::new(Mutex::new(Handshake::Undecided(None)));
        backlog.requests.push_back(Request {
            limits: self.config.limits,
            from,
            to: request.address,
            private_data: request.private_data,
            receive: request.receive,
            reply: Reply(Arc::clone(&handshake)),
        });
        let waker = backlog.waker.take();
        drop(world);
        wake(waker);
        Ok(Waiting(handshake))
    }
}

impl Provider for Loopback {
    fn name(&self) -> &'static str {
        "loopback"
    }

    fn default_port(&self) -> u16 {
        445
    }

    fn limits(&self) -> Limits {
        self.config.limits
    }

    fn connect(&self, request: ConnectRequest) -> BoxFuture<'_, Result<Connected, ProviderError>> {
        Box::pin(async move { self.knock(request)?.await })
    }

    fn listen(
        &self,
        address: SocketAddr,
    ) -> BoxFuture<'_, Result<Box<dyn Listener>, ProviderError>> {
        Box::pin(async move {
            let address = lock(&self.world).open(address, self.config.backlog)?;
            Ok(Box::new(LoopbackListener {
                address,
                limits: self.config.limits,
                world: Arc::clone(&self.world),
            }) as Box<dyn Listener>)
        })
    }
}

// ---- Addresses and listeners ----

/// Who listens where.
#[derive(Debug, Default)]
struct World {
    listeners: HashMap<SocketAddr, Backlog>,
    last_port: u16,
}

#[derive(Debug)]
struct Backlog {
    most: usize,
    requests: VecDeque<Request>,
    waker: Option<Waker>,
}

/// The ports picked for those who name none; the operating systems use the same.
const FIRST_FREE_PORT: u16 = 49152;

impl World {
    fn open(
        &mut self,
        mut address: SocketAddr,
        backlog: usize,
    ) -> Result<SocketAddr, ProviderError> {
        if address.port() == 0 {
            address.set_port(self.pick_port()?);
        }
        if self.listeners.contains_key(&address) {
            let what = format!("somebody listens on {address} already");
            return Err(ProviderError::new(ProviderErrorKind::InUse, what));
        }
        let backlog = Backlog {
            most: backlog,
            requests: VecDeque::new(),
            waker: None,
        };
        self.listeners.insert(address, backlog);
        Ok(address)
    }

    /// Whoever listens on the address, or else on its port at every address.
    fn find(&mut self, address: SocketAddr) -> Option<&mut Backlog> {
        let everywhere = match address.ip() {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let everywhere = SocketAddr::new(everywhere, address.port());
        let exact = self.listeners.contains_key(&address);
        self.listeners
            .get_mut(if exact { &address } else { &everywhere })
    }

    /// The next port that nobody listens on.
    fn pick_port(&mut self) -> Result<u16, ProviderError> {
        for _ in FIRST_FREE_PORT..=u16::MAX {
            self.last_port = self.last_port.wrapping_add(1).max(FIRST_FREE_PORT);
            let port = self.last_port;
            if !self.listeners.keys().any(|taken| taken.port() == port) {
                return Ok(port);
            }
        }
        let what = "every port is in use";
        Err(ProviderError::new(ProviderErrorKind::Address, what))
    }
}

#[derive(Debug)]
struct LoopbackListener {
    address: SocketAddr,
    limits: Limits,
    world: Arc<Mutex<World>>,
}

impl Listener for LoopbackListener {
    fn local_address(&self) -> SocketAddr {
        self.address
    }

    fn accept(&mut self) -> BoxFuture<'_, Result<Incoming, ProviderError>> {
        Box::pin(poll_fn(|context| {
            let mut world = lock(&self.world);
            let Some(backlog) = world.listeners.get_mut(&self.address) else {
                unreachable!("only dropping the listener closes it");
            };
            while let Some(request) = backlog.requests.pop_front() {
                if request.reply.is_awaited() {
                    return Poll::Ready(Ok(request.into_incoming(self.limits)));
                }
            }
            let old = backlog.waker.replace(context.waker().clone());
            drop(world);
            drop(old);
            Poll::Pending
        }))
    }
}

impl Drop for LoopbackListener {
    fn drop(&mut self) {
        let closed = lock(&self.world).listeners.remove(&self.address);
        // Those who wait are refused, and woken, without the lock.
        drop(closed);
    }
}

// ---- The way from a request to a connection ----

/// Somebody who wants to connect.
#[derive(Debug)]
struct Request {
    limits: Limits,
    from: SocketAddr,
    to: SocketAddr,
    private_data: Bytes,
    receive: WorkRequest,
    reply: Reply,
}

impl Request {
    fn into_incoming(mut self, limits: Limits) -> Incoming {
        Incoming {
            remote_address: self.from,
            private_data: mem::take(&mut self.private_data),
            knows_read_depths: true,
            answer: Box::new(move |answer| Box::pin(async move { self.accept(answer, limits) })),
        }
    }

    fn accept(self, answer: Answer, limits: Limits) -> Result<Connected, ProviderError> {
        check_private_data(&answer.private_data)?;
        let mut ours = common_limits(limits, self.limits);
        if let Some(served) = answer.peer_serves_reads {
            ours.max_outbound_reads = ours.max_outbound_reads.min(served);
        }
        let theirs = common_limits(self.limits, limits);
        let [mut here, mut there] = LoopbackQueuePair::pair([ours, theirs]);
        //= SMBD-3.1.7.2-04
        here.post(answer.receive);
        here.publish();
        //= SMBD-3.1.4.1-07
        there.post(self.receive);
        there.publish();
        let decided = self.reply.decide(Ok(Connected {
            queue_pair: Box::new(there),
            remote_address: self.to,
            local_address: self.from,
            private_data: answer.private_data,
        }));
        if !decided {
            let what = "the peer gave up before it was answered";
            return Err(ProviderError::new(ProviderErrorKind::Reset, what));
        }
        Ok(Connected {
            queue_pair: Box::new(here),
            remote_address: self.from,
            local_address: self.to,
            private_data: Bytes::new(),
        })
    }
}

/// What stands between the two sides of a connection request.
#[derive(Debug)]
enum Handshake {
    Undecided(Option<Waker>),
    Decided(Result<Connected, ProviderError>),
    /// The one who asked is gone, or has its answer.
    Over,
}

/// The answering side; dropping it refuses.
#[derive(Debug)]
struct Reply(Arc<Mutex<Handshake>>);

impl Reply {
    fn is_awaited(&self) -> bool {
        matches!(*lock(&self.0), Handshake::Undecided(_))
    }

    /// Whether anybody still wanted to know.
    fn decide(&self, answer: Result<Connected, ProviderError>) -> bool {
        let mut handshake = lock(&self.0);
        let Handshake::Undecided(waker) = &mut *handshake else {
            return false;
        };
        let waker = waker.take();
        *handshake = Handshake::Decided(answer);
        drop(handshake);
        wake(waker);
        true
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.decide(Err(refused("the listener turned the connection away")));
    }
}

/// The asking side; dropping it gives up.
#[derive(Debug)]
struct Waiting(Arc<Mutex<Handshake>>);

impl Future for Waiting {
    type Output = Result<Connected, ProviderError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut handshake = lock(&self.0);
        match mem::replace(&mut *handshake, Handshake::Over) {
            Handshake::Undecided(old) => {
                *handshake = Handshake::Undecided(Some(context.waker().clone()));
                drop(handshake);
                drop(old);
                Poll::Pending
            }
            Handshake::Decided(answer) => Poll::Ready(answer),
            Handshake::Over => Poll::Pending,
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let unread = mem::replace(&mut *lock(&self.0), Handshake::Over);
        // A connection in it is dropped, which ends it, without the lock.
        drop(unread);
    }
}

/// What an end with limits `own` can do towards one with limits `peer`.
fn common_limits(own: Limits, peer: Limits) -> Limits {
    Limits {
        max_outbound_reads: own.max_outbound_reads.min(peer.max_inbound_reads),
        max_inbound_reads: own.max_inbound_reads.min(peer.max_outbound_reads),
        max_transfer: own.max_transfer.min(peer.max_transfer),
        send_with_invalidate: own.send_with_invalidate && peer.send_with_invalidate,
        ..own
    }
}

/// What [`ConnectRequest::private_data`] allows.
const MAX_PRIVATE_DATA: usize = 200;

fn check_private_data(data: &Bytes) -> Result<(), ProviderError> {
    if data.len() <= MAX_PRIVATE_DATA {
        return Ok(());
    }
    let what = format!(
        "{} bytes of private data, and {MAX_PRIVATE_DATA} is the most",
        data.len()
    );
    Err(ProviderError::new(ProviderErrorKind::Local, what))
}

fn refused(what: &str) -> ProviderError {
    ProviderError::new(ProviderErrorKind::Refused, what)
}

// ---- Connections ----

/// How long an end looks for more before it sleeps: it is the time to be woken in a virtual machine.
const WATCH: Duration = Duration::from_micros(100);

/// One end of a connection.
struct LoopbackQueuePair {
    limits: Limits,
    side: usize,
    joint: Arc<Joint>,
    adaptive_spin: AdaptiveSpin,
    /// Bytes posted, and bytes taken.
    moved: [u64; 2],
    /// What waits for a flush.
    posted: Posted,
    /// Receives whose message was not taken.
    receives: ReceiveQueue,
    /// What has arrived and was not taken.
    arrived: Box<Batch>,
    /// The head of the oldest of it was taken.
    head_is_taken: bool,
    /// What else is done and was not taken.
    completions: Completions,
    /// Comes after the last completion.
    disconnect: Option<Disconnect>,
    /// All that was posted is completed, and nothing more will happen.
    over: bool,
    /// Sends, Reads and Writes whose completion was not taken yet; bounds the queues above.
    sends_outstanding: usize,
}

/// Sends, Reads and Writes that are done and were not taken, oldest first.
#[derive(Default)]
struct Completions(VecDeque<Done>);

struct Done {
    /// How many work requests that are.
    count: usize,
    completion: Completion,
}

impl Completions {
    fn push(&mut self, completion: Completion) {
        self.0.push_back(Done {
            count: 1,
            completion,
        });
    }

    /// The last of a row of Sends stands for all of them.
    fn push_sent(&mut self, id: WorkId, number: usize) {
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

impl LoopbackQueuePair {
    fn pair(limits: [Limits; 2]) -> [Self; 2] {
        let joint = Arc::new(Joint::default());
        [0, 1].map(|side| Self {
            limits: limits[side],
            side,
            joint: Arc::clone(&joint),
            adaptive_spin: AdaptiveSpin::new(WATCH),
            moved: [0; 2],
            posted: Posted::default(),
            receives: ReceiveQueue::default(),
            arrived: Box::default(),
            head_is_taken: false,
            completions: Completions::default(),
            disconnect: None,
            over: false,
            sends_outstanding: 0,
        })
    }

    /// The receives that were posted are there for the other end from now on.
    fn publish(&mut self) {
        lock(&self.joint.pair.0).bring(1 - self.side, &mut self.posted.batch);
    }

    /// Does all that is posted, and wakes the other end if it has something to take.
    fn execute(&mut self) {
        self.posted.prepare();
        let mut pair = self.joint.lock();
        let brings = pair.execute(self.side, &mut self.posted, &mut self.completions);
        let mut waker = None;
        if pair.ended {
            self.joint.tell(self.side);
        }
        if brings || pair.ended {
            self.joint.tell(1 - self.side);
            waker = pair.wakers[1 - self.side].take();
        }
        drop(pair);
        wake(waker);
    }

    /// Takes over what the other end has brought; false if there is nothing.
    fn look(&mut self, context: &mut Context<'_>) -> bool {
        let Apart(news) = &self.joint.news[self.side];
        let [sent, received] = self.moved;
        if !news.load(Ordering::Acquire)
            && self
                .adaptive_spin
                .keep_spinning(sent, received, Instant::now)
        {
            context.waker().wake_by_ref();
            return false;
        }
        let mut pair = self.joint.lock();
        news.store(false, Ordering::Relaxed);
        if mem::take(&mut pair.filled[self.side]) {
            mem::swap(&mut pair.brought[self.side], &mut self.arrived);
        }
        let mut old = None;
        if pair.ended {
            self.disconnect = pair.disconnects[self.side].take();
            drop(pair);
            self.finish();
        } else if self.arrived.messages.is_empty() {
            old = pair.wakers[self.side].replace(context.waker().clone());
            drop(pair);
            self.posted.rest();
        }
        drop(old);
        self.posted.receives.append(&mut self.arrived.receives);
        !self.arrived.messages.is_empty() || self.over
    }

    /// The connection has ended: what was posted will not happen.
    fn finish(&mut self) {
        self.over = true;
        let posted = mem::take(&mut self.posted);
        for id in posted.sends {
            self.completions
                .push(Completion::Flushed { id, buffer: None });
        }
        for work in posted.work {
            self.flush_one(work);
        }
    }

    fn flush_one(&mut self, work: WorkRequest) {
        let id = work.id();
        let buffer = match work {
            WorkRequest::Read { into, .. } => Some(into),
            _ => None,
        };
        self.completions.push(Completion::Flushed { id, buffer });
    }

    /// The oldest message that has arrived, or else the oldest of what is done.
    #[inline(always)]
    fn take(&mut self) -> Option<Completion> {
        let arrival = self
            .arrived
            .take(&mut self.receives, &mut self.head_is_taken);
        if let Some(arrival) = arrival {
            self.moved[1] += match &arrival {
                Completion::Head(head) => head.len() as u64,
                Completion::Received { message, .. } => message.len() as u64,
                _ => 0,
            };
            return Some(arrival);
        }
        self.take_done()
    }

    /// The oldest of what else is done; last, that the connection is over.
    fn take_done(&mut self) -> Option<Completion> {
        if let Some(Done { count, completion }) = self.completions.0.pop_front() {
            self.sends_outstanding -= count;
            return Some(completion);
        }
        if !self.over {
            return None;
        }
        match self.receives.pop() {
            Some(id) => Some(Completion::Flushed { id, buffer: None }),
            None => self.disconnect.take().map(Completion::Disconnected),
        }
    }
}

impl QueuePair for LoopbackQueuePair {
    fn limits(&self) -> Limits {
        self.limits
    }

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
        if self.over && self.disconnect.is_none() {
            // Nothing comes behind the Disconnected that was taken.
            return;
        }
        self.moved[0] += length_of(&work) as u64;
        match work {
            WorkRequest::Receive { id, length, count } => {
                let receives = Receives { id, length, count };
                self.receives.post(receives);
                if !self.over {
                    self.posted.batch.receives.push_back(receives);
                }
            }
            work => {
                self.sends_outstanding += 1;
                if self.over {
                    self.flush_one(work);
                } else {
                    self.posted.work.push_back(work);
                }
            }
        }
    }

    fn flush(&mut self, _context: &mut Context<'_>) {
        if !self.posted.is_empty() {
            self.execute();
        }
        let [sent, received] = self.moved;
        self.adaptive_spin.record_flush(sent, received);
    }

    fn poll_completion(&mut self, context: &mut Context<'_>) -> Poll<Completion> {
        if let Some(completion) = self.take() {
            return Poll::Ready(completion);
        }
        if self.over || !self.look(context) {
            return Poll::Pending;
        }
        self.take().map_or(Poll::Pending, Poll::Ready)
    }

    fn has_completion(&self) -> bool {
        let Apart(news) = &self.joint.news[self.side];
        let [sent, received] = self.moved;
        !self.completions.0.is_empty()
            || !self.arrived.messages.is_empty()
            || self.over
            || news.load(Ordering::Relaxed)
            // Whether to watch is decided where a poll finds nothing.
            || self.adaptive_spin.may_spin(sent, received)
    }

    fn is_zero_copy(&self) -> bool {
        true
    }

    fn disconnect(&mut self, how: Teardown) {
        let there = match how {
            Teardown::Graceful => {
                self.execute();
                Disconnect::Remote
            }
            Teardown::Abort => {
                let what = "the peer aborted the connection";
                Disconnect::Broken(ProviderError::new(ProviderErrorKind::Reset, what))
            }
        };
        let mut pair = lock(&self.joint.pair.0);
        pair.end(self.side, Disconnect::Local, there);
        (0..2).for_each(|side| self.joint.tell(side));
        let wakers = mem::take(&mut pair.wakers);
        drop(pair);
        wakers.into_iter().for_each(wake);
    }

    fn register(
        &mut self,
        buffer: BytesMut,
        access: Access,
    ) -> Result<Registration, RegisterError> {
        let mut pair = lock(&self.joint.pair.0);
        pair.memory[self.side].register(buffer, access)
    }

    fn deregister(&mut self, token: Token) -> Result<BytesMut, DeregisterError> {
        lock(&self.joint.pair.0).memory[self.side].deregister(token)
    }
}

impl Drop for LoopbackQueuePair {
    fn drop(&mut self) {
        self.disconnect(Teardown::Abort);
        let mut pair = lock(&self.joint.pair.0);
        let memory = mem::take(&mut pair.memory[self.side]);
        let brought = mem::take(&mut pair.brought[self.side]);
        drop(pair);
        // Buffers, which may be large, are freed without the lock.
        drop((memory, brought));
    }
}

impl fmt::Debug for LoopbackQueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoopbackQueuePair")
            .field("side", &self.side)
            .finish_non_exhaustive()
    }
}

/// Bytes that it moves.
fn length_of(work: &WorkRequest) -> usize {
    match work {
        WorkRequest::Receive { .. } => 0,
        WorkRequest::Send {
            header, payload, ..
        } => header.as_slice().len() + payload.len(),
        WorkRequest::Read { into, .. } => into.len(),
        WorkRequest::Write { data, .. } => data.len(),
    }
}

/// Whoever posts has read the limits; what passes them is a bug of ours, not of the peer.
fn check_against_limits(work: &WorkRequest, limits: &Limits) {
    let transfer = match work {
        WorkRequest::Receive { .. } => 0,
        WorkRequest::Send { invalidate, .. } => {
            let allowed = limits.send_with_invalidate || invalidate.is_none();
            assert!(allowed, "a Send cannot carry a token here");
            0
        }
        WorkRequest::Read { into, .. } => {
            assert!(limits.max_outbound_reads > 0, "no Reads here");
            into.len()
        }
        WorkRequest::Write { data, .. } => data.len(),
    };
    assert!(
        transfer <= limits.max_transfer as usize,
        "a transfer of {transfer} bytes"
    );
}

/// What stands between both ends of a connection.
#[derive(Default)]
struct Joint {
    pair: Apart<Mutex<Pair>>,
    /// Whether the ends have something to take; for those who look again and again, and are not
    /// to take the lock for it.
    news: [Apart<AtomicBool>; 2],
}

/// In cache lines that nothing else is in; some processors fetch them in pairs. Who looks at a
/// flag again and again would else slow down whoever works beside it.
#[derive(Default)]
#[repr(align(128))]
struct Apart<T>(T);

/// How often to look whether the other end is done with what both touch, before sleeping for it: to
/// be woken takes longer than a flush, which is what it mostly does there.
const LOOKS: u32 = 32;
/// Between two looks, which take the cache line from the other end.
const PAUSES: u32 = 16;

impl Joint {
    fn lock(&self) -> MutexGuard<'_, Pair> {
        for _ in 0..LOOKS {
            match self.pair.0.try_lock() {
                Ok(pair) => return pair,
                Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => (0..PAUSES).for_each(|_| spin_loop()),
            }
        }
        lock(&self.pair.0)
    }

    /// The end of `side` has something to take.
    fn tell(&self, side: usize) {
        let Apart(news) = &self.news[side];
        if !news.load(Ordering::Relaxed) {
            news.store(true, Ordering::Release);
        }
    }
}

/// What both ends of a connection touch. What every flush needs comes first: between two cores each
/// cache line takes its time.
#[derive(Default)]
#[repr(C)]
struct Pair {
    ended: bool,
    /// Whether there is anything in what was brought.
    filled: [bool; 2],
    /// What the end of a side has not taken yet of what the other brought it.
    brought: [Box<Batch>; 2],
    wakers: [Option<Waker>; 2],
    disconnects: [Option<Disconnect>; 2],
    memory: [MemoryTable; 2],
}

/// What one end brings the other.
// The boxes go round: one is filled, one stands between the ends, one is emptied. So what is brought
// is not moved, and no end works in cache lines that the other needs.
#[derive(Default)]
struct Batch {
    /// Messages, oldest first.
    messages: VecDeque<Message>,
    /// The payloads of those that are handed over, with the bytes before them.
    handed_over: VecDeque<(Bytes, Inline)>,
    /// The bytes of those that were copied, and how many messages they are. Only the end that takes
    /// them cuts them apart, so that the count of their readers stays on one core.
    copied: VecDeque<(Bytes, usize)>,
    /// Receives for Sends of the other end.
    receives: VecDeque<Receives>,
}

struct Message {
    /// Bytes that were copied. `None` for a payload that is handed over.
    length: Option<u32>,
    invalidated: Option<Token>,
}

impl Batch {
    fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.receives.is_empty()
    }

    /// Moves all of `other` behind this.
    fn append(&mut self, other: &mut Self) {
        append(&mut self.messages, &mut other.messages);
        append(&mut self.handed_over, &mut other.handed_over);
        append(&mut self.copied, &mut other.copied);
        append(&mut self.receives, &mut other.receives);
    }

    /// The oldest message, which takes the oldest of `receives`; its head is taken alone.
    #[inline(always)]
    fn take(
        &mut self,
        receives: &mut ReceiveQueue,
        head_is_taken: &mut bool,
    ) -> Option<Completion> {
        let &Message {
            length,
            invalidated,
        } = self.messages.front()?;
        let message = match length {
            Some(length) => self.cut(length),
            None => {
                let oldest = self.handed_over.front();
                let (_, head) = oldest.expect("it came with the message");
                *head_is_taken = !*head_is_taken && !head.is_empty();
                if *head_is_taken {
                    return Some(Completion::Head(*head));
                }
                let (payload, _) = self.handed_over.pop_front()?;
                payload
            }
        };
        self.messages.pop_front();
        Some(Completion::Received {
            id: receives.pop().expect("who sent it has counted them"),
            message,
            invalidated,
        })
    }

    /// The oldest bytes that were copied.
    #[inline(always)]
    fn cut(&mut self, length: u32) -> Bytes {
        let oldest = self.copied.front_mut();
        let (bytes, left) = oldest.expect("what was copied has its bytes");
        let cut = bytes.split_to(length as usize);
        *left -= 1;
        if *left == 0 {
            self.copied.pop_front();
        }
        cut
    }
}

/// Moves all of `from` behind what `to` has; both keep the memory that one of them has.
fn append<T>(to: &mut VecDeque<T>, from: &mut VecDeque<T>) {
    if to.is_empty() {
        mem::swap(to, from);
    } else {
        to.append(from);
    }
}

/// What waits for a flush. What can be done without the other end is done before.
#[derive(Default)]
struct Posted {
    /// Receives, and what Sends send that have found theirs,
    batch: Box<Batch>,
    /// with the names of those Sends.
    sends: VecDeque<WorkId>,
    /// Where the next of them is copied to, if it is short,
    open: BytesMut,
    /// behind so many.
    in_open: usize,
    /// Sends, Reads and Writes that come behind those Sends.
    work: VecDeque<WorkRequest>,
    /// Receives of the other end that wait for a Send, as far as this end has seen.
    receives: ReceiveQueue,
}

/// Some messages of the longest kind, and few enough bytes that what is used again soon is still
/// in a core's cache.
const CHUNK: usize = 64 * 1024;
/// Payloads from this length on are handed over: to share one costs less than to copy it.
const HANDED_OVER: usize = 2048;
/// The memory of all connections for messages.
static CHUNKS: Pool = Pool::new(CHUNK, 64);

impl Posted {
    fn is_empty(&self) -> bool {
        self.batch.is_empty() && self.work.is_empty()
    }

    /// Puts together the Sends that come first, as far as the other end is known to receive them.
    // All in a row: what one after the other is written to cache lines that the other end had is
    // waited for once. Where something else is done in between, each is waited for.
    fn prepare(&mut self) {
        while self.has_receive_for_first() {
            if let Some(WorkRequest::Send {
                id,
                header,
                payload,
                ..
            }) = self.work.pop_front()
            {
                self.receives.pop();
                self.sends.push_back(id);
                self.put(header, payload, None);
            }
        }
        self.close();
    }

    #[inline(always)]
    fn has_receive_for_first(&self) -> bool {
        let Some(WorkRequest::Send {
            header,
            payload,
            invalidate: None,
            ..
        }) = self.work.front()
        else {
            return false;
        };
        let oldest = self.receives.front();
        oldest.is_some_and(|receive| header.len() + payload.len() <= receive.length as usize)
    }

    /// A message that leaves with the next flush.
    #[inline(always)]
    fn put(&mut self, header: Inline, payload: Bytes, invalidated: Option<Token>) {
        let mut length = None;
        if !payload.is_empty() && payload.len() < HANDED_OVER {
            length = Some(self.copy([header.as_slice(), &payload]));
        } else {
            self.batch.handed_over.push_back((payload, header));
        }
        self.batch.messages.push_back(Message {
            length,
            invalidated,
        });
    }

    /// Both behind what was copied before; tells how many bytes they are.
    #[inline(always)]
    fn copy(&mut self, [one, two]: [&[u8]; 2]) -> u32 {
        let length = one.len() + two.len();
        if self.open.capacity() - self.open.len() < length {
            self.close();
            self.open = CHUNKS.take_to_cut();
        }
        self.open.extend_from_slice(one);
        self.open.extend_from_slice(two);
        self.in_open += 1;
        length as u32
    }

    /// What was copied can leave.
    fn close(&mut self) {
        if self.in_open > 0 {
            let copied = (self.open.split().freeze(), mem::take(&mut self.in_open));
            self.batch.copied.push_back(copied);
        }
    }

    /// Who has nothing to say keeps no memory for it.
    fn rest(&mut self) {
        self.open = BytesMut::new();
    }
}

impl Pair {
    /// Puts a batch where the end of `side` takes it.
    fn bring(&mut self, side: usize, batch: &mut Box<Batch>) {
        if mem::replace(&mut self.filled[side], true) {
            self.brought[side].append(batch);
        } else {
            mem::swap(&mut self.brought[side], batch);
        }
    }

    /// Does everything that `side` has posted, in order: so what was written is in place before
    /// a later Send is received. Tells whether a message is among it.
    fn execute(&mut self, side: usize, posted: &mut Posted, completions: &mut Completions) -> bool {
        if self.ended {
            return false;
        }
        if let Some(&last) = posted.sends.back() {
            completions.push_sent(last, posted.sends.len());
            posted.sends.clear();
        }
        if !posted.work.is_empty() {
            posted.receives.append(&mut self.brought[side].receives);
        }
        let mut broken = None;
        //= SMBD-2.1-01
        //= RDMAP-11
        while let Some(work) = posted.work.front_mut() {
            if let Err(what) = perform(work, &mut posted.receives, &mut self.memory[1 - side]) {
                broken = Some(what);
                break;
            }
            match posted.work.pop_front() {
                Some(WorkRequest::Send {
                    id,
                    header,
                    payload,
                    invalidate,
                }) => {
                    posted.put(header, payload, invalidate);
                    completions.push_sent(id, 1);
                }
                Some(WorkRequest::Write { id, .. }) => completions.push(Completion::Written { id }),
                Some(WorkRequest::Read { id, into, .. }) => {
                    completions.push(Completion::Read { id, buffer: into });
                }
                Some(WorkRequest::Receive { .. }) | None => {
                    unreachable!("receives have a queue of their own")
                }
            }
        }
        posted.close();
        let brings = !posted.batch.messages.is_empty();
        if !posted.batch.is_empty() {
            self.bring(1 - side, &mut posted.batch);
        }
        if let Some(what) = broken {
            self.break_for(side, &what);
        }
        brings
    }

    /// `side` broke a rule, and the other end says so.
    fn break_for(&mut self, side: usize, what: &str) {
        let words = format!("the peer ended the connection: {what}");
        let here = ProviderError::new(ProviderErrorKind::Terminated, words);
        let there = ProviderError::new(ProviderErrorKind::Protocol, what);
        self.end(side, Disconnect::Broken(here), Disconnect::Broken(there));
    }

    fn end(&mut self, side: usize, here: Disconnect, there: Disconnect) {
        if mem::replace(&mut self.ended, true) {
            return;
        }
        //= RDMAP-21
        for (side, disconnect) in [(side, here), (1 - side, there)] {
            self.disconnects[side] = Some(disconnect);
        }
    }
}

/// Does to the peer what is more than a message, or says which rule it breaks.
fn perform(
    work: &mut WorkRequest,
    receives: &mut ReceiveQueue,
    memory: &mut MemoryTable,
) -> Result<(), String> {
    let WorkRequest::Send {
        header,
        payload,
        invalidate,
        ..
    } = work
    else {
        return transfer(work, memory);
    };
    //= DDP-07
    let Some(&Receives { length, .. }) = receives.front() else {
        return Err("a Send arrived and no receive was posted".to_owned());
    };
    //= DDP-08
    let size = header.len() + payload.len();
    if size > length as usize {
        return Err(format!(
            "a Send of {size} bytes arrived and the receive takes {length}"
        ));
    }
    //= RDMAP-12
    if let Some(token) = *invalidate {
        let result = memory.invalidate(token);
        result.map_err(|fault| format!("invalidation of token {token}: {fault}"))?;
    }
    receives.pop();
    Ok(())
}

/// A Read or a Write.
fn transfer(work: &mut WorkRequest, memory: &mut MemoryTable) -> Result<(), String> {
    match work {
        //= SMBD-2.1-02
        //= DDP-13
        WorkRequest::Write { data, .. } if data.is_empty() => Ok(()),
        WorkRequest::Write { data, to, .. } => {
            let target = memory.write(*to, data.len() as u32);
            let target = target.map_err(|fault| {
                format!(
                    "RDMA Write of {} bytes to token {}: {fault}",
                    data.len(),
                    to.token
                )
            })?;
            target.copy_from_slice(data);
            Ok(())
        }
        //= RDMAP-10
        WorkRequest::Read { into, .. } if into.is_empty() => Ok(()),
        WorkRequest::Read { into, from, .. } => {
            let source = memory.read(*from, into.len() as u32);
            let source = source.map_err(|fault| {
                format!(
                    "RDMA Read of {} bytes from token {}: {fault}",
                    into.len(),
                    from.token
                )
            })?;
            into.copy_from_slice(source.as_ref());
            Ok(())
        }
        WorkRequest::Send { .. } | WorkRequest::Receive { .. } => {
            unreachable!("a Send takes a receive, and receives have a queue of their own")
        }
    }
}

/// Locks guard plain data only: wakers are called and dropped without them, since they may run
/// somebody's code. A panic under the lock has left nothing half done that others would trip over.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        task::Wake,
    };

    use bytes::BufMut;

    use super::*;

    /// What both connect and accept give at once here, since nothing takes time.
    fn now<T>(future: impl Future<Output = T>) -> T {
        let mut future = std::pin::pin!(future);
        match future
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            Poll::Ready(output) => output,
            Poll::Pending => panic!("it waits"),
        }
    }

    fn waits<T>(future: &mut BoxFuture<'_, T>) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        future.as_mut().poll(&mut context).is_pending()
    }

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn request(address: SocketAddr) -> ConnectRequest {
        ConnectRequest {
            address,
            private_data: Bytes::new(),
            receive: receive(0),
        }
    }

    fn receive(id: u64) -> WorkRequest {
        WorkRequest::Receive {
            id: WorkId(id),
            length: 64,
            count: 1,
        }
    }

    fn send(id: u64, payload: &'static str) -> WorkRequest {
        WorkRequest::Send {
            id: WorkId(id),
            header: Inline::new(),
            payload: Bytes::from(payload),
            invalidate: None,
        }
    }

    fn answer(peer_serves_reads: Option<u32>) -> Answer {
        Answer {
            private_data: Bytes::new(),
            receive: receive(0),
            peer_serves_reads,
        }
    }

    fn kind<T: fmt::Debug>(result: Result<T, ProviderError>) -> ProviderErrorKind {
        result.unwrap_err().kind
    }

    /// The active and the passive end.
    fn pair(
        active: &Loopback,
        passive: &Loopback,
        peer_serves_reads: Option<u32>,
    ) -> [Box<dyn QueuePair>; 2] {
        let mut listener = now(passive.listen(address(0))).unwrap();
        let mut connect = active.connect(request(listener.local_address()));
        assert!(waits(&mut connect));
        let incoming = now(listener.accept()).unwrap();
        let passive = now((incoming.answer)(answer(peer_serves_reads))).unwrap();
        [now(connect).unwrap().queue_pair, passive.queue_pair]
    }

    fn with_reads(outbound: u32, inbound: u32) -> LoopbackConfig {
        let mut config = LoopbackConfig::default();
        config.limits.max_outbound_reads = outbound;
        config.limits.max_inbound_reads = inbound;
        config
    }

    //= SMBD-3.1.4.6-05 test
    #[test]
    fn an_end_reads_as_far_as_the_other_serves() {
        let active = Loopback::with_config(with_reads(8, 3));
        let passive = active.reconfigured(with_reads(5, 6));
        for (known, expected) in [(None, 3), (Some(2), 2), (Some(9), 3)] {
            let [a, p] = pair(&active, &passive, known).map(|end| end.limits());
            assert_eq!((a.max_outbound_reads, a.max_inbound_reads), (6, 3));
            assert_eq!((p.max_outbound_reads, p.max_inbound_reads), (expected, 6));
        }
    }

    #[test]
    fn worlds_addresses_and_ports() {
        let world = Loopback::new();
        let here = now(world.listen(address(445))).unwrap();
        assert_eq!(here.local_address(), address(445));
        let again = now(world.clone().listen(address(445)));
        assert_eq!(kind(again), ProviderErrorKind::InUse);
        let elsewhere = now(Loopback::new().connect(request(address(445))));
        assert_eq!(kind(elsewhere), ProviderErrorKind::Refused);
        drop(here);
        let everywhere = now(world.listen(SocketAddr::from(([0, 0, 0, 0], 445)))).unwrap();
        assert!(waits(&mut world.connect(request(address(445)))));
        drop(everywhere);
        let nobody = now(world.connect(request(address(445))));
        assert_eq!(kind(nobody), ProviderErrorKind::Refused);
    }

    #[test]
    fn a_listener_has_room_for_so_many_and_refuses_them_all_when_it_goes() {
        let world = Loopback::with_config(LoopbackConfig {
            backlog: 2,
            ..LoopbackConfig::default()
        });
        let listener = now(world.listen(address(0))).unwrap();
        let to = listener.local_address();
        let [mut one, mut two] = [(); 2].map(|()| world.connect(request(to)));
        assert!(waits(&mut one) && waits(&mut two));
        let full = now(world.connect(request(to)));
        assert_eq!(kind(full), ProviderErrorKind::Refused);
        // Who gives up makes room.
        drop(one);
        let mut three = world.connect(request(to));
        assert!(waits(&mut three));
        drop(listener);
        assert_eq!(kind(now(two)), ProviderErrorKind::Refused);
        assert_eq!(kind(now(three)), ProviderErrorKind::Refused);
    }

    #[test]
    fn answering_one_who_gave_up() {
        let world = Loopback::new();
        let mut listener = now(world.listen(address(0))).unwrap();
        let mut connect = world.connect(request(listener.local_address()));
        assert!(waits(&mut connect));
        let incoming = now(listener.accept()).unwrap();
        drop(connect);
        let connected = now((incoming.answer)(answer(None)));
        assert_eq!(kind(connected), ProviderErrorKind::Reset);
    }

    #[test]
    fn private_data_has_at_most_200_bytes() {
        let world = Loopback::new();
        let long = ConnectRequest {
            private_data: Bytes::from_static(&[0; 201]),
            ..request(address(1))
        };
        assert_eq!(kind(now(world.connect(long))), ProviderErrorKind::Local);
    }

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn whoever_waits_is_woken_once_for_news() {
        let [mut a, mut p] = pair_of_one_world();
        let [here, there] = [(); 2].map(|()| Arc::new(Count::default()));
        let [here_waker, there_waker] = [&here, &there].map(|count| Waker::from(count.clone()));
        let mut here_context = Context::from_waker(&here_waker);
        let mut there_context = Context::from_waker(&there_waker);
        let woken = || [&here, &there].map(|count| count.0.load(Ordering::Relaxed));
        assert!(a.poll_completion(&mut here_context).is_pending());
        assert!(p.poll_completion(&mut there_context).is_pending());
        a.post(send(1, "hello"));
        assert_eq!(woken(), [0, 0]);
        a.flush(&mut here_context);
        assert_eq!(woken(), [0, 1], "who flushes polls, and need not be told");
        assert!(a.poll_completion(&mut here_context).is_ready());
        assert!(a.poll_completion(&mut here_context).is_pending());
        assert!(p.poll_completion(&mut there_context).is_ready());
        assert!(p.poll_completion(&mut there_context).is_pending());
        drop(a);
        assert_eq!(woken(), [1, 2]);
    }

    #[test]
    fn whoever_has_moved_much_looks_on_before_it_sleeps() {
        let [mut a, mut p] = pair_of_one_world();
        let count = Arc::new(Count::default());
        let waker = Waker::from(count.clone());
        let mut context = Context::from_waker(&waker);
        let mut nobody = Context::from_waker(Waker::noop());
        let woken = || count.0.load(Ordering::Relaxed);
        p.post(WorkRequest::Receive {
            id: WorkId(1),
            length: 1 << 20,
            count: 2,
        });
        p.flush(&mut context);
        a.post(send(1, "first"));
        a.post(WorkRequest::Send {
            id: WorkId(2),
            header: Inline::new(),
            payload: Bytes::from(vec![1; 1 << 20]),
            invalidate: None,
        });
        a.flush(&mut nobody);
        while p.poll_completion(&mut context).is_ready() {}
        assert_eq!(woken(), 1, "it wakes itself");
        a.post(send(3, "third"));
        a.flush(&mut nobody);
        assert_eq!(woken(), 1, "and need not be woken");
        assert!(p.poll_completion(&mut context).is_ready());
        // The watch ends when nothing has come for so long.
        while p.poll_completion(&mut context).is_pending() && woken() > 1 {
            count.0.store(1, Ordering::Relaxed);
        }
        drop(a);
        assert_eq!(woken(), 2, "it sleeps");
    }

    fn pair_of_one_world() -> [Box<dyn QueuePair>; 2] {
        let world = Loopback::new();
        pair(&world, &world, None)
    }

    /// What one end posts and the other takes, and the receives for it.
    struct Way {
        posted: Posted,
        arrived: Batch,
        head_is_taken: bool,
        receives: ReceiveQueue,
    }

    impl Way {
        fn new() -> Self {
            let mut receives = ReceiveQueue::default();
            for id in 0..300 {
                receives.post(Receives {
                    id: WorkId(id),
                    length: u32::MAX,
                    count: 1,
                });
            }
            Self {
                posted: Posted::default(),
                arrived: Batch::default(),
                head_is_taken: false,
                receives,
            }
        }

        fn flush(&mut self) {
            self.posted.close();
            self.arrived.append(&mut self.posted.batch);
        }

        /// A message, with its head if that comes apart.
        fn take(&mut self, id: u64) -> [Bytes; 2] {
            let mut head = Bytes::new();
            loop {
                match self
                    .arrived
                    .take(&mut self.receives, &mut self.head_is_taken)
                {
                    Some(Completion::Head(bytes)) if head.is_empty() && !bytes.is_empty() => {
                        head = Bytes::copy_from_slice(bytes.as_slice());
                    }
                    Some(Completion::Received {
                        id: WorkId(taken),
                        message,
                        invalidated: None,
                    }) => {
                        assert_eq!(taken, id);
                        return [head, message];
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    #[test]
    fn messages_share_an_allocation_and_keep_their_bytes() {
        let mut way = Way::new();
        // So long that 32 of them fill a chunk, and the last two begin another.
        let size = CHUNK / 32;
        let payload = Bytes::from(vec![7; size - 1]);
        for id in 0..34 {
            way.posted.put(inline(b"h"), payload.clone(), None);
            if id == 9 {
                way.flush();
            }
        }
        way.flush();
        let mut places = Vec::new();
        for id in 0..34 {
            let [head, message] = way.take(id);
            assert!(head.is_empty() && message[0] == b'h' && message[1..] == payload);
            places.push(message.as_ptr());
        }
        assert!(way.arrived.messages.is_empty() && way.arrived.copied.is_empty());
        for at in (1..32).chain([33]) {
            assert_eq!(places[at], places[at - 1].wrapping_add(size));
        }
    }

    #[test]
    fn long_payloads_are_the_senders_own_and_keep_their_turn() {
        let mut way = Way::new();
        let payload = |id: u64| {
            let lengths = [0, 1, HANDED_OVER - 1, HANDED_OVER, 3 * CHUNK];
            let length = lengths[(id * id) as usize % lengths.len()];
            Bytes::from(vec![id as u8; length])
        };
        let payloads: Vec<_> = (0..200).map(payload).collect();
        // Where there is none, none comes.
        let head = |id: usize| {
            if id.is_multiple_of(3) {
                &b""[..]
            } else {
                b"head"
            }
        };
        // Some are taken in between, as many as there are and less.
        let (mut pushed, mut popped) = (0, 0);
        for batch in [1, 2, 7, 30, 60, 100] {
            for payload in &payloads[pushed..pushed + batch] {
                way.posted.put(inline(head(pushed)), payload.clone(), None);
                pushed += 1;
            }
            way.flush();
            let left = if batch == 7 { 0 } else { batch / 3 };
            while popped < pushed - left {
                let pieces = way.take(popped as u64);
                compare(pieces, head(popped), &payloads[popped]);
                popped += 1;
            }
        }
        while popped < pushed {
            let pieces = way.take(popped as u64);
            compare(pieces, head(popped), &payloads[popped]);
            popped += 1;
        }
        let Batch {
            messages,
            copied,
            handed_over,
            ..
        } = way.arrived;
        assert!(messages.is_empty() && copied.is_empty() && handed_over.is_empty());
    }

    fn inline(bytes: &[u8]) -> Inline {
        Inline::build(|out| out.put_slice(bytes))
    }

    fn compare([head, message]: [Bytes; 2], sent: &[u8], payload: &Bytes) {
        if !payload.is_empty() && payload.len() < HANDED_OVER {
            assert!(head.is_empty() && message == [sent, &payload[..]].concat());
        } else if payload.is_empty() {
            assert!(head == sent && message.is_empty());
        } else {
            assert_eq!(head, sent);
            let shared = message.as_ptr() == payload.as_ptr();
            assert!(shared && message.len() == payload.len());
        }
    }

    #[test]
    fn a_long_send_is_held_to_its_receive_and_let_go_with_the_connection() {
        // Known to the sender when it flushes, or only looked for then.
        for (room, fits, known) in [
            (4095, false, false),
            (4095, false, true),
            (4096, true, false),
            (4096, true, true),
        ] {
            let [mut a, mut p] = pair_of_one_world();
            let mut context = Context::from_waker(Waker::noop());
            // The receive that the connection began with.
            for end in [&mut a, &mut p] {
                end.post(send(0, "first"));
                end.flush(&mut context);
            }
            let receive = WorkRequest::Receive {
                id: WorkId(1),
                length: room,
                count: 1,
            };
            p.post(receive);
            p.flush(&mut context);
            while known && a.poll_completion(&mut context).is_ready() {}
            let payload = Bytes::from(vec![1; 4096]);
            a.post(WorkRequest::Send {
                id: WorkId(1),
                header: Inline::new(),
                payload: payload.clone(),
                invalidate: None,
            });
            a.flush(&mut context);
            let mut ended = false;
            while let Poll::Ready(completion) = p.poll_completion(&mut context) {
                ended |= matches!(completion, Completion::Disconnected(Disconnect::Broken(_)));
                if let Completion::Received {
                    id: WorkId(1),
                    message,
                    ..
                } = completion
                {
                    assert!(fits && message == payload);
                }
            }
            assert_eq!(ended, !fits);
            drop(a);
            drop(p);
            assert!(payload.is_unique(), "nobody holds it behind the end");
        }
    }

    #[test]
    fn sends_that_are_put_together_when_the_other_end_is_gone() {
        let mut context = Context::from_waker(Waker::noop());
        let [mut a, mut p] = pair_of_one_world();
        p.post(WorkRequest::Receive {
            id: WorkId(1),
            length: HANDED_OVER as u32,
            count: 1,
        });
        p.flush(&mut context);
        // Receives are known once they were looked for: this one, and that of the beginning.
        assert!(a.poll_completion(&mut context).is_pending());
        let payload = Bytes::from(vec![1; HANDED_OVER]);
        a.post(send(1, "copied"));
        a.post(WorkRequest::Send {
            id: WorkId(2),
            header: Inline::new(),
            payload: payload.clone(),
            invalidate: None,
        });
        a.post(send(3, "no receive is left for it"));
        drop(p);
        a.flush(&mut context);
        for expected in [1, 2, 3, 0] {
            let completion = a.poll_completion(&mut context);
            let Poll::Ready(Completion::Flushed { id, buffer: None }) = completion else {
                panic!("{completion:?}");
            };
            assert_eq!(id, WorkId(expected));
        }
        let last = a.poll_completion(&mut context);
        assert!(matches!(last, Poll::Ready(Completion::Disconnected(_))));
        assert!(payload.is_unique(), "nobody holds it behind the end");
    }

    /// Credits that come alone keep an end awake as much as messages do.
    #[test]
    fn all_bytes_count_as_moved() {
        let mut context = Context::from_waker(Waker::noop());
        let limits = LoopbackConfig::default().limits;
        for length in [0, 5, HANDED_OVER] {
            let [mut a, mut p] = LoopbackQueuePair::pair([limits; 2]);
            p.post(WorkRequest::Receive {
                id: WorkId(0),
                length: u32::MAX,
                count: 1,
            });
            p.flush(&mut context);
            a.post(WorkRequest::Send {
                id: WorkId(1),
                header: inline(b"header"),
                payload: vec![1; length].into(),
                invalidate: None,
            });
            a.flush(&mut context);
            while p.poll_completion(&mut context).is_ready() {}
            let moved = 6 + length as u64;
            assert_eq!([a.moved, p.moved], [[moved, 0], [0, moved]]);
        }
    }

    #[test]
    #[should_panic(expected = "a Send cannot carry a token here")]
    fn a_token_where_none_can_be_carried() {
        let active = Loopback::new();
        let mut config = LoopbackConfig::default();
        config.limits.send_with_invalidate = false;
        let [mut end, _peer] = pair(&active, &active.reconfigured(config), None);
        end.post(WorkRequest::Send {
            id: WorkId(1),
            header: Inline::new(),
            payload: Bytes::new(),
            invalidate: Some(Token(0x100)),
        });
    }
}
