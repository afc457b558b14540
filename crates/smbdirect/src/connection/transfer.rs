//! The futures of messages, reads and writes that were submitted.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::BytesMut;

use super::ReadError;
use crate::{
    driver::{Shared, TransferResult},
    engine::{ConnectionError, TransferFault},
};

/// A future that resolves when a message is reported as sent; [`Connection::send`](super::Connection::send)
/// defines when that happens, and [`Connection`](super::Connection) defines what is guaranteed from then on.
///
/// # Cancel safety
/// Dropping the future does not recall the message.
#[derive(Debug)]
#[must_use = "await it to learn when the message was handed to the wire, or drop it"]
pub struct Sending {
    shared: Arc<Shared>,
    index: Option<usize>,
}

impl Sending {
    /// Makes the future of the message whose waiter has this index.
    #[inline(always)]
    pub(super) fn new(shared: Arc<Shared>, index: usize) -> Self {
        Self {
            shared,
            index: Some(index),
        }
    }
}

impl Future for Sending {
    type Output = Result<(), ConnectionError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let index = self
            .index
            .expect("a future is not polled after it was done");
        // The old waker is dropped after the lock is released, because it may own the last handle of the
        // connection.
        let mut old = None;
        let result = self
            .shared
            .with(|state| state.poll_sent(index, context, &mut old));
        if result.is_ready() {
            self.index = None;
        }
        result
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        if let Some(index) = self.index {
            drop(self.shared.with(|state| state.abandon_sent(index)));
        }
    }
}

/// A future that resolves to the filled buffer of an RDMA Read; see
/// [`Connection::read`](super::Connection::read).
///
/// # Cancel safety
/// Dropping the future drops the buffer once the read is over. It does not recall the read.
#[derive(Debug)]
#[must_use = "the buffer comes back from this future"]
pub struct Reading {
    shared: Arc<Shared>,
    index: Option<usize>,
}

impl Reading {
    /// Makes the future of the read whose waiter has this index.
    #[inline(always)]
    pub(super) fn new(shared: Arc<Shared>, index: usize) -> Self {
        Self {
            shared,
            index: Some(index),
        }
    }
}

impl Future for Reading {
    type Output = Result<BytesMut, ReadError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { shared, index } = &mut *self;
        poll_transfer(shared, index, context).map(|(buffer, result)| match (result, buffer) {
            (Ok(()), Some(buffer)) => Ok(buffer),
            (Err(fault), buffer) => Err(ReadError { fault, buffer }),
            (Ok(()), None) => unreachable!("a read that is done has its buffer"),
        })
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        abandon_transfer(&self.shared, self.index);
    }
}

/// A future that resolves when the data of an RDMA Write was sent; see
/// [`Connection::write`](super::Connection::write).
///
/// # Cancel safety
/// Dropping the future does not recall the write.
#[derive(Debug)]
#[must_use = "await it to learn when the data was handed to the wire, or drop it"]
pub struct Writing {
    shared: Arc<Shared>,
    index: Option<usize>,
}

impl Writing {
    /// Makes the future of the write whose waiter has this index.
    #[inline(always)]
    pub(super) fn new(shared: Arc<Shared>, index: usize) -> Self {
        Self {
            shared,
            index: Some(index),
        }
    }
}

impl Future for Writing {
    type Output = Result<(), TransferFault>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { shared, index } = &mut *self;
        poll_transfer(shared, index, context).map(|(_, result)| result)
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        abandon_transfer(&self.shared, self.index);
    }
}

/// Polls a read or write, and clears its index when it is over.
fn poll_transfer(
    shared: &Shared,
    place: &mut Option<usize>,
    context: &mut Context<'_>,
) -> Poll<TransferResult> {
    let index = place.expect("a future is not polled after it was done");
    let mut old = None;
    let result = shared.with(|state| state.poll_transfer(index, context, &mut old));
    if result.is_ready() {
        *place = None;
    }
    result
}

/// Abandons the waiter of a read or write that is not over.
fn abandon_transfer(shared: &Shared, place: Option<usize>) {
    if let Some(index) = place {
        drop(shared.with(|state| state.abandon_transfer(index)));
    }
}
