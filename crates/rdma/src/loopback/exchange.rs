//! The state that both ends of a connection share, and the execution of posted work on it.

use std::{
    hint::spin_loop,
    mem,
    sync::{
        Mutex, MutexGuard, TryLockError,
        atomic::{AtomicBool, Ordering},
    },
    task::Waker,
};

use super::{
    completions::Completions,
    lock::lock,
    staging::{Batch, Staging},
};
use crate::{
    memory::MemoryTable,
    software::receive_queue::{ReceiveQueue, Receives},
    work::{Completion, Disconnect, ProviderError, ProviderErrorKind, WorkRequest},
};

/// Everything that both ends of a connection share.
#[derive(Default)]
pub(super) struct SharedPair {
    pub(super) pair: CachePadded<Mutex<Pair>>,
    /// Whether each end has completions to take. A spinning end checks this without the lock.
    pub(super) doorbells: [CachePadded<AtomicBool>; 2],
}

/// A value in cache lines of its own. The alignment is 128 bytes, because some processors fetch lines in pairs.
///
/// Without the padding, an end that spins on a flag would slow down the end that works on the data
/// in the same cache line.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct CachePadded<T>(pub(super) T);

/// The attempts to take the lock before the thread sleeps for it. The other end usually holds the lock for a
/// flush, which is shorter than a wake-up.
const LOCK_ATTEMPTS: u32 = 32;

/// The spin hints between two attempts. The pause is needed because each attempt takes the cache line from the
/// other end.
const SPIN_HINTS_PER_ATTEMPT: u32 = 16;

impl SharedPair {
    /// Takes the lock. Spins for a short time before the thread sleeps.
    pub(super) fn lock(&self) -> MutexGuard<'_, Pair> {
        for _ in 0..LOCK_ATTEMPTS {
            match self.pair.0.try_lock() {
                Ok(pair) => return pair,
                Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    (0..SPIN_HINTS_PER_ATTEMPT).for_each(|_| spin_loop());
                }
            }
        }
        lock(&self.pair.0)
    }

    /// Rings the doorbell of the end of `side`, which then takes what was delivered to it.
    pub(super) fn ring(&self, side: usize) {
        let CachePadded(doorbell) = &self.doorbells[side];
        if !doorbell.load(Ordering::Relaxed) {
            doorbell.store(true, Ordering::Release);
        }
    }
}

/// The state under the lock. The fields that every flush needs come first, because each cache line
/// that moves between two cores takes time.
#[derive(Default)]
#[repr(C)]
pub(super) struct Pair {
    pub(super) ended: bool,
    /// For each end, whether its delivered batch is not empty.
    pub(super) has_delivery: [bool; 2],
    /// For each end, what the other end has delivered and this end has not taken yet.
    pub(super) delivered: [Box<Batch>; 2],
    pub(super) wakers: [Option<Waker>; 2],
    pub(super) disconnects: [Option<Disconnect>; 2],
    pub(super) memory: [MemoryTable; 2],
}

impl Pair {
    /// Delivers `batch` to the end of `side`.
    pub(super) fn deliver(&mut self, side: usize, batch: &mut Box<Batch>) {
        if mem::replace(&mut self.has_delivery[side], true) {
            self.delivered[side].append(batch);
        } else {
            mem::swap(&mut self.delivered[side], batch);
        }
    }

    /// Executes everything that `side` has posted, in order, so that the data of a Write is in
    /// place before a later Send is received. Returns whether a message was delivered.
    pub(super) fn execute(
        &mut self,
        side: usize,
        staging: &mut Staging,
        completions: &mut Completions,
    ) -> bool {
        if self.ended {
            return false;
        }
        if let Some(&last) = staging.sends.back() {
            completions.push_sent(last, staging.sends.len());
            staging.sends.clear();
        }
        if !staging.work.is_empty() {
            staging.receives.append(&mut self.delivered[side].receives);
        }
        let mut broken = None;
        //= SMBD-2.1-01
        //= RDMAP-11
        while let Some(work) = staging.work.front_mut() {
            if let Err(what) = apply(work, &mut staging.receives, &mut self.memory[1 - side]) {
                broken = Some(what);
                break;
            }
            match staging.work.pop_front() {
                Some(WorkRequest::Send {
                    id,
                    header,
                    payload,
                    invalidate,
                }) => {
                    staging.push_message(header, payload, invalidate);
                    completions.push_sent(id, 1);
                }
                Some(WorkRequest::Write { id, .. }) => completions.push(Completion::Written { id }),
                Some(WorkRequest::Read { id, into, .. }) => {
                    completions.push(Completion::Read { id, buffer: into });
                }
                Some(WorkRequest::Receive { .. }) | None => {
                    unreachable!("receives have a queue of their own")
                }
            }
        }
        staging.seal_chunk();
        let has_messages = !staging.batch.messages.is_empty();
        if !staging.batch.is_empty() {
            self.deliver(1 - side, &mut staging.batch);
        }
        if let Some(what) = broken {
            self.end_with_violation(side, &what);
        }
        has_messages
    }

    /// Ends the connection because `side` broke the rule `what`.
    fn end_with_violation(&mut self, side: usize, what: &str) {
        let words = format!("the peer ended the connection: {what}");
        let here = ProviderError::new(ProviderErrorKind::Terminated, words);
        let there = ProviderError::new(ProviderErrorKind::Protocol, what);
        self.end(side, Disconnect::Broken(here), Disconnect::Broken(there));
    }

    /// Ends the connection, unless it has ended already. The end of `side` reports `here`, and the
    /// other end reports `there`.
    pub(super) fn end(&mut self, side: usize, here: Disconnect, there: Disconnect) {
        if mem::replace(&mut self.ended, true) {
            return;
        }
        //= RDMAP-21
        for (side, disconnect) in [(side, here), (1 - side, there)] {
            self.disconnects[side] = Some(disconnect);
        }
    }
}

/// Applies a work request to the receives and the memory of the peer.
///
/// # Errors
/// Returns the rule that the work request breaks.
fn apply(
    work: &mut WorkRequest,
    receives: &mut ReceiveQueue,
    memory: &mut MemoryTable,
) -> Result<(), String> {
    let WorkRequest::Send {
        header,
        payload,
        invalidate,
        ..
    } = work
    else {
        return transfer(work, memory);
    };
    //= DDP-07
    let Some(&Receives { length, .. }) = receives.front() else {
        return Err("a Send arrived and no receive was posted".to_owned());
    };
    //= DDP-08
    let size = header.len() + payload.len();
    if size > length as usize {
        return Err(format!(
            "a Send of {size} bytes arrived and the receive takes {length}"
        ));
    }
    //= RDMAP-12
    if let Some(token) = *invalidate {
        let result = memory.invalidate(token);
        result.map_err(|fault| format!("invalidation of token {token}: {fault}"))?;
    }
    receives.pop();
    Ok(())
}

/// Copies the data of a Read or a Write.
///
/// # Errors
/// Returns the rule that the work request breaks.
fn transfer(work: &mut WorkRequest, memory: &mut MemoryTable) -> Result<(), String> {
    match work {
        //= SMBD-2.1-02
        //= DDP-13
        WorkRequest::Write { data, .. } if data.is_empty() => Ok(()),
        WorkRequest::Write { data, to, .. } => {
            let target = memory.write(*to, data.len() as u32);
            let target = target.map_err(|fault| {
                format!(
                    "RDMA Write of {} bytes to token {}: {fault}",
                    data.len(),
                    to.token
                )
            })?;
            target.copy_from_slice(data);
            Ok(())
        }
        //= RDMAP-10
        WorkRequest::Read { into, .. } if into.is_empty() => Ok(()),
        WorkRequest::Read { into, from, .. } => {
            let source = memory.read(*from, into.len() as u32);
            let source = source.map_err(|fault| {
                format!(
                    "RDMA Read of {} bytes from token {}: {fault}",
                    into.len(),
                    from.token
                )
            })?;
            into.copy_from_slice(source.as_ref());
            Ok(())
        }
        WorkRequest::Send { .. } | WorkRequest::Receive { .. } => {
            unreachable!("only Reads and Writes are transfers")
        }
    }
}
