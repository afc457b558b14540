//! Attributes each instant of a connection to one phase and one cause.
//!
//! What happens on a connection is a list of [`Mark`]s. A loss shows only later when it began, and a message that
//! waited for missing bytes is known late, so marks arrive out of order: the last ones are kept, sorted, and
//! settled when there are too many. Between two marks nothing changes, and the interval counts for one phase.
//!
//! An interval in which requests are in the server stays in [`Waits`] until one of them is answered. If the capture lacks
//! the answer, the interval counts as not seen.

use std::collections::BTreeSet;

use super::{
    account::Account,
    cause::{Cause, Phase},
    waits::Waits,
};
use crate::per_end::{PerEnd, Role};

/// Something that happened.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    /// Nanoseconds since 1970.
    pub(super) time: u64,
    pub(super) frame: u64,
    pub(super) what: What,
}

/// What happened.
#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    /// A packet.
    Packet {
        from: Role,
        has_data: bool,
        acknowledges: bool,
        /// Bytes since the mark of the last packet that were not sent before.
        bytes: u32,
    },
    /// The client has logged in.
    Ready,
    /// The first byte of a request.
    Began(Tag),
    /// A request is in another stage.
    Moved {
        id: u64,
        from: Stage,
        to: Stage,
        /// The time when the server had the request.
        asked: u64,
        tag: Tag,
    },
    /// The SMB Direct send credits of the client and the server.
    SendCredits(PerEnd<Option<u32>>),
    /// Whether the client has too few SMB2 credits for a request like the last, and asked for more.
    Smb2Credits { is_short: bool },
    /// The server has said that a request waits.
    Announced {
        id: u64,
        asked: u64,
        from: Tag,
        to: Tag,
    },
    /// A loss begins or ends; `is_black_hole` if large packets never arrive.
    Loss { begins: bool, is_black_hole: bool },
    /// Whether a sender has used up the window of its peer. The peer may be about to acknowledge.
    WindowFull(bool),
    /// The window of an end limits what a round trip carries to so many bytes, or no longer does.
    Limited { bytes: u64, begins: bool },
    /// The capture lacks packets directly before this.
    Gap,
    /// The capture lacks packets, so requests can be outstanding that it does not show.
    Unseen,
}

/// The place of a request. The last three end its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Request,
    Server,
    Data,
    Response,
    /// Between two RDMA operations of the request.
    Between,
    /// The answer was seen.
    Done,
    /// The answer cannot be seen.
    Hidden,
    /// The connection or the capture ended without its answer.
    Unanswered,
}

/// Kind and size of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag {
    pub(super) size: u32,
    pub(super) sort: Sort,
}

/// How a request counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    /// A READ or WRITE whose data is moved by RDMA, or is small.
    Data,
    /// A READ or WRITE whose data is in messages, for this reason.
    InMessages(Cause),
    Metadata,
    /// A request of a login.
    Login,
    /// The server has announced that it waits.
    Announced,
    /// The capture lacks what it asks for.
    Unseen,
}

impl Sort {
    const ALL: [Self; 8] = [
        Self::Data,
        Self::InMessages(Cause::Signing),
        Self::InMessages(Cause::Encryption),
        Self::InMessages(Cause::Threshold),
        Self::Metadata,
        Self::Login,
        Self::Announced,
        Self::Unseen,
    ];

    fn index(self) -> usize {
        Self::ALL
            .iter()
            .position(|&sort| sort == self)
            .unwrap_or_default()
    }
}

/// Known properties of the path and of the ends, for which no end is to blame.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RoundTrips {
    /// From the capture to the client and back, and to the server and back, in nanoseconds.
    pub(super) to: PerEnd<u64>,
    /// Whether any was measured.
    pub(super) is_known: bool,
    /// Whether they were measured by packets that only acknowledge. Those with an answer acknowledge late.
    pub(super) is_certain: bool,
}

impl RoundTrips {
    /// Returns the round trip between the ends, if the capture is at one of them.
    pub(super) fn longest(&self) -> u64 {
        let [client, server] = self.to.0;
        client.max(server)
    }
}

/// The state of a connection between two marks.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    marks: Vec<Mark>,
    now: u64,
    frame: u64,
    is_in_setup: bool,
    state: State,
    waits: Waits,
    /// A late acknowledgement that ended a wait, its sender, and the beginning of the wait.
    late: Option<LateAcknowledgement>,
    pub(super) account: Account,
}

/// An acknowledgement that came after [`DELAYED_ACKNOWLEDGEMENT`]. Data that its receiver sends immediately has waited
/// for it.
#[derive(Clone, Copy, Debug)]
struct LateAcknowledgement {
    from: Role,
    waited_since: u64,
    time: u64,
    /// The frames before and after the wait.
    frames: [u64; 2],
}

#[derive(Debug, Default)]
struct State {
    outstanding: i32,
    /// Requests in each stage before `Done`.
    stages: [i32; 5],
    /// Outstanding requests of each sort, in the order of [`Sort::ALL`], and small ones.
    sorts: [i32; Sort::ALL.len()],
    small: i32,
    /// The nanoseconds that a server needs for all requests if it is not slow.
    work: u64,
    /// The time when the server had each request, and its number.
    asked: BTreeSet<(u64, u64)>,
    last: Option<Tag>,
    /// The time when the last request was answered, if none is outstanding.
    done: u64,
    send_credits: PerEnd<Option<u32>>,
    lacks_smb2_credits: bool,
    /// Windows that limit, and the bytes of a round trip.
    limited: (i32, u64),
    /// Bytes that all outstanding requests move.
    bytes: u64,
    losses: i32,
    black_holes: i32,
    is_window_full: bool,
    /// Whether requests can be outstanding that the capture does not show.
    is_unseen: bool,
    /// Time in which the client asked for nothing, and the frame where that began.
    thought: u64,
    thought_since: u64,
}

/// Maximum number of marks of a connection that wait to be sorted.
const MAX_MARKS: usize = 1 << 16;
/// A round trip above this makes the path a cause.
pub(super) const LONG_ROUND_TRIP: u64 = 300_000;
/// A longer pause within a message is not the pace of the wire.
const LONG_PAUSE: u64 = 1_000_000;
/// No implementation acknowledges later than this unless it delays acknowledgements on purpose.
const DELAYED_ACKNOWLEDGEMENT: u64 = 30_000_000;
/// A sender that waited for an acknowledgement sends within this time after it.
const QUICK_SEND: u64 = 1_000_000;
/// A client needs this long from a response to the next request, if it has something to ask for.
const QUICK_THOUGHT: u64 = 100_000;
/// A longer pause between requests is not a slow copy, but no copy.
const IDLE: u64 = 1_000_000_000;
/// A server that is not slow answers within this time, and a byte more in each [`QUICK_BYTE`], as one with a SATA SSD
/// does.
const QUICK_ANSWER: u64 = 1_000_000;
const QUICK_BYTE: u64 = 2;
/// Requests for fewer bytes cost more than their data.
const SMALL_BYTES: u32 = 32 << 10;
/// Processors move signed data, or data in messages, with at least 250 MB/s, in nanoseconds a byte.
const MESSAGE_BYTE: u64 = 4;

impl Timeline {
    /// Creates the timeline of a connection. Its beginning is setup, if the capture has it; otherwise requests can be
    /// outstanding.
    pub(super) fn new(is_in_setup: bool) -> Self {
        let mut timeline = Self {
            is_in_setup,
            ..Self::default()
        };
        timeline.state.is_unseen = !is_in_setup;
        timeline
    }

    /// Adds what happened. Settles old marks if there are too many.
    pub(super) fn push(&mut self, mark: Mark, round_trips: RoundTrips) {
        self.marks.push(mark);
        if self.marks.len() >= MAX_MARKS {
            self.settle(MAX_MARKS / 2, round_trips);
        }
    }

    /// Returns the number of marks that wait.
    pub(super) fn waiting(&self) -> usize {
        self.marks.len()
    }

    /// Settles this many of the oldest marks.
    pub(super) fn settle(&mut self, count: usize, round_trips: RoundTrips) {
        // Of marks at the same time, a gap is before the packet after it.
        self.marks
            .sort_by_key(|mark| (mark.time, !matches!(mark.what, What::Gap)));
        let count = count.min(self.marks.len());
        let mut marks = std::mem::take(&mut self.marks);
        for mark in marks.drain(..count) {
            self.advance(&mark, round_trips);
        }
        self.marks = marks;
    }

    /// Settles all marks at the end of the connection.
    pub(super) fn finish(&mut self, round_trips: RoundTrips) {
        self.settle(usize::MAX, round_trips);
        self.end_thought();
        self.waits.end(0, Phase::Unseen, None, &mut self.account);
    }

    fn advance(&mut self, mark: &Mark, round_trips: RoundTrips) {
        if self.now == 0 {
            (self.now, self.state.done) = (mark.time, mark.time);
            self.state.thought_since = mark.frame;
        }
        if mark.time > self.now {
            self.account
                .outstanding(self.state.outstanding, mark.time - self.now);
            self.attribute(mark, round_trips);
            self.now = mark.time;
        }
        self.frame = mark.frame;
        if let What::Packet { bytes, .. } = mark.what {
            self.account.packet(mark.time, bytes);
        }
        // A login of which something is not seen may have ended.
        if matches!(mark.what, What::Ready | What::Unseen) {
            self.is_in_setup = false;
        }
        self.waited_for_acknowledgement(mark, round_trips);
        if self.state.apply(mark) {
            self.end_thought();
        }
        if let What::Moved { to, asked, .. } = mark.what {
            self.ends(to, asked);
        }
    }

    /// Counts the time of a request in the server when its life ends.
    fn ends(&mut self, how: Stage, asked: u64) {
        let account = &mut self.account;
        match how {
            Stage::Done => self.waits.answered(asked, account),
            Stage::Unanswered if self.now.saturating_sub(asked) >= IDLE => {
                let cause = Some(Cause::NoAnswer);
                self.waits.end(asked, Phase::Server, cause, account);
            }
            Stage::Hidden | Stage::Unanswered => {}
            _ => return,
        }
        if self.state.outstanding <= 0 {
            self.waits.end(0, Phase::Unseen, None, account);
        }
    }

    /// Decides about a late acknowledgement, by what follows it.
    fn waited_for_acknowledgement(&mut self, mark: &Mark, round_trips: RoundTrips) {
        let What::Packet { from, has_data, .. } = mark.what else {
            return;
        };
        let Some(late) = self.late.filter(|late| late.time < mark.time) else {
            return;
        };
        self.late = None;
        if has_data
            && from != late.from
            && mark.time - late.time <= QUICK_SEND.saturating_add(round_trips.to[from])
        {
            let (phase, cause) = (Phase::DelayedAcknowledgement, Cause::DelayedAcknowledgement);
            if self.state.outstanding > 0 {
                self.waits
                    .turn([late.waited_since, late.time], (phase, cause));
            } else {
                // The client had a request, and did not think.
                let waited = self.state.thought.min(late.time - late.waited_since);
                self.state.thought -= waited;
                self.account.add(phase, Some(cause), waited, late.frames);
            }
        }
    }

    /// Attributes the time from now to the next mark.
    fn attribute(&mut self, next: &Mark, round_trips: RoundTrips) {
        let state = &self.state;
        let is_gap = matches!(next.what, What::Gap);
        if is_gap || (state.is_unseen && state.outstanding <= 0 && state.losses == 0) {
            let is_idle = !is_gap && next.time - self.now >= IDLE;
            let phase = if is_idle { Phase::Idle } else { Phase::Unseen };
            self.add(phase, None, next.time, next.frame);
        } else if self.is_in_setup {
            self.add(Phase::Setup, Some(Cause::Login), next.time, next.frame);
        } else if state.losses > 0 {
            let cause = if state.black_holes > 0 {
                Cause::MtuBlackHole
            } else {
                Cause::Loss
            };
            self.add(Phase::Retransmission, Some(cause), next.time, next.frame);
        } else if state.outstanding <= 0 {
            self.thinks(next, round_trips);
        } else if state.is_moving() {
            self.moves(next, round_trips);
        } else {
            self.waits(next, round_trips);
        }
    }

    /// Counts the time until `end` for a phase and a cause.
    fn add(&mut self, phase: Phase, cause: Option<Cause>, end: u64, frame: u64) {
        let end = end.max(self.now);
        self.account
            .add(phase, cause, end - self.now, [self.frame, frame]);
        self.now = end;
    }

    /// Counts the time until a mark for a phase and a cause.
    fn add_until(&mut self, phase: Phase, cause: Cause, next: &Mark) {
        self.add(phase, Some(cause), next.time, next.frame);
    }

    /// Nothing is outstanding.
    fn thinks(&mut self, next: &Mark, round_trips: RoundTrips) {
        if self.state.is_blocked(Role::Client) {
            return self.add_until(Phase::SendCredits, Cause::SendCredits, next);
        }
        if self.state.lacks_smb2_credits {
            return self.add_until(Phase::Smb2Credits, Cause::Smb2Credits, next);
        }
        let (since, frame) = (self.now, self.frame);
        let path = self.state.done.saturating_add(round_trips.to[Role::Client]);
        if self.now < path {
            let (phase, cause) = self.state.path(round_trips);
            self.add(phase, cause, path.min(next.time), next.frame);
        }
        let quick = path.saturating_add(self.state.quick_thought());
        if self.now < quick && self.state.last.is_some() {
            let cause = self.state.usual_cause(Phase::Think);
            self.add(Phase::Think, cause, quick.min(next.time), next.frame);
        }
        let rest = next.time.saturating_sub(self.now);
        if rest > 0 {
            if self.state.thought == 0 {
                self.state.thought_since = self.frame;
            }
            self.state.thought += rest;
            self.note_late(since, frame, next);
        }
    }

    /// Ends a time in which the client asked for nothing.
    fn end_thought(&mut self) {
        let thought = std::mem::take(&mut self.state.thought);
        let frames = [self.state.thought_since, self.frame];
        if thought >= IDLE {
            self.account.add(Phase::Idle, None, thought, frames);
        } else if thought > 0 {
            self.account
                .add(Phase::Think, Some(Cause::Think), thought, frames);
        }
    }

    /// Bytes of a message or of an RDMA operation are moving.
    fn moves(&mut self, next: &Mark, round_trips: RoundTrips) {
        let state = &self.state;
        let phase = state.moving_phase();
        let gap = next.time - self.now;
        let mover = match phase {
            Phase::Request => Role::Client,
            _ => Role::Server,
        };
        if phase != Phase::Data && state.is_blocked(mover) {
            return self.add_until(Phase::SendCredits, Cause::SendCredits, next);
        }
        let round_trip = round_trips.longest();
        let is_far = round_trips.is_certain && round_trip >= LONG_ROUND_TRIP;
        let (acknowledges, next_from) = match next.what {
            What::Packet {
                from,
                has_data,
                acknowledges,
                ..
            } => (acknowledges && !has_data, from),
            _ => (false, mover),
        };
        let (phase, cause) = if is_far && state.is_limited() {
            (Phase::Window, Some(Cause::Window))
        } else if state.is_window_full && gap > LONG_PAUSE.max(round_trip.saturating_mul(2)) {
            (Phase::Window, Some(Cause::SlowReceiver))
        } else if is_far && gap > round_trip / 2 && gap <= round_trip.saturating_mul(3) {
            state.path(round_trips)
        } else if gap <= LONG_PAUSE.max(round_trip.saturating_mul(2)) {
            (phase, state.usual_cause(phase))
        } else if acknowledges && gap >= DELAYED_ACKNOWLEDGEMENT {
            let cause = Cause::DelayedAcknowledgement;
            (Phase::DelayedAcknowledgement, Some(cause))
        } else if acknowledges {
            // The sender waited for it. Bytes may be in a queue of the path.
            (phase, state.usual_cause(phase))
        } else if next_from == Role::Client {
            (Phase::Pause, Some(Cause::BusyClient))
        } else {
            (Phase::Pause, Some(Cause::BusyServer))
        };
        self.add(phase, cause, next.time, next.frame);
    }

    /// Everything outstanding is in the server.
    fn waits(&mut self, next: &Mark, round_trips: RoundTrips) {
        let (since, frame) = (self.now, self.frame);
        let state = &self.state;
        let [announced, login] = [Sort::Announced, Sort::Login].map(|sort| state.of(sort));
        let whole = if state.is_blocked(Role::Client) || state.is_blocked(Role::Server) {
            Some((Phase::SendCredits, Some(Cause::SendCredits)))
        } else if state.lacks_smb2_credits {
            Some((Phase::Smb2Credits, Some(Cause::Smb2Credits)))
        } else if announced > 0 && announced >= state.outstanding {
            Some((Phase::Announced, Some(Cause::AnnouncedWait)))
        } else if login > 0 && login + announced >= state.outstanding {
            Some((Phase::Setup, Some(Cause::Login)))
        } else if state.stages[Stage::Between as usize] > 0 && next.time - since <= LONG_PAUSE {
            Some((Phase::Data, state.usual_cause(Phase::Data)))
        } else {
            None
        };
        if let Some((phase, cause)) = whole {
            return self.wait(phase, cause, next.time, next);
        }
        let asked = state.asked.first().map_or(self.now, |&(asked, _)| asked);
        let path = asked.saturating_add(round_trips.to[Role::Server]);
        let quick = path.saturating_add(state.work);
        let (path_phase, of_path) = state.path(round_trips);
        let of_server = state.usual_cause(Phase::Server);
        self.wait(path_phase, of_path, path, next);
        self.wait(Phase::Server, of_server, quick, next);
        // The rest can be the round trip, as long as that is unknown.
        let (phase, cause) = if round_trips.is_known {
            (Phase::Server, Some(Cause::SlowServer))
        } else {
            (Phase::Unseen, None)
        };
        self.wait(phase, cause, next.time, next);
        self.note_late(since, frame, next);
    }

    /// Remembers an acknowledgement that ends a wait late.
    fn note_late(&mut self, since: u64, frame: u64, next: &Mark) {
        if let What::Packet {
            from,
            has_data: false,
            acknowledges: true,
            ..
        } = next.what
            && next.time - since >= DELAYED_ACKNOWLEDGEMENT
        {
            self.late = Some(LateAcknowledgement {
                from,
                waited_since: since,
                time: next.time,
                frames: [frame, next.frame],
            });
        }
    }

    /// Keeps the time until `end`, but not after the next mark, for a phase and a cause, until a request is answered.
    fn wait(&mut self, phase: Phase, cause: Option<Cause>, end: u64, next: &Mark) {
        let end = end.min(next.time);
        if end > self.now {
            let frames = [self.frame, next.frame];
            self.waits.add([self.now, end], (phase, cause), frames);
            self.now = end;
        }
    }
}

impl State {
    /// Takes what happened. Returns whether the client asks for something again.
    fn apply(&mut self, mark: &Mark) -> bool {
        match mark.what {
            What::Packet { .. } | What::Ready | What::Gap => {}
            What::Began(tag) => {
                let asks_again = self.outstanding <= 0;
                self.is_unseen = false;
                self.outstanding += 1;
                self.count(tag, 1);
                self.stages[Stage::Request as usize] += 1;
                self.last = Some(tag);
                return asks_again;
            }
            What::Moved {
                id,
                from,
                to,
                asked,
                tag,
            } => self.moved(mark, (from, to), (asked, id), tag),
            What::SendCredits(credits) => self.send_credits = credits,
            What::Smb2Credits { is_short } => self.lacks_smb2_credits = is_short,
            What::Announced {
                id,
                asked,
                from,
                to,
            } => {
                self.count(from, -1);
                self.count(to, 1);
                if self.asked.remove(&(asked, id)) {
                    self.work = self.work.saturating_sub(work(from));
                }
            }
            What::Loss {
                begins,
                is_black_hole,
            } => {
                let change = if begins { 1 } else { -1 };
                self.losses += change;
                if is_black_hole {
                    self.black_holes += change;
                }
            }
            What::WindowFull(is_full) => self.is_window_full = is_full,
            What::Limited { bytes, begins } => {
                self.limited.0 += if begins { 1 } else { -1 };
                self.limited.1 = bytes;
            }
            What::Unseen => self.is_unseen = true,
        }
        false
    }

    fn moved(&mut self, mark: &Mark, (from, to): (Stage, Stage), asked: (u64, u64), tag: Tag) {
        let is_over = |stage| matches!(stage, Stage::Done | Stage::Hidden | Stage::Unanswered);
        if !is_over(from) {
            self.stages[from as usize] -= 1;
        }
        if from == Stage::Request {
            self.asked.insert(asked);
            self.work += work(tag);
        }
        if !is_over(to) {
            self.stages[to as usize] += 1;
            return;
        }
        if self.asked.remove(&asked) {
            self.work = self.work.saturating_sub(work(tag));
        }
        self.outstanding -= 1;
        self.count(tag, -1);
        if self.outstanding <= 0 {
            self.done = mark.time;
        }
    }

    fn count(&mut self, tag: Tag, change: i32) {
        let size = u64::from(tag.size);
        self.bytes = match change {
            1.. => self.bytes.saturating_add(size),
            _ => self.bytes.saturating_sub(size),
        };
        if tag.sort == Sort::Data && tag.size < SMALL_BYTES {
            self.small += change;
        }
        self.sorts[tag.sort.index()] += change;
    }

    /// Returns how many requests of a sort are outstanding.
    fn of(&self, sort: Sort) -> i32 {
        self.sorts[sort.index()]
    }

    /// Returns whether a window limits a round trip. If the requests move no more than that, they are the limit.
    fn is_limited(&self) -> bool {
        let (count, bytes) = self.limited;
        count > 0 && self.bytes > bytes.saturating_mul(2)
    }

    fn is_moving(&self) -> bool {
        [Stage::Request, Stage::Data, Stage::Response]
            .into_iter()
            .any(|stage| self.stages[stage as usize] > 0)
    }

    fn moving_phase(&self) -> Phase {
        if self.stages[Stage::Data as usize] > 0 {
            Phase::Data
        } else if self.stages[Stage::Response as usize] > 0 {
            Phase::Response
        } else {
            Phase::Request
        }
    }

    /// Returns whether an end has no send credit to spare. It keeps the last one for a message that grants
    /// credits.
    fn is_blocked(&self, end: Role) -> bool {
        self.send_credits[end].is_some_and(|credits| credits <= 1)
    }

    /// Returns the time that a client needs for its next request, which includes checking a signature or
    /// copying data out of messages.
    fn quick_thought(&self) -> u64 {
        let in_messages = match self.last {
            Some(Tag {
                size,
                sort: Sort::InMessages(_),
            }) => u64::from(size) * MESSAGE_BYTE,
            _ => 0,
        };
        QUICK_THOUGHT + in_messages
    }

    /// Returns for what the round trip of the path counts. A long one that was measured by answers only may be the time of
    /// the other end.
    fn path(&self, round_trips: RoundTrips) -> (Phase, Option<Cause>) {
        if round_trips.longest() < LONG_ROUND_TRIP {
            (Phase::Path, self.usual_cause(Phase::Path))
        } else if round_trips.is_certain {
            (Phase::Path, Some(Cause::Delay))
        } else {
            (Phase::Unseen, None)
        }
    }

    /// Returns what makes an instant necessary in which each end does what it can.
    fn usual_cause(&self, phase: Phase) -> Option<Cause> {
        let of_last = match self.last {
            Some(Tag {
                sort: Sort::InMessages(cause),
                ..
            }) if self.outstanding <= 0 => Some(cause),
            _ => None,
        };
        let reasons = [Cause::Signing, Cause::Encryption, Cause::Threshold];
        let reasons = reasons.map(|cause| (self.of(Sort::InMessages(cause)), cause));
        let most = reasons.into_iter().max_by_key(|&(count, _)| count);
        let of_most = most.filter(|&(count, _)| count > 0).map(|(_, cause)| cause);
        if let Some(cause) = of_last.or(of_most) {
            return Some(cause);
        }
        let is_metadata = match self.outstanding {
            ..=0 => self.last.is_some_and(|tag| tag.sort == Sort::Metadata),
            outstanding => self.of(Sort::Metadata) >= outstanding,
        };
        let is_unknown = |tag: Tag| matches!(tag.sort, Sort::Unseen | Sort::Login);
        if self.outstanding <= 1 && self.last.is_some_and(is_unknown) {
            None
        } else if is_metadata {
            Some(Cause::Metadata)
        } else if self.outstanding <= 1 {
            // One request can fill the wire by itself.
            (phase != Phase::Data).then_some(Cause::OneOutstanding)
        } else if self.small + self.of(Sort::Metadata) >= self.outstanding {
            Some(Cause::SmallRequests)
        } else {
            None
        }
    }
}

/// Returns the nanoseconds that a server needs for a request if it is not slow.
fn work(tag: Tag) -> u64 {
    let size = u64::from(tag.size);
    match tag.sort {
        Sort::InMessages(_) => QUICK_ANSWER + size * MESSAGE_BYTE,
        _ => QUICK_ANSWER + size * QUICK_BYTE,
    }
}
