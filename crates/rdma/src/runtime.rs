//! Functions for the runtime and for sockets that the async layer needs and that tokio does not offer.

use std::{
    fmt,
    future::{Future, pending, poll_fn},
    pin::{Pin, pin},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    thread::{self, ThreadId},
};

use tokio::{
    runtime::{Builder, Handle},
    sync::mpsc,
    task::{AbortHandle, unconstrained},
};

/// The flag of a send after which a peer that is gone is an error instead of SIGPIPE. Rust programs ignore that
/// signal, but it ends other programs that contain this library. Apple's systems have a socket option instead,
/// which tokio sets.
pub const MSG_NOSIGNAL: i32 = if cfg!(any(target_os = "linux", target_os = "android")) {
    0x4000
} else if cfg!(any(target_os = "freebsd", target_os = "dragonfly")) {
    0x20000
} else if cfg!(any(target_os = "openbsd", target_os = "netbsd")) {
    0x400
} else {
    0
};

/// A spawned task whose future is dropped together with this value, with everything that it owns. The future of a task
/// that is only aborted is dropped when the runtime next runs, and a listening socket in it keeps its port until then.
#[derive(Debug)]
pub struct OwnedTask {
    owned: Arc<Owned>,
    task: AbortHandle,
}

#[derive(Default)]
struct Owned {
    future: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
    /// The thread that polls the future.
    poller: Mutex<Option<ThreadId>>,
}

impl OwnedTask {
    /// Spawns the task on the current runtime.
    pub fn spawn(future: impl Future<Output = ()> + Send + 'static) -> Self {
        let owned = Arc::new(Owned {
            future: Mutex::new(Some(Box::pin(future))),
            poller: Mutex::default(),
        });
        let task = tokio::spawn(Polling(owned.clone())).abort_handle();
        Self { owned, task }
    }
}

impl Drop for OwnedTask {
    fn drop(&mut self) {
        self.task.abort();
        // The future may own this value. In that case the future is dropped after its poll, because the task was
        // aborted.
        if *lock(&self.owned.poller) != Some(thread::current().id()) {
            self.owned.drop_future();
        }
    }
}

impl Owned {
    fn drop_future(&self) {
        let future = lock(&self.future).take();
        drop(future);
    }
}

impl fmt::Debug for Owned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owned").finish_non_exhaustive()
    }
}

/// The task of an [`OwnedTask`].
struct Polling(Arc<Owned>);

impl Future for Polling {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut future = lock(&self.0.future);
        let Some(future) = &mut *future else {
            return Poll::Ready(());
        };
        *lock(&self.0.poller) = Some(thread::current().id());
        let polled = future.as_mut().poll(context);
        *lock(&self.0.poller) = None;
        polled
    }
}

impl Drop for Polling {
    fn drop(&mut self) {
        self.0.drop_future();
    }
}

/// Locks `mutex`, even if a thread panicked while it held the lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the runtime of this library, whose thread the first call starts and which never ends. It finishes the
/// work that a runtime of the program leaves unfinished when that runtime ends. Returns `None` if the system has
/// no resources for it.
pub fn background() -> Option<Handle> {
    static BACKGROUND: Mutex<Option<Handle>> = Mutex::new(None);
    let mut background = lock(&BACKGROUND);
    if background.is_none() {
        let runtime = Builder::new_current_thread().enable_all().build().ok()?;
        let handle = runtime.handle().clone();
        let thread = thread::Builder::new().name("smbdirect".to_owned());
        thread
            .spawn(move || runtime.block_on(pending::<()>()))
            .ok()?;
        *background = Some(handle);
    }
    background.clone()
}

/// The receiving end of a channel whose futures leave no waker behind when they are dropped, unlike the futures
/// of tokio's channel.
#[derive(Debug)]
pub struct Receiver<T> {
    channel: mpsc::Receiver<T>,
    /// What the channel returned when a waiting future of `recv` was dropped. The next poll returns it.
    /// `Some(None)` means that all senders are gone.
    next: Option<Option<T>>,
}

impl<T> From<mpsc::Receiver<T>> for Receiver<T> {
    fn from(channel: mpsc::Receiver<T>) -> Self {
        Self {
            channel,
            next: None,
        }
    }
}

impl<T> Receiver<T> {
    /// Returns the next value, or `None` when all senders are gone.
    ///
    /// # Cancel safety
    /// Dropping the future loses no value.
    pub async fn recv(&mut self) -> Option<T> {
        let mut receiving = Receiving {
            receiver: self,
            waits: false,
        };
        poll_fn(|context| receiving.poll(context)).await
    }

    /// Polls for the next value. The channel keeps the waker of the last call.
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Option<T>> {
        match self.next.take() {
            Some(next) => Poll::Ready(next),
            None => self.poll(context),
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<T>> {
        let once = poll_fn(|context| self.channel.poll_recv(context));
        pin!(unconstrained(once)).poll(context)
    }
}

/// The future of [`Receiver::recv`].
struct Receiving<'a, T> {
    receiver: &'a mut Receiver<T>,
    /// The channel has the waker of this future.
    waits: bool,
}

impl<T> Receiving<'_, T> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<T>> {
        let polled = self.receiver.poll_recv(context);
        self.waits = polled.is_pending();
        polled
    }
}

impl<T> Drop for Receiving<'_, T> {
    fn drop(&mut self) {
        if self.waits
            && let Poll::Ready(next) = self.receiver.poll(&mut Context::from_waker(Waker::noop()))
        {
            self.receiver.next = Some(next);
        }
    }
}
