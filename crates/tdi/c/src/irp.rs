//! The life of a request: allocation, submission, completion and cancellation of IRPs.
//!
//! A request that the transport has is a `Request`, which completes its IRP exactly once: with the result of the
//! work, or as cancelled when it is dropped.

use std::{
    collections::HashMap,
    ffi::c_void,
    future::Future,
    ptr,
    sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, atomic::Ordering},
    task::{Context, Poll, Waker},
};

use smbdirect_tdi::Status;

use crate::{
    device::{Device, call_client, is_in_callback, runtime},
    dispatch,
    event::KeSetEvent,
    files::File,
    layout::{
        DeviceObject, IO_TYPE_IRP, IRP_MJ_INTERNAL_DEVICE_CONTROL, IoStackLocation, IoStatusBlock,
        Irp, KEvent, NtStatus, SL_INVOKE_ON_CANCEL, SL_INVOKE_ON_ERROR, SL_INVOKE_ON_SUCCESS,
        SL_PENDING_RETURNED,
    },
    mdl::free_locked,
};

/// Maximum number of stack locations of an IRP. CurrentLocation, one more, is a CHAR.
const MAX_STACK_COUNT: i8 = 126;

/// The flag of an IRP of [`IoAllocateIrp`], which is freed at the end of its life. The memory of other IRPs is the
/// client's.
const IRP_ALLOCATED: u8 = 0x01;

/// The result of a request: its status, and IoStatus.Information.
pub(crate) type Outcome = (Status, usize);

/// Cancels the work of a request.
pub(crate) type Cancel = Arc<dyn Fn() + Send + Sync>;

/// The requests that can be cancelled, by the addresses of their IRPs.
static CANCELS: LazyLock<Mutex<HashMap<usize, Cancel>>> = LazyLock::new(Mutex::default);

fn cancels() -> MutexGuard<'static, HashMap<usize, Cancel>> {
    CANCELS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether an IRP was cancelled.
///
/// # Safety
/// The IRP is valid.
pub(crate) unsafe fn is_cancelled(irp: *mut Irp) -> bool {
    // SAFETY: the caller promises a valid IRP.
    unsafe { &(*irp).cancel }.load(Ordering::SeqCst) != 0
}

/// Returns a status as the headers declare it.
pub(crate) const fn nt(status: Status) -> NtStatus {
    status.0 as NtStatus
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
    // SAFETY: the caller promises an IRP that the transport does not have.
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
    // SAFETY: the caller promises an IRP of `IoAllocateIrp`, or null.
    unsafe { libc::free(irp.cast()) };
}

/// Allocates an IRP that is freed when it completes. `TdiBuildInternalDeviceControlIrp` calls this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn IoBuildDeviceIoControlRequest(
    code: u32,
    device: *mut DeviceObject,
    _input: *mut c_void,
    input_length: u32,
    output: *mut c_void,
    output_length: u32,
    is_internal: u8,
    event: *mut KEvent,
    status_block: *mut IoStatusBlock,
) -> *mut Irp {
    // Requests of TDI have no such buffers.
    if is_internal == 0 || input_length != 0 || output_length != 0 || !output.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: the caller promises a valid device, or null.
    let stack_size = unsafe { device.as_ref() }.map_or(1, |device| device.stack_size);
    let irp = IoAllocateIrp(stack_size, 0);
    if irp.is_null() {
        return irp;
    }
    // SAFETY: the IRP is new, and has at least one stack location.
    unsafe {
        (*irp).user_event = event;
        (*irp).user_iosb = status_block;
        let location = (*irp).current_stack_location.sub(1);
        (*location).major_function = IRP_MJ_INTERNAL_DEVICE_CONTROL;
        (*location).minor_function = code as u8;
        (*location).device_object = device;
    }
    irp
}

/// Submits a request. A request that no device of this package can take completes with STATUS_INVALID_PARAMETER, so that
/// its client gets it back as always.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn IofCallDriver(device: *mut DeviceObject, irp: *mut Irp) -> NtStatus {
    // SAFETY: the caller promises a valid IRP that it owns.
    unsafe {
        if irp.is_null() || (*irp).kind != IO_TYPE_IRP {
            return nt(Status::INVALID_PARAMETER);
        }
        let has_location = (*irp).current_location > 1;
        if has_location {
            (*irp).current_location -= 1;
            (*irp).current_stack_location = (*irp).current_stack_location.sub(1);
            (*(*irp).current_stack_location).device_object = device;
        }
        match Device::of(device) {
            Some(known) if has_location => dispatch::request(known, irp),
            _ => refuse(irp, Status::INVALID_PARAMETER),
        }
    }
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

/// Cancels a request. Returns whether it was pending in a state in which it can be cancelled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn IoCancelIrp(irp: *mut Irp) -> u8 {
    if irp.is_null() {
        return 0;
    }
    let mut cancels = cancels();
    // SAFETY: the caller promises that the IRP is not freed during this call.
    unsafe { &(*irp).cancel }.store(1, Ordering::SeqCst);
    let Some(cancel) = cancels.remove(&(irp as usize)) else {
        return 0;
    };
    // SAFETY: the request had an entry, so it is pending, and cannot complete before it gets the lock. Without an entry
    // the IRP may belong to the client, and only its flag is written.
    unsafe { (*irp).cancel_routine = ptr::null_mut() };
    drop(cancels);
    cancel();
    1
}

/// Completes an IRP whose current stack location is that of the caller, which acts as a driver.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn IofCompleteRequest(irp: *mut Irp, _priority_boost: i8) {
    if irp.is_null() {
        return;
    }
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
pub(crate) struct Request {
    irp: *mut Irp,
    /// The file that waits for the request before it is closed.
    file: Arc<File>,
    outcome: Outcome,
}

// SAFETY: the IRP belongs to the transport until the request completes.
unsafe impl Send for Request {}

impl Request {
    /// Takes over an IRP whose current stack location is that of the transport.
    ///
    /// # Safety
    /// The IRP is valid and belongs to the transport from now on.
    pub(crate) unsafe fn new(irp: *mut Irp, file: Arc<File>) -> Self {
        file.request_started();
        Self {
            irp,
            file,
            outcome: (Status::CANCELLED, 0),
        }
    }

    /// Returns the file of the request.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Completes the request.
    pub(crate) fn complete(mut self, outcome: Outcome) {
        self.outcome = outcome;
    }

    /// Marks the request as pending. It is cancelled by `cancel`, if there is one; now if `IoCancelIrp` was called since
    /// the request was submitted.
    pub(crate) fn mark_pending(&self, cancel: Option<Cancel>) {
        let mut cancels = cancels();
        // SAFETY: the IRP belongs to the transport, and its current stack location is valid.
        unsafe { (*(*self.irp).current_stack_location).control |= SL_PENDING_RETURNED };
        let Some(cancel) = cancel else { return };
        // SAFETY: as above. `IoCancelIrp` sets the flag under the lock, so either it is seen here, or `IoCancelIrp` finds
        // the entry.
        if unsafe { is_cancelled(self.irp) } {
            drop(cancels);
            cancel();
            return;
        }
        // SAFETY: as above. A cancel routine that is not null says that the request can be cancelled.
        unsafe { (*self.irp).cancel_routine = IoCancelIrp as *mut c_void };
        cancels.insert(self.irp as usize, cancel);
    }

    /// Completes the request with the result of `work`: now if the result is there, otherwise on the transport's
    /// thread. Returns what `IoCallDriver` returns.
    ///
    /// A request that a handler or a completion routine submits never completes in the call. Otherwise a routine that
    /// submits the next request would be called inside itself once for each result that is there.
    pub(crate) fn run(
        self,
        work: impl Future<Output = Outcome> + Send + 'static,
        cancel: Option<Cancel>,
    ) -> NtStatus {
        let _context = runtime().enter();
        let mut work = Box::pin(work);
        if !is_in_callback() {
            let first = work.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            if let Poll::Ready(outcome) = first {
                self.complete(outcome);
                return nt(outcome.0);
            }
        }
        self.mark_pending(cancel);
        runtime().spawn(async move {
            let outcome = work.await;
            self.complete(outcome);
        });
        nt(Status::PENDING)
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let mut cancels = cancels();
        let cancel = cancels.remove(&(self.irp as usize));
        let (status, information) = self.outcome;
        // SAFETY: the IRP belongs to the transport until `IofCompleteRequest` returns it to the client.
        unsafe {
            (*self.irp).cancel_routine = ptr::null_mut();
            (*self.irp).io_status = IoStatusBlock::new(nt(status), information);
        }
        drop(cancels);
        drop(cancel);
        // SAFETY: as above.
        unsafe { IofCompleteRequest(self.irp, 0) };
        self.file.request_completed();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::{pending, poll_fn},
        sync::mpsc,
        thread,
        time::Duration,
    };

    use super::*;
    use crate::{
        event::{KeInitializeEvent, KeReadStateEvent},
        files::{Body, ZwClose, of_handle},
    };

    /// A thread cancels an IRP after its request was submitted and before it is pending.
    #[test]
    fn cancel_during_the_submission_is_not_lost() {
        let device = Device::named("\\Device\\SmbDirectLoopback").unwrap();
        let handle = File::open(device, Body::ControlChannel);
        let file = of_handle(handle).unwrap();
        let irp = IoAllocateIrp(1, 0);
        let mut event = std::mem::MaybeUninit::<KEvent>::uninit();
        let mut block = IoStatusBlock::new(1, 0);
        // SAFETY: the IRP is new. The event and the block outlive the request, for which this waits.
        let request = unsafe {
            KeInitializeEvent(event.as_mut_ptr(), 0, 0);
            (*irp).user_event = event.as_mut_ptr();
            (*irp).user_iosb = &raw mut block;
            (*irp).current_location -= 1;
            (*irp).current_stack_location = (*irp).current_stack_location.sub(1);
            Request::new(irp, file)
        };
        let (cancelled, is_cancelled) = mpsc::channel();
        let address = irp as usize;
        let mut canceller = Some(move || {
            // SAFETY: the request is pending until it is cancelled here.
            unsafe { IoCancelIrp(address as *mut Irp) }
        });
        let (told, is_told) = tokio::sync::oneshot::channel();
        let told = Mutex::new(Some(told));
        let work = async move {
            poll_fn(|_| {
                if let Some(canceller) = canceller.take() {
                    let found = thread::spawn(canceller).join().unwrap();
                    cancelled.send(found).unwrap();
                }
                Poll::Ready(())
            })
            .await;
            if is_told.await.is_err() {
                pending::<()>().await;
            }
            (Status::CANCELLED, 0)
        };
        let cancel = move || {
            if let Some(told) = told.lock().unwrap().take() {
                let _ = told.send(());
            }
        };
        assert_eq!(
            request.run(work, Some(Arc::new(cancel))),
            nt(Status::PENDING)
        );
        assert_eq!(is_cancelled.recv(), Ok(0));
        // SAFETY: the event was initialized.
        let mut is_set = || unsafe { KeReadStateEvent(event.as_mut_ptr()) } != 0;
        let mut left = 2000;
        while !is_set() && left > 0 {
            thread::sleep(Duration::from_millis(5));
            left -= 1;
        }
        assert!(left > 0, "the cancel is lost");
        assert_eq!(block.status(), nt(Status::CANCELLED));
        ZwClose(handle);
    }
}
