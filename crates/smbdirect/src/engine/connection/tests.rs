//! Tests of one engine against a scripted peer. Tests of two engines together are in `tests/pair`.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use bytes::{BufMut, Bytes, BytesMut};

use super::{Connection, negotiation::FIRST_GRANT_DELAY};
use crate::{
    engine::{
        Config, ConnectionError, Credits, Event, Expired, Message, MessageId, Policy, Revision,
        SendError, Settings, Statistics, TransferFault, TransferId, Violation,
    },
    rdma::work::{
        Completion, Disconnect, Inline, Limits, ProviderError, ProviderErrorKind, RemoteAddress,
        Room, Token, WorkId, WorkRequest,
    },
    wire::{BufferDescriptorV1, DataTransfer, Flags, NegotiateRequest, NegotiateResponse, Status},
};

const SECOND: Duration = Duration::from_secs(1);
const INSTANT: Duration = Duration::from_nanos(1);
const IDLE: Duration = Duration::from_secs(120);
const ANSWER: Duration = Duration::from_secs(5);
const CREDIT_GRANT: Duration = Duration::from_secs(5);

/// An engine, its simulated queue pair, and the clock of the script.
struct Bench {
    engine: Connection,
    now: Instant,
    room: Room,
    receives: VecDeque<(WorkId, u32)>,
    sends: VecDeque<WorkId>,
    reads: VecDeque<(WorkId, BytesMut)>,
    writes: VecDeque<WorkId>,
}

/// The part of a work request that the tests check.
#[derive(Debug, PartialEq)]
enum Did {
    /// The number of receives, and the length of each in bytes.
    Receives(u32, u32),
    Send(Vec<u8>, Option<Token>),
    Read(RemoteAddress, usize),
    Write(RemoteAddress, usize),
}

fn limits() -> Limits {
    Limits {
        max_send_queue: 100,
        max_receive_queue: 300,
        max_outbound_reads: 2,
        max_inbound_reads: 2,
        max_transfer: 1 << 20,
        send_with_invalidate: true,
        packet_bytes: None,
    }
}

/// Returns the settings of Windows with this SendCreditTarget and ReceiveCreditMax.
fn credits(send_credit_target: u16, receive_credit_max: u16) -> Settings {
    Settings {
        send_credit_target,
        receive_credit_max,
        ..Settings::windows()
    }
}

fn policy(change: impl FnOnce(&mut Policy)) -> Settings {
    let mut settings = credits(10, 10);
    change(&mut settings.policy);
    settings
}

/// Returns settings with ten credits in each direction, one for each wording of the text.
fn both_wordings() -> [Settings; 2] {
    [Revision::Current, Revision::V2014].map(|revision| policy(|policy| policy.revision = revision))
}

fn request(credits_requested: u16) -> NegotiateRequest {
    NegotiateRequest {
        min_version: 0x0100,
        max_version: 0x0100,
        credits_requested,
        preferred_send_size: 1024,
        max_receive_size: 1024,
        max_fragmented_size: 131_072,
    }
}

fn response(credits_requested: u16, credits_granted: u16) -> NegotiateResponse {
    NegotiateResponse {
        min_version: 0x0100,
        max_version: 0x0100,
        negotiated_version: 0x0100,
        credits_requested,
        credits_granted,
        status: Status::SUCCESS,
        max_read_write_size: 1 << 20,
        preferred_send_size: 1024,
        max_receive_size: 1024,
        max_fragmented_size: 131_072,
    }
}

fn encoded(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(&mut bytes);
    bytes
}

/// Returns an empty Data Transfer with a grant.
fn grant(credits_granted: u16) -> DataTransfer {
    DataTransfer::empty(10, credits_granted, Flags::empty())
}

fn flagged(credits_granted: u16) -> DataTransfer {
    DataTransfer::empty(10, credits_granted, Flags::RESPONSE_REQUESTED)
}

/// Returns the header of a segment of `data_length` bytes.
fn segment(credits_granted: u16, data_length: u32, remaining_data_length: u32) -> DataTransfer {
    DataTransfer {
        data_offset: 24,
        data_length,
        remaining_data_length,
        ..grant(credits_granted)
    }
}

fn descriptors(length: u32) -> [BufferDescriptorV1; 1] {
    [BufferDescriptorV1 {
        offset: 0,
        token: 7,
        length,
    }]
}

const fn remote(offset: u64) -> RemoteAddress {
    let token = Token(7);
    RemoteAddress { token, offset }
}

impl Bench {
    fn new(settings: Settings, role: fn(Config, Instant) -> Connection) -> Self {
        let now = Instant::now();
        let mut engine = role(Config::new(settings).unwrap(), now);
        let receive = engine.negotiate_receive();
        let mut bench = Self {
            engine,
            now,
            room: Room {
                sends: 100,
                receives: 300,
            },
            receives: VecDeque::new(),
            sends: VecDeque::new(),
            reads: VecDeque::new(),
            writes: VecDeque::new(),
        };
        assert_eq!(bench.post(receive), Did::Receives(1, 512));
        bench
    }

    /// Returns a connecting side that has sent its request.
    fn proposing(settings: Settings) -> Self {
        let mut bench = Self::new(settings, Connection::active);
        bench.engine.handle_connected(limits());
        bench.work();
        bench.complete_sends();
        bench
    }

    /// Returns an accepting side.
    fn listening(settings: Settings) -> Self {
        let mut bench = Self::new(settings, Connection::passive);
        bench.engine.handle_connected(limits());
        bench
    }

    /// Returns an established connecting side; the peer has requested and granted these credits.
    fn active(settings: Settings, requested: u16, granted: u16) -> Self {
        let mut bench = Self::proposing(settings);
        bench.hear_bytes(encoded(|out| response(requested, granted).encode(out)));
        bench.work();
        bench.events();
        bench
    }

    /// Returns an established connecting side that has sent its first grant in an empty message.
    fn settled(settings: Settings, requested: u16, granted: u16) -> Self {
        let first_grant = requested.min(settings.receive_credit_max);
        let mut bench = Self::active(settings, requested, granted);
        bench.engine.prompt();
        assert_eq!(bench.grants(), [first_grant]);
        bench.complete_sends();
        bench
    }

    /// Returns an established accepting side; the peer has requested this number of credits.
    fn passive(settings: Settings, requested: u16) -> Self {
        let mut bench = Self::listening(settings);
        bench.hear_bytes(encoded(|out| request(requested).encode(out)));
        bench.work();
        bench.complete_sends();
        bench.events();
        bench
    }

    fn post(&mut self, work: WorkRequest) -> Did {
        match work {
            WorkRequest::Receive { id, length, count } => {
                self.receives.extend((0..count).map(|_| (id, length)));
                Did::Receives(count, length)
            }
            WorkRequest::Send {
                id,
                header,
                payload,
                invalidate,
            } => {
                self.sends.push_back(id);
                Did::Send([header.as_slice(), &payload].concat(), invalidate)
            }
            WorkRequest::Read { id, from, into } => {
                let length = into.len();
                self.reads.push_back((id, into));
                Did::Read(from, length)
            }
            WorkRequest::Write { id, data, to } => {
                self.writes.push_back(id);
                Did::Write(to, data.len())
            }
        }
    }

    /// Posts all work of the engine, and returns it.
    fn work(&mut self) -> Vec<Did> {
        let mut done = Vec::new();
        // An owner may skip idle engines, so this must not miss any work.
        while !self.engine.is_idle()
            && let Some(work) = self.engine.poll_work(self.now, self.room)
        {
            done.push(self.post(work));
        }
        done
    }

    /// Returns the Data Transfers that are sent now.
    fn sent(&mut self) -> Vec<DataTransfer> {
        let decode = |did| match did {
            Did::Send(bytes, _) => Some(DataTransfer::decode(&bytes).unwrap()),
            _ => None,
        };
        self.work().into_iter().filter_map(decode).collect()
    }

    /// Returns CreditsGranted of the Data Transfers that are sent now.
    fn grants(&mut self) -> Vec<u16> {
        let sent = self.sent();
        sent.iter().map(|header| header.credits_granted).collect()
    }

    fn send(&mut self, id: u64, length: usize) {
        let message = vec![id as u8; length];
        self.engine.send(MessageId(id), message, None).unwrap();
    }

    fn read(&mut self, id: u64, length: u32) {
        let into = BytesMut::zeroed(length as usize);
        let started = self
            .engine
            .read(TransferId(id), &descriptors(length), 0, into);
        started.unwrap();
    }

    fn write(&mut self, id: u64, length: u32) {
        let data = vec![id as u8; length as usize].into();
        let started = self
            .engine
            .write(TransferId(id), &descriptors(length), 0, data);
        started.unwrap();
    }

    fn complete(&mut self, completion: Completion) {
        self.engine.handle_completion(self.now, completion);
    }

    fn complete_sends(&mut self) {
        while let Some(id) = self.sends.pop_front() {
            self.complete(Completion::Sent { id });
        }
    }

    fn complete_read(&mut self) {
        let (id, buffer) = self.reads.pop_front().unwrap();
        self.complete(Completion::Read { id, buffer });
    }

    fn complete_write(&mut self) {
        let id = self.writes.pop_front().unwrap();
        self.complete(Completion::Written { id });
    }

    fn hear_bytes(&mut self, message: Vec<u8>) {
        self.hear_invalidating(message, None);
    }

    fn hear_invalidating(&mut self, message: Vec<u8>, invalidated: Option<Token>) {
        self.hear_in_two([Bytes::new(), message.into()], invalidated);
    }

    /// Delivers a message. `head` has its first bytes, if the provider delivers them separately, and is empty
    /// otherwise.
    fn hear_in_two(&mut self, [head, message]: [Bytes; 2], invalidated: Option<Token>) {
        let (id, receive) = self.receives.pop_front().expect("a receive is posted");
        let length = head.len() + message.len();
        assert!(length <= receive as usize, "the receive is too short");
        if !head.is_empty() {
            self.complete(Completion::Head(Inline::build(|out| out.put_slice(&head))));
        }
        self.complete(Completion::Received {
            id,
            message,
            invalidated,
        });
    }

    /// Delivers a Data Transfer of the peer with a payload of zeros.
    fn hear(&mut self, header: DataTransfer) {
        let mut message = encoded(|out| header.encode(out));
        message.resize(message.len() + header.data_length as usize, 0);
        self.hear_bytes(message);
    }

    /// Ends the RDMA connection: all posted work is flushed, then the reason is reported.
    fn disconnect(&mut self, how: Disconnect) {
        self.flush();
        self.complete(Completion::Disconnected(how));
    }

    fn flush(&mut self) {
        for (id, _) in std::mem::take(&mut self.receives) {
            self.complete(Completion::Flushed { id, buffer: None });
        }
        for id in std::mem::take(&mut self.sends) {
            self.complete(Completion::Flushed { id, buffer: None });
        }
        for (id, buffer) in std::mem::take(&mut self.reads) {
            let buffer = Some(buffer);
            self.complete(Completion::Flushed { id, buffer });
        }
        for id in std::mem::take(&mut self.writes) {
            self.complete(Completion::Flushed { id, buffer: None });
        }
    }

    fn wait(&mut self, duration: Duration) {
        self.now += duration;
        self.engine.handle_timeout(self.now);
    }

    /// Returns the time until the next timer of the engine.
    fn due(&self) -> Option<Duration> {
        let due = self.engine.poll_timeout()?;
        Some(due - self.now)
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.engine.poll_event()).collect()
    }

    /// Returns the events as short names, for tests of their order.
    fn story(&mut self) -> Vec<String> {
        let tell = |event| match event {
            Event::Negotiated(_) => "negotiated".into(),
            Event::Segment {
                payload, remaining, ..
            } => format!("segment {}+{remaining}", payload.len()),
            Event::MessageSent(id) => format!("sent {}", id.0),
            Event::TransferDone { id, completed, .. } => {
                let how = if completed { "done" } else { "abandoned" };
                format!("{how} {}", id.0)
            }
            Event::KeepaliveAnswered => "answered".into(),
            Event::Closed(error) => format!("closed: {error}"),
        };
        self.events().into_iter().map(tell).collect()
    }

    /// Asserts that the connection has ended with this error and has reported it.
    fn ended(&mut self, expected: impl Into<ConnectionError>) {
        let expected = expected.into();
        let last = self.events().pop();
        assert!(
            matches!(&last, Some(Event::Closed(error)) if *error == expected),
            "{last:?} is not {expected:?}"
        );
        assert_eq!(self.engine.error(), Some(&expected));
        assert_eq!(self.engine.poll_timeout(), None);
        assert_eq!(self.work(), []);
    }

    fn is_up(&self) -> bool {
        self.engine.negotiated().is_some()
    }

    /// Asserts that the connection has not ended.
    fn still_up(&mut self) {
        assert!(self.is_up(), "{:?}", self.engine.error());
    }
}

mod close;
mod credit_grant_timer;
mod credits;
mod first_grant;
mod initial_state;
mod keepalive;
mod negotiation;
mod receive;
mod send;
mod statistics;
mod transfer;
