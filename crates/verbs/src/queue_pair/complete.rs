//! The way back from the adapter: completions are checked against the ledger, release the memory of
//! their work, and become completions for the driver task.

use smbdirect::rdma::work::{Access, Completion, ProviderErrorKind, Token};
use tracing::warn;

use super::{
    Phase, VerbsQueuePair,
    batch::MAX_BATCH,
    work::{Operation, RegisteredBuffer, SendEntry, Source},
};
use crate::{
    ffi::ibv_wc,
    ledger::{CompletionOutcome, InvalidCompletion, Invalidated},
};

impl VerbsQueuePair {
    /// Takes one batch from the completion queue and returns whether it held anything.
    pub(super) fn poll_completion_queue(&mut self) -> bool {
        if matches!(self.phase, Phase::Ended) {
            return false;
        }
        let mut completions = [ibv_wc::default(); MAX_BATCH];
        let count = match self.cq.poll(&mut completions) {
            Ok(count) => count,
            Err(error) => {
                let what = format!("the completion queue cannot be read: {error}");
                self.fail_connection(ProviderErrorKind::Local, what);
                return false;
            }
        };
        for completion in &completions[..count] {
            self.handle_completion(completion);
        }
        count > 0
    }

    fn handle_completion(&mut self, completion: &ibv_wc) {
        match self.ledger.match_completion(completion) {
            Ok(CompletionOutcome::Received {
                length,
                invalidated,
            }) => self.complete_receive(length, invalidated),
            Ok(CompletionOutcome::ReceiveFailed(failure)) => {
                self.handle_failure(failure);
                let (id, slot) = self
                    .ledger
                    .take_receive()
                    .expect("the completion matched it");
                self.pool.put(slot);
                self.ready
                    .push_back(Completion::Flushed { id, buffer: None });
            }
            Ok(CompletionOutcome::Ended(number, failure)) => {
                if let Some(failure) = failure {
                    self.handle_failure(failure);
                }
                while let Some((entry, is_named)) = self.ledger.take_ended(number) {
                    if is_named && failure.is_some() {
                        self.flush_entry(entry);
                    } else {
                        self.complete_entry(entry);
                    }
                }
                self.complete_unposted();
            }
            Err(invalid) => {
                self.id
                    .span()
                    .in_scope(|| warn!(?completion, %invalid, "an invalid work completion"));
                // A peer causes this one by sending a byte into an empty Receive, which has room
                // for one.
                let kind = match invalid {
                    InvalidCompletion::TooLong => ProviderErrorKind::Protocol,
                    _ => ProviderErrorKind::Local,
                };
                self.fail_connection(kind, invalid.to_string());
            }
        }
    }

    fn complete_receive(&mut self, length: u32, invalidated: Invalidated) {
        self.startup_probes = None;
        let (id, slot) = self
            .ledger
            .take_receive()
            .expect("the completion matched it");
        let message = self.pool.lend(slot, length as usize);
        // A message proves that the peer is connected. The connection manager learns it from a
        // message of its own and is not notified here (`rdma_notify`): if the connection ended
        // right after that, Linux would repeat its answer for more than a minute, and
        // `rdma_destroy_id` would wait for it.
        self.is_established = true;
        let (token, certain) = match invalidated {
            Invalidated::Nothing => (None, true),
            Invalidated::Token(token) => (Some(Token(token)), true),
            Invalidated::Unconfirmed(token) => (Some(Token(token)), false),
        };
        let allowed =
            |region: &&mut RegisteredBuffer| region.access.contains(Access::REMOTE_INVALIDATE);
        // The adapter knows a window once it is bound, and needs it until then.
        let unbound = |token: &Token| self.queue.iter().any(|entry| entry.binds(*token));
        let invalidated = token.filter(|token| {
            if unbound(token) {
                return false;
            }
            let region = self.regions.get_mut(token).filter(allowed);
            // rxe does not tolerate a window that is invalidated twice.
            region.map(|region| region.window = None).is_some()
        });
        if let (Some(token), None, true) = (token, invalidated, certain) {
            self.ready
                .push_back(Completion::Flushed { id, buffer: None });
            let what = format!("the peer invalidated {token}, which it may not");
            self.fail_connection(ProviderErrorKind::Protocol, what);
            return;
        }
        self.ready.push_back(Completion::Received {
            id,
            message,
            invalidated,
        });
    }

    /// Completes the entries at the front of the ledger that were never posted.
    pub(super) fn complete_unposted(&mut self) {
        while self.ledger.is_done_already() {
            let entry = self.ledger.take_send().expect("the ledger has an entry");
            self.complete_entry(entry);
        }
    }

    /// Completes an entry that succeeded.
    fn complete_entry(&mut self, entry: SendEntry) {
        let Some(id) = entry.id else {
            self.complete_internal(&entry);
            return;
        };
        let completion = match entry.operation {
            Operation::Send { source, .. } => {
                self.release_source(source);
                // The completion of the last Send of a sequence completes all of them.
                if let Some(Completion::Sent { .. }) = self.ready.back() {
                    self.ready.pop_back();
                }
                Completion::Sent { id }
            }
            Operation::Write { source, .. } => {
                self.release_source(source);
                Completion::Written { id }
            }
            Operation::Read { into, .. } => match into.into_memory() {
                Some(buffer) => Completion::Read { id, buffer },
                None => {
                    self.ready
                        .push_back(Completion::Flushed { id, buffer: None });
                    return self.fail_deregistration();
                }
            },
            Operation::Bind(_) => unreachable!("bindings have no identifier"),
        };
        self.ready.push_back(completion);
    }

    /// Completes an entry that did not succeed.
    pub(super) fn flush_entry(&mut self, entry: SendEntry) {
        let Some(id) = entry.id else {
            self.complete_internal(&entry);
            return;
        };
        let buffer = match entry.operation {
            Operation::Send { source, .. } | Operation::Write { source, .. } => {
                self.release_source(source);
                None
            }
            Operation::Read { into, .. } => into.into_memory(),
            Operation::Bind(_) => unreachable!("bindings have no identifier"),
        };
        self.ready.push_back(Completion::Flushed { id, buffer });
    }

    /// Completes internal work. The end of a binding closes a buffer that was deregistered
    /// meanwhile; the end of a startup probe has no effect.
    fn complete_internal(&mut self, entry: &SendEntry) {
        self.internal_work -= 1;
        if let Operation::Bind(token) = entry.operation
            && let Some(region) = self.regions.get_mut(&token)
        {
            region.is_binding = false;
            if region.is_deregistered {
                region.close();
            }
        }
    }

    /// Fails the connection because the adapter did not end a registration.
    pub(super) fn fail_deregistration(&mut self) {
        let what = "the adapter failed to deregister memory".into();
        self.fail_connection(ProviderErrorKind::Local, what);
    }

    fn release_source(&self, source: Source) {
        let Source { copied, registered } = source;
        drop(registered);
        if let Some((slot, _)) = copied {
            self.pool.put(slot);
        }
    }
}
