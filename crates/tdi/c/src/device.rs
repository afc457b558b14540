//! [`Device`]: the devices by their names, and the transport's thread, on which all of them run.

use std::{
    cell::Cell,
    collections::HashMap,
    future::Future,
    ptr,
    sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
};

use smbdirect::{
    Provider,
    rdma::{
        iwarp::{Iwarp, IwarpConfig},
        loopback::Loopback,
        roce::{Roce, RoceConfig},
    },
};
use smbdirect_tdi::{Status, Transport, TransportSettings};
use tokio::runtime::{Builder, Handle};

use crate::layout::{DeviceObject, IO_TYPE_DEVICE};

/// FILE_DEVICE_NETWORK.
const DEVICE_TYPE_NETWORK: u32 = 0x12;
/// STATUS_OBJECT_NAME_NOT_FOUND.
pub(crate) const OBJECT_NAME_NOT_FOUND: Status = Status(0xC000_0034);

/// A device that clients open by its name. It exists until the process ends.
pub(crate) struct Device {
    pub(crate) transport: Transport,
    /// Whether sends are copied, because a received message shares the memory of the sender.
    pub(crate) copies: bool,
    object: *mut DeviceObject,
}

// SAFETY: the object is only read here, and belongs to the clients otherwise.
unsafe impl Send for Device {}
// SAFETY: as for `Send`.
unsafe impl Sync for Device {}

static DEVICES: LazyLock<Mutex<HashMap<String, &'static Device>>> = LazyLock::new(Mutex::default);

impl Device {
    /// Returns the device with this name, which is compared without case.
    ///
    /// # Errors
    /// [`OBJECT_NAME_NOT_FOUND`]: there is no such device on this machine.
    pub(crate) fn named(name: &str) -> Result<&'static Self, Status> {
        let name = name.to_ascii_lowercase();
        let mut devices = lock(&DEVICES);
        if let Some(device) = devices.get(&name) {
            return Ok(device);
        }
        let kind = name.strip_prefix("\\device\\smbdirect");
        let provider: Arc<dyn Provider> = match kind {
            Some("") => Arc::new(Iwarp::new(IwarpConfig::default())),
            Some("roce") => Arc::new(Roce::new(RoceConfig::default())),
            Some("loopback") => Arc::new(Loopback::new()),
            _ => return Err(OBJECT_NAME_NOT_FOUND),
        };
        let transport = Transport::new(provider, TransportSettings::default())?;
        let device = Self::new(transport, kind == Some("loopback"));
        devices.insert(name, device);
        Ok(device)
    }

    fn new(transport: Transport, copies: bool) -> &'static Self {
        Box::leak(Box::new(Self {
            transport,
            copies,
            object: Box::into_raw(Box::new(new_object())),
        }))
    }

    /// Returns the device of `object`, if it is one of this package.
    pub(crate) fn of(object: *mut DeviceObject) -> Option<&'static Self> {
        let devices = lock(&DEVICES);
        let mut devices = devices.values();
        devices.find(|device| device.object == object).copied()
    }

    pub(crate) const fn object(&self) -> *mut DeviceObject {
        self.object
    }
}

fn new_object() -> DeviceObject {
    DeviceObject {
        kind: IO_TYPE_DEVICE,
        size: size_of::<DeviceObject>() as u16,
        reference_count: 0,
        driver_object: ptr::null_mut(),
        next_device: ptr::null_mut(),
        attached_device: ptr::null_mut(),
        current_irp: ptr::null_mut(),
        timer: ptr::null_mut(),
        flags: 0,
        characteristics: 0,
        vpb: ptr::null_mut(),
        device_extension: ptr::null_mut(),
        device_type: DEVICE_TYPE_NETWORK,
        stack_size: 1,
        reserved: [ptr::null_mut(); 31],
    }
}

thread_local! {
    static IS_TRANSPORT: Cell<bool> = const { Cell::new(false) };
    static CALLBACKS: Cell<u32> = const { Cell::new(0) };
    static IRQL: Cell<u8> = const { Cell::new(PASSIVE_LEVEL) };
}

pub(crate) const PASSIVE_LEVEL: u8 = 0;
pub(crate) const DISPATCH_LEVEL: u8 = 2;

/// Returns the IRQL of this thread.
pub(crate) fn irql() -> u8 {
    IRQL.get()
}

/// Sets the IRQL of this thread, and returns the one before.
pub(crate) fn set_irql(level: u8) -> u8 {
    IRQL.replace(level)
}

/// Locks a mutex, also after a panic of another holder.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the program, because a client has done what ends Windows.
pub(crate) fn bug_check(sentence: &str) -> ! {
    eprintln!("{sentence}");
    std::process::abort()
}

/// The runtime of the transport's thread. One thread for all devices makes handlers and completions run one at a time,
/// and lets ZwClose wait until none of them runs.
static RUNTIME: LazyLock<Handle> = LazyLock::new(|| {
    let (sender, receiver) = mpsc::channel();
    let run = move || {
        IS_TRANSPORT.set(true);
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("the system has resources for an event loop");
        let _ = sender.send(runtime.handle().clone());
        runtime.block_on(std::future::pending::<()>());
    };
    let thread = thread::Builder::new().name("tdi".to_owned());
    thread.spawn(run).expect("the system can start a thread");
    receiver.recv().expect("the thread sends its handle")
});

/// Returns the runtime of the transport's thread.
pub(crate) fn runtime() -> &'static Handle {
    &RUNTIME
}

/// Returns whether the caller runs on the transport's thread, which must not wait for itself.
pub(crate) fn is_transport_thread() -> bool {
    IS_TRANSPORT.get()
}

/// Returns whether a completion routine or a handler of a client is running on this thread.
pub(crate) fn is_in_callback() -> bool {
    CALLBACKS.get() > 0
}

/// Calls a completion routine or a handler of a client, at DISPATCH_LEVEL.
pub(crate) fn call_client<R>(callback: impl FnOnce() -> R) -> R {
    CALLBACKS.set(CALLBACKS.get() + 1);
    let before = set_irql(DISPATCH_LEVEL);
    let result = callback();
    set_irql(before);
    CALLBACKS.set(CALLBACKS.get() - 1);
    result
}

/// Runs `work` on the transport's thread and waits for its result.
///
/// # Errors
/// [`INVALID_DEVICE_STATE`](Status::INVALID_DEVICE_STATE): the caller runs on the transport's thread.
pub(crate) fn wait_for<R: Send + 'static>(
    work: impl Future<Output = R> + Send + 'static,
) -> Result<R, Status> {
    if is_transport_thread() {
        return Err(Status::INVALID_DEVICE_STATE);
    }
    let (sender, receiver) = mpsc::channel();
    runtime().spawn(async move {
        let _ = sender.send(work.await);
    });
    receiver.recv().map_err(|_| Status::CANCELLED)
}

#[cfg(test)]
mod tests;
