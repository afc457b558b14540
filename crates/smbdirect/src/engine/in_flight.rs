//! The posted Sends, and the effect of each completion on the connection.

use std::{
    collections::VecDeque,
    hash::{Hash, Hasher},
};

use super::event::MessageId;

/// The purpose of a posted Send whose completion matters. Most Sends have none: they are empty, or
/// carry the middle of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Sent {
    /// A Negotiate Request, or a Negotiate Response that accepts.
    Negotiate,
    /// A Negotiate Response that refuses.
    Refusal,
    /// The last segment of the message.
    Message(MessageId),
}

/// The posted Sends, numbered from 1.
#[derive(Clone, Debug, Default)]
pub(super) struct InFlight {
    posted: u64,
    done: u64,
    /// The Sends with a purpose, by number, oldest first.
    purposes: VecDeque<(u64, Sent)>,
}

impl InFlight {
    /// Records that a Send is posted, and returns its number.
    pub(super) fn post(&mut self, purpose: Option<Sent>) -> u64 {
        self.posted += 1;
        if let Some(purpose) = purpose {
            self.purposes.push_back((self.posted, purpose));
        }
        self.posted
    }

    /// Returns the number of Sends that were ever posted.
    pub(super) const fn posted(&self) -> u64 {
        self.posted
    }

    /// Records that every Send up to `number` is done, and returns how many of them were
    /// outstanding.
    pub(super) fn complete(&mut self, number: u64) -> u64 {
        let done = number.saturating_sub(self.done);
        self.done += done;
        done
    }

    /// Removes and returns the purpose of the oldest Send that is done.
    pub(super) fn pop_done(&mut self) -> Option<Sent> {
        let &(number, purpose) = self.purposes.front()?;
        if number > self.done {
            return None;
        }
        self.purposes.pop_front();
        Some(purpose)
    }

    /// Returns the number of the oldest outstanding Send.
    #[cfg(test)]
    pub(super) fn next_done(&self) -> u64 {
        self.done + 1
    }

    pub(super) fn is_empty(&self) -> bool {
        self.posted == self.done
    }
}

/// Hashes the Sends in flight relative to the oldest, so that the count of earlier ones is ignored.
impl Hash for InFlight {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.posted - self.done).hash(state);
        for (number, purpose) in &self.purposes {
            (number - self.done, purpose).hash(state);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::hash::DefaultHasher;

    use super::*;

    #[test]
    fn a_completion_covers_all_earlier_sends() {
        let mut in_flight = InFlight::default();
        let message = |id| Sent::Message(MessageId(id));
        assert!(in_flight.is_empty());
        for purpose in [None, Some(message(7)), None, Some(message(8)), None] {
            in_flight.post(purpose);
        }
        assert_eq!((in_flight.complete(1), in_flight.pop_done()), (1, None));
        assert_eq!(in_flight.complete(3), 2);
        assert_eq!(in_flight.pop_done(), Some(message(7)));
        assert_eq!(in_flight.pop_done(), None);
        assert!(!in_flight.is_empty());
        assert_eq!(in_flight.complete(2), 0, "it was covered already");
        assert_eq!(in_flight.complete(5), 2);
        assert_eq!(in_flight.pop_done(), Some(message(8)));
        assert!(in_flight.is_empty() && in_flight.pop_done().is_none());
    }

    #[test]
    fn the_hash_is_of_the_sends_in_flight() {
        let hash = |done: u64, purposes: &[Option<Sent>]| {
            let mut in_flight = InFlight::default();
            for _ in 0..done {
                in_flight.post(None);
            }
            in_flight.complete(done);
            for &purpose in purposes {
                in_flight.post(purpose);
            }
            let mut hasher = DefaultHasher::new();
            in_flight.hash(&mut hasher);
            hasher.finish()
        };
        let two = [None, Some(Sent::Negotiate)];
        for done in 1..5 {
            assert_eq!(hash(done, &two), hash(0, &two), "{done} earlier ones");
        }
        for other in [
            &[Some(Sent::Negotiate)][..],
            &[Some(Sent::Negotiate), None],
            &[None, Some(Sent::Refusal)],
            &[None, None],
            &[],
        ] {
            assert_ne!(hash(0, other), hash(0, &two), "{other:?}");
        }
        assert_ne!(hash(0, &[None]), hash(0, &[None, None]));
    }
}
