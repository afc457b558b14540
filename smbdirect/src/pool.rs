//! Pools of buffers for received bytes. A buffer is reused after its last reader drops it.
//!
//! Readers may keep the [`Bytes`] that they get for as long as they like. A pool keeps a handle to each
//! buffer that it lent, and takes the buffer back when that handle is the only one. All connections share
//! the pools, so that idle connections hold no buffers and a busy connection reuses those of others.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use bytes::{Bytes, BytesMut};

/// A pool of buffers of one size.
#[derive(Debug)]
pub(crate) struct Pool {
    /// Bytes of each buffer.
    size: usize,
    /// Largest number of handles that the pool keeps.
    max_handles: usize,
    /// Handles to lent buffers, oldest first, whether or not they still have readers.
    lent: Mutex<VecDeque<Bytes>>,
}

/// Size in bytes of the largest block that a provider receives into. A slice of received bytes holds at
/// most this much memory in use.
pub(crate) const LARGEST_BLOCK: usize = 256 << 10;

/// Number of the oldest handles that [`Pool::take`] checks for a free buffer before it allocates a new
/// one. Its binary search checks further handles.
const CHECKED_OLDEST_HANDLES: usize = 4;

/// Size of the smallest buffers that messages of several segments are assembled in.
const SMALLEST_MESSAGE_BYTES: usize = 2 << 10;
/// Size of the largest buffers that messages of several segments are assembled in.
const LARGEST_MESSAGE_BYTES: usize = 1 << 20;
/// The pools for messages of several segments, one for each power of two from [`SMALLEST_MESSAGE_BYTES`] to
/// [`LARGEST_MESSAGE_BYTES`]. Each holds at most 2 MiB.
static MESSAGE_POOLS: [Pool; 10] = [
    messages(0),
    messages(1),
    messages(2),
    messages(3),
    messages(4),
    messages(5),
    messages(6),
    messages(7),
    messages(8),
    messages(9),
];

/// Makes the pool for messages of `SMALLEST_MESSAGE_BYTES << class` bytes.
const fn messages(class: usize) -> Pool {
    let size = SMALLEST_MESSAGE_BYTES << class;
    assert!(size <= LARGEST_MESSAGE_BYTES);
    let handles = 2 * LARGEST_MESSAGE_BYTES / size;
    Pool::new(size, if handles < 64 { handles } else { 64 })
}

/// Returns an empty buffer with room for a message of `length` bytes that arrives in pieces, or `None` if
/// no pool has buffers that large. The pool takes the buffer back when its last reader drops it.
pub(crate) fn for_message(length: usize) -> Option<BytesMut> {
    let size = length
        .max(SMALLEST_MESSAGE_BYTES)
        .checked_next_power_of_two()?;
    let pool = MESSAGE_POOLS.get((size / SMALLEST_MESSAGE_BYTES).ilog2() as usize)?;
    Some(pool.take_to_cut())
}

impl Pool {
    /// Makes a pool of buffers of `size` bytes that keeps at most `max_handles` handles.
    pub(crate) const fn new(size: usize, max_handles: usize) -> Self {
        Self {
            size,
            max_handles,
            lent: Mutex::new(VecDeque::new()),
        }
    }

    /// Returns a buffer whose capacity is at least the size of the pool. A new buffer is empty. A reused
    /// buffer keeps the length that it had when it was lent.
    pub(crate) fn take(&self) -> BytesMut {
        let mut lent = self.lock();
        // Buffers are mostly released in the order in which they were lent. The last of the free buffers
        // at the front was then released most recently, and is the most likely to be in a cache.
        let busy = lent.partition_point(Bytes::is_unique);
        let first = (0..CHECKED_OLDEST_HANDLES.min(lent.len())).find(|&at| lent[at].is_unique());
        let free = busy
            .checked_sub(1)
            .filter(|&at| lent[at].is_unique())
            .or(first);
        let taken = free.and_then(|at| lent.remove(at));
        drop(lent);
        if let Some(Ok(buffer)) = taken.map(Bytes::try_into_mut)
            && buffer.capacity() >= self.size
        {
            return buffer;
        }
        // The split allocates the reference count of the buffer once, and the buffer keeps it when it is
        // reused.
        BytesMut::with_capacity(self.size).split_off(0)
    }

    /// Returns an empty buffer, which the pool takes back when it and every part that was split off it
    /// are dropped.
    pub(crate) fn take_to_cut(&self) -> BytesMut {
        let mut buffer = self.take();
        buffer.clear();
        self.lend(buffer.split().freeze());
        buffer
    }

    /// Keeps a handle to a buffer, which the pool takes back when its other readers drop it.
    pub(crate) fn lend(&self, bytes: Bytes) {
        let mut lent = self.lock();
        let forgotten = (lent.len() >= self.max_handles).then(|| lent.pop_front());
        lent.push_back(bytes);
        drop(lent);
        // This may free memory, so it is done without the lock.
        drop(forgotten);
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Bytes>> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

mod part_list;

pub(crate) use part_list::PartList;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_without_readers_is_reused() {
        let pool = Pool::new(100, 2);
        let mut buffer = pool.take();
        assert!(buffer.is_empty() && buffer.capacity() >= 100);
        buffer.extend_from_slice(b"abc");
        let (place, bytes) = (buffer.as_ptr(), buffer.freeze());
        let reader = bytes.slice(1..);
        pool.lend(bytes);
        assert_ne!(pool.take().as_ptr(), place, "it has a reader");
        assert_eq!(reader, "bc");
        drop(reader);
        let again = pool.take();
        assert_eq!((again.as_ptr(), again.len()), (place, 3));
        assert!(again.capacity() >= 100);
    }

    #[test]
    fn split_buffer_is_reused_whole() {
        let pool = Pool::new(100, 2);
        let mut buffer = pool.take_to_cut();
        let place = buffer.as_ptr();
        buffer.extend_from_slice(b"abc");
        let reader = buffer.split().freeze();
        drop(buffer);
        let other = pool.take_to_cut();
        assert_ne!(other.as_ptr(), place, "it has a reader");
        assert_eq!(reader, "abc");
        drop(reader);
        let again = pool.take_to_cut();
        assert_eq!((again.as_ptr(), again.len()), (place, 0));
        assert!(again.capacity() >= 100);
    }

    #[test]
    fn messages_have_room_and_longer_ones_have_no_pool() {
        for length in [
            0,
            1,
            SMALLEST_MESSAGE_BYTES,
            SMALLEST_MESSAGE_BYTES + 1,
            LARGEST_MESSAGE_BYTES,
        ] {
            let buffer = for_message(length).unwrap();
            assert!(buffer.is_empty() && buffer.capacity() >= length);
        }
        assert!(for_message(LARGEST_MESSAGE_BYTES + 1).is_none());
        assert!(for_message(usize::MAX).is_none());
    }

    #[test]
    fn most_recently_lent_free_buffer_is_reused_first() {
        let pool = Pool::new(100, 8);
        let mut lent: Vec<_> = (0..6).map(|_| Some(pool.take_to_cut())).collect();
        let place = |buffer: &Option<BytesMut>| buffer.as_ref().map(|buffer| buffer.as_ptr());
        let places: Vec<_> = lent.iter().map(place).collect();
        lent[..3].fill(None);
        let third = Some(pool.take());
        assert_eq!(place(&third), places[2]);
        // Buffers that are released out of order are found among the oldest.
        let [first, second] = [(); 2].map(|()| Some(pool.take_to_cut()));
        assert_eq!((place(&first), place(&second)), (places[1], places[0]));
        lent[4] = None;
        let fifth = Some(pool.take());
        assert_eq!(place(&fifth), places[4]);
        let new = Some(pool.take());
        assert!(!places.contains(&place(&new)), "all have readers");
    }

    #[test]
    fn pool_keeps_its_maximum_and_reuses_no_buffer_that_is_too_small() {
        let pool = Pool::new(100, 2);
        for _ in 0..5 {
            pool.lend(pool.take().freeze());
            pool.lend(BytesMut::with_capacity(10).freeze());
        }
        assert_eq!(pool.lock().len(), 2);
        assert!(pool.take().capacity() >= 100);
        assert!(pool.take().capacity() >= 100);
    }
}
