//! [`Task`]: the task of a connection, which moves TSDUs between the connection and the client.
//!
//! [`Outbound`](crate::Outbound) and [`Inbound`](crate::Inbound) make the decisions. The task
//! executes them: it passes TSDUs to the connection, takes received segments from it, and calls the
//! client's handlers. No lock is held while a handler runs, except the endpoint's own lock that makes
//! its handlers run one at a time.

use std::{
    collections::VecDeque,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll},
    thread,
    time::Instant,
};

use smbdirect::{ConnectionError, MessageOptions, Sending, deadline::Postponements};
use tokio::time::{Sleep, sleep_until};
use tracing::warn;

use super::types::{Client, Endpoint, EndpointContext, EndpointShared};
use crate::{
    protocol::{Answer, Cause, DisconnectFlags, Status},
    session::{ReceiveNews, Returning, Routine, SendNews, Session, now},
};

/// Rounds of work in one poll of the task before it yields to other tasks.
const MAX_ROUNDS_PER_POLL: usize = 16;
/// Segments taken from the connection in one round.
const MAX_SEGMENTS_PER_ROUND: usize = 64;

/// The task of a connection. It reports all events and completions of the connection to the client, one after another;
/// only futures resolve immediately.
pub(super) struct Task<C: EndpointContext> {
    session: Arc<Session>,
    /// When the last handle of the endpoint is dropped, the connection is aborted.
    endpoint: Weak<EndpointShared<C>>,
    /// TSDUs that the connection has taken and not sent yet.
    sending: VecDeque<Sending>,
    /// The client that has returned a request from its receive handler, until that completes. It may not be the client of
    /// the address any more.
    requester: Option<Arc<dyn Client<C>>>,
    /// The call of a routine of the client that must return before anything else is reported.
    routine: Option<Returning>,
    end: End,
    sleep: Pin<Box<Sleep>>,
    postponed: Postponed,
}

/// How far the end of the connection has got.
enum End {
    Open,
    /// The connection has ended. The completions and data that are left are reported.
    Ended {
        cause: Cause,
        /// The endpoint was on this connection until then.
        was_current: bool,
    },
    /// The end was reported. Data that is held can still be received.
    Reported,
}

/// The deadline that was postponed last.
#[derive(Default)]
struct Postponed {
    due: Option<Instant>,
    until: Option<Instant>,
    postponements: Postponements,
}

impl Postponed {
    /// Returns when the deadline `due` is to be checked, which is later if it was postponed.
    fn until(&self, due: Instant) -> Instant {
        let until = self.until.filter(|_| self.due == Some(due));
        until.unwrap_or(due)
    }

    /// Postpones the deadline `due` if it does not apply at `now` under the rule of [`Postponements`], and returns
    /// whether it was postponed.
    fn postpone(&mut self, due: Instant, now: Instant, all_read: bool) -> bool {
        if self.due != Some(due) {
            *self = Self {
                due: Some(due),
                ..Self::default()
            };
        }
        let later = self.postponements.postpone(self.until(due), now, all_read);
        self.until = later.or(self.until);
        later.is_some()
    }
}

impl<C: EndpointContext> Task<C> {
    /// Starts the task. Must be called within a tokio runtime.
    pub(super) fn spawn(session: Arc<Session>, endpoint: Weak<EndpointShared<C>>) {
        tokio::spawn(Self::new(session, endpoint));
    }

    fn new(session: Arc<Session>, endpoint: Weak<EndpointShared<C>>) -> Self {
        Self {
            session,
            endpoint,
            sending: VecDeque::new(),
            requester: None,
            routine: None,
            end: End::Open,
            sleep: Box::pin(sleep_until(tokio::time::Instant::now())),
            postponed: Postponed::default(),
        }
    }

    /// Passes to the connection the TSDUs that it can start to send now.
    fn start_sends(&mut self, context: &mut Context<'_>) {
        //= TDI-SEND-04
        while self.session.sends.has_tsdu()
            && matches!(
                self.session.connection.poll_ready(context),
                Poll::Ready(Ok(()))
            )
            && let Some(tsdu) = self
                .session
                .sends
                .poll_tsdu(self.session.send_availability())
        {
            let connection = &self.session.connection;
            let mut options = MessageOptions::default();
            options.invalidate = tsdu.invalidate;
            options.response_requested = tsdu.prompt;
            match connection.send_with(tsdu.message, options) {
                Ok(sending) => self.sending.push_back(sending),
                // The connection has just ended, and `finish` will end all sends.
                Err(_) => break,
            }
        }
    }

    /// Completes the TSDUs that the connection has sent. Returns whether there was one.
    fn complete_sent(&mut self, context: &mut Context<'_>) -> bool {
        let mut any = false;
        while let Some(sending) = self.sending.front_mut()
            && let Poll::Ready(result) = Pin::new(sending).poll(context)
        {
            self.sending.pop_front();
            if result.is_ok() {
                self.session.sends.tsdu_sent();
            }
            any = true;
        }
        any
    }

    /// Takes up to [`MAX_SEGMENTS_PER_ROUND`] received segments, and without `all` only while there is
    /// room for them. Returns whether more may be left.
    fn take_segments(&self, context: &mut Context<'_>, all: bool) -> bool {
        let receives = &self.session.receives;
        for _ in 0..MAX_SEGMENTS_PER_ROUND {
            if !all && !receives.wants_segment() {
                return false;
            }
            match self.session.connection.poll_recv_segment(context) {
                Poll::Ready(Ok(segment)) => receives.handle_segment(segment),
                _ => return false,
            }
        }
        true
    }

    /// Reports one event to the client. Returns whether there was one that can be reported.
    fn report(&mut self, context: &mut Context<'_>) -> bool {
        if let Some(routine) = &mut self.routine {
            if routine.as_mut().poll(context).is_pending() {
                return false;
            }
            self.routine = None;
        }
        self.report_send() || self.report_receive()
    }

    /// Handles one event of the sends. Returns whether there was one.
    fn report_send(&mut self) -> bool {
        let Some(news) = self.session.sends.poll_news() else {
            return false;
        };
        match news {
            SendNews::Completed(Routine(routine), completion) => {
                self.routine = self.returned(catch(|| routine(completion)));
            }
            SendNews::SendPossible(available) => {
                self.call(|client, endpoint| client.send_possible(endpoint, available));
            }
            SendNews::Abort => self.session.fail(Cause::SendTimeout),
            SendNews::Drained => self.session.close_drained(),
        }
        true
    }

    /// Calls the client for one event of the receives. Returns whether there was one.
    fn report_receive(&mut self) -> bool {
        // This also calls a handler, which may panic like any other handler.
        let lendable = match self.call(|client, _| client.takes_chained()) {
            Some(true) => self
                .endpoint
                .upgrade()
                .map_or(0, |shared| shared.lendable()),
            _ => 0,
        };
        let receives = &self.session.receives;
        let Some(news) = receives.poll_news(lendable) else {
            return false;
        };
        let mut result = Ok(());
        match news {
            ReceiveNews::Indicate(indication) => {
                let client = self.client();
                let answer = client.as_ref().and_then(|(client, endpoint)| {
                    self.call_at(&**client, endpoint, |client, endpoint| {
                        client.receive(endpoint, indication)
                    })
                });
                // Without a handler the data is held for a receive.
                //= TDI-ADDR-02
                let answer = answer.unwrap_or(Answer::NotAccepted(0));
                let returns_request = matches!(answer, Answer::TakenThenReceive(..));
                result = receives.answer(answer);
                let requester = client.filter(|_| returns_request);
                self.requester = requester.map(|(client, _)| client);
            }
            ReceiveNews::Chained(tsdu) => {
                let answer = self.call(|client, endpoint| client.chained_receive(endpoint, tsdu));
                result = receives.answer_chained(answer.unwrap_or(Ok(())));
            }
            ReceiveNews::Completed(completion) => {
                if let (Some(client), Some(shared)) =
                    (self.requester.take(), self.endpoint.upgrade())
                {
                    let endpoint = Endpoint::from_shared(shared);
                    self.call_at(&*client, &endpoint, |client, endpoint| {
                        client.receive_completed(endpoint, completion);
                    });
                }
            }
            ReceiveNews::Filled(target, status, information) => {
                self.returned(catch(|| target.completed(status, information)));
            }
            ReceiveNews::Invalidated(token) => {
                self.call(|client, endpoint| client.invalidated(endpoint, token));
            }
        }
        // Any other error means that the connection was ended while the handler ran.
        if result == Err(Status::INVALID_PARAMETER) {
            let log = || warn!("a handler took more than was indicated");
            self.session.connection.in_span(log);
        }
        true
    }

    /// Returns the client of the endpoint's address.
    fn client(&self) -> Option<(Arc<dyn Client<C>>, Endpoint<C>)> {
        let endpoint = Endpoint::from_shared(self.endpoint.upgrade()?);
        Some((endpoint.client()?, endpoint))
    }

    /// Calls a handler of the address's client. Returns `None` if there is no client, or if the handler panicked.
    fn call<R>(&self, handler: impl FnOnce(&dyn Client<C>, &Endpoint<C>) -> R) -> Option<R> {
        let (client, endpoint) = self.client()?;
        self.call_at(&*client, &endpoint, handler)
    }

    fn call_at<R>(
        &self,
        client: &dyn Client<C>,
        endpoint: &Endpoint<C>,
        handler: impl FnOnce(&dyn Client<C>, &Endpoint<C>) -> R,
    ) -> Option<R> {
        self.returned(endpoint.call_client(client, |client| handler(client, endpoint)))
    }

    /// Returns what the client has returned, or `None` if it panicked, which ends the connection.
    fn returned<R>(&self, result: thread::Result<R>) -> Option<R> {
        if result.is_err() {
            let log = || warn!("a handler panicked, its connection ends");
            self.session.connection.in_span(log);
            self.session.fail(Cause::HandlerPanicked);
            self.session.receives.close(Status::CONNECTION_ABORTED);
        }
        result.ok()
    }

    /// Handles the deadlines that have passed, or sets the timer to the next one. Returns whether a
    /// deadline has passed.
    fn handle_timers(&mut self, context: &mut Context<'_>) -> bool {
        let release = self.session.release_deadline();
        let sends = self.session.sends.poll_timeout();
        let Some(due) = sends.into_iter().chain(release).min() else {
            return false;
        };
        let now = now();
        if self.postponed.until(due) <= now {
            let all_read = self.session.connection.catch_up();
            if self.complete_sent(context)
                || !self.session.sends.was_passed(due)
                    && self.postponed.postpone(due, now, all_read)
            {
                return true;
            }
            self.session.sends.handle_timeout(now);
            if release.is_some_and(|due| due <= now) {
                self.session.release_timed_out();
            }
            return true;
        }
        let due = tokio::time::Instant::from_std(self.postponed.until(due));
        if self.sleep.deadline() != due {
            self.sleep.as_mut().reset(due);
        }
        self.sleep.as_mut().poll(context).is_ready()
    }

    /// Takes the next step of the end of the connection, which is closed for `reason`. All received segments were taken
    /// from it, and everything that has happened was reported. Returns whether there was a step.
    fn finish(&mut self, reason: ConnectionError) -> bool {
        match &self.end {
            End::Open => {
                let cause = self.session.end_cause(reason);
                self.session.sends.end(cause.status());
                self.session.receives.finish(cause.status());
                // A client whose requests have completed may begin another connection.
                let shared = self.endpoint.upgrade();
                let was_current =
                    shared.is_some_and(|shared| shared.session_over(&self.session, &cause));
                self.end = End::Ended { cause, was_current };
            }
            End::Ended { cause, was_current } => {
                if *was_current && let Some(shared) = self.endpoint.upgrade() {
                    shared.session_ended(cause);
                }
                if !self.session.is_disconnected_here() {
                    //= TDI-DISC-09
                    self.call(|client, endpoint| {
                        client.disconnect(endpoint, DisconnectFlags::ABORT, cause);
                    });
                }
                self.session.complete_disconnects(cause);
                self.end = End::Reported;
            }
            End::Reported => return false,
        }
        true
    }
}

/// Calls a routine of the client.
fn catch<R>(routine: impl FnOnce() -> R) -> thread::Result<R> {
    catch_unwind(AssertUnwindSafe(routine))
}

impl<C: EndpointContext> Future for Task<C> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let task = self.get_mut();
        task.session.sends.watch(context.waker());
        task.session.receives.watch(context.waker());
        for _ in 0..MAX_ROUNDS_PER_POLL {
            // This is polled before the segments are taken, so that every segment that arrived
            // before the close is taken before `finish`.
            let over = task.session.connection.poll_closed(context);
            task.start_sends(context);
            task.complete_sent(context);
            let mut busy = task.take_segments(context, over.is_ready());
            busy |= task.report(context);
            busy |= task.handle_timers(context);
            if !busy
                && task.routine.is_none()
                && let Poll::Ready(reason) = over
            {
                busy = task.finish(reason);
                if !busy && task.session.end_task() {
                    return Poll::Ready(());
                }
            }
            if !busy {
                return Poll::Pending;
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::{task::Waker, time::Duration};

    use super::*;
    use crate::{
        objects::Pair,
        protocol::{RequestId, SendFlags, SendRequest},
    };

    /// The completion of the send waits to be read when its deadline is judged. The other tasks do not run meanwhile.
    #[tokio::test(start_paused = true)]
    async fn a_send_that_completed_together_with_its_deadline_has_succeeded() {
        let pair = Pair::apart().await;
        pair.connect().await;
        let session = pair.here.sending_session().unwrap();
        let mut task = Task::new(session.clone(), pair.here.downgrade());
        let context = &mut Context::from_waker(Waker::noop());
        let deadline = now() - Duration::from_millis(10);
        let mut request = SendRequest::new(RequestId(0), "data", SendFlags::empty());
        request.deadline = Some(deadline);
        let submitted = deadline - Duration::from_millis(1);
        let (_, mut pending) = session.sends.submit(submitted, request);
        task.start_sends(context);
        assert_eq!(task.sending.len(), 1);
        assert!(task.handle_timers(context));
        let completion = pending.try_recv().expect("it was sent");
        assert_eq!(completion.status, Status::SUCCESS);
        assert_eq!(session.connection.error(), None);
    }

    #[test]
    fn each_deadline_is_postponed_by_itself() {
        let first = Instant::now();
        let second = first + Duration::from_secs(100);
        let late = Duration::from_secs(10);
        let mut postponed = Postponed::default();
        assert!(
            !postponed.postpone(first, first, true),
            "it is judged in time"
        );
        assert_eq!(postponed.until(first), first);
        for due in [first, second] {
            for _ in 0..3 {
                let now = postponed.until(due) + late;
                assert!(postponed.postpone(due, now, true));
                assert!(postponed.until(due) > now);
            }
            let last = postponed.until(due);
            assert!(!postponed.postpone(due, last + late, true));
            assert_eq!(postponed.until(due), last);
        }
        // Only the deadline that was postponed last is remembered.
        assert_eq!(postponed.until(first), first);
    }
}
