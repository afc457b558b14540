//! Follows an engine from outside: each of its steps has to be one that `proofs/` proves safe and live.

use smbdirect::{
    Config, Revision, Settings,
    engine::{Connection, Credits},
    rdma::work::{Room, WorkRequest},
    wire::{DataTransfer, Flags},
};

use relation::{Received, Relation};

#[path = "../../../../src/engine/connection/proved/relation.rs"]
mod relation;

/// The end as the proof sees it.
#[derive(Debug)]
pub(crate) struct Proved {
    settings: Settings,
    passive: bool,
    /// The states in which the end may be: it is not visible which of its timers has expired. Empty before the end is
    /// established.
    ends: Vec<Relation>,
    before: Before,
}

/// What was true before a call of the engine.
#[derive(Debug, Default)]
struct Before {
    credits: Credits,
    queued: usize,
}

impl Proved {
    pub(crate) fn new(passive: bool, settings: &Settings) -> Self {
        Self {
            settings: settings.clone(),
            passive,
            ends: Vec::new(),
            before: Before::default(),
        }
    }

    /// The owner has called for an empty message.
    pub(crate) fn prompted(&mut self) {
        for end in &mut self.ends {
            end.send_immediate = true;
        }
    }

    /// A timer has expired: that of the first grant, the idle timer, or one that ends the connection.
    pub(crate) fn timer_expired(&mut self) {
        for end in std::mem::take(&mut self.ends) {
            let idle = Relation {
                send_immediate: true,
                ..end
            };
            for now in [end, idle] {
                let granted = Relation {
                    holds_first: false,
                    ..now
                };
                self.ends.extend([now, granted]);
            }
        }
        self.ends.dedup();
    }

    /// Records the state before a call of `poll_work`, or before the completion of a receive.
    pub(crate) fn before(&mut self, engine: &Connection) {
        self.before = Before {
            credits: engine.credits(),
            queued: engine.queued_messages(),
        };
    }

    /// Checks what `poll_work` has returned. `is_free`: no Read or Write is queued, so the queue of messages does not wait
    /// for one; `has_space`: the receive buffer is empty.
    pub(crate) fn worked(
        &mut self,
        engine: &Connection,
        room: Room,
        work: Option<&WorkRequest>,
        (is_free, has_space): (bool, bool),
    ) {
        let Some(negotiated) = engine.negotiated() else {
            return self.ends.clear();
        };
        let waiting = self.before.queued > 0;
        if self.ends.is_empty() {
            self.begin(engine.credits());
            // The Negotiate Response is no step.
            if self.passive {
                return;
            }
        }
        let receives = Config::new(self.settings.clone())
            .expect("the settings are legal")
            .receive_buffer()
            / negotiated.max_receive_size as usize;
        match work {
            Some(WorkRequest::Receive { count, .. }) => {
                self.step("posts", engine, |end| end.post(*count, waiting));
            }
            Some(WorkRequest::Send {
                header, payload, ..
            }) => {
                let message = [header.as_slice(), payload].concat();
                let header =
                    DataTransfer::decode(&message).expect("the engine sends valid messages");
                let is_segment =
                    header.data_length > 0 || engine.queued_messages() < self.before.queued;
                let grant = header.credits_granted.into();
                self.step("sends", engine, |end| end.send(grant, is_segment));
            }
            Some(WorkRequest::Read { .. } | WorkRequest::Write { .. }) => {}
            None => self.step("rests", engine, |end| {
                let posted = (end.granted + end.available) as usize;
                let has_posted = end.missing(waiting) == 0 || posted >= receives || !has_space;
                (room.receives == 0 || has_posted)
                    && (room.sends == 0 || end.may_rest(waiting && is_free))
            }),
        }
    }

    /// Checks the effect of a received message, if the connection goes on.
    pub(crate) fn heard(&mut self, engine: &Connection, message: &[u8]) {
        if engine.negotiated().is_none() || self.ends.is_empty() {
            return;
        }
        let header = DataTransfer::decode(message).expect("the engine accepted it");
        let asks = header.flags.contains(Flags::RESPONSE_REQUESTED);
        let waiting = self.before.queued > 0;
        let received = Received {
            credits_requested: header.credits_requested.into(),
            credits_granted: header.credits_granted.into(),
            quiet: header.data_length == 0 && header.remaining_data_length == 0 && !asks,
            asks,
        };
        self.step("hears", engine, |end| end.receive(received, waiting));
    }

    /// The end is established by a call of `poll_work`: the acceptor by its response, and the initiator before its first
    /// message.
    fn begin(&mut self, after: Credits) {
        let (credits, send_credits) = if self.passive {
            (after, 0)
        } else {
            // The call may have sent a message already.
            let granted = after.granted - self.before.credits.granted;
            let sent = u16::from(granted > 0);
            (self.before.credits, after.send_credits + sent)
        };
        let end = Relation {
            send_credits: send_credits.into(),
            granted: credits.granted.into(),
            available: (credits.receive_credits - credits.granted).into(),
            target: credits.receive_credit_target.into(),
            max: credits.receive_credit_max.into(),
            target_rose: !self.passive,
            quiet: false,
            send_immediate: false,
            holds_first: !self.passive,
            strict: self.settings.policy.strict_last_credit,
            v2014: self.settings.policy.revision == Revision::V2014,
        };
        // The owner may have prompted the engine before.
        let prompted = Relation {
            send_immediate: true,
            ..end
        };
        self.ends = vec![end, prompted];
    }

    /// Keeps the states for which `step` is a step of the proof, and after which the credits are those of the engine.
    fn step(&mut self, what: &str, engine: &Connection, step: impl Fn(&mut Relation) -> bool) {
        let before = self.ends.clone();
        let credits = engine.credits();
        self.ends.retain_mut(|end| {
            step(end)
                && end.send_credits == u32::from(credits.send_credits)
                && end.granted == u32::from(credits.granted)
                && end.granted + end.available == u32::from(credits.receive_credits)
                && end.target == u32::from(credits.receive_credit_target)
        });
        self.ends.dedup();
        assert!(
            !self.ends.is_empty(),
            "an end {what}, which is no step of the proof: {credits:?} after {before:?}"
        );
    }
}
