//! One engine with a simulated queue pair and owner, and the assertions about it.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    time::Instant,
};

use bytes::{BufMut, Bytes, BytesMut};
use smbdirect::{
    BufferDescriptorV1, Config, ConnectionError, Settings,
    engine::{Connection, Event, Initiator, MessageId, TransferId},
    rdma::work::{
        Completion, Disconnect, Inline, Limits, RemoteAddress, Room, Token, WorkId, WorkRequest,
    },
    wire::{DataTransfer, Flags, NegotiateRequest, NegotiateResponse, Status, VERSION_1_0},
};

use crate::input::Input;

/// Most messages, reads and writes that wait at a time. More would only be slower.
const MAX_WAITING: usize = 64;
/// Most bytes in messages that wait at a time.
const MAX_WAITING_BYTES: usize = 200_000;
/// Length of the longest read or write in bytes.
const MAX_TRANSFER: usize = 1000;

pub(super) struct End {
    engine: Connection,
    settings: Settings,
    limits: Limits,
    passive: bool,
    connected: bool,

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
        let message = [first, second].into_iter().collect();
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
    }

    pub(super) fn keepalive(&mut self, now: Instant) {
        self.engine.prompt_keepalive(now);
    }

    pub(super) fn close(&mut self) {
        self.engine.close();
        let message = self.engine.send(MessageId(0), "late".into(), None);
        assert!(message.is_err(), "a message is taken behind the close");
    }

    pub(super) fn time_out(&mut self, now: Instant) {
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

// The queue pair.
impl End {
    /// Posts the engine's work requests, as far as there is room.
    pub(super) fn work(&mut self, now: Instant, mut most: Room) {
        if !self.connected && !self.disconnected {
            return;
        }
        loop {
            let busy = self.sends.len() + self.reads.len() + self.writes.len();
            let room = Room {
                sends: most
                    .sends
                    .min(self.limits.max_send_queue.saturating_sub(busy)),
                receives: most.receives.min(
                    self.limits
                        .max_receive_queue
                        .saturating_sub(self.receives.len()),
                ),
            };
            let (was_over, was_idle) = (self.is_over(), self.engine.is_idle());
            let Some(work) = self.engine.poll_work(now, room) else {
                break;
            };
            assert!(!was_over, "{work:?} behind the end");
            assert!(!was_idle, "{work:?} of one that had nothing");
            self.done += 1;
            if let WorkRequest::Receive { count, .. } = work {
                assert!((1..=room.receives).contains(&(count as usize)));
                most.receives -= count as usize;
            } else {
                assert!(room.sends > 0);
                most.sends -= 1;
            }
            self.post(work);
        }
        self.take_events();
    }

    fn post(&mut self, work: WorkRequest) {
        match work {
            WorkRequest::Receive { id, length, count } => {
                assert!(self.negotiate_received && length >= 128);
                self.receives.extend((0..count).map(|_| (id, length)));
            }
            WorkRequest::Send {
                id,
                header,
                payload,
                invalidate,
            } => {
                let message = Bytes::from([header.as_slice(), &payload].concat());
                let completes = self.look_at(&message, invalidate);
                self.sends.push_back((id, completes));
                self.under_way.push_back((message, invalidate));
            }
            WorkRequest::Write { id, data, to } => {
                self.look_at_write(to, &data);
                self.writes.push_back(id);
            }
            WorkRequest::Read { id, from, into } => {
                assert!(!into.is_empty() && into.len() as u64 <= u64::from(self.max_piece()));
                self.reads.push_back((id, from, into));
                assert!(self.reads.len() <= self.limits.max_outbound_reads as usize);
            }
        }
    }

    fn max_piece(&self) -> u32 {
        let negotiated = self.engine.negotiated().expect("transfers come later");
        negotiated.max_read_write_size.min(self.limits.max_transfer)
    }

    /// Checks a message that the engine sends, from its bytes, against the rules.
    fn look_at(&mut self, message: &Bytes, invalidate: Option<Token>) -> Option<MessageId> {
        if !std::mem::replace(&mut self.negotiate_sent, true) {
            if self.passive {
                let response = NegotiateResponse::decode(message).expect("a response comes first");
                let accepted = response.status == Status::SUCCESS;
                assert_eq!(response.credits_granted > 0, accepted);
                self.granted += u32::from(response.credits_granted);
            } else {
                NegotiateRequest::decode(message).expect("a request comes first");
            }
            return None;
        }
        let negotiated = *self
            .engine
            .negotiated()
            .expect("messages are sent after the negotiation");
        assert!(self.held > 0, "a send without a credit: {self:?}");
        self.held -= 1;
        assert!(message.len() <= negotiated.max_send_size as usize);
        let header = DataTransfer::decode(message).expect("the engine encodes valid messages");
        assert!(header.flags.bits() <= 1 && message[6..8] == [0; 2]);
        assert!(header.data_offset == 24 || message.len() == 20);
        assert_eq!(header.credits_requested, self.settings.send_credit_target);
        let strict = self.settings.policy.strict_last_credit;
        let peer_can_answer = !strict && self.granted > 0;
        assert!(
            self.held > 0 || header.credits_granted > 0 || peer_can_answer,
            "the last credit is spent and none given: {self:?}"
        );
        self.granted += u32::from(header.credits_granted);
        let claimed = header.data_length + header.remaining_data_length;
        if self.sending > 0 {
            assert_eq!(claimed, self.sending, "something between two segments");
            assert!(header.data_length > 0, "an empty segment");
        }
        let begins = self.sending == 0;
        self.sending = header.remaining_data_length;
        let payload = message.slice(header.payload());
        self.look_at_segment(&payload, &header, invalidate, begins)
    }

    /// Compares a segment with the oldest message to be sent. Returns the message's id with its
    /// last segment.
    fn look_at_segment(
        &mut self,
        payload: &Bytes,
        header: &DataTransfer,
        invalidate: Option<Token>,
        begins: bool,
    ) -> Option<MessageId> {
        let completes = self.engine.queued_messages() < self.messages.len();
        if payload.is_empty() && !completes {
            assert!(begins && invalidate.is_none() && header.remaining_data_length == 0);
            return None;
        }
        let message = self.messages.front_mut().expect("a message was asked for");
        // Writes end with the first flushed completion, messages with the end of the connection.
        let overtaken = self.writes_to_post.front().filter(|_| !self.flushing);
        assert!(
            overtaken.is_none_or(|write| write.id > message.id.0),
            "a message overtakes a write"
        );
        let token = message
            .token
            .filter(|_| begins && self.limits.send_with_invalidate);
        assert_eq!(invalidate, token, "the token goes with the first segment");
        assert_eq!(message.rest.split_to(payload.len()), payload);
        assert_eq!(message.rest.len(), header.remaining_data_length as usize);
        assert_eq!(message.rest.is_empty(), completes);
        completes.then(|| {
            self.messages
                .pop_front()
                .expect("the message was compared above")
                .id
        })
    }

    /// Compares an RDMA Write with the oldest requested write.
    fn look_at_write(&mut self, to: RemoteAddress, data: &Bytes) {
        assert!(!data.is_empty() && data.len() as u64 <= u64::from(self.max_piece()));
        if self.flushing {
            return;
        }
        let write = self
            .writes_to_post
            .front_mut()
            .expect("a write was asked for");
        let (at, rest) = write
            .places
            .front_mut()
            .expect("a write without places is removed");
        assert_eq!(to, *at);
        assert_eq!(rest.split_to(data.len()), data);
        if rest.is_empty() {
            write.places.pop_front();
        } else {
            at.offset += data.len() as u64;
        }
        if write.places.is_empty() {
            self.writes_to_post.pop_front();
        }
    }

    /// Completes the oldest Send, or flushes it if the connection breaks.
    pub(super) fn complete_send(&mut self, now: Instant) {
        while let Some((id, completes)) = self.sends.pop_front() {
            if self.flushing {
                return self.complete(now, Completion::Flushed { id, buffer: None });
            }
            if !self.is_over() {
                self.to_be_told_sent.extend(completes);
            }
            // Some completions are left out, because the next one covers them too.
            let is_told = (id.0 >> 2) % 3 > 0 || self.sends.is_empty();
            if is_told {
                return self.complete(now, Completion::Sent { id });
            }
        }
    }

    pub(super) fn complete_read(&mut self, now: Instant) {
        if let Some((id, from, mut buffer)) = self.reads.pop_front() {
            if self.flushing {
                let buffer = Some(buffer);
                return self.complete(now, Completion::Flushed { id, buffer });
            }
            let length = buffer.len();
            buffer.copy_from_slice(&remote(from, length));
            self.complete(now, Completion::Read { id, buffer });
        }
    }

    pub(super) fn complete_write(&mut self, now: Instant) {
        if let Some(id) = self.writes.pop_front() {
            let completion = if self.flushing {
                Completion::Flushed { id, buffer: None }
            } else {
                Completion::Written { id }
            };
            self.complete(now, completion);
        }
    }

    fn complete(&mut self, now: Instant, completion: Completion) {
        self.done += 1;
        // A flushed completion must not end the connection by itself.
        let was_over = self.is_over();
        let is_flushed = matches!(completion, Completion::Flushed { .. });
        self.engine.handle_completion(now, completion);
        assert!(!is_flushed || was_over == self.is_over());
    }

    /// Takes the oldest sent message for delivery to the peer.
    pub(super) fn next_sent(&mut self) -> Option<(Bytes, Option<Token>)> {
        self.done += u64::from(!self.under_way.is_empty());
        self.under_way.pop_front()
    }

    pub(super) fn forget_sent(&mut self) {
        self.under_way.clear();
    }

    /// Delivers a message of the peer. Returns false if no receive is posted.
    pub(super) fn arrive(&mut self, message: Bytes, invalidated: Option<Token>) -> bool {
        let Some((id, length)) = self.receives.pop_front() else {
            return false;
        };
        assert!(message.len() <= length as usize, "longer than its receive");
        self.arrived.push_back(Arrived {
            id,
            message,
            invalidated,
        });
        true
    }

    /// Passes the completion of the oldest delivered message to the engine.
    pub(super) fn hand_over(&mut self, now: Instant) {
        if self.flushing_receives {
            return;
        }
        let Some(Arrived {
            id,
            message,
            invalidated,
        }) = self.arrived.pop_front()
        else {
            return;
        };
        let legal = self
            .is_negotiated()
            .then(|| self.judge(&message, invalidated));
        if !self.is_negotiated() && !self.passive && !self.is_over() {
            self.expect_response(&message);
        }
        self.negotiate_received = true;
        // Every other message is split in two pieces.
        let message = match id.0 & 4 {
            0 => message,
            _ => {
                let split = message
                    .len()
                    .min((id.0 >> 3) as usize % (Inline::CAPACITY + 1));
                let head = Inline::build(|out| out.put_slice(&message[..split]));
                self.complete(now, Completion::Head(head));
                message.slice(split..)
            }
        };
        let completion = Completion::Received {
            id,
            message,
            invalidated,
        };
        self.complete(now, completion);
        let violated = matches!(self.engine.error(), Some(ConnectionError::Violation(_)));
        if let Some(legal) = legal {
            assert_eq!(violated, !legal, "{:?}", self.engine.error());
        }
    }

    /// Records the credits that a valid negotiate response grants.
    fn expect_response(&mut self, message: &[u8]) {
        if !self.negotiate_received
            && let Ok(response) = NegotiateResponse::decode(message)
        {
            self.held = response.credits_granted.into();
        }
    }

    /// Applies the rules of 3.1.5.8 independently of the engine. Returns whether the message is
    /// legal, and records the event that the owner has to receive.
    fn judge(&mut self, message: &Bytes, invalidated: Option<Token>) -> bool {
        let max_fragmented = self.settings.max_fragmented_receive_size;
        let tolerant = self.settings.policy.tolerate_empty_in_sequence;
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| message[at + i]));
        let short = |at: usize| u32::from(u16::from_le_bytes([message[at], message[at + 1]]));
        if message.len() < 20 || short(0) == 0 || self.granted == 0 {
            return false;
        }
        let (grant, remaining, offset, length) = (short(2), word(8), word(12), word(16));
        let end = u64::from(offset) + u64::from(length);
        let claimed = u64::from(length) + u64::from(remaining);
        if offset % 8 != 0 || end > message.len() as u64 || claimed > u64::from(max_fragmented) {
            return false;
        }
        if self.held + grant > u16::MAX.into() {
            return false;
        }
        let token = invalidated.or(self.received_token);
        let is_nothing = match self.receiving {
            Some(_) if claimed == 0 && tolerant => true,
            Some(expected) if claimed != u64::from(expected) => return false,
            Some(_) => false,
            None => claimed == 0 && token.is_none(),
        };
        self.granted -= 1;
        self.held += grant;
        self.received_token = token;
        if is_nothing {
            return true;
        }
        let is_last = remaining == 0;
        self.receiving = (!is_last).then_some(remaining);
        self.segments.push_back(Segment {
            payload: message.slice(offset as usize..end as usize),
            remaining,
            invalidated: self.received_token.take_if(|_| is_last),
        });
        true
    }

    /// Begins to flush posted work, as when the connection breaks.
    pub(super) fn begin_to_flush(&mut self, input: &mut Input<'_>) {
        // Happens rarely, because otherwise few inputs would get far.
        if input.up_to(7) == 7 {
            self.flushing = true;
            self.flushing_receives = input.is_odd();
        }
    }

    /// Flushes all posted work, and then reports the disconnect to the engine.
    pub(super) fn disconnect(&mut self, now: Instant, how: Disconnect) {
        if std::mem::replace(&mut self.disconnected, true) {
            return;
        }
        self.flushing = true;
        // Messages that arrived before the end may complete first.
        while !self.flushing_receives && !self.arrived.is_empty() {
            self.hand_over(now);
        }
        self.flushing_receives = true;
        let most = Room {
            sends: 3,
            receives: 3,
        };
        // The engine may post more until it sees the disconnect. A few rounds of that are enough.
        for turn in 0..3 {
            while !self.sends.is_empty() {
                self.complete_send(now);
            }
            while !self.reads.is_empty() {
                self.complete_read(now);
            }
            while !self.writes.is_empty() {
                self.complete_write(now);
            }
            let arrived: Vec<_> = self.arrived.drain(..).map(|arrived| arrived.id).collect();
            let posted: Vec<_> = self.receives.drain(..).map(|(id, _)| id).collect();
            for id in arrived.into_iter().chain(posted) {
                self.complete(now, Completion::Flushed { id, buffer: None });
            }
            self.take_events();
            self.check();
            if turn < 2 {
                self.work(now, most);
            }
        }
        let reason = match how.clone() {
            Disconnect::Local => ConnectionError::Closed(Initiator::Local),
            Disconnect::Remote => ConnectionError::Closed(Initiator::Remote),
            Disconnect::Broken(error) => ConnectionError::Provider(error),
        };
        let first = self.engine.error().cloned().unwrap_or(reason);
        self.complete(now, Completion::Disconnected(how));
        self.take_events();
        assert_eq!(self.closed, Some(first), "the first reason counts");
    }
}

// An arbitrary peer.
impl End {
    /// Sends a message that is most likely legal.
    pub(super) fn peer_sends_in_order(&mut self, now: Instant, input: &mut Input<'_>) {
        if !self.negotiate_received {
            let message = self.negotiate_message();
            return self.peer_sends(now, message, None);
        }
        let length = u32::from(input.byte());
        let grant = input.up_to(15) as u16;
        let (data_length, remaining) = match self.receiving {
            Some(expected) => (length.min(expected), expected - length.min(expected)),
            None => (
                length,
                if input.up_to(3) == 3 {
                    input.byte().into()
                } else {
                    0
                },
            ),
        };
        let mut message = BytesMut::new();
        let header = DataTransfer {
            credits_requested: input.pick(&[10, 1, 2, 255, u16::MAX]),
            credits_granted: grant,
            flags: Flags::from_bits_retain(u16::from(input.up_to(7) == 7)),
            remaining_data_length: remaining,
            data_offset: if data_length == 0 { 0 } else { 24 },
            data_length,
        };
        header.encode(&mut message);
        message.put_bytes(length as u8 ^ 0x5a, data_length as usize);
        let token = (input.up_to(15) == 15).then_some(Token(7));
        self.peer_sends(now, message.freeze(), token);
    }

    fn negotiate_message(&self) -> Bytes {
        let mut message = BytesMut::new();
        if self.passive {
            let request = NegotiateRequest {
                min_version: VERSION_1_0,
                max_version: VERSION_1_0,
                credits_requested: 10,
                preferred_send_size: 1364,
                max_receive_size: 1364,
                max_fragmented_size: 131_072,
            };
            request.encode(&mut message);
        } else {
            let response = NegotiateResponse {
                min_version: VERSION_1_0,
                max_version: VERSION_1_0,
                negotiated_version: VERSION_1_0,
                credits_requested: 10,
                credits_granted: 10,
                status: Status::SUCCESS,
                max_read_write_size: 1 << 20,
                preferred_send_size: 128,
                max_receive_size: 1364,
                max_fragmented_size: 131_072,
            };
            response.encode(&mut message);
        }
        message.freeze()
    }

    /// Sends a message of the right form with arbitrary numbers.
    pub(super) fn peer_sends_fields(&mut self, now: Instant, input: &mut Input<'_>) {
        let mut message = BytesMut::new();
        if self.negotiate_received {
            message.put_u16_le(input.any());
            message.put_u16_le(input.any());
            message.put_u16_le(input.byte().into());
            message.put_u16_le(input.byte().into());
            for _ in 0..3 {
                match input.up_to(2) {
                    0 => message.put_u32_le(input.byte().into()),
                    1 => message.put_u32_le(u32::from(input.byte()) * 8),
                    _ => message.put_u32_le(input.any()),
                }
            }
            message.put_bytes(0x77, input.byte().into());
        } else {
            message.extend_from_slice(&self.negotiate_message());
            for _ in 0..input.up_to(2) {
                let at = 2 * input.up_to(message.len() as u8 / 2 - 1);
                message[at..at + 2].copy_from_slice(&input.any::<u16>().to_le_bytes());
            }
            if input.up_to(7) == 7 {
                message.truncate(input.up_to(32));
            }
        }
        self.peer_sends(now, message.freeze(), None);
    }

    pub(super) fn peer_sends_bytes(&mut self, now: Instant, input: &mut Input<'_>) {
        let length = usize::from(input.byte());
        let message = Bytes::copy_from_slice(input.bytes(length));
        self.peer_sends(now, message, None);
    }

    /// Delivers a message, cut to the length of its receive. Most messages complete immediately.
    fn peer_sends(&mut self, now: Instant, message: Bytes, invalidated: Option<Token>) {
        let speaks = self.connected && !self.flushing_receives && !self.disconnected;
        let Some(&(_, length)) = self.receives.front().filter(|_| speaks) else {
            return;
        };
        let message = message.slice(..message.len().min(length as usize));
        self.arrive(message, invalidated);
        if self.arrived.len() % 4 == 1 {
            self.hand_over(now);
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
