//! The data of receives: settings, requests, completions, indications and events.

use std::fmt::Debug;

use bytes::{Bytes, BytesMut};
use smbdirect::Token;

use super::{
    chained::ChainedTsdu,
    flags::{IndicationFlags, ReceiveFlags},
    request::RequestId,
    status::Status,
};

/// The settings of the receives of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiveSettings {
    /// The smallest number of bytes in an indication, unless the TSDU has fewer bytes left. TDI
    /// requires 128.
    pub minimum_lookahead: usize,
    /// The most bytes that one indication carries.
    pub maximum_lookahead: usize,
    /// The number of bytes that can be held and lent before no more data is taken from the
    /// connection. A TSDU that has started to be indicated, that will be lent, or that a stream
    /// takes whole can exceed it. Data that is not taken fills the buffer of the connection,
    /// [`Settings::receive_buffer`](smbdirect::Settings::receive_buffer).
    pub receive_buffer: usize,
    /// The part of `receive_buffer`, in bytes, that can be lent to the chained receive handler. 0
    /// if there is no such handler.
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
    /// The id of the request, which its completion repeats.
    pub id: RequestId,
    /// The buffer to fill, over its whole length. An empty buffer resumes indications that a
    /// handler has stopped.
    pub buffer: ReceiveBuffer,
    /// The kind of data to receive.
    pub flags: ReceiveFlags,
}

/// The memory that a receive fills.
#[derive(Debug)]
pub enum ReceiveBuffer {
    /// Memory of this process, which the completion returns.
    Bytes(BytesMut),
    /// Memory that something else owns, so that received data is copied straight to its place.
    Target(Box<dyn ReceiveTarget>),
}

/// Memory for received data that is not a [`BytesMut`].
pub trait ReceiveTarget: Debug + Send {
    /// Returns the number of bytes that the memory holds in total.
    fn capacity(&self) -> usize;

    /// Copies received bytes after those of earlier calls. There is room for them.
    fn put(&mut self, bytes: &[u8]);

    /// Handles the completion of the receive: its status, and the number of bytes that were copied. The task of the
    /// connection calls this without a lock, in order with the handlers of the endpoint.
    fn completed(self: Box<Self>, status: Status, information: usize);
}

impl ReceiveBuffer {
    /// Returns the number of bytes that the memory holds in total.
    pub fn capacity(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Target(target) => target.capacity(),
        }
    }

    /// Copies received bytes after the first `placed` ones, which earlier calls have copied.
    pub(crate) fn put(&mut self, placed: usize, bytes: &[u8]) {
        match self {
            Self::Bytes(buffer) => buffer[placed..placed + bytes.len()].copy_from_slice(bytes),
            Self::Target(target) => target.put(bytes),
        }
    }
}

impl From<BytesMut> for ReceiveBuffer {
    fn from(buffer: BytesMut) -> Self {
        Self::Bytes(buffer)
    }
}

/// The completion of a receive. Each receive has exactly one.
#[derive(Debug)]
pub struct ReceiveCompletion {
    /// The id of the request.
    pub id: RequestId,
    /// The result. [`SUCCESS`](Status::SUCCESS): the end of a TSDU is in the buffer.
    /// [`BUFFER_OVERFLOW`](Status::BUFFER_OVERFLOW): the buffer is full before the end of the TSDU.
    /// [`RECEIVE_PARTIAL`](Status::RECEIVE_PARTIAL): a peek did not see the end of the TSDU.
    pub status: Status,
    /// The number of bytes placed in the buffer.
    pub information: usize,
    /// The buffer, with its original length. It is empty if the data is in a [`ReceiveTarget`].
    pub buffer: BytesMut,
    /// The target that has the data, if the request had one. Pass it this completion.
    pub target: Option<Box<dyn ReceiveTarget>>,
    /// The token of this end's registration that the TSDU invalidated, reported with its end.
    pub invalidated_token: Option<Token>,
}

impl ReceiveCompletion {
    /// Returns the received bytes, without the unused rest of the buffer.
    ///
    /// # Errors
    /// Returns the status if it is an error.
    pub fn into_data(mut self) -> Result<BytesMut, Status> {
        if self.status.is_error() {
            return Err(self.status);
        }
        self.buffer.truncate(self.information);
        Ok(self.buffer)
    }
}

/// Received bytes that are shown to a handler, which answers how many of them it takes.
#[derive(Clone, Debug)]
pub struct Indication {
    /// Properties of the indicated bytes.
    pub flags: IndicationFlags,
    /// The indicated bytes.
    pub data: Bytes,
    /// The number of bytes of the TSDU that have arrived and were not taken, including `data`.
    pub available: usize,
    /// The length of the whole TSDU in bytes.
    pub tsdu_length: usize,
    /// The offset of `data` in the TSDU.
    pub tsdu_offset: usize,
    /// The token of this end's registration that the TSDU invalidated, reported with its end.
    pub invalidated_token: Option<Token>,
}

/// The answer of a handler to an [`Indication`].
#[derive(Debug)]
pub enum Answer {
    /// The handler took this many bytes; indications continue.
    Taken(usize),
    /// The handler took this many bytes; the data after them fills this request.
    TakenThenReceive(usize, ReceiveRequest),
    /// The handler took this many bytes; the data after them is held until it is received.
    NotAccepted(usize),
}

/// An event for the client.
#[derive(Debug)]
pub enum ReceiveEvent {
    /// A request has completed.
    Completed(ReceiveCompletion),
    /// Data for the copying handler. Pass its answer to
    /// [`Inbound::answer`](super::Inbound::answer).
    Indicate(Indication),
    /// A TSDU for the chained handler. Pass its answer to
    /// [`Inbound::answer_chained`](super::Inbound::answer_chained).
    Chained(ChainedTsdu),
    /// A message without payload has invalidated this token of this end.
    Invalidated(Token),
}
