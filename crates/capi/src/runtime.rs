//! Threads and timers: the shared runtime with a thread of its own, and runtimes that the caller drives.

use std::{
    cell::UnsafeCell,
    ffi::c_void,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, MutexGuard, Once, PoisonError, RwLockWriteGuard, Weak,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use smbdirect::rdma::{loopback::Loopback, roce::Roce};
use tokio::{runtime, sync::Notify, time};
use tracing::Dispatch;

use crate::{
    calls::Calls,
    closing::{LINGER, Open},
    interrupt,
    log::{self, smbdirect_log_callback},
    pointers::{self, Objects},
    status::{
        Failure, SMBDIRECT_ERROR_FORKED, SMBDIRECT_ERROR_SYSTEM, SMBDIRECT_ERROR_TIMED_OUT,
        SMBDIRECT_ERROR_WOULD_BLOCK, call_status, smbdirect_error,
    },
};

/// Threads and timers of the handles that are created from it.
pub struct smbdirect_runtime {
    pub(crate) shared: Arc<Runtime>,
}

/// The parts of a runtime.
pub(crate) struct Runtime {
    /// `None` once the runtime has ended.
    tokio: Option<runtime::Runtime>,
    /// Only calls of the program make progress.
    driven: bool,
    log: Option<Dispatch>,
    /// The calls of smbdirect_runtime_run().
    calls: Calls,
    /// Notified when a handle of this runtime has an event.
    pub(crate) event: Arc<Notify>,
    /// The provider of the transport `loopback`, which connects ends of one runtime.
    pub(crate) loopback: Arc<Loopback>,
    /// Has the sockets of the transport `roce`, which ends with the same UDP port share.
    pub(crate) roce: Roce,
    /// The connections that are not over.
    pub(crate) open: Arc<Open>,
    /// The value of [`FORKS`] when the runtime was created.
    forks: u32,
}

/// Number of forks between the process that loaded the library and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The runtimes of this process.
struct Runtimes {
    /// The runtime of handles that were created without one. A forked process starts its own.
    default: Option<Arc<Runtime>>,
    all: Vec<Known>,
    /// Whether the end of the program closes its connections. This is no `Once`, which a fork may find half done.
    closes_at_exit: bool,
}

/// A runtime, and its connections, which another thread may still close when nothing refers to the runtime any more.
struct Known {
    runtime: Weak<Runtime>,
    open: Arc<Open>,
    forks: u32,
}

static RUNTIMES: Mutex<Runtimes> = Mutex::new(Runtimes {
    default: None,
    all: Vec::new(),
    closes_at_exit: false,
});

/// The locks of the library, from the beginning to the end of a fork, so that they are free in the new process.
struct DuringFork(UnsafeCell<Option<Locks>>);

type Locks = (
    MutexGuard<'static, Runtimes>,
    RwLockWriteGuard<'static, Objects>,
);

// SAFETY: only the thread that has the locks uses the cell.
unsafe impl Sync for DuringFork {}

static DURING_FORK: DuringFork = DuringFork(UnsafeCell::new(None));

/// The dynamic linker calls the functions in this section.
#[used]
#[cfg_attr(
    target_vendor = "apple",
    unsafe(link_section = "__DATA,__mod_init_func")
)]
#[cfg_attr(not(target_vendor = "apple"), unsafe(link_section = ".init_array"))]
static LOAD: extern "C" fn() = prepare_forks;

fn lock_runtimes() -> MutexGuard<'static, Runtimes> {
    RUNTIMES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the connections of this process that are not over, by runtime, and the runtimes that are left.
pub(crate) fn open_connections() -> Vec<(Arc<Open>, Option<Arc<Runtime>>)> {
    let forks = FORKS.load(Ordering::Relaxed);
    let runtimes = lock_runtimes();
    let own = runtimes.all.iter().filter(|known| known.forks == forks);
    let open = own.filter(|known| !known.open.is_none());
    open.map(|known| (known.open.clone(), known.runtime.upgrade()))
        .collect()
}

/// Has the end of the program call `function`, before anything is destroyed that the program created before its first
/// connection.
pub(crate) fn close_at_exit(function: extern "C" fn()) {
    let mut runtimes = lock_runtimes();
    if !runtimes.closes_at_exit {
        // SAFETY: the function may be called at any time. If it cannot be registered, the program ends without it.
        unsafe { libc::atexit(function) };
        runtimes.closes_at_exit = true;
    }
}

/// Has forks counted, and the locks held during them. This is done when the library is loaded, because a thread
/// may fork while another one makes the first call. Where the linker leaves [`LOAD`] out, every call does it
/// before it locks [`RUNTIMES`].
extern "C" fn prepare_forks() {
    static ONCE: Once = Once::new();

    extern "C" fn before() {
        let locks = (lock_runtimes(), pointers::lock_objects());
        // SAFETY: this thread has the locks.
        unsafe { *DURING_FORK.0.get() = Some(locks) };
    }
    extern "C" fn after_in_parent() {
        // SAFETY: this thread has the locks.
        drop(unsafe { (*DURING_FORK.0.get()).take() });
    }
    extern "C" fn after_in_child() {
        FORKS.fetch_add(1, Ordering::Relaxed);
        after_in_parent();
    }
    ONCE.call_once(|| {
        // SAFETY: the functions lock, unlock, and change an atomic, which is allowed around a fork.
        unsafe { libc::pthread_atfork(Some(before), Some(after_in_parent), Some(after_in_child)) };
    });
}

impl Runtimes {
    /// Creates a runtime.
    fn create(&mut self, driven: bool, log: Option<Dispatch>) -> Result<Arc<Runtime>, Failure> {
        let created = Runtime::new(driven, log)?;
        self.all
            .retain(|known| known.runtime.strong_count() > 0 || !known.open.is_none());
        self.all.push(Known {
            runtime: Arc::downgrade(&created),
            open: created.open.clone(),
            forks: created.forks,
        });
        Ok(created)
    }
}

impl Runtime {
    fn new(driven: bool, log: Option<Dispatch>) -> Result<Arc<Self>, Failure> {
        let mut builder = if driven {
            runtime::Builder::new_current_thread()
        } else {
            runtime::Builder::new_multi_thread()
        };
        if !driven {
            builder.worker_threads(1).thread_name("smbdirect");
        }
        let dispatch = log.clone();
        builder.on_thread_start(move || {
            block_signals();
            // The dispatcher stays until the thread ends.
            std::mem::forget(dispatch.as_ref().map(tracing::dispatcher::set_default));
        });
        Ok(Arc::new(Self {
            tokio: Some(builder.enable_all().build()?),
            driven,
            log,
            calls: Calls::default(),
            event: Arc::new(Notify::new()),
            loopback: Arc::new(Loopback::new()),
            roce: Roce::default(),
            open: Arc::default(),
            forks: FORKS.load(Ordering::Relaxed),
        }))
    }

    /// Returns the runtime of a handle, or the shared one for null.
    pub(crate) fn of(runtime: *const smbdirect_runtime) -> Result<Arc<Self>, Failure> {
        if !runtime.is_null() {
            let runtime = pointers::handle(runtime, "runtime")?;
            runtime.shared.check()?;
            return Ok(runtime.shared.clone());
        }
        prepare_forks();
        let mut runtimes = lock_runtimes();
        let runtime = match &runtimes.default {
            Some(runtime) if !runtime.is_inherited() => runtime.clone(),
            _ => {
                let created = runtimes.create(false, None)?;
                // The threads of an inherited runtime do not exist here, so it cannot be shut down.
                std::mem::forget(runtimes.default.replace(created.clone()));
                created
            }
        };
        drop(runtimes);
        runtime.check()?;
        Ok(runtime)
    }

    /// Returns whether the runtime was created before this process was forked.
    fn is_inherited(&self) -> bool {
        self.forks != FORKS.load(Ordering::Relaxed)
    }

    /// Fails where the runtime cannot be used: in a process that was forked after the runtime was created, and in the
    /// functions that exit() calls, where the thread-local values of tokio are destroyed.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if self.is_inherited() {
            return Err(Failure::new(
                SMBDIRECT_ERROR_FORKED,
                "the handle belongs to the process that forked this one",
            ));
        }
        match runtime::Handle::try_current() {
            Err(error) if error.is_thread_local_destroyed() => Err(Failure::new(
                SMBDIRECT_ERROR_SYSTEM,
                "the thread ends: call the library before exit() or the return of main()",
            )),
            _ => Ok(()),
        }
    }

    /// Runs `call` with this runtime and its log as the current ones of the thread.
    pub(crate) fn enter<T>(&self, call: impl FnOnce() -> T) -> T {
        let _context = self.tokio().enter();
        match &self.log {
            Some(dispatch) => tracing::dispatcher::with_default(dispatch, call),
            None => call(),
        }
    }

    pub(crate) fn tokio(&self) -> &runtime::Runtime {
        self.tokio.as_ref().expect("only the destructor takes it")
    }

    /// Runs a future to its end.
    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.tokio().block_on(future)
    }

    /// Drops a value with this runtime as the current one, which its destructor needs. Forgets the value if the
    /// thread cannot use the runtime.
    pub(crate) fn release<T>(&self, value: T) {
        match self.check() {
            Ok(()) => self.enter(|| drop(value)),
            Err(_) => std::mem::forget(value),
        }
    }

    /// Closes all connections of the runtime, and waits for their ends until a deadline.
    pub(crate) fn close_all(&self, deadline: time::Instant) {
        if self.open.is_none() {
            return;
        }
        self.enter(|| {
            self.open.end();
            // At the deadline the caller sees which connections are still open.
            let _ = self.block_on(async { time::timeout_at(deadline, self.open.none()).await });
        });
    }

    /// Starts a task.
    pub(crate) fn spawn(
        &self,
        future: impl Future<Output = ()> + Send + 'static,
    ) -> tokio::task::AbortHandle {
        self.tokio().spawn(future).abort_handle()
    }

    /// Waits for `future` in a call on the handle of `calls`. With a timeout of 0, polls it once, and `waker` is woken
    /// when it is worth polling again. A negative timeout never ends.
    ///
    /// # Errors
    /// The timeout is over, the handle ends, or the thread gives up.
    pub(crate) fn wait<T>(
        &self,
        timeout_ms: i32,
        waker: &Waker,
        calls: &Calls,
        future: impl Future<Output = T>,
    ) -> Result<T, Failure> {
        let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        let deadline = timeout.map(|timeout| time::Instant::now() + timeout);
        self.enter(|| {
            let mut future = pin!(future);
            loop {
                let left = deadline.map(|end| end.saturating_duration_since(time::Instant::now()));
                // The call does not count while it asks: the function may free the handle, and wait for its end.
                let call = calls.wait(future.as_mut());
                let value = match left {
                    Some(_) if timeout_ms == 0 => self.poll(waker, pin!(call)),
                    _ if interrupt::is_set() => {
                        let left = left.unwrap_or(Duration::MAX).min(interrupt::INTERVAL);
                        self.block_for(Some(left), call)
                    }
                    left => self.block_for(left, call),
                };
                match value {
                    Some(value) => return value,
                    None if deadline.is_some_and(|end| end <= time::Instant::now()) => {
                        return Err(Failure::timed_out(timeout_ms));
                    }
                    None => interrupt::ask()?,
                }
            }
        })
    }

    /// Waits for `future`, without the choice to give up. Returns `None` if it takes longer than `limit`.
    pub(crate) fn block_for<T>(
        &self,
        limit: Option<Duration>,
        future: impl Future<Output = T>,
    ) -> Option<T> {
        match limit {
            None => Some(self.block_on(future)),
            Some(limit) => self.block_on(async { time::timeout(limit, future).await.ok() }),
        }
    }

    fn poll<T>(&self, waker: &Waker, future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        if self.driven {
            // Let the tasks run once: they have no other opportunity.
            self.block_on(tokio::task::yield_now());
        }
        match future.poll(&mut Context::from_waker(waker)) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }
}

/// Leaves the signals of the process to the threads of the program, which may wait for them with sigwait() or a
/// signalfd. Signals of the thread itself, such as SIGSEGV, are not blocked.
fn block_signals() {
    const OF_THE_THREAD: [i32; 8] = [
        libc::SIGABRT,
        libc::SIGBUS,
        libc::SIGFPE,
        libc::SIGILL,
        libc::SIGPROF,
        libc::SIGSEGV,
        libc::SIGSYS,
        libc::SIGTRAP,
    ];
    // SAFETY: an empty set is valid, and the set is only used here.
    unsafe {
        let mut signals = std::mem::zeroed();
        libc::sigfillset(&raw mut signals);
        for signal in OF_THE_THREAD {
            libc::sigdelset(&raw mut signals, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const signals, std::ptr::null_mut());
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if self.check().is_err() {
            // It cannot be shut down here.
            std::mem::forget(self.tokio.take());
            return;
        }
        let deadline = time::Instant::now() + LINGER;
        // A panic means that the thread is not allowed to wait, because it ends or belongs to the runtime.
        let _ = catch_unwind(AssertUnwindSafe(|| self.close_all(deadline)));
        if let Some(tokio) = self.tokio.take() {
            // The threads end immediately, except one that resolves a name, which can take minutes.
            let end = || tokio.shutdown_timeout(Duration::from_secs(1));
            let _ = catch_unwind(AssertUnwindSafe(end));
        }
    }
}

/// Creates a runtime, for programs that want a log, or want to drive the library with their own thread.
/// Programs that pass NULL for the runtime share one with a thread of its own, which starts at the first
/// call that needs it.
///
/// With `driven` not 0, the runtime has no thread. Connections make progress, keepalives included, only
/// while the program is in smbdirect_runtime_run() or in another call on a handle of this runtime. This
/// saves the switch of threads for each message.
///
/// `log` receives the lines of the log up to `log_level`: 1 error, 2 warning, 3 information, 4 debug,
/// 5 trace. It may be NULL. It is not called any more when the runtime and all handles that were created from it
/// have been freed.
///
/// Returns 0 or SMBDIRECT_ERROR_SYSTEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smbdirect_runtime_new(
    driven: i32,
    log: smbdirect_log_callback,
    log_level: i32,
    user_data: *mut c_void,
    runtime: *mut *mut smbdirect_runtime,
    error: *mut smbdirect_error,
) -> i32 {
    // SAFETY: `error` and `runtime` follow the rules for arguments.
    unsafe {
        call_status(error, || {
            let out = pointers::out(runtime, "runtime")?;
            let log = log::dispatch(log, log_level, user_data);
            prepare_forks();
            let shared = lock_runtimes().create(driven != 0, log)?;
            *out = pointers::give(Arc::new(smbdirect_runtime { shared }));
            Ok(())
        })
    }
}

/// Lets a driven runtime work for up to `timeout_ms` milliseconds. Returns sooner when a handle of the
/// runtime has an event: a message, room for a message, a completed operation, a new connection, or the
/// end of a connection. A negative timeout waits without limit.
///
/// Also works on a runtime with a thread, which then only waits.
///
/// Returns 1 after an event and 0 after the timeout, or SMBDIRECT_ERROR_INVALID, _FORKED, _INTERRUPTED, or _ABORTED if
/// the runtime is freed meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smbdirect_runtime_run(
    runtime: *mut smbdirect_runtime,
    timeout_ms: i32,
    error: *mut smbdirect_error,
) -> i32 {
    // SAFETY: `error` and `runtime` follow the rules for arguments.
    let value = unsafe {
        crate::status::call(error, || {
            let runtime = Runtime::of(runtime)?;
            let event = runtime.event.notified();
            match runtime.wait(timeout_ms, Waker::noop(), &runtime.calls, event) {
                Ok(()) => Ok(1),
                Err(failure) => match failure.code {
                    SMBDIRECT_ERROR_TIMED_OUT | SMBDIRECT_ERROR_WOULD_BLOCK => Ok(0),
                    _ => Err(failure),
                },
            }
        })
    };
    value as i32
}

/// Frees a runtime. Handles that were created from it stay valid, and the last one to be freed ends it. Connections
/// that are still closing then, and those whose streams are open, are closed, which is waited for up to 10 s. NULL,
/// and a runtime that was freed before, are ignored. Calls of other threads that wait in smbdirect_runtime_run() end
/// with SMBDIRECT_ERROR_ABORTED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smbdirect_runtime_free(runtime: *mut smbdirect_runtime) {
    // SAFETY: there is no error to store.
    unsafe {
        call_status(std::ptr::null_mut(), || {
            pointers::handle(runtime, "runtime")?.shared.check()?;
            pointers::take(runtime, "runtime")?.shared.calls.end();
            Ok(())
        });
    }
}
