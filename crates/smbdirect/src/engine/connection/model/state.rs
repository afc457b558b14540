//! Copying, hashing, comparing and printing the states of the model.

use super::*;

impl End {
    pub(super) fn new(
        role: fn(Config, Instant) -> Connection,
        credits: (u16, u16),
        policy: Policy,
    ) -> Self {
        let settings = Settings {
            send_credit_target: credits.0,
            receive_credit_max: credits.1,
            max_send_size: 128,
            max_receive_size: 128,
            policy,
            ..Settings::default()
        };
        let config = Config::new(settings).expect("the settings are legal");
        Self {
            engine: role(config, *NOW),
            receives: 0,
            sends: 0,
            completions: VecDeque::new(),
            submitted: 0,
            heard: (0, 0),
            told: 0,
            held: 1,
            promised: 1,
            negotiated: false,
            remaining: 0,
            closed: 0,
            over: false,
            held_up: false,
            put_off: false,
            tampered: false,
            proved: Proved::default(),
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.closed == 0
    }

    /// Returns whether this end will act without its upper layer, and without a timer other than that of the
    /// first grant.
    pub(super) fn is_busy(&self) -> bool {
        self.put_off
            || !self.completions.is_empty()
            || (self.sends > 0 && !self.over)
            || self.engine.timers.is_running(Timer::FirstGrant)
    }
}

impl Clone for End {
    fn clone(&self) -> Self {
        Self {
            engine: snapshot(&self.engine),
            completions: self.completions.clone(),
            ..*self
        }
    }
}

/// Copies an engine between two steps. Every field is named, so that a new one is not forgotten.
fn snapshot(engine: &Connection) -> Connection {
    let Connection {
        config,
        role,
        limits,
        send_credits,
        receive_credits,
        send_queue,
        send_immediate,
        head,
        reassembly,
        unread,
        keepalive_requested,
        timers,
        transfers,
        in_flight,
        events,
        abandoned,
        next_work,
        next_sequence,
        closing,
        flushing,
        holds_first_grant,
        ask_after_queue,
        idle,
        statistics,
        stalls,
        log,
    } = engine;
    assert!(transfers.is_idle() && events.is_empty() && abandoned.is_empty() && head.is_empty());
    Connection {
        config: config.clone(),
        role: role.clone(),
        limits: *limits,
        send_credits: *send_credits,
        receive_credits: receive_credits.clone(),
        send_queue: send_queue.clone(),
        send_immediate: *send_immediate,
        head: Inline::new(),
        reassembly: reassembly.clone(),
        unread: *unread,
        keepalive_requested: *keepalive_requested,
        timers: timers.clone(),
        transfers: TransferQueue::default(),
        in_flight: in_flight.clone(),
        events: VecDeque::new(),
        abandoned: Vec::new(),
        next_work: *next_work,
        next_sequence: *next_sequence,
        closing: *closing,
        flushing: *flushing,
        holds_first_grant: *holds_first_grant,
        ask_after_queue: *ask_after_queue,
        idle: *idle,
        statistics: *statistics,
        stalls: stalls.clone(),
        log: log.clone(),
    }
}

/// Hashes the part of an engine's state that determines its future. Identifiers and counters are
/// not part of it, except for outstanding work. The content of the send queue follows from the submitted messages
/// and the bytes that have not been sent.
fn hash_engine(engine: &Connection, state: &mut impl Hasher) {
    let Connection {
        config,
        role,
        limits: _,
        send_credits,
        receive_credits,
        send_queue,
        send_immediate,
        head: _,
        reassembly,
        unread: _,
        keepalive_requested,
        timers,
        transfers: _,
        in_flight,
        events: _,
        abandoned: _,
        next_work: _,
        next_sequence: _,
        closing,
        flushing,
        holds_first_grant,
        ask_after_queue,
        idle,
        statistics,
        stalls: _,
        log: _,
    } = engine;
    (config.send_credit_target, config.receive_credit_max).hash(state);
    std::mem::discriminant(role).hash(state);
    match role {
        Role::Active { request_sent } => request_sent.hash(state),
        Role::Refusing { sent, .. } => sent.hash(state),
        Role::Connecting
        | Role::Passive
        | Role::Posting { .. }
        | Role::Established(_)
        | Role::Closed(_) => {}
    }
    (send_credits, receive_credits, send_queue.len()).hash(state);
    (send_immediate, reassembly, keepalive_requested).hash(state);
    Timer::ALL.map(|timer| timers.is_running(timer)).hash(state);
    (in_flight, closing, flushing, holds_first_grant).hash(state);
    (ask_after_queue, idle).hash(state);
    (statistics.receives_outstanding, statistics.work_outstanding).hash(state);
}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for end in &self.ends {
            hash_engine(&end.engine, state);
            (end.receives, end.sends, &end.completions).hash(state);
            (end.submitted, end.heard, end.told).hash(state);
            (end.held, end.promised, end.negotiated, end.remaining).hash(state);
            (end.closed, end.over, end.held_up, end.put_off, end.tampered).hash(state);
        }
        (self.timers, self.cuts, self.closes, self.holds, self.cut).hash(state);
        (self.empties, self.broken).hash(state);
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        let fingerprint = |state: &Self| {
            let mut hasher = DefaultHasher::new();
            state.hash(&mut hasher);
            hasher.finish()
        };
        fingerprint(self) == fingerprint(other)
    }
}

impl Clone for State {
    fn clone(&self) -> Self {
        Self {
            scene: Arc::clone(&self.scene),
            ends: self.ends.clone(),
            ..*self
        }
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for end in &self.ends {
            writeln!(
                f,
                "{:?}, queued {}, receives {}, sends {}, held {}, promised {}, {:?}, {:?}, heard {:?}, {:?}",
                end.engine.credits(),
                end.engine.queued_messages(),
                end.receives,
                end.sends,
                end.held,
                end.promised,
                end.engine.keepalive_requested,
                end.completions,
                end.heard,
                end.engine.error(),
            )?;
        }
        write!(f, "broken: {:?}", self.broken)
    }
}
