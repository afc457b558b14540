//! [`Completions`]: what the requests of one kind on a connection report, and to whom: the completions to futures, and the
//! events to the client by the connection's task.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    future::Future,
    mem,
    pin::Pin,
    task::Waker,
};

use tokio::sync::oneshot;

use crate::protocol::{RequestId, ResourceStatistics, SendCompletion};

/// The pending requests of one kind with completions `T`, and the events `N` for the client.
///
/// It is used under a lock. Nothing here wakes a task or drops a completion, because either could call into the
/// object that the lock protects: [`take_due`](Self::take_due) returns what the caller delivers without the lock.
#[derive(Debug)]
pub(crate) struct Completions<T, N> {
    pending: HashMap<RequestId, oneshot::Sender<T>>,
    last_id: u64,
    /// The waker of the connection's task.
    task: Waker,
    due: Due<T>,
    /// Events for the client, in order.
    pub(crate) news: VecDeque<N>,
    pub(crate) usage: ResourceStatistics,
    /// The task of the connection has ended, so no event reaches the client any more.
    pub(crate) is_over: bool,
}

/// Tasks to wake, and completions with the futures that wait for them.
#[derive(Debug)]
pub(crate) struct Due<T> {
    wakes: Vec<Waker>,
    done: Vec<(oneshot::Sender<T>, T)>,
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

impl<T> Default for Due<T> {
    fn default() -> Self {
        Self {
            wakes: Vec::new(),
            done: Vec::new(),
        }
    }
}

impl<T, N> Default for Completions<T, N> {
    fn default() -> Self {
        Self {
            pending: HashMap::new(),
            last_id: 0,
            task: Waker::noop().clone(),
            due: Due::default(),
            news: VecDeque::new(),
            usage: ResourceStatistics::default(),
            is_over: false,
        }
    }
}

impl<T, N> Completions<T, N> {
    /// Adds a request with a new id.
    pub(crate) fn add(&mut self) -> (RequestId, oneshot::Receiver<T>) {
        let id = self.next_id();
        let (sender, completion) = oneshot::channel();
        self.pending.insert(id, sender);
        (id, completion)
    }

    /// Returns a new id, for a request whose completion goes elsewhere.
    pub(crate) const fn next_id(&mut self) -> RequestId {
        self.last_id += 1;
        RequestId(self.last_id)
    }

    pub(crate) fn complete(&mut self, id: RequestId, completion: T) {
        let sender = self.pending.remove(&id);
        let sender = sender.expect("a request completes once");
        self.due.done.push((sender, completion));
    }

    /// Adds an event for the client.
    pub(crate) fn report(&mut self, news: N) {
        self.news.push_back(news);
        self.wake_task();
    }

    /// Wakes the connection's task.
    pub(crate) fn wake_task(&mut self) {
        self.wake(Some(self.task.clone()));
    }

    pub(crate) fn wake(&mut self, waker: Option<Waker>) {
        self.due.wakes.extend(waker);
    }

    /// Sets the waker of the connection's task. Returns the former one, which is dropped without the lock.
    pub(crate) fn watch(&mut self, waker: &Waker) -> Option<Waker> {
        let is_same = self.task.will_wake(waker);
        (!is_same).then(|| mem::replace(&mut self.task, waker.clone()))
    }

    /// Returns what is to be delivered without the lock.
    pub(crate) fn take_due(&mut self) -> Due<T> {
        mem::take(&mut self.due)
    }
}

impl<T> Due<T> {
    /// Wakes the tasks, and gives each completion to its future, or drops it if the future was dropped.
    pub(crate) fn deliver(self) {
        self.wakes.into_iter().for_each(Waker::wake);
        for (sender, completion) in self.done {
            //= TDI-SEND-33
            let _ = sender.send(completion);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_future_gets_the_completion_of_its_request() {
        let mut completions = Completions::<_, ()>::default();
        let ((first, mut one), (second, mut other)) = (completions.add(), completions.add());
        let (dropped, _) = completions.add();
        for (id, completion) in [(second, 2), (dropped, 3), (first, 1)] {
            completions.complete(id, completion);
        }
        assert!(one.try_recv().is_err(), "it is not delivered");
        completions.take_due().deliver();
        assert_eq!((one.try_recv(), other.try_recv()), (Ok(1), Ok(2)));
        assert!(completions.add().1.try_recv().is_err());
    }
}
