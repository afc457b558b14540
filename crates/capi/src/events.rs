//! The events of a handle, and the descriptor that announces them.

use std::{
    io::{Read, Write},
    os::{fd::AsRawFd, unix::net::UnixStream},
    sync::{Arc, Mutex, OnceLock},
    task::{Wake, Waker},
};

use tokio::sync::Notify;

use crate::{calls::Calls, locks::lock, status::Failure};

/// The events of one handle. As a waker, it announces an event.
pub(crate) struct Events {
    /// Notified of an event of any handle of the runtime.
    runtime_event: Arc<Notify>,
    pub(crate) calls: Calls,
    descriptor: OnceLock<Descriptor>,
}

impl Wake for Events {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.signal();
    }
}

impl Events {
    pub(crate) fn new(runtime_event: &Arc<Notify>) -> Arc<Self> {
        Arc::new(Self {
            runtime_event: runtime_event.clone(),
            calls: Calls::default(),
            descriptor: OnceLock::new(),
        })
    }

    /// Returns a waker that announces an event.
    pub(crate) fn waker(self: &Arc<Self>) -> Waker {
        self.clone().into()
    }

    /// Announces an event.
    pub(crate) fn signal(&self) {
        if let Some(descriptor) = self.descriptor.get() {
            descriptor.signal();
        }
        self.runtime_event.notify_one();
    }

    /// Returns the descriptor, which is readable at first, so that the program first handles the events that
    /// happened before it asked for the descriptor.
    pub(crate) fn descriptor(&self) -> Result<i32, Failure> {
        if self.descriptor.get().is_none() {
            let created = Descriptor::new()?;
            created.signal();
            // Another thread may have been faster; its descriptor stays.
            let _ = self.descriptor.set(created);
        }
        let descriptor = self.descriptor.get().expect("the descriptor was set above");
        Ok(descriptor.reader.as_raw_fd())
    }

    /// Makes the descriptor unreadable until the next event.
    pub(crate) fn clear(&self) {
        if let Some(descriptor) = self.descriptor.get() {
            descriptor.clear();
        }
    }

    /// Ends the handle, because it is freed. No operation can be started any more.
    pub(crate) fn free(&self) {
        self.calls.end();
        self.signal();
    }
}

/// A descriptor that is readable while there is an unseen event.
struct Descriptor {
    reader: UnixStream,
    writer: UnixStream,
    signalled: Mutex<bool>,
}

impl Descriptor {
    fn new() -> std::io::Result<Self> {
        let (reader, writer) = UnixStream::pair()?;
        reader.set_nonblocking(true)?;
        writer.set_nonblocking(true)?;
        Ok(Self {
            reader,
            writer,
            signalled: Mutex::new(false),
        })
    }

    fn signal(&self) {
        let mut signalled = lock(&self.signalled);
        if !*signalled {
            // The socket holds at most this byte, so there is room.
            *signalled = (&self.writer).write(&[1]).is_ok();
        }
    }

    fn clear(&self) {
        let mut signalled = lock(&self.signalled);
        if *signalled {
            *signalled = (&self.reader).read(&mut [0]).is_err();
        }
    }
}
