//! The simulated queue pair of an [`End`], and the assertions about the work that it receives.

use std::time::Instant;

use bytes::{BufMut, Bytes};
use smbdirect::{
    ConnectionError,
    engine::MessageId,
    rdma::work::{Completion, Disconnect, Inline, RemoteAddress, Room, Token, WorkRequest},
    wire::{DataTransfer, NegotiateRequest, NegotiateResponse, Status},
};

use super::{Arrived, End, Segment, remote};
use crate::input::Input;

impl End {
    /// Posts the engine's work requests, as far as there is room.
    pub(crate) fn work(&mut self, now: Instant, mut most: Room) {
        if !self.connected && !self.disconnected {
            return;
        }
        loop {
            let busy = self.sends.len() + self.reads.len() + self.writes.len();
            let room = Room {
                sends: most
                    .sends
                    .min(self.limits.max_send_queue.saturating_sub(busy)),
                receives: most.receives.min(
                    self.limits
                        .max_receive_queue
                        .saturating_sub(self.receives.len()),
                ),
            };
            let (was_over, was_idle) = (self.is_over(), self.engine.is_idle());
            self.proved.before(&self.engine);
            let work = self.engine.poll_work(now, room);
            // While work flushes, it is not visible which writes are left.
            let is_free = self.transfers.is_empty() && !self.flushing;
            self.proved
                .worked(&self.engine, room, work.as_ref(), (is_free, true));
            let Some(work) = work else {
                break;
            };
            assert!(!was_over, "{work:?} behind the end");
            assert!(!was_idle, "{work:?} of one that had nothing");
            self.done += 1;
            if let WorkRequest::Receive { count, .. } = work {
                assert!((1..=room.receives).contains(&(count as usize)));
                most.receives -= count as usize;
            } else {
                assert!(room.sends > 0);
                most.sends -= 1;
            }
            self.post(work);
        }
        self.take_events();
    }

    fn post(&mut self, work: WorkRequest) {
        match work {
            WorkRequest::Receive { id, length, count } => {
                assert!(self.negotiate_received && length >= 128);
                self.receives.extend((0..count).map(|_| (id, length)));
            }
            WorkRequest::Send {
                id,
                header,
                payload,
                invalidate,
            } => {
                let message = Bytes::from([header.as_slice(), &payload].concat());
                let completes = self.look_at(&message, invalidate);
                self.sends.push_back((id, completes));
                self.under_way.push_back((message, invalidate));
            }
            WorkRequest::Write { id, data, to } => {
                self.look_at_write(to, &data);
                self.writes.push_back(id);
            }
            WorkRequest::Read { id, from, into } => {
                assert!(!into.is_empty() && into.len() as u64 <= u64::from(self.max_piece()));
                self.reads.push_back((id, from, into));
                assert!(self.reads.len() <= self.limits.max_outbound_reads as usize);
            }
        }
    }

    fn max_piece(&self) -> u32 {
        let negotiated = self.engine.negotiated().expect("transfers come later");
        negotiated.max_read_write_size.min(self.limits.max_transfer)
    }

    /// Checks a message that the engine sends, from its bytes, against the rules.
    fn look_at(&mut self, message: &Bytes, invalidate: Option<Token>) -> Option<MessageId> {
        if !std::mem::replace(&mut self.negotiate_sent, true) {
            if self.passive {
                let response = NegotiateResponse::decode(message).expect("a response comes first");
                let accepted = response.status == Status::SUCCESS;
                assert_eq!(response.credits_granted > 0, accepted);
                self.granted += u32::from(response.credits_granted);
            } else {
                NegotiateRequest::decode(message).expect("a request comes first");
            }
            return None;
        }
        let negotiated = *self
            .engine
            .negotiated()
            .expect("messages are sent after the negotiation");
        assert!(self.held > 0, "a send without a credit: {self:?}");
        self.held -= 1;
        assert!(message.len() <= negotiated.max_send_size as usize);
        let header = DataTransfer::decode(message).expect("the engine encodes valid messages");
        assert!(header.flags.bits() <= 1 && message[6..8] == [0; 2]);
        assert!(header.data_offset == 24 || message.len() == 20);
        assert_eq!(header.credits_requested, self.settings.send_credit_target);
        let strict = self.settings.policy.strict_last_credit;
        let peer_can_answer = !strict && self.granted > 0;
        assert!(
            self.held > 0 || header.credits_granted > 0 || peer_can_answer,
            "the last credit is spent and none given: {self:?}"
        );
        self.granted += u32::from(header.credits_granted);
        let claimed = header.data_length + header.remaining_data_length;
        if self.sending > 0 {
            assert_eq!(claimed, self.sending, "something between two segments");
            assert!(header.data_length > 0, "an empty segment");
        }
        let begins = self.sending == 0;
        self.sending = header.remaining_data_length;
        let payload = message.slice(header.payload());
        self.look_at_segment(&payload, &header, invalidate, begins)
    }

    /// Compares a segment with the oldest message to be sent. Returns the message's id with its
    /// last segment.
    fn look_at_segment(
        &mut self,
        payload: &Bytes,
        header: &DataTransfer,
        invalidate: Option<Token>,
        begins: bool,
    ) -> Option<MessageId> {
        let completes = self.engine.queued_messages() < self.messages.len();
        if payload.is_empty() && !completes {
            assert!(begins && invalidate.is_none() && header.remaining_data_length == 0);
            return None;
        }
        let message = self.messages.front_mut().expect("a message was asked for");
        // Writes end with the first flushed completion, messages with the end of the connection.
        let overtaken = self.writes_to_post.front().filter(|_| !self.flushing);
        assert!(
            overtaken.is_none_or(|write| write.id > message.id.0),
            "a message overtakes a write"
        );
        let token = message
            .token
            .filter(|_| begins && self.limits.send_with_invalidate);
        assert_eq!(invalidate, token, "the token goes with the first segment");
        assert_eq!(message.rest.split_to(payload.len()), payload);
        assert_eq!(message.rest.len(), header.remaining_data_length as usize);
        assert_eq!(message.rest.is_empty(), completes);
        completes.then(|| {
            self.messages
                .pop_front()
                .expect("the message was compared above")
                .id
        })
    }

    /// Compares an RDMA Write with the oldest requested write.
    fn look_at_write(&mut self, to: RemoteAddress, data: &Bytes) {
        assert!(!data.is_empty() && data.len() as u64 <= u64::from(self.max_piece()));
        if self.flushing {
            return;
        }
        let write = self
            .writes_to_post
            .front_mut()
            .expect("a write was asked for");
        let (at, rest) = write
            .places
            .front_mut()
            .expect("a write without places is removed");
        assert_eq!(to, *at);
        assert_eq!(rest.split_to(data.len()), data);
        if rest.is_empty() {
            write.places.pop_front();
        } else {
            at.offset += data.len() as u64;
        }
        if write.places.is_empty() {
            self.writes_to_post.pop_front();
        }
    }

    /// Completes the oldest Send, or flushes it if the connection breaks.
    pub(crate) fn complete_send(&mut self, now: Instant) {
        while let Some((id, completes)) = self.sends.pop_front() {
            if self.flushing {
                return self.complete(now, Completion::Flushed { id, buffer: None });
            }
            if !self.is_over() {
                self.to_be_told_sent.extend(completes);
            }
            // Some completions are left out, because the next one covers them too.
            let is_told = (id.0 >> 2) % 3 > 0 || self.sends.is_empty();
            if is_told {
                return self.complete(now, Completion::Sent { id });
            }
        }
    }

    pub(crate) fn complete_read(&mut self, now: Instant) {
        if let Some((id, from, mut buffer)) = self.reads.pop_front() {
            if self.flushing {
                let buffer = Some(buffer);
                return self.complete(now, Completion::Flushed { id, buffer });
            }
            let length = buffer.len();
            buffer.copy_from_slice(&remote(from, length));
            self.complete(now, Completion::Read { id, buffer });
        }
    }

    pub(crate) fn complete_write(&mut self, now: Instant) {
        if let Some(id) = self.writes.pop_front() {
            let completion = if self.flushing {
                Completion::Flushed { id, buffer: None }
            } else {
                Completion::Written { id }
            };
            self.complete(now, completion);
        }
    }

    fn complete(&mut self, now: Instant, completion: Completion) {
        self.done += 1;
        // A flushed completion must not end the connection by itself.
        let was_over = self.is_over();
        let is_flushed = matches!(completion, Completion::Flushed { .. });
        self.engine.handle_completion(now, completion);
        assert!(!is_flushed || was_over == self.is_over());
    }

    /// Takes the oldest sent message for delivery to the peer.
    pub(crate) fn next_sent(&mut self) -> Option<(Bytes, Option<Token>)> {
        self.done += u64::from(!self.under_way.is_empty());
        self.under_way.pop_front()
    }

    pub(crate) fn forget_sent(&mut self) {
        self.under_way.clear();
    }

    /// Delivers a message of the peer. Returns false if no receive is posted.
    pub(crate) fn arrive(&mut self, message: Bytes, invalidated: Option<Token>) -> bool {
        let Some((id, length)) = self.receives.pop_front() else {
            return false;
        };
        assert!(message.len() <= length as usize, "longer than its receive");
        self.arrived.push_back(Arrived {
            id,
            message,
            invalidated,
        });
        true
    }

    /// Passes the completion of the oldest delivered message to the engine.
    pub(crate) fn hand_over(&mut self, now: Instant) {
        if self.flushing_receives {
            return;
        }
        let Some(Arrived {
            id,
            message,
            invalidated,
        }) = self.arrived.pop_front()
        else {
            return;
        };
        let legal = self
            .is_negotiated()
            .then(|| self.judge(&message, invalidated));
        if !self.is_negotiated() && !self.passive && !self.is_over() {
            self.expect_response(&message);
        }
        self.negotiate_received = true;
        self.proved.before(&self.engine);
        let whole = message.clone();
        // Every other message is split in two pieces.
        let message = match id.0 & 4 {
            0 => message,
            _ => {
                let split = message
                    .len()
                    .min((id.0 >> 3) as usize % (Inline::CAPACITY + 1));
                let head = Inline::build(|out| out.put_slice(&message[..split]));
                self.complete(now, Completion::Head(head));
                message.slice(split..)
            }
        };
        let completion = Completion::Received {
            id,
            message,
            invalidated,
        };
        self.complete(now, completion);
        let violated = matches!(self.engine.error(), Some(ConnectionError::Violation(_)));
        if let Some(legal) = legal {
            assert_eq!(violated, !legal, "{:?}", self.engine.error());
            self.proved.heard(&self.engine, &whole);
        }
    }

    /// Records the credits that a valid negotiate response grants.
    fn expect_response(&mut self, message: &[u8]) {
        if !self.negotiate_received
            && let Ok(response) = NegotiateResponse::decode(message)
        {
            self.held = response.credits_granted.into();
        }
    }

    /// Applies the rules of 3.1.5.8 independently of the engine. Returns whether the message is
    /// legal, and records the event that the owner has to receive.
    fn judge(&mut self, message: &Bytes, invalidated: Option<Token>) -> bool {
        let max_fragmented = self.settings.max_fragmented_receive_size;
        let tolerant = self.settings.policy.tolerate_empty_in_sequence;
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| message[at + i]));
        let short = |at: usize| u32::from(u16::from_le_bytes([message[at], message[at + 1]]));
        if message.len() < 20 || short(0) == 0 || self.granted == 0 {
            return false;
        }
        let (grant, remaining, offset, length) = (short(2), word(8), word(12), word(16));
        let end = u64::from(offset) + u64::from(length);
        let claimed = u64::from(length) + u64::from(remaining);
        if offset % 8 != 0 || end > message.len() as u64 || claimed > u64::from(max_fragmented) {
            return false;
        }
        if self.held + grant > u16::MAX.into() {
            return false;
        }
        let token = invalidated.or(self.received_token);
        let is_nothing = match self.receiving {
            Some(_) if claimed == 0 && tolerant => true,
            Some(expected) if claimed != u64::from(expected) => return false,
            Some(_) => false,
            None => claimed == 0 && token.is_none(),
        };
        self.granted -= 1;
        self.held += grant;
        self.received_token = token;
        if is_nothing {
            return true;
        }
        let is_last = remaining == 0;
        self.receiving = (!is_last).then_some(remaining);
        self.segments.push_back(Segment {
            payload: message.slice(offset as usize..end as usize),
            remaining,
            invalidated: self.received_token.take_if(|_| is_last),
        });
        true
    }

    /// Begins to flush posted work, as when the connection breaks.
    pub(crate) fn begin_to_flush(&mut self, input: &mut Input<'_>) {
        // Happens rarely, because otherwise few inputs would get far.
        if input.up_to(7) == 7 {
            self.flushing = true;
            self.flushing_receives = input.is_odd();
        }
    }

    /// Flushes all posted work, and then reports the disconnect to the engine.
    pub(crate) fn disconnect(&mut self, now: Instant, how: Disconnect) {
        if std::mem::replace(&mut self.disconnected, true) {
            return;
        }
        self.flushing = true;
        // Messages that arrived before the end may complete first.
        while !self.flushing_receives && !self.arrived.is_empty() {
            self.hand_over(now);
        }
        self.flushing_receives = true;
        let most = Room {
            sends: 3,
            receives: 3,
        };
        // The engine may post more until it sees the disconnect. A few rounds of that are enough.
        for turn in 0..3 {
            while !self.sends.is_empty() {
                self.complete_send(now);
            }
            while !self.reads.is_empty() {
                self.complete_read(now);
            }
            while !self.writes.is_empty() {
                self.complete_write(now);
            }
            let arrived: Vec<_> = self.arrived.drain(..).map(|arrived| arrived.id).collect();
            let posted: Vec<_> = self.receives.drain(..).map(|(id, _)| id).collect();
            for id in arrived.into_iter().chain(posted) {
                self.complete(now, Completion::Flushed { id, buffer: None });
            }
            self.take_events();
            self.check();
            if turn < 2 {
                self.work(now, most);
            }
        }
        let reason = match how.clone() {
            Disconnect::Local => ConnectionError::ClosedHere,
            Disconnect::Remote => ConnectionError::Closed,
            Disconnect::Broken(error) => ConnectionError::Provider(error),
        };
        let first = self.engine.error().cloned().unwrap_or(reason);
        self.complete(now, Completion::Disconnected(how));
        self.take_events();
        assert_eq!(self.closed, Some(first), "the first reason counts");
    }
}
