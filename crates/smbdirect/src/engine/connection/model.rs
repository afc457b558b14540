//! A model checker (stateright) that explores every state of two connections, within bounds.
//!
//! The two engines are the real ones; only their environment is modelled. The clock stands still,
//! and a running timer may expire at any step. A Send arrives as soon as it is posted, which is the
//! hardest case for the posted receives, while the completions of Sends and receives are delayed
//! arbitrarily, in every order that a queue pair allows. [`Rule`] lists the properties that must
//! hold. [`Sabotage`] lists ways to break each of them, which shows that the checker detects it.
//!
//! `cargo test` explores small bounds. Larger bounds take minutes and some GiB of memory: `SMBDIRECT_MODEL=long
//! cargo test --release -p smbdirect --lib model -- --nocapture`.

use std::{
    collections::{VecDeque, hash_map::DefaultHasher},
    env, fmt,
    hash::{Hash, Hasher},
    sync::{Arc, LazyLock},
    time::Instant,
};

use bytes::Bytes;
use stateright::{Checker, HasDiscoveries, Model, Property};

use super::{Connection, Kind, Role, proved::Proved};
use crate::{
    engine::{
        Config, ConnectionError, Event, MessageId, Policy, Revision, Settings,
        keepalive_requested::KeepaliveRequested, timer::Timer, transfer_queue::TransferQueue,
    },
    rdma::work::{
        Completion, Disconnect, Inline, Limits, ProviderError, ProviderErrorKind, Room, WorkId,
        WorkRequest,
    },
    wire::{DataTransfer, NegotiateResponse},
};

mod rules;
mod state;
mod steps;

/// Payload of a full segment in bytes; MaxSendSize has its smallest legal value.
const SEGMENT_BYTES: usize = 128 - 24;
/// Number of Sends that the queue pair of each end holds.
const SEND_QUEUE_LENGTH: u8 = 2;
/// Number of receives that the queue pair of each end holds.
const RECEIVE_QUEUE_LENGTH: u8 = 8;
/// Largest number of consecutive messages without payload while neither upper layer does anything.
/// Each end may send one keepalive and one answer. Otherwise an empty message is answered only if
/// two or more credits can be granted. Each such answer leaves one credit less to grant, and each end
/// has three credits.
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
    /// A message that has begun does not wait without a credit for the receiver's upper layer.
    MessagesGoOn,
    /// No deadlock occurs with work pending, and every keepalive is answered.
    WorkGetsDone,
    /// Two idle ends eventually stop exchanging messages.
    IdleIsSilent,
    /// Every buffer is returned, the end is reported once, and nothing is posted after it.
    BuffersComeBack,
    /// Only the network, a timer or an upper layer ends a connection.
    EndsHaveReasons,
    /// An engine that reports itself idle has no work.
    IdleHasNoWork,
    /// Each step is one that `proofs/` proves safe and live.
    StepsAreProved,
}

/// A deliberate fault, and the rule that it breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sabotage {
    /// An end without credits believes that it has one.
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
    /// An end whose upper layer takes no messages posts no receive at all.
    StarveMessages,
    /// Queued messages are reordered.
    Overtake,
    /// The completion of a receive is handled twice.
    HearTwice,
    /// Grants are lost in transit.
    LoseGrants,
    /// The initiator's first grant is never sent alone.
    HoldFirstGrant,
    /// An end does not recognise a quiet message, which is empty and requests no response.
    AnswerQuietMessages,
    /// Keepalives are answered by keepalives, as the specification literally requires.
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
    /// A receive is posted that no rule asks for.
    PostForNothing,
}

impl Sabotage {
    const ALL: [(Self, Rule); 20] = [
        (Self::InventCredit, Rule::SendsHaveCredits),
        (Self::WithholdGrant, Rule::LastCreditGrants),
        (Self::SpendLastCredit, Rule::WorkGetsDone),
        (Self::PromiseReceive, Rule::CreditsHaveReceives),
        (Self::ForgetArrival, Rule::CreditsHaveReceives),
        (Self::Interrupt, Rule::SegmentsAreTogether),
        (Self::StarveMessages, Rule::MessagesGoOn),
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
        (Self::PostForNothing, Rule::StepsAreProved),
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
    /// The upper layer stops taking messages, so that the receive buffer is full.
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
    /// Number of timers that may expire.
    timers: u8,
    /// Number of times the network may break.
    cuts: u8,
    /// Number of ends that may be closed.
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
    /// Send credits that this end holds. The negotiate message uses one.
    held: u16,
    /// Credits that this end has granted and the peer has not used. The negotiate message uses one.
    promised: u16,
    negotiated: bool,
    /// Bytes of the current message that have not been sent.
    remaining: u32,
    /// Number of `Closed` events.
    closed: u8,
    /// The queue pair has reported its disconnect.
    over: bool,
    /// The receive buffer of the end is full.
    held_up: bool,
    /// The owner has not polled the engine for work since the last input.
    put_off: bool,
    /// The sabotage has been done.
    tampered: bool,
    /// The end as the proof sees it.
    proved: Proved,
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
    revisions.into_iter().map(|revision| Policy {
        revision,
        ..Policy::default()
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
        let short = scene(base.credits, [&[1, 1], &[1, 1]]);
        let single = scene([(1, 1); 2], [&[1, 1], &[1, 1]]);
        let scene = match sabotage {
            Sabotage::SpendLastCredit => Scene {
                policy: Policy {
                    strict_last_credit: false,
                    ..base.policy
                },
                holds: 2,
                ..short
            },
            Sabotage::LoseGrants => short,
            Sabotage::StarveMessages => Scene { holds: 1, ..base },
            Sabotage::EchoKeepalives | Sabotage::IgnoreKeepalives => Scene { timers: 1, ..base },
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
        // A scene with the default policy breaks no rule without sabotage.
        if scene.policy == Policy::default() {
            assert_eq!(explore(scene.clone(), None).1, None, "{sabotage:?}");
        }
        let (states, broken) = explore(scene, Some(sabotage));
        assert_eq!(broken, Some(rule), "{sabotage:?}");
        println!("{sabotage:?}: {rule:?} broken, found after {states} states");
    }
}
