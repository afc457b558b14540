//! [`Receives`]: the received data of one connection, shared by the handles of its endpoint and by
//! its task.

use std::{
    mem,
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use bytes::BytesMut;
use smbdirect::{Message, Segment, Token};
use tokio::sync::oneshot;

use super::completions::Completions;
use crate::protocol::{
    Answer, ChainedTsdu, Inbound, Indication, ReceiveBuffer, ReceiveCompletion, ReceiveEvent,
    ReceiveFlags, ReceiveRequest, ReceiveTarget, RequestId, ResourceStatistics, Status,
};

/// The id of the request that a handler has returned. At most one exists at a time, because no data
/// is indicated until it completes.
const HANDLER_REQUEST: RequestId = RequestId(u64::MAX);

/// The received data and the receives of one connection.
#[derive(Debug)]
pub(crate) struct Receives {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    inbound: Inbound,
    completions: Completions<ReceiveCompletion, ReceiveNews>,
    /// The id that the client gave to the request that its handler returned.
    handler_request: RequestId,
    /// The waker of the stream that waits for a whole TSDU.
    reader: Option<Waker>,
    /// Whether the receive buffer has no room at present.
    is_full: bool,
    /// The endpoint has another connection, so only a stream can still take data.
    is_abandoned: bool,
}

/// An event of the receives for which the connection's task calls a handler.
#[derive(Debug)]
pub(crate) enum ReceiveNews {
    Indicate(Indication),
    Chained(ChainedTsdu),
    /// The request that a handler returned has completed.
    Completed(ReceiveCompletion),
    /// The receive into a target has completed with this status and this number of bytes.
    Filled(Box<dyn ReceiveTarget>, Status, usize),
    Invalidated(Token),
}

impl Receives {
    pub(crate) fn new(inbound: Inbound) -> Self {
        Self {
            state: Mutex::new(State {
                inbound,
                completions: Completions::default(),
                reader: None,
                handler_request: HANDLER_REQUEST,
                is_full: false,
                is_abandoned: false,
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `action` under the lock, then wakes tasks and delivers completions without the lock.
    fn with<R>(&self, action: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.lock();
        let result = action(&mut state);
        let due = state.completions.take_due();
        drop(state);
        due.deliver();
        result
    }

    pub(crate) fn receive(
        &self,
        buffer: BytesMut,
        flags: ReceiveFlags,
    ) -> (RequestId, oneshot::Receiver<ReceiveCompletion>) {
        self.with(|state| {
            let pending = state.completions.add();
            state.submit(pending.0, buffer.into(), flags);
            pending
        })
    }

    /// Submits a receive that completes at its target, or returns the target if the task of the connection has ended.
    pub(crate) fn receive_into(
        &self,
        target: Box<dyn ReceiveTarget>,
        flags: ReceiveFlags,
    ) -> Result<RequestId, Box<dyn ReceiveTarget>> {
        self.with(|state| {
            if state.completions.is_over {
                return Err(target);
            }
            let id = state.completions.next_id();
            state.submit(id, ReceiveBuffer::Target(target), flags);
            Ok(id)
        })
    }

    /// Cancels the receive `id` if it is pending, and returns whether it was pending.
    pub(crate) fn cancel(&self, id: RequestId) -> bool {
        self.with(|state| {
            let cancelled = state.inbound.cancel(id);
            state.settle();
            state.completions.wake_task();
            cancelled
        })
    }

    /// Sets whether a stream takes whole TSDUs. Returns whether that changed.
    pub(crate) fn set_taken_whole(&self, taken_whole: bool) -> bool {
        let mut old = None;
        self.with(|state| {
            let changed = state.inbound.set_taken_whole(taken_whole);
            if changed {
                old = state.reader.take();
                state.completions.wake_task();
            }
            state.discard_abandoned();
            changed
        })
    }

    /// Discards the data that is held once no stream takes it, because the endpoint has another connection.
    pub(crate) fn abandon(&self) {
        self.with(|state| {
            state.is_abandoned = true;
            state.discard_abandoned();
        });
    }

    /// Returns the next whole TSDU, or `None` after the last one of the connection.
    pub(crate) fn poll_tsdu(&self, context: &mut Context<'_>) -> Poll<Option<Message>> {
        let mut old = None;
        self.with(|state| {
            if let Some(tsdu) = state.inbound.take_tsdu() {
                // The receive buffer has room again.
                state.completions.wake_task();
                return Poll::Ready(Some(tsdu));
            }
            if state.inbound.is_exhausted() {
                return Poll::Ready(None);
            }
            old = state.reader.replace(context.waker().clone());
            Poll::Pending
        })
    }

    pub(crate) fn wake_task(&self) {
        self.with(|state| state.completions.wake_task());
    }

    /// Resumes indications that a handler has stopped.
    pub(crate) fn resume(&self) {
        self.with(|state| {
            state.inbound.resume();
            state.completions.wake_task();
        });
    }

    /// Completes all receives with `status` and discards the data that is held.
    pub(crate) fn close(&self, status: Status) {
        self.with(|state| state.close(status));
    }

    pub(crate) fn usage(&self) -> ResourceStatistics {
        self.lock().completions.usage
    }

    pub(crate) fn held(&self) -> usize {
        self.lock().inbound.held()
    }

    // Methods for the connection's task

    /// Sets the waker that is woken when the task has work.
    pub(crate) fn watch(&self, waker: &Waker) {
        let mut state = self.lock();
        let old = state.completions.watch(waker);
        state.inbound.watch_loans(waker);
        drop(state);
        drop(old);
    }

    /// Returns whether there is room for another segment, and counts how often the room has run out.
    pub(crate) fn wants_segment(&self) -> bool {
        let mut state = self.lock();
        let wants = state.inbound.wants_segment();
        if !wants && !state.is_full {
            state.completions.usage.exhausted += 1;
        }
        state.is_full = !wants;
        wants
    }

    pub(crate) fn handle_segment(&self, segment: Segment) {
        let Segment {
            payload,
            remaining,
            invalidated_token,
            ..
        } = segment;
        self.with(|state| {
            let inbound = &mut state.inbound;
            inbound.handle_segment(payload, remaining as usize, invalidated_token);
            let used = (inbound.held() + inbound.lent()) as u64;
            let usage = &mut state.completions.usage;
            usage.maximum_used = usage.maximum_used.max(used);
            state.settle();
            if remaining == 0 {
                state.wake_reader();
            }
        });
    }

    /// Returns the next event for the client, to which at most `lendable` bytes may be lent.
    pub(crate) fn poll_news(&self, lendable: usize) -> Option<ReceiveNews> {
        self.with(|state| {
            if let Some(news) = state.completions.news.pop_front() {
                return Some(news);
            }
            state.inbound.set_lendable(lendable);
            while let Some(event) = state.inbound.poll_event() {
                let news = state.deliver(event);
                if news.is_some() {
                    return news;
                }
            }
            None
        })
    }

    /// Passes on the handler's answer to an indication.
    pub(crate) fn answer(&self, mut answer: Answer) -> Result<(), Status> {
        self.with(|state| {
            if let Answer::TakenThenReceive(_, request) = &mut answer {
                state.handler_request = mem::replace(&mut request.id, HANDLER_REQUEST);
            }
            let result = state.inbound.answer(answer);
            state.settle();
            state.wake_reader();
            result
        })
    }

    /// Passes on the chained handler's answer to a TSDU.
    pub(crate) fn answer_chained(&self, answer: Result<(), ChainedTsdu>) -> Result<(), Status> {
        self.with(|state| {
            let result = state.inbound.answer_chained(answer);
            state.settle();
            state.wake_reader();
            result
        })
    }

    /// Records that no more data will arrive; see [`Inbound::finish`].
    pub(crate) fn finish(&self, status: Status) {
        self.with(|state| {
            state.inbound.finish(status);
            state.settle();
            state.wake_reader();
        });
    }

    /// Ends the task of the connection, unless data or events are left. Returns whether it ends.
    pub(crate) fn end_task(&self) -> bool {
        let mut state = self.lock();
        let is_over = state.completions.news.is_empty() && state.inbound.is_exhausted();
        state.completions.is_over = is_over;
        is_over
    }
}

impl ReceiveNews {
    const fn is_completion(&self) -> bool {
        matches!(self, Self::Completed(_) | Self::Filled(..))
    }
}

impl State {
    fn close(&mut self, status: Status) {
        self.inbound.close(status);
        self.settle();
        // Of the remaining events only completions are still reported.
        self.completions.news.retain(ReceiveNews::is_completion);
        self.completions.wake_task();
        self.wake_reader();
    }

    fn wake_reader(&mut self) {
        self.completions.wake(self.reader.take());
    }

    fn discard_abandoned(&mut self) {
        if self.is_abandoned && !self.inbound.is_taken_whole() {
            self.close(Status::CANCELLED);
        }
    }

    fn submit(&mut self, id: RequestId, buffer: ReceiveBuffer, flags: ReceiveFlags) {
        self.inbound.receive(ReceiveRequest { id, buffer, flags });
        self.settle();
        // The receive may have made room, or may have resumed indications.
        self.completions.wake_task();
    }

    /// Handles the completions of `inbound`.
    fn settle(&mut self) {
        while let Some(event) = self.inbound.poll_completed() {
            if let Some(news) = self.deliver(event) {
                self.completions.report(news);
            }
        }
    }

    /// Completes the future that waits for this event, or returns the event for the client.
    fn deliver(&mut self, event: ReceiveEvent) -> Option<ReceiveNews> {
        Some(match event {
            ReceiveEvent::Indicate(indication) => ReceiveNews::Indicate(indication),
            ReceiveEvent::Chained(tsdu) => ReceiveNews::Chained(tsdu),
            ReceiveEvent::Invalidated(token) => ReceiveNews::Invalidated(token),
            ReceiveEvent::Completed(ReceiveCompletion {
                status,
                information,
                target: Some(target),
                ..
            }) => ReceiveNews::Filled(target, status, information),
            ReceiveEvent::Completed(completion) if completion.id == HANDLER_REQUEST => {
                ReceiveNews::Completed(ReceiveCompletion {
                    id: self.handler_request,
                    ..completion
                })
            }
            ReceiveEvent::Completed(completion) => {
                self.completions.complete(completion.id, completion);
                return None;
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::ReceiveSettings;

    fn segment(length: usize) -> Segment {
        let mut segment = Segment::default();
        segment.payload = vec![7; length].into();
        segment
    }

    //= TDI-DISC-08 test
    #[test]
    fn nothing_but_completions_is_reported_after_an_abort() {
        let receives = Receives::new(Inbound::new(ReceiveSettings::default()).unwrap());
        let mut invalidating = segment(0);
        invalidating.invalidated_token = Some(Token(7));
        receives.handle_segment(invalidating.clone());
        assert!(matches!(
            receives.poll_news(0),
            Some(ReceiveNews::Invalidated(Token(7)))
        ));
        receives.handle_segment(invalidating);
        receives.handle_segment(segment(1));
        receives.close(Status::CANCELLED);
        assert!(receives.poll_news(0).is_none());
    }

    /// The client waits for the request that its handler has returned.
    //= TDI-RECV-14 test
    #[test]
    fn a_returned_request_completes_at_each_end_of_the_connection() {
        for end in [Receives::close, Receives::finish] {
            let receives = Receives::new(Inbound::new(ReceiveSettings::default()).unwrap());
            let mut first = segment(200);
            first.remaining = 100;
            receives.handle_segment(first);
            assert!(matches!(
                receives.poll_news(0),
                Some(ReceiveNews::Indicate(_))
            ));
            let request = ReceiveRequest {
                id: RequestId(3),
                buffer: BytesMut::zeroed(300).into(),
                flags: ReceiveFlags::empty(),
            };
            let answer = Answer::TakenThenReceive(0, request);
            receives.answer(answer).unwrap();
            assert!(receives.poll_news(0).is_none());
            end(&receives, Status::CANCELLED);
            let Some(ReceiveNews::Completed(completion)) = receives.poll_news(0) else {
                panic!("it does not complete");
            };
            assert_eq!(completion.id, RequestId(3));
            assert_eq!(completion.status, Status::CANCELLED);
        }
    }

    #[test]
    fn usage_counts_how_often_the_buffer_was_full() {
        // Each TSDU costs 128 bytes and its data.
        let settings = ReceiveSettings {
            receive_buffer: 300,
            ..ReceiveSettings::default()
        };
        let receives = Receives::new(Inbound::new(settings).unwrap());
        let usage = |exhausted, maximum_used| ResourceStatistics {
            maximum_used,
            exhausted,
        };
        assert!(receives.wants_segment());
        assert_eq!(receives.usage(), usage(0, 0));
        receives.handle_segment(segment(2));
        // The chained handler keeps the first TSDU while the second is held.
        let Some(ReceiveNews::Chained(_kept)) = receives.poll_news(300) else {
            panic!("the TSDU is lent");
        };
        receives.answer_chained(Ok(())).unwrap();
        assert!(receives.wants_segment());
        receives.handle_segment(segment(100));
        assert_eq!(receives.usage(), usage(0, 130 + 228));
        let context = &mut Context::from_waker(Waker::noop());
        receives.set_taken_whole(true);
        for times in 1..3 {
            for _ in 0..2 {
                assert!(!receives.wants_segment());
                assert_eq!(receives.usage(), usage(times, 130 + 228));
            }
            assert!(receives.poll_tsdu(context).is_ready());
            assert!(receives.wants_segment());
            assert_eq!(receives.usage(), usage(times, 130 + 228));
            receives.handle_segment(segment(100));
        }
    }
}
