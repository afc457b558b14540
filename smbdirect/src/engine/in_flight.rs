//! Sends that are posted: what it means that one is done, where it means anything.

use std::{
    collections::VecDeque,
    hash::{Hash, Hasher},
};

use super::event::MessageId;

/// What a posted Send was for. Most Sends are the middle of a message, or empty, and for nothing
/// that anybody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Sent {
    /// A negotiate message that accepts or asks.
    Negotiate,
    /// A Negotiate Response that refuses.
    Refusal,
    /// The last segment of the message.
    Message(MessageId),
}

/// The posted Sends, by numbers that count from 1.
#[derive(Clone, Debug, Default)]
pub(super) struct InFlight {
    posted: u64,
    done: u64,
    /// What the Sends of these numbers were for, oldest first.
    purposes: VecDeque<(u64, Sent)>,
}

impl InFlight {
    /// One is posted; gives its number.
    pub(super) fn post(&mut self, purpose: Option<Sent>) -> u64 {
        self.posted += 1;
        if let Some(purpose) = purpose {
            self.purposes.push_back((self.posted, purpose));
        }
        self.posted
    }

    /// All up to this number are done; gives how many of them were not yet.
    pub(super) fn complete(&mut self, number: u64) -> u64 {
        let done = number.saturating_sub(self.done);
        self.done += done;
        done
    }

    /// What the oldest of the done ones was for.
    pub(super) fn pop_done(&mut self) -> Option<Sent> {
        let &(number, purpose) = self.purposes.front()?;
        if number > self.done {
            return None;
        }
        self.purposes.pop_front();
        Some(purpose)
    }

    /// The number of the Send that is done next.
    #[cfg(test)]
    pub(super) fn next_done(&self) -> u64 {
        self.done + 1
    }

    pub(super) fn is_empty(&self) -> bool {
        self.posted == self.done
    }
}

/// What is in flight, and not how much has been.
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
    use super::*;

    #[test]
    fn one_completion_tells_of_all_before_it() {
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
        assert_eq!(in_flight.complete(2), 0, "it was told of already");
        assert_eq!(in_flight.complete(5), 2);
        assert_eq!(in_flight.pop_done(), Some(message(8)));
        assert!(in_flight.is_empty() && in_flight.pop_done().is_none());
    }
}
