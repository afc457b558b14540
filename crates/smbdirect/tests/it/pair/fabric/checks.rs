//! The checks of the fabric: every sent message, every event, and the state after every step.

use super::*;

impl Pair {
    /// Asserts that all work is complete, which is the liveness of the protocol.
    pub(crate) fn assert_content(&self) {
        for who in Who::BOTH {
            let end = self.end(who);
            let stuck = end.is_established() && !end.is_content();
            assert!(!stuck, "{who:?} waits for ever\n{self:?}");
        }
    }

    /// Asserts that every buffer and transfer has been returned.
    pub(crate) fn assert_all_returned(&self) {
        for who in Who::BOTH {
            let end = self.end(who);
            assert!(end.disconnected && end.closed.is_some(), "{self:?}");
            let left = end.engine.statistics();
            assert_eq!(
                (left.receives_outstanding, left.work_outstanding),
                (0, 0),
                "{who:?} {self:?}"
            );
            assert!(end.receives.is_empty() && end.work.is_empty() && end.reads.is_empty());
            assert!(end.transfers.is_empty(), "{who:?} {:?}", end.transfers);
            assert_eq!(end.engine.poll_timeout(), None);
        }
    }

    /// Asserts the invariants that hold after every step.
    pub(super) fn check(&self) {
        for who in Who::BOTH {
            let (end, peer) = (self.end(who), self.end(who.peer()));
            let over = |end: &End| end.disconnected || end.closed.is_some();
            if self.broken || over(end) || over(peer) {
                continue;
            }
            // Every credit has a posted receive, wherever the credit is.
            let out = peer.held + peer.coming + peer.under_way;
            assert!(
                end.receives.len() >= out as usize,
                "{who:?} posted fewer receives than its peer has credits\n{self:?}"
            );
            // The counts of the engine match the messages on the wire.
            if end.is_established() {
                let credits = end.engine.credits();
                assert_eq!(
                    u32::from(credits.send_credits),
                    end.held,
                    "{who:?}\n{self:?}"
                );
                // The rule of the last credit allows one more than the limit, or than the two
                // credits that return a single one.
                let most = u32::from(credits.receive_credit_max).max(2) + 1;
                assert!(u32::from(credits.granted) <= most, "{who:?}\n{self:?}");
            }
            let left = end.engine.statistics();
            assert!(left.receives_outstanding >= end.receives.len() as u64);
            assert_eq!(left.work_outstanding, end.work.len() as u64);
        }
    }

    /// Decodes a message that `who` sends, as a capture would, and checks it against the rules.
    pub(super) fn inspect(&mut self, who: Who, message: &Bytes, invalidates: bool) {
        if self.broken {
            return;
        }
        let strict = self.end(who).settings.policy.strict_last_credit;
        let end = self.end_mut(who);
        assert!(end.held > 0, "{who:?} sends without a credit");
        end.held -= 1;
        end.under_way += 1;
        if !std::mem::replace(&mut end.negotiated, true) {
            if who == Passive {
                let response = NegotiateResponse::decode(message).unwrap();
                self.active.coming += u32::from(response.credits_granted);
            }
            return;
        }
        let header = DataTransfer::decode(message).unwrap();
        let payload = header.data_length;
        assert!(header.flags.bits() <= 1 && message[6..8] == [0; 2]);
        assert!(
            message
                .iter()
                .take(24)
                .skip(20)
                .all(|&padding| padding == 0)
        );
        assert_eq!(header.credits_requested, end.settings.send_credit_target);
        if header.data_length == 0 && header.data_offset == 0 {
            assert_eq!(message.len(), 20, "an empty message is a header alone");
        }
        if strict && end.held == 0 {
            assert!(header.credits_granted > 0, "{who:?} spends its last credit");
        }
        if end.wire_remaining > 0 {
            assert_eq!(
                header.data_length + header.remaining_data_length,
                end.wire_remaining,
                "{who:?} puts something between two segments"
            );
            assert!(header.data_length > 0, "an empty message between segments");
        }
        assert!(!(invalidates && end.wire_token), "a token goes out twice");
        end.wire_remaining = header.remaining_data_length;
        end.wire_token = (end.wire_token || invalidates) && end.wire_remaining > 0;
        end.data_transfers += 1;
        end.empty += usize::from(payload == 0);
        end.grants.push(header.credits_granted);
        let flag = header.flags.contains(Flags::RESPONSE_REQUESTED);
        self.end_mut(who.peer()).coming += u32::from(header.credits_granted);
        self.tell(who, if flag { "asks" } else { "says" }, payload);
    }

    fn tell(&mut self, who: Who, what: &str, number: impl fmt::Display) {
        let line = format!("{who:?} {what} {number}").to_lowercase();
        self.story.push(line);
    }

    pub(super) fn count_credits(&mut self, who: Who, message: &Bytes) {
        let granted = match (who, self.end(who).received) {
            (Passive, 0) => 0,
            (Active, 0) => NegotiateResponse::decode(message).unwrap().credits_granted,
            _ => DataTransfer::decode(message).unwrap().credits_granted,
        };
        let end = self.end_mut(who);
        end.received += 1;
        end.coming -= u32::from(granted);
        end.held += u32::from(granted);
    }

    pub(super) fn take_events(&mut self, who: Who) {
        while let Some(event) = self.end_mut(who).engine.poll_event() {
            match event {
                Event::Negotiated(_) => assert!(self.end(who).closed.is_none()),
                Event::Segment {
                    payload,
                    remaining,
                    invalidated,
                } => self.deliver(who, &payload, remaining, invalidated),
                Event::MessageSent(id) => self.sent(who, id),
                Event::TransferDone {
                    id,
                    buffer,
                    completed,
                } => self.transferred(who, id, buffer, completed),
                Event::KeepaliveAnswered => self.end_mut(who).keepalives_answered += 1,
                Event::Closed(error) => self.closed(who, error),
                event => panic!("the fabric does not know {event:?}"),
            }
        }
    }

    /// Checks a segment that reached the upper layer of `who`: complete, in order, exactly once.
    fn deliver(&mut self, who: Who, payload: &[u8], remaining: u32, invalidated: Option<Token>) {
        if self.garbled {
            return;
        }
        let honoured = self.faults.send_with_invalidate;
        assert!(self.end(who).closed.is_none());
        self.end_mut(who).bytes_received += payload.len();
        let sender = self.end_mut(who.peer());
        while sender
            .expected
            .front()
            .is_some_and(|next| next.is_unseen(honoured))
        {
            sender.expected.pop_front();
        }
        let expected = sender.expected.front_mut().expect("a message was sent");
        let (start, rest) = expected.content.split_at_checked(payload.len()).unwrap();
        assert_eq!((start, rest.len()), (payload, remaining as usize));
        expected.content = expected.content.slice(payload.len()..);
        if remaining > 0 {
            return assert_eq!(invalidated, None);
        }
        assert_eq!(invalidated, expected.token.filter(|_| honoured));
        let Expected { id, writes, .. } = sender.expected.pop_front().unwrap();
        sender.drop_unseen(honoured);
        let end = self.end_mut(who);
        for (to, data) in writes {
            // Memory that has been deregistered since is not checked.
            if let Ok(place) = end.memory.write(to, data.len() as u32) {
                assert_eq!(*place, data[..], "message {id:?} overtook a write");
            }
        }
        end.messages_received += 1;
        end.invalidated.extend(invalidated);
        self.tell(who, "receives", id.0);
    }

    fn sent(&mut self, who: Who, id: MessageId) {
        let honoured = self.faults.send_with_invalidate;
        let end = self.end_mut(who);
        assert!(end.closed.is_none());
        end.messages_sent += 1;
        if let Some(next) = end.expected.iter_mut().find(|next| next.id == id) {
            assert!(!std::mem::replace(&mut next.sent, true), "sent twice");
        }
        end.drop_unseen(honoured);
    }

    fn transferred(
        &mut self,
        who: Who,
        TransferId(id): TransferId,
        buffer: Option<BytesMut>,
        completed: bool,
    ) {
        let end = self.end_mut(who);
        let transfer = end
            .transfers
            .remove(&id)
            .expect("it was started, and is over once");
        assert!(
            completed || end.closed.is_some(),
            "abandoned without a reason"
        );
        end.transfers_done += usize::from(completed);
        match (transfer, buffer) {
            (Transfer::Read(expected), Some(buffer)) => {
                assert_eq!(buffer.len(), expected.len());
                assert!(
                    !completed || buffer == expected,
                    "the wrong bytes were read"
                );
            }
            (Transfer::Write, None) => {}
            (transfer, buffer) => panic!("{transfer:?} gave {buffer:?}"),
        }
        let how = if completed { "finishes" } else { "abandons" };
        self.tell(who, how, id);
    }

    /// Disconnects the queue pair of an engine that has ended, as the driver would.
    fn closed(&mut self, who: Who, error: ConnectionError) {
        let graceful = matches!(
            error,
            ConnectionError::Closed | ConnectionError::ClosedHere | ConnectionError::RefusedPeer(_)
        );
        assert!(self.end(who).closed.is_none(), "closed twice");
        self.tell(who, "closes:", &error);
        self.end_mut(who).closed = Some(error);
        if self.end(who).disconnected {
            return;
        }
        let how = if graceful {
            Disconnect::Remote
        } else {
            let what = "the peer went away";
            Disconnect::Broken(ProviderError::new(ProviderErrorKind::Reset, what))
        };
        self.transmit(who.peer(), Packet::End(how));
        self.disconnect(who, Disconnect::Local);
    }
}
