//! Work completions with arbitrary fields: the ledger is compared with a plain list of posted work.

use smbdirect_verbs::{
    ffi::{self, ibv_wc},
    ledger::{CompletionOutcome, Failure, Ledger, Signal},
};

use crate::input::Input;

/// Maximum number of work requests posted at a time, so that a search of the list stays short.
const MAX_POSTED: usize = 64;

/// Applies the same operations to a ledger and to a list, and compares them.
pub fn work_completions(data: &[u8]) {
    let mut input = Input::new(data);
    let mut pair = Pair::default();
    while !input.is_empty() {
        match input.up_to(4) {
            0 => pair.post_receive(&mut input),
            1 => pair.post_send(&mut input),
            2 => pair.complete(any_completion(&mut input)),
            _ => {
                let completion = pair.likely_completion(&mut input);
                pair.complete(completion);
            }
        }
        pair.compare();
    }
    pair.finish();
}

#[derive(Default)]
struct Pair {
    ledger: Ledger<u64, u64>,
    /// The `wr_id` of each posted Receive, and the bytes it has room for.
    receives: Vec<(u64, u32)>,
    sends: Vec<(u64, Signal)>,
}

fn any_completion(input: &mut Input<'_>) -> ibv_wc {
    ibv_wc {
        wr_id: input.any(),
        status: input.any(),
        opcode: input.any(),
        byte_len: input.any(),
        wc_flags: input.any(),
        invalidated_rkey: input.any(),
        ..ibv_wc::default()
    }
}

impl Pair {
    fn post_receive(&mut self, input: &mut Input<'_>) {
        if self.receives.len() < MAX_POSTED {
            let room = input.length(1 << 20) as u32;
            let name = self.receives.last().map_or(0, |last| last.0);
            let wr_id = self.ledger.post_receive(room, name);
            assert_eq!(wr_id & 1, 0);
            self.receives.push((wr_id, room));
        }
    }

    fn post_send(&mut self, input: &mut Input<'_>) {
        if self.ledger.span() < MAX_POSTED {
            let signal = input.pick(&[Signal::Signaled, Signal::Unsignaled, Signal::Unposted]);
            let wr_id = self.ledger.post_send(signal, 0);
            assert_eq!(wr_id & 1, 1);
            assert!(self.sends.iter().all(|send| send.0 < wr_id), "numbers grow");
            self.sends.push((wr_id, signal));
        }
    }

    /// Returns a completion that names posted work if there is any.
    fn likely_completion(&self, input: &mut Input<'_>) -> ibv_wc {
        let receives = self.receives.iter().map(|receive| receive.0);
        let posted: Vec<_> = receives
            .chain(self.sends.iter().map(|send| send.0))
            .collect();
        let index = input.up_to(u8::MAX);
        let wr_id = posted.get(index % posted.len().max(1)).copied();
        ibv_wc {
            wr_id: wr_id.unwrap_or(1),
            status: input.pick(&[
                0,
                0,
                0,
                ffi::IBV_WC_WR_FLUSH_ERR,
                ffi::IBV_WC_REM_ACCESS_ERR,
            ]),
            opcode: input.pick(&[0, 1, 2, ffi::IBV_WC_RECV]),
            byte_len: input.length(1 << 20) as u32,
            wc_flags: input.byte().into(),
            invalidated_rkey: input.any(),
            ..ibv_wc::default()
        }
    }

    fn complete(&mut self, completion: ibv_wc) {
        let succeeded = completion.status == ffi::IBV_WC_SUCCESS;
        let received = completion.opcode & ffi::IBV_WC_RECV != 0;
        match self.ledger.match_completion(&completion) {
            Ok(CompletionOutcome::Received { length, .. }) => {
                assert!(succeeded && received);
                let (wr_id, room) = self.receives.remove(0);
                assert_eq!(completion.wr_id, wr_id, "only the oldest Receive completes");
                assert!(length == completion.byte_len && length <= room);
                assert!(self.ledger.take_receive().is_some());
            }
            Ok(CompletionOutcome::ReceiveFailed(failure)) => {
                assert!(!succeeded);
                check_failure(failure, completion.status);
                assert_eq!(completion.wr_id, self.receives.remove(0).0);
                assert!(self.ledger.take_receive().is_some());
            }
            Ok(CompletionOutcome::Ended(number, failure)) => {
                assert!(succeeded == failure.is_none() && (!succeeded || !received));
                if let Some(failure) = failure {
                    check_failure(failure, completion.status);
                }
                self.end(number, completion.wr_id);
            }
            Err(_) => {}
        }
    }

    fn end(&mut self, number: u64, wr_id: u64) {
        assert_eq!(wr_id, number << 1 | 1);
        let mut named = false;
        while let Some((_, is_named)) = self.ledger.take_ended(number) {
            assert!(!named, "the named one is the last");
            named = is_named;
            // An unposted request waits for earlier signaled requests.
            let waits = |index: usize| {
                self.sends[..index]
                    .iter()
                    .any(|send| send.1 == Signal::Signaled)
            };
            let index =
                self.sends
                    .iter()
                    .enumerate()
                    .position(|(index, &(posted, signal))| match (is_named, signal) {
                        (true, _) => posted == wr_id,
                        (false, Signal::Signaled) => false,
                        (false, Signal::Unsignaled) => posted < wr_id,
                        (false, Signal::Unposted) => posted < wr_id && !waits(index),
                    });
            let (_, signal) = self
                .sends
                .remove(index.expect("the request was posted and has not completed"));
            assert!(!named || signal != Signal::Unposted);
        }
        assert!(named);
        while self.ledger.is_done_already() {
            assert!(self.ledger.take_send().is_some());
            assert_eq!(self.sends.remove(0).1, Signal::Unposted);
        }
    }

    fn compare(&self) {
        assert_eq!(self.ledger.receives(), self.receives.len());
        assert_eq!(self.ledger.sends(), self.sends.len());
        assert!(self.ledger.span() >= self.sends.len());
    }

    /// Checks that all remaining work can be taken once.
    fn finish(&mut self) {
        for _ in self.receives.drain(..) {
            assert!(self.ledger.take_receive().is_some());
        }
        for _ in self.sends.drain(..) {
            assert!(self.ledger.take_send().is_some());
        }
        assert!(self.ledger.take_receive().is_none() && self.ledger.take_send().is_none());
        assert_eq!(self.ledger.span(), 0);
    }
}

fn check_failure(failure: Failure, status: u32) {
    match failure {
        Failure::Flushed => assert_eq!(status, ffi::IBV_WC_WR_FLUSH_ERR),
        Failure::Failed { status: told, .. } => assert_eq!(told, status),
    }
}
