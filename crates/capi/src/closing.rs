//! Connections whose handles are gone: submitted messages are delivered first.

use std::{
    net::Shutdown,
    os::unix::net::UnixStream,
    sync::{Arc, Mutex},
    time::Duration,
};

use smbdirect::Connection;
use tokio::{
    runtime::Handle,
    sync::{Notify, SetOnce},
};

use crate::{events::Events, locks::lock};

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
    pub(crate) fn end(&self) {
        // It may be set already.
        let _ = self.ending.set(());
    }

    /// Aborts the connections that are not over and have operations.
    pub(crate) fn expire(&self) {
        // It may be set already.
        let _ = self.expired.set(());
    }

    pub(crate) fn is_none(&self) -> bool {
        *lock(&self.count) == 0
    }

    /// Waits until no connection is open any more.
    pub(crate) async fn none(&self) {
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
    has_operations: impl Fn() -> bool + Send + 'static,
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
                if has_operations() {
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
