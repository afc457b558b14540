//! Pools of buffers for received bytes. A buffer is reused after its last reader drops it.
//!
//! Readers may keep the [`Bytes`] that they get for as long as they like. A pool keeps a handle to each
//! buffer that it lent, and takes the buffer back when that handle is the only one. All connections share
//! the pools, so that idle connections hold no buffers and a busy connection reuses those of others.
//!
//! A reader of a few bytes keeps a whole buffer in use. An [`Account`] counts the buffers that the readers of one
//! connection keep in use, so that the connection can stop lending buffers for few bytes. "Memory that is lent" in
//! `docs/architecture.md` has the rules of all layers on one page.

use std::{
    collections::VecDeque,
    mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::{Bytes, BytesMut};

use super::cold_path;

/// A pool of buffers of one size.
#[derive(Debug)]
pub struct Pool {
    /// Bytes of each buffer.
    size: usize,
    /// Largest number of handles that the pool keeps.
    max_handles: usize,
    /// Handles to lent buffers, oldest first, whether or not they still have readers.
    lent: Mutex<VecDeque<Handle>>,
}

/// A handle to a lent buffer.
#[derive(Debug)]
struct Handle {
    bytes: Bytes,
    /// The account on which the buffer is counted.
    account: Option<Account>,
}

impl Handle {
    fn is_free(&self) -> bool {
        self.bytes.is_unique()
    }

    /// Removes a buffer of `size` bytes from its account.
    fn settle(&mut self, size: usize) {
        if let Some(Account(bytes)) = self.account.take() {
            bytes.fetch_sub(size, Ordering::Relaxed);
        }
    }
}

/// Counts the bytes of the buffers that were lent to the readers of one connection and may still have
/// readers.
///
/// A buffer without readers is counted until a pool detects that, at the latest when the pool is
/// [settled](Pool::settle). A buffer that its pool forgets while it has readers is counted forever: its readers
/// have kept it for long.
#[derive(Clone, Debug, Default)]
pub struct Account(Arc<AtomicUsize>);

impl Account {
    /// Returns the number of bytes of the buffers on this account.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes that readers keep in use of the buffers of `pools` and of those for messages of
    /// several segments. It is exact above [`MAX_UNCHECKED_LOANS`].
    #[inline]
    pub(crate) fn in_use(&self, pools: &[&Pool]) -> usize {
        if self.bytes() > MAX_UNCHECKED_LOANS {
            cold_path();
            MESSAGE_POOLS.iter().for_each(Pool::settle);
            pools.iter().for_each(|pool| pool.settle());
        }
        self.bytes()
    }
}

/// Size in bytes of the largest block that a provider receives into. A slice of received bytes holds at
/// most this much memory in use.
pub const LARGEST_BLOCK: usize = 256 << 10;

/// Number of bytes on an account up to which the account is not settled, so that it may include buffers without
/// readers.
pub const MAX_UNCHECKED_LOANS: usize = LARGEST_BLOCK;

/// Received bytes of at least this number stay in the block that they were received in, and shorter ones may be
/// copied: a slice that is kept for long keeps at most four times its length in use.
pub const LARGEST_COPY_BYTES: usize = LARGEST_BLOCK / 4;

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
#[inline]
pub fn for_message(length: usize) -> Option<BytesMut> {
    Some(of_size(length)?.take_to_cut())
}

/// Returns the pool of the shortest buffers that have room for `length` bytes, if there is one.
#[inline]
pub fn of_size(length: usize) -> Option<&'static Pool> {
    let size = length
        .max(SMALLEST_MESSAGE_BYTES)
        .checked_next_power_of_two()?;
    MESSAGE_POOLS.get((size / SMALLEST_MESSAGE_BYTES).ilog2() as usize)
}

/// Returns the message in a buffer, or a copy if the buffer is more than four times as long, so that a message
/// that is kept for long keeps little other memory in use.
pub fn fitting(message: BytesMut) -> Bytes {
    if message.len() < message.capacity() / 4 {
        Bytes::copy_from_slice(&message)
    } else {
        message.freeze()
    }
}

impl Pool {
    /// Makes a pool of buffers of `size` bytes that keeps at most `max_handles` handles.
    pub const fn new(size: usize, max_handles: usize) -> Self {
        Self {
            size,
            max_handles,
            lent: Mutex::new(VecDeque::new()),
        }
    }

    /// Returns a buffer whose capacity is at least the size of the pool. A new buffer is empty. A reused
    /// buffer keeps the length that it had when it was lent.
    pub fn take(&self) -> BytesMut {
        let mut handles = self.lock();
        // Buffers are usually released in the order in which they were lent, so the free buffers are at the
        // front, and the last of them was released most recently: it is the most likely to be in a cache. If the
        // oldest buffer still has readers, any free one is taken, which is better than a new one.
        let busy = handles.partition_point(Handle::is_free);
        let free = busy
            .checked_sub(1)
            .filter(|&at| handles[at].is_free())
            .or_else(|| handles.iter().position(Handle::is_free));
        let taken = free.and_then(|at| handles.remove(at));
        drop(handles);
        if let Some(mut taken) = taken {
            taken.settle(self.size);
            if let Ok(buffer) = taken.bytes.try_into_mut()
                && buffer.capacity() >= self.size
            {
                return buffer;
            }
        }
        // The split allocates the reference count of the buffer once, and the buffer keeps it when it is
        // reused.
        BytesMut::with_capacity(self.size).split_off(0)
    }

    /// Returns an empty buffer, which the pool takes back when it and every part that was split off it
    /// are dropped.
    pub fn take_to_cut(&self) -> BytesMut {
        let mut buffer = self.take();
        buffer.clear();
        self.lend(buffer.split().freeze());
        buffer
    }

    /// Keeps a handle to a buffer, which the pool takes back when its other readers drop it.
    pub fn lend(&self, bytes: Bytes) {
        self.keep(Handle {
            bytes,
            account: None,
        });
    }

    /// Does the same as [`lend`](Self::lend), and counts the buffer on `account` while it has readers.
    pub fn lend_on(&self, bytes: Bytes, account: Option<&Account>) {
        let account = account.filter(|_| !bytes.is_unique()).cloned();
        if let Some(Account(lent)) = &account {
            lent.fetch_add(self.size, Ordering::Relaxed);
        }
        self.keep(Handle { bytes, account });
    }

    fn keep(&self, handle: Handle) {
        let mut handles = self.lock();
        let mut forgotten = None;
        if handles.len() >= self.max_handles {
            let free = handles.iter().position(Handle::is_free);
            forgotten = handles.remove(free.unwrap_or(0));
        }
        handles.push_back(handle);
        drop(handles);
        // This may free memory, so it is done without the lock.
        if let Some(mut forgotten) = forgotten
            && forgotten.is_free()
        {
            forgotten.settle(self.size);
        }
    }

    /// Removes the buffers without readers from their accounts.
    pub fn settle(&self) {
        let mut handles = self.lock();
        let free = handles.iter_mut().filter(|handle| handle.is_free());
        free.for_each(|handle| handle.settle(self.size));
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Handle>> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A buffer of a pool that is filled and cut into parts, and lent when it is used up.
#[derive(Debug, Default)]
pub struct Cut {
    /// The part that is not cut off yet.
    pub rest: BytesMut,
    /// Keeps the whole buffer, if there is one.
    whole: Option<Bytes>,
}

impl Cut {
    /// Takes a buffer, which is empty.
    pub fn begin(pool: &Pool) -> Self {
        let mut rest = pool.take();
        rest.clear();
        let whole = Some(rest.split().freeze());
        Self { rest, whole }
    }

    /// Takes another buffer, and lends this one.
    pub fn next(&mut self, pool: &Pool, account: Option<&Account>) {
        mem::replace(self, Self::begin(pool)).end(pool, account);
    }

    /// Lends the buffer, because the parts that were cut off may have readers.
    pub fn end(self, pool: &Pool, account: Option<&Account>) {
        drop(self.rest);
        if let Some(whole) = self.whole {
            pool.lend_on(whole, account);
        }
    }
}

mod part_list;

pub use part_list::PartList;

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
    fn an_account_counts_buffers_that_have_readers() {
        let (pool, account) = (Pool::new(100, 3), Account::default());
        let mut cut = Cut::begin(&pool);
        let mut readers = VecDeque::new();
        for lent in 1..=3 {
            cut.rest.extend_from_slice(b"abc");
            readers.push_back(cut.rest.split().freeze());
            cut.next(&pool, Some(&account));
            assert_eq!(account.bytes(), lent * 100);
        }
        pool.lend_on(Bytes::from(vec![7; 100]), Some(&account));
        assert_eq!(account.bytes(), 300, "the last buffer has no reader");
        readers.pop_back();
        pool.settle();
        // The first buffer was forgotten while it had a reader.
        assert_eq!(account.bytes(), 200);
        readers.clear();
        pool.settle();
        assert_eq!(account.bytes(), 100);
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
