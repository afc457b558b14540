//! Endpoints for those who come from async Rust: [`Tsdus`] and [`TsduSink`], [`TsduWriter`], and
//! [`Events`].

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

use super::{
    address::Address,
    client::{Cause, Client},
    endpoint::{Endpoint, EndpointContext, Shared},
    flags::{DisconnectFlags, IndicationFlags, SendFlags},
    pending::{Requested, Sending},
    receive::{Answer, ChainedTsdu, Indication},
    session::Session,
    status::Status,
};
use crate::{engine::Message, rdma::work::Token};

impl<C: EndpointContext> Endpoint<C> {
    /// The TSDUs of this connection as a stream. While it is there nothing is indicated to
    /// handlers, and receives that are posted come first.
    ///
    /// # Errors
    /// [`INVALID_CONNECTION`](Status::INVALID_CONNECTION);
    /// [`INVALID_DEVICE_STATE`](Status::INVALID_DEVICE_STATE): there is such a stream already.
    pub fn tsdus(&self) -> Result<Tsdus, Status> {
        let session = self.receiving_session();
        let session = session.ok_or(Status::INVALID_CONNECTION)?;
        match session.receives.set_taken_whole(true) {
            true => Ok(Tsdus { session }),
            false => Err(Status::INVALID_DEVICE_STATE),
        }
    }

    /// A sink of which each item becomes a TSDU; `flags` are those of each send, and can be
    /// [`EXPEDITED`](SendFlags::EXPEDITED) and
    /// [`NO_RESPONSE_EXPECTED`](SendFlags::NO_RESPONSE_EXPECTED). It takes items while fewer than
    /// `backlog` bytes of its own have not left.
    ///
    /// # Errors
    /// [`INVALID_PARAMETER`](Status::INVALID_PARAMETER): other flags.
    pub fn sink(&self, flags: SendFlags, backlog: usize) -> Result<TsduSink<C>, Status> {
        check_flags(flags)?;
        Ok(TsduSink {
            endpoint: self.clone(),
            flags,
            backlog,
            outstanding: VecDeque::new(),
            bytes: 0,
            release: None,
        })
    }

    /// Begins a TSDU that is put together from parts. Others can send meanwhile, and put together
    /// their own: nothing of this one is submitted before it is whole. `flags` as for
    /// [`sink`](Self::sink).
    ///
    /// # Errors
    /// [`INVALID_PARAMETER`](Status::INVALID_PARAMETER): other flags.
    /// [`INVALID_CONNECTION`](Status::INVALID_CONNECTION).
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
    let sensible = SendFlags::EXPEDITED | SendFlags::NO_RESPONSE_EXPECTED;
    match sensible.contains(flags) {
        true => Ok(()),
        false => Err(Status::INVALID_PARAMETER),
    }
}

/// The TSDUs of a connection, whole and in order; see [`Endpoint::tsdus`].
///
/// It ends when the connection is over and what had arrived was taken;
/// [`Endpoint::disconnected`] says why. What is not taken withholds credits from the peer.
#[derive(Debug)]
#[must_use = "while it is there nothing is indicated"]
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

/// Makes a TSDU of each item; see [`Endpoint::sink`].
///
/// An error is that of the oldest item that was not sent. Closing it waits until all have left,
/// and then disconnects the endpoint with [`RELEASE`](DisconnectFlags::RELEASE). Dropping it takes
/// nothing back.
#[derive(Debug)]
#[must_use = "a sink does nothing by itself"]
pub struct TsduSink<C: EndpointContext = ()> {
    endpoint: Endpoint<C>,
    flags: SendFlags,
    backlog: usize,
    outstanding: VecDeque<(Sending, usize)>,
    bytes: usize,
    release: Option<Requested>,
}

impl<C: EndpointContext> TsduSink<C> {
    /// Waits until fewer than `most` bytes are outstanding.
    fn poll_down_to(&mut self, most: usize, context: &mut Context<'_>) -> Poll<Result<(), Status>> {
        while let Some((sending, length)) = self.outstanding.front_mut() {
            let Poll::Ready(completion) = Pin::new(sending).poll(context) else {
                return match self.bytes < most {
                    true => Poll::Ready(Ok(())),
                    false => Poll::Pending,
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
        self.poll_down_to(backlog, context)
    }

    fn start_send(mut self: Pin<&mut Self>, item: Bytes) -> Result<(), Status> {
        let length = item.len();
        let sending = self.endpoint.send_whole(item.into(), self.flags);
        self.outstanding.push_back((sending, length));
        self.bytes += length;
        Ok(())
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), Status>> {
        self.poll_down_to(0, context)
    }

    fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), Status>> {
        ready!(self.poll_down_to(0, context))?;
        let sink = &mut *self;
        let release = sink
            .release
            .get_or_insert_with(|| sink.endpoint.disconnect(DisconnectFlags::RELEASE, None));
        Pin::new(release).poll(context)
    }
}

/// Puts a TSDU together from parts; see [`Endpoint::begin_tsdu`]. Dropping it throws them away.
#[derive(Debug)]
#[must_use = "without `finish` the parts are thrown away"]
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
    /// [`INVALID_PARAMETER`](Status::INVALID_PARAMETER): with it the TSDU would be longer than the
    /// connection takes. It stays as it was.
    pub fn push(&mut self, part: impl Into<Bytes>) -> Result<(), Status> {
        let part = part.into();
        if part.len() > self.max_tsdu - self.length {
            return Err(Status::INVALID_PARAMETER);
        }
        self.length += part.len();
        self.parts.push(part);
        Ok(())
    }

    /// Bytes so far.
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Sends it. Without bytes the send ends with
    /// [`INVALID_PARAMETER`](Status::INVALID_PARAMETER); while a TSDU of the same class is being
    /// put together by partial sends, with
    /// [`INVALID_DEVICE_STATE`](Status::INVALID_DEVICE_STATE).
    pub fn finish(self) -> Sending {
        self.endpoint
            .send_whole(self.parts.into_iter().collect(), self.flags)
    }
}

/// Something that happened on an endpoint of an address.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<C: EndpointContext = ()> {
    /// A TSDU arrived.
    Tsdu {
        /// Where.
        endpoint: Endpoint<C>,
        /// The TSDU.
        tsdu: Message,
    },
    /// See [`Client::send_possible`].
    SendPossible {
        /// Where.
        endpoint: Endpoint<C>,
        /// Bytes that a non-blocking send would take.
        available: usize,
    },
    /// See [`Client::invalidated`].
    Invalidated {
        /// Where.
        endpoint: Endpoint<C>,
        /// The token of ours.
        token: Token,
    },
    /// See [`Client::disconnect`]. The last event of a connection.
    Disconnect {
        /// Where.
        endpoint: Endpoint<C>,
        /// How.
        flags: DisconnectFlags,
        /// Why.
        cause: Cause,
    },
    /// See [`Client::error`].
    Error(Status),
}

impl<C: EndpointContext> Address<C> {
    /// The events of this address as a stream, for those who do not decide in place: it is the
    /// [client](Self::set_client) of the address from here on.
    ///
    /// At most `capacity` TSDUs wait in it. Beyond that they are not accepted, which in the end
    /// withholds credits from the peer, and accepted when others have been taken. The connect
    /// event is refused: peers are accepted by listens.
    pub fn events(&self, capacity: usize) -> Events<C> {
        let queue = Arc::new(Queue {
            capacity,
            state: Mutex::new(State {
                waiting: VecDeque::new(),
                tsdus: 0,
                unfinished: Vec::new(),
                stalled: Vec::new(),
                reader: None,
                deserted: false,
            }),
        });
        self.set_client(Some(queue.clone()));
        Events { queue }
    }
}

/// Events of an address; see [`Address::events`]. It has no end: dropping it refuses what comes.
#[must_use = "nothing is received while nobody takes its events"]
pub struct Events<C: EndpointContext = ()> {
    queue: Arc<Queue<C>>,
}

struct Queue<C: EndpointContext> {
    capacity: usize,
    state: Mutex<State<C>>,
}

struct State<C: EndpointContext> {
    waiting: VecDeque<Waiting<C>>,
    /// How many of them are TSDUs.
    tsdus: usize,
    /// Those that are indicated in pieces, with what there is of them.
    unfinished: Vec<(Weak<Shared<C>>, BytesMut)>,
    /// Endpoints with a TSDU that found no room.
    stalled: Vec<Weak<Shared<C>>>,
    reader: Option<Waker>,
    deserted: bool,
}

enum Waiting<C: EndpointContext> {
    /// Counts as lent while it waits.
    Lent(Endpoint<C>, ChainedTsdu),
    Event(Event<C>),
}

impl<C: EndpointContext> Queue<C> {
    fn lock(&self) -> MutexGuard<'_, State<C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds something, unless nobody takes it.
    fn push(&self, waiting: Waiting<C>) {
        let mut state = self.lock();
        if state.deserted {
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

    fn tell(&self, event: Event<C>) {
        self.push(Waiting::Event(event));
    }

    /// Whether a TSDU has no room. Then its endpoint is resumed when there is some.
    fn is_full(&self, endpoint: &Endpoint<C>) -> bool {
        let mut state = self.lock();
        if state.deserted {
            return true;
        }
        let is_full = state.tsdus >= self.capacity;
        if is_full {
            state.stalled.push(endpoint.downgrade());
        }
        is_full
    }

    /// Adds a piece of a TSDU to what there is of it, and gives it back if that was the last.
    fn gather(&self, endpoint: &Endpoint<C>, indication: &Indication) -> Option<BytesMut> {
        let endpoint = endpoint.downgrade();
        let mut state = self.lock();
        let unfinished = &mut state.unfinished;
        unfinished.retain(|(known, _)| known.strong_count() > 0);
        let known = unfinished
            .iter()
            .position(|(known, _)| Weak::ptr_eq(known, &endpoint));
        let place = known.unwrap_or_else(|| {
            unfinished.push((endpoint, BytesMut::new()));
            unfinished.len() - 1
        });
        let gathered = &mut unfinished[place].1;
        if indication.tsdu_offset == 0 {
            gathered.clear();
        }
        gathered.extend_from_slice(&indication.data);
        let ends = indication.flags.contains(IndicationFlags::ENTIRE_MESSAGE);
        ends.then(|| unfinished.swap_remove(place).1)
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

    /// For TSDUs that are too long to be lent.
    fn receive(&self, endpoint: &Endpoint<C>, indication: Indication) -> Answer {
        let count = indication.data.len();
        let ends = indication.flags.contains(IndicationFlags::ENTIRE_MESSAGE);
        if ends && self.is_full(endpoint) {
            return Answer::NotAccepted(0);
        }
        if let Some(tsdu) = self.gather(endpoint, &indication) {
            self.tell(Event::Tsdu {
                endpoint: endpoint.clone(),
                tsdu: Message::received(tsdu.freeze(), indication.invalidated_token),
            });
        }
        Answer::Taken(count)
    }

    fn send_possible(&self, endpoint: &Endpoint<C>, available: usize) {
        let endpoint = endpoint.clone();
        self.tell(Event::SendPossible {
            endpoint,
            available,
        });
    }

    fn invalidated(&self, endpoint: &Endpoint<C>, token: Token) {
        let endpoint = endpoint.clone();
        self.tell(Event::Invalidated { endpoint, token });
    }

    fn disconnect(&self, endpoint: &Endpoint<C>, flags: DisconnectFlags, cause: &Cause) {
        self.tell(Event::Disconnect {
            endpoint: endpoint.clone(),
            flags,
            cause: cause.clone(),
        });
    }

    fn error(&self, status: Status) {
        self.tell(Event::Error(status));
    }
}

impl<C: EndpointContext> Stream for Events<C> {
    type Item = Event<C>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event<C>>> {
        let mut state = self.queue.lock();
        let Some(waiting) = state.waiting.pop_front() else {
            state.reader = Some(context.waker().clone());
            return Poll::Pending;
        };
        let mut stalled = Vec::new();
        if waiting.is_tsdu() {
            state.tsdus -= 1;
            stalled = mem::take(&mut state.stalled);
        }
        drop(state);
        for endpoint in stalled.iter().filter_map(Weak::upgrade) {
            // One that is not connected any more has nothing to resume.
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
        state.deserted = true;
        let waiting = mem::take(&mut state.waiting);
        drop(state);
        // What is in there may have anything behind it.
        drop(waiting);
    }
}

impl<C: EndpointContext> fmt::Debug for Events<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").finish_non_exhaustive()
    }
}
