//! A model checker (stateright) that explores every state of two connections, within bounds.
//!
//! The two engines are the real ones; only their environment is modelled. The clock stands still,
//! and a running timer may expire at any step. A Send arrives as soon as it is posted, which is the
//! hardest case for the posted receives, while the completions of Sends and receives are delayed
//! arbitrarily, in every order that a queue pair allows. [`Rule`] lists the properties that must
//! hold. [`Sabotage`] lists ways to break each of them, which shows that the checker detects it.
//!
//! `cargo test` explores small bounds. The larger ones take minutes and some GiB:
//! `SMBDIRECT_MODEL=long cargo test --release -p smbdirect --lib model -- --nocapture`.

use std::{
    collections::{VecDeque, hash_map::DefaultHasher},
    env, fmt,
    hash::{Hash, Hasher},
    sync::{Arc, LazyLock},
    time::Instant,
};

use bytes::Bytes;
use stateright::{Checker, HasDiscoveries, Model, Property};

use super::{Connection, Kind, Role};
use crate::{
    engine::{
        Config, ConnectionError, Event, GrantPolicy, Initiator, MessageId, Policy, Revision,
        Settings, keepalive::KeepaliveRequested, timer::Timer, transfers::Transfers,
    },
    rdma::work::{
        Completion, Disconnect, Inline, Limits, ProviderError, ProviderErrorKind, Room, WorkId,
        WorkRequest,
    },
    wire::{DataTransfer, NegotiateResponse},
};

/// Payload of a full segment in bytes; MaxSendSize has its smallest legal value.
const SEGMENT_BYTES: usize = 128 - 24;
/// Number of Sends that the queue pair of each end holds.
const SEND_QUEUE_LENGTH: u8 = 2;
/// Number of receives that the queue pair of each end holds.
const RECEIVE_QUEUE_LENGTH: u8 = 8;
/// Largest number of consecutive messages without payload while neither upper layer does anything.
/// Each end may send one keepalive and one answer. Otherwise an empty message is answered only if
/// two or more credits can be granted, so each answer leaves one credit less, and each end has
/// three.
const MAX_IDLE_MESSAGES: u8 = 10;

const RULES: &str = "every rule holds";

static NOW: LazyLock<Instant> = LazyLock::new(Instant::now);

/// A property of every state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Rule {
    /// No message is sent without a send credit.
    SendsHaveCredits,
    /// The last send credit is spent only on a message with a grant.
    LastCreditGrants,
    /// At least as many receives are posted as the peer holds credits.
    CreditsHaveReceives,
    /// No other message comes between the segments of a message.
    SegmentsAreTogether,
    /// Messages arrive complete, in order, exactly once.
    MessagesArrive,
    /// No deadlock occurs with work pending, and every keepalive is answered.
    WorkGetsDone,
    /// Two idle ends stop exchanging messages.
    IdleIsSilent,
    /// Every buffer is returned, the end is reported once, and nothing is posted after it.
    BuffersComeBack,
    /// Only the network, a timer or an upper layer ends a connection.
    EndsHaveReasons,
    /// An engine that reports itself idle has no work.
    IdleHasNoWork,
}

/// A deliberate fault, and the rule that it breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sabotage {
    /// An end without credits counts one.
    InventCredit,
    /// The message that spends the last credit is sent without its grant.
    WithholdGrant,
    /// Both ends use the Linux rule for the last credit.
    SpendLastCredit,
    /// An end grants a credit for a receive that it has not posted.
    PromiseReceive,
    /// An end counts a receive as free before its completion was handled.
    ForgetArrival,
    /// An empty message is sent between the segments of a message.
    Interrupt,
    /// Queued messages are reordered.
    Overtake,
    /// The completion of a receive is handled twice.
    HearTwice,
    /// Grants are lost in transit.
    LoseGrants,
    /// The initiator's first grant is never sent alone.
    HoldFirstGrant,
    /// An end does not recognise a quiet message.
    AnswerQuietMessages,
    /// Keepalives are answered by keepalives, as the specification says literally.
    EchoKeepalives,
    /// A keepalive is not answered.
    IgnoreKeepalives,
    /// A flushed receive is not returned.
    KeepBuffer,
    /// An end forgets a credit that it has granted.
    ForgetGrant,
    /// The Negotiate Response is lost.
    LoseResponse,
    /// A close drops the queued messages.
    ForgetQueue,
    /// An engine stays idle after an input that gives it work.
    StayIdle,
}

impl Sabotage {
    const ALL: [(Self, Rule); 18] = [
        (Self::InventCredit, Rule::SendsHaveCredits),
        (Self::WithholdGrant, Rule::LastCreditGrants),
        (Self::SpendLastCredit, Rule::WorkGetsDone),
        (Self::PromiseReceive, Rule::CreditsHaveReceives),
        (Self::ForgetArrival, Rule::CreditsHaveReceives),
        (Self::Interrupt, Rule::SegmentsAreTogether),
        (Self::Overtake, Rule::MessagesArrive),
        (Self::HearTwice, Rule::MessagesArrive),
        (Self::LoseGrants, Rule::WorkGetsDone),
        (Self::HoldFirstGrant, Rule::WorkGetsDone),
        (Self::AnswerQuietMessages, Rule::IdleIsSilent),
        (Self::EchoKeepalives, Rule::IdleIsSilent),
        (Self::IgnoreKeepalives, Rule::WorkGetsDone),
        (Self::KeepBuffer, Rule::BuffersComeBack),
        (Self::ForgetGrant, Rule::EndsHaveReasons),
        (Self::LoseResponse, Rule::WorkGetsDone),
        (Self::ForgetQueue, Rule::MessagesArrive),
        (Self::StayIdle, Rule::IdleHasNoWork),
    ];
}

/// A step of the checker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// The upper layer sends its next message.
    Send(usize),
    /// The oldest receive completion is handled.
    Receive(usize),
    /// The oldest send completion is handled.
    Sent(usize),
    /// A timer expires.
    Fire(usize, Timer),
    /// The upper layer closes the connection.
    Close(usize),
    /// The connection breaks.
    Cut,
    /// The upper layer stops taking messages, so that there is no room for receives.
    Hold(usize),
    /// The upper layer takes messages again.
    Release(usize),
    /// The owner polls the engine for work after a delay.
    Work(usize),
}

/// An entry of a completion queue.
#[derive(Clone, Debug, Hash)]
enum Arrival {
    Message(Bytes),
    End { in_good_order: bool, local: bool },
}

/// The configuration of the two ends, and the bounds of the exploration.
#[derive(Clone, Debug)]
struct Scene {
    /// SendCreditTarget and ReceiveCreditMax of each end.
    credits: [(u16, u16); 2],
    policy: Policy,
    /// The messages of each end, given as numbers of segments.
    messages: [Vec<u8>; 2],
    /// Number of timers that may expire, connections that may break, and ends that may be closed.
    timers: u8,
    cuts: u8,
    closes: u8,
    /// Number of times an upper layer may stop taking messages.
    holds: u8,
    /// Whether the owners may delay polling for work, and so handle several inputs before it.
    lazy: bool,
}

/// One end of the connection.
struct End {
    engine: Connection,
    /// Receives that are posted and unused.
    receives: u8,
    /// Sends whose completion has not been handled.
    sends: u8,
    completions: VecDeque<Arrival>,
    /// Messages that the upper layer has submitted.
    submitted: usize,
    /// Number of messages received from the peer, and bytes of the next one.
    heard: (usize, usize),
    /// Number of messages reported as sent.
    told: usize,
    /// Credits granted to this end so far; the negotiate message counts as one.
    held: u16,
    /// Unused credits granted by this end; the negotiate message counts as one.
    promised: u16,
    negotiated: bool,
    /// Bytes of the current message that have not been sent.
    remaining: u32,
    /// Number of `Closed` events.
    closed: u8,
    /// The queue pair has reported its disconnect.
    over: bool,
    /// The end has no room for receives.
    held_up: bool,
    /// The owner has yet to poll the engine for work.
    put_off: bool,
    /// The sabotage has been done.
    tampered: bool,
}

/// A state of both ends and the network.
struct State {
    scene: Arc<Scene>,
    ends: [End; 2],
    timers: u8,
    cuts: u8,
    closes: u8,
    holds: u8,
    /// The network is broken, and no message arrives any more.
    cut: bool,
    /// Number of messages without payload since the last input of an upper layer or timer.
    empties: u8,
    /// The first rule that was broken.
    broken: Option<Rule>,
}

struct World {
    scene: Scene,
    sabotage: Option<Sabotage>,
}

/// Returns the content of a message. Every byte depends on the sender, index and length.
fn content(end: usize, index: usize, segments: u8) -> Bytes {
    let length = (usize::from(segments) * SEGMENT_BYTES).saturating_sub(index % 2);
    (0..length)
        .map(|at| (end * 101 + index * 29 + at * 7 + at / 256) as u8)
        .collect()
}

impl End {
    fn new(role: fn(Config, Instant) -> Connection, credits: (u16, u16), policy: Policy) -> Self {
        let settings = Settings {
            send_credit_target: credits.0,
            receive_credit_max: credits.1,
            max_send_size: 128,
            max_receive_size: 128,
            policy,
            ..Settings::default()
        };
        let config = Config::new(settings).expect("the settings are legal");
        Self {
            engine: role(config, *NOW),
            receives: 0,
            sends: 0,
            completions: VecDeque::new(),
            submitted: 0,
            heard: (0, 0),
            told: 0,
            held: 1,
            promised: 1,
            negotiated: false,
            remaining: 0,
            closed: 0,
            over: false,
            held_up: false,
            put_off: false,
            tampered: false,
        }
    }

    fn is_open(&self) -> bool {
        self.closed == 0
    }

    /// Returns whether this end will act without its upper layer or a timer.
    fn is_busy(&self) -> bool {
        self.put_off
            || self.held_up
            || !self.completions.is_empty()
            || (self.sends > 0 && !self.over)
            || self.engine.timers.is_running(Timer::FirstGrant)
    }
}

impl Clone for End {
    fn clone(&self) -> Self {
        Self {
            engine: snapshot(&self.engine),
            completions: self.completions.clone(),
            ..*self
        }
    }
}

/// Copies an engine between two steps. Every field is named, so that a new one is not forgotten.
fn snapshot(engine: &Connection) -> Connection {
    let Connection {
        config,
        role,
        limits,
        send_credits,
        receive_credits,
        send_queue,
        send_immediate,
        head,
        reassembly,
        keepalive_requested,
        timers,
        transfers,
        in_flight,
        events,
        abandoned,
        next_work,
        next_sequence,
        closing,
        flushing,
        holds_first_grant,
        asks_behind_queue,
        idle,
        statistics,
        log,
    } = engine;
    assert!(transfers.is_idle() && events.is_empty() && abandoned.is_empty() && head.is_empty());
    Connection {
        config: config.clone(),
        role: role.clone(),
        limits: *limits,
        send_credits: *send_credits,
        receive_credits: receive_credits.clone(),
        send_queue: send_queue.clone(),
        send_immediate: *send_immediate,
        head: Inline::new(),
        reassembly: reassembly.clone(),
        keepalive_requested: *keepalive_requested,
        timers: timers.clone(),
        transfers: Transfers::default(),
        in_flight: in_flight.clone(),
        events: VecDeque::new(),
        abandoned: Vec::new(),
        next_work: *next_work,
        next_sequence: *next_sequence,
        closing: *closing,
        flushing: *flushing,
        holds_first_grant: *holds_first_grant,
        asks_behind_queue: *asks_behind_queue,
        idle: *idle,
        statistics: *statistics,
        log: log.clone(),
    }
}

/// Hashes the state of an engine that determines its future. Identifiers and counters do not,
/// except for outstanding work. The content of the send queue follows from the submitted messages
/// and the bytes that have not been sent.
fn hash_engine(engine: &Connection, state: &mut impl Hasher) {
    let Connection {
        config,
        role,
        limits: _,
        send_credits,
        receive_credits,
        send_queue,
        send_immediate,
        head: _,
        reassembly,
        keepalive_requested,
        timers,
        transfers: _,
        in_flight,
        events: _,
        abandoned: _,
        next_work: _,
        next_sequence: _,
        closing,
        flushing,
        holds_first_grant,
        asks_behind_queue,
        idle,
        statistics,
        log: _,
    } = engine;
    (config.send_credit_target, config.receive_credit_max).hash(state);
    std::mem::discriminant(role).hash(state);
    match role {
        Role::Active { request_sent } => request_sent.hash(state),
        Role::Refusing { sent, .. } => sent.hash(state),
        Role::Connecting
        | Role::Passive
        | Role::Posting { .. }
        | Role::Established(_)
        | Role::Closed(_) => {}
    }
    (send_credits, receive_credits, send_queue.len()).hash(state);
    (send_immediate, reassembly, keepalive_requested).hash(state);
    Timer::ALL.map(|timer| timers.is_running(timer)).hash(state);
    (in_flight, closing, flushing, holds_first_grant).hash(state);
    (asks_behind_queue, idle).hash(state);
    (statistics.receives_outstanding, statistics.work_outstanding).hash(state);
}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for end in &self.ends {
            hash_engine(&end.engine, state);
            (end.receives, end.sends, &end.completions).hash(state);
            (end.submitted, end.heard, end.told).hash(state);
            (end.held, end.promised, end.negotiated, end.remaining).hash(state);
            (end.closed, end.over, end.held_up, end.put_off, end.tampered).hash(state);
        }
        (self.timers, self.cuts, self.closes, self.holds, self.cut).hash(state);
        (self.empties, self.broken).hash(state);
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        let fingerprint = |state: &Self| {
            let mut hasher = DefaultHasher::new();
            state.hash(&mut hasher);
            hasher.finish()
        };
        fingerprint(self) == fingerprint(other)
    }
}

impl Clone for State {
    fn clone(&self) -> Self {
        Self {
            scene: Arc::clone(&self.scene),
            ends: self.ends.clone(),
            ..*self
        }
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for end in &self.ends {
            writeln!(
                f,
                "{:?}, queued {}, receives {}, sends {}, held {}, promised {}, {:?}, {:?}, heard {:?}, {:?}",
                end.engine.credits(),
                end.engine.queued_messages(),
                end.receives,
                end.sends,
                end.held,
                end.promised,
                end.engine.keepalive_requested,
                end.completions,
                end.heard,
                end.engine.error(),
            )?;
        }
        write!(f, "broken: {:?}", self.broken)
    }
}

// The steps of the model.
impl State {
    fn new(scene: &Scene, sabotage: Option<Sabotage>) -> Self {
        let [active, passive] = scene.credits;
        let mut state = Self {
            ends: [
                End::new(Connection::active, active, scene.policy),
                End::new(Connection::passive, passive, scene.policy),
            ],
            timers: scene.timers,
            cuts: scene.cuts,
            closes: scene.closes,
            holds: scene.holds,
            scene: Arc::new(scene.clone()),
            cut: false,
            empties: 0,
            broken: None,
        };
        for end in &mut state.ends {
            let _receive = end.engine.negotiate_receive();
            end.receives = 1;
            end.engine.handle_connected(Limits {
                max_send_queue: SEND_QUEUE_LENGTH.into(),
                max_receive_queue: RECEIVE_QUEUE_LENGTH.into(),
                max_outbound_reads: 0,
                max_inbound_reads: 0,
                max_transfer: 0,
                send_with_invalidate: false,
            });
        }
        state.work(0, sabotage);
        state
    }

    fn breaks(&mut self, rule: Rule) {
        self.broken.get_or_insert(rule);
    }

    fn act(&mut self, action: Action, sabotage: Option<Sabotage>) {
        match action {
            Action::Send(who) => self.send(who),
            Action::Receive(who) => self.receive(who, sabotage),
            Action::Sent(who) => {
                self.ends[who].sends -= 1;
                let id = Kind::Send.id(self.ends[who].engine.in_flight.next_done());
                self.complete(who, Completion::Sent { id });
            }
            Action::Fire(who, timer) => {
                if timer != Timer::FirstGrant {
                    self.timers -= 1;
                }
                self.empties = 0;
                let engine = &mut self.ends[who].engine;
                engine.timers.set(timer, *NOW);
                engine.handle_timeout(*NOW);
            }
            Action::Close(who) => {
                self.closes -= 1;
                self.ends[who].engine.close();
            }
            Action::Hold(who) => {
                self.holds -= 1;
                self.ends[who].held_up = true;
            }
            Action::Release(who) => self.ends[who].held_up = false,
            Action::Work(who) => self.ends[who].put_off = false,
            Action::Cut => {
                self.cuts -= 1;
                self.cut = true;
                for who in 0..2 {
                    self.end_of(who, false, false);
                }
            }
        }
        match action {
            Action::Send(who)
            | Action::Receive(who)
            | Action::Sent(who)
            | Action::Fire(who, _)
            | Action::Close(who)
                if self.scene.lazy =>
            {
                self.take_events(who);
                self.ends[who].put_off = true;
            }
            Action::Send(who)
            | Action::Receive(who)
            | Action::Sent(who)
            | Action::Fire(who, _)
            | Action::Close(who)
            | Action::Release(who)
            | Action::Work(who) => self.work(who, sabotage),
            Action::Hold(_) | Action::Cut => {}
        }
    }

    fn send(&mut self, who: usize) {
        self.empties = 0;
        let end = &mut self.ends[who];
        let index = end.submitted;
        end.submitted += 1;
        let message = content(who, index, self.scene.messages[who][index]);
        let id = MessageId(index as u64);
        let sent = end.engine.send(id, message.into(), None);
        assert_eq!(sent, Ok(()), "the action is only there if it can be sent");
    }

    fn complete(&mut self, who: usize, completion: Completion) {
        self.ends[who].engine.handle_completion(*NOW, completion);
    }

    fn receive(&mut self, who: usize, sabotage: Option<Sabotage>) {
        let arrival = self.ends[who].completions.pop_front();
        match arrival.expect("the action is only there if there is one") {
            Arrival::Message(message) => {
                let end = &mut self.ends[who];
                let is_established = end.engine.negotiated().is_some();
                end.held += granted(&message, is_established);
                let id = WorkId(Kind::Receive as u64);
                let received = |message| Completion::Received {
                    id,
                    message,
                    invalidated: None,
                };
                self.complete(who, received(message.clone()));
                let engine = &mut self.ends[who].engine;
                match sabotage {
                    Some(Sabotage::HearTwice) if is_established && message.len() > 24 => {
                        engine.receive_credits.post(1);
                        engine.receive_credits.grant(1);
                        engine.statistics.receives_outstanding += 1;
                        self.complete(who, received(message));
                    }
                    Some(Sabotage::AnswerQuietMessages) => {
                        // A credit was granted and used again by a message that is not quiet.
                        engine.receive_credits.post(1);
                        engine.receive_credits.grant(1);
                        engine.receive_credits.received(false);
                    }
                    Some(Sabotage::IgnoreKeepalives) => engine.send_immediate = false,
                    _ => {}
                }
            }
            Arrival::End {
                in_good_order,
                local,
            } => self.flush(who, in_good_order, local, sabotage),
        }
    }

    /// Ends the queue pair and flushes all posted work.
    fn flush(&mut self, who: usize, in_good_order: bool, local: bool, sabotage: Option<Sabotage>) {
        for kind in [Kind::Receive, Kind::Send] {
            let end = &mut self.ends[who];
            let posted = match kind {
                Kind::Receive => &mut end.receives,
                _ => &mut end.sends,
            };
            for index in 0..std::mem::take(posted) {
                if sabotage == Some(Sabotage::KeepBuffer) && kind == Kind::Receive && index == 0 {
                    continue;
                }
                let number = self.ends[who].engine.in_flight.next_done();
                let id = kind.id(number);
                self.complete(who, Completion::Flushed { id, buffer: None });
            }
        }
        self.ends[who].over = true;
        let how = match (local, in_good_order) {
            (true, _) => Disconnect::Local,
            (false, true) => Disconnect::Remote,
            (false, false) => {
                Disconnect::Broken(ProviderError::new(ProviderErrorKind::Reset, "cut"))
            }
        };
        self.complete(who, Completion::Disconnected(how));
    }

    fn take_events(&mut self, who: usize) {
        while let Some(event) = self.ends[who].engine.poll_event() {
            self.handle_event(who, event);
        }
    }

    /// Acts as the owner of an engine: takes its events and posts its work.
    fn work(&mut self, who: usize, sabotage: Option<Sabotage>) {
        loop {
            self.take_events(who);
            self.sabotage(who, sabotage);
            let end = &mut self.ends[who];
            let room = Room {
                sends: SEND_QUEUE_LENGTH.saturating_sub(end.sends).into(),
                receives: match end.held_up {
                    true => 0,
                    false => (RECEIVE_QUEUE_LENGTH - end.receives).into(),
                },
            };
            let tampered = sabotage.is_some_and(|sabotage| sabotage != Sabotage::StayIdle);
            let is_idle = end.engine.is_idle() && !tampered;
            let work = end.engine.poll_work(*NOW, room);
            if is_idle && work.is_some() {
                self.breaks(Rule::IdleHasNoWork);
            }
            let end = &mut self.ends[who];
            let Some(work) = work else {
                // Polling for work can end the negotiation or the connection.
                if end.engine.events.is_empty() {
                    break;
                }
                continue;
            };
            if end.closed > 0 {
                self.breaks(Rule::BuffersComeBack);
            }
            match work {
                WorkRequest::Receive { count, .. } => self.ends[who].receives += count as u8,
                WorkRequest::Send {
                    header, payload, ..
                } => {
                    let message = [header.as_slice(), &payload[..]].concat();
                    self.post(who, message, sabotage);
                }
                WorkRequest::Read { .. } | WorkRequest::Write { .. } => {
                    unreachable!("nobody asks for transfers here")
                }
            }
        }
        // Identifiers differ between paths and are ignored here.
        let engine = &mut self.ends[who].engine;
        (engine.next_work, engine.next_sequence) = (0, 0);
    }

    fn handle_event(&mut self, who: usize, event: Event) {
        match event {
            Event::Segment {
                payload, remaining, ..
            } => {
                let (index, at) = self.ends[who].heard;
                let peer = 1 - who;
                let expected = match self.scene.messages[peer].get(index) {
                    Some(&segments) if index < self.ends[peer].submitted => {
                        content(peer, index, segments)
                    }
                    _ => Bytes::new(),
                };
                let end = at + payload.len();
                if expected.get(at..end) != Some(&payload[..])
                    || expected.len() - end != remaining as usize
                {
                    self.breaks(Rule::MessagesArrive);
                }
                self.ends[who].heard = match remaining {
                    0 => (index + 1, 0),
                    _ => (index, end),
                };
            }
            Event::MessageSent(MessageId(id)) => {
                if id as usize != self.ends[who].told {
                    self.breaks(Rule::MessagesArrive);
                }
                self.ends[who].told += 1;
            }
            Event::Closed(error) => {
                self.ends[who].closed += 1;
                if self.ends[who].closed > 1 {
                    self.breaks(Rule::BuffersComeBack);
                }
                let has_reason = match &error {
                    ConnectionError::TimedOut(_) => self.timers < self.scene.timers,
                    ConnectionError::Closed(_) => self.closes < self.scene.closes,
                    _ => false,
                };
                // The other end sees an expired timer or a broken network as a broken connection.
                let is_news = matches!(error, ConnectionError::Provider(_))
                    && (self.timers < self.scene.timers || self.cut);
                if !has_reason && !is_news {
                    self.breaks(Rule::EndsHaveReasons);
                }
                let in_good_order = matches!(
                    error,
                    ConnectionError::Closed(_) | ConnectionError::RefusedPeer(_)
                );
                if !self.ends[who].over {
                    self.end_of(who, in_good_order, true);
                    self.end_of(1 - who, in_good_order, false);
                }
            }
            Event::Negotiated(_) | Event::KeepaliveAnswered => {}
            Event::TransferDone { .. } => unreachable!("nobody asks for transfers here"),
        }
    }

    /// Queues the disconnect after the messages that have arrived, once.
    fn end_of(&mut self, who: usize, in_good_order: bool, local: bool) {
        let end = &mut self.ends[who];
        let known = end
            .completions
            .iter()
            .any(|arrival| matches!(arrival, Arrival::End { .. }));
        if !known && !end.over {
            end.completions.push_back(Arrival::End {
                in_good_order,
                local,
            });
        }
    }

    fn post(&mut self, who: usize, mut message: Vec<u8>, sabotage: Option<Sabotage>) {
        let end = &mut self.ends[who];
        end.sends += 1;
        if end.negotiated && end.held == 1 && sabotage == Some(Sabotage::WithholdGrant) {
            message[2..4].fill(0);
        }
        let was_negotiated = end.negotiated;
        self.watch(who, &message, sabotage);
        if was_negotiated && sabotage == Some(Sabotage::LoseGrants) {
            message[2..4].fill(0);
        }
        if !was_negotiated && who == 1 && sabotage == Some(Sabotage::LoseResponse) {
            return;
        }
        let peer = &mut self.ends[1 - who];
        let ended = peer
            .completions
            .iter()
            .any(|arrival| matches!(arrival, Arrival::End { .. }));
        if self.cut || peer.over || ended {
            return;
        }
        let (Some(receives), Some(promised)) =
            (peer.receives.checked_sub(1), peer.promised.checked_sub(1))
        else {
            return self.breaks(Rule::CreditsHaveReceives);
        };
        (peer.receives, peer.promised) = (receives, promised);
        peer.completions.push_back(Arrival::Message(message.into()));
    }

    /// Checks a posted message against the rules.
    fn watch(&mut self, who: usize, message: &[u8], sabotage: Option<Sabotage>) {
        let end = &mut self.ends[who];
        let (is_data, held) = (end.negotiated, end.held);
        end.negotiated = true;
        end.held = held.saturating_sub(1);
        if held == 0 {
            self.breaks(Rule::SendsHaveCredits);
        }
        if !is_data {
            if who == 1 {
                let response = NegotiateResponse::decode(message).expect("we made it");
                self.ends[who].promised += response.credits_granted;
            }
            return;
        }
        let header = DataTransfer::decode(message).expect("we made it");
        let is_watched = sabotage != Some(Sabotage::SpendLastCredit);
        if is_watched && held == 1 && header.credits_granted == 0 {
            self.breaks(Rule::LastCreditGrants);
        }
        let end = &mut self.ends[who];
        end.promised += header.credits_granted;
        let is_backed = u16::from(end.receives) >= end.promised;
        let (expected, rest) = (end.remaining, header.remaining_data_length);
        end.remaining = rest;
        if !is_backed {
            self.breaks(Rule::CreditsHaveReceives);
        }
        if expected > 0 && header.data_length + rest != expected {
            self.breaks(Rule::SegmentsAreTogether);
        }
        self.empties = match header.data_length {
            0 => self.empties + 1,
            _ => 0,
        };
        if self.empties > MAX_IDLE_MESSAGES {
            self.breaks(Rule::IdleIsSilent);
        }
    }

    /// Breaks a rule deliberately, before the engine is polled for work.
    fn sabotage(&mut self, who: usize, sabotage: Option<Sabotage>) {
        let end = &mut self.ends[who];
        let engine = &mut end.engine;
        if engine.negotiated().is_none() {
            return;
        }
        let waits = !engine.send_queue.is_empty();
        match sabotage {
            Some(Sabotage::InventCredit) if waits && engine.send_credits == 0 => {
                engine.send_credits = 1;
            }
            Some(Sabotage::PromiseReceive) if waits && !end.tampered => {
                end.tampered = true;
                engine.receive_credits.post(1);
            }
            Some(Sabotage::ForgetArrival) if !end.completions.is_empty() && !end.tampered => {
                end.tampered = true;
                engine.receive_credits.post(1);
            }
            Some(Sabotage::ForgetGrant) if waits && !end.tampered => {
                end.tampered = engine.receive_credits.received(true);
            }
            Some(Sabotage::Interrupt) if end.remaining > 0 && engine.send_credits > 1 => {
                engine.send_credits -= 1;
                let work = engine.send_data_transfer(*NOW, 0, None);
                engine.statistics.work_outstanding += 1;
                if let WorkRequest::Send { header, .. } = work {
                    self.post(who, header.as_slice().to_vec(), sabotage);
                }
            }
            Some(Sabotage::Overtake) if engine.send_queue.len() == 2 && !end.tampered => {
                end.tampered = true;
                engine.send_queue.clear();
                for index in [1, 0] {
                    let message = content(who, index, self.scene.messages[who][index]);
                    let id = MessageId(index as u64);
                    engine.send_queue.push(id, message.into(), None, 0);
                }
            }
            Some(Sabotage::ForgetQueue) if engine.closing => {
                engine.send_queue.clear();
                engine.end_if_drained();
            }
            Some(Sabotage::StayIdle) => engine.idle = true,
            Some(Sabotage::HoldFirstGrant) => {
                engine.timers.stop(Timer::FirstGrant);
            }
            _ => {}
        }
    }

    /// Returns whether neither end will act without its upper layer or a timer.
    fn is_at_rest(&self) -> bool {
        (0..2).all(|who| !self.may_send(who)) && self.ends.iter().all(|end| !end.is_busy())
    }

    /// Returns whether the upper layer of `who` has a message that the connection would accept.
    fn may_send(&self, who: usize) -> bool {
        let end = &self.ends[who];
        end.submitted < self.scene.messages[who].len()
            && end.engine.negotiated().is_some()
            && !end.engine.closing
    }

    /// Returns the rule that is broken in a state in which neither end will act.
    fn rest_breaks(&self) -> Option<Rule> {
        if !self.is_at_rest() {
            return None;
        }
        if self.ends.iter().all(End::is_open) {
            let is_done = (0..2).all(|who| {
                let end = &self.ends[who];
                end.engine.negotiated().is_some()
                    && !end.engine.closing
                    && end.engine.send_queue.is_empty()
                    && end.engine.keepalive_requested == KeepaliveRequested::None
                    && !end.engine.send_immediate
                    && self.has_arrived(who)
            });
            return (!is_done).then_some(Rule::WorkGetsDone);
        }
        let all_back = self.ends.iter().all(|end| {
            let statistics = end.engine.statistics();
            end.over
                && end.closed == 1
                && statistics.receives_outstanding == 0
                && statistics.work_outstanding == 0
                && end.engine.send_queue.is_empty()
        });
        if !all_back {
            return Some(Rule::BuffersComeBack);
        }
        let all_arrived = (0..2).all(|who| !self.closed_in_order(who) || self.has_arrived(who));
        (!all_arrived).then_some(Rule::MessagesArrive)
    }

    /// Returns whether `who` was closed by its upper layer, and neither the network nor a timer
    /// prevented its remaining work.
    fn closed_in_order(&self, who: usize) -> bool {
        let error = self.ends[who].engine.error();
        let is_closed = matches!(error, Some(ConnectionError::Closed(Initiator::Local)));
        is_closed && !self.cut && self.timers == self.scene.timers
    }

    /// Returns whether the peer has every message that the upper layer of `who` has sent, and each
    /// was reported as sent.
    fn has_arrived(&self, who: usize) -> bool {
        let (end, peer) = (&self.ends[who], &self.ends[1 - who]);
        peer.heard == (end.submitted, 0) && end.told == end.submitted
    }
}

/// Returns CreditsGranted of a received message; a Negotiate Request has none.
fn granted(message: &[u8], is_established: bool) -> u16 {
    if is_established {
        return DataTransfer::decode(message).map_or(0, |header| header.credits_granted);
    }
    NegotiateResponse::decode(message).map_or(0, |response| response.credits_granted)
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(&self.scene, self.sabotage)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        // The exploration stops at the first broken rule.
        if state.broken.is_some() {
            return;
        }
        for who in 0..2 {
            let end = &state.ends[who];
            if state.may_send(who) {
                actions.push(Action::Send(who));
            }
            if !end.completions.is_empty() {
                actions.push(Action::Receive(who));
            }
            if end.sends > 0 && !end.over {
                actions.push(Action::Sent(who));
            }
            if state.closes > 0 && end.is_open() {
                actions.push(Action::Close(who));
            }
            if end.held_up {
                actions.push(Action::Release(who));
            } else if state.holds > 0 && end.engine.negotiated().is_some() {
                actions.push(Action::Hold(who));
            }
            if end.put_off {
                actions.push(Action::Work(who));
            }
            for timer in Timer::ALL {
                let may = timer == Timer::FirstGrant || state.timers > 0;
                if may && end.engine.timers.is_running(timer) {
                    actions.push(Action::Fire(who, timer));
                }
            }
        }
        if state.cuts > 0 {
            actions.push(Action::Cut);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        state.act(action, self.sabotage);
        if state.broken.is_none() {
            state.broken = state.rest_breaks();
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always(RULES, |_, state: &State| {
            state.broken.is_none()
        })]
    }
}

/// Explores every state, or finds a shortest path to a broken rule. Returns the number of states
/// and the broken rule.
fn explore(scene: Scene, sabotage: Option<Sabotage>) -> (usize, Option<Rule>) {
    let world = World { scene, sabotage };
    let checker = world.checker().threads(2).finish_when(HasDiscoveries::Any);
    // Depth first needs little memory; breadth first finds a shortest path to a broken rule.
    let (states, found) = if sabotage.is_some() {
        let checker = checker.spawn_bfs().join();
        (checker.unique_state_count(), checker.discovery(RULES))
    } else {
        let checker = checker.spawn_dfs().join();
        (checker.unique_state_count(), checker.discovery(RULES))
    };
    let broken = found.map(|path| {
        let state = path.last_state().clone();
        println!("{:?}\n{state:?}", path.into_actions());
        state.broken.expect("that is what was found")
    });
    (states, broken)
}

/// Returns every pair of SendCreditTarget and ReceiveCreditMax from 1 to 3, at both ends.
fn all_credits() -> impl Iterator<Item = [(u16, u16); 2]> {
    let one = || (1..=3).flat_map(|target| (1..=3).map(move |max| (target, max)));
    one().flat_map(move |active| one().map(move |passive| [active, passive]))
}

fn policies() -> impl Iterator<Item = Policy> {
    let revisions = [Revision::Current, Revision::V2014];
    let grants = [GrantPolicy::Hysteresis, GrantPolicy::Eager];
    revisions.into_iter().flat_map(move |revision| {
        grants.map(move |grant_policy| Policy {
            revision,
            grant_policy,
            ..Policy::default()
        })
    })
}

fn scene(credits: [(u16, u16); 2], messages: [&[u8]; 2]) -> Scene {
    Scene {
        credits,
        policy: Policy::default(),
        messages: messages.map(<[u8]>::to_vec),
        timers: 0,
        cuts: 0,
        closes: 0,
        holds: 0,
        lazy: false,
    }
}

/// Returns the scenes that every run explores.
fn small_scenes() -> Vec<Scene> {
    let mut scenes = Vec::new();
    for credits in all_credits() {
        for policy in policies() {
            scenes.push(Scene {
                policy,
                ..scene(credits, [&[4], &[3]])
            });
        }
        scenes.push(Scene {
            timers: 1,
            ..scene(credits, [&[2], &[1]])
        });
    }
    for number in 1..=3 {
        let base = scene([(number, number); 2], [&[2], &[1]]);
        scenes.extend([
            Scene {
                cuts: 1,
                closes: 1,
                timers: 1,
                ..base.clone()
            },
            Scene {
                holds: 2,
                ..base.clone()
            },
            Scene { lazy: true, ..base },
        ]);
    }
    scenes
}

/// Returns the scenes that a long run explores.
fn large_scenes() -> Vec<Scene> {
    let mut scenes = Vec::new();
    for credits in all_credits() {
        for policy in policies() {
            scenes.push(Scene {
                policy,
                ..scene(credits, [&[4, 1], &[2, 1]])
            });
            scenes.push(Scene {
                policy,
                timers: 1,
                ..scene(credits, [&[4], &[4]])
            });
        }
        scenes.push(Scene {
            timers: 1,
            cuts: 1,
            closes: 1,
            ..scene(credits, [&[3], &[2]])
        });
        scenes.push(Scene {
            timers: 2,
            ..scene(credits, [&[2], &[2]])
        });
        scenes.push(Scene {
            holds: 2,
            ..scene(credits, [&[4], &[2]])
        });
        scenes.push(Scene {
            lazy: true,
            ..scene(credits, [&[3], &[2]])
        });
    }
    scenes
}

//= SMBD-3.1.5.1-04 test
//= SMBD-3.1.5.1-06 test
//= SMBD-3.1.5.4-11 test
//= SMBD-3.1.5.9-10 test
#[test]
fn every_state_keeps_every_rule() {
    let is_long = env::var("SMBDIRECT_MODEL").is_ok_and(|value| value == "long");
    let scenes = if is_long {
        large_scenes()
    } else {
        small_scenes()
    };
    let (count, began) = (scenes.len(), Instant::now());
    let (mut states, mut largest) = (0, 0);
    for (number, scene) in scenes.into_iter().enumerate() {
        let description = format!("{scene:?}");
        let (explored, broken) = explore(scene, None);
        assert_eq!(broken, None, "{description}");
        states += explored;
        largest = largest.max(explored);
        if is_long && number % 50 == 49 {
            let elapsed = began.elapsed().as_secs();
            println!(
                "{} of {count} scenes, {states} states, {elapsed} s",
                number + 1
            );
        }
    }
    println!("{states} states in {count} scenes, {largest} in the largest; every rule holds");
}

#[test]
fn every_sabotage_is_detected() {
    for (sabotage, rule) in Sabotage::ALL {
        let base = scene([(2, 2); 2], [&[2, 2], &[2, 2]]);
        let single = scene([(1, 1); 2], [&[1, 1], &[1, 1]]);
        let scene = match sabotage {
            Sabotage::SpendLastCredit => Scene {
                policy: Policy {
                    strict_last_credit: false,
                    ..base.policy
                },
                holds: 2,
                ..base
            },
            Sabotage::EchoKeepalives => Scene {
                policy: Policy {
                    literal_keepalive_echo: true,
                    ..base.policy
                },
                timers: 1,
                ..base
            },
            Sabotage::IgnoreKeepalives => Scene { timers: 1, ..base },
            Sabotage::KeepBuffer => Scene { cuts: 1, ..base },
            Sabotage::HoldFirstGrant => scene(base.credits, [&[], &[1]]),
            Sabotage::LoseResponse => scene(base.credits, [&[1], &[]]),
            Sabotage::ForgetQueue => Scene {
                closes: 1,
                ..single
            },
            Sabotage::Overtake | Sabotage::HearTwice | Sabotage::AnswerQuietMessages => single,
            _ => base,
        };
        // Without sabotage the scene keeps every rule, except for those that its policy breaks.
        if scene.policy == Policy::default() {
            assert_eq!(explore(scene.clone(), None).1, None, "{sabotage:?}");
        }
        let (states, broken) = explore(scene, Some(sabotage));
        assert_eq!(broken, Some(rule), "{sabotage:?}");
        println!("{sabotage:?}: {rule:?} broken, found after {states} states");
    }
}
