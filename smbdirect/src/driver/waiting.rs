//! The futures that wait for a change of the connection, by the change that they wait for.

use std::task::Waker;

/// A change of the connection. Its end is a change for every future.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Condition {
    /// A whole message has arrived.
    Message,
    /// A segment has arrived, whether it completes a message or not.
    Segment,
    /// A message can start immediately.
    Ready,
    /// A keepalive was answered.
    Keepalive,
    /// Queued work may have released a registered buffer.
    Release,
    /// The negotiation is over.
    Negotiation,
    /// The connection is over.
    End,
}

const CONDITIONS: usize = Condition::End as usize + 1;

/// The place of a future in a list.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Place(u64);

/// A list of wakers for each condition.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    lists: [Vec<(Option<Place>, Waker)>; CONDITIONS],
    next_place: u64,
}

impl Waiting {
    /// Adds `waker` to the list of `condition` for a task, unless the task is in that list.
    pub(super) fn add(&mut self, condition: Condition, waker: &Waker) {
        let list = &mut self.lists[condition as usize];
        let mut of_tasks = list.iter().filter(|(place, _)| place.is_none());
        if !of_tasks.any(|(_, waiting)| waiting.will_wake(waker)) {
            list.push((None, waker.clone()));
        }
    }

    /// Adds `waker` to the list of `condition` for a future, and returns the place of the future, from
    /// which [`remove`](Self::remove) takes the waker when the future is dropped.
    pub(super) fn add_future(&mut self, condition: Condition, waker: &Waker) -> Place {
        self.next_place += 1;
        let place = Place(self.next_place);
        self.lists[condition as usize].push((Some(place), waker.clone()));
        place
    }

    /// Removes the waker of a future, if the condition has not taken it. The caller drops it without the
    /// lock, because it may own a task.
    pub(super) fn remove(&mut self, condition: Condition, place: Place) -> Option<Waker> {
        let list = &mut self.lists[condition as usize];
        let at = list.iter().position(|&(other, _)| other == Some(place))?;
        Some(list.swap_remove(at).1)
    }

    /// Returns whether a future waits for `condition`.
    #[inline]
    pub(super) const fn any(&self, condition: Condition) -> bool {
        !self.lists[condition as usize].is_empty()
    }

    /// Moves the wakers of `condition` to `wakes`.
    #[inline]
    pub(super) fn take(&mut self, condition: Condition, wakes: &mut Vec<Waker>) {
        wakes.extend(
            self.lists[condition as usize]
                .drain(..)
                .map(|(_, waker)| waker),
        );
    }

    /// Moves the wakers of all conditions to `wakes`.
    pub(super) fn take_all(&mut self, wakes: &mut Vec<Waker>) {
        for list in &mut self.lists {
            wakes.extend(list.drain(..).map(|(_, waker)| waker));
        }
    }
}
