//! The structures of the headers in `include`. `tests/headers.rs` compares their layouts.

use std::{ffi::c_void, sync::atomic::AtomicU8};

use smbdirect_tdi::Status;

/// The minor functions of TDI that a handler can return.
pub(crate) const ACCEPT: u8 = 0x05;
pub(crate) const RECEIVE: u8 = 0x08;

/// NTSTATUS, as the headers declare it.
pub type NtStatus = i32;
/// Returns a status as the headers declare it.
pub(crate) const fn nt(status: Status) -> NtStatus {
    status.0 as NtStatus
}

/// A handle of a file.
pub type Handle = *mut c_void;
/// A completion routine of a client.
pub type CompletionRoutine =
    unsafe extern "C" fn(*mut DeviceObject, *mut Irp, *mut c_void) -> NtStatus;
/// The routine of a DPC.
pub type DeferredRoutine = unsafe extern "C" fn(*mut KDpc, *mut c_void, *mut c_void, *mut c_void);
/// The routine of a work item or of a thread.
pub type WorkerRoutine = unsafe extern "C" fn(*mut c_void);

/// LIST_ENTRY.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ListEntry {
    pub flink: *mut Self,
    pub blink: *mut Self,
}

/// KEVENT.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KEvent {
    pub kind: u8,
    pub signalling: u8,
    pub size: u8,
    pub reserved: u8,
    pub signal_state: i32,
    pub wait_list_head: ListEntry,
}

/// KTIMER.
#[repr(C)]
#[derive(Debug)]
pub struct KTimer {
    pub header: KEvent,
    pub due_time: u64,
    pub timer_list_entry: ListEntry,
    pub dpc: *mut KDpc,
    pub processor: u32,
    pub period: u32,
}

/// KDPC.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KDpc {
    pub kind: u8,
    pub importance: u8,
    pub number: u16,
    pub dpc_list_entry: ListEntry,
    pub deferred_routine: Option<DeferredRoutine>,
    pub deferred_context: *mut c_void,
    pub system_argument1: *mut c_void,
    pub system_argument2: *mut c_void,
    pub dpc_data: *mut c_void,
}

/// WORK_QUEUE_ITEM.
#[repr(C)]
#[derive(Debug)]
pub struct WorkQueueItem {
    pub list: ListEntry,
    pub worker_routine: Option<WorkerRoutine>,
    pub parameter: *mut c_void,
}

/// IO_STATUS_BLOCK. The union of the status and a pointer is as large as the pointer.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct IoStatusBlock {
    pub status: StatusOrPointer,
    pub information: usize,
}

/// The union at the start of IO_STATUS_BLOCK.
#[repr(C)]
#[derive(Clone, Copy)]
pub union StatusOrPointer {
    pub status: NtStatus,
    pub pointer: *mut c_void,
}

impl std::fmt::Debug for StatusOrPointer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // SAFETY: every bit pattern is a status.
        write!(f, "{:#x}", unsafe { self.status })
    }
}

impl IoStatusBlock {
    /// Returns the status block of a completed request.
    pub(crate) const fn new(status: NtStatus, information: usize) -> Self {
        let mut block = Self {
            status: StatusOrPointer {
                pointer: std::ptr::null_mut(),
            },
            information,
        };
        block.status.status = status;
        block
    }

    pub(crate) const fn status(&self) -> NtStatus {
        // SAFETY: every bit pattern is a status.
        unsafe { self.status.status }
    }
}

/// UNICODE_STRING.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct UnicodeString {
    pub length: u16,
    pub maximum_length: u16,
    pub buffer: *mut u16,
}

/// OBJECT_ATTRIBUTES.
#[repr(C)]
#[derive(Debug)]
pub struct ObjectAttributes {
    pub length: u32,
    pub root_directory: Handle,
    pub object_name: *mut UnicodeString,
    pub attributes: u32,
    pub security_descriptor: *mut c_void,
    pub security_quality_of_service: *mut c_void,
}

/// MDL.
#[repr(C)]
#[derive(Debug)]
pub struct Mdl {
    pub next: *mut Self,
    pub size: i16,
    pub flags: i16,
    pub process: *mut c_void,
    pub mapped_system_va: *mut c_void,
    pub start_va: *mut c_void,
    pub byte_count: u32,
    pub byte_offset: u32,
}

pub const MDL_MAPPED_TO_SYSTEM_VA: i16 = 0x0001;
pub const MDL_PAGES_LOCKED: i16 = 0x0002;

/// DEVICE_OBJECT, of which the transport sets the fields with names.
#[repr(C)]
#[derive(Debug)]
pub struct DeviceObject {
    pub kind: i16,
    pub size: u16,
    pub reference_count: i32,
    pub unused: [*mut c_void; 8],
    pub device_type: u32,
    pub stack_size: i8,
    pub reserved: [*mut c_void; 31],
}

/// FILE_OBJECT, of which the transport sets the first fields.
#[repr(C)]
#[derive(Debug)]
pub struct FileObject {
    pub kind: i16,
    pub size: i16,
    pub device_object: *mut DeviceObject,
    pub vpb: *mut c_void,
    pub fs_context: *mut c_void,
    pub fs_context2: *mut c_void,
    pub rest: [*mut c_void; 22],
}

/// IO_STACK_LOCATION. The parameters are those of the minor function.
#[repr(C)]
#[derive(Debug)]
pub struct IoStackLocation {
    pub major_function: u8,
    pub minor_function: u8,
    pub flags: u8,
    pub control: u8,
    pub parameters: [*mut c_void; 4],
    pub device_object: *mut DeviceObject,
    pub file_object: *mut FileObject,
    pub completion_routine: Option<CompletionRoutine>,
    pub context: *mut c_void,
}

impl IoStackLocation {
    /// Returns the parameters of a request.
    ///
    /// # Safety
    /// `T` is the type of the request's parameters.
    pub(crate) unsafe fn parameters<T: Copy>(&self) -> T {
        // SAFETY: the parameters have room for each type of them.
        unsafe { (&raw const self.parameters).cast::<T>().read() }
    }
}

pub const SL_PENDING_RETURNED: u8 = 0x01;
pub const SL_INVOKE_ON_CANCEL: u8 = 0x20;
pub const SL_INVOKE_ON_SUCCESS: u8 = 0x40;
pub const SL_INVOKE_ON_ERROR: u8 = 0x80;

pub const IRP_MJ_INTERNAL_DEVICE_CONTROL: u8 = 0x0F;
pub const IRP_MJ_READ: u8 = 0x03;
pub const IRP_MJ_WRITE: u8 = 0x04;

/// IRP.
#[repr(C)]
#[derive(Debug)]
pub struct Irp {
    pub kind: i16,
    pub size: u16,
    pub mdl_address: *mut Mdl,
    pub flags: u32,
    pub associated_irp: *mut c_void,
    pub thread_list_entry: ListEntry,
    pub io_status: IoStatusBlock,
    pub requestor_mode: i8,
    pub pending_returned: u8,
    pub stack_count: i8,
    pub current_location: i8,
    /// Another thread can set it at any time while the transport has the IRP.
    pub cancel: AtomicU8,
    pub cancel_irql: u8,
    pub apc_environment: i8,
    pub allocation_flags: u8,
    pub user_iosb: *mut IoStatusBlock,
    pub user_event: *mut KEvent,
    pub overlay: [*mut c_void; 2],
    pub cancel_routine: *mut c_void,
    pub user_buffer: *mut c_void,
    pub driver_context: [*mut c_void; 4],
    pub thread: *mut c_void,
    pub auxiliary_buffer: *mut c_void,
    pub list_entry: ListEntry,
    pub current_stack_location: *mut IoStackLocation,
    pub original_file_object: *mut FileObject,
    pub tail_end: *mut c_void,
}

pub const IO_TYPE_DEVICE: i16 = 3;
pub const IO_TYPE_FILE: i16 = 5;
pub const IO_TYPE_IRP: i16 = 6;

/// FILE_FULL_EA_INFORMATION without the name and the value, which follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct EaHeader {
    pub next_entry_offset: u32,
    pub flags: u8,
    pub name_length: u8,
    pub value_length: u16,
}

/// TDI_CONNECTION_INFORMATION.
#[repr(C)]
#[derive(Debug)]
pub struct ConnectionInformation {
    pub user_data_length: i32,
    pub user_data: *mut c_void,
    pub options_length: i32,
    pub options: *mut c_void,
    pub remote_address_length: i32,
    pub remote_address: *mut c_void,
}

/// TDI_REQUEST_KERNEL.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RequestKernel {
    pub flags: u32,
    pub request_connection_information: *mut ConnectionInformation,
    pub return_connection_information: *mut ConnectionInformation,
    pub specific: *mut c_void,
}

/// TDI_REQUEST_KERNEL_SEND and TDI_REQUEST_KERNEL_RECEIVE.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RequestData {
    pub length: u32,
    pub flags: u32,
}

/// TDI_REQUEST_KERNEL_SET_EVENT.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RequestSetEvent {
    pub event_type: i32,
    pub handler: *mut c_void,
    pub context: *mut c_void,
}

/// TDI_REQUEST_KERNEL_QUERY_INFORMATION.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RequestQuery {
    pub query_type: i32,
    pub request_connection_information: *mut ConnectionInformation,
}
