//! What clients use of Windows' kernel beside requests: IRQL, DPCs, timers, work items and threads.
//!
//! DPCs run on the transport's thread at DISPATCH_LEVEL, so that none runs at the same time as a handler or a routine.
//! Work items and threads run on threads of their own at PASSIVE_LEVEL.

use std::{
    cell::RefCell,
    collections::HashMap,
    ffi::c_void,
    mem, ptr,
    sync::{
        Arc, LazyLock, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, SystemTime},
};

use smbdirect_tdi::Status;
use tokio::time::sleep;

use crate::{
    device::{DISPATCH_LEVEL, bug_check, call_client, irql, lock, runtime, set_irql, wait_for},
    event::{
        KeInitializeEvent, KeReadStateEvent, KeSetEvent, TIMER_NOTIFICATION_OBJECT, Thread,
        duration, windows_time,
    },
    files::{Object, open},
    layout::{
        DeferredRoutine, DeviceObject, Handle, KDpc, KTimer, NtStatus, WorkQueueItem,
        WorkerRoutine, nt,
    },
};

/// DpcObject.
const DPC_OBJECT: u8 = 19;

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

impl Queue {
    fn add(&mut self, address: usize) -> u64 {
        self.last += 1;
        self.queued.insert(address, self.last);
        self.last
    }

    fn is_queued(&self, address: usize, number: u64) -> bool {
        self.queued.get(&address) == Some(&number)
    }
}

/// Initializes a DPC.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn KeInitializeDpc(
    dpc: *mut KDpc,
    routine: Option<DeferredRoutine>,
    context: *mut c_void,
) {
    // SAFETY: the caller promises memory for a DPC, in every field of which zeros are valid.
    unsafe {
        let mut value: KDpc = mem::zeroed();
        value.kind = DPC_OBJECT;
        value.deferred_routine = routine;
        value.deferred_context = context;
        dpc.write(value);
    }
}

/// Queues a DPC, unless it is queued. Returns whether it was queued by this call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn KeInsertQueueDpc(
    dpc: *mut KDpc,
    first: *mut c_void,
    second: *mut c_void,
) -> u8 {
    let address = dpc as usize;
    let mut queue = lock(&QUEUE);
    if queue.queued.contains_key(&address) {
        return 0;
    }
    // SAFETY: the caller promises a valid DPC.
    unsafe {
        (*dpc).system_argument1 = first;
        (*dpc).system_argument2 = second;
    }
    let number = queue.add(address);
    drop(queue);
    runtime().spawn(async move {
        let mut queue = lock(&QUEUE);
        if queue.is_queued(address, number) {
            queue.queued.remove(&address);
            // SAFETY: a DPC that is queued is valid until its routine is called.
            unsafe { call_dpc(address as *mut KDpc, move || drop(queue)) };
        }
    });
    1
}

/// Calls the routine of a DPC, which may free it.
///
/// # Safety
/// The DPC is valid until `unlock` has returned.
unsafe fn call_dpc(dpc: *mut KDpc, unlock: impl FnOnce()) {
    // SAFETY: the caller promises a valid DPC.
    let (routine, context, first, second) = unsafe {
        (
            (*dpc).deferred_routine,
            (*dpc).deferred_context,
            (*dpc).system_argument1,
            (*dpc).system_argument2,
        )
    };
    unlock();
    if let Some(routine) = routine {
        // SAFETY: the client has set the routine for such calls.
        call_client(|| unsafe { routine(dpc, context, first, second) });
    }
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
    let _ = wait_for(async {});
}

/// Initializes a timer; type 0 is a notification timer, and 1 a synchronization timer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn KeInitializeTimerEx(timer: *mut KTimer, kind: u32) {
    // SAFETY: the caller promises memory for a timer, in every field of which zeros are valid.
    unsafe {
        timer.write(mem::zeroed());
        let kind = u32::from(TIMER_NOTIFICATION_OBJECT) + kind;
        KeInitializeEvent(&raw mut (*timer).header, kind, 0);
    }
}

/// Initializes a notification timer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn KeInitializeTimer(timer: *mut KTimer) {
    // SAFETY: the promise is the same.
    unsafe { KeInitializeTimerEx(timer, 0) };
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
    let address = timer as usize;
    let period = Duration::from_millis(period.max(0).unsigned_abs().into());
    let mut queue = lock(&QUEUE);
    let was_set = queue.queued.contains_key(&address);
    let number = queue.add(address);
    // SAFETY: the caller promises a valid timer.
    unsafe {
        (*timer).dpc = dpc;
        (*timer).period = period.as_millis() as u32;
        (*timer).header.signal_state = 0;
    }
    drop(queue);
    runtime().spawn(async move {
        let mut wait = duration(due);
        loop {
            sleep(wait).await;
            if !fire(address, number, !period.is_zero()) || period.is_zero() {
                return;
            }
            wait = period;
        }
    });
    was_set.into()
}

/// Signals a timer and calls its DPC, if the timer is still set as it was by the call with this number.
fn fire(address: usize, number: u64, is_periodic: bool) -> bool {
    let timer = address as *mut KTimer;
    let mut queue = lock(&QUEUE);
    if !queue.is_queued(address, number) {
        return false;
    }
    if !is_periodic {
        queue.queued.remove(&address);
    }
    // SAFETY: a timer that is set is valid, and so is its DPC. A cancel needs the lock.
    unsafe {
        let dpc = (*timer).dpc;
        KeSetEvent(&raw mut (*timer).header, 0, 0);
        if dpc.is_null() {
            drop(queue);
        } else {
            call_dpc(dpc, move || drop(queue));
        }
    }
    true
}

/// Sets a timer that is signaled once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn KeSetTimer(timer: *mut KTimer, due: i64, dpc: *mut KDpc) -> u8 {
    // SAFETY: the promise is the same.
    unsafe { KeSetTimerEx(timer, due, 0, dpc) }
}

/// Cancels a timer. Returns whether it was set.
#[unsafe(no_mangle)]
pub extern "C" fn KeCancelTimer(timer: *mut KTimer) -> u8 {
    let removed = lock(&QUEUE).queued.remove(&(timer as usize));
    removed.is_some().into()
}

/// Returns whether a timer is signaled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn KeReadStateTimer(timer: *mut KTimer) -> u8 {
    // SAFETY: the caller promises a valid timer.
    u8::from(unsafe { KeReadStateEvent(&raw mut (*timer).header) } != 0)
}

/// A pointer that a thread hands to another one.
struct Handed<T>(T);

// SAFETY: the pointers belong to clients, which give them to functions for other threads.
unsafe impl<T> Send for Handed<T> {}

/// Runs `work` on a thread of its own, so that work that waits for other work does not keep it from running.
fn run_on_thread(work: impl FnOnce() + 'static) {
    let work = Handed(work);
    let run = move || {
        let Handed(work) = { work };
        work();
    };
    let spawned = thread::Builder::new()
        .name("tdi-work".to_owned())
        .spawn(run);
    if spawned.is_err() {
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

type IoWorkerRoutine = unsafe extern "C" fn(*mut DeviceObject, *mut c_void);

/// Allocates a work item of a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn IoAllocateWorkItem(device: *mut DeviceObject) -> *mut c_void {
    // SAFETY: the size is not 0. The memory is of malloc, so that tools find wrong uses of it.
    let item = unsafe { libc::malloc(size_of::<*mut DeviceObject>()) };
    if !item.is_null() {
        // SAFETY: the memory has room for a pointer.
        unsafe { item.cast::<*mut DeviceObject>().write(device) };
    }
    item
}

/// Queues a work item of a device. Its routine may free it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn IoQueueWorkItem(
    item: *mut c_void,
    routine: Option<IoWorkerRoutine>,
    _queue: u32,
    context: *mut c_void,
) {
    // SAFETY: the caller promises an item of `IoAllocateWorkItem`.
    let device = unsafe { item.cast::<*mut DeviceObject>().read() };
    if let Some(routine) = routine {
        // SAFETY: the client has set the routine for such a call.
        run_on_thread(move || unsafe { routine(device, context) });
    }
}

/// Frees a work item of a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn IoFreeWorkItem(item: *mut c_void) {
    // SAFETY: the caller promises an item of `IoAllocateWorkItem`, or null.
    unsafe { libc::free(item) };
}

/// Signals the object of a thread that ends, by its return or by PsTerminateSystemThread.
struct Ending(Arc<Thread>);

impl Drop for Ending {
    fn drop(&mut self) {
        // SAFETY: the object exists as long as this.
        unsafe { KeSetEvent(self.0.object(), 0, 0) };
    }
}

thread_local! {
    static ENDING: RefCell<Option<Ending>> = const { RefCell::new(None) };
}

/// What a new thread begins with.
struct Start {
    routine: WorkerRoutine,
    context: *mut c_void,
    thread: Arc<Thread>,
}

/// Calls the routine of a thread. PsTerminateSystemThread unwinds this frame, which then has nothing to drop.
unsafe extern "C-unwind" fn begin(start: *mut c_void) -> *mut c_void {
    // SAFETY: `PsCreateSystemThread` has allocated it as a box for this thread.
    let (routine, context) = unsafe { take(start.cast()) };
    // SAFETY: the client has given the routine for this call. Its type says that it may unwind.
    unsafe {
        let routine =
            mem::transmute::<WorkerRoutine, unsafe extern "C-unwind" fn(*mut c_void)>(routine);
        routine(context);
    }
    ptr::null_mut()
}

unsafe fn take(start: *mut Start) -> (WorkerRoutine, *mut c_void) {
    // SAFETY: the caller promises a box.
    let start = *unsafe { Box::from_raw(start) };
    ENDING.set(Some(Ending(start.thread)));
    (start.routine, start.context)
}

/// Starts a thread, and returns a handle of it.
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
    let thread = Arc::new(Thread::new());
    let start = Box::into_raw(Box::new(Start {
        routine,
        context,
        thread: thread.clone(),
    }));
    // SAFETY: the function has the type of a thread's, except that it may unwind, and takes over the box.
    let failed = unsafe {
        let begin = mem::transmute::<
            unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void,
            extern "C" fn(*mut c_void) -> *mut c_void,
        >(begin);
        let mut id = mem::zeroed();
        let failed = libc::pthread_create(&raw mut id, ptr::null(), begin, start.cast()) != 0;
        if failed {
            drop(Box::from_raw(start));
        } else {
            libc::pthread_detach(id);
        }
        failed
    };
    if failed {
        return nt(Status::INSUFFICIENT_RESOURCES);
    }
    // SAFETY: the caller promises a valid pointer.
    unsafe { handle.write(open(Object::Thread(thread))) };
    nt(Status::SUCCESS)
}
