//! A pool of buffers. A buffer that was just released is still in a CPU cache, and its reuse saves the
//! page faults of new memory.

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use bytes::{Bytes, BytesMut};

/// Bytes of one read from a socket or from the memory of a client: few enough to stay in a core's cache
/// until they are sent, and enough to need few system calls.
pub(crate) const CHUNK: usize = 256 << 10;
/// Bytes of the smallest size class of regions. Each class is twice as large as the one before.
const SMALLEST_REGION: usize = 64 << 10;
/// Bytes of the largest size class of regions. Larger regions are not kept.
const LARGEST_REGION: usize = 16 << 20;
/// Number of size classes.
const CLASSES: usize = (LARGEST_REGION / SMALLEST_REGION).ilog2() as usize + 1;
/// Maximum number of bytes in free buffers, independent of --memory.
const MAX_KEPT_BYTES: usize = 32 << 20;

/// Free buffers of all connections.
#[derive(Debug)]
pub(crate) struct Buffers {
    /// Empty buffers with room for [`CHUNK`] bytes.
    chunks: Mutex<Vec<BytesMut>>,
    /// Regions by size class, each with the session that used it.
    regions: [Mutex<Vec<(u64, BytesMut)>>; CLASSES],
    /// Bytes of all free buffers.
    kept: AtomicUsize,
    /// Maximum number of bytes in all free buffers.
    max_kept: usize,
}

impl Default for Buffers {
    fn default() -> Self {
        Self::new(MAX_KEPT_BYTES as u64)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Buffers {
    /// Creates a pool that keeps at most `max_kept` bytes of free buffers.
    pub(crate) fn new(max_kept: u64) -> Self {
        Self {
            chunks: Mutex::default(),
            regions: Default::default(),
            kept: AtomicUsize::new(0),
            max_kept: max_kept.min(MAX_KEPT_BYTES as u64) as usize,
        }
    }

    /// Returns the bytes of all free buffers.
    pub(crate) fn kept(&self) -> u64 {
        self.kept.load(Relaxed) as u64
    }

    /// Returns the maximum number of bytes in all free buffers.
    pub(crate) const fn max_kept(&self) -> u64 {
        self.max_kept as u64
    }

    /// Returns an empty buffer with room for [`CHUNK`] bytes.
    pub(crate) fn chunk(&self) -> BytesMut {
        let free = lock(&self.chunks).pop();
        match free {
            Some(chunk) => {
                self.kept.fetch_sub(CHUNK, Relaxed);
                chunk
            }
            None => BytesMut::with_capacity(CHUNK),
        }
    }

    /// Returns the buffer of a chunk to the pool if this is the only handle to it.
    pub(crate) fn give_chunk(&self, bytes: Bytes) {
        let Ok(mut chunk) = bytes.try_into_mut() else {
            return;
        };
        if chunk.capacity() < CHUNK || chunk.capacity() > 2 * CHUNK {
            return;
        }
        chunk.clear();
        if self.keep(CHUNK) {
            lock(&self.chunks).push(chunk);
        }
    }

    /// Returns a buffer of `length` bytes for a session. It holds no data of another session.
    pub(crate) fn region(&self, session: u64, length: usize) -> BytesMut {
        let Some(class) = class(length) else {
            return BytesMut::zeroed(length);
        };
        let size = SMALLEST_REGION << class;
        let mut free = lock(&self.regions[class]);
        let own = free.iter().rposition(|&(owner, _)| owner == session);
        let kept = match own {
            Some(own) => Some(free.swap_remove(own)),
            None => free.pop(),
        };
        drop(free);
        let Some((_, mut region)) = kept else {
            let mut region = BytesMut::zeroed(size);
            region.truncate(length);
            return region;
        };
        self.kept.fetch_sub(size, Relaxed);
        region.truncate(length);
        if own.is_none() {
            region.fill(0);
        }
        region
    }

    /// Returns the buffer of a region to the pool.
    pub(crate) fn give_region(&self, session: u64, mut region: BytesMut) {
        let capacity = region.capacity();
        let Some(class) = class(region.len()) else {
            return;
        };
        let size = SMALLEST_REGION << class;
        if capacity < size {
            return;
        }
        // Only the bytes beyond the current length are written: those that `region` cut off.
        region.resize(size, 0);
        if self.keep(size) {
            lock(&self.regions[class]).push((session, region));
        }
    }

    /// Returns the buffer of a shared region to the pool if this is the only handle to it.
    pub(crate) fn give_shared_region(&self, session: u64, bytes: Bytes) {
        if let Ok(region) = bytes.try_into_mut() {
            self.give_region(session, region);
        }
    }

    /// Releases the memory of all free buffers.
    pub(crate) fn release(&self) {
        let chunks = std::mem::take(&mut *lock(&self.chunks));
        self.kept.fetch_sub(chunks.len() * CHUNK, Relaxed);
        for (class, regions) in self.regions.iter().enumerate() {
            let regions = std::mem::take(&mut *lock(regions));
            let size = SMALLEST_REGION << class;
            self.kept.fetch_sub(regions.len() * size, Relaxed);
        }
    }

    /// Reserves room for a free buffer of `size` bytes, and returns whether there was enough.
    fn keep(&self, size: usize) -> bool {
        let fits = self.kept.fetch_add(size, Relaxed) + size <= self.max_kept;
        if !fits {
            self.kept.fetch_sub(size, Relaxed);
        }
        fits
    }
}

/// Returns the number of bytes that a region of `length` bytes occupies.
pub(crate) fn region_size(length: usize) -> usize {
    class(length).map_or(length, |class| SMALLEST_REGION << class)
}

/// Returns the size class for `length` bytes, or `None` if it is larger than all classes.
fn class(length: usize) -> Option<usize> {
    let size = length.max(SMALLEST_REGION).checked_next_power_of_two()?;
    let class = (size / SMALLEST_REGION).ilog2() as usize;
    (class < CLASSES).then_some(class)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_buffers_are_reused() {
        let buffers = Buffers::default();
        for length in [
            2,
            SMALLEST_REGION,
            SMALLEST_REGION + 2,
            8 << 20,
            LARGEST_REGION,
        ] {
            let region = buffers.region(1, length);
            assert_eq!(region.len(), length);
            let at = region.as_ptr();
            buffers.give_region(1, region);
            let region = buffers.region(1, length - 1);
            assert_eq!(region.as_ptr(), at, "{length}");
            buffers.give_shared_region(1, region.freeze());
            assert_eq!(buffers.region(1, length).as_ptr(), at, "{length}");
        }
        let mut chunk = buffers.chunk();
        let at = chunk.as_ptr();
        chunk.resize(CHUNK, 7);
        let bytes = chunk.freeze();
        let reader = bytes.clone();
        buffers.give_chunk(bytes);
        assert_ne!(
            buffers.chunk().as_ptr(),
            at,
            "another handle still reads it"
        );
        drop(reader);
        let mut chunk = buffers.chunk();
        let at = chunk.as_ptr();
        chunk.resize(CHUNK, 7);
        buffers.give_chunk(chunk.freeze());
        let chunk = buffers.chunk();
        assert_eq!((chunk.as_ptr(), chunk.len()), (at, 0));
    }

    #[test]
    fn a_region_holds_no_data_of_another_session() {
        let buffers = Buffers::default();
        let mut region = buffers.region(1, 100_000);
        region.fill(7);
        let at = region.as_ptr();
        buffers.give_region(1, region);
        let region = buffers.region(2, 120_000);
        assert_eq!(region.as_ptr(), at);
        assert!(region.iter().all(|&byte| byte == 0));
        let own = buffers.region(2, 100_000);
        let own_at = own.as_ptr();
        buffers.give_region(2, own);
        buffers.give_region(1, region);
        assert_eq!(buffers.region(2, 100_000).as_ptr(), own_at);
    }

    #[test]
    fn release_keeps_no_buffer() {
        let buffers = Buffers::default();
        buffers.give_region(1, buffers.region(1, 100_000));
        buffers.give_region(1, buffers.region(1, 8 << 20));
        let mut chunk = buffers.chunk();
        chunk.resize(CHUNK, 7);
        buffers.give_chunk(chunk.freeze());
        assert!(buffers.kept() > 8 << 20);
        buffers.release();
        assert_eq!(buffers.kept(), 0);
        assert!(lock(&buffers.chunks).is_empty());
        assert!(
            buffers
                .regions
                .iter()
                .all(|regions| lock(regions).is_empty())
        );
        buffers.give_region(1, buffers.region(1, 100_000));
        assert_eq!(buffers.kept(), 128 << 10);
    }

    #[test]
    fn kept_bytes_are_bounded() {
        let buffers = Buffers::default();
        for _ in 0..2 {
            let regions: Vec<_> = (0..10).map(|_| buffers.region(1, 8 << 20)).collect();
            regions
                .into_iter()
                .for_each(|region| buffers.give_region(1, region));
        }
        let kept = class(8 << 20).unwrap();
        assert_eq!(
            lock(&buffers.regions[kept]).len(),
            MAX_KEPT_BYTES / (8 << 20)
        );
        let large = buffers.region(1, LARGEST_REGION + 1);
        assert_eq!(large.len(), LARGEST_REGION + 1);
        buffers.give_region(1, large);
    }
}
