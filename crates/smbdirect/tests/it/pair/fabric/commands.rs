//! The commands of a test: create a pair, use it, break it, and run it.

use super::*;

impl Pair {
    /// Returns two ends with an RDMA connection that have not sent a message yet.
    pub(crate) fn new(seed: u64, active: Settings, passive: Settings, faults: Faults) -> Self {
        let now = Instant::now();
        let mut pair = Self {
            start: now,
            now,
            active: End::new(active, Active, now),
            passive: End::new(passive, Passive, now),
            faults,
            random: Random::new(seed),
            schedule: BTreeMap::new(),
            next_happening: 0,
            operations: 0,
            broken: false,
            garbled: false,
            silent: false,
            steps: 0,
            story: Vec::new(),
        };
        for who in Who::BOTH {
            let receive = pair.end_mut(who).engine.negotiate_receive();
            pair.post(who, receive);
        }
        for who in Who::BOTH {
            let limits = pair.limits();
            let end = pair.end_mut(who);
            end.engine.handle_connected(limits);
            pair.later(Duration::ZERO, Happening::Turn(who));
        }
        pair
    }

    /// Returns two ends that have negotiated and are idle.
    pub(crate) fn established(
        seed: u64,
        active: Settings,
        passive: Settings,
        faults: Faults,
    ) -> Self {
        let mut pair = Self::new(seed, active, passive, faults);
        pair.drive();
        for who in Who::BOTH {
            assert!(pair.end(who).is_established(), "{pair:?}");
        }
        pair
    }

    pub(crate) fn end(&self, who: Who) -> &End {
        match who {
            Active => &self.active,
            Passive => &self.passive,
        }
    }

    pub(crate) fn end_mut(&mut self, who: Who) -> &mut End {
        match who {
            Active => &mut self.active,
            Passive => &mut self.passive,
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        Who::BOTH.iter().all(|&who| self.end(who).is_established())
    }

    /// Submits a message of `length` bytes to an engine, which sends it in the next step.
    pub(crate) fn send(&mut self, who: Who, length: usize) {
        self.send_invalidating(who, length, None);
    }

    pub(crate) fn send_invalidating(&mut self, who: Who, length: usize, token: Option<Token>) {
        let end = self.end_mut(who);
        end.next_id += 1;
        let id = MessageId(end.next_id);
        let content = content(end.next_id ^ (who as u64) << 32, length);
        if end.engine.send(id, content.clone(), token).is_err() {
            return;
        }
        let writes = if length > 0 {
            std::mem::take(&mut end.writes)
        } else {
            Vec::new()
        };
        end.expected.push_back(Expected {
            id,
            writes,
            content,
            length,
            token,
            sent: false,
        });
        self.turn(who);
    }

    /// Registers memory at `who` for its peer, filled by `id`.
    pub(crate) fn register(
        &mut self,
        who: Who,
        id: u64,
        length: usize,
        access: Access,
    ) -> BufferDescriptorV1 {
        let buffer = BytesMut::from(content(id, length));
        let registered = self.end_mut(who).memory.register(buffer, access).unwrap();
        BufferDescriptorV1 {
            offset: registered.address.offset,
            token: registered.address.token.0,
            length: registered.length,
        }
    }

    /// Starts a read at `who`, which shall return `expected`.
    pub(crate) fn read(
        &mut self,
        who: Who,
        descriptors: &[BufferDescriptorV1],
        offset: u64,
        expected: Bytes,
    ) {
        let end = self.end_mut(who);
        end.next_id += 1;
        let id = end.next_id;
        let into = BytesMut::zeroed(expected.len());
        end.transfers.insert(id, Transfer::Read(expected));
        if let Err((_, buffer)) = end.engine.read(TransferId(id), descriptors, offset, into) {
            let Some(Transfer::Read(expected)) = end.transfers.remove(&id) else {
                unreachable!("it was put there above");
            };
            assert_eq!(buffer.len(), expected.len());
        }
        self.turn(who);
    }

    pub(crate) fn write(
        &mut self,
        who: Who,
        descriptors: &[BufferDescriptorV1],
        offset: u64,
        data: Bytes,
    ) {
        let end = self.end_mut(who);
        end.next_id += 1;
        let id = end.next_id;
        end.transfers.insert(id, Transfer::Write);
        let started = end
            .engine
            .write(TransferId(id), descriptors, offset, data.clone());
        match started {
            Ok(()) => end.writes.extend(places(descriptors, offset, data)),
            Err(_) => {
                end.transfers.remove(&id);
            }
        }
        self.turn(who);
    }

    pub(crate) fn prompt(&mut self, who: Who) {
        let end = self.end_mut(who);
        end.engine.prompt();
        end.proved.prompted();
        self.turn(who);
    }

    pub(crate) fn keepalive(&mut self, who: Who) {
        let now = self.now;
        let end = self.end_mut(who);
        end.engine.prompt_keepalive(now);
        end.proved.prompted();
        self.turn(who);
    }

    pub(crate) fn close(&mut self, who: Who) {
        self.end_mut(who).engine.close();
        self.turn(who);
    }

    /// Fills the receive buffer of an end for `duration`.
    pub(crate) fn fill_buffer(&mut self, who: Who, duration: Duration) {
        let from = self.now - self.start;
        self.faults.full[who as usize] = Some((from, from + duration));
        self.turn(who);
    }

    /// Breaks the network, which both providers notice.
    pub(crate) fn kill(&mut self) {
        self.cut();
        self.lose();
    }

    /// Drops all packets from now on, and no provider notices.
    pub(crate) fn fall_silent(&mut self) {
        self.silent = true;
    }

    /// Delivers to `who` a message that an engine never sends, and then breaks the network.
    pub(crate) fn inject(&mut self, who: Who, message: Bytes) {
        let now = self.now;
        self.cut();
        self.garbled = true;
        let end = self.end_mut(who);
        if let Some((id, length)) = end.receives.pop_front() {
            let message = message.slice(..message.len().min(length as usize));
            let invalidated = None;
            let completion = Completion::Received {
                id,
                message: message.clone(),
                invalidated,
            };
            end.proved.before(&end.engine);
            end.engine.handle_completion(now, completion);
            end.proved.heard(&end.engine, &message);
            self.work(who);
        }
        self.lose();
    }

    /// Runs until the pair is quiet, or only long timers run, and asserts that all work is
    /// complete.
    pub(crate) fn drive(&mut self) {
        self.run();
        self.assert_content();
    }

    /// Runs until the pair is quiet.
    pub(crate) fn run(&mut self) {
        while let Some(next) = self.next_time()
            && (!self.schedule.is_empty() || next <= self.now + QUIET_AFTER)
        {
            self.step();
        }
    }

    /// Runs for `duration`.
    pub(crate) fn advance(&mut self, duration: Duration) {
        let end = self.now + duration;
        while let Some(next) = self.next_time()
            && next <= end
        {
            self.step();
        }
        self.now = end;
    }

    /// Closes the connection at `who` and asserts that every buffer is returned.
    pub(crate) fn finish(&mut self, who: Who) {
        self.close(who);
        self.run();
        self.advance(Duration::from_secs(300));
        self.assert_all_returned();
    }
}
