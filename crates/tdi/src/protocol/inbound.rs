//! [`Inbound`]: the decisions about the received data of one connection, from its segments to
//! handlers and receives, without a clock and without a task.
//!
//! What follows an indication depends on the answer of the handler:
//!
//! | answer | bytes taken | what follows |
//! |---|---|---|
//! | [`Taken`](Answer::Taken) | some or all | the rest is indicated, now or when more has arrived |
//! | [`Taken`](Answer::Taken) | none | the data is indicated again when more has arrived; if the TSDU is complete, it is held |
//! | [`TakenThenReceive`](Answer::TakenThenReceive) | any | the rest and later data fill the request, then indications continue |
//! | [`NotAccepted`](Answer::NotAccepted) | all, and no more data has arrived | later data is indicated |
//! | [`NotAccepted`](Answer::NotAccepted) | otherwise | all data is held for receives, and no data is indicated until a receive completes |
//!
//! Data that is held or lent counts against the receive buffer. When the receive buffer is full, no more data is
//! taken from the connection. Then the buffer of the connection fills, and the peer is granted no more credits.
//! The timers of the peer end the connection of a client that never receives.
//!
//! After the connection has ended, whole TSDUs that are held can still be received.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    task::Waker,
};

use bytes::{Bytes, BytesMut};
use smbdirect::{Message, Token};

use super::{
    chained::{self, ChainedTsdu, Loan, Loans},
    flags::ReceiveFlags,
    receive::{
        Answer, ReceiveBuffer, ReceiveCompletion, ReceiveEvent, ReceiveRequest, ReceiveSettings,
    },
    request::RequestId,
    status::Status,
    tsdu::{Handler, Posted, Tsdu},
};

/// Bytes that each TSDU costs in addition to its data, so that many small TSDUs also fill the receive buffer.
const TSDU_COST_BYTES: usize = 128;
/// Number of TSDUs that can be held in buffers that they share with other messages. One byte of a TSDU keeps its
/// whole buffer allocated, so the data of further TSDUs is copied.
const MAX_UNCOPIED_TSDUS: usize = 64;
/// Payloads of at least this length are never copied, because they use most of their buffer.
const UNCOPIED_PAYLOAD_BYTES: usize = 16 << 10;

/// The received data of one connection.
///
/// Add segments while [`wants_segment`](Self::wants_segment) returns true, and receives at any time.
/// [`poll_event`](Self::poll_event) returns the resulting events. After an indication it returns no other
/// indication until that one is answered.
///
/// ```
/// use bytes::{Bytes, BytesMut};
/// use smbdirect_tdi::{
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
/// // The client takes the header, and provides a buffer for the body.
/// let body = ReceiveRequest {
///     id: RequestId(1),
///     buffer: BytesMut::zeroed(4).into(),
///     flags: ReceiveFlags::empty(),
/// };
/// inbound.answer(Answer::TakenThenReceive(8, body)).unwrap();
/// let Some(ReceiveEvent::Completed(body)) = inbound.poll_event() else { panic!() };
/// assert_eq!((body.status, &body.buffer[..]), (Status::SUCCESS, &b"body"[..]));
/// ```
#[derive(Debug)]
pub struct Inbound {
    settings: ReceiveSettings,
    /// The data that has arrived and was not taken. Only the last TSDU can be incomplete.
    tsdus: VecDeque<Tsdu>,
    /// The cost of `tsdus` in bytes.
    held: usize,
    posted: VecDeque<Posted>,
    /// The handler did not accept data, so none is indicated until a receive completes.
    refused: bool,
    /// Indications were resumed while a handler runs, so its answer does not stop them.
    resumed: bool,
    /// The indication that a handler is processing.
    offered: Option<Offered>,
    loans: Arc<Mutex<Loans>>,
    events: VecDeque<ReceiveEvent>,
    /// A stream takes whole TSDUs.
    taken_whole: bool,
    /// No more data will arrive; receives that find no data complete with this status.
    ended: Option<Status>,
}

#[derive(Debug)]
enum Offered {
    /// The copying handler was shown this many bytes of the first TSDU.
    Copied(usize),
    Chained(Arc<Loan>),
}

impl Inbound {
    /// Creates the receives of a connection on which no data has arrived.
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

    /// Returns whether another segment should be added. A segment that is added anyway is accepted
    /// and uses more memory than the settings allow.
    pub fn wants_segment(&self) -> bool {
        //= TDI-RECV-17
        let has_room = self.held + self.lent() < self.settings.receive_buffer;
        let has_started_tsdu = || {
            let first = self.tsdus.front();
            let wanted = self.taken_whole || !self.refused;
            wanted && first.is_some_and(|first| first.remaining > 0)
        };
        self.ended.is_none() && (has_room || !self.posted.is_empty() || has_started_tsdu())
    }

    /// Adds bytes of a TSDU, of which `remaining` bytes have not arrived.
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
            self.held += TSDU_COST_BYTES;
            self.tsdus.push_back(Tsdu::default());
        }
        let copies =
            self.tsdus.len() > MAX_UNCOPIED_TSDUS && payload.len() < UNCOPIED_PAYLOAD_BYTES;
        let tsdu = self.tsdus.back_mut().expect("an incomplete TSDU is last");
        self.held += payload.len();
        tsdu.available += payload.len();
        tsdu.remaining = remaining;
        tsdu.invalidated_token = invalidated;
        if !payload.is_empty() {
            tsdu.append(if copies {
                Bytes::copy_from_slice(&payload)
            } else {
                payload
            });
        }
        self.fill();
    }

    /// Submits a receive, whose completion is reported as an event.
    pub fn receive(&mut self, request: ReceiveRequest) {
        if let Some(posted) = self.admit(request) {
            //= TDI-RECV-06
            self.posted.push_back(posted);
            self.fill();
        }
    }

    /// Sets whether a stream takes whole TSDUs with [`take_tsdu`](Self::take_tsdu), during which no
    /// data is indicated. Returns whether that changed.
    pub const fn set_taken_whole(&mut self, taken_whole: bool) -> bool {
        std::mem::replace(&mut self.taken_whole, taken_whole) != taken_whole
    }

    /// Returns whether a stream takes whole TSDUs.
    pub(crate) const fn is_taken_whole(&self) -> bool {
        self.taken_whole
    }

    /// Takes the bytes of the first TSDU that were not taken yet, if the TSDU is complete and no receive is
    /// pending. They no longer count against the receive buffer.
    pub fn take_tsdu(&mut self) -> Option<Message> {
        if self.offered.is_some() || !self.posted.is_empty() {
            return None;
        }
        let first = self.tsdus.pop_front_if(|first| first.remaining == 0)?;
        self.held -= first.available + TSDU_COST_BYTES;
        Some(first.into_message())
    }

    /// Cancels a pending receive, and returns whether there was one with this id. The bytes that
    /// were placed in its buffer are not received again.
    pub fn cancel(&mut self, id: RequestId) -> bool {
        let is_it = |posted: &Posted| posted.request.id == id;
        let Some(index) = self.posted.iter().position(is_it) else {
            return false;
        };
        let posted = self.posted.remove(index).expect("it was just found");
        self.complete(posted, Status::CANCELLED, None);
        true
    }

    /// Returns whether no data is left and no more will arrive. Data is left while the chained handler has a TSDU
    /// that it can return.
    pub fn is_exhausted(&self) -> bool {
        self.ended.is_some() && self.tsdus.is_empty() && self.offered.is_none()
    }

    /// Returns the receive if it has to wait for data. Completes it otherwise.
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
        } else if request.buffer.capacity() == 0 {
            self.resume();
            Status::SUCCESS
        } else {
            return Some(Posted { request, placed: 0 });
        };
        self.complete(Posted { request, placed: 0 }, status, None);
        None
    }

    /// Copies the available bytes of the first TSDU without taking them.
    fn peek(&mut self, request: ReceiveRequest) {
        let mut posted = Posted { request, placed: 0 };
        let mut ends = false;
        if let Some(first) = self.tsdus.front() {
            for slice in first.slices() {
                posted.place(slice);
            }
            ends = first.remaining == 0 && posted.placed == first.available;
        }
        //= TDI-RECV-05
        let status = if ends {
            Status::SUCCESS
        } else {
            Status::RECEIVE_PARTIAL
        };
        self.complete(posted, status, None);
    }

    /// Returns the next event. It returns no indication while another one is unanswered.
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

    /// Returns the next event that is not an indication.
    pub fn poll_completed(&mut self) -> Option<ReceiveEvent> {
        self.events.pop_front()
    }

    /// Returns the indication of the first TSDU, if enough of it has arrived.
    fn offer(&mut self) -> Option<ReceiveEvent> {
        let lendable = self.settings.lendable.saturating_sub(self.lent());
        let first = self.tsdus.front_mut()?;
        let cost = first.length() + TSDU_COST_BYTES;
        //= TDI-CHN-03
        let is_chained = match first.handler {
            //= TDI-CHN-04
            None => first.taken == 0 && cost <= lendable,
            // A client without a chained handler may have been set after the first indication.
            Some(handler) => handler == Handler::Chained && self.settings.lendable > 0,
        };
        if !is_chained {
            let indication = first.indication(&self.settings)?;
            first.handler = Some(Handler::Copying);
            self.offered = Some(Offered::Copied(indication.data.len()));
            return Some(ReceiveEvent::Indicate(indication));
        }
        //= TDI-CHN-01
        if first.remaining > 0 || first.taken > 0 {
            return None;
        }
        let first = self.tsdus.pop_front()?;
        self.held -= cost;
        let tsdu = ChainedTsdu::new(first.into_message(), cost, self.loans.clone());
        self.offered = Some(Offered::Chained(tsdu.loan().clone()));
        Some(ReceiveEvent::Chained(tsdu))
    }

    /// Handles the answer of the copying handler to an indication.
    ///
    /// # Errors
    /// [`Status::INVALID_PARAMETER`]: the handler took more than was indicated; all indicated bytes count as
    /// taken. [`Status::INVALID_DEVICE_STATE`]: no indication waits for an answer, or the connection has ended
    /// meanwhile; a request in the answer then completes with an error.
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
                first.declined_at = first.available;
                // A complete TSDU would be indicated again unchanged, so it is held instead.
                self.refused = first.remaining == 0;
            }
            Answer::Taken(_) => {}
            Answer::TakenThenReceive(_, request) => {
                if let Some(posted) = self.admit(request) {
                    // It precedes the receives that were submitted while the handler ran.
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
        if count <= indicated {
            Ok(())
        } else {
            Err(Status::INVALID_PARAMETER)
        }
    }

    /// Handles the answer of the chained handler: `Ok` if it read or kept the TSDU, or the TSDU
    /// itself if it did not accept it.
    ///
    /// # Errors
    /// [`Status::INVALID_PARAMETER`]: the TSDU is not the one that was indicated.
    /// [`Status::INVALID_DEVICE_STATE`]: no indication waits for an answer, or the connection has ended
    /// meanwhile.
    pub fn answer_chained(&mut self, answer: Result<(), ChainedTsdu>) -> Result<(), Status> {
        let Some(Offered::Chained(loan)) = self.offered.take_if(|offered| offered.is_chained())
        else {
            return Err(Status::INVALID_DEVICE_STATE);
        };
        let result = match answer {
            Ok(()) => Ok(()),
            Err(tsdu) if !Arc::ptr_eq(tsdu.loan(), &loan) => Err(Status::INVALID_PARAMETER),
            Err(tsdu) => {
                //= TDI-CHN-06
                self.refused = true;
                self.held += loan.cost();
                self.tsdus.push_front(Tsdu::from_chained(tsdu));
                Ok(())
            }
        };
        self.resume_if_asked();
        self.fill();
        result
    }

    /// Resumes indications that a handler has stopped.
    ///
    /// While a handler runs, this also overrides the answer that it is about to return, because the
    /// handler may not know that the client can accept data again.
    pub fn resume(&mut self) {
        self.resumed = self.offered.is_some();
        self.refused = false;
        if let Some(first) = self.tsdus.front_mut() {
            first.declined_at = 0;
        }
    }

    fn resume_if_asked(&mut self) {
        if std::mem::take(&mut self.resumed) {
            self.resume();
        }
    }

    /// Records that no more data will arrive.
    ///
    /// Receives that find no data complete with `status`. Whole TSDUs that are held can be received
    /// as before, and are indicated unless a handler has stopped indications. An incomplete TSDU is
    /// discarded.
    pub fn finish(&mut self, status: Status) {
        self.ended = Some(status);
        if let Some(last) = self.tsdus.pop_back_if(|last| last.remaining > 0) {
            self.held -= last.available + TSDU_COST_BYTES;
            if self.tsdus.is_empty() {
                // If the copying handler is processing an indication, the indication concerns the TSDU that was
                // just discarded, so it is forgotten. The chained handler has a whole TSDU, which it can still
                // return.
                self.offered.take_if(|offered| !offered.is_chained());
            }
        }
        self.fill();
    }

    /// Completes all receives with `status` and discards all data, because the connection has
    /// ended.
    pub fn close(&mut self, status: Status) {
        self.tsdus.clear();
        self.held = 0;
        self.offered = None;
        self.finish(status);
    }

    /// Sets the number of bytes that may be lent to the chained handler; 0 if there is none.
    pub fn set_lendable(&mut self, lendable: usize) {
        self.settings.lendable = lendable.min(self.settings.receive_buffer);
    }

    /// Returns the cost of the TSDUs that are held, in bytes.
    pub const fn held(&self) -> usize {
        self.held
    }

    /// Returns the cost of the TSDUs that are lent, in bytes.
    pub fn lent(&self) -> usize {
        chained::lent(&self.loans)
    }

    /// Wakes `waker` when a lent TSDU is returned, on the thread that returns it.
    pub fn watch_loans(&self, waker: &Waker) {
        chained::watch(&self.loans, waker);
    }

    /// Fills pending receives, unless a handler is processing the data.
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
        self.held -= TSDU_COST_BYTES;
    }

    fn complete(&mut self, posted: Posted, status: Status, invalidated_token: Option<Token>) {
        let Posted {
            request: ReceiveRequest { id, buffer, .. },
            placed,
        } = posted;
        let (buffer, target) = match buffer {
            ReceiveBuffer::Bytes(bytes) => (bytes, None),
            ReceiveBuffer::Target(target) => (BytesMut::new(), Some(target)),
        };
        self.events
            .push_back(ReceiveEvent::Completed(ReceiveCompletion {
                id,
                status,
                information: placed,
                buffer,
                target,
                invalidated_token,
            }));
    }
}

impl Offered {
    const fn is_chained(&self) -> bool {
        matches!(self, Self::Chained(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only the data of many small TSDUs is copied.
    #[test]
    fn payloads_are_copied_if_they_keep_much_more_memory_allocated() {
        for (before, length, is_copied) in [
            (0, 1, false),
            (MAX_UNCOPIED_TSDUS - 1, 1, false),
            (MAX_UNCOPIED_TSDUS, 1, true),
            (MAX_UNCOPIED_TSDUS + 1, 1, true),
            (MAX_UNCOPIED_TSDUS, UNCOPIED_PAYLOAD_BYTES - 1, true),
            (MAX_UNCOPIED_TSDUS, UNCOPIED_PAYLOAD_BYTES, false),
            (MAX_UNCOPIED_TSDUS, UNCOPIED_PAYLOAD_BYTES + 1, false),
        ] {
            let mut inbound = Inbound::new(ReceiveSettings::default()).unwrap();
            for _ in 0..before {
                inbound.handle_segment("x".into(), 0, None);
            }
            let payload = Bytes::from(vec![7; length]);
            inbound.handle_segment(payload.clone(), 0, None);
            let last = inbound.tsdus.back().unwrap().slices()[0].as_ptr();
            assert_eq!(
                last != payload.as_ptr(),
                is_copied,
                "{length} bytes after {before}"
            );
        }
    }
}
