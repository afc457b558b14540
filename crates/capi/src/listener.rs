//! Accepting connections.

use std::{ffi::c_char, future::poll_fn, sync::Arc, task::Waker, time::Duration};

use smbdirect::Listener;
use tokio::sync::Mutex;

use crate::{
    address::Address,
    calls::Calls,
    connection::smbdirect_connection,
    events::Events,
    pointers,
    query::copy_text,
    runtime::{Runtime, smbdirect_runtime},
    settings::{Prepared, smbdirect_settings},
    status::{Failure, call, call_status, smbdirect_error},
    transport,
};

/// A listener.
pub struct smbdirect_listener {
    runtime: Arc<Runtime>,
    events: Arc<Events>,
    /// `None` once the handle was freed.
    listener: Mutex<Option<Listener>>,
    address: String,
    busy_poll: Duration,
    /// The provider hands the bytes of one end to the other one.
    copies: bool,
}

/// Listens on an address. The arguments are those of smbdirect_connect(); without a host, as in ":5445", it listens on
/// every address of the machine. Port 0 picks a free port, which smbdirect_listener_address() returns. Peers that
/// connect negotiate in the background.
///
/// Stores the listener and returns 0, or SMBDIRECT_ERROR_INVALID, _UNSUPPORTED, _ADDRESS, _IN_USE or
/// _SYSTEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smbdirect_listen(
    runtime: *mut smbdirect_runtime,
    address: *const c_char,
    settings: *const smbdirect_settings,
    listener: *mut *mut smbdirect_listener,
    error: *mut smbdirect_error,
) -> i32 {
    // SAFETY: all pointers follow the rules for arguments.
    unsafe {
        call_status(error, || {
            let out = pointers::out(listener, "listener")?;
            let runtime = Runtime::of(runtime)?;
            let prepared = Prepared::new(settings)?;
            let text = pointers::text(address, "address")?;
            let provider = runtime.enter(|| transport::provider(&runtime, &prepared.rdma))?;
            let address = Address::parse_listen(text, provider.attributes().default_port)?;
            let binding = async {
                let address = address.resolve_listen(prepared.rdma.kind).await?;
                let listener = Listener::bind(&*provider, address, prepared.config.clone()).await;
                listener.map_err(|error| prepared.explained_listen(error, address))
            };
            let bound = runtime.wait(-1, Waker::noop(), &Calls::default(), binding)??;
            let created = smbdirect_listener {
                events: Events::new(&runtime.event),
                address: bound.local_addr().to_string(),
                listener: Mutex::new(Some(bound)),
                busy_poll: prepared.busy_poll,
                copies: transport::shares_memory(prepared.rdma.kind),
                runtime,
            };
            *out = pointers::give(Arc::new(created));
            Ok(())
        })
    }
}

/// Returns the next connection, which is established.
///
/// Stores the connection and returns 0. Otherwise returns SMBDIRECT_ERROR_WOULD_BLOCK, _TIMED_OUT, _ABORTED if the
/// listener is freed meanwhile, or why the listener cannot listen any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smbdirect_accept(
    listener: *mut smbdirect_listener,
    timeout_ms: i32,
    connection: *mut *mut smbdirect_connection,
    error: *mut smbdirect_error,
) -> i32 {
    // SAFETY: all pointers follow the rules for arguments.
    unsafe {
        call_status(error, || {
            let out = pointers::out(connection, "connection")?;
            let handle = pointers::handle(listener, "listener")?;
            handle.runtime.check()?;
            handle.events.clear();
            let accepting = async {
                let mut listener = handle.listener.lock().await;
                let listener = listener.as_mut().expect("the destructor takes it");
                // `accept` would take the waker away when a call that does not wait drops it.
                poll_fn(|context| listener.poll_accept(context)).await
            };
            let waker = handle.events.waker();
            let calls = &handle.events.calls;
            let accepted = handle.runtime.wait(timeout_ms, &waker, calls, accepting);
            if accepted.is_err() && timeout_ms != 0 {
                // Only a call that does not wait leaves the waker of the descriptor behind.
                handle.events.signal();
            }
            let accepted = accepted??;
            // There may be more of them.
            handle.events.signal();
            accepted.set_busy_poll(handle.busy_poll);
            let accepted =
                smbdirect_connection::established(&handle.runtime, accepted, handle.copies);
            *out = pointers::give(accepted);
            Ok(())
        })
    }
}

/// Returns a descriptor to wait for with poll(), for POLLIN: it is readable at first, and whenever
/// smbdirect_accept() with a timeout of 0 may have a result. Call smbdirect_accept() until it returns
/// SMBDIRECT_ERROR_WOULD_BLOCK, which makes it unreadable. It belongs to the listener.
///
/// Returns the descriptor, or SMBDIRECT_ERROR_SYSTEM or _FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smbdirect_listener_get_fd(
    listener: *mut smbdirect_listener,
    error: *mut smbdirect_error,
) -> i32 {
    // SAFETY: all pointers follow the rules for arguments.
    let value = unsafe {
        call(error, || {
            let handle = pointers::handle(listener, "listener")?;
            handle.runtime.check()?;
            handle.events.descriptor().map(Into::into)
        })
    };
    value as i32
}

/// Copies the address of the listener, such as "127.0.0.1:5445", into `text`, ended by a 0 byte.
/// SMBDIRECT_ADDRESS_LENGTH bytes are enough for every address.
///
/// Returns 0, or SMBDIRECT_ERROR_INVALID if the memory is too short.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smbdirect_listener_address(
    listener: *const smbdirect_listener,
    text: *mut c_char,
    length: usize,
    error: *mut smbdirect_error,
) -> i32 {
    // SAFETY: all pointers follow the rules for arguments.
    unsafe {
        call_status(error, || {
            let handle = pointers::handle(listener, "listener")?;
            if text.is_null() || length <= handle.address.len() {
                return Err(Failure::invalid("the memory for the address is too short"));
            }
            // SAFETY: the memory has `length` bytes.
            let memory = std::slice::from_raw_parts_mut(text, length);
            copy_text(&handle.address, memory);
            Ok(())
        })
    }
}

/// Frees a listener, which stops listening. Connections that were not accepted are closed. Calls of other threads
/// that wait in smbdirect_accept() end with SMBDIRECT_ERROR_ABORTED. NULL, and a listener that was freed before, are
/// ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smbdirect_listener_free(listener: *mut smbdirect_listener) {
    // SAFETY: there is no error to store.
    unsafe {
        call_status(std::ptr::null_mut(), || {
            let live = pointers::handle(listener, "listener")?;
            live.runtime.check()?;
            pointers::take(listener, "listener")?.events.free();
            Ok(())
        });
    }
}

impl Drop for smbdirect_listener {
    fn drop(&mut self) {
        let listener = self.listener.get_mut().take();
        self.runtime.release(listener);
    }
}
