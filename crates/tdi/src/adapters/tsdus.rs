//! The TSDUs of an endpoint as a stream, a sink and a writer: [`Tsdus`], [`TsduSink`] and [`TsduWriter`].

use std::{
    collections::VecDeque,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use futures_core::Stream;
use futures_sink::Sink;
use smbdirect::Message;

use crate::{
    objects::{Endpoint, EndpointContext},
    protocol::{DisconnectFlags, SendFlags, Status},
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
