//! Connections whose handles are gone, and the end of the program: submitted messages are delivered first.

use std::{
    net::Shutdown,
    os::unix::net::UnixStream,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread,
    time::Duration,
};

use smbdirect::Connection;
use tokio::{
    runtime::Handle,
    sync::{Notify, SetOnce},
    time::{Instant, timeout_at},
};

use crate::{
    connection::lock,
    events::Events,
    runtime::{Runtime, live_runtimes},
    status::{SMBDIRECT_ERROR_TIMED_OUT, SMBDIRECT_OK},
};

/// Longest time that freeing a connection with outstanding operations, the end of a runtime and the end of the
/// program wait for what was sent.
pub(crate) const LINGER: Duration = Duration::from_secs(10);

/// Duplicates of the library's ends of the socket pairs of a connection. They are `None` once the connection is over,
/// so that they do not keep the program from reading the end of a stream.
pub(crate) type Streams = Arc<Mutex<Option<Vec<UnixStream>>>>;

/// Returns the place for the streams of a connection that is not over.
pub(crate) fn new_streams() -> Streams {
    Arc::new(Mutex::new(Some(Vec::new())))
}

/// The connections of a runtime that are not over.
#[derive(Default)]
pub(crate) struct Open {
    count: Mutex<usize>,
    /// Notified when no connection is open any more.
    none: Notify,
    /// Set when all connections have to close.
    ending: SetOnce<()>,
    /// Set when the time for closing is over.
    expired: SetOnce<()>,
}

/// One open connection.
struct Counted(Arc<Open>);

impl Drop for Counted {
    fn drop(&mut self) {
        let mut count = lock(&self.0.count);
        *count -= 1;
        if *count == 0 {
            self.0.none.notify_waiters();
        }
    }
}

impl Open {
    /// Closes all connections.
    fn end(&self) {
        // It may be set already.
        let _ = self.ending.set(());
    }

    fn is_none(&self) -> bool {
        *lock(&self.count) == 0
    }

    /// Waits until no connection is open any more.
    async fn none(&self) {
        loop {
            let none = self.none.notified();
            if self.is_none() {
                return;
            }
            none.await;
        }
    }
}

/// Closes a connection when its handle is freed, its runtime ends or the program ends, after it has sent what was
/// submitted. A connection with streams stays open until they are closed or its runtime or the program ends.
pub(crate) fn watch(
    open: &Arc<Open>,
    runtime: &Handle,
    connection: Connection,
    events: Arc<Events>,
    streams: Streams,
) {
    let open = open.clone();
    *lock(&open.count) += 1;
    let counted = Counted(open.clone());
    runtime.spawn(async move {
        let _counted = counted;
        let over = async {
            tokio::select! {
                _ = connection.closed() => return,
                () = events.calls.ended() => {}
                _ = open.ending.wait() => events.free(),
            }
            events.calls.left().await;
            if lock(&streams).as_ref().is_none_or(Vec::is_empty) {
                connection.start_close();
            } else {
                tokio::select! {
                    _ = connection.closed() => return,
                    _ = open.ending.wait() => {}
                }
                // The stream ends after the frames that the program has written.
                for stream in lock(&streams).iter().flatten() {
                    // It fails if the program has closed the stream, which ends it too.
                    let _ = stream.shutdown(Shutdown::Read);
                }
            }
            // Messages that no call receives would keep this end from granting the credits that its last
            // messages need.
            while connection.recv().await.is_ok() {}
            connection.closed().await;
        };
        tokio::select! {
            () = over => {}
            _ = open.expired.wait() => {
                if events.has_operations() {
                    // Until the connection is over, its operations may still access the program's memory, so it
                    // is aborted.
                    connection.abort();
                }
                connection.closed().await;
            }
        }
        *lock(&streams) = None;
    });
}

impl Runtime {
    /// Closes all connections of the runtime, and waits for their ends until a deadline.
    pub(crate) fn close_all(&self, deadline: Instant) {
        if self.open.is_none() {
            return;
        }
        self.enter(|| {
            self.open.end();
            // At the deadline the caller sees which connections are still open.
            let _ = self.block_on(async { timeout_at(deadline, self.open.none()).await });
        });
    }
}

/// Closes all connections of this process, and waits for up to `timeout_ms` milliseconds until what was sent is
/// delivered, or without limit if it is negative. exit() and the return of main() do this with a limit of 10 s. A
/// program calls it before it ends in another way, such as by _exit() or by a signal, or unloads the library. Calls
/// with these connections and with later ones fail afterwards. The handles can be freed.
///
/// With a timeout of 0, connections that are not over and have outstanding operations are aborted, so that nothing
/// uses the memory of the program any more.
///
/// Returns 0 if all connections are over, and SMBDIRECT_ERROR_TIMED_OUT otherwise.
#[unsafe(no_mangle)]
pub extern "C" fn smbdirect_close_all(timeout_ms: i32) -> i32 {
    let limit = match timeout_ms {
        // As good as no limit: a hundred years.
        ..0 => Duration::from_secs(3_153_600_000),
        // An abort takes no answer of the peer.
        0 => Duration::from_secs(1),
        1.. => Duration::from_millis(timeout_ms as u64),
    };
    let closed = catch_unwind(|| {
        if timeout_ms == 0 {
            for runtime in live_runtimes() {
                // It may be set already.
                let _ = runtime.open.expired.set(());
            }
        }
        close_all(limit)
    });
    match closed {
        Ok(true) => SMBDIRECT_OK,
        _ => SMBDIRECT_ERROR_TIMED_OUT,
    }
}

/// Closes all connections of this process, and returns whether they are over before the limit.
///
/// The work is done by a new thread, because tokio cannot be used on a thread whose thread-local values are
/// destroyed, as they are in the functions that exit() calls.
fn close_all(limit: Duration) -> bool {
    let runtimes: Vec<_> = live_runtimes()
        .into_iter()
        .filter(|runtime| !runtime.open.is_none())
        .collect();
    if runtimes.is_empty() {
        return true;
    }
    let done = Arc::new((Mutex::new(None), Condvar::new()));
    let result = done.clone();
    let body = move || {
        let deadline = Instant::now() + limit;
        for runtime in &runtimes {
            runtime.open.end();
        }
        for runtime in &runtimes {
            // A panic is a bug of the library, and must not keep the program from ending.
            let _ = catch_unwind(AssertUnwindSafe(|| runtime.close_all(deadline)));
        }
        let closed = runtimes.iter().all(|runtime| runtime.open.is_none());
        drop(runtimes);
        *lock(&result.0) = Some(closed);
        result.1.notify_all();
    };
    if thread::Builder::new().spawn(body).is_err() {
        return false;
    }
    let (closed, changed) = &*done;
    // The thread ends within the limit, unless a driven runtime is kept from running.
    let limit = limit.saturating_add(Duration::from_secs(1));
    let waiting = changed.wait_timeout_while(lock(closed), limit, |closed| closed.is_none());
    let (closed, _) = waiting.unwrap_or_else(PoisonError::into_inner);
    closed.unwrap_or(false)
}

/// The function that exit() calls.
pub(crate) extern "C" fn at_exit() {
    if live_runtimes().iter().all(|runtime| runtime.open.is_none()) {
        return;
    }
    // The streams are shut down, and a program that still writes to one, such as from the buffers of <stdio.h>,
    // must not end by SIGPIPE.
    // SAFETY: the set is initialised by the first call, and all pointers are valid during the calls.
    unsafe {
        let mut signals = std::mem::zeroed();
        libc::sigemptyset(&mut signals);
        libc::sigaddset(&mut signals, libc::SIGPIPE);
        libc::pthread_sigmask(libc::SIG_BLOCK, &signals, std::ptr::null_mut());
    }
    let _ = catch_unwind(|| close_all(LINGER));
}
