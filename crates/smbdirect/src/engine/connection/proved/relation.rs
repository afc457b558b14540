//! The steps that `proofs/` proves safe and live, as a checker: each step of an engine has to be one of them.
//!
//! The checker follows an engine from outside, by its messages and its posted receives. It shares no code with the engine,
//! and `proofs/compiled.py` proves that it decides as the model of the proof does.

/// One end, as far as its steps are decided by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Relation {
    pub(crate) send_credits: u32,
    pub(crate) granted: u32,
    pub(crate) available: u32,
    pub(crate) target: u32,
    pub(crate) max: u32,
    pub(crate) target_rose: bool,
    pub(crate) quiet: bool,
    pub(crate) send_immediate: bool,
    pub(crate) holds_first: bool,
    pub(crate) strict: bool,
    pub(crate) v2014: bool,
}

/// The fields of a received message on which the next steps depend.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    pub(crate) credits_requested: u32,
    pub(crate) credits_granted: u32,
    pub(crate) quiet: bool,
    pub(crate) asks: bool,
}

impl Relation {
    /// Returns how many receives an end posts if nothing limits it. `waiting`: its send queue is not empty.
    pub(crate) fn missing(&self, waiting: bool) -> u32 {
        let spends_last = self.send_credits == 1 && (waiting || self.send_immediate);
        let for_last = if spends_last { self.granted + 1 } else { 0 };
        let for_token = if self.returns_token() { 2 } else { 0 };
        let wanted = self.limit().max(for_last).max(for_token);
        wanted.saturating_sub(self.granted + self.available)
    }

    /// Posts receives. Returns whether that is a step.
    pub(crate) fn post(&mut self, count: u32, waiting: bool) -> bool {
        let is_step = (1..=self.missing(waiting)).contains(&count);
        self.available += count;
        is_step
    }

    /// Sends a message with `grant` credits. `called_for`: it is a segment of the queue, or a timer or the owner may have
    /// called for it. Returns whether that is a step.
    pub(crate) fn send(&mut self, grant: u32, called_for: bool) -> bool {
        let is_step = (called_for || self.is_due()) && self.next_grant() == Some(grant);
        if is_step {
            self.send_credits -= 1;
            self.available -= grant;
            self.granted += grant;
            self.send_immediate = false;
            self.holds_first = false;
            self.target_rose &= grant == 0;
            self.quiet &= grant == 0;
        }
        is_step
    }

    /// Receives a message. Returns whether that is a step.
    pub(crate) fn receive(&mut self, message: Received, waiting: bool) -> bool {
        if self.granted == 0 || message.credits_requested == 0 {
            return false;
        }
        let limit = self.limit();
        self.granted -= 1;
        self.send_credits += message.credits_granted;
        self.target = message.credits_requested;
        self.target_rose |= self.limit() > limit;
        self.quiet = message.quiet;
        self.send_immediate |= message.asks || (self.v2014 && !message.quiet && !waiting);
        true
    }

    /// Returns whether an end that has room for a Send may send nothing.
    pub(crate) fn may_rest(&self, waiting: bool) -> bool {
        !(waiting || self.is_due()) || self.next_grant().is_none()
    }

    fn limit(&self) -> u32 {
        self.target.min(self.max)
    }

    fn returns_token(&self) -> bool {
        self.quiet && self.granted == 0
    }

    fn grantable(&self, last: bool) -> u32 {
        let for_last = u32::from(last);
        let for_token = if self.returns_token() { 2 } else { 0 };
        let ordinary = self.limit().saturating_sub(self.granted);
        ordinary.max(for_last).max(for_token).min(self.available)
    }

    fn next_grant(&self) -> Option<u32> {
        let grant = self.grantable(self.send_credits == 1);
        match self.send_credits {
            0 => None,
            1 if grant == 0 && (self.strict || self.granted == 0) => None,
            _ => Some(grant),
        }
    }

    fn is_due(&self) -> bool {
        self.send_immediate || (!self.holds_first && self.should_grant())
    }

    fn should_grant(&self) -> bool {
        let (grant, quarter) = (self.grantable(false), self.limit() / 4);
        let is_low = self.granted <= quarter && grant >= quarter;
        let is_useful = grant > 1 || (grant == 1 && !self.quiet);
        is_useful && (self.granted == 0 || self.target_rose || is_low || grant >= 64)
    }
}
