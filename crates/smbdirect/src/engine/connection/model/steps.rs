//! The steps of the model: what the upper layers, queue pairs, timers and the network can do.

use super::{rules::granted, *};

impl State {
    pub(super) fn new(scene: &Scene, sabotage: Option<Sabotage>) -> Self {
        let [active, passive] = scene.credits;
        let mut state = Self {
            ends: [
                End::new(Connection::active, active, scene.policy),
                End::new(Connection::passive, passive, scene.policy),
            ],
            timers: scene.timers,
            cuts: scene.cuts,
            closes: scene.closes,
            holds: scene.holds,
            scene: Arc::new(scene.clone()),
            cut: false,
            empties: 0,
            broken: None,
        };
        for end in &mut state.ends {
            let _receive = end.engine.negotiate_receive();
            end.receives = 1;
            end.engine.handle_connected(Limits {
                max_send_queue: SEND_QUEUE_LENGTH.into(),
                max_receive_queue: RECEIVE_QUEUE_LENGTH.into(),
                max_outbound_reads: 0,
                max_inbound_reads: 0,
                max_transfer: 0,
                send_with_invalidate: false,
                packet_bytes: None,
            });
        }
        state.work(0, sabotage);
        state
    }

    pub(super) fn act(&mut self, action: Action, sabotage: Option<Sabotage>) {
        match action {
            Action::Send(who) => self.send(who),
            Action::Receive(who) => self.receive(who, sabotage),
            Action::Sent(who) => {
                self.ends[who].sends -= 1;
                let id = Kind::Send.id(self.ends[who].engine.in_flight.next_done());
                self.complete(who, Completion::Sent { id });
            }
            Action::Fire(who, timer) => {
                if timer != Timer::FirstGrant {
                    self.timers -= 1;
                }
                self.empties = 0;
                let engine = &mut self.ends[who].engine;
                engine.timers.set(timer, *NOW);
                engine.handle_timeout(*NOW);
            }
            Action::Close(who) => {
                self.closes -= 1;
                self.ends[who].engine.close();
            }
            Action::Hold(who) => {
                self.holds -= 1;
                self.ends[who].held_up = true;
            }
            Action::Release(who) => self.ends[who].held_up = false,
            Action::Work(who) => self.ends[who].put_off = false,
            Action::Cut => {
                self.cuts -= 1;
                self.cut = true;
                for who in 0..2 {
                    self.end_of(who, false, false);
                }
            }
        }
        match action {
            Action::Send(who)
            | Action::Receive(who)
            | Action::Sent(who)
            | Action::Fire(who, _)
            | Action::Close(who)
                if self.scene.lazy =>
            {
                self.take_events(who);
                self.ends[who].put_off = true;
            }
            Action::Send(who)
            | Action::Receive(who)
            | Action::Sent(who)
            | Action::Fire(who, _)
            | Action::Close(who)
            | Action::Release(who)
            | Action::Work(who) => self.work(who, sabotage),
            Action::Hold(_) | Action::Cut => {}
        }
    }

    fn send(&mut self, who: usize) {
        self.empties = 0;
        let end = &mut self.ends[who];
        let index = end.submitted;
        end.submitted += 1;
        let message = content(who, index, self.scene.messages[who][index]);
        let id = MessageId(index as u64);
        let sent = end.engine.send(id, message, None);
        assert_eq!(sent, Ok(()), "the action is only there if it can be sent");
    }

    fn complete(&mut self, who: usize, completion: Completion) {
        self.ends[who].engine.handle_completion(*NOW, completion);
    }

    fn receive(&mut self, who: usize, sabotage: Option<Sabotage>) {
        let arrival = self.ends[who].completions.pop_front();
        match arrival.expect("the action is only there if there is one") {
            Arrival::Message(message) => {
                let end = &mut self.ends[who];
                let is_established = end.engine.negotiated().is_some();
                end.held += granted(&message, is_established);
                let id = WorkId(Kind::Receive as u64);
                let received = |message| Completion::Received {
                    id,
                    message,
                    invalidated: None,
                };
                end.proved.before(&end.engine);
                self.complete(who, received(message.clone()));
                let end = &mut self.ends[who];
                let is_step = end.proved.heard(&end.engine, &message);
                self.judge(is_step, sabotage);
                let engine = &mut self.ends[who].engine;
                match sabotage {
                    Some(Sabotage::HearTwice) if is_established && message.len() > 24 => {
                        engine.receive_credits.post(1);
                        engine.receive_credits.grant(1);
                        engine.statistics.receives_outstanding += 1;
                        self.complete(who, received(message));
                    }
                    Some(Sabotage::AnswerQuietMessages) => {
                        // A further credit is granted, and used by a message that is not quiet. The engine then
                        // treats the quiet message like any other.
                        engine.receive_credits.post(1);
                        engine.receive_credits.grant(1);
                        engine.receive_credits.received(false);
                    }
                    Some(Sabotage::EchoKeepalives) if engine.send_immediate => {
                        engine.keepalive_requested = KeepaliveRequested::Pending;
                    }
                    Some(Sabotage::IgnoreKeepalives) => engine.send_immediate = false,
                    _ => {}
                }
            }
            Arrival::End {
                in_good_order,
                local,
            } => self.flush(who, in_good_order, local, sabotage),
        }
    }

    /// Ends the queue pair and flushes all posted work.
    fn flush(&mut self, who: usize, in_good_order: bool, local: bool, sabotage: Option<Sabotage>) {
        for kind in [Kind::Receive, Kind::Send] {
            let end = &mut self.ends[who];
            let posted = match kind {
                Kind::Receive => &mut end.receives,
                _ => &mut end.sends,
            };
            for index in 0..std::mem::take(posted) {
                if sabotage == Some(Sabotage::KeepBuffer) && kind == Kind::Receive && index == 0 {
                    continue;
                }
                let number = self.ends[who].engine.in_flight.next_done();
                let id = kind.id(number);
                self.complete(who, Completion::Flushed { id, buffer: None });
            }
        }
        self.ends[who].over = true;
        let how = match (local, in_good_order) {
            (true, _) => Disconnect::Local,
            (false, true) => Disconnect::Remote,
            (false, false) => {
                Disconnect::Broken(ProviderError::new(ProviderErrorKind::Reset, "cut"))
            }
        };
        self.complete(who, Completion::Disconnected(how));
    }

    fn take_events(&mut self, who: usize) {
        while let Some(event) = self.ends[who].engine.poll_event() {
            self.handle_event(who, event);
        }
    }

    /// Acts as the owner of an engine: takes its events and posts its work.
    fn work(&mut self, who: usize, sabotage: Option<Sabotage>) {
        loop {
            self.take_events(who);
            self.sabotage(who, sabotage);
            let end = &mut self.ends[who];
            let mut room = Room {
                sends: SEND_QUEUE_LENGTH.saturating_sub(end.sends).into(),
                receives: (RECEIVE_QUEUE_LENGTH - end.receives).into(),
            };
            end.engine
                .set_unread(if end.held_up { usize::MAX } else { 0 });
            if end.held_up && sabotage == Some(Sabotage::StarveMessages) {
                room.receives = 0;
            }
            let tampered = sabotage.is_some_and(|sabotage| sabotage != Sabotage::StayIdle);
            let is_idle = end.engine.is_idle() && !tampered;
            end.proved.before(&end.engine);
            let work = end.engine.poll_work(*NOW, room);
            let is_step = end.proved.worked(&end.engine, room, work.as_ref());
            self.judge(is_step, sabotage);
            if is_idle && work.is_some() {
                self.breaks(Rule::IdleHasNoWork);
            }
            let end = &mut self.ends[who];
            let Some(work) = work else {
                // Polling for work can end the negotiation or the connection.
                if end.engine.events.is_empty() {
                    break;
                }
                continue;
            };
            if end.closed > 0 {
                self.breaks(Rule::BuffersComeBack);
            }
            match work {
                WorkRequest::Receive { count, .. } => self.ends[who].receives += count as u8,
                WorkRequest::Send {
                    header, payload, ..
                } => {
                    let message = [header.as_slice(), &payload[..]].concat();
                    self.post(who, message, sabotage);
                }
                WorkRequest::Read { .. } | WorkRequest::Write { .. } => {
                    unreachable!("the model starts no transfers")
                }
            }
        }
        // Identifiers differ between paths and are ignored here.
        let engine = &mut self.ends[who].engine;
        (engine.next_work, engine.next_sequence) = (0, 0);
    }

    fn handle_event(&mut self, who: usize, event: Event) {
        match event {
            Event::Segment {
                payload, remaining, ..
            } => {
                let (index, at) = self.ends[who].heard;
                let peer = 1 - who;
                let expected = match self.scene.messages[peer].get(index) {
                    Some(&segments) if index < self.ends[peer].submitted => {
                        content(peer, index, segments)
                    }
                    _ => Bytes::new(),
                };
                let end = at + payload.len();
                if expected.get(at..end) != Some(&payload[..])
                    || expected.len() - end != remaining as usize
                {
                    self.breaks(Rule::MessagesArrive);
                }
                self.ends[who].heard = match remaining {
                    0 => (index + 1, 0),
                    _ => (index, end),
                };
            }
            Event::MessageSent(MessageId(id)) => {
                if id as usize != self.ends[who].told {
                    self.breaks(Rule::MessagesArrive);
                }
                self.ends[who].told += 1;
            }
            Event::Closed(error) => {
                self.ends[who].closed += 1;
                if self.ends[who].closed > 1 {
                    self.breaks(Rule::BuffersComeBack);
                }
                let has_reason = match &error {
                    ConnectionError::TimedOut(_) => self.timers < self.scene.timers,
                    ConnectionError::Closed | ConnectionError::ClosedHere => {
                        self.closes < self.scene.closes
                    }
                    _ => false,
                };
                // The other end sees an expired timer or a broken network as a broken connection.
                let is_news = matches!(error, ConnectionError::Provider(_))
                    && (self.timers < self.scene.timers || self.cut);
                if !has_reason && !is_news {
                    self.breaks(Rule::EndsHaveReasons);
                }
                let in_good_order = matches!(
                    error,
                    ConnectionError::Closed
                        | ConnectionError::ClosedHere
                        | ConnectionError::RefusedPeer(_)
                );
                if !self.ends[who].over {
                    self.end_of(who, in_good_order, true);
                    self.end_of(1 - who, in_good_order, false);
                }
            }
            Event::Negotiated(_) | Event::KeepaliveAnswered => {}
            Event::TransferDone { .. } => unreachable!("the model starts no transfers"),
        }
    }

    /// Queues the disconnect after the messages that have arrived, unless it is already queued or reported.
    fn end_of(&mut self, who: usize, in_good_order: bool, local: bool) {
        let end = &mut self.ends[who];
        let known = end
            .completions
            .iter()
            .any(|arrival| matches!(arrival, Arrival::End { .. }));
        if !known && !end.over {
            end.completions.push_back(Arrival::End {
                in_good_order,
                local,
            });
        }
    }

    pub(super) fn post(&mut self, who: usize, mut message: Vec<u8>, sabotage: Option<Sabotage>) {
        let end = &mut self.ends[who];
        end.sends += 1;
        if end.negotiated && end.held == 1 && sabotage == Some(Sabotage::WithholdGrant) {
            message[2..4].fill(0);
        }
        let was_negotiated = end.negotiated;
        self.watch(who, &message, sabotage);
        if was_negotiated && sabotage == Some(Sabotage::LoseGrants) {
            message[2..4].fill(0);
        }
        if !was_negotiated && who == 1 && sabotage == Some(Sabotage::LoseResponse) {
            return;
        }
        let peer = &mut self.ends[1 - who];
        let ended = peer
            .completions
            .iter()
            .any(|arrival| matches!(arrival, Arrival::End { .. }));
        if self.cut || peer.over || ended {
            return;
        }
        let (Some(receives), Some(promised)) =
            (peer.receives.checked_sub(1), peer.promised.checked_sub(1))
        else {
            return self.breaks(Rule::CreditsHaveReceives);
        };
        (peer.receives, peer.promised) = (receives, promised);
        peer.completions.push_back(Arrival::Message(message.into()));
    }
}
