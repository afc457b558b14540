//! The events of the engine: messages received and sent, finished reads and writes, and the end of the
//! connection.

use std::task::{Context, Waker};

use bytes::BytesMut;

use super::{clock::now, rounds::COMPLETIONS_PER_ROUND, state::State, waiting::Condition};
#[cfg(feature = "metrics")]
use crate::metrics;
use crate::{
    engine::{ConnectionError, Event},
    rdma::work::{Completion, Disconnect, ProviderError, ProviderErrorKind, Teardown},
};

impl State {
    /// Handles the events of the engine and collects the wakers of the futures that they complete.
    #[inline]
    pub(super) fn take_events(&mut self) {
        while let Some(event) = self.engine.poll_event() {
            match event {
                Event::Segment {
                    payload,
                    remaining,
                    invalidated,
                } => {
                    let before = self.inbox.cost();
                    self.inbox.push(payload, remaining, invalidated);
                    if remaining == 0 {
                        self.schedule.message_arrived(self.inbox.cost() - before);
                        self.wake_receivers();
                    }
                    self.wake(Condition::Segment);
                }
                Event::MessageSent(id) => {
                    if let Ok(waker) = self.sends.complete(id.0 as usize, Ok(())) {
                        self.wakes.extend(waker);
                    }
                }
                Event::TransferDone {
                    id,
                    buffer,
                    completed,
                } => {
                    let bytes = buffer.as_ref().map_or(0, BytesMut::len);
                    self.schedule.read_finished(bytes);
                    let result = if completed {
                        Ok(())
                    } else {
                        Err(self.reason().into())
                    };
                    let waker = self.transfers.complete(id.0 as usize, (buffer, result));
                    self.wakes.extend(waker.ok().flatten());
                }
                Event::Negotiated(negotiated) => {
                    self.negotiated = Some(negotiated);
                    self.wake(Condition::Negotiation);
                }
                Event::KeepaliveAnswered => {
                    self.keepalives_answered += 1;
                    #[cfg(feature = "metrics")]
                    self.report_round_trip();
                    self.wake(Condition::Keepalive);
                }
                Event::Closed(error) => self.end(error),
            }
        }
    }

    /// Records why the connection ended, disconnects the queue pair, and fails every send that waits.
    #[cold]
    fn end(&mut self, error: ConnectionError) {
        if !self.finished {
            self.queue_pair.disconnect(self.engine.teardown());
            // The driver task polls the queue pair until it reports the disconnect.
            self.wake_task();
        }
        //= SMBD-3.1.5.1-13b
        self.sends
            .complete_all(|| Err(error.clone()), &mut self.wakes);
        self.closed = Some(error);
        #[cfg(feature = "metrics")]
        self.report_end();
        self.wake_all();
    }

    /// Records that the queue pair has disconnected, which it reports last.
    #[cold]
    pub(super) fn finish(&mut self, how: &Disconnect) {
        self.finished = true;
        if let (Some(ConnectionError::ClosedHere), Disconnect::Broken(error)) = (&self.closed, how)
        {
            // The close was meant to be graceful, but the connection broke.
            self.closed = Some(error.clone().into());
        }
        self.wake_all();
    }

    /// Ends the connection when its task is dropped before it has finished and no other task can continue: aborts
    /// the connection, takes back all posted work, and fails every future that waits.
    pub(super) fn give_up(&mut self) {
        let what = "the runtime of the connection has ended";
        let error = ProviderError::new(ProviderErrorKind::Local, what);
        let now = now();
        self.engine
            .handle_completion(now, Completion::Disconnected(Disconnect::Broken(error)));
        self.take_events();
        self.queue_pair.disconnect(Teardown::Abort);
        let context = &mut Context::from_waker(Waker::noop());
        self.schedule.begin_poll(false);
        while self.take_completions(now, context, COMPLETIONS_PER_ROUND, false) > 0 {
            self.schedule.begin_poll(false);
        }
        self.finished = true;
        let reason = self.reason();
        self.transfers
            .complete_all(|| (None, Err(reason.clone().into())), &mut self.wakes);
        self.wake_all();
    }

    /// Ends the connection after a panic under the lock.
    #[cold]
    pub(super) fn end_after_panic(&mut self) {
        let what = "the destructor of a payload has panicked";
        let error = ProviderError::new(ProviderErrorKind::Local, what);
        let disconnect = Completion::Disconnected(Disconnect::Broken(error));
        self.engine.handle_completion(now(), disconnect);
        self.take_events();
        self.wake_task();
    }

    /// Returns why the connection is over: closed by this end, if the engine has given no other reason.
    pub(super) fn reason(&self) -> ConnectionError {
        self.closed.clone().unwrap_or(ConnectionError::ClosedHere)
    }

    /// Reports that the connection has ended, for the reason in [`closed`](Self::closed).
    #[cfg(feature = "metrics")]
    #[cold]
    fn report_end(&self) {
        if let (Some(_), Some(error)) = (self.metered.id, &self.closed) {
            metrics::ended(error);
        }
    }

    /// Reports the round trip of a keepalive that was answered.
    #[cfg(feature = "metrics")]
    #[cold]
    fn report_round_trip(&mut self) {
        let trips = self.engine.statistics().keepalive_round_trips;
        if trips.count != self.metered.round_trips
            && let Some(time) = trips.last
        {
            self.metered.round_trips = trips.count;
            metrics::round_trip(time);
        }
    }
}
