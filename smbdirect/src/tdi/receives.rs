//! [`Receives`]: what arrives on one connection, shared by all handles of its endpoint and by its
//! task.

use std::{
    collections::VecDeque,
    mem,
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use bytes::BytesMut;

use crate::{
    engine::Message,
    inbox::Segment,
    rdma::work::Token,
    tdi::{
        Answer, ChainedTsdu, Inbound, Indication, ReceiveCompletion, ReceiveEvent, ReceiveFlags,
        ReceiveRequest, RequestId, Status, transport::ResourceStatistics,
    },
    waiters::Waiters,
};

/// The name of the request that a handler has supplied. There is one at most: nothing is
/// indicated until it is done.
const SUPPLIED: RequestId = RequestId(u64::MAX);

#[derive(Debug)]
pub(crate) struct Receives {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    inbound: Inbound,
    waiters: Waiters<ReceiveCompletion>,
    /// What the client calls the request that its handler has supplied.
    supplied: RequestId,
    /// For the client, in order.
    news: VecDeque<ReceiveNews>,
    /// Who waits for a whole TSDU.
    reader: Option<Waker>,
    /// The task of the connection.
    task: Waker,
    usage: ResourceStatistics,
    /// Whether there is no room for more now.
    is_full: bool,
    /// Whom to wake when the lock is released.
    wakes: Vec<Waker>,
}

/// What the client is to be told.
#[derive(Debug)]
pub(crate) enum ReceiveNews {
    Indicate(Indication),
    Chained(ChainedTsdu),
    /// The request that a handler has supplied is over.
    Completed(ReceiveCompletion),
    Invalidated(Token),
}

impl Receives {
    pub(crate) fn new(inbound: Inbound) -> Self {
        Self {
            state: Mutex::new(State {
                inbound,
                waiters: Waiters::default(),
                news: VecDeque::new(),
                reader: None,
                supplied: SUPPLIED,
                task: Waker::noop().clone(),
                usage: ResourceStatistics::default(),
                is_full: false,
                wakes: Vec::new(),
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does `action` under the lock, then wakes whom it concerns.
    fn with<R>(&self, action: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.lock();
        let result = action(&mut state);
        let wakes = mem::take(&mut state.wakes);
        drop(state);
        wakes.into_iter().for_each(Waker::wake);
        result
    }

    /// Submits a receive, and says where its completion is waited for.
    pub(crate) fn receive(&self, buffer: BytesMut, flags: ReceiveFlags) -> usize {
        self.with(|state| {
            let place = state.waiters.insert();
            let id = RequestId(place as u64);
            state.inbound.receive(ReceiveRequest { id, buffer, flags });
            state.settle();
            // There may be room for more, or an end to indications that were stopped.
            state.wakes.push(state.task.clone());
            place
        })
    }

    /// The completion of the receive that waits at `place`.
    pub(crate) fn poll(&self, place: usize, context: &mut Context<'_>) -> Poll<ReceiveCompletion> {
        self.lock().waiters.poll(place, context)
    }

    /// Nobody waits at `place` any more. The receive goes on, and what it gets is lost.
    pub(crate) fn abandon(&self, place: usize) {
        let completion = self.lock().waiters.abandon(place);
        drop(completion);
    }

    /// Cancels the receive that waits at `place`.
    pub(crate) fn cancel(&self, place: usize) -> bool {
        self.with(|state| {
            let cancelled = state.inbound.cancel(RequestId(place as u64));
            state.settle();
            state.wakes.push(state.task.clone());
            cancelled
        })
    }

    /// Somebody takes whole TSDUs, or does so no longer. False if that was so before.
    pub(crate) fn set_taken_whole(&self, taken_whole: bool) -> bool {
        self.with(|state| {
            let changed = state.inbound.set_taken_whole(taken_whole);
            if changed {
                state.reader = None;
                state.wakes.push(state.task.clone());
            }
            changed
        })
    }

    /// The next whole TSDU; `None` if no more will come.
    pub(crate) fn poll_tsdu(&self, context: &mut Context<'_>) -> Poll<Option<Message>> {
        self.with(|state| {
            if let Some(tsdu) = state.inbound.take_tsdu() {
                // There is room for more.
                state.wakes.push(state.task.clone());
                return Poll::Ready(Some(tsdu));
            }
            if state.inbound.is_exhausted() {
                return Poll::Ready(None);
            }
            state.reader = Some(context.waker().clone());
            Poll::Pending
        })
    }

    /// Has the task look at what there is to do.
    pub(crate) fn wake_task(&self) {
        self.with(|state| state.wakes.push(state.task.clone()));
    }

    /// Indications that a refusal has stopped go on.
    pub(crate) fn resume(&self) {
        self.with(|state| {
            state.inbound.resume();
            state.wakes.push(state.task.clone());
        });
    }

    /// The connection is over, and what is held is of no use.
    pub(crate) fn close(&self, status: Status) {
        self.with(|state| {
            state.inbound.close(status);
            state.settle();
            // Of what is left only that a request is over is still told.
            let is_completed = |news: &ReceiveNews| matches!(news, ReceiveNews::Completed(_));
            state.news.retain(is_completed);
            state.wakes.extend(state.reader.take());
        });
    }

    pub(crate) fn usage(&self) -> ResourceStatistics {
        self.lock().usage
    }

    pub(crate) fn held(&self) -> usize {
        self.lock().inbound.held()
    }

    // For the task

    /// Wakes `waker` when there is something for the task.
    pub(crate) fn watch(&self, waker: &Waker) {
        let mut state = self.lock();
        if !state.task.will_wake(waker) {
            state.task = waker.clone();
        }
        state.inbound.watch_loans(waker);
    }

    pub(crate) fn wants_segment(&self) -> bool {
        let mut state = self.lock();
        let wants = state.inbound.wants_segment();
        if !wants && !state.is_full {
            state.usage.exhausted += 1;
        }
        state.is_full = !wants;
        wants
    }

    pub(crate) fn handle_segment(&self, segment: Segment) {
        let Segment {
            payload,
            remaining,
            invalidated_token,
        } = segment;
        self.with(|state| {
            let inbound = &mut state.inbound;
            inbound.handle_segment(payload, remaining as usize, invalidated_token);
            let used = (inbound.held() + inbound.lent()) as u64;
            state.usage.maximum_used = state.usage.maximum_used.max(used);
            state.settle();
            state.wakes.extend(state.reader.take_if(|_| remaining == 0));
        });
    }

    /// What is to be done next, with a client that has so much lent to it at most.
    pub(crate) fn poll_news(&self, lendable: usize) -> Option<ReceiveNews> {
        self.with(|state| {
            if let Some(news) = state.news.pop_front() {
                return Some(news);
            }
            state.inbound.set_lendable(lendable);
            while let Some(event) = state.inbound.poll_event() {
                let news = state.tell(event);
                if news.is_some() {
                    return news;
                }
            }
            None
        })
    }

    /// What the handler made of an indication.
    pub(crate) fn answer(&self, mut answer: Answer) -> Result<(), Status> {
        self.with(|state| {
            if let Answer::TakenThenReceive(_, request) = &mut answer {
                state.supplied = mem::replace(&mut request.id, SUPPLIED);
            }
            let result = state.inbound.answer(answer);
            state.settle();
            state.wakes.extend(state.reader.take());
            result
        })
    }

    /// What the chained handler made of a TSDU.
    pub(crate) fn answer_chained(&self, answer: Result<(), ChainedTsdu>) -> Result<(), Status> {
        self.with(|state| {
            let result = state.inbound.answer_chained(answer);
            state.settle();
            state.wakes.extend(state.reader.take());
            result
        })
    }

    /// Nothing more will come.
    pub(crate) fn finish(&self, status: Status) {
        self.with(|state| {
            state.inbound.finish(status);
            state.settle();
            state.wakes.extend(state.reader.take());
        });
    }

    /// The last event was told. Receives are done from here on by whoever waits for them.
    pub(crate) fn stop_indications(&self) {
        self.with(|state| {
            state.inbound.stop_indications();
        });
    }
}

impl State {
    /// Takes what has happened.
    fn settle(&mut self) {
        while let Some(event) = self.inbound.poll_completed() {
            if let Some(news) = self.tell(event) {
                self.news.push_back(news);
                self.wakes.push(self.task.clone());
            }
        }
    }

    /// Tells whoever waits for it, or says what the client is to be told.
    fn tell(&mut self, event: ReceiveEvent) -> Option<ReceiveNews> {
        Some(match event {
            ReceiveEvent::Indicate(indication) => ReceiveNews::Indicate(indication),
            ReceiveEvent::Chained(tsdu) => ReceiveNews::Chained(tsdu),
            ReceiveEvent::Invalidated(token) => ReceiveNews::Invalidated(token),
            ReceiveEvent::Completed(completion) if completion.id == SUPPLIED => {
                ReceiveNews::Completed(ReceiveCompletion {
                    id: self.supplied,
                    ..completion
                })
            }
            ReceiveEvent::Completed(completion) => {
                let place = completion.id.0 as usize;
                if let Ok(waker) = self.waiters.complete(place, completion) {
                    self.wakes.extend(waker);
                }
                return None;
            }
        })
    }
}
