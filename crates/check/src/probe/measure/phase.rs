//! One measurement: requests of one kind for about a second.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::{Result, ensure};
use bytes::BytesMut;
use smbdirect_smb2::File;
use tokio::{task::JoinSet, time::Instant};

use super::{session::Session, usage::Usage};
use crate::measurement::{Operation, Rate};

/// Bytes of a small request: the shortest that Linux moves by RDMA.
pub(super) const SMALL_BYTES: u32 = 4096;
/// Time after which no more requests begin.
const TIME: Duration = Duration::from_secs(1);

/// Requests of one kind.
#[derive(Clone, Copy)]
pub(super) struct Phase {
    pub(super) operation: Operation,
    pub(super) request_bytes: u32,
    pub(super) outstanding: u32,
    /// Bytes of the file that are used.
    pub(super) length: u64,
}

/// Progress of the requests.
#[derive(Default)]
struct Done {
    begun: AtomicU64,
    requests: AtomicU64,
    by_rdma: AtomicU64,
    /// Time of the last answer, and longest time between two answers, in microseconds.
    last: AtomicU64,
    longest: AtomicU64,
}

impl Done {
    /// An answer came so long after the beginning.
    fn answered(&self, time: Duration) {
        let now = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let last = self.last.fetch_max(now, Relaxed);
        self.longest.fetch_max(now.saturating_sub(last), Relaxed);
    }
}

impl Phase {
    /// Makes the requests. Returns their rate, and the bytes at the beginning of the file that all of them cover
    /// together.
    ///
    /// # Cancel safety
    /// If the future is dropped, no more requests begin.
    pub(super) async fn run(self, session: &Session, file: &File) -> Result<(Rate, u64)> {
        let done = Arc::new(Done::default());
        let stalled = session.credit_stall_time();
        let before = Usage::now();
        let begun = Instant::now();
        let mut workers = JoinSet::new();
        for _ in 0..self.outstanding {
            workers.spawn(self.work(file.clone(), done.clone(), begun));
        }
        while let Some(worker) = workers.join_next().await {
            worker.expect("no worker panics or is aborted")?;
        }
        let time = begun.elapsed();
        let used = Usage::now().since(&before, time);
        let requests = done.requests.load(Relaxed);
        ensure!(requests > 0, "no request was answered");
        let bytes = requests * u64::from(self.request_bytes);
        let seconds = time.as_secs_f64();
        let stalled = session.credit_stall_time().zip(stalled);
        let stalled = stalled.map(|(after, before)| after.saturating_sub(before));
        let rate = Rate {
            operation: self.operation,
            request_bytes: self.request_bytes,
            outstanding: self.outstanding,
            seconds,
            bytes,
            bytes_by_rdma: done.by_rdma.load(Relaxed),
            bytes_per_second: bytes as f64 / seconds,
            requests_per_second: requests as f64 / seconds,
            cpu_seconds: used.process,
            busiest_thread: used.busiest_thread,
            machine_busy: used.machine,
            credit_wait: stalled.map(|time| (time.as_secs_f64() / seconds).min(1.0)),
            longest_wait: done.longest.load(Relaxed) as f64 / 1e6,
        };
        let extent = requests.min(self.places()) * u64::from(self.request_bytes);
        Ok((rate, extent))
    }

    /// Returns how many requests the file has room for.
    fn places(self) -> u64 {
        (self.length / u64::from(self.request_bytes)).max(1)
    }

    /// Makes one request after the other until the time is over.
    async fn work(self, file: File, done: Arc<Done>, begun: Instant) -> Result<()> {
        let end = begun + TIME;
        let places = self.places();
        let mut buffer = buffer(self.request_bytes, self.operation == Operation::Write);
        while Instant::now() < end {
            let number = done.begun.fetch_add(1, Relaxed);
            if self.operation == Operation::FirstRead && number >= places {
                break;
            }
            let offset = number % places * u64::from(self.request_bytes);
            let by_rdma;
            (buffer, by_rdma) = if self.operation == Operation::Write {
                let written = file.write(offset, buffer).await?;
                (written.data, written.by_rdma)
            } else {
                let wanted = buffer.len();
                let read = file.read(offset, buffer).await?;
                ensure!(read.data.len() == wanted, "the file became shorter");
                (read.data, read.by_rdma)
            };
            done.requests.fetch_add(1, Relaxed);
            done.answered(begun.elapsed());
            done.by_rdma.fetch_add(by_rdma as u64, Relaxed);
        }
        Ok(())
    }
}

/// Returns a buffer for a request; with `is_noise` its contents cannot be compressed.
pub(super) fn buffer(bytes: u32, is_noise: bool) -> BytesMut {
    let mut buffer = BytesMut::zeroed(bytes as usize);
    if is_noise {
        fastrand::fill(&mut buffer);
    }
    buffer
}
