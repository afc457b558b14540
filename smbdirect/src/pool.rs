//! Buffers that come back: memory for what arrives, used again when nobody reads it any more.
//!
//! What is handed out as [`Bytes`] stays with its readers for as long as they like. A pool keeps a
//! handle beside theirs, and takes the memory back when its handle is the only one. Pools are
//! shared by all connections, so that a thousand idle ones hold nothing, and a busy one allocates
//! nothing.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use bytes::{Bytes, BytesMut};

/// Buffers of one size.
#[derive(Debug)]
pub(crate) struct Pool {
    size: usize,
    /// Handles to keep.
    most: usize,
    /// Oldest first, with readers or without.
    lent: Mutex<VecDeque<Bytes>>,
}

/// Most bytes of memory that a slice of received bytes keeps from being used again: the size of
/// the largest blocks that a provider reads into.
pub(crate) const LARGEST_BLOCK: usize = 256 << 10;

/// Handles to look at before a new buffer is made, besides those that lead there.
const TRIES: usize = 4;

/// Messages are put together in memory of the next power of two, from this
const SMALLEST: usize = 2 << 10;
/// to this.
pub(crate) const LARGEST: usize = 1 << 20;
/// One pool for each of those sizes, of a few MiB at most.
static MESSAGES: [Pool; 10] = [
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

const fn messages(class: usize) -> Pool {
    let size = SMALLEST << class;
    assert!(size <= LARGEST);
    let most = 2 * LARGEST / size;
    Pool::new(size, if most < 64 { most } else { 64 })
}

/// An empty buffer with room for a message of `length` bytes that comes in pieces; it comes back
/// by itself. `None` if no pool has memory of that size.
pub(crate) fn for_message(length: usize) -> Option<BytesMut> {
    let size = length.max(SMALLEST).checked_next_power_of_two()?;
    let pool = MESSAGES.get((size / SMALLEST).ilog2() as usize)?;
    Some(pool.take_to_cut())
}

impl Pool {
    /// A pool of buffers of `size` bytes that remembers as many as `most` of them.
    pub(crate) const fn new(size: usize, most: usize) -> Self {
        Self {
            size,
            most,
            lent: Mutex::new(VecDeque::new()),
        }
    }

    /// A buffer with room for the pool's size. It is as long as what was lent, or empty if it is
    /// new.
    pub(crate) fn take(&self) -> BytesMut {
        let mut lent = self.lock();
        // Who lends first is mostly done first. Then the last of the free ones at the front was
        // in use a moment ago, and is the likeliest to be in a cache.
        let busy = lent.partition_point(Bytes::is_unique);
        let first = (0..TRIES.min(lent.len())).find(|&at| lent[at].is_unique());
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
        // Split, it counts its users in a place of its own, which coming back keeps.
        BytesMut::with_capacity(self.size).split_off(0)
    }

    /// An empty buffer that comes back by itself, when all that was cut off it is gone.
    pub(crate) fn take_to_cut(&self) -> BytesMut {
        let mut buffer = self.take();
        buffer.clear();
        self.lend(buffer.split().freeze());
        buffer
    }

    /// Remembers a buffer, whoever else reads it now.
    pub(crate) fn lend(&self, bytes: Bytes) {
        let mut lent = self.lock();
        let forgotten = (lent.len() >= self.most).then(|| lent.pop_front());
        lent.push_back(bytes);
        drop(lent);
        // Its memory may be freed here, without the lock.
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
    fn what_nobody_reads_is_used_again() {
        let pool = Pool::new(100, 2);
        let mut buffer = pool.take();
        assert!(buffer.is_empty() && buffer.capacity() >= 100);
        buffer.extend_from_slice(b"abc");
        let (place, bytes) = (buffer.as_ptr(), buffer.freeze());
        let reader = bytes.slice(1..);
        pool.lend(bytes);
        assert_ne!(pool.take().as_ptr(), place, "somebody reads it");
        assert_eq!(reader, "bc");
        drop(reader);
        let again = pool.take();
        assert_eq!((again.as_ptr(), again.len()), (place, 3));
        assert!(again.capacity() >= 100);
    }

    #[test]
    fn what_is_cut_up_comes_back_whole() {
        let pool = Pool::new(100, 2);
        let mut buffer = pool.take_to_cut();
        let place = buffer.as_ptr();
        buffer.extend_from_slice(b"abc");
        let reader = buffer.split().freeze();
        drop(buffer);
        let other = pool.take_to_cut();
        assert_ne!(other.as_ptr(), place, "somebody reads it");
        assert_eq!(reader, "abc");
        drop(reader);
        let again = pool.take_to_cut();
        assert_eq!((again.as_ptr(), again.len()), (place, 0));
        assert!(again.capacity() >= 100);
    }

    #[test]
    fn messages_have_room_and_the_largest_have_no_pool() {
        for length in [0, 1, SMALLEST, SMALLEST + 1, LARGEST] {
            let buffer = for_message(length).unwrap();
            assert!(buffer.is_empty() && buffer.capacity() >= length);
        }
        assert!(for_message(LARGEST + 1).is_none());
        assert!(for_message(usize::MAX).is_none());
    }

    #[test]
    fn of_the_free_ones_the_last_that_was_lent_is_next() {
        let pool = Pool::new(100, 8);
        let mut lent: Vec<_> = (0..6).map(|_| Some(pool.take_to_cut())).collect();
        let place = |buffer: &Option<BytesMut>| buffer.as_ref().map(|buffer| buffer.as_ptr());
        let places: Vec<_> = lent.iter().map(place).collect();
        lent[..3].fill(None);
        let third = Some(pool.take());
        assert_eq!(place(&third), places[2]);
        // What comes back out of order is found among the oldest.
        let [first, second] = [(); 2].map(|()| Some(pool.take_to_cut()));
        assert_eq!((place(&first), place(&second)), (places[1], places[0]));
        lent[4] = None;
        let fifth = Some(pool.take());
        assert_eq!(place(&fifth), places[4]);
        let new = Some(pool.take());
        assert!(!places.contains(&place(&new)), "all have readers");
    }

    #[test]
    fn it_keeps_no_more_than_it_was_told_and_nothing_too_small() {
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
