//! [`Crowd`]: the connections of a runtime with one thread, which take turns.

use std::sync::{
    Arc, Mutex, PoisonError, Weak,
    atomic::{AtomicU32, AtomicUsize, Ordering},
};

use tokio::{
    runtime::{Handle, Id, RuntimeFlavor},
    sync::{self, MutexGuard},
};

/// Bytes moved by RDMA by which a turn becomes longer for each waiting connection, so that many connections do
/// not spend their time changing turns.
pub(super) const WAITING_BYTES: usize = 64 * 1024;
/// Number of polls with bulk data but without a request after which no request is expected on the thread.
pub(super) const POLLS_WITHOUT_REQUEST: u32 = 100;
/// Number of connections beyond which requests are always expected: a request would wait for milliseconds until more
/// connections than this have had a full poll.
pub(super) const FEW_CONNECTIONS: usize = 32;
/// Number of waiting connections beyond which turns do not become longer.
pub(super) const MAX_COUNTED_WAITING: usize = 8;

/// The connections whose driver tasks run on one runtime with one thread. A turn lasts while the runtime does not run,
/// so connections of another runtime must not wait for it, even if both run on the same thread.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    /// Locked during a turn. The mutex is fair.
    turn: sync::Mutex<()>,
    /// Connections that wait for their turns.
    waiting: AtomicUsize,
    /// Number of polls with bulk data after which no request is expected on this thread any more. While it is
    /// above 0, a poll moves fewer bytes. Each request sets it to [`POLLS_WITHOUT_REQUEST`].
    requests_expected: AtomicU32,
}

/// The connections of each runtime with one thread. The list has one entry for each such runtime.
static CROWDS: Mutex<Vec<(Id, Weak<Crowd>)>> = Mutex::new(Vec::new());

impl Crowd {
    /// Returns the connections of the current runtime, if it has one thread.
    pub(super) fn of_this_runtime() -> Option<Arc<Self>> {
        let runtime = Handle::try_current().ok()?;
        if runtime.runtime_flavor() != RuntimeFlavor::CurrentThread {
            return None;
        }
        let mut crowds = CROWDS.lock().unwrap_or_else(PoisonError::into_inner);
        crowds.retain(|(_, crowd)| crowd.strong_count() > 0);
        let known = crowds.iter().find(|(id, _)| *id == runtime.id());
        let known = known.and_then(|(_, crowd)| crowd.upgrade());
        Some(known.unwrap_or_else(|| {
            let new = Arc::default();
            crowds.push((runtime.id(), Arc::downgrade(&new)));
            new
        }))
    }

    /// Returns whether requests are expected on this thread. Each connection has a reference to `self`.
    #[inline]
    pub(super) fn expects_requests(self: &Arc<Self>) -> bool {
        self.requests_expected.load(Ordering::Relaxed) > 0
            || Arc::strong_count(self) > FEW_CONNECTIONS
    }

    /// Returns whether connections wait for their turns.
    #[inline]
    pub(super) fn has_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Records a poll that has moved bytes, given whether they were few, and whether they were a request.
    #[inline]
    pub(super) fn record_poll(&self, is_short: bool, is_request: bool) {
        let expected = self.requests_expected.load(Ordering::Relaxed);
        let expected = match (is_short, is_request) {
            (_, true) => POLLS_WITHOUT_REQUEST,
            (true, false) => return,
            (false, false) => expected.saturating_sub(1),
        };
        self.requests_expected.store(expected, Ordering::Relaxed);
    }

    /// Returns the number of bytes that a turn moves in addition to the limit of other polls.
    #[inline]
    pub(super) fn longer_turn_bytes(&self) -> usize {
        let waiting = self.waiting.load(Ordering::Relaxed);
        WAITING_BYTES * waiting.min(MAX_COUNTED_WAITING)
    }

    /// Waits for the turn of a connection, which lasts until the guard is dropped.
    pub(super) async fn turn(&self) -> MutexGuard<'_, ()> {
        let _waits = Waits::new(&self.waiting);
        self.turn.lock().await
    }
}

/// A connection that waits for its turn.
struct Waits<'a>(&'a AtomicUsize);

impl<'a> Waits<'a> {
    fn new(waiting: &'a AtomicUsize) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        Self(waiting)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
