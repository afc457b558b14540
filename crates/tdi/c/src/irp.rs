//! The life of a request: allocation, submission, completion and cancellation of IRPs.
//!
//! A request that the transport has is a `Request`, which completes its IRP exactly once: with the result of the
//! work, or as cancelled when it is dropped.

use std::{
    collections::HashMap,
    ffi::c_void,
    mem, ptr,
    sync::{
        Arc, LazyLock, Mutex,
        atomic::{AtomicPtr, Ordering},
    },
    thread::{self, ThreadId},
};

use smbdirect_tdi::Status;

use crate::{
    address::Returned,
    device::{bug_check, call_client, is_at_dispatch_level, lock, runtime},
    event::KeSetEvent,
    files::File,
    kernel::{IoAcquireCancelSpinLock, IoReleaseCancelSpinLock},
    layout::{
        DeviceObject, IO_TYPE_IRP, IoStackLocation, IoStatusBlock, Irp, NtStatus,
        SL_INVOKE_ON_CANCEL, SL_INVOKE_ON_ERROR, SL_INVOKE_ON_SUCCESS, SL_PENDING_RETURNED, nt,
    },
    mdl::{Outcome, free_locked},
};

/// Maximum number of stack locations of an IRP. CurrentLocation, one more, is a CHAR.
const MAX_STACK_COUNT: i8 = 126;

/// The flag of an IRP of [`IoAllocateIrp`], which is freed at the end of its life. The memory of other IRPs is the
/// client's.
const IRP_ALLOCATED: u8 = 0x01;

/// Cancels the work of a request.
pub(crate) type Cancel = Box<dyn Fn() + Send>;

/// How far a request has got that a client has submitted.
#[derive(Clone)]
pub(crate) struct Progress(Arc<Mutex<Step>>);

enum Step {
    /// This thread is in `IoCallDriver`. `IoCancelIrp` may have been called meanwhile.
    Submitting { thread: ThreadId, cancelled: bool },
    /// `IoCallDriver` returns STATUS_PENDING. The request can be cancelled once, if at all.
    Pending(Option<Cancel>),
    /// The request has completed within `IoCallDriver`, with this status, or later.
    Completed(Option<Status>),
}

impl Progress {
    fn new(step: Step) -> Self {
        Self(Arc::new(Mutex::new(step)))
    }

    /// Ends the submission of a request that can be cancelled by `cancel`. Returns what `IoCallDriver` returns.
    pub(crate) fn submitted(&self, cancel: Option<Cancel>) -> NtStatus {
        let mut step = lock(&self.0);
        let cancelled = match &*step {
            Step::Submitting { cancelled, .. } => *cancelled,
            Step::Completed(Some(status)) => return nt(*status),
            _ => return nt(Status::PENDING),
        };
        *step = Step::Pending(cancel);
        drop(step);
        if cancelled {
            self.cancel();
        }
        nt(Status::PENDING)
    }

    /// Cancels the request, now or as soon as it can be cancelled. Returns whether it was cancelled now.
    fn cancel(&self) -> bool {
        let cancel = match &mut *lock(&self.0) {
            Step::Submitting { cancelled, .. } => {
                *cancelled = true;
                None
            }
            Step::Pending(cancel) => cancel.take(),
            Step::Completed(_) => None,
        };
        cancel.map(|cancel| cancel()).is_some()
    }
}

/// The requests that the transport has, by the addresses of their IRPs.
static SUBMITTED: LazyLock<Mutex<HashMap<usize, Progress>>> = LazyLock::new(Mutex::default);

/// Ends the program if a client uses an IRP that the transport has, as a debugging kernel would.
pub(crate) fn check_owner(function: &str, irp: *mut Irp) {
    if lock(&SUBMITTED).contains_key(&(irp as usize)) {
        bug_check(&format!(
            "{function} was called with an IRP that the transport has; wait for its completion"
        ));
    }
}

/// Returns whether an IRP was cancelled.
///
/// # Safety
/// The IRP is valid.
pub(crate) unsafe fn is_cancelled(irp: *mut Irp) -> bool {
    // SAFETY: the caller promises a valid IRP.
    unsafe { &(*irp).cancel }.load(Ordering::SeqCst) != 0
}

/// Allocates an IRP.
#[unsafe(no_mangle)]
pub extern "C" fn IoAllocateIrp(stack_size: i8, _charge_quota: u8) -> *mut Irp {
    if !(1..=MAX_STACK_COUNT).contains(&stack_size) {
        return ptr::null_mut();
    }
    let size = size_of::<Irp>() + stack_size as usize * size_of::<IoStackLocation>();
    // SAFETY: the size is not 0. The memory is of malloc, so that tools find wrong uses of it.
    let irp = unsafe { libc::malloc(size) }.cast::<Irp>();
    if !irp.is_null() {
        // SAFETY: the memory has this size.
        unsafe {
            IoInitializeIrp(irp, size as u16, stack_size);
            (*irp).allocation_flags = IRP_ALLOCATED;
        }
    }
    irp
}

/// Initializes memory of the caller's as an IRP.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn IoInitializeIrp(irp: *mut Irp, size: u16, stack_size: i8) {
    let needed =
        size_of::<Irp>() + usize::from(stack_size.max(0) as u8) * size_of::<IoStackLocation>();
    let is_counted = (1..=MAX_STACK_COUNT).contains(&stack_size);
    if irp.is_null() || !is_counted || usize::from(size) < needed {
        return;
    }
    // SAFETY: the caller promises memory of `size` bytes. Zeros are valid in every field. The stack begins after
    // the IRP, and the location after its last is where an unsubmitted IRP is.
    unsafe {
        irp.cast::<u8>().write_bytes(0, usize::from(size));
        (*irp).kind = IO_TYPE_IRP;
        (*irp).size = size;
        (*irp).stack_count = stack_size;
        (*irp).current_location = stack_size + 1;
        let stack = irp.add(1).cast::<IoStackLocation>();
        (*irp).current_stack_location = stack.add(stack_size.max(0) as usize);
        let list = &raw mut (*irp).thread_list_entry;
        (*irp).thread_list_entry.flink = list;
        (*irp).thread_list_entry.blink = list;
    }
}

/// Makes a completed IRP ready for another request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn IoReuseIrp(irp: *mut Irp, status: NtStatus) {
    if irp.is_null() {
        return;
    }
    check_owner("IoReuseIrp", irp);
    // SAFETY: the caller promises a valid IRP.
    unsafe {
        let (size, stack_count, flags) = ((*irp).size, (*irp).stack_count, (*irp).allocation_flags);
        IoInitializeIrp(irp, size, stack_count);
        (*irp).allocation_flags = flags;
        (*irp).io_status = IoStatusBlock::new(status, 0);
    }
}

/// Frees an IRP of [`IoAllocateIrp`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn IoFreeIrp(irp: *mut Irp) {
    check_owner("IoFreeIrp", irp);
    // SAFETY: the caller promises an IRP of `IoAllocateIrp`, or null.
    unsafe { libc::free(irp.cast()) };
}

/// Completes an IRP that belongs to no file, and returns its status.
///
/// # Safety
/// The IRP is valid, and its current stack location is that of the transport.
pub(crate) unsafe fn refuse(irp: *mut Irp, status: Status) -> NtStatus {
    // SAFETY: the caller promises a valid IRP.
    unsafe {
        (*irp).io_status = IoStatusBlock::new(nt(status), 0);
        IofCompleteRequest(irp, 0);
    }
    nt(status)
}

/// Cancels a request. Returns whether it was pending in a state in which it can be cancelled. An IRP that the transport does
/// not have is cancelled by the routine that its holder has set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn IoCancelIrp(irp: *mut Irp) -> u8 {
    if irp.is_null() {
        return 0;
    }
    let submitted = lock(&SUBMITTED);
    // SAFETY: the caller promises that the IRP is not freed during this call. It may belong to the client, so only its
    // flag is written.
    unsafe { &(*irp).cancel }.store(1, Ordering::SeqCst);
    let progress = submitted.get(&(irp as usize)).cloned();
    drop(submitted);
    match progress {
        Some(progress) => progress.cancel().into(),
        // SAFETY: the promise is the same.
        None => unsafe { call_cancel_routine(irp) }.into(),
    }
}

type CancelRoutine = unsafe extern "C" fn(*mut DeviceObject, *mut Irp);

/// Calls the cancel routine that a client has set on its IRP. The routine releases the cancel spin lock.
///
/// # Safety
/// The IRP is valid.
unsafe fn call_cancel_routine(irp: *mut Irp) -> bool {
    let mut level = 0;
    // SAFETY: the caller promises a valid IRP. IoSetCancelRoutine exchanges the field in the same way.
    unsafe {
        IoAcquireCancelSpinLock(&raw mut level);
        let routine = AtomicPtr::from_ptr(&raw mut (*irp).cancel_routine);
        let routine = routine.swap(ptr::null_mut(), Ordering::SeqCst);
        if routine.is_null() {
            IoReleaseCancelSpinLock(level);
            return false;
        }
        (*irp).cancel_irql = level;
        let location = (*irp).current_stack_location;
        let device = if (*irp).current_location <= (*irp).stack_count {
            (*location).device_object
        } else {
            ptr::null_mut()
        };
        let routine = mem::transmute::<*mut c_void, CancelRoutine>(routine);
        routine(device, irp);
    }
    true
}

/// Completes an IRP whose current stack location is that of the caller, which acts as a driver.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn IofCompleteRequest(irp: *mut Irp, _priority_boost: i8) {
    if irp.is_null() {
        return;
    }
    check_owner("IoCompleteRequest", irp);
    // SAFETY: the caller promises a valid IRP that it owns.
    unsafe {
        while (*irp).current_location <= (*irp).stack_count {
            let location = (*irp).current_stack_location;
            (*irp).pending_returned = (*location).control & SL_PENDING_RETURNED;
            (*irp).current_location += 1;
            (*irp).current_stack_location = location.add(1);
            let is_top = (*irp).current_location > (*irp).stack_count;
            let is_error = (*irp).io_status.status() < 0;
            let wanted = if is_error {
                SL_INVOKE_ON_ERROR
            } else {
                SL_INVOKE_ON_SUCCESS
            };
            let cancelled = (*location).control & SL_INVOKE_ON_CANCEL != 0 && is_cancelled(irp);
            if (*location).control & wanted != 0 || cancelled {
                let device = if is_top {
                    ptr::null_mut()
                } else {
                    (*(*irp).current_stack_location).device_object
                };
                let context = (*location).context;
                let routine = (*location).completion_routine;
                let status = routine.map(|routine| call_client(|| routine(device, irp, context)));
                if status == Some(nt(Status::MORE_PROCESSING_REQUIRED)) {
                    // The IRP belongs to the client again, which may have freed it.
                    return;
                }
            } else if (*irp).pending_returned != 0 && !is_top {
                (*(*irp).current_stack_location).control |= SL_PENDING_RETURNED;
            }
        }
        finish(irp);
    }
}

/// Ends the life of an IRP after all completion routines: reports the status, and frees the IRP and the memory
/// descriptions that are locked.
///
/// # Safety
/// The IRP is valid, and nothing uses it.
unsafe fn finish(irp: *mut Irp) {
    // SAFETY: the caller promises a valid IRP, with a chain of valid descriptions.
    unsafe {
        free_locked(irp);
        let (block, event, status) = ((*irp).user_iosb, (*irp).user_event, (*irp).io_status);
        if (*irp).allocation_flags & IRP_ALLOCATED != 0 {
            IoFreeIrp(irp);
        }
        if !block.is_null() {
            block.write(status);
        }
        KeSetEvent(event, 0, 0);
    }
}

/// A request that the transport has. Its IRP completes when it is dropped at the latest.
pub(crate) struct Request(Option<Completion>);

/// The completion of a request.
struct Completion {
    irp: *mut Irp,
    /// The file that waits for the request before it is closed.
    file: Arc<File>,
    progress: Progress,
    outcome: Outcome,
}

// SAFETY: the IRP belongs to the transport until `run` returns it to the client.
unsafe impl Send for Completion {}

impl Request {
    /// Takes over an IRP within `IoCallDriver`.
    ///
    /// # Safety
    /// The IRP is valid and belongs to the transport from now on. Its current stack location is that of the transport.
    pub(crate) unsafe fn submitted(irp: *mut Irp, file: Arc<File>) -> (Self, Progress) {
        let progress = Progress::new(Step::Submitting {
            thread: thread::current().id(),
            cancelled: false,
        });
        // SAFETY: the promise is the same.
        (unsafe { Self::new(irp, file, progress.clone()) }, progress)
    }

    /// Takes over an IRP that a handler has returned.
    ///
    /// # Safety
    /// As [`submitted`](Self::submitted).
    pub(crate) unsafe fn returned(irp: *mut Irp, file: Arc<File>) -> Self {
        // SAFETY: the promise is the same.
        unsafe { Self::new(irp, file, Progress::new(Step::Pending(None))) }
    }

    unsafe fn new(irp: *mut Irp, file: Arc<File>, progress: Progress) -> Self {
        file.request_started();
        lock(&SUBMITTED).insert(irp as usize, progress.clone());
        // SAFETY: the caller promises a valid IRP. It may complete at any time from now on, so it is marked here.
        unsafe { (*(*irp).current_stack_location).control |= SL_PENDING_RETURNED };
        Self(Some(Completion {
            irp,
            file,
            progress,
            outcome: (Status::CANCELLED, 0),
        }))
    }

    /// Returns the file of the request.
    pub(crate) fn file(&self) -> &Arc<File> {
        let completion = self.0.as_ref();
        &completion.expect("only `drop` takes the completion").file
    }

    /// Returns what completes a request that establishes a connection: the address of the peer is returned, too.
    pub(crate) fn establishes(self, returned: Returned) -> impl FnOnce(Result<(), Status>) + Send {
        move |result| {
            if result.is_ok() {
                let endpoint = self.file().endpoint();
                let peer = endpoint.and_then(|endpoint| endpoint.peer_addr());
                // SAFETY: the information belongs to the transport until the request completes.
                unsafe { returned.write(peer.ok()) };
            }
            self.complete((result.err().unwrap_or(Status::SUCCESS), 0));
        }
    }

    /// Completes the request.
    pub(crate) fn complete(mut self, outcome: Outcome) {
        if let Some(completion) = &mut self.0 {
            completion.outcome = outcome;
        }
    }
}

impl Step {
    /// Returns whether this thread is in the `IoCallDriver` that submits the request.
    fn is_in_call(&self) -> bool {
        matches!(self, Self::Submitting { thread, .. } if *thread == thread::current().id())
    }
}

impl Drop for Request {
    /// Completes the IRP, at DISPATCH_LEVEL after the call that has led here. The caller may be a routine that submits the
    /// next request, and would be called inside itself, or may hold a lock that the routine needs.
    fn drop(&mut self) {
        let Some(completion) = self.0.take() else {
            return;
        };
        if !is_at_dispatch_level() {
            return completion.run();
        }
        let mut step = lock(&completion.progress.0);
        if step.is_in_call() {
            *step = Step::Pending(None);
        }
        drop(step);
        runtime().spawn(async move { completion.run() });
    }
}

impl Completion {
    fn run(self) {
        let (status, information) = self.outcome;
        let mut step = lock(&self.progress.0);
        let is_in_call = step.is_in_call();
        let last = mem::replace(&mut *step, Step::Completed(is_in_call.then_some(status)));
        drop(step);
        drop(last);
        lock(&SUBMITTED).remove(&(self.irp as usize));
        // SAFETY: the IRP belongs to the transport until `IofCompleteRequest` returns it to the client.
        unsafe {
            if is_in_call {
                (*(*self.irp).current_stack_location).control &= !SL_PENDING_RETURNED;
            }
            (*self.irp).io_status = IoStatusBlock::new(nt(status), information);
            IofCompleteRequest(self.irp, 0);
        }
        self.file.request_completed();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        device::Device,
        files::{Body, ZwClose, of_handle},
    };

    /// A thread cancels an IRP after its request was submitted and before it is pending.
    #[test]
    fn cancel_during_the_submission_is_not_lost() {
        let device = Device::named("\\Device\\SmbDirectLoopback").unwrap();
        let handle = File::open(device, Body::ControlChannel);
        let file = of_handle(handle).unwrap();
        let irp = IoAllocateIrp(1, 0);
        let mut block = IoStatusBlock::new(1, 0);
        // SAFETY: the IRP is new. The block outlives the request, which completes here.
        let (request, progress) = unsafe {
            (*irp).user_iosb = &raw mut block;
            (*irp).current_location -= 1;
            (*irp).current_stack_location = (*irp).current_stack_location.sub(1);
            Request::submitted(irp, file)
        };
        let address = irp as usize;
        // SAFETY: the request is pending.
        let cancel = || unsafe { IoCancelIrp(address as *mut Irp) };
        thread::scope(|scope| {
            assert_eq!(scope.spawn(cancel).join().unwrap(), 0, "it is remembered");
        });
        let request = Mutex::new(Some(request));
        let work = Box::new(move || {
            let request = lock(&request).take().expect("it is cancelled once");
            request.complete((Status::CANCELLED, 7));
        });
        assert_eq!(progress.submitted(Some(work)), nt(Status::PENDING));
        assert_eq!(
            (block.status(), block.information),
            (nt(Status::CANCELLED), 7)
        );
        ZwClose(handle);
    }
}
