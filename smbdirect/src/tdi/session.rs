//! [`Session`]: one connection of an endpoint, from its establishment to its last event; and the
//! task that carries TSDUs between it and the client.
//!
//! The decisions are those of [`Outbound`](super::Outbound) and [`Inbound`](super::Inbound); the
//! task asks them, moves what they say, and calls handlers. Never is a lock held while a handler
//! is at work, but for the turn of the endpoint, which keeps its handlers one after another.

use std::{
    collections::VecDeque,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll},
    time::Instant,
};

use tokio::time::{Sleep, sleep_until};
use tracing::warn;

use super::{
    client::{Cause, Client},
    endpoint::{Endpoint, EndpointContext, Shared},
    flags::DisconnectFlags,
    pending::Completer,
    receive::{Answer, Inbound, ReceiveSettings},
    receives::{ReceiveNews, Receives},
    send::{Outbound, Outlook, SendSettings},
    sends::{SendNews, Sends},
    status::Status,
};
use crate::{
    connection::{Connection, Sending},
    driver::now,
    engine::ConnectionError,
};

/// Looks at everything before others get their turn.
const ROUNDS: usize = 16;
/// Segments taken in one look.
const SEGMENTS: usize = 64;

/// What the handles of an endpoint and the task of its connection share.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) connection: Connection,
    pub(crate) sends: Sends,
    pub(crate) receives: Receives,
    control: Mutex<Control>,
}

#[derive(Debug, Default)]
struct Control {
    /// Why it ends, as the first to know has it.
    cause: Option<Cause>,
    /// The client has ended it, and is not told.
    is_local: bool,
    release: Option<Release>,
}

/// A controlled disconnect under way.
#[derive(Debug)]
struct Release {
    deadline: Option<Instant>,
    completer: Completer,
}

impl Session {
    /// The settings have been found to be consistent.
    pub(crate) fn new(
        connection: Connection,
        send: &SendSettings,
        receive: &ReceiveSettings,
    ) -> Arc<Self> {
        let max_tsdu = connection.negotiated().max_fragmented_send_size as usize;
        let send = SendSettings {
            max_tsdu: send.max_tsdu.min(max_tsdu),
            ..send.clone()
        };
        let outbound = Outbound::new(send).expect("smaller TSDUs ask for less");
        let inbound = Inbound::new(receive.clone()).expect("the transport has checked them");
        Arc::new(Self {
            connection,
            sends: Sends::new(outbound),
            receives: Receives::new(inbound),
            control: Mutex::default(),
        })
    }

    fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the connection at once, at the wish of the client: sends that are pending end with
    /// `sends`, receives are cancelled.
    pub(crate) fn abort(&self, sends: Status) {
        {
            let mut control = self.control();
            control.cause.get_or_insert(Cause::LocalDisconnect);
            control.is_local = true;
        }
        self.sends.end(sends);
        // From here on no release can begin.
        let release = self.control().release.take();
        //= TDI-DISC-08
        self.receives.close(Status::CANCELLED);
        self.connection.abort();
        if let Some(Release { completer, .. }) = release {
            // Nobody need wait for it.
            let _ = completer.send(Err(Status::CONNECTION_ABORTED));
        }
    }

    /// Ends the connection at once, for a reason of the transport's own.
    fn fail(&self, cause: Cause) {
        let status = cause.status();
        self.control().cause.get_or_insert(cause);
        self.sends.end(status);
        self.connection.abort();
    }

    /// Ends the connection when all that was sent has left.
    pub(crate) fn release(
        &self,
        deadline: Option<Instant>,
        completer: Completer,
    ) -> Result<(), (Status, Completer)> {
        let mut control = self.control();
        if let Err(status) = self.sends.release() {
            return Err((status, completer));
        }
        control.release = Some(Release {
            deadline,
            completer,
        });
        drop(control);
        // The task has a deadline to look at.
        self.receives.wake_task();
        Ok(())
    }

    /// A controlled disconnect has taken too long.
    fn give_up_release(&self) {
        let release = {
            let mut control = self.control();
            control.is_local = true;
            control.release.take()
        };
        self.fail(Cause::LocalDisconnect);
        if let Some(Release { completer, .. }) = release {
            //= TDI-DISC-05
            let _ = completer.send(Err(Status::IO_TIMEOUT));
        }
    }

    fn outlook(&self) -> Outlook {
        let credits = self.connection.credits();
        Outlook {
            send_credits: credits.send_credits,
            low_credits: credits.send_credit_target / 4,
            segment_payload: self.connection.negotiated().max_payload(),
            response_pending: self.connection.awaits_answer(),
        }
    }
}

/// The task of a connection.
#[derive(Debug)]
pub(crate) struct Task<C: EndpointContext> {
    session: Arc<Session>,
    /// Gone with the last handle of the endpoint, and the connection with it.
    endpoint: Weak<Shared<C>>,
    /// Handed over, and not sent.
    sending: VecDeque<Sending>,
    sleep: Pin<Box<Sleep>>,
}

impl<C: EndpointContext> Task<C> {
    /// Needs a tokio runtime around it.
    pub(crate) fn spawn(session: Arc<Session>, endpoint: Weak<Shared<C>>) {
        tokio::spawn(Self {
            session,
            endpoint,
            sending: VecDeque::new(),
            sleep: Box::pin(sleep_until(tokio::time::Instant::now())),
        });
    }

    /// Gives the connection what it can begin now.
    fn hand_over(&mut self, context: &mut Context<'_>) -> bool {
        let mut busy = false;
        //= TDI-SEND-04
        while self.session.sends.has_tsdu()
            && matches!(
                self.session.connection.poll_ready(context),
                Poll::Ready(Ok(()))
            )
            && let Some(tsdu) = self.session.sends.poll_tsdu(self.session.outlook())
        {
            let connection = &self.session.connection;
            match connection.send_and_prompt(tsdu.message, tsdu.invalidate, tsdu.prompt) {
                Ok(sending) => self.sending.push_back(sending),
                // The connection has just ended, and all sends will end with it.
                Err(_) => break,
            }
            busy = true;
        }
        busy
    }

    /// Completes what has left.
    fn complete_sent(&mut self, context: &mut Context<'_>) -> bool {
        let mut busy = false;
        while let Some(sending) = self.sending.front_mut()
            && let Poll::Ready(result) = Pin::new(sending).poll(context)
        {
            self.sending.pop_front();
            if result.is_ok() {
                self.session.sends.tsdu_sent();
            }
            busy = true;
        }
        busy
    }

    /// Takes what has arrived, as far as it is wanted; at the end all of it.
    fn take_segments(&self, context: &mut Context<'_>, all: bool) -> bool {
        let receives = &self.session.receives;
        for taken in 0..SEGMENTS {
            if !all && !receives.wants_segment() {
                return taken > 0;
            }
            match self.session.connection.poll_segment(context) {
                Poll::Ready(Ok(segment)) => receives.handle_segment(segment),
                _ => return taken > 0,
            }
        }
        true
    }

    fn tell_of_sends(&self) -> bool {
        let Some(news) = self.session.sends.poll_news() else {
            return false;
        };
        match news {
            SendNews::SendPossible(available) => {
                self.call(|client, endpoint| client.send_possible(endpoint, available));
            }
            SendNews::Abort(_) => self.session.fail(Cause::SendTimeout),
            SendNews::Drained => {
                self.session.connection.start_close();
            }
        }
        true
    }

    /// Calls a handler for what has arrived.
    fn tell_of_receives(&self) -> bool {
        let Some(endpoint) = self.endpoint() else {
            return false;
        };
        let client = endpoint.client();
        // A handler like others: it may panic.
        let lendable = match self.call(|client, _| client.takes_chained()) {
            Some(true) => endpoint.lendable(),
            _ => 0,
        };
        let receives = &self.session.receives;
        let Some(news) = receives.poll_news(lendable) else {
            return false;
        };
        let result = match news {
            ReceiveNews::Indicate(indication) => {
                let answer = match client {
                    Some(_) => self.call(|client, endpoint| client.receive(endpoint, indication)),
                    // Nobody has a handler: it is held for a receive.
                    //= TDI-ADDR-02
                    None => Some(Answer::NotAccepted(0)),
                };
                receives.answer(answer.unwrap_or(Answer::NotAccepted(0)))
            }
            ReceiveNews::Chained(tsdu) => {
                let answer = self.call(|client, endpoint| client.chained_receive(endpoint, tsdu));
                receives.answer_chained(answer.unwrap_or(Ok(())))
            }
            ReceiveNews::Completed(completion) => {
                self.call(|client, endpoint| client.receive_completed(endpoint, completion));
                Ok(())
            }
            ReceiveNews::Invalidated(token) => {
                self.call(|client, endpoint| client.invalidated(endpoint, token));
                Ok(())
            }
        };
        // All else is that the connection was ended while the handler was at work.
        if result == Err(Status::INVALID_PARAMETER) {
            let log = || warn!("a handler took more than was indicated");
            self.session.connection.in_span(log);
        }
        true
    }

    /// Calls a handler, if there is a client. `None` also if it panicked: then the connection ends.
    fn call<R>(&self, handler: impl FnOnce(&dyn Client<C>, &Endpoint<C>) -> R) -> Option<R> {
        let endpoint = self.endpoint()?;
        let result = endpoint.call(|client| handler(client, &endpoint))?;
        if result.is_err() {
            let log = || warn!("a handler panicked, its connection ends");
            self.session.connection.in_span(log);
            self.session.fail(Cause::HandlerPanicked);
            self.session.receives.close(Status::CONNECTION_ABORTED);
        }
        result.ok()
    }

    fn endpoint(&self) -> Option<Endpoint<C>> {
        self.endpoint.upgrade().map(Endpoint::from_shared)
    }

    /// Does what is due, and sees to it that the task wakes for what will be.
    fn look_at_clock(&mut self, context: &mut Context<'_>) -> bool {
        let control = self.session.control();
        let release = control
            .release
            .as_ref()
            .and_then(|release| release.deadline);
        drop(control);
        let sends = self.session.sends.poll_timeout();
        let Some(due) = sends.into_iter().chain(release).min() else {
            return false;
        };
        let now = now();
        if due <= now {
            self.session.sends.handle_timeout(now);
            if release.is_some_and(|due| due <= now) {
                self.session.give_up_release();
            }
            return true;
        }
        let due = tokio::time::Instant::from_std(due);
        if self.sleep.deadline() != due {
            self.sleep.as_mut().reset(due);
        }
        self.sleep.as_mut().poll(context).is_ready()
    }

    /// The connection is over, and everything it had to say is here.
    fn finish(&self, reason: ConnectionError) {
        let cause = {
            let mut control = self.session.control();
            control.cause.get_or_insert_with(|| reason.into()).clone()
        };
        self.session.sends.end(cause.status());
        // Taken when none can begin any more, so that each is told.
        let (is_local, release) = {
            let mut control = self.session.control();
            let release = control.release.take();
            (control.is_local || release.is_some(), release)
        };
        self.session.receives.finish(cause.status());
        while self.tell_of_receives() {}
        self.session.receives.stop_indications();
        let endpoint = self.endpoint();
        if let Some(endpoint) = &endpoint {
            endpoint.session_ended(&self.session, &cause);
        }
        if let Some(Release { completer, .. }) = release {
            let result = match cause {
                Cause::LocalDisconnect => Ok(()),
                cause => Err(cause.status()),
            };
            let _ = completer.send(result);
        } else if !is_local {
            //= TDI-DISC-09
            self.call(|client, endpoint| {
                client.disconnect(endpoint, DisconnectFlags::ABORT, &cause);
            });
        }
    }
}

impl<C: EndpointContext> Future for Task<C> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let task = self.get_mut();
        task.session.sends.watch(context.waker());
        task.session.receives.watch(context.waker());
        for _ in 0..ROUNDS {
            // Asked first: what arrived before the end is there when the end is.
            let over = task.session.connection.poll_closed(context);
            let mut busy = task.hand_over(context);
            busy |= task.complete_sent(context);
            busy |= task.take_segments(context, over.is_ready());
            busy |= task.tell_of_sends();
            busy |= task.tell_of_receives();
            busy |= task.look_at_clock(context);
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
