//! Two real engines on a simulated RDMA fabric with virtual time.
//!
//! The fabric is reliable and in order in each direction, as RDMA is. Its faults are those of RDMA:
//! late completions, short queues, a slow consumer that withholds receives, and a connection that
//! breaks at any operation. A Send that finds no receive, or one that is too short, breaks an RDMA
//! connection; here it fails the test.
//!
//! A seed determines every run. [`Pair::step`] advances the time to the next happening, performs
//! it, polls both engines for work, and calls [`Pair::check`].

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    fmt,
    time::{Duration, Instant},
};

use bytes::{BufMut, Bytes, BytesMut};
use smbdirect::{
    Access, BufferDescriptorV1, Config, ConnectionError, Settings,
    engine::{Connection, Event, Initiator, MessageId, TransferId},
    rdma::{
        memory::MemoryTable,
        work::{
            Completion, Disconnect, Inline, Limits, ProviderError, ProviderErrorKind,
            RemoteAddress, Room, Token, WorkId, WorkRequest,
        },
    },
    wire::{DataTransfer, Flags, NegotiateResponse},
};

/// Longest time to the next happening for which [`Pair::drive`] goes on. It is longer than the
/// delay of the first grant and shorter than every timer of the specification.
const QUIET_AFTER: Duration = Duration::from_millis(100);
/// Largest number of steps until a pair has to be quiet.
const MAX_STEPS: usize = 300_000;

/// A random number generator with a seed.
#[derive(Debug)]
pub(crate) struct Random(fastrand::Rng);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// Returns a number from 0 to `most`.
    pub(crate) fn up_to(&mut self, most: u64) -> u64 {
        self.0.u64(..=most)
    }

    pub(crate) fn between(&mut self, least: u64, most: u64) -> u64 {
        self.0.u64(least..=most)
    }

    /// Returns true with probability 1 in `n`.
    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.0.u64(..n) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.0.usize(..from.len())]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Who {
    Active,
    Passive,
}

pub(crate) use Who::{Active, Passive};

impl Who {
    pub(crate) const BOTH: [Self; 2] = [Active, Passive];

    pub(crate) fn peer(self) -> Self {
        match self {
            Active => Passive,
            Passive => Active,
        }
    }
}

/// The delays, limits and faults of the fabric.
#[derive(Clone, Debug)]
pub(crate) struct Faults {
    /// Largest latency of a packet in microseconds; each packet has a random latency up to it.
    pub(crate) latency: u64,
    /// Largest delay of a completion in each queue: Sent, Received, Read, Written.
    pub(crate) completion_delay: [u64; 4],
    /// Largest number of outstanding Sends, Reads and Writes.
    pub(crate) send_queue: usize,
    /// Largest number of posted receives.
    pub(crate) receive_queue: usize,
    /// At random, an engine is offered less room than there is.
    pub(crate) lean_rooms: bool,
    /// At random, an engine is polled for work later.
    pub(crate) lazy: bool,
    /// The period in which an end posts no receives, because its consumer takes no messages.
    pub(crate) withheld: [Option<(Duration, Duration)>; 2],
    /// The number of posted work requests at which the connection breaks.
    pub(crate) kill_at: Option<u64>,
    pub(crate) outbound_reads: u32,
    pub(crate) max_transfer: u32,
    pub(crate) send_with_invalidate: bool,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            latency: 10,
            completion_delay: [0; 4],
            send_queue: 64,
            receive_queue: 300,
            lean_rooms: false,
            lazy: false,
            withheld: [None, None],
            kill_at: None,
            outbound_reads: 4,
            max_transfer: 1 << 20,
            send_with_invalidate: true,
        }
    }
}

/// A packet between the two ends.
#[derive(Debug)]
enum Packet {
    Send {
        message: Bytes,
        invalidate: Option<Token>,
    },
    Write {
        to: RemoteAddress,
        data: Bytes,
    },
    ReadRequest {
        from: RemoteAddress,
        length: u32,
    },
    ReadResponse(Bytes),
    /// The peer ended the connection, in good order or not.
    End(Disconnect),
}

#[derive(Debug)]
enum Happening {
    Arrival(Who, Packet),
    Completion(Who, Completion),
    /// An engine is polled for work again.
    Turn(Who),
}

/// A message that the peer's upper layer shall receive.
#[derive(Debug)]
struct Expected {
    id: MessageId,
    /// The bytes that have not been received.
    content: Bytes,
    length: usize,
    token: Option<Token>,
    /// The writes that have to be in the peer's memory when it receives the message.
    writes: Vec<(RemoteAddress, Bytes)>,
    sent: bool,
}

impl Expected {
    /// Returns whether the peer's upper layer does not see the message: it is empty and has no
    /// token.
    fn is_unseen(&self, honoured: bool) -> bool {
        self.length == 0 && self.token.filter(|_| honoured).is_none()
    }
}

/// One end: its engine, its half of the queue pair, and the expected state.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) engine: Connection,
    pub(crate) settings: Settings,
    pub(crate) memory: MemoryTable,
    receives: VecDeque<(WorkId, u32)>,
    /// Number of Sends, Reads and Writes that have not completed.
    work: VecDeque<WorkId>,
    reads: VecDeque<(WorkId, BytesMut)>,
    /// Arrival time of the last packet to this end.
    last_arrival: Instant,
    /// Time of the last completion of each kind.
    last_completion: [Instant; 4],
    /// Completions of Sends that have not been delivered.
    sends_to_complete: usize,
    disconnected: bool,
    /// The negotiate message has been sent.
    negotiated: bool,
    /// Credits of this end by the received messages; the negotiate message counts as one.
    held: u32,
    /// Credits in messages that are in flight to this end or in its completion queue.
    coming: u32,
    /// Messages of this end in flight that have not used a receive.
    under_way: u32,
    /// Bytes of the current message that have not been sent.
    wire_remaining: u32,
    /// The current message has carried its token.
    wire_token: bool,
    /// Writes started since the last message, which have to be in place before the next one.
    writes: Vec<(RemoteAddress, Bytes)>,
    /// Messages of this end that the other has not received completely.
    expected: VecDeque<Expected>,
    received: usize,
    next_id: u64,
    /// Messages for which MessageSent was reported.
    pub(crate) messages_sent: usize,
    pub(crate) messages_received: usize,
    pub(crate) transfers: HashMap<u64, Transfer>,
    pub(crate) transfers_done: usize,
    pub(crate) keepalives_answered: usize,
    pub(crate) invalidated: Vec<Token>,
    pub(crate) closed: Option<ConnectionError>,
    /// Number of Data Transfers posted, and of those without a payload.
    pub(crate) data_transfers: usize,
    pub(crate) empty: usize,
    pub(crate) grants: Vec<u16>,
    /// Largest number of receives that were posted at a time.
    pub(crate) most_receives: usize,
    /// Largest number of reads that were outstanding at a time.
    pub(crate) most_reads: usize,
}

/// A read or write that has been started.
#[derive(Debug)]
pub(crate) enum Transfer {
    Read(Bytes),
    Write,
}

pub(crate) struct Pair {
    pub(crate) start: Instant,
    pub(crate) now: Instant,
    pub(crate) active: End,
    pub(crate) passive: End,
    faults: Faults,
    random: Random,
    schedule: BTreeMap<(Instant, u64), Happening>,
    next_happening: u64,
    /// Number of work requests posted so far.
    pub(crate) operations: u64,
    broken: bool,
    /// An end has received an invalid message, so the checks of the upper layers are off.
    garbled: bool,
    /// No packet arrives any more, and no end is informed.
    silent: bool,
    steps: usize,
    /// Messages and the end, in order, for tests of their order.
    pub(crate) story: Vec<String>,
}

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "at {:?}", self.now - self.start)?;
        for who in Who::BOTH {
            let end = self.end(who);
            writeln!(
                f,
                "{who:?}: {:?}\n  held {}, coming {}, under way {}, receives {}, queued {}, \
                 expected {}, transfers {}, due {:?}, closed {:?}",
                end.engine.credits(),
                end.held,
                end.coming,
                end.under_way,
                end.receives.len(),
                end.engine.queued_messages(),
                end.expected.len(),
                end.transfers.len(),
                end.engine.poll_timeout().map(|due| due - self.now),
                end.closed,
            )?;
        }
        Ok(())
    }
}

impl End {
    fn new(settings: Settings, role: fn(Config, Instant) -> Connection, now: Instant) -> Self {
        let config = Config::new(settings.clone()).expect("the settings are legal");
        Self {
            engine: role(config, now),
            settings,
            memory: MemoryTable::new(),
            receives: VecDeque::new(),
            work: VecDeque::new(),
            reads: VecDeque::new(),
            last_arrival: now,
            last_completion: [now; 4],
            sends_to_complete: 0,
            disconnected: false,
            negotiated: false,
            held: 1,
            coming: 0,
            under_way: 0,
            wire_remaining: 0,
            wire_token: false,
            writes: Vec::new(),
            expected: VecDeque::new(),
            received: 0,
            next_id: 0,
            messages_sent: 0,
            messages_received: 0,
            transfers: HashMap::new(),
            transfers_done: 0,
            keepalives_answered: 0,
            invalidated: Vec::new(),
            closed: None,
            data_transfers: 0,
            empty: 0,
            grants: Vec::new(),
            most_receives: 0,
            most_reads: 0,
        }
    }

    fn is_established(&self) -> bool {
        self.engine.negotiated().is_some()
    }

    /// Removes sent messages at the head that the peer's upper layer does not see.
    fn drop_unseen(&mut self, honoured: bool) {
        while self
            .expected
            .front()
            .is_some_and(|next| next.sent && next.is_unseen(honoured))
        {
            self.expected.pop_front();
        }
    }

    /// Returns whether all work of this end is complete.
    fn is_content(&self) -> bool {
        self.expected.is_empty() && self.transfers.is_empty() && self.engine.queued_messages() == 0
    }
}

/// Returns bytes that differ between messages and between places in a message.
pub(crate) fn content(id: u64, length: usize) -> Bytes {
    let mut bytes = Vec::with_capacity(length + 8);
    let mut word = id.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    while bytes.len() < length {
        bytes.extend_from_slice(&word.to_le_bytes());
        word = word.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
    }
    bytes.truncate(length);
    bytes.into()
}

/// Returns the places in memory of the bytes of a write.
fn places(
    descriptors: &[BufferDescriptorV1],
    mut offset: u64,
    mut data: Bytes,
) -> Vec<(RemoteAddress, Bytes)> {
    let mut places = Vec::new();
    for descriptor in descriptors {
        let skipped = offset.min(descriptor.length.into());
        offset -= skipped;
        let length = data
            .len()
            .min(descriptor.length as usize - skipped as usize);
        let to = RemoteAddress {
            token: Token(descriptor.token),
            offset: descriptor.offset + skipped,
        };
        places.push((to, data.split_to(length)));
    }
    places
}

// The operations for tests.
impl Pair {
    /// Returns two ends with an RDMA connection that have not sent a message yet.
    pub(crate) fn new(seed: u64, active: Settings, passive: Settings, faults: Faults) -> Self {
        let now = Instant::now();
        let mut pair = Self {
            start: now,
            now,
            active: End::new(active, Connection::active, now),
            passive: End::new(passive, Connection::passive, now),
            faults,
            random: Random::new(seed),
            schedule: BTreeMap::new(),
            next_happening: 0,
            operations: 0,
            broken: false,
            garbled: false,
            silent: false,
            steps: 0,
            story: Vec::new(),
        };
        for who in Who::BOTH {
            let receive = pair.end_mut(who).engine.negotiate_receive();
            pair.post(who, receive);
        }
        for who in Who::BOTH {
            let limits = pair.limits();
            let end = pair.end_mut(who);
            end.engine.handle_connected(limits);
            pair.later(Duration::ZERO, Happening::Turn(who));
        }
        pair
    }

    /// Returns two ends that have negotiated and are idle.
    pub(crate) fn established(
        seed: u64,
        active: Settings,
        passive: Settings,
        faults: Faults,
    ) -> Self {
        let mut pair = Self::new(seed, active, passive, faults);
        pair.drive();
        for who in Who::BOTH {
            assert!(pair.end(who).is_established(), "{pair:?}");
        }
        pair
    }

    pub(crate) fn end(&self, who: Who) -> &End {
        match who {
            Active => &self.active,
            Passive => &self.passive,
        }
    }

    pub(crate) fn end_mut(&mut self, who: Who) -> &mut End {
        match who {
            Active => &mut self.active,
            Passive => &mut self.passive,
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        Who::BOTH.iter().all(|&who| self.end(who).is_established())
    }

    /// Submits a message of `length` bytes to an engine, which sends it in the next step.
    pub(crate) fn send(&mut self, who: Who, length: usize) {
        self.send_invalidating(who, length, None);
    }

    pub(crate) fn send_invalidating(&mut self, who: Who, length: usize, token: Option<Token>) {
        let end = self.end_mut(who);
        end.next_id += 1;
        let id = MessageId(end.next_id);
        let content = content(end.next_id ^ (who as u64) << 32, length);
        if end.engine.send(id, content.clone().into(), token).is_err() {
            return;
        }
        let writes = if length > 0 {
            std::mem::take(&mut end.writes)
        } else {
            Vec::new()
        };
        end.expected.push_back(Expected {
            id,
            writes,
            content,
            length,
            token,
            sent: false,
        });
        self.turn(who);
    }

    /// Registers memory at `who` for its peer, filled by `id`.
    pub(crate) fn register(
        &mut self,
        who: Who,
        id: u64,
        length: usize,
        access: Access,
    ) -> BufferDescriptorV1 {
        let buffer = BytesMut::from(content(id, length));
        let registered = self.end_mut(who).memory.register(buffer, access).unwrap();
        BufferDescriptorV1 {
            offset: registered.address.offset,
            token: registered.address.token.0,
            length: registered.length,
        }
    }

    /// Starts a read at `who`, which shall return `expected`.
    pub(crate) fn read(
        &mut self,
        who: Who,
        descriptors: &[BufferDescriptorV1],
        offset: u64,
        expected: Bytes,
    ) {
        let end = self.end_mut(who);
        end.next_id += 1;
        let id = end.next_id;
        let into = BytesMut::zeroed(expected.len());
        end.transfers.insert(id, Transfer::Read(expected));
        if let Err((_, buffer)) = end.engine.read(TransferId(id), descriptors, offset, into) {
            let Some(Transfer::Read(expected)) = end.transfers.remove(&id) else {
                unreachable!("it was put there above");
            };
            assert_eq!(buffer.len(), expected.len());
        }
        self.turn(who);
    }

    pub(crate) fn write(
        &mut self,
        who: Who,
        descriptors: &[BufferDescriptorV1],
        offset: u64,
        data: Bytes,
    ) {
        let end = self.end_mut(who);
        end.next_id += 1;
        let id = end.next_id;
        end.transfers.insert(id, Transfer::Write);
        let started = end
            .engine
            .write(TransferId(id), descriptors, offset, data.clone());
        match started {
            Ok(()) => end.writes.extend(places(descriptors, offset, data)),
            Err(_) => {
                end.transfers.remove(&id);
            }
        }
        self.turn(who);
    }

    pub(crate) fn prompt(&mut self, who: Who) {
        self.end_mut(who).engine.prompt();
        self.turn(who);
    }

    pub(crate) fn keepalive(&mut self, who: Who) {
        let now = self.now;
        self.end_mut(who).engine.prompt_keepalive(now);
        self.turn(who);
    }

    pub(crate) fn close(&mut self, who: Who) {
        self.end_mut(who).engine.close();
        self.turn(who);
    }

    /// Keeps an end from posting receives for `duration`.
    pub(crate) fn withhold_receives(&mut self, who: Who, duration: Duration) {
        let from = self.now - self.start;
        self.faults.withheld[who as usize] = Some((from, from + duration));
    }

    /// Breaks the network, which both providers notice.
    pub(crate) fn kill(&mut self) {
        self.cut();
        self.lose();
    }

    /// Drops all packets; completions that are in a queue stay there.
    fn cut(&mut self) {
        self.broken = true;
        self.schedule
            .retain(|_, happening| !matches!(happening, Happening::Arrival(..)));
    }

    /// Reports the broken network to both engines.
    fn lose(&mut self) {
        for who in Who::BOTH {
            let error = ProviderError::new(ProviderErrorKind::Reset, "the network is gone");
            self.disconnect(who, Disconnect::Broken(error));
        }
    }

    /// Drops all packets from now on, and no provider notices.
    pub(crate) fn fall_silent(&mut self) {
        self.silent = true;
    }

    /// Delivers to `who` a message that no engine sends, and then breaks the network.
    pub(crate) fn inject(&mut self, who: Who, message: Bytes) {
        let now = self.now;
        self.cut();
        self.garbled = true;
        let end = self.end_mut(who);
        if let Some((id, length)) = end.receives.pop_front() {
            let message = message.slice(..message.len().min(length as usize));
            let invalidated = None;
            let completion = Completion::Received {
                id,
                message,
                invalidated,
            };
            end.engine.handle_completion(now, completion);
            self.work(who);
        }
        self.lose();
    }

    /// Runs until the pair is quiet, or only long timers run, and asserts that all work is
    /// complete.
    pub(crate) fn drive(&mut self) {
        self.run();
        self.assert_content();
    }

    /// Runs until the pair is quiet.
    pub(crate) fn run(&mut self) {
        while let Some(next) = self.next_time()
            && (!self.schedule.is_empty() || next <= self.now + QUIET_AFTER)
        {
            self.step();
        }
    }

    /// Runs for `duration`.
    pub(crate) fn advance(&mut self, duration: Duration) {
        let end = self.now + duration;
        while let Some(next) = self.next_time()
            && next <= end
        {
            self.step();
        }
        self.now = end;
    }

    /// Asserts that all work is complete, which is the liveness of the protocol.
    pub(crate) fn assert_content(&self) {
        for who in Who::BOTH {
            let end = self.end(who);
            let stuck = end.is_established() && !end.is_content();
            assert!(!stuck, "{who:?} waits for ever\n{self:?}");
        }
    }

    /// Asserts that every buffer and transfer has been returned.
    pub(crate) fn assert_all_returned(&self) {
        for who in Who::BOTH {
            let end = self.end(who);
            assert!(end.disconnected && end.closed.is_some(), "{self:?}");
            let left = end.engine.statistics();
            assert_eq!(
                (left.receives_outstanding, left.work_outstanding),
                (0, 0),
                "{who:?} {self:?}"
            );
            assert!(end.receives.is_empty() && end.work.is_empty() && end.reads.is_empty());
            assert!(end.transfers.is_empty(), "{who:?} {:?}", end.transfers);
            assert_eq!(end.engine.poll_timeout(), None);
        }
    }

    /// Closes the connection at `who` and asserts that every buffer is returned.
    pub(crate) fn finish(&mut self, who: Who) {
        self.close(who);
        self.run();
        self.advance(Duration::from_secs(300));
        self.assert_all_returned();
    }
}

// The simulation.
impl Pair {
    fn limits(&self) -> Limits {
        Limits {
            max_send_queue: self.faults.send_queue,
            max_receive_queue: self.faults.receive_queue,
            max_outbound_reads: self.faults.outbound_reads,
            max_inbound_reads: self.faults.outbound_reads,
            max_transfer: self.faults.max_transfer,
            send_with_invalidate: self.faults.send_with_invalidate,
        }
    }

    fn next_time(&self) -> Option<Instant> {
        let scheduled = self.schedule.keys().next().map(|&(at, _)| at);
        let timers = Who::BOTH.map(|who| self.end(who).engine.poll_timeout());
        [scheduled, timers[0], timers[1]]
            .into_iter()
            .flatten()
            .min()
            .map(|next| next.max(self.now))
    }

    /// Performs the next happening.
    pub(crate) fn step(&mut self) {
        self.steps += 1;
        assert!(self.steps < MAX_STEPS, "it never ends\n{self:?}");
        let Some(now) = self.next_time() else { return };
        self.now = now;
        let scheduled = self.schedule.first_key_value().map(|(&(at, _), _)| at);
        if scheduled.is_some_and(|at| at <= now) {
            let (_, happening) = self.schedule.pop_first().expect("it is there");
            match happening {
                Happening::Arrival(who, packet) => self.arrive(who, packet),
                Happening::Completion(who, completion) => self.complete(who, completion),
                Happening::Turn(who) => self.work(who),
            }
        } else {
            for who in Who::BOTH {
                if self.end(who).engine.poll_timeout() <= Some(now) {
                    self.end_mut(who).engine.handle_timeout(now);
                    self.work(who);
                }
            }
        }
        self.check();
    }

    /// Asserts the invariants that hold after every step.
    fn check(&self) {
        for who in Who::BOTH {
            let (end, peer) = (self.end(who), self.end(who.peer()));
            let over = |end: &End| end.disconnected || end.closed.is_some();
            if self.broken || over(end) || over(peer) {
                continue;
            }
            // Every credit has a posted receive, wherever the credit is.
            let out = peer.held + peer.coming + peer.under_way;
            assert!(
                end.receives.len() >= out as usize,
                "{who:?} posted fewer receives than its peer has credits\n{self:?}"
            );
            // The counts of the engine match the messages on the wire.
            if end.is_established() {
                let credits = end.engine.credits();
                assert_eq!(
                    u32::from(credits.send_credits),
                    end.held,
                    "{who:?}\n{self:?}"
                );
                // The rule of the last credit allows one more than the limit, or than the two
                // credits that return a single one.
                let most = u32::from(credits.receive_credit_max).max(2) + 1;
                assert!(u32::from(credits.granted) <= most, "{who:?}\n{self:?}");
            }
            let left = end.engine.statistics();
            assert!(left.receives_outstanding >= end.receives.len() as u64);
            assert_eq!(left.work_outstanding, end.work.len() as u64);
        }
    }

    fn later(&mut self, delay: Duration, happening: Happening) {
        self.at(self.now + delay, happening);
    }

    fn at(&mut self, when: Instant, happening: Happening) {
        self.next_happening += 1;
        self.schedule.insert((when, self.next_happening), happening);
    }

    fn turn(&mut self, who: Who) {
        self.later(Duration::ZERO, Happening::Turn(who));
    }

    /// Queues a packet to `who` after all others.
    fn transmit(&mut self, who: Who, packet: Packet) {
        if self.broken || self.silent {
            return;
        }
        let latency = Duration::from_micros(self.random.up_to(self.faults.latency));
        let now = self.now;
        let end = self.end_mut(who);
        end.last_arrival = end.last_arrival.max(now + latency);
        let when = end.last_arrival;
        self.at(when, Happening::Arrival(who, packet));
    }

    /// Queues a completion after all others of its kind.
    fn finish_work(&mut self, who: Who, completion: Completion) {
        let queue = match completion {
            Completion::Sent { .. } => 0,
            Completion::Received { .. } => 1,
            Completion::Read { .. } => 2,
            _ => 3,
        };
        let delay = Duration::from_micros(self.random.up_to(self.faults.completion_delay[queue]));
        let now = self.now;
        let last = &mut self.end_mut(who).last_completion[queue];
        *last = (*last).max(now + delay);
        let when = *last;
        self.at(when, Happening::Completion(who, completion));
    }

    /// Returns the room that an engine is offered.
    fn room(&mut self, who: Who) -> Room {
        let end = self.end(who);
        let mut room = Room {
            sends: self.faults.send_queue.saturating_sub(end.work.len()),
            receives: self.faults.receive_queue.saturating_sub(end.receives.len()),
        };
        let established = end.is_established();
        if self.faults.lean_rooms && established && self.random.one_in(3) {
            room.sends = self.random.up_to(room.sends.min(2) as u64) as usize;
            room.receives = self.random.up_to(room.receives.min(2) as u64) as usize;
            self.later(Duration::from_micros(7), Happening::Turn(who));
        }
        let elapsed = self.now - self.start;
        if let Some((from, to)) = self.faults.withheld[who as usize]
            && (from..to).contains(&elapsed)
            && established
        {
            room.receives = 0;
            let until = self.start + to;
            let turn_is_due = |happening: &Happening| matches!(happening, Happening::Turn(whose) if *whose == who);
            let range = self.schedule.range((until, 0)..(until + QUIET_AFTER, 0));
            if !range
                .into_iter()
                .any(|(_, happening)| turn_is_due(happening))
            {
                self.at(until, Happening::Turn(who));
            }
        }
        room
    }

    /// Takes the events of an engine and posts its work.
    fn work(&mut self, who: Who) {
        if self.faults.lazy && self.end(who).is_established() && self.random.one_in(4) {
            let delay = Duration::from_micros(self.random.up_to(50));
            return self.later(delay, Happening::Turn(who));
        }
        self.take_events(who);
        loop {
            let (now, room) = (self.now, self.room(who));
            let engine = &mut self.end_mut(who).engine;
            let is_idle = engine.is_idle();
            let Some(work) = engine.poll_work(now, room) else {
                break;
            };
            assert!(!is_idle, "{work:?}");
            match &work {
                WorkRequest::Receive { count, .. } => {
                    assert!((1..=room.receives).contains(&(*count as usize)));
                }
                _ => assert!(room.sends > 0),
            }
            self.post(who, work);
            self.operations += 1;
            if self.faults.kill_at == Some(self.operations) {
                self.kill();
            }
        }
        self.take_events(who);
    }

    fn post(&mut self, who: Who, work: WorkRequest) {
        match work {
            WorkRequest::Receive { id, length, count } => {
                let end = self.end_mut(who);
                end.receives.extend((0..count).map(|_| (id, length)));
                end.most_receives = end.most_receives.max(end.receives.len());
            }
            WorkRequest::Send {
                id,
                header,
                payload,
                invalidate,
            } => {
                let message = [header.as_slice(), &payload].concat().into();
                self.end_mut(who).work.push_back(id);
                self.inspect(who, &message, invalidate.is_some());
                let packet = Packet::Send {
                    message,
                    invalidate,
                };
                self.transmit(who.peer(), packet);
                self.complete_unless_over(who, Completion::Sent { id });
            }
            WorkRequest::Write { id, data, to } => {
                self.end_mut(who).work.push_back(id);
                self.transmit(who.peer(), Packet::Write { to, data });
                self.complete_unless_over(who, Completion::Written { id });
            }
            WorkRequest::Read { id, from, into } => {
                let length = into.len() as u32;
                let most = self.faults.outbound_reads as usize;
                let end = self.end_mut(who);
                end.work.push_back(id);
                end.reads.push_back((id, into));
                end.most_reads = end.most_reads.max(end.reads.len());
                assert!(end.reads.len() <= most, "more reads than ORD");
                self.transmit(who.peer(), Packet::ReadRequest { from, length });
            }
        }
    }

    fn complete_unless_over(&mut self, who: Who, completion: Completion) {
        if !self.broken && !self.end(who).disconnected {
            let is_send = matches!(completion, Completion::Sent { .. });
            self.end_mut(who).sends_to_complete += usize::from(is_send);
            self.finish_work(who, completion);
        }
    }

    /// Decodes a message that `who` sends, as a capture would, and checks it against the rules.
    fn inspect(&mut self, who: Who, message: &Bytes, invalidates: bool) {
        if self.broken {
            return;
        }
        let strict = self.end(who).settings.policy.strict_last_credit;
        let end = self.end_mut(who);
        assert!(end.held > 0, "{who:?} sends without a credit");
        end.held -= 1;
        end.under_way += 1;
        if !std::mem::replace(&mut end.negotiated, true) {
            if who == Passive {
                let response = NegotiateResponse::decode(message).unwrap();
                self.active.coming += u32::from(response.credits_granted);
            }
            return;
        }
        let header = DataTransfer::decode(message).unwrap();
        let payload = header.data_length;
        assert!(header.flags.bits() <= 1 && message[6..8] == [0; 2]);
        assert!(
            message
                .iter()
                .take(24)
                .skip(20)
                .all(|&padding| padding == 0)
        );
        assert_eq!(header.credits_requested, end.settings.send_credit_target);
        if header.data_length == 0 && header.data_offset == 0 {
            assert_eq!(message.len(), 20, "an empty message is a header alone");
        }
        if strict && end.held == 0 {
            assert!(header.credits_granted > 0, "{who:?} spends its last credit");
        }
        if end.wire_remaining > 0 {
            assert_eq!(
                header.data_length + header.remaining_data_length,
                end.wire_remaining,
                "{who:?} puts something between two segments"
            );
            assert!(header.data_length > 0, "an empty message between segments");
        }
        assert!(!(invalidates && end.wire_token), "a token goes out twice");
        end.wire_remaining = header.remaining_data_length;
        end.wire_token = (end.wire_token || invalidates) && end.wire_remaining > 0;
        end.data_transfers += 1;
        end.empty += usize::from(payload == 0);
        end.grants.push(header.credits_granted);
        let flag = header.flags.contains(Flags::RESPONSE_REQUESTED);
        self.end_mut(who.peer()).coming += u32::from(header.credits_granted);
        self.tell(who, if flag { "asks" } else { "says" }, payload);
    }

    fn tell(&mut self, who: Who, what: &str, number: impl fmt::Display) {
        let line = format!("{who:?} {what} {number}").to_lowercase();
        self.story.push(line);
    }

    fn arrive(&mut self, who: Who, packet: Packet) {
        let faulty =
            |what| Disconnect::Broken(ProviderError::new(ProviderErrorKind::Protocol, what));
        if self.end(who).disconnected || self.broken {
            return;
        }
        match packet {
            Packet::Send {
                message,
                invalidate,
            } => {
                self.end_mut(who.peer()).under_way -= 1;
                let end = self.end_mut(who);
                let Some((id, length)) = end.receives.pop_front() else {
                    panic!("{who:?} was not ready to receive\n{self:?}");
                };
                assert!(message.len() <= length as usize, "the receive is too short");
                if let Some(token) = invalidate
                    && end.memory.invalidate(token).is_err()
                {
                    end.receives.push_front((id, length));
                    return self.break_off(who, faulty("a token that names nothing"));
                }
                let completion = Completion::Received {
                    id,
                    message,
                    invalidated: invalidate,
                };
                self.finish_work(who, completion);
            }
            Packet::Write { to, data } => {
                match self.end_mut(who).memory.write(to, data.len() as u32) {
                    Ok(place) => place.copy_from_slice(&data),
                    Err(_) => self.break_off(who, faulty("a write to no memory")),
                }
            }
            Packet::ReadRequest { from, length } => match self.end(who).memory.read(from, length) {
                Ok(data) => {
                    let data = Bytes::copy_from_slice(data.as_ref());
                    self.transmit(who.peer(), Packet::ReadResponse(data));
                }
                Err(_) => self.break_off(who, faulty("a read of no memory")),
            },
            Packet::ReadResponse(data) => {
                let (id, mut buffer) = self.end_mut(who).reads.pop_front().unwrap();
                buffer.copy_from_slice(&data);
                self.finish_work(who, Completion::Read { id, buffer });
            }
            Packet::End(how) => self.disconnect(who, how),
        }
    }

    /// Ends the connection at one end because of a message of the other.
    fn break_off(&mut self, who: Who, how: Disconnect) {
        self.transmit(who.peer(), Packet::End(how.clone()));
        self.disconnect(who, how);
    }

    /// Ends the connection for `who`: after the entries of its queues, all other work is flushed.
    fn disconnect(&mut self, who: Who, how: Disconnect) {
        if std::mem::replace(&mut self.end_mut(who).disconnected, true) {
            return;
        }
        let end = self.end(who);
        let last = end.last_completion.into_iter().max().unwrap();
        let when = last.max(self.now) + Duration::from_micros(1);
        self.at(
            when,
            Happening::Completion(who, Completion::Disconnected(how)),
        );
    }

    fn complete(&mut self, who: Who, completion: Completion) {
        let now = self.now;
        match &completion {
            Completion::Received { message, .. } => self.count_credits(who, message),
            Completion::Head(_) => unreachable!("it is made below"),
            Completion::Disconnected(_) => self.flush(who),
            Completion::Sent { id } => {
                let is_unheard = self.random.up_to(2) == 0;
                let end = self.end_mut(who);
                end.sends_to_complete -= 1;
                if end.sends_to_complete > 0 && is_unheard {
                    // The next completion covers this Send too.
                    return;
                }
                end.work.retain(|work| work.0 & 3 != id.0 & 3 || work > id);
            }
            Completion::Read { id, .. } | Completion::Written { id } => {
                self.end_mut(who).work.retain(|work| work != id);
            }
            Completion::Flushed { .. } => unreachable!("flush() does that"),
        }
        let engine = &mut self.end_mut(who).engine;
        match completion {
            // Some messages are delivered in two pieces.
            Completion::Received {
                id,
                mut message,
                invalidated,
            } if (id.0 >> 2) % 5 < 3 => {
                let split = [24, 13, 32][((id.0 >> 2) % 5) as usize];
                let head = message.split_to(split.min(message.len()));
                let head = Inline::build(|out| out.put_slice(&head));
                engine.handle_completion(now, Completion::Head(head));
                let rest = Completion::Received {
                    id,
                    message,
                    invalidated,
                };
                engine.handle_completion(now, rest);
            }
            whole => engine.handle_completion(now, whole),
        }
        self.work(who);
    }

    fn count_credits(&mut self, who: Who, message: &Bytes) {
        let granted = match (who, self.end(who).received) {
            (Passive, 0) => 0,
            (Active, 0) => NegotiateResponse::decode(message).unwrap().credits_granted,
            _ => DataTransfer::decode(message).unwrap().credits_granted,
        };
        let end = self.end_mut(who);
        end.received += 1;
        end.coming -= u32::from(granted);
        end.held += u32::from(granted);
    }

    fn flush(&mut self, who: Who) {
        let now = self.now;
        let end = self.end_mut(who);
        let mut buffers: HashMap<_, _> = std::mem::take(&mut end.reads).into_iter().collect();
        let receives = std::mem::take(&mut end.receives);
        let work = std::mem::take(&mut end.work);
        for id in receives.into_iter().map(|(id, _)| id).chain(work) {
            let buffer = buffers.remove(&id);
            let completion = Completion::Flushed { id, buffer };
            end.engine.handle_completion(now, completion);
        }
    }

    fn take_events(&mut self, who: Who) {
        while let Some(event) = self.end_mut(who).engine.poll_event() {
            match event {
                Event::Negotiated(_) => assert!(self.end(who).closed.is_none()),
                Event::Segment {
                    payload,
                    remaining,
                    invalidated,
                } => self.deliver(who, &payload, remaining, invalidated),
                Event::MessageSent(id) => self.sent(who, id),
                Event::TransferDone {
                    id,
                    buffer,
                    completed,
                } => self.transferred(who, id, buffer, completed),
                Event::KeepaliveAnswered => self.end_mut(who).keepalives_answered += 1,
                Event::Closed(error) => self.closed(who, error),
                event => panic!("the fabric does not know {event:?}"),
            }
        }
    }

    /// Checks a segment that reached the upper layer of `who`: complete, in order, exactly once.
    fn deliver(&mut self, who: Who, payload: &[u8], remaining: u32, invalidated: Option<Token>) {
        if self.garbled {
            return;
        }
        let honoured = self.faults.send_with_invalidate;
        assert!(self.end(who).closed.is_none());
        let sender = self.end_mut(who.peer());
        while sender
            .expected
            .front()
            .is_some_and(|next| next.is_unseen(honoured))
        {
            sender.expected.pop_front();
        }
        let expected = sender.expected.front_mut().expect("a message was sent");
        let (start, rest) = expected.content.split_at_checked(payload.len()).unwrap();
        assert_eq!((start, rest.len()), (payload, remaining as usize));
        expected.content = expected.content.slice(payload.len()..);
        if remaining > 0 {
            return assert_eq!(invalidated, None);
        }
        assert_eq!(invalidated, expected.token.filter(|_| honoured));
        let Expected { id, writes, .. } = sender.expected.pop_front().unwrap();
        sender.drop_unseen(honoured);
        let end = self.end_mut(who);
        for (to, data) in writes {
            // Memory that has been deregistered since is not checked.
            if let Ok(place) = end.memory.write(to, data.len() as u32) {
                assert_eq!(*place, data[..], "message {id:?} overtook a write");
            }
        }
        end.messages_received += 1;
        end.invalidated.extend(invalidated);
        self.tell(who, "receives", id.0);
    }

    fn sent(&mut self, who: Who, id: MessageId) {
        let honoured = self.faults.send_with_invalidate;
        let end = self.end_mut(who);
        assert!(end.closed.is_none());
        end.messages_sent += 1;
        if let Some(next) = end.expected.iter_mut().find(|next| next.id == id) {
            assert!(!std::mem::replace(&mut next.sent, true), "sent twice");
        }
        end.drop_unseen(honoured);
    }

    fn transferred(
        &mut self,
        who: Who,
        TransferId(id): TransferId,
        buffer: Option<BytesMut>,
        completed: bool,
    ) {
        let end = self.end_mut(who);
        let transfer = end
            .transfers
            .remove(&id)
            .expect("it was started, and is over once");
        assert!(
            completed || end.closed.is_some(),
            "abandoned without a reason"
        );
        end.transfers_done += usize::from(completed);
        match (transfer, buffer) {
            (Transfer::Read(expected), Some(buffer)) => {
                assert_eq!(buffer.len(), expected.len());
                assert!(
                    !completed || buffer == expected,
                    "the wrong bytes were read"
                );
            }
            (Transfer::Write, None) => {}
            (transfer, buffer) => panic!("{transfer:?} gave {buffer:?}"),
        }
        let how = if completed { "finishes" } else { "abandons" };
        self.tell(who, how, id);
    }

    /// Disconnects the queue pair of an engine that has ended, as the driver would.
    fn closed(&mut self, who: Who, error: ConnectionError) {
        let graceful = matches!(
            error,
            ConnectionError::Closed(_) | ConnectionError::RefusedPeer(_)
        );
        assert!(self.end(who).closed.is_none(), "closed twice");
        self.tell(who, "closes:", &error);
        self.end_mut(who).closed = Some(error);
        if self.end(who).disconnected {
            return;
        }
        let how = if graceful {
            Disconnect::Remote
        } else {
            let what = "the peer went away";
            Disconnect::Broken(ProviderError::new(ProviderErrorKind::Reset, what))
        };
        self.transmit(who.peer(), Packet::End(how));
        self.disconnect(who, Disconnect::Local);
    }
}

/// Returns the error of both ends for a connection closed by `who`.
pub(crate) fn closed_by(who: Who, seen_from: Who) -> ConnectionError {
    ConnectionError::Closed(if who == seen_from {
        Initiator::Local
    } else {
        Initiator::Remote
    })
}

/// Returns settings that differ from those of Windows only in the credits.
pub(crate) fn credits(send_credit_target: u16, receive_credit_max: u16) -> Settings {
    Settings {
        send_credit_target,
        receive_credit_max,
        ..Settings::windows()
    }
}

/// Returns settings with the same number of credits in both directions.
pub(crate) fn same_credits(number: u16) -> Settings {
    credits(number, number)
}
