//! One engine with a simulated queue pair and owner, and the assertions about it.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    time::Instant,
};

use bytes::{BufMut, Bytes, BytesMut};
use smbdirect::{
    BufferDescriptorV1, Config, ConnectionError, Settings,
    engine::{Connection, Event, MessageId, TransferId},
    rdma::work::{Limits, RemoteAddress, Room, Token, WorkId, WorkRequest},
};

use self::proved::Proved;
use crate::input::Input;

/// Maximum number of messages, reads and writes that wait at a time. More would only be slower.
const MAX_WAITING: usize = 64;

/// Maximum number of bytes in messages that wait at a time.
const MAX_WAITING_BYTES: usize = 200_000;

/// Length of the longest read or write in bytes.
const MAX_TRANSFER: usize = 1000;

pub(super) struct End {
    engine: Connection,
    settings: Settings,
    limits: Limits,
    passive: bool,
    connected: bool,
    /// The end as the proof sees it.
    proved: Proved,

    // The simulated queue pair.
    receives: VecDeque<(WorkId, u32)>,
    /// Messages that took a receive and whose completion the engine has not seen.
    arrived: VecDeque<Arrived>,
    /// Posted Sends, each with the message that it completes, if any.
    sends: VecDeque<(WorkId, Option<MessageId>)>,
    reads: VecDeque<(WorkId, RemoteAddress, BytesMut)>,
    writes: VecDeque<WorkId>,
    /// Messages sent and not yet received by the peer.
    under_way: VecDeque<(Bytes, Option<Token>)>,
    /// Whether the send queue flushes. Receives may still complete.
    flushing: bool,
    /// Whether receives are flushed too.
    flushing_receives: bool,
    disconnected: bool,

    // The expected state, from the messages on the wire and the completions.
    negotiate_sent: bool,
    negotiate_received: bool,
    /// Send credits that the engine holds.
    held: u32,
    /// Credits granted to the peer, minus the messages whose completions the engine has seen.
    granted: u32,
    /// Bytes that are missing of the message being sent.
    sending: u32,
    /// Bytes that are missing of the message being received.
    receiving: Option<u32>,
    /// The token that a segment of that message invalidated.
    received_token: Option<Token>,

    // The owner's requests, and the events it has to receive.
    next_id: u64,
    messages: VecDeque<Message>,
    writes_to_post: VecDeque<Write>,
    to_be_told_sent: VecDeque<MessageId>,
    segments: VecDeque<Segment>,
    transfers: BTreeMap<u64, Option<Bytes>>,
    closed: Option<ConnectionError>,
    negotiated_told: bool,
    /// Counts all progress.
    done: u64,
}

#[derive(Debug)]
struct Arrived {
    id: WorkId,
    message: Bytes,
    invalidated: Option<Token>,
}

/// A message whose segments are not all posted.
#[derive(Debug)]
struct Message {
    id: MessageId,
    rest: Bytes,
    token: Option<Token>,
}

/// A write whose parts are not all posted.
#[derive(Debug)]
struct Write {
    id: u64,
    /// Ranges of the peer's memory and the data for each.
    places: VecDeque<(RemoteAddress, Bytes)>,
}

#[derive(Debug, PartialEq)]
struct Segment {
    payload: Bytes,
    remaining: u32,
    invalidated: Option<Token>,
}

impl fmt::Debug for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "passive {}, {:?}, held {}, granted {}, receives {}, arrived {}, sends {}, queued {}, \
             transfers {:?}, closed {:?}, {:?}",
            self.passive,
            self.engine.credits(),
            self.held,
            self.granted,
            self.receives.len(),
            self.arrived.len(),
            self.sends.len(),
            self.engine.queued_messages(),
            self.transfers.keys(),
            self.closed,
            self.settings,
        )
    }
}

// Getters, and the assertions that hold at any time.
impl End {
    pub(super) fn new(passive: bool, settings: Settings, limits: Limits, now: Instant) -> Self {
        let config = Config::new(settings.clone()).expect("the settings are legal");
        let mut engine = if passive {
            Connection::passive(config, now)
        } else {
            Connection::active(config, now)
        };
        let WorkRequest::Receive { id, length, .. } = engine.negotiate_receive() else {
            panic!("the negotiate message needs a receive");
        };
        Self {
            passive,
            engine,
            proved: Proved::new(passive, &settings),
            settings,
            limits,
            connected: false,
            receives: VecDeque::from([(id, length)]),
            arrived: VecDeque::new(),
            sends: VecDeque::new(),
            reads: VecDeque::new(),
            writes: VecDeque::new(),
            under_way: VecDeque::new(),
            flushing: false,
            flushing_receives: false,
            disconnected: false,
            negotiate_sent: false,
            negotiate_received: false,
            held: 0,
            granted: 0,
            sending: 0,
            receiving: None,
            received_token: None,
            next_id: 0,
            messages: VecDeque::new(),
            writes_to_post: VecDeque::new(),
            to_be_told_sent: VecDeque::new(),
            segments: VecDeque::new(),
            transfers: BTreeMap::new(),
            closed: None,
            negotiated_told: false,
            done: 0,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.engine.error().is_some()
    }

    pub(super) fn is_negotiated(&self) -> bool {
        self.engine.negotiated().is_some()
    }

    pub(super) fn is_disconnected(&self) -> bool {
        self.disconnected
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.engine.poll_timeout()
    }

    pub(super) fn done(&self) -> u64 {
        self.done
    }

    /// Returns whether all requests are done.
    pub(super) fn is_content(&self) -> bool {
        self.engine.queued_messages() == 0
            && self.messages.is_empty()
            && self.writes_to_post.is_empty()
            && self.to_be_told_sent.is_empty()
            && self.transfers.is_empty()
            && self.segments.is_empty()
    }

    pub(super) fn has_nothing_under_way(&self) -> bool {
        self.under_way.is_empty()
    }

    pub(super) fn has_nothing_to_hand_over(&self) -> bool {
        self.arrived.is_empty()
    }

    /// Asserts what must hold after every operation.
    pub(super) fn check(&self) {
        let statistics = self.engine.statistics();
        assert_eq!(
            statistics.receives_outstanding as usize,
            self.receives.len() + self.arrived.len()
        );
        assert_eq!(
            statistics.work_outstanding as usize,
            self.sends.len() + self.reads.len() + self.writes.len()
        );
        if self.is_over() {
            assert_eq!(self.due(), None, "a timer runs behind the end");
            assert!(!self.is_negotiated() && !self.engine.is_ready());
            return;
        }
        if self.is_negotiated() && !self.flushing && !self.flushing_receives {
            let posted = (self.receives.len() + self.arrived.len()) as u32;
            assert!(
                posted >= self.granted,
                "a credit without a receive: {self:?}"
            );
            let credits = self.engine.credits();
            assert_eq!(u32::from(credits.send_credits), self.held);
            assert_eq!(u32::from(credits.granted), self.granted);
            assert_eq!(u32::from(credits.receive_credits), posted);
        }
    }

    /// Asserts that all buffers are back and that the engine wants nothing more.
    pub(super) fn assert_all_returned(&mut self, now: Instant) {
        self.take_events();
        self.check();
        assert!(self.disconnected && self.closed.is_some());
        let statistics = self.engine.statistics();
        assert_eq!(
            (statistics.receives_outstanding, statistics.work_outstanding),
            (0, 0)
        );
        assert!(
            self.transfers.is_empty(),
            "a transfer is not over: {self:?}"
        );
        let room = Room {
            sends: 1000,
            receives: 1000,
        };
        assert!(self.engine.poll_work(now, room).is_none());
        assert!(self.engine.poll_event().is_none());
        assert_eq!(self.engine.queued_messages(), 0);
    }
}

// The owner's calls.
impl End {
    pub(super) fn connect(&mut self) {
        if !self.connected {
            self.connected = true;
            self.engine.handle_connected(self.limits);
        }
    }

    pub(super) fn send(&mut self, input: &mut Input<'_>) {
        let length = input.length(140_000);
        let token = input.is_odd().then(|| Token(input.byte().into()));
        let waiting: usize = self.messages.iter().map(|message| message.rest.len()).sum();
        if self.messages.len() >= MAX_WAITING || waiting + length > MAX_WAITING_BYTES {
            return;
        }
        self.next_id += 1;
        let id = MessageId(self.next_id);
        let content = Bytes::from(
            (0..length)
                .map(|at| (at as u8) ^ (at >> 8) as u8 ^ (id.0 as u8))
                .collect::<Vec<_>>(),
        );
        // Two parts, so that a segment can cross their boundary.
        let mut second = content.clone();
        let first = second.split_to(length / 3);
        let message: smbdirect::Message = [first, second].into_iter().collect();
        let negotiated = self.engine.negotiated().copied();
        let sent = self.engine.send(id, message, token);
        if sent.is_ok() {
            let most = negotiated.expect("messages are accepted after the negotiation");
            assert!(length <= most.max_fragmented_send_size as usize);
            let rest = content;
            self.messages.push_back(Message { id, rest, token });
        }
    }

    pub(super) fn read(&mut self, input: &mut Input<'_>) {
        let (descriptors, offset, length) = self.descriptors(input);
        if self.transfers.len() >= MAX_WAITING {
            return;
        }
        self.next_id += 1;
        let into = BytesMut::zeroed(length);
        match self
            .engine
            .read(TransferId(self.next_id), &descriptors, offset, into)
        {
            Ok(()) => {
                let mut expected = BytesMut::new();
                for (at, length) in places(&descriptors, offset, length) {
                    expected.put(remote(at, length));
                }
                self.transfers.insert(self.next_id, Some(expected.freeze()));
            }
            Err((_, buffer)) => assert_eq!(buffer.len(), length, "the buffer comes back"),
        }
    }

    pub(super) fn write(&mut self, input: &mut Input<'_>) {
        let (descriptors, offset, length) = self.descriptors(input);
        if self.transfers.len() >= MAX_WAITING {
            return;
        }
        self.next_id += 1;
        let mut data = Bytes::from(vec![self.next_id as u8; length]);
        let started =
            self.engine
                .write(TransferId(self.next_id), &descriptors, offset, data.clone());
        if started.is_ok() {
            self.transfers.insert(self.next_id, None);
            let places: VecDeque<_> = places(&descriptors, offset, length)
                .into_iter()
                .map(|(at, length)| (at, data.split_to(length)))
                .collect();
            if !places.is_empty() {
                let id = self.next_id;
                self.writes_to_post.push_back(Write { id, places });
            }
        }
    }

    /// Returns descriptors with arbitrary contents, and a range of the memory that they describe.
    fn descriptors(&self, input: &mut Input<'_>) -> (Vec<BufferDescriptorV1>, u64, usize) {
        let descriptors = (0..=input.up_to(2))
            .map(|_| BufferDescriptorV1 {
                offset: if input.up_to(3) == 3 {
                    u64::MAX - u64::from(input.any::<u16>())
                } else {
                    input.any::<u32>().into()
                },
                token: input.byte().into(),
                length: if input.up_to(7) == 7 {
                    input.any()
                } else {
                    input.any::<u16>().into()
                },
            })
            .collect();
        let offset = match input.up_to(7) {
            0..=4 => 0,
            5 | 6 => input.any::<u16>().into(),
            _ => input.any(),
        };
        (descriptors, offset, input.length(MAX_TRANSFER))
    }

    pub(super) fn prompt(&mut self) {
        self.engine.prompt();
        self.proved.prompted();
    }

    pub(super) fn keepalive(&mut self, now: Instant) {
        self.engine.prompt_keepalive(now);
        self.proved.prompted();
    }

    pub(super) fn close(&mut self) {
        self.engine.close();
        let message = self.engine.send(MessageId(0), "late", None);
        assert!(message.is_err(), "a message is taken behind the close");
    }

    pub(super) fn time_out(&mut self, now: Instant) {
        if self.due().is_some_and(|due| due <= now) {
            self.proved.timer_expired();
        }
        self.engine.handle_timeout(now);
        assert!(
            self.due().is_none_or(|due| due > now),
            "a timer is due twice"
        );
    }

    pub(super) fn take_events(&mut self) {
        while let Some(event) = self.engine.poll_event() {
            self.done += 1;
            if let Event::TransferDone {
                id,
                buffer,
                completed,
            } = event
            {
                self.transfer_done(id, buffer, completed);
                continue;
            }
            assert!(self.closed.is_none(), "{event:?} behind the end");
            match event {
                Event::Negotiated(negotiated) => {
                    assert!(!self.negotiated_told);
                    self.negotiated_told = true;
                    assert!(negotiated.max_send_size >= 128);
                    assert!(negotiated.max_send_size <= self.settings.max_send_size);
                    assert!(negotiated.max_receive_size >= 128);
                    assert!(negotiated.max_receive_size <= self.settings.max_receive_size);
                    assert!(negotiated.max_fragmented_send_size >= 131_072);
                }
                Event::Segment {
                    payload,
                    remaining,
                    invalidated,
                } => {
                    let segment = Segment {
                        payload,
                        remaining,
                        invalidated,
                    };
                    assert_eq!(Some(segment), self.segments.pop_front());
                }
                Event::MessageSent(id) => {
                    assert_eq!(Some(id), self.to_be_told_sent.pop_front());
                }
                Event::KeepaliveAnswered => assert!(self.negotiated_told),
                Event::Closed(error) => {
                    assert_eq!(Some(&error), self.engine.error());
                    self.closed = Some(error);
                }
                Event::TransferDone { .. } => unreachable!("it was taken above"),
                _ => unreachable!("the engine has no other events: {event:?}"),
            }
        }
        // An owner without further events has received every segment.
        assert!(self.segments.is_empty(), "a segment is missing: {self:?}");
        assert_eq!(self.closed.is_some(), self.is_over());
    }

    fn transfer_done(&mut self, id: TransferId, buffer: Option<BytesMut>, completed: bool) {
        let transfer = self.transfers.remove(&id.0);
        let expected = transfer.expect("a transfer that was started ends once");
        assert!(
            completed || self.closed.is_some(),
            "abandoned without a reason"
        );
        match (expected, buffer) {
            (Some(expected), Some(buffer)) => {
                assert_eq!(buffer.len(), expected.len());
                assert!(
                    !completed || buffer == expected,
                    "the wrong bytes were read"
                );
            }
            (None, None) => {}
            (expected, buffer) => panic!("{expected:?} gave {buffer:?}"),
        }
    }
}

/// Returns the ranges of the peer's memory that a part of the described memory covers.
fn places(
    descriptors: &[BufferDescriptorV1],
    mut offset: u64,
    mut length: usize,
) -> Vec<(RemoteAddress, usize)> {
    let mut places = Vec::new();
    for descriptor in descriptors {
        let skipped = offset.min(descriptor.length.into());
        offset -= skipped;
        let here = length.min(descriptor.length as usize - skipped as usize);
        length -= here;
        if here > 0 {
            let at = RemoteAddress {
                token: Token(descriptor.token),
                offset: descriptor.offset + skipped,
            };
            places.push((at, here));
        }
    }
    places
}

/// Returns bytes of the peer's memory. Each byte depends on its address.
fn remote(at: RemoteAddress, length: usize) -> Bytes {
    (0..length as u64)
        .map(|byte| (at.offset + byte).wrapping_mul(31) as u8 ^ at.token.0 as u8)
        .collect()
}

mod peer;
#[path = "../../../crates/smbdirect/tests/it/pair/fabric/proved.rs"]
mod proved;
mod queue_pair;
