//! Completed operations, and the descriptor that announces them.

use std::{
    collections::VecDeque,
    ffi::c_void,
    io::{Read, Write},
    os::{fd::AsRawFd, unix::net::UnixStream},
    ptr,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    task::{Wake, Waker},
};

use tokio::sync::Notify;

use crate::{
    buffer::smbdirect_buffer,
    connection::smbdirect_connection,
    runtime::Runtime,
    status::{Failure, smbdirect_error},
};

/// Is told the result of an operation that was started on `connection`. It is called by
/// smbdirect_service() or smbdirect_connection_free(), and nowhere else.
///
/// `error` is NULL if the operation succeeded, and valid during the call otherwise. `buffer` is the buffer
/// of the operation, which belongs to the program again, or NULL if it has none. `user_data` is the
/// argument of the call that started the operation, whose memory belongs to the program again.
///
/// The callback may call every function of the library but smbdirect_connection_free() on `connection`.
pub type smbdirect_callback = Option<
    unsafe extern "C" fn(
        connection: *mut smbdirect_connection,
        error: *const smbdirect_error,
        buffer: *mut smbdirect_buffer,
        user_data: *mut c_void,
    ),
>;

/// What a program is told when an operation is over.
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

/// An operation that is over.
struct Completed {
    callback: Callback,
    result: Result<(), Failure>,
    buffer: Option<Box<smbdirect_buffer>>,
}

/// The events of one handle. As a waker, it announces an event.
pub(crate) struct Events {
    /// Notified of an event of any handle of the runtime.
    runtime_event: Arc<Notify>,
    operations: Mutex<Operations>,
    /// Notified when an operation is over.
    completion: Notify,
    descriptor: OnceLock<Descriptor>,
}

#[derive(Default)]
struct Operations {
    outstanding: usize,
    completed: VecDeque<Completed>,
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

    /// Returns the descriptor, which is readable at first, so that a program looks for what happened
    /// before it asked for the descriptor.
    pub(crate) fn descriptor(&self) -> Result<i32, Failure> {
        if self.descriptor.get().is_none() {
            let created = Descriptor::new()?;
            created.signal();
            // Another thread may have been faster; its descriptor stays.
            let _ = self.descriptor.set(created);
        }
        let descriptor = self.descriptor.get().expect("it was created above");
        Ok(descriptor.reader.as_raw_fd())
    }

    /// Makes the descriptor unreadable until the next event.
    pub(crate) fn clear(&self) {
        if let Some(descriptor) = self.descriptor.get() {
            descriptor.clear();
        }
    }

    /// Counts an operation that was started.
    pub(crate) fn start(&self) {
        self.operations().outstanding += 1;
    }

    /// Stores the result of an operation that was started, and announces it.
    pub(crate) fn complete(
        &self,
        callback: Callback,
        result: Result<(), Failure>,
        buffer: Option<Box<smbdirect_buffer>>,
    ) {
        let completed = Completed {
            callback,
            result,
            buffer,
        };
        self.operations().completed.push_back(completed);
        self.completion.notify_waiters();
        self.signal();
    }

    /// Calls the callbacks of completed operations, and returns their number.
    ///
    /// # Safety
    /// `connection` is the live handle that these events belong to.
    pub(crate) unsafe fn dispatch(&self, connection: *mut smbdirect_connection) -> usize {
        self.clear();
        // Those that complete during the callbacks wait for the next call, so that this one ends.
        let completed = std::mem::take(&mut self.operations().completed);
        let number = completed.len();
        self.operations().outstanding -= number;
        for Completed {
            callback,
            result,
            buffer,
        } in completed
        {
            let Some(function) = callback.function else {
                continue;
            };
            let error = result.err().map(|failure| smbdirect_error::new(&failure));
            let error = error.as_ref().map_or(ptr::null(), ptr::from_ref);
            let buffer = buffer.map_or(ptr::null_mut(), Box::into_raw);
            // SAFETY: the function has this signature, and all pointers are valid during the call.
            unsafe { function(connection, error, buffer, callback.user_data) };
        }
        number
    }

    /// Waits until all operations that were started are completed.
    pub(crate) async fn all_completed(&self) {
        loop {
            let completion = self.completion.notified();
            {
                let operations = self.operations();
                if operations.completed.len() >= operations.outstanding {
                    return;
                }
            }
            completion.await;
        }
    }

    /// Returns whether operations were started whose callbacks have not been called.
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
