//! What clients use of Windows' kernel beside requests: IRQL, DPCs, timers, work items and threads.
//!
//! DPCs run on the transport's thread at DISPATCH_LEVEL, so that none runs at the same time as a handler or a routine.
//! Work items and threads run on threads of their own at PASSIVE_LEVEL.

use std::{
    collections::HashMap,
    ffi::c_void,
    mem, ptr,
    sync::{
        Arc, LazyLock, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, SystemTime},
};

use smbdirect_tdi::Status;
use tokio::time::sleep;

use crate::{
    device::{
        DISPATCH_LEVEL, bug_check, call_client, check_may_wait, irql, lock, runtime, set_irql,
        wait_for,
    },
    event::{KeSetEvent, Thread, duration, windows_time},
    files::{Object, open},
    layout::{Handle, KDpc, KTimer, NtStatus, WorkQueueItem, WorkerRoutine, nt},
};

/// Returns the IRQL of this thread: DISPATCH_LEVEL in completion routines, event handlers and DPCs.
#[unsafe(no_mangle)]
pub extern "C" fn KeGetCurrentIrql() -> u8 {
    irql()
}

/// Raises the IRQL of this thread, and returns the one before.
#[unsafe(no_mangle)]
pub extern "C" fn KfRaiseIrql(level: u8) -> u8 {
    if level < irql() {
        bug_check("KeRaiseIrql was called with a lower IRQL; use KeLowerIrql");
    }
    set_irql(level)
}

/// Lowers the IRQL of this thread.
#[unsafe(no_mangle)]
pub extern "C" fn KeLowerIrql(level: u8) {
    if level > irql() {
        bug_check("KeLowerIrql was called with a higher IRQL; use KeRaiseIrql");
    }
    set_irql(level);
}

static CANCEL_SPIN_LOCK: AtomicBool = AtomicBool::new(false);

/// Acquires the spin lock of cancel routines.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn IoAcquireCancelSpinLock(level: *mut u8) {
    let before = KfRaiseIrql(irql().max(DISPATCH_LEVEL));
    while CANCEL_SPIN_LOCK.swap(true, Ordering::Acquire) {
        thread::yield_now();
    }
    // SAFETY: the caller promises a valid pointer.
    unsafe { level.write(before) };
}

/// Releases the spin lock of cancel routines.
#[unsafe(no_mangle)]
pub extern "C" fn IoReleaseCancelSpinLock(level: u8) {
    CANCEL_SPIN_LOCK.store(false, Ordering::Release);
    KeLowerIrql(level);
}

/// Returns the time of this machine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn KeQuerySystemTime(time: *mut i64) {
    // SAFETY: the caller promises a valid pointer.
    unsafe { time.write(windows_time(SystemTime::now())) };
}

/// The DPCs and timers that are queued, by their addresses. What a client removes or queues again gets another number, so
/// that what was queued before does nothing and does not touch the memory.
#[derive(Default)]
struct Queue {
    queued: HashMap<usize, u64>,
    last: u64,
}

static QUEUE: LazyLock<Mutex<Queue>> = LazyLock::new(Mutex::default);

/// Queues what is at an address: after `wait`, and then after each `period` that is not 0, `due` is called, and then the
/// routine of the DPC that it returns.
fn queue(
    mut queue: MutexGuard<'_, Queue>,
    address: usize,
    mut wait: Duration,
    period: Duration,
    due: unsafe fn(usize) -> *mut KDpc,
) {
    queue.last += 1;
    let number = queue.last;
    queue.queued.insert(address, number);
    drop(queue);
    runtime().spawn(async move {
        loop {
            if !wait.is_zero() {
                sleep(wait).await;
            }
            if !call(address, number, period, due) || period.is_zero() {
                return;
            }
            wait = period;
        }
    });
}

/// Calls the routine of a DPC, if it or its timer is still queued with this number. The routine may free both.
fn call(address: usize, number: u64, period: Duration, due: unsafe fn(usize) -> *mut KDpc) -> bool {
    let mut queue = lock(&QUEUE);
    if queue.queued.get(&address) != Some(&number) {
        return false;
    }
    if period.is_zero() {
        queue.queued.remove(&address);
    }
    // SAFETY: what is queued is valid, and to remove it needs the lock.
    let (dpc, fields) = unsafe {
        let dpc = due(address);
        (dpc, dpc.as_ref().map(|dpc| *dpc))
    };
    drop(queue);
    if let Some(fields) = fields
        && let Some(routine) = fields.deferred_routine
    {
        let (first, second) = (fields.system_argument1, fields.system_argument2);
        // SAFETY: the client has set the routine for such calls.
        call_client(|| unsafe { routine(dpc, fields.deferred_context, first, second) });
    }
    true
}

/// Queues a DPC, unless it is queued. Returns whether it was queued by this call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn KeInsertQueueDpc(
    dpc: *mut KDpc,
    first: *mut c_void,
    second: *mut c_void,
) -> u8 {
    let queued = lock(&QUEUE);
    if queued.queued.contains_key(&(dpc as usize)) {
        return 0;
    }
    // SAFETY: the caller promises a valid DPC.
    unsafe {
        (*dpc).system_argument1 = first;
        (*dpc).system_argument2 = second;
    }
    let none = Duration::ZERO;
    queue(queued, dpc as usize, none, none, |dpc| dpc as *mut KDpc);
    1
}

/// Removes a DPC from the queue. Returns whether it was queued.
#[unsafe(no_mangle)]
pub extern "C" fn KeRemoveQueueDpc(dpc: *mut KDpc) -> u8 {
    let removed = lock(&QUEUE).queued.remove(&(dpc as usize));
    removed.is_some().into()
}

/// Waits until the DPCs that were queued have run.
#[unsafe(no_mangle)]
pub extern "C" fn KeFlushQueuedDpcs() {
    check_may_wait("KeFlushQueuedDpcs");
    let _ = wait_for(async {});
}

/// Sets a timer, which is signaled at `due` and then, if `period` is not 0, after each period in milliseconds. Returns
/// whether it was set before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn KeSetTimerEx(
    timer: *mut KTimer,
    due: i64,
    period: i32,
    dpc: *mut KDpc,
) -> u8 {
    let period = Duration::from_millis(period.max(0).unsigned_abs().into());
    let queued = lock(&QUEUE);
    let was_set = queued.queued.contains_key(&(timer as usize));
    // SAFETY: the caller promises a valid timer.
    unsafe {
        (*timer).dpc = dpc;
        (*timer).period = period.as_millis() as u32;
        (*timer).header.signal_state = 0;
    }
    queue(queued, timer as usize, duration(due), period, |timer| {
        let timer = timer as *mut KTimer;
        // SAFETY: a timer that is queued is valid.
        unsafe {
            let dpc = (*timer).dpc;
            KeSetEvent(&raw mut (*timer).header, 0, 0);
            dpc
        }
    });
    was_set.into()
}

/// Cancels a timer. Returns whether it was set.
#[unsafe(no_mangle)]
pub extern "C" fn KeCancelTimer(timer: *mut KTimer) -> u8 {
    let removed = lock(&QUEUE).queued.remove(&(timer as usize));
    removed.is_some().into()
}

/// A value that a thread hands to another one.
struct Handed<T>(T);

// SAFETY: the values have pointers of clients, which give them to functions for other threads.
unsafe impl<T> Send for Handed<T> {}

impl<T> Handed<T> {
    fn take(self) -> T {
        self.0
    }
}

/// Runs `work` on a thread of its own, so that work that waits for other work does not keep it from running.
fn run_on_thread(work: impl FnOnce() + 'static) {
    let work = Handed(work);
    let run = move || work.take()();
    let thread = thread::Builder::new().name("tdi-work".to_owned());
    if thread.spawn(run).is_err() {
        bug_check("a work item cannot run, because the system starts no more threads");
    }
}

/// Queues a work item. Its memory may be freed as soon as its routine is called.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ExQueueWorkItem(item: *mut WorkQueueItem, _queue: u32) {
    // SAFETY: the caller promises a valid item.
    let (routine, parameter) = unsafe { ((*item).worker_routine, (*item).parameter) };
    if let Some(routine) = routine {
        // SAFETY: the client has set the routine for such a call.
        run_on_thread(move || unsafe { routine(parameter) });
    }
}

/// Starts a thread, and returns a handle of it. No frame of this package is on its stack, so it may end anywhere.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PsCreateSystemThread(
    handle: *mut Handle,
    _access: u32,
    _attributes: *const c_void,
    _process: Handle,
    _client_id: *mut c_void,
    routine: Option<WorkerRoutine>,
    context: *mut c_void,
) -> NtStatus {
    let (Some(routine), false) = (routine, handle.is_null()) else {
        return nt(Status::INVALID_PARAMETER);
    };
    // SAFETY: the routine has the type of a thread's, except that it returns nothing, and nobody reads that.
    let id = unsafe {
        let routine =
            mem::transmute::<WorkerRoutine, extern "C" fn(*mut c_void) -> *mut c_void>(routine);
        let mut id = mem::zeroed();
        if libc::pthread_create(&raw mut id, ptr::null(), routine, context) != 0 {
            return nt(Status::INSUFFICIENT_RESOURCES);
        }
        id
    };
    let thread = Arc::new(Thread::new());
    let ended = thread.clone();
    // SAFETY: the thread is joined once, and its object exists as long as the reference.
    run_on_thread(move || unsafe {
        libc::pthread_join(id, ptr::null_mut());
        KeSetEvent(ended.object(), 0, 0);
    });
    // SAFETY: the caller promises a valid pointer.
    unsafe { handle.write(open(Object::Thread(thread))) };
    nt(Status::SUCCESS)
}
