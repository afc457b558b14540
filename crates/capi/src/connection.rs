//! Establishing and closing connections, and waiting for events on them.

use std::{
    collections::VecDeque,
    ffi::{c_char, c_void},
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::Waker,
    thread,
    time::{Duration, Instant},
};

use smbdirect::{Connection, ConnectionError, Message};
use smbdirect_transport::text;
use tokio::{sync::SetOnce, task::AbortHandle};

use crate::{
    address::Address,
    buffer::{Owned, smbdirect_buffer},
    closing::{LINGER, Streams, new_streams, watch},
    events::Events,
    exit::at_exit,
    locks::lock,
    operations::{Callback, Operations, Started},
    pointers,
    runtime::{Runtime, close_at_exit, smbdirect_runtime},
    settings::{Prepared, smbdirect_settings},
    status::{
        Failure, SMBDIRECT_ERROR_TIMED_OUT, SMBDIRECT_ERROR_WOULD_BLOCK, call, call_status,
        smbdirect_error,
    },
    transport,
};

/// Receives the result of an operation that was started on `connection`. It is called by smbdirect_service() or
/// smbdirect_connection_free(), and nowhere else.
///
/// `error` is NULL if the operation succeeded, and valid during the call otherwise, with errno as after a call.
/// `buffer` is the buffer of the operation, which belongs to the program again, or NULL if it has none. `user_data` is
/// the argument of the call that started the operation, whose memory belongs to the program again.
///
/// The callback may call every function of the library, smbdirect_connection_free() included. If
/// smbdirect_connection_free() calls it, `connection` is not valid any more, and calls with it return
/// SMBDIRECT_ERROR_INVALID.
pub type smbdirect_callback = Option<
    unsafe extern "C" fn(
        connection: *mut smbdirect_connection,
        error: *const smbdirect_error,
        buffer: *mut smbdirect_buffer,
        user_data: *mut c_void,
    ),
>;

/// A connection.
pub struct smbdirect_connection {
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) events: Arc<Events>,
    pub(crate) operations: Arc<Operations<Self>>,
    /// The connection, or why there is none; unset while connecting.
    outcome: Outcome,
    /// The task that connects, and the address to which, if it was started here.
    connecting: Option<(AbortHandle, String)>,
    /// The peer keeps the memory of messages that were sent, so that callers cannot lend theirs.
    pub(crate) copies: bool,
    /// Messages that were longer than the caller's memory, in the order in which they arrived.
    pub(crate) kept: Mutex<VecDeque<Message>>,
    /// A receive that did not wait.
    pub(crate) receiving: Mutex<Option<Receiving>>,
    pub(crate) streams: Streams,
    /// The task that announces that a message can be sent, for callers that do not wait.
    ready: Announcement,
    /// The task that announces the end of the connection, likewise.
    closed: Announcement,
}

type Outcome = Arc<SetOnce<Result<Connection, Failure>>>;

pub(crate) type Receiving = Pin<Box<dyn Future<Output = Result<Message, ConnectionError>> + Send>>;

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
    fn new(runtime: &Arc<Runtime>, copies: bool) -> Self {
        close_at_exit(at_exit);
        let events = Events::new(&runtime.event);
        Self {
            runtime: runtime.clone(),
            operations: Operations::new(&events),
            events,
            outcome: Outcome::default(),
            connecting: None,
            copies,
            kept: Mutex::default(),
            receiving: Mutex::default(),
            streams: new_streams(),
            ready: Announcement::default(),
            closed: Announcement::default(),
        }
    }

    /// Returns the object of an established connection.
    pub(crate) fn established(
        runtime: &Arc<Runtime>,
        connection: Connection,
        copies: bool,
    ) -> Arc<Self> {
        let created = Self::new(runtime, copies);
        let operations = created.operations.clone();
        watch(
            &runtime.open,
            runtime.tokio().handle(),
            connection.clone(),
            created.events.clone(),
            move || operations.is_any_outstanding(),
            created.streams.clone(),
        );
        // It was created above, so that the value was not set before.
        let _ = created.outcome.set(Ok(connection));
        Arc::new(created)
    }

    /// Starts to connect.
    fn start(
        runtime: &Arc<Runtime>,
        address: &str,
        prepared: Prepared,
    ) -> Result<Arc<Self>, Failure> {
        let provider = runtime.enter(|| transport::provider(runtime, &prepared.rdma))?;
        let given = address.to_owned();
        let address = Address::parse(address, provider.attributes().default_port)?;
        let copies = transport::shares_memory(prepared.rdma.kind);
        let mut created = Self::new(runtime, copies);
        let task = {
            let (events, streams) = (created.events.clone(), created.streams.clone());
            let (outcome, open) = (created.outcome.clone(), runtime.open.clone());
            let operations = created.operations.clone();
            runtime.spawn(async move {
                let connecting = async {
                    let mut last = None;
                    for address in address.resolve().await? {
                        let (config, begun) = (prepared.config.clone(), Instant::now());
                        match Connection::connect(&*provider, address, config).await {
                            Ok(connection) => {
                                connection.set_busy_poll(prepared.busy_poll);
                                return Ok(connection);
                            }
                            Err(error) => {
                                let elapsed = begun.elapsed();
                                last =
                                    Some(prepared.explained(error.fault, address, elapsed).await);
                            }
                        }
                    }
                    Err(last.expect("a name has at least one address"))
                };
                let connected = connecting.await;
                if let Ok(connection) = &connected {
                    let here = tokio::runtime::Handle::current();
                    let has_operations = move || operations.is_any_outstanding();
                    let connection = connection.clone();
                    watch(
                        &open,
                        &here,
                        connection,
                        events.clone(),
                        has_operations,
                        streams,
                    );
                }
                // The task is the only one that sets the outcome.
                let _ = outcome.set(connected);
                events.signal();
            })
        };
        created.connecting = Some((task, given));
        Ok(Arc::new(created))
    }

    /// Returns the connection.
    ///
    /// # Errors
    /// The connection is not established yet, has failed, or belongs to the process that forked this one.
    pub(crate) fn connection(&self) -> Result<&Connection, Failure> {
        self.runtime.check()?;
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
        self.runtime
            .wait(timeout_ms, &waker, &self.events.calls, future)
    }

    /// Announces an event when a message can be sent, or the connection is over.
    pub(crate) fn announce_ready(&self, connection: &Connection) {
        let connection = connection.clone();
        let condition = async move { drop(connection.ready().await) };
        self.ready.start(&self.runtime, &self.events, condition);
    }

    /// Runs an operation whose result goes to a callback. The operation ends when it no longer uses memory of the
    /// caller.
    pub(crate) fn run_operation(
        &self,
        started: Started<Self>,
        callback: Callback<Self>,
        operation: impl Future<Output = (Result<(), Failure>, Option<Owned>)> + Send + 'static,
    ) {
        self.runtime.spawn(async move {
            let (result, buffer) = operation.await;
            started.complete(callback, result, buffer);
        });
    }

    /// Gives up the attempt to connect.
    fn stop_connecting(&self) {
        if let Some((connecting, _)) = &self.connecting {
            connecting.abort();
        }
        self.events.free();
    }

    /// Waits for the operations of a handle that was freed, and calls their callbacks.
    ///
    /// # Safety
    /// The functions and arguments of the callbacks are valid.
    unsafe fn finish_operations(&self, handle: *mut Self) {
        let here = thread::current().id();
        let deadline = Instant::now() + LINGER;
        let mut aborted = false;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let limit = (!aborted).then_some(left);
            let settled = self.operations.settled(here);
            match self
                .runtime
                .enter(|| self.runtime.block_for(limit, settled))
            {
                // SAFETY: the caller's promise is the same.
                Some(true) => drop(unsafe { self.operations.dispatch(handle) }),
                Some(false) => return,
                None => {
                    aborted = true;
                    if let Ok(connection) = self.connection() {
                        self.runtime.enter(|| connection.abort());
                    }
                }
            }
        }
    }

    fn finish(&self, timeout_ms: i32) -> Result<(), Failure> {
        self.runtime.check()?;
        let waited = self.wait(timeout_ms, self.outcome.wait());
        let outcome = waited.map_err(|failure| match &self.connecting {
            Some((_, address)) if failure.code == SMBDIRECT_ERROR_TIMED_OUT => {
                unanswered(address, timeout_ms)
            }
            _ => failure,
        })?;
        outcome.as_ref().map(|_| ()).map_err(Clone::clone)
    }
}

impl Drop for smbdirect_connection {
    fn drop(&mut self) {
        let rest = (
            std::mem::take(&mut self.outcome),
            std::mem::take(&mut self.kept),
            std::mem::take(&mut self.receiving),
        );
        self.runtime.release(rest);
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
            *out = pointers::give(connected);
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
) -> Result<Arc<smbdirect_connection>, Failure> {
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
    match started.finish(timeout_ms) {
        Ok(()) => Ok(started),
        Err(failure) => {
            started.stop_connecting();
            Err(failure)
        }
    }
}

/// Returns the failure of a connection that was not established within the timeout of the call.
fn unanswered(address: &str, timeout_ms: i32) -> Failure {
    let limit = text::time(Duration::from_millis(timeout_ms.unsigned_abs().into()));
    let message = format!(
        "{address} did not answer within {limit}; check the address, that SMB Direct listens there, and \
         firewalls between, or give it more time"
    );
    Failure::new(SMBDIRECT_ERROR_TIMED_OUT, message)
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
            *out = pointers::give(smbdirect_connection::start(&runtime, address, prepared)?);
            Ok(())
        })
    }
}

/// Waits until a connection that was started is established.
///
/// Returns 0 when it is. Returns SMBDIRECT_ERROR_WOULD_BLOCK with a timeout of 0, or _TIMED_OUT, if it is not
/// established yet; the attempt continues. Every other error is final, and the connection has to be freed.
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
            connection.runtime.check()?;
            connection.events.descriptor().map(Into::into)
        })
    };
    value as i32
}

/// Returns the events of poll() to wait for: always POLLIN.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smbdirect_which_events(connection: *const smbdirect_connection) -> i32 {
    let _ = connection;
    libc::POLLIN.into()
}

/// Calls the callbacks of the operations that are over, and makes the descriptor unreadable until the next event for
/// which an operation, or a call that has returned SMBDIRECT_ERROR_WOULD_BLOCK, waits. Call it when the descriptor is
/// readable, then repeat the calls that returned SMBDIRECT_ERROR_WOULD_BLOCK.
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
            handle.runtime.check()?;
            let number = handle.operations.dispatch(connection);
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
/// Returns 0, SMBDIRECT_ERROR_WOULD_BLOCK or _TIMED_OUT while the close continues, or the error that ended the
/// connection.
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
/// submitted were sent. NULL, and a connection that was freed before, are ignored.
///
/// Calls of other threads that wait on the connection end with SMBDIRECT_ERROR_ABORTED. The callbacks of all
/// operations that were started are called before this function returns: reads fail immediately, and their
/// buffers are freed when they are over; sends and writes are waited for for up to 10 s, and then the connection is
/// aborted. Call smbdirect_abort() before to wait for nothing and to send nothing more.
///
/// Free its regions first or later, in any order. A handle of the parent process is only forgotten.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smbdirect_connection_free(connection: *mut smbdirect_connection) {
    // SAFETY: there is no error to store, and callbacks follow the rules for arguments.
    unsafe {
        call_status(std::ptr::null_mut(), || {
            pointers::handle(connection, "connection")?
                .runtime
                .check()?;
            let handle = pointers::take(connection, "connection")?;
            handle.stop_connecting();
            handle.finish_operations(connection);
            Ok(())
        });
    }
}
