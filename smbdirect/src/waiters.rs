//! A slab of results that futures wait for, which allocates nothing in steady state.
//!
//! Each future has an index. Dropping a future abandons its slot, and the work continues.

use std::{
    hint::cold_path,
    task::{Context, Poll, Waker},
};

/// The slots of all waiting futures.
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

    /// Takes the result and frees the slot, or registers the waker of `context`.
    pub(crate) fn poll(&mut self, index: usize, context: &mut Context<'_>) -> Poll<T> {
        let slot = &mut self.slots[index];
        match slot {
            Slot::Waiting(waker) => {
                if !waker
                    .as_ref()
                    .is_some_and(|waker| waker.will_wake(context.waker()))
                {
                    *waker = Some(context.waker().clone());
                }
                Poll::Pending
            }
            Slot::Done(_) => {
                let Slot::Done(result) = std::mem::replace(slot, Slot::Free) else {
                    unreachable!("it was just seen to be done")
                };
                self.free.push(index);
                Poll::Ready(result)
            }
            Slot::Free | Slot::Abandoned => panic!("a future was polled after it was done"),
        }
    }

    /// Abandons the slot of a future that is dropped before it took its result. Returns the result if
    /// there is one, for the caller to drop outside its lock: its destructor may be foreign code.
    #[inline(always)]
    pub(crate) fn abandon(&mut self, index: usize) -> Option<T> {
        match std::mem::replace(&mut self.slots[index], Slot::Abandoned) {
            Slot::Waiting(_) | Slot::Abandoned => None,
            Slot::Free => {
                self.slots[index] = Slot::Free;
                None
            }
            Slot::Done(result) => {
                self.remove(index);
                Some(result)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_reused() {
        let mut waiters = Waiters::default();
        let mut context = Context::from_waker(Waker::noop());
        let (a, b) = (waiters.insert(), waiters.insert());
        assert!(waiters.poll(a, &mut context).is_pending());
        assert!(waiters.complete(a, 1).unwrap().is_some());
        assert!(waiters.complete(b, 2).unwrap().is_none());
        assert_eq!(waiters.poll(b, &mut context), Poll::Ready(2));
        assert_eq!(waiters.abandon(a), Some(1));
        let (c, d) = (waiters.insert(), waiters.insert());
        assert_eq!((c.min(d), c.max(d)), (0, 1));
        assert_eq!(waiters.abandon(c), None);
        assert_eq!(
            waiters.complete(c, 3).unwrap_err(),
            3,
            "its future was dropped"
        );
        waiters.complete_all(|| 9, &mut Vec::new());
        assert_eq!(waiters.poll(d, &mut context), Poll::Ready(9));
    }
}
