//! Memory that the peer can read or write.

use std::{future::Future, pin::Pin, sync::Arc, task::Waker};

use bytes::BytesMut;
use smbdirect::{Access, BufferDescriptorV1, MemoryRegion, rdma::memory::DeregisterError};
use tokio::sync::Mutex;

use crate::{
    buffer::{self, Owned, smbdirect_buffer},
    calls::Calls,
    connection::smbdirect_connection,
    events::Events,
    locks::lock,
    pointers,
    runtime::Runtime,
    status::{Failure, call_status, smbdirect_error},
};

/// The peer may read the memory by RDMA Read.
pub const SMBDIRECT_ACCESS_REMOTE_READ: u32 = 1;
/// The peer may write the memory by RDMA Write.
pub const SMBDIRECT_ACCESS_REMOTE_WRITE: u32 = 2;
/// The peer may end the registration by Send with Invalidate.
pub const SMBDIRECT_ACCESS_REMOTE_INVALIDATE: u32 = 4;

/// A buffer that is registered for the peer.
pub struct smbdirect_region {
    runtime: Arc<Runtime>,
    events: Arc<Events>,
    descriptor: BufferDescriptorV1,
    state: Mutex<State>,
    calls: Calls,
}

type Deregistering = Pin<Box<dyn Future<Output = Result<BytesMut, DeregisterError>> + Send>>;

/// The state of the registration.
enum State {
    Registered(MemoryRegion),
    /// A call that was ending the registration has timed out. The next call continues to wait for the end.
    Ending(Deregistering),
    Ended,
}

/// Buffer Descriptor V1 ([MS-SMBD] 2.2.3.1): memory of a peer. Encode it in messages as 16 bytes, with the
/// fields in this order and little-endian.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct smbdirect_buffer_descriptor {
    /// Offset of the first byte.
    pub offset: u64,
    /// Token of the registration.
    pub token: u32,
    /// Length in bytes.
    pub length: u32,
}

impl From<&smbdirect_buffer_descriptor> for BufferDescriptorV1 {
    fn from(descriptor: &smbdirect_buffer_descriptor) -> Self {
        Self {
            offset: descriptor.offset,
            token: descriptor.token,
            length: descriptor.length,
        }
    }
}

/// Registers `*buffer` for the peer, with the rights in `access`: a sum of SMBDIRECT_ACCESS_ values.
///
/// On success the buffer belongs to the library: `*buffer` becomes NULL, and its memory must not be used
/// until smbdirect_deregister() returns the buffer. Send the peer the descriptor of the region in a
/// message.
///
/// Stores the region and returns 0. Otherwise the buffer is unchanged, and it returns
/// SMBDIRECT_ERROR_INVALID, _SYSTEM, or _WOULD_BLOCK if the connection is not established yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smbdirect_register(
    connection: *mut smbdirect_connection,
    buffer: *mut *mut smbdirect_buffer,
    access: u32,
    region: *mut *mut smbdirect_region,
    error: *mut smbdirect_error,
) -> i32 {
    // SAFETY: all pointers follow the rules for arguments, and the caller hands over the buffer.
    unsafe {
        call_status(error, || {
            let handle = pointers::handle(connection, "connection")?;
            let buffer = pointers::out(buffer, "buffer")?;
            let out = pointers::out(region, "region")?;
            let rights = u8::try_from(access).ok().and_then(Access::from_bits);
            let rights =
                rights.ok_or_else(|| Failure::invalid(format!("unknown rights {access:#x}")))?;
            let connection = handle.connection()?;
            let owned = Owned::take(*buffer)?;
            let bytes = std::mem::take(&mut *lock(&owned.buffer.bytes));
            let registered = handle.runtime.enter(|| connection.register(bytes, rights));
            let registered = match registered {
                Ok(registered) => registered,
                Err(error) => {
                    *lock(&owned.buffer.bytes) = error.buffer;
                    owned.put_back();
                    return Err(error.reason.into());
                }
            };
            *buffer = std::ptr::null_mut();
            *out = pointers::give(Arc::new(smbdirect_region {
                runtime: handle.runtime.clone(),
                events: handle.events.clone(),
                descriptor: registered.descriptor(),
                state: Mutex::new(State::Registered(registered)),
                calls: Calls::default(),
            }));
            Ok(())
        })
    }
}

/// Stores the descriptor that the peer needs to use the region. Returns 0 or SMBDIRECT_ERROR_INVALID.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smbdirect_region_descriptor(
    region: *const smbdirect_region,
    descriptor: *mut smbdirect_buffer_descriptor,
    error: *mut smbdirect_error,
) -> i32 {
    // SAFETY: all pointers follow the rules for arguments.
    unsafe {
        call_status(error, || {
            let BufferDescriptorV1 {
                offset,
                token,
                length,
            } = pointers::handle(region, "region")?.descriptor;
            *pointers::out(descriptor, "descriptor")? = smbdirect_buffer_descriptor {
                offset,
                token,
                length,
            };
            Ok(())
        })
    }
}

/// Ends the access of the peer, and waits until nothing uses the memory any more. Also right for a
/// registration that the peer has invalidated.
///
/// Stores the buffer, which belongs to the program again, in `buffer` and returns 0; free the region
/// then. Returns SMBDIRECT_ERROR_WOULD_BLOCK or _TIMED_OUT if queued work still uses the memory: the peer has
/// no access any more, and the call has to be repeated for the buffer. Returns SMBDIRECT_ERROR_INVALID if another
/// call has got the buffer, _ABORTED if the region is freed meanwhile, and another error if the buffer was lost.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smbdirect_deregister(
    region: *mut smbdirect_region,
    timeout_ms: i32,
    buffer: *mut *mut smbdirect_buffer,
    error: *mut smbdirect_error,
) -> i32 {
    // SAFETY: all pointers follow the rules for arguments.
    unsafe {
        call_status(error, || {
            let handle = pointers::handle(region, "region")?;
            let out = pointers::out(buffer, "buffer")?;
            handle.runtime.check()?;
            let bytes = handle.end(timeout_ms)?;
            *out = buffer::give(bytes);
            Ok(())
        })
    }
}

impl smbdirect_region {
    /// Ends the registration and returns the buffer.
    fn end(&self, timeout_ms: i32) -> Result<BytesMut, Failure> {
        let waker = match timeout_ms {
            0 => self.events.waker(),
            _ => Waker::noop().clone(),
        };
        let ended = self
            .runtime
            .wait(timeout_ms, &waker, &self.calls, self.deregister());
        if timeout_ms != 0 {
            // A call that does not wait could not get the lock, or this one has taken the place of its waker.
            self.events.signal();
        }
        ended?
    }

    /// Ends the registration. If the future is dropped, the next call continues.
    async fn deregister(&self) -> Result<BytesMut, Failure> {
        let mut state = self.state.lock().await;
        *state = match std::mem::replace(&mut *state, State::Ended) {
            State::Registered(region) => State::Ending(Box::pin(region.deregister())),
            other => other,
        };
        let State::Ending(ending) = &mut *state else {
            return Err(Failure::invalid("the region was deregistered before"));
        };
        let result = ending.await;
        *state = State::Ended;
        Ok(result?)
    }
}

impl Drop for smbdirect_region {
    fn drop(&mut self) {
        let state = std::mem::replace(self.state.get_mut(), State::Ended);
        self.runtime.release(state);
    }
}

/// Frees a region. A registration that was not ended is ended, and its buffer is freed when nothing uses it
/// any more. Calls of other threads that wait in smbdirect_deregister() end with SMBDIRECT_ERROR_ABORTED. NULL, and a
/// region that was freed before, are ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smbdirect_region_free(region: *mut smbdirect_region) {
    // SAFETY: there is no error to store.
    unsafe {
        call_status(std::ptr::null_mut(), || {
            pointers::handle(region, "region")?.runtime.check()?;
            pointers::take(region, "region")?.calls.end();
            Ok(())
        });
    }
}
