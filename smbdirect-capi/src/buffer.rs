//! Memory of the library, for registrations and RDMA Reads without a copy.

use std::{ffi::c_void, ptr};

use bytes::BytesMut;

use crate::pointers;

/// A block of memory that belongs to the library. A program may use its bytes as long as it owns the buffer:
/// registering the buffer or reading into it hands it to the library, which returns it when it is done.
pub struct smbdirect_buffer {
    pub(crate) bytes: BytesMut,
}

impl smbdirect_buffer {
    pub(crate) fn new(bytes: BytesMut) -> Box<Self> {
        Box::new(Self { bytes })
    }
}

/// Creates a buffer of `length` zero bytes. Returns NULL if there is not enough memory.
#[unsafe(no_mangle)]
pub extern "C" fn smbdirect_buffer_new(length: usize) -> *mut smbdirect_buffer {
    let mut memory = Vec::new();
    if memory.try_reserve_exact(length).is_err() {
        return ptr::null_mut();
    }
    memory.resize(length, 0u8);
    // A vector without spare capacity becomes `Bytes` and `BytesMut` without a copy.
    let bytes = bytes::Bytes::from(memory);
    let bytes = bytes
        .try_into_mut()
        .unwrap_or_else(|bytes| BytesMut::from(&*bytes));
    Box::into_raw(smbdirect_buffer::new(bytes))
}

/// Returns the address of the first byte. The bytes may be used until the buffer is handed over or freed.
/// Returns NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smbdirect_buffer_data(buffer: *mut smbdirect_buffer) -> *mut c_void {
    // SAFETY: `buffer` follows the rules for handles, and its owner uses it on one thread.
    match unsafe { buffer.as_mut() } {
        Some(buffer) => buffer.bytes.as_mut_ptr().cast(),
        None => ptr::null_mut(),
    }
}

/// Returns the number of bytes, and 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smbdirect_buffer_length(buffer: *const smbdirect_buffer) -> usize {
    // SAFETY: `buffer` follows the rules for handles.
    unsafe { buffer.as_ref() }.map_or(0, |buffer| buffer.bytes.len())
}

/// Frees a buffer. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smbdirect_buffer_free(buffer: *mut smbdirect_buffer) {
    // SAFETY: `buffer` follows the rules for handles.
    drop(unsafe { pointers::take(buffer) });
}
