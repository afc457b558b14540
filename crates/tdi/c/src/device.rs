//! [`Device`]: the devices by their names, and the transport's thread, on which all of them run.

use std::{
    cell::Cell,
    collections::HashMap,
    future::Future,
    mem,
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
        // SAFETY: zeros are valid in every field.
        let mut object: DeviceObject = unsafe { mem::zeroed() };
        object.kind = IO_TYPE_DEVICE;
        object.size = size_of::<DeviceObject>() as u16;
        object.device_type = DEVICE_TYPE_NETWORK;
        object.stack_size = 1;
        Box::leak(Box::new(Self {
            transport,
            copies,
            object: Box::into_raw(Box::new(object)),
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

thread_local! {
    static IS_TRANSPORT: Cell<bool> = const { Cell::new(false) };
    static IRQL: Cell<u8> = const { Cell::new(PASSIVE_LEVEL) };
}

const PASSIVE_LEVEL: u8 = 0;
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

/// Returns whether this thread runs at DISPATCH_LEVEL, as completion routines, handlers and holders of spin locks do.
pub(crate) fn is_at_dispatch_level() -> bool {
    irql() >= DISPATCH_LEVEL
}

/// Returns whether this thread may wait. At DISPATCH_LEVEL, and on the transport's thread, what it waits for may need
/// this thread or a lock that it holds.
pub(crate) fn may_wait() -> bool {
    !IS_TRANSPORT.get() && !is_at_dispatch_level()
}

/// Ends the program if this thread may not wait.
pub(crate) fn check_may_wait(function: &str) {
    if !may_wait() {
        bug_check(&format!(
            "{function} was called at DISPATCH_LEVEL; wait at PASSIVE_LEVEL"
        ));
    }
}

/// Calls a completion routine or a handler of a client, at DISPATCH_LEVEL.
pub(crate) fn call_client<R>(callback: impl FnOnce() -> R) -> R {
    let before = set_irql(DISPATCH_LEVEL);
    let result = callback();
    set_irql(before);
    result
}

/// Runs `work` on the transport's thread and waits for its result.
///
/// # Errors
/// [`INVALID_DEVICE_STATE`](Status::INVALID_DEVICE_STATE): this thread may not wait.
pub(crate) fn wait_for<R: Send + 'static>(
    work: impl Future<Output = R> + Send + 'static,
) -> Result<R, Status> {
    if !may_wait() {
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
