//! [`Inbound`]: what arrives on one connection, from its segments to handlers and receive requests,
//! without clock or task.
//!
//! What the answer of a handler means for what comes next:
//!
//! | answer | to what was indicated | next |
//! |---|---|---|
//! | [`Taken`](Answer::Taken) | some or all | the rest is indicated, now or with more |
//! | [`Taken`](Answer::Taken) | nothing | it is indicated again with more; if no more can come, it is held |
//! | [`TakenThenReceive`](Answer::TakenThenReceive) | any | the rest, and what comes, fills the request; then indications go on |
//! | [`NotAccepted`](Answer::NotAccepted) | all, and nothing more is here | what comes is indicated |
//! | [`NotAccepted`](Answer::NotAccepted) | otherwise | everything is held for a receive, and until it is done nothing is indicated |
//!
//! What is held and what is lent counts against the receive buffer. Where that is full no more
//! is asked for, so the connection's own memory fills, and the peer gets no more credits. A client
//! that never receives will lose the connection to the timers of the peer.
//!
//! When the connection is over, whole TSDUs that are held can still be received.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Waker,
};

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::{
    flags::{IndicationFlags, ReceiveFlags},
    request::RequestId,
    status::Status,
};
use crate::{engine::Message, rdma::work::Token};

/// Charged for each TSDU on top of its bytes, so that many small ones are not free.
const OVERHEAD: usize = 128;
/// TSDUs that may wait in memory they share with others, which one byte can keep in use;
const SHARING: usize = 64;
/// not so if it has this many bytes of it.
const LARGE: usize = 16 << 10;

/// How what arrives is treated on a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiveSettings {
    /// Fewest bytes indicated, if the TSDU has so many left. TDI asks for 128.
    pub minimum_lookahead: usize,
    /// Most bytes indicated.
    pub maximum_lookahead: usize,
    /// Bytes that may be held and lent before no more is asked for. A TSDU that has begun to be
    /// indicated, or is to be lent, may come to its end all the same.
    /// The connection below has a buffer of its own,
    /// [`Settings::receive_buffer`](crate::Settings::receive_buffer), which fills next.
    pub receive_buffer: usize,
    /// How many of these may be lent. 0: nothing is, since nobody handles chained receives.
    pub lendable: usize,
}

impl Default for ReceiveSettings {
    fn default() -> Self {
        Self {
            minimum_lookahead: 128,
            maximum_lookahead: 64 << 10,
            receive_buffer: 4 << 20,
            lendable: 0,
        }
    }
}

/// A receive.
#[derive(Debug)]
pub struct ReceiveRequest {
    /// Its name.
    pub id: RequestId,
    /// To be filled over its whole length. Of no bytes: indications that a refusal has stopped go
    /// on.
    pub buffer: BytesMut,
    /// What it is to be given.
    pub flags: ReceiveFlags,
}

/// What became of a receive. Each has exactly one.
#[derive(Debug)]
pub struct ReceiveCompletion {
    /// The request.
    pub id: RequestId,
    /// [`SUCCESS`](Status::SUCCESS): up to the end of a TSDU.
    /// [`BUFFER_OVERFLOW`](Status::BUFFER_OVERFLOW): the buffer is full, and there is more of it.
    /// [`RECEIVE_PARTIAL`](Status::RECEIVE_PARTIAL): a peek that saw no end.
    pub status: Status,
    /// Bytes put into the buffer.
    pub information: usize,
    /// The buffer, of the length it had.
    pub buffer: BytesMut,
    /// With the end of a TSDU: the token of ours that it invalidated.
    pub invalidated_token: Option<Token>,
}

impl ReceiveCompletion {
    /// What was received, without the rest of the buffer.
    ///
    /// # Errors
    /// The status, if it is an error.
    pub fn into_data(mut self) -> Result<BytesMut, Status> {
        if self.status.is_error() {
            return Err(self.status);
        }
        self.buffer.truncate(self.information);
        Ok(self.buffer)
    }
}

/// Bytes shown to a handler, who says how many of them it takes.
#[derive(Clone, Debug)]
pub struct Indication {
    /// What they are.
    pub flags: IndicationFlags,
    /// The bytes indicated.
    pub data: Bytes,
    /// Bytes of the TSDU that are here, those indicated among them.
    pub available: usize,
    /// Bytes of the whole TSDU.
    pub tsdu_length: usize,
    /// Where in the TSDU the bytes begin.
    pub tsdu_offset: usize,
    /// With the end of a TSDU: the token of ours that it invalidated.
    pub invalidated_token: Option<Token>,
}

/// What a handler makes of an [`Indication`].
#[derive(Debug)]
pub enum Answer {
    /// So many bytes are taken; go on.
    Taken(usize),
    /// So many bytes are taken; what follows is to go into this request.
    TakenThenReceive(usize, ReceiveRequest),
    /// So many bytes are taken; hold what follows, until it is received.
    NotAccepted(usize),
}

/// Something for the client.
#[derive(Debug)]
pub enum ReceiveEvent {
    /// A request is over.
    Completed(ReceiveCompletion),
    /// Call the copying handler, and give its answer to [`Inbound::answer`].
    Indicate(Indication),
    /// Call the chained handler, and give its answer to [`Inbound::answer_chained`].
    Chained(ChainedTsdu),
    /// A message without bytes has invalidated this token of ours.
    Invalidated(Token),
}

/// A whole TSDU, lent: it can be read in place, and counts against what may be lent until it and
/// all its clones are dropped.
#[derive(Clone, Debug)]
pub struct ChainedTsdu {
    rest: Message,
    loan: Arc<Loan>,
}

/// What arrives on one connection.
///
/// Segments go in while [`wants_segment`](Self::wants_segment), receive requests at any time;
/// [`poll_event`](Self::poll_event) has what comes of it. After an indication it has no other
/// until that is answered.
///
/// ```
/// use bytes::{Bytes, BytesMut};
/// use smbdirect::tdi::{
///     Answer, Inbound, IndicationFlags, ReceiveEvent, ReceiveFlags, ReceiveRequest,
///     ReceiveSettings, RequestId, Status,
/// };
///
/// let mut inbound = Inbound::new(ReceiveSettings::default()).unwrap();
/// inbound.handle_segment(Bytes::from("header, body"), 0, None);
/// let Some(ReceiveEvent::Indicate(seen)) = inbound.poll_event() else { panic!() };
/// assert_eq!(seen.data, "header, body");
/// assert!(seen.flags.contains(IndicationFlags::ENTIRE_MESSAGE));
///
/// // The client takes the header, and has a place for the body.
/// let body = ReceiveRequest {
///     id: RequestId(1),
///     buffer: BytesMut::zeroed(4),
///     flags: ReceiveFlags::empty(),
/// };
/// inbound.answer(Answer::TakenThenReceive(8, body)).unwrap();
/// let Some(ReceiveEvent::Completed(body)) = inbound.poll_event() else { panic!() };
/// assert_eq!((body.status, &body.buffer[..]), (Status::SUCCESS, &b"body"[..]));
/// ```
#[derive(Debug)]
pub struct Inbound {
    settings: ReceiveSettings,
    /// What is here and was not taken; only the last can be incomplete.
    tsdus: VecDeque<Tsdu>,
    /// What they cost.
    held: usize,
    posted: VecDeque<Posted>,
    /// The client has no place: nothing is indicated before a receive is done.
    refused: bool,
    /// Indications are to go on, whatever the handler at work answers.
    resumed: bool,
    /// A handler is at work.
    offered: Option<Offered>,
    loans: Arc<Mutex<Loans>>,
    events: VecDeque<ReceiveEvent>,
    /// Somebody takes whole TSDUs.
    taken_whole: bool,
    /// Nothing more will come; what receives that find nothing end with.
    ended: Option<Status>,
}

#[derive(Debug)]
struct Posted {
    request: ReceiveRequest,
    placed: usize,
}

#[derive(Debug)]
enum Offered {
    /// So many bytes of the first TSDU.
    Copied(usize),
    Chained(Arc<Loan>),
}

#[derive(Debug, Default)]
struct Tsdu {
    /// What is here and was not taken; none is empty.
    slices: VecDeque<Bytes>,
    available: usize,
    taken: usize,
    /// Bytes still to come.
    remaining: usize,
    invalidated_token: Option<Token>,
    way: Option<Way>,
    /// As many bytes were indicated, and nothing of them was taken.
    seen: usize,
}

/// To which handler a TSDU was shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Copied,
    Chained,
}

/// What is lent, on all threads.
#[derive(Debug, Default)]
struct Loans {
    lent: usize,
    /// Whom to wake when something comes back.
    waker: Option<Waker>,
}

#[derive(Debug)]
struct Loan {
    whole: Message,
    cost: usize,
    loans: Arc<Mutex<Loans>>,
}

impl Inbound {
    /// Nothing has arrived yet.
    ///
    /// # Errors
    /// [`Status::INVALID_PARAMETER`]: the settings contradict each other.
    pub fn new(settings: ReceiveSettings) -> Result<Self, Status> {
        let ReceiveSettings {
            minimum_lookahead,
            maximum_lookahead,
            receive_buffer,
            lendable,
        } = settings;
        if !(1..=maximum_lookahead).contains(&minimum_lookahead)
            || receive_buffer == 0
            || lendable > receive_buffer
        {
            return Err(Status::INVALID_PARAMETER);
        }
        Ok(Self {
            settings,
            tsdus: VecDeque::new(),
            held: 0,
            posted: VecDeque::new(),
            refused: false,
            resumed: false,
            offered: None,
            loans: Arc::default(),
            events: VecDeque::new(),
            taken_whole: false,
            ended: None,
        })
    }

    /// Whether there is a use for more. Beyond that it is taken all the same, and memory grows.
    pub fn wants_segment(&self) -> bool {
        //= TDI-RECV-17
        let room = self.held + self.lent() < self.settings.receive_buffer;
        let begun = || {
            let first = self.tsdus.front();
            !self.refused && first.is_some_and(|first| first.remaining > 0)
        };
        self.ended.is_none() && (room || !self.posted.is_empty() || begun())
    }

    /// Bytes of a TSDU came, of which `remaining` are still to come.
    pub fn handle_segment(&mut self, payload: Bytes, remaining: usize, invalidated: Option<Token>) {
        if self.ended.is_some() {
            return;
        }
        if self.tsdus.back().is_none_or(|last| last.remaining == 0) {
            if payload.is_empty() && remaining == 0 {
                self.events
                    .extend(invalidated.map(ReceiveEvent::Invalidated));
                return;
            }
            self.held += OVERHEAD;
            self.tsdus.push_back(Tsdu::default());
        }
        let crowded = self.tsdus.len() > SHARING && payload.len() < LARGE;
        let tsdu = self.tsdus.back_mut().expect("there is one that goes on");
        self.held += payload.len();
        tsdu.available += payload.len();
        tsdu.remaining = remaining;
        tsdu.invalidated_token = invalidated;
        if !payload.is_empty() {
            tsdu.slices.push_back(match crowded {
                true => Bytes::copy_from_slice(&payload),
                false => payload,
            });
        }
        self.fill();
    }

    /// Submits a receive. Its completion comes as an event.
    pub fn receive(&mut self, request: ReceiveRequest) {
        if let Some(posted) = self.admit(request) {
            //= TDI-RECV-06
            self.posted.push_back(posted);
            self.fill();
        }
    }

    /// Whether somebody takes whole TSDUs by [`take_tsdu`](Self::take_tsdu). Meanwhile nothing is
    /// indicated. False if that was so before.
    pub const fn set_taken_whole(&mut self, taken_whole: bool) -> bool {
        std::mem::replace(&mut self.taken_whole, taken_whole) != taken_whole
    }

    /// The first TSDU, or what nobody has taken of it, if it is here to its end and no receive is
    /// posted. It counts against nothing any more.
    pub fn take_tsdu(&mut self) -> Option<Message> {
        if self.offered.is_some() || !self.posted.is_empty() {
            return None;
        }
        let first = self.tsdus.pop_front_if(|first| first.remaining == 0)?;
        self.held -= first.available + OVERHEAD;
        Some(first.into_message())
    }

    /// Cancels a receive that waits. False if there is none of this name any more. The bytes that
    /// one has got already are in its buffer, and nowhere else.
    pub fn cancel(&mut self, id: RequestId) -> bool {
        let is_it = |posted: &Posted| posted.request.id == id;
        let Some(place) = self.posted.iter().position(is_it) else {
            return false;
        };
        let posted = self.posted.remove(place).expect("it was just found");
        self.complete(posted, Status::CANCELLED, None);
        true
    }

    /// Whether nothing is here, and nothing will come.
    pub fn is_exhausted(&self) -> bool {
        self.ended.is_some() && self.tsdus.is_empty()
    }

    /// What has to wait of a request; the others are done at once.
    fn admit(&mut self, request: ReceiveRequest) -> Option<Posted> {
        let either = ReceiveFlags::NORMAL | ReceiveFlags::EXPEDITED;
        let status = if self.is_exhausted() {
            Status::INVALID_CONNECTION
        } else if !ReceiveFlags::all().contains(request.flags) {
            Status::INVALID_PARAMETER
        } else if request.flags & either == ReceiveFlags::EXPEDITED {
            //= TDI-RECV-01
            Status::NOT_SUPPORTED
        } else if request.flags.contains(ReceiveFlags::PEEK) {
            self.peek(request);
            return None;
        } else if request.buffer.is_empty() {
            self.resume();
            Status::SUCCESS
        } else {
            return Some(Posted { request, placed: 0 });
        };
        self.complete(Posted { request, placed: 0 }, status, None);
        None
    }

    /// Copies what is there of the first TSDU, and leaves it there.
    fn peek(&mut self, request: ReceiveRequest) {
        let mut posted = Posted { request, placed: 0 };
        let mut ends = false;
        if let Some(first) = self.tsdus.front() {
            for slice in &first.slices {
                posted.place(slice);
            }
            ends = first.remaining == 0 && posted.placed == first.available;
        }
        //= TDI-RECV-05
        let status = match ends {
            true => Status::SUCCESS,
            false => Status::RECEIVE_PARTIAL,
        };
        self.complete(posted, status, None);
    }

    /// What is to be done next. `None` while an indication is not answered.
    pub fn poll_event(&mut self) -> Option<ReceiveEvent> {
        //= TDI-RECV-14
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        //= TDI-RECV-08
        //= TDI-RECV-10
        //= TDI-RECV-11
        if self.offered.is_some() || !self.posted.is_empty() || self.refused || self.taken_whole {
            return None;
        }
        self.offer()
    }

    /// What is to be done next besides indications.
    pub fn poll_completed(&mut self) -> Option<ReceiveEvent> {
        self.events.pop_front()
    }

    /// Shows the first TSDU to a handler, if there is enough of it.
    fn offer(&mut self) -> Option<ReceiveEvent> {
        let lendable = self.settings.lendable.saturating_sub(self.lent());
        let first = self.tsdus.front_mut()?;
        let cost = first.length() + OVERHEAD;
        //= TDI-CHN-03
        let is_chained = match first.way {
            //= TDI-CHN-04
            None => first.taken == 0 && cost <= lendable,
            Some(way) => way == Way::Chained,
        };
        if !is_chained {
            let indication = first.indication(&self.settings)?;
            first.way = Some(Way::Copied);
            self.offered = Some(Offered::Copied(indication.data.len()));
            return Some(ReceiveEvent::Indicate(indication));
        }
        //= TDI-CHN-01
        if first.remaining > 0 || first.taken > 0 {
            return None;
        }
        let first = self.tsdus.pop_front()?;
        self.held -= cost;
        let whole = first.into_message();
        let rest = whole.clone();
        let loan = Loan::new(whole, cost, self.loans.clone());
        self.offered = Some(Offered::Chained(loan.clone()));
        Some(ReceiveEvent::Chained(ChainedTsdu { rest, loan }))
    }

    /// What the copying handler made of the indication.
    ///
    /// # Errors
    /// [`Status::INVALID_PARAMETER`]: it took more than there was; all of it is taken.
    /// [`Status::INVALID_DEVICE_STATE`]: nothing was indicated, or the connection ended since. A
    /// request that came with the answer is completed.
    pub fn answer(&mut self, answer: Answer) -> Result<(), Status> {
        let Some(Offered::Copied(indicated)) = self.offered else {
            if let Answer::TakenThenReceive(_, request) = answer {
                let status = match self.ended {
                    Some(_) => Status::INVALID_CONNECTION,
                    None => Status::INVALID_DEVICE_STATE,
                };
                self.complete(Posted { request, placed: 0 }, status, None);
            }
            return Err(Status::INVALID_DEVICE_STATE);
        };
        self.offered = None;
        let (Answer::Taken(count)
        | Answer::TakenThenReceive(count, _)
        | Answer::NotAccepted(count)) = answer;
        let taken = count.min(indicated);
        self.take(taken);
        match answer {
            Answer::Taken(0) => {
                let first = self.tsdus.front_mut().expect("nothing of it was taken");
                first.seen = first.available;
                // Nothing would change if it were indicated again.
                self.refused = first.remaining == 0;
            }
            Answer::Taken(_) => {}
            Answer::TakenThenReceive(_, request) => {
                if let Some(posted) = self.admit(request) {
                    // Requests submitted while the handler was at work come after it.
                    self.posted.push_front(posted);
                }
            }
            Answer::NotAccepted(_) => {
                let all_taken = self.tsdus.iter().all(|tsdu| tsdu.available == 0);
                self.refused = !all_taken;
            }
        }
        self.resume_if_asked();
        self.fill();
        match count <= indicated {
            true => Ok(()),
            false => Err(Status::INVALID_PARAMETER),
        }
    }

    /// What the chained handler made of the TSDU: nothing, if it was read or kept; or the TSDU
    /// itself, if it was not accepted.
    ///
    /// # Errors
    /// [`Status::INVALID_PARAMETER`]: this is another TSDU than was indicated.
    /// [`Status::INVALID_DEVICE_STATE`]: none was, or the connection ended since.
    pub fn answer_chained(&mut self, answer: Result<(), ChainedTsdu>) -> Result<(), Status> {
        let Some(Offered::Chained(loan)) = self.offered.take_if(|offered| offered.is_chained())
        else {
            return Err(Status::INVALID_DEVICE_STATE);
        };
        let result = match answer {
            Ok(()) => Ok(()),
            Err(tsdu) if !Arc::ptr_eq(&tsdu.loan, &loan) => Err(Status::INVALID_PARAMETER),
            Err(tsdu) => {
                //= TDI-CHN-06
                self.refused = true;
                self.held += loan.cost;
                self.tsdus.push_front(tsdu.given_back());
                Ok(())
            }
        };
        self.resume_if_asked();
        self.fill();
        result
    }

    /// Indications that a refusal has stopped go on. While a handler is at work this is about the
    /// refusal that it may be about to give: who has got a place in the meantime cannot know.
    pub fn resume(&mut self) {
        self.resumed = self.offered.is_some();
        self.refused = false;
        if let Some(first) = self.tsdus.front_mut() {
            first.seen = 0;
        }
    }

    fn resume_if_asked(&mut self) {
        if std::mem::take(&mut self.resumed) {
            self.resume();
        }
    }

    /// Nothing more will come: receives for which nothing is here end with `status`. Whole TSDUs
    /// that are held can be received as before, and are indicated unless that was refused. A TSDU
    /// of which the end was not indicated will not be complete.
    pub fn finish(&mut self, status: Status) {
        self.ended = Some(status);
        if let Some(last) = self.tsdus.pop_back_if(|last| last.remaining > 0) {
            self.held -= last.available + OVERHEAD;
            if self.tsdus.is_empty() {
                self.offered = None;
            }
        }
        self.fill();
    }

    /// The connection is over: receives end with `status`, and what is held is gone.
    pub fn close(&mut self, status: Status) {
        self.tsdus.clear();
        self.held = 0;
        self.offered = None;
        self.finish(status);
    }

    /// Nothing is indicated any more; what is held can be received.
    pub fn stop_indications(&mut self) {
        self.refused = true;
    }

    /// How many bytes may be lent to the chained handler from now on; 0 if there is none.
    pub fn set_lendable(&mut self, lendable: usize) {
        self.settings.lendable = lendable.min(self.settings.receive_buffer);
    }

    /// What the TSDUs cost that are held.
    pub const fn held(&self) -> usize {
        self.held
    }

    /// What the TSDUs cost that are lent.
    pub fn lent(&self) -> usize {
        lock(&self.loans).lent
    }

    /// Wakes `waker` when something lent comes back, on whatever thread that happens.
    pub fn watch_loans(&self, waker: &Waker) {
        lock(&self.loans).waker = Some(waker.clone());
    }

    /// Fills posted receives, unless a handler is looking at the data.
    fn fill(&mut self) {
        if self.offered.is_some() {
            return;
        }
        while let (Some(posted), Some(first)) = (self.posted.front_mut(), self.tsdus.front_mut()) {
            let count = first.take_into(posted);
            self.held -= count;
            let (is_full, token) = (posted.is_full(), first.invalidated_token);
            //= TDI-RECV-02
            let status = if first.is_at_end() {
                self.drop_first();
                Status::SUCCESS
            } else if is_full {
                //= TDI-RECV-04
                Status::BUFFER_OVERFLOW
            } else {
                return;
            };
            let posted = self.posted.pop_front().expect("it was just filled");
            let token = token.filter(|_| status == Status::SUCCESS);
            self.refused = false;
            self.complete(posted, status, token);
        }
        if let Some(status) = self.ended
            && self.tsdus.is_empty()
        {
            while let Some(posted) = self.posted.pop_front() {
                self.complete(posted, status, None);
            }
        }
    }

    /// Takes bytes that were indicated.
    fn take(&mut self, count: usize) {
        let first = self.tsdus.front_mut().expect("it was indicated");
        //= TDI-RECV-12
        first.take(count);
        self.held -= count;
        if first.is_at_end() {
            self.drop_first();
        }
    }

    fn drop_first(&mut self) {
        self.tsdus.pop_front();
        self.held -= OVERHEAD;
    }

    fn complete(&mut self, posted: Posted, status: Status, invalidated_token: Option<Token>) {
        let Posted {
            request: ReceiveRequest { id, buffer, .. },
            placed,
        } = posted;
        self.events
            .push_back(ReceiveEvent::Completed(ReceiveCompletion {
                id,
                status,
                information: placed,
                buffer,
                invalidated_token,
            }));
    }
}

impl Posted {
    /// Copies as much as there is place for, and says how much that was.
    fn place(&mut self, bytes: &[u8]) -> usize {
        let mut place = &mut self.request.buffer[self.placed..];
        let count = bytes.len().min(place.len());
        place.put_slice(&bytes[..count]);
        self.placed += count;
        count
    }

    fn is_full(&self) -> bool {
        self.placed == self.request.buffer.len()
    }
}

impl Offered {
    const fn is_chained(&self) -> bool {
        matches!(self, Self::Chained(_))
    }
}

impl Tsdu {
    const fn length(&self) -> usize {
        self.taken + self.available + self.remaining
    }

    const fn is_at_end(&self) -> bool {
        self.available == 0 && self.remaining == 0
    }

    /// The next indication, if there is enough for one that was not seen.
    fn indication(&mut self, settings: &ReceiveSettings) -> Option<Indication> {
        let enough = settings
            .minimum_lookahead
            .min(self.available + self.remaining);
        //= TDI-RECV-15
        if self.available < enough || self.available == self.seen {
            return None;
        }
        let data = self.lookahead(enough, settings.maximum_lookahead);
        let mut flags = IndicationFlags::NORMAL | IndicationFlags::AT_DISPATCH_LEVEL;
        flags.set(IndicationFlags::PEEK, self.remaining > 0);
        flags.set(IndicationFlags::COPY_LOOKAHEAD, data.len() < self.available);
        //= TDI-SEND-10
        //= TDI-RECV-13
        let ends = self.remaining == 0 && data.len() == self.available;
        flags.set(IndicationFlags::ENTIRE_MESSAGE, ends);
        Some(Indication {
            flags,
            available: self.available,
            tsdu_length: self.length(),
            tsdu_offset: self.taken,
            invalidated_token: self.invalidated_token.filter(|_| ends),
            data,
        })
    }

    /// The first bytes in one piece, copied together only where a slice is too short.
    fn lookahead(&mut self, minimum: usize, maximum: usize) -> Bytes {
        if self
            .slices
            .front()
            .is_some_and(|first| first.len() < minimum)
        {
            let mut gathered = BytesMut::with_capacity(minimum);
            while gathered.len() < minimum
                && let Some(slice) = self.slices.front_mut()
            {
                let count = slice.len().min(minimum - gathered.len());
                gathered.extend_from_slice(&slice.split_to(count));
                if slice.is_empty() {
                    self.slices.pop_front();
                }
            }
            self.slices.push_front(gathered.freeze());
        }
        let first = self.slices.front().expect("something is available");
        first.slice(..first.len().min(maximum))
    }

    fn take(&mut self, mut count: usize) {
        self.taken += count;
        self.available -= count;
        self.seen = 0;
        while count > 0 {
            let slice = self.slices.front_mut().expect("it has what is available");
            let part = count.min(slice.len());
            slice.advance(part);
            count -= part;
            if slice.is_empty() {
                self.slices.pop_front();
            }
        }
    }

    /// What nobody has taken of it.
    fn into_message(self) -> Message {
        let message: Message = self.slices.into_iter().collect();
        message.invalidating(self.invalidated_token)
    }

    /// Moves bytes into a request, and says how many.
    fn take_into(&mut self, posted: &mut Posted) -> usize {
        let mut count = 0;
        for slice in &self.slices {
            count += posted.place(slice);
        }
        self.take(count);
        count
    }
}

impl ChainedTsdu {
    /// Bytes in the TSDU.
    pub fn len(&self) -> usize {
        self.loan.whole.len()
    }

    /// Whether there are none, which does not happen.
    pub fn is_empty(&self) -> bool {
        self.loan.whole.is_empty()
    }

    /// The token of ours that it invalidated, if it did.
    pub fn invalidated_token(&self) -> Option<Token> {
        self.loan.whole.invalidated_token()
    }

    /// The whole TSDU, which counts against nothing any more.
    pub fn into_message(self) -> Message {
        self.loan.whole.clone()
    }

    /// As it was, however much was read of it.
    fn given_back(self) -> Tsdu {
        let mut whole = self.loan.whole.clone();
        let mut tsdu = Tsdu {
            available: whole.len(),
            invalidated_token: whole.invalidated_token(),
            way: Some(Way::Chained),
            ..Tsdu::default()
        };
        while whole.has_remaining() {
            let count = whole.chunk().len();
            tsdu.slices.push_back(whole.copy_to_bytes(count));
        }
        tsdu
    }
}

//= TDI-CHN-02
/// Reads it in place. What is read is still part of the TSDU if that is given back.
impl Buf for ChainedTsdu {
    fn remaining(&self) -> usize {
        self.rest.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.rest.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.rest.advance(count);
    }
}

impl Loan {
    fn new(whole: Message, cost: usize, loans: Arc<Mutex<Loans>>) -> Arc<Self> {
        lock(&loans).lent += cost;
        Arc::new(Self { whole, cost, loans })
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        let mut loans = lock(&self.loans);
        //= TDI-CHN-05
        loans.lent -= self.cost;
        let waker = loans.waker.take();
        drop(loans);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// A panic under the lock is a bug of ours; others are not to suffer from it.
fn lock(loans: &Mutex<Loans>) -> MutexGuard<'_, Loans> {
    loans.lock().unwrap_or_else(PoisonError::into_inner)
}
