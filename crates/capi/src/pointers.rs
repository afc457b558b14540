//! Checked access to what callers pass: handles are looked up, null is an error, and lengths and counts have
//! limits.

use std::{
    any::Any,
    collections::BTreeMap,
    ffi::{CStr, c_char, c_int},
    ptr, slice,
    sync::{
        Arc, PoisonError, RwLock, RwLockWriteGuard,
        atomic::{AtomicUsize, Ordering},
    },
};

use libc::iovec;

use crate::status::Failure;

/// Maximum number of parts of a message or buffer descriptors in one call.
const MAX_PARTS: usize = 1024;

/// The distance between two handles.
const HANDLE_STEP: usize = 16;

/// The objects behind all live handles. A handle is a key of this map in the type of a pointer, and is never
/// dereferenced. A call holds a reference to its object, so that another thread can free the handle meanwhile. On
/// 64-bit machines no key is used twice, so that a call with a handle that was freed fails.
static OBJECTS: RwLock<Objects> = RwLock::new(BTreeMap::new());

pub(crate) type Objects = BTreeMap<usize, Arc<dyn Any + Send + Sync>>;

/// Returns a new handle of an object.
pub(crate) fn give<T: Any + Send + Sync>(object: Arc<T>) -> *mut T {
    static NEXT: AtomicUsize = AtomicUsize::new(HANDLE_STEP);

    let mut objects = lock_objects();
    loop {
        let key = NEXT.fetch_add(HANDLE_STEP, Ordering::Relaxed);
        if key != 0 && !objects.contains_key(&key) {
            objects.insert(key, object);
            return ptr::without_provenance_mut(key);
        }
    }
}

/// Returns the object behind a handle.
///
/// # Errors
/// The handle is null, of another kind, or not live.
pub(crate) fn handle<T: Any + Send + Sync>(
    handle: *const T,
    name: &str,
) -> Result<Arc<T>, Failure> {
    let objects = OBJECTS.read().unwrap_or_else(PoisonError::into_inner);
    let found = objects.get(&handle.addr()).cloned();
    drop(objects);
    found
        .and_then(|object| object.downcast().ok())
        .ok_or_else(|| no_handle(handle.addr(), name))
}

/// Ends a handle and returns its object, which other threads may still use. Only one of several threads gets it.
///
/// # Errors
/// As [`handle`].
pub(crate) fn take<T: Any + Send + Sync>(handle: *const T, name: &str) -> Result<Arc<T>, Failure> {
    let mut objects = lock_objects();
    let is_of_kind = objects
        .get(&handle.addr())
        .is_some_and(|object| (**object).is::<T>());
    let taken = is_of_kind.then(|| objects.remove(&handle.addr()));
    drop(objects);
    let object = taken.flatten().and_then(|object| object.downcast().ok());
    object.ok_or_else(|| no_handle(handle.addr(), name))
}

/// Makes a handle that was taken live again.
pub(crate) fn put_back<T: Any + Send + Sync>(handle: *const T, object: Arc<T>) {
    lock_objects().insert(handle.addr(), object);
}

/// Returns the number of live handles of this process, for tests.
pub fn live_handles() -> usize {
    lock_objects().len()
}

/// Locks the objects. No user code runs under the lock.
pub(crate) fn lock_objects() -> RwLockWriteGuard<'static, Objects> {
    OBJECTS.write().unwrap_or_else(PoisonError::into_inner)
}

fn no_handle(key: usize, name: &str) -> Failure {
    match key {
        0 => Failure::invalid(format!("{name} is NULL")),
        _ => Failure::invalid(format!("{name} was freed before, or is not a handle")),
    }
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
