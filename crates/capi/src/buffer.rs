//! Memory of the library, for registrations and RDMA Reads without a copy.

use std::{
    alloc::{Layout, alloc_zeroed},
    ffi::c_void,
    ptr,
    sync::{Arc, Mutex},
};

use bytes::{Bytes, BytesMut};

use crate::{
    locks::lock,
    pointers,
    status::{Failure, SMBDIRECT_ERROR_SYSTEM},
};

/// A block of memory that belongs to the library. A program may use its bytes as long as it owns the buffer:
/// registering the buffer or reading into it hands it to the library, which returns it when it is done.
pub struct smbdirect_buffer {
    pub(crate) bytes: Mutex<BytesMut>,
}

/// Returns the handle of a buffer.
pub(crate) fn give(bytes: BytesMut) -> *mut smbdirect_buffer {
    pointers::give(Arc::new(smbdirect_buffer {
        bytes: Mutex::new(bytes),
    }))
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

/// Creates a buffer of `length` zero bytes. Returns NULL if there is not enough memory.
#[unsafe(no_mangle)]
pub extern "C" fn smbdirect_buffer_new(length: usize) -> *mut smbdirect_buffer {
    zeroed(length).map_or(ptr::null_mut(), give)
}

/// Returns zero bytes, or `None` if there is not enough memory. The system provides the pages when they are used.
pub(crate) fn zeroed(length: usize) -> Option<BytesMut> {
    if length == 0 {
        return Some(BytesMut::new());
    }
    let layout = Layout::array::<u8>(length).ok()?;
    // SAFETY: the size of the layout is not 0. The vector gets memory of the global allocator with the layout of its
    // capacity, and zeros are initialised bytes.
    let memory = unsafe {
        let memory = alloc_zeroed(layout);
        if memory.is_null() {
            return None;
        }
        Vec::from_raw_parts(memory, length, length)
    };
    // A vector without spare capacity becomes `Bytes` and `BytesMut` without a copy.
    let bytes = Bytes::from(memory).try_into_mut();
    Some(bytes.expect("there is no other reference"))
}

/// Returns a copy of bytes.
///
/// # Errors
/// There is not enough memory.
pub(crate) fn copy(parts: &[&[u8]], length: usize) -> Result<Bytes, Failure> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(length)
        .map_err(|_| no_memory(length))?;
    for part in parts {
        copy.extend_from_slice(part);
    }
    Ok(copy.into())
}

/// Returns the failure of an allocation.
pub(crate) fn no_memory(length: usize) -> Failure {
    let message = format!("there is no memory for {length} bytes");
    Failure::new(SMBDIRECT_ERROR_SYSTEM, message).with_errno(Some(libc::ENOMEM))
}

/// Returns the address of the first byte. The bytes may be used until the buffer is handed over or freed.
/// Returns NULL for NULL and for a buffer that was
/// freed or handed over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smbdirect_buffer_data(buffer: *mut smbdirect_buffer) -> *mut c_void {
    match pointers::handle(buffer, "buffer") {
        Ok(buffer) => lock(&buffer.bytes).as_mut_ptr().cast(),
        Err(_) => ptr::null_mut(),
    }
}

/// Returns the number of bytes, and 0 for NULL and for a buffer that was freed or handed over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smbdirect_buffer_length(buffer: *const smbdirect_buffer) -> usize {
    pointers::handle(buffer, "buffer").map_or(0, |buffer| lock(&buffer.bytes).len())
}

/// Frees a buffer. NULL, and a buffer that was freed or handed over, are ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smbdirect_buffer_free(buffer: *mut smbdirect_buffer) {
    drop(pointers::take(buffer, "buffer"));
}
