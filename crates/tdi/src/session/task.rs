//! [`Task`]: the task of a connection, which moves TSDUs between the connection and the client.
//!
//! [`Outbound`](crate::Outbound) and [`Inbound`](crate::Inbound) make the decisions. The task
//! executes them: it passes TSDUs to the connection, takes received segments from it, and has the
//! owner call the client's handlers. No lock is held while a handler runs, except the endpoint's own
//! lock that makes its handlers run one at a time.

use std::{
    collections::VecDeque,
    future::Future,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll},
    thread,
    time::Instant,
};

use smbdirect::{ConnectionError, MessageOptions, Sending, Token, deadline::Postponements};
use tokio::time::{Sleep, sleep_until};
use tracing::warn;

use super::{clock::now, receives::ReceiveNews, sends::SendNews, shared::Session};
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
    fn session_ended(&self, session: &Arc<Session>, cause: &Cause);

    fn takes_chained(self: Arc<Self>) -> Called<bool>;
    fn chained_receive(self: Arc<Self>, tsdu: ChainedTsdu) -> Called<Result<(), ChainedTsdu>>;
    /// Calls the receive handler. If its answer has a request, the result has the call for its completion.
    fn receive(self: Arc<Self>, indication: Indication) -> Called<(Answer, Option<OnCompletion>)>;
    fn send_possible(self: Arc<Self>, available: usize) -> Called<()>;
    fn invalidated(self: Arc<Self>, token: Token) -> Called<()>;
    fn disconnect(self: Arc<Self>, flags: DisconnectFlags, cause: &Cause) -> Called<()>;
}

/// The task of a connection.
pub(crate) struct Task {
    session: Arc<Session>,
    /// The endpoint. When its last handle is dropped, the connection is aborted.
    owner: Weak<dyn SessionOwner>,
    /// TSDUs that the connection has taken and not sent yet.
    sending: VecDeque<Sending>,
    /// The call for the completion of the request that a handler has returned.
    on_completion: Option<OnCompletion>,
    sleep: Pin<Box<Sleep>>,
    postponed: Postponed,
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
        tokio::spawn(Self {
            session,
            owner,
            sending: VecDeque::new(),
            on_completion: None,
            sleep: Box::pin(sleep_until(tokio::time::Instant::now())),
            postponed: Postponed::default(),
        });
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

    /// Handles one event of the sends. Returns whether there was one.
    fn handle_send_news(&self) -> bool {
        let Some(news) = self.session.sends.poll_news() else {
            return false;
        };
        match news {
            SendNews::SendPossible(available) => {
                self.call(|owner| owner.send_possible(available));
            }
            SendNews::Abort(_) => self.session.fail(Cause::SendTimeout),
            SendNews::Drained => {
                self.session.connection.start_close();
            }
        }
        true
    }

    /// Calls a handler for one event of the receives. Returns whether there was one.
    fn handle_receive_news(&mut self) -> bool {
        let Some(owner) = self.owner.upgrade() else {
            return false;
        };
        // This also calls a handler, which may panic like any other handler.
        let lendable = match self.call(|owner| owner.takes_chained()) {
            Some(true) => owner.lendable(),
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
                    self.call(|_| call(completion));
                }
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

    /// Calls a handler. Returns `None` if there is no client, or if the handler panicked, which
    /// ends the connection.
    fn call<R>(&self, handler: impl FnOnce(Arc<dyn SessionOwner>) -> Called<R>) -> Option<R> {
        let owner = self.owner.upgrade()?;
        let result = handler(owner.clone())?;
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

    /// Completes everything that is pending and calls the last handlers, because the connection is
    /// closed and all received segments have been taken from it.
    fn finish(&mut self, reason: ConnectionError) {
        let cause = self.session.end_cause(reason);
        self.session.sends.end(cause.status());
        // No release can start any more, so this one is the last that has to be completed.
        let (is_local, release) = self.session.take_release();
        self.session.receives.finish(cause.status());
        while self.handle_receive_news() {}
        let owner = self.owner.upgrade();
        if let Some(owner) = &owner {
            owner.session_ended(&self.session, &cause);
        }
        if let Some(completer) = release {
            let result = match cause {
                Cause::LocalDisconnect => Ok(()),
                cause => Err(cause.status()),
            };
            let _ = completer.send(result);
        } else if !is_local {
            //= TDI-DISC-09
            self.call(|owner| owner.disconnect(DisconnectFlags::ABORT, &cause));
        }
    }
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
            busy |= task.handle_send_news();
            busy |= task.handle_receive_news();
            busy |= task.handle_timers(context);
            match over {
                _ if busy => {}
                Poll::Pending => return Poll::Pending,
                Poll::Ready(reason) => {
                    task.finish(reason);
                    return Poll::Ready(());
                }
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

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
