//! The receive queue of a software queue pair.

use std::collections::VecDeque;

use crate::work::WorkId;

/// Posted receives, oldest first, in rows of receives that were posted together.
#[derive(Debug, Default)]
pub(crate) struct ReceiveQueue {
    rows: VecDeque<Receives>,
    /// The number of receives in all rows.
    count: usize,
}

/// A row of receives with the same identifier and length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Receives {
    pub(crate) id: WorkId,
    /// The most bytes that a message may have.
    pub(crate) length: u32,
    /// The number of receives.
    pub(crate) count: u32,
}

impl ReceiveQueue {
    /// Adds a row of receives.
    pub(crate) fn post(&mut self, receives: Receives) {
        if receives.count > 0 {
            self.count += receives.count as usize;
            self.rows.push_back(receives);
        }
    }

    /// Returns the number of receives that wait for a message.
    pub(crate) const fn len(&self) -> usize {
        self.count
    }

    /// Returns the row of the oldest receive.
    pub(crate) fn front(&self) -> Option<&Receives> {
        self.rows.front()
    }

    /// Removes the oldest receive, which a message takes.
    pub(crate) fn pop(&mut self) -> Option<WorkId> {
        let oldest = self.rows.front_mut()?;
        let id = oldest.id;
        self.count -= 1;
        oldest.count -= 1;
        if oldest.count == 0 {
            self.rows.pop_front();
        }
        Some(id)
    }

    /// Moves `rows` to the end of the queue.
    pub(crate) fn append(&mut self, rows: &mut VecDeque<Receives>) {
        for receives in rows.drain(..) {
            self.post(receives);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receives_are_taken_one_by_one_and_in_order() {
        let receives = |id, count| Receives {
            id: WorkId(id),
            length: 100 + id as u32,
            count,
        };
        let mut queue = ReceiveQueue::default();
        queue.post(receives(1, 2));
        queue.post(receives(2, 0));
        let mut more = VecDeque::from([receives(3, 1)]);
        queue.append(&mut more);
        assert!(more.is_empty());
        assert_eq!(queue.len(), 3);
        for (id, left) in [(1, 2), (1, 1), (3, 0)] {
            let length = queue.front().map(|front| front.length);
            assert_eq!(length, Some(100 + id as u32));
            assert_eq!(queue.pop(), Some(WorkId(id)));
            assert_eq!(queue.len(), left);
        }
        assert!(queue.len() == 0 && queue.pop().is_none());
    }
}
