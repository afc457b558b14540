//! Follows an engine from inside: each of its steps has to be one that `proofs/` proves safe and live.
//!
//! The model checker does this, and the driver of a program that is compiled with `--cfg smbdirect_proved`, as
//! `interop/soak` runs it. Other builds have no trace of it.

#[cfg(smbdirect_proved)]
use std::{
    ops::{Deref, DerefMut},
    time::Instant,
};

use self::relation::{Received, Relation};
use super::Connection;
#[cfg(smbdirect_proved)]
use crate::rdma::work::Completion;
use crate::{
    engine::{Credits, Revision},
    rdma::work::{Room, WorkRequest},
    wire::{DataTransfer, Flags},
};

mod relation;

/// An end as the proof sees it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Proved {
    /// `None` before the end is established.
    relation: Option<Relation>,
    /// Messages in the send queue before the call of the engine.
    queued: usize,
}

impl Proved {
    /// Records the state of the engine before a call.
    pub(super) fn before(&mut self, engine: &Connection) {
        if let Some(relation) = &mut self.relation {
            // A timer or the owner may have changed these.
            relation.send_immediate |= engine.send_immediate;
            relation.holds_first &= engine.holds_first_grant;
        }
        self.queued = engine.send_queue.len();
    }

    /// Returns whether it is a step of the proof that `poll_work` has returned `work`.
    pub(super) fn worked(
        &mut self,
        engine: &Connection,
        room: Room,
        work: Option<&WorkRequest>,
    ) -> bool {
        let (queued, waiting) = (self.queued, self.queued > 0);
        self.step(engine, |end| match work {
            Some(WorkRequest::Receive { count, .. }) => end.post(*count, waiting),
            Some(WorkRequest::Send {
                header, payload, ..
            }) => {
                let header = decoded(&[header.as_slice(), payload].concat());
                let is_segment = header.data_length > 0 || engine.send_queue.len() < queued;
                end.send(header.credits_granted.into(), is_segment)
            }
            Some(WorkRequest::Read { .. } | WorkRequest::Write { .. }) => true,
            None => {
                let is_full = engine
                    .negotiated()
                    .is_some_and(|negotiated| engine.affordable_receives(negotiated) == 0);
                let waiting_alone = waiting && engine.transfers.is_idle();
                (room.receives == 0 || is_full || end.missing(waiting) == 0)
                    && (room.sends == 0 || end.may_rest(waiting_alone))
            }
        })
    }

    /// Returns whether the effect of a received message is a step of the proof, if the connection goes on.
    pub(super) fn heard(&mut self, engine: &Connection, message: &[u8]) -> bool {
        let waiting = self.queued > 0;
        self.step(engine, |end| {
            let header = decoded(message);
            let asks = header.flags.contains(Flags::RESPONSE_REQUESTED);
            let received = Received {
                credits_requested: header.credits_requested.into(),
                credits_granted: header.credits_granted.into(),
                quiet: header.data_length == 0 && header.remaining_data_length == 0 && !asks,
                asks,
            };
            end.receive(received, waiting)
        })
    }

    /// Takes a step, and returns whether it is one and the engine has taken the same.
    fn step(&mut self, engine: &Connection, step: impl FnOnce(&mut Relation) -> bool) -> bool {
        if engine.negotiated().is_none() {
            return true;
        }
        let Some(mut end) = self.relation else {
            let first = Relation {
                target_rose: engine.holds_first_grant,
                strict: engine.config.policy.strict_last_credit,
                v2014: engine.config.policy.revision == Revision::V2014,
                ..Relation::default()
            };
            self.relation = Some(seen(engine, first));
            return true;
        };
        let is_step = step(&mut end);
        self.relation = Some(end);
        is_step && end == seen(engine, end)
    }
}

/// Returns an end with the numbers of an engine.
fn seen(engine: &Connection, end: Relation) -> Relation {
    let Credits {
        send_credits,
        granted,
        receive_credits,
        receive_credit_target,
        receive_credit_max,
        ..
    } = engine.credits();
    Relation {
        send_credits: send_credits.into(),
        granted: granted.into(),
        available: u32::from(receive_credits - granted),
        target: receive_credit_target.into(),
        max: receive_credit_max.into(),
        send_immediate: engine.send_immediate,
        holds_first: engine.holds_first_grant,
        ..end
    }
}

fn decoded(message: &[u8]) -> DataTransfer {
    DataTransfer::decode(message).expect("the engine sends and accepts valid messages only")
}

/// An engine that panics if a step is not proved.
#[cfg(smbdirect_proved)]
#[derive(Debug)]
pub(crate) struct Checked {
    engine: Connection,
    proved: Proved,
}

#[cfg(smbdirect_proved)]
impl Checked {
    pub(crate) fn poll_work(&mut self, now: Instant, room: Room) -> Option<WorkRequest> {
        self.proved.before(&self.engine);
        let before = self.proved;
        let work = self.engine.poll_work(now, room);
        let is_step = self.proved.worked(&self.engine, room, work.as_ref());
        assert!(is_step, "no step of the proof: {work:?} after {before:?}");
        work
    }

    pub(crate) fn handle_completion(&mut self, now: Instant, completion: Completion) {
        let message = match &completion {
            Completion::Received { message, .. } => {
                Some([self.engine.head.as_slice(), message].concat())
            }
            _ => None,
        };
        self.proved.before(&self.engine);
        let before = self.proved;
        self.engine.handle_completion(now, completion);
        if let Some(message) = message {
            let is_step = self.proved.heard(&self.engine, &message);
            assert!(is_step, "no step of the proof: a message after {before:?}");
        }
    }
}

#[cfg(smbdirect_proved)]
impl From<Connection> for Checked {
    fn from(engine: Connection) -> Self {
        Self {
            engine,
            proved: Proved::default(),
        }
    }
}

#[cfg(smbdirect_proved)]
impl Deref for Checked {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.engine
    }
}

#[cfg(smbdirect_proved)]
impl DerefMut for Checked {
    fn deref_mut(&mut self) -> &mut Connection {
        &mut self.engine
    }
}
