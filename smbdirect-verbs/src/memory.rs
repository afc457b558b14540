//! Registered memory: protection domains, regions, windows, and the pool of small buffers that
//! messages are sent from and received into.
//!
//! What the adapter may touch is owned by a [`OwnedRegion`] until the registration has ended. Nothing looks at such memory through a reference meanwhile.

use std::{
    alloc::{self, Layout, handle_alloc_error},
    collections::HashMap,
    ffi::c_int,
    io,
    mem::ManuallyDrop,
    ptr::NonNull,
    slice,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;

use crate::{
    cm::CmId,
    error::log_ffi_error,
    ffi::{self, ibv_mr, ibv_mw, ibv_pd},
};

/// A protection domain: what is registered in one means nothing in another. Each connection has
/// its own.
pub(crate) struct Domain {
    raw: NonNull<ibv_pd>,
    id: Arc<CmId>,
}

// SAFETY: libibverbs is thread-safe, and a protection domain belongs to no thread.
unsafe impl Send for Domain {}
// SAFETY: as above; nothing of it is changed through a shared reference.
unsafe impl Sync for Domain {}

impl Domain {
    pub(crate) fn new(id: Arc<CmId>) -> io::Result<Arc<Self>> {
        // SAFETY: the context lives as long as the identifier that is bound to it.
        let raw = unsafe { (id.functions().ibv_alloc_pd)(id.context()) };
        match NonNull::new(raw) {
            Some(raw) => Ok(Arc::new(Self { raw, id })),
            None => Err(io::Error::last_os_error()),
        }
    }

    pub(crate) fn raw(&self) -> *mut ibv_pd {
        self.raw.as_ptr()
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: regions, windows and the queue pair hold the domain, so they are gone.
        let error = unsafe { (self.id.functions().ibv_dealloc_pd)(self.raw.as_ptr()) };
        log_ffi_error(self.id.span(), "ibv_dealloc_pd", error);
    }
}

/// A memory region. What it spans, and until when, is the business of [`OwnedRegion`].
struct Region {
    raw: NonNull<ibv_mr>,
    domain: Arc<Domain>,
}

// SAFETY: libibverbs is thread-safe, and a region belongs to no thread.
unsafe impl Send for Region {}
// SAFETY: as above; nothing of it is changed through a shared reference.
unsafe impl Sync for Region {}

/// Memory with its registration, if it has one: bytes that the adapter may touch until that ends.
///
/// A registration that cannot be ended keeps its bytes for good: they are neither freed nor handed
/// out, as the adapter, and with it a peer, may still write to them.
pub(crate) struct OwnedRegion<M> {
    region: Option<Region>,
    address: u64,
    length: usize,
    memory: ManuallyDrop<M>,
    /// The registration could not be ended.
    lost: bool,
}

impl<M> OwnedRegion<M> {
    /// # Safety
    /// `address` and `length` are bytes that `memory` owns, which stay where they are when it is
    /// moved. Until the registration has ended no reference to them exists that what `access`
    /// allows would break: none at all if it allows writing.
    ///
    /// # Errors
    /// The adapter does not register it; the memory comes back.
    pub(crate) unsafe fn new(
        domain: &Arc<Domain>,
        memory: M,
        address: *mut u8,
        length: usize,
        access: c_int,
    ) -> Result<Self, (M, io::Error)> {
        let reg_mr = domain.id.functions().ibv_reg_mr;
        // SAFETY: the caller answers for the bytes.
        let raw = unsafe { reg_mr(domain.raw(), address.cast(), length, access) };
        let Some(raw) = NonNull::new(raw) else {
            return Err((memory, io::Error::last_os_error()));
        };
        Ok(Self {
            region: Some(Region {
                raw,
                domain: domain.clone(),
            }),
            address: address as u64,
            length,
            memory: ManuallyDrop::new(memory),
            lost: false,
        })
    }

    /// Memory that the adapter does not know, as there is nothing of it.
    pub(crate) const fn nothing(memory: M) -> Self {
        Self {
            region: None,
            address: 0,
            length: 0,
            memory: ManuallyDrop::new(memory),
            lost: false,
        }
    }

    pub(crate) const fn is_registered(&self) -> bool {
        self.region.is_some()
    }

    /// Where the registered bytes are.
    pub(crate) const fn address(&self) -> u64 {
        self.address
    }

    /// How many there are.
    pub(crate) const fn length(&self) -> usize {
        self.length
    }

    /// The registration, if there is one.
    pub(crate) fn raw(&self) -> Option<*mut ibv_mr> {
        self.region.as_ref().map(|region| region.raw.as_ptr())
    }

    /// Opens it to this machine's own work requests; 0 where nothing is registered.
    pub(crate) fn local_key(&self) -> u32 {
        // SAFETY: the library filled it in and does not change it.
        self.raw().map_or(0, |raw| unsafe { (*raw).lkey })
    }

    /// Opens it to the peer, as far as the access goes; 0 where nothing is registered.
    pub(crate) fn remote_key(&self) -> u32 {
        // SAFETY: as above.
        self.raw().map_or(0, |raw| unsafe { (*raw).rkey })
    }

    /// Ends the registration; whether the adapter has let go of the bytes.
    pub(crate) fn end(&mut self) -> bool {
        if let Some(region) = self.region.take() {
            // SAFETY: it was registered, and is deregistered once.
            let error = unsafe { (region.domain.id.functions().ibv_dereg_mr)(region.raw.as_ptr()) };
            log_ffi_error(region.domain.id.span(), "ibv_dereg_mr", error);
            self.lost = error != 0;
        }
        !self.lost
    }

    /// Ends the registration; the memory, unless the adapter has not let go of it.
    pub(crate) fn into_memory(self) -> Option<M> {
        let mut held = ManuallyDrop::new(self);
        // SAFETY: neither is looked at or dropped after this, and `end` leaves no region.
        held.end()
            .then(|| unsafe { ManuallyDrop::take(&mut held.memory) })
    }
}

impl<M> Drop for OwnedRegion<M> {
    fn drop(&mut self) {
        if self.end() {
            // SAFETY: it is dropped once, with what holds it.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}

/// A memory window of type 2: a token for a region that the peer can invalidate.
pub(crate) struct Window {
    raw: NonNull<ibv_mw>,
    domain: Arc<Domain>,
    remote_key: u32,
}

// SAFETY: libibverbs is thread-safe, and a window belongs to no thread.
unsafe impl Send for Window {}
// SAFETY: as above; nothing of it is changed through a shared reference.
unsafe impl Sync for Window {}

impl Window {
    /// A window that is not bound to anything yet.
    pub(crate) fn new(domain: &Arc<Domain>) -> io::Result<Self> {
        let ops = domain.id.ops();
        let alloc_mw = ops.alloc_mw.ok_or(io::ErrorKind::Unsupported)?;
        // SAFETY: the function is the one of the device that the domain is of.
        let raw = unsafe { alloc_mw(domain.raw(), ffi::IBV_MW_TYPE_2) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the library filled it in.
        let allocated = unsafe { (*raw.as_ptr()).rkey };
        // The low 8 bits are for the owner to choose; each binding is to have new ones.
        let remote_key = (allocated & !0xff) | (allocated.wrapping_add(1) & 0xff);
        Ok(Self {
            raw,
            domain: domain.clone(),
            remote_key,
        })
    }

    pub(crate) fn raw(&self) -> *mut ibv_mw {
        self.raw.as_ptr()
    }

    /// The token it has once bound.
    pub(crate) fn remote_key(&self) -> u32 {
        self.remote_key
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if let Some(dealloc_mw) = self.domain.id.ops().dealloc_mw {
            // SAFETY: it was allocated by the same device, and is given back once.
            let error = unsafe { dealloc_mw(self.raw.as_ptr()) };
            log_ffi_error(self.domain.id.span(), "ibv_dealloc_mw", error);
        }
    }
}

/// The smallest buffer of a pool.
const SMALLEST: usize = 256;
/// Bytes that are registered at once, at least.
const CHUNK: usize = 64 << 10;
/// Bytes that are registered at once, at most, unless one buffer has more.
const LARGEST_CHUNK: usize = 1 << 20;
/// Buffers of one size that may be lent out; messages that come beyond it are copied, so that who
/// keeps many small ones does not keep the adapter's memory.
const MAX_LENT: usize = 1024;

/// Registered buffers of sizes that are powers of two. It grows as needed and never shrinks; who
/// posts no more than the queue pair has room for keeps it small.
pub(crate) struct Pool {
    domain: Arc<Domain>,
    regions: Vec<OwnedRegion<Arc<Memory>>>,
    /// Bytes registered for each size.
    registered: HashMap<usize, usize>,
    free: Arc<Free>,
}

#[derive(Default)]
struct Free {
    slots: Mutex<HashMap<usize, FreeSlots>>,
}

#[derive(Default)]
struct FreeSlots {
    slots: Vec<Slot>,
    lent: usize,
}

impl Free {
    fn lock(&self) -> MutexGuard<'_, HashMap<usize, FreeSlots>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One buffer of a pool. It belongs to one owner at a time: a work request, a loan, or the pool.
pub(crate) struct Slot {
    memory: Arc<Memory>,
    offset: usize,
    size: usize,
    local_key: u32,
}

impl Pool {
    pub(crate) fn new(domain: Arc<Domain>) -> Self {
        Self {
            domain,
            regions: Vec::new(),
            registered: HashMap::new(),
            free: Arc::default(),
        }
    }

    /// A buffer of at least `length` bytes.
    pub(crate) fn take(&mut self, length: usize) -> io::Result<Slot> {
        let size = length.max(SMALLEST).next_power_of_two();
        if let Some(slot) = self.free.lock().entry(size).or_default().slots.pop() {
            return Ok(slot);
        }
        self.grow(size)?;
        let slot = self.free.lock().entry(size).or_default().slots.pop();
        Ok(slot.expect("there are new ones of this size"))
    }

    fn grow(&mut self, size: usize) -> io::Result<()> {
        let registered = self.registered.entry(size).or_default();
        let length = size.max((*registered).clamp(CHUNK, LARGEST_CHUNK));
        let memory = Arc::new(Memory::new(length));
        let start = memory.start.as_ptr();
        // SAFETY: the memory stays where it is. References are made only by who owns a slot of it
        // that is not posted.
        let region = unsafe {
            let access = ffi::IBV_ACCESS_LOCAL_WRITE;
            OwnedRegion::new(&self.domain, memory.clone(), start, length, access)
        }
        .map_err(|(_, error)| error)?;
        *registered += length;
        let local_key = region.local_key();
        self.regions.push(region);
        let slots = (0..length / size).map(|i| Slot {
            memory: memory.clone(),
            offset: i * size,
            size,
            local_key,
        });
        self.free
            .lock()
            .entry(size)
            .or_default()
            .slots
            .extend(slots);
        Ok(())
    }

    /// Takes a buffer back.
    pub(crate) fn put(&self, slot: Slot) {
        self.free
            .lock()
            .entry(slot.size)
            .or_default()
            .slots
            .push(slot);
    }

    /// The first `length` bytes of a buffer that the adapter has filled; it comes back when they
    /// are dropped.
    pub(crate) fn lend(&self, slot: Slot, length: usize) -> Bytes {
        assert!(
            length <= slot.size,
            "the adapter says no more than was posted"
        );
        let mut free = self.free.lock();
        let sizes = free.entry(slot.size).or_default();
        if length <= SMALLEST || sizes.lent >= MAX_LENT {
            let message = Bytes::copy_from_slice(&slot.bytes()[..length]);
            sizes.slots.push(slot);
            return message;
        }
        sizes.lent += 1;
        drop(free);
        let loan = Loan {
            slot: Some(slot),
            length,
            free: self.free.clone(),
        };
        Bytes::from_owner(loan)
    }
}

/// A message in a buffer of the pool.
struct Loan {
    slot: Option<Slot>,
    length: usize,
    free: Arc<Free>,
}

impl AsRef<[u8]> for Loan {
    fn as_ref(&self) -> &[u8] {
        let slot = self.slot.as_ref().expect("it is there until it is dropped");
        &slot.bytes()[..self.length]
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        let slot = self.slot.take().expect("it is dropped once");
        let mut free = self.free.lock();
        let sizes = free.entry(slot.size).or_default();
        sizes.lent -= 1;
        sizes.slots.push(slot);
    }
}

impl Slot {
    pub(crate) fn address(&self) -> u64 {
        self.start().as_ptr() as u64
    }

    pub(crate) const fn local_key(&self) -> u32 {
        self.local_key
    }

    fn start(&self) -> NonNull<u8> {
        // SAFETY: a slot lies within its memory.
        unsafe { self.memory.start.add(self.offset) }
    }

    /// Its bytes, for who owns it and has not posted it.
    fn bytes(&self) -> &[u8] {
        // SAFETY: the bytes are initialised from the start and stay allocated; who owns a slot is
        // the only one to look at it, and the adapter does so only while it is posted.
        unsafe { slice::from_raw_parts(self.start().as_ptr(), self.size) }
    }

    /// Its bytes to be written, likewise.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and slots do not overlap.
        unsafe { slice::from_raw_parts_mut(self.start().as_ptr(), self.size) }
    }
}

/// Memory on pages of its own: what is registered is not to share them with anything else.
struct Memory {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it is plain memory; who looks at which part of it is the slots' business.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

const PAGE: usize = 4096;

impl Memory {
    fn new(length: usize) -> Self {
        let layout = Layout::from_size_align(length, PAGE).expect("a message fits into memory");
        // SAFETY: the length is at least that of the smallest buffer.
        let start = unsafe { alloc::alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else {
            handle_alloc_error(layout);
        };
        Self { start, layout }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout, and no slot is left.
        unsafe { alloc::dealloc(self.start.as_ptr(), self.layout) };
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::c_void;

    use super::*;
    use crate::ffi::{Functions, ibv_context};

    unsafe extern "C" fn alloc_pd(_: *mut ibv_context) -> *mut ibv_pd {
        NonNull::dangling().as_ptr()
    }

    unsafe extern "C" fn dealloc_pd(_: *mut ibv_pd) -> c_int {
        0
    }

    unsafe extern "C" fn reg_mr(
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        _: c_int,
    ) -> *mut ibv_mr {
        Box::leak(Box::new(ibv_mr {
            context: std::ptr::null_mut(),
            pd,
            addr,
            length,
            handle: 0,
            lkey: 1,
            rkey: 2,
        }))
    }

    /// Looks at every byte that was registered, as an adapter may until now.
    unsafe extern "C" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
        // SAFETY: it was made above, and its bytes are to be there still.
        let (mr, bytes) = unsafe {
            let mr = Box::from_raw(mr);
            let bytes = slice::from_raw_parts(mr.addr.cast::<u8>(), mr.length);
            (mr, bytes)
        };
        assert_eq!(bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>(), 0);
        drop(mr);
        0
    }

    unsafe extern "C" fn refuses(mr: *mut ibv_mr) -> c_int {
        // SAFETY: as above.
        drop(unsafe { Box::from_raw(mr) });
        16
    }

    fn domain(dereg_mr: unsafe extern "C" fn(*mut ibv_mr) -> c_int) -> Arc<Domain> {
        let mut functions = Functions::none();
        functions.ibv_alloc_pd = alloc_pd;
        functions.ibv_dealloc_pd = dealloc_pd;
        functions.ibv_reg_mr = reg_mr;
        functions.ibv_dereg_mr = dereg_mr;
        Domain::new(CmId::fake(functions)).unwrap()
    }

    /// Memory that can be registered, and something that is gone when it is.
    fn watched() -> (Arc<Memory>, std::sync::Weak<Memory>) {
        let memory = Arc::new(Memory::new(PAGE));
        let watch = Arc::downgrade(&memory);
        (memory, watch)
    }

    fn held(domain: &Arc<Domain>, memory: Arc<Memory>) -> OwnedRegion<Arc<Memory>> {
        let start = memory.start.as_ptr();
        // SAFETY: the memory stays where it is, and nobody looks at it.
        let held =
            unsafe { OwnedRegion::new(domain, memory, start, PAGE, ffi::IBV_ACCESS_REMOTE_WRITE) };
        held.map_err(|(_, error)| error).unwrap()
    }

    #[test]
    fn memory_goes_with_its_registration() {
        let domain = domain(dereg_mr);
        let (memory, watch) = watched();
        drop(held(&domain, memory));
        assert!(watch.upgrade().is_none());
        let (memory, watch) = watched();
        let memory = held(&domain, memory).into_memory();
        assert!(memory.is_some());
        drop(memory);
        assert!(watch.upgrade().is_none());
    }

    #[test]
    fn what_the_adapter_keeps_is_neither_freed_nor_handed_out() {
        let domain = domain(refuses);
        let (memory, dropped) = watched();
        drop(held(&domain, memory));
        let (memory, taken) = watched();
        assert!(held(&domain, memory).into_memory().is_none());
        let (memory, ended) = watched();
        let mut held = held(&domain, memory);
        assert!(!held.end());
        assert!(!held.end(), "it is no better the second time");
        drop(held);
        for watch in [dropped, taken, ended] {
            // SAFETY: it was kept by what is gone, and this gives it back once.
            unsafe { Arc::decrement_strong_count(watch.as_ptr()) };
            assert!(watch.upgrade().is_none(), "it was kept once");
        }
    }

    #[test]
    fn the_pool_keeps_memory_whose_only_buffer_is_gone() {
        let mut pool = Pool::new(domain(dereg_mr));
        // Of this size there is one to a registration.
        let slot = pool.take(CHUNK).unwrap();
        assert_eq!(slot.size, CHUNK);
        let watch = Arc::downgrade(&slot.memory);
        drop(slot);
        assert!(watch.upgrade().is_some(), "it is registered");
        drop(pool);
        assert!(watch.upgrade().is_none());
    }
}
