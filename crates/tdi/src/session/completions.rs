//! [`Completions`]: the requests of a connection that are pending, each with the future that waits
//! for its completion, and the [`Routine`] of a send that has one instead.

use std::{
    collections::HashMap,
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::sync::oneshot;

use crate::protocol::{RequestId, SendCompletion};

/// The pending requests of one kind.
///
/// It is used under a lock. Nothing here wakes a task or drops a completion, because either could call into the
/// object that the lock protects: [`take_done`](Self::take_done) returns the completions, which the caller
/// delivers without the lock.
#[derive(Debug)]
pub(crate) struct Completions<T> {
    pending: HashMap<RequestId, oneshot::Sender<T>>,
    last_id: u64,
    done: Vec<Done<T>>,
}

/// A request that is pending, or whose completion was not taken.
#[derive(Debug)]
pub(crate) struct PendingRequest<T> {
    pub(crate) id: RequestId,
    completion: oneshot::Receiver<T>,
}

/// A completion for the future that waits for it.
#[derive(Debug)]
pub(crate) struct Done<T> {
    sender: oneshot::Sender<T>,
    completion: T,
}

/// A routine of the client for the completion of a send. Nothing else of the connection is reported until the future that
/// it returns has resolved.
pub(crate) struct Routine(pub(crate) Box<dyn FnOnce(SendCompletion) -> Returning + Send>);

/// What a routine waits for.
pub(crate) type Returning = Pin<Box<dyn Future<Output = ()> + Send>>;

impl fmt::Debug for Routine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Routine")
    }
}

impl<T> Default for Completions<T> {
    fn default() -> Self {
        Self {
            pending: HashMap::new(),
            last_id: 0,
            done: Vec::new(),
        }
    }
}

impl<T> Completions<T> {
    /// Adds a request with a new id.
    pub(crate) fn add(&mut self) -> PendingRequest<T> {
        let id = self.next_id();
        let (sender, completion) = oneshot::channel();
        self.pending.insert(id, sender);
        PendingRequest { id, completion }
    }

    /// Returns a new id, for a request whose completion goes elsewhere.
    pub(crate) const fn next_id(&mut self) -> RequestId {
        self.last_id += 1;
        RequestId(self.last_id)
    }

    pub(crate) fn complete(&mut self, id: RequestId, completion: T) {
        let sender = self.pending.remove(&id);
        let sender = sender.expect("a request completes once");
        self.done.push(Done { sender, completion });
    }

    /// Returns the completions to deliver without the lock.
    pub(crate) fn take_done(&mut self) -> Vec<Done<T>> {
        std::mem::take(&mut self.done)
    }
}

impl<T> Done<T> {
    /// Gives the completion to the future, or drops it if the future was dropped.
    pub(crate) fn deliver(self) {
        //= TDI-SEND-33
        let _ = self.sender.send(self.completion);
    }
}

impl<T> PendingRequest<T> {
    /// Returns the completion once the request has completed.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<T> {
        let completion = ready!(Pin::new(&mut self.completion).poll(context));
        Poll::Ready(completion.expect("each request completes"))
    }

    /// Returns the completion if the request has completed.
    pub(crate) fn into_completion(mut self) -> Option<T> {
        self.completion.try_recv().ok()
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[test]
    fn each_future_gets_the_completion_of_its_request() {
        let mut completions = Completions::default();
        let context = &mut Context::from_waker(Waker::noop());
        let (mut first, second) = (completions.add(), completions.add());
        let dropped = completions.add().id;
        assert!(first.poll(context).is_pending());
        for (id, completion) in [(second.id, 2), (dropped, 3), (first.id, 1)] {
            completions.complete(id, completion);
        }
        assert!(first.poll(context).is_pending(), "it is not delivered");
        completions.take_done().into_iter().for_each(Done::deliver);
        assert_eq!(first.poll(context), Poll::Ready(1));
        assert_eq!(second.into_completion(), Some(2));
        assert_eq!(completions.add().into_completion(), None);
    }
}
