//! The common interface of the literal text and the engine, and a pipe between two ends.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use bytes::Bytes;
use smbdirect::{
    Config, Settings,
    engine::{Connection, Event, MessageId},
    rdma::work::{Completion, Limits, Room, WorkId, WorkRequest},
};

/// Time after which a pipe without messages is silent. It is longer than the delay of the first
/// grant of the engine, and shorter than every timer of the text.
const SILENT_AFTER: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Active,
    Passive,
}

impl Who {
    pub(crate) const BOTH: [Self; 2] = [Self::Active, Self::Passive];
}

/// One end of a connection; messages are bytes.
pub(crate) trait End {
    /// Sends a message of the upper layer.
    fn send(&mut self, now: Instant, message: &[u8]);
    /// Sends a keepalive, as after a long idle time.
    fn ask(&mut self, now: Instant);
    /// The application receives nothing, or receives again.
    fn pause(&mut self, now: Instant, paused: bool);
    /// Receives a message.
    fn receive(&mut self, now: Instant, message: &[u8]);
    /// Returns the next message to the peer.
    fn said(&mut self) -> Option<Vec<u8>>;
    fn timeout(&self) -> Option<Instant>;
    fn handle_timeout(&mut self, now: Instant);
    /// Returns the messages that the upper layer received.
    fn delivered(&self) -> &[Vec<u8>];
    /// Returns the number of received bytes of an incomplete message.
    fn partial(&self) -> usize;
    /// Returns the number of queued messages.
    fn queued(&self) -> usize;
    /// Returns why the end terminated the connection, if it did.
    fn over(&self) -> Option<String>;
}

/// An end with the engine.
#[derive(Debug)]
pub(crate) struct Real {
    engine: Connection,
    next_id: u64,
    receives: VecDeque<WorkId>,
    said: VecDeque<Vec<u8>>,
    partial: Vec<u8>,
    delivered: Vec<Vec<u8>>,
    over: Option<String>,
}

impl Real {
    pub(crate) fn new(who: Who, settings: Settings, now: Instant) -> Self {
        let config = Config::new(settings).expect("the settings are legal");
        let mut engine = match who {
            Who::Active => Connection::active(config, now),
            Who::Passive => Connection::passive(config, now),
        };
        let receive = engine.negotiate_receive().id();
        engine.handle_connected(Limits {
            max_send_queue: 1024,
            max_receive_queue: 1024,
            max_outbound_reads: 1,
            max_inbound_reads: 1,
            max_transfer: 1 << 20,
            send_with_invalidate: true,
            packet_bytes: None,
        });
        let mut end = Self {
            engine,
            next_id: 0,
            receives: VecDeque::from([receive]),
            said: VecDeque::new(),
            partial: Vec::new(),
            delivered: Vec::new(),
            over: None,
        };
        end.work(now);
        end
    }

    fn work(&mut self, now: Instant) {
        let room = Room {
            sends: 1024,
            receives: 1024,
        };
        while let Some(work) = self.engine.poll_work(now, room) {
            match work {
                WorkRequest::Receive { id, count, .. } => {
                    self.receives.extend((0..count).map(|_| id));
                }
                WorkRequest::Send {
                    id,
                    header,
                    payload,
                    ..
                } => {
                    self.said
                        .push_back([header.as_slice(), &payload[..]].concat());
                    self.engine.handle_completion(now, Completion::Sent { id });
                }
                other => panic!("unexpected work: {other:?}"),
            }
        }
        while let Some(event) = self.engine.poll_event() {
            match event {
                Event::Segment {
                    payload, remaining, ..
                } => {
                    self.partial.extend_from_slice(&payload);
                    if remaining == 0 {
                        self.delivered.push(std::mem::take(&mut self.partial));
                    }
                }
                Event::Closed(error) => self.over = Some(error.to_string()),
                _ => {}
            }
        }
    }
}

impl End for Real {
    fn send(&mut self, now: Instant, message: &[u8]) {
        self.next_id += 1;
        let message = Bytes::copy_from_slice(message);
        self.engine
            .send(MessageId(self.next_id), message, None)
            .expect("the connection is there");
        self.work(now);
    }

    fn ask(&mut self, now: Instant) {
        self.engine.prompt_keepalive(now);
        self.work(now);
    }

    fn pause(&mut self, now: Instant, paused: bool) {
        self.engine.set_unread(if paused { usize::MAX } else { 0 });
        self.work(now);
    }

    fn receive(&mut self, now: Instant, message: &[u8]) {
        let completion = Completion::Received {
            id: self.receives.pop_front().expect("a receive is posted"),
            message: Bytes::copy_from_slice(message),
            invalidated: None,
        };
        self.engine.handle_completion(now, completion);
        self.work(now);
    }

    fn said(&mut self) -> Option<Vec<u8>> {
        self.said.pop_front()
    }

    fn timeout(&self) -> Option<Instant> {
        self.engine.poll_timeout()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.engine.handle_timeout(now);
        self.work(now);
    }

    fn delivered(&self) -> &[Vec<u8>] {
        &self.delivered
    }

    fn partial(&self) -> usize {
        self.partial.len()
    }

    fn queued(&self) -> usize {
        self.engine.queued_messages()
    }

    fn over(&self) -> Option<String> {
        self.over.clone()
    }
}

/// A reliable, ordered pipe between two ends, with virtual time.
pub(crate) struct Pipe {
    pub(crate) active: Box<dyn End>,
    pub(crate) passive: Box<dyn End>,
    pub(crate) now: Instant,
}

impl Pipe {
    /// Connects two ends and lets them negotiate.
    pub(crate) fn new(active: Box<dyn End>, passive: Box<dyn End>, now: Instant) -> Self {
        let mut pipe = Self {
            active,
            passive,
            now,
        };
        for who in Who::BOTH {
            assert!(pipe.carry(who), "each says one thing to negotiate");
        }
        pipe
    }

    pub(crate) fn end(&mut self, who: Who) -> &mut dyn End {
        match who {
            Who::Active => &mut *self.active,
            Who::Passive => &mut *self.passive,
        }
    }

    pub(crate) fn send(&mut self, who: Who, message: &[u8]) {
        let now = self.now;
        self.end(who).send(now, message);
    }

    pub(crate) fn ask(&mut self, who: Who) {
        let now = self.now;
        self.end(who).ask(now);
    }

    /// Delivers the next message on the way to `who`.
    pub(crate) fn hear(&mut self, who: Who) {
        let peer = match who {
            Who::Active => Who::Passive,
            Who::Passive => Who::Active,
        };
        assert!(self.carry(peer), "a message is on the way");
    }

    pub(crate) fn pause(&mut self, who: Who, paused: bool) {
        let now = self.now;
        self.end(who).pause(now, paused);
    }

    pub(crate) fn is_open(&self) -> bool {
        self.active.over().is_none() && self.passive.over().is_none()
    }

    /// Delivers one message of `who` to its peer.
    fn carry(&mut self, who: Who) -> bool {
        let (now, open) = (self.now, self.is_open());
        let (from, to) = match who {
            Who::Active => (&mut self.active, &mut self.passive),
            Who::Passive => (&mut self.passive, &mut self.active),
        };
        match from.said() {
            Some(message) if open => {
                to.receive(now, &message);
                true
            }
            _ => false,
        }
    }

    /// Runs until both ends are silent or `most` messages were delivered, and returns their number.
    pub(crate) fn run(&mut self, most: usize) -> usize {
        self.wait(SILENT_AFTER, most)
    }

    /// Runs for `duration` or until `most` messages were delivered, and returns their number.
    pub(crate) fn wait(&mut self, duration: Duration, most: usize) -> usize {
        let end = self.now + duration;
        let mut delivered = 0;
        while delivered < most {
            let there = self.carry(Who::Active);
            let back = self.carry(Who::Passive);
            delivered += usize::from(there) + usize::from(back);
            if there || back {
                continue;
            }
            let timers = [self.active.timeout(), self.passive.timeout()];
            let next = timers.into_iter().flatten().min();
            let Some(next) = next.filter(|next| *next <= end && self.is_open()) else {
                self.now = end;
                break;
            };
            self.now = next.max(self.now);
            let now = self.now;
            for who in Who::BOTH {
                self.end(who).handle_timeout(now);
            }
        }
        delivered
    }
}
