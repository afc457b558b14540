//! What is posted to a queue pair, and what its completions mean: no I/O, no memory, no unsafe.
//!
//! A completion comes from the adapter by way of the kernel, and is believed only as far as it
//! fits what was posted. What it says of a Receive has to be about the oldest one, and of no more
//! bytes than it had room for; what it says of a Send, Read or Write ends those posted before it
//! too, as far as they did not ask for a completion of their own. Those that did are not touched:
//! Linux' software iWARP finishes a Read after what was posted behind it. Everything else is an
//! [`Oddity`], which ends the connection.

use std::collections::VecDeque;

use smbdirect::rdma::work::ProviderErrorKind;
use thiserror::Error;

use crate::ffi;

/// A work completion, field by field as the adapter gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkCompletion {
    /// The number that [`Ledger`] gave the work request.
    pub wr_id: u64,
    /// 0 for success; where it is not, only `wr_id` is defined besides.
    pub status: u32,
    /// What was done.
    pub opcode: u32,
    /// Bytes received.
    pub byte_len: u32,
    /// Whether `invalidated_rkey` is one.
    pub wc_flags: u32,
    /// The token that the peer invalidated.
    pub invalidated_rkey: u32,
}

/// What a completion means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The oldest Receive holds a message; it is to be taken.
    Received {
        /// Its length.
        length: u32,
        /// Whether it invalidated a token of ours.
        invalidated: Invalidated,
    },
    /// The Send, Read or Write of this number has happened, and what it ends besides.
    Done(u64),
    /// The oldest Receive did not happen; it is to be taken.
    ReceiveFailed(Failure),
    /// The Send, Read or Write of this number did not happen; what it ends besides did.
    Failed(u64, Failure),
}

/// What a message did to our tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalidated {
    /// Nothing.
    Nothing,
    /// It invalidated this one.
    Token(u32),
    /// It invalidated this one, if it is one: Linux' rxe gives the flag by its number in the
    /// kernel, which means something else here, though nothing for a connection.
    Perhaps(u32),
}

/// Why a work request did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The queue pair had failed, or was disconnected, before.
    Flushed,
    /// It failed, and the queue pair with it.
    Failed {
        /// Whose fault it was.
        kind: ProviderErrorKind,
        /// The adapter's status.
        status: u32,
    },
}

/// A completion that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Oddity {
    /// Nothing with this number is posted.
    #[error("a completion names work that is not posted")]
    Unknown,
    /// The one before it has not completed.
    #[error("a completion skips work that was posted before")]
    Skips,
    /// It is of another kind than what was posted.
    #[error("a completion names another operation than was posted")]
    Operation,
    /// More was received than there was room for.
    #[error("a completion tells of more bytes than were posted")]
    Length,
}

/// Whether a Send, Read or Write has a completion of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// It has.
    Own,
    /// It is done when a later one is, unless it fails.
    Later,
    /// It was not posted at all, as there is nothing to do, and is done when all before it are.
    None,
}

/// What is posted to a queue pair, in order: Receives with an `R` each, and Sends, Reads and
/// Writes with an `S` each.
#[derive(Debug)]
pub struct Ledger<R, S> {
    receives: VecDeque<(u32, R)>,
    /// The number of the oldest.
    first_receive: u64,
    /// With gaps where something is done and an older one is not; never one in front.
    sends: VecDeque<Option<(Signal, S)>>,
    first_send: u64,
    /// Those that are not gaps.
    open_sends: usize,
}

impl<R, S> Default for Ledger<R, S> {
    fn default() -> Self {
        Self {
            receives: VecDeque::new(),
            first_receive: 0,
            sends: VecDeque::new(),
            first_send: 0,
            open_sends: 0,
        }
    }
}

impl<R, S> Ledger<R, S> {
    /// A Receive with room for `length` bytes is posted, under the number that comes back.
    pub fn post_receive(&mut self, length: u32, receive: R) -> u64 {
        let number = self.first_receive + self.receives.len() as u64;
        self.receives.push_back((length, receive));
        number << 1
    }

    /// A Send, Read or Write is posted, under the number that comes back.
    pub fn post_send(&mut self, signal: Signal, send: S) -> u64 {
        let number = self.first_send + self.sends.len() as u64;
        self.sends.push_back(Some((signal, send)));
        self.open_sends += 1;
        number << 1 | 1
    }

    /// Receives that have not completed.
    pub fn receives(&self) -> usize {
        self.receives.len()
    }

    /// Sends, Reads and Writes that have not completed.
    pub const fn sends(&self) -> usize {
        self.open_sends
    }

    /// Places in the adapter's queue that these take, with those between them that it may have
    /// given back or not.
    pub fn span(&self) -> usize {
        self.sends.len()
    }

    /// The oldest Receive, which is over.
    pub fn take_receive(&mut self) -> Option<R> {
        let (_, receive) = self.receives.pop_front()?;
        self.first_receive += 1;
        Some(receive)
    }

    /// The oldest Send, Read or Write, whatever became of it.
    pub fn take_send(&mut self) -> Option<S> {
        let (_, send) = self.sends.front_mut()?.take()?;
        self.close_gaps();
        Some(send)
    }

    /// The oldest Send, Read or Write that is ended by the one of this number and is not it; then
    /// that one itself. To be called until there is none left.
    pub fn take_ended(&mut self, number: u64) -> Option<(S, Ended)> {
        let index = usize::try_from(number.checked_sub(self.first_send)?).ok()?;
        // What was never posted is over with it unless something before it is not.
        let mut waits = false;
        let besides = self.sends.iter().take(index).position(|send| match send {
            Some((Signal::Later, _)) => true,
            Some((Signal::None, _)) => !waits,
            Some((Signal::Own, _)) => {
                waits = true;
                false
            }
            None => false,
        });
        let (taken, ended) = match besides {
            Some(earlier) => (earlier, Ended::Besides),
            None => (index, Ended::Itself),
        };
        let (_, send) = self.sends.get_mut(taken)?.take()?;
        self.close_gaps();
        Some((send, ended))
    }

    fn close_gaps(&mut self) {
        self.open_sends -= 1;
        while let Some(None) = self.sends.front() {
            self.sends.pop_front();
            self.first_send += 1;
        }
    }

    /// The newest Receive, which was not posted after all.
    pub fn retract_receive(&mut self) -> Option<R> {
        self.receives.pop_back().map(|(_, receive)| receive)
    }

    /// Whether the oldest of the Sends, Reads and Writes is done without having been posted.
    pub fn is_done_already(&self) -> bool {
        matches!(self.sends.front(), Some(Some((Signal::None, _))))
    }

    /// What `completion` means. Nothing is taken by it.
    ///
    /// # Errors
    /// It cannot be about what is posted.
    pub fn judge(&self, completion: &WorkCompletion) -> Result<Verdict, Oddity> {
        let number = completion.wr_id >> 1;
        match completion.wr_id & 1 {
            0 => self.judge_receive(number, completion),
            _ => self.judge_send(number, completion),
        }
    }

    fn judge_receive(&self, number: u64, completion: &WorkCompletion) -> Result<Verdict, Oddity> {
        let index = number
            .checked_sub(self.first_receive)
            .ok_or(Oddity::Unknown)?;
        if index >= self.receives.len() as u64 {
            return Err(Oddity::Unknown);
        }
        if index > 0 {
            return Err(Oddity::Skips);
        }
        if completion.status != ffi::IBV_WC_SUCCESS {
            return Ok(Verdict::ReceiveFailed(Failure::of_receive(
                completion.status,
            )));
        }
        if completion.opcode != ffi::IBV_WC_RECV {
            return Err(Oddity::Operation);
        }
        let (room, _) = self.receives[0];
        if completion.byte_len > room {
            return Err(Oddity::Length);
        }
        let token = completion.invalidated_rkey;
        let has = |flag| completion.wc_flags & flag != 0;
        let invalidated = match () {
            () if has(ffi::IBV_WC_WITH_INV) => Invalidated::Token(token),
            () if has(ffi::IBV_WC_WITH_IMM) => Invalidated::Nothing,
            () if has(ffi::IBV_WC_IP_CSUM_OK) => Invalidated::Perhaps(token),
            () => Invalidated::Nothing,
        };
        Ok(Verdict::Received {
            length: completion.byte_len,
            invalidated,
        })
    }

    fn judge_send(&self, number: u64, completion: &WorkCompletion) -> Result<Verdict, Oddity> {
        let index = number.checked_sub(self.first_send);
        let index = index.and_then(|index| usize::try_from(index).ok());
        let posted = index.and_then(|index| self.sends.get(index)?.as_ref());
        match posted {
            None | Some((Signal::None, _)) => return Err(Oddity::Unknown),
            Some(_) => {}
        }
        if completion.status != ffi::IBV_WC_SUCCESS {
            let failure = Failure::of_send(completion.status);
            return Ok(Verdict::Failed(number, failure));
        }
        if completion.opcode & ffi::IBV_WC_RECV != 0 {
            return Err(Oddity::Operation);
        }
        Ok(Verdict::Done(number))
    }
}

/// What [`Ledger::take_ended`] took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// One from before, which has happened.
    Besides,
    /// The one that the completion names.
    Itself,
}

impl Failure {
    /// A Receive fails where the peer did what it may not.
    fn of_receive(status: u32) -> Self {
        let kind = match status {
            ffi::IBV_WC_WR_FLUSH_ERR => return Self::Flushed,
            ffi::IBV_WC_FATAL_ERR => ProviderErrorKind::Local,
            _ => ProviderErrorKind::Protocol,
        };
        Self::Failed { kind, status }
    }

    fn of_send(status: u32) -> Self {
        let kind = match status {
            ffi::IBV_WC_WR_FLUSH_ERR => return Self::Flushed,
            ffi::IBV_WC_REM_INV_REQ_ERR
            | ffi::IBV_WC_REM_ACCESS_ERR
            | ffi::IBV_WC_REM_OP_ERR
            | ffi::IBV_WC_REM_INV_RD_REQ_ERR
            | ffi::IBV_WC_RNR_RETRY_EXC_ERR => ProviderErrorKind::Terminated,
            ffi::IBV_WC_RETRY_EXC_ERR
            | ffi::IBV_WC_RESP_TIMEOUT_ERR
            | ffi::IBV_WC_REM_ABORT_ERR => ProviderErrorKind::Reset,
            ffi::IBV_WC_BAD_RESP_ERR => ProviderErrorKind::Protocol,
            _ => ProviderErrorKind::Local,
        };
        Self::Failed { kind, status }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FINE: WorkCompletion = WorkCompletion {
        wr_id: 0,
        status: 0,
        opcode: 0,
        byte_len: 0,
        wc_flags: 0,
        invalidated_rkey: 0,
    };

    fn ledger() -> Ledger<char, char> {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.post_receive(100, 'a'), 0);
        assert_eq!(ledger.post_receive(200, 'b'), 2);
        for (number, signal) in [Signal::Later, Signal::Own, Signal::None, Signal::Later]
            .iter()
            .enumerate()
        {
            assert_eq!(ledger.post_send(*signal, 's'), number as u64 * 2 + 1);
        }
        ledger
    }

    #[test]
    fn receives_complete_in_order_and_within_their_room() {
        let mut ledger = ledger();
        let received = WorkCompletion {
            opcode: ffi::IBV_WC_RECV,
            byte_len: 100,
            ..FINE
        };
        let verdict = |length, invalidated| {
            Ok(Verdict::Received {
                length,
                invalidated,
            })
        };
        assert_eq!(ledger.judge(&received), verdict(100, Invalidated::Nothing));
        let invalidating = WorkCompletion {
            wc_flags: ffi::IBV_WC_WITH_INV,
            invalidated_rkey: 7,
            ..received
        };
        assert_eq!(
            ledger.judge(&invalidating),
            verdict(100, Invalidated::Token(7))
        );
        assert_eq!(
            ledger.judge(&WorkCompletion {
                byte_len: 101,
                ..received
            }),
            Err(Oddity::Length)
        );
        assert_eq!(
            ledger.judge(&WorkCompletion {
                opcode: 0,
                ..received
            }),
            Err(Oddity::Operation)
        );
        assert_eq!(
            ledger.judge(&WorkCompletion {
                wr_id: 2,
                ..received
            }),
            Err(Oddity::Skips)
        );
        for wr_id in [4, 1 << 63, u64::MAX - 1] {
            assert_eq!(
                ledger.judge(&WorkCompletion { wr_id, ..received }),
                Err(Oddity::Unknown)
            );
        }
        let flushed = WorkCompletion {
            status: ffi::IBV_WC_WR_FLUSH_ERR,
            ..FINE
        };
        assert_eq!(
            ledger.judge(&flushed),
            Ok(Verdict::ReceiveFailed(Failure::Flushed))
        );
        let (status, kind) = (ffi::IBV_WC_LOC_LEN_ERR, ProviderErrorKind::Protocol);
        let too_long = WorkCompletion { status, ..FINE };
        assert_eq!(
            ledger.judge(&too_long),
            Ok(Verdict::ReceiveFailed(Failure::Failed { kind, status }))
        );
        assert_eq!(ledger.take_receive(), Some('a'));
        assert_eq!(ledger.judge(&received), Err(Oddity::Unknown));
        assert_eq!(
            ledger.judge(&WorkCompletion {
                wr_id: 2,
                byte_len: 200,
                ..received
            }),
            verdict(200, Invalidated::Nothing)
        );
    }

    #[test]
    fn a_completion_ends_those_before_it_that_have_none() {
        let mut ledger = ledger();
        let done = |wr_id| WorkCompletion { wr_id, ..FINE };
        assert_eq!(ledger.judge(&done(3)), Ok(Verdict::Done(1)));
        assert_eq!(
            ledger.judge(&done(5)),
            Err(Oddity::Unknown),
            "it was never posted"
        );
        assert_eq!(ledger.judge(&done(9)), Err(Oddity::Unknown));
        let received = WorkCompletion {
            opcode: ffi::IBV_WC_RECV,
            ..done(3)
        };
        assert_eq!(ledger.judge(&received), Err(Oddity::Operation));
        let status = ffi::IBV_WC_REM_ACCESS_ERR;
        let kind = ProviderErrorKind::Terminated;
        let failure = Failure::Failed { kind, status };
        let failed = WorkCompletion { status, ..done(3) };
        assert_eq!(ledger.judge(&failed), Ok(Verdict::Failed(1, failure)));
        // The last one is over: it ends the first, and neither the one that has a completion of
        // its own nor the one that was never posted.
        assert_eq!(ledger.judge(&done(7)), Ok(Verdict::Done(3)));
        assert_eq!(ledger.take_ended(3), Some(('s', Ended::Besides)));
        assert_eq!(ledger.take_ended(3), Some(('s', Ended::Itself)));
        assert_eq!(ledger.take_ended(3), None);
        assert_eq!(ledger.judge(&done(7)), Err(Oddity::Unknown), "once");
        assert_eq!((ledger.sends(), ledger.span()), (2, 3));
        assert!(!ledger.is_done_already());
        assert_eq!(ledger.take_ended(1), Some(('s', Ended::Itself)));
        assert!(ledger.is_done_already());
        assert_eq!(ledger.take_send(), Some('s'));
        assert_eq!((ledger.sends(), ledger.span()), (0, 0));
        assert_eq!(ledger.take_send(), None);
        assert_eq!(ledger.post_send(Signal::Own, 't'), 9, "numbers go on");
    }
}
