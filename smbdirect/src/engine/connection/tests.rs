//! The engine alone, against a peer that is a script. The two of them together are in
//! `tests/pair`.

use bytes::BufMut;

use super::{super::config::Settings, *};
use crate::{
    engine::{GrantPolicy, Policy},
    rdma::work::RemoteAddress,
    wire::NegotiateRequest,
};

const SECOND: Duration = Duration::from_secs(1);
const INSTANT: Duration = Duration::from_nanos(1);
const IDLE: Duration = Duration::from_secs(120);
const ANSWER: Duration = Duration::from_secs(5);
const CREDIT_GRANT: Duration = Duration::from_secs(5);

/// An engine, the queue pair under it, and the script's clock.
struct Bench {
    engine: Connection,
    now: Instant,
    room: Room,
    receives: VecDeque<(WorkId, u32)>,
    sends: VecDeque<WorkId>,
    reads: VecDeque<(WorkId, BytesMut)>,
    writes: VecDeque<WorkId>,
}

/// A work request, as far as the script looks at it.
#[derive(Debug, PartialEq)]
enum Did {
    /// So many receives of so many bytes.
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
    }
}

/// Our own settings, with this SendCreditTarget and ReceiveCreditMax.
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

/// Ten credits each way, by either wording of the text.
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

/// An empty Data Transfer that grants.
fn grant(credits_granted: u16) -> DataTransfer {
    DataTransfer::empty(10, credits_granted, Flags::empty())
}

fn flagged(credits_granted: u16) -> DataTransfer {
    DataTransfer::empty(10, credits_granted, Flags::RESPONSE_REQUESTED)
}

/// A segment of `data_length` bytes.
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

    /// A connecting side whose request is out.
    fn proposing(settings: Settings) -> Self {
        let mut bench = Self::new(settings, Connection::active);
        bench.engine.handle_connected(limits());
        bench.work();
        bench.complete_sends();
        bench
    }

    /// An accepting side.
    fn listening(settings: Settings) -> Self {
        let mut bench = Self::new(settings, Connection::passive);
        bench.engine.handle_connected(limits());
        bench
    }

    /// An established connecting side: the peer asked for and gave so many credits.
    fn active(settings: Settings, requested: u16, granted: u16) -> Self {
        let mut bench = Self::proposing(settings);
        bench.hear_bytes(encoded(|out| response(requested, granted).encode(out)));
        bench.work();
        bench.events();
        bench
    }

    /// The same, with its first grant given by an empty message.
    fn settled(settings: Settings, requested: u16, granted: u16) -> Self {
        let first_grant = requested.min(settings.receive_credit_max);
        let mut bench = Self::active(settings, requested, granted);
        bench.engine.prompt();
        assert_eq!(bench.grants(), [first_grant]);
        bench.complete_sends();
        bench
    }

    /// An established accepting side: the peer asked for so many credits.
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

    /// All that the engine wants done now.
    fn work(&mut self) -> Vec<Did> {
        let mut done = Vec::new();
        // Who asks only engines that are not idle misses nothing.
        while !self.engine.is_idle()
            && let Some(work) = self.engine.poll_work(self.now, self.room)
        {
            done.push(self.post(work));
        }
        done
    }

    /// The Data Transfers that leave now.
    fn sent(&mut self) -> Vec<DataTransfer> {
        let decode = |did| match did {
            Did::Send(bytes, _) => Some(DataTransfer::decode(&bytes).unwrap()),
            _ => None,
        };
        self.work().into_iter().filter_map(decode).collect()
    }

    /// CreditsGranted of the Data Transfers that leave now.
    fn grants(&mut self) -> Vec<u16> {
        let sent = self.sent();
        sent.iter().map(|header| header.credits_granted).collect()
    }

    fn send(&mut self, id: u64, length: usize) {
        let message = vec![id as u8; length].into();
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

    /// What the provider has apart comes so; else the first of `pieces` is empty.
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

    /// The peer sends a Data Transfer, its payload all zeros.
    fn hear(&mut self, header: DataTransfer) {
        let mut message = encoded(|out| header.encode(out));
        message.resize(message.len() + header.data_length as usize, 0);
        self.hear_bytes(message);
    }

    /// The RDMA connection ends: everything comes back, then the reason.
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

    /// How long until the engine wants to be called.
    fn due(&self) -> Option<Duration> {
        let due = self.engine.poll_timeout()?;
        Some(due - self.now)
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.engine.poll_event()).collect()
    }

    /// Events by short names, for scripts in which their order counts.
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

    /// Asserts that the connection is over, and that it knows it.
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

    /// Asserts that the connection lives.
    fn still_up(&mut self) {
        assert!(self.is_up(), "{:?}", self.engine.error());
    }
}

mod negotiating {
    use super::*;

    //= SMBD-3.1.4.1-01 test
    //= SMBD-3.1.4.1-02 test
    //= SMBD-3.1.4.1-03 test
    //= SMBD-3.1.4.1-04 test
    //= SMBD-3.1.4.1-05 test
    //= SMBD-3.1.7.2-01 test
    //= SMBD-3.1.7.2-05 test
    //= SMBD-3.1.7.2-06 test
    #[test]
    fn both_roles_begin_with_nothing() {
        for role in [Connection::active, Connection::passive] {
            let mut bench = Bench::new(credits(20, 30), role);
            let before = Credits {
                send_credit_target: 20,
                receive_credit_max: 30,
                ..Credits::default()
            };
            assert_eq!(bench.engine.credits(), before);
            assert!(!bench.engine.is_ready() && bench.engine.negotiated().is_none());
            assert!(bench.engine.queued_messages() == 0 && bench.events().is_empty());
            let refused = bench.engine.send(MessageId(1), "x".into(), None);
            assert!(matches!(refused, Err(SendError::Connection(_))));
        }
    }

    //= SMBD-3.1.4.1-06 test
    //= SMBD-3.1.4.1-07 test
    //= SMBD-3.1.4.1-09 test
    //= SMBD-3.1.5.2-04 test
    #[test]
    fn the_initiator_speaks_once_it_is_connected() {
        let mut bench = Bench::new(Settings::windows(), Connection::active);
        assert_eq!(bench.work(), []);
        assert_eq!(bench.due(), Some(IDLE));
        bench.engine.handle_connected(limits());
        let proposal = NegotiateRequest {
            preferred_send_size: 1364,
            max_receive_size: 8192,
            max_fragmented_size: 1 << 20,
            ..request(255)
        };
        let request = encoded(|out| proposal.encode(out));
        assert_eq!(bench.work(), [Did::Send(request, None)]);
        assert_eq!(bench.work(), []);
    }

    //= SMBD-3.1.5.7-16 test
    //= SMBD-3.1.5.9-07 test
    //= SMBD-3.1.4.1-10 test
    #[test]
    fn the_initiator_posts_its_receives_before_it_is_established() {
        let mut bench = Bench::proposing(credits(10, 6));
        bench.hear_bytes(encoded(|out| response(10, 4).encode(out)));
        assert!(!bench.is_up() && bench.events().is_empty());
        assert_eq!(bench.work(), [Did::Receives(6, 1024)]);
        assert_eq!(bench.story(), ["negotiated"]);
        let held = bench.engine.credits();
        assert_eq!((held.send_credits, held.available, held.granted), (4, 6, 0));
        assert!(bench.engine.is_ready());
    }

    //= SMBD-3.1.7.1-01 test
    #[test]
    fn who_is_accepted_and_hung_up_on_in_one_breath_was_connected() {
        let mut bench = Bench::proposing(credits(10, 6));
        bench.hear_bytes(encoded(|out| response(10, 4).encode(out)));
        bench.complete(Completion::Disconnected(Disconnect::Remote));
        let closed = ConnectionError::Closed(Initiator::Remote);
        let story = ["negotiated".into(), format!("closed: {closed}")];
        assert_eq!(bench.story(), story);
        assert_eq!(bench.engine.error(), Some(&closed));
        assert_eq!(bench.work(), []);

        // An acceptor has said nothing yet, and there is nobody to say it to.
        let mut bench = Bench::listening(credits(10, 6));
        bench.hear_bytes(encoded(|out| request(3).encode(out)));
        bench.complete(Completion::Disconnected(Disconnect::Remote));
        assert_eq!(bench.story(), [format!("closed: {closed}")]);
    }

    //= SMBD-3.1.5.6-11 test
    //= SMBD-3.1.5.6-12 test
    //= SMBD-3.1.5.6-13 test
    //= SMBD-3.1.5.3-06 test
    //= SMBD-3.1.5.9-08 test
    #[test]
    fn the_acceptor_posts_its_receives_and_then_answers_and_says_nothing_else() {
        let mut bench = Bench::listening(credits(10, 255));
        bench.hear_bytes(encoded(|out| request(3).encode(out)));
        bench.engine.prompt();
        let done = bench.work();
        let answer = NegotiateResponse {
            max_read_write_size: 8 << 20,
            max_fragmented_size: 1 << 20,
            ..response(10, 3)
        };
        let answer = encoded(|out| answer.encode(out));
        assert_eq!(done, [Did::Receives(3, 1024), Did::Send(answer, None)]);
        assert_eq!(bench.story(), ["negotiated"]);
        assert_eq!(bench.due(), Some(IDLE));
        assert_eq!(bench.engine.credits().granted, 3);
        assert!(!bench.engine.is_ready(), "the peer has to grant first");
    }

    #[test]
    fn a_response_that_finds_no_room_waits() {
        let mut bench = Bench::listening(credits(10, 255));
        bench.room.sends = 0;
        bench.hear_bytes(encoded(|out| request(2).encode(out)));
        assert_eq!(bench.work(), [Did::Receives(2, 1024)]);
        bench.room.sends = 1;
        assert_eq!(bench.work().len(), 1);
        bench.still_up();
    }

    //= SMBD-3.1.5.9-05 test
    #[test]
    fn the_acceptor_grants_what_it_could_post() {
        let mut bench = Bench::listening(credits(10, 255));
        bench.hear_bytes(encoded(|out| request(10).encode(out)));
        for room in [1, 1] {
            bench.room.receives = room;
            let work = bench.engine.poll_work(bench.now, bench.room).unwrap();
            assert_eq!(bench.post(work), Did::Receives(1, 1024));
        }
        bench.room.receives = 0;
        let Did::Send(bytes, None) = bench.work().pop().unwrap() else {
            panic!("the response is due");
        };
        assert_eq!(
            NegotiateResponse::decode(&bytes).unwrap().credits_granted,
            2
        );
    }

    //= SMBD-3.1.5.6-10 test
    //= SMBD-3.1.5.3-03 test
    //= SMBD-3.1.5.3-02 test
    #[test]
    fn a_refusal_is_sent_before_the_connection_ends() {
        let no_room: fn(&mut Bench) -> NegotiateRequest = |bench| {
            bench.room.receives = 0;
            request(10)
        };
        let too_new: fn(&mut Bench) -> NegotiateRequest = |_| NegotiateRequest {
            min_version: 0x0101,
            max_version: 0xffff,
            ..request(10)
        };
        for (situation, status) in [
            (no_room, Status::INSUFFICIENT_RESOURCES),
            (too_new, Status::NOT_SUPPORTED),
        ] {
            let mut bench = Bench::listening(credits(10, 10));
            let request = situation(&mut bench);
            bench.hear_bytes(encoded(|out| request.encode(out)));
            let refusal = encoded(|out| NegotiateResponse::refusal(status).encode(out));
            assert_eq!(bench.work(), [Did::Send(refusal, None)]);
            assert!(bench.events().is_empty() && bench.work().is_empty());
            bench.complete_sends();
            bench.ended(ConnectionError::RefusedPeer(status));
        }
    }

    #[test]
    fn a_refusal_that_is_never_sent_ends_with_the_negotiation_timer() {
        let mut bench = Bench::listening(policy(|policy| policy.strict_windows_versions = true));
        let request = NegotiateRequest {
            max_version: 0x0101,
            ..request(10)
        };
        bench.hear_bytes(encoded(|out| request.encode(out)));
        assert_eq!(bench.work().len(), 1);
        bench.wait(ANSWER);
        bench.ended(ConnectionError::TimedOut(Expired::Negotiation));
    }

    //= SMBD-3.1.5.7-15 test
    #[test]
    fn an_initiator_that_can_post_no_receive_gives_up() {
        let mut bench = Bench::proposing(credits(10, 10));
        bench.hear_bytes(encoded(|out| response(10, 10).encode(out)));
        bench.room.receives = 0;
        assert_eq!(bench.work(), []);
        let error = bench.engine.error().cloned().unwrap();
        assert!(matches!(
            &error,
            ConnectionError::Provider(error) if error.kind == ProviderErrorKind::Local
        ));
        bench.ended(error);
    }

    //= SMBD-3.1.5.7-09 test
    //= SMBD-3.1.4.1-08 test
    #[test]
    fn the_peers_reason_reaches_the_upper_layer() {
        let mut bench = Bench::proposing(credits(10, 10));
        let status = Status(0xC000_0022);
        bench.hear_bytes(encoded(|out| {
            NegotiateResponse::refusal(status).encode(out);
        }));
        bench.ended(ConnectionError::Refused(status));
        let mut bench = Bench::new(credits(10, 10), Connection::active);
        let error = ProviderError::new(ProviderErrorKind::Refused, "nobody listens");
        bench.disconnect(Disconnect::Broken(error.clone()));
        bench.ended(error);
    }

    //= SMBD-3.1.6.1-01 test
    //= SMBD-3.1.7.2-02 test
    #[test]
    fn the_negotiation_timer_to_the_nanosecond() {
        for (role, timeout) in [
            (
                Connection::active as fn(Config, Instant) -> Connection,
                IDLE,
            ),
            (Connection::passive, ANSWER),
        ] {
            let mut bench = Bench::new(Settings::windows(), role);
            assert_eq!(bench.due(), Some(timeout));
            bench.wait(timeout - INSTANT);
            assert!(bench.engine.error().is_none());
            bench.wait(INSTANT);
            bench.ended(ConnectionError::TimedOut(Expired::Negotiation));
        }
    }

    //= SMBD-3.1.6.1-01 test
    #[test]
    fn negotiating_at_the_last_moment_stops_the_timer() {
        let mut bench = Bench::listening(Settings::windows());
        bench.wait(4 * SECOND);
        bench.hear_bytes(encoded(|out| request(10).encode(out)));
        bench.work();
        bench.complete_sends();
        bench.wait(2 * SECOND);
        bench.still_up();
    }

    //= SMBD-2.2-06 test
    //= SMBD-3.1.5.5-01 test
    #[test]
    fn a_message_out_of_turn_ends_the_connection() {
        let early = Violation::WithoutCredit;
        let mut bench = Bench::new(credits(10, 10), Connection::active);
        bench.hear_bytes(encoded(|out| response(10, 10).encode(out)));
        bench.ended(early);

        let mut bench = Bench::listening(credits(10, 10));
        let message = encoded(|out| request(10).encode(out));
        bench.hear_bytes(message.clone());
        bench.receives.push_back((WorkId(0), 512));
        bench.engine.statistics.receives_outstanding += 1;
        bench.hear_bytes(message);
        bench.ended(early);
    }

    //= SMBD-2.2-06 test
    //= SMBD-3.1.5.4-01 test
    #[test]
    fn a_second_negotiate_message_is_a_bad_data_transfer() {
        let mut bench = Bench::passive(credits(10, 10), 10);
        bench.hear_bytes(encoded(|out| request(10).encode(out)));
        assert!(matches!(
            bench.engine.error(),
            Some(ConnectionError::Violation(
                Violation::DataBeyondMessage { .. }
            ))
        ));
    }

    //= SMBD-3.1.5.5-01 test
    #[test]
    fn data_before_the_negotiation_is_refused_like_an_unknown_version() {
        let mut bench = Bench::listening(credits(10, 10));
        bench.hear_bytes(encoded(|out| segment(10, 100, 0).encode(out)));
        bench.work();
        bench.complete_sends();
        bench.ended(ConnectionError::RefusedPeer(Status::NOT_SUPPORTED));
    }

    //= SMBD-3.1.5.6-01 test
    //= SMBD-3.1.5.7-01 test
    #[test]
    fn a_truncated_negotiate_message_is_not_answered() {
        let mut bench = Bench::listening(credits(10, 10));
        bench.hear_bytes(encoded(|out| request(10).encode(out))[..19].to_vec());
        bench.ended(Violation::RequestTooShort { length: 19 });
        let mut bench = Bench::proposing(credits(10, 10));
        bench.hear_bytes(encoded(|out| response(10, 10).encode(out))[..31].to_vec());
        bench.ended(Violation::ResponseTooShort { length: 31 });
        let mut bench = Bench::listening(credits(10, 10));
        let mut padded = encoded(|out| request(10).encode(out));
        padded.resize(512, 0xff);
        bench.hear_bytes(padded);
        bench.work();
        bench.still_up();
    }

    #[test]
    fn closing_in_the_middle_ends_at_once() {
        let closed = || ConnectionError::Closed(Initiator::Local);
        let mut bench = Bench::new(credits(10, 10), Connection::active);
        bench.engine.close();
        bench.ended(closed());
        let mut bench = Bench::proposing(credits(10, 10));
        bench.engine.close();
        bench.ended(closed());
        let mut bench = Bench::listening(credits(10, 10));
        bench.hear_bytes(encoded(|out| request(10).encode(out)));
        bench.engine.close();
        bench.ended(closed());
    }

    #[test]
    fn a_prompt_before_the_negotiation_changes_no_timer() {
        let mut bench = Bench::new(credits(10, 10), Connection::active);
        bench.engine.prompt_keepalive(bench.now);
        assert_eq!(bench.due(), Some(IDLE), "the Negotiation Timer");
    }

    //= SMBD-3.1.4.7-01 test
    #[test]
    fn the_limits_can_be_asked_for() {
        let bench = Bench::active(Settings::windows(), 10, 10);
        let negotiated = bench.engine.negotiated().unwrap();
        assert_eq!(
            (negotiated.max_send_size, negotiated.max_receive_size),
            (1024, 1024)
        );
        assert_eq!(negotiated.max_fragmented_send_size, 131_072);
        assert_eq!(negotiated.max_read_write_size, 1 << 20);
        assert_eq!(negotiated.keepalive_interval, IDLE);
    }
}

mod first_grant {
    use super::*;

    #[test]
    fn rides_on_the_first_message_with_the_whole_batch() {
        let mut bench = Bench::active(credits(10, 10), 10, 10);
        assert_eq!(bench.due(), Some(FIRST_GRANT_DELAY));
        bench.send(1, 5);
        bench.send(2, 5);
        assert_eq!(bench.grants(), [10, 0]);
        assert_eq!(bench.due(), Some(IDLE));
    }

    #[test]
    fn comes_alone_after_a_moment() {
        let mut bench = Bench::active(credits(10, 10), 10, 10);
        bench.wait(FIRST_GRANT_DELAY - INSTANT);
        assert_eq!(bench.sent(), []);
        bench.wait(INSTANT);
        assert_eq!(bench.sent(), [grant(10)]);
        assert_eq!(bench.sent(), []);
    }

    #[test]
    fn rides_on_a_keepalive_too() {
        let mut bench = Bench::active(credits(10, 10), 10, 10);
        bench.engine.prompt_keepalive(bench.now);
        assert_eq!(bench.sent(), [flagged(10)]);
    }
}

mod sending {
    use super::*;

    //= SMBD-3.1.5.1-01 test
    //= SMBD-3.1.5.1-02 test
    //= SMBD-3.1.5.1-04 test
    //= SMBD-3.1.5.8-12 test
    //= SMBD-3.1.5.9-10 test
    #[test]
    fn without_a_credit_messages_wait_in_order() {
        let mut bench = Bench::passive(credits(10, 10), 10);
        for id in 1..=3 {
            bench.send(id, id as usize);
        }
        assert_eq!(bench.work(), []);
        assert_eq!(bench.engine.queued_messages(), 3);
        bench.hear(grant(3));
        let lengths: Vec<_> = bench.sent().iter().map(|sent| sent.data_length).collect();
        assert_eq!(lengths, [1, 2, 3]);
        bench.complete_sends();
        assert_eq!(bench.story(), ["sent 1", "sent 2", "sent 3"]);
    }

    //= SMBD-3.1.5.1-05 test
    //= SMBD-3.1.5.1-07 test
    #[test]
    fn a_message_takes_a_credit_and_carries_all_there_is_to_grant() {
        let mut bench = Bench::settled(credits(10, 10), 10, 10);
        for _ in 0..4 {
            bench.hear(segment(0, 1, 0));
        }
        assert_eq!(bench.sent(), [], "no message of its own for four of ten");
        let before = bench.engine.credits();
        assert_eq!((before.available, before.granted), (4, 6));
        bench.send(1, 5);
        bench.send(2, 5);
        assert_eq!(bench.grants(), [4, 0]);
        let after = bench.engine.credits();
        assert_eq!(after.send_credits, before.send_credits - 2);
        assert_eq!((after.available, after.granted), (0, 10));
    }

    /// What the wording of 2014 adds up on the blocked head, and today's sets as it leaves.
    //= SMBD-3.1.5.1-05 test
    //= SMBD-3.1.5.1-05b test
    #[test]
    fn what_there_is_to_grant_while_the_head_is_blocked_leaves_with_it() {
        for settings in both_wordings() {
            let mut bench = Bench::passive(settings, 10);
            bench.send(1, 5);
            bench.send(2, 5);
            for _ in 0..4 {
                bench.hear(segment(0, 1, 0));
                assert_eq!(
                    bench.work(),
                    [Did::Receives(1, 1024)],
                    "no credit to leave with"
                );
            }
            bench.hear(grant(5));
            assert_eq!(bench.grants(), [5, 0]);
            let held = bench.engine.credits();
            assert_eq!((held.available, held.granted), (0, 10));
        }
    }

    //= SMBD-3.1.5.1-06 test
    //= SMBD-3.1.5.1-06b test
    //= SMBD-3.1.5.9-03 test
    #[test]
    fn the_last_credit_waits_for_one_to_give() {
        for settings in both_wordings() {
            let mut bench = Bench::settled(settings, 10, 3);
            bench.room.receives = 0;
            bench.send(1, 5);
            bench.send(2, 5);
            assert_eq!(
                bench.grants(),
                [0],
                "the second of two credits needs no grant"
            );
            assert!(bench.engine.wants_receives());
            assert_eq!(bench.engine.queued_messages(), 1);
            bench.room.receives = 5;
            assert_eq!(bench.grants(), [1]);
            assert_eq!(bench.receives.len(), 11, "one beyond the target");
            assert!(!bench.engine.wants_receives());
        }
    }

    //= SMBD-3.1.5.1-06 test
    #[test]
    fn the_last_credit_does_not_ask_for_one_to_post_if_there_is_one_to_give() {
        let mut bench = Bench::settled(credits(10, 10), 10, 2);
        bench.hear(segment(0, 1, 0));
        bench.work();
        bench.send(1, 5);
        assert_eq!(bench.grants(), [1]);
        assert_eq!(bench.receives.len(), 10);
    }

    #[test]
    fn the_last_credit_as_linux_spends_it() {
        let weak = policy(|policy| policy.strict_last_credit = false);
        let mut bench = Bench::settled(weak, 2, 3);
        bench.room.receives = 0;
        for id in 1..=2 {
            bench.send(id, 5);
        }
        assert_eq!(bench.grants(), [0, 0]);
        bench.hear(grant(1));
        bench.send(3, 5);
        assert_eq!(bench.grants(), [0], "the peer still holds one");
        bench.hear(grant(1));
        bench.send(4, 5);
        assert_eq!(bench.sent(), [], "the peer could not answer");
        bench.room.receives = 5;
        assert_eq!(bench.grants(), [10]);
    }

    //= SMBD-3.1.5.1-08 test
    #[test]
    fn every_message_asks_for_the_target() {
        let mut bench = Bench::active(credits(77, 10), 10, 100);
        bench.send(1, 5000);
        bench.engine.prompt();
        bench.work();
        bench.hear(flagged(1));
        bench.send(2, 0);
        let sent = bench.sent();
        assert!(sent.iter().all(|header| header.credits_requested == 77));
    }

    //= SMBD-3.1.5.1-03 test
    //= SMBD-3.1.5.1-14 test
    //= SMBD-3.1.5.1-14b test
    #[test]
    fn a_prompt_is_one_message_and_none_if_one_leaves_anyway() {
        for settings in both_wordings() {
            let mut bench = Bench::settled(settings, 10, 10);
            bench.engine.prompt();
            bench.engine.prompt();
            assert_eq!(bench.sent(), [grant(0)]);
            bench.engine.prompt();
            bench.send(1, 5);
            assert_eq!(bench.sent(), [segment(0, 5, 0)]);
        }
    }

    #[test]
    fn a_blocked_prompt_does_not_multiply() {
        let mut bench = Bench::passive(credits(10, 10), 10);
        for _ in 0..3 {
            bench.engine.prompt();
            assert_eq!(bench.work(), []);
        }
        bench.hear(grant(5));
        assert_eq!(bench.sent().len(), 1);
    }

    //= SMBD-3.1.4.2-01 test
    //= SMBD-3.1.4.2-02 test
    //= SMBD-3.1.5.4-02 test
    #[test]
    fn the_longest_message_and_one_byte_more() {
        let mut bench = Bench::active(credits(10, 10), 10, 200);
        let too_large = vec![0; 131_073].into();
        let refused = bench.engine.send(MessageId(1), too_large, None);
        let (length, max) = (131_073, 131_072);
        assert_eq!(refused, Err(SendError::TooLarge { length, max }));
        assert_eq!(bench.work(), []);
        bench.send(2, 131_072);
        assert_eq!(bench.sent().len(), 131_072_usize.div_ceil(1000));
        bench.still_up();
    }

    //= SMBD-3.1.5.4-03 test
    //= SMBD-3.1.5.4-04 test
    //= SMBD-3.1.5.4-05 test
    //= SMBD-3.1.5.4-06 test
    //= SMBD-3.1.5.4-07 test
    //= SMBD-3.1.5.4-08 test
    //= SMBD-3.1.5.4-12 test
    //= SMBD-3.1.5.4-13 test
    //= SMBD-3.1.5.1-13 test
    #[test]
    fn segments_of_every_length() {
        for max_send_size in [128, 129, 200, 1364] {
            let payload = max_send_size as usize - 24;
            for length in [
                1,
                payload - 1,
                payload,
                payload + 1,
                2 * payload - 1,
                2 * payload,
                7 * payload + 3,
            ] {
                let mut bench = Bench::proposing(Settings {
                    max_send_size,
                    ..credits(10, 10)
                });
                let response = NegotiateResponse {
                    max_receive_size: 8192,
                    ..response(10, 100)
                };
                bench.hear_bytes(encoded(|out| response.encode(out)));
                bench.work();
                let content: Vec<u8> = (0..length).map(|at| at as u8).collect();
                let message = content.clone().into();
                bench.engine.send(MessageId(1), message, None).unwrap();
                let mut seen = Vec::new();
                for did in bench.work() {
                    let Did::Send(bytes, None) = did else {
                        panic!("{did:?}");
                    };
                    let header = DataTransfer::decode(&bytes).unwrap();
                    assert!(bytes.len() <= max_send_size as usize);
                    assert_eq!((header.data_offset, &bytes[20..24]), (24, &[0; 4][..]));
                    seen.extend_from_slice(&bytes[header.payload()]);
                    assert_eq!(header.remaining_data_length as usize, length - seen.len());
                    assert!(header.remaining_data_length == 0 || bytes.len() == payload + 24);
                }
                assert_eq!(seen, content, "{length} bytes by {max_send_size}");
            }
        }
    }

    //= SMBD-3.1.5.4-03 test
    #[test]
    fn an_empty_message_is_a_header_alone() {
        let mut bench = Bench::active(credits(10, 10), 10, 10);
        bench.send(1, 0);
        let done = bench.work();
        assert_eq!(
            done,
            [Did::Send(encoded(|out| grant(10).encode(out)), None)]
        );
        bench.complete_sends();
        assert_eq!(bench.story(), ["sent 1"]);
    }

    //= SMBD-3.1.4.2-01 test
    //= SMBD-3.1.5.4-09 test
    //= SMBD-3.1.5.1-11 test
    //= SMBD-3.1.5.1-12 test
    #[test]
    fn the_token_goes_with_one_segment_or_not_at_all() {
        for (length, can) in [(0, true), (1000, true), (2500, true), (2500, false)] {
            let mut bench = Bench::active(credits(10, 10), 10, 10);
            bench.engine.limits.send_with_invalidate = can;
            let token = Some(Token(0x1234));
            let message = vec![0; length].into();
            bench.engine.send(MessageId(1), message, token).unwrap();
            bench.send(2, 10);
            let tokens: Vec<_> = bench
                .work()
                .into_iter()
                .map(|did| match did {
                    Did::Send(_, token) => token,
                    other => panic!("{other:?}"),
                })
                .collect();
            let mut expected = vec![None; length.div_ceil(1000).max(1) + 1];
            expected[0] = token.filter(|_| can);
            assert_eq!(tokens, expected);
        }
    }

    //= SMBD-3.1.4.2-03 test
    //= SMBD-3.1.5.4-10 test
    //= SMBD-3.1.5.4-11 test
    #[test]
    fn nothing_comes_between_the_segments_of_a_message() {
        let mut bench = Bench::settled(credits(10, 10), 10, 3);
        bench.send(1, 5000);
        let mut sent = bench.sent();
        // A grant, a prompt and a keepalive fall due while the message is half out.
        bench.engine.prompt();
        bench.engine.prompt_keepalive(bench.now);
        sent.extend(bench.sent());
        for _ in 0..9 {
            bench.hear(segment(0, 1, 0));
            sent.extend(bench.sent());
        }
        bench.hear(flagged(5));
        sent.extend(bench.sent());
        let remaining: Vec<_> = sent.iter().map(|sent| sent.remaining_data_length).collect();
        assert_eq!(remaining, [4000, 3000, 2000, 1000, 0]);
        assert!(sent.iter().all(|sent| sent.data_length == 1000));
    }

    //= SMBD-3.1.4.2-04 test
    #[test]
    fn a_message_is_sent_when_its_last_segment_is() {
        let mut bench = Bench::active(credits(10, 10), 10, 10);
        bench.send(1, 2500);
        bench.work();
        let ids = std::mem::take(&mut bench.sends);
        assert_eq!(ids.len(), 3);
        for (at, id) in ids.into_iter().enumerate() {
            assert_eq!(bench.story(), Vec::<String>::new(), "after {at}");
            bench.complete(Completion::Sent { id });
        }
        assert_eq!(bench.story(), ["sent 1"]);
    }

    #[test]
    fn one_completion_tells_of_all_sends_before_it() {
        let mut bench = Bench::active(credits(10, 10), 10, 10);
        for id in 1..=3 {
            bench.send(id, 2500);
        }
        bench
            .engine
            .send(MessageId::UNWATCHED, Message::from("a"), None)
            .unwrap();
        bench.work();
        let ids = std::mem::take(&mut bench.sends);
        let outstanding = |bench: &Bench| bench.engine.statistics().work_outstanding;
        assert_eq!((ids.len(), outstanding(&bench)), (10, 10));
        for (at, left, story) in [
            (1, 8, &[][..]),
            (6, 3, &["sent 1", "sent 2"]),
            (9, 0, &["sent 3"]),
        ] {
            bench.complete(Completion::Sent { id: ids[at] });
            assert_eq!(bench.story(), story);
            assert_eq!(outstanding(&bench), left);
        }
    }

    #[test]
    fn a_full_send_queue_only_delays() {
        let mut bench = Bench::active(credits(10, 10), 10, 10);
        bench.send(1, 3000);
        bench.room.sends = 0;
        assert_eq!(bench.work(), []);
        bench.room.sends = 1;
        let remaining: Vec<_> = (0..3)
            .map(|_| {
                let work = bench.engine.poll_work(bench.now, bench.room).unwrap();
                let Did::Send(bytes, None) = bench.post(work) else {
                    panic!("a send was due");
                };
                DataTransfer::decode(&bytes).unwrap().remaining_data_length
            })
            .collect();
        assert_eq!(remaining, [2000, 1000, 0]);
    }

    #[test]
    fn readiness_is_a_credit_and_an_empty_queue() {
        let mut bench = Bench::passive(credits(10, 10), 10);
        assert!(!bench.engine.is_ready());
        bench.hear(grant(1));
        assert!(bench.engine.is_ready());
        bench.send(1, 5);
        assert!(!bench.engine.is_ready());
        bench.work();
        assert!(!bench.engine.is_ready());
    }
}

mod receiving {
    use super::*;

    //= SMBD-3.1.5.8-01 test
    //= SMBD-3.1.5.8-02 test
    //= SMBD-3.1.5.8-03 test
    //= SMBD-3.1.5.8-04 test
    //= SMBD-3.1.5.8-05 test
    #[test]
    fn each_rule_for_one_message() {
        let with = |change: fn(&mut DataTransfer)| {
            let mut header = segment(1, 4, 0);
            change(&mut header);
            let mut bytes = vec![0; 28];
            bytes[0..2].copy_from_slice(&header.credits_requested.to_le_bytes());
            bytes[2..4].copy_from_slice(&header.credits_granted.to_le_bytes());
            bytes[8..12].copy_from_slice(&header.remaining_data_length.to_le_bytes());
            bytes[12..16].copy_from_slice(&header.data_offset.to_le_bytes());
            bytes[16..20].copy_from_slice(&header.data_length.to_le_bytes());
            bytes
        };
        let beyond = |data_offset, data_length, length| Violation::DataBeyondMessage {
            data_offset,
            data_length,
            length,
        };
        let above = |data_length, remaining_data_length| Violation::AboveMaxFragmentedSize {
            data_length,
            remaining_data_length,
            max_fragmented_size: 131_072,
        };
        for (message, violation) in [
            (vec![], Violation::DataTransferTooShort { length: 0 }),
            (
                with(|_| {})[..19].to_vec(),
                Violation::DataTransferTooShort { length: 19 },
            ),
            (
                with(|header| header.credits_requested = 0),
                Violation::WithoutCreditsRequested,
            ),
            (
                with(|header| header.data_offset = 23),
                Violation::DataOffsetAlignment(23),
            ),
            (
                with(|header| header.data_offset = 25),
                Violation::DataOffsetAlignment(25),
            ),
            (with(|header| header.data_offset = 32), beyond(32, 4, 28)),
            (with(|header| header.data_length = 5), beyond(24, 5, 28)),
            (
                with(|header| header.data_length = u32::MAX),
                beyond(24, u32::MAX, 28),
            ),
            (
                with(|header| header.remaining_data_length = 131_069),
                above(4, 131_069),
            ),
            (
                with(|header| {
                    header.data_length = 0;
                    header.remaining_data_length = u32::MAX;
                }),
                above(0, u32::MAX),
            ),
            (
                with(|header| header.credits_granted = u16::MAX),
                Violation::TooManyCredits {
                    held: 10,
                    granted: u16::MAX,
                },
            ),
        ] {
            let settings = Settings {
                max_fragmented_receive_size: 131_072,
                ..credits(10, 10)
            };
            for message in in_pieces(&message) {
                let mut bench = Bench::settled(settings.clone(), 10, 11);
                bench.hear_in_two(message, None);
                bench.ended(violation);
            }
        }
    }

    /// A message as a provider may bring it: in one piece, or in two, cut anywhere in as many bytes
    /// as a head can have.
    fn in_pieces(message: &[u8]) -> Vec<[Bytes; 2]> {
        let bytes = Bytes::copy_from_slice(message);
        let cut = |at| [bytes.slice(..at), bytes.slice(at..)];
        let longest = bytes.len().min(Inline::CAPACITY);
        (0..=longest).map(cut).collect()
    }

    /// Not copied where it lies in one piece, wherever the head ends.
    #[test]
    fn a_payload_apart_from_its_header_is_taken_as_it_came() {
        for (data_offset, data_length) in [
            (24, 40),
            (24, 0),
            (24, 4),
            (16, 8),
            (32, 16),
            (16, 20),
            (0, 64),
        ] {
            let header = DataTransfer {
                data_offset: 24,
                ..segment(1, data_length, 0)
            };
            let mut bytes = encoded(|out| header.encode(out));
            bytes[12..16].copy_from_slice(&u32::to_le_bytes(data_offset));
            bytes.extend(100..140);
            let bytes = Bytes::from(bytes);
            let place = data_offset as usize..(data_offset + data_length) as usize;
            for pieces in in_pieces(&bytes) {
                let (split, behind) = (pieces[0].len(), pieces[1].as_ptr());
                let mut bench = Bench::settled(credits(10, 10), 10, 10);
                bench.hear_in_two(pieces, None);
                let payloads = bench.events().into_iter().map(|event| match event {
                    Event::Segment { payload, .. } => payload,
                    other => panic!("{other:?}"),
                });
                let payloads: Vec<_> = payloads.collect();
                let expected = (data_length > 0).then(|| bytes.slice(place.clone()));
                assert_eq!(payloads, Vec::from_iter(expected));
                let counted = bench.engine.statistics();
                assert_eq!(counted.bytes_received, u64::from(data_length));
                // Where the header is cut, or the payload begins in the head, the two are put together.
                let in_one = split == 0 || (20..=place.start).contains(&split);
                if let [payload] = &payloads[..] {
                    let came = behind.wrapping_add(place.start.wrapping_sub(split));
                    let shared = payload.as_ptr() == came;
                    assert_eq!(shared, in_one, "{place:?}, split at {split}");
                }
                bench.still_up();
            }
        }
    }

    #[test]
    fn a_negotiate_message_may_come_in_two_pieces() {
        for message in in_pieces(&encoded(|out| request(10).encode(out))) {
            let mut bench = Bench::listening(credits(10, 10));
            bench.hear_in_two(message, None);
            bench.work();
            bench.still_up();
        }
        for message in in_pieces(&encoded(|out| response(10, 10).encode(out))) {
            let mut bench = Bench::proposing(credits(10, 10));
            bench.hear_in_two(message, None);
            bench.work();
            bench.still_up();
        }
    }

    //= SMBD-3.1.5.8-16 test
    //= SMBD-3.1.5.8-18 test
    //= SMBD-3.1.5.8-19 test
    #[test]
    fn a_segment_that_does_not_continue_its_message() {
        for second in [
            grant(0),
            segment(0, 3, 0),
            segment(0, 5, 1),
            segment(0, 6, 0),
        ] {
            let mut bench = Bench::settled(credits(10, 10), 10, 10);
            bench.hear(segment(0, 3, 5));
            bench.hear(second);
            bench.ended(Violation::ReassemblyMismatch {
                data_length: second.data_length,
                remaining_data_length: second.remaining_data_length,
                expected: 5,
            });
        }
    }

    #[test]
    fn an_empty_message_between_segments_can_be_tolerated() {
        let tolerant = policy(|policy| policy.tolerate_empty_in_sequence = true);
        let mut bench = Bench::settled(tolerant, 10, 10);
        bench.hear(segment(0, 3, 5));
        bench.hear(grant(2));
        bench.hear(segment(0, 5, 0));
        assert_eq!(bench.story(), ["segment 3+5", "segment 5+0"]);
        assert_eq!(bench.engine.credits().send_credits, 11);
    }

    //= SMBD-3.1.5.8-13 test
    //= SMBD-3.1.5.8-14 test
    //= SMBD-3.1.5.8-17 test
    //= SMBD-3.1.5.8-21 test
    //= SMBD-3.1.5.8-22 test
    #[test]
    fn segments_of_any_size_and_nothing_for_an_empty_message() {
        let mut bench = Bench::settled(credits(10, 10), 10, 10);
        for header in [
            segment(0, 0, 9),
            segment(0, 1, 8),
            segment(0, 0, 8),
            segment(0, 8, 0),
            grant(1),
            segment(0, 2, 0),
        ] {
            bench.hear(header);
        }
        assert_eq!(
            bench.story(),
            [
                "segment 0+9",
                "segment 1+8",
                "segment 0+8",
                "segment 8+0",
                "segment 2+0"
            ]
        );
        let counted = bench.engine.statistics();
        assert_eq!(counted.messages_received, 2);
        assert_eq!((counted.segments_received, counted.empty_received), (3, 3));
        assert_eq!(counted.bytes_received, 11);
    }

    #[test]
    fn bytes_behind_the_payload_and_payloads_in_the_header_are_taken() {
        let mut bench = Bench::settled(credits(10, 10), 10, 10);
        let mut trailing = encoded(|out| segment(0, 4, 0).encode(out));
        trailing.extend(b"data and junk");
        bench.hear_bytes(trailing);
        let mut overlapping = encoded(|out| grant(0).encode(out));
        overlapping[12] = 8;
        overlapping[16] = 12;
        bench.hear_bytes(overlapping.clone());
        let payloads: Vec<_> = bench
            .events()
            .into_iter()
            .map(|event| match event {
                Event::Segment { payload, .. } => payload,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(payloads, [&b"data"[..], &overlapping[8..20]]);
        assert_eq!(bench.engine.statistics().payloads_in_header, 1);
    }

    //= SMBD-3.1.5.8-15 test
    //= SMBD-3.1.5.8-17 test
    #[test]
    fn an_invalidated_token_comes_with_the_last_segment() {
        let mut bench = Bench::settled(credits(10, 10), 10, 10);
        let message = |header: DataTransfer| {
            let mut bytes = encoded(|out| header.encode(out));
            bytes.resize(bytes.len() + header.data_length as usize, 0);
            bytes
        };
        bench.hear_invalidating(message(segment(0, 3, 4)), Some(Token(9)));
        bench.hear(segment(0, 4, 0));
        bench.hear_invalidating(message(grant(0)), Some(Token(10)));
        let tokens: Vec<_> = bench
            .events()
            .into_iter()
            .map(|event| match event {
                Event::Segment { invalidated, .. } => invalidated,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(tokens, [None, Some(Token(9)), Some(Token(10))]);
        assert_eq!(bench.engine.statistics().tokens_invalidated, 2);
    }

    //= SMBD-3.1.5.5-02 test
    #[test]
    fn every_message_restarts_the_idle_timer() {
        let mut bench = Bench::settled(credits(10, 10), 10, 10);
        bench.wait(100 * SECOND);
        assert_eq!(bench.due(), Some(20 * SECOND));
        bench.hear(segment(0, 1, 0));
        assert_eq!(bench.due(), Some(IDLE));
    }

    //= SMBD-3.1.5.5-02 test
    #[test]
    fn even_a_bad_message_is_a_sign_of_life() {
        let mut bench = Bench::settled(credits(10, 10), 10, 10);
        bench.engine.prompt_keepalive(bench.now);
        bench.work();
        bench.hear_bytes(vec![0; 19]);
        let story = bench.story();
        assert_eq!((story.len(), story[0].as_str()), (2, "answered"));
    }

    #[test]
    fn what_comes_after_the_end_is_ignored() {
        let mut bench = Bench::settled(credits(10, 10), 10, 10);
        bench.hear_bytes(vec![]);
        bench.ended(Violation::DataTransferTooShort { length: 0 });
        bench.hear(segment(0, 1, 0));
        bench.hear_bytes(vec![]);
        bench.wait(IDLE * 2);
        assert!(bench.events().is_empty() && bench.work().is_empty());
    }
}

mod credit_management {
    use super::*;

    //= SMBD-3.1.5.8-06 test
    //= SMBD-3.1.5.8-10 test
    #[test]
    fn a_message_uses_one_credit_and_brings_others() {
        let mut bench = Bench::settled(credits(10, 10), 10, 5);
        let before = bench.engine.credits();
        bench.hear(segment(7, 1, 0));
        let after = bench.engine.credits();
        assert_eq!(after.granted, before.granted - 1);
        assert_eq!(after.send_credits, before.send_credits + 7);
    }

    //= SMBD-3.1.5.8-11 test
    #[test]
    fn credits_fill_sixteen_bits_and_no_more() {
        let mut bench = Bench::settled(credits(10, 10), 10, 6);
        bench.hear(grant(u16::MAX - 5));
        assert_eq!(bench.engine.credits().send_credits, u16::MAX);
        bench.hear(grant(1));
        let (held, granted) = (u16::MAX, 1);
        bench.ended(Violation::TooManyCredits { held, granted });
    }

    //= SMBD-3.1.5.1-04 test
    #[test]
    fn a_message_without_a_credit_ends_the_connection() {
        let mut bench = Bench::settled(credits(10, 2), 2, 2);
        bench.room.receives = 0;
        bench.hear(segment(0, 1, 0));
        bench.hear(segment(0, 1, 0));
        bench.room.receives = 10;
        bench.room.sends = 0;
        bench.work();
        assert_eq!(bench.engine.credits().available, 2, "posted, not granted");
        bench.hear(segment(0, 1, 0));
        bench.ended(Violation::WithoutCredit);
    }

    //= SMBD-3.1.5.8-07 test
    //= SMBD-3.1.5.9-01 test
    //= SMBD-3.1.5.9-09 test
    #[test]
    fn an_idle_end_grants_when_three_quarters_are_used() {
        let mut bench = Bench::settled(credits(10, 80), 80, 10);
        // All of it goes into one message that is not complete.
        for used in 1..60 {
            bench.hear(DataTransfer {
                credits_requested: 80,
                ..segment(0, 1, 1000 - used)
            });
            assert_eq!(bench.sent(), [], "after {used}");
        }
        bench.hear(DataTransfer {
            credits_requested: 80,
            ..segment(0, 1, 940)
        });
        assert_eq!(bench.sent(), [grant(60)]);
    }

    //= SMBD-3.1.5.8-07 test
    #[test]
    fn the_eager_policy_answers_each_message_and_yet_falls_silent() {
        let mut bench = Bench::settled(
            policy(|policy| policy.grant_policy = GrantPolicy::Eager),
            10,
            10,
        );
        for _ in 0..3 {
            bench.hear(segment(1, 1, 0));
            assert_eq!(bench.sent(), [grant(1)]);
        }
        bench.hear(grant(1));
        assert_eq!(bench.sent(), []);
    }

    //= SMBD-3.1.5.8-07 test
    //= SMBD-3.1.5.8-07b test
    #[test]
    fn the_two_wordings_answer_differently_what_they_may_answer_differently() {
        // Towards a peer that wants fewer credits than it holds there are none to give.
        let sated = |message| DataTransfer {
            credits_requested: 5,
            ..message
        };
        for (revision, answers) in [
            (Revision::Current, [None, None, None]),
            (Revision::V2014, [Some(1), Some(0), None]),
        ] {
            let mut bench = Bench::settled(policy(|policy| policy.revision = revision), 10, 10);
            let mut answer = |message| {
                bench.hear(message);
                let sent = bench.sent();
                assert!(sent.iter().all(|answer| answer.data_length == 0));
                assert!(sent.len() <= 1, "{sent:?}");
                sent.first().map(|answer| answer.credits_granted)
            };
            let payload = [segment(1, 1, 0), sated(segment(0, 1, 0))].map(&mut answer);
            let empty = answer(sated(grant(1)));
            assert_eq!([payload[0], payload[1], empty], answers, "{revision:?}");
            assert_eq!(answer(sated(flagged(1))), Some(0), "{revision:?}");
        }
    }

    //= SMBD-3.1.5.8-08 test
    //= SMBD-3.1.5.9-02 test
    //= SMBD-3.1.5.9-06 test
    #[test]
    fn the_target_can_rise_and_fall() {
        let mut bench = Bench::settled(credits(10, 20), 10, 10);
        let asking = |credits_requested| DataTransfer {
            credits_requested,
            ..segment(1, 1, 0)
        };
        bench.hear(asking(15));
        assert_eq!(bench.grants(), [6]);
        bench.hear(asking(u16::MAX));
        assert_eq!(bench.grants(), [6], "up to our own limit");
        assert_eq!(bench.receives.len(), 20);
        bench.hear(asking(4));
        assert_eq!(bench.work(), []);
        assert_eq!(bench.engine.credits().receive_credits, 19);
        for _ in 0..15 {
            assert_eq!(bench.work(), []);
            bench.hear(asking(4));
        }
        assert_eq!(bench.engine.credits().granted, 4);
    }

    #[test]
    fn an_empty_message_is_not_answered_for_one_credit() {
        let mut bench = Bench::settled(credits(2, 2), 2, 5);
        bench.hear(DataTransfer {
            credits_requested: 2,
            ..grant(1)
        });
        assert_eq!(bench.sent(), []);
        let held = bench.engine.credits();
        assert_eq!((held.granted, held.available), (1, 1));
    }

    #[test]
    fn a_short_receive_queue_keeps_a_receive_for_the_last_credit() {
        let mut bench = Bench::new(credits(10, 10), Connection::active);
        bench.engine.handle_connected(Limits {
            max_receive_queue: 5,
            ..limits()
        });
        bench.work();
        bench.hear_bytes(encoded(|out| response(10, 2).encode(out)));
        bench.work();
        bench.send(1, 5);
        assert_eq!(bench.grants(), [3]);
        bench.send(2, 5);
        assert_eq!(bench.grants(), [1]);
        assert_eq!(bench.receives.len(), 4);
    }

    #[test]
    fn a_single_token_comes_back_as_two() {
        let mut bench = Bench::settled(credits(1, 1), 1, 2);
        bench.hear(DataTransfer {
            credits_requested: 1,
            ..grant(1)
        });
        assert_eq!(bench.grants(), [2]);
        bench.hear(DataTransfer {
            credits_requested: 1,
            ..grant(1)
        });
        assert_eq!(bench.grants(), Vec::<u16>::new());
        assert_eq!(bench.engine.credits().granted, 1);
    }
}

mod keeping_alive {
    use super::*;

    fn asleep() -> Bench {
        let mut bench = Bench::settled(credits(10, 10), 10, 10);
        bench.wait(IDLE - INSTANT);
        assert_eq!(bench.work(), []);
        bench.wait(INSTANT);
        bench
    }

    //= SMBD-3.1.6.2-02 test
    //= SMBD-3.1.5.1-09 test
    //= SMBD-3.1.5.1-10 test
    #[test]
    fn an_idle_end_asks_and_is_content_with_any_answer() {
        for answer in [grant(1), segment(0, 1, 0), flagged(1)] {
            let mut bench = asleep();
            assert_eq!(bench.sent(), [flagged(0)]);
            assert_eq!(bench.due(), Some(ANSWER));
            bench.wait(ANSWER - INSTANT);
            bench.hear(answer);
            assert_eq!(bench.story()[0], "answered");
            assert_eq!(bench.due(), Some(IDLE));
        }
    }

    //= SMBD-3.1.6.2-01 test
    #[test]
    fn no_answer_is_the_end() {
        let mut bench = asleep();
        assert_eq!(bench.sent(), [flagged(0)]);
        bench.wait(ANSWER - INSTANT);
        bench.still_up();
        bench.wait(INSTANT);
        bench.ended(ConnectionError::TimedOut(Expired::IdleConnection));
    }

    //= SMBD-3.1.6.2-02 test
    //= SMBD-3.1.5.1-09 test
    #[test]
    fn a_message_that_waits_carries_the_flag() {
        let mut bench = Bench::passive(credits(10, 10), 10);
        bench.hear(grant(1));
        bench.room.receives = 0;
        bench.send(1, 2000);
        assert_eq!(bench.sent(), []);
        bench.wait(IDLE);
        assert_eq!(bench.sent(), []);
        bench.room.receives = 10;
        let flags: Vec<_> = bench.sent().iter().map(|sent| sent.flags.bits()).collect();
        assert_eq!(flags, [1], "one credit, one segment");
        bench.hear(grant(5));
        let flags: Vec<_> = bench.sent().iter().map(|sent| sent.flags.bits()).collect();
        assert_eq!(flags, [0]);
    }

    //= SMBD-3.1.6.2-03 test
    #[test]
    fn a_keepalive_that_cannot_leave_has_a_deadline_too() {
        let mut bench = Bench::passive(credits(10, 10), 10);
        bench.wait(IDLE);
        assert_eq!(bench.work(), []);
        assert_eq!(bench.due(), Some(ANSWER));
        bench.wait(ANSWER);
        bench.ended(ConnectionError::TimedOut(Expired::IdleConnection));
    }

    //= SMBD-3.1.5.8-09 test
    //= SMBD-3.1.5.8-09b test
    #[test]
    fn a_keepalive_is_answered_without_its_flag_and_with_credits() {
        for settings in both_wordings() {
            let mut bench = Bench::settled(settings, 10, 10);
            bench.hear(flagged(0));
            assert_eq!(bench.sent(), [grant(1)]);
            assert_eq!(bench.due(), Some(IDLE));
            assert_eq!(bench.sent(), []);
            assert_eq!(bench.engine.statistics().keepalives_received, 1);
            assert_eq!(bench.engine.statistics().keepalives_sent, 0);
        }
    }

    //= SMBD-3.1.5.8-09b test
    #[test]
    fn a_message_that_leaves_anyway_is_answer_enough() {
        for settings in both_wordings() {
            let mut bench = Bench::settled(settings, 10, 10);
            bench.send(1, 5);
            bench.hear(flagged(0));
            assert_eq!(bench.sent(), [segment(1, 5, 0)]);
        }
    }

    //= SMBD-3.1.5.8-09 test
    #[test]
    fn the_literal_echo_carries_the_flag() {
        let literal = policy(|policy| policy.literal_keepalive_echo = true);
        let mut bench = Bench::settled(literal, 10, 10);
        bench.hear(flagged(0));
        assert_eq!(bench.due(), Some(ANSWER));
        assert_eq!(bench.sent(), [flagged(1)]);
        bench.wait(ANSWER);
        bench.ended(ConnectionError::TimedOut(Expired::IdleConnection));
    }

    #[test]
    fn the_owner_can_ask_at_any_time() {
        let mut bench = Bench::settled(credits(10, 10), 10, 10);
        bench.wait(SECOND);
        bench.engine.prompt_keepalive(bench.now);
        bench.engine.prompt_keepalive(bench.now);
        assert_eq!(bench.due(), Some(ANSWER));
        assert_eq!(bench.sent(), [flagged(0)]);
        bench.hear(grant(0));
        assert_eq!(bench.story(), ["answered"]);
        assert_eq!(bench.due(), Some(IDLE));
    }

    /// Behind a message, not in front of it; and once, however often it was wanted.
    #[test]
    fn the_last_segment_asks() {
        let mut bench = Bench::settled(credits(10, 10), 10, 10);
        bench.send(1, 3000);
        bench.engine.prompt_answer();
        bench.engine.prompt_answer();
        assert!(bench.engine.awaits_answer());
        assert_eq!(bench.due(), Some(IDLE));
        let asks = |header: &DataTransfer| header.flags == Flags::RESPONSE_REQUESTED;
        let sent: Vec<_> = bench.sent().iter().map(asks).collect();
        assert_eq!(sent, [false, false, true]);
        assert_eq!(bench.due(), Some(ANSWER));
        assert!(bench.engine.awaits_answer());
        bench.hear(grant(5));
        assert!(!bench.engine.awaits_answer());
        // With nothing queued it is the next message that asks.
        bench.engine.prompt_answer();
        assert_eq!(bench.sent(), []);
        bench.send(2, 10);
        assert_eq!(bench.sent().iter().map(asks).collect::<Vec<_>>(), [true]);
        bench.wait(ANSWER);
        bench.ended(ConnectionError::TimedOut(Expired::IdleConnection));
    }

    #[test]
    fn an_abort_takes_nothing_along() {
        let mut bench = Bench::settled(credits(10, 10), 10, 2);
        bench.send(1, 30_000);
        assert_eq!(bench.sent().len(), 1, "there are no more credits");
        bench.engine.abort();
        bench.ended(ConnectionError::Aborted);
        bench.engine.abort();
        bench.engine.close();
        bench.disconnect(Disconnect::Local);
        assert_eq!(bench.story(), [""; 0]);
    }

    #[test]
    fn a_sign_of_life_that_comes_before_the_question_could_leave_answers_it() {
        let mut bench = Bench::passive(credits(10, 10), 10);
        bench.engine.prompt_keepalive(bench.now);
        assert_eq!(bench.work(), [], "there is no credit to ask with");
        bench.hear(grant(5));
        assert_eq!(bench.story(), ["answered"]);
    }

    #[test]
    fn nothing_is_asked_after_the_end() {
        let mut bench = Bench::settled(credits(10, 10), 10, 10);
        bench.disconnect(Disconnect::Remote);
        bench.ended(ConnectionError::Closed(Initiator::Remote));
        bench.engine.prompt_keepalive(bench.now);
        bench.engine.prompt();
        assert_eq!(bench.due(), None);
        assert_eq!(bench.work(), []);
    }
}

mod waiting_for_credits {
    use super::*;

    //= SMBD-WIN-CGT-01 test
    #[test]
    fn the_timer_runs_only_while_a_message_waits_without_a_credit() {
        let mut bench = Bench::passive(credits(10, 10), 10);
        bench.engine.prompt();
        assert_eq!(bench.work(), []);
        assert_eq!(bench.due(), Some(IDLE), "no credit, and no message");
        bench.send(1, 5);
        bench.work();
        assert_eq!(bench.due(), Some(CREDIT_GRANT));
        bench.wait(SECOND);
        bench.work();
        assert_eq!(bench.due(), Some(4 * SECOND), "it is not put off");
        bench.hear(grant(2));
        assert_eq!(bench.due(), Some(IDLE));
        bench.work();
        bench.send(2, 5);
        bench.send(3, 5);
        bench.work();
        assert_eq!(bench.engine.queued_messages(), 1);
        assert_eq!(bench.due(), Some(CREDIT_GRANT));
        bench.wait(CREDIT_GRANT - INSTANT);
        bench.still_up();
        bench.wait(INSTANT);
        bench.ended(ConnectionError::TimedOut(Expired::SendCreditGrant));
    }

    //= SMBD-WIN-CGT-01 test
    #[test]
    fn without_the_timer_the_keepalive_decides() {
        let settings = Settings {
            credit_grant_timeout: None,
            ..credits(10, 10)
        };
        let mut bench = Bench::passive(settings, 10);
        bench.send(1, 5);
        bench.work();
        assert_eq!(bench.due(), Some(IDLE));
        bench.wait(IDLE);
        bench.work();
        bench.wait(ANSWER);
        bench.ended(ConnectionError::TimedOut(Expired::IdleConnection));
    }

    //= SMBD-WIN-CGT-01 test
    #[test]
    fn a_message_without_credits_does_not_stop_the_timer() {
        let mut bench = Bench::passive(credits(10, 10), 10);
        bench.send(1, 5);
        bench.work();
        bench.wait(3 * SECOND);
        bench.hear(segment(0, 1, 0));
        bench.work();
        assert_eq!(bench.due(), Some(2 * SECOND));
    }
}

mod ending {
    use super::*;

    #[test]
    fn messages_that_wait_are_dropped_with_the_connection() {
        let mut bench = Bench::settled(credits(10, 10), 10, 1);
        let message = Bytes::from(vec![0; 5000]);
        let sent = bench
            .engine
            .send(MessageId(1), message.clone().into(), None);
        sent.unwrap();
        bench.work();
        assert!(!message.is_unique(), "the rest of it waits");
        bench.disconnect(Disconnect::Remote);
        assert_eq!(bench.engine.queued_messages(), 0);
        assert!(message.is_unique(), "nobody holds on to it");
    }

    fn closed() -> ConnectionError {
        ConnectionError::Closed(Initiator::Local)
    }

    #[test]
    fn close_waits_for_what_was_asked() {
        let mut bench = Bench::active(credits(10, 10), 10, 10);
        bench.send(1, 2500);
        bench.read(2, 100);
        bench.write(3, 100);
        bench.engine.close();
        let refused = bench.engine.send(MessageId(4), "late".into(), None);
        assert_eq!(refused, Err(closed().into()));
        assert!(!bench.engine.is_ready());
        bench.work();
        bench.complete_sends();
        bench.complete_read();
        bench.still_up();
        bench.hear(segment(0, 1, 0));
        bench.complete_write();
        let end = format!("closed: {}", closed());
        let story = bench.story();
        assert_eq!(
            story,
            ["sent 1", "done 2", "segment 1+0", "done 3", end.as_str()]
        );
    }

    #[test]
    fn close_of_an_idle_connection_is_at_once() {
        let mut bench = Bench::active(credits(10, 10), 10, 10);
        bench.engine.close();
        bench.ended(closed());
        bench.engine.close();
        assert!(bench.events().is_empty());
    }

    #[test]
    fn close_does_not_wait_for_ever_for_credits() {
        let mut bench = Bench::passive(credits(10, 10), 10);
        bench.send(1, 5);
        bench.engine.close();
        bench.work();
        bench.wait(CREDIT_GRANT);
        bench.ended(ConnectionError::TimedOut(Expired::SendCreditGrant));
    }

    #[test]
    fn a_close_that_the_network_cut_short_is_not_in_good_order() {
        let mut bench = Bench::active(credits(10, 10), 10, 10);
        bench.send(1, 5);
        bench.work();
        bench.engine.close();
        let error = ProviderError::new(ProviderErrorKind::Reset, "gone");
        bench.disconnect(Disconnect::Broken(error.clone()));
        bench.ended(error);
    }

    //= SMBD-3.1.7.1-01 test
    #[test]
    fn each_way_to_lose_the_connection() {
        let broken = ProviderError::new(ProviderErrorKind::Reset, "gone");
        for (how, error) in [
            (Disconnect::Local, closed()),
            (
                Disconnect::Remote,
                ConnectionError::Closed(Initiator::Remote),
            ),
            (Disconnect::Broken(broken.clone()), broken.into()),
        ] {
            let mut bench = Bench::settled(credits(10, 10), 10, 10);
            bench.disconnect(how);
            bench.ended(error.clone());
            let refused = bench.engine.send(MessageId(1), "x".into(), None);
            assert_eq!(refused, Err(error.into()));
        }
    }

    #[test]
    fn the_first_reason_counts() {
        let mut bench = Bench::settled(credits(10, 10), 10, 10);
        bench.hear_bytes(vec![]);
        bench.disconnect(Disconnect::Local);
        bench.ended(Violation::DataTransferTooShort { length: 0 });
    }

    #[test]
    fn nothing_but_transfers_is_told_after_the_end() {
        let mut bench = Bench::settled(credits(10, 10), 10, 10);
        bench.send(1, 5);
        bench.read(2, 100);
        bench.work();
        bench.hear_bytes(vec![]);
        bench.complete_sends();
        bench.complete_read();
        let story = bench.story();
        assert_eq!(story.len(), 2);
        assert!(story[0].starts_with("closed"));
        assert_eq!(story[1], "done 2");
    }

    #[test]
    fn every_buffer_comes_back_and_only_once_the_reason_is_known() {
        let mut bench = Bench::settled(credits(10, 10), 10, 10);
        bench.engine.limits.max_transfer = 100;
        // One read that is done in part, one that is posted in part, one that waits; a write
        // that is posted and one that waits behind a message without room.
        bench.read(1, 250);
        bench.read(2, 50);
        bench.write(3, 150);
        bench.work();
        bench.complete_read();
        bench.work();
        bench.read(4, 70);
        bench.room.sends = 0;
        bench.write(5, 70);
        bench.work();
        bench.flush();
        assert!(bench.events().is_empty(), "nobody knows why yet");
        bench.complete(Completion::Disconnected(Disconnect::Remote));
        let mut lengths = Vec::new();
        for (at, event) in bench.events().into_iter().enumerate() {
            match event {
                Event::Closed(_) => assert_eq!(at, 0),
                Event::TransferDone {
                    id,
                    buffer,
                    completed: false,
                } => lengths.push((id.0, buffer.map(|buffer| buffer.len()))),
                other => panic!("{other:?}"),
            }
        }
        lengths.sort_unstable();
        assert_eq!(
            lengths,
            [
                (1, Some(250)),
                (2, Some(50)),
                (3, None),
                (4, Some(70)),
                (5, None)
            ]
        );
        let left = bench.engine.statistics();
        assert_eq!((left.receives_outstanding, left.work_outstanding), (0, 0));
    }

    #[test]
    fn posted_work_keeps_its_buffer_until_it_returns() {
        let mut bench = Bench::settled(credits(10, 10), 10, 10);
        bench.read(1, 100);
        bench.read(2, 100);
        bench.read(3, 100);
        bench.work();
        bench.hear_bytes(vec![]);
        assert_eq!(bench.story().len(), 1, "the first two are still posted");
        bench.complete_read();
        assert_eq!(bench.story(), ["done 1"]);
        bench.disconnect(Disconnect::Local);
        assert_eq!(bench.story(), ["abandoned 2", "abandoned 3"]);
    }

    #[test]
    fn outstanding_work_is_counted() {
        let mut bench = Bench::settled(credits(10, 10), 10, 10);
        bench.send(1, 1500);
        bench.read(2, 100);
        bench.write(3, 100);
        bench.work();
        let busy = bench.engine.statistics();
        assert_eq!((busy.receives_outstanding, busy.work_outstanding), (10, 4));
        bench.complete_sends();
        bench.complete_read();
        bench.complete_write();
        let idle = bench.engine.statistics();
        assert_eq!((idle.receives_outstanding, idle.work_outstanding), (10, 0));
        assert_eq!((idle.messages_sent, idle.segments_sent), (1, 2));
        assert_eq!((idle.reads, idle.bytes_read), (1, 100));
        assert_eq!((idle.writes, idle.bytes_written), (1, 100));
    }
}

mod transferring {
    use super::*;

    fn bench() -> Bench {
        Bench::settled(credits(10, 10), 10, 100)
    }

    #[test]
    fn a_message_leaves_behind_the_writes_asked_for_before_it() {
        let mut bench = bench();
        bench.engine.limits.max_transfer = 100;
        bench.send(1, 5);
        bench.write(2, 250);
        bench.send(3, 5);
        let kinds: Vec<_> = bench
            .work()
            .iter()
            .map(|did| match did {
                Did::Send(..) => "send",
                Did::Write(..) => "write",
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(kinds, ["send", "write", "write", "write", "send"]);
    }

    #[test]
    fn writes_hold_up_neither_a_sign_of_life_nor_credits() {
        let mut bench = bench();
        bench.write(1, 20 << 20);
        bench.send(2, 5);
        assert!(bench.sent().is_empty());
        bench.hear(flagged(0));
        let sent = bench.sent();
        assert_eq!(sent.len(), 1);
        assert_eq!((sent[0].data_length, sent[0].credits_granted), (0, 1));
        for _ in 0..8 {
            bench.hear(segment(0, 5, 0));
        }
        assert_eq!(bench.grants(), [8]);
        // The last of the twenty is posted when there is room for it.
        for _ in 0..12 {
            assert!(bench.sent().is_empty());
            bench.complete_write();
        }
        assert_eq!(bench.sent()[0].data_length, 5);
    }

    #[test]
    fn a_close_waits_for_progress_and_not_for_ever() {
        let mut bench = bench();
        bench.read(1, 10);
        bench.read(2, 10);
        bench.engine.close();
        assert_eq!(bench.work().len(), 2);
        let alive = |bench: &mut Bench| {
            bench.wait(IDLE - SECOND);
            bench.hear(flagged(1));
            assert_eq!(bench.sent().len(), 1);
            bench.complete_sends();
        };
        alive(&mut bench);
        bench.complete_read();
        bench.work();
        alive(&mut bench);
        assert_eq!(bench.engine.error(), None);
        bench.wait(SECOND);
        let expired = ConnectionError::TimedOut(Expired::Close);
        assert_eq!(bench.engine.error(), Some(&expired));
    }

    #[test]
    fn a_close_that_finds_all_posted_does_not_wait_for_ever_either() {
        for sends in [false, true] {
            let mut bench = bench();
            bench.read(1, 10);
            if sends {
                bench.send(2, 5);
            }
            bench.work();
            assert!(bench.engine.is_idle());
            bench.engine.close();
            bench.work();
            if sends {
                bench.now += SECOND;
                bench.complete_sends();
                bench.work();
            }
            bench.wait(IDLE - SECOND);
            bench.hear(flagged(1));
            assert_eq!(bench.sent().len(), 1);
            assert_eq!(bench.engine.error(), None);
            bench.wait(SECOND);
            let expired = ConnectionError::TimedOut(Expired::Close);
            assert_eq!(bench.engine.error(), Some(&expired));
        }
    }

    #[test]
    fn a_write_does_not_wait_for_a_message_without_credits() {
        let mut bench = Bench::passive(credits(10, 10), 10);
        bench.send(1, 5);
        bench.write(2, 100);
        assert_eq!(bench.work(), [Did::Write(remote(0), 100)]);
    }

    //= SMBD-3.1.4.6-05 test
    #[test]
    fn reads_keep_within_ord_and_leave_the_rest_alone() {
        let mut bench = bench();
        for id in 1..=3 {
            bench.read(id, 10);
        }
        bench.send(4, 5);
        bench.write(5, 5);
        let done = bench.work();
        let reads = |done: &[Did]| {
            let is_read = |did: &&Did| matches!(did, Did::Read(..));
            done.iter().filter(is_read).count()
        };
        assert_eq!((done.len(), reads(&done)), (4, 2));
        bench.complete_read();
        assert_eq!(reads(&bench.work()), 1);
        bench.complete_read();
        bench.complete_read();
        assert_eq!(bench.story(), ["done 1", "done 2", "done 3"]);
    }

    #[test]
    fn without_a_read_depth_there_are_no_reads() {
        let mut bench = bench();
        bench.engine.limits.max_outbound_reads = 0;
        let mut read = |length| {
            let into = BytesMut::zeroed(length);
            let refused = bench.engine.read(TransferId(1), &descriptors(10), 0, into);
            refused.map_err(|(fault, buffer)| (fault, buffer.len()))
        };
        assert_eq!(read(10), Err((TransferFault::Unsupported, 10)));
        assert_eq!(read(0), Ok(()));
    }

    //= SMBD-3.1.4.5-04 test
    //= SMBD-3.1.4.6-04 test
    #[test]
    fn no_piece_is_longer_than_either_limit() {
        for (max_transfer, pieces) in [(1 << 19, 4), (1 << 20, 2), (8 << 20, 2)] {
            let mut bench = bench();
            bench.engine.limits.max_transfer = max_transfer;
            bench.write(1, 2 << 20);
            assert_eq!(bench.work().len(), pieces);
        }
    }

    #[test]
    fn a_connection_that_is_being_closed_starts_no_transfer() {
        let mut bench = bench();
        bench.send(1, 1);
        bench.engine.close();
        let closed = || TransferFault::from(ConnectionError::Closed(Initiator::Local));
        let data = Bytes::from_static(&[1]);
        let refused = bench.engine.write(TransferId(2), &descriptors(10), 0, data);
        assert_eq!(refused, Err(closed()));
        let into = BytesMut::zeroed(1);
        let refused = bench.engine.read(TransferId(3), &descriptors(10), 0, into);
        assert_eq!(refused.map_err(|(fault, _)| fault), Err(closed()));
    }

    #[test]
    fn every_work_request_has_a_name_of_its_own_but_receives_in_a_row() {
        let mut bench = bench();
        for id in 1..=2 {
            bench.send(id, 1);
            bench.read(id + 10, 1);
            bench.write(id + 20, 1);
        }
        bench.work();
        let receives = bench.receives.iter().map(|(id, _)| *id);
        let reads = bench.reads.iter().map(|(id, _)| *id);
        let others = bench.sends.iter().chain(&bench.writes).copied();
        let all: Vec<_> = receives.chain(reads).chain(others).collect();
        let names: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!((all.len(), names.len()), (10 + 6, 1 + 6));
    }

    #[test]
    fn an_impossible_transfer_changes_nothing() {
        let mut bench = bench();
        let data = Bytes::from(vec![0; 11]);
        let refused = bench.engine.write(TransferId(1), &descriptors(10), 0, data);
        let (needed, described) = (11, 10);
        let expected = TransferFault::BeyondDescriptors { needed, described };
        assert_eq!(refused, Err(expected));
        assert_eq!(bench.work(), []);
        assert_eq!(bench.engine.statistics().bytes_written, 0);
    }
}

mod counting {
    use super::*;

    #[test]
    fn everything_is_counted_once() {
        let mut bench = Bench::settled(credits(10, 10), 10, 10);
        let mut expected = Statistics {
            credits_received: 10,
            credits_granted: 10,
            empty_sent: 1,
            receives_outstanding: 10,
            ..Statistics::default()
        };
        assert_eq!(bench.engine.statistics(), expected);

        bench.send(1, 1500);
        assert_eq!(bench.sent().len(), 2);
        expected.segments_sent += 2;
        expected.bytes_sent += 1500;
        expected.messages_sent += 1;
        expected.work_outstanding += 2;
        assert_eq!(bench.engine.statistics(), expected);
        bench.complete_sends();
        expected.work_outstanding -= 2;

        for (heard, header) in [
            segment(3, 5, 7),
            segment(0, 0, 7),
            segment(0, 7, 0),
            grant(2),
            flagged(1),
        ]
        .into_iter()
        .enumerate()
        {
            bench.hear(header);
            expected.receives_outstanding -= 1;
            expected.credits_received += u64::from(header.credits_granted);
            expected.bytes_received += u64::from(header.data_length);
            match heard {
                0 => expected.segments_received = 1,
                1 => expected.empty_received = 1,
                2 => (expected.segments_received, expected.messages_received) = (2, 1),
                3 => expected.empty_received = 2,
                _ => (expected.empty_received, expected.keepalives_received) = (3, 1),
            }
            assert_eq!(bench.engine.statistics(), expected, "{header:?}");
        }
        assert_eq!(bench.grants(), [5]);
        bench.complete_sends();
        expected.receives_outstanding += 5;
        expected.credits_granted += 5;
        expected.empty_sent += 1;
        assert_eq!(bench.engine.statistics(), expected);

        bench.engine.prompt_keepalive(bench.now);
        assert_eq!(bench.grants(), [0]);
        bench.complete_sends();
        expected.keepalives_sent += 1;
        expected.empty_sent += 1;
        assert_eq!(bench.engine.statistics(), expected);
    }

    #[test]
    fn an_acceptor_counts_the_credits_of_its_answer() {
        let mut bench = Bench::passive(credits(10, 8), 20);
        assert_eq!(bench.engine.statistics().credits_granted, 8);
        bench.hear(segment(5, 1, 0));
        assert_eq!(bench.engine.statistics().credits_received, 5);
    }

    #[test]
    fn a_payload_in_the_header_is_counted() {
        for (data_offset, data_length, counted) in
            [(0, 0, 0), (0, 1, 1), (8, 12, 1), (16, 4, 1), (24, 1, 0)]
        {
            let mut bench = Bench::settled(credits(10, 10), 10, 10);
            let header = DataTransfer {
                data_offset,
                data_length,
                ..grant(0)
            };
            // Written by hand: nobody who encodes puts a payload there.
            let mut bytes = encoded(|out| grant(0).encode(out));
            bytes[12..16].copy_from_slice(&header.data_offset.to_le_bytes());
            bytes[16..20].copy_from_slice(&header.data_length.to_le_bytes());
            bytes.resize(32, 0);
            bench.hear_bytes(bytes);
            let statistics = bench.engine.statistics();
            assert_eq!(statistics.payloads_in_header, counted, "{data_offset}");
        }
    }

    #[test]
    fn reads_and_writes_are_counted_by_their_operations() {
        let mut bench = Bench::settled(credits(10, 10), 10, 10);
        bench.engine.limits.max_transfer = 600;
        bench.read(1, 1000);
        bench.write(2, 1000);
        assert_eq!(bench.work().len(), 4);
        assert_eq!(bench.engine.statistics().work_outstanding, 4);
        for _ in 0..2 {
            bench.complete_read();
            bench.complete_write();
        }
        let statistics = bench.engine.statistics();
        let operations = (statistics.reads, statistics.writes);
        let bytes = (statistics.bytes_read, statistics.bytes_written);
        assert_eq!((operations, bytes), ((2, 2), (1000, 1000)));
        assert_eq!(statistics.work_outstanding, 0);
    }
}

mod beginning {
    use super::*;

    /// A connecting side to which `response` has come.
    fn answered(response: &NegotiateResponse) -> Bench {
        let mut bench = Bench::proposing(credits(10, 10));
        bench.hear_bytes(encoded(|out| response.encode(out)));
        bench.work();
        bench
    }

    fn both() -> [Bench; 2] {
        [
            answered(&response(10, 10)),
            Bench::passive(credits(10, 10), 10),
        ]
    }

    //= SMBD-3.1.4.1-07 test
    //= SMBD-3.1.7.2-04 test
    #[test]
    fn the_first_receive_has_512_bytes() {
        for role in [Connection::active, Connection::passive] {
            // Looked at as it is posted.
            Bench::new(credits(10, 10), role);
        }
    }

    /// Whatever was left over from the beginning would be said, or change what is said.
    //= SMBD-3.1.4.1-03 test
    //= SMBD-3.1.4.1-05 test
    //= SMBD-3.1.5.5-01 test
    //= SMBD-3.1.7.2-05 test
    //= SMBD-3.1.7.2-06 test
    #[test]
    fn nothing_to_say_and_the_first_message_is_plain() {
        let [mut active, mut passive] = both();
        for bench in [&mut active, &mut passive] {
            assert_eq!(bench.work(), []);
            assert_eq!(bench.engine.credits().send_credit_target, 10);
            let negotiated = bench.engine.negotiated().unwrap();
            assert_eq!(negotiated.max_fragmented_receive_size, 1 << 20);
            assert_eq!(negotiated.keepalive_interval, IDLE);
            bench.events();
        }
        passive.hear(grant(10));
        assert_eq!(passive.sent(), []);
        for bench in [&mut active, &mut passive] {
            bench.send(1, 5);
            let [message] = bench.sent()[..] else {
                panic!("one message");
            };
            assert_eq!(message.flags, Flags::empty());
            assert_eq!((message.data_length, message.remaining_data_length), (5, 0));
        }
        // Nothing of an older message, and no token.
        passive.hear(segment(0, 3, 0));
        let [
            Event::Segment {
                payload,
                remaining: 0,
                invalidated: None,
            },
        ] = &passive.events()[..]
        else {
            panic!("one message");
        };
        assert_eq!(payload[..], [0; 3]);
    }

    //= SMBD-3.1.5.7-03 test
    //= SMBD-3.1.5.7-07 test
    #[test]
    fn the_limits_of_a_response_to_the_byte() {
        let receives = |max_receive_size| NegotiateResponse {
            max_receive_size,
            ..response(10, 10)
        };
        let sends = |preferred_send_size| NegotiateResponse {
            preferred_send_size,
            ..response(10, 10)
        };
        let too_much = Violation::ResponsePreferredSendSize {
            preferred_send_size: 8193,
            max_receive_size: 8192,
        };
        for (response, violation) in [
            (receives(127), Some(Violation::ResponseMaxReceiveSize(127))),
            (receives(128), None),
            (receives(129), None),
            (sends(8191), None),
            (sends(8192), None),
            (sends(8193), Some(too_much)),
        ] {
            let bench = answered(&response);
            assert_eq!(bench.engine.negotiated().is_some(), violation.is_none());
            let error = violation.map(ConnectionError::from);
            assert_eq!(bench.engine.error(), error.as_ref());
        }
    }

    //= SMBD-3.1.5.7-10 test
    //= SMBD-3.1.5.7-14 test
    #[test]
    fn the_initiator_begins_with_what_it_was_given() {
        let bench = answered(&NegotiateResponse {
            max_fragmented_size: 140_000,
            ..response(8, 7)
        });
        let credits = bench.engine.credits();
        let given = (credits.send_credits, credits.receive_credit_target);
        assert_eq!(given, (7, 8));
        let negotiated = bench.engine.negotiated().unwrap();
        assert_eq!(negotiated.protocol, 0x0100);
        assert_eq!(negotiated.max_fragmented_send_size, 140_000);
    }

    //= SMBD-3.1.5.6-12 test
    //= SMBD-3.1.5.7-16 test
    #[test]
    fn both_roles_begin_to_wait_for_a_sign_of_life() {
        let [mut active, passive] = both();
        // The initiator's first credits leave by themselves after a moment.
        active.wait(active.due().unwrap());
        active.work();
        assert_eq!(active.due(), Some(IDLE - FIRST_GRANT_DELAY));
        assert_eq!(passive.due(), Some(IDLE));
    }

    //= SMBD-3.1.5.9-07 test
    #[test]
    fn every_receive_is_as_long_as_was_agreed() {
        for mut bench in both() {
            let lengths = |bench: &Bench| -> Vec<u32> {
                let receives = bench.receives.iter();
                receives.map(|(_, length)| *length).collect()
            };
            assert_eq!(lengths(&bench), [1024; 10]);
            // Those that take the place of used ones, too.
            bench.send(1, 1);
            bench.work();
            for _ in 0..5 {
                bench.hear(grant(1));
            }
            bench.work();
            assert_eq!(lengths(&bench), [1024; 10]);
        }
    }

    /// While the provider had no room, the time that the timer was set to went by.
    //= SMBD-3.1.5.1-10 test
    #[test]
    fn a_question_that_leaves_late_gives_the_answer_its_whole_time() {
        let mut bench = answered(&response(10, 10));
        bench.engine.prompt_keepalive(bench.now);
        bench.now += SECOND * 3;
        let [question] = bench.sent()[..] else {
            panic!("one message");
        };
        assert_eq!(question.flags, Flags::RESPONSE_REQUESTED);
        assert_eq!(bench.due(), Some(ANSWER));
    }
}
