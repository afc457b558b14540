//! Checked access to what callers pass: null is an error, and lengths and counts have limits.

use std::{
    ffi::{CStr, c_char, c_int},
    slice,
};

use libc::iovec;

use crate::status::Failure;

/// Most parts of a message or buffer descriptors in one call.
const MAX_PARTS: usize = 1024;

/// Returns the object behind a handle.
///
/// # Safety
/// `pointer` is null, or came from this library, was not freed, and is not freed during the call.
pub(crate) unsafe fn handle<'a, T>(pointer: *const T, name: &str) -> Result<&'a T, Failure> {
    // SAFETY: a pointer that is not null points to a live object. All handles are used by shared
    // reference only, and their types synchronise what threads share.
    unsafe { pointer.as_ref() }.ok_or_else(|| Failure::invalid(format!("{name} is NULL")))
}

/// Returns where to store a result.
///
/// # Safety
/// `pointer` is null or valid for writes for the time of the call, and nothing else uses that memory.
pub(crate) unsafe fn out<'a, T>(pointer: *mut T, name: &str) -> Result<&'a mut T, Failure> {
    // SAFETY: the caller has exclusive access to the memory for the time of the call.
    unsafe { pointer.as_mut() }.ok_or_else(|| Failure::invalid(format!("{name} is NULL")))
}

/// Returns a text.
///
/// # Safety
/// `pointer` is null, or points to bytes that end with a 0 and stay unchanged during the call.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, name: &str) -> Result<&'a str, Failure> {
    if pointer.is_null() {
        return Err(Failure::invalid(format!("{name} is NULL")));
    }
    // SAFETY: the bytes end with a 0, and they do not change during the call.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str()
        .map_err(|_| Failure::invalid(format!("{name} is not UTF-8")))
}

/// Returns an array of at most [`MAX_PARTS`] values.
///
/// # Safety
/// `pointer` is valid for reads of `count` values that stay unchanged during the call, or `count` is 0.
pub(crate) unsafe fn array<'a, T>(
    pointer: *const T,
    count: usize,
    name: &str,
) -> Result<&'a [T], Failure> {
    match (pointer.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Failure::invalid(format!("{name} is NULL"))),
        (false, count) if count > MAX_PARTS => {
            let message = format!("{name} has {count} elements, at most {MAX_PARTS} are allowed");
            Err(Failure::invalid(message))
        }
        // SAFETY: the caller's array has `count` values, and `MAX_PARTS` of any type here are far below
        // `isize::MAX` bytes.
        (false, count) => Ok(unsafe { slice::from_raw_parts(pointer, count) }),
    }
}

/// Returns the memory of a caller.
///
/// # Safety
/// `pointer` is valid for reads of `length` bytes that stay unchanged as long as `'a`, or `length` is 0.
pub(crate) unsafe fn memory<'a>(
    pointer: *const u8,
    length: usize,
    name: &str,
) -> Result<&'a [u8], Failure> {
    match (pointer.is_null(), length) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Failure::invalid(format!("{name} is NULL"))),
        (false, length) if isize::try_from(length).is_err() => {
            Err(Failure::invalid(format!("{name} has {length} bytes")))
        }
        // SAFETY: the caller's memory has `length` bytes, which fit in an `isize`.
        (false, length) => Ok(unsafe { slice::from_raw_parts(pointer, length) }),
    }
}

/// Returns the parts of a message that a caller passes, and their length together.
///
/// # Safety
/// `parts` is valid for reads of `count` elements, and each of them describes memory that is valid for
/// reads and stays unchanged as long as `'a`.
pub(crate) unsafe fn parts<'a>(
    parts: *const iovec,
    count: c_int,
) -> Result<(Vec<&'a [u8]>, usize), Failure> {
    let count = usize::try_from(count).map_err(|_| Failure::invalid("iovcnt is negative"))?;
    // SAFETY: the caller's array has `count` elements.
    let parts = unsafe { array(parts, count, "iov") }?;
    let parts = parts.iter().map(|part| {
        // SAFETY: each element describes memory that is valid for reads.
        unsafe { memory(part.iov_base.cast_const().cast(), part.iov_len, "iov_base") }
    });
    let parts = parts.collect::<Result<Vec<_>, _>>()?;
    let length = parts
        .iter()
        .try_fold(0usize, |sum, part| sum.checked_add(part.len()));
    let length = length.ok_or_else(|| Failure::invalid("the parts are longer than memory"))?;
    Ok((parts, length))
}

/// Frees the object behind a handle. Null is ignored.
///
/// # Safety
/// `pointer` is null, or came from `Box::into_raw` and is used nowhere else any more.
pub(crate) unsafe fn take<T>(pointer: *mut T) -> Option<Box<T>> {
    // SAFETY: the caller gives up a pointer that came from `Box::into_raw`.
    (!pointer.is_null()).then(|| unsafe { Box::from_raw(pointer) })
}
