//! The handshake: from a connection request to a connection.

use std::{
    future::Future,
    mem,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
};

use bytes::Bytes;

use super::{
    lock::{lock, wake},
    queue_pair::LoopbackQueuePair,
};
use crate::{
    provider::{AcceptRequest, Connected, IncomingRequest, QueuePair},
    work::{Limits, ProviderError, ProviderErrorKind, WorkRequest},
};

/// A connection request that waits at a listener.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) limits: Limits,
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) private_data: Bytes,
    pub(super) receive: WorkRequest,
    pub(super) answer: PendingAnswer,
}

impl Request {
    /// Converts the request for a listener with `limits`.
    pub(super) fn into_incoming(mut self, limits: Limits) -> IncomingRequest {
        let private_data = mem::take(&mut self.private_data);
        IncomingRequest::new(self.from, private_data, true, move |answer| async move {
            self.accept(answer, limits)
        })
    }

    /// Connects both ends and returns the accepting one.
    fn accept(self, answer: AcceptRequest, limits: Limits) -> Result<Connected, ProviderError> {
        check_private_data(&answer.private_data)?;
        let mut ours = common_limits(limits, self.limits);
        if let Some(served) = answer.peer_serves_reads {
            ours.max_outbound_reads = ours.max_outbound_reads.min(served);
        }
        let theirs = common_limits(self.limits, limits);
        let [mut here, mut there] = LoopbackQueuePair::pair([ours, theirs]);
        //= SMBD-3.1.7.2-04
        here.post(answer.receive);
        here.publish_receives();
        //= SMBD-3.1.4.1-07
        there.post(self.receive);
        there.publish_receives();
        let there = there.connected(self.from, self.to, answer.private_data);
        let decided = self.answer.decide(Ok(there));
        if !decided {
            let what = "the peer withdrew its connection request";
            return Err(ProviderError::new(ProviderErrorKind::Reset, what));
        }
        Ok(here.connected(self.to, self.from, Bytes::new()))
    }
}

/// The state of a connection request, which both sides share.
#[derive(Debug)]
pub(super) enum Handshake {
    /// The request has no answer yet; the waker belongs to the connecting side.
    Undecided(Option<Waker>),
    /// The answer that the connecting side has not taken yet.
    Decided(Result<Connected, ProviderError>),
    /// The connecting side is gone, or has taken the answer.
    Over,
}

/// The accepting side of a request. Dropping it refuses the connection.
#[derive(Debug)]
pub(super) struct PendingAnswer(pub(super) Arc<Mutex<Handshake>>);

impl PendingAnswer {
    /// Returns whether the connecting side still waits for an answer.
    pub(super) fn is_awaited(&self) -> bool {
        matches!(*lock(&self.0), Handshake::Undecided(_))
    }

    /// Answers the request. Returns false if the connecting side no longer waits.
    fn decide(&self, answer: Result<Connected, ProviderError>) -> bool {
        let mut handshake = lock(&self.0);
        let Handshake::Undecided(waker) = &mut *handshake else {
            return false;
        };
        let waker = waker.take();
        *handshake = Handshake::Decided(answer);
        drop(handshake);
        wake(waker);
        true
    }
}

impl Drop for PendingAnswer {
    fn drop(&mut self) {
        self.decide(Err(rejected("the listener refused the connection")));
    }
}

/// The connecting side of a request: a future that resolves with the answer. Dropping it withdraws
/// the request.
#[derive(Debug)]
pub(super) struct PendingConnect(pub(super) Arc<Mutex<Handshake>>);

impl Future for PendingConnect {
    type Output = Result<Connected, ProviderError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut handshake = lock(&self.0);
        match mem::replace(&mut *handshake, Handshake::Over) {
            Handshake::Undecided(old) => {
                *handshake = Handshake::Undecided(Some(context.waker().clone()));
                drop(handshake);
                drop(old);
                Poll::Pending
            }
            Handshake::Decided(answer) => Poll::Ready(answer),
            Handshake::Over => Poll::Pending,
        }
    }
}

impl Drop for PendingConnect {
    fn drop(&mut self) {
        let unread = mem::replace(&mut *lock(&self.0), Handshake::Over);
        // An unread answer may hold a connection. Dropping it ends the connection, so the lock is
        // not held here.
        drop(unread);
    }
}

/// Returns the limits of an end with limits `own` that is connected to an end with limits `peer`.
fn common_limits(own: Limits, peer: Limits) -> Limits {
    Limits {
        max_outbound_reads: own.max_outbound_reads.min(peer.max_inbound_reads),
        max_inbound_reads: own.max_inbound_reads.min(peer.max_outbound_reads),
        max_transfer: own.max_transfer.min(peer.max_transfer),
        send_with_invalidate: own.send_with_invalidate && peer.send_with_invalidate,
        ..own
    }
}

/// The most bytes of private data, as [`ConnectRequest`](crate::provider::ConnectRequest)
/// documents.
const MAX_PRIVATE_DATA: usize = 200;

/// Returns an error if `data` is longer than a request or an answer may carry.
pub(super) fn check_private_data(data: &Bytes) -> Result<(), ProviderError> {
    if data.len() <= MAX_PRIVATE_DATA {
        return Ok(());
    }
    let what = format!(
        "{} bytes of private data, and {MAX_PRIVATE_DATA} is the most",
        data.len()
    );
    Err(ProviderError::new(ProviderErrorKind::Local, what))
}

/// Creates the error of a connection that the listener does not take.
pub(super) fn rejected(what: &str) -> ProviderError {
    ProviderError::new(ProviderErrorKind::Rejected, what)
}
