//! Establishing and closing connections, and waiting for what happens on them.

use std::{
    collections::VecDeque,
    ffi::c_char,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::Waker,
    time::Duration,
};

use smbdirect::{Connection, Message};
use tokio::{sync::SetOnce, task::AbortHandle};

use crate::{
    address::Address,
    buffer::smbdirect_buffer,
    events::{Callback, Events},
    pointers,
    runtime::{Runtime, smbdirect_runtime},
    settings::{Prepared, smbdirect_settings},
    status::{Failure, SMBDIRECT_ERROR_WOULD_BLOCK, call, call_status, smbdirect_error},
    transport,
};

/// A connection.
pub struct smbdirect_connection {
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) events: Arc<Events>,
    /// The connection, or why there is none; unset while connecting.
    outcome: Arc<SetOnce<Result<Connection, Failure>>>,
    /// The task that connects, if it was started here.
    connecting: Option<AbortHandle>,
    /// The peer keeps the memory of messages that were sent, so that callers cannot lend theirs.
    pub(crate) copies: bool,
    /// Messages that were longer than the caller's memory, in the order in which they arrived.
    pub(crate) kept: Mutex<VecDeque<Message>>,
    /// The task that announces that a message can be sent, for callers that do not wait.
    ready: Announcement,
    /// The task that announces the end of the connection, likewise.
    closed: Announcement,
}

/// A task that announces an event when a condition holds. At most one runs at a time. It ends with the handle.
#[derive(Default)]
struct Announcement {
    is_running: Arc<AtomicBool>,
    task: Mutex<Option<AbortHandle>>,
}

impl Announcement {
    /// Announces an event when `condition` is over, unless an announcement is due.
    fn start(
        &self,
        runtime: &Runtime,
        events: &Arc<Events>,
        condition: impl Future + Send + 'static,
    ) {
        if self.is_running.swap(true, Ordering::AcqRel) {
            return;
        }
        let (is_running, events) = (self.is_running.clone(), events.clone());
        let task = runtime.spawn(async move {
            condition.await;
            // A caller that sees it still set is woken by the event that follows.
            is_running.store(false, Ordering::Release);
            events.signal();
        });
        *lock(&self.task) = Some(task);
    }
}

impl Drop for Announcement {
    fn drop(&mut self) {
        if let Some(task) = lock(&self.task).take() {
            task.abort();
        }
    }
}

impl smbdirect_connection {
    /// Returns the handle of an established connection.
    pub(crate) fn established(
        runtime: &Arc<Runtime>,
        connection: Connection,
        copies: bool,
    ) -> Box<Self> {
        Box::new(Self {
            runtime: runtime.clone(),
            events: Events::new(runtime),
            outcome: Arc::new(SetOnce::new_with(Some(Ok(connection)))),
            connecting: None,
            copies,
            kept: Mutex::default(),
            ready: Announcement::default(),
            closed: Announcement::default(),
        })
    }

    /// Starts to connect.
    fn start(
        runtime: &Arc<Runtime>,
        address: &str,
        prepared: Prepared,
    ) -> Result<Box<Self>, Failure> {
        let provider = runtime.enter(|| transport::provider(runtime, &prepared.transport))?;
        let address = Address::parse(address, provider.default_port())?;
        let copies = transport::shares_memory(&prepared.transport);
        let events = Events::new(runtime);
        let outcome = Arc::new(SetOnce::new());
        let connecting = {
            let (events, outcome) = (events.clone(), outcome.clone());
            runtime.spawn(async move {
                let connecting = async {
                    let mut last = None;
                    for address in address.resolve().await? {
                        let config = prepared.config.clone();
                        match Connection::connect(&*provider, address, config).await {
                            Ok(connection) => {
                                connection.set_busy_poll(prepared.busy_poll);
                                return Ok(connection);
                            }
                            Err(error) => last = Some(error),
                        }
                    }
                    Err(last.expect("a name has at least one address").into())
                };
                // The task is the only one that sets the outcome.
                let _ = outcome.set(connecting.await);
                events.signal();
            })
        };
        Ok(Box::new(Self {
            runtime: runtime.clone(),
            events,
            outcome,
            connecting: Some(connecting),
            copies,
            kept: Mutex::default(),
            ready: Announcement::default(),
            closed: Announcement::default(),
        }))
    }

    /// Returns the connection.
    ///
    /// # Errors
    /// It is not established yet, failed, or belongs to the process that forked this one.
    pub(crate) fn connection(&self) -> Result<&Connection, Failure> {
        self.runtime.check_fork()?;
        match self.outcome.get() {
            Some(outcome) => outcome.as_ref().map_err(Clone::clone),
            None => Err(Failure::new(
                SMBDIRECT_ERROR_WOULD_BLOCK,
                "the connection is not established yet",
            )),
        }
    }

    /// Runs `future` in the runtime of the connection. With a timeout of 0, it is polled once. The arrival of a
    /// message announces an event later; for other conditions the caller starts an [`Announcement`].
    pub(crate) fn wait<T>(
        &self,
        timeout_ms: i32,
        future: impl Future<Output = T>,
    ) -> Result<T, Failure> {
        let waker = match timeout_ms {
            0 => self.events.waker(),
            _ => Waker::noop().clone(),
        };
        let value = self.runtime.wait(timeout_ms, &waker, future);
        value.ok_or_else(|| Failure::timed_out(timeout_ms))
    }

    /// Announces an event when a message can be sent, or the connection is over.
    pub(crate) fn announce_ready(&self, connection: &Connection) {
        let connection = connection.clone();
        let condition = async move { drop(connection.ready().await) };
        self.ready.start(&self.runtime, &self.events, condition);
    }

    /// Runs an operation whose result goes to a callback. The operation ends when it needs nothing of the
    /// caller any more.
    pub(crate) fn start_operation(
        &self,
        callback: Callback,
        operation: impl Future<Output = (Result<(), Failure>, Option<Box<smbdirect_buffer>>)>
        + Send
        + 'static,
    ) {
        let events = self.events.clone();
        events.start();
        self.runtime.spawn(async move {
            let (result, buffer) = operation.await;
            events.complete(callback, result, buffer);
        });
    }

    fn finish(&self, timeout_ms: i32) -> Result<(), Failure> {
        self.runtime.check_fork()?;
        let outcome = self.wait(timeout_ms, self.outcome.wait())?;
        outcome.as_ref().map(|_| ()).map_err(Clone::clone)
    }
}

impl Drop for smbdirect_connection {
    fn drop(&mut self) {
        if let Some(connecting) = &self.connecting {
            connecting.abort();
        }
    }
}

/// Connects to a peer and negotiates, within `timeout_ms` milliseconds.
///
/// `runtime` may be NULL for the shared one, and `settings` may be NULL for the default ones. `address` is
/// HOST or HOST:PORT, where an IPv6 address with a port is in brackets. Without a port, 5445 is used for iWARP
/// and 445 otherwise. With a timeout of -1 only the settings limit the time.
///
/// Stores the connection and returns 0. Otherwise returns SMBDIRECT_ERROR_INVALID, _UNSUPPORTED, _ADDRESS,
/// _REFUSED, _TIMED_OUT, _PROTOCOL, _LOST or _SYSTEM, and stores nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smbdirect_connect(
    runtime: *mut smbdirect_runtime,
    address: *const c_char,
    settings: *const smbdirect_settings,
    timeout_ms: i32,
    connection: *mut *mut smbdirect_connection,
    error: *mut smbdirect_error,
) -> i32 {
    // SAFETY: all pointers follow the rules for arguments.
    unsafe {
        call_status(error, || {
            let out = pointers::out(connection, "connection")?;
            let connected = connect(runtime, address, settings, timeout_ms)?;
            *out = Box::into_raw(connected);
            Ok(())
        })
    }
}

/// Connects to a peer and negotiates.
///
/// # Safety
/// The arguments follow the rules for arguments.
pub(crate) unsafe fn connect(
    runtime: *mut smbdirect_runtime,
    address: *const c_char,
    settings: *const smbdirect_settings,
    timeout_ms: i32,
) -> Result<Box<smbdirect_connection>, Failure> {
    if timeout_ms == 0 {
        let message = "a timeout of 0: use smbdirect_connect_start() to connect without waiting";
        return Err(Failure::invalid(message));
    }
    // SAFETY: all pointers follow the rules for arguments.
    let (runtime, prepared, address) = unsafe {
        (
            Runtime::of(runtime)?,
            Prepared::new(settings)?,
            pointers::text(address, "address")?,
        )
    };
    let started = smbdirect_connection::start(&runtime, address, prepared)?;
    started.finish(timeout_ms)?;
    Ok(started)
}

/// Starts to connect to a peer, and returns without waiting. The arguments are those of smbdirect_connect().
///
/// Wait for the connection with smbdirect_connect_finish(). Until it succeeds, the other functions fail
/// with SMBDIRECT_ERROR_WOULD_BLOCK, except smbdirect_get_fd(), smbdirect_which_events(),
/// smbdirect_service() and smbdirect_connection_free().
///
/// Stores the connection and returns 0, or SMBDIRECT_ERROR_INVALID, _UNSUPPORTED or _SYSTEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smbdirect_connect_start(
    runtime: *mut smbdirect_runtime,
    address: *const c_char,
    settings: *const smbdirect_settings,
    connection: *mut *mut smbdirect_connection,
    error: *mut smbdirect_error,
) -> i32 {
    // SAFETY: all pointers follow the rules for arguments.
    unsafe {
        call_status(error, || {
            let out = pointers::out(connection, "connection")?;
            let runtime = Runtime::of(runtime)?;
            let prepared = Prepared::new(settings)?;
            let address = pointers::text(address, "address")?;
            *out = Box::into_raw(smbdirect_connection::start(&runtime, address, prepared)?);
            Ok(())
        })
    }
}

/// Waits until a connection that was started is established.
///
/// Returns 0 when it is. Returns SMBDIRECT_ERROR_WOULD_BLOCK with a timeout of 0, or _TIMED_OUT, if it is
/// not yet; the attempt goes on. Every other error is final, and the connection has to be freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smbdirect_connect_finish(
    connection: *mut smbdirect_connection,
    timeout_ms: i32,
    error: *mut smbdirect_error,
) -> i32 {
    // SAFETY: all pointers follow the rules for arguments.
    unsafe {
        call_status(error, || {
            pointers::handle(connection, "connection")?.finish(timeout_ms)
        })
    }
}

/// Returns a descriptor to wait for with poll(), select() or epoll, for the events that
/// smbdirect_which_events() names. It is readable when smbdirect_service() or a call that returned
/// SMBDIRECT_ERROR_WOULD_BLOCK is worth repeating. It is readable at first.
///
/// The descriptor belongs to the connection. Do not read from it or close it. In a driven runtime it
/// becomes readable only during calls.
///
/// Returns the descriptor, or SMBDIRECT_ERROR_SYSTEM or _FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smbdirect_get_fd(
    connection: *mut smbdirect_connection,
    error: *mut smbdirect_error,
) -> i32 {
    // SAFETY: all pointers follow the rules for arguments.
    let value = unsafe {
        call(error, || {
            let connection = pointers::handle(connection, "connection")?;
            connection.runtime.check_fork()?;
            connection.events.descriptor().map(Into::into)
        })
    };
    value as i32
}

/// Returns the events of poll() to wait for: always POLLIN.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smbdirect_which_events(_connection: *const smbdirect_connection) -> i32 {
    libc::POLLIN.into()
}

/// Calls the callbacks of the operations that are over, and makes the descriptor unreadable until the next
/// event. Call it when the descriptor is readable, then repeat the calls that returned
/// SMBDIRECT_ERROR_WOULD_BLOCK.
///
/// Returns the number of operations, or SMBDIRECT_ERROR_FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smbdirect_service(
    connection: *mut smbdirect_connection,
    error: *mut smbdirect_error,
) -> i32 {
    // SAFETY: all pointers follow the rules for arguments.
    let value = unsafe {
        call(error, || {
            let handle = pointers::handle(connection, "connection")?;
            handle.runtime.check_fork()?;
            let number = handle.events.dispatch(connection);
            Ok(i64::try_from(number).unwrap_or(i64::MAX))
        })
    };
    i32::try_from(value).unwrap_or(i32::MAX)
}

/// Asks the peer for a keepalive and waits for its answer, for up to `timeout_ms` milliseconds, which must
/// not be 0. Stores the time that this took in nanoseconds, unless `round_trip_ns` is NULL.
///
/// Returns 0, SMBDIRECT_ERROR_TIMED_OUT, or why the connection is over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smbdirect_keepalive(
    connection: *mut smbdirect_connection,
    timeout_ms: i32,
    round_trip_ns: *mut u64,
    error: *mut smbdirect_error,
) -> i32 {
    // SAFETY: all pointers follow the rules for arguments.
    unsafe {
        call_status(error, || {
            if timeout_ms == 0 {
                return Err(Failure::invalid("a timeout of 0"));
            }
            let handle = pointers::handle(connection, "connection")?;
            let keepalive = handle.connection()?.keepalive();
            let round_trip: Duration = handle.wait(timeout_ms, keepalive)??;
            if let Some(out) = round_trip_ns.as_mut() {
                *out = u64::try_from(round_trip.as_nanos()).unwrap_or(u64::MAX);
            }
            Ok(())
        })
    }
}

/// Closes a connection gracefully: sends the messages that were submitted, finishes RDMA Reads and Writes,
/// disconnects, and waits for the end. The handle stays valid until it is freed.
///
/// Take all messages before, as messages that were not received can keep the peer from granting the
/// credits that the last messages need.
///
/// Returns 0, SMBDIRECT_ERROR_WOULD_BLOCK or _TIMED_OUT while the close goes on, or the error that ended
/// the connection.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smbdirect_close(
    connection: *mut smbdirect_connection,
    timeout_ms: i32,
    error: *mut smbdirect_error,
) -> i32 {
    // SAFETY: all pointers follow the rules for arguments.
    unsafe {
        call_status(error, || {
            let handle = pointers::handle(connection, "connection")?;
            let connection = handle.connection()?;
            let closed = handle.wait(timeout_ms, connection.close());
            if closed.is_err() && timeout_ms == 0 {
                let connection = connection.clone();
                let condition = async move { drop(connection.closed().await) };
                handle
                    .closed
                    .start(&handle.runtime, &handle.events, condition);
            }
            Ok(closed??)
        })
    }
}

/// Ends a connection immediately. Operations that are not over fail with SMBDIRECT_ERROR_ABORTED.
///
/// Returns 0, or SMBDIRECT_ERROR_WOULD_BLOCK if the connection is not established yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smbdirect_abort(
    connection: *mut smbdirect_connection,
    error: *mut smbdirect_error,
) -> i32 {
    // SAFETY: all pointers follow the rules for arguments.
    unsafe {
        call_status(error, || {
            let handle = pointers::handle(connection, "connection")?;
            let connection = handle.connection()?;
            handle.runtime.enter(|| connection.abort());
            Ok(())
        })
    }
}

/// Frees a connection. An established one is closed in the background, after the messages that were
/// submitted were sent. NULL is ignored.
///
/// If operations with callbacks are not over, the connection is aborted instead, and their callbacks are
/// called before this function returns.
///
/// Free its regions first or later, in any order. A handle of the parent process is only forgotten.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smbdirect_connection_free(connection: *mut smbdirect_connection) {
    if connection.is_null() {
        return;
    }
    // SAFETY: `connection` is live until it is taken below, and all callbacks run before that.
    unsafe {
        call_status(std::ptr::null_mut(), || {
            let handle = pointers::handle(connection, "connection")?;
            if handle.runtime.check_fork().is_err() {
                // Its tasks do not exist in this process, so the memory stays where it is.
                return Ok(());
            }
            while handle.events.has_operations() {
                if let Ok(connection) = handle.connection() {
                    handle.runtime.enter(|| connection.abort());
                }
                handle.wait(-1, handle.events.all_completed())?;
                handle.events.dispatch(connection);
            }
            let handle = pointers::take(connection).expect("it is not NULL");
            let runtime = handle.runtime.clone();
            runtime.enter(|| drop(handle));
            Ok(())
        });
    }
}

/// Locks the messages that are kept for the next calls.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
