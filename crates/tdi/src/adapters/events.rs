//! Endpoints and addresses as streams and sinks of async Rust: [`Tsdus`], [`TsduSink`],
//! [`TsduWriter`] and [`Events`].

use std::{
    collections::VecDeque,
    fmt,
    future::Future,
    mem,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll, Waker, ready},
};

use bytes::{Bytes, BytesMut};
use futures_core::Stream;
use futures_sink::Sink;
use smbdirect::{Message, Token};

use crate::{
    objects::{Address, Client, Endpoint, EndpointContext, EndpointShared},
    protocol::{
        Answer, Cause, ChainedTsdu, DisconnectFlags, Indication, IndicationFlags, SendFlags, Status,
    },
    session::{Requested, Sending, Session},
};

impl<C: EndpointContext> Endpoint<C> {
    /// Returns the TSDUs of this connection as a stream. While the stream exists, no data is
    /// indicated to handlers. Data fills pending receives before it reaches the stream.
    ///
    /// # Errors
    /// [`INVALID_CONNECTION`](Status::INVALID_CONNECTION): there is no connection to receive from.
    /// [`INVALID_DEVICE_STATE`](Status::INVALID_DEVICE_STATE): the connection already has a stream.
    pub fn tsdus(&self) -> Result<Tsdus, Status> {
        let session = self.receiving_session();
        let session = session.ok_or(Status::INVALID_CONNECTION)?;
        if session.receives.set_taken_whole(true) {
            Ok(Tsdus { session })
        } else {
            Err(Status::INVALID_DEVICE_STATE)
        }
    }

    /// Returns a sink that sends each item as one TSDU with `flags`, which can be
    /// [`EXPEDITED`](SendFlags::EXPEDITED) and
    /// [`NO_RESPONSE_EXPECTED`](SendFlags::NO_RESPONSE_EXPECTED). The sink accepts items while
    /// fewer than `backlog` bytes of earlier items are outstanding.
    ///
    /// # Errors
    /// [`INVALID_PARAMETER`](Status::INVALID_PARAMETER): `flags` has another flag.
    pub fn sink(&self, flags: SendFlags, backlog: usize) -> Result<TsduSink<C>, Status> {
        check_flags(flags)?;
        Ok(TsduSink {
            endpoint: self.clone(),
            flags,
            backlog,
            outstanding: VecDeque::new(),
            bytes: 0,
            release: None,
            closed: false,
        })
    }

    /// Starts a TSDU that is assembled from parts. Nothing is submitted before the TSDU is
    /// complete, so other tasks can send and assemble TSDUs concurrently. `flags` can have the same
    /// flags as those of [`sink`](Self::sink).
    ///
    /// # Errors
    /// [`INVALID_PARAMETER`](Status::INVALID_PARAMETER): `flags` has another flag.
    /// [`INVALID_CONNECTION`](Status::INVALID_CONNECTION): the endpoint is not connected.
    pub fn begin_tsdu(&self, flags: SendFlags) -> Result<TsduWriter<C>, Status> {
        check_flags(flags)?;
        Ok(TsduWriter {
            max_tsdu: self.max_tsdu()?,
            endpoint: self.clone(),
            flags,
            parts: Vec::new(),
            length: 0,
        })
    }
}

fn check_flags(flags: SendFlags) -> Result<(), Status> {
    let allowed = SendFlags::EXPEDITED | SendFlags::NO_RESPONSE_EXPECTED;
    if allowed.contains(flags) {
        Ok(())
    } else {
        Err(Status::INVALID_PARAMETER)
    }
}

/// A stream of the whole TSDUs of a connection, in order; see [`Endpoint::tsdus`].
///
/// The stream ends after the connection has ended and every whole TSDU was taken.
/// [`Endpoint::disconnected`] says why it ended. The peer is granted fewer credits while TSDUs wait
/// to be taken.
#[derive(Debug)]
#[must_use = "no data is indicated while the stream exists"]
pub struct Tsdus {
    session: Arc<Session>,
}

impl Stream for Tsdus {
    type Item = Message;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Message>> {
        self.session.receives.poll_tsdu(context)
    }
}

impl Drop for Tsdus {
    fn drop(&mut self) {
        self.session.receives.set_taken_whole(false);
    }
}

/// A sink that sends each item as one TSDU; see [`Endpoint::sink`].
///
/// An error is the status of the oldest item that was not sent. Closing the sink waits until all
/// items were sent, and then disconnects the endpoint with [`RELEASE`](DisconnectFlags::RELEASE).
/// Dropping the sink does not cancel the items.
#[derive(Debug)]
#[must_use = "a sink does nothing unless items are sent to it"]
pub struct TsduSink<C: EndpointContext = ()> {
    endpoint: Endpoint<C>,
    flags: SendFlags,
    backlog: usize,
    outstanding: VecDeque<(Sending, usize)>,
    bytes: usize,
    release: Option<Requested>,
    closed: bool,
}

impl<C: EndpointContext> TsduSink<C> {
    /// Waits until fewer than `limit` bytes, or no bytes, are outstanding.
    fn poll_drain(&mut self, limit: usize, context: &mut Context<'_>) -> Poll<Result<(), Status>> {
        while let Some((sending, length)) = self.outstanding.front_mut() {
            let Poll::Ready(completion) = Pin::new(sending).poll(context) else {
                return if self.bytes < limit {
                    Poll::Ready(Ok(()))
                } else {
                    Poll::Pending
                };
            };
            self.bytes -= *length;
            self.outstanding.pop_front();
            completion.result()?;
        }
        Poll::Ready(Ok(()))
    }
}

impl<C: EndpointContext> Sink<Bytes> for TsduSink<C> {
    type Error = Status;

    fn poll_ready(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), Status>> {
        let backlog = self.backlog;
        self.poll_drain(backlog, context)
    }

    fn start_send(mut self: Pin<&mut Self>, item: Bytes) -> Result<(), Status> {
        let length = item.len();
        let sending = self.endpoint.send_whole(item.into(), self.flags);
        self.outstanding.push_back((sending, length));
        self.bytes += length;
        Ok(())
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), Status>> {
        self.poll_drain(0, context)
    }

    fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), Status>> {
        ready!(self.poll_drain(0, context))?;
        let sink = &mut *self;
        if sink.closed {
            return Poll::Ready(Ok(()));
        }
        let release = sink
            .release
            .get_or_insert_with(|| sink.endpoint.disconnect(DisconnectFlags::RELEASE, None));
        let result = ready!(Pin::new(release).poll(context));
        // A release that has failed can be tried again.
        sink.release = None;
        sink.closed = result.is_ok();
        Poll::Ready(result)
    }
}

/// A TSDU that is assembled from parts; see [`Endpoint::begin_tsdu`]. Dropping it discards the
/// parts.
#[derive(Debug)]
#[must_use = "the parts are discarded without `finish`"]
pub struct TsduWriter<C: EndpointContext = ()> {
    endpoint: Endpoint<C>,
    flags: SendFlags,
    max_tsdu: usize,
    parts: Vec<Bytes>,
    length: usize,
}

impl<C: EndpointContext> TsduWriter<C> {
    /// Adds a part, without copying it.
    ///
    /// # Errors
    /// [`INVALID_PARAMETER`](Status::INVALID_PARAMETER): the part would make the TSDU longer than
    /// the connection can send. The TSDU is unchanged.
    pub fn push(&mut self, part: impl Into<Bytes>) -> Result<(), Status> {
        let part = part.into();
        if part.len() > self.max_tsdu - self.length {
            return Err(Status::INVALID_PARAMETER);
        }
        self.length += part.len();
        self.parts.push(part);
        Ok(())
    }

    /// Returns the length of the parts in bytes.
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Returns whether the TSDU has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Sends the TSDU. The send completes with [`INVALID_PARAMETER`](Status::INVALID_PARAMETER) if
    /// the TSDU is empty, and with [`INVALID_DEVICE_STATE`](Status::INVALID_DEVICE_STATE) if a TSDU
    /// of partial sends of the same class is open.
    pub fn finish(self) -> Sending {
        self.endpoint
            .send_whole(self.parts.into_iter().collect(), self.flags)
    }
}

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
    /// At most `capacity` TSDUs wait in the stream. Further TSDUs are not accepted until others
    /// have been taken; meanwhile the peer is granted fewer credits. The connect event is refused,
    /// so accept peers with listens.
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
        // The pieces belong to the connection, because the endpoint may have had others before.
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
