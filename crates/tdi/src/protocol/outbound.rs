//! [`Outbound`]: the decisions about the sends of one connection, from submission to completion,
//! without a clock and without a task.
//!
//! A TSDU becomes one message on the wire. It starts with the first send of its class, normal or expedited,
//! continues while sends have PARTIAL set, and ends with the first send without PARTIAL. It is passed to the
//! connection only when it is complete, because the first segment of a message states the length of the whole
//! message, and a message that was started cannot be withdrawn.
//!
//! This table says when a request completes:
//!
//! | flags | enough room in the send buffer | less room | no room |
//! |---|---|---|---|
//! | `NON_BLOCKING` | immediately, all bytes taken | immediately, as many bytes taken as fit | immediately, refused |
//! | `PARTIAL` | immediately, all bytes taken | when there is room, or when the TSDU was sent | the same |
//! | neither | when the TSDU was sent | the same | the same |
//!
//! The data of a request that waits is in the caller's buffer and uses no room. Therefore an
//! expedited TSDU never waits for room that only normal TSDUs could free, and an open TSDU never
//! waits for room that it fills itself. Buffers are [`Bytes`](bytes::Bytes), which are immutable,
//! so taking one into the send buffer shares it and copies nothing.

use std::{
    collections::{BTreeSet, VecDeque},
    time::Instant,
};

use bytes::Buf;
use smbdirect::Message;

use super::{
    flags::SendFlags,
    request::RequestId,
    send::{
        Expedited, NoResponse, NonBlocking, OutboundTsdu, SendAvailability, SendCompletion,
        SendEvent, SendRequest, SendSettings, Submission,
    },
    send_queue::{Class, Part, Pending, Slot, Tsdu},
    status::Status,
};

/// The sends of one connection.
///
/// Submit requests with [`send`](Self::send). Take the next TSDU with [`poll_tsdu`](Self::poll_tsdu) when the
/// connection can start to send it, and not earlier, because expedited TSDUs do not overtake a TSDU that was
/// taken. Call [`tsdu_sent`](Self::tsdu_sent) when the oldest TSDU that was taken was sent.
/// [`poll_event`](Self::poll_event) returns the resulting events.
///
/// ```
/// use std::time::Instant;
///
/// use smbdirect_tdi::{
///     Outbound, RequestId, SendAvailability, SendEvent, SendFlags, SendRequest, SendSettings,
///     Status, Submission,
/// };
///
/// let now = Instant::now();
/// let mut outbound = Outbound::new(SendSettings::new(1 << 20)).unwrap();
/// let part = SendRequest::new(RequestId(1), "ab", SendFlags::PARTIAL);
/// assert!(matches!(outbound.send(now, part), Submission::Completed(part) if part.information == 2));
/// assert!(outbound.poll_tsdu(SendAvailability::default()).is_none());
///
/// let rest = SendRequest::new(RequestId(2), "c", SendFlags::empty());
/// assert!(matches!(outbound.send(now, rest), Submission::Pending));
/// let tsdu = outbound.poll_tsdu(SendAvailability::default()).unwrap();
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
    /// TSDUs that were passed to the connection and not sent yet, in order.
    started: VecDeque<Tsdu>,
    /// The bytes in the send buffer.
    used: usize,
    /// The free bytes that a refused non-blocking send needs; the latch of "send possible".
    wanted: Option<usize>,
    /// The number of requests so far, which numbers them in the order of submission.
    submitted: u64,
    deadlines: BTreeSet<(Instant, u64)>,
    events: VecDeque<SendEvent>,
    /// Buffers that no completion returns; `None` if they are dropped immediately.
    spent: Option<Vec<Message>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    Releasing,
    Over,
}

impl Outbound {
    /// Creates the sends of a connection.
    ///
    /// # Errors
    /// [`Status::INVALID_PARAMETER`]: the sizes in the settings contradict each other.
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
            spent: None,
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

    /// Submits a request. Returns the number of bytes taken, or `None` if the request is pending.
    fn submit(&mut self, now: Instant, request: SendRequest) -> Result<Option<usize>, Status> {
        let SendRequest { id, flags, .. } = request;
        let (length, partial) = (request.buffer.len(), flags.contains(SendFlags::PARTIAL));
        self.check(&request)?;
        let room = self.available();
        //= TDI-SEND-19
        let non_blocking = flags.contains(SendFlags::NON_BLOCKING) && self.settings.high_water > 0;
        let taken = if non_blocking {
            self.reserve(length, room)?
        } else {
            //= TDI-SEND-20
            length
        };
        let buffered = non_blocking || (partial && length <= room);
        self.submitted += 1;
        let order = self.submitted;
        let timeout = self.settings.send_timeout;
        //= TDI-SEND-27
        let deadline = request
            .deadline
            .or_else(|| timeout.and_then(|after| now.checked_add(after)));
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
        let class = self.class_mut(flags);
        class.append(Part { data, pending });
        let closes = !partial && taken == length;
        if closes {
            let deadline = deadline.filter(|_| buffered);
            class.close(
                flags.contains(SendFlags::NO_RESPONSE_EXPECTED),
                request.invalidate,
                deadline.map(|deadline| (deadline, order)),
            );
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

    /// Returns the number of bytes that a non-blocking send of `length` bytes takes with `room`
    /// free bytes, or refuses it.
    fn reserve(&mut self, length: usize, room: usize) -> Result<usize, Status> {
        let wanted = match self.settings.non_blocking {
            //= TDI-SEND-14
            _ if length <= room => return Ok(length),
            //= TDI-SEND-15
            NonBlocking::Partial if room > 0 => return Ok(room),
            NonBlocking::Partial => 1,
            NonBlocking::Atomic => length,
        };
        //= TDI-SEND-16
        // The latch is set before the caller learns of the refusal, so that no wake-up is lost.
        self.wanted = Some(self.wanted.map_or(wanted, |before| before.min(wanted)));
        Err(Status::DEVICE_NOT_READY)
    }

    /// Checks the flags and the length of a request.
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
            Slot::Withdrawn => {
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

    /// Takes the next TSDU. Call this when the connection can start to send it, and
    /// [`tsdu_sent`](Self::tsdu_sent) when it was sent.
    pub fn poll_tsdu(&mut self, availability: SendAvailability) -> Option<OutboundTsdu> {
        //= TDI-SEND-04
        let tsdu = match self.expedited.ready.pop_front() {
            Some(tsdu) => tsdu,
            None => self.normal.ready.pop_front()?,
        };
        //= TDI-SEND-28
        let outbound = OutboundTsdu {
            //= TDI-SEND-25
            message: tsdu.message(),
            invalidate: tsdu.invalidate,
            prompt: self.prompts(&tsdu, availability),
        };
        self.started.push_back(tsdu);
        Some(outbound)
    }

    /// Returns whether to request a response from the peer after this TSDU. The connection requests one response at
    /// a time.
    fn prompts(&self, tsdu: &Tsdu, availability: SendAvailability) -> bool {
        //= TDI-SEND-12
        if !tsdu.no_response_expected {
            return false;
        }
        //= TDI-SEND-13
        match self.settings.no_response {
            NoResponse::Ignore => false,
            NoResponse::Always => true,
            NoResponse::WhenLowOnCredits => {
                let segments = tsdu.length.div_ceil(availability.segment_payload.max(1));
                let left = usize::from(availability.send_credits).saturating_sub(segments);
                left <= usize::from(availability.low_credits)
            }
        }
    }

    /// Records that the oldest TSDU that was taken was sent. It has no effect after the sends were
    /// closed.
    pub fn tsdu_sent(&mut self) {
        let Some(tsdu) = self.started.pop_front() else {
            return;
        };
        self.end(tsdu, |_| Status::SUCCESS);
        self.settle();
    }

    /// Cancels a pending request. Returns false and changes nothing if there is no such request, if
    /// its TSDU was taken by [`poll_tsdu`](Self::poll_tsdu), or if the last request of its TSDU has
    /// completed.
    ///
    /// The other parts of the TSDU of a cancelled request are not sent either.
    pub fn cancel(&mut self, id: RequestId) -> bool {
        let withdrawn = self.withdraw(Status::CANCELLED, |pending| pending.id == id);
        self.settle();
        withdrawn
    }

    /// Discards the open TSDU of the class that `flags` select, and cancels its pending requests.
    /// Returns whether a TSDU was open.
    pub fn discard_partial(&mut self, flags: SendFlags) -> bool {
        match std::mem::take(&mut self.class_mut(flags).open) {
            Slot::Empty => return false,
            Slot::Withdrawn => {}
            Slot::Open(tsdu) => self.end(tsdu, |_| Status::CANCELLED),
        }
        self.settle();
        true
    }

    /// Returns the time at which [`handle_timeout`](Self::handle_timeout) must be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.deadlines.first().map(|&(deadline, _)| deadline)
    }

    /// Ends the requests that have reached their deadlines. Their TSDU is withdrawn if it was not
    /// taken by [`poll_tsdu`](Self::poll_tsdu) and its last request has not completed. Otherwise
    /// [`SendEvent::Abort`] is reported and the connection must be aborted, because a message cannot
    /// end in the middle, and because the client relies on a send that has completed.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.poll_timeout().is_none_or(|due| due > now) {
            return;
        }
        let is_late = |pending: &Pending| pending.deadline.is_some_and(|due| due <= now);
        let has_late = |tsdu: &Tsdu| {
            let is_tsdu_late = tsdu.deadline.is_some_and(|(due, _)| due <= now);
            is_tsdu_late || tsdu.pending().any(is_late)
        };
        let mut ready = self.expedited.ready.iter().chain(&self.normal.ready);
        let cannot_be_withdrawn = |tsdu: &Tsdu| tsdu.is_promised() && has_late(tsdu);
        if self.started.iter().any(has_late) || ready.any(cannot_be_withdrawn) {
            self.events.push_back(SendEvent::Abort(Status::IO_TIMEOUT));
            self.end_all(|pending| {
                if is_late(pending) {
                    Status::IO_TIMEOUT
                } else {
                    Status::CONNECTION_ABORTED
                }
            });
            return;
        }
        self.withdraw(Status::IO_TIMEOUT, is_late);
        self.settle();
    }

    /// Accepts no more sends, and reports [`SendEvent::Drained`] when the earlier ones were sent.
    ///
    /// # Errors
    /// [`Status::INVALID_PARAMETER`]: a TSDU is incomplete and would be lost. Complete it or
    /// [discard](Self::discard_partial) it. [`Status::INVALID_CONNECTION`]: the sends were released
    /// or closed before.
    pub fn release(&mut self) -> Result<(), Status> {
        if self.phase != Phase::Open {
            return Err(Status::INVALID_CONNECTION);
        }
        if self.normal.open().is_some() || self.expedited.open().is_some() {
            return Err(Status::INVALID_PARAMETER);
        }
        //= TDI-DISC-03
        self.phase = Phase::Releasing;
        self.settle();
        Ok(())
    }

    /// Completes all pending requests with `status`, because the connection has ended.
    pub fn close(&mut self, status: Status) {
        self.end_all(|_| status);
    }

    /// Keeps buffers for [`take_spent`](Self::take_spent) instead of dropping them. An owner with a
    /// lock needs this, because the destructor of a buffer is the client's and may call the owner.
    pub(crate) fn keep_spent(&mut self) {
        self.spent.get_or_insert_default();
    }

    /// Returns the buffers that the owner must drop without its lock.
    pub(crate) fn take_spent(&mut self) -> Vec<Message> {
        self.spent.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<SendEvent> {
        self.events.pop_front()
    }

    /// Returns the number of bytes that a non-blocking send would take now. It is 0 while other
    /// requests wait for room, and if there is no send buffer.
    pub fn available(&self) -> usize {
        let waits = |class: &Class| {
            class
                .open()
                .is_some_and(|tsdu| tsdu.pending().next().is_some())
        };
        if self.settings.high_water == 0 || waits(&self.normal) || waits(&self.expedited) {
            return 0;
        }
        self.settings.high_water - self.used
    }

    /// Returns whether [`poll_tsdu`](Self::poll_tsdu) would return a TSDU.
    pub fn has_tsdu(&self) -> bool {
        !self.expedited.ready.is_empty() || !self.normal.ready.is_empty()
    }

    /// Returns whether a TSDU of the class that `flags` select is open, so that the next send of
    /// that class continues it. A TSDU that was withdrawn stays open until its last send was refused.
    pub fn is_open(&self, flags: SendFlags) -> bool {
        let class = if self.is_expedited(flags) {
            &self.expedited
        } else {
            &self.normal
        };
        !matches!(class.open, Slot::Empty)
    }

    /// Returns whether a non-blocking send was refused and [`SendEvent::SendPossible`] is pending.
    pub const fn is_refused(&self) -> bool {
        self.wanted.is_some()
    }

    /// Returns the number of bytes in the send buffer.
    pub const fn buffered(&self) -> usize {
        self.used
    }

    fn is_expedited(&self, flags: SendFlags) -> bool {
        //= TDI-SEND-06
        flags.contains(SendFlags::EXPEDITED) && self.settings.expedited == Expedited::LocalPriority
    }

    fn class_mut(&mut self, flags: SendFlags) -> &mut Class {
        if self.is_expedited(flags) {
            &mut self.expedited
        } else {
            &mut self.normal
        }
    }

    /// Withdraws the TSDUs that can be withdrawn and contain a request for which `pick` is true.
    /// Those requests complete with `status`, and the other requests of the TSDUs with
    /// [`Status::REQUEST_ABORTED`].
    fn withdraw(&mut self, status: Status, pick: impl Fn(&Pending) -> bool) -> bool {
        //= TDI-SEND-34
        let picked = |tsdu: &Tsdu| !tsdu.is_promised() && tsdu.pending().any(&pick);
        let mut withdrawn = Vec::new();
        for class in [&mut self.normal, &mut self.expedited] {
            let ready = std::mem::take(&mut class.ready).into_iter();
            let (out, left): (Vec<_>, Vec<_>) = ready.partition(picked);
            withdrawn.extend(out);
            class.ready = left.into();
            if class.open().is_some_and(picked)
                && let Slot::Open(tsdu) = std::mem::replace(&mut class.open, Slot::Withdrawn)
            {
                withdrawn.push(tsdu);
            }
        }
        let any = !withdrawn.is_empty();
        for tsdu in withdrawn {
            self.end(tsdu, |pending| {
                if pick(pending) {
                    status
                } else {
                    Status::REQUEST_ABORTED
                }
            });
        }
        any
    }

    /// Completes the pending requests of a TSDU, and frees its room.
    fn end(&mut self, tsdu: Tsdu, status: impl Fn(&Pending) -> Status) {
        self.used -= tsdu.buffered;
        if let Some(deadline) = tsdu.deadline {
            self.deadlines.remove(&deadline);
        }
        for Part { data, pending } in tsdu.parts {
            if let Some(pending) = pending {
                let status = status(&pending);
                self.complete(pending, status, data);
            } else if let Some(spent) = &mut self.spent {
                spent.push(data);
            }
        }
    }

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
        let information = if status.is_success() { buffer.len() } else { 0 };
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

    /// Uses room that was freed: first for requests that wait for room, then to clear the latch of
    /// refused sends.
    fn settle(&mut self) {
        while let Some((order, length)) = self.next_for_room() {
            if length > self.settings.high_water - self.used {
                break;
            }
            self.buffer_request(order);
        }
        //= TDI-SEND-17
        //= TDI-SEND-18
        let open = |class: &Class| class.open().map_or(0, |tsdu| tsdu.buffered);
        // An open TSDU cannot drain, so its bytes do not count.
        let drainable = self.used - open(&self.normal) - open(&self.expedited);
        let available = self.available();
        let enough = match drainable {
            // No more room will be freed, so any room is enough.
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

    /// Returns the order and the length of the oldest request that waits for room.
    fn next_for_room(&self) -> Option<(u64, usize)> {
        let open = [self.normal.open(), self.expedited.open()];
        let of = |tsdu: &Tsdu| {
            tsdu.parts.iter().find_map(|part| {
                let pending = part.pending.as_ref()?;
                Some((pending.order, part.data.len()))
            })
        };
        open.into_iter().flatten().filter_map(of).min()
    }

    /// Moves the request with this order number into the send buffer, and completes it.
    fn buffer_request(&mut self, order: u64) {
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
