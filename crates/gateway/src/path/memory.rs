//! The memory budget for requests and answers in flight: bounded over all connections, with a fair part
//! for each.
//!
//! Requests and answers have separate budgets, so an answer never waits for a request. (It must not, because the
//! answer releases the memory of its request.) A connection that holds memory can hold at most its part. A
//! connection that holds none can take a grant of any size, so every single request succeeds, independent of the
//! number of connections. Connections wait for the shared budget in the order in which they asked.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed},
    },
    time::Instant,
};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::figures::times::Times;

/// Memory is counted in units of this many bytes.
const UNIT_BYTES: usize = 4 << 10;
/// Maximum number of bytes that one connection holds, however large the budget is. This is enough to
/// keep both of its peers busy.
const MAX_PART_BYTES: usize = 32 << 20;

/// A memory budget that connections share.
#[derive(Debug)]
pub(crate) struct Memory {
    free: Arc<Semaphore>,
    units: u32,
    shares: AtomicUsize,
    waits: Times,
}

impl Memory {
    pub(crate) fn new(bytes: u64) -> Arc<Self> {
        let most = u64::from(u32::MAX).min(Semaphore::MAX_PERMITS as u64);
        let units = (bytes / UNIT_BYTES as u64).clamp(1, most) as u32;
        Arc::new(Self {
            free: Arc::new(Semaphore::new(units as usize)),
            units,
            shares: AtomicUsize::new(0),
            waits: Times::default(),
        })
    }

    /// Returns the bytes that connections hold.
    pub(crate) fn used(&self) -> u64 {
        self.limit() - (self.free.available_permits() * UNIT_BYTES) as u64
    }

    /// Returns the bytes that all connections may hold together.
    pub(crate) const fn limit(&self) -> u64 {
        self.units as u64 * UNIT_BYTES as u64
    }

    /// Returns the times for which connections had to wait until memory was free.
    pub(crate) const fn waits(&self) -> &Times {
        &self.waits
    }

    /// Returns a new share for a connection.
    pub(crate) fn share(self: &Arc<Self>) -> Share {
        self.shares.fetch_add(1, Relaxed);
        Share {
            memory: self.clone(),
            held: Arc::default(),
        }
    }
}

/// One connection's part of a [`Memory`], with a count of what it holds.
#[derive(Debug)]
pub(crate) struct Share {
    memory: Arc<Memory>,
    held: Arc<Held>,
}

#[derive(Debug, Default)]
struct Held {
    units: AtomicU32,
    released: Notify,
}

/// A part of the budget that a connection holds. Dropping the grant releases it.
#[derive(Debug)]
pub(crate) struct Grant {
    _permit: OwnedSemaphorePermit,
    held: Arc<Held>,
    units: u32,
}

/// The memory that a connection holds, for others to see.
#[derive(Clone, Debug)]
pub(crate) struct Holding(Arc<Held>);

impl Holding {
    /// Returns the bytes that the connection holds.
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.0.units.load(Relaxed)) * UNIT_BYTES as u64
    }
}

impl Share {
    /// Returns a handle that tells what this share holds.
    pub(crate) fn holding(&self) -> Holding {
        Holding(self.held.clone())
    }

    /// Waits until `bytes` are free, and takes them. Call it from one task at a time.
    pub(crate) async fn take(&self, bytes: usize) -> Grant {
        if let Some(grant) = self.try_take(bytes) {
            return grant;
        }
        let began = Instant::now();
        let units = self.units(bytes);
        loop {
            // Created before the check, so that a release in between is not missed.
            let released = self.held.released.notified();
            if self.has_room(units) {
                break;
            }
            released.await;
        }
        let permit = self.memory.free.clone().acquire_many_owned(units).await;
        self.memory.waits.record(began.elapsed());
        self.granted(permit.expect("the semaphore is never closed"), units)
    }

    /// Takes `bytes` if they are free, without waiting.
    fn try_take(&self, bytes: usize) -> Option<Grant> {
        let units = self.units(bytes);
        if !self.has_room(units) {
            return None;
        }
        let permit = self
            .memory
            .free
            .clone()
            .try_acquire_many_owned(units)
            .ok()?;
        Some(self.granted(permit, units))
    }

    fn units(&self, bytes: usize) -> u32 {
        let units = bytes.div_ceil(UNIT_BYTES).max(1);
        // A request that is larger than the whole budget takes all of it.
        u32::try_from(units)
            .unwrap_or(u32::MAX)
            .min(self.memory.units)
    }

    fn has_room(&self, units: u32) -> bool {
        // One part stays free for the next connection, because this one may hold its part for long.
        let parts = self.memory.shares.load(Relaxed) + 1;
        let part = (self.memory.units as usize / parts).min(MAX_PART_BYTES / UNIT_BYTES);
        let held = self.held.units.load(Relaxed);
        held == 0 || held as usize + units as usize <= part
    }

    fn granted(&self, permit: OwnedSemaphorePermit, units: u32) -> Grant {
        self.held.units.fetch_add(units, Relaxed);
        Grant {
            _permit: permit,
            held: self.held.clone(),
            units,
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.memory.shares.fetch_sub(1, Relaxed);
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.held.units.fetch_sub(self.units, Relaxed);
        self.held.released.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::{pin::pin, task::Poll};

    use super::*;

    /// Polls for memory once, and gives up the wait.
    fn takes(share: &Share, bytes: usize) -> Option<Grant> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut taking = pin!(share.take(bytes));
            std::future::poll_fn(|context| {
                Poll::Ready(match taking.as_mut().poll(context) {
                    Poll::Ready(grant) => Some(grant),
                    Poll::Pending => None,
                })
            })
            .await
        })
    }

    #[test]
    fn each_connection_gets_its_part() {
        let memory = Memory::new(24 << 20);
        let (one, other) = (memory.share(), memory.share());
        let first = takes(&one, 6 << 20).unwrap();
        assert!(takes(&one, 3 << 20).is_none(), "a third is its part");
        assert!(one.try_take(3 << 20).is_none());
        let second = takes(&one, 2 << 20).unwrap();
        let third = takes(&other, 8 << 20).unwrap();
        assert!(takes(&other, 1).is_none());
        drop((first, second));
        assert!(takes(&other, 1).is_none(), "it holds its part");
        drop(third);
        assert!(takes(&other, 8 << 20).is_some());
    }

    #[test]
    fn a_connection_leaves_a_part_to_the_next() {
        let memory = Memory::new(16 << 20);
        let one = memory.share();
        let held = takes(&one, 8 << 20).unwrap();
        assert!(takes(&one, 1).is_none());
        let other = memory.share();
        assert!(takes(&other, 8 << 20).is_some());
        drop(held);
    }

    #[test]
    fn a_request_larger_than_the_part_goes_alone() {
        let memory = Memory::new(8 << 20);
        let shares: Vec<Share> = (0..100).map(|_| memory.share()).collect();
        let grant = takes(&shares[0], 7 << 20).unwrap();
        assert!(takes(&shares[0], 1).is_none());
        assert!(takes(&shares[1], 7 << 20).is_none(), "all of it is in use");
        drop(grant);
        let all = takes(&shares[1], 100 << 20).unwrap();
        assert!(takes(&shares[2], 1).is_none());
        drop(all);
        assert!(takes(&shares[2], 1).is_some());
    }

    #[test]
    fn a_connection_that_is_gone_leaves_its_part_to_the_others() {
        let memory = Memory::new(24 << 20);
        let (one, other) = (memory.share(), memory.share());
        let held = takes(&one, 1).unwrap();
        assert!(takes(&one, 10 << 20).is_none());
        drop(other);
        assert!(takes(&one, 10 << 20).is_some());
        drop(held);
    }

    #[tokio::test]
    async fn a_release_wakes_who_waits() {
        let memory = Memory::new(4 << 20);
        let share = Arc::new(memory.share());
        let grant = share.take(4 << 20).await;
        let waiting = tokio::spawn({
            let share = share.clone();
            async move { share.take(4 << 20).await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(grant);
        drop(waiting.await.unwrap());
    }
}
