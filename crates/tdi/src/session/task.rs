//! [`Task`]: the task of a connection, which moves TSDUs between the connection and the client.
//!
//! [`Outbound`](crate::Outbound) and [`Inbound`](crate::Inbound) make the decisions. The task
//! executes them: it passes TSDUs to the connection, takes received segments from it, and has the
//! owner call the client's handlers. No lock is held while a handler runs, except the endpoint's own
//! lock that makes its handlers run one at a time.

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

use smbdirect::{ConnectionError, MessageOptions, Sending, Token, deadline::Postponements};
use tokio::time::{Sleep, sleep_until};
use tracing::warn;

use super::{
    clock::now,
    completions::{Returning, Routine},
    receives::ReceiveNews,
    sends::SendNews,
    shared::Session,
};
use crate::protocol::{
    Answer, Cause, ChainedTsdu, DisconnectFlags, Indication, ReceiveCompletion, Status,
};

/// Rounds of work in one poll of the task before it yields to other tasks.
const MAX_ROUNDS_PER_POLL: usize = 16;
/// Segments taken from the connection in one round.
const MAX_SEGMENTS_PER_ROUND: usize = 64;

/// The result of a handler of the client: `None` if there is no client, an error if the handler
/// panicked.
pub(crate) type Called<R> = Option<thread::Result<R>>;

/// Calls the client that has returned a request from its receive handler, for the completion of that request. It may
/// not be the client of the address any more.
pub(crate) type OnCompletion = Box<dyn FnOnce(ReceiveCompletion) -> Called<()> + Send>;

/// The owner of a session, which passes the events of the connection to the client's handlers.
pub(crate) trait SessionOwner: Send + Sync {
    /// Returns the number of bytes that may be lent to the client at one time.
    fn lendable(&self) -> usize;
    /// Makes the endpoint ready for another connection. Returns whether its connection was still this one.
    fn session_over(&self, session: &Arc<Session>, cause: &Cause) -> bool;
    /// Tells the futures that wait for the end of the connection.
    fn session_ended(&self, cause: &Cause);

    fn takes_chained(self: Arc<Self>) -> Called<bool>;
    fn chained_receive(self: Arc<Self>, tsdu: ChainedTsdu) -> Called<Result<(), ChainedTsdu>>;
    /// Calls the receive handler. If its answer has a request, the result has the call for its completion.
    fn receive(self: Arc<Self>, indication: Indication) -> Called<(Answer, Option<OnCompletion>)>;
    fn send_possible(self: Arc<Self>, available: usize) -> Called<()>;
    fn invalidated(self: Arc<Self>, token: Token) -> Called<()>;
    fn disconnect(self: Arc<Self>, flags: DisconnectFlags, cause: &Cause) -> Called<()>;
}

/// The task of a connection. It reports all events and completions of the connection to the client, one after another;
/// only futures resolve immediately.
pub(crate) struct Task {
    session: Arc<Session>,
    /// The endpoint. When its last handle is dropped, the connection is aborted.
    owner: Weak<dyn SessionOwner>,
    /// TSDUs that the connection has taken and not sent yet.
    sending: VecDeque<Sending>,
    /// The call for the completion of the request that a handler has returned.
    on_completion: Option<OnCompletion>,
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

impl Task {
    /// Starts the task. Must be called within a tokio runtime.
    pub(crate) fn spawn(session: Arc<Session>, owner: Weak<dyn SessionOwner>) {
        tokio::spawn(Self::new(session, owner));
    }

    fn new(session: Arc<Session>, owner: Weak<dyn SessionOwner>) -> Self {
        Self {
            session,
            owner,
            sending: VecDeque::new(),
            on_completion: None,
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
                self.routine = self.call_client(|| Some(catch(|| routine(completion))));
            }
            SendNews::SendPossible(available) => {
                self.call(|owner| owner.send_possible(available));
            }
            SendNews::Abort => self.session.fail(Cause::SendTimeout),
            SendNews::Drained => self.session.close_drained(),
        }
        true
    }

    /// Calls the client for one event of the receives. Returns whether there was one.
    fn report_receive(&mut self) -> bool {
        // This also calls a handler, which may panic like any other handler.
        let lendable = match self.call(|owner| owner.takes_chained()) {
            Some(true) => self.owner.upgrade().map_or(0, |owner| owner.lendable()),
            _ => 0,
        };
        let Some(news) = self.session.receives.poll_news(lendable) else {
            return false;
        };
        let result = match news {
            ReceiveNews::Indicate(indication) => {
                let answer = self.call(|owner| owner.receive(indication));
                // Without a handler the data is held for a receive.
                //= TDI-ADDR-02
                let (answer, on_completion) = answer.unwrap_or((Answer::NotAccepted(0), None));
                self.on_completion = on_completion;
                self.session.receives.answer(answer)
            }
            ReceiveNews::Chained(tsdu) => {
                let answer = self.call(|owner| owner.chained_receive(tsdu));
                self.session
                    .receives
                    .answer_chained(answer.unwrap_or(Ok(())))
            }
            ReceiveNews::Completed(completion) => {
                if let Some(call) = self.on_completion.take() {
                    self.call_client(|| call(completion));
                }
                Ok(())
            }
            ReceiveNews::Filled(target, status, information) => {
                self.call_client(|| Some(catch(|| target.completed(status, information))));
                Ok(())
            }
            ReceiveNews::Invalidated(token) => {
                self.call(|owner| owner.invalidated(token));
                Ok(())
            }
        };
        // Any other error means that the connection was ended while the handler ran.
        if result == Err(Status::INVALID_PARAMETER) {
            let log = || warn!("a handler took more than was indicated");
            self.session.connection.in_span(log);
        }
        true
    }

    /// Calls a handler of the owner's client.
    fn call<R>(&self, handler: impl FnOnce(Arc<dyn SessionOwner>) -> Called<R>) -> Option<R> {
        self.call_client(|| handler(self.owner.upgrade()?))
    }

    /// Calls the client. Returns `None` if there is no client, or if it panicked, which ends the connection.
    fn call_client<R>(&self, client: impl FnOnce() -> Called<R>) -> Option<R> {
        let result = client()?;
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
                let owner = self.owner.upgrade();
                let was_current =
                    owner.is_some_and(|owner| owner.session_over(&self.session, &cause));
                self.end = End::Ended { cause, was_current };
            }
            End::Ended { cause, was_current } => {
                if *was_current && let Some(owner) = self.owner.upgrade() {
                    owner.session_ended(cause);
                }
                if !self.session.is_disconnected_here() {
                    //= TDI-DISC-09
                    self.call(|owner| owner.disconnect(DisconnectFlags::ABORT, cause));
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

impl Future for Task {
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
        let pending = session.sends.submit(submitted, request);
        task.start_sends(context);
        assert_eq!(task.sending.len(), 1);
        assert!(task.handle_timers(context));
        let completion = pending.into_completion().expect("it was sent");
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
