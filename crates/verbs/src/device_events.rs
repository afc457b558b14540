//! Asynchronous events of a device, and its removal while there are connections on it.
//!
//! librdmacm opens a device once for the process, so all connections on the device share one queue
//! of asynchronous events. The subscriber that is woken reads the queue for all subscribers, and
//! wakes those that an event is about. Events about queue pairs that the program created outside
//! this package are dropped.
//!
//! librdmacm also keeps the device open after the last connection. To remove a device, the kernel
//! waits until it is closed, unless the driver supports removal under open users, which rxe and siw
//! do not. The kernel waits before it informs the connection manager, so no event reports the
//! removal. The kernel's first step is to delete the device's node, so the node is watched: when it
//! is deleted, all connections on the device end, and after the last of them the library's file
//! descriptors of the device are closed.

use std::{
    ffi::{CStr, OsStr},
    fs::File,
    io,
    mem::{ManuallyDrop, MaybeUninit},
    os::{
        fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll, Waker},
};

use rustix::{
    fs::inotify,
    io::{DupFlags, dup3, fcntl_dupfd_cloexec},
};
use smbdirect::rdma::work::{ProviderError, ProviderErrorKind};
use tokio::io::unix::AsyncFd;

use crate::{
    cm::{CmId, read_error, register, set_nonblocking},
    error::local_error,
    ffi::{self, Functions, Object, ibv_async_event, ibv_context},
};

/// The directory of the nodes of devices.
const NODE_DIRECTORY: &str = "/dev/infiniband";

/// A device that librdmacm has opened, shared by its subscribers. It is dropped before the
/// identifiers that are bound to the device.
struct Adapter {
    context: Object<ibv_context>,
    functions: Arc<Functions>,
    node: PathBuf,
    /// An inotify descriptor for deletions in the directory of the node. It is `None` if the node
    /// does not exist or cannot be watched.
    deletions: Option<OwnedFd>,
    state: Mutex<State>,
}

/// The subscribers of a device and its fault.
#[derive(Default)]
struct State {
    /// The fault that ended the whole device.
    fault: Option<ProviderError>,
    is_removed: bool,
    subscribers: Vec<Weak<Mutex<Subscriber>>>,
    /// Wakers to wake after the lock of the state is released.
    woken: Vec<Waker>,
}

/// A connection or a listener that subscribes to events of the device.
#[derive(Default)]
struct Subscriber {
    /// The addresses of its queue pair and its completion queue.
    objects: [usize; 2],
    fault: Option<ProviderError>,
    waker: Option<Waker>,
}

impl State {
    /// Reports a fault of the device to all subscribers, present and future.
    fn fail_all(&mut self, fault: ProviderError) {
        self.fail(&fault, |_| true);
        self.fault.get_or_insert(fault);
    }

    /// Reports a fault to the subscribers that it concerns.
    fn fail(&mut self, fault: &ProviderError, concerns: impl Fn(&Subscriber) -> bool) {
        for subscriber in self.subscribers.iter().filter_map(Weak::upgrade) {
            let mut subscriber = lock(&subscriber);
            if concerns(&subscriber) {
                subscriber.fault.get_or_insert_with(|| fault.clone());
                self.woken.extend(subscriber.waker.take());
            }
        }
    }
}

impl Adapter {
    /// Returns the device that an identifier is bound to. All identifiers on a device share it.
    fn of(id: &CmId) -> io::Result<Arc<Self>> {
        static OPEN: Mutex<Vec<Weak<Adapter>>> = Mutex::new(Vec::new());
        let context = id.context();
        if context.is_null() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let mut open = lock(&OPEN);
        open.retain(|adapter| adapter.strong_count() > 0);
        let known = open.iter().filter_map(Weak::upgrade);
        if let Some(known) = known
            .into_iter()
            .find(|known| known.context.raw() == context)
        {
            return Ok(known);
        }
        // SAFETY: the context of an open device points to its description, which holds the name of
        // its node as a C string.
        let name = unsafe { CStr::from_ptr((*(*context).device).dev_name.as_ptr()) };
        let node = Path::new(NODE_DIRECTORY).join(OsStr::from_bytes(name.to_bytes()));
        let adapter = Self::new(context, id.channel().library().clone(), node)?;
        open.push(Arc::downgrade(&adapter));
        Ok(adapter)
    }

    fn new(
        context: *mut ibv_context,
        functions: Arc<Functions>,
        node: PathBuf,
    ) -> io::Result<Arc<Self>> {
        let deletions = match node.parent() {
            Some(directory) if node.exists() => watch_deletions(directory)
                .inspect_err(|error| tracing::debug!(%error, "the node is not watched"))
                .ok(),
            _ => None,
        };
        let adapter = Self {
            context: Object::new(context)?,
            functions,
            node,
            deletions,
            state: Mutex::default(),
        };
        set_nonblocking(adapter.event_fd())?;
        Ok(Arc::new(adapter))
    }

    fn event_fd(&self) -> RawFd {
        // SAFETY: the context belongs to an open device; the library does not change the field.
        unsafe { (*self.context.raw()).async_fd }
    }

    /// Reads all pending events and deletions, and wakes the subscribers that they concern.
    fn read_all(&self) {
        let mut state = lock(&self.state);
        self.read_deletions(&mut state);
        self.read_events(&mut state);
        let woken = std::mem::take(&mut state.woken);
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }

    fn read_events(&self, state: &mut State) {
        loop {
            let mut event = MaybeUninit::<ibv_async_event>::zeroed();
            let get = self.functions.ibv_get_async_event;
            // SAFETY: the context belongs to an open device, and the pointer is to memory for an
            // event.
            if unsafe { get(self.context.raw(), event.as_mut_ptr()) } != 0 {
                if let Some(error) = read_error() {
                    let what = format!("the RDMA device's events cannot be read: {error}");
                    state.fail_all(local_error(&what).with_os_error(error.raw_os_error()));
                }
                return;
            }
            // SAFETY: zero is valid for its numbers and pointers, and the library has set the rest.
            let mut event = unsafe { event.assume_init() };
            // SAFETY: the event is acknowledged once. Its object may be freed from then on; its
            // address is only compared afterwards.
            unsafe { (self.functions.ibv_ack_async_event)(&mut event) };
            self.handle(&event, state);
        }
    }

    /// Reports an event to the subscribers that it concerns.
    fn handle(&self, event: &ibv_async_event, state: &mut State) {
        // SAFETY: the function takes any number and returns a C string that is never freed.
        let text = unsafe { CStr::from_ptr((self.functions.ibv_event_type_str)(event.event_type)) };
        let text = text.to_string_lossy();
        tracing::debug!(node = %self.node.display(), %text, "an asynchronous event of the device");
        let kind = match event.event_type {
            ffi::IBV_EVENT_QP_FATAL | ffi::IBV_EVENT_CQ_ERR | ffi::IBV_EVENT_DEVICE_FATAL => {
                ProviderErrorKind::Local
            }
            // These events report invalid requests by the peer.
            ffi::IBV_EVENT_QP_REQ_ERR | ffi::IBV_EVENT_QP_ACCESS_ERR => ProviderErrorKind::Protocol,
            // Other events end no connection. A port that goes down may come up in time.
            _ => return,
        };
        let fault = ProviderError::new(kind, format!("the adapter reports an event: {text}"));
        if event.event_type == ffi::IBV_EVENT_DEVICE_FATAL {
            state.fail_all(fault);
            return;
        }
        let object = event.element as usize;
        state.fail(&fault, |subscriber| subscriber.objects.contains(&object));
    }

    fn read_deletions(&self, state: &mut State) {
        let Some(deletions) = &self.deletions else {
            return;
        };
        let mut buffer = [MaybeUninit::uninit(); 1024];
        let mut reader = inotify::Reader::new(deletions, &mut buffer);
        while reader.next().is_ok() {}
        if !state.is_removed && !self.node.exists() {
            tracing::debug!(node = %self.node.display(), "the device was removed");
            state.is_removed = true;
            state.fail_all(removed());
        }
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        if !state.unwrap_or_else(PoisonError::into_inner).is_removed {
            return;
        }
        // The library keeps using its descriptors of the device until it lists devices again and
        // closes them. They are replaced by /dev/null, which closes the device in the kernel.
        let closed = File::open("/dev/null").and_then(|null| {
            // SAFETY: the identifier of the last subscriber still lives, and with it the context.
            // No object of this package is left on the device, and every call of the library to a
            // removed device fails anyway.
            let context = unsafe { &*self.context.raw() };
            for fd in [context.cmd_fd, context.async_fd] {
                // SAFETY: the descriptor is open and belongs to the library, which closes it later.
                // `ManuallyDrop` prevents that it is closed here.
                let mut fd = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(fd) });
                dup3(&null, &mut fd, DupFlags::CLOEXEC)?;
            }
            Ok(())
        });
        if let Err(error) = closed {
            tracing::warn!(%error, "closing a removed device failed");
        }
    }
}

/// Returns an inotify descriptor for deletions in a directory.
fn watch_deletions(directory: &Path) -> io::Result<OwnedFd> {
    let flags = inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC;
    let deletions = inotify::init(flags)?;
    inotify::add_watch(&deletions, directory, inotify::WatchFlags::DELETE)?;
    Ok(deletions)
}

/// Returns the error of a device that was removed.
fn removed() -> ProviderError {
    local_error("the RDMA device was removed")
}

/// A subscription to the events of a device.
///
/// The owner also holds an identifier that is bound to the device, and drops it after this and
/// after all objects that it created on the device.
pub(crate) struct DeviceEvents {
    subscriber: Arc<Mutex<Subscriber>>,
    /// Duplicates of the device's descriptors. A descriptor cannot be registered twice with one
    /// runtime.
    descriptors: Vec<AsyncFd<OwnedFd>>,
    // The last field, so that it is dropped after the descriptors.
    adapter: Arc<Adapter>,
}

impl DeviceEvents {
    /// Subscribes to the device that an identifier is bound to.
    pub(crate) fn new(id: &CmId) -> Result<Self, ProviderError> {
        let failed = |error| local_error(&format!("the device's events: {error}"));
        Self::of(Adapter::of(id).map_err(failed)?)
    }

    fn of(adapter: Arc<Adapter>) -> Result<Self, ProviderError> {
        // Events from before this subscription are read now, because they woke no subscriber.
        adapter.read_all();
        let failed = |error: io::Error| local_error(&format!("the device's events: {error}"));
        // SAFETY: the adapter keeps the descriptor open until the call returns.
        let events = unsafe { BorrowedFd::borrow_raw(adapter.event_fd()) };
        let own = |fd: BorrowedFd<'_>| {
            let fd = fcntl_dupfd_cloexec(fd, 0)?;
            // SAFETY: the descriptor is owned, so it stays open while it is registered.
            unsafe { register(fd) }
        };
        let mut descriptors = vec![own(events).map_err(failed)?];
        if let Some(deletions) = &adapter.deletions {
            // SAFETY: the adapter keeps the descriptor open until the call returns.
            let deletions = unsafe { BorrowedFd::borrow_raw(deletions.as_raw_fd()) };
            descriptors.push(own(deletions).map_err(failed)?);
        }
        let subscriber = Arc::default();
        let mut state = lock(&adapter.state);
        if let Some(fault) = &state.fault {
            return Err(fault.clone());
        }
        state.subscribers.retain(|known| known.strong_count() > 0);
        state.subscribers.push(Arc::downgrade(&subscriber));
        drop(state);
        Ok(Self {
            subscriber,
            descriptors,
            adapter,
        })
    }

    /// Sets the addresses of the queue pair and the completion queue that events may be about.
    pub(crate) fn set_objects(&self, objects: [usize; 2]) {
        lock(&self.subscriber).objects = objects;
    }

    /// Returns the fault that ends this subscription, or `Pending` while there is none. The task of
    /// the last call is woken by a fault.
    pub(crate) fn poll_fault(&self, context: &mut Context<'_>) -> Poll<ProviderError> {
        for descriptor in &self.descriptors {
            while let Poll::Ready(ready) = descriptor.poll_read_ready(context) {
                let Ok(mut ready) = ready else {
                    return Poll::Ready(local_error("the runtime is shutting down"));
                };
                self.adapter.read_all();
                if ready.ready().is_read_closed() {
                    // The descriptor would stay ready.
                    return Poll::Ready(removed());
                }
                ready.clear_ready();
            }
        }
        let mut subscriber = lock(&self.subscriber);
        if let Some(fault) = &subscriber.fault {
            return Poll::Ready(fault.clone());
        }
        // Another subscriber may read an event for this one, and wakes it then.
        match &mut subscriber.waker {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::{
        ffi::{c_char, c_int},
        fs,
        future::poll_fn,
        io::{Read, Write},
        os::{fd::IntoRawFd, unix::net::UnixStream},
        time::Duration,
    };

    use tokio::time::timeout;

    use super::*;

    /// Reads an event from the device's descriptor, on which a test writes the address of the object
    /// and the kind as one byte each.
    unsafe extern "C" fn get_async_event(
        context: *mut ibv_context,
        event: *mut ibv_async_event,
    ) -> c_int {
        let mut bytes = [0; 2];
        // SAFETY: the context is one of a fake device, which keeps the descriptor open and closes
        // it.
        let fd = ManuallyDrop::new(unsafe { File::from_raw_fd((*context).async_fd) });
        // A failed read sets `errno`, as the real function does.
        if !matches!((&*fd).read(&mut bytes), Ok(2)) {
            return -1;
        }
        // SAFETY: the caller provides memory for an event.
        unsafe {
            (*event).element = usize::from(bytes[0]) as *mut _;
            (*event).event_type = bytes[1].into();
        }
        0
    }

    unsafe extern "C" fn ack_async_event(_: *mut ibv_async_event) {}

    unsafe extern "C" fn event_type_str(_: u32) -> *const c_char {
        c"fault".as_ptr()
    }

    /// A fake device. Its events are written to `events`, and its commands are read from
    /// `commands`.
    struct FakeDevice {
        context: Box<ibv_context>,
        events: UnixStream,
        commands: UnixStream,
        folder: tempfile::TempDir,
    }

    impl FakeDevice {
        fn new() -> Self {
            let (events, async_end) = UnixStream::pair().unwrap();
            let (commands, command_end) = UnixStream::pair().unwrap();
            commands
                .set_read_timeout(Some(Duration::from_secs(10)))
                .unwrap();
            // SAFETY: the context consists of pointers, optional functions and numbers, for which
            // zero is valid.
            let mut context: Box<ibv_context> =
                unsafe { Box::new(MaybeUninit::zeroed().assume_init()) };
            context.async_fd = async_end.into_raw_fd();
            context.cmd_fd = command_end.into_raw_fd();
            let folder = tempfile::tempdir().unwrap();
            fs::write(folder.path().join("uverbs0"), "").unwrap();
            Self {
                context,
                events,
                commands,
                folder,
            }
        }

        fn adapter(&mut self) -> Arc<Adapter> {
            let mut functions = Functions::none();
            functions.ibv_get_async_event = get_async_event;
            functions.ibv_ack_async_event = ack_async_event;
            functions.ibv_event_type_str = event_type_str;
            let context = &raw mut *self.context;
            let node = self.folder.path().join("uverbs0");
            Adapter::new(context, Arc::new(functions), node).unwrap()
        }
    }

    impl Drop for FakeDevice {
        fn drop(&mut self) {
            for fd in [self.context.cmd_fd, self.context.async_fd] {
                // SAFETY: `new` opened the descriptor, and it is closed once.
                drop(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
    }

    async fn fault_of(subscription: &DeviceEvents) -> ProviderError {
        timeout(
            Duration::from_secs(10),
            poll_fn(|context| subscription.poll_fault(context)),
        )
        .await
        .unwrap()
    }

    async fn has_no_fault(subscription: &DeviceEvents) -> bool {
        timeout(
            Duration::from_millis(20),
            poll_fn(|context| subscription.poll_fault(context)),
        )
        .await
        .is_err()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn woken_subscriber_reads_events_for_all() {
        let mut device = FakeDevice::new();
        let adapter = device.adapter();
        let (first, second) = (
            DeviceEvents::of(adapter.clone()).unwrap(),
            DeviceEvents::of(adapter).unwrap(),
        );
        first.set_objects([1, 2]);
        second.set_objects([3, 4]);
        // These events are about an unknown object, or end no connection.
        for kind in [ffi::IBV_EVENT_QP_FATAL, 4, 10] {
            device.events.write_all(&[9, kind as u8]).unwrap();
        }
        assert!(has_no_fault(&first).await && has_no_fault(&second).await);
        let waiting = tokio::spawn(async move {
            let fault = fault_of(&second).await;
            (second, fault)
        });
        device
            .events
            .write_all(&[3, ffi::IBV_EVENT_QP_ACCESS_ERR as u8])
            .unwrap();
        assert!(has_no_fault(&first).await);
        let (second, fault) = waiting.await.unwrap();
        assert_eq!(fault.kind, ProviderErrorKind::Protocol);
        assert_eq!(&*fault.what, "the adapter reports an event: fault");
        device
            .events
            .write_all(&[2, ffi::IBV_EVENT_CQ_ERR as u8])
            .unwrap();
        assert_eq!(fault_of(&first).await.kind, ProviderErrorKind::Local);
        assert_eq!(fault_of(&second).await.kind, ProviderErrorKind::Protocol);
    }

    #[tokio::test]
    async fn fatal_device_event_reaches_all_subscribers() {
        let mut device = FakeDevice::new();
        let adapter = device.adapter();
        let subscriptions = [(); 3].map(|()| DeviceEvents::of(adapter.clone()).unwrap());
        device
            .events
            .write_all(&[0, ffi::IBV_EVENT_DEVICE_FATAL as u8])
            .unwrap();
        for subscription in &subscriptions {
            assert_eq!(
                &*fault_of(subscription).await.what,
                "the adapter reports an event: fault"
            );
        }
        let late = DeviceEvents::of(adapter).map(drop).unwrap_err();
        assert_eq!(&*late.what, "the adapter reports an event: fault");
    }

    #[tokio::test]
    async fn removed_device_is_closed_after_the_last_subscriber() {
        let mut device = FakeDevice::new();
        let adapter = device.adapter();
        let subscriptions = [(); 2].map(|()| DeviceEvents::of(adapter.clone()).unwrap());
        drop(adapter);
        fs::write(device.folder.path().join("uverbs1"), "").unwrap();
        fs::remove_file(device.folder.path().join("uverbs1")).unwrap();
        assert!(has_no_fault(&subscriptions[0]).await);
        fs::remove_file(device.folder.path().join("uverbs0")).unwrap();
        for subscription in &subscriptions {
            assert_eq!(
                &*fault_of(subscription).await.what,
                "the RDMA device was removed"
            );
        }
        let [first, second] = subscriptions;
        drop(first);
        // SAFETY: the fake device keeps the descriptor open.
        let commands = unsafe { BorrowedFd::borrow_raw(device.context.cmd_fd) };
        assert_eq!(rustix::io::write(commands, b"x"), Ok(1));
        device.commands.read_exact(&mut [0]).unwrap();
        drop(second);
        // The other end of the socket is closed, and the descriptor is no longer the socket.
        assert_eq!(device.commands.read(&mut [0]).unwrap(), 0);
        assert!(rustix::io::write(commands, b"x").is_err());
    }

    #[tokio::test]
    async fn present_device_stays_open_after_the_last_subscriber() {
        let mut device = FakeDevice::new();
        let subscription = DeviceEvents::of(device.adapter()).unwrap();
        assert!(has_no_fault(&subscription).await);
        drop(subscription);
        // SAFETY: the fake device keeps the descriptor open.
        let commands = unsafe { BorrowedFd::borrow_raw(device.context.cmd_fd) };
        assert_eq!(rustix::io::write(commands, b"x"), Ok(1));
    }
}
