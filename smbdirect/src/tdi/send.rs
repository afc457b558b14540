//! [`Outbound`]: the sends of one connection, from submission to completion, without clock or task.
//!
//! A TSDU is what becomes one message on the wire. It begins with the first send of its class,
//! normal or expedited, goes on while sends have PARTIAL set, and ends with the first that has
//! not. Only then may it be handed over, whole: SMB Direct states the length of a message with
//! its first segment, and cannot take a message back that has begun.
//!
//! What a request waits for:
//!
//! | flags | room in the send buffer | not enough room | none |
//! |---|---|---|---|
//! | `NON_BLOCKING` | taken over, done | what fits is taken over, done | refused |
//! | `PARTIAL` | taken over, done | for room, or for the TSDU to be sent | the same |
//! | neither | for the TSDU to be sent | the same | the same |
//!
//! A request that waits lies in the caller's own buffer and takes no room. So an expedited TSDU
//! never waits for room that only normal ones could free, and an open TSDU never for room that it
//! fills itself. Buffers are [`Bytes`](bytes::Bytes), which nobody can change: to take one over is
//! to share it.

use std::{
    collections::{BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use bytes::{Buf, Bytes};

use super::{flags::SendFlags, request::RequestId, status::Status};
use crate::{engine::Message, rdma::work::Token};

/// How sends are treated on a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendSettings {
    /// Most bytes of a TSDU: MaxFragmentedSendSize of the connection.
    pub max_tsdu: usize,
    /// Size of the send buffer. 0: there is none, and `NON_BLOCKING` means nothing. Else it has
    /// to hold a TSDU of the largest size for each class, or an open one could fill the room it
    /// waits for.
    pub high_water: usize,
    /// After a refusal the send buffer is to drain to this before sends are called possible.
    pub low_water: usize,
    /// What `EXPEDITED` does.
    pub expedited: Expedited,
    /// What `NON_BLOCKING` does where there is room for a part.
    pub non_blocking: NonBlocking,
    /// What `NO_RESPONSE_EXPECTED` does.
    pub no_response: NoResponse,
    /// When a send that has no deadline of its own is given up.
    pub send_timeout: Option<Duration>,
}

/// What [`SendFlags::EXPEDITED`] does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Expedited {
    /// The TSDU overtakes normal ones that have not begun to leave. The peer cannot tell. Without
    /// end, it lets no normal one leave.
    #[default]
    LocalPriority,
    /// Nothing.
    Ignore,
}

/// What [`SendFlags::NON_BLOCKING`] does where there is room for a part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum NonBlocking {
    /// Takes the part, as TDI has it. The TSDU stays open for the rest.
    #[default]
    Partial,
    /// Takes nothing, so that several can send without cutting each other's TSDUs.
    Atomic,
}

/// What [`SendFlags::NO_RESPONSE_EXPECTED`] does. SMB Direct acknowledges nothing; what comes back
/// is credits, and the only way to ask for them is the keepalive, which costs one and starts a
/// timer that ends the connection of a slow peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum NoResponse {
    /// Nothing.
    Ignore,
    /// The peer is asked where this TSDU leaves few credits.
    #[default]
    WhenLowOnCredits,
    /// The peer is asked each time, if no answer is outstanding.
    Always,
}

impl SendSettings {
    /// The defaults, for TSDUs of at most `max_tsdu` bytes.
    pub const fn new(max_tsdu: usize) -> Self {
        Self {
            max_tsdu,
            high_water: 2 * max_tsdu,
            low_water: max_tsdu / 2,
            expedited: Expedited::LocalPriority,
            non_blocking: NonBlocking::Partial,
            no_response: NoResponse::WhenLowOnCredits,
            send_timeout: Some(Duration::from_secs(60)),
        }
    }

    const fn are_consistent(&self) -> bool {
        let open_tsdus = match self.expedited {
            Expedited::LocalPriority => 2,
            Expedited::Ignore => 1,
        };
        let holds_open_tsdus = self.high_water / open_tsdus >= self.max_tsdu;
        self.high_water == 0 || (holds_open_tsdus && self.low_water < self.high_water)
    }
}

/// A send.
#[derive(Clone, Debug)]
pub struct SendRequest {
    /// Its name.
    pub id: RequestId,
    /// The bytes, in one buffer or several. They come back with the completion.
    pub buffer: Message,
    /// How to send them.
    pub flags: SendFlags,
    /// When to give up, if not after [`SendSettings::send_timeout`].
    pub deadline: Option<Instant>,
    /// A registration of the peer's that ends as the TSDU arrives. Only with the end of a TSDU.
    pub invalidate: Option<Token>,
}

impl SendRequest {
    /// A send without deadline and token of its own.
    pub fn new(id: RequestId, buffer: impl Into<Message>, flags: SendFlags) -> Self {
        Self {
            id,
            buffer: buffer.into(),
            flags,
            deadline: None,
            invalidate: None,
        }
    }

    /// A plain write: the whole buffer, as the end of a normal TSDU.
    pub fn write(id: RequestId, buffer: impl Into<Message>) -> Self {
        //= TDI-SEND-32
        Self::new(id, buffer, SendFlags::empty())
    }
}

/// What became of a send. Each has exactly one.
#[derive(Clone, Debug)]
pub struct SendCompletion {
    /// The request.
    pub id: RequestId,
    /// How it ended.
    pub status: Status,
    /// Bytes taken from the buffer.
    pub information: usize,
    /// The buffer, whole.
    pub buffer: Message,
}

impl SendCompletion {
    /// Bytes taken, or why none were.
    ///
    /// # Errors
    /// The status, if it is an error.
    pub const fn result(&self) -> Result<usize, Status> {
        match self.status.is_error() {
            true => Err(self.status),
            false => Ok(self.information),
        }
    }
}

/// What [`Outbound::send`] says at once.
#[derive(Clone, Debug)]
pub enum Submission {
    /// The completion will come as an event.
    Pending,
    /// This is the completion.
    Completed(SendCompletion),
}

/// Something that happened to the sends.
#[derive(Clone, Debug)]
pub enum SendEvent {
    /// A request that was pending is over.
    Completed(SendCompletion),
    /// There is room again after a refusal: so many bytes now, of which none is set aside.
    SendPossible {
        /// Bytes that a non-blocking send would take.
        available: usize,
    },
    /// A TSDU whose requests were promised to be done, or which has begun to leave, ran out of
    /// time. The connection cannot go on without it, and is to be aborted.
    Abort(Status),
    /// After [`Outbound::release`]: everything has left.
    Drained,
}

/// How the connection stands as a TSDU is handed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outlook {
    /// Credits held.
    pub send_credits: u16,
    /// Credits that are few.
    pub low_credits: u16,
    /// Payload of one segment.
    pub segment_payload: usize,
    /// The peer was asked for an answer that has not come.
    pub response_pending: bool,
}

/// A TSDU for the connection to send.
#[derive(Clone, Debug)]
pub struct OutboundTsdu {
    /// The bytes.
    pub message: Message,
    /// A registration of the peer's that ends on arrival.
    pub invalidate: Option<Token>,
    /// Ask the peer for an answer behind it.
    pub prompt: bool,
}

/// The sends of one connection.
///
/// [`send`](Self::send) submits. [`poll_tsdu`](Self::poll_tsdu) gives the next TSDU, to be asked
/// when the connection can begin one at once, and no earlier: what is handed over is not
/// overtaken. [`tsdu_sent`](Self::tsdu_sent) says that the oldest handed over has left.
/// [`poll_event`](Self::poll_event) has what comes of it.
///
/// ```
/// use std::time::Instant;
///
/// use smbdirect::tdi::{
///     Outbound, Outlook, RequestId, SendEvent, SendFlags, SendRequest, SendSettings, Status,
///     Submission,
/// };
///
/// let now = Instant::now();
/// let mut outbound = Outbound::new(SendSettings::new(1 << 20)).unwrap();
/// let part = SendRequest::new(RequestId(1), "ab", SendFlags::PARTIAL);
/// assert!(matches!(outbound.send(now, part), Submission::Completed(part) if part.information == 2));
/// assert!(outbound.poll_tsdu(Outlook::default()).is_none());
///
/// let rest = SendRequest::new(RequestId(2), "c", SendFlags::empty());
/// assert!(matches!(outbound.send(now, rest), Submission::Pending));
/// let tsdu = outbound.poll_tsdu(Outlook::default()).unwrap();
/// assert_eq!(tsdu.message.into_bytes(), "abc");
///
/// outbound.tsdu_sent();
/// let Some(SendEvent::Completed(rest)) = outbound.poll_event() else { panic!() };
/// assert_eq!((rest.status, rest.information), (Status::SUCCESS, 1));
/// assert_eq!(rest.buffer.into_bytes(), "c");
/// ```
#[derive(Debug)]
pub struct Outbound {
    settings: SendSettings,
    phase: Phase,
    normal: Class,
    expedited: Class,
    /// Handed over and not sent, in that order.
    started: VecDeque<Tsdu>,
    /// Bytes in the send buffer.
    used: usize,
    /// A non-blocking send was refused for want of so many bytes.
    wanted: Option<usize>,
    /// Requests so far; their places in the order of submission.
    submitted: u64,
    deadlines: BTreeSet<(Instant, u64)>,
    events: VecDeque<SendEvent>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    Releasing,
    Over,
}

/// One of the two queues.
#[derive(Debug, Default)]
struct Class {
    /// Complete, in order.
    ready: VecDeque<Tsdu>,
    /// The one that is being put together.
    open: Slot,
}

#[derive(Debug, Default)]
enum Slot {
    #[default]
    Empty,
    Open(Tsdu),
    /// A part was withdrawn. What follows, up to the end of the TSDU, cannot be sent either.
    Spoilt,
}

#[derive(Debug, Default)]
struct Tsdu {
    parts: Vec<Part>,
    length: usize,
    /// Bytes of it in the send buffer.
    buffered: usize,
    complete: bool,
    no_response_expected: bool,
    invalidate: Option<Token>,
    /// For a TSDU whose last request is completed: when it has to have left.
    deadline: Option<(Instant, u64)>,
}

#[derive(Debug)]
struct Part {
    data: Message,
    pending: Option<Pending>,
}

/// A request that is not completed.
#[derive(Debug)]
struct Pending {
    id: RequestId,
    order: u64,
    deadline: Option<Instant>,
}

impl Outbound {
    /// Nothing is sent yet.
    ///
    /// # Errors
    /// [`Status::INVALID_PARAMETER`]: the marks of the send buffer cannot be.
    pub fn new(settings: SendSettings) -> Result<Self, Status> {
        if !settings.are_consistent() {
            return Err(Status::INVALID_PARAMETER);
        }
        Ok(Self {
            settings,
            phase: Phase::Open,
            normal: Class::default(),
            expedited: Class::default(),
            started: VecDeque::new(),
            used: 0,
            wanted: None,
            submitted: 0,
            deadlines: BTreeSet::new(),
            events: VecDeque::new(),
        })
    }

    /// Submits a send.
    pub fn send(&mut self, now: Instant, request: SendRequest) -> Submission {
        let (id, buffer) = (request.id, request.buffer.clone());
        let (status, information) = match self.submit(now, request) {
            Ok(None) => return Submission::Pending,
            Ok(Some(taken)) => (Status::SUCCESS, taken),
            Err(status) => (status, 0),
        };
        Submission::Completed(SendCompletion {
            id,
            status,
            information,
            buffer,
        })
    }

    /// How many bytes were taken over at once, or `None` if the request is pending.
    fn submit(&mut self, now: Instant, request: SendRequest) -> Result<Option<usize>, Status> {
        let SendRequest { id, flags, .. } = request;
        let (length, partial) = (request.buffer.len(), flags.contains(SendFlags::PARTIAL));
        self.check(&request)?;
        let room = self.available();
        //= TDI-SEND-19
        let non_blocking = flags.contains(SendFlags::NON_BLOCKING) && self.settings.high_water > 0;
        let taken = match self.settings.non_blocking {
            //= TDI-SEND-20
            _ if !non_blocking => length,
            //= TDI-SEND-14
            _ if length <= room => length,
            //= TDI-SEND-15
            NonBlocking::Partial if room > 0 => room,
            //= TDI-SEND-16
            mode => {
                let wanted = match mode {
                    NonBlocking::Partial => 1,
                    NonBlocking::Atomic => length,
                };
                // Armed before anybody learns of the refusal, so that no wake-up is lost.
                self.wanted = Some(self.wanted.map_or(wanted, |before| before.min(wanted)));
                return Err(Status::DEVICE_NOT_READY);
            }
        };
        let buffered = non_blocking || (partial && length <= room);
        self.submitted += 1;
        let order = self.submitted;
        let timeout = self.settings.send_timeout;
        //= TDI-SEND-27
        let deadline = request
            .deadline
            .or_else(|| timeout.and_then(|after| now.checked_add(after)));
        let closes = !partial && taken == length;
        let class = self.class_mut(flags);
        if matches!(class.open, Slot::Empty) {
            class.open = Slot::Open(Tsdu::default());
        }
        let Slot::Open(tsdu) = &mut class.open else {
            unreachable!("what goes into a spoilt TSDU was refused before")
        };
        tsdu.length += taken;
        let mut data = request.buffer;
        //= TDI-SEND-21
        if taken < length {
            data = data.copy_to_bytes(taken).into();
        }
        let pending = (!buffered).then_some(Pending {
            id,
            order,
            deadline,
        });
        tsdu.parts.push(Part { data, pending });
        if buffered {
            tsdu.buffered += taken;
        }
        //= TDI-SEND-08
        //= TDI-SEND-09
        if closes {
            tsdu.complete = true;
            tsdu.no_response_expected = flags.contains(SendFlags::NO_RESPONSE_EXPECTED);
            tsdu.invalidate = request.invalidate;
            if buffered {
                tsdu.deadline = deadline.map(|deadline| (deadline, order));
            }
            if let Slot::Open(tsdu) = std::mem::take(&mut class.open) {
                //= TDI-SEND-02
                //= TDI-SEND-05
                //= TDI-SEND-07
                class.ready.push_back(tsdu);
            }
        }
        if closes || !buffered {
            self.deadlines
                .extend(deadline.map(|deadline| (deadline, order)));
        }
        if buffered {
            self.used += taken;
            return Ok(Some(taken));
        }
        Ok(None)
    }

    /// Whether a request can be at all.
    fn check(&mut self, request: &SendRequest) -> Result<(), Status> {
        let SendRequest { flags, .. } = *request;
        let (length, partial) = (request.buffer.len(), flags.contains(SendFlags::PARTIAL));
        //= TDI-SEND-01
        if self.phase != Phase::Open {
            return Err(Status::INVALID_CONNECTION);
        }
        //= TDI-SEND-03
        if !SendFlags::all().contains(flags) {
            return Err(Status::INVALID_PARAMETER);
        }
        if flags.contains(SendFlags::AND_DISCONNECT) {
            return Err(Status::NOT_SUPPORTED);
        }
        if partial && request.invalidate.is_some() {
            return Err(Status::INVALID_PARAMETER);
        }
        let max = self.settings.max_tsdu;
        let class = self.class_mut(flags);
        match &class.open {
            Slot::Spoilt => {
                if !partial {
                    class.open = Slot::Empty;
                }
                Err(Status::REQUEST_ABORTED)
            }
            //= TDI-SEND-29
            //= TDI-SEND-30
            Slot::Empty if length == 0 => Err(Status::INVALID_PARAMETER),
            //= TDI-SEND-22
            Slot::Empty if length > max => Err(Status::INVALID_PARAMETER),
            Slot::Open(tsdu) if length > max - tsdu.length => Err(Status::INVALID_PARAMETER),
            _ => Ok(()),
        }
    }

    /// The next TSDU. Asked when the connection can begin one at once; what it is given is
    /// followed, when it has left, by [`tsdu_sent`](Self::tsdu_sent).
    pub fn poll_tsdu(&mut self, outlook: Outlook) -> Option<OutboundTsdu> {
        //= TDI-SEND-04
        let tsdu = match self.expedited.ready.pop_front() {
            Some(tsdu) => tsdu,
            None => self.normal.ready.pop_front()?,
        };
        //= TDI-SEND-28
        let handed_over = OutboundTsdu {
            //= TDI-SEND-25
            message: tsdu.message(),
            invalidate: tsdu.invalidate,
            prompt: self.prompts(&tsdu, outlook),
        };
        self.started.push_back(tsdu);
        Some(handed_over)
    }

    /// Whether the peer is asked for an answer behind this TSDU.
    fn prompts(&self, tsdu: &Tsdu, outlook: Outlook) -> bool {
        //= TDI-SEND-12
        if !tsdu.no_response_expected || outlook.response_pending {
            return false;
        }
        //= TDI-SEND-13
        match self.settings.no_response {
            NoResponse::Ignore => false,
            NoResponse::Always => true,
            NoResponse::WhenLowOnCredits => {
                let segments = tsdu.length.div_ceil(outlook.segment_payload.max(1));
                let left = usize::from(outlook.send_credits).saturating_sub(segments);
                left <= usize::from(outlook.low_credits)
            }
        }
    }

    /// The oldest TSDU that was handed over has left. Nothing happens if the sends are over.
    pub fn tsdu_sent(&mut self) {
        let Some(tsdu) = self.started.pop_front() else {
            return;
        };
        self.end(tsdu, |_| Status::SUCCESS);
        self.settle();
    }

    /// Cancels a request that waits. False if there is none of this name any more, or if its TSDU
    /// has begun to leave or is promised to; then its completion tells what became of it.
    ///
    /// What was submitted of its TSDU before and behind it is not sent either.
    pub fn cancel(&mut self, id: RequestId) -> bool {
        let withdrawn = self.withdraw(Status::CANCELLED, |pending| pending.id == id);
        self.settle();
        withdrawn
    }

    /// Throws away what there is of the TSDU that is being put together, in the class that
    /// `flags` name; requests in it that are pending are cancelled. False if there is none.
    pub fn discard_partial(&mut self, flags: SendFlags) -> bool {
        match std::mem::take(&mut self.class_mut(flags).open) {
            Slot::Empty => return false,
            Slot::Spoilt => {}
            Slot::Open(tsdu) => self.end(tsdu, |_| Status::CANCELLED),
        }
        self.settle();
        true
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.deadlines.first().map(|&(deadline, _)| deadline)
    }

    /// Gives up what is overdue. What has not begun to leave is withdrawn; else the connection has
    /// to end, since half a message cannot be left behind.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.poll_timeout().is_none_or(|due| due > now) {
            return;
        }
        let is_promised = |tsdu: &Tsdu| tsdu.deadline.is_some_and(|(due, _)| due <= now);
        let is_late = |pending: &Pending| pending.deadline.is_some_and(|due| due <= now);
        let late_in = |tsdu: &Tsdu| is_promised(tsdu) || tsdu.pending().any(is_late);
        let mut ready = self.expedited.ready.iter().chain(&self.normal.ready);
        let cannot_wait = |tsdu: &Tsdu| tsdu.is_promised() && late_in(tsdu);
        if self.started.iter().any(late_in) || ready.any(cannot_wait) {
            self.events.push_back(SendEvent::Abort(Status::IO_TIMEOUT));
            self.end_all(|pending| match is_late(pending) {
                true => Status::IO_TIMEOUT,
                false => Status::CONNECTION_ABORTED,
            });
            return;
        }
        self.withdraw(Status::IO_TIMEOUT, is_late);
        self.settle();
    }

    /// Takes no more sends; [`SendEvent::Drained`] comes when those before have left.
    ///
    /// # Errors
    /// [`Status::INVALID_PARAMETER`]: a TSDU is not complete, and would be lost. Complete it or
    /// [discard](Self::discard_partial) it. [`Status::INVALID_CONNECTION`]: it is done already.
    pub fn release(&mut self) -> Result<(), Status> {
        if self.phase != Phase::Open {
            return Err(Status::INVALID_CONNECTION);
        }
        let classes = [&self.normal, &self.expedited];
        if classes
            .iter()
            .any(|class| matches!(class.open, Slot::Open(_)))
        {
            return Err(Status::INVALID_PARAMETER);
        }
        //= TDI-DISC-03
        self.phase = Phase::Releasing;
        self.settle();
        Ok(())
    }

    /// The connection is over: whatever is pending ends with `status`.
    pub fn close(&mut self, status: Status) {
        self.end_all(|_| status);
    }

    /// The next thing that happened.
    pub fn poll_event(&mut self) -> Option<SendEvent> {
        self.events.pop_front()
    }

    /// Bytes that a non-blocking send would take now. None while others wait for room.
    pub fn available(&self) -> usize {
        let waits = |class: &Class| match &class.open {
            Slot::Open(tsdu) => tsdu.pending().next().is_some(),
            _ => false,
        };
        if self.settings.high_water == 0 || waits(&self.normal) || waits(&self.expedited) {
            return 0;
        }
        self.settings.high_water - self.used
    }

    /// Whether [`poll_tsdu`](Self::poll_tsdu) has one.
    pub fn has_tsdu(&self) -> bool {
        !self.expedited.ready.is_empty() || !self.normal.ready.is_empty()
    }

    /// Whether a TSDU is being put together in the class that `flags` name: the next send there
    /// goes on with it.
    pub fn is_open(&self, flags: SendFlags) -> bool {
        let class = match self.settings.expedited {
            Expedited::LocalPriority if flags.contains(SendFlags::EXPEDITED) => &self.expedited,
            _ => &self.normal,
        };
        !matches!(class.open, Slot::Empty)
    }

    /// Whether a non-blocking send was refused, and [`SendEvent::SendPossible`] is to come.
    pub const fn is_refused(&self) -> bool {
        self.wanted.is_some()
    }

    /// Bytes in the send buffer.
    pub const fn buffered(&self) -> usize {
        self.used
    }

    fn class_mut(&mut self, flags: SendFlags) -> &mut Class {
        match self.settings.expedited {
            Expedited::LocalPriority if flags.contains(SendFlags::EXPEDITED) => &mut self.expedited,
            //= TDI-SEND-06
            _ => &mut self.normal,
        }
    }

    /// Ends a TSDU that has not begun to leave and holds a request for which `pick` is true.
    /// Those requests end with `status`, the others of the TSDU with it.
    fn withdraw(&mut self, status: Status, pick: impl Fn(&Pending) -> bool) -> bool {
        //= TDI-SEND-34
        let picked = |tsdu: &Tsdu| !tsdu.is_promised() && tsdu.pending().any(&pick);
        let mut withdrawn = Vec::new();
        for class in [&mut self.normal, &mut self.expedited] {
            let ready = std::mem::take(&mut class.ready);
            for tsdu in ready {
                match picked(&tsdu) {
                    true => withdrawn.push(tsdu),
                    false => class.ready.push_back(tsdu),
                }
            }
            if matches!(&class.open, Slot::Open(tsdu) if picked(tsdu))
                && let Slot::Open(tsdu) = std::mem::replace(&mut class.open, Slot::Spoilt)
            {
                withdrawn.push(tsdu);
            }
        }
        let any = !withdrawn.is_empty();
        for tsdu in withdrawn {
            self.end(tsdu, |pending| match pick(pending) {
                true => status,
                false => Status::REQUEST_ABORTED,
            });
        }
        any
    }

    /// Completes what is pending of a TSDU, and frees its room.
    fn end(&mut self, tsdu: Tsdu, status: impl Fn(&Pending) -> Status) {
        self.used -= tsdu.buffered;
        if let Some(deadline) = tsdu.deadline {
            self.deadlines.remove(&deadline);
        }
        for Part { data, pending } in tsdu.parts {
            if let Some(pending) = pending {
                let status = status(&pending);
                self.complete(pending, status, data);
            }
        }
    }

    /// The one completion of a request that was pending.
    fn complete(&mut self, pending: Pending, status: Status, buffer: Message) {
        let Pending {
            id,
            order,
            deadline,
        } = pending;
        if let Some(due) = deadline {
            self.deadlines.remove(&(due, order));
        }
        //= TDI-SEND-31
        let information = match status.is_success() {
            true => buffer.len(),
            false => 0,
        };
        //= TDI-SEND-24
        //= TDI-SEND-26
        self.events.push_back(SendEvent::Completed(SendCompletion {
            id,
            status,
            information,
            buffer,
        }));
    }

    fn end_all(&mut self, status: impl Fn(&Pending) -> Status) {
        self.phase = Phase::Over;
        self.wanted = None;
        let mut all: Vec<_> = self.started.drain(..).collect();
        for class in [&mut self.expedited, &mut self.normal] {
            all.extend(class.ready.drain(..));
            if let Slot::Open(tsdu) = std::mem::take(&mut class.open) {
                all.push(tsdu);
            }
        }
        for tsdu in all {
            self.end(tsdu, &status);
        }
    }

    /// After room was freed: those who wait for room first, then those who were refused.
    fn settle(&mut self) {
        while let Some((id, length)) = self.next_for_room() {
            if length > self.settings.high_water - self.used {
                break;
            }
            self.take_over(id);
        }
        //= TDI-SEND-17
        //= TDI-SEND-18
        let open = |class: &Class| match &class.open {
            Slot::Open(tsdu) => tsdu.buffered,
            _ => 0,
        };
        // What is not complete cannot drain, and is not waited for.
        let drainable = self.used - open(&self.normal) - open(&self.expedited);
        let available = self.available();
        let enough = match drainable {
            // More will not come by itself, so there is nothing to wait for.
            0 => 1,
            _ => self.wanted.unwrap_or_default(),
        };
        if self.wanted.is_some() && enough <= available && drainable <= self.settings.low_water {
            self.wanted = None;
            self.events.push_back(SendEvent::SendPossible { available });
        }
        let idle = self.started.is_empty()
            && self.normal.ready.is_empty()
            && self.expedited.ready.is_empty();
        if idle && self.phase == Phase::Releasing {
            self.phase = Phase::Over;
            self.events.push_back(SendEvent::Drained);
        }
    }

    /// The oldest request that waits for room, and how much.
    fn next_for_room(&self) -> Option<(u64, usize)> {
        let of = |class: &Class| match &class.open {
            Slot::Open(tsdu) => tsdu.parts.iter().find_map(|part| {
                let pending = part.pending.as_ref()?;
                Some((pending.order, part.data.len()))
            }),
            _ => None,
        };
        let classes = [of(&self.normal), of(&self.expedited)];
        classes.into_iter().flatten().min()
    }

    /// Puts the request that was submitted as number `order` into the send buffer.
    fn take_over(&mut self, order: u64) {
        let classes = [&mut self.normal, &mut self.expedited];
        let taken = classes.into_iter().find_map(|class| {
            let Slot::Open(tsdu) = &mut class.open else {
                return None;
            };
            let taken = tsdu.parts.iter_mut().find_map(|part| {
                let pending = part.pending.take_if(|pending| pending.order == order)?;
                Some((pending, part.data.clone()))
            })?;
            tsdu.buffered += taken.1.len();
            Some(taken)
        });
        let (pending, data) = taken.expect("it was just found to wait for room");
        self.used += data.len();
        self.complete(pending, Status::SUCCESS, data);
    }
}

impl Tsdu {
    fn pending(&self) -> impl Iterator<Item = &Pending> {
        self.parts.iter().filter_map(|part| part.pending.as_ref())
    }

    /// Whether it is complete and its last request was told that it is done.
    fn is_promised(&self) -> bool {
        self.complete && self.parts.last().is_some_and(|part| part.pending.is_none())
    }

    fn message(&self) -> Message {
        self.parts
            .iter()
            .flat_map(|part| slices(part.data.clone()))
            .collect()
    }
}

/// The buffers of a message, shared.
fn slices(mut message: Message) -> impl Iterator<Item = Bytes> {
    std::iter::from_fn(move || {
        let length = message.chunk().len();
        (length > 0).then(|| message.copy_to_bytes(length))
    })
}
