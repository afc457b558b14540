//! Two real engines on a simulated RDMA fabric with virtual time.
//!
//! The fabric is reliable and in order in each direction, as RDMA is. Its faults are those of RDMA:
//! late completions, short queues, a slow consumer that leaves the receive buffer full, and a connection that
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
    engine::{Connection, Event, MessageId, TransferId},
    rdma::{
        memory::MemoryTable,
        work::{
            Completion, Disconnect, Inline, Limits, ProviderError, ProviderErrorKind,
            RemoteAddress, Room, Token, WorkId, WorkRequest,
        },
    },
    wire::{DataTransfer, Flags, NegotiateResponse},
};

// The paths are explicit, because test binaries include this file by its path.
#[path = "fabric/checks.rs"]
mod checks;
#[path = "fabric/commands.rs"]
mod commands;
#[path = "fabric/proved.rs"]
mod proved;
#[path = "fabric/simulation.rs"]
mod simulation;

/// [`Pair::drive`] stops if the next event is later than this. It is longer than the delay of the first grant and
/// shorter than every timer of the specification.
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
    /// The period in which the receive buffer of an end is full, because its consumer takes no messages.
    pub(crate) full: [Option<(Duration, Duration)>; 2],
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
            full: [None, None],
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
    /// The peer ended the connection, gracefully or not.
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
    proved: proved::Proved,
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
    /// Bytes of the segments that the upper layer has received.
    pub(crate) bytes_received: usize,
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
    fn new(settings: Settings, who: Who, now: Instant) -> Self {
        let config = Config::new(settings.clone()).expect("the settings are legal");
        Self {
            engine: match who {
                Active => Connection::active(config, now),
                Passive => Connection::passive(config, now),
            },
            proved: proved::Proved::new(who == Passive, &settings),
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
            bytes_received: 0,
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

/// Returns the error of both ends for a connection closed by `who`.
pub(crate) fn closed_by(who: Who, seen_from: Who) -> ConnectionError {
    if who == seen_from {
        ConnectionError::ClosedHere
    } else {
        ConnectionError::Closed
    }
}

/// Returns settings that differ from those of Windows only in the credits.
pub(crate) fn credits(send_credit_target: u16, receive_credit_max: u16) -> Settings {
    let mut changed = Settings::windows();
    changed.send_credit_target = send_credit_target;
    changed.receive_credit_max = receive_credit_max;
    changed
}

/// Returns settings with the same number of credits in both directions.
pub(crate) fn same_credits(number: u16) -> Settings {
    credits(number, number)
}
