//! The work that is posted to a queue pair, and the meaning of its completions. It does no I/O and
//! has no `unsafe`.
//!
//! The ledger trusts a completion only if it matches posted work:
//!
//! - The completion of a Receive has to name the oldest Receive, and no more bytes than it has room
//!   for.
//! - The completion of a Send, Read or Write also completes the unsignaled requests that were posted
//!   before it. It does not complete earlier signaled requests: Linux' software iWARP may complete a
//!   Read after requests that were posted later.
//! - Every other completion is an [`InvalidCompletion`], which ends the connection.

use std::collections::VecDeque;

use smbdirect::rdma::work::ProviderErrorKind;
use thiserror::Error;

use crate::ffi::{self, ibv_wc};

/// The effect of a completion on posted work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionOutcome {
    /// The oldest Receive holds a message. The caller takes it with [`Ledger::take_receive`].
    Received {
        /// The length of the message in bytes.
        length: u32,
        /// Whether the message invalidated a token of this end.
        invalidated: Invalidated,
    },
    /// The oldest Receive failed. The caller takes it with [`Ledger::take_receive`].
    ReceiveFailed(Failure),
    /// The Send, Read or Write with this number succeeded, or failed; the requests that its completion implies
    /// succeeded. The caller takes them with [`Ledger::take_ended`].
    Ended(u64, Option<Failure>),
}

/// The effect of a received message on the tokens of this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalidated {
    /// The message invalidated no token.
    Nothing,
    /// The message invalidated this token.
    Token(u32),
    /// It invalidated this token, if this end has such a token. Linux' rxe reports the flag with
    /// its value in the kernel, which in user space means something that does not apply to a
    /// connection.
    Unconfirmed(u32),
}

/// Why a work request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The queue pair had already failed or disconnected, and the adapter flushed the request.
    Flushed,
    /// The request failed, and the queue pair with it.
    Failed {
        /// The side at fault.
        kind: ProviderErrorKind,
        /// The status of the completion.
        status: u32,
    },
}

/// A completion that matches no posted work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InvalidCompletion {
    /// No posted work has this number.
    #[error("a completion names work that is not posted")]
    Unknown,
    /// An earlier Receive has not completed.
    #[error("a completion skips work that was posted before")]
    OutOfOrder,
    /// The completion names another operation than was posted.
    #[error("a completion names another operation than was posted")]
    WrongOperation,
    /// The completion names more bytes than the Receive has room for.
    #[error("a completion names more bytes than were posted")]
    TooLong,
}

/// How a Send, Read or Write completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// The request has a completion of its own.
    Signaled,
    /// The request has no completion unless it fails, and succeeds with a later one.
    Unsignaled,
    /// The request was not posted, because there is nothing to do. It succeeds as soon as all requests
    /// before it have completed.
    Unposted,
}

/// The work that is posted to a queue pair, in order. It keeps an `R` for each Receive and an `S`
/// for each Send, Read and Write.
#[derive(Debug)]
pub struct Ledger<R, S> {
    /// Posted Receives, with the number of bytes that each has room for.
    receives: VecDeque<(u32, R)>,
    /// The number of the oldest Receive.
    first_receive: u64,
    /// Posted Sends, Reads and Writes. `None` is a request that has completed before an older
    /// one, so the first element is never `None`.
    sends: VecDeque<Option<(Signal, S)>>,
    /// The number of the oldest Send, Read or Write.
    first_send: u64,
    /// The number of elements of `sends` that are not `None`.
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
    /// Adds a Receive with room for `length` bytes, and returns its `wr_id`.
    pub fn post_receive(&mut self, length: u32, receive: R) -> u64 {
        let number = self.first_receive + self.receives.len() as u64;
        self.receives.push_back((length, receive));
        number << 1
    }

    /// Adds a Send, Read or Write, and returns its `wr_id`.
    pub fn post_send(&mut self, signal: Signal, send: S) -> u64 {
        let number = self.first_send + self.sends.len() as u64;
        self.sends.push_back(Some((signal, send)));
        self.open_sends += 1;
        number << 1 | 1
    }

    /// Returns the number of Receives that have not completed.
    pub fn receives(&self) -> usize {
        self.receives.len()
    }

    /// Returns the number of Sends, Reads and Writes that have not completed.
    pub const fn sends(&self) -> usize {
        self.open_sends
    }

    /// Returns the number of entries that posted requests may occupy in the adapter's send queue:
    /// all from the oldest to the newest, including completed ones between them.
    pub fn span(&self) -> usize {
        self.sends.len()
    }

    /// Takes the oldest Receive, which has completed or is flushed.
    pub fn take_receive(&mut self) -> Option<R> {
        let (_, receive) = self.receives.pop_front()?;
        self.first_receive += 1;
        Some(receive)
    }

    /// Takes the oldest Send, Read or Write, which has completed or is flushed.
    pub fn take_send(&mut self) -> Option<S> {
        let (_, send) = self.sends.front_mut()?.take()?;
        self.close_gaps();
        Some(send)
    }

    /// Takes one of the requests that end with the completion of `number`: first each earlier one,
    /// from the oldest, then the named one, and whether it is the named one. The caller repeats the call until it
    /// returns `None`.
    pub fn take_ended(&mut self, number: u64) -> Option<(S, bool)> {
        let index = usize::try_from(number.checked_sub(self.first_send)?).ok()?;
        // An unposted request ends with `number`, unless a signaled request before it has not
        // completed.
        let mut waits = false;
        let implied = self.sends.iter().take(index).position(|send| match send {
            Some((Signal::Unsignaled, _)) => true,
            Some((Signal::Unposted, _)) => !waits,
            Some((Signal::Signaled, _)) => {
                waits = true;
                false
            }
            None => false,
        });
        let (_, send) = self.sends.get_mut(implied.unwrap_or(index))?.take()?;
        self.close_gaps();
        Some((send, implied.is_none()))
    }

    /// Counts a request as completed, and removes completed requests from the front.
    fn close_gaps(&mut self) {
        self.open_sends -= 1;
        while let Some(None) = self.sends.front() {
            self.sends.pop_front();
            self.first_send += 1;
        }
    }

    /// Takes the newest Receive, which the adapter refused.
    pub fn retract_receive(&mut self) -> Option<R> {
        self.receives.pop_back().map(|(_, receive)| receive)
    }

    /// Returns whether the oldest Send, Read or Write was never posted, so that it is done.
    pub fn is_done_already(&self) -> bool {
        matches!(self.sends.front(), Some(Some((Signal::Unposted, _))))
    }

    /// Returns the outcome of a completion. It does not change the ledger.
    ///
    /// # Errors
    /// The completion matches no posted work.
    pub fn match_completion(
        &self,
        completion: &ibv_wc,
    ) -> Result<CompletionOutcome, InvalidCompletion> {
        let number = completion.wr_id >> 1;
        match completion.wr_id & 1 {
            0 => self.match_receive(number, completion),
            _ => self.match_send(number, completion),
        }
    }

    fn match_receive(
        &self,
        number: u64,
        completion: &ibv_wc,
    ) -> Result<CompletionOutcome, InvalidCompletion> {
        let index = number
            .checked_sub(self.first_receive)
            .ok_or(InvalidCompletion::Unknown)?;
        if index >= self.receives.len() as u64 {
            return Err(InvalidCompletion::Unknown);
        }
        if index > 0 {
            return Err(InvalidCompletion::OutOfOrder);
        }
        if completion.status != ffi::IBV_WC_SUCCESS {
            return Ok(CompletionOutcome::ReceiveFailed(Failure::of_receive(
                completion.status,
            )));
        }
        if completion.opcode != ffi::IBV_WC_RECV {
            return Err(InvalidCompletion::WrongOperation);
        }
        let (room, _) = self.receives[0];
        if completion.byte_len > room {
            return Err(InvalidCompletion::TooLong);
        }
        let token = completion.invalidated_rkey;
        let has = |flag| completion.wc_flags & flag != 0;
        let invalidated = match () {
            () if has(ffi::IBV_WC_WITH_INV) => Invalidated::Token(token),
            () if has(ffi::IBV_WC_WITH_IMM) => Invalidated::Nothing,
            () if has(ffi::IBV_WC_IP_CSUM_OK) => Invalidated::Unconfirmed(token),
            () => Invalidated::Nothing,
        };
        Ok(CompletionOutcome::Received {
            length: completion.byte_len,
            invalidated,
        })
    }

    fn match_send(
        &self,
        number: u64,
        completion: &ibv_wc,
    ) -> Result<CompletionOutcome, InvalidCompletion> {
        let index = number.checked_sub(self.first_send);
        let index = index.and_then(|index| usize::try_from(index).ok());
        let posted = index.and_then(|index| self.sends.get(index)?.as_ref());
        match posted {
            None | Some((Signal::Unposted, _)) => return Err(InvalidCompletion::Unknown),
            Some(_) => {}
        }
        if completion.status != ffi::IBV_WC_SUCCESS {
            let failure = Failure::of_send(completion.status);
            return Ok(CompletionOutcome::Ended(number, Some(failure)));
        }
        if completion.opcode & ffi::IBV_WC_RECV != 0 {
            return Err(InvalidCompletion::WrongOperation);
        }
        Ok(CompletionOutcome::Ended(number, None))
    }
}

impl Failure {
    /// Returns the failure of a Receive. Unless the adapter itself has failed, the peer is at
    /// fault.
    fn of_receive(status: u32) -> Self {
        let kind = match status {
            ffi::IBV_WC_WR_FLUSH_ERR => return Self::Flushed,
            ffi::IBV_WC_FATAL_ERR => ProviderErrorKind::Local,
            _ => ProviderErrorKind::Protocol,
        };
        Self::Failed { kind, status }
    }

    /// Returns the failure of a Send, Read or Write.
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

    fn ledger() -> Ledger<char, char> {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.post_receive(100, 'a'), 0);
        assert_eq!(ledger.post_receive(200, 'b'), 2);
        for (number, signal) in [
            Signal::Unsignaled,
            Signal::Signaled,
            Signal::Unposted,
            Signal::Unsignaled,
        ]
        .iter()
        .enumerate()
        {
            assert_eq!(ledger.post_send(*signal, 's'), number as u64 * 2 + 1);
        }
        ledger
    }

    /// The completion of the oldest Receive with 100 bytes.
    fn received() -> ibv_wc {
        ibv_wc {
            opcode: ffi::IBV_WC_RECV,
            byte_len: 100,
            ..ibv_wc::default()
        }
    }

    #[test]
    fn receives_complete_in_order() {
        let mut ledger = ledger();
        let outcome = |length, invalidated| {
            Ok(CompletionOutcome::Received {
                length,
                invalidated,
            })
        };
        assert_eq!(
            ledger.match_completion(&received()),
            outcome(100, Invalidated::Nothing)
        );
        let invalidating = ibv_wc {
            wc_flags: ffi::IBV_WC_WITH_INV,
            invalidated_rkey: 7,
            ..received()
        };
        assert_eq!(
            ledger.match_completion(&invalidating),
            outcome(100, Invalidated::Token(7))
        );
        assert_eq!(ledger.take_receive(), Some('a'));
        assert_eq!(
            ledger.match_completion(&received()),
            Err(InvalidCompletion::Unknown)
        );
        let second = ibv_wc {
            wr_id: 2,
            byte_len: 200,
            ..received()
        };
        assert_eq!(
            ledger.match_completion(&second),
            outcome(200, Invalidated::Nothing)
        );
    }

    #[test]
    fn completions_that_match_no_receive_are_invalid() {
        let ledger = ledger();
        let received = received();
        let too_long = ibv_wc {
            byte_len: 101,
            ..received
        };
        let sent = ibv_wc {
            opcode: 0,
            ..received
        };
        let early = ibv_wc {
            wr_id: 2,
            ..received
        };
        for (completion, invalid) in [
            (too_long, InvalidCompletion::TooLong),
            (sent, InvalidCompletion::WrongOperation),
            (early, InvalidCompletion::OutOfOrder),
        ] {
            assert_eq!(ledger.match_completion(&completion), Err(invalid));
        }
        for wr_id in [4, 1 << 63, u64::MAX - 1] {
            assert_eq!(
                ledger.match_completion(&ibv_wc { wr_id, ..received }),
                Err(InvalidCompletion::Unknown)
            );
        }
    }

    #[test]
    fn receives_fail_by_a_flush_or_by_the_peer() {
        let ledger = ledger();
        let flushed = ibv_wc {
            status: ffi::IBV_WC_WR_FLUSH_ERR,
            ..ibv_wc::default()
        };
        assert_eq!(
            ledger.match_completion(&flushed),
            Ok(CompletionOutcome::ReceiveFailed(Failure::Flushed))
        );
        let (status, kind) = (ffi::IBV_WC_LOC_LEN_ERR, ProviderErrorKind::Protocol);
        let too_long = ibv_wc {
            status,
            ..ibv_wc::default()
        };
        assert_eq!(
            ledger.match_completion(&too_long),
            Ok(CompletionOutcome::ReceiveFailed(Failure::Failed {
                kind,
                status
            }))
        );
    }

    #[test]
    fn completion_ends_earlier_unsignaled_requests() {
        let mut ledger = ledger();
        let done = |wr_id| ibv_wc {
            wr_id,
            ..ibv_wc::default()
        };
        assert_eq!(
            ledger.match_completion(&done(3)),
            Ok(CompletionOutcome::Ended(1, None))
        );
        assert_eq!(
            ledger.match_completion(&done(5)),
            Err(InvalidCompletion::Unknown),
            "the request was never posted"
        );
        assert_eq!(
            ledger.match_completion(&done(9)),
            Err(InvalidCompletion::Unknown)
        );
        let received = ibv_wc {
            opcode: ffi::IBV_WC_RECV,
            ..done(3)
        };
        assert_eq!(
            ledger.match_completion(&received),
            Err(InvalidCompletion::WrongOperation)
        );
        let status = ffi::IBV_WC_REM_ACCESS_ERR;
        let kind = ProviderErrorKind::Terminated;
        let failure = Failure::Failed { kind, status };
        let failed = ibv_wc { status, ..done(3) };
        assert_eq!(
            ledger.match_completion(&failed),
            Ok(CompletionOutcome::Ended(1, Some(failure)))
        );
        // The completion of the last request implies the first, but neither the signaled request
        // nor the unposted one after it.
        assert_eq!(
            ledger.match_completion(&done(7)),
            Ok(CompletionOutcome::Ended(3, None))
        );
        assert_eq!(ledger.take_ended(3), Some(('s', false)));
        assert_eq!(ledger.take_ended(3), Some(('s', true)));
        assert_eq!(ledger.take_ended(3), None);
        assert_eq!(
            ledger.match_completion(&done(7)),
            Err(InvalidCompletion::Unknown),
            "a completion does not repeat"
        );
        assert_eq!((ledger.sends(), ledger.span()), (2, 3));
        assert!(!ledger.is_done_already());
        assert_eq!(ledger.take_ended(1), Some(('s', true)));
        assert!(ledger.is_done_already());
        assert_eq!(ledger.take_send(), Some('s'));
        assert_eq!((ledger.sends(), ledger.span()), (0, 0));
        assert_eq!(ledger.take_send(), None);
        assert_eq!(
            ledger.post_send(Signal::Signaled, 't'),
            9,
            "numbers are not reused"
        );
    }
}
