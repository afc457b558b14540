//! Two engines connected directly, without a provider between them.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use bytes::{BufMut, Bytes, BytesMut};
use smbdirect::{
    Config, Message, Settings,
    engine::{Connection, Event, MessageId},
    rdma::work::{Completion, Limits, Room, WorkId, WorkRequest},
};

use super::{Case, Done, Unit, content};

/// Largest number of segments in a batch. Two batches use three quarters of 255 credits, after which the
/// receiver has to send a credit message before the third.
const BATCH: usize = 96;
/// Largest number of bytes in a batch: those of one read of a provider, which fit into the cache.
const BATCH_BYTES: usize = 256 << 10;
const ROOM: Room = Room {
    sends: 4096,
    receives: 4096,
};
/// Longer than the delay of the first grant of the connecting side, and shorter than any other timer.
const FIRST_GRANT: Duration = Duration::from_millis(100);
const LIMITS: Limits = Limits {
    max_send_queue: 4096,
    max_receive_queue: 4096,
    max_outbound_reads: 16,
    max_inbound_reads: 16,
    max_transfer: u32::MAX,
    send_with_invalidate: true,
    packet_bytes: None,
};

/// Lengths of messages, and of segments with their headers, that have a row.
const SIZES: [(usize, u32); 5] = [
    (64, 1364),
    (64 << 10, 1364),
    (1 << 20, 1364),
    (64 << 10, 8136),
    (1 << 20, 8136),
];

/// The steps of a round, in order. One of them is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The sender accepts messages and returns work: `send`, `poll_work`.
    Send,
    /// Segments are converted to the completions of a queue pair.
    Carry,
    /// The receiver accepts them, and posts receives for the next.
    Receive,
    /// The sender's work completes.
    Complete,
    /// The sender receives the credit messages of the receiver.
    Grant,
}

const ROUND: [Step; 5] = [
    Step::Send,
    Step::Carry,
    Step::Receive,
    Step::Complete,
    Step::Grant,
];

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (message, segment) in SIZES {
        for (step, word) in [
            (Step::Send, "send"),
            (Step::Complete, "complete"),
            (Step::Receive, "receive"),
        ] {
            let name = format!("engine/{word}/{message}-by-{segment}");
            cases.push(Case::new(name, "segment", move || {
                Engines::new(message, segment, step)
            }));
        }
    }
    cases
}

/// One end with its half of the fabric.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) engine: Connection,
    receives: VecDeque<WorkId>,
    /// Sends that were posted and not delivered.
    outgoing: Vec<WorkRequest>,
    /// Sends that were delivered and not completed.
    carried: Vec<WorkId>,
    /// Messages that were delivered and not received.
    pub(crate) incoming: Vec<Bytes>,
    /// Received messages are slices of this buffer, as with a provider.
    arena: BytesMut,
    /// Received messages are dropped here, because a provider frees their memory.
    gone: Vec<Bytes>,
}

impl End {
    fn new(mut engine: Connection) -> Self {
        let receive = engine.negotiate_receive().id();
        engine.handle_connected(LIMITS);
        Self {
            engine,
            receives: VecDeque::from([receive]),
            outgoing: Vec::with_capacity(2 * BATCH),
            carried: Vec::with_capacity(2 * BATCH),
            incoming: Vec::with_capacity(2 * BATCH),
            arena: BytesMut::new(),
            gone: Vec::with_capacity(2 * BATCH),
        }
    }

    /// Posts the work of the engine.
    fn work(&mut self, now: Instant, room: Room) {
        while let Some(work) = self.engine.poll_work(now, room) {
            match work {
                WorkRequest::Receive { id, count, .. } => {
                    self.receives.extend((0..count).map(|_| id));
                }
                work => self.outgoing.push(work),
            }
        }
    }

    /// Receives the delivered messages, and passes each payload to `show`.
    fn receive(&mut self, now: Instant, mut show: impl FnMut(&Bytes)) -> Done {
        let mut done = Done::default();
        for message in self.incoming.drain(..) {
            let id = self.receives.pop_front().expect("credits are receives");
            self.engine.handle_completion(
                now,
                Completion::Received {
                    id,
                    message,
                    invalidated: None,
                },
            );
            while let Some(event) = self.engine.poll_event() {
                if let Event::Segment { payload, .. } = event {
                    done.items += 1;
                    done.bytes += payload.len() as u64;
                    show(&payload);
                    self.gone.push(payload);
                }
            }
        }
        done
    }

    /// Completes the sends that were delivered.
    fn complete(&mut self, now: Instant) -> Done {
        let items = self.carried.len() as u64;
        for id in self.carried.drain(..) {
            self.engine.handle_completion(now, Completion::Sent { id });
            while self.engine.poll_event().is_some() {}
        }
        Done { items, bytes: 0 }
    }
}

/// Delivers the posted sends of `from` to `to`.
fn carry(from: &mut End, to: &mut End) {
    for work in from.outgoing.drain(..) {
        let WorkRequest::Send {
            id,
            header,
            payload,
            ..
        } = work
        else {
            unreachable!("the engines only send");
        };
        to.gone.clear();
        to.arena.reserve(header.as_slice().len() + payload.len());
        to.arena.put_slice(header.as_slice());
        to.arena.put_slice(&payload);
        to.incoming.push(to.arena.split().freeze());
        from.carried.push(id);
    }
}

/// A sender and a receiver in the middle of a stream of messages.
#[derive(Debug)]
pub(crate) struct Engines {
    now: Instant,
    pub(crate) sender: End,
    pub(crate) receiver: End,
    message: Bytes,
    /// Segments in a batch.
    batch: usize,
    measured: Step,
}

impl Engines {
    /// Messages of `message` bytes in segments of `segment` bytes. [`Unit::run`] performs the step
    /// `measured`.
    pub(crate) fn new(message: usize, segment: u32, measured: Step) -> Self {
        let mut settings = Settings::default();
        settings.max_send_size = segment;
        let config = Config::new(settings).expect("the settings are legal");
        let now = Instant::now();
        let mut engines = Self {
            now,
            sender: End::new(Connection::active(config.clone(), now)),
            receiver: End::new(Connection::passive(config, now)),
            message: content(message),
            batch: BATCH.min(BATCH_BYTES / segment as usize),
            measured,
        };
        engines.negotiate();
        engines
    }

    fn negotiate(&mut self) {
        for _ in 0..4 {
            self.sender.work(self.now, ROOM);
            carry(&mut self.sender, &mut self.receiver);
            self.receiver.receive(self.now, |_| {});
            self.sender.complete(self.now);
            self.receiver.work(self.now, ROOM);
            carry(&mut self.receiver, &mut self.sender);
            self.sender.receive(self.now, |_| {});
            self.receiver.complete(self.now);
            // The connecting side grants its first credits after a short time without a message.
            if let Some(due) = self.sender.engine.poll_timeout() {
                self.now = self.now.max(due.min(self.now + FIRST_GRANT));
                self.sender.engine.handle_timeout(self.now);
            }
        }
        assert!(self.sender.engine.is_ready(), "{:?}", self.sender.engine);
    }

    fn send(&mut self) -> Done {
        let mut done = Done::default();
        for _ in 0..self.batch {
            if self.sender.engine.queued_messages() == 0 {
                let message = Message::from(self.message.clone());
                self.sender
                    .engine
                    .send(MessageId(0), message, None)
                    .expect("the connection is established");
            }
            let work = self.sender.engine.poll_work(self.now, ROOM);
            let Some(WorkRequest::Send { payload, .. }) = &work else {
                panic!("the sender has credits, and gave {work:?}");
            };
            done.items += 1;
            done.bytes += payload.len() as u64;
            self.sender.outgoing.extend(work);
        }
        done
    }

    /// Performs [`Step::Receive`], and passes each payload to `show`.
    pub(crate) fn receive(&mut self, show: impl FnMut(&Bytes)) -> Done {
        let done = self.receiver.receive(self.now, show);
        self.receiver.work(self.now, ROOM);
        done
    }

    fn step(&mut self, step: Step) -> Done {
        match step {
            Step::Send => self.send(),
            Step::Carry => {
                carry(&mut self.sender, &mut self.receiver);
                Done::default()
            }
            Step::Receive => self.receive(|_| {}),
            Step::Complete => self.sender.complete(self.now),
            Step::Grant => {
                carry(&mut self.receiver, &mut self.sender);
                self.receiver.complete(self.now);
                self.sender.receive(self.now, |_| {});
                self.sender.work(self.now, Room { sends: 0, ..ROOM });
                Done::default()
            }
        }
    }
}

impl Unit for Engines {
    fn feed(&mut self) {
        let at = ROUND.iter().position(|&step| step == self.measured);
        let at = at.expect("the round has all steps");
        for &step in ROUND[at + 1..].iter().chain(&ROUND[..at]) {
            self.step(step);
        }
    }

    fn run(&mut self) -> Done {
        self.step(self.measured)
    }
}
