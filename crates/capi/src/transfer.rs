//! RDMA Reads and Writes of the peer's memory.

use std::ffi::c_void;

use smbdirect::BufferDescriptorV1;

use crate::{
    borrowed,
    buffer::{self, Owned, smbdirect_buffer},
    connection::{smbdirect_callback, smbdirect_connection},
    locks::lock,
    operations::Callback,
    pointers,
    region::smbdirect_buffer_descriptor,
    status::{Failure, call_status, smbdirect_error},
};

/// Returns the descriptors of a caller.
///
/// # Safety
/// `descriptors` is valid for reads of `count` elements, or `count` is 0.
unsafe fn range(
    descriptors: *const smbdirect_buffer_descriptor,
    count: usize,
) -> Result<Vec<BufferDescriptorV1>, Failure> {
    // SAFETY: the caller's array has `count` elements.
    let descriptors = unsafe { pointers::array(descriptors, count, "descriptors") }?;
    Ok(descriptors.iter().map(Into::into).collect())
}

/// Reads `length` bytes of the peer's memory into `data` by RDMA Read, from `offset` bytes into the range of
/// `count` descriptors, and waits for them for up to `timeout_ms` milliseconds, which must not be 0.
///
/// Returns 0 when the bytes are in `data`. Otherwise `data` is unchanged, and it returns SMBDIRECT_ERROR_INVALID,
/// _TIMED_OUT, _RANGE, or why the connection is over. A read that timed out continues without the caller.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smbdirect_read(
    connection: *mut smbdirect_connection,
    descriptors: *const smbdirect_buffer_descriptor,
    count: usize,
    offset: u64,
    data: *mut c_void,
    length: usize,
    timeout_ms: i32,
    error: *mut smbdirect_error,
) -> i32 {
    // SAFETY: all pointers follow the rules for arguments.
    unsafe {
        call_status(error, || {
            let handle = pointers::handle(connection, "connection")?;
            let range = range(descriptors, count)?;
            if (data.is_null() && length > 0) || timeout_ms == 0 {
                return Err(Failure::invalid("data is NULL, or the timeout is 0"));
            }
            let connection = handle.connection()?;
            let into = buffer::zeroed(length).ok_or_else(|| buffer::no_memory(length))?;
            let reading = handle
                .runtime
                .enter(|| connection.read(&range, offset, into));
            let read = handle.wait(timeout_ms, reading)?;
            let read = read.map_err(|error| Failure::from(error.fault))?;
            // SAFETY: the caller's memory has `length` bytes, as the buffer of the read has.
            data.cast::<u8>()
                .copy_from_nonoverlapping(read.as_ptr(), length);
            Ok(())
        })
    }
}

/// Starts to fill `*buffer` by RDMA Read without a copy and without waiting. On success the buffer belongs
/// to the library, `*buffer` becomes NULL, and `callback` gets it back, with unspecified contents if the read
/// failed.
///
/// Returns 0 when the read was submitted. Otherwise the buffer is unchanged, the callback is not called,
/// and it returns SMBDIRECT_ERROR_INVALID or why there is no connection.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smbdirect_read_start(
    connection: *mut smbdirect_connection,
    descriptors: *const smbdirect_buffer_descriptor,
    count: usize,
    offset: u64,
    buffer: *mut *mut smbdirect_buffer,
    callback: smbdirect_callback,
    user_data: *mut c_void,
    error: *mut smbdirect_error,
) -> i32 {
    // SAFETY: all pointers follow the rules for arguments, and the caller hands over the buffer.
    unsafe {
        call_status(error, || {
            let handle = pointers::handle(connection, "connection")?;
            let range = range(descriptors, count)?;
            let buffer = pointers::out(buffer, "buffer")?;
            let connection = handle.connection()?;
            let started = handle.operations.start()?;
            let owned = Owned::take(*buffer)?;
            *buffer = std::ptr::null_mut();
            let into = std::mem::take(&mut *lock(&owned.buffer.bytes));
            let reading = handle
                .runtime
                .enter(|| connection.read(&range, offset, into));
            let events = handle.events.clone();
            let callback = Callback::new(callback, user_data);
            handle.run_operation(started, callback, async move {
                // The read of a handle that was freed continues without the program.
                let (result, bytes) = match events.calls.wait(reading).await {
                    Ok(Ok(bytes)) => (Ok(()), Some(bytes)),
                    Ok(Err(error)) => (Err(error.fault.into()), error.buffer),
                    Err(freed) => (Err(freed), None),
                };
                let buffer = bytes.map(|bytes| {
                    *lock(&owned.buffer.bytes) = bytes;
                    owned
                });
                (result, buffer)
            });
            Ok(())
        })
    }
}

/// Writes `length` bytes of `data` to the peer's memory by RDMA Write, from `offset` bytes into the range of
/// `count` descriptors. The bytes are copied. Waits for up to `timeout_ms` milliseconds, which must not be
/// 0, until they were handed to the wire. They are in place before the peer receives any message that is
/// sent after this call.
///
/// Returns 0, or SMBDIRECT_ERROR_INVALID, _TIMED_OUT, _RANGE, or why the connection is over. A write that timed
/// out continues without the caller.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smbdirect_write(
    connection: *mut smbdirect_connection,
    descriptors: *const smbdirect_buffer_descriptor,
    count: usize,
    offset: u64,
    data: *const c_void,
    length: usize,
    timeout_ms: i32,
    error: *mut smbdirect_error,
) -> i32 {
    // SAFETY: all pointers follow the rules for arguments.
    unsafe {
        call_status(error, || {
            let handle = pointers::handle(connection, "connection")?;
            let range = range(descriptors, count)?;
            if timeout_ms == 0 {
                return Err(Failure::invalid("a timeout of 0"));
            }
            let data = pointers::memory(data.cast(), length, "data")?;
            let connection = handle.connection()?;
            let copy = buffer::copy(&[data], length)?;
            let writing = handle
                .runtime
                .enter(|| connection.write(&range, offset, copy));
            Ok(handle.wait(timeout_ms, writing)??)
        })
    }
}

/// Starts an RDMA Write without a copy and without waiting. The memory at `data` must stay valid and
/// unchanged until `callback` is called, which smbdirect_service() does when the last byte was handed to
/// the wire. The transport "loopback" copies.
///
/// Returns 0 when the write was submitted. Otherwise the callback is not called, and it returns
/// SMBDIRECT_ERROR_INVALID or why there is no connection.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smbdirect_write_start(
    connection: *mut smbdirect_connection,
    descriptors: *const smbdirect_buffer_descriptor,
    count: usize,
    offset: u64,
    data: *const c_void,
    length: usize,
    callback: smbdirect_callback,
    user_data: *mut c_void,
    error: *mut smbdirect_error,
) -> i32 {
    // SAFETY: all pointers follow the rules for arguments, and the memory stays valid until the callback,
    // which follows the release of the bytes.
    unsafe {
        call_status(error, || {
            let handle = pointers::handle(connection, "connection")?;
            let range = range(descriptors, count)?;
            let data = pointers::memory(data.cast(), length, "data")?;
            let connection = handle.connection()?;
            let started = handle.operations.start()?;
            let (mut parts, released) = borrowed::lend(&[data], handle.copies);
            let data = parts.pop().unwrap_or_default();
            let writing = handle
                .runtime
                .enter(|| connection.write(&range, offset, data));
            let callback = Callback::new(callback, user_data);
            handle.run_operation(started, callback, async move {
                let result = writing.await;
                released.wait().await;
                (result.map_err(Into::into), None)
            });
            Ok(())
        })
    }
}
