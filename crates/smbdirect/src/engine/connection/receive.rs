//! The receiving half of a connection: posted receives, and the effects of a received message (3.1.5.5, 3.1.5.8,
//! 3.1.5.9).

use std::{iter::once_with, ops::Range, time::Instant};

use bytes::{Buf, Bytes};

use super::{Connection, Kind, Role, log::Log};
use crate::{
    engine::{
        config::Revision,
        credits::{
            affordable_receives, is_quiet, owed_credits, prompts, receives_to_post,
            spends_last_credit,
        },
        error::{ConnectionError, Violation},
        event::Event,
        negotiate_messages::{Negotiated, receive_negotiate_request, receive_negotiate_response},
        reassembly::Part,
        timer::Timer,
    },
    rdma::{
        software::cold_path,
        work::{Inline, Token, WorkRequest},
    },
    wire::{DataTransfer, Flags},
};

impl Connection {
    pub(super) fn receive(&mut self, now: Instant, message: Bytes, invalidated: Option<Token>) {
        //= SMBD-3.1.5.5-01
        let result = match self.role {
            Role::Passive => self.receive_negotiate(receive_negotiate_request, true, message),
            Role::Active { request_sent: true } => {
                self.receive_negotiate(receive_negotiate_response, false, message)
            }
            Role::Established(ref negotiated) => {
                let max_fragmented_size = negotiated.max_fragmented_receive_size;
                self.message_arrived(now);
                self.receive_data_transfer(now, max_fragmented_size, message, invalidated)
                    .map_err(ConnectionError::from)
            }
            Role::Closed(_) | Role::Refusing { .. } => Ok(()),
            // Before the negotiation is over, the peer may send only the negotiate message that is handled above.
            //= SMBD-2.2-06
            Role::Connecting | Role::Active { .. } | Role::Posting { .. } => {
                Err(Violation::WithoutCredit.into())
            }
        };
        if let Err(error) = result {
            self.end(error);
        }
    }

    /// Checks a Data Transfer Message and takes in its credits, flags and payload (3.1.5.8,
    /// Receiving a Data Transfer Message).
    fn receive_data_transfer(
        &mut self,
        now: Instant,
        max_fragmented_size: u32,
        mut message: Bytes,
        invalidated: Option<Token>,
    ) -> Result<(), Violation> {
        if (1..DataTransfer::HEADER_LENGTH).contains(&self.head.len()) {
            cold_path();
            message = joined(self.head.take(), message);
        }
        let head = if self.head.is_empty() {
            &message[..]
        } else {
            self.head.as_slice()
        };
        let length = self.head.len() + message.len();
        let header =
            DataTransfer::decode_head(head, length).map_err(Violation::of_data_transfer)?;
        // The rest of the function needs only the payload. It is cut out here, long before the
        // event is moved, because a processor stalls when it copies memory of which it has just
        // written a part.
        let payload = self.cut_payload(&header, message);
        if Log::traces() {
            self.log.received(header, invalidated);
        }
        //= SMBD-3.1.5.8-02
        if header.credits_requested == 0 {
            return Err(Violation::WithoutCreditsRequested);
        }
        let part = self.reassembly.receive(
            &header,
            invalidated,
            max_fragmented_size,
            self.config.policy.tolerate_empty_in_sequence,
        )?;
        let asks = header.flags.contains(Flags::RESPONSE_REQUESTED);
        let quiet = is_quiet(header.data_length, header.remaining_data_length, asks);
        if !self.receive_credits.received(quiet) {
            return Err(Violation::WithoutCredit);
        }
        self.receive_credits.set_target(header.credits_requested);
        if self.add_send_credits(header.credits_granted)? {
            self.stalls.end_credit_stall(now, &mut self.statistics);
        }
        self.count_received(&header, asks);
        let is_2014 = self.config.policy.revision == Revision::V2014;
        self.send_immediate |= prompts(asks, quiet, is_2014, !self.send_queue.is_empty());
        self.deliver(part, &header, payload, invalidated.is_some());
        Ok(())
    }

    /// Returns the payload of a message, whose first bytes may be in `head`.
    #[inline]
    fn cut_payload(&mut self, header: &DataTransfer, mut message: Bytes) -> Bytes {
        let Range { mut start, mut end } = header.payload();
        if !self.head.is_empty() {
            let head = self.head.take();
            let split = head.len();
            if start >= split {
                (start, end) = (start - split, end - split);
            } else {
                cold_path();
                if start == end {
                    return Bytes::new();
                }
                message = joined(head, message);
            }
        }
        // Bytes after the payload are legal and rare.
        if end < message.len() {
            cold_path();
            message.truncate(end);
        }
        message.advance(start);
        message
    }

    /// Adds credits, and returns whether messages may have waited for them.
    fn add_send_credits(&mut self, granted: u16) -> Result<bool, Violation> {
        if granted == 0 {
            return Ok(false);
        }
        //= SMBD-3.1.5.8-10
        //= SMBD-3.1.5.8-11
        //= SMBD-3.1.5.8-12
        let held = self.send_credits;
        self.send_credits = held
            .checked_add(granted)
            .ok_or(Violation::TooManyCredits { held, granted })?;
        self.timers.stop(Timer::SendCreditGrant);
        Ok(held <= 1)
    }

    fn count_received(&mut self, header: &DataTransfer, asks: bool) {
        let statistics = &mut self.statistics;
        if header.data_length > 0 {
            statistics.segments_received += 1;
        } else {
            statistics.empty_received += 1;
        }
        statistics.bytes_received += u64::from(header.data_length);
        statistics.credits_received += u64::from(header.credits_granted);
        statistics.keepalives_received += u64::from(asks);
    }

    fn deliver(&mut self, part: Part, header: &DataTransfer, payload: Bytes, invalidated: bool) {
        self.statistics.tokens_invalidated += u64::from(invalidated);
        let invalidated = match part {
            Part::Nothing => return,
            Part::Middle => None,
            Part::Last(token) => {
                self.statistics.messages_received += 1;
                token
            }
        };
        //= SMBD-3.1.5.8-13
        //= SMBD-3.1.5.8-17
        let remaining = header.remaining_data_length;
        // `extend` reserves first, so that the event is built in its final place.
        self.events.extend(once_with(|| Event::Segment {
            payload,
            remaining,
            invalidated,
        }));
    }

    /// Sets the number of bytes that received messages occupy which the application has not taken. While they leave no
    /// room in the receive buffer ([`Settings::receive_buffer`](crate::Settings::receive_buffer)), only the credits for
    /// the rest of a message that has begun are granted.
    pub const fn set_unread(&mut self, bytes: usize) {
        self.unread = bytes;
    }

    /// Returns the number of further receives for which the receive buffer has room.
    pub(super) fn affordable_receives(&self, negotiated: &Negotiated) -> u16 {
        affordable_receives(
            self.config.receive_buffer(),
            self.unread,
            negotiated.max_receive_size,
            self.receive_credits.posted(),
        )
    }

    /// Returns whether receives are still to be posted because there was no room for them.
    pub fn wants_receives(&self) -> bool {
        matches!(self.role, Role::Posting { .. } | Role::Established(_))
            && self.missing_receives() > 0
    }

    /// Returns the receives to post now, if there are any.
    #[inline(always)]
    pub(super) fn post_receives(&mut self, room: usize) -> Option<WorkRequest> {
        match self.missing_receives() {
            0 => None,
            missing => self.post_missing_receives(missing, room),
        }
    }

    // Out of line, so that a message for which no receive is missing does not pay for it.
    #[inline(never)]
    fn post_missing_receives(&mut self, missing: u16, room: usize) -> Option<WorkRequest> {
        let negotiated = match &self.role {
            Role::Posting { outcome, .. } => &outcome.negotiated,
            Role::Established(negotiated) => negotiated,
            _ => return None,
        };
        //= SMBD-3.1.5.9-07
        let length = negotiated.max_receive_size;
        //= SMBD-3.1.5.9-11
        let count = receives_to_post(
            missing,
            self.affordable_receives(negotiated),
            owed_credits(
                self.reassembly.remaining(),
                length,
                self.receive_credits.limit(),
            ),
            self.receive_credits.posted(),
            u16::try_from(room).unwrap_or(u16::MAX),
        );
        if count == 0 {
            return None;
        }
        self.receive_credits.post(count);
        self.statistics.receives_outstanding += u64::from(count);
        Some(WorkRequest::Receive {
            id: self.work_id(Kind::Receive),
            length,
            count: count.into(),
        })
    }

    /// Returns the number of receives to post for the peer beyond those that are posted.
    fn missing_receives(&self) -> u16 {
        let waiting = !self.send_queue.is_empty();
        let last = spends_last_credit(self.send_credits, self.send_immediate, waiting);
        self.receive_credits.missing(last)
    }
}

#[cold]
pub(super) fn joined(head: Inline, rest: Bytes) -> Bytes {
    if head.is_empty() {
        rest
    } else {
        [head.as_slice(), &rest].concat().into()
    }
}
