//! The futures that wait for something: for a result of their own ([`Waiters`]) or for a common condition
//! ([`WakerList`]).
//!
//! A dropped future leaves no waker behind. No method here drops or wakes a waker, because the caller holds
//! a lock: a waker may own the last handle of what the lock protects.

use std::{
    collections::VecDeque,
    mem,
    task::{Context, Poll, Waker},
};

use crate::rdma::software::cold_path;

/// A slab of results that futures wait for, which allocates nothing in steady state.
///
/// Each future has an index. Dropping a future abandons its slot, and the work continues.
#[derive(Debug)]
pub(crate) struct Waiters<T> {
    slots: Vec<Slot<T>>,
    /// Indices of the free slots.
    free: Vec<usize>,
}

#[derive(Debug)]
enum Slot<T> {
    Free,
    Waiting(Option<Waker>),
    Done(T),
    /// The future was dropped, and the result will be discarded.
    Abandoned,
}

impl<T> Default for Waiters<T> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Waiters<T> {
    /// Allocates a slot for a future, and returns its index.
    #[inline(always)]
    pub(crate) fn insert(&mut self) -> usize {
        if let Some(index) = self.free.pop() {
            self.slots[index] = Slot::Waiting(None);
            return index;
        }
        self.slots.push(Slot::Waiting(None));
        self.slots.len() - 1
    }

    /// Frees a slot whose work was not started.
    #[inline(always)]
    pub(crate) fn remove(&mut self, index: usize) {
        self.slots[index] = Slot::Free;
        self.free.push(index);
    }

    /// Stores the result of a slot, and returns the waker of its future, if it was polled. Returns the
    /// result as the error if the future was dropped.
    #[inline(always)]
    pub(crate) fn complete(&mut self, index: usize, result: T) -> Result<Option<Waker>, T> {
        let slot = &mut self.slots[index];
        match slot {
            Slot::Waiting(waker) => {
                let waker = waker.take();
                *slot = Slot::Done(result);
                Ok(waker)
            }
            Slot::Abandoned => {
                self.remove(index);
                Err(result)
            }
            Slot::Free | Slot::Done(_) => {
                cold_path();
                Err(result)
            }
        }
    }

    /// Stores a result in every slot that still waits, and collects the wakers in `wakes`.
    pub(crate) fn complete_all(&mut self, result: impl Fn() -> T, wakes: &mut Vec<Waker>) {
        for index in 0..self.slots.len() {
            if matches!(self.slots[index], Slot::Waiting(_) | Slot::Abandoned)
                && let Ok(waker) = self.complete(index, result())
            {
                wakes.extend(waker);
            }
        }
    }

    /// Takes the result and frees the slot, or registers the waker of `context`. Stores the waker that this one
    /// replaces in `old`, for the caller to drop outside its lock: a waker may own the object that contains the
    /// lock.
    pub(crate) fn poll(
        &mut self,
        index: usize,
        context: &Context<'_>,
        old: &mut Option<Waker>,
    ) -> Poll<T> {
        let slot = &mut self.slots[index];
        match slot {
            Slot::Waiting(waker) => {
                if !waker
                    .as_ref()
                    .is_some_and(|waker| waker.will_wake(context.waker()))
                {
                    *old = waker.replace(context.waker().clone());
                }
                Poll::Pending
            }
            Slot::Done(_) => {
                let Slot::Done(result) = mem::replace(slot, Slot::Free) else {
                    unreachable!("the slot is `Done` in this arm")
                };
                self.free.push(index);
                Poll::Ready(result)
            }
            Slot::Free | Slot::Abandoned => panic!("a future was polled after it was done"),
        }
    }

    /// Abandons the slot of a future that is dropped before it took its result. Returns the content of the slot,
    /// which the caller drops outside its lock: the destructor may be foreign code.
    #[inline(always)]
    pub(crate) fn abandon(&mut self, index: usize) -> Abandoned<T> {
        match mem::replace(&mut self.slots[index], Slot::Abandoned) {
            Slot::Waiting(waker) => Abandoned::Waker(waker),
            Slot::Abandoned => Abandoned::Waker(None),
            Slot::Free => {
                self.slots[index] = Slot::Free;
                Abandoned::Waker(None)
            }
            Slot::Done(result) => {
                self.remove(index);
                Abandoned::Result(result)
            }
        }
    }
}

/// The content of the slot of a dropped future.
#[derive(Debug)]
pub(crate) enum Abandoned<T> {
    /// The waker of the future, if it was polled.
    Waker(#[expect(dead_code, reason = "it is only dropped")] Option<Waker>),
    /// The result, which the future had not taken.
    Result(T),
}

#[cfg(test)]
impl<T> Abandoned<T> {
    pub(crate) fn result(self) -> Option<T> {
        match self {
            Self::Waker(_) => None,
            Self::Result(result) => Some(result),
        }
    }
}

/// The place of a future in a [`WakerList`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Place(u64);

/// The wakers of the futures and tasks that wait for a condition, in the order in which they began to wait.
#[derive(Debug, Default)]
pub(crate) struct WakerList {
    waiting: VecDeque<Waiting>,
    last_place: u64,
}

/// A future or task in a [`WakerList`].
#[derive(Debug)]
struct Waiting {
    /// The place of a future; a task has none.
    place: Option<Place>,
    waker: Waker,
    /// The future was woken and was not polled since.
    is_woken: bool,
}

impl WakerList {
    /// Adds the waker of a task, unless the task is in the list.
    pub(crate) fn add_task(&mut self, waker: &Waker) {
        let mut tasks = self.waiting.iter().filter(|task| task.place.is_none());
        if !tasks.any(|task| task.waker.will_wake(waker)) {
            self.push(None, waker);
        }
    }

    fn push(&mut self, place: Option<Place>, waker: &Waker) {
        self.waiting.push_back(Waiting {
            place,
            waker: waker.clone(),
            is_woken: false,
        });
    }

    /// Returns the number of futures that have waited for longer than the one at `place`, or of all if it is not in the
    /// list.
    #[inline]
    pub(crate) fn ahead(&self, place: Option<Place>) -> usize {
        self.find(place).unwrap_or(self.waiting.len())
    }

    fn find(&self, place: Option<Place>) -> Option<usize> {
        place?;
        self.waiting
            .iter()
            .position(|waiting| waiting.place == place)
    }

    /// Adds the waker of a future and stores its place in the list. A future that is in the list keeps its
    /// place. Returns the waker that this one replaces, for the caller to drop outside its lock.
    pub(crate) fn add_future(&mut self, place: &mut Option<Place>, waker: &Waker) -> Option<Waker> {
        if let Some(index) = self.find(*place) {
            let known = &mut self.waiting[index];
            known.is_woken = false;
            let is_same = known.waker.will_wake(waker);
            return (!is_same).then(|| mem::replace(&mut known.waker, waker.clone()));
        }
        self.last_place += 1;
        *place = Some(Place(self.last_place));
        self.push(*place, waker);
        None
    }

    /// Removes the waker of a future and returns it, for the caller to drop outside its lock.
    pub(crate) fn remove(&mut self, place: Option<Place>) -> Option<Waker> {
        let index = self.find(place)?;
        self.waiting.remove(index).map(|waiting| waiting.waker)
    }

    /// Returns whether nothing waits.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Moves all wakers to `wakes`.
    #[inline]
    pub(crate) fn take(&mut self, wakes: &mut Vec<Waker>) {
        wakes.extend(self.waiting.drain(..).map(|waiting| waiting.waker));
    }

    /// Copies to `wakes` the wakers of those of the first `count` futures that were not woken already. They stay in the
    /// list until they remove themselves.
    #[inline]
    pub(crate) fn wake_first(&mut self, count: usize, wakes: &mut Vec<Waker>) {
        let first = self.waiting.iter_mut().take(count);
        for waiting in first.filter(|waiting| !waiting.is_woken) {
            waiting.is_woken = true;
            wakes.push(waiting.waker.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_reused() {
        let mut waiters = Waiters::default();
        let context = Context::from_waker(Waker::noop());
        let (a, b) = (waiters.insert(), waiters.insert());
        let poll = |waiters: &mut Waiters<_>, index| waiters.poll(index, &context, &mut None);
        assert!(poll(&mut waiters, a).is_pending());
        assert!(waiters.complete(a, 1).unwrap().is_some());
        assert!(waiters.complete(b, 2).unwrap().is_none());
        assert_eq!(poll(&mut waiters, b), Poll::Ready(2));
        assert_eq!(waiters.abandon(a).result(), Some(1));
        let (c, d) = (waiters.insert(), waiters.insert());
        assert_eq!((c.min(d), c.max(d)), (0, 1));
        assert_eq!(waiters.abandon(c).result(), None);
        assert_eq!(
            waiters.complete(c, 3).unwrap_err(),
            3,
            "its future was dropped"
        );
        waiters.complete_all(|| 9, &mut Vec::new());
        assert_eq!(poll(&mut waiters, d), Poll::Ready(9));
    }
}
