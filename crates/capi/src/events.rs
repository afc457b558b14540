//! Completed operations, and the descriptor that announces them.

use std::{
    collections::VecDeque,
    ffi::c_void,
    io::{Read, Write},
    os::{fd::AsRawFd, unix::net::UnixStream},
    ptr,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    task::{Wake, Waker},
    thread::{self, ThreadId},
};

use tokio::sync::Notify;

use crate::{
    buffer::smbdirect_buffer,
    calls::{Calls, ended_failure},
    connection::smbdirect_connection,
    pointers,
    runtime::Runtime,
    status::{Failure, set_errno, smbdirect_error},
};

/// Receives the result of an operation that was started on `connection`. It is called by smbdirect_service() or
/// smbdirect_connection_free(), and nowhere else.
///
/// `error` is NULL if the operation succeeded, and valid during the call otherwise, with errno as after a call.
/// `buffer` is the buffer of the operation, which belongs to the program again, or NULL if it has none. `user_data` is
/// the argument of the call that started the operation, whose memory belongs to the program again.
///
/// The callback may call every function of the library, smbdirect_connection_free() included. If
/// smbdirect_connection_free() calls it, `connection` is not valid any more, and calls with it return
/// SMBDIRECT_ERROR_INVALID.
pub type smbdirect_callback = Option<
    unsafe extern "C" fn(
        connection: *mut smbdirect_connection,
        error: *const smbdirect_error,
        buffer: *mut smbdirect_buffer,
        user_data: *mut c_void,
    ),
>;

/// The information that a program receives when an operation is over.
pub(crate) struct Callback {
    function: smbdirect_callback,
    user_data: *mut c_void,
}

// SAFETY: the pointer is only handed back to the program, on the thread that calls the library.
unsafe impl Send for Callback {}

impl Callback {
    pub(crate) fn new(function: smbdirect_callback, user_data: *mut c_void) -> Self {
        Self {
            function,
            user_data,
        }
    }
}

/// A buffer of an operation, which becomes the program's again under its old handle.
pub(crate) struct Owned {
    handle: *mut smbdirect_buffer,
    pub(crate) buffer: Arc<smbdirect_buffer>,
}

// SAFETY: the handle is a number, which is never dereferenced.
unsafe impl Send for Owned {}

impl Owned {
    /// Takes the buffer of a handle.
    ///
    /// # Errors
    /// The handle is not live.
    pub(crate) fn take(handle: *mut smbdirect_buffer) -> Result<Self, Failure> {
        let buffer = pointers::take(handle, "*buffer")?;
        Ok(Self { handle, buffer })
    }

    /// Makes the buffer the program's again, and returns its handle.
    pub(crate) fn put_back(self) -> *mut smbdirect_buffer {
        pointers::put_back(self.handle, self.buffer);
        self.handle
    }
}

/// An operation that is over.
struct Completed {
    callback: Callback,
    result: Result<(), Failure>,
    buffer: Option<Owned>,
}

/// The events of one handle. As a waker, it announces an event.
pub(crate) struct Events {
    /// Notified of an event of any handle of the runtime.
    runtime_event: Arc<Notify>,
    operations: Mutex<Operations>,
    /// Notified when an operation is over, or a callback has returned.
    completion: Notify,
    pub(crate) calls: Calls,
    descriptor: OnceLock<Descriptor>,
}

#[derive(Default)]
struct Operations {
    /// Operations that are not over.
    outstanding: usize,
    completed: VecDeque<Completed>,
    /// The threads that are in a callback.
    calling: Vec<ThreadId>,
}

/// An operation that was started. Dropping it means that it was not submitted.
pub(crate) struct Started(Option<Arc<Events>>);

impl Started {
    /// Stores the result of the operation, and announces it.
    pub(crate) fn complete(
        mut self,
        callback: Callback,
        result: Result<(), Failure>,
        buffer: Option<Owned>,
    ) {
        let events = self
            .0
            .take()
            .expect("`complete` and the destructor run once");
        let mut operations = events.operations();
        operations.outstanding -= 1;
        operations.completed.push_back(Completed {
            callback,
            result,
            buffer,
        });
        drop(operations);
        events.completion.notify_waiters();
        events.signal();
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Some(events) = self.0.take() {
            events.operations().outstanding -= 1;
            events.completion.notify_waiters();
        }
    }
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
    pub(crate) fn new(runtime: &Arc<Runtime>) -> Arc<Self> {
        Arc::new(Self {
            runtime_event: runtime.event.clone(),
            operations: Mutex::default(),
            completion: Notify::new(),
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

    /// Counts an operation that is going to be submitted.
    ///
    /// # Errors
    /// The handle has ended.
    pub(crate) fn start(self: &Arc<Self>) -> Result<Started, Failure> {
        let mut operations = self.operations();
        if self.calls.has_ended() {
            return Err(ended_failure());
        }
        operations.outstanding += 1;
        Ok(Started(Some(self.clone())))
    }

    /// Ends the handle, because it is freed. No operation can be started any more.
    pub(crate) fn free(&self) {
        self.calls.end();
        self.signal();
    }

    /// Calls the callbacks of completed operations, and returns their number.
    ///
    /// # Safety
    /// The functions and arguments of the callbacks are valid.
    pub(crate) unsafe fn dispatch(&self, connection: *mut smbdirect_connection) -> usize {
        self.clear();
        // Those that complete during the callbacks wait for the next call, so that this one ends.
        let number = self.operations().completed.len();
        for called in 0..number {
            let mut operations = self.operations();
            let Some(Completed {
                callback,
                result,
                buffer,
            }) = operations.completed.pop_front()
            else {
                // Another thread, or a callback, has called the others.
                return called;
            };
            let Some(function) = callback.function else {
                continue;
            };
            operations.calling.push(thread::current().id());
            drop(operations);
            let failure = result.err();
            let error = failure.as_ref().map(smbdirect_error::new);
            let error = error.as_ref().map_or(ptr::null(), ptr::from_ref);
            let buffer = buffer.map_or(ptr::null_mut(), Owned::put_back);
            set_errno(failure.map_or(0, |failure| failure.errno));
            // SAFETY: the function has this signature, and all pointers are valid during the call.
            unsafe { function(connection, error, buffer, callback.user_data) };
            let mut operations = self.operations();
            let here = thread::current().id();
            let at = operations.calling.iter().position(|thread| *thread == here);
            operations
                .calling
                .swap_remove(at.expect("the thread was added before the call"));
            drop(operations);
            self.completion.notify_waiters();
        }
        number
    }

    /// Waits until a callback can be called, and returns true; or until no operation is outstanding and no other
    /// thread is in a callback, and returns false.
    pub(crate) async fn settled(&self, here: ThreadId) -> bool {
        loop {
            let completion = self.completion.notified();
            {
                let operations = self.operations();
                if !operations.completed.is_empty() {
                    return true;
                }
                let calling = operations.calling.iter().any(|thread| *thread != here);
                if operations.outstanding == 0 && !calling {
                    return false;
                }
            }
            completion.await;
        }
    }

    /// Returns whether operations are not over.
    pub(crate) fn has_operations(&self) -> bool {
        self.operations().outstanding > 0
    }

    fn operations(&self) -> MutexGuard<'_, Operations> {
        // Callbacks run without the lock, so that no panic leaves half a change.
        self.operations
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
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
        let mut signalled = self
            .signalled
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if !*signalled {
            // The socket holds at most this byte, so there is room.
            *signalled = (&self.writer).write(&[1]).is_ok();
        }
    }

    fn clear(&self) {
        let mut signalled = self
            .signalled
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if *signalled {
            *signalled = (&self.reader).read(&mut [0]).is_err();
        }
    }
}
