//! The events of an address as a stream: [`Events`].

use std::{
    collections::VecDeque,
    fmt, mem,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll, Waker},
};

use bytes::BytesMut;
use futures_core::Stream;
use smbdirect::{Message, Token};

use crate::{
    objects::{Address, Client, Endpoint, EndpointContext, EndpointShared},
    protocol::{Answer, Cause, ChainedTsdu, DisconnectFlags, Indication, IndicationFlags, Status},
    session::Session,
};

/// An event of an address or of one of its endpoints.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<C: EndpointContext = ()> {
    /// A TSDU arrived.
    Tsdu {
        /// The endpoint of the event.
        endpoint: Endpoint<C>,
        /// The whole TSDU.
        tsdu: Message,
    },
    /// The send buffer has room again; see [`Client::send_possible`].
    SendPossible {
        /// The endpoint of the event.
        endpoint: Endpoint<C>,
        /// The bytes that a non-blocking send would take.
        available: usize,
    },
    /// The peer has invalidated a registration of this end; see [`Client::invalidated`].
    Invalidated {
        /// The endpoint of the event.
        endpoint: Endpoint<C>,
        /// The token of the registration.
        token: Token,
    },
    /// The connection has ended, and this is its last event; see [`Client::disconnect`].
    Disconnect {
        /// The endpoint of the event.
        endpoint: Endpoint<C>,
        /// The kind of disconnect, which is always [`DisconnectFlags::ABORT`].
        flags: DisconnectFlags,
        /// Why the connection ended.
        cause: Cause,
    },
    /// Peers cannot connect to the address any more; see [`Client::error`].
    Error(Status),
}

impl<C: EndpointContext> Address<C> {
    /// Returns the events of this address as a stream, which becomes the
    /// [client](Self::set_client) of the address.
    ///
    /// At most `capacity` TSDUs wait in the stream. Further TSDUs are not accepted until others have been taken;
    /// meanwhile the peer is granted fewer credits. The stream refuses every connect event, so accept peers with
    /// listens.
    pub fn events(&self, capacity: usize) -> Events<C> {
        let queue = Arc::new(Queue::new(capacity));
        self.set_client(Some(queue.clone()));
        Events { queue }
    }
}

/// A stream of the events of an address; see [`Address::events`]. The stream does not end. After it
/// is dropped, TSDUs are not accepted and other events are discarded.
#[must_use = "no data is received unless the events are taken"]
pub struct Events<C: EndpointContext = ()> {
    queue: Arc<Queue<C>>,
}

struct Queue<C: EndpointContext> {
    capacity: usize,
    state: Mutex<State<C>>,
}

struct State<C: EndpointContext> {
    waiting: VecDeque<Waiting<C>>,
    /// The number of TSDUs in `waiting`.
    tsdus: usize,
    /// The received bytes of TSDUs that are indicated in pieces.
    unfinished: Vec<(Weak<Session>, BytesMut)>,
    /// Endpoints with a TSDU that was not accepted because the queue was full.
    stalled: Vec<Weak<EndpointShared<C>>>,
    reader: Option<Waker>,
    /// The stream was dropped.
    closed: bool,
}

enum Waiting<C: EndpointContext> {
    /// A TSDU that counts as lent while it waits.
    Lent(Endpoint<C>, ChainedTsdu),
    Event(Event<C>),
}

impl<C: EndpointContext> Queue<C> {
    const fn new(capacity: usize) -> Self {
        Self {
            capacity,
            state: Mutex::new(State {
                waiting: VecDeque::new(),
                tsdus: 0,
                unfinished: Vec::new(),
                stalled: Vec::new(),
                reader: None,
                closed: false,
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an event, unless the stream was dropped.
    fn push(&self, waiting: Waiting<C>) {
        let mut state = self.lock();
        if state.closed {
            drop(state);
            return;
        }
        state.tsdus += usize::from(waiting.is_tsdu());
        state.waiting.push_back(waiting);
        let reader = state.reader.take();
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    fn push_event(&self, event: Event<C>) {
        self.push(Waiting::Event(event));
    }

    /// Returns whether the queue has no room for a TSDU. If so, the endpoint is resumed when there
    /// is room.
    fn is_full(&self, endpoint: &Endpoint<C>) -> bool {
        let mut state = self.lock();
        if state.closed {
            return true;
        }
        let is_full = state.tsdus >= self.capacity;
        let endpoint = endpoint.downgrade();
        let is_it = |known: &Weak<_>| Weak::ptr_eq(known, &endpoint);
        if is_full && !state.stalled.iter().any(is_it) {
            state.stalled.push(endpoint);
        }
        is_full
    }

    /// Adds a piece of a TSDU, and returns the whole TSDU after the last piece.
    fn gather(&self, endpoint: &Endpoint<C>, indication: &Indication) -> Option<BytesMut> {
        // The pieces belong to the connection and not to the endpoint, which may have had other connections
        // before.
        let session = Arc::downgrade(&endpoint.receiving_session()?);
        let mut state = self.lock();
        let unfinished = &mut state.unfinished;
        unfinished.retain(|(known, _)| known.strong_count() > 0);
        let known = unfinished
            .iter()
            .position(|(known, _)| Weak::ptr_eq(known, &session));
        let index = known.unwrap_or_else(|| {
            unfinished.push((session, BytesMut::new()));
            unfinished.len() - 1
        });
        let gathered = &mut unfinished[index].1;
        if indication.tsdu_offset == 0 {
            gathered.clear();
        }
        gathered.extend_from_slice(&indication.data);
        let ends = indication.flags.contains(IndicationFlags::ENTIRE_MESSAGE);
        ends.then(|| unfinished.swap_remove(index).1)
    }
}

impl<C: EndpointContext> Queue<C> {
    /// Discards the pieces of an incomplete TSDU, because the connection has ended.
    fn discard_unfinished(&self, endpoint: &Endpoint<C>) {
        if let Some(session) = endpoint.receiving_session() {
            let is_other = |known: &Weak<Session>| known.as_ptr() != Arc::as_ptr(&session);
            let mut state = self.lock();
            state.unfinished.retain(|(known, _)| is_other(known));
        }
    }
}

impl<C: EndpointContext> Waiting<C> {
    const fn is_tsdu(&self) -> bool {
        matches!(self, Self::Lent(..) | Self::Event(Event::Tsdu { .. }))
    }
}

impl<C: EndpointContext> Client<C> for Queue<C> {
    fn takes_chained(&self) -> bool {
        true
    }

    fn chained_receive(
        &self,
        endpoint: &Endpoint<C>,
        tsdu: ChainedTsdu,
    ) -> Result<(), ChainedTsdu> {
        if self.is_full(endpoint) {
            return Err(tsdu);
        }
        self.push(Waiting::Lent(endpoint.clone(), tsdu));
        Ok(())
    }

    /// Assembles a TSDU that is too long to be lent.
    fn receive(&self, endpoint: &Endpoint<C>, indication: Indication) -> Answer {
        let count = indication.data.len();
        let ends = indication.flags.contains(IndicationFlags::ENTIRE_MESSAGE);
        if ends && self.is_full(endpoint) {
            return Answer::NotAccepted(0);
        }
        if let Some(tsdu) = self.gather(endpoint, &indication) {
            self.push_event(Event::Tsdu {
                endpoint: endpoint.clone(),
                tsdu: Message::received(tsdu.freeze(), indication.invalidated_token),
            });
        }
        Answer::Taken(count)
    }

    fn send_possible(&self, endpoint: &Endpoint<C>, available: usize) {
        let endpoint = endpoint.clone();
        self.push_event(Event::SendPossible {
            endpoint,
            available,
        });
    }

    fn invalidated(&self, endpoint: &Endpoint<C>, token: Token) {
        let endpoint = endpoint.clone();
        self.push_event(Event::Invalidated { endpoint, token });
    }

    fn disconnect(&self, endpoint: &Endpoint<C>, flags: DisconnectFlags, cause: &Cause) {
        self.discard_unfinished(endpoint);
        self.push_event(Event::Disconnect {
            endpoint: endpoint.clone(),
            flags,
            cause: cause.clone(),
        });
    }

    fn error(&self, status: Status) {
        self.push_event(Event::Error(status));
    }
}

impl<C: EndpointContext> Stream for Events<C> {
    type Item = Event<C>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event<C>>> {
        let mut state = self.queue.lock();
        let Some(waiting) = state.waiting.pop_front() else {
            let old = state.reader.replace(context.waker().clone());
            drop(state);
            drop(old);
            return Poll::Pending;
        };
        let mut stalled = Vec::new();
        if waiting.is_tsdu() {
            state.tsdus -= 1;
            stalled = mem::take(&mut state.stalled);
        }
        drop(state);
        for endpoint in stalled.iter().filter_map(Weak::upgrade) {
            // An endpoint that is not connected any more has no indications to resume.
            let _ = Endpoint::from_shared(endpoint).resume();
        }
        Poll::Ready(Some(match waiting {
            Waiting::Lent(endpoint, tsdu) => Event::Tsdu {
                endpoint,
                tsdu: tsdu.into_message(),
            },
            Waiting::Event(event) => event,
        }))
    }
}

impl<C: EndpointContext> Drop for Events<C> {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        state.closed = true;
        let waiting = mem::take(&mut state.waiting);
        let reader = state.reader.take();
        drop(state);
        // The events hold endpoints, and so may the waker. Destructors must not run under the lock.
        drop((waiting, reader));
    }
}

impl<C: EndpointContext> fmt::Debug for Events<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::Pair;

    #[tokio::test]
    async fn full_queue_stalls_an_endpoint_once() {
        let Pair { there, .. } = Pair::apart().await;
        let queue = Queue::new(1);
        // Only TSDUs count.
        queue.push_event(Event::Error(Status::CANCELLED));
        assert!(!queue.is_full(&there));
        assert_eq!(queue.lock().stalled.len(), 0);
        queue.push_event(Event::Tsdu {
            endpoint: there.clone(),
            tsdu: "the only one".into(),
        });
        for _ in 0..2 {
            assert!(queue.is_full(&there));
            assert_eq!(queue.lock().stalled.len(), 1);
        }
    }

    #[tokio::test]
    async fn incomplete_tsdus_are_discarded_with_their_connection() {
        let piece = Indication {
            flags: IndicationFlags::NORMAL,
            data: "a piece".into(),
            available: 7,
            tsdu_length: 100,
            tsdu_offset: 0,
            invalidated_token: None,
        };
        let pair = Pair::apart().await;
        pair.connect().await;
        let queue = Queue::new(1);
        let session = |end: &Endpoint| Arc::downgrade(&end.receiving_session().unwrap());
        let (first, second) = (session(&pair.here), session(&pair.there));
        let unfinished = || {
            queue
                .lock()
                .unfinished
                .iter()
                .map(|(of, _)| of.clone())
                .collect::<Vec<_>>()
        };
        for end in [&pair.here, &pair.there] {
            assert!(queue.gather(end, &piece).is_none());
        }
        queue.disconnect(&pair.here, DisconnectFlags::ABORT, &Cause::RemoteDisconnect);
        let [left] = &unfinished()[..] else {
            panic!("the TSDU of one connection is left");
        };
        assert!(left.ptr_eq(&second));
        // A connection that this end aborts has no disconnect event.
        drop(pair.there);
        while second.strong_count() > 0 {
            tokio::task::yield_now().await;
        }
        assert!(queue.gather(&pair.here, &piece).is_none());
        let [left] = &unfinished()[..] else {
            panic!("the TSDU of one connection is left");
        };
        assert!(left.ptr_eq(&first));
    }
}
