//! The sending half of a connection: which message is sent next, with which credits and flags
//! (3.1.4.2, 3.1.5.1, 3.1.5.4).

use std::time::Instant;

use bytes::Bytes;

use super::{Connection, Kind, Role, log::Log};
use crate::{
    engine::{
        error::{ConnectionError, SendError},
        event::{Event, MessageId},
        in_flight::Sent,
        message::Message,
        segments::write_is_first,
        send_queue::Segment,
        timer::Timer,
    },
    rdma::{
        software::cold_path,
        work::{Inline, Token, WorkRequest},
    },
    wire::{DataTransfer, Flags},
};

impl Connection {
    /// Queues a message; `invalidate` is a token of the peer that the message invalidates when it
    /// arrives (3.1.4.2). An empty message is sent as an empty Data Transfer, which the peer does
    /// not pass to its upper layer.
    ///
    /// # Errors
    /// Returns a [`SendError`], and leaves the connection unchanged.
    #[inline(always)]
    pub fn send(
        &mut self,
        id: MessageId,
        message: impl Into<Message>,
        invalidate: Option<Token>,
    ) -> Result<(), SendError> {
        let message = message.into();
        self.check(&message)?;
        self.touch();
        let sequence = self.sequence();
        //= SMBD-3.1.4.2-01
        self.send_queue.push(id, message, invalidate, sequence);
        Ok(())
    }

    /// Checks whether [`send`](Self::send) would accept this message now.
    ///
    /// # Errors
    /// Returns the error that `send` would return.
    pub fn check(&self, message: &Message) -> Result<(), SendError> {
        let max = match &self.role {
            Role::Established(negotiated) if !self.closing => negotiated.max_fragmented_send_size,
            _ => return Err(self.unusable().into()),
        };
        //= SMBD-3.1.4.2-02
        //= SMBD-3.1.5.4-02
        if message.len() as u64 > u64::from(max) {
            return Err(SendError::TooLong {
                length: message.len(),
                max,
            });
        }
        Ok(())
    }

    /// Returns the next request of an established connection: the next queued message, or an empty
    /// message that is due. [`next_of_all`](Self::next_of_all) decides if there are reads or
    /// writes.
    pub(super) fn next_work(&mut self, now: Instant, max_payload: usize) -> Option<WorkRequest> {
        if !self.transfers.is_idle() {
            return self.next_of_all(now, max_payload);
        }
        let waiting = !self.send_queue.is_empty();
        if (waiting || self.empty_message_is_due())
            && let Some(grant) = self.next_grant(now, waiting)
        {
            return Some(self.send_upper_layer_message(now, max_payload, waiting, grant));
        }
        self.mark_idle()
    }

    /// Returns the next request while there are reads or writes: messages and writes in the order of
    /// their calls, then reads. An empty message that is due precedes the writes if no message is
    /// queued. It is also sent while the next write is older than every queued message and cannot be
    /// posted yet.
    #[inline(never)]
    fn next_of_all(&mut self, now: Instant, max_payload: usize) -> Option<WorkRequest> {
        let write_first = write_is_first(
            self.transfers.write_sequence(),
            self.send_queue.head_sequence(),
        );
        if write_first && let Some(write) = self.post_write() {
            return Some(write);
        }
        // A write may wait for a long time. Until it is posted, the peer still needs credits and
        // keepalives.
        let waiting = !write_first && !self.send_queue.is_empty();
        if (waiting || self.empty_message_is_due())
            && let Some(grant) = self.next_grant(now, waiting)
        {
            return Some(self.send_upper_layer_message(now, max_payload, waiting, grant));
        }
        if !write_first && let Some(write) = self.post_write() {
            return Some(write);
        }
        match self.post_read() {
            None => self.mark_idle(),
            read => read,
        }
    }

    /// Returns CreditsGranted of the next message, or `None` if no message may be sent now
    /// (3.1.5.1). The next message is the head of the queue if `waiting`, and an empty message
    /// otherwise.
    fn next_grant(&mut self, now: Instant, waiting: bool) -> Option<u16> {
        let is_strict = self.config.policy.strict_last_credit;
        let grant = self
            .receive_credits
            .next_grant(self.send_credits, is_strict);
        if self.send_credits <= 1 {
            self.note_credit_stall(now, waiting && grant.is_none(), grant.is_some());
        }
        grant
    }

    /// Records that a message waits for a send credit, or no longer waits. Without any credit, the Send Credit Grant Timer
    /// runs.
    // Out of line, so that the messages before the last credit do not pay for it.
    #[cold]
    #[inline(never)]
    fn note_credit_stall(&mut self, now: Instant, begins: bool, ends: bool) {
        if begins {
            if self.send_credits == 0 {
                self.start_credit_grant_timer(now);
            }
            self.stalls.begin_credit_stall(now, &mut self.statistics);
        } else if ends {
            self.stalls.end_credit_stall(now, &mut self.statistics);
        }
    }

    /// Returns whether this end has a send credit that it may spend, if necessary after it has posted a receive.
    pub(super) fn may_begin(&self) -> bool {
        let Role::Established(negotiated) = &self.role else {
            return false;
        };
        let is_strict = self.config.policy.strict_last_credit;
        let affordable = self.affordable_receives(negotiated);
        self.receive_credits
            .may_begin(self.send_credits, is_strict, affordable)
    }

    /// Sends one message, for which [`next_grant`](Self::next_grant) has returned `grant` (3.1.5.1,
    /// Sending Upper Layer Messages).
    fn send_upper_layer_message(
        &mut self,
        now: Instant,
        max_payload: usize,
        waiting: bool,
        grant: u16,
    ) -> WorkRequest {
        //= SMBD-3.1.5.1-03
        let segment = if waiting {
            self.send_queue.cut(max_payload)
        } else {
            None
        };
        if self.ask_after_queue && self.send_queue.is_empty() {
            cold_path();
            self.ask_after_queue = false;
            self.keepalive_requested.ask();
        }
        //= SMBD-3.1.5.1-07
        self.send_credits -= 1;
        self.receive_credits.grant(grant);
        //= SMBD-3.1.5.1-14
        //= SMBD-3.1.5.1-14b
        self.send_immediate = false;
        self.holds_first_grant = false;
        self.timers.stop(Timer::FirstGrant);
        self.send_data_transfer(now, grant, segment)
    }

    /// Builds the header of a message and posts the message (3.1.5.4, Sending a Data Transfer
    /// Message).
    pub(super) fn send_data_transfer(
        &mut self,
        now: Instant,
        grant: u16,
        segment: Option<Segment>,
    ) -> WorkRequest {
        //= SMBD-2.2.3-01
        let mut flags = Flags::empty();
        if self.keepalive_requested.take_flag() {
            cold_path();
            flags = Flags::RESPONSE_REQUESTED;
            self.statistics.keepalives_sent += 1;
            self.stalls.keepalive_sent = Some(now);
            //= SMBD-3.1.5.1-10
            let due = now + self.config.keepalive_response_timeout;
            self.timers.set(Timer::IdleConnection, due);
        }
        //= SMBD-3.1.5.1-08
        let mut header = DataTransfer::empty(self.config.send_credit_target, grant, flags);
        let (payload, invalidate, completes) = match segment {
            Some(Segment {
                payload,
                remaining,
                invalidate,
                completes,
            }) => {
                //= SMBD-3.1.5.4-12
                if !payload.is_empty() {
                    header.data_offset = DataTransfer::PAYLOAD_OFFSET;
                    header.data_length = payload.len() as u32;
                }
                header.remaining_data_length = remaining;
                (payload, invalidate, completes)
            }
            None => (Bytes::new(), None, None),
        };
        self.count_sent(&header, grant, completes.is_some());
        if Log::traces() {
            self.log.sending(header, invalidate, self.send_credits);
        }
        //= SMBD-3.1.5.1-11
        //= SMBD-3.1.5.1-12
        let invalidate = invalidate.filter(|_| {
            self.statistics.invalidations_sent += 1;
            self.limits.send_with_invalidate
        });
        //= SMBD-3.1.5.1-13
        //= SMBD-3.1.5.4-10
        //= SMBD-3.1.5.4-13
        let (head, length) = header.head();
        let header = Inline::first_of(head, length);
        self.post_send(header, payload, invalidate, completes.map(Sent::Message))
    }

    fn count_sent(&mut self, header: &DataTransfer, grant: u16, completes: bool) {
        let statistics = &mut self.statistics;
        if header.data_length > 0 {
            statistics.segments_sent += 1;
        } else {
            statistics.empty_sent += 1;
        }
        statistics.bytes_sent += u64::from(header.data_length);
        statistics.credits_granted += u64::from(grant);
        statistics.messages_sent += u64::from(completes);
    }

    fn empty_message_is_due(&self) -> bool {
        self.receive_credits
            .empty_message_is_due(self.send_immediate, self.holds_first_grant)
    }

    /// Counts a stall if the send queue is full and keeps back work that could be posted otherwise.
    #[cold]
    #[inline(never)]
    pub(super) fn count_full_send_queue(&mut self) {
        let message = self.send_credits > 0 && !self.send_queue.is_empty();
        if message || self.transfers.are_unposted() {
            let posted = self.in_flight.posted() + self.transfers.posted();
            self.stalls.full_send_queue(posted, &mut self.statistics);
        }
    }

    fn start_credit_grant_timer(&mut self, now: Instant) {
        if let Some(timeout) = self.config.credit_grant_timeout
            && !self.timers.is_running(Timer::SendCreditGrant)
        {
            self.timers.set(Timer::SendCreditGrant, now + timeout);
        }
    }

    pub(super) fn post_send(
        &mut self,
        header: Inline,
        payload: Bytes,
        invalidate: Option<Token>,
        purpose: Option<Sent>,
    ) -> WorkRequest {
        self.statistics.work_outstanding += 1;
        WorkRequest::Send {
            id: Kind::Send.id(self.in_flight.post(purpose)),
            header,
            payload,
            invalidate,
        }
    }

    /// Handles the completion of a Send that was posted for the purpose `sent`.
    pub(super) fn sent(&mut self, sent: Sent) {
        match sent {
            Sent::Message(id) if self.error().is_none() => {
                // Only messages count as progress of a close. An answer to a keepalive does not count.
                self.timers.stop(Timer::Close);
                //= SMBD-3.1.4.2-04
                if id != MessageId::UNWATCHED {
                    self.events.push_back(Event::MessageSent(id));
                }
            }
            //= SMBD-3.1.5.3-03
            Sent::Refusal => {
                if let Role::Refusing { status, .. } = self.role {
                    self.end(ConnectionError::RefusedPeer(status));
                }
            }
            Sent::Message(_) | Sent::Negotiate => {}
        }
    }
}
