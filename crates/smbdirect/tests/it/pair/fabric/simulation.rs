//! The simulation of the queue pairs and the network: the schedule, packets and completions.

use super::*;

impl Pair {
    /// Drops all packets; completions that are in a queue stay there.
    pub(super) fn cut(&mut self) {
        self.broken = true;
        self.schedule
            .retain(|_, happening| !matches!(happening, Happening::Arrival(..)));
    }

    /// Reports the broken network to both engines.
    pub(super) fn lose(&mut self) {
        for who in Who::BOTH {
            let error = ProviderError::new(ProviderErrorKind::Reset, "the network is gone");
            self.disconnect(who, Disconnect::Broken(error));
        }
    }

    pub(super) fn limits(&self) -> Limits {
        Limits {
            max_send_queue: self.faults.send_queue,
            max_receive_queue: self.faults.receive_queue,
            max_outbound_reads: self.faults.outbound_reads,
            max_inbound_reads: self.faults.outbound_reads,
            max_transfer: self.faults.max_transfer,
            send_with_invalidate: self.faults.send_with_invalidate,
            packet_bytes: None,
        }
    }

    pub(super) fn next_time(&self) -> Option<Instant> {
        let scheduled = self.schedule.keys().next().map(|&(at, _)| at);
        let timers = Who::BOTH.map(|who| self.end(who).engine.poll_timeout());
        [scheduled, timers[0], timers[1]]
            .into_iter()
            .flatten()
            .min()
            .map(|next| next.max(self.now))
    }

    /// Performs the next happening.
    pub(crate) fn step(&mut self) {
        self.steps += 1;
        assert!(self.steps < MAX_STEPS, "it never ends\n{self:?}");
        let Some(now) = self.next_time() else { return };
        self.now = now;
        let scheduled = self.schedule.first_key_value().map(|(&(at, _), _)| at);
        if scheduled.is_some_and(|at| at <= now) {
            let (_, happening) = self.schedule.pop_first().expect("it is there");
            match happening {
                Happening::Arrival(who, packet) => self.arrive(who, packet),
                Happening::Completion(who, completion) => self.complete(who, completion),
                Happening::Turn(who) => self.work(who),
            }
        } else {
            for who in Who::BOTH {
                if self.end(who).engine.poll_timeout() <= Some(now) {
                    let end = self.end_mut(who);
                    end.proved.timer_expired();
                    end.engine.handle_timeout(now);
                    self.work(who);
                }
            }
        }
        self.check();
    }

    pub(super) fn later(&mut self, delay: Duration, happening: Happening) {
        self.at(self.now + delay, happening);
    }

    fn at(&mut self, when: Instant, happening: Happening) {
        self.next_happening += 1;
        self.schedule.insert((when, self.next_happening), happening);
    }

    pub(super) fn turn(&mut self, who: Who) {
        self.later(Duration::ZERO, Happening::Turn(who));
    }

    /// Queues a packet to `who` after all others.
    pub(super) fn transmit(&mut self, who: Who, packet: Packet) {
        if self.broken || self.silent {
            return;
        }
        let latency = Duration::from_micros(self.random.up_to(self.faults.latency));
        let now = self.now;
        let end = self.end_mut(who);
        end.last_arrival = end.last_arrival.max(now + latency);
        let when = end.last_arrival;
        self.at(when, Happening::Arrival(who, packet));
    }

    /// Queues a completion after all others of its kind.
    fn finish_work(&mut self, who: Who, completion: Completion) {
        let queue = match completion {
            Completion::Sent { .. } => 0,
            Completion::Received { .. } => 1,
            Completion::Read { .. } => 2,
            _ => 3,
        };
        let delay = Duration::from_micros(self.random.up_to(self.faults.completion_delay[queue]));
        let now = self.now;
        let last = &mut self.end_mut(who).last_completion[queue];
        *last = (*last).max(now + delay);
        let when = *last;
        self.at(when, Happening::Completion(who, completion));
    }

    /// Returns the room that an engine is offered.
    fn room(&mut self, who: Who) -> Room {
        let end = self.end(who);
        let mut room = Room {
            sends: self.faults.send_queue.saturating_sub(end.work.len()),
            receives: self.faults.receive_queue.saturating_sub(end.receives.len()),
        };
        let established = end.is_established();
        if self.faults.lean_rooms && established && self.random.one_in(3) {
            room.sends = self.random.up_to(room.sends.min(2) as u64) as usize;
            room.receives = self.random.up_to(room.receives.min(2) as u64) as usize;
            self.later(Duration::from_micros(7), Happening::Turn(who));
        }
        room
    }

    fn is_full(&self, who: Who) -> bool {
        let elapsed = self.now - self.start;
        self.faults.full[who as usize].is_some_and(|(from, to)| (from..to).contains(&elapsed))
            && self.end(who).is_established()
    }

    /// Tells an engine whether its receive buffer is full.
    fn set_unread(&mut self, who: Who) {
        let mut unread = 0;
        if let Some((_, to)) = self.faults.full[who as usize]
            && self.is_full(who)
        {
            unread = usize::MAX;
            let until = self.start + to;
            let turn_is_due = |happening: &Happening| matches!(happening, Happening::Turn(whose) if *whose == who);
            let range = self.schedule.range((until, 0)..(until + QUIET_AFTER, 0));
            if !range
                .into_iter()
                .any(|(_, happening)| turn_is_due(happening))
            {
                self.at(until, Happening::Turn(who));
            }
        }
        self.end_mut(who).engine.set_unread(unread);
    }

    /// Takes the events of an engine and posts its work.
    pub(super) fn work(&mut self, who: Who) {
        if self.faults.lazy && self.end(who).is_established() && self.random.one_in(4) {
            let delay = Duration::from_micros(self.random.up_to(50));
            return self.later(delay, Happening::Turn(who));
        }
        self.take_events(who);
        self.set_unread(who);
        loop {
            let (now, room) = (self.now, self.room(who));
            let has_space = !self.is_full(who);
            let End {
                engine,
                proved,
                transfers,
                ..
            } = self.end_mut(who);
            let is_idle = engine.is_idle();
            proved.before(engine);
            let work = engine.poll_work(now, room);
            proved.worked(
                engine,
                room,
                work.as_ref(),
                (transfers.is_empty(), has_space),
            );
            let Some(work) = work else {
                break;
            };
            assert!(!is_idle, "{work:?}");
            match &work {
                WorkRequest::Receive { count, .. } => {
                    assert!((1..=room.receives).contains(&(*count as usize)));
                }
                _ => assert!(room.sends > 0),
            }
            self.post(who, work);
            self.operations += 1;
            if self.faults.kill_at == Some(self.operations) {
                self.kill();
            }
        }
        self.take_events(who);
    }

    pub(super) fn post(&mut self, who: Who, work: WorkRequest) {
        match work {
            WorkRequest::Receive { id, length, count } => {
                let end = self.end_mut(who);
                end.receives.extend((0..count).map(|_| (id, length)));
                end.most_receives = end.most_receives.max(end.receives.len());
            }
            WorkRequest::Send {
                id,
                header,
                payload,
                invalidate,
            } => {
                let message = [header.as_slice(), &payload].concat().into();
                self.end_mut(who).work.push_back(id);
                self.inspect(who, &message, invalidate.is_some());
                let packet = Packet::Send {
                    message,
                    invalidate,
                };
                self.transmit(who.peer(), packet);
                self.complete_unless_over(who, Completion::Sent { id });
            }
            WorkRequest::Write { id, data, to } => {
                self.end_mut(who).work.push_back(id);
                self.transmit(who.peer(), Packet::Write { to, data });
                self.complete_unless_over(who, Completion::Written { id });
            }
            WorkRequest::Read { id, from, into } => {
                let length = into.len() as u32;
                let most = self.faults.outbound_reads as usize;
                let end = self.end_mut(who);
                end.work.push_back(id);
                end.reads.push_back((id, into));
                end.most_reads = end.most_reads.max(end.reads.len());
                assert!(end.reads.len() <= most, "more reads than ORD");
                self.transmit(who.peer(), Packet::ReadRequest { from, length });
            }
        }
    }

    fn complete_unless_over(&mut self, who: Who, completion: Completion) {
        if !self.broken && !self.end(who).disconnected {
            let is_send = matches!(completion, Completion::Sent { .. });
            self.end_mut(who).sends_to_complete += usize::from(is_send);
            self.finish_work(who, completion);
        }
    }

    fn arrive(&mut self, who: Who, packet: Packet) {
        let faulty =
            |what| Disconnect::Broken(ProviderError::new(ProviderErrorKind::Protocol, what));
        if self.end(who).disconnected || self.broken {
            return;
        }
        match packet {
            Packet::Send {
                message,
                invalidate,
            } => {
                self.end_mut(who.peer()).under_way -= 1;
                let end = self.end_mut(who);
                let Some((id, length)) = end.receives.pop_front() else {
                    panic!("{who:?} was not ready to receive\n{self:?}");
                };
                assert!(message.len() <= length as usize, "the receive is too short");
                if let Some(token) = invalidate
                    && end.memory.invalidate(token).is_err()
                {
                    end.receives.push_front((id, length));
                    return self.break_off(who, faulty("a token that names nothing"));
                }
                let completion = Completion::Received {
                    id,
                    message,
                    invalidated: invalidate,
                };
                self.finish_work(who, completion);
            }
            Packet::Write { to, data } => {
                match self.end_mut(who).memory.write(to, data.len() as u32) {
                    Ok(place) => place.copy_from_slice(&data),
                    Err(_) => self.break_off(who, faulty("a write to no memory")),
                }
            }
            Packet::ReadRequest { from, length } => match self.end(who).memory.read(from, length) {
                Ok(data) => {
                    let data = Bytes::copy_from_slice(data.as_ref());
                    self.transmit(who.peer(), Packet::ReadResponse(data));
                }
                Err(_) => self.break_off(who, faulty("a read of no memory")),
            },
            Packet::ReadResponse(data) => {
                let (id, mut buffer) = self.end_mut(who).reads.pop_front().unwrap();
                buffer.copy_from_slice(&data);
                self.finish_work(who, Completion::Read { id, buffer });
            }
            Packet::End(how) => self.disconnect(who, how),
        }
    }

    /// Ends the connection at one end because of a message of the other.
    fn break_off(&mut self, who: Who, how: Disconnect) {
        self.transmit(who.peer(), Packet::End(how.clone()));
        self.disconnect(who, how);
    }

    /// Ends the connection for `who`: after the entries of its queues, all other work is flushed.
    pub(super) fn disconnect(&mut self, who: Who, how: Disconnect) {
        if std::mem::replace(&mut self.end_mut(who).disconnected, true) {
            return;
        }
        let end = self.end(who);
        let last = end.last_completion.into_iter().max().unwrap();
        let when = last.max(self.now) + Duration::from_micros(1);
        self.at(
            when,
            Happening::Completion(who, Completion::Disconnected(how)),
        );
    }

    fn complete(&mut self, who: Who, completion: Completion) {
        let now = self.now;
        match &completion {
            Completion::Received { message, .. } => self.count_credits(who, message),
            Completion::Head(_) => unreachable!("it is made below"),
            Completion::Disconnected(_) => self.flush(who),
            Completion::Sent { id } => {
                let is_unheard = self.random.up_to(2) == 0;
                let end = self.end_mut(who);
                end.sends_to_complete -= 1;
                if end.sends_to_complete > 0 && is_unheard {
                    // The next completion covers this Send too.
                    return;
                }
                end.work.retain(|work| work.0 & 3 != id.0 & 3 || work > id);
            }
            Completion::Read { id, .. } | Completion::Written { id } => {
                self.end_mut(who).work.retain(|work| work != id);
            }
            Completion::Flushed { .. } => unreachable!("flush() does that"),
        }
        let heard = match &completion {
            Completion::Received { message, .. } => Some(message.clone()),
            _ => None,
        };
        let End { engine, proved, .. } = self.end_mut(who);
        proved.before(engine);
        match completion {
            // Some messages are delivered in two pieces.
            Completion::Received {
                id,
                mut message,
                invalidated,
            } if (id.0 >> 2) % 5 < 3 => {
                let split = [24, 13, 32][((id.0 >> 2) % 5) as usize];
                let head = message.split_to(split.min(message.len()));
                let head = Inline::build(|out| out.put_slice(&head));
                engine.handle_completion(now, Completion::Head(head));
                let rest = Completion::Received {
                    id,
                    message,
                    invalidated,
                };
                engine.handle_completion(now, rest);
            }
            whole => engine.handle_completion(now, whole),
        }
        if let Some(message) = heard {
            proved.heard(engine, &message);
        }
        self.work(who);
    }

    fn flush(&mut self, who: Who) {
        let now = self.now;
        let end = self.end_mut(who);
        let mut buffers: HashMap<_, _> = std::mem::take(&mut end.reads).into_iter().collect();
        let receives = std::mem::take(&mut end.receives);
        let work = std::mem::take(&mut end.work);
        for id in receives.into_iter().map(|(id, _)| id).chain(work) {
            let buffer = buffers.remove(&id);
            let completion = Completion::Flushed { id, buffer };
            end.engine.handle_completion(now, completion);
        }
    }
}
