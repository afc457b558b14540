//! [`PartList`]: the parts of a message after its first, in a list whose memory later messages reuse.
//!
//! The unused lists are shared by all connections of the process, like the buffers of a
//! [`Pool`](super::Pool): an idle connection holds none, and a busy one allocates none.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use bytes::Bytes;

/// The parts of a message after its first, in order. This type has 8 bytes instead of the 32 of a
/// `VecDeque`, which makes a message cheaper to move.
#[derive(Clone, Debug, Default)]
pub struct PartList(Option<List>);

type List = Box<VecDeque<Bytes>>;

/// Unused lists, kept for later messages.
static UNUSED: Mutex<Vec<List>> = Mutex::new(Vec::new());
/// Largest number of unused lists that are kept.
const MAX_UNUSED_LISTS: usize = 64;
/// Largest capacity, in parts, of a list that is kept.
const MAX_KEPT_CAPACITY: usize = 1024;

impl PartList {
    /// Returns whether no part has ever been added.
    #[inline]
    pub fn is_unused(&self) -> bool {
        self.0.is_none()
    }

    /// Adds a part at the end.
    #[inline]
    pub fn push(&mut self, part: Bytes) {
        let list = self.0.get_or_insert_with(|| {
            let mut lists = UNUSED.lock().unwrap_or_else(PoisonError::into_inner);
            lists.pop().unwrap_or_default()
        });
        list.push_back(part);
    }

    /// Removes the first part.
    #[inline]
    pub fn pop(&mut self) -> Option<Bytes> {
        self.0.as_mut()?.pop_front()
    }

    /// Returns the parts in order.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = &Bytes> {
        self.0.iter().flat_map(|list| list.iter())
    }
}

impl Drop for PartList {
    #[inline]
    fn drop(&mut self) {
        if let Some(list) = self.0.take() {
            keep(list);
        }
    }
}

/// Keeps a list for a later message.
#[inline(never)]
fn keep(mut list: List) {
    list.clear();
    if list.capacity() <= MAX_KEPT_CAPACITY {
        let mut lists = UNUSED.lock().unwrap_or_else(PoisonError::into_inner);
        if lists.len() < MAX_UNUSED_LISTS {
            lists.push(list);
        }
    }
}
