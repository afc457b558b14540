//! What becomes of a device while there are connections on it.
//!
//! librdmacm opens a device once for the process, so its connections share one queue of
//! asynchronous events: who is woken by it reads for all of them, and wakes those whom it concerns.
//! What it tells of others' queue pairs, if the program has some by librdmacm, goes to nobody.
//!
//! It also keeps the device open behind the last connection. The kernel waits for that when it is to
//! take the device away, unless the driver can take it from under its users, which rxe and siw
//! cannot; and it waits before it tells the connection manager, so that nobody hears of it. What it
//! does first is to delete the device's node. So the node is watched too; where it is gone, all
//! connections end, and behind the last of them the library's files of the device are closed.

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
    ptr::NonNull,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll, Waker},
};

use rustix::{
    fs::inotify,
    io::{DupFlags, dup3, fcntl_dupfd_cloexec},
};
use smbdirect::rdma::work::{ProviderError, ProviderErrorKind};
use tokio::io::{Interest, unix::AsyncFd};

use crate::{
    cm::{CmId, set_nonblocking},
    error::local_error,
    ffi::{self, Functions, ibv_async_event, ibv_context},
};

/// Where the nodes of devices are.
const NODES: &str = "/dev/infiniband";

/// A device that librdmacm has open. It lives no longer than the identifiers that are bound to it.
struct Adapter {
    context: NonNull<ibv_context>,
    functions: Arc<Functions>,
    node: PathBuf,
    /// Tells of files that are deleted beside the node; none where the node is elsewhere.
    deletions: Option<OwnedFd>,
    state: Mutex<State>,
}

// SAFETY: libibverbs is thread-safe, and a device belongs to no thread.
unsafe impl Send for Adapter {}
// SAFETY: as above; what is read of it here does not change.
unsafe impl Sync for Adapter {}

#[derive(Default)]
struct State {
    /// What became of the device.
    fault: Option<ProviderError>,
    is_removed: bool,
    watched: Vec<Subscriber>,
    last: u64,
    /// To be woken when the state is nobody's any more.
    woken: Vec<Waker>,
}

/// A connection or a listener.
struct Subscriber {
    number: u64,
    /// Where its queue pair and its completion queue are.
    objects: [usize; 2],
    fault: Option<ProviderError>,
    waker: Option<Waker>,
}

impl State {
    fn end_all(&mut self, fault: ProviderError) {
        self.end(&fault, |_| true);
        self.fault.get_or_insert(fault);
    }

    fn end(&mut self, fault: &ProviderError, concerns: impl Fn(&Subscriber) -> bool) {
        for watched in self.watched.iter_mut().filter(|watched| concerns(watched)) {
            watched.fault.get_or_insert_with(|| fault.clone());
            self.woken.extend(watched.waker.take());
        }
    }
}

impl Adapter {
    /// The device that an identifier is bound to; the same for all identifiers on it.
    fn of(id: &CmId) -> io::Result<Arc<Self>> {
        static OPEN: Mutex<Vec<Weak<Adapter>>> = Mutex::new(Vec::new());
        let context = NonNull::new(id.context()).ok_or(io::ErrorKind::NotConnected)?;
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|adapter| adapter.strong_count() > 0);
        let known = open.iter().filter_map(Weak::upgrade);
        if let Some(known) = known.into_iter().find(|known| known.context == context) {
            return Ok(known);
        }
        // SAFETY: an open device has a description, with its node's name as a C string.
        let name = unsafe { CStr::from_ptr((*(*context.as_ptr()).device).dev_name.as_ptr()) };
        let node = Path::new(NODES).join(OsStr::from_bytes(name.to_bytes()));
        let adapter = Self::new(context, id.channel().library().clone(), node)?;
        open.push(Arc::downgrade(&adapter));
        Ok(adapter)
    }

    fn new(
        context: NonNull<ibv_context>,
        functions: Arc<Functions>,
        node: PathBuf,
    ) -> io::Result<Arc<Self>> {
        let deletions = match node.parent() {
            Some(folder) if node.exists() => watch(folder)
                .inspect_err(|error| tracing::debug!(%error, "the node is not watched"))
                .ok(),
            _ => None,
        };
        let adapter = Self {
            context,
            functions,
            node,
            deletions,
            state: Mutex::default(),
        };
        set_nonblocking(adapter.event_fd())?;
        Ok(Arc::new(adapter))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn event_fd(&self) -> RawFd {
        // SAFETY: the context is one of an open device; the library does not change it.
        unsafe { (*self.context.as_ptr()).async_fd }
    }

    /// Reads what there is to read, and tells whom it concerns.
    fn read(&self) {
        let mut state = self.lock();
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
            // SAFETY: the context is one of an open device, and the place is one for an event.
            if unsafe { get(self.context.as_ptr(), event.as_mut_ptr()) } != 0 {
                let error = io::Error::last_os_error();
                match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => {}
                    _ => state.end_all(unreadable(&error)),
                }
                return;
            }
            // SAFETY: numbers and pointers may be zero, and the library has filled in the others.
            let mut event = unsafe { event.assume_init() };
            // SAFETY: it is acknowledged once. What it is about is there until then, and only
            // compared afterwards.
            unsafe { (self.functions.ibv_ack_async_event)(&mut event) };
            self.handle(&event, state);
        }
    }

    fn handle(&self, event: &ibv_async_event, state: &mut State) {
        // SAFETY: the function takes any number and gives a text that is never freed.
        let text = unsafe { CStr::from_ptr((self.functions.ibv_event_type_str)(event.event_type)) };
        let text = text.to_string_lossy();
        tracing::debug!(node = %self.node.display(), %text, "an event of the device");
        let kind = match event.event_type {
            ffi::IBV_EVENT_QP_FATAL | ffi::IBV_EVENT_CQ_ERR | ffi::IBV_EVENT_DEVICE_FATAL => {
                ProviderErrorKind::Local
            }
            // The peer's requests are meant.
            ffi::IBV_EVENT_QP_REQ_ERR | ffi::IBV_EVENT_QP_ACCESS_ERR => ProviderErrorKind::Protocol,
            // A port that goes down may come up again in time.
            _ => return,
        };
        let fault = ProviderError::new(kind, format!("the adapter tells of a {text}"));
        if event.event_type == ffi::IBV_EVENT_DEVICE_FATAL {
            state.end_all(fault);
            return;
        }
        let object = event.element as usize;
        state.end(&fault, |watched| watched.objects.contains(&object));
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
            state.end_all(removed());
        }
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        if !state.unwrap_or_else(PoisonError::into_inner).is_removed {
            return;
        }
        // The library goes on with descriptors by which nothing can be done, until it looks for
        // devices again and closes them.
        let closed = File::open("/dev/null").and_then(|nothing| {
            // SAFETY: the identifier that the last watch was on is there still, and with it the
            // context. Nothing of ours is left on the device, nor can the library do anything
            // with it by now that would not be an error.
            let context = unsafe { self.context.as_ref() };
            for fd in [context.cmd_fd, context.async_fd] {
                // SAFETY: the library has it open, and closes it: it is not closed here.
                let mut fd = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(fd) });
                dup3(&nothing, &mut fd, DupFlags::CLOEXEC)?;
            }
            Ok(())
        });
        if let Err(error) = closed {
            tracing::warn!(%error, "a removed device is not closed");
        }
    }
}

/// What tells of files that are deleted in a folder.
fn watch(folder: &Path) -> io::Result<OwnedFd> {
    let flags = inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC;
    let deletions = inotify::init(flags)?;
    inotify::add_watch(&deletions, folder, inotify::WatchFlags::DELETE)?;
    Ok(deletions)
}

fn removed() -> ProviderError {
    local_error("the RDMA device was removed")
}

fn unreadable(error: &io::Error) -> ProviderError {
    local_error(&format!("the RDMA device tells nothing any more: {error}"))
}

/// Who wants to know what becomes of a device. Its owner holds an identifier that is bound to the
/// device for longer, and drops it behind all that it has made on the device.
pub(crate) struct DeviceEvents {
    number: u64,
    /// Of this watch alone, as a descriptor cannot be waited for twice in one place.
    descriptors: Vec<AsyncFd<OwnedFd>>,
    // It goes last.
    adapter: Arc<Adapter>,
}

impl DeviceEvents {
    /// Watches the device that an identifier is bound to.
    pub(crate) fn new(id: &CmId) -> Result<Self, ProviderError> {
        let failed = |error| local_error(&format!("the device's events: {error}"));
        Self::of(Adapter::of(id).map_err(failed)?)
    }

    fn of(adapter: Arc<Adapter>) -> Result<Self, ProviderError> {
        // What happened before this, and nobody was there to be woken.
        adapter.read();
        let failed = |error: io::Error| local_error(&format!("the device's events: {error}"));
        // SAFETY: the adapter has it open until the call returns.
        let events = unsafe { BorrowedFd::borrow_raw(adapter.event_fd()) };
        let own = |fd: BorrowedFd<'_>| {
            let fd = fcntl_dupfd_cloexec(fd, 0)?;
            // SAFETY: the descriptor is open as long as it is owned.
            let fd = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
            fd.map_err(io::Error::from)
        };
        let mut descriptors = vec![own(events).map_err(failed)?];
        if let Some(deletions) = &adapter.deletions {
            // SAFETY: as above.
            let deletions = unsafe { BorrowedFd::borrow_raw(deletions.as_raw_fd()) };
            descriptors.push(own(deletions).map_err(failed)?);
        }
        let mut state = adapter.lock();
        if let Some(fault) = &state.fault {
            return Err(fault.clone());
        }
        state.last += 1;
        let number = state.last;
        state.watched.push(Subscriber {
            number,
            objects: [0; 2],
            fault: None,
            waker: None,
        });
        drop(state);
        Ok(Self {
            number,
            descriptors,
            adapter,
        })
    }

    /// The queue pair and the completion queue that events may be about.
    pub(crate) fn add(&self, objects: [usize; 2]) {
        let mut state = self.adapter.lock();
        if let Some(watched) = find(&mut state, self.number) {
            watched.objects = objects;
        }
    }

    /// Why it is over; `Pending` wakes the context when it is.
    pub(crate) fn poll(&self, context: &mut Context<'_>) -> Poll<ProviderError> {
        for descriptor in &self.descriptors {
            while let Poll::Ready(ready) = descriptor.poll_read_ready(context) {
                let Ok(mut ready) = ready else {
                    return Poll::Ready(local_error("the runtime is shutting down"));
                };
                self.adapter.read();
                if ready.ready().is_read_closed() {
                    // It would be ready for ever.
                    return Poll::Ready(removed());
                }
                ready.clear_ready();
            }
        }
        let mut state = self.adapter.lock();
        let watched = find(&mut state, self.number).expect("it is there until this is dropped");
        if let Some(fault) = &watched.fault {
            return Poll::Ready(fault.clone());
        }
        // Who was woken in our place wakes us.
        match &mut watched.waker {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }
}

impl Drop for DeviceEvents {
    fn drop(&mut self) {
        let mut state = self.adapter.lock();
        state
            .watched
            .retain(|watched| watched.number != self.number);
    }
}

fn find(state: &mut State, number: u64) -> Option<&mut Subscriber> {
    let watched = &mut state.watched;
    watched.iter_mut().find(|watched| watched.number == number)
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

    /// An event as the device's descriptor has it here: what it is about, and its kind.
    unsafe extern "C" fn get_async_event(
        context: *mut ibv_context,
        event: *mut ibv_async_event,
    ) -> c_int {
        let mut bytes = [0; 2];
        // SAFETY: the context is one of those below, which closes the descriptor.
        let fd = ManuallyDrop::new(unsafe { File::from_raw_fd((*context).async_fd) });
        // It leaves the error where C does.
        if !matches!((&*fd).read(&mut bytes), Ok(2)) {
            return -1;
        }
        // SAFETY: it is a place for an event.
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

    /// A device whose events are what is written to `events`, and whose commands come out at
    /// `commands`.
    struct Device {
        context: Box<ibv_context>,
        events: UnixStream,
        commands: UnixStream,
        folder: tempfile::TempDir,
    }

    impl Device {
        fn new() -> Self {
            let (events, async_end) = UnixStream::pair().unwrap();
            let (commands, command_end) = UnixStream::pair().unwrap();
            commands
                .set_read_timeout(Some(Duration::from_secs(10)))
                .unwrap();
            // SAFETY: all of it are pointers, functions that may be missing, and numbers.
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
            let context = NonNull::from(&mut *self.context);
            let node = self.folder.path().join("uverbs0");
            Adapter::new(context, Arc::new(functions), node).unwrap()
        }
    }

    impl Drop for Device {
        fn drop(&mut self) {
            for fd in [self.context.cmd_fd, self.context.async_fd] {
                // SAFETY: it was opened above, and is closed once.
                drop(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
    }

    async fn soon(watch: &DeviceEvents) -> ProviderError {
        timeout(
            Duration::from_secs(10),
            poll_fn(|context| watch.poll(context)),
        )
        .await
        .unwrap()
    }

    async fn goes_on(watch: &DeviceEvents) -> bool {
        timeout(
            Duration::from_millis(20),
            poll_fn(|context| watch.poll(context)),
        )
        .await
        .is_err()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn who_is_woken_reads_for_all() {
        let mut device = Device::new();
        let adapter = device.adapter();
        let (first, second) = (
            DeviceEvents::of(adapter.clone()).unwrap(),
            DeviceEvents::of(adapter).unwrap(),
        );
        first.add([1, 2]);
        second.add([3, 4]);
        // Of nobody, and of no consequence.
        for kind in [ffi::IBV_EVENT_QP_FATAL, 4, 10] {
            device.events.write_all(&[9, kind as u8]).unwrap();
        }
        assert!(goes_on(&first).await && goes_on(&second).await);
        let waiting = tokio::spawn(async move {
            let fault = soon(&second).await;
            (second, fault)
        });
        device
            .events
            .write_all(&[3, ffi::IBV_EVENT_QP_ACCESS_ERR as u8])
            .unwrap();
        assert!(goes_on(&first).await);
        let (second, fault) = waiting.await.unwrap();
        assert_eq!(fault.kind, ProviderErrorKind::Protocol);
        assert_eq!(&*fault.what, "the adapter tells of a fault");
        device
            .events
            .write_all(&[2, ffi::IBV_EVENT_CQ_ERR as u8])
            .unwrap();
        assert_eq!(soon(&first).await.kind, ProviderErrorKind::Local);
        assert_eq!(soon(&second).await.kind, ProviderErrorKind::Protocol);
    }

    #[tokio::test]
    async fn a_device_that_fails_ends_all() {
        let mut device = Device::new();
        let adapter = device.adapter();
        let watches = [(); 3].map(|()| DeviceEvents::of(adapter.clone()).unwrap());
        device
            .events
            .write_all(&[0, ffi::IBV_EVENT_DEVICE_FATAL as u8])
            .unwrap();
        for watch in &watches {
            assert_eq!(&*soon(watch).await.what, "the adapter tells of a fault");
        }
        let late = DeviceEvents::of(adapter).map(drop).unwrap_err();
        assert_eq!(&*late.what, "the adapter tells of a fault");
    }

    #[tokio::test]
    async fn a_device_that_is_removed_is_closed_behind_the_last() {
        let mut device = Device::new();
        let adapter = device.adapter();
        let watches = [(); 2].map(|()| DeviceEvents::of(adapter.clone()).unwrap());
        drop(adapter);
        fs::write(device.folder.path().join("uverbs1"), "").unwrap();
        fs::remove_file(device.folder.path().join("uverbs1")).unwrap();
        assert!(goes_on(&watches[0]).await);
        fs::remove_file(device.folder.path().join("uverbs0")).unwrap();
        for watch in &watches {
            assert_eq!(&*soon(watch).await.what, "the RDMA device was removed");
        }
        let [first, second] = watches;
        drop(first);
        // SAFETY: the device has it open.
        let commands = unsafe { BorrowedFd::borrow_raw(device.context.cmd_fd) };
        assert_eq!(rustix::io::write(commands, b"x"), Ok(1));
        device.commands.read_exact(&mut [0]).unwrap();
        drop(second);
        // The kernel's end has seen that nobody has it open; the descriptor does nothing.
        assert_eq!(device.commands.read(&mut [0]).unwrap(), 0);
        assert!(rustix::io::write(commands, b"x").is_err());
    }

    #[tokio::test]
    async fn a_device_that_stays_is_left_to_the_library() {
        let mut device = Device::new();
        let watch = DeviceEvents::of(device.adapter()).unwrap();
        assert!(goes_on(&watch).await);
        drop(watch);
        // SAFETY: the device has it open.
        let commands = unsafe { BorrowedFd::borrow_raw(device.context.cmd_fd) };
        assert_eq!(rustix::io::write(commands, b"x"), Ok(1));
    }
}
