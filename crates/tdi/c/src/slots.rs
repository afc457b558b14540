//! What a client gives to the transport for events: the places of its handlers on an address, and its contexts of
//! connections.

use std::{ffi::c_void, mem, ptr, sync::Mutex};

use smbdirect_tdi::Status;

use crate::device::lock;

/// Events of TDI, by their numbers.
pub(crate) const EVENT_CONNECT: usize = 0;
pub(crate) const EVENT_DISCONNECT: usize = 1;
pub(crate) const EVENT_ERROR: usize = 2;
pub(crate) const EVENT_RECEIVE: usize = 3;
pub(crate) const EVENT_SEND_POSSIBLE: usize = 6;
pub(crate) const EVENT_CHAINED_RECEIVE: usize = 7;
pub(crate) const EVENT_ERROR_EX: usize = 10;
/// The number of events.
pub(crate) const EVENT_COUNT: usize = 11;

/// The client's name for a connection, and the accept that its connect handler has returned for it.
pub(crate) struct ConnectionContext {
    value: usize,
    accept: Mutex<Option<Accept>>,
}

/// What completes an accept.
pub(crate) type Accept = Box<dyn FnOnce(Result<(), Status>) + Send>;

impl ConnectionContext {
    pub(crate) fn new(value: usize) -> Self {
        Self {
            value,
            accept: Mutex::new(None),
        }
    }

    pub(crate) const fn pointer(&self) -> *mut c_void {
        self.value as *mut c_void
    }

    /// Keeps an accept until it completes. Returns it if there is an earlier one, which has not completed yet.
    pub(crate) fn keep_accept(&self, accept: Accept) -> Result<(), Accept> {
        let mut kept = lock(&self.accept);
        if kept.is_some() {
            return Err(accept);
        }
        *kept = Some(accept);
        Ok(())
    }

    /// Completes the accept that is kept, if there is one.
    pub(crate) fn accepted(&self, result: Result<(), Status>) {
        let accept = lock(&self.accept).take();
        if let Some(accept) = accept {
            accept(result);
        }
    }
}

/// A handler and its context.
#[derive(Clone, Copy)]
struct Slot {
    handler: *mut c_void,
    context: *mut c_void,
}

// SAFETY: both belong to the client, which sets them for calls from every thread.
unsafe impl Send for Slot {}

const EMPTY: Slot = Slot {
    handler: ptr::null_mut(),
    context: ptr::null_mut(),
};

/// The handlers of an address.
pub(crate) struct Handlers(Mutex<[Slot; EVENT_COUNT]>);

impl Default for Handlers {
    fn default() -> Self {
        Self(Mutex::new([EMPTY; EVENT_COUNT]))
    }
}

impl Handlers {
    /// Sets the handler of an event; null removes it.
    ///
    /// # Safety
    /// The handler has the type that TDI defines for the event.
    pub(crate) unsafe fn set(&self, event: usize, handler: *mut c_void, context: *mut c_void) {
        lock(&self.0)[event] = Slot { handler, context };
    }

    /// Removes all handlers, because the address was closed.
    pub(crate) fn remove_all(&self) {
        *lock(&self.0) = [EMPTY; EVENT_COUNT];
    }

    /// Returns whether an event has a handler.
    pub(crate) fn has(&self, event: usize) -> bool {
        !lock(&self.0)[event].handler.is_null()
    }

    /// Returns the handler of an event as `F`, with its context.
    ///
    /// # Safety
    /// `F` is the type of the event's handlers.
    pub(crate) unsafe fn get<F: Copy>(&self, event: usize) -> Option<(F, *mut c_void)> {
        let Slot { handler, context } = lock(&self.0)[event];
        // SAFETY: the caller promises that `F` is a pointer to a function of the type that `set` was promised.
        (!handler.is_null()).then(|| (unsafe { mem::transmute_copy(&handler) }, context))
    }
}
