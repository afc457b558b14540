//! The rules of the model, which are checked after every step, and the sabotage that breaks them.

use super::*;

impl State {
    pub(super) fn breaks(&mut self, rule: Rule) {
        self.broken.get_or_insert(rule);
    }

    /// Checks a posted message against the rules.
    pub(super) fn watch(&mut self, who: usize, message: &[u8], sabotage: Option<Sabotage>) {
        let end = &mut self.ends[who];
        let (is_data, held) = (end.negotiated, end.held);
        end.negotiated = true;
        end.held = held.saturating_sub(1);
        if held == 0 {
            self.breaks(Rule::SendsHaveCredits);
        }
        if !is_data {
            if who == 1 {
                let response =
                    NegotiateResponse::decode(message).expect("the engine encodes valid messages");
                self.ends[who].promised += response.credits_granted;
            }
            return;
        }
        let header = DataTransfer::decode(message).expect("the engine encodes valid messages");
        let is_watched = sabotage != Some(Sabotage::SpendLastCredit);
        if is_watched && held == 1 && header.credits_granted == 0 {
            self.breaks(Rule::LastCreditGrants);
        }
        let end = &mut self.ends[who];
        end.promised += header.credits_granted;
        let is_backed = u16::from(end.receives) >= end.promised;
        let (expected, rest) = (end.remaining, header.remaining_data_length);
        end.remaining = rest;
        if !is_backed {
            self.breaks(Rule::CreditsHaveReceives);
        }
        if expected > 0 && header.data_length + rest != expected {
            self.breaks(Rule::SegmentsAreTogether);
        }
        self.empties = match header.data_length {
            0 => self.empties + 1,
            _ => 0,
        };
        if self.empties > MAX_IDLE_MESSAGES {
            self.breaks(Rule::IdleIsSilent);
        }
    }

    /// Reports what the engine has just done if it is no step of the proof.
    pub(super) fn judge(&mut self, is_step: bool, sabotage: Option<Sabotage>) {
        // Most sabotage is not a step either. The rule that it is meant to break is the one to report.
        if matches!(sabotage, None | Some(Sabotage::PostForNothing)) && !is_step {
            self.breaks(Rule::StepsAreProved);
        }
    }

    /// Breaks a rule deliberately, before the engine is polled for work.
    pub(super) fn sabotage(&mut self, who: usize, sabotage: Option<Sabotage>) {
        let end = &mut self.ends[who];
        let engine = &mut end.engine;
        if engine.negotiated().is_none() {
            return;
        }
        let waits = !engine.send_queue.is_empty();
        match sabotage {
            Some(Sabotage::InventCredit) if waits && engine.send_credits == 0 => {
                engine.send_credits = 1;
            }
            Some(Sabotage::PromiseReceive) if waits && !end.tampered => {
                end.tampered = true;
                engine.receive_credits.post(1);
            }
            Some(Sabotage::ForgetArrival) if !end.completions.is_empty() && !end.tampered => {
                end.tampered = true;
                engine.receive_credits.post(1);
            }
            Some(Sabotage::ForgetGrant) if waits && !end.tampered => {
                end.tampered = engine.receive_credits.received(true);
            }
            Some(Sabotage::Interrupt) if end.remaining > 0 && engine.send_credits > 1 => {
                engine.send_credits -= 1;
                let work = engine.send_data_transfer(*NOW, 0, None);
                engine.statistics.work_outstanding += 1;
                if let WorkRequest::Send { header, .. } = work {
                    self.post(who, header.as_slice().to_vec(), sabotage);
                }
            }
            Some(Sabotage::Overtake) if engine.send_queue.len() == 2 && !end.tampered => {
                end.tampered = true;
                engine.send_queue.clear();
                for index in [1, 0] {
                    let message = content(who, index, self.scene.messages[who][index]);
                    let id = MessageId(index as u64);
                    engine.send_queue.push(id, message.into(), None, 0);
                }
            }
            Some(Sabotage::ForgetQueue) if engine.closing => {
                engine.send_queue.clear();
                engine.end_if_drained();
            }
            Some(Sabotage::StayIdle) => engine.idle = true,
            Some(Sabotage::PostForNothing) if !end.tampered && end.receives < 8 => {
                end.tampered = true;
                engine.receive_credits.post(1);
                engine.statistics.receives_outstanding += 1;
                end.receives += 1;
            }
            Some(Sabotage::HoldFirstGrant) => {
                engine.timers.stop(Timer::FirstGrant);
            }
            _ => {}
        }
    }

    /// Returns whether neither end will act without its upper layer or a timer.
    fn is_at_rest(&self) -> bool {
        self.ends.iter().all(|end| !end.is_busy())
    }

    /// Returns whether the upper layer of `who` has a message that the connection would accept.
    pub(super) fn may_send(&self, who: usize) -> bool {
        let end = &self.ends[who];
        end.submitted < self.scene.messages[who].len()
            && end.engine.negotiated().is_some()
            && !end.engine.closing
    }

    /// Returns the rule that is broken in a state in which neither end will act.
    pub(super) fn rest_breaks(&self) -> Option<Rule> {
        if !self.is_at_rest() {
            return None;
        }
        let is_starved = |end: &End| end.remaining > 0 && end.engine.send_credits == 0;
        if self.ends.iter().all(End::is_open) && self.ends.iter().any(is_starved) {
            return Some(Rule::MessagesGoOn);
        }
        if (0..2).any(|who| self.ends[who].held_up || self.may_send(who)) {
            return None;
        }
        if self.ends.iter().all(End::is_open) {
            let is_done = (0..2).all(|who| {
                let end = &self.ends[who];
                end.engine.negotiated().is_some()
                    && !end.engine.closing
                    && end.engine.send_queue.is_empty()
                    && end.engine.keepalive_requested == KeepaliveRequested::None
                    && !end.engine.send_immediate
                    && self.has_arrived(who)
            });
            return (!is_done).then_some(Rule::WorkGetsDone);
        }
        let all_back = self.ends.iter().all(|end| {
            let statistics = end.engine.statistics();
            end.over
                && end.closed == 1
                && statistics.receives_outstanding == 0
                && statistics.work_outstanding == 0
                && end.engine.send_queue.is_empty()
        });
        if !all_back {
            return Some(Rule::BuffersComeBack);
        }
        let all_arrived = (0..2).all(|who| !self.closed_in_order(who) || self.has_arrived(who));
        (!all_arrived).then_some(Rule::MessagesArrive)
    }

    /// Returns whether `who` was closed by its upper layer, and neither the network nor a timer
    /// prevented its remaining work.
    fn closed_in_order(&self, who: usize) -> bool {
        let error = self.ends[who].engine.error();
        let is_closed = matches!(error, Some(ConnectionError::ClosedHere));
        is_closed && !self.cut && self.timers == self.scene.timers
    }

    /// Returns whether the peer has every message that the upper layer of `who` has sent, and each
    /// was reported as sent.
    fn has_arrived(&self, who: usize) -> bool {
        let (end, peer) = (&self.ends[who], &self.ends[1 - who]);
        peer.heard == (end.submitted, 0) && end.told == end.submitted
    }
}

/// Returns CreditsGranted of a received message; a Negotiate Request has none.
pub(super) fn granted(message: &[u8], is_established: bool) -> u16 {
    if is_established {
        return DataTransfer::decode(message).map_or(0, |header| header.credits_granted);
    }
    NegotiateResponse::decode(message).map_or(0, |response| response.credits_granted)
}
