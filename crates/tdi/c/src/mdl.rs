//! MDLs: descriptions of the client's memory, which can be chained, and how the transport lends that memory.

use std::{ffi::c_void, fmt, iter, ptr, ptr::NonNull, sync::Arc};

use bytes::Bytes;
use smbdirect::Message;
use smbdirect_tdi::{ReceiveTarget, Status};
use tokio::sync::oneshot;

use crate::layout::{Irp, MDL_PAGES_LOCKED, Mdl, NtStatus, nt};

/// The result of a request: its status, and IoStatus.Information.
pub(crate) type Outcome = (Status, usize);

/// Pages have this size in descriptions.
const PAGE_BYTES: usize = 4096;
/// Maximum number of descriptions of a chain, so that a chain that leads back to itself ends.
const MAX_CHAIN: usize = 1 << 16;

/// Allocates a description of memory. With an IRP it becomes the IRP's, or with `secondary` the last of its chain.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn IoAllocateMdl(
    address: *mut c_void,
    length: u32,
    secondary: u8,
    _charge_quota: u8,
    irp: *mut Irp,
) -> *mut Mdl {
    // SAFETY: the size is not 0. The memory is of malloc, so that tools find wrong uses of it.
    let mdl = unsafe { libc::malloc(size_of::<Mdl>()) }.cast::<Mdl>();
    if mdl.is_null() {
        return mdl;
    }
    // SAFETY: the memory has the size of a description. The caller promises that the IRP is null, or valid with its
    // chain.
    unsafe {
        mdl.write(description(address, length));
        if !irp.is_null() {
            let first = &raw mut (*irp).mdl_address;
            let last = parts(*first).filter(|_| secondary != 0).last();
            *last.map_or(first, |last| &raw mut (*last.cast_mut()).next) = mdl;
        }
    }
    mdl
}

/// Frees the descriptions of an IRP's chain whose memory is locked, and leaves the others in the chain.
///
/// # Safety
/// The IRP and its chain are valid.
pub(crate) unsafe fn free_locked(irp: *mut Irp) {
    // SAFETY: the caller promises a valid chain.
    unsafe {
        let mut place = &raw mut (*irp).mdl_address;
        for mdl in parts(*place) {
            let mdl = mdl.cast_mut();
            if (*mdl).flags & MDL_PAGES_LOCKED != 0 {
                *place = (*mdl).next;
                IoFreeMdl(mdl);
            } else {
                place = &raw mut (*mdl).next;
            }
        }
    }
}

/// Returns a description of memory that is not mapped.
pub(crate) fn description(address: *mut c_void, length: u32) -> Mdl {
    let offset = address as usize % PAGE_BYTES;
    Mdl {
        next: ptr::null_mut(),
        size: size_of::<Mdl>() as i16,
        flags: 0,
        process: ptr::null_mut(),
        mapped_system_va: ptr::null_mut(),
        start_va: address.wrapping_byte_sub(offset),
        byte_count: length,
        byte_offset: offset as u32,
    }
}

/// Frees a description of `IoAllocateMdl`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn IoFreeMdl(mdl: *mut Mdl) {
    // SAFETY: the caller promises a description of `IoAllocateMdl`, or null.
    unsafe { libc::free(mdl.cast()) };
}

/// Returns the first byte that a description describes.
unsafe fn start(mdl: *const Mdl) -> *mut u8 {
    // SAFETY: the caller promises a valid description.
    unsafe {
        (*mdl)
            .start_va
            .cast::<u8>()
            .wrapping_add((*mdl).byte_offset as usize)
    }
}

/// Returns the descriptions of a chain, of which the next one is read before the caller gets one. A chain that leads
/// back to itself ends after [`MAX_CHAIN`] descriptions.
///
/// # Safety
/// The chain is null or valid while the iterator is used, except the descriptions that it has returned.
pub(crate) unsafe fn parts(mdl: *const Mdl) -> impl Iterator<Item = *const Mdl> {
    let mut next = mdl;
    iter::from_fn(move || {
        let mdl = (!next.is_null()).then_some(next)?;
        // SAFETY: the caller promises a valid chain.
        next = unsafe { (*mdl).next };
        Some(mdl)
    })
    .take(MAX_CHAIN)
}

/// Memory of the client's: where it starts, and its length.
pub(crate) type Span = (NonNull<u8>, usize);

/// Returns the first `length` bytes that a chain describes, without empty parts.
///
/// # Safety
/// The chain is null or valid.
///
/// # Errors
/// [`INVALID_PARAMETER`](Status::INVALID_PARAMETER): the chain is shorter.
pub(crate) unsafe fn spans(mdl: *const Mdl, length: usize) -> Result<Vec<Span>, Status> {
    let (mut spans, mut left) = (Vec::new(), length);
    // SAFETY: the caller promises a valid chain.
    for mdl in unsafe { parts(mdl) } {
        if left == 0 {
            break;
        }
        // SAFETY: as above.
        let (start, count) = unsafe { (start(mdl), (*mdl).byte_count) };
        let count = left.min(count as usize);
        if count > 0 {
            let start = NonNull::new(start).ok_or(Status::INVALID_PARAMETER)?;
            spans.push((start, count));
        }
        left -= count;
    }
    if left > 0 {
        return Err(Status::INVALID_PARAMETER);
    }
    Ok(spans)
}

/// A place for received data, in the memory of the client's.
#[derive(Debug)]
pub(crate) struct Target {
    spans: Vec<Span>,
    length: usize,
    /// The part that is filled next, and the number of its bytes that are filled.
    next: (usize, usize),
}

// SAFETY: the memory belongs to the transport while the target exists.
unsafe impl Send for Target {}

impl Target {
    /// Describes the first `length` bytes of a chain.
    ///
    /// # Safety
    /// The chain is null or valid, and its memory belongs to the transport while the target exists.
    ///
    /// # Errors
    /// As [`spans`].
    pub(crate) unsafe fn new(mdl: *const Mdl, length: usize) -> Result<Self, Status> {
        Ok(Self {
            // SAFETY: the promise includes that of `spans`.
            spans: unsafe { spans(mdl, length)? },
            length,
            next: (0, 0),
        })
    }

    /// Copies bytes after those of earlier calls.
    pub(crate) fn put(&mut self, mut bytes: &[u8]) {
        let (part, filled) = &mut self.next;
        while let Some((start, room)) = self.spans.get(*part)
            && !bytes.is_empty()
        {
            let count = bytes.len().min(room - *filled);
            // SAFETY: the part has `room` bytes, which belong to the transport while the target exists.
            unsafe {
                let place = start.as_ptr().add(*filled);
                place.copy_from_nonoverlapping(bytes.as_ptr(), count);
            };
            bytes = &bytes[count..];
            *filled += count;
            if filled == room {
                (*part, *filled) = (*part + 1, 0);
            }
        }
    }
}

/// A receive: its place, and what to do with its outcome.
pub(crate) struct Receive<F>(pub(crate) Target, pub(crate) F);

impl<F: FnOnce(Outcome) + Send> ReceiveTarget for Receive<F> {
    fn capacity(&self) -> usize {
        self.0.length
    }

    fn put(&mut self, bytes: &[u8]) {
        self.0.put(bytes);
    }

    fn completed(self: Box<Self>, status: Status, information: usize) {
        let Self(target, done) = *self;
        // The memory is the client's again when the outcome is known.
        drop(target);
        done((status, information));
    }
}

impl<F> fmt::Debug for Receive<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A notification that no part of the client's memory is used any more.
pub(crate) struct Released(Option<oneshot::Receiver<()>>);

impl Released {
    /// Waits until no part is used.
    pub(crate) async fn wait(self) {
        if let Some(receiver) = self.0 {
            // The sender is dropped without a value with the last part.
            let _ = receiver.await;
        }
    }
}

/// One part of a client's memory that is lent.
struct Part {
    span: Span,
    /// Dropped with the last part.
    _last: Arc<oneshot::Sender<()>>,
}

// SAFETY: the memory is only read, and the client keeps it unchanged until the request completes.
unsafe impl Send for Part {}

/// The starts of the parts that are lent, for tests.
#[cfg(test)]
pub(crate) static LENT: std::sync::Mutex<std::collections::BTreeSet<usize>> =
    std::sync::Mutex::new(std::collections::BTreeSet::new());

#[cfg(test)]
impl Drop for Part {
    fn drop(&mut self) {
        LENT.lock()
            .unwrap()
            .remove(&(self.span.0.as_ptr() as usize));
    }
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        let (start, length) = self.span;
        // SAFETY: `lend` promises that the memory is valid and unchanged until the last part is dropped.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), length) }
    }
}

/// Returns a client's memory as a message, and the notification of its release. Copies it only with `copies`.
///
/// # Safety
/// The memory stays valid and unchanged until [`Released::wait`] returns.
pub(crate) unsafe fn lend(spans: Vec<Span>, copies: bool) -> (Message, Released) {
    if copies {
        let copy = |(start, length): Span| {
            // SAFETY: the caller promises valid memory.
            Bytes::copy_from_slice(unsafe { std::slice::from_raw_parts(start.as_ptr(), length) })
        };
        return (spans.into_iter().map(copy).collect(), Released(None));
    }
    let (sender, receiver) = oneshot::channel();
    let last = Arc::new(sender);
    let lent = |span: Span| {
        #[cfg(test)]
        LENT.lock().unwrap().insert(span.0.as_ptr() as usize);
        Bytes::from_owner(Part {
            span,
            _last: last.clone(),
        })
    };
    (
        spans.into_iter().map(lent).collect(),
        Released(Some(receiver)),
    )
}

/// Copies from a buffer into the memory that a chain describes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TdiCopyBufferToMdl(
    source: *const c_void,
    source_offset: u32,
    length: u32,
    mdl: *const Mdl,
    mdl_offset: u32,
    copied: *mut u32,
) -> NtStatus {
    let source = source.cast::<u8>().wrapping_add(source_offset as usize);
    let copy = |at: *mut u8, done: usize, count: usize| {
        // SAFETY: the caller promises `length` bytes, of which these are a part, and a valid chain.
        unsafe { at.copy_from(source.wrapping_add(done), count) };
    };
    // SAFETY: the caller promises a valid chain, and a valid pointer.
    let (done, _) = unsafe { copy_along(mdl, mdl_offset, length, copied, copy) };
    overflow_if(done < length as usize)
}

/// Copies from the memory that a chain describes into a buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TdiCopyMdlToBuffer(
    mdl: *const Mdl,
    mdl_offset: u32,
    target: *mut c_void,
    target_offset: u32,
    target_size: u32,
    copied: *mut u32,
) -> NtStatus {
    let target = target.cast::<u8>().wrapping_add(target_offset as usize);
    let copy = |at: *mut u8, done: usize, count: usize| {
        // SAFETY: the caller promises a buffer of this size, and a valid chain.
        unsafe { target.wrapping_add(done).copy_from(at, count) };
    };
    let room = target_size.saturating_sub(target_offset);
    // SAFETY: the caller promises a valid chain, and a valid pointer.
    let (_, left) = unsafe { copy_along(mdl, mdl_offset, room, copied, copy) };
    overflow_if(left > 0)
}

/// Returns the status of a copy, with which a part was not copied if the target has no room for it.
const fn overflow_if(is_cut: bool) -> NtStatus {
    nt(if is_cut {
        Status::BUFFER_OVERFLOW
    } else {
        Status::SUCCESS
    })
}

/// Calls `copy` for the parts of a chain after `offset` bytes, for `length` bytes or the rest of the chain. Returns the
/// number of these bytes, and of those that the chain has after them.
///
/// # Safety
/// The chain is null or valid, and `copied` is null or valid.
unsafe fn copy_along(
    mdl: *const Mdl,
    offset: u32,
    length: u32,
    copied: *mut u32,
    copy: impl Fn(*mut u8, usize, usize),
) -> (usize, usize) {
    let (mut skip, mut done, mut left, length) = (offset as usize, 0, 0, length as usize);
    // SAFETY: the caller promises a valid chain.
    for mdl in unsafe { parts(mdl) } {
        // SAFETY: as above.
        let (start, count) = unsafe { (start(mdl), (*mdl).byte_count as usize) };
        let skipped = skip.min(count);
        skip -= skipped;
        let part = (count - skipped).min(length - done);
        if part > 0 {
            copy(start.wrapping_add(skipped), done, part);
        }
        done += part;
        left += count - skipped - part;
    }
    // SAFETY: the caller promises that it is null or valid.
    if let Some(copied) = unsafe { copied.as_mut() } {
        *copied = done as u32;
    }
    (done, left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn received_data_fills_the_parts_of_a_chain() {
        let mut memory = [0_u8; 10];
        let start = memory.as_mut_ptr();
        let mut second = description(start.wrapping_add(7).cast(), 3);
        let mut first = description(start.cast(), 4);
        first.next = &raw mut second;
        // SAFETY: the chain and its memory are valid.
        let mut target = unsafe { Target::new(&raw const first, 6) }.unwrap();
        target.put(b"abc");
        target.put(b"def");
        // There is no room for more.
        target.put(b"g");
        // SAFETY: nothing else uses the memory.
        let written = unsafe { std::slice::from_raw_parts(start, 10) };
        assert_eq!(written, b"abcd\0\0\0ef\0");
    }
}
