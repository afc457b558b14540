//! Handles and objects: the files of addresses, connection endpoints and control channels, and threads.

use std::{
    cell::UnsafeCell,
    collections::HashMap,
    ffi::c_void,
    mem, ptr,
    sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError},
};

use smbdirect_tdi::{Address, Endpoint, Status};

use crate::{
    device::{Device, lock, may_wait, runtime, wait_for},
    event::Thread,
    layout::{DeviceObject, FileObject, Handle, IO_TYPE_FILE, NtStatus, nt},
    slots::{ConnectionContext, Handlers},
};

/// STATUS_INVALID_HANDLE.
const INVALID_HANDLE: Status = Status(0xC000_0008);
/// STATUS_OBJECT_TYPE_MISMATCH.
const OBJECT_TYPE_MISMATCH: Status = Status(0xC000_0024);

/// An open file.
pub(crate) struct File {
    pub(crate) device: &'static Device,
    pub(crate) body: Body,
    /// The FILE_OBJECT that clients see.
    object: UnsafeCell<FileObject>,
    /// The requests that have not completed.
    pending: Mutex<usize>,
    idle: Condvar,
}

/// What a file stands for. `None` after the last handle was closed.
pub(crate) enum Body {
    /// A transport address.
    Address {
        address: Mutex<Option<Address<ConnectionContext>>>,
        handlers: Arc<Handlers>,
    },
    /// A connection endpoint.
    Connection(Mutex<Option<Endpoint<ConnectionContext>>>),
    /// The transport itself.
    ControlChannel,
}

// SAFETY: the fields of the object are not read.
unsafe impl Send for File {}
// SAFETY: as for `Send`.
unsafe impl Sync for File {}

/// What a handle stands for.
#[derive(Clone)]
pub(crate) enum Object {
    File(Arc<File>),
    Thread(Arc<Thread>),
}

impl Object {
    /// Returns the object that clients see.
    fn pointer(&self) -> *mut c_void {
        match self {
            Self::File(file) => file.object.get().cast(),
            Self::Thread(thread) => thread.object().cast(),
        }
    }
}

#[derive(Default)]
struct Table {
    handles: HashMap<usize, Object>,
    /// The objects by their addresses, with the numbers of their references.
    objects: HashMap<usize, (Object, usize)>,
    last_handle: usize,
}

static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(Mutex::default);

fn table() -> MutexGuard<'static, Table> {
    lock(&TABLE)
}

/// Returns the file of a handle.
///
/// # Errors
/// [`INVALID_HANDLE`]: there is no such handle.
pub(crate) fn of_handle(handle: Handle) -> Result<Arc<File>, Status> {
    match table().handles.get(&(handle as usize)) {
        Some(Object::File(file)) => Ok(file.clone()),
        _ => Err(INVALID_HANDLE),
    }
}

/// Returns the file of a FILE_OBJECT.
///
/// # Errors
/// [`INVALID_HANDLE`]: it is not, or not any more, a file.
pub(crate) fn of_object(object: *const FileObject) -> Result<Arc<File>, Status> {
    match table().objects.get(&(object as usize)) {
        Some((Object::File(file), _)) => Ok(file.clone()),
        _ => Err(INVALID_HANDLE),
    }
}

/// Adds an object with one reference, that of the handle that this returns.
pub(crate) fn open(object: Object) -> Handle {
    let mut table = table();
    // Handles are multiples of 4, as in Windows.
    table.last_handle += 4;
    let handle = table.last_handle;
    let address = object.pointer() as usize;
    table.handles.insert(handle, object.clone());
    table.objects.insert(address, (object, 1));
    handle as Handle
}

impl File {
    /// Opens a file, and returns its handle.
    pub(crate) fn open(device: &'static Device, body: Body) -> Handle {
        let kind = match &body {
            Body::Address { .. } => 1_usize,
            Body::Connection(_) => 2,
            Body::ControlChannel => 3,
        };
        // SAFETY: zeros are valid in every field.
        let mut object: FileObject = unsafe { mem::zeroed() };
        object.kind = IO_TYPE_FILE;
        object.size = size_of::<FileObject>() as i16;
        object.device_object = device.object();
        object.fs_context2 = kind as *mut c_void;
        let file = Arc::new(Self {
            device,
            body,
            object: UnsafeCell::new(object),
            pending: Mutex::new(0),
            idle: Condvar::new(),
        });
        open(Object::File(file))
    }

    /// Returns the endpoint of a connection.
    ///
    /// # Errors
    /// [`INVALID_DEVICE_REQUEST`](Status::INVALID_DEVICE_REQUEST): the file is not a connection.
    /// [`INVALID_CONNECTION`](Status::INVALID_CONNECTION): it was closed.
    pub(crate) fn endpoint(&self) -> Result<Endpoint<ConnectionContext>, Status> {
        let Body::Connection(endpoint) = &self.body else {
            return Err(Status::INVALID_DEVICE_REQUEST);
        };
        lock(endpoint).clone().ok_or(Status::INVALID_CONNECTION)
    }

    /// Returns the address, and its handlers.
    ///
    /// # Errors
    /// [`INVALID_DEVICE_REQUEST`](Status::INVALID_DEVICE_REQUEST): the file is not an address.
    /// [`ADDRESS_CLOSED`](Status::ADDRESS_CLOSED): it was closed.
    pub(crate) fn address(&self) -> Result<(Address<ConnectionContext>, &Arc<Handlers>), Status> {
        let Body::Address { address, handlers } = &self.body else {
            return Err(Status::INVALID_DEVICE_REQUEST);
        };
        let address = lock(address).clone();
        Ok((address.ok_or(Status::ADDRESS_CLOSED)?, handlers))
    }

    /// Counts a request that was submitted.
    pub(crate) fn request_started(&self) {
        *lock(&self.pending) += 1;
    }

    /// Counts a request whose completion routine has returned.
    pub(crate) fn request_completed(&self) {
        let mut pending = lock(&self.pending);
        *pending -= 1;
        if *pending == 0 {
            self.idle.notify_all();
        }
    }

    /// Cancels the requests of the file, because its last handle was closed. When this returns, they have completed and no
    /// handler runs, unless the caller may not wait.
    fn clean_up(&self) {
        let _context = runtime().enter();
        match &self.body {
            Body::Address { address, handlers } => {
                handlers.remove_all();
                let address = lock(address).take();
                drop(address);
            }
            Body::Connection(endpoint) => {
                let endpoint = lock(endpoint).take();
                if let Some(endpoint) = endpoint {
                    endpoint.close();
                }
            }
            Body::ControlChannel => {}
        }
        if !may_wait() {
            return;
        }
        // Handlers run on the transport's thread. After the cancellation above none begins, and one that ran there has
        // returned when this has run there.
        let _ = wait_for(async {});
        let pending = lock(&self.pending);
        let pending = self.idle.wait_while(pending, |pending| *pending > 0);
        drop(pending.unwrap_or_else(PoisonError::into_inner));
    }
}

/// The type of an object, which clients compare only.
#[derive(Debug)]
#[repr(transparent)]
pub struct ObjectType(*const c_void);

// SAFETY: the value never changes.
unsafe impl Sync for ObjectType {}

static FILE_TYPE: ObjectType = ObjectType((&raw const FILE_TYPE).cast());
static THREAD_TYPE: ObjectType = ObjectType((&raw const THREAD_TYPE).cast());

/// Points to the type of file objects.
#[unsafe(no_mangle)]
pub static IoFileObjectType: &ObjectType = &FILE_TYPE;
/// Points to the type of thread objects.
#[unsafe(no_mangle)]
pub static PsThreadType: &ObjectType = &THREAD_TYPE;

/// Closes a handle. With the last handle of a file, its requests are cancelled before this returns.
#[unsafe(no_mangle)]
pub extern "C" fn ZwClose(handle: Handle) -> NtStatus {
    let object = table().handles.remove(&(handle as usize));
    let Some(object) = object else {
        return nt(INVALID_HANDLE);
    };
    if let Object::File(file) = &object {
        file.clean_up();
    }
    ObfDereferenceObject(object.pointer());
    nt(Status::SUCCESS)
}

/// Returns the object of a handle, with a reference to it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ObReferenceObjectByHandle(
    handle: Handle,
    _access: u32,
    kind: *const ObjectType,
    _mode: i8,
    object: *mut *mut c_void,
    information: *mut [u32; 2],
) -> NtStatus {
    let mut table = table();
    let Some(found) = table.handles.get(&(handle as usize)) else {
        return nt(INVALID_HANDLE);
    };
    let own_type = match found {
        Object::File(_) => &FILE_TYPE,
        Object::Thread(_) => &THREAD_TYPE,
    };
    if !kind.is_null() && !ptr::eq(kind, own_type) {
        return nt(OBJECT_TYPE_MISMATCH);
    }
    let found = found.pointer();
    if object.is_null() {
        return nt(Status::INVALID_PARAMETER);
    }
    if let Some((_, references)) = table.objects.get_mut(&(found as usize)) {
        *references += 1;
    }
    // SAFETY: the caller promises that the pointers are null or valid.
    unsafe {
        object.write(found);
        if !information.is_null() {
            information.write([0; 2]);
        }
    }
    nt(Status::SUCCESS)
}

/// Adds a reference to an object, and returns their number.
#[unsafe(no_mangle)]
pub extern "C" fn ObfReferenceObject(object: *mut c_void) -> isize {
    let mut table = table();
    let Some((_, references)) = table.objects.get_mut(&(object as usize)) else {
        return 0;
    };
    *references += 1;
    *references as isize
}

/// Removes a reference to an object, and returns their number.
#[unsafe(no_mangle)]
pub extern "C" fn ObfDereferenceObject(object: *mut c_void) -> isize {
    let mut table = table();
    let Some((_, references)) = table.objects.get_mut(&(object as usize)) else {
        return 0;
    };
    *references -= 1;
    let left = *references;
    let last = (left == 0).then(|| table.objects.remove(&(object as usize)));
    drop(table);
    // A file that is dropped frees its object, and may complete requests.
    drop(last);
    left as isize
}

/// Returns the device of a file object.
#[unsafe(no_mangle)]
pub extern "C" fn IoGetRelatedDeviceObject(object: *mut FileObject) -> *mut DeviceObject {
    of_object(object).map_or(ptr::null_mut(), |file| file.device.object())
}

/// Returns the number of open handles and of objects with references. Tests look for leaks with it.
#[doc(hidden)]
pub fn open_files() -> (usize, usize) {
    let table = table();
    (table.handles.len(), table.objects.len())
}
